//! Matching of the source tree with the image that is patched: finds the inodes that stay in place.

use crate::Result;
use crate::base::{Bases, is_compressed};
use crate::dedupe::read_through;
use crate::environment::{Environment, parallel};
use crate::layout::{dir_size, old_epoch, stored_owner, stored_time};
use crate::options::{InodeForm, Metadata, Options};
use crate::pack::files::TreeFiles;
use crate::patch::unchanged::{Content, Place, Unchanged};
use crate::tree::{self, InodeId, NodeKind, ROOT, Tree, XattrSet};
use hashbrown::{HashMap, HashSet};
use std::ops::Range;
use tuff_erofs::read::{self, Image, Inode, StartList};
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

/// Finds the inodes that keep their nid. `None` if the patch has to write all metadata.
///
/// # Errors
/// Errors of reading the old image and the sources.
pub(crate) fn find_unchanged(
    files: &TreeFiles<'_>,
    base: &Bases,
    environment: &Environment<'_>,
) -> Result<Option<Unchanged>> {
    environment.progress.stage("match");
    let (tree, options) = (files.tree, files.options);
    let Some(image) = base.patched().filter(|image| supports(image, options)) else {
        return Ok(None);
    };
    let patch = &Patch {
        files,
        image,
        base,
        overwrites: environment.targets.image.is_atomic(),
    };
    let root = image.root()?;
    let root_stays =
        patch.can_overwrite(ROOT, &root)? && (patch.overwrites || is_in_one_sector(&root));
    if !root_stays || !attributes_fit(tree) {
        return Ok(None);
    }
    let mut pairs = Pairs::find(patch, root)?;
    let order = tree.inode_order();
    pairs.drop_different(patch, &order)?;
    let new_max = NEW_INODES_MIN.max(order.len() / NEW_INODES_SHARE);
    if pairs.new_contents(tree, &order) > new_max {
        return Ok(None);
    }
    pairs.compare_contents(patch, environment)?;
    if pairs.new_contents(tree, &order) > new_max {
        return Ok(None);
    }
    match patch.overwrites {
        true => pairs.alter_directories(tree, &order),
        false => pairs.drop_moved(tree, &order),
    }
    let mut places = HashMap::new();
    for (inode, content) in pairs.altered {
        // Dropped ones have no pair.
        if let Some(old) = pairs.old.remove(&inode) {
            let place = place(image, old, content, patch.overwrites)?;
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
        start_list: StartList::inode(image)?.map(|inode| inode.position()),
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

/// New tree and old image of a patch.
struct Patch<'a> {
    files: &'a TreeFiles<'a>,
    image: &'a Image,
    base: &'a Bases,
    /// Old bytes may change because the image takes effect as a whole. Otherwise only the root is overwritten.
    overwrites: bool,
}

impl Patch<'_> {
    /// Returns true if an old inode, with its attributes, has room for the properties of a new one.
    fn can_overwrite(&self, inode: InodeId, old: &Inode) -> Result<bool> {
        let (tree, options) = (self.files.tree, self.files.options);
        let epoch = old_epoch(self.image.superblock(), options);
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
        Ok(fits && self.has_attributes(inode, old)?)
    }

    /// Returns true if an old inode has the attributes of a new one.
    fn has_attributes(&self, inode: InodeId, old: &Inode) -> Result<bool> {
        let tree = self.files.tree;
        let set = &tree.xattr_sets()[tree.xattrs(inode) as usize];
        if set.is_empty() || !old.has_xattrs() {
            return Ok(set.is_empty() && !old.has_xattrs());
        }
        let mut existing = self.image.xattrs(old)?;
        existing.sort_unstable();
        let same = |((name, value), x): (&tree::Xattr, &read::Xattr)| {
            **name == *x.name && **value == *x.value
        };
        Ok(existing.len() == set.len() && set.iter().zip(&existing).all(same))
    }

    /// Returns true if an old inode has all properties of a new one except content, names and place.
    fn is_alike(&self, inode: InodeId, old: &Inode) -> Result<bool> {
        let (tree, options) = (self.files.tree, self.files.options);
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
                NodeKind::Symlink(target) => *self.image.readlink(old)? == *target,
                _ => true,
            };
        Ok(alike && self.has_attributes(inode, old)?)
    }
}

