//! Checkpoint pack: two seals, then the body.
//!
//! ```text
//!  pack:  [seal][seal copy][body …][copy …]    A and B take turns; a pack is pack_blocks long
//!  body:  snapshots 192 each │ orphans 4 each │ NAT journal 16 each │ discard log 16 each      one byte stream
//!  copy:  the first blocks of the body, up to the end of the journal
//!  what does not fit the pack continues in one extent of the metadata log
//! ```
//!
//! The body is written and flushed before either seal, and a seal carries the checksum of the body. One sound seal
//! proves that the checkpoint was committed. A crash while the seals are written leaves at worst the old pack.
//!
//! A single footer would not do: a damaged committed checkpoint and an interrupted one would look the same, and
//! damage would silently roll the volume back.
//!
//! The copy serves if the body is damaged. It does not contain the discard log: a trim finds the blocks that the log
//! named.

use super::wire::{Get, Put, seal, sealed};
use crate::disk::address::{BLOCK_SIZE, Block, BlockAddr, Nid};
use crate::disk::nat::NatEntry;
use crate::disk::snapshot::{SNAPSHOT_LEN, Snapshot};
use crate::error::{Error, Result};

const MAGIC: [u8; 8] = *b"TUFF-CP\0";
/// Number of blocks at the start of a pack that hold the seals.
pub const SEALS: u64 = 2;

/// Positions of one log. Unit: blocks from the start of its area.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogMarks {
    /// First block that roll-forward reads. Equals `head` except during a recovery.
    pub scan: u64,
    /// Position of the next block.
    pub head: u64,
    /// Bound of what may be appended before the next checkpoint.
    pub limit: u64,
    /// Bound of what may be appended before the checkpoint after the next. A mount that falls back to this checkpoint
    /// starts there.
    pub far: u64,
}

/// State in which the volume was left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Unmounted: nothing was written after this checkpoint.
    Clean,
    /// Mounted: groups of nodes may follow the scan marks.
    Mounted,
    /// A recovery began here. Groups lie between `scan` and `head`, blocks of the recovery after `head`.
    Recovering,
    /// A stream is being received. Blocks of it may lie between `head` and `limit`, and are not valid yet.
    Receiving,
}

/// Content of a seal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seal {
    /// Version of this checkpoint, one higher than that of the previous one.
    pub version: u64,
    /// Tag of the nodes that roll-forward accepts: the version of a checkpoint.
    pub roll_tag: u64,
    /// State in which the volume was left.
    pub phase: Phase,
    /// Set if blocks were leaked that only a trim finds.
    pub needs_trim: bool,
    /// Sequence number of the first node written after the checkpoint named by `roll_tag`.
    pub next_seq: u64,
    /// Lowest node number that was never used.
    pub next_nid: u32,
    /// Levels of the node address table, 0 if it is empty.
    pub nat_height: u32,
    /// Address of the root block of the node address table.
    pub nat_root: BlockAddr,
    /// Checksum of the root block.
    pub nat_root_crc: u32,
    /// Number of blocks of the node address table.
    pub nat_blocks: u64,
    /// Number of live blocks of files, directories and nodes, reserved ones included. The node address table does not
    /// count.
    pub live_blocks: u64,
    /// Number of inodes in use.
    pub inodes: u64,
    /// Generation number of the next inode.
    pub next_generation: u32,
    /// Number of dead blocks that snapshots still refer to.
    pub held_blocks: u64,
    /// Number of snapshots in the body.
    pub snapshots: u32,
    /// Number of orphans in the body.
    pub orphans: u32,
    /// Number of journal entries in the body.
    pub journal: u32,
    /// Number of entries of the discard log in the body.
    pub discards: u32,
    /// Checksum of the body.
    pub body_crc: u32,
    /// Start of the part of the body that does not fit the pack.
    pub overflow: BlockAddr,
    /// Number of blocks of that part, without those of the copy.
    pub overflow_blocks: u32,
    /// Number of blocks of the copy. 0 if there is no copy, as in checkpoints of earlier versions.
    pub copy_blocks: u32,
    /// Checksum of the copy.
    pub copy_crc: u32,
    /// Positions of the seven logs.
    pub logs: [LogMarks; 7],
    /// Number of live blocks that belong to other branches, tables included.
    pub shared_blocks: u64,
    /// Number of the child whose fork point was released last, 0 if none was.
    pub released: u64,
}

impl Seal {
    /// Encodes the seal as a block.
    pub fn encode(&self) -> Block {
        let mut block = [0; BLOCK_SIZE];
        let mut put = Put::new(&mut block);
        put.bytes(&MAGIC);
        put.u64(self.version);
        put.u64(self.roll_tag);
        put.u8(match self.phase {
            Phase::Clean => 0,
            Phase::Mounted => 1,
            Phase::Recovering => 2,
            Phase::Receiving => 3,
        });
        put.u8(u8::from(self.needs_trim));
        put.u16(0);
        put.u32(self.next_nid);
        put.u64(self.next_seq);
        put.u64(self.nat_root.0);
        put.u32(self.nat_root_crc);
        put.u32(self.nat_height);
        put.u64(self.nat_blocks);
        put.u64(self.live_blocks);
        put.u64(self.inodes);
        put.u64(self.held_blocks);
        put.u32(self.next_generation);
        put.u32(self.snapshots);
        put.u32(self.orphans);
        put.u32(self.journal);
        put.u32(self.discards);
        put.u32(self.body_crc);
        put.u32(self.overflow_blocks);
        put.u64(self.overflow.0);
        for log in &self.logs {
            put.u64(log.scan);
            put.u64(log.head);
            put.u64(log.limit);
            put.u64(log.far);
        }
        put.u32(self.copy_blocks);
        put.u32(self.copy_crc);
        put.u64(self.shared_blocks);
        put.u64(self.released);
        seal(&mut block);
        block
    }

