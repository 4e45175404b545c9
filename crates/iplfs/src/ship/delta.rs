//! Difference between two snapshots of a volume.
//!
//! Addresses are written once. New blocks of a snapshot therefore lie past the heads of its base. They are found from
//! the root of the node address table, without reading older blocks. Dead blocks are those that the older versions of
//! the same nodes named. No file is compared.
//!
//! The receiver keeps every block at its address. It is a copy of the volume, and accepts the next stream as long as
//! nothing else was appended to it.

use crate::disk::address::{BlockAddr, Nid};
use crate::disk::node::NodeBody;
use crate::error::{Error, Result};
use crate::volume::state::Volume;
use std::collections::HashSet;
use std::ops::Range;

/// Blocks that a snapshot has and its base has not, and the reverse.
#[derive(Default)]
pub(crate) struct SnapshotDelta {
    /// New blocks, ascending; data blocks with their checksums.
    pub(crate) new: Vec<(u64, Option<u32>)>,
    /// Blocks that only the base refers to, as merged runs, ascending.
    pub(crate) dead: Vec<Range<u64>>,
    /// Nodes that only the base refers to and that count blocks which they do not name, with their number.
    pub(crate) without_block: Vec<(BlockAddr, u64)>,
    /// New versions of inodes, and whether they have a name.
    pub(crate) inodes: Vec<(Nid, bool)>,
}

impl SnapshotDelta {
    /// Compares two states of one volume. Without a base everything is new.
    pub(crate) fn between(snapshot: &mut Volume, base: Option<&mut Volume>) -> Result<Self> {
        let dev = snapshot.dev.clone();
        let heads = base.as_ref().map(|base| base.logs.heads());
        let geometry = snapshot.sb.geometry;
        let is_new = |addr: BlockAddr| match (geometry.place(addr), &heads) {
            (Some((log, offset)), Some(heads)) => offset >= heads[log.index()],
            (place, _) => place.is_some(),
        };
        let mut none = Volume::empty(dev.clone(), snapshot.sb.clone(), snapshot.options.clone());
        let base = base.unwrap_or(&mut none);
        let changes = snapshot.nat.changes_since(&*dev, &mut base.nat, is_new)?;
        let mut tail = Self::default();
        let mut dead: Vec<u64> = changes.old.iter().map(|addr| addr.0).collect();
        tail.new
            .extend(changes.new.iter().map(|addr| (addr.0, None)));
        let mut kept: HashSet<BlockAddr> = HashSet::new();
        for (nid, old, new) in changes.entries {
            if new.addr.is_mapped() {
                if !is_new(new.addr) || nid.0 >= snapshot.nat.next_nid {
                    return Err(Error::corrupt(
                        format_args!("node {nid}"),
                        format_args!("block {} is older than its entry", new.addr),
                    ));
                }
                let (body, footer) = snapshot.read_node_at(new.addr)?;
                if (footer.nid, footer.ino) != (nid, new.ino) {
                    return Err(Error::corrupt(
                        format_args!("node {nid} of inode {} (block {})", new.ino, new.addr),
                        format_args!("is node {} of inode {}", footer.nid, footer.ino),
                    ));
                }
                tail.new.push((new.addr.0, None));
                for slot in body.slots().iter().filter(|slot| slot.addr.is_mapped()) {
                    kept.insert(slot.addr);
                    if is_new(slot.addr) {
                        tail.new.push((slot.addr.0, Some(slot.crc)));
                    }
                }
                if let NodeBody::Inode(inode) = &body {
                    tail.inodes.push((nid, inode.nlink > 0));
                }
            }
            if old.addr.is_mapped() {
                dead.push(old.addr.0);
                let (body, _) = base.read_node_at(old.addr)?;
                match body.without_block() {
                    0 => {}
                    blocks => tail.without_block.push((old.addr, blocks)),
                }
                let named = body.slots().iter().map(|slot| slot.addr);
                dead.extend(named.filter(|addr| addr.is_mapped()).map(|addr| addr.0));
            }
        }
        dead.retain(|addr| !kept.contains(&BlockAddr(*addr)));
        tail.new.sort_unstable();
        dead.sort_unstable();
        let twice = tail.new.windows(2).find(|pair| pair[0].0 == pair[1].0);
        let twice = twice.map(|pair| pair[0].0);
        if let Some(addr) = twice.or_else(|| {
            dead.windows(2)
                .find(|pair| pair[0] == pair[1])
                .map(|pair| pair[0])
        }) {
            return Err(Error::corrupt(
                format_args!("block {addr:#x}"),
                "is referred to twice",
            ));
        }
        for addr in dead {
            match tail.dead.last_mut() {
                Some(run) if run.end == addr => run.end += 1,
                _ => tail.dead.push(addr..addr + 1),
            }
        }
        Ok(tail)
    }
}
