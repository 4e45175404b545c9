//! Snapshot records: the roots of a checkpoint, kept in the body of every later one.
//!
//! ```text
//!  0 name 64 │ 64 sec 8 │ nsec 4 │ next_nid 4 │ 80 version 8 │ nat_root 8 │ nat_root_crc 4 │ nat_height 4
//!  104 nat_blocks 8 │ live_blocks 8 │ inodes 8 │ 128 heads 7 × 8 │ lost_nodes 4 │ lost_data 4
//! ```
//!
//! Nothing else is needed. The node address table is never overwritten, so its root names the whole state. The heads
//! separate older blocks from younger ones. A block that dies later and is older than the newest snapshot was live in
//! that snapshot, and is kept.

use super::inode::Time;
use super::wire::{Get, Put};
use crate::disk::address::BlockAddr;
use crate::disk::nat::{NAT_HEIGHT_MAX, NatPointer};
use crate::error::{Error, Result};

/// Length of a record. Unit: bytes.
pub const SNAPSHOT_LEN: usize = 192;
/// Longest name of a snapshot. Unit: bytes.
pub const NAME_MAX: usize = 64;

/// Record of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Name, unique in the volume.
    pub name: String,
    /// Time at which it was taken.
    pub time: Time,
    /// First checkpoint that contains it.
    pub version: u64,
    /// Lowest node number that was unused.
    pub next_nid: u32,
    /// Root of its node address table.
    pub nat_root: NatPointer,
    /// Height of the node address table.
    pub nat_height: u32,
    /// Number of blocks of the node address table.
    pub nat_blocks: u64,
    /// Number of live blocks of data and nodes.
    pub live_blocks: u64,
    /// Number of inodes in use.
    pub inodes: u64,
    /// Head of each log. Blocks below it are older than the snapshot.
    pub heads: [u64; 7],
    /// Number of damaged blocks of nodes and of the node address table, found by a repair. Blocks reachable only
    /// through them are lost.
    pub lost_nodes: u32,
    /// Number of damaged data blocks, found by a repair. Reading them is an error.
    pub lost_data: u32,
}

impl Snapshot {
    /// Encodes the record for the body of a checkpoint.
    pub fn encode(&self) -> [u8; SNAPSHOT_LEN] {
        let mut bytes = [0; SNAPSHOT_LEN];
        let mut put = Put::new(&mut bytes);
        let mut name = [0; NAME_MAX];
        name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        put.bytes(&name);
        put.i64(self.time.sec);
        put.u32(self.time.nsec);
        put.u32(self.next_nid);
        put.u64(self.version);
        put.u64(self.nat_root.addr.0);
        put.u32(self.nat_root.crc);
        put.u32(self.nat_height);
        for v in [self.nat_blocks, self.live_blocks, self.inodes] {
            put.u64(v);
        }
        for head in self.heads {
            put.u64(head);
        }
        put.u32(self.lost_nodes);
        put.u32(self.lost_data);
        bytes
    }

    /// Decodes a record from the body of a checkpoint.
    pub(crate) fn decode(get: &mut Get<'_>) -> Result<Self> {
        let name: [u8; NAME_MAX] = get.array();
        let len = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_MAX);
        let name = std::str::from_utf8(&name[..len]);
        let Some(name) = name.ok().filter(|name| !name.is_empty()) else {
            return Err(Error::corrupt("snapshot", "name is empty or not UTF-8"));
        };
        let time = Time {
            sec: get.i64(),
            nsec: get.u32(),
        };
        let (next_nid, version) = (get.u32(), get.u64());
        let nat_root = NatPointer {
            addr: BlockAddr(get.u64()),
            crc: get.u32(),
        };
        let nat_height = get.u32();
        if nat_height > NAT_HEIGHT_MAX {
            return Err(Error::corrupt(
                format_args!("snapshot {name}"),
                format_args!("table of {nat_height} levels"),
            ));
        }
        let (nat_blocks, live_blocks, inodes) = (get.u64(), get.u64(), get.u64());
        let heads = std::array::from_fn(|_| get.u64());
        let (lost_nodes, lost_data) = (get.u32(), get.u32());
        Ok(Self {
            name: name.to_string(),
            time,
            version,
            next_nid,
            nat_root,
            nat_height,
            nat_blocks,
            live_blocks,
            inodes,
            heads,
            lost_nodes,
            lost_data,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let snapshot = Snapshot {
            name: "before the upgrade".to_string(),
            time: Time { sec: -1, nsec: 5 },
            version: 77,
            next_nid: 12,
            nat_root: NatPointer {
                addr: BlockAddr(600),
                crc: 9,
            },
            nat_height: 2,
            nat_blocks: 3,
            live_blocks: 4,
            inodes: 5,
            heads: [1, 2, 3, 4, 5, 6, 7],
            lost_nodes: 8,
            lost_data: 9,
        };
        let bytes = snapshot.encode();
        assert_eq!(Snapshot::decode(&mut Get::new(&bytes)).unwrap(), snapshot);
        assert!(Snapshot::decode(&mut Get::new(&[0; SNAPSHOT_LEN])).is_err());
        assert!(Snapshot::decode(&mut Get::new(&[0xff; SNAPSHOT_LEN])).is_err());
    }
}
