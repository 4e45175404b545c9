//! Collection of all data extents, each read once, in order of position.

use super::finding::Rule;
use super::marks::{DataMap, Owner};
use super::near::Near;
use super::report::{Options, Totals};
use super::shared::Shared;
use super::work::{Item, Job, Work};
use crate::read::fetch::StorePosition;
use crate::read::file::cluster_place;
use crate::read::map::{Cluster, Extent, Location};
use crate::read::{DeviceId, Image, Inode, Nid};
use crate::threads;
use crate::{Error, Place, Result};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::Scope;
use tuff_format::cluster::Coding;

/// Number of jobs that are sorted together.
const BATCH: usize = 4096;
/// Number of image bytes that one worker takes at a time.
const ITEM: u64 = 1 << 20;
/// Longest range of raw data in a job, in bytes.
const RAW: u64 = 1 << 20;
/// Largest number of cluster prefixes that wait for an extent of the whole cluster.
const PREFIXES: usize = 1 << 18;

/// Readers of the data.
enum Readers<'a> {
    /// Data is not read.
    Nobody,
    /// Workers, fed by this queue.
    Workers(SyncSender<Item>),
    /// The walk itself, because no thread could be started.
    Walk(Box<Work<'a>>),
}

/// Queue of extents that the walk has found.
pub(super) struct Jobs<'a> {
    image: &'a Image,
    shared: &'a Shared,
    batch: Vec<Job>,
    prefixes: Vec<Job>,
    readers: Readers<'a>,
    map: DataMap,
    near: Near<'a>,
    /// Counters of the walk that are not yet added to the shared ones.
    pub(super) totals: Totals,
}

impl<'a> Readers<'a> {
    fn start<'s>(
        image: &'a Image,
        options: &Options,
        shared: &'a Shared,
        scope: &'s Scope<'s, 'a>,
    ) -> Self {
        let count = options.worker_count();
        let (send, receive) = sync_channel(4 * count);
        let receive = Arc::new(Mutex::new(receive));
        let in_place = options.in_place;
        let work = move || Work::new(image, shared, in_place);
        match threads::start(scope, "check", count, move || work().run(&receive)) {
            0 => Self::Walk(Box::new(work())),
            started => {
                // No worker has ended: the queue is open.
                shared.workers.store(started, Relaxed);
                Self::Workers(send)
            }
        }
    }
}

