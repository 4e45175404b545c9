//! Replies, sent at once or after a flush or write-back.

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::cell::RefCell;
use std::io::IoSlice;
use std::sync::Arc;
use tuff_fuse::filesystem::Result;
use tuff_fuse::protocol::OutHeader;
use tuff_fuse::transport::uring::{DeferredReplies, Rings};
use zerocopy::IntoBytes;

/// Request whose reply is sent later.
#[derive(Clone, Copy)]
pub(super) struct PendingReply {
    pub(super) unique: u64,
    /// Slot of the request in the rings.
    pub(super) slot: Option<usize>,
}

/// Sends replies from a thread.
pub(super) struct ReplySender<'a> {
    fuse: BorrowedFd<'a>,
    rings: Option<&'a Arc<Rings>>,
    later: RefCell<Option<DeferredReplies>>,
}

impl<'a> ReplySender<'a> {
    pub(super) fn new(fuse: BorrowedFd<'a>, rings: Option<&'a Arc<Rings>>) -> Self {
        Self {
            fuse,
            rings,
            later: RefCell::default(),
        }
    }

    pub(super) fn tell(&self, pending: PendingReply, result: Result<()>) {
        self.send_body(pending, result.map(|()| &[][..]));
    }

    pub(super) fn send_body(&self, pending: PendingReply, result: Result<&[u8]>) {
        let (Some(slot), Some(rings)) = (pending.slot, self.rings) else {
            // If the kernel does not wait for the reply, it is unmounting: the next read reports it.
            let _ = send(self.fuse, pending.unique, result);
            return;
        };
        let mut later = self.later.borrow_mut();
        if later.is_none() {
            *later = DeferredReplies::new(rings.clone()).ok();
        }
        if let Some(later) = &mut *later {
            let header = header_of(pending.unique, result.map(<[u8]>::len));
            later.send(slot, &header, result.unwrap_or_default());
        }
    }
}

pub(super) fn header_of(unique: u64, body: Result<usize>) -> OutHeader {
    let (error, len) = match body {
        Ok(len) => (0, len),
        Err(e) => (-e.raw_os_error(), 0),
    };
    OutHeader {
        len: (size_of::<OutHeader>() + len) as u32, // fits: at most a megabyte
        error,
        unique,
    }
}

/// Sends a reply through the device. Fails if the filesystem is unmounted.
pub(super) fn send(fuse: BorrowedFd<'_>, unique: u64, body: Result<&[u8]>) -> Result<()> {
    let header = header_of(unique, body.map(<[u8]>::len));
    let parts = [
        IoSlice::new(header.as_bytes()),
        IoSlice::new(body.unwrap_or_default()),
    ];
    match rustix::io::writev(fuse, &parts) {
        // The client was interrupted or the kernel rejected the reply: the session continues.
        Ok(_) | Err(Errno::INTR | Errno::NOENT | Errno::AGAIN | Errno::INVAL) => Ok(()),
        Err(e) => Err(e),
    }
}