    /// Decodes a seal. `None` if the block is not a complete seal, which is an ordinary result of a crash.
    pub fn decode(block: &Block) -> Option<Self> {
        let mut get = Get::new(block);
        if get.array() != MAGIC || !sealed(block) {
            return None;
        }
        let version = get.u64();
        let roll_tag = get.u64();
        let phase = match get.u8() {
            0 => Phase::Clean,
            1 => Phase::Mounted,
            2 => Phase::Recovering,
            3 => Phase::Receiving,
            _ => return None,
        };
        let needs_trim = get.u8() != 0;
        let _ = get.u16();
        let next_nid = get.u32();
        let next_seq = get.u64();
        let nat_root = BlockAddr(get.u64());
        let nat_root_crc = get.u32();
        let nat_height = get.u32();
        let (nat_blocks, live_blocks, inodes) = (get.u64(), get.u64(), get.u64());
        let held_blocks = get.u64();
        let next_generation = get.u32();
        let snapshots = get.u32();
        let (orphans, journal, discards) = (get.u32(), get.u32(), get.u32());
        let body_crc = get.u32();
        let overflow_blocks = get.u32();
        let overflow = BlockAddr(get.u64());
        let mut logs = [LogMarks::default(); 7];
        for log in &mut logs {
            *log = LogMarks {
                scan: get.u64(),
                head: get.u64(),
                limit: get.u64(),
                far: get.u64(),
            };
        }
        let (copy_blocks, copy_crc) = (get.u32(), get.u32());
        let (shared_blocks, released) = (get.u64(), get.u64());
        Some(Self {
            version,
            roll_tag,
            phase,
            needs_trim,
            next_seq,
            next_nid,
            nat_height,
            nat_root,
            nat_root_crc,
            nat_blocks,
            live_blocks,
            inodes,
            held_blocks,
            next_generation,
            snapshots,
            orphans,
            journal,
            discards,
            body_crc,
            overflow,
            overflow_blocks,
            copy_blocks,
            copy_crc,
            logs,
            shared_blocks,
            released,
        })
    }

    /// Length of the body before padding. Unit: bytes.
    pub fn body_len(&self) -> u64 {
        self.copied_len() + 16 * u64::from(self.discards)
    }

    /// Length of the part of the body that has a copy. Unit: bytes.
    pub fn copied_len(&self) -> u64 {
        SNAPSHOT_LEN as u64 * u64::from(self.snapshots)
            + 4 * u64::from(self.orphans)
            + 16 * u64::from(self.journal)
    }

    /// Number of blocks of the body, inside and outside the pack.
    pub fn body_blocks(&self) -> u64 {
        self.body_len().div_ceil(BLOCK_SIZE as u64)
    }
}

/// Entry of the discard log: dead blocks that the device may still hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiscardEntry {
    /// First dead block of the run.
    pub start: BlockAddr,
    /// Length of the run. Unit: blocks.
    pub blocks: u32,
}

/// Body of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckpointBody {
    /// Records of snapshots, oldest first.
    pub snapshots: Vec<Snapshot>,
    /// Open inodes without a name.
    pub orphans: Vec<Nid>,
    /// Entries of the node address table that differ from its tree.
    pub journal: Vec<(Nid, NatEntry)>,
    /// Dead blocks whose discard is not confirmed.
    pub discards: Vec<DiscardEntry>,
}

impl CheckpointBody {
    /// Length before padding. Unit: bytes.
    pub fn byte_len(&self) -> usize {
        self.copied_len() + self.discards.len() * 16
    }

    /// Length of the part that has a copy. Unit: bytes.
    pub fn copied_len(&self) -> usize {
        self.snapshots.len() * SNAPSHOT_LEN + self.orphans.len() * 4 + self.journal.len() * 16
    }

