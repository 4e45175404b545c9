//! Inputs of layout and emission, and the sizes of inodes.

use super::epoch::{Epoch, old_epoch};
use crate::base::Bases;
use crate::layout::xattrs::Xattrs;
use crate::options::{Fragments, InodeForm, Metadata, Options};
use crate::pack::address::{DataBlock, Location};
use crate::pack::{Chunks, Encoded, FileData, FileTail, Packed};
use crate::patch::unchanged::{Place, Unchanged};
use crate::source::error::Quoted;
use crate::tree::{InodeId, METABOX, NodeKind, PACKED, ROOT, Tree, is_hidden};
use crate::{Error, Result};
use std::ops::Deref;
use std::sync::Arc;
use tuff_format::cluster::extent;
use tuff_format::cluster::write::{self, Index, Piece, Tail, header_pos, index_len};
use tuff_format::dirent::DirectorySize;
use tuff_format::inode::{ALIGN, COMPACT_LEN, EXTENDED_LEN, Layout};
use tuff_format::start_list::StartList;
use tuff_format::units::round_up;
use tuff_format::{BlockBits, chunk};

/// Size in bytes from which a file has an extended inode.
const LONG_FILE: u64 = 4 << 20;

/// Metabox inode after it is placed.
pub(crate) struct Metabox {
    /// Clusters of the metabox.
    pub(crate) data: FileData,
    /// Size of the decoded data in bytes.
    pub(crate) size: u64,
    /// First block after the clusters.
    pub(crate) end_block: u32,
    /// Digest over the clusters.
    pub(crate) digest: u128,
}

/// Form of one inode: sizes only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// True for an inode of 64 bytes.
    pub(crate) extended: bool,
    /// Layout of the data.
    pub(crate) layout: Layout,
    /// Size of the data in bytes.
    pub(crate) size: u64,
    /// Bytes from the start of the inode to its inline tail.
    pub(crate) before_tail: u64,
    /// Length of the inline tail in bytes.
    pub(crate) tail: u64,
}

impl Form {
    /// Returns true if the inode has a compressed inline tail.
    pub(crate) fn has_encoded_tail(&self) -> bool {
        let encoded = matches!(
            self.layout,
            Layout::CompressedFull | Layout::CompressedCompact
        );
        encoded && self.tail > 0
    }
}

/// List of an image, and its place in the order of inodes.
pub(crate) struct ListPlan {
    pub(crate) list: StartList,
    /// Number of inodes at the front of the order that a start needs.
    pub(crate) needed: usize,
}

impl ListPlan {
    /// Returns the encoded list without its metadata, which does not change the length.
    pub(crate) fn encode(&self) -> Vec<u8> {
        self.list.encode()
    }
}

/// Inputs of the layout, without the data.
#[derive(Clone, Copy)]
pub(crate) struct LayoutInput<'a> {
    /// All inodes and names.
    pub(crate) tree: &'a Tree,
    /// Inodes in the order of the inode zone.
    pub(crate) order: &'a [InodeId],
    /// Extended attributes as they are planned.
    pub(crate) xattrs: &'a Xattrs,
    /// Options of the build.
    pub(crate) options: &'a Options,
    /// Images that hold some of the data.
    pub(crate) base: Option<&'a Bases>,
    /// Shared attributes and the prefix table.
    pub(crate) area: &'a [u8],
    /// Inodes of the patched image that stay in place.
    pub(crate) unchanged: Option<&'a Arc<Unchanged>>,
    /// Start list, if the image gets one.
    pub(crate) start: Option<&'a ListPlan>,
}

impl<'a> LayoutInput<'a> {
    /// Adds the data and, once it is placed, the metabox.
    pub(crate) fn with<'b>(&self, packed: &'b Packed, metabox: Option<&'b Metabox>) -> Parts<'b>
    where
        'a: 'b,
    {
        Parts {
            input: *self,
            packed,
            metabox,
        }
    }
}