/// New inodes and the old ones with the same path.
struct Pairs {
    old: HashMap<InodeId, Inode>,
    /// Those of them that are overwritten, with their content.
    altered: HashMap<InodeId, Content>,
    /// Directories with other names than before.
    renamed: HashSet<InodeId>,
    last_serial: u32,
}

impl Pairs {
    /// Pairs new inodes with the old ones that have the same path and type.
    fn find(patch: &Patch<'_>, root: Inode) -> Result<Self> {
        let (tree, image) = (patch.files.tree, patch.image);
        let mut this = Self {
            old: HashMap::new(),
            altered: HashMap::new(),
            renamed: HashSet::new(),
            last_serial: root.raw().ino,
        };
        let mut taken: HashSet<Nid> = HashSet::new();
        taken.insert(root.nid());
        this.old.insert(ROOT, root);
        let mut dirs = vec![(ROOT, root)];
        while let Some((dir, old)) = dirs.pop() {
            let mut names: HashMap<Vec<u8>, Nid> = HashMap::new();
            for entry in image.read_dir(&old)? {
                let entry = entry?;
                if !matches!(&*entry.name, b"." | b"..") {
                    names.insert(entry.name.to_vec(), entry.nid);
                }
            }
            let children = tree.children(dir);
            let mut same = names.len() == children.len();
            for child in children {
                let Some(nid) = names.get(tree.name(child)) else {
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
    fn drop_different(&mut self, patch: &Patch<'_>, order: &[InodeId]) -> Result<()> {
        let tree = patch.files.tree;
        for inode in order {
            let Some(old) = self.old.get(inode) else {
                continue;
            };
            let recoded = is_compressed(old) && patch.files.policy(*inode).1.spec.is_none();
            if !recoded && patch.is_alike(*inode, old)? {
                continue;
            }
            // That of the root was seen to fit.
            let fits = *inode == ROOT
                || patch.overwrites && !recoded && patch.can_overwrite(*inode, old)?;
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
    fn compare_contents(&mut self, patch: &Patch<'_>, environment: &Environment<'_>) -> Result<()> {
        let (tree, progress) = (patch.files.tree, environment.progress);
        let mut files = Vec::new();
        for (inode, old) in &self.old {
            if tree.size(*inode) > 0 && tree.size(*inode) == old.size() {
                files.push((patch.base.data_position(old)?, *inode, *old));
            }
        }
        files.sort_unstable_by_key(|(position, inode, _)| (*position, *inode));
        progress.set_total(files.iter().map(|(_, inode, _)| tree.size(*inode)).sum());
        let groups: Vec<_> = files.chunks(FILES).collect();
        let compare = |i: usize, buffers: &mut [Vec<u8>; 2], different: &mut Vec<_>| {
            let [buffer, old_bytes] = buffers;
            for (_, inode, old) in groups[i] {
                let content = match patch.files.content(*inode)? {
                    // Content with holes is compared by the deduplication.
                    Some(content) if !patch.files.is_sparse(*inode) => content,
                    _ => {
                        different.push((*inode, Content::Other));
                        continue;
                    }
                };
                let mut at = 0;
                let mut ranges: Vec<Range<u64>> = Vec::new();
                read_through(&content, tree.size(*inode), buffer, &mut |bytes| {
                    progress.check()?;
                    progress.add_bytes(bytes.len() as u64);
                    // Where no old inode is overwritten, the first difference decides.
                    if patch.overwrites || ranges.is_empty() {
                        old_bytes.resize(bytes.len(), 0);
                        let read = patch.image.read_at(old, old_bytes, at)?;
                        old_bytes.truncate(read);
                        add_differences(bytes, old_bytes, at, &mut ranges);
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
        let different = parallel(groups.len(), environment.threads, progress, &compare)?;
        for (inode, content) in different.into_iter().flatten() {
            let old = self.old.get(&inode);
            let fits = old.map(|old| patch.can_overwrite(inode, old));
            if patch.overwrites && fits.transpose()?.unwrap_or(false) {
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

/// Appends the ranges in which bytes differ from the old ones, in units of 4 KiB. Both start at `at`.
fn add_differences(bytes: &[u8], old: &[u8], at: u64, ranges: &mut Vec<Range<u64>>) {
    const UNIT: usize = 4096;
    if bytes == old {
        return;
    }
    for (i, unit) in bytes.chunks(UNIT).enumerate() {
        let from = i * UNIT;
        if old.get(from..from + unit.len()) == Some(unit) {
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
