//! Directory operations: find, insert, remove and list entries.

use crate::disk::address::{BLOCK_SIZE, Block, Nid, zero_block};
use crate::disk::dentry::{self, Dentry, NAME_MAX, blocks_for, bucket_start};
use crate::disk::hash::siphash;
use crate::disk::inode::{BlockMap, Content, INLINE_MAX, mode};
use crate::disk::slot::Slot;
use crate::error::{Errno, Error, Result};
use crate::nodes::absent::AbsentName;
use crate::volume::state::Volume;
use std::ops::Range;

/// Position of an entry: its block (`None` if inline) and its first slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryPosition {
    pub(crate) block: Option<u64>,
    pub(crate) slot: usize,
}

/// Entry found by its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FoundEntry {
    pub(crate) position: EntryPosition,
    pub(crate) ino: Nid,
}

/// Entry of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// Inode of the entry.
    pub ino: Nid,
    /// Type bits of the mode, shifted down by 12, as in `d_type`.
    pub kind: u8,
    /// Name of the entry.
    pub name: Vec<u8>,
    /// Cookie to continue the listing after this entry. It stays valid while the directory exists.
    pub cookie: u64,
}

/// Cookie of the first real entry; 1 and 2 follow "." and "..".
const FIRST_COOKIE: u64 = 2;
const SLOTS: u64 = dentry::BLOCK_SLOTS as u64;

/// Validates the name of a new entry.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Errno::NameTooLong.into());
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0)
    {
        return Err(Errno::Invalid.into());
    }
    Ok(())
}

pub(crate) fn kind_of(mode_bits: u32) -> u8 {
    ((mode_bits & mode::TYPE) >> 12) as u8
}

impl Volume {
    pub(crate) fn name_hash(&self, name: &[u8]) -> u32 {
        siphash(&self.sb.hash_key, name) as u32
    }

    /// Fails unless `dir` is a directory.
    pub(crate) fn require_dir(&mut self, dir: Nid) -> Result<()> {
        let inode = self.inode(dir)?;
        if !inode.is_dir() {
            return Err(Errno::NotDirectory.into());
        }
        Ok(())
    }

    /// Returns a directory block, `None` for a hole.
    pub(crate) fn dir_block(&mut self, dir: Nid, index: u64) -> Result<Option<&Block>> {
        if self.pages.get(dir, index).is_none() {
            let slot = self.slot(dir, index)?;
            if !slot.addr.is_mapped() {
                return Ok(None);
            }
            let mut page = zero_block();
            self.read_data(dir, index, &[slot], &mut page[..])?;
            dentry::verify_block(&page, dir, index)?;
            self.pages.insert(dir, index, page, false);
        }
        Ok(self.pages.get(dir, index))
    }

    /// Finds the entry of a name.
    pub(crate) fn find(&mut self, dir: Nid, name: &[u8]) -> Result<Option<FoundEntry>> {
        // The kernel looks a name up before it makes an entry, which looks it up again.
        if self.absent.is(dir, name) {
            return Ok(None);
        }
        let hash = self.name_hash(name);
        let inode = self.inode(dir)?;
        let depth = inode.depth;
        if let Content::InlineDir(bytes) = &inode.content {
            let found = dentry::find(&bytes[..], hash, name);
            return Ok(found.map(|(slot, ino, _)| FoundEntry {
                position: EntryPosition { block: None, slot },
                ino,
            }));
        }
        for level in 0..depth {
            let start = bucket_start(level, hash);
            for index in start..start + dentry::BUCKET_BLOCKS {
                if let Some(block) = self.dir_block(dir, index)?
                    && let Some((slot, ino, _)) = dentry::find(block, hash, name)
                {
                    return Ok(Some(FoundEntry {
                        position: EntryPosition {
                            block: Some(index),
                            slot,
                        },
                        ino,
                    }));
                }
            }
        }
        self.absent.set(dir, name);
        Ok(None)
    }

    /// Inserts an entry, whose name must be absent, and counts it.
    pub(crate) fn insert_entry(&mut self, dir: Nid, name: &[u8], ino: Nid, kind: u8) -> Result<()> {
        self.absent = AbsentName::default();
        let hash = self.name_hash(name);
        let mut entry = Dentry {
            slot: 0,
            hash,
            ino,
            kind,
            name: name.to_vec(),
        };
        let inode = self.inode_mut(dir)?;
        inode.entries += 1;
        if let Content::InlineDir(bytes) = &mut inode.content {
            if let Some(slot) = dentry::find_free_slots(&bytes[..], name.len()) {
                entry.slot = slot;
                dentry::insert(&mut bytes[..], &entry);
                return Ok(());
            }
            self.convert_inline_dir(dir)?;
        }
        let (level, index, slot) = self.find_free_slots(dir, hash, name.len())?;
        entry.slot = slot;
        let inode = self.inode_mut(dir)?;
        if level >= inode.depth {
            inode.depth = level + 1;
            inode.size = blocks_for(level + 1) * BLOCK_SIZE as u64;
        }
        self.reserve_block(dir, index)?;
        if self.pages.get(dir, index).is_none() {
            let mut page = zero_block();
            dentry::format_block(&mut page, dir, index);
            self.pages.insert(dir, index, page, true);
        }
        if let Some(page) = self.pages.get_mut(dir, index) {
            dentry::insert(&mut page[..], &entry);
        }
        Ok(())
    }

