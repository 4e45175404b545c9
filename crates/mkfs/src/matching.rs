//! Matching of the source tree with the image that is patched: finds the inodes that stay in place.

use super::base::{Bases, is_compressed};
use super::dedupe::{self, WorkerContext, read_through};
use super::layout::{dir_size, old_epoch, stored_owner, stored_time};
use super::load::Loader;
use super::memory_budget;
use super::options::{Dedupe, InodeForm, Metadata, Options};
use super::progress::Progress;
use super::tree::{self, InodeId, NodeKind, ROOT, Tree, XattrSet};
use super::unchanged::Unchanged;
use crate::Result;
use hashbrown::{HashMap, HashSet};
use std::sync::Arc;
use tuff_erofs::read::{self, Image, Inode};
use tuff_format::Nid;
use tuff_format::features::{compat, incompat};
use tuff_format::inode::FileType;

/// Length in bytes that a disk writes as a whole.
const SECTOR: u64 = 512;
/// Number of new inodes that a small patch may have whatever the size of the tree.
const NEW_INODES_MIN: usize = 16;
/// Largest share of new inodes in a small patch, as a divisor. Beyond it, fragments and shared attributes save more.
const NEW_INODES_SHARE: usize = 8;
/// Largest size in bytes of the attributes of an inode in a small patch, whose attributes are all inline.
const ATTRIBUTES_MAX: usize = 2048;
/// Files that a worker takes at once. Neighbours share clusters of the packed inode.
const FILES: usize = 16;

/// Finds the inodes that stay in place. `None` if the patch has to write all metadata.
///
/// # Errors
/// Errors of reading the old image and the sources.
pub(crate) fn find_unchanged(
    tree: &Tree,
    base: &Arc<Bases>,
    options: &Options,
    loader: &Loader<'_>,
    threads: usize,
    progress: &Progress,
) -> Result<Option<Unchanged>> {
    let Some(image) = base.patched().filter(|image| supports(image, options)) else {
        return Ok(None);
    };
    let sb = image.superblock();
    let root = image.root()?;
    if !attributes_fit(tree) || !keeps_place(tree, image, &root, options)? {
        return Ok(None);
    }
    let mut pairs = Pairs::of(tree, image, root)?;
    let order = tree.inode_order();
    pairs.drop_different(tree, image, options, loader, &order)?;
    let others = |i: &&InodeId| tree.file_type(**i) != FileType::Dir;
    let new = order
        .iter()
        .filter(others)
        .filter(|i| !pairs.old.contains_key(*i));
    let most = NEW_INODES_MIN.max(order.len() / NEW_INODES_SHARE);
    if new.count() > most {
        return Ok(None);
    }
    pairs.drop_other_contents(tree, base, options, loader, threads, progress)?;
    pairs.drop_moved(tree, &order);
    let new = order
        .iter()
        .filter(others)
        .filter(|i| !pairs.old.contains_key(*i));
    if new.count() > most {
        return Ok(None);
    }
    Ok(Some(Unchanged {
        nids: pairs.old.iter().map(|(id, old)| (*id, old.nid())).collect(),
        superblock: sb.clone(),
        configs: image.configs().clone(),
        root_body: image.xattr_body(&root)?.to_vec(),
        root,
        last_serial: pairs.last_serial,
    }))
}

/// Returns true if the metadata of the image can stay in place under these options.
fn supports(image: &Image, options: &Options) -> bool {
    let sb = image.superblock();
    let o = &options.metadata;
    // Inodes in block 0 are covered by the checksum of the superblock.
    sb.meta_blkaddr.0 > 0
        && !sb.has(incompat::METABOX)
        && o.form != Metadata::Compressed
        && o.inodes != InodeForm::Extended
        && sb.xattr_prefix_count == 0
        && o.xattr_prefixes.is_empty()
        && o.fingerprints.is_none()
        && o.xattr_filter == sb.has_compat(compat::XATTR_FILTER)
        && options.output.verity.is_none()
        && options.sources.hard_links
}

