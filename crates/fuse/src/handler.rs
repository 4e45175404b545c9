//! Dispatch of requests to a filesystem.
//!
//! * Every request that expects a reply gets exactly one. A panic of the filesystem ends as EIO.
//! * No byte after the end of a request is read, and no reply is longer than its buffer.
//! * Nodes have no state here, so FORGET does nothing.

use crate::counters::{Counters, ThreadCounters};
use crate::filesystem::{Entry, Filesystem, LookupResult, Reader, Result};
use crate::log::Log;
use crate::negotiation::{Negotiation, Offer};
use crate::protocol::{self, EntryOut, FOREVER, MAX_PAGES, ROOT, ReadIn, init, op};
use crate::reply::{Listing, Reply};
use crate::request::{Operation, Request};
use crate::service::{Background, Service};
use crate::transport::push::{self, PushQueue};
use crate::transport::replies::ReplySender;
use rustix::io::Errno;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// Features of a read-only filesystem. Fewer background requests stall readahead of more than two streams.
const OFFER: Offer = Offer {
    features: init::ASYNC_READ
        | init::ASYNC_DIO
        | init::EXPORT_SUPPORT
        | init::DO_READDIRPLUS
        | init::READDIRPLUS_AUTO
        | init::NO_OPEN_SUPPORT
        | init::PARALLEL_DIROPS
        | init::POSIX_ACL
        | init::MAX_PAGES
        | init::CACHE_SYMLINKS
        | init::NO_OPENDIR_SUPPORT
        | init::EXPLICIT_INVAL_DATA
        | init::INIT_EXT,
    writable: false,
    max_background: 64,
    max_pages: MAX_PAGES,
};
/// Largest buffer that a reply needs. Unit: bytes.
pub const REPLY_MAX: usize = MAX_PAGES as usize * 4096;
/// Extended attribute of the root with the counters. It is not listed, and hides an attribute of the image with this name.
pub const STATS_XATTR: &[u8] = b"user.tuff.stats";

/// Longest value of an attribute. Unit: bytes.
const REPORT_MAX: usize = 64 << 10;

/// State of one serving thread.
pub struct Worker {
    number: usize,
    reader: Box<dyn Reader>,
    lend: bool,
}

/// Filesystem, its log and its counters, shared by all threads.
pub struct Handler {
    fs: Arc<dyn Filesystem>,
    log: Log,
    counters: Counters,
    negotiation: Negotiation,
    pushes: PushQueue,
}

impl Handler {
    /// Creates a handler of `fs` for up to `threads` threads.
    pub fn new(fs: Arc<dyn Filesystem>, threads: usize, log: Log) -> Self {
        Self {
            fs,
            log,
            counters: Counters::new(threads),
            negotiation: Negotiation::default(),
            pushes: PushQueue::default(),
        }
    }

    /// Returns the counters of all operations.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the filesystem that answers.
    pub fn filesystem(&self) -> &dyn Filesystem {
        &*self.fs
    }

    fn answer<'a>(
        &self,
        worker: &'a mut Worker,
        request: &Request<'_>,
        out: &'a mut [u8],
    ) -> Result<Reply<'a>> {
        let node = request.header.node;
        match request.operation? {
            Operation::Read(read) => {
                self.counters.thread(worker.number).count_read(read.size);
                let room = out.len().min(read.size as usize);
                let out = &mut out[..room];
                let parts = worker.reader.read(node, read.offset, out, worker.lend)?;
                Ok(Reply::Body(parts))
            }
            Operation::Lookup(name) => {
                let found = self.fs.lookup(node, name)?;
                Reply::structure(out, &entry_out(found))
            }
            Operation::Getattr(_) => {
                let reply = protocol::AttrOut {
                    valid: FOREVER,
                    attr: self.fs.attr(node)?,
                    ..Default::default()
                };
                Reply::structure(out, &reply)
            }
            Operation::Readdir(ReadIn { offset, size, .. }) => {
                let mut listing = Listing::new(out, size, false);
                let none = EntryOut::default();
                let add = &mut |entry: &Entry<'_>| listing.add(entry, &none);
                let result = self.fs.readdir(node, offset, add);
                listing.finish(result)
            }
            Operation::Readdirplus(ReadIn { offset, size, .. }) => {
                let mut listing = Listing::new(out, size, true);
                let result = self.fs.readdir_plus(node, offset, &mut |entry, attr| {
                    listing.add(entry, &plus_head(entry, attr))
                });
                listing.finish(result)
            }
            Operation::Readlink => Reply::bytes(out, &self.fs.readlink(node)?),
            // An attribute of that name in the image would pass for the counters.
            Operation::Getxattr(size, name) if node == ROOT && name == STATS_XATTR => {
                Reply::xattr(out, size, self.report().as_bytes())
            }
            Operation::Getxattr(size, name) => {
                Reply::xattr(out, size, &self.fs.getxattr(node, name)?)
            }
            Operation::Listxattr(size) => {
                let names = self.fs.listxattr(node, request.is_by_root())?;
                Reply::xattr(out, size, &names)
            }
            Operation::Statfs => Reply::structure(out, &self.fs.statfs()?),
            Operation::Lseek(offset, what) => {
                let offset = self.fs.seek(node, offset, what)?;
                Reply::structure(out, &protocol::LseekOut { offset })
            }
            Operation::Init(kernel, features) => {
                let mut offer = OFFER;
                offer.max_pages = self.fs.max_pages();
                if self.fs.allows_idmapped_mounts() {
                    offer.features |= init::ALLOW_IDMAP;
                }
                let kernel = (kernel, features);
                let reply = self.negotiation.negotiate(kernel, &offer, &self.log)?;
                Reply::structure(out, &reply)
            }
            Operation::Forget(_) | Operation::BatchForget(_) => Ok(Reply::Nothing),
            Operation::Release | Operation::Destroy => Ok(Reply::empty()),
            _ => Err(Errno::NOSYS),
        }
    }

    /// Returns all counters, a name and a number per line.
    pub fn stats_text(&self) -> String {
        let mut text = self.counters.text();
        for (name, value) in self.fs.counters() {
            text.push_str(&format!("{name} {value}\n"));
        }
        text
    }

    /// Returns all counters, and the requests of the start as lines of JSON: the value of [`STATS_XATTR`].
    pub fn report(&self) -> String {
        let mut text = self.stats_text();
        let room = REPORT_MAX.saturating_sub(text.len());
        text.push_str(&self.fs.requests(room));
        text
    }
}

