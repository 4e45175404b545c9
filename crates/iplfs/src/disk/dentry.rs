//! Directory entries, in blocks or inline in the inode.
//!
//! ```text
//!  block:  0 magic 4 │ 4 ino 4 │ 8 index 8 │ zero … 64 │ bitmap 32 │ 200 × {hash 4, ino 4, len 2, type 1, zero 1} │ 200 × name 8
//!  inode:                                                bitmap 24 │ 172 × {…}                                    │ 172 × name 8
//! ```
//!
//! A name takes as many consecutive slots of eight bytes as it needs. Its record is that of the first slot.
//!
//! An entry never moves, not even when an inline directory is converted to blocks: the first block keeps every slot
//! at its number. The position of an entry is therefore a stable cookie for `readdir`.
//!
//! A directory in blocks is a multi-level hash table. Level n has 2^n buckets of two blocks and starts at block
//! 2·(2^n − 1). An entry lies in the first level whose bucket had free slots.

use super::wire::{Get, Put};
use crate::disk::address::{BLOCK_SIZE, Block, Nid};
use crate::error::{Error, Result};

const MAGIC: u32 = 0x5249_4454;
/// Longest name of a directory entry. Unit: bytes.
pub const NAME_MAX: usize = 255;
/// Number of slots in a block.
pub const BLOCK_SLOTS: usize = 200;
/// Number of slots in an inode.
pub const INODE_SLOTS: usize = 172;
/// Maximum number of hash levels of a directory.
pub const DEPTH_MAX: u8 = 24;
/// Number of blocks in a bucket.
pub const BUCKET_BLOCKS: u64 = 2;

/// First block of the bucket of a hash at a level.
pub fn bucket_start(level: u8, hash: u32) -> u64 {
    let buckets = 1u64 << level;
    BUCKET_BLOCKS * (buckets - 1) + BUCKET_BLOCKS * (u64::from(hash) & (buckets - 1))
}

/// Number of blocks of a directory with `depth` levels.
pub fn blocks_for(depth: u8) -> u64 {
    BUCKET_BLOCKS * ((1u64 << depth) - 1)
}

/// Number of slots that a name takes.
pub fn slots_for(name_len: usize) -> usize {
    name_len.div_ceil(8).max(1)
}

/// Entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dentry {
    /// Index of its first slot.
    pub slot: usize,
    /// Keyed hash of the name.
    pub hash: u32,
    /// Inode that the entry names.
    pub ino: Nid,
    /// File type: the type bits of the mode, shifted down by 12.
    pub kind: u8,
    /// Name of the entry.
    pub name: Vec<u8>,
}

/// Layout of the slots in a block or an inode.
#[derive(Clone, Copy)]
struct SlotLayout {
    bitmap: usize,
    records: usize,
    names: usize,
    slots: usize,
}

const IN_BLOCK: SlotLayout = SlotLayout {
    bitmap: 64,
    records: 96,
    names: 96 + BLOCK_SLOTS * 12,
    slots: BLOCK_SLOTS,
};
const IN_INODE: SlotLayout = SlotLayout {
    bitmap: 0,
    records: 24,
    names: 24 + INODE_SLOTS * 12,
    slots: INODE_SLOTS,
};
/// Length of an inline directory. Unit: bytes.
pub const INODE_BYTES: usize = IN_INODE.names + INODE_SLOTS * 8;
const _: () = assert!(IN_BLOCK.names + BLOCK_SLOTS * 8 == BLOCK_SIZE);

fn layout_of(bytes: &[u8]) -> SlotLayout {
    if bytes.len() == BLOCK_SIZE {
        IN_BLOCK
    } else {
        IN_INODE
    }
}

/// Formats an empty block of the directory `ino`.
pub fn format_block(block: &mut Block, ino: Nid, index: u64) {
    block.fill(0);
    let mut put = Put::new(block);
    put.u32(MAGIC);
    put.u32(ino.0);
    put.u64(index);
}

/// Checks that a block belongs to the directory `ino` at `index`.
pub fn verify_block(block: &Block, ino: Nid, index: u64) -> Result<()> {
    let mut get = Get::new(block);
    let found = (get.u32(), Nid(get.u32()), get.u64());
    if found == (MAGIC, ino, index) {
        return Ok(());
    }
    Err(Error::corrupt(
        format_args!("block {index} of directory {ino}"),
        format_args!("header is {found:?}"),
    ))
}

fn used(bytes: &[u8], s: SlotLayout, slot: usize) -> bool {
    bytes[s.bitmap + slot / 8] >> (slot % 8) & 1 == 1
}

fn record(bytes: &[u8], s: SlotLayout, slot: usize) -> (u32, Nid, usize, u8) {
    let mut get = Get::new(&bytes[s.records + slot * 12..][..12]);
    (get.u32(), Nid(get.u32()), usize::from(get.u16()), get.u8())
}

