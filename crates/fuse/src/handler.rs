//! Dispatch of requests to a filesystem: from the bytes of a request to the bytes of a reply.
//!
//! * Every request that expects a reply gets exactly one. A panic of the filesystem ends as EIO.
//! * No byte after the end of a request is read, and no reply is longer than its buffer.
//! * Nodes have no state here, so FORGET does nothing.

use crate::counters::{Counters, ThreadCounters};
use crate::filesystem::{Entry, Filesystem, LookupResult, Parts, Reader, Result, Seek};
use crate::log::Log;
use crate::negotiation::{MAX_PAGES, Negotiation, Offer};
use crate::protocol::{self, init, op};
use crate::service::{Background, Reply, Request, Service};
use crate::transport::push::{self, PushQueue};
use crate::transport::replies::ReplySender;
use rustix::io::Errno;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;
use zerocopy::IntoBytes;

/// Longest validity that the kernel accepts. Unit: seconds.
const FOR_EVER: u64 = i64::MAX as u64;
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
        let mut fields = request.fields;
        match request.header.opcode {
            op::READ => {
                let read: protocol::ReadIn = fields.structure()?;
                self.counters.thread(worker.number).count_read(read.size);
                let room = out.len().min(read.size as usize);
                let out = &mut out[..room];
                let parts = worker.reader.read(node, read.offset, out, worker.lend)?;
                Ok(Reply::Body(parts))
            }
            op::LOOKUP => {
                let found = self.fs.lookup(node, fields.name()?)?;
                put(out, &entry_out(found))
            }
            op::GETATTR => {
                let reply = protocol::AttrOut {
                    valid: FOR_EVER,
                    attr: self.fs.attr(node)?,
                    ..Default::default()
                };
                put(out, &reply)
            }
            op::READDIR => self.readdir(request, out, false),
            op::READDIRPLUS => self.readdir(request, out, true),
            op::READLINK => put_bytes(out, &self.fs.readlink(node)?),
            op::GETXATTR => self.getxattr(request, out),
            op::LISTXATTR => {
                let want: protocol::GetxattrIn = fields.structure()?;
                // The kernel shows "trusted." to processes with CAP_SYS_ADMIN. Only the user is known here.
                let privileged = is_root(&request.header);
                put_xattr(out, want.size, &self.fs.listxattr(node, privileged)?)
            }
            op::STATFS => put(out, &self.fs.statfs()?),
            op::LSEEK => {
                let seek: protocol::LseekIn = fields.structure()?;
                let what = match seek.whence {
                    protocol::SEEK_DATA => Seek::Data,
                    protocol::SEEK_HOLE => Seek::Hole,
                    _ => return Err(Errno::INVAL),
                };
                let offset = self.fs.seek(node, seek.offset, what)?;
                put(out, &protocol::LseekOut { offset })
            }
            op::INIT => self.init(request, out),
            op::FORGET | op::BATCH_FORGET => Ok(Reply::Nothing),
            // ENOSYS means: the kernel does not send this operation again, and treats it as successful.
            op::OPEN | op::OPENDIR | op::FLUSH | op::STATX | op::INTERRUPT => Err(Errno::NOSYS),
            op::RELEASE | op::RELEASEDIR | op::DESTROY => Ok(Reply::Body(Parts::One(&[]))),
            _ => Err(Errno::NOSYS),
        }
    }

    fn init<'a>(&self, request: &Request<'_>, out: &'a mut [u8]) -> Result<Reply<'a>> {
        let offer = Offer {
            features: match self.fs.allows_idmapped_mounts() {
                true => OFFER.features | init::ALLOW_IDMAP,
                false => OFFER.features,
            },
            max_pages: self.fs.max_pages(),
            ..OFFER
        };
        let reply = self
            .negotiation
            .negotiate(request.fields.0, &offer, &self.log)?;
        put(out, &reply)
    }

    fn readdir<'a>(
        &self,
        request: &Request<'_>,
        out: &'a mut [u8],
        plus: bool,
    ) -> Result<Reply<'a>> {
        let read: protocol::ReadIn = { request.fields }.structure()?;
        let room = out.len().min(read.size as usize);
        let out = &mut out[..room];
        let (mut at, mut full) = (0, false);
        let mut put = |entry: &Entry<'_>, head: &[u8]| {
            let len =
                (head.len() + size_of::<protocol::Dirent>() + entry.name.len()).next_multiple_of(8);
            let Some(room) = out[at..].get_mut(..len) else {
                full = true;
                return false;
            };
            room[..head.len()].copy_from_slice(head);
            put_dirent(entry, &mut room[head.len()..]);
            at += len;
            true
        };
        let (node, offset) = (request.header.node, read.offset);
        let result = if plus {
            self.fs.readdir_plus(node, offset, &mut |entry, attr| {
                put(entry, plus_head(entry, attr).as_bytes())
            })
        } else {
            self.fs.readdir(node, offset, &mut |entry| put(entry, &[]))
        };
        match result {
            // Entries before the damage are returned. The next call starts at the damage and fails.
            Err(e) if at == 0 => Err(e),
            // A reply without entries would mean the end of the directory.
            Ok(()) if at == 0 && full => Err(Errno::INVAL),
            _ => Ok(Reply::Body(Parts::One(&out[..at]))),
        }
    }

    fn getxattr<'a>(&self, request: &Request<'_>, out: &'a mut [u8]) -> Result<Reply<'a>> {
        let mut fields = request.fields;
        let want: protocol::GetxattrIn = fields.structure()?;
        let name = fields.name()?;
        let node = request.header.node;
        // An attribute of that name in the image would pass for the counters.
        if node == protocol::ROOT && name == STATS_XATTR {
            return put_xattr(out, want.size, self.stats_text().as_bytes());
        }
        put_xattr(out, want.size, &self.fs.getxattr(node, name)?)
    }

    /// Returns all counters, a name and a number per line.
    pub fn stats_text(&self) -> String {
        let mut text = self.counters.text();
        for (name, value) in self.fs.counters() {
            text.push_str(&format!("{name} {value}\n"));
        }
        text
    }
}

