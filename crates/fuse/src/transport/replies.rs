//! Replies, sent from threads that did not read the request.

use super::ring::{Event, Ring};
use super::uring::rings::{RETURNED, Rings, SEND, put};
use crate::filesystem::Result;
use crate::protocol::OutHeader;
use rustix::fd::{AsFd, BorrowedFd};
use std::cell::RefCell;
use std::io::IoSlice;
use std::sync::atomic::Ordering;
use zerocopy::{Immutable, IntoBytes};

/// Maximum number of messages to rings under way.
const MESSAGES: u32 = 8;

/// Request whose reply is sent later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingReply {
    /// Identifier of the request.
    pub unique: u64,
    /// Slot of the request in the rings. None for requests from the device.
    pub slot: Option<usize>,
}

/// Sends replies and notifications from a thread without a queue.
pub struct ReplySender<'a> {
    fuse: BorrowedFd<'a>,
    rings: Option<&'a Rings>,
    /// Ring of this thread, which messages the threads of the rings. Created for the first reply.
    ring: RefCell<Option<(Ring, Vec<Event>)>>,
}

impl<'a> ReplySender<'a> {
    /// Creates a sender for the calling thread.
    pub(crate) fn new(fuse: BorrowedFd<'a>, rings: Option<&'a Rings>) -> Self {
        Self {
            fuse,
            rings,
            ring: RefCell::default(),
        }
    }

    /// Sends a reply that is a structure.
    pub fn send_structure<T: IntoBytes + Immutable>(
        &self,
        pending: PendingReply,
        result: Result<T>,
    ) {
        let body = result.as_ref().map(|structure| structure.as_bytes());
        self.send(pending, body.map_err(|e| *e));
    }

    /// Sends a reply. The body is shorter than a page.
    pub fn send(&self, pending: PendingReply, result: Result<&[u8]>) {
        let header = header_of(pending.unique, result.map(<[u8]>::len));
        let body = result.unwrap_or_default();
        let (Some(i), Some(rings)) = (pending.slot, self.rings) else {
            // If the kernel does not wait for the reply, it is unmounting: the next read reports it.
            let _ = rustix::io::writev(self.fuse, &[header.as_bytes(), body].map(IoSlice::new));
            return;
        };
        let slot = rings.slots[i];
        {
            let mut buffers = slot.lock();
            buffers.payload[..body.len()].copy_from_slice(body);
            put(&mut buffers.header, &header, body.len());
        }
        let mut own = self.ring.borrow_mut();
        if own.is_none() {
            *own = Ring::new(MESSAGES).ok().map(|ring| (ring, Vec::new()));
        }
        let to = rings.threads[rings.home(slot)].ring.load(Ordering::Acquire);
        if let Some((ring, events)) = &mut *own
            && to >= 0
        {
            ring.message(to, SEND | i as u64, RETURNED);
            // An unreachable thread has ended, and the mount with it.
            let _ = ring.submit_and_look(events);
            events.clear();
        }
    }
}

/// Borrows the descriptor of the device.
impl AsFd for ReplySender<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fuse
    }
}

/// Returns the header of a reply whose body has this length.
pub(crate) fn header_of(unique: u64, body: Result<usize>) -> OutHeader {
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
