//! Repair of directories, entries, names and link counts.

use super::salvage::{FoundDirEntry, LOST_FOUND, Salvage};
use crate::disk::address::Nid;
use crate::disk::dentry::{self, BUCKET_BLOCKS, bucket_start};
use crate::disk::inode::{Content, INLINE_MAX, Inode, mode};
use crate::disk::node::NodeBody;
use crate::disk::slot::Slot;
use crate::error::{Error, Result};
use crate::nodes::cache::Node;
use crate::options::Caller;
use crate::vfs::dir::{EntryPosition, check_name, kind_of};
use std::collections::{HashMap, HashSet};

impl Salvage {
    /// Creates an empty directory with a number whose inode is lost.
    pub(super) fn new_dir(&mut self, ino: Nid, parent: Nid) -> Result<()> {
        let mut inode = Inode::new(mode::DIR | 0o755, 0, 0, self.now);
        inode.parent = parent;
        inode.nlink = 2;
        inode.size = INLINE_MAX as u64;
        self.v.nat.reallocate(ino);
        let body = NodeBody::Inode(Box::new(inode));
        self.v.nodes.insert(
            ino,
            Node {
                ino,
                ordinal: 0,
                body,
            },
        );
        self.v.mark_dirty(ino, ino);
        self.v.live += 1;
        self.v.inodes += 1;
        self.inos.insert(ino);
        self.damaged.remove(&ino);
        self.entries_lost = true;
        self.note_in(ino, format_args!("directory {ino}"), "created again, empty");
        Ok(())
    }

    pub(super) fn ensure_root(&mut self) -> Result<()> {
        if self.inos.contains(&Nid::ROOT) && self.v.inode(Nid::ROOT)?.is_dir() {
            let inode = self.v.inode(Nid::ROOT)?;
            if inode.parent != Nid::ROOT {
                self.v.inode_mut(Nid::ROOT)?.parent = Nid::ROOT;
            }
            return Ok(());
        }
        if self.inos.contains(&Nid::ROOT) {
            return Err(Error::corrupt("root directory", "is a file"));
        }
        self.new_dir(Nid::ROOT, Nid::ROOT)
    }

    /// Reads all entries. Unreadable blocks are removed.
    pub(super) fn read_entries(&mut self) -> Result<Vec<FoundDirEntry>> {
        let mut all = Vec::new();
        for dir in self.inos.clone() {
            let inode = self.v.inode(dir)?;
            if !inode.is_dir() {
                continue;
            }
            let (depth, counted, before) = (inode.depth, inode.entries, all.len());
            if let Content::InlineDir(bytes) = &inode.content {
                match dentry::all(&bytes[..]) {
                    Ok(entries) => all.extend(entries.into_iter().map(|e| {
                        let position = EntryPosition {
                            block: None,
                            slot: e.slot,
                        };
                        (dir, position, e)
                    })),
                    Err(_) => {
                        self.entries_lost = true;
                        self.note_in(dir, format_args!("directory {dir}"), "its entries are lost");
                        self.v.inode_mut(dir)?.content =
                            Content::InlineDir(Box::new([0; INLINE_MAX]));
                    }
                }
            } else {
                self.read_block_entries(dir, depth, &mut all)?;
            }
            let count = (all.len() - before) as u64;
            if count != counted {
                self.v.inode_mut(dir)?.entries = count;
            }
        }
        Ok(all)
    }

    pub(super) fn read_block_entries(
        &mut self,
        dir: Nid,
        depth: u8,
        all: &mut Vec<FoundDirEntry>,
    ) -> Result<()> {
        let mut at = 0;
        while let Some(index) = self.v.next_allocated(dir, at)? {
            at = index + 1;
            let entries = match self.v.dir_block(dir, index) {
                _ if index >= dentry::blocks_for(depth) => None,
                Ok(Some(block)) => dentry::all(&block[..]).ok(),
                Ok(None) | Err(Error::Corrupt(_)) => None,
                Err(e) => return Err(e),
            };
            match entries {
                Some(entries) => all.extend(entries.into_iter().map(|e| {
                    let position = EntryPosition {
                        block: Some(index),
                        slot: e.slot,
                    };
                    (dir, position, e)
                })),
                None => {
                    self.entries_lost = true;
                    self.note_in(
                        dir,
                        format_args!("block {index} of directory {dir}"),
                        "its entries are lost",
                    );
                    self.v.pages.remove(dir, index);
                    self.v.set_slot(dir, index, Slot::HOLE)?;
                }
            }
        }
        Ok(())
    }

