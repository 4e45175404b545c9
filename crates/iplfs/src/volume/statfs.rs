//! Space as `statfs` reports it: what a write can have, after the checkpoints that it would force.
//!
//! An operation that finds no space drains the volume (admission.rs). So dead blocks count as free at once, unless the
//! device cannot release them, and blocks that wait in memory count once. Nodes take a part of what is free.

use crate::disk::address::BLOCK_SIZE;
use crate::options::DiscardMode;
use crate::volume::admission::HOST_RESERVE;
use crate::volume::state::Volume;

/// Blocks of which a file of data needs one more for nodes, as the admission of a write counts them.
const BLOCKS_PER_NODE: u64 = 250;
/// Blocks that the admission of a small change asks for beside its data.
const CHANGE_BLOCKS: u64 = 32;

/// Space and inodes of a volume. Unit of space: blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// Blocks that the volume may take, without its reserve.
    pub total: u64,
    /// Blocks of data that the quota leaves.
    pub free: u64,
    /// Blocks of data that can be written: also limited by the free space of the host.
    pub available: u64,
    /// Number of inodes in use, and of those that can be created.
    pub inodes: u64,
    /// Number of inodes that can be created.
    pub inodes_free: u64,
    /// Size of a block. Unit: bytes.
    pub block_size: u32,
}

impl Volume {
    /// Returns the space of the volume.
    pub fn statfs(&self) -> Statfs {
        let space = self.space();
        let releases = self.dev.granule() == 1 && self.options.discard != DiscardMode::Never;
        // Other dead blocks wait for other branches.
        let dead = match releases {
            true => self.dead.blocks() + space.pending,
            false => 0,
        };
        let kept = space.dead + space.pending - dead;
        let table = self.nat.update_blocks_max();
        let used =
            space.live + space.held + kept + table + space.promised + self.claimed_by_others();
        let total = space.quota.saturating_sub(space.reserve);
        let free = total.saturating_sub(used);
        // Dirty memory takes space of the host when it is written, and dead blocks give theirs back.
        let host = self.host_free().ok().flatten().map(|host| {
            let taken = self.buffered_blocks_max() + space.promised + HOST_RESERVE;
            (host + dead).saturating_sub(taken)
        });
        let available = data_blocks(free.min(host.unwrap_or(free)));
        Statfs {
            total,
            free: data_blocks(free),
            available,
            inodes: space.inodes,
            inodes_free: available,
            block_size: BLOCK_SIZE as u32,
        }
    }
}

/// Returns the number of blocks of data that fit with their nodes.
fn data_blocks(blocks: u64) -> u64 {
    let blocks = blocks.saturating_sub(CHANGE_BLOCKS);
    blocks - blocks.div_ceil(BLOCKS_PER_NODE + 1)
}
