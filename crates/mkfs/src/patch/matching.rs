//! Matching of the source tree with the image that is patched: finds the inodes that stay in place.

use crate::Result;
use crate::base::{Bases, is_compressed};
use crate::dedupe::{self, WorkerContext, read_through};
use crate::layout::{dir_size, old_epoch, stored_owner, stored_time};
use crate::load::Loader;
use crate::options::{Dedupe, InodeForm, Metadata, Options};
use crate::pack::memory_budget;
use crate::patch::unchanged::{Content, Place, Unchanged};
use crate::progress::Progress;
use crate::tree::{self, InodeId, NodeKind, ROOT, Tree, XattrSet};
use hashbrown::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use tuff_erofs::read::{self, Image, Inode};
use tuff_format::Nid;
use tuff_format::features::{compat, incompat};
use tuff_format::inode::{FileType, Layout};

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

/// Finds the inodes that keep their nid. `None` if the patch has to write all metadata. `overwrites` is set if old bytes
/// may change because the image takes effect as a whole.
///
/// # Errors
/// Errors of reading the old image and the sources.
pub(crate) fn find_unchanged(
    tree: &Tree,
    base: &Arc<Bases>,
    options: &Options,
    overwrites: bool,
    loader: &Loader<'_>,
    threads: usize,
    progress: &Progress,
) -> Result<Option<Unchanged>> {
    let Some(image) = base.patched().filter(|image| supports(image, options)) else {
        return Ok(None);
    };
    let root = image.root()?;
    let root_stays = can_overwrite(tree, image, options, ROOT, &root)?
        && (overwrites || is_in_one_sector(&root));
    if !root_stays || !attributes_fit(tree) {
        return Ok(None);
    }
    let mut pairs = Pairs::of(tree, image, root, overwrites)?;
    let order = tree.inode_order();
    pairs.drop_different(tree, image, options, loader, &order)?;
    let most = NEW_INODES_MIN.max(order.len() / NEW_INODES_SHARE);
    if pairs.new_contents(tree, &order) > most {
        return Ok(None);
    }
    pairs.compare_contents(tree, base, options, loader, threads, progress)?;
    if pairs.new_contents(tree, &order) > most {
        return Ok(None);
    }
    match overwrites {
        true => pairs.alter_directories(tree, &order),
        false => pairs.drop_moved(tree, &order),
    }
    let mut places = HashMap::new();
    for (inode, content) in pairs.altered {
        // Dropped ones have no pair.
        if let Some(old) = pairs.old.remove(&inode) {
            let place = place(image, old, content, overwrites)?;
            places.insert(inode, place);
        }
    }
    give_up_shared_blocks(&mut places);
    Ok(Some(Unchanged {
        nids: pairs.old.iter().map(|(id, old)| (*id, old.nid())).collect(),
        places,
        superblock: image.superblock().clone(),
        configs: image.configs().clone(),
        last_serial: pairs.last_serial,
    }))
}

/// Returns the place of an old inode that is overwritten. Without `whole` it is that of the inode alone.
fn place(image: &Image, inode: Inode, content: Content, whole: bool) -> Result<Place> {
    let raw = inode.raw();
    let bits = image.superblock().block_bits;
    let count = match raw.layout {
        Layout::FlatPlain => bits.count(inode.size()),
        Layout::FlatInline => inode.size() >> bits.get(),
        _ => 0,
    };
    let end = raw
        .u
        .checked_add(count)
        .and_then(|end| u32::try_from(end).ok());
    let blocks = match end {
        // Fits: before the end. Block 0 holds the superblock.
        Some(end) if whole && inode.is_dir() && count > 0 && raw.u > 0 => raw.u as u32..end,
        _ => 0..0,
    };
    Ok(Place {
        inode,
        body: image.xattr_body(&inode)?.to_vec(),
        len: match whole {
            true => image.stored_len(&inode)?,
            false => (raw.len() + raw.xattr_len()) as u64,
        },
        blocks,
        content,
    })
}