    /// Drops deleted inodes among those found again in the logs. Such an inode may exist only for a snapshot, and no
    /// entry leads to it then. If entries are lost, or an inode that may have been a directory, nothing is known, and
    /// every inode gets a name.
    pub(super) fn drop_deleted(&mut self, entries: &mut Vec<FoundDirEntry>) -> Result<()> {
        if self.doubtful.is_empty() || self.entries_lost || !self.damaged.is_empty() {
            return Ok(());
        }
        let mut under: HashMap<Nid, Vec<Nid>> = HashMap::new();
        for (dir, _, entry) in &*entries {
            under.entry(*dir).or_default().push(entry.ino);
        }
        // Inodes that are not doubtful exist, with or without a name.
        let mut todo: Vec<Nid> = self.inos.difference(&self.doubtful).copied().collect();
        todo.push(Nid::ROOT);
        let mut alive: HashSet<Nid> = HashSet::new();
        while let Some(ino) = todo.pop() {
            if alive.insert(ino) {
                todo.extend(under.remove(&ino).unwrap_or_default());
            }
        }
        let orphans = self.v.orphans.clone();
        let is_deleted = |ino: &Nid| !alive.contains(ino) && !orphans.contains(ino);
        for ino in self.inos.clone().into_iter().filter(is_deleted) {
            self.v.inode_mut(ino)?.nlink = 0;
            self.v.orphans.insert(ino);
        }
        entries.retain(|(dir, _, _)| !is_deleted(dir));
        Ok(())
    }

    /// Keeps consistent entries and removes the others.
    pub(super) fn filter_entries(&mut self, entries: Vec<FoundDirEntry>) -> Result<()> {
        let mut taken: HashSet<(Nid, Vec<u8>)> = HashSet::new();
        for (dir, position, entry) in entries {
            let ino = entry.ino;
            let in_bucket = position.block.is_none_or(|block| {
                (0..dentry::DEPTH_MAX).any(|level| {
                    let start = bucket_start(level, entry.hash);
                    (start..start + BUCKET_BLOCKS).contains(&block)
                })
            });
            let named = check_name(&entry.name).is_ok()
                && in_bucket
                && self.v.name_hash(&entry.name) == entry.hash
                && taken.insert((dir, entry.name.clone()));
            if named
                && ino != Nid::ROOT
                && !self.inos.contains(&ino)
                && self.damaged.contains(&ino)
                && u32::from(entry.kind) << 12 == mode::DIR
            {
                self.new_dir(ino, dir)?;
            }
            let mut keep = named && ino != Nid::ROOT && self.inos.contains(&ino);
            if keep {
                let inode = self.v.inode(ino)?;
                let (kind, is_dir) = (kind_of(inode.mode), inode.is_dir());
                // A directory has only one name.
                keep = !is_dir || !self.names.contains_key(&ino);
                if keep && kind != entry.kind {
                    self.v.retarget_entry(dir, position, ino, kind)?;
                }
            }
            if keep {
                self.names.entry(ino).or_default().push((dir, entry.name));
            } else {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                self.note_in(
                    dir,
                    format_args!("entry {name:?} of directory {dir}"),
                    format_args!("leads to {ino}, which is missing or inconsistent; removed"),
                );
                self.v.remove_entry(dir, position, entry.name.len())?;
            }
        }
        Ok(())
    }

    /// Breaks cycles of directories, and sets the parent of each directory to the one that names it.
    pub(super) fn break_cycles(&mut self) -> Result<()> {
        for ino in self.inos.clone() {
            if ino == Nid::ROOT || !self.v.inode(ino)?.is_dir() {
                continue;
            }
            let mut at = ino;
            for _ in 0..=self.inos.len() {
                match self.names.get(&at) {
                    _ if at == Nid::ROOT => break,
                    Some(names) => at = names[0].0,
                    None => break,
                }
            }
            // More steps than directories: a cycle.
            if at != Nid::ROOT && self.names.contains_key(&at) {
                if let Some(names) = self.names.remove(&ino) {
                    for (dir, name) in names {
                        if let Some(found) = self.v.find(dir, &name)? {
                            self.v.remove_entry(dir, found.position, name.len())?;
                        }
                    }
                }
                self.note_in(
                    ino,
                    format_args!("directory {ino}"),
                    "contained itself; disconnected",
                );
            }
        }
        Ok(())
    }

