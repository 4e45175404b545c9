//! Service: answers the requests of a session, from bytes to bytes.

use crate::fields::Fields;
use crate::filesystem::Parts;
use crate::log::Log;
use crate::negotiation::Negotiation;
use crate::protocol::InHeader;
use crate::transport::replies::{PendingReply, ReplySender};
use rustix::io::Errno;
use std::convert::Infallible;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Request, split into header and fields.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Common header of all requests.
    pub header: InHeader,
    /// Structure of the operation, if it has one, then names or data.
    pub fields: Fields<'a>,
    /// Slot of the request in the rings. None for requests from the device.
    pub slot: Option<usize>,
}

impl<'a> Request<'a> {
    /// Splits the bytes of a request. Returns None if they are not exactly one request.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let (header, body) = InHeader::read_from_prefix(bytes).ok()?;
        (header.len as usize == bytes.len()).then_some(Self::of(header, body))
    }

    /// Creates a request of the device from its header and the bytes after it.
    pub fn of(header: InHeader, body: &'a [u8]) -> Self {
        Self {
            header,
            fields: Fields(body, &[]),
            slot: None,
        }
    }

    /// Returns the identification with which the reply is sent later.
    pub fn pending(&self) -> PendingReply {
        PendingReply {
            unique: self.header.unique,
            slot: self.slot,
        }
    }
}

/// Outcome of a request. `W` is work that blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<'a, W = Infallible> {
    /// No reply is expected.
    Nothing,
    /// Body of a successful reply, without the header.
    Body(Parts<'a>),
    /// Error number of a failed request.
    Error(Errno),
    /// A [`ReplySender`] sends the reply. The work runs on a thread that may block.
    Later(Option<W>),
}

/// Work of a thread that runs beside the serving threads.
pub type Background = Box<dyn FnOnce(&ReplySender<'_>) + Send>;

/// Answers requests. All threads of a session share one.
pub trait Service: Send + Sync + 'static {
    /// State of one serving thread.
    type Worker;
    /// Part of a request that waits for a device.
    type Work: Send;
    /// True if the service accepts writes, so that requests wait for a device.
    ///
    /// Then a thread of a ring never blocks: [`Work`](Self::Work) runs on a second one. Queues have more slots. Long
    /// requests go to idle threads first, while the client continues, and threads busy-poll between short ones.
    const WRITABLE: bool;

    /// Returns the version and features that the kernel agreed on.
    fn negotiation(&self) -> &Negotiation;

    /// Returns the log of the session.
    fn log(&self) -> &Log;

    /// Creates the state of thread `number`. With `lend` a reply may consist of several buffers.
    fn worker(&self, number: usize, lend: bool) -> Self::Worker;

    /// Answers one request. `out` receives the body if it has a length. Without `lend` a body lies at the start of
    /// `out` or is [owned](Parts::Owned).
    fn handle<'a>(
        &self,
        worker: &'a mut Self::Worker,
        request: &Request<'_>,
        out: &'a mut [u8],
    ) -> Reply<'a, Self::Work>;

    /// Runs after each reply. It may be queued still, until `send` is called.
    fn replied(&self, worker: &mut Self::Worker, send: impl FnOnce()) {
        let _ = (worker, send);
    }

    /// Runs a part of a request that waits for a device, and sends the reply.
    fn run(&self, work: Self::Work, replies: &ReplySender<'_>);

    /// Returns names and work of the threads that run beside the serving threads until [`end`](Self::end).
    fn background(self: &Arc<Self>) -> Vec<(&'static str, Background)>;

    /// Ends the threads of [`background`](Self::background). All requests are answered.
    fn end(&self);
}