impl<'a> Jobs<'a> {
    /// Creates the queue and starts the workers, unless the data is not checked.
    pub(super) fn start<'s>(
        image: &'a Image,
        options: &Options,
        shared: &'a Shared,
        scope: &'s Scope<'s, 'a>,
    ) -> Self {
        let readers = if options.data {
            Readers::start(image, options, shared, scope)
        } else {
            Readers::Nobody
        };
        Self {
            image,
            shared,
            batch: Vec::new(),
            prefixes: Vec::new(),
            readers,
            map: DataMap::default(),
            near: Near::new(image),
            totals: Totals::default(),
        }
    }

    /// Returns an inode, like [`Image::inode`]. Idle workers read ahead after it.
    pub(super) fn inode(&mut self, nid: Nid) -> Result<Inode> {
        let (readers, items) = (&self.readers, &self.shared.items);
        self.near.inode(nid, |windows| {
            if let Readers::Workers(queue) = readers
                && items.load(Relaxed) == 0
            {
                let _ = queue.try_send(Item::Ahead(windows));
            }
        })
    }

    /// Adds an extent of `nid`: marks its blocks, and queues it if it is new.
    pub(super) fn add(&mut self, nid: Nid, extent: Extent, last: bool) {
        match extent.location {
            Location::Hole | Location::Fragment { .. } => {}
            // Nothing to decode, and the bytes follow the inode, which was just read.
            Location::Inline {
                space,
                pos,
                len,
                coding: Coding::Stored,
            } if !matches!(self.readers, Readers::Nobody) => {
                match self.near.check_readable(space, pos, len as usize) {
                    Ok(()) => self.totals.raw_bytes += u64::from(len),
                    Err(e) => self.shared.failed(Rule::DataRange, Place::nid(nid), &e),
                }
            }
            Location::Inline { .. } => self.push(Job {
                nid,
                extent,
                padding: 0,
            }),
            Location::Raw { device, pos } => self.raw(nid, extent, device, pos, last),
            Location::Cluster(cluster) => self.cluster(nid, extent, cluster),
        }
    }

    fn raw(&mut self, nid: Nid, extent: Extent, device: DeviceId, pos: u64, last: bool) {
        let bits = self.image.superblock().block_bits;
        let mut done = 0;
        while done < extent.len {
            let at = pos.saturating_add(done);
            let (spot, left) = match self.image.devices.locate(device, at) {
                Ok(found) => found,
                Err(e) => {
                    let place = format!("nid {nid}");
                    return self.shared.failed(Rule::DataRange, place, &e);
                }
            };
            let n = (extent.len - done).min(RAW).min(left);
            if let Err(e) = self.image.devices.has(device, at, n) {
                if self.leaves_out(&e) {
                    return;
                }
                return self.shared.failed(Rule::DataRange, Place::nid(nid), &e);
            }
            let padding = if last && done + n == extent.len {
                (bits.size() - 1) & n.wrapping_neg()
            } else {
                0
            };
            if self.take_raw(nid, spot, n) {
                let source = Location::Raw { device, pos: at };
                let extent = Extent {
                    offset: extent.offset + done,
                    len: n,
                    location: source,
                };
                let padding = padding as u32; // fits: below a block
                self.push(Job {
                    nid,
                    extent,
                    padding,
                });
            }
            done += n;
        }
    }

    /// Returns true for the error of data on an absent device, which a check of the metadata does not need.
    fn leaves_out(&self, e: &Error) -> bool {
        matches!((e, &self.readers), (Error::Usage(_), Readers::Nobody))
    }

    /// Marks blocks of raw data. Returns true if one of them is new.
    fn take_raw(&mut self, nid: Nid, spot: StorePosition, len: u64) -> bool {
        let bits = self.image.superblock().block_bits;
        let mut new = false;
        for block in spot.pos >> bits.get()..bits.count(spot.pos + len) {
            match self.map.get(spot.store, block) {
                Owner::Raw => {}
                Owner::Free => {
                    self.map.set(spot.store, block, Owner::Raw);
                    new = true;
                }
                _ => {
                    self.overlap(nid, spot.store, block, "data");
                    return new;
                }
            }
        }
        new
    }

    fn overlap(&self, nid: Nid, store: u16, block: u64, what: &str) {
        let bits = self.image.superblock().block_bits.get();
        let device = match store {
            0 => String::new(),
            n => format!("device {n}, "),
        };
        self.shared.error(
            Rule::Overlap,
            format_args!("nid {nid}: {device}byte {:#x}", block << bits),
            format_args!("the block of this {what} also belongs to a cluster"),
        );
    }

    fn cluster(&mut self, nid: Nid, extent: Extent, cluster: Cluster) {
        let bits = self.image.superblock().block_bits;
        let place = || Place::from(cluster_place(&extent, cluster)).within(Place::nid(nid));
        let inside = self
            .image
            .devices
            .has(DeviceId::PRIMARY, cluster.pos, cluster.len.into())
            .and_then(|()| self.image.devices.locate(DeviceId::PRIMARY, cluster.pos));
        let spot = match inside {
            Ok((spot, _)) => spot,
            Err(e) if self.leaves_out(&e) => return,
            Err(e) => return self.shared.failed(Rule::DataRange, place(), &e),
        };
        let aligned = bits.within(cluster.pos) == 0;
        let first = spot.pos >> bits.get();
        let blocks = first..bits.count(spot.pos + u64::from(cluster.len));
        let before = if aligned {
            self.map.get(spot.store, first)
        } else {
            self.map.odd(cluster.pos)
        };
        // Fits: the map allows at most 12 MiB.
        let len = extent.len as u32;
        let job = Job {
            nid,
            extent,
            padding: 0,
        };
        let owner = match (before, cluster.partial) {
            (Owner::Whole(have), false) if have == len => return,
            (Owner::Whole(have), true) if have >= len => return,
            (Owner::Whole(have), _) => {
                return self.shared.error(
                    Rule::Cluster,
                    place(),
                    format_args!(
                        "extent of {len} bytes, but another extent of the cluster has {have} bytes"
                    ),
                );
            }
            (Owner::Inside | Owner::Raw, _) => {
                self.overlap(nid, spot.store, first, "cluster");
                return self.push(job);
            }
            (Owner::Free, true) | (Owner::Partial, true) => {
                self.prefixes.push(job);
                Owner::Partial
            }
            (Owner::Free | Owner::Partial, false) => {
                self.push(job);
                Owner::Whole(len)
            }
        };
        if !aligned {
            self.map.set_odd(cluster.pos, owner);
        } else {
            self.map.set(spot.store, first, owner);
        }
        // Clusters of encoded extents may share a block with their neighbours. Only whole blocks have one owner.
        let rest = first + 1..blocks.end;
        let whole = aligned && bits.within(cluster.len.into()) == 0;
        if before == Owner::Free && whole {
            for block in rest {
                match self.map.get(spot.store, block) {
                    Owner::Free => self.map.set(spot.store, block, Owner::Inside),
                    _ => {
                        self.overlap(nid, spot.store, block, "cluster");
                        break;
                    }
                }
            }
        }
        if self.prefixes.len() >= PREFIXES {
            self.flush_prefixes();
        }
    }

    fn push(&mut self, job: Job) {
        if matches!(self.readers, Readers::Nobody) {
            return;
        }
        self.batch.push(job);
        if self.batch.len() >= BATCH {
            self.flush();
        }
    }

    /// Queues the batch in runs by position.
    fn flush(&mut self) {
        self.batch.sort_unstable_by_key(|job| place_of(&job.extent));
        let mut rest = &self.batch[..];
        while !rest.is_empty() {
            let (mut n, mut bytes) = (0, 0);
            while n < rest.len() && (n == 0 || bytes < ITEM) {
                bytes += weight(&rest[n].extent);
                n += 1;
            }
            match &mut self.readers {
                Readers::Nobody => {}
                Readers::Workers(queue) => {
                    // The workers end only when the queue does.
                    self.shared.items.fetch_add(1, Relaxed);
                    let _ = queue.send(Item::Jobs(rest[..n].to_vec()));
                }
                Readers::Walk(work) => work.jobs(&rest[..n]),
            }
            rest = &rest[n..];
        }
        self.batch.clear();
    }

    /// Queues the longest prefix of each cluster that no extent covers as a whole.
    fn flush_prefixes(&mut self) {
        let mut prefixes = std::mem::take(&mut self.prefixes);
        let key = |job: &Job| (place_of(&job.extent), std::cmp::Reverse(job.extent.len));
        prefixes.sort_unstable_by_key(key);
        prefixes.dedup_by_key(|job| place_of(&job.extent));
        for job in prefixes {
            let Location::Cluster(cluster) = job.extent.location else {
                continue;
            };
            let bits = self.image.superblock().block_bits;
            let owner = match self.image.devices.locate(DeviceId::PRIMARY, cluster.pos) {
                Ok((spot, _)) if bits.within(cluster.pos) == 0 => {
                    self.map.get(spot.store, spot.pos >> bits.get())
                }
                _ => self.map.odd(cluster.pos),
            };
            match owner {
                Owner::Whole(have) if u64::from(have) < job.extent.len => self.shared.error(
                    Rule::Cluster,
                    Place::from(cluster_place(&job.extent, cluster)).within(Place::nid(job.nid)),
                    format_args!(
                        "extent of {} bytes, but another extent of the cluster has {have} bytes",
                        job.extent.len
                    ),
                ),
                Owner::Whole(_) => {}
                _ => self.push(job),
            }
        }
    }

    /// Closes the queue. The workers end when it is empty.
    pub(super) fn finish(mut self) -> DataMap {
        self.flush_prefixes();
        self.flush();
        self.shared.totals.add(&self.totals);
        self.map
    }
}

/// Returns the sort key of an extent's bytes.
fn place_of(extent: &Extent) -> (u8, u16, u64) {
    match extent.location {
        Location::Raw { device, pos } => (0, device.0, pos),
        Location::Cluster(cluster) => (0, 0, cluster.pos),
        Location::Inline { space, pos, .. } => (1, space as u16, pos),
        Location::Hole | Location::Fragment { .. } => (2, 0, 0),
    }
}

fn weight(extent: &Extent) -> u64 {
    match extent.location {
        // Decoding costs more than reading.
        Location::Cluster(cluster) => u64::from(cluster.len).max(extent.len / 4),
        _ => extent.len,
    }
}
