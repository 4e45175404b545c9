//! Tails of files, and whole files of a stream, that wait for the packed inode.

use super::address::FragmentAddr;
use super::pending::PendingBlocks;
use hashbrown::HashMap;
use std::collections::VecDeque;

/// Tails for the packed inode, and whole files of a stream. Positions count from the first of them.
pub(super) struct TailFragments {
    /// Bytes that are not yet submitted.
    pub(super) buf: Vec<u8>,
    /// Positions at which a segment ends, ascending multiples of the block size.
    pub(super) cuts: VecDeque<u64>,
    /// Number of submitted bytes.
    pub(super) submitted: u64,
    pub(super) segments: u64,
    /// Tickets of submitted segments whose results are not stored yet.
    pub(super) pending: VecDeque<u64>,
    /// Encoded segments of tails.
    pub(super) encoded: PendingBlocks,
    /// Addresses of known tails, by digest.
    pub(super) known: HashMap<[u8; 16], FragmentAddr>,
}

impl TailFragments {
    /// Returns an empty queue.
    pub(super) fn new(encoded: PendingBlocks) -> Self {
        Self {
            buf: Vec::new(),
            cuts: VecDeque::new(),
            submitted: 0,
            segments: 0,
            pending: VecDeque::new(),
            encoded,
            known: HashMap::new(),
        }
    }
}
