//! What a volume asks of the thing that stores its blocks.

use crate::disk::address::{BLOCK_SIZE, Block, BlockAddr};
use crate::error::{Error, Result};
use crate::finding::Finding;
use std::io;
use std::ops::Range;

/// A sparse space of 4 KiB blocks with 61-bit addresses.
///
/// What a device promises, and what the crash tests take away one at a time:
///
/// 1. A block never written, or discarded, reads as zeros.
/// 2. A write that returned is seen by every later read. It survives a loss of power only after a later `flush` returned.
/// 3. If power is lost before that flush, each 512-byte sector of the write holds either its old or its new bytes,
///    independently of all others and of the order in which writes were made. Blocks not written are not affected.
/// 4. A discard is a permission. The device may take it up at once, later, for some of the blocks, or, if power is lost before
///    a later `flush` returned, never. After that flush a device whose `granule` is 1 has taken it up entirely.
/// 5. A failed write may have left any bytes in its own blocks; the volume writes them elsewhere and never reads them.
pub trait BlockDevice: Send + Sync {
    /// Fills `buf`, a whole number of blocks, from `addr` on.
    fn read(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()>;

    /// Writes a whole number of blocks from `addr` on.
    fn write(&self, addr: BlockAddr, data: &[u8]) -> io::Result<()>;

    /// Makes every earlier write and discard durable.
    fn flush(&self) -> io::Result<()>;

    /// Declares blocks dead. Only whole granules inside the range are sure to be reclaimed.
    fn discard(&self, blocks: Range<u64>) -> io::Result<()>;

    /// Runs inside `blocks` that hold, or may hold, data, in ascending order. A device that cannot tell returns the whole range.
    fn allocated(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>>;

    /// True if `allocated` is exact, so that what was never written costs nothing to leave out.
    fn knows_allocated(&self) -> bool;

    /// Smallest run of blocks, aligned to itself, that a discard gives back. Unit: blocks, a power of two.
    fn granule(&self) -> u64 {
        1
    }

    /// Size of a zone that can be given back as a whole, cheaper than by discards. Unit: blocks, a power of two.
    fn zone_blocks(&self) -> Option<u64> {
        None
    }

    /// Gives back a whole zone in one step, with everything it holds. `zone` counts from address 0.
    fn release_zone(&self, zone: u64) -> io::Result<()> {
        let _ = zone;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Zones inside `zones` that exist, allocated or not. Empty if the device has none.
    fn zones(&self, zones: Range<u64>) -> io::Result<Vec<u64>> {
        let _ = zones;
        Ok(Vec::new())
    }

    /// Makes sure that writes to these blocks need no new space later. They are not held, as long as nothing was written there.
    fn preallocate(&self, blocks: Range<u64>) -> io::Result<()> {
        let _ = blocks;
        Ok(())
    }

    /// Gives up what was preallocated in `blocks` and never written. What they hold stays.
    fn release_preallocated(&self, blocks: Range<u64>) -> io::Result<()> {
        let _ = blocks;
        Ok(())
    }

    /// Makes blocks that were never written ready, so that a write to them is quicker to flush; they read as zeros and are held. False if there is nothing to gain.
    fn prepare(&self, blocks: Range<u64>) -> io::Result<bool> {
        let _ = blocks;
        Ok(false)
    }

    /// Room for new blocks right now, `None` if the device cannot tell. Unit: blocks.
    fn free_blocks(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }

    /// Files of the device's own that are damaged or missing, of which it found a sound copy.
    fn damaged_files(&self) -> Vec<Finding> {
        Vec::new()
    }

    /// Writes these files again and makes them durable.
    fn rewrite_damaged_files(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Blocks in a buffer; the contract of `read` and `write` is that nothing is left over.
pub(crate) fn blocks_in(buf: &[u8]) -> u64 {
    debug_assert_eq!(buf.len() % BLOCK_SIZE, 0);
    (buf.len() / BLOCK_SIZE) as u64
}

/// True for what a host says that has no room.
pub(crate) fn is_full(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Reads one block.
pub(crate) fn read_block(dev: &dyn BlockDevice, addr: BlockAddr) -> Result<Block> {
    let mut block = [0; BLOCK_SIZE];
    dev.read(addr, &mut block)
        .map_err(|e| Error::io(e, format_args!("reading block {addr}")))?;
    Ok(block)
}
