//! Journal of the map: batches of changes, one per flush, stored twice.

use crate::disk::address::BLOCK_SIZE;
use crate::disk::wire::{Get, Put};
use std::ops::Range;

const MAGIC: u32 = 0x424a_4d54;
/// Length of the header of a batch. Unit: bytes.
const HEADER_LEN: usize = 32;
/// Length of a change without its checksums. Unit: bytes.
const CHANGE_LEN: usize = 20;

/// Change of the owners of consecutive physical blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Change {
    /// First physical block.
    pub(super) physical: u64,
    /// Number of blocks.
    pub(super) blocks: u64,
    /// Address that the first block stores, 0 if the blocks are free.
    pub(super) addr: u64,
}

/// Changes since the last flush.
#[derive(Default)]
pub(super) struct PendingChanges {
    bytes: Vec<u8>,
    pub(super) changes: Vec<Change>,
    /// Physical blocks that are free once the changes are durable.
    pub(super) freed: Vec<Range<u64>>,
}

impl PendingChanges {
    fn push(&mut self, change: Change) {
        let at = self.bytes.len();
        self.bytes.resize(at + CHANGE_LEN, 0);
        let mut put = Put::new(&mut self.bytes[at..]);
        put.u64(change.addr);
        put.u64(change.physical);
        put.u32(change.blocks as u32); // fits: the caller bounds it
        self.changes.push(change);
    }

    /// Adds the mapping of an address to physical blocks, which hold `data`. Less than 2^32 blocks.
    pub(super) fn map(&mut self, addr: u64, physical: u64, data: &[u8]) {
        self.push(Change {
            physical,
            blocks: (data.len() / BLOCK_SIZE) as u64,
            addr,
        });
        let sums = data.chunks_exact(BLOCK_SIZE).map(crc32c::crc32c);
        self.bytes.extend(sums.flat_map(u32::to_le_bytes));
    }

    /// Adds the release of physical blocks.
    pub(super) fn free(&mut self, run: Range<u64>) {
        let mut at = run.start;
        while at < run.end {
            let blocks = (run.end - at).min(1 << 31);
            self.push(Change {
                physical: at,
                blocks,
                addr: 0,
            });
            at += blocks;
        }
        self.freed.push(run);
    }

    /// Length of the batch that contains the changes. Unit: blocks.
    pub(super) fn batch_blocks(&self) -> u64 {
        (HEADER_LEN + self.bytes.len()).div_ceil(BLOCK_SIZE) as u64
    }

    /// Encodes the changes as batch number `seq`.
    pub(super) fn encode(&self, id: u64, seq: u64) -> Vec<u8> {
        let mut batch = vec![0; self.batch_blocks() as usize * BLOCK_SIZE];
        let mut put = Put::new(&mut batch);
        put.u32(MAGIC);
        put.u32(self.bytes.len() as u32); // fits: a batch fits the journal
        put.u64(id);
        put.u64(seq);
        let sum = crc32c::crc32c(&self.bytes);
        put.u32(sum);
        put.bytes(&[0; 4]);
        put.bytes(&self.bytes);
        let sum = header_sum(&batch);
        Put::new(&mut batch[28..]).u32(sum);
        batch
    }
}

/// Checksum of a header, without its own field.
fn header_sum(batch: &[u8]) -> u32 {
    crc32c::crc32c(&batch[..28])
}

/// Decoded header of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BatchHeader {
    pub(super) seq: u64,
    pub(super) blocks: u64,
    len: usize,
    sum: u32,
}

impl BatchHeader {
    /// Decodes the first block of a batch. `None` if it is none, or of another map.
    pub(super) fn decode(block: &[u8], id: u64) -> Option<Self> {
        let mut get = Get::new(block);
        if get.u32() != MAGIC {
            return None;
        }
        let len = get.u32() as usize;
        let found = get.u64();
        let (seq, sum, _, header) = (get.u64(), get.u32(), (), get.u32());
        (found == id && header == header_sum(block)).then_some(Self {
            seq,
            blocks: (HEADER_LEN + len).div_ceil(BLOCK_SIZE) as u64,
            len,
            sum,
        })
    }

    /// Decodes the changes of a batch that was read completely, each with the checksums of its blocks. `None` if the
    /// batch is damaged.
    pub(super) fn changes<'a>(&self, batch: &'a [u8]) -> Option<Vec<(Change, &'a [u8])>> {
        let bytes = batch.get(HEADER_LEN..HEADER_LEN + self.len)?;
        if crc32c::crc32c(bytes) != self.sum {
            return None;
        }
        let mut changes = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let (fixed, remainder) = rest.split_at_checked(CHANGE_LEN)?;
            let mut get = Get::new(fixed);
            let (addr, physical, blocks) = (get.u64(), get.u64(), get.u32());
            let sums = if addr == 0 { 0 } else { blocks as usize * 4 };
            let (sums, remainder) = remainder.split_at_checked(sums)?;
            let change = Change {
                physical,
                blocks: blocks.into(),
                addr,
            };
            changes.push((change, sums));
            rest = remainder;
        }
        Some(changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_back_from_a_batch_and_a_flipped_bit_hides_it() {
        let mut pending = PendingChanges::default();
        pending.map(1 << 50, 700, &[3; 2 * BLOCK_SIZE]);
        pending.free(90..95);
        let mut batch = pending.encode(8, 41);
        let header = BatchHeader::decode(&batch, 8).unwrap();
        assert_eq!((header.seq, header.blocks), (41, 1));
        assert_eq!(BatchHeader::decode(&batch, 9), None);
        let sum = crc32c::crc32c(&[3; BLOCK_SIZE]).to_le_bytes();
        let changes = header.changes(&batch).unwrap();
        assert_eq!(changes[0], (pending.changes[0], &[sum, sum].concat()[..]));
        assert_eq!(changes[1], (pending.changes[1], &[][..]));
        for bit in 0..(HEADER_LEN + 2 * CHANGE_LEN + 8) * 8 {
            batch[bit / 8] ^= 1 << (bit % 8);
            let found = BatchHeader::decode(&batch, 8);
            assert!(found.is_none_or(|header| header.changes(&batch).is_none()));
            batch[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
