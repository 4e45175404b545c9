//! Tails of files, and whole files of a stream, that wait for the packed inode.

use super::address::FragmentAddr;
use super::pending::PendingBlocks;
use hashbrown::HashMap;
use std::collections::VecDeque;

/// Ends of files for the packed inode, and whole files of a stream. Positions count from the first of them.
pub(super) struct TailFragments {
    /// Not yet submitted.
    pub(super) buf: Vec<u8>,
    /// Submitted bytes.
    pub(super) submitted: u64,
    pub(super) segments: u64,
    /// Tickets of submitted segments that are not held yet.
    pub(super) pending: VecDeque<u64>,
    /// Encoded.
    pub(super) held: PendingBlocks,
    /// By digest.
    pub(super) known: HashMap<[u8; 16], FragmentAddr>,
}

impl TailFragments {
    /// No ends yet.
    pub(super) fn new(held: PendingBlocks) -> Self {
        Self {
            buf: Vec::new(),
            submitted: 0,
            segments: 0,
            pending: VecDeque::new(),
            held,
            known: HashMap::new(),
        }
    }
}
