//! Data that the kernel did not ask for, on its way into the page cache: notices of the kind "store".
//!
//! Invariants:
//!
//! * A thread of its own sends them, and only after the reply to the request that caused them. Storing waits for pages
//!   that are being read, and those wait for the threads that answer.
//! * Nobody waits for that thread, which also decodes what it sends: what it has no time for is thrown away.

use crate::fs::{Node, Rest};
use crate::handler::Handler;
use crate::proto::{NOTIFY_STORE, NotifyStore, OutHeader};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::io::IoSlice;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use zerocopy::IntoBytes;

/// Most parts that wait.
const WAITING: usize = 8;

/// Most bytes of one notice: pages are locked while it is under way.
const NOTICE_MAX: usize = 64 << 10;

/// Where those who answer leave what the kernel should have.
#[derive(Clone)]
pub struct Stores(SyncSender<Rest>);

impl Stores {
    /// The way to a thread that [`run`]s, which ends when all clones of this are gone.
    pub fn new() -> (Self, Receiver<Rest>) {
        let (sender, receiver) = sync_channel(WAITING);
        (Self(sender), receiver)
    }

    /// Leaves it, or throws it away.
    pub fn offer(&self, rest: Rest) {
        let _ = self.0.try_send(rest);
    }
}

/// Decodes and sends what is left here until nobody leaves anything any more. `number` counts the threads.
pub fn run(fuse: impl AsFd, handler: &Handler, number: usize, rests: &Receiver<Rest>) {
    let mut seat = handler.seat(number, false);
    let mut buffer = Vec::new();
    let mut works = true;
    for rest in rests {
        if !works {
            continue;
        }
        let Ok((offset, bytes)) = handler.read_rest(&mut seat, &rest, &mut buffer) else {
            // Who asks for it learns why.
            continue;
        };
        works = match store(&fuse, rest.node, offset, bytes) {
            // Forgotten meanwhile, or unmounted.
            Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED) => true,
            // Memory is short, or a signal came.
            Err(Errno::NOMEM | Errno::INTR | Errno::AGAIN) => true,
            Err(e) => {
                handler.log().line(format_args!(
                    "the kernel takes no data that it did not ask for: {e}"
                ));
                false
            }
        };
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
