//! Content that is on a disk is asked for before it is read.
//!
//! A worker reads one file after another, so that a disk is asked for one thing at a time by each worker, and the worker
//! waits for it. Where reads take long, or a file that was looked at is not in memory, the files that come next are asked for
//! first: the kernel reads them while the worker is busy with what is there. That costs a look at each file, so it ends where
//! they turn out to be in memory.
//!
//! What is written does not depend on any of it.

use super::pack::input::Input;
use super::source::dir::DirSource;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A read that takes longer than this, and than a slow memory would, waited for a disk.
const SLOW: Duration = Duration::from_micros(100);
/// Unit: bytes per microsecond.
const SLOW_RATE: u64 = 500;

/// So many reads in memory are forgotten for one that was slow.
const READS: u32 = 16;
/// From so many on, what comes is asked for.
const COLD: u32 = 2 * READS;
/// What is known after a file that was not in memory.
const KNOWN: u32 = 4 * READS;

/// Whether content is on a disk, as far as one worker knows.
#[derive(Default)]
pub(crate) struct Readahead {
    slow: u32,
    /// Contents since one was looked at.
    unseen: usize,
}

impl Readahead {
    /// A read of `len` bytes took so long.
    pub(crate) fn took(&mut self, len: usize, time: Duration) {
        if time > SLOW + Duration::from_micros(len as u64 / SLOW_RATE) {
            self.slow = (self.slow + READS).min(KNOWN);
        } else {
            self.slow = self.slow.saturating_sub(1);
        }
    }

    /// True if content should be asked for.
    pub(crate) fn is_cold(&self) -> bool {
        self.slow >= COLD
    }

    /// Asks for stretches, until they turn out to be in memory.
    pub(crate) fn ask<'a>(&mut self, wanted: impl IntoIterator<Item = &'a Stretch>) {
        for wanted in wanted {
            if !self.is_cold() {
                return;
            }
            self.look(wanted);
        }
    }

    /// Asks for some content, and learns whether that was needed.
    fn look(&mut self, wanted: &Stretch) {
        wanted.each(&mut |source, path, offset, len| {
            // What cannot be opened is said where it is read.
            match ask(source, path, offset, len) {
                Some(true) => self.slow = KNOWN,
                Some(false) => self.slow = self.slow.saturating_sub(1),
                None => {}
            }
        });
    }
}

/// Many contents that several workers read in order.
#[derive(Default)]
pub(crate) struct Window {
    /// Those before it were asked for, or not needed.
    asked: AtomicUsize,
}

/// So many contents are asked for ahead.
const READAHEAD_JOBS: usize = 256;
/// Of so many contents one is looked at.
const SAMPLED: usize = 32;

impl Window {
    /// Content `i` of `count` is read next: asks for it and those behind it, if need be.
    pub(crate) fn ask(
        &self,
        i: usize,
        count: usize,
        ahead: &mut Readahead,
        wanted: &dyn Fn(usize) -> Option<Stretch>,
    ) {
        ahead.unseen += 1;
        if !ahead.is_cold() && ahead.unseen >= SAMPLED {
            ahead.unseen = 0;
            ahead.slow = 0;
            if let Some(wanted) = wanted(i) {
                ahead.look(&wanted);
            }
        }
        if !ahead.is_cold() {
            return;
        }
        let until = (i + READAHEAD_JOBS).min(count);
        let from = self.asked.fetch_max(until, Ordering::Relaxed).max(i);
        for wanted in (from..until).filter_map(wanted) {
            ahead.ask([&wanted]);
        }
    }
}

/// A stretch of content.
pub(crate) struct Stretch {
    input: Input,
    offset: u64,
    len: usize,
}

/// No more of a stretch is asked for at once: what comes must find room beside it. Unit: bytes.
const ASKED_MAX: usize = 8 << 20;

impl Stretch {
    /// The first of `len` bytes from `offset` on of what `input` gives.
    pub(crate) fn new(input: Input, offset: u64, len: usize) -> Self {
        let len = len.min(ASKED_MAX);
        Self { input, offset, len }
    }

    /// Calls `each` for all of it that is in files of source directories.
    fn each(&self, each: &mut impl FnMut(&DirSource, &[u8], u64, usize)) {
        match &self.input {
            Input::Host { source, path, .. } => each(source, path, self.offset, self.len),
            Input::Packed(items) => {
                for item in &items[..] {
                    if let Input::Host { source, path, .. } = &item.input {
                        each(source, path, item.offset, item.len);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Has the kernel read a stretch of a file. Whether that was needed, if that can be told.
fn ask(source: &DirSource, path: &[u8], offset: u64, len: usize) -> Option<bool> {
    let file = source.open_file(path).ok()?;
    let mut byte = [0];
    let buffers = &mut [IoSliceMut::new(&mut byte)];
    let needed = match preadv2(&file, buffers, offset, ReadWriteFlags::NOWAIT) {
        Ok(_) => return Some(false),
        Err(Errno::AGAIN) => Some(true),
        // Not every filesystem knows.
        Err(_) => None,
    };
    let len = NonZeroU64::new(len as u64);
    fadvise(&file, offset, len, Advice::WillNeed).ok()?;
    needed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_slow_reads_in_a_row_are_a_disk_and_one_is_not() {
        let mut ahead = Readahead::default();
        let (slow, fast) = (Duration::from_millis(1), Duration::from_micros(3));
        ahead.took(4096, slow);
        for _ in 0..20 {
            ahead.took(4096, fast);
            assert!(!ahead.is_cold());
        }
        ahead.took(4096, slow);
        ahead.took(4096, slow);
        assert!(ahead.is_cold());
        ahead.took(4096, fast);
        assert!(!ahead.is_cold());
        // A millisecond is not long for a megabyte.
        let mut ahead = Readahead::default();
        for _ in 0..100 {
            ahead.took(1 << 20, slow);
        }
        assert!(!ahead.is_cold());
    }

    #[test]
    fn what_is_asked_for_is_read_by_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), vec![7; 1 << 20]).unwrap();
        let source = DirSource::open(dir.path()).unwrap();
        let file = source.open_file(b"file").unwrap();
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
        assert_eq!(ask(&source, b"file", 0, 1 << 20), Some(true));
        let read = || in_memory().is_ok();
        assert!((0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            read()
        }));
        assert_eq!(ask(&source, b"file", 1 << 19, 1 << 19), Some(false));
        assert_eq!(ask(&source, b"none", 0, 1), None);
    }
}
