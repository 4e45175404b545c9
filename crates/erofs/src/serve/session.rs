//! What one thread needs to ask.

use super::counters::Tally;
use super::reply::{Lent, Rest};
use crate::read::decode::Worker;

/// The codec contexts and buffers of one thread that asks a [`Server`](super::Server). They grow to what the largest
/// request needs and are used again.
pub struct Session {
    pub(crate) worker: Worker,
    /// What is decoded only to be copied from.
    pub(crate) buffer: Vec<u8>,
    /// What the last answer was lent.
    pub(crate) lent: Vec<Lent>,
    /// What the last answer was decoded from, if that is to be handed on.
    pub(crate) rest: Option<Rest>,
    /// Whether the last answer took decoding much in front of what was asked for.
    pub(crate) costly: bool,
    pub(crate) tally: Tally,
    /// Which cell of the totals it adds to.
    pub(crate) cell: usize,
}

impl Session {
    pub(crate) fn new(cell: usize) -> Self {
        Self {
            worker: Worker::default(),
            buffer: Vec::new(),
            lent: Vec::new(),
            rest: None,
            costly: false,
            tally: Tally::default(),
            cell,
        }
    }

    /// Gives back what the last answer was lent: for a thread that will not ask for a while.
    pub fn release(&mut self) {
        self.lent.clear();
    }
}