    /// Finds free slots for an entry in a directory of blocks: level, block, slot.
    fn find_free_slots(&mut self, dir: Nid, hash: u32, len: usize) -> Result<(u8, u64, usize)> {
        for level in 0..dentry::DEPTH_MAX {
            let start = bucket_start(level, hash);
            for index in start..start + dentry::BUCKET_BLOCKS {
                let slot = match self.dir_block(dir, index)? {
                    Some(block) => dentry::find_free_slots(block, len),
                    None => Some(0),
                };
                if let Some(slot) = slot {
                    return Ok((level, index, slot));
                }
            }
        }
        Err(Error::Limit(format!(
            "directory {dir}: no free slots at {} levels",
            dentry::DEPTH_MAX
        )))
    }

    /// Blocks that another entry may allocate if they are holes. `None` if the entry fits inline.
    pub(crate) fn blocks_for_entry(&mut self, dir: Nid, name: &[u8]) -> Result<Option<Range<u64>>> {
        if let Content::InlineDir(bytes) = &self.inode(dir)?.content {
            let fits = dentry::find_free_slots(&bytes[..], name.len()).is_some();
            // The inline entries and the new one fit the only bucket of level 0.
            return Ok((!fits).then_some(0..dentry::BUCKET_BLOCKS));
        }
        let hash = self.name_hash(name);
        let (_, index, _) = self.find_free_slots(dir, hash, name.len())?;
        Ok(Some(index..index + 1))
    }

    /// Moves inline entries to the first block, each to the slot with the same number.
    fn convert_inline_dir(&mut self, dir: Nid) -> Result<()> {
        let inode = self.inode_mut(dir)?;
        let Content::InlineDir(bytes) = &inode.content else {
            return Ok(());
        };
        let bytes = bytes.clone();
        inode.content = Content::Map(BlockMap::empty());
        inode.depth = 1;
        inode.size = blocks_for(1) * BLOCK_SIZE as u64;
        let mut page = zero_block();
        dentry::format_block(&mut page, dir, 0);
        for entry in dentry::all(&bytes[..])? {
            dentry::insert(&mut page[..], &entry);
        }
        self.reserve_block(dir, 0)?;
        self.pages.insert(dir, 0, page, true);
        Ok(())
    }

    /// Edits the bytes that hold an entry.
    fn edit_entries<T>(
        &mut self,
        dir: Nid,
        position: EntryPosition,
        edit: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T> {
        let Some(index) = position.block else {
            return match &mut self.inode_mut(dir)?.content {
                Content::InlineDir(bytes) => Ok(edit(&mut bytes[..])),
                _ => Err(Errno::Stale.into()),
            };
        };
        self.dir_block(dir, index)?;
        self.reserve_block(dir, index)?;
        let page = self.pages.get_mut(dir, index).ok_or(Errno::Stale)?;
        Ok(edit(&mut page[..]))
    }

    /// Removes an entry, and its block if it becomes empty.
    pub(crate) fn remove_entry(
        &mut self,
        dir: Nid,
        position: EntryPosition,
        name_len: usize,
    ) -> Result<()> {
        let empty = self.edit_entries(dir, position, |bytes| {
            dentry::remove(bytes, position.slot, name_len);
            dentry::is_empty(bytes)
        })?;
        if let Some(index) = position.block.filter(|_| empty) {
            self.pages.remove(dir, index);
            self.set_slot(dir, index, Slot::HOLE)?;
        }
        let inode = self.inode_mut(dir)?;
        inode.entries = inode.entries.saturating_sub(1);
        Ok(())
    }

    /// Changes the inode of an entry.
    pub(crate) fn retarget_entry(
        &mut self,
        dir: Nid,
        position: EntryPosition,
        ino: Nid,
        kind: u8,
    ) -> Result<()> {
        self.edit_entries(dir, position, |bytes| {
            dentry::retarget(bytes, position.slot, ino, kind)
        })
    }

    /// Lists at most `max` entries after `cookie` (0 for all), "." and ".." included. The order is stable: entries
    /// that are not changed between two calls are listed once.
    pub fn read_dir(&mut self, dir: Nid, cookie: u64, max: usize) -> Result<Vec<DirEntry>> {
        self.require_dir(dir)?;
        let mut out = Vec::new();
        let parent = self.inode(dir)?.parent;
        for (at, name, ino) in [(0, &b"."[..], dir), (1, b"..", parent)] {
            if cookie <= at && out.len() < max {
                out.push(DirEntry {
                    ino,
                    kind: kind_of(mode::DIR),
                    name: name.to_vec(),
                    cookie: at + 1,
                });
            }
        }
        let mut at = cookie.max(FIRST_COOKIE) - FIRST_COOKIE;
        while out.len() < max {
            let inode = self.inode(dir)?;
            let (bytes, block): (&[u8], u64) = match &inode.content {
                Content::InlineDir(bytes) if at < SLOTS => (&bytes[..], 0),
                Content::Map(_) => {
                    let end = blocks_for(inode.depth);
                    let claimed = self.next_allocated(dir, at / SLOTS)?;
                    let Some(index) = claimed.filter(|index| *index < end) else {
                        break;
                    };
                    at = at.max(index * SLOTS);
                    match self.dir_block(dir, index)? {
                        Some(block) => (&block[..], index),
                        None => {
                            at = (index + 1) * SLOTS;
                            continue;
                        }
                    }
                }
                _ => break,
            };
            match dentry::next(bytes, (at - block * SLOTS) as usize)? {
                Some(entry) => {
                    at = block * SLOTS + (entry.slot + dentry::slots_for(entry.name.len())) as u64;
                    // The cookie names the last slot of the entry: the position to continue from.
                    let cookie = at + FIRST_COOKIE;
                    out.push(DirEntry {
                        ino: entry.ino,
                        kind: entry.kind,
                        name: entry.name,
                        cookie,
                    });
                }
                None => at = (block + 1) * SLOTS,
            }
        }
        Ok(out)
    }
}

const _: () = assert!(INLINE_MAX < BLOCK_SIZE);