/// Returns the first entry at or after the slot `from`. `bytes` is a directory block or an inline directory.
pub fn next(bytes: &[u8], from: usize) -> Result<Option<Dentry>> {
    let s = layout_of(bytes);
    let Some(slot) = (from..s.slots).find(|&slot| used(bytes, s, slot)) else {
        return Ok(None);
    };
    let (hash, ino, len, kind) = record(bytes, s, slot);
    if len == 0 || len > NAME_MAX || slot + slots_for(len) > s.slots || ino == Nid::NONE {
        return Err(Error::corrupt(
            "directory entry",
            format_args!("slot {slot}: name of {len} bytes, inode {ino}"),
        ));
    }
    let name = bytes[s.names + slot * 8..][..len].to_vec();
    Ok(Some(Dentry {
        slot,
        hash,
        ino,
        kind,
        name,
    }))
}

/// Returns all entries, in slot order.
pub fn all(bytes: &[u8]) -> Result<Vec<Dentry>> {
    let mut entries = Vec::new();
    let mut at = 0;
    while let Some(entry) = next(bytes, at)? {
        at = entry.slot + slots_for(entry.name.len());
        entries.push(entry);
    }
    Ok(entries)
}

/// Length of the records that one byte of the bitmap covers. Unit: bytes.
const GROUP: usize = 8 * 12;

/// Finds the entry of a name: slot, inode and type.
pub fn find(bytes: &[u8], hash: u32, name: &[u8]) -> Option<(usize, Nid, u8)> {
    let s = layout_of(bytes);
    let hash = hash.to_le_bytes();
    let groups = bytes[s.records..s.names].chunks(GROUP);
    for (group, records) in groups.enumerate() {
        if bytes[s.bitmap + group] == 0 {
            continue;
        }
        // Records exist only for first slots. The others are zero, and no name has length zero.
        for (i, found) in records.chunks_exact(12).enumerate() {
            if found[..4] != hash {
                continue;
            }
            let slot = group * 8 + i;
            let (_, ino, len, kind) = record(bytes, s, slot);
            if used(bytes, s, slot)
                && len == name.len()
                && bytes[s.names + slot * 8..].get(..len) == Some(name)
            {
                return Some((slot, ino, kind));
            }
        }
    }
    None
}

/// Returns the first of enough consecutive free slots for a name of `name_len` bytes.
pub fn find_free_slots(bytes: &[u8], name_len: usize) -> Option<usize> {
    let s = layout_of(bytes);
    let want = slots_for(name_len);
    // Most blocks are full: count before searching.
    let taken = bytes[s.bitmap..s.records]
        .iter()
        .map(|byte| byte.count_ones() as usize);
    if s.slots.saturating_sub(taken.sum()) < want {
        return None;
    }
    let mut run = 0;
    for slot in 0..s.slots {
        run = if used(bytes, s, slot) { 0 } else { run + 1 };
        if run == want {
            return Some(slot + 1 - want);
        }
    }
    None
}

/// Inserts an entry into slots found by [`find_free_slots`].
pub fn insert(bytes: &mut [u8], entry: &Dentry) {
    let s = layout_of(bytes);
    for slot in entry.slot..entry.slot + slots_for(entry.name.len()) {
        assert!(!used(bytes, s, slot), "slot {slot} is taken");
        bytes[s.bitmap + slot / 8] |= 1 << (slot % 8);
    }
    let mut put = Put::new(&mut bytes[s.records + entry.slot * 12..]);
    put.u32(entry.hash);
    put.u32(entry.ino.0);
    put.u16(entry.name.len() as u16);
    put.u8(entry.kind);
    put.u8(0);
    bytes[s.names + entry.slot * 8..][..entry.name.len()].copy_from_slice(&entry.name);
}

/// Frees the slots of an entry and clears them, so that equal directories are equal bytes.
pub fn remove(bytes: &mut [u8], slot: usize, name_len: usize) {
    let s = layout_of(bytes);
    for at in slot..slot + slots_for(name_len) {
        bytes[s.bitmap + at / 8] &= !(1 << (at % 8));
        bytes[s.records + at * 12..][..12].fill(0);
        bytes[s.names + at * 8..][..8].fill(0);
    }
}

/// Changes the inode of an entry.
pub fn retarget(bytes: &mut [u8], slot: usize, ino: Nid, kind: u8) {
    let s = layout_of(bytes);
    let record = &mut bytes[s.records + slot * 12..][..12];
    record[4..8].copy_from_slice(&ino.0.to_le_bytes());
    record[10] = kind;
}