/// Returns true if the new root inode can overwrite the old one in one sector.
fn keeps_place(tree: &Tree, image: &Image, old: &Inode, options: &Options) -> Result<bool> {
    let epoch = old_epoch(image.superblock(), options);
    let raw = old.raw();
    let at = old.position();
    let len = (raw.len() + raw.xattr_len()) as u64;
    let (uid, gid) = stored_owner(tree, options, ROOT);
    let fits = raw.extended
        || uid <= 0xFFFF
            && gid <= 0xFFFF
            && tree.nlink(ROOT) <= 0xFFFF
            && dir_size(tree, ROOT, options.block) <= u32::MAX.into()
            && epoch.delay(stored_time(tree, options, ROOT)).is_some();
    Ok(fits && at / SECTOR == (at + len - 1) / SECTOR && has_attributes(tree, image, ROOT, old)?)
}

/// Returns true if an old inode has the attributes of a new one.
fn has_attributes(tree: &Tree, image: &Image, inode: InodeId, old: &Inode) -> Result<bool> {
    let set = &tree.xattr_sets()[tree.xattrs(inode) as usize];
    if set.is_empty() || !old.has_xattrs() {
        return Ok(set.is_empty() && !old.has_xattrs());
    }
    let mut there = image.xattrs(old)?;
    there.sort_unstable();
    let same =
        |((name, value), x): (&tree::Xattr, &read::Xattr)| **name == *x.name && **value == *x.value;
    Ok(there.len() == set.len() && set.iter().zip(&there).all(same))
}

/// Returns true if an old inode has all properties of a new one except content, names and place.
fn is_alike(
    tree: &Tree,
    image: &Image,
    options: &Options,
    inode: InodeId,
    old: &Inode,
) -> Result<bool> {
    let kind = tree.kind(inode);
    let mode = tree.meta(inode).mode & 0o7777 | tree.file_type(inode).mode_bits();
    let device = match kind {
        NodeKind::Char(d) | NodeKind::Block(d) => Some((d.major, d.minor)),
        _ => None,
    };
    let alike = old.mode() == mode
        && (old.uid(), old.gid()) == stored_owner(tree, options, inode)
        && old.mtime() == stored_time(tree, options, inode)
        && old.nlink() == tree.nlink(inode)
        && old.device() == device
        && match kind {
            NodeKind::File { size } => old.size() == size,
            NodeKind::Symlink(target) => *image.readlink(old)? == *target,
            _ => true,
        };
    Ok(alike && has_attributes(tree, image, inode, old)?)
}

/// New inodes and the old ones with the same path.
struct Pairs {
    old: HashMap<InodeId, Inode>,
    /// Directories with other names than before.
    renamed: HashSet<InodeId>,
    last_serial: u32,
}

impl Pairs {
    fn of(tree: &Tree, image: &Image, root: Inode) -> Result<Self> {
        let mut this = Self {
            old: HashMap::new(),
            renamed: HashSet::new(),
            last_serial: root.raw().ino,
        };
        let mut taken: HashSet<Nid> = HashSet::new();
        taken.insert(root.nid());
        this.old.insert(ROOT, root);
        let mut dirs = vec![(ROOT, root)];
        while let Some((dir, old)) = dirs.pop() {
            let mut there: HashMap<Vec<u8>, Nid> = HashMap::new();
            for entry in image.read_dir(&old)? {
                let entry = entry?;
                if !matches!(&*entry.name, b"." | b"..") {
                    there.insert(entry.name.to_vec(), entry.nid);
                }
            }
            let children = tree.children(dir);
            let mut same = there.len() == children.len();
            for child in children {
                let Some(nid) = there.get(tree.name(child)) else {
                    same = false;
                    continue;
                };
                if !this.old.contains_key(&child.inode) {
                    let inode = image.inode(*nid)?;
                    let is_dir = inode.is_dir();
                    if inode.file_type() == tree.file_type(child.inode) && taken.insert(*nid) {
                        this.last_serial = this.last_serial.max(inode.raw().ino);
                        this.old.insert(child.inode, inode);
                        if is_dir {
                            dirs.push((child.inode, inode));
                        }
                    }
                }
                same &= this.old.get(&child.inode).is_some_and(|i| i.nid() == *nid);
            }
            if !same {
                this.renamed.insert(dir);
            }
        }
        Ok(this)
    }

