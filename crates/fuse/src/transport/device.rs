//! Transport through `/dev/fuse`: one read per request, one `writev` per reply, directly from the decoded bytes.
//!
//! Each thread answers the requests that it reads, even if they block. Handing a request to another thread would cost
//! more than most requests do. For the same reason the thread follows a single client to its processor.

use super::connection::Connection;
use super::replies::{ReplySender, header_of};
use super::uring::rings::Rings;
use crate::filesystem::Parts;
use crate::handler::REPLY_MAX;
use crate::log::Log;
use crate::protocol::op;
use crate::reply::Reply;
use crate::request::Request;
use crate::schedule::affinity::ClientAffinity;
use crate::schedule::cpu_latency::CpuLatency;
use crate::service::Service;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Buffer for a request. The kernel requires 8 KiB, and space for the longest write.
const REQUEST_MAX: usize = REPLY_MAX + (16 << 10);
/// Interval in which FORGETs are collected: a wake-up for each would cost more than its work.
pub(crate) const FORGET_INTERVAL: Duration = Duration::from_millis(1);

/// Thread that reads the device. Memory of its buffers is allocated when it is first touched.
struct DeviceReader<'a, S: Service> {
    service: &'a S,
    worker: S::Worker,
    replies: ReplySender<'a>,
    request: Vec<u8>,
    reply: Vec<u8>,
    affinity: ClientAffinity,
    cpu_latency: Option<&'a CpuLatency>,
}

/// Answers requests on the calling thread until the filesystem is unmounted. `number` identifies the thread.
pub(crate) fn serve(connection: &Connection, service: &impl Service, number: usize) {
    let cpu_latency = connection.cpu_latency.as_deref();
    let mut reader = DeviceReader::new(service, number, connection.replies(), cpu_latency);
    let ringing = || connection.rings.as_ref().filter(|rings| !rings.failed());
    while let Some((opcode, _)) = reader.step(ringing()) {
        let Some(rings) = ringing() else { continue };
        rings.forgetting.store(false, Ordering::Relaxed);
        if matches!(opcode, op::FORGET | op::BATCH_FORGET) {
            std::thread::sleep(FORGET_INTERVAL);
        }
    }
}

/// Answers INIT, which precedes all other requests.
///
/// # Errors
/// Fails if the kernel cannot be served.
pub(crate) fn start(fuse: impl AsFd, service: &impl Service) -> io::Result<()> {
    let replies = ReplySender::new(fuse.as_fd(), None);
    let mut reader = DeviceReader::new(service, 0, replies, None);
    while service.negotiation().minor() == 0 {
        match reader.step(None) {
            Some((_, true)) => {}
            Some((_, false)) => return Err(io::Error::other("the kernel's FUSE is too old")),
            None => return Err(io::Error::other("unmounted before the first request")),
        }
    }
    Ok(())
}

impl<'a, S: Service> DeviceReader<'a, S> {
    fn new(
        service: &'a S,
        number: usize,
        replies: ReplySender<'a>,
        cpu_latency: Option<&'a CpuLatency>,
    ) -> Self {
        Self {
            service,
            worker: service.worker(number, true),
            replies,
            request: vec![0; REQUEST_MAX],
            reply: vec![0; REPLY_MAX],
            affinity: ClientAffinity::default(),
            cpu_latency,
        }
    }

    /// Answers one request. Returns its operation and success, or None if there will be no more. With `rings`, only
    /// requests that need no hurry arrive here.
    fn step(&mut self, rings: Option<&Rings>) -> Option<(u32, bool)> {
        let (log, fuse) = (self.service.log(), &self.replies);
        let features = self.service.negotiation().features();
        let n = match rustix::io::read(fuse, &mut self.request[..]) {
            Ok(n) => n,
            Err(e) => return goes_on(e, log, "reading").then_some((0, true)),
        };
        let Some(request) = Request::new(&self.request[..n], features) else {
            log.line(format_args!(
                "the FUSE device gave {n} bytes that are no request"
            ));
            return None;
        };
        let opcode = request.header.opcode;
        match rings {
            Some(rings) => rings.forgetting.store(true, Ordering::Relaxed),
            None => match self.cpu_latency {
                Some(cpu_latency) => cpu_latency.note_request(),
                None => self.affinity.choose(&request),
            },
        }
        let reply = self
            .service
            .handle(&mut self.worker, &request, &mut self.reply);
        let body = match reply {
            Reply::Nothing | Reply::Later(None) => return Some((opcode, true)),
            Reply::Later(Some(work)) => {
                self.service.run(work, &self.replies);
                return Some((opcode, true));
            }
            Reply::Body(parts) => Ok(parts),
            Reply::Error(e) => Err(e),
        };
        let len = body.as_ref().map(Parts::len).map_err(|e| *e);
        let header = header_of(request.header.unique, len);
        let first = IoSlice::new(header.as_bytes());
        let written = match body.unwrap_or_default() {
            Parts::One(bytes) => rustix::io::writev(fuse, &[first, IoSlice::new(bytes)]),
            Parts::Many(runs) => {
                let runs = runs.into_iter().map(IoSlice::new);
                let all: Vec<_> = std::iter::once(first).chain(runs).collect();
                rustix::io::writev(fuse, &all)
            }
        };
        if let Err(e) = written
            && !goes_on(e, log, "writing")
        {
            return None;
        }
        self.service.replied(&mut self.worker, || ());
        Some((opcode, len.is_ok()))
    }
}

/// Returns true if the request is gone and the next one follows, false if the mount is gone.
fn goes_on(error: Errno, log: &Log, doing: &str) -> bool {
    match error {
        // A signal interrupted this thread or the client.
        Errno::INTR | Errno::NOENT | Errno::AGAIN => true,
        Errno::NODEV | Errno::CONNABORTED | Errno::NOTCONN => false,
        e => {
            log.line(format_args!("{doing} the FUSE device: {e}"));
            matches!(e, Errno::INVAL | Errno::NOMEM)
        }
    }
}
