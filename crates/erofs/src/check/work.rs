//! Workers that read and decode data and discard it.
//!
//! Because the bytes are discarded, LZ4 clusters are verified in runs without output, and the pages of raw data are
//! only touched. A cluster that fails in a run is decoded alone for the message.

use super::finding::Rule;
use super::report::Totals;
use super::shared::Shared;
use crate::read::decode::{self, DecodeScope, Worker};
use crate::read::fetch::FETCH_MAX;
use crate::read::file::cluster_place;
use crate::read::map::{Cluster, ClusterCoding, Extent, Location};
use crate::read::{DeviceId, Image, Nid, Space};
use crate::{Error, Place};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, PoisonError};

/// Raw data up to this number of bytes is read together with the data that follows. Longer data is touched in place.
const SMALL: u64 = 16 << 10;

/// Largest number of clusters that are verified together.
const SEVERAL: usize = 64;

/// Largest number of bytes that are touched at a time.
const TOUCH_MAX: u64 = 16 << 20;

/// Extent that the workers read.
#[derive(Clone, Copy)]
pub(super) struct Job {
    /// First inode with this extent, for messages.
    pub(super) nid: Nid,
    pub(super) extent: Extent,
    /// Number of bytes after the data that should be zero: the rest of its last block.
    pub(super) padding: u32,
}

/// Unit of work for a worker.
pub(super) enum Item {
    /// Data in order of position.
    Jobs(Vec<Job>),
    /// Windows of metadata that the walk will need.
    Ahead(Range<u64>),
}

/// State of one worker.
pub(super) struct Work<'a> {
    image: &'a Image,
    shared: &'a Shared,
    in_place: bool,
    worker: Worker,
    out: Vec<u8>,
    /// Range that was touched last: device, start and end.
    touched: (DeviceId, u64, u64),
    /// Counters that are not yet added to the shared ones.
    totals: Totals,
}

impl<'a> Work<'a> {
    pub(super) fn new(image: &'a Image, shared: &'a Shared, in_place: bool) -> Self {
        Self {
            image,
            shared,
            in_place,
            worker: Worker::default(),
            out: Vec::new(),
            touched: (DeviceId::PRIMARY, 0, 0),
            totals: Totals::default(),
        }
    }

    /// Takes items until the queue ends.
    pub(super) fn run(mut self, queue: &Mutex<Receiver<Item>>) {
        let _guard = self.shared.worker();
        loop {
            let item = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            match item {
                Ok(Item::Jobs(jobs)) => {
                    self.jobs(&jobs);
                    self.shared.items.fetch_sub(1, Relaxed);
                }
                Ok(Item::Ahead(windows)) => {
                    for n in windows {
                        // The walk reports the error if it needs the window.
                        let _ = self.image.window_of(Space::Image, n);
                    }
                }
                Err(_) => return,
            }
        }
    }

    /// Runs jobs in order of position.
    pub(super) fn jobs(&mut self, jobs: &[Job]) {
        let mut rest = jobs;
        while !rest.is_empty() {
            let n = lz4_run(rest).max(1);
            if n == 1 || !self.several(&rest[..n]) {
                for i in 0..n {
                    self.alone(&rest[i], &rest[i + 1..]);
                }
            }
            rest = &rest[n..];
        }
        self.shared.totals.add(&std::mem::take(&mut self.totals));
    }

    fn alone(&mut self, job: &Job, later: &[Job]) {
        if let Err(e) = self.job(job, later) {
            let rule = match job.extent.location {
                Location::Raw { .. } => Rule::DataRange,
                _ => Rule::Cluster,
            };
            self.shared.failed(rule, Place::nid(job.nid), &e);
        }
    }

    fn job(&mut self, job: &Job, later: &[Job]) -> Result<(), Error> {
        let extent = &job.extent;
        match extent.location {
            Location::Raw { device, pos } => self.raw(job, device, pos, later),
            Location::Inline {
                space,
                pos,
                len,
                coding,
            } => {
                let src = self.image.bytes(space, pos, len as usize)?;
                let out = room(&mut self.out, self.image.decoded_len(extent)?);
                self.totals.raw_bytes += u64::from(len);
                self.image
                    .decode(
                        &mut self.worker,
                        coding,
                        &src,
                        extent,
                        DecodeScope::All,
                        out,
                    )
                    .map_err(|e| e.at(format_args!("inline data at byte {pos:#x}")))
            }
            Location::Cluster(cluster) => self.cluster(job, cluster, later),
            Location::Hole | Location::Fragment { .. } => Ok(()),
        }
    }

