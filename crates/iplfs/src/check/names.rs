//! Checks of directories, entries and links.

use super::checker::Checker;
use crate::disk::address::Nid;
use crate::disk::dentry::{self, BUCKET_BLOCKS, Dentry, bucket_start};
use crate::disk::inode::{Content, Inode};
use crate::vfs::dir::{check_name, kind_of};
use std::collections::{BTreeMap, BTreeSet};

impl Checker {
    pub(super) fn directory(&mut self, ino: Nid, inode: &Inode) {
        let mut seen = BTreeSet::new();
        let mut count = 0;
        if let Content::InlineDir(bytes) = &inode.content {
            match dentry::all(&bytes[..]) {
                Ok(entries) => entries
                    .iter()
                    .for_each(|e| count += self.entry(ino, None, e, &mut seen)),
                Err(e) => self.find_in(ino, format_args!("directory {ino}"), e),
            }
        } else {
            let end = dentry::blocks_for(inode.depth);
            let mut at = 0;
            loop {
                let index = match self.volume.next_allocated(ino, at) {
                    Ok(Some(index)) => index,
                    Ok(None) => break,
                    Err(e) => return self.find_in(ino, format_args!("directory {ino}"), e),
                };
                if index >= end {
                    self.find(
                        format_args!("directory {ino}"),
                        format_args!("block {index} of {end}"),
                    );
                }
                at = index + 1;
                let entries = match self.volume.dir_block(ino, index) {
                    Ok(Some(block)) => dentry::all(&block[..]),
                    Ok(None) => Ok(Vec::new()),
                    Err(e) => Err(e),
                };
                match entries {
                    Ok(entries) => entries
                        .iter()
                        .for_each(|e| count += self.entry(ino, Some(index), e, &mut seen)),
                    Err(e) => {
                        self.find_in(ino, format_args!("block {index} of directory {ino}"), e)
                    }
                }
            }
        }
        if count != inode.entries {
            self.find(
                format_args!("directory {ino}"),
                format_args!("{} entries, counted {count}", inode.entries),
            );
        }
    }

    fn entry(
        &mut self,
        dir: Nid,
        block: Option<u64>,
        entry: &Dentry,
        seen: &mut BTreeSet<Vec<u8>>,
    ) -> u64 {
        let place = format!(
            "entry {:?} of directory {dir}",
            String::from_utf8_lossy(&entry.name)
        );
        if check_name(&entry.name).is_err() {
            self.find(&place, "is not a valid name");
        }
        if !seen.insert(entry.name.clone()) {
            self.find(&place, "exists twice");
        }
        if self.volume.name_hash(&entry.name) != entry.hash {
            self.find(&place, "hash does not match");
        }
        if let Some(block) = block {
            let fits = (0..dentry::DEPTH_MAX).any(|level| {
                let start = bucket_start(level, entry.hash);
                (start..start + BUCKET_BLOCKS).contains(&block)
            });
            // Entries of a converted inline directory keep their slots in the first block, the only bucket of level
            // 0.
            if !fits {
                self.find(
                    &place,
                    format_args!("lies in block {block}, outside its buckets"),
                );
            }
        }
        self.names
            .entry(entry.ino)
            .or_default()
            .push((dir, entry.kind));
        1
    }

    pub(super) fn links(&mut self) {
        let names = std::mem::take(&mut self.names);
        for (ino, entries) in &names {
            match self
                .inodes
                .get(ino)
                .map(|inode| (kind_of(inode.mode), inode.is_dir(), inode.parent))
            {
                None => self.find(
                    format_args!("inode {ino}"),
                    format_args!("is named by {entries:?} and missing"),
                ),
                Some((kind, is_dir, parent)) => {
                    if entries.iter().any(|(_, k)| *k != kind) {
                        self.find(
                            format_args!("inode {ino}"),
                            format_args!("type {kind}, entries say {entries:?}"),
                        );
                    }
                    if is_dir {
                        for (dir, _) in entries {
                            *self.subdirs.entry(*dir).or_default() += 1;
                        }
                        if entries.len() > 1 || entries[0].0 != parent {
                            self.find(
                                format_args!("directory {ino}"),
                                format_args!("parent {parent}, named by {entries:?}"),
                            );
                        }
                    }
                }
            }
        }
        let orphans = self.volume.orphans.clone();
        let inodes = std::mem::take(&mut self.inodes);
        for (ino, inode) in &inodes {
            let named = names.get(ino).map_or(0, Vec::len) as u32;
            let orphan = orphans.contains(ino);
            let want = match (*ino == Nid::ROOT, inode.is_dir(), orphan) {
                (true, ..) => 2 + self.subdirs.get(ino).copied().unwrap_or(0),
                (_, true, false) => 2 + self.subdirs.get(ino).copied().unwrap_or(0),
                (_, true, true) => 0,
                _ => named,
            };
            if inode.nlink != want {
                self.find(
                    format_args!("inode {ino}"),
                    format_args!("{} links, counted {want}", inode.nlink),
                );
            }
            if (named == 0) != orphan && *ino != Nid::ROOT {
                self.find(
                    format_args!("inode {ino}"),
                    format_args!("{named} names, orphan: {orphan}"),
                );
            }
            self.connected(*ino, inode, &inodes, &orphans);
        }
        for orphan in orphans.iter().filter(|ino| !inodes.contains_key(ino)) {
            self.find(format_args!("orphan {orphan}"), "is missing");
        }
        match inodes.get(&Nid::ROOT) {
            Some(root)
                if root.is_dir() && root.parent == Nid::ROOT && !names.contains_key(&Nid::ROOT) => {
            }
            _ => self.find("root directory", "is missing, no directory, or named"),
        }
        self.report.inodes = inodes.len() as u64;
    }

    /// Checks that a directory leads up to the root.
    fn connected(
        &mut self,
        ino: Nid,
        inode: &Inode,
        inodes: &BTreeMap<Nid, Inode>,
        orphans: &BTreeSet<Nid>,
    ) {
        if !inode.is_dir() || orphans.contains(&ino) {
            return;
        }
        let mut at = ino;
        for _ in 0..=inodes.len() {
            if at == Nid::ROOT {
                return;
            }
            match inodes.get(&at) {
                Some(dir) => at = dir.parent,
                None => break,
            }
        }
        self.find(
            format_args!("directory {ino}"),
            "does not lead up to the root",
        );
    }
}
