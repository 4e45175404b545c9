//! Node blocks: inodes, direct and indirect nodes, extended attributes. All end in the same footer.
//!
//! ```text
//!  0 content 4056 │ 4056 nid 4 │ ino 4 │ kind 1 │ flags 1 │ zero 2 │ ordinal 4 │ group 4 │ tag 8 │ seq 8 │ 4092 crc 4
//!  direct:   338 × {addr 8, crc 4}         a slot carries the checksum of the data block it names
//!  indirect: 1014 × nid 4
//! ```
//!
//! The checksum in the slot lets `fsync` write data and nodes under one flush. Roll-forward adopts a group of nodes
//! only if every data block that the group newly names is intact.

use super::inode::{Content, Inode};
use super::slot::Slot;
use super::wire::{Get, Put, seal, sealed};
use crate::disk::address::{BLOCK_SIZE, Block, BlockAddr, Nid};
use crate::error::{Error, Result};

/// Length of a node block before the footer. Unit: bytes.
pub const CONTENT: usize = 4056;
/// Maximum length of extended attributes in a node, encoded. Unit: bytes.
pub const XATTR_MAX: usize = CONTENT - 2;
/// Number of slots in a direct node.
pub const DIRECT_SLOTS: usize = 338;
/// Number of node numbers in an indirect node.
pub const INDIRECT_SLOTS: usize = 1014;

/// Content of a node block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeBody {
    /// Inode. Its node number is its inode number.
    Inode(Box<Inode>),
    /// Direct node: slots of data blocks.
    Direct(Box<[Slot; DIRECT_SLOTS]>),
    /// Indirect node: node numbers. Level 1 names direct nodes, level 2 level 1, level 3 level 2.
    Indirect(u8, Box<[Nid; INDIRECT_SLOTS]>),
    /// Extended attributes that do not fit the inode, encoded.
    Xattr(Vec<u8>),
}

impl NodeBody {
    /// Returns the block slots of a node, none for a node of another kind.
    pub fn slots(&self) -> &[Slot] {
        match self {
            Self::Direct(slots) => &slots[..],
            Self::Inode(inode) => match &inode.content {
                Content::Map(map) => &map.slots,
                _ => &[],
            },
            _ => &[],
        }
    }

    /// Number of slots that count as space and have no block: reserved or lost ones.
    pub(crate) fn without_block(&self) -> u64 {
        let slots = self.slots().iter();
        let without = slots.filter(|slot| slot.counts() && !slot.addr.is_mapped());
        without.count() as u64
    }
}

/// Identity and history of a node block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footer {
    /// Number of this node.
    pub nid: Nid,
    /// Inode that owns the node.
    pub ino: Nid,
    /// Number of direct nodes of the file before those under this node; 0 for inodes and attributes.
    pub ordinal: u32,
    /// Number of nodes of an fsync, in its last node. 0 in every other node.
    pub group: u32,
    /// Version of the newest committed checkpoint when the node was written.
    pub tag: u64,
    /// Sequence number, which grows by one with every node written to any log.
    pub seq: u64,
}

const KIND_INODE: u8 = 1;
const KIND_DIRECT: u8 = 2;
const KIND_INDIRECT: u8 = 2; // plus the level
const KIND_XATTR: u8 = 6;

impl NodeBody {
    /// Encodes the node as a block.
    pub fn encode(&self, footer: &Footer) -> Block {
        let mut block = [0; BLOCK_SIZE];
        let mut put = Put::new(&mut block[..CONTENT]);
        let kind = match self {
            NodeBody::Inode(inode) => {
                inode.encode(&mut put);
                KIND_INODE
            }
            NodeBody::Direct(slots) => {
                for slot in slots.iter() {
                    put.u64(slot.addr.0);
                    put.u32(slot.crc);
                }
                KIND_DIRECT
            }
            NodeBody::Indirect(level, nids) => {
                for nid in nids.iter() {
                    put.u32(nid.0);
                }
                KIND_INDIRECT + level
            }
            NodeBody::Xattr(bytes) => {
                put.u16(bytes.len() as u16);
                put.bytes(bytes);
                KIND_XATTR
            }
        };
        let mut put = Put::new(&mut block[CONTENT..]);
        put.u32(footer.nid.0);
        put.u32(footer.ino.0);
        put.u8(kind);
        put.u8(0);
        put.u16(0);
        put.u32(footer.ordinal);
        put.u32(footer.group);
        put.u64(footer.tag);
        put.u64(footer.seq);
        seal(&mut block);
        block
    }