impl Service for Handler {
    type Worker = Worker;
    type Work = Infallible;
    const WRITABLE: bool = false;

    fn negotiation(&self) -> &Negotiation {
        &self.negotiation
    }

    fn log(&self) -> &Log {
        &self.log
    }

    fn worker(&self, number: usize, lend: bool) -> Worker {
        Worker {
            number,
            reader: self.fs.reader(),
            lend,
        }
    }

    fn handle<'a>(
        &self,
        worker: &'a mut Worker,
        request: &Request<'_>,
        out: &'a mut [u8],
    ) -> Reply<'a> {
        let start = Instant::now();
        let opcode = request.header.opcode;
        let number = worker.number;
        let answer = move || {
            // Moved, not borrowed: the reply borrows from both.
            let (worker, out) = (worker, out);
            self.answer(worker, request, out)
        };
        let reply = catch_unwind(AssertUnwindSafe(answer));
        let reply = reply.unwrap_or_else(|_| {
            self.log.line(format_args!(
                "bug: {} of node {} panicked; it got EIO",
                op::name(opcode),
                request.header.node
            ));
            Err(Errno::IO)
        });
        let reply = reply.unwrap_or_else(Reply::Error);
        let thread: &ThreadCounters = self.counters.thread(number);
        let outcome = match &reply {
            Reply::Nothing | Reply::Later(_) => None,
            Reply::Body(parts) => Some(Ok(parts.len())),
            Reply::Error(e) => Some(Err(*e)),
        };
        thread.count(opcode, outcome, start.elapsed());
        reply
    }

    fn replied(&self, worker: &mut Worker, send: impl FnOnce()) {
        if let Some(rest) = worker.reader.take_push() {
            send();
            self.pushes.offer(rest);
        }
    }

    fn run(&self, work: Infallible, _: &ReplySender<'_>) {
        match work {}
    }

    fn background(self: &Arc<Self>) -> Vec<(&'static str, Background)> {
        let (handler, rests) = (self.clone(), self.pushes.open());
        let push = move |replies: &ReplySender<'_>| {
            let mut reader = handler.fs.reader();
            push::run(replies, &handler.log, &rests, |rest, buf| {
                let reader = &mut reader;
                let read = move || {
                    // Moved, not borrowed: the bytes borrow from it.
                    let buf = buf;
                    reader.read_pushed(rest, buf)
                };
                catch_unwind(AssertUnwindSafe(read)).unwrap_or(Err(Errno::IO))
            });
        };
        vec![("store", Box::new(push))]
    }

    fn end(&self) {
        self.pushes.close();
    }
}

/// Returns an empty entry for an inode that cannot be read. The name is listed, and a look-up reports the error.
fn plus_head(entry: &Entry<'_>, attr: Option<protocol::Attr>) -> EntryOut {
    attr.map_or(EntryOut::default(), |attr| {
        let node = entry.node;
        entry_out(Some(LookupResult { node, attr }))
    })
}

fn entry_out(found: Option<LookupResult>) -> EntryOut {
    let base = EntryOut {
        entry_valid: FOREVER,
        attr_valid: FOREVER,
        ..Default::default()
    };
    match found {
        Some(LookupResult { node, attr }) => EntryOut { node, attr, ..base },
        // Node 0: the kernel caches that there is no such name.
        None => base,
    }
}