/// User that the kernel states on a mount that allows mapped owners, for requests that create nothing.
const NO_USER: u32 = u32::MAX;

/// Returns true if root sent a request.
fn is_root(header: &protocol::InHeader) -> bool {
    match header.uid {
        NO_USER => filesystem_user(header.pid) == Some(0),
        uid => uid == 0,
    }
}

/// Returns the user whose rights to files a process has. `None` for a process that this one cannot see.
fn filesystem_user(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(3)?.parse().ok()
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
fn plus_head(entry: &Entry<'_>, attr: Option<protocol::Attr>) -> protocol::EntryOut {
    attr.map_or(protocol::EntryOut::default(), |attr| {
        let node = entry.node;
        entry_out(Some(LookupResult { node, attr }))
    })
}

fn entry_out(found: Option<LookupResult>) -> protocol::EntryOut {
    let base = protocol::EntryOut {
        entry_valid: FOR_EVER,
        attr_valid: FOR_EVER,
        ..Default::default()
    };
    match found {
        Some(LookupResult { node, attr }) => protocol::EntryOut { node, attr, ..base },
        // Node 0: the kernel caches that there is no such name.
        None => base,
    }
}

/// Writes an entry into `out`, which has the length of the padded entry.
fn put_dirent(entry: &Entry<'_>, out: &mut [u8]) {
    let head = protocol::Dirent {
        ino: entry.ino,
        off: entry.next,
        name_len: entry.name.len() as u32, // fits: at most 255
        kind: entry.kind,
    };
    let (first, rest) = out.split_at_mut(size_of::<protocol::Dirent>());
    first.copy_from_slice(head.as_bytes());
    let (name, padding) = rest.split_at_mut(entry.name.len());
    name.copy_from_slice(entry.name);
    padding.fill(0);
}

fn put<'a, T: IntoBytes + zerocopy::Immutable>(out: &'a mut [u8], value: &T) -> Result<Reply<'a>> {
    put_bytes(out, value.as_bytes())
}

fn put_bytes<'a>(out: &'a mut [u8], bytes: &[u8]) -> Result<Reply<'a>> {
    let out = out.get_mut(..bytes.len()).ok_or(Errno::RANGE)?;
    out.copy_from_slice(bytes);
    Ok(Reply::Body(Parts::One(out)))
}

/// Writes the value of an extended attribute, or its length if `size` is 0.
fn put_xattr<'a>(out: &'a mut [u8], size: u32, value: &[u8]) -> Result<Reply<'a>> {
    if size == 0 {
        let len = protocol::GetxattrIn {
            size: u32::try_from(value.len()).map_err(|_| Errno::TOOBIG)?,
            padding: 0,
        };
        return put(out, &len);
    }
    if value.len() > size as usize {
        return Err(Errno::RANGE);
    }
    put_bytes(out, value)
}