    /// Decodes a node block. The caller compares the footer with the expected one.
    pub fn decode(block: &Block, at: BlockAddr) -> Result<(Self, Footer)> {
        if !sealed(block) {
            return Err(Error::corrupt(
                format_args!("node block {at}"),
                "checksum does not match",
            ));
        }
        let mut get = Get::new(&block[CONTENT..]);
        let (nid, ino) = (Nid(get.u32()), Nid(get.u32()));
        let kind = get.u8();
        let (_flags, _zero) = (get.u8(), get.u16());
        let footer = Footer {
            nid,
            ino,
            ordinal: get.u32(),
            group: get.u32(),
            tag: get.u64(),
            seq: get.u64(),
        };
        let place = || format!("node {nid} (block {at})");
        let mut get = Get::new(&block[..CONTENT]);
        let body = match kind {
            KIND_INODE => NodeBody::Inode(Box::new(
                Inode::decode(&mut get).map_err(|what| Error::corrupt(place(), what))?,
            )),
            KIND_DIRECT => {
                let mut slots = Box::new([Slot::HOLE; DIRECT_SLOTS]);
                for slot in slots.iter_mut() {
                    *slot = Slot {
                        addr: BlockAddr(get.u64()),
                        crc: get.u32(),
                    };
                }
                NodeBody::Direct(slots)
            }
            3..=5 => {
                let mut nids = Box::new([Nid::NONE; INDIRECT_SLOTS]);
                for nid in nids.iter_mut() {
                    *nid = Nid(get.u32());
                }
                NodeBody::Indirect(kind - KIND_INDIRECT, nids)
            }
            KIND_XATTR => {
                let len = usize::from(get.u16());
                if len > XATTR_MAX {
                    return Err(Error::corrupt(
                        place(),
                        format_args!("{len} bytes of attributes"),
                    ));
                }
                NodeBody::Xattr(get.bytes(len).to_vec())
            }
            other => {
                return Err(Error::corrupt(
                    place(),
                    format_args!("kind {other}, expected 1 to 6"),
                ));
            }
        };
        if nid == Nid::NONE || (kind == KIND_INODE) != (nid == ino) {
            return Err(Error::corrupt(
                place(),
                format_args!("kind {kind} with inode number {ino}"),
            ));
        }
        Ok((body, footer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::dentry::NAME_MAX;
    use crate::disk::inode::{
        BlockMap, Content, INLINE_MAX, INLINE_XATTR, INODE_SLOTS, Time, mode,
    };
    use tuff_testkit::Rng;

    const FOOTER: Footer = Footer {
        nid: Nid(8),
        ino: Nid(7),
        ordinal: 3,
        group: 0,
        tag: 5,
        seq: 6,
    };

    #[test]
    fn every_layout_of_an_inode_round_trips() {
        let now = Time {
            sec: -5,
            nsec: 999_999_999,
        };
        let footer = Footer {
            nid: Nid(3),
            ino: Nid(3),
            ordinal: 0,
            group: 2,
            tag: 1,
            seq: 1,
        };
        let mut file = Inode::new(mode::FILE | 0o644, 1, 2, now);
        file.content = Content::Inline(vec![9; INLINE_MAX]);
        file.size = INLINE_MAX as u64;
        file.name = vec![b'n'; NAME_MAX];
        file.xattr = vec![1; INLINE_XATTR];
        let mut mapped = Inode::new(mode::FILE, 0, 0, now);
        let mut map = BlockMap::empty();
        map.slots[INODE_SLOTS - 1] = Slot {
            addr: BlockAddr(3),
            crc: 4,
        };
        map.nids[5] = Nid(77);
        mapped.content = Content::Map(map);
        let dir = Inode::new(mode::DIR | 0o755, 0, 0, now);
        for inode in [file, mapped, dir] {
            let body = NodeBody::Inode(Box::new(inode));
            let block = body.encode(&footer);
            assert_eq!(
                NodeBody::decode(&block, BlockAddr(1)).unwrap(),
                (body, footer)
            );
        }
    }
    #[test]
    fn every_kind_round_trips() {
        let mut slots = Box::new([Slot::HOLE; DIRECT_SLOTS]);
        slots[337] = Slot {
            addr: BlockAddr(1 << 60),
            crc: 77,
        };
        slots[0] = Slot::RESERVED;
        let mut nids = Box::new([Nid::NONE; INDIRECT_SLOTS]);
        nids[1013] = Nid(9);
        for body in [
            NodeBody::Direct(slots),
            NodeBody::Indirect(1, nids.clone()),
            NodeBody::Indirect(3, nids),
            NodeBody::Xattr(vec![1, 2, 3]),
        ] {
            let block = body.encode(&FOOTER);
            assert_eq!(
                NodeBody::decode(&block, BlockAddr(1)).unwrap(),
                (body, FOOTER)
            );
        }
    }

    #[test]
    fn every_flipped_byte_is_detected() {
        let good = NodeBody::Xattr(vec![0; 4000]).encode(&FOOTER);
        for at in 0..BLOCK_SIZE {
            let mut bad = good;
            bad[at] ^= 0x80;
            assert!(NodeBody::decode(&bad, BlockAddr(1)).is_err());
        }
    }

    #[test]
    fn random_content_with_a_correct_checksum_is_an_error_or_survives_a_round_trip() {
        let mut rng = Rng::new(1);
        let mut accepted = 0;
        for round in 0..2000u32 {
            let mut block = [0; BLOCK_SIZE];
            for byte in block.iter_mut() {
                *byte = rng.draw() as u8;
            }
            block[CONTENT + 8] = (round % 8) as u8;
            seal(&mut block);
            // An accepted block is written as it was read.
            if let Ok((body, footer)) = NodeBody::decode(&block, BlockAddr(1)) {
                accepted += 1;
                let again = NodeBody::decode(&body.encode(&footer), BlockAddr(1));
                assert_eq!(again.unwrap(), (body, footer));
            }
        }
        assert!(accepted > 0);
    }
}
