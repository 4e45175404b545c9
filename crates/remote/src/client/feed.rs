//! Bodies of requests from ranges of a store, which are never in memory as a whole.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use tuff_store::ReadAt;

/// Bytes that are read at once. Unit: bytes.
const STEP: u64 = 256 << 10;

/// Steps that are read ahead of the connection.
const AHEAD: usize = 4;

/// Range of a store as the body of a request, and the number of its bytes that were sent.
#[derive(Clone)]
pub(crate) struct Feed {
    store: Arc<dyn ReadAt>,
    range: Range<u64>,
    sent: Arc<AtomicU64>,
}

impl Feed {
    pub(crate) fn new(store: Arc<dyn ReadAt>, range: Range<u64>) -> Self {
        Self {
            store,
            range,
            sent: Arc::default(),
        }
    }

    /// Counter of the bytes that the connection has taken.
    pub(crate) fn sent(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.sent)
    }

    /// Starts a body. Runs within the runtime.
    pub(crate) fn body(&self) -> FeedBody {
        let (sender, steps) = mpsc::channel(AHEAD);
        let (store, range) = (Arc::clone(&self.store), self.range.clone());
        tokio::task::spawn_blocking(move || {
            let mut at = range.start;
            while at < range.end {
                let len = STEP.min(range.end - at);
                let mut step = vec![0; len as usize]; // fits: at most STEP
                let read = store.read_exact_at(&mut step, at);
                let is_done = read.is_err();
                // The receiver is gone if the request has failed.
                if sender.blocking_send(read.map(|()| step.into())).is_err() || is_done {
                    return;
                }
                at += len;
            }
        });
        self.sent.store(0, Ordering::Relaxed);
        FeedBody {
            steps,
            left: self.range.end - self.range.start,
            sent: self.sent(),
        }
    }
}

/// Body of one request.
pub(crate) struct FeedBody {
    steps: mpsc::Receiver<io::Result<Bytes>>,
    left: u64,
    sent: Arc<AtomicU64>,
}

impl Body for FeedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.steps.poll_recv(context).map(|step| {
            step.map(|step| {
                let step = step?;
                self.left -= step.len() as u64;
                self.sent.fetch_add(step.len() as u64, Ordering::Relaxed);
                Ok(Frame::data(step))
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