    fn raw(&mut self, job: &Job, device: DeviceId, pos: u64, later: &[Job]) -> Result<(), Error> {
        let devices = &self.image.devices;
        let len = job.extent.len;
        let both = len + u64::from(job.padding);
        // The padding of the last block may be missing at the end of the image.
        let padding = match devices.has(device, pos, both) {
            Ok(()) => job.padding as usize,
            Err(_) => 0,
        };
        let rest = if both <= SMALL {
            // Fits: at most SMALL.
            let (data, all) = (len as usize, len as usize + padding);
            let run = || raw_from(device, pos, both, later);
            let bytes = self.worker.fetched.get(devices, device, pos, all, run)?;
            &bytes[data..]
        } else {
            self.touch(device, pos, len, later)?;
            let rest = room(&mut self.out, padding);
            self.image.devices.read(device, pos + len, rest)?;
            rest
        };
        if rest.iter().any(|b| *b != 0) {
            self.shared.warning(
                Rule::Padding,
                format_args!("nid {}: byte {:#x}", job.nid, pos + len),
                "bytes after the end of the data are not zero",
            );
        }
        self.totals.raw_bytes += len;
        Ok(())
    }

    /// Reads bytes without inspecting their values, together with the following jobs of the same kind.
    fn touch(&mut self, device: DeviceId, pos: u64, len: u64, later: &[Job]) -> Result<(), Error> {
        let (on, start, end) = self.touched;
        if on == device && start <= pos && pos + len <= end {
            return Ok(());
        }
        let devices = &self.image.devices;
        let run = plain_from(device, pos, len, later);
        // An error elsewhere in the run does not concern this job.
        if run > len && devices.touch(device, pos, run).is_ok() {
            self.touched = (device, pos, pos + run);
            return Ok(());
        }
        devices.touch(device, pos, len)
    }

    /// Verifies consecutive LZ4 clusters without output. Returns false if one of them must be decoded alone.
    fn several(&mut self, jobs: &[Job]) -> bool {
        let form = self.image.form();
        if self.in_place || !form.right_aligned {
            return false;
        }
        let clusters = || jobs.iter().filter_map(whole_lz4);
        let pos = clusters().next().map_or(0, |c| c.pos);
        let len = clusters().map(|c| c.len as usize).sum();
        let devices = &self.image.devices;
        let fetched = &mut self.worker.fetched;
        let Ok(mut src) = fetched.get(devices, DeviceId::PRIMARY, pos, len, || 0) else {
            return false;
        };
        let mut blocks = [(&[][..], 0); SEVERAL];
        for ((job, cluster), block) in jobs.iter().zip(clusters()).zip(&mut blocks) {
            let (this, rest) = src.split_at(cluster.len as usize);
            src = rest;
            let (Ok(stream), Ok(len)) = (
                decode::strip(this, form.bits),
                self.image.decoded_len(&job.extent),
            ) else {
                return false;
            };
            *block = (stream, len);
        }
        if !tuff_codec::lz4_validate(blocks[..jobs.len()].iter().copied()) {
            return false;
        }
        for (job, cluster) in jobs.iter().zip(clusters()) {
            self.count(job, cluster);
        }
        true
    }

    fn count(&mut self, job: &Job, cluster: Cluster) {
        self.totals.clusters += 1;
        self.totals.encoded_bytes += u64::from(cluster.len);
        self.totals.decoded_bytes += job.extent.len;
        self.totals.lz4_clusters += u64::from(cluster.coding == ClusterCoding::Compressed(0));
    }

    fn cluster(&mut self, job: &Job, cluster: Cluster, later: &[Job]) -> Result<(), Error> {
        let (image, extent) = (self.image, &job.extent);
        if is_plain(job) {
            let place = |e: Error| e.within(cluster_place(extent, cluster));
            self.touch(DeviceId::PRIMARY, cluster.pos, cluster.len.into(), later)
                .map_err(place)?;
            self.count(job, cluster);
            return Ok(());
        }
        let out = room(&mut self.out, image.decoded_len(extent)?);
        let run = || run_from(cluster, later);
        let all = 0..out.len();
        image.decode_cluster(&mut self.worker, extent, cluster, run, all, out)?;
        self.count(job, cluster);
        let lz4 = self.in_place && cluster.coding == ClusterCoding::Compressed(0);
        let zstd = cluster.coding == ClusterCoding::Compressed(3);
        if !lz4 && !zstd {
            return Ok(());
        }
        let (devices, len) = (&image.devices, cluster.len as usize);
        let src = self
            .worker
            .fetched
            .get(devices, DeviceId::PRIMARY, cluster.pos, len, || 0)?;
        let Ok(stream) = decode::strip(src, image.form().bits) else {
            return Ok(());
        };
        if lz4 && !cluster.partial && tuff_codec::lz4_decodes_in_place(stream, extent.len as usize)
        {
            self.totals.lz4_in_place += 1;
        }
        if zstd {
            check_window(image, self.shared, job, cluster, stream);
        }
        Ok(())
    }
}

