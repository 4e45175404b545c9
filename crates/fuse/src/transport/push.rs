//! Pushes data into the kernel's page cache with FUSE_NOTIFY_STORE.
//!
//! Invariants:
//!
//! * A separate thread sends notifications, and only after the reply to the request that caused them. A notification
//!   waits for pages that are being read, and those wait for the serving threads.
//! * No thread waits for this one, which also decodes the data. Ranges that exceed its capacity are dropped.
//!
//! For a strided reader this thread decodes every other step, while serving threads decode the steps in between:
//!
//! ```text
//!  requested     0   1       3       5        decoded by serving threads
//!  stored              2       4       6      at the same time, ahead of the reader
//! ```

use crate::filesystem::{Node, PushRange};
use crate::log::Log;
use crate::protocol::{NOTIFY_STORE, NotifyStore, OutHeader};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::io::IoSlice;
use std::sync::mpsc::{Receiver, RecvError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use zerocopy::IntoBytes;

/// Maximum number of queued ranges.
const WAITING: usize = 8;

/// Longest range that is read at once. Unit: bytes.
const READ_MAX: u64 = 1 << 20;

/// Longest notification. The kernel locks its pages meanwhile. Unit: bytes.
const NOTICE_MAX: usize = 64 << 10;

/// Queue of ranges to push, shared by all serving threads.
#[derive(Default)]
pub(crate) struct PushQueue(Mutex<Option<SyncSender<PushRange>>>);

impl PushQueue {
    fn sender(&self) -> MutexGuard<'_, Option<SyncSender<PushRange>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the queue. Returns its receiver for [`run`], which ends after [`close`](Self::close).
    pub(crate) fn open(&self) -> Receiver<PushRange> {
        let (sender, receiver) = sync_channel(WAITING);
        *self.sender() = Some(sender);
        receiver
    }

    /// Adds a range, or drops it if the queue is full.
    pub(crate) fn offer(&self, rest: PushRange) {
        if let Some(sender) = &*self.sender() {
            let _ = sender.try_send(rest);
        }
    }

    pub(crate) fn close(&self) {
        *self.sender() = None;
    }
}

/// Reads with `read` and sends queued ranges until the queue is closed.
pub(crate) fn run(
    fuse: impl AsFd,
    log: &Log,
    rests: &Receiver<PushRange>,
    mut read: impl for<'b> FnMut(&PushRange, &'b mut Vec<u8>) -> Result<(u64, &'b [u8]), Errno>,
) {
    let mut buffer = Vec::new();
    let mut works = true;
    let mut ahead = Ahead::default();
    loop {
        let left = if ahead.has_next() {
            rests.try_recv()
        } else {
            rests.recv().map_err(|RecvError| TryRecvError::Disconnected)
        };
        let rest = match left {
            Ok(rest) if rest.step.is_some() => {
                ahead.note(&rest);
                continue;
            }
            Ok(rest) => rest,
            Err(TryRecvError::Empty) => match ahead.take() {
                Some(rest) => rest,
                None => continue,
            },
            Err(TryRecvError::Disconnected) => return,
        };
        if !works {
            continue;
        }
        for piece in pieces(rest) {
            let Ok((offset, bytes)) = read(&piece, &mut buffer) else {
                // A request for the range will report the error.
                ahead = Ahead::default();
                break;
            };
            if bytes.is_empty() {
                // End of the file, or less than a page.
                ahead = Ahead::default();
            }
            match store(&fuse, rest.node, offset, bytes) {
                Ok(()) => {}
                // The inode was forgotten, or the filesystem unmounted.
                Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED) => break,
                // Memory is short, or a signal arrived.
                Err(Errno::NOMEM | Errno::INTR | Errno::AGAIN) => break,
                Err(e) => {
                    log.line(format_args!(
                        "the kernel takes no data that it did not ask for: {e}"
                    ));
                    works = false;
                    break;
                }
            }
        }
    }
}

/// Splits a range at multiples of [`READ_MAX`] in the file, which are multiples of the page size.
fn pieces(range: PushRange) -> impl Iterator<Item = PushRange> {
    let end = range.offset.saturating_add(range.len as u64);
    let mut offset = range.offset;
    std::iter::from_fn(move || {
        let left = end - offset;
        let len = left.min(READ_MAX - offset % READ_MAX);
        let piece = PushRange {
            offset,
            // Fits: at most READ_MAX.
            len: len as usize,
            ..range
        };
        offset += len;
        (left > 0).then_some(piece)
    })
}

