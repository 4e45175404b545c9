//! Records of claimed space.

use crate::backend::branch::BranchSet;
use crate::backend::space::SpaceFile;
use std::time::Instant;

/// Claim of a branch that is mounted for writing.
#[derive(Default)]
pub(crate) struct Claims {
    pub(crate) own: Option<OwnClaim>,
    /// Blocks that other branches have claimed, as they were read last.
    pub(crate) others: u64,
}

/// Claim, and the file that it is in.
pub(crate) struct OwnClaim {
    pub(crate) set: BranchSet,
    pub(crate) number: u64,
    pub(crate) space: SpaceFile,
    pub(crate) blocks: u64,
    /// Piece of the last raise.
    pub(crate) piece: u64,
    /// Blocks that are claimed beyond what is used.
    pub(crate) ahead: u64,
    pub(crate) looked: Option<Instant>,
}
