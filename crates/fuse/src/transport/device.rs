//! Transport through `/dev/fuse`: one read per request, one `writev` per reply, directly from the decoded bytes.
//!
//! Each thread answers the requests that it reads. Handing a request to another thread would cost more than most
//! requests do. For the same reason the thread follows a single client to its processor.

use super::push::PushQueue;
use super::{After, after, head};
use crate::filesystem::Parts;
use crate::handler::{Handler, REPLY_MAX, Request, Worker};
use crate::schedule::affinity::ClientAffinity;
use crate::schedule::cpu_latency::CpuLatency;
use rustix::fd::AsFd;
use std::io::{self, IoSlice};
use zerocopy::IntoBytes;

/// Buffer for a request. The kernel requires 8 KiB, and space for the longest negotiated write.
const REQUEST_MAX: usize = 16 << 10;

/// Buffers and affinity of one thread. Memory is allocated when it is first touched.
struct Buffers<'a> {
    request: Vec<u8>,
    reply: Vec<u8>,
    /// Affinity of the thread.
    affinity: ClientAffinity,
    cpu_latency: Option<&'a CpuLatency>,
}

impl<'a> Buffers<'a> {
    fn new(cpu_latency: Option<&'a CpuLatency>) -> Self {
        Self {
            request: vec![0; REQUEST_MAX],
            reply: vec![0; REPLY_MAX],
            affinity: ClientAffinity::default(),
            cpu_latency,
        }
    }
}

/// Answers requests on the calling thread until the filesystem is unmounted. `number` identifies the thread.
///
/// Ranges to push go to `pushes`. The CPU latency limit notes each request.
pub(crate) fn serve(
    fuse: impl AsFd,
    handler: &Handler,
    number: usize,
    (pushes, cpu_latency): (&PushQueue, Option<&CpuLatency>),
) {
    let mut worker = handler.worker(number, true);
    let mut buffers = Buffers::new(cpu_latency);
    while step(&fuse, handler, &mut worker, &mut buffers) {
        if let Some(rest) = handler.take_push(&mut worker) {
            pushes.offer(rest);
        }
    }
}

/// Answers INIT, which precedes all other requests.
///
/// # Errors
/// Fails if the kernel cannot be served.
pub fn start(fuse: impl AsFd, handler: &Handler) -> io::Result<()> {
    let mut worker = handler.worker(0, true);
    let mut buffers = Buffers::new(None);
    while handler.negotiation().minor() == 0 {
        if !step(&fuse, handler, &mut worker, &mut buffers) {
            return Err(io::Error::other("unmounted before the first request"));
        }
        if handler.counters().sums().iter().any(|s| s.errors > 0) {
            return Err(io::Error::other("the kernel's FUSE is too old"));
        }
    }
    Ok(())
}

/// Answers one request. Returns false if there will be no more.
fn step(
    fuse: &impl AsFd,
    handler: &Handler,
    worker: &mut Worker,
    buffers: &mut Buffers<'_>,
) -> bool {
    let n = match rustix::io::read(fuse, &mut buffers.request[..]) {
        Ok(n) => n,
        Err(e) => return matches!(after(e, handler, "reading"), After::Next),
    };
    let Some(request) = Request::new(&buffers.request[..n]) else {
        let log = handler.log();
        log.line(format_args!(
            "the FUSE device gave {n} bytes that are no request"
        ));
        return false;
    };
    buffers.affinity.choose(&request);
    if let Some(cpu_latency) = buffers.cpu_latency {
        cpu_latency.note_request();
    }
    let reply = handler.handle(worker, &request, &mut buffers.reply);
    let Some((header, body)) = head(&request, reply) else {
        return true;
    };
    let first = IoSlice::new(header.as_bytes());
    let written = match body {
        Parts::One(bytes) => rustix::io::writev(fuse, &[first, IoSlice::new(bytes)]),
        Parts::Many(runs) => {
            let runs = runs.into_iter().map(IoSlice::new);
            let all: Vec<_> = std::iter::once(first).chain(runs).collect();
            rustix::io::writev(fuse, &all)
        }
    };
    match written {
        Ok(_) => true,
        Err(e) => matches!(after(e, handler, "writing"), After::Next),
    }
}