/// Returns the cluster of a job that is LZ4 and decoded as a whole.
fn whole_lz4(job: &Job) -> Option<Cluster> {
    match job.extent.location {
        Location::Cluster(c) if c.coding == ClusterCoding::Compressed(0) && !c.partial => Some(c),
        _ => None,
    }
}

/// Returns how many of the first jobs are contiguous LZ4 clusters that one read can fetch.
fn lz4_run(jobs: &[Job]) -> usize {
    let mut run: Option<(u64, u64)> = None;
    let next = |job: &&Job| {
        let Some(c) = whole_lz4(job) else {
            return false;
        };
        // Cannot overflow: the cluster was found on its device.
        let end = c.pos + u64::from(c.len);
        let start = match run {
            None => c.pos,
            Some((start, at)) if at == c.pos && end - start <= FETCH_MAX => start,
            Some(_) => return false,
        };
        run = Some((start, end));
        true
    };
    jobs.iter().take(SEVERAL).take_while(next).count()
}

/// Returns true for a cluster that stores the bytes of its extent, with the expected length.
fn is_plain(job: &Job) -> bool {
    match job.extent.location {
        Location::Cluster(c) => {
            c.coding == ClusterCoding::Stored && u64::from(c.len) >= job.extent.len
        }
        _ => false,
    }
}

/// Returns the number of bytes from `pos` on, over this job and the following ones, that are only touched.
fn plain_from(device: DeviceId, pos: u64, len: u64, later: &[Job]) -> u64 {
    let mut end = pos + len;
    for job in later {
        let (at, len) = match job.extent.location {
            Location::Raw { device: d, pos } if d == device && job.extent.len > SMALL => {
                (pos, job.extent.len)
            }
            Location::Cluster(c) if device == DeviceId::PRIMARY && is_plain(job) => {
                (c.pos, c.len.into())
            }
            _ => break,
        };
        // The padding of a last block may be between two ranges.
        if at < end || at - end > SMALL || at + len - pos > TOUCH_MAX {
            break;
        }
        end = at + len;
    }
    end - pos
}

/// Returns the number of bytes from `pos` on to fetch in one read: contiguous short raw data, including
/// padding.
fn raw_from(device: DeviceId, pos: u64, len: u64, later: &[Job]) -> u64 {
    let mut end = pos + len;
    for job in later {
        let len = job.extent.len + u64::from(job.padding);
        match job.extent.location {
            Location::Raw { device: d, pos: at }
                if d == device && at == end && len <= SMALL && end + len - pos <= FETCH_MAX =>
            {
                end += len;
            }
            _ => break,
        }
    }
    end - pos
}

fn room(out: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if out.len() < len {
        out.resize(len, 0);
    }
    &mut out[..len]
}

/// Returns the number of bytes from `cluster` on to fetch in one read: contiguous clusters.
fn run_from(cluster: Cluster, later: &[Job]) -> u64 {
    let mut end = cluster.pos + u64::from(cluster.len);
    for job in later {
        match job.extent.location {
            Location::Cluster(c) if c.pos == end && end - cluster.pos <= FETCH_MAX => {
                end += u64::from(c.len);
            }
            _ => break,
        }
    }
    end - cluster.pos
}

/// Checks that the window of a Zstandard frame is not larger than the image states.
fn check_window(image: &Image, shared: &Shared, job: &Job, cluster: Cluster, stream: &[u8]) {
    let Some(log) = image.configs().zstd_window_log else {
        return;
    };
    let window = zstd_window(stream, job.extent.len);
    if window.is_some_and(|w| w > 1 << log) {
        shared.error(
            Rule::Config,
            Place::from(cluster_place(&job.extent, cluster)).within(Place::nid(job.nid)),
            format_args!(
                "window of {} bytes, but the image states at most {}",
                window.unwrap_or(0),
                1u64 << log
            ),
        );
    }
}

/// Returns the window size in a frame's header. `content` is the content size of a single segment.
fn zstd_window(frame: &[u8], content: u64) -> Option<u64> {
    let (descriptor, rest) = frame.get(4..)?.split_first()?;
    if descriptor & 0x20 != 0 {
        return Some(content);
    }
    let byte = u64::from(*rest.first()?);
    let base = 1u64.checked_shl(10 + (byte >> 3) as u32)?;
    Some(base + base / 8 * (byte & 7))
}