/// Lets directories that share blocks have new ones.
fn give_up_shared_blocks(places: &mut HashMap<InodeId, Place>) {
    let blocks = |(inode, place): (&InodeId, &Place)| (place.blocks.clone(), *inode);
    let mut all: Vec<_> = places.iter().map(blocks).collect();
    all.retain(|(blocks, _)| !blocks.is_empty());
    all.sort_unstable_by_key(|(blocks, inode)| (blocks.start, *inode));
    let mut end = 0;
    let mut last = None;
    for (blocks, inode) in all {
        if blocks.start < end {
            for inode in [Some(inode), last].into_iter().flatten() {
                if let Some(place) = places.get_mut(&inode) {
                    place.blocks = 0..0;
                }
            }
        }
        if blocks.end > end {
            (end, last) = (blocks.end, Some(inode));
        }
    }
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

/// Returns true if a disk writes the inode, with its attributes, as a whole.
fn is_in_one_sector(inode: &Inode) -> bool {
    let (raw, at) = (inode.raw(), inode.position());
    let len = (raw.len() + raw.xattr_len()) as u64;
    at / SECTOR == (at + len - 1) / SECTOR
}

/// Returns true if an old inode, with its attributes, has room for the properties of a new one.
fn can_overwrite(
    tree: &Tree,
    image: &Image,
    options: &Options,
    inode: InodeId,
    old: &Inode,
) -> Result<bool> {
    let epoch = old_epoch(image.superblock(), options);
    let (uid, gid) = stored_owner(tree, options, inode);
    let size = match tree.kind(inode) {
        NodeKind::Dir => dir_size(tree, inode, options.block),
        _ => tree.size(inode),
    };
    let fits = old.raw().extended
        || uid <= 0xFFFF
            && gid <= 0xFFFF
            && tree.nlink(inode) <= 0xFFFF
            && size <= u32::MAX.into()
            && epoch.delay(stored_time(tree, options, inode)).is_some();
    Ok(fits && has_attributes(tree, image, inode, old)?)
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
    /// Those of them that are overwritten, with their content.
    altered: HashMap<InodeId, Content>,
    /// Any old inode may be overwritten, not only the root.
    overwrites: bool,
    /// Directories with other names than before.
    renamed: HashSet<InodeId>,
    last_serial: u32,
}

impl Pairs {
    fn of(tree: &Tree, image: &Image, root: Inode, overwrites: bool) -> Result<Self> {
        let mut this = Self {
            old: HashMap::new(),
            altered: HashMap::new(),
            overwrites,
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

    /// Drops pairs with other properties, unless the old inode can be overwritten, and pairs with data in a form that
    /// the options exclude.
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
            if !recoded && is_alike(tree, image, options, *inode, old)? {
                continue;
            }
            // That of the root was seen to fit.
            let fits = *inode == ROOT
                || self.overwrites && !recoded && can_overwrite(tree, image, options, *inode, old)?;
            if fits {
                let content = match tree.kind(*inode) {
                    NodeKind::File { size } if size != old.size() => Content::Other,
                    _ => Content::Same,
                };
                self.altered.insert(*inode, content);
            } else {
                self.old.remove(inode);
            }
        }
        Ok(())
    }

    /// Returns the number of inodes other than directories that are new or have another content.
    fn new_contents(&self, tree: &Tree, order: &[InodeId]) -> usize {
        let is_new = |inode: &&InodeId| {
            tree.file_type(**inode) != FileType::Dir
                && (!self.old.contains_key(*inode)
                    || (self.altered.get(*inode)).is_some_and(|c| !matches!(c, Content::Same)))
        };
        order.iter().filter(is_new).count()
    }

    /// Compares the contents of files. Pairs of files with different contents are altered, or dropped if the old inode
    /// cannot be overwritten.
    fn compare_contents(
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
            if tree.size(*inode) > 0 && tree.size(*inode) == old.size() {
                files.push((base.data_position(old)?, *inode, *old));
            }
        }
        files.sort_unstable_by_key(|(position, inode, _)| (*position, *inode));
        progress.set_total(files.iter().map(|(_, inode, _)| tree.size(*inode)).sum());
        let groups: Vec<_> = files.chunks(FILES).collect();
        let settings = dedupe::DedupeSettings {
            dedupe: Dedupe::Off,
            tail_len: 0,
            fragment_cut: None,
            fragment_cluster: options.layout.fragment_cluster,
            memory: memory_budget::eighth(options),
            base_memory: 0,
            block: options.block.size(),
            threads,
            sums: false,
            shares_stored: false,
            chunk: None,
            progress,
            entropy_coding: false,
            dense_and_fast: None,
        };
        let compare = |i: usize, context: &mut WorkerContext, different: &mut Vec<_>| {
            let mut there = Vec::new();
            for (_, inode, old) in groups[i] {
                let size = tree.size(*inode);
                let content = match loader.file_content(tree, *inode)? {
                    // Content with holes is compared by the deduplication.
                    Some(content) if !loader.is_sparse(tree, *inode) => content,
                    _ => {
                        different.push((*inode, Content::Other));
                        continue;
                    }
                };
                let mut at = 0;
                let mut ranges: Vec<Range<u64>> = Vec::new();
                read_through(&content, size, &mut context.buf, &mut |bytes| {
                    progress.check()?;
                    progress.add_bytes(bytes.len() as u64);
                    // Where no old inode is overwritten, the first difference decides.
                    if self.overwrites || ranges.is_empty() {
                        there.resize(bytes.len(), 0);
                        let read = image.read_at(old, &mut there, at)?;
                        there.truncate(read);
                        add_differences(bytes, &there, at, &mut ranges);
                        at += bytes.len() as u64;
                    }
                    Ok(())
                })?;
                if !ranges.is_empty() {
                    different.push((*inode, Content::Edited(ranges)));
                }
            }
            Ok(())
        };
        let different = dedupe::parallel(groups.len(), &settings, &compare)?;
        for (inode, content) in different.into_iter().flatten() {
            let old = self.old.get(&inode);
            let fits = old.map(|old| can_overwrite(tree, image, options, inode, old));
            if self.overwrites && fits.transpose()?.unwrap_or(false) {
                self.altered.insert(inode, content);
            } else {
                self.old.remove(&inode);
            }
        }
        Ok(())
    }

    /// Alters directories that name an inode at another place, or that may do so. The nids of files with another
    /// content are known when the files are encoded.
    fn alter_directories(&mut self, tree: &Tree, order: &[InodeId]) {
        let keeps_nid = |inode: InodeId| {
            self.old.contains_key(&inode)
                && (tree.file_type(inode) == FileType::Dir || !self.altered.contains_key(&inode))
        };
        let changes = |dir: &&InodeId| {
            tree.file_type(**dir) == FileType::Dir
                && self.old.contains_key(*dir)
                && (self.renamed.contains(*dir)
                    || !keeps_nid(tree.parent(**dir))
                    || !tree.children(**dir).iter().all(|d| keeps_nid(d.inode)))
        };
        let dirs: Vec<InodeId> = order.iter().filter(changes).copied().collect();
        for dir in dirs {
            self.altered.entry(dir).or_insert(Content::Same);
        }
    }

    /// Drops directories that name an inode at another place. The root is altered instead.
    fn drop_moved(&mut self, tree: &Tree, order: &[InodeId]) {
        let is_dir = |inode: &&InodeId| tree.file_type(**inode) == FileType::Dir;
        // A child follows its parent.
        for dir in order.iter().rev().filter(is_dir) {
            let children = tree.children(*dir);
            let stays = !self.renamed.contains(dir)
                && children.iter().all(|d| self.old.contains_key(&d.inode));
            if !stays && *dir == ROOT {
                self.altered.insert(ROOT, Content::Same);
            } else if !stays {
                self.old.remove(dir);
            }
        }
        for dir in order.iter().filter(is_dir).filter(|dir| **dir != ROOT) {
            let parent = tree.parent(*dir);
            if !self.old.contains_key(&parent) {
                self.old.remove(dir);
            }
        }
    }
}

/// Appends the ranges in which bytes differ from those that are `there`, in units of 4 KiB. Both start at `at`.
fn add_differences(bytes: &[u8], there: &[u8], at: u64, ranges: &mut Vec<Range<u64>>) {
    const UNIT: usize = 4096;
    if bytes == there {
        return;
    }
    for (i, unit) in bytes.chunks(UNIT).enumerate() {
        let from = i * UNIT;
        if there.get(from..from + unit.len()) == Some(unit) {
            continue;
        }
        let (start, end) = (at + from as u64, at + (from + unit.len()) as u64);
        match ranges.last_mut() {
            Some(range) if range.end == start => range.end = end,
            _ => ranges.push(start..end),
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