/// Inputs of layout and emission.
pub(crate) struct Parts<'a> {
    input: LayoutInput<'a>,
    /// Packed data of all files.
    pub(crate) packed: &'a Packed,
    /// Metabox, once it is placed.
    pub(crate) metabox: Option<&'a Metabox>,
}

impl<'a> Deref for Parts<'a> {
    type Target = LayoutInput<'a>;

    fn deref(&self) -> &Self::Target {
        &self.input
    }
}

impl Parts<'_> {
    pub(crate) fn bits(&self) -> BlockBits {
        self.options.block
    }

    /// Returns the data of a file, or of the file that it is identical to.
    pub(crate) fn data(&self, inode: InodeId) -> &FileData {
        match (inode, self.metabox) {
            (PACKED, _) => return &self.packed.packed,
            (METABOX, Some(metabox)) => return &metabox.data,
            _ => {}
        }
        let file = self.packed.files.get(self.first(inode) as usize);
        file.unwrap_or(&FileData::None)
    }

    /// Returns the file that holds the data of `inode`: itself, unless it is identical to another.
    pub(crate) fn first(&self, inode: InodeId) -> InodeId {
        match self.packed.files.get(inode as usize) {
            Some(FileData::Same(first)) => self.first(*first),
            _ => inode,
        }
    }

    /// Returns the attributes that follow an inode.
    pub(crate) fn body(&self, inode: InodeId) -> &[u8] {
        if is_hidden(inode) {
            return &[];
        }
        match self.place(inode) {
            Some(place) => &place.body,
            None => &self.xattrs.bodies[self.tree.xattrs(inode) as usize],
        }
    }

    /// Returns the time of an inode, after the options are applied.
    pub(crate) fn time(&self, inode: InodeId) -> (i64, u32) {
        stored_time(self.tree, self.options, inode)
    }

    /// Returns true if the inode and all that follows it are in the patched image.
    pub(crate) fn is_unchanged(&self, inode: InodeId) -> bool {
        self.unchanged.is_some_and(|u| u.nid(inode).is_some())
    }

    /// Returns the place of an inode that overwrites an old one.
    pub(crate) fn place(&self, inode: InodeId) -> Option<&Place> {
        self.unchanged?.place(inode)
    }

    /// Returns the first block of a directory that overwrites an old one, if its blocks suffice.
    pub(crate) fn old_block(&self, dir: InodeId, form: &Form) -> Option<u32> {
        let blocks = &self.place(dir)?.blocks;
        let count = self.bits().count(form.size - form.tail);
        (count > 0 && count <= blocks.len() as u64).then_some(blocks.start)
    }

    /// Returns the inodes that do not fit where old ones were.
    pub(crate) fn misfits(&self) -> Vec<InodeId> {
        let Some(unchanged) = self.unchanged else {
            return Vec::new();
        };
        let epoch = old_epoch(&unchanged.superblock, self.options);
        let block = self.bits().size();
        let overwritten = unchanged.overwritten().into_iter();
        let misfits = overwritten.filter(|(inode, place)| {
            let form = self.form(*inode, epoch);
            let tail_at = (place.inode.position() + form.before_tail) % block;
            form.before_tail + form.tail > place.len
                || form.tail > 0 && tail_at + form.tail > block
                || form.has_encoded_tail() && tail_at == 0
        });
        misfits.map(|(inode, _)| inode).collect()
    }

    /// Returns owner and group of an inode, after the options are applied.
    pub(crate) fn owner(&self, inode: InodeId) -> (u32, u32) {
        stored_owner(self.tree, self.options, inode)
    }

    /// Returns the form of an inode.
    pub(crate) fn form(&self, inode: InodeId, epoch: Epoch) -> Form {
        let size = self.size(inode);
        let extended = self.extended(inode, size, epoch);
        let inode_len = if extended { EXTENDED_LEN } else { COMPACT_LEN };
        let head = (inode_len + self.body(inode).len()) as u64;
        let flat = |tail: u64| Form {
            extended,
            layout: if tail > 0 {
                Layout::FlatInline
            } else {
                Layout::FlatPlain
            },
            size,
            before_tail: head,
            tail,
        };
        let whole_fragment = || Form {
            extended,
            layout: Layout::CompressedFull,
            size,
            before_tail: header_pos(head) + 16,
            tail: 0,
        };
        let kind = if is_hidden(inode) {
            None
        } else {
            Some(self.tree.kind(inode))
        };
        match kind {
            Some(NodeKind::Dir) => match (self.place(inode), self.inline_part(size, head)) {
                (Some(place), _) => {
                    let tail = self.bits().within(size);
                    let full = size >> self.bits().get();
                    let fits = head + tail <= place.len && full <= place.blocks.len() as u64;
                    flat(if fits { tail } else { 0 })
                }
                (None, tail) if tail < size && self.packs_directories() => whole_fragment(),
                (None, tail) => flat(tail),
            },
            Some(NodeKind::Symlink(_)) => flat(self.inline_part(size, head)),
            Some(NodeKind::Char(_) | NodeKind::Block(_) | NodeKind::Fifo | NodeKind::Socket) => {
                flat(0)
            }
            None | Some(NodeKind::File { .. }) => match self.data(inode) {
                FileData::None | FileData::Same(_) => flat(0),
                FileData::Flat { tail, .. } => flat(tail.map_or(0, |t| t.len() as u64)),
                FileData::WholeFragment { .. } => whole_fragment(),
                data @ (FileData::Chunked(_) | FileData::OneChunk { .. } | FileData::Table(_)) => {
                    let chunks = data.chunks(size, self.bits()).expect("it has chunks");
                    let format = self.chunk_format(&chunks);
                    let entry = format.entry_len() as u64;
                    let table = entry * format.chunk_count(size, self.bits());
                    Form {
                        extended,
                        layout: Layout::ChunkBased,
                        size,
                        before_tail: round_up(head, entry) + table,
                        tail: 0,
                    }
                }
                data => {
                    let data = data.compressed().expect("all others were matched");
                    let header = header_pos(head);
                    let compact = self.has_compact_index(inode, &data, header);
                    let index = if self.options.layout.unaligned {
                        let fragment = matches!(data.tail, FileTail::Fragment(_));
                        let count = data.pieces().count();
                        extent::encoded_len(size, count, fragment, header, self.bits())
                    } else {
                        let big = data.pieces().any(|(_, p)| p.grains > 1);
                        index_len(size, header, self.bits(), compact, big)
                    };
                    let tail = match data.tail {
                        FileTail::Inline(t) => t.len() as u64,
                        _ => 0,
                    };
                    let layout = if compact {
                        Layout::CompressedCompact
                    } else {
                        Layout::CompressedFull
                    };
                    Form {
                        extended,
                        layout,
                        size,
                        before_tail: header + index,
                        tail,
                    }
                }
            },
        }
    }

    /// Returns the form of a chunk table. Data on another device needs entries with device numbers.
    pub(crate) fn chunk_format(&self, chunks: &Chunks<'_>) -> chunk::Format {
        let in_base = |block: DataBlock| matches!(block.location(), Location::Base(_));
        let on_device = || match self.base {
            Some(bases) => !bases.in_image() && chunks.runs().any(|(_, block)| in_base(block)),
            None => false,
        };
        chunk::Format {
            bits: chunks.bits,
            indexes: chunks.external || self.options.layout.chunk_indexes || on_device(),
            bit48: false,
        }
    }

    /// Returns true if a compressed file has a COMPACT index. `header` is the position of its map header.
    pub(crate) fn has_compact_index(
        &self,
        inode: InodeId,
        data: &Encoded<'_>,
        header: u64,
    ) -> bool {
        let o = self.options;
        if let Some(place) = self.place(inode) {
            // An index of the old form changes least. Clusters are consecutive in each of its packs.
            return place.inode.layout() == Layout::CompressedCompact
                && !o.layout.unaligned
                && index(data, 0, header, self.bits(), true).compact;
        }
        // With blocks over 4 KiB COMPACT entries are larger, and over 16 KiB there are none
        // (docs/reference/format/cluster.md). FULL works for all.
        o.layout.compact_index
            && self.bits().get() <= 12
            && !o.layout.unaligned
            && data.is_contiguous()
    }

    /// Returns true if directories that do not fit as inline data go into the packed inode.
    fn packs_directories(&self) -> bool {
        let o = self.options;
        // After a piece of a base that ends inside a block no other piece may start there.
        let at_block = self.bits().within(self.packed.packed_size) == 0;
        o.metadata.form == Metadata::Compressed && o.layout.fragments != Fragments::Off && at_block
    }

    /// Returns the bytes of a directory or link that become inline data.
    fn inline_part(&self, size: u64, head: u64) -> u64 {
        let tail = self.bits().within(size);
        // Some position keeps head and tail such that the tail stays in one block.
        if tail > 0 && head % ALIGN + tail <= self.bits().size() {
            tail
        } else {
            0
        }
    }

    fn size(&self, inode: InodeId) -> u64 {
        match (inode, self.metabox) {
            (PACKED, _) => return self.packed.packed_size,
            (METABOX, Some(metabox)) => return metabox.size,
            _ => {}
        }
        match self.tree.kind(inode) {
            NodeKind::File { size } => size,
            NodeKind::Symlink(target) => target.len() as u64,
            NodeKind::Dir => self.dir_size(inode),
            _ => 0,
        }
    }

    fn dir_size(&self, dir: InodeId) -> u64 {
        dir_size(self.tree, dir, self.bits())
    }

    fn extended(&self, inode: InodeId, size: u64, epoch: Epoch) -> bool {
        if is_hidden(inode) {
            return size > u32::MAX.into() || self.options.metadata.inodes == InodeForm::Extended;
        }
        if let Some(place) = self.place(inode) {
            return place.inode.raw().extended;
        }
        // A patch can change all properties of an extended inode in place. The root and long indexes cannot move.
        let is_file = matches!(self.tree.kind(inode), NodeKind::File { .. });
        if inode == ROOT && self.base.is_some_and(Bases::in_image) || is_file && size >= LONG_FILE {
            return true;
        }
        let (uid, gid) = self.owner(inode);
        let nlink = self.tree.nlink(inode);
        self.options.metadata.inodes == InodeForm::Extended
            || size > u32::MAX.into()
            || uid > 0xFFFF
            || gid > 0xFFFF
            || nlink > 0xFFFF
            || epoch.delay(self.time(inode)).is_none()
    }
}