/// Steps of one strided reader that are stored ahead of its requests.
#[derive(Default)]
struct Ahead {
    /// Last request of the reader. None if there is no reader.
    last: Option<PushRange>,
    /// Offset of the next range to store. Unit: bytes.
    next: u64,
}

impl Ahead {
    /// Number of steps that are stored ahead of the last request.
    const STEPS: u64 = 8;

    /// Notes a request of the reader.
    fn note(&mut self, now: &PushRange) {
        let step = now.step.unwrap_or(u64::MAX);
        let goes_on = self
            .last
            .is_some_and(|last| (last.node, last.step) == (now.node, now.step));
        // The adjacent step is requested before it could be stored.
        let in_time = self.next > now.offset
            && self.next
                <= now
                    .offset
                    .saturating_add(step.saturating_mul(Self::STEPS + 2));
        if !(goes_on && in_time) {
            self.next = now.offset.saturating_add(step.saturating_mul(2));
        }
        self.last = Some(*now);
    }

    fn has_next(&self) -> bool {
        self.last.is_some_and(|last| {
            let step = last.step.unwrap_or(u64::MAX);
            let most = last.offset.saturating_add(step.saturating_mul(Self::STEPS));
            self.next <= most && self.next < u64::MAX
        })
    }

    /// Returns the next range: every other step.
    fn take(&mut self) -> Option<PushRange> {
        let last = self.last.filter(|_| self.has_next())?;
        let offset = self.next;
        self.next = offset.saturating_add(last.step?.saturating_mul(2));
        Some(PushRange { offset, ..last })
    }
}

fn store(fuse: &impl AsFd, node: Node, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
    let mut offset = offset;
    for bytes in bytes.chunks(NOTICE_MAX) {
        let notice = NotifyStore {
            node,
            offset,
            size: bytes.len() as u32, // fits: see above
            padding: 0,
        };
        let header = OutHeader {
            // Fits: see above.
            len: (size_of::<OutHeader>() + size_of::<NotifyStore>() + bytes.len()) as u32,
            error: NOTIFY_STORE,
            unique: 0,
        };
        let parts = [header.as_bytes(), notice.as_bytes(), bytes];
        rustix::io::writev(fuse, &parts.map(IoSlice::new))?;
        offset += bytes.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(node: Node, offset: u64) -> PushRange {
        PushRange {
            node,
            offset,
            len: 4096,
            step: Some(100),
        }
    }

    fn all(ahead: &mut Ahead) -> Vec<u64> {
        std::iter::from_fn(|| ahead.take())
            .map(|rest| rest.offset)
            .collect()
    }

    #[test]
    fn every_other_step_is_stored_once_within_the_distance() {
        let mut ahead = Ahead::default();
        assert!(!ahead.has_next());
        ahead.note(&rest(1, 1000));
        assert_eq!(all(&mut ahead), [1200, 1400, 1600, 1800]);
        ahead.note(&rest(1, 1100));
        assert_eq!(all(&mut ahead), [0; 0]);
        ahead.note(&rest(1, 1300));
        assert_eq!(all(&mut ahead), [2000]);
        // The reader overtook this thread.
        ahead.note(&rest(1, 5000));
        assert_eq!(ahead.take(), Some(rest(1, 5200)));
        // Another reader.
        ahead.note(&rest(2, 0));
        assert_eq!(all(&mut ahead), [200, 400, 600, 800]);
    }

    #[test]
    fn long_ranges_are_read_in_pieces_without_gaps() {
        let of = |offset, len| {
            let range = PushRange {
                len,
                ..rest(1, offset)
            };
            let pieces = pieces(range).map(|piece| (piece.offset, piece.len));
            pieces.collect::<Vec<_>>()
        };
        let mib = 1 << 20;
        assert_eq!(of(5, 4096), [(5, 4096)]);
        assert_eq!(of(5, 0), []);
        assert_eq!(
            of(mib - 10, (2 << 20) + 20),
            [
                (mib - 10, 10),
                (mib, 1 << 20),
                (2 * mib, 1 << 20),
                (3 * mib, 10)
            ]
        );
    }

    #[test]
    fn steps_end_at_the_largest_offset() {
        let mut ahead = Ahead::default();
        ahead.note(&rest(1, u64::MAX - 250));
        assert_eq!(all(&mut ahead), [u64::MAX - 50]);
        let step = Some(u64::MAX);
        ahead.note(&PushRange { step, ..rest(1, 5) });
        assert_eq!(all(&mut ahead), [0; 0]);
    }
}
