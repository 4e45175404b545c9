//! Block devices that store a volume.

use crate::disk::address::{BLOCK_SIZE, Block, BlockAddr};
use crate::disk::branch::{ForkPoint, Layout};
use crate::error::{Error, Result};
use crate::finding::Finding;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Sparse space of 4 KiB blocks with 61-bit addresses.
///
/// The contract of a device, which the crash tests exercise clause by clause:
///
/// 1. A block that was never written, or was discarded, reads as zeros.
/// 2. A write that returned is visible to every later read. It survives a power loss only after a later `flush`
///    returned.
/// 3. If power is lost before that flush, each 512-byte sector of the write holds either its old or its new bytes.
///    Sectors are independent of each other and of the order of the writes. Blocks that were not written are not
///    affected.
/// 4. A discard is a permission. The device may apply it at once, later, or to some of the blocks only. If power is
///    lost before a later `flush` returned, it may never apply it. After that flush, a device whose `granule` is 1
///    has applied it entirely.
/// 5. A failed write may leave any bytes in its own blocks. The volume writes the data elsewhere and never reads
///    those blocks.
pub trait BlockDevice: Send + Sync {
    /// Fills `buf`, a whole number of blocks, from `addr` on.
    fn read(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()>;

    /// Like [`read`](Self::read), past caches that miss what another opener of the same medium wrote.
    fn read_uncached(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()> {
        self.read(addr, buf)
    }

    /// Writes a whole number of blocks from `addr` on.
    fn write(&self, addr: BlockAddr, data: &[u8]) -> io::Result<()>;

    /// Makes every earlier write and discard durable.
    fn flush(&self) -> io::Result<()>;

    /// Declares blocks dead. Only whole granules inside the range are sure to be reclaimed.
    fn discard(&self, blocks: Range<u64>) -> io::Result<()>;

    /// Returns the runs inside `blocks` that hold, or may hold, data, in ascending order. A device that cannot tell
    /// returns the whole range.
    fn allocated(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>>;

    /// Returns whether `allocated` is exact, so that blocks that were never written can be skipped.
    fn knows_allocated(&self) -> bool;

    /// Smallest run of blocks, aligned to its own size, that a discard releases. Unit: blocks, a power of two.
    fn granule(&self) -> u64 {
        1
    }

    /// Size of a zone that can be released as a whole, which is cheaper than discards. Unit: blocks, a power of two.
    fn zone_blocks(&self) -> Option<u64> {
        None
    }

    /// Releases a whole zone in one step, with everything it holds. `zone` counts from address 0.
    fn release_zone(&self, zone: u64) -> io::Result<()> {
        let _ = zone;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns the zones inside `zones` that exist, allocated or not. Empty if the device has no zones.
    fn zones(&self, zones: Range<u64>) -> io::Result<Vec<u64>> {
        let _ = zones;
        Ok(Vec::new())
    }

    /// Reserves space for later writes to `blocks`. Reserved blocks do not count as allocated until they are written.
    fn preallocate(&self, blocks: Range<u64>) -> io::Result<()> {
        let _ = blocks;
        Ok(())
    }

    /// Releases the space that was reserved in `blocks` and never written. Written blocks stay.
    fn release_preallocated(&self, blocks: Range<u64>) -> io::Result<()> {
        let _ = blocks;
        Ok(())
    }

    /// Writes zeros to blocks that were never written, so that flushing a later write to them is cheap. The blocks
    /// count as allocated. Returns false if the device gains nothing by it.
    fn prepare(&self, blocks: Range<u64>) -> io::Result<bool> {
        let _ = blocks;
        Ok(false)
    }

    /// Passes a part of the space to the host that discards and flushes made free and that the device has kept, because large
    /// pieces cost less. It is called again while it returns true and nothing else happens.
    fn release_free_space(&self) -> bool {
        false
    }

    /// Free space for new blocks, `None` if the device cannot tell. Unit: blocks.
    fn free_blocks(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }

    /// Returns the branch that the device shows, `None` if volumes on such a device cannot have branches.
    fn branch(&self) -> Option<&dyn BranchDevice> {
        None
    }

    /// Gives up the exclusive claim of a block device, so that the kernel can take it for a mount, or takes it again. The lock of
    /// the volume stays.
    fn claim(&self, exclusive: bool) -> io::Result<()> {
        let _ = exclusive;
        Ok(())
    }

    /// Gives up the lock of the volume, which is unmounted. Nothing is written afterwards.
    fn unlock(&self) {}

    /// Returns the device's own files that are damaged or missing, and of which it has a sound copy.
    fn damaged_files(&self) -> Vec<Finding> {
        Vec::new()
    }

    /// Writes the damaged files again and makes them durable.
    fn rewrite_damaged_files(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Child of a branch. It pins its fork point in the parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Child {
    /// Number of the child.
    pub number: u64,
    /// Checkpoint of the parent from which the child was forked.
    pub version: u64,
    /// Set if the child was deleted, and only its fork point is left.
    pub is_dead: bool,
}

/// Device of one branch of a volume. Reads go to the blocks of all branches, writes and discards to its own.
pub trait BranchDevice: Send + Sync {
    /// Directory of the volume.
    fn directory(&self) -> &Path;

    /// Number of the branch.
    fn number(&self) -> u64;

    /// State from which the branch was forked, `None` for the first branch.
    fn origin(&self) -> Option<&ForkPoint>;

    /// Opens the branch from which the branch was forked, for reading and without its lock. Its mount may release blocks
    /// meanwhile, but none below the fork point that the branch needs.
    ///
    /// # Errors
    /// `Corrupt` for the first branch.
    fn parent(&self) -> Result<Arc<dyn BlockDevice>>;

    /// Division of the address space, `None` while the volume has no branches.
    fn layout(&self) -> Option<Layout>;

    /// Makes a device without branches the first branch of its volume.
    fn divide(&self, layout: Layout);

    /// End of the own regions in which an offset of a log lies, `None` while the volume has no branches.
    fn region_end(&self, offset: u64) -> Option<u64>;

    /// Takes the next free region, durably. Returns its first offset.
    fn take_region(&self) -> Result<u64>;

    /// Makes regions those of the branch, durably. Lower regions that no branch has are not given out afterwards.
    ///
    /// # Errors
    /// `Usage` if another branch has one of them. `Limit` if more than half of the free regions would be passed over.
    fn own_regions(&self, regions: BTreeSet<u64>) -> Result<()>;

    /// Returns the children of the branch, deleted ones included until they are forgotten.
    fn children(&self) -> Result<Vec<Child>>;

    /// Returns the fork point that a child pins, `None` if it pins none.
    fn fork_point(&self, child: u64) -> Result<Option<ForkPoint>>;

    /// Keeps all processes from mounting snapshots of the volume until the returned file is dropped. `None` if the
    /// snapshot of checkpoint `version` is mounted.
    fn lock_snapshot(&self, version: u64) -> Result<Option<File>>;

    /// Removes a deleted child, durably. That ends the pin of its fork point.
    fn forget_child(&self, child: u64) -> Result<()>;
}

/// Number of blocks in a buffer. The contract of `read` and `write` demands whole blocks.
pub(crate) fn blocks_in(buf: &[u8]) -> u64 {
    debug_assert_eq!(buf.len() % BLOCK_SIZE, 0);
    (buf.len() / BLOCK_SIZE) as u64
}

/// Returns whether the host reported that it has no space left.
pub(crate) fn is_full(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Reads a single block.
pub(crate) fn read_block(dev: &dyn BlockDevice, addr: BlockAddr) -> Result<Block> {
    let mut block = [0; BLOCK_SIZE];
    dev.read(addr, &mut block)
        .map_err(|e| Error::io(e, format_args!("reading block {addr}")))?;
    Ok(block)
}