/// Returns the time of an inode, after the options are applied.
pub(crate) fn stored_time(tree: &Tree, options: &Options, inode: InodeId) -> (i64, u32) {
    let meta = tree.meta(inode);
    match (options.metadata.timestamp, options.metadata.clamp) {
        (Some(t), _) => (t, 0),
        (None, Some(t)) if meta.mtime >= t => (t, 0),
        _ => (meta.mtime, meta.mtime_nsec),
    }
}

/// Returns owner and group of an inode, after the options are applied.
pub(crate) fn stored_owner(tree: &Tree, options: &Options, inode: InodeId) -> (u32, u32) {
    let [uid, gid] = owner(tree, options, inode);
    // Fit: checked by `check_owners`.
    (
        uid + options.metadata.uid_offset,
        gid + options.metadata.gid_offset,
    )
}

/// Returns owner and group of an inode before offsets are added.
fn owner(tree: &Tree, options: &Options, inode: InodeId) -> [u32; 2] {
    let meta = tree.meta(inode);
    [
        options.metadata.uid.unwrap_or(meta.uid),
        options.metadata.gid.unwrap_or(meta.gid),
    ]
}

/// Fails if an offset leads beyond the highest owner: the next number is root.
pub(crate) fn check_owners(tree: &Tree, options: &Options) -> Result<()> {
    let offsets = [options.metadata.uid_offset, options.metadata.gid_offset];
    if offsets == [0, 0] {
        return Ok(());
    }
    for inode in tree.inode_order() {
        let ids = owner(tree, options, inode);
        for (what, (id, offset)) in ["uid", "gid"].iter().zip(ids.into_iter().zip(offsets)) {
            if id.checked_add(offset).is_none() {
                let path = tree.path(inode);
                let path = Quoted(if path.is_empty() { b"." } else { &path });
                return Err(Error::usage(format_args!(
                    "{path}: {what} {id} and an offset of {offset} are more than {}",
                    u32::MAX
                )));
            }
        }
    }
    Ok(())
}

