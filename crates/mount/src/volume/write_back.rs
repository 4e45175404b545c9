//! Work that waits until the kernel has written pages back.
//!
//! One thread sends the notifications. They return after the WRITE requests that they cause, which the other threads
//! answer, so no thread that serves requests may send them, and no lock may be held.

use super::server::{PendingWriteBack, VolumeServer};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;
use tuff_fuse::filesystem::Result;
use tuff_fuse::protocol::{NOTIFY_INVAL_INODE, NotifyInvalInode, OutHeader};
use tuff_fuse::transport::replies::ReplySender;
use tuff_iplfs::Nid;
use zerocopy::IntoBytes;

/// End of a range that has none.
pub(super) const NO_END: u64 = u64::MAX;
/// Offset that stands for no pages: only attributes are stale.
const NO_PAGES: u64 = u64::MAX;
/// Replies and FORGETs under way arrive within this time, and within this number of looks.
const ARRIVAL_WAIT: Duration = Duration::from_millis(1);
const ARRIVAL_ROUNDS: u32 = 1000;

impl VolumeServer {
    pub(super) fn write_backs(&self) -> MutexGuard<'_, Option<Sender<PendingWriteBack>>> {
        self.write_backs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Descriptor of the device for notifications by threads that serve requests. None when the mount ends.
    pub(super) fn notifier(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.notifier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands work to the thread.
    pub(super) fn send_write_back(&self, work: PendingWriteBack) -> Result<()> {
        let sender = self.write_backs();
        let sender = sender.as_ref().ok_or(Errno::IO)?;
        sender.send(work).map_err(|_| Errno::IO)
    }

    /// Does the work of the thread, until the session ends.
    pub(super) fn run_write_backs(
        &self,
        replies: &ReplySender<'_>,
        pending: &Receiver<PendingWriteBack>,
    ) {
        let device = rustix::io::fcntl_dupfd_cloexec(replies.as_fd(), 0);
        *self.notifier() = device.ok();
        while let Ok(work) = pending.recv() {
            match work {
                PendingWriteBack::Seek(seek) => self.finish_seek(replies, seek),
                PendingWriteBack::Write(waiting) => self.finish_write(replies, waiting),
                PendingWriteBack::Settle => self.finish_settlement(replies),
                PendingWriteBack::All => self.finish_unasked(replies),
                PendingWriteBack::Changed(node, pending, reply) => {
                    // Without the notification the old attributes are seen for at most a second.
                    let _ = notify(replies, node, NO_PAGES, 0);
                    replies.send(pending, Ok(&reply));
                }
            }
        }
    }

    /// Tells the kernel that attributes are stale, without waiting for anything. Returns true if it knows.
    pub(super) fn attributes_are_stale(&self, node: Nid) -> bool {
        let device = self.notifier();
        device
            .as_ref()
            .is_some_and(|device| notify(device, node, NO_PAGES, 0).is_ok())
    }

    /// Makes the kernel write back and drop the pages of all files it knows, and forget their attributes.
    pub(super) fn write_back_all(&self, fuse: &impl AsFd) -> Result<()> {
        let mut files: Vec<Nid> = {
            let core = self.lock()?;
            let files = core.known.iter().filter(|(_, known)| known.is_file);
            files.map(|(node, _)| *node).collect()
        };
        for _ in 0..ARRIVAL_ROUNDS {
            let mut later = Vec::new();
            for node in files {
                if !notify(fuse, node, 0, 0)? {
                    later.push(node);
                }
            }
            // Either the reply that names the file has not arrived at the kernel, or the kernel's FORGET not here.
            let core = self.lock()?;
            later.retain(|node| core.known.contains_key(node));
            drop(core);
            if later.is_empty() {
                break;
            }
            files = later;
            std::thread::sleep(ARRIVAL_WAIT);
        }
        Ok(())
    }
}

/// Makes the kernel write back and drop the pages of a range, and waits for it.
pub(super) fn write_back(fuse: &impl AsFd, node: Nid, range: Range<u64>) -> Result<()> {
    let len = match range.end {
        NO_END => 0,
        end => end - range.start,
    };
    notify(fuse, node, range.start, len).map(|_| ())
}

/// Tells the kernel that attributes and pages of a file are stale. Returns false if the kernel does not know the file.
fn notify(fuse: &impl AsFd, node: Nid, offset: u64, len: u64) -> Result<bool> {
    let notice = NotifyInvalInode {
        node: u64::from(node.0),
        offset,
        len,
    };
    let header = OutHeader {
        len: (size_of::<OutHeader>() + size_of::<NotifyInvalInode>()) as u32, // fits: both are short
        error: NOTIFY_INVAL_INODE,
        unique: 0,
    };
    let parts = [header.as_bytes(), notice.as_bytes()].map(IoSlice::new);
    match rustix::io::retry_on_intr(|| rustix::io::writev(fuse, &parts)) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        // The kernel does not support this notification.
        Err(Errno::INVAL | Errno::NOSYS) => Err(Errno::NOSYS),
        Err(e) => Err(e),
    }
}
