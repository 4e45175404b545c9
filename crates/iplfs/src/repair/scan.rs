//! Search for nodes in the logs, where the node address table is lost.

use crate::device::BlockDevice;
use crate::disk::address::{BLOCK_SIZE, Block, BlockAddr, Geometry, Log, Nid};
use crate::disk::nat::NatEntry;
use crate::disk::node::NodeBody;
use crate::error::{Error, Result};
use crate::volume::state::Volume;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Number of blocks read at once from a log.
const SCAN_BLOCKS: u64 = 256;
/// Newest version of every node in the logs.
#[derive(Default)]
pub(super) struct LogScan {
    pub(super) table: BTreeMap<Nid, NatEntry>,
    /// Highest tag of all nodes.
    pub(super) tag: u64,
    pub(super) seq: u64,
    pub(super) generation: u32,
}

impl LogScan {
    /// Reads the logs up to `ends`, those of the branches from which this one descends up to the fork points.
    pub(super) fn run(volume: &Volume, ends: [u64; 7], skip: impl Fn(u64) -> bool) -> Result<Self> {
        let mut scan = Self::default();
        let mut newest: HashMap<Nid, (u64, u64)> = HashMap::new();
        let (mut dev, mut ends) = (volume.dev.clone(), ends);
        loop {
            scan.device(&*dev, &volume.sb.geometry, &ends, |addr, block, scan| {
                if !skip(addr.0) {
                    scan.node(addr, block, &mut newest);
                }
            })?;
            let Some((parent, heads)) = parent(&*dev)? else {
                return Ok(scan);
            };
            for (end, head) in ends.iter_mut().zip(heads) {
                *end = head.min(*end);
            }
            dev = parent;
        }
    }

    /// Reads the node logs on a device.
    fn device(
        &mut self,
        dev: &dyn BlockDevice,
        geometry: &Geometry,
        ends: &[u64; 7],
        mut block: impl FnMut(BlockAddr, &[u8], &mut Self),
    ) -> Result<()> {
        for log in Log::NODES {
            let range = geometry.range(log, 0..ends[log.index()]);
            let io = |e| Error::io(e, format_args!("scanning the {log:?} log"));
            for run in dev.allocated(range).map_err(io)? {
                let mut at = run.start;
                while at < run.end {
                    let n = (run.end - at).min(SCAN_BLOCKS);
                    let mut bytes = vec![0; n as usize * BLOCK_SIZE];
                    dev.read(BlockAddr(at), &mut bytes).map_err(io)?;
                    for (i, bytes) in bytes.chunks_exact(BLOCK_SIZE).enumerate() {
                        block(BlockAddr(at + i as u64), bytes, self);
                    }
                    at += n;
                }
            }
        }
        Ok(())
    }

    pub(super) fn node(
        &mut self,
        addr: BlockAddr,
        bytes: &[u8],
        newest: &mut HashMap<Nid, (u64, u64)>,
    ) {
        let mut block: Block = [0; BLOCK_SIZE];
        block.copy_from_slice(bytes);
        let Ok((body, footer)) = NodeBody::decode(&block, addr) else {
            return;
        };
        self.tag = self.tag.max(footer.tag);
        self.seq = self.seq.max(footer.seq);
        if let NodeBody::Inode(inode) = &body {
            self.generation = self.generation.max(inode.generation);
        }
        // A tail that was not adopted may have higher sequence numbers, but its tag is older than that of later
        // nodes.
        let age = (footer.tag, footer.seq);
        if newest.get(&footer.nid).is_none_or(|old| *old < age) {
            newest.insert(footer.nid, age);
            let ino = footer.ino;
            self.table.insert(footer.nid, NatEntry { addr, ino });
        }
    }
}

/// Device and heads of the fork point of a branch.
type Parent = (Arc<dyn BlockDevice>, [u64; 7]);

/// Opens the branch from which that of a device was forked. `None` for the first branch.
fn parent(dev: &dyn BlockDevice) -> Result<Option<Parent>> {
    let Some(branch) = dev.branch() else {
        return Ok(None);
    };
    let Some(origin) = branch.origin() else {
        return Ok(None);
    };
    Ok(Some((branch.parent()?, origin.state.heads)))
}

/// First offset of a log past everything that the device holds or has a zone for.
pub(super) fn log_end(dev: &dyn BlockDevice, volume: &Volume, log: Log, start: u64) -> Result<u64> {
    let g = volume.sb.geometry;
    let io = |e| Error::io(e, format_args!("finding the end of the {log:?} log"));
    let range = g.range(log, start..g.area_blocks());
    if !dev.knows_allocated() {
        return Err(Error::Unsupported(
            "the device cannot list its allocated blocks".to_string(),
        ));
    }
    let runs = dev.allocated(range.clone()).map_err(io)?;
    let mut end = runs.last().map_or(range.start, |run| run.end);
    if let Some(zone) = dev.zone_blocks() {
        let zones = dev
            .zones(range.start / zone..range.end / zone)
            .map_err(io)?;
        end = end.max(zones.last().map_or(0, |last| (last + 1) * zone));
    }
    Ok(end - g.range(log, 0..0).start)
}