impl Encoded<'_> {
    /// Returns true if the file uses clusters of other files.
    pub(crate) fn shares(&self) -> bool {
        self.pieces().any(|(_, p)| p.shared)
    }

    /// Returns true if all clusters are back to back, as a COMPACT index requires.
    pub(crate) fn is_contiguous(&self) -> bool {
        let mut next = None;
        for (place, piece) in self.pieces() {
            if next.is_some_and(|n| n != place) || piece.partial {
                return false;
            }
            next = Some(place.plus(piece.grains.into()));
        }
        !matches!(self.tail, FileTail::Fragment(offset) if offset.offset() >> 32 != 0)
    }
}

/// Returns the index of a compressed file whose clusters are whole blocks. `base_block` is the first block of the bases,
/// and `header` the position of the map header.
pub(crate) fn index(
    data: &Encoded<'_>,
    base_block: u32,
    header: u64,
    bits: BlockBits,
    compact: bool,
) -> Index {
    let pieces = data.pieces().map(|(cluster, p)| Piece {
        len: p.len.into(),
        kind: p.kind,
        block: match cluster.location() {
            // A tail elsewhere has no block.
            _ if p.grains == 0 => 0,
            Location::Image(block) => block,
            // Fits: the base ends below 2^31 blocks.
            Location::Base(block) => base_block + block,
        },
        blocks: p.grains,
        partial: p.partial,
    });
    let pieces: Vec<Piece> = pieces.collect();
    let tail = match data.tail {
        FileTail::Cluster => Tail::Cluster,
        // Fits: shorter than a block.
        FileTail::Inline(t) => Tail::Inline(t.len() as u16),
        FileTail::Fragment(offset) => Tail::Fragment(offset.offset()),
    };
    write::index(&pieces, tail, data.algorithms, header, bits, compact)
}

/// Returns the size of a directory in bytes.
pub(crate) fn dir_size(tree: &Tree, dir: InodeId, bits: BlockBits) -> u64 {
    let mut fill = DirectorySize::new(bits.size_usize());
    dir_names(tree, dir, &mut |name, _| _ = fill.add(name.len()));
    fill.size()
}

/// Calls `each` for every name of a directory in order, "." and ".." included, with its inode.
pub(crate) fn dir_names<'t>(tree: &'t Tree, dir: InodeId, each: &mut dyn FnMut(&'t [u8], InodeId)) {
    let parent = tree.parent(dir);
    let dots: [(&'t [u8], InodeId); 2] = [(b".", dir), (b"..", parent)];
    let mut dots = dots.into_iter().peekable();
    for d in tree.children(dir) {
        let name = tree.name(d);
        while let Some((dot, inode)) = dots.next_if(|(dot, _)| *dot < name) {
            each(dot, inode);
        }
        each(name, d.inode);
    }
    for (dot, inode) in dots {
        each(dot, inode);
    }
}
