//! Per-thread state of requests.

use super::counters::Tally;
use super::reply::{ClusterReference, PushRange};
use crate::read::decode::Worker;

/// Codec contexts and buffers of one thread that uses a [`Server`](super::Server). Buffers grow to
/// the size that the largest request needs, and are reused.
pub struct Session {
    pub(crate) worker: Worker,
    /// Buffer for decoded prefixes.
    pub(crate) buffer: Vec<u8>,
    /// Cached clusters that the last reply references.
    pub(crate) references: Vec<ClusterReference>,
    /// Range to push after the last reply, if any.
    pub(crate) push: Option<PushRange>,
    /// True if the last reply decoded many bytes before the requested ones.
    pub(crate) costly: bool,
    pub(crate) tally: Tally,
    /// Cell of the server's totals.
    pub(crate) cell: usize,
}

impl Session {
    pub(crate) fn new(cell: usize) -> Self {
        Self {
            worker: Worker::default(),
            buffer: Vec::new(),
            references: Vec::new(),
            push: None,
            costly: false,
            tally: Tally::default(),
            cell,
        }
    }

    /// Releases the clusters that the last reply references. Call it before the thread pauses.
    pub fn release(&mut self) {
        self.references.clear();
    }
}