    /// Gives every inode without a name its old one, or one in lost+found.
    pub(super) fn reattach(&mut self) -> Result<()> {
        for orphan in self.v.orphans.clone() {
            if !self.inos.contains(&orphan) || self.names.contains_key(&orphan) {
                self.v.orphans.remove(&orphan);
            }
        }
        for ino in self.inos.clone() {
            if ino == Nid::ROOT || self.names.contains_key(&ino) || self.v.orphans.contains(&ino) {
                continue;
            }
            let inode = self.v.inode(ino)?;
            let empty_dir = inode.is_dir() && inode.entries == 0;
            let (parent, name, kind) = (inode.parent, inode.name.clone(), kind_of(inode.mode));
            if self.stale && (self.incomplete.contains(&ino) || inode.nlink == 0 || empty_dir) {
                // Some of its blocks were already released: it was deleted.
                self.v.inode_mut(ino)?.nlink = 0;
                self.v.orphans.insert(ino);
                continue;
            }
            let at_home = !self.stale
                && !self.doubtful.contains(&ino)
                && check_name(&name).is_ok()
                && self.inos.contains(&parent)
                && self.v.inode(parent)?.is_dir()
                && !self.is_under(parent, ino)?
                && self.v.find(parent, &name)?.is_none();
            let (dir, name) = if at_home {
                (parent, name)
            } else {
                let dir = self.lost_found()?;
                let mut name = format!("#{ino}");
                while self.v.find(dir, name.as_bytes())?.is_some() {
                    name.push('+');
                }
                (dir, name.into_bytes())
            };
            self.v.insert_entry(dir, &name, ino, kind)?;
            let shown = String::from_utf8_lossy(&name).into_owned();
            self.note_in(
                ino,
                format_args!("inode {ino}"),
                format_args!("had no name; linked as {shown:?} in directory {dir}"),
            );
            self.names.entry(ino).or_default().push((dir, name));
        }
        Ok(())
    }

    pub(super) fn is_under(&self, mut dir: Nid, top: Nid) -> Result<bool> {
        for _ in 0..=self.inos.len() {
            if dir == top {
                return Ok(true);
            }
            match self.names.get(&dir) {
                Some(names) => dir = names[0].0,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    pub(super) fn lost_found(&mut self) -> Result<Nid> {
        let mut name = LOST_FOUND.to_vec();
        while let Some(found) = self.v.find(Nid::ROOT, &name)? {
            if self.v.inode(found.ino)?.is_dir() {
                return Ok(found.ino);
            }
            name.push(b'+');
        }
        let caller = Caller {
            now: self.now,
            uid: 0,
            gid: 0,
        };
        let ino = self.v.new_inode(Nid::ROOT, mode::DIR | 0o700, 0, &caller)?;
        self.v.inode_mut(ino)?.name = name.clone();
        self.v
            .insert_entry(Nid::ROOT, &name, ino, kind_of(mode::DIR))?;
        self.inos.insert(ino);
        self.names.entry(ino).or_default().push((Nid::ROOT, name));
        Ok(ino)
    }

    /// Sets link counts and parents from the names.
    pub(super) fn repair_link_counts(&mut self) -> Result<()> {
        let mut subdirs: HashMap<Nid, u32> = HashMap::new();
        for ino in self.inos.clone() {
            if self.v.inode(ino)?.is_dir() {
                for (dir, _) in self.names.get(&ino).into_iter().flatten() {
                    *subdirs.entry(*dir).or_default() += 1;
                }
            }
        }
        for ino in self.inos.clone() {
            let names = self.names.get(&ino).cloned().unwrap_or_default();
            let inode = self.v.inode(ino)?;
            let is_dir = inode.is_dir();
            let parent = match names.first() {
                Some((dir, _)) if is_dir => *dir,
                _ => inode.parent,
            };
            let nlink = if !is_dir {
                names.len() as u32
            } else if names.is_empty() && ino != Nid::ROOT {
                0
            } else {
                2 + subdirs.get(&ino).copied().unwrap_or(0)
            };
            if (nlink, parent) != (inode.nlink, inode.parent) {
                let inode = self.v.inode_mut(ino)?;
                (inode.nlink, inode.parent) = (nlink, parent);
            }
        }
        Ok(())
    }
}