/// Returns whether all slots are free.
pub fn is_empty(bytes: &[u8]) -> bool {
    let s = layout_of(bytes);
    bytes[s.bitmap..s.records].iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(slot: usize, name: &[u8]) -> Dentry {
        Dentry {
            slot,
            hash: 7,
            ino: Nid(3),
            kind: 8,
            name: name.to_vec(),
        }
    }

    #[test]
    fn entries_round_trip_and_slots_are_reused_only_where_they_fit() {
        let mut block = [0; BLOCK_SIZE];
        format_block(&mut block, Nid(1), 0);
        let long = vec![b'x'; 255];
        insert(&mut block, &entry(0, b"a"));
        insert(&mut block, &entry(1, &long));
        insert(&mut block, &entry(33, b"b"));
        assert_eq!(find(&block, 7, &long), Some((1, Nid(3), 8)));
        assert_eq!(find(&block, 7, b"b"), Some((33, Nid(3), 8)));
        remove(&mut block, 0, 1);
        assert_eq!(find_free_slots(&block, 8), Some(0));
        assert_eq!(find_free_slots(&block, 9), Some(34));
        assert_eq!(all(&block).unwrap().len(), 2);
        remove(&mut block, 1, 255);
        remove(&mut block, 33, 1);
        assert!(is_empty(&block));
        verify_block(&block, Nid(1), 0).unwrap();
        assert!(verify_block(&block, Nid(2), 0).is_err());
    }

    #[test]
    fn a_name_is_found_only_in_used_slots() {
        let mut block = [0; BLOCK_SIZE];
        format_block(&mut block, Nid(1), 0);
        // Slots without a record have a hash of zero, too.
        let zero = |slot, name: &[u8]| Dentry {
            hash: 0,
            ..entry(slot, name)
        };
        assert_eq!(find(&block, 0, b"x"), None);
        insert(&mut block, &zero(0, &[b'l'; 80]));
        insert(&mut block, &zero(BLOCK_SLOTS - 1, b"x"));
        assert_eq!(find(&block, 0, b"x"), Some((BLOCK_SLOTS - 1, Nid(3), 8)));
        assert_eq!(find(&block, 0, b"y"), None);
        remove(&mut block, BLOCK_SLOTS - 1, 1);
        assert_eq!(find(&block, 0, b"x"), None);
        assert_eq!(find(&block, 0, &[b'l'; 80]), Some((0, Nid(3), 8)));
        for slot in 10..BLOCK_SLOTS {
            insert(&mut block, &zero(slot, b"y"));
        }
        assert_eq!(find_free_slots(&block, 1), None);
    }

    #[test]
    fn slots_keep_their_number_between_inode_and_block() {
        let mut small = [0; INODE_BYTES];
        insert(&mut small, &entry(170, b"last"));
        let mut block = [0; BLOCK_SIZE];
        for e in all(&small).unwrap() {
            insert(&mut block, &e);
        }
        assert_eq!(find(&block, 7, b"last"), Some((170, Nid(3), 8)));
    }

    #[test]
    fn entries_of_damaged_slots_are_in_the_block_or_an_error() {
        let mut whole = [0; BLOCK_SIZE];
        format_block(&mut whole, Nid(1), 0);
        for slot in 0..BLOCK_SLOTS / 2 {
            insert(&mut whole, &entry(slot * 2, b"a name"));
        }
        let mut rng = tuff_testkit::Rng::new(1);
        let (mut readable, mut damaged) = (0, 0);
        for round in 0..4000 {
            let mut block = whole;
            // From one byte to all.
            for _ in 0..1 << (round % 13) {
                block[rng.below(BLOCK_SIZE)] = rng.draw() as u8;
            }
            for (bytes, slots) in [
                (&block[..], BLOCK_SLOTS),
                (&block[..INODE_BYTES], INODE_SLOTS),
            ] {
                match all(bytes) {
                    Ok(entries) => {
                        readable += 1;
                        for e in &entries {
                            assert!(e.slot + slots_for(e.name.len()) <= slots, "{e:?}");
                            assert!(e.ino != Nid::NONE && !e.name.is_empty(), "{e:?}");
                        }
                    }
                    Err(_) => damaged += 1,
                }
                if let Some((slot, ..)) = find(bytes, 7, b"a name") {
                    assert!(slot < slots);
                }
            }
        }
        assert!(readable > 100 && damaged > 100, "{readable}, {damaged}");
    }

    #[test]
    fn levels_follow_each_other_without_gaps() {
        assert_eq!(bucket_start(0, 99), 0);
        assert_eq!(bucket_start(1, 0), 2);
        assert_eq!(bucket_start(1, 3), 4);
        assert_eq!(bucket_start(2, 0), 6);
        assert_eq!(blocks_for(2), 6);
    }
}
