//! Directory blocks: headers of all entries, then all names.
//!
//! ```text
//! +----------------------+----------------------+-----+--------+--------+-----+------+
//! | nid nameoff type -   | nid nameoff type -   | ... | name 0 | name 1 | ... | zero |
//! +----------------------+----------------------+-----+--------+--------+-----+------+
//!   12 bytes                                            nameoff is relative to the block
//! ```
//! Names ascend bytewise over the whole directory, including "." and "..".
//! Source: `docs/reference/format/dirent.md`.

use crate::wire::u16_at;
use crate::{Error, Nid, Result};
use alloc::vec::Vec;

/// Length of an entry's header. Unit: bytes.
pub const LEN: usize = 12;
/// Longest name. Unit: bytes.
pub const NAME_MAX: usize = 255;

/// One entry of a directory block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent<'a> {
    /// Nid of the entry's inode.
    pub nid: Nid,
    /// File type as stored in the entry, 0 to 7.
    pub file_type: u8,
    /// Name of 1 to 255 bytes.
    pub name: &'a [u8],
}

/// Directory block whose number of entries has been checked.
#[derive(Clone, Copy)]
pub struct Block<'a> {
    bytes: &'a [u8],
    count: usize,
}

impl<'a> Block<'a> {
    /// Wraps the valid bytes of a block: all of it, or up to the end of the directory for the last block.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        let first = usize::from(u16_at(bytes, 8, "directory block: first entry")?);
        if first < LEN || first % LEN != 0 || first >= bytes.len() {
            let expected = "a multiple of 12, above 0 and inside the block";
            return Err(Error::bad(
                "directory block: first name offset",
                first as u64,
                expected,
            ));
        }
        Ok(Self {
            bytes,
            count: first / LEN,
        })
    }

    /// Number of entries, at least 1.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Decodes entry `i`, which is below [`count`](Self::count).
    pub fn entry(&self, i: usize) -> Result<Dirent<'a>> {
        let at = i * LEN;
        let header = crate::wire::bytes(self.bytes, at, LEN, "directory entry")?;
        let &[n0, n1, n2, n3, n4, n5, n6, n7, o0, o1, file_type, _] = header else {
            return Err(Error::corrupt("directory entry"));
        };
        let start = usize::from(u16::from_le_bytes([o0, o1]));
        let last = i + 1 == self.count;
        let end = if last {
            self.bytes.len()
        } else {
            usize::from(u16_at(self.bytes, at + LEN + 8, "directory entry")?)
        };
        let found = start as u64;
        let expected = "at or after the previous name's end and inside the block";
        if start < self.count * LEN || start > end {
            return Err(Error::bad("directory entry: name offset", found, expected));
        }
        let mut name = self.bytes.get(start..end).ok_or(Error::bad(
            "directory entry: name offset",
            found,
            expected,
        ))?;
        if last {
            name = name.split(|b| *b == 0).next().unwrap_or(&[]);
        }
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(Error::bad(
                "directory entry: name length",
                name.len() as u64,
                "1 to 255",
            ));
        }
        let nid = Nid(u64::from_le_bytes([n0, n1, n2, n3, n4, n5, n6, n7]));
        Ok(Dirent {
            nid,
            file_type,
            name,
        })
    }

    /// Iterates over all entries in order.
    pub fn entries(self) -> impl Iterator<Item = Result<Dirent<'a>>> {
        (0..self.count).map(move |i| self.entry(i))
    }

    /// End of the last name. The rest of the block must be zero.
    pub fn used(&self) -> Result<usize> {
        let last = self.entry(self.count - 1)?;
        let start = usize::from(u16_at(
            self.bytes,
            (self.count - 1) * LEN + 8,
            "directory entry",
        )?);
        Ok(start + last.name.len())
    }
}

/// True if `name` may follow `prev` in a directory.
pub fn in_order(prev: &[u8], name: &[u8]) -> bool {
    prev < name
}

/// True if `name` is a valid name: 1 to 255 bytes without a slash or NUL.
pub fn is_name(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && !name.iter().any(|b| matches!(b, b'/' | 0))
}

/// Distributes entries over directory blocks, by the lengths of their names.
#[derive(Clone, Debug, Default)]
pub struct DirectorySize {
    block_size: usize,
    blocks: u64,
    used: usize,
}

impl DirectorySize {
    /// Starts an empty directory with blocks of `block_size` bytes.
    pub fn new(block_size: usize) -> Self {
        Self {
            block_size,
            blocks: 0,
            used: 0,
        }
    }

    /// Adds an entry. Returns true if it starts a new block.
    pub fn add(&mut self, name_len: usize) -> bool {
        let need = LEN + name_len;
        if self.used == 0 || self.used + need > self.block_size {
            self.blocks += 1;
            self.used = need;
            true
        } else {
            self.used += need;
            false
        }
    }

    /// Size of the directory: full blocks and the used part of the last. Unit: bytes.
    pub fn size(&self) -> u64 {
        self.blocks.saturating_sub(1) * self.block_size as u64 + self.used as u64
    }
}

/// Appends one block with `entries`, without the padding after the last name.
///
/// The caller guarantees that the entries ascend and fit into a block: see [`DirectorySize`].
pub fn encode<'a>(entries: &[Dirent<'a>], out: &mut Vec<u8>) {
    debug_assert!(
        entries
            .windows(2)
            .all(|w| matches!(w, [a, b] if in_order(a.name, b.name)))
    );
    let mut nameoff = entries.len() * LEN;
    for e in entries {
        debug_assert!(is_name(e.name) && nameoff < 1 << 16);
        out.extend_from_slice(&e.nid.0.to_le_bytes());
        out.extend_from_slice(&(nameoff as u16).to_le_bytes());
        out.extend_from_slice(&[e.file_type, 0]);
        nameoff += e.name.len();
    }
    for e in entries {
        out.extend_from_slice(e.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&[u8]; 4] = [b"!bang", b".", b"..", b"data"];

    fn sample() -> Vec<u8> {
        let entries: Vec<_> = NAMES
            .iter()
            .enumerate()
            .map(|(i, name)| Dirent {
                nid: Nid(36 + i as u64),
                file_type: 1,
                name,
            })
            .collect();
        let mut out = Vec::new();
        encode(&entries, &mut out);
        out
    }

    #[test]
    fn entries_survive_a_round_trip() {
        let mut bytes = sample();
        for padded in [false, true] {
            if padded {
                bytes.resize(512, 0);
            }
            let block = Block::new(&bytes).unwrap();
            let names: Vec<_> = block.entries().map(|e| e.unwrap().name).collect();
            assert_eq!(names, NAMES);
            assert_eq!(block.entry(3).unwrap().nid, Nid(39));
            assert_eq!(block.used().unwrap(), 4 * 12 + 12);
        }
    }

    #[test]
    fn directory_sizes_are_predicted() {
        let mut fill = DirectorySize::new(512);
        for _ in 0..40 {
            fill.add(10);
        }
        assert_eq!(fill.size(), 512 + 17 * 22);
        let mut fill = DirectorySize::new(4096);
        fill.add(1);
        fill.add(2);
        assert_eq!(fill.size(), 27);
    }

    #[test]
    fn no_mutation_of_a_block_panics() {
        let good = sample();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            if let Ok(block) = Block::new(&bad) {
                for e in block.entries().flatten() {
                    assert!((1..=255).contains(&e.name.len()));
                }
            }
        }
        for n in 0..good.len() {
            if let Ok(block) = Block::new(&good[..n]) {
                assert!(block.entries().count() <= 4);
            }
        }
    }
}
