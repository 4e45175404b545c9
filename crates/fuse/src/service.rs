//! Service: answers the requests of a session.

use crate::log::Log;
use crate::negotiation::Negotiation;
use crate::reply::Reply;
use crate::request::Request;
use crate::transport::replies::ReplySender;
use std::sync::Arc;

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

    /// Answers one request. `out` receives the body. Without `lend` the body lies at the start of `out`.
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