    /// Encodes the body, padded with zeros to whole blocks.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.byte_len().next_multiple_of(BLOCK_SIZE));
        for snapshot in &self.snapshots {
            bytes.extend_from_slice(&snapshot.encode());
        }
        for orphan in &self.orphans {
            bytes.extend_from_slice(&orphan.0.to_le_bytes());
        }
        for (nid, entry) in &self.journal {
            bytes.extend_from_slice(&nid.0.to_le_bytes());
            bytes.extend_from_slice(&entry.ino.0.to_le_bytes());
            bytes.extend_from_slice(&entry.addr.0.to_le_bytes());
        }
        for discard in &self.discards {
            bytes.extend_from_slice(&discard.start.0.to_le_bytes());
            bytes.extend_from_slice(&discard.blocks.to_le_bytes());
            bytes.extend_from_slice(&[0; 4]);
        }
        bytes.resize(bytes.len().next_multiple_of(BLOCK_SIZE), 0);
        bytes
    }

    /// Decodes the body that `seal` describes.
    pub fn decode(seal: &Seal, bytes: &[u8]) -> Result<Self> {
        if bytes.len() as u64 != seal.body_blocks() * BLOCK_SIZE as u64
            || crc32c::crc32c(bytes) != seal.body_crc
        {
            let place = format_args!("checkpoint {}", seal.version);
            return Err(Error::corrupt(place, "checksum of the body does not match"));
        }
        Self::parse(seal, seal.discards, bytes)
    }

    /// Decodes the copy, which lacks the discard log.
    pub fn decode_copy(seal: &Seal, bytes: &[u8]) -> Result<Self> {
        if (bytes.len() as u64) < seal.copied_len() || crc32c::crc32c(bytes) != seal.copy_crc {
            let place = format_args!("checkpoint {}", seal.version);
            let what = "checksums of the body and its copy do not match";
            return Err(Error::corrupt(place, what));
        }
        Self::parse(seal, 0, bytes)
    }

    fn parse(seal: &Seal, discards: u32, bytes: &[u8]) -> Result<Self> {
        let mut get = Get::new(bytes);
        let snapshots = (0..seal.snapshots)
            .map(|_| Snapshot::decode(&mut get))
            .collect::<Result<Vec<_>>>()?;
        let orphans = (0..seal.orphans).map(|_| Nid(get.u32())).collect();
        let journal = (0..seal.journal)
            .map(|_| {
                (
                    Nid(get.u32()),
                    NatEntry {
                        ino: Nid(get.u32()),
                        addr: BlockAddr(get.u64()),
                    },
                )
            })
            .collect();
        let discards = (0..discards)
            .map(|_| {
                let entry = DiscardEntry {
                    start: BlockAddr(get.u64()),
                    blocks: get.u32(),
                };
                get.u32();
                entry
            })
            .collect();
        Ok(Self {
            snapshots,
            orphans,
            journal,
            discards,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn sample() -> (Seal, CheckpointBody) {
        let body = CheckpointBody {
            snapshots: Vec::new(),
            orphans: vec![Nid(5), Nid(9)],
            journal: vec![(
                Nid(4),
                NatEntry {
                    ino: Nid(4),
                    addr: BlockAddr(1 << 50),
                },
            )],
            discards: vec![DiscardEntry {
                start: BlockAddr(77),
                blocks: 3,
            }],
        };
        let mut logs = [LogMarks::default(); 7];
        logs[6] = LogMarks {
            scan: 1,
            head: 2,
            limit: 3,
            far: 4,
        };
        let seal = Seal {
            version: 12,
            roll_tag: 11,
            phase: Phase::Mounted,
            needs_trim: true,
            next_seq: 99,
            next_nid: 10,
            nat_height: 1,
            nat_root: BlockAddr(600),
            nat_root_crc: 5,
            nat_blocks: 1,
            live_blocks: 8,
            inodes: 4,
            held_blocks: 0,
            next_generation: 6,
            snapshots: 0,
            orphans: 2,
            journal: 1,
            discards: 1,
            body_crc: crc32c::crc32c(&body.encode()),
            overflow: BlockAddr(0),
            overflow_blocks: 0,
            copy_blocks: 1,
            copy_crc: crc32c::crc32c(&body.encode()),
            logs,
            shared_blocks: 9,
            released: 3,
        };
        (seal, body)
    }

    #[test]
    fn round_trip() {
        let (seal, body) = sample();
        assert_eq!(Seal::decode(&seal.encode()), Some(seal.clone()));
        assert_eq!(CheckpointBody::decode(&seal, &body.encode()).unwrap(), body);
    }

    #[test]
    fn a_seal_with_any_torn_sector_is_no_seal() {
        let (seal, _) = sample();
        let good = seal.encode();
        let mut next = seal.clone();
        next.version = 14;
        next.live_blocks = 1000;
        next.logs[6].head = 50;
        let newer = next.encode();
        for torn in 1..8usize {
            let mut block = newer;
            block[torn * 512..].copy_from_slice(&good[torn * 512..]);
            assert_eq!(Seal::decode(&block), None, "torn after sector {torn}");
        }
    }

    #[test]
    fn a_body_with_a_flipped_bit_is_rejected() {
        let (seal, body) = sample();
        let mut bytes = body.encode();
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert!(CheckpointBody::decode(&seal, &bytes).is_err());
            assert!(CheckpointBody::decode_copy(&seal, &bytes).is_err());
            bytes[at] ^= 1;
        }
        assert!(CheckpointBody::decode(&seal, &bytes[..0]).is_err());
        let copy = CheckpointBody::decode_copy(&seal, &bytes).unwrap();
        let discards = Vec::new();
        assert_eq!(copy, CheckpointBody { discards, ..body });
    }
}
