//! Adaptive readahead: issues `POSIX_FADV_WILLNEED` for the next files of the host.
//!
//! A worker reads one file after another, so each worker keeps only one disk request in flight and
//! waits for it. When reads are slow, or a sampled file is not in the page cache, workers advise
//! the kernel of the next files first. The kernel reads these while the worker processes data that
//! has arrived. The advice costs an `open` per file, so it stops when the files turn out to be
//! cached.
//!
//! The image does not depend on any of this.

use crate::pack::content::FileContent;
use crate::source::file::HostFile;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A read that takes longer than this, plus the time for its length, waited for a disk.
const SLOW_READ: Duration = Duration::from_micros(100);
/// Minimum throughput of a cached read. Unit: bytes per microsecond.
const CACHED_RATE_MIN: u64 = 500;

/// Number of cached reads that outweigh one slow read.
const SLOW_WEIGHT: u32 = 16;
/// Score from which readahead is issued.
const COLD_SCORE: u32 = 2 * SLOW_WEIGHT;
/// Score after a file that was not cached, and the maximum.
const SCORE_MAX: u32 = 4 * SLOW_WEIGHT;

/// Estimate of one worker of whether its files are in the page cache.
#[derive(Default)]
pub(crate) struct Readahead {
    score: u32,
    /// Contents since the last sample.
    since_sample: usize,
}

impl Readahead {
    /// Records that a read of `len` bytes took `time`.
    pub(crate) fn record_read(&mut self, len: usize, time: Duration) {
        if time > SLOW_READ + Duration::from_micros(len as u64 / CACHED_RATE_MIN) {
            self.score = (self.score + SLOW_WEIGHT).min(SCORE_MAX);
        } else {
            self.score = self.score.saturating_sub(1);
        }
    }

    /// True if readahead should be issued.
    pub(crate) fn is_cold(&self) -> bool {
        self.score >= COLD_SCORE
    }

    /// Issues readahead for ranges, until they turn out to be cached.
    pub(crate) fn issue<'a>(&mut self, range: impl IntoIterator<Item = &'a PrefetchRange>) {
        for range in range {
            if !self.is_cold() {
                return;
            }
            self.advise_and_record(range);
        }
    }

    /// Issues readahead for a range and updates the score by whether it was cached.
    fn advise_and_record(&mut self, range: &PrefetchRange) {
        range.each(&mut |file, offset, len| {
            // The later read reports a file that cannot be opened.
            match advise(file, offset, len) {
                Some(true) => self.score = SCORE_MAX,
                Some(false) => self.score = self.score.saturating_sub(1),
                None => {}
            }
        });
    }
}

/// Readahead position in a list of contents that several workers read in order.
#[derive(Default)]
pub(crate) struct ReadaheadWindow {
    /// Contents before this index need no further readahead.
    advised: AtomicUsize,
}

/// Number of contents to read ahead.
const READAHEAD_JOBS: usize = 256;
/// Interval of samples: one of this many contents.
const SAMPLED: usize = 32;

impl ReadaheadWindow {
    /// Called before content `i` of `count` is read. Issues readahead for it and the next ones if
    /// they are not cached.
    pub(crate) fn advise(
        &self,
        i: usize,
        count: usize,
        readahead: &mut Readahead,
        range: &dyn Fn(usize) -> Option<PrefetchRange>,
    ) {
        readahead.since_sample += 1;
        if !readahead.is_cold() && readahead.since_sample >= SAMPLED {
            readahead.since_sample = 0;
            readahead.score = 0;
            if let Some(range) = range(i) {
                readahead.advise_and_record(&range);
            }
        }
        if !readahead.is_cold() {
            return;
        }
        let until = (i + READAHEAD_JOBS).min(count);
        let from = self.advised.fetch_max(until, Ordering::Relaxed).max(i);
        for range in (from..until).filter_map(range) {
            readahead.issue([&range]);
        }
    }
}

/// Range of a content to read ahead.
pub(crate) struct PrefetchRange {
    content: FileContent,
    offset: u64,
    len: usize,
}

/// Maximum length of one range, so that data read ahead fits in memory. Unit: bytes.
const RANGE_MAX: usize = 8 << 20;

impl PrefetchRange {
    /// Range of `len` bytes of `content`, from `offset` on.
    pub(crate) fn new(content: FileContent, offset: u64, len: usize) -> Self {
        let len = len.min(RANGE_MAX);
        Self {
            content,
            offset,
            len,
        }
    }

    /// Calls `each` for the parts of the range that are in files of the host.
    fn each(&self, each: &mut impl FnMut(&HostFile, u64, usize)) {
        match &self.content {
            FileContent::Host(file) => each(file, self.offset, self.len),
            FileContent::Packed(items) => {
                for item in &items[..] {
                    if let FileContent::Host(file) = &item.content {
                        each(file, item.offset, item.len);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Issues readahead for a range of a file. Returns whether it was needed, or `None` if that is
/// unknown.
fn advise(file: &HostFile, offset: u64, len: usize) -> Option<bool> {
    let file = file.open_unverified().ok()?;
    let mut byte = [0];
    let buffers = &mut [IoSliceMut::new(&mut byte)];
    let needed = match preadv2(&file, buffers, offset, ReadWriteFlags::NOWAIT) {
        Ok(_) => return Some(false),
        Err(Errno::AGAIN) => Some(true),
        // Not every filesystem supports `RWF_NOWAIT`.
        Err(_) => None,
    };
    let len = NonZeroU64::new(len as u64);
    fadvise(&file, offset, len, Advice::WillNeed).ok()?;
    needed
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn several_slow_reads_turn_readahead_on_and_one_does_not() {
        let mut readahead = Readahead::default();
        let (slow, fast) = (Duration::from_millis(1), Duration::from_micros(3));
        readahead.record_read(4096, slow);
        for _ in 0..20 {
            readahead.record_read(4096, fast);
            assert!(!readahead.is_cold());
        }
        readahead.record_read(4096, slow);
        readahead.record_read(4096, slow);
        assert!(readahead.is_cold());
        readahead.record_read(4096, fast);
        assert!(!readahead.is_cold());
        // One millisecond is normal for a megabyte.
        let mut readahead = Readahead::default();
        for _ in 0..100 {
            readahead.record_read(1 << 20, slow);
        }
        assert!(!readahead.is_cold());
    }

    #[test]
    fn readahead_brings_a_file_into_the_page_cache() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), vec![7; 1 << 20]).unwrap();
        let host_file = |name: &str| HostFile {
            dir: None,
            path: dir.path().join(name).as_os_str().as_bytes().into(),
            size: 0,
            mtime: None,
        };
        let range = host_file("file");
        let file = range.open_unverified().unwrap();
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let in_memory = || {
            let mut byte = [0];
            let buffers = &mut [IoSliceMut::new(&mut byte)];
            preadv2(&file, buffers, 1 << 19, ReadWriteFlags::NOWAIT)
        };
        if in_memory() != Err(Errno::AGAIN) {
            tuff_testkit::skipped(format_args!(
                "files in {} do not leave the memory, or that cannot be told",
                dir.path().display()
            ));
            return;
        }
        assert_eq!(advise(&range, 0, 1 << 20), Some(true));
        let read = || in_memory().is_ok();
        assert!((0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            read()
        }));
        assert_eq!(advise(&range, 1 << 19, 1 << 19), Some(false));
        assert_eq!(advise(&host_file("none"), 0, 1), None);
    }
}
