//! Workers: they read, decode, look, and forget.

use super::data::Job;
use super::{Rule, Shared, Totals};
use crate::Error;
use crate::read::Image;
use crate::read::decode::{self, Want, Worker};
use crate::read::fetch::FETCH_MAX;
use crate::read::file::cluster_place;
use crate::read::map::{Cluster, ClusterCoding, Source};
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, PoisonError};

/// Raw data is read in pieces that stay in the processor's cache. Unit: bytes.
const READ: usize = 128 << 10;

/// What one thread needs for its jobs.
pub(super) struct Work<'a> {
    image: &'a Image,
    shared: &'a Shared,
    in_place: bool,
    worker: Worker,
    out: Vec<u8>,
    /// Since they were last added to the common ones.
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
            totals: Totals::default(),
        }
    }

    /// Takes items until there are no more. Each is in order of position.
    pub(super) fn run(mut self, queue: &Mutex<Receiver<Vec<Job>>>) {
        let _here = self.shared.worker();
        loop {
            let item = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(item) = item else { return };
            let mut rest = &item[..];
            while let Some((job, later)) = rest.split_first() {
                if let Err(e) = self.job(job, later) {
                    let rule = match job.extent.source {
                        Source::Raw { .. } => Rule::DataRange,
                        _ => Rule::Cluster,
                    };
                    self.shared.failed(rule, &format!("nid {}", job.nid), &e);
                }
                rest = later;
            }
            self.shared.totals.add(&std::mem::take(&mut self.totals));
        }
    }

    fn job(&mut self, job: &Job, later: &[Job]) -> Result<(), Error> {
        let extent = &job.extent;
        match extent.source {
            Source::Raw { device, pos } => self.raw(job, device, pos),
            Source::Inline {
                space,
                pos,
                len,
                coding,
            } => {
                let src = self.image.bytes(space, pos, len as usize)?;
                let out = room(&mut self.out, self.image.decoded_len(extent)?);
                self.totals.raw_bytes += u64::from(len);
                self.image
                    .decode(&mut self.worker, coding, &src, extent, Want::All, out)
                    .map_err(|e| Error::corrupt(format_args!("inline data at byte {pos:#x}"), e))
            }
            Source::Cluster(cluster) => self.cluster(job, cluster, later),
            Source::Hole | Source::Fragment { .. } => Ok(()),
        }
    }

    fn raw(&mut self, job: &Job, device: u16, pos: u64) -> Result<(), Error> {
        let devices = &self.image.devices;
        let len = job.extent.len;
        let both = len + u64::from(job.padding);
        // The padding of the last block may be missing where the image ends.
        let end = match devices.has(device, pos, both) {
            Ok(()) => both,
            Err(_) => len,
        };
        let mut done = 0;
        while done < end {
            let n = (end - done).min(READ as u64) as usize;
            let out = room(&mut self.out, n);
            devices.read(device, pos.saturating_add(done), out)?;
            // In bounds: at most `n`.
            let data = len.saturating_sub(done).min(n as u64) as usize;
            if out[data..].iter().any(|b| *b != 0) {
                self.shared.warning(
                    Rule::Padding,
                    format_args!("nid {}: byte {:#x}", job.nid, pos + len),
                    "bytes behind the end of the data are not zero",
                );
            }
            done += n as u64;
        }
        self.totals.raw_bytes += len;
        Ok(())
    }

    fn cluster(&mut self, job: &Job, cluster: Cluster, later: &[Job]) -> Result<(), Error> {
        let (image, extent) = (self.image, &job.extent);
        let out = room(&mut self.out, image.decoded_len(extent)?);
        let run = || run_from(cluster, later);
        image.decode_cluster(&mut self.worker, extent, cluster, run, out)?;
        self.totals.clusters += 1;
        self.totals.encoded_bytes += u64::from(cluster.len);
        self.totals.decoded_bytes += extent.len;
        self.totals.lz4_clusters += u64::from(cluster.coding == ClusterCoding::Compressed(0));
        let lz4 = self.in_place && cluster.coding == ClusterCoding::Compressed(0);
        let zstd = cluster.coding == ClusterCoding::Compressed(3);
        if !lz4 && !zstd {
            return Ok(());
        }
        let (devices, len) = (&image.devices, cluster.len as usize);
        let src = self
            .worker
            .fetched
            .get(devices, 0, cluster.pos, len, || 0)?;
        let Ok(stream) = decode::strip(src, image.form().bits) else {
            return Ok(());
        };
        if lz4 && !cluster.partial && tuff_codec::lz4_in_place(stream, out.len()) {
            self.totals.lz4_in_place += 1;
        }
        if zstd {
            check_window(image, self.shared, job, cluster, stream);
        }
        Ok(())
    }
}

fn room(out: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if out.len() < len {
        out.resize(len, 0);
    }
    &mut out[..len]
}

/// Bytes from `cluster` on that are worth fetching at once: clusters side by side.
fn run_from(cluster: Cluster, later: &[Job]) -> u64 {
    let mut end = cluster.pos + u64::from(cluster.len);
    for job in later {
        match job.extent.source {
            Source::Cluster(c) if c.pos == end && end - cluster.pos <= FETCH_MAX => {
                end += u64::from(c.len);
            }
            _ => break,
        }
    }
    end - cluster.pos
}

/// The window of a Zstandard frame is no larger than the image announces.
fn check_window(image: &Image, shared: &Shared, job: &Job, cluster: Cluster, stream: &[u8]) {
    let Some(log) = image.configs().zstd_window_log else {
        return;
    };
    let window = zstd_window(stream, job.extent.len);
    if window.is_some_and(|w| w > 1 << log) {
        shared.error(
            Rule::Config,
            format_args!("nid {}: {}", job.nid, cluster_place(&job.extent, cluster)),
            format_args!(
                "window of {} bytes, the image announces at most {}",
                window.unwrap_or(0),
                1u64 << log
            ),
        );
    }
}

/// The window that a frame's header asks for; `content` stands for the content size of a single segment.
fn zstd_window(frame: &[u8], content: u64) -> Option<u64> {
    let (descriptor, rest) = frame.get(4..)?.split_first()?;
    if descriptor & 0x20 != 0 {
        return Some(content);
    }
    let byte = u64::from(*rest.first()?);
    let base = 1u64.checked_shl(10 + (byte >> 3) as u32)?;
    Some(base + base / 8 * (byte & 7))
}