    /// Drops pairs with other properties, or with data in a form that the options exclude.
    fn drop_different(
        &mut self,
        tree: &Tree,
        image: &Image,
        options: &Options,
        loader: &Loader<'_>,
        order: &[InodeId],
    ) -> Result<()> {
        for inode in order {
            let Some(old) = self.old.get(inode) else {
                continue;
            };
            let recoded = is_compressed(old) && loader.policy(tree, *inode).1.spec.is_none();
            // The root may change in place.
            let stays = !recoded && is_alike(tree, image, options, *inode, old)?;
            if !stays && *inode == ROOT {
                self.renamed.insert(ROOT);
            } else if !stays {
                self.old.remove(inode);
            }
        }
        Ok(())
    }

    /// Drops pairs of files with different contents.
    fn drop_other_contents(
        &mut self,
        tree: &Tree,
        base: &Arc<Bases>,
        options: &Options,
        loader: &Loader<'_>,
        threads: usize,
        progress: &Progress,
    ) -> Result<()> {
        let Some(image) = base.patched() else {
            return Ok(());
        };
        let mut files = Vec::new();
        for (inode, old) in &self.old {
            if tree.size(*inode) > 0 {
                files.push((base.data_position(old)?, *inode, *old));
            }
        }
        files.sort_unstable_by_key(|(position, inode, _)| (*position, *inode));
        progress.set_total(files.iter().map(|(_, inode, _)| tree.size(*inode)).sum());
        let groups: Vec<_> = files.chunks(FILES).collect();
        let settings = dedupe::DedupeSettings {
            dedupe: Dedupe::Off,
            tail_len: 0,
            memory: memory_budget::eighth(options),
            base_memory: 0,
            block: options.block.size(),
            threads,
            sums: false,
            progress,
            entropy_coding: false,
            dense_and_fast: None,
        };
        let compare = |i: usize, context: &mut WorkerContext, different: &mut Vec<InodeId>| {
            let mut there = Vec::new();
            for (_, inode, old) in groups[i] {
                let size = tree.size(*inode);
                let content = match loader.file_content(tree, *inode)? {
                    // Content with holes is compared by the deduplication.
                    Some(content) if !loader.is_sparse(tree, *inode) => content,
                    _ => {
                        different.push(*inode);
                        continue;
                    }
                };
                let (mut at, mut same) = (0, true);
                read_through(&content, size, &mut context.buf, &mut |bytes| {
                    progress.check()?;
                    progress.add_bytes(bytes.len() as u64);
                    if same {
                        there.resize(bytes.len(), 0);
                        let read = image.read_at(old, &mut there, at)?;
                        same = read == bytes.len() && there == bytes;
                        at += bytes.len() as u64;
                    }
                    Ok(())
                })?;
                if !same {
                    different.push(*inode);
                }
            }
            Ok(())
        };
        let different = dedupe::parallel(groups.len(), &settings, &compare)?;
        for inode in different.iter().flatten() {
            self.old.remove(inode);
        }
        Ok(())
    }

    /// Drops directories that name an inode at another place.
    fn drop_moved(&mut self, tree: &Tree, order: &[InodeId]) {
        let is_dir = |inode: &&InodeId| tree.file_type(**inode) == FileType::Dir;
        // A child follows its parent.
        for dir in order.iter().rev().filter(is_dir) {
            let children = tree.children(*dir);
            let stays = !self.renamed.contains(dir)
                && children.iter().all(|d| self.old.contains_key(&d.inode));
            if !stays {
                self.old.remove(dir);
            }
        }
        for dir in order.iter().filter(is_dir).filter(|dir| **dir != ROOT) {
            let parent = tree.parent(*dir);
            if parent != ROOT && !self.old.contains_key(&parent) {
                self.old.remove(dir);
            }
        }
    }
}

/// Returns true if the attributes of all inodes fit inline.
fn attributes_fit(tree: &Tree) -> bool {
    let len = |set: &XattrSet| -> usize {
        set.iter()
            .map(|(name, value)| name.len() + value.len() + 8)
            .sum()
    };
    tree.xattr_sets()
        .iter()
        .all(|set| len(set) <= ATTRIBUTES_MAX)
}
