//! Directories: their blocks, all entries in order, or one by name.

use super::fetch::Bytes;
use super::image::Image;
use super::inode::Inode;
use super::map::FileMap;
use crate::{Error, Result};
use tuff_format::dirent::{Block, Dirent, LEN};
use tuff_format::inode::FileType;
use tuff_format::{BlockBits, Nid};

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The inode.
    pub nid: Nid,
    /// The type as the entry claims it. `None`: unknown.
    pub file_type: Option<FileType>,
    /// 1 to 255 bytes of any value, "." and ".." among the names. Not to be trusted as a path: see
    /// [`is_name`](tuff_format::dirent::is_name).
    pub name: Vec<u8>,
    /// Where a listing goes on behind this entry: see [`Image::read_dir_from`].
    pub next: u64,
}

/// One block of a directory.
pub(crate) struct DirBlock {
    bytes: Bytes,
}

impl DirBlock {
    /// The block's view. Checked once already, so this does not fail on a block that was read.
    pub(crate) fn view(&self) -> Result<Block<'_>> {
        Block::new(&self.bytes).map_err(|e| Error::format("", e))
    }

    /// The valid bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A directory whose map is loaded.
pub(crate) struct Dir<'a> {
    image: &'a Image,
    inode: Inode,
    map: FileMap,
}

impl<'a> Dir<'a> {
    pub(crate) fn open(image: &'a Image, inode: &Inode) -> Result<Self> {
        if !inode.is_dir() {
            return Err(Error::usage(format_args!(
                "nid {} is no directory",
                inode.nid()
            )));
        }
        let limit = image.limits().dir_size;
        if inode.size() > limit {
            return Err(Error::limit(
                inode.place(),
                format_args!(
                    "directory of {} bytes, more than the limit dir_size, {limit}",
                    inode.size()
                ),
            ));
        }
        Ok(Self {
            image,
            inode: *inode,
            map: image.map(inode)?,
        })
    }

    /// Number of blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.image.superblock().block_bits.count(self.inode.size())
    }

    /// Block `n`, below [`blocks`](Self::blocks).
    pub(crate) fn block(&self, n: u64) -> Result<DirBlock> {
        let bits = self.image.superblock().block_bits;
        let start = n << bits.get();
        let len = (self.inode.size() - start).min(bits.size()) as usize;
        let place = |e: Error| {
            e.within(format_args!("directory block {n}"))
                .within(self.inode.place())
        };
        let bytes = self
            .image
            .data_bytes(&self.inode, &self.map, start, len)
            .map_err(place)?;
        let block = DirBlock { bytes };
        block.view().map_err(place)?;
        Ok(block)
    }

    fn entry<'b>(&self, n: u64, view: &Block<'b>, i: usize) -> Result<Dirent<'b>> {
        view.entry(i).map_err(|e| {
            Error::format(format_args!("directory block {n}: entry {i}"), e)
                .within(self.inode.place())
        })
    }

    /// The entry with this name, by halving: first over the blocks by their first names, then inside one.
    fn find(&self, name: &[u8]) -> Result<Option<Nid>> {
        let (mut lo, mut hi) = (0, self.blocks());
        let mut best = None;
        // The last block whose first name is not behind `name`.
        while lo < hi {
            let mid = lo + (hi - lo) / 2;
            let block = self.block(mid)?;
            let first = self.entry(mid, &block.view()?, 0)?;
            if first.name <= name {
                best = Some((mid, block));
                lo = mid + 1;
            } else {
                hi = mid;
            }
        }
        let Some((n, block)) = best else {
            return Ok(None);
        };
        let view = block.view()?;
        let (mut lo, mut hi) = (0, view.count());
        while lo < hi {
            let mid = lo + (hi - lo) / 2;
            let entry = self.entry(n, &view, mid)?;
            match entry.name.cmp(name) {
                std::cmp::Ordering::Equal => return Ok(Some(entry.nid)),
                std::cmp::Ordering::Less => lo = mid + 1,
                std::cmp::Ordering::Greater => hi = mid,
            }
        }
        Ok(None)
    }
}

impl Image {
    /// All entries of a directory in order, "." and ".." among them.
    ///
    /// # Errors
    /// `Usage` if the inode is no directory, `Limit` if it is longer than
    /// [`Limits::dir_size`](super::Limits::dir_size). The iterator ends after its first error.
    pub fn read_dir(&self, dir: &Inode) -> Result<ReadDir<'_>> {
        self.read_dir_from(dir, 0)
    }

    /// The entries from a place on: 0, or the [`next`](DirEntry::next) of an entry.
    ///
    /// # Errors
    /// As for [`read_dir`](Self::read_dir).
    pub fn read_dir_from(&self, dir: &Inode, from: u64) -> Result<ReadDir<'_>> {
        // A "." that is not stored takes place 0; stored entries never start there again.
        let dot = dir.raw().dot_omitted() && from == 0;
        let at = from.saturating_sub(u64::from(from == DOT_TAKEN && dir.raw().dot_omitted()));
        let bits = self.superblock().block_bits;
        Ok(ReadDir {
            dir: Dir::open(self, dir)?,
            dot,
            block: at >> bits.get(),
            // Fits: below the block size.
            index: bits.within(at) as usize / LEN,
            held: None,
        })
    }

    /// The entry `name` of a directory.
    ///
    /// A search by halving, as a kernel does it: in a directory that is out of order it may miss entries.
    ///
    /// # Errors
    /// As for [`read_dir`](Self::read_dir), and `Corrupt` for a broken block on the way.
    pub fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<Nid>> {
        let open = Dir::open(self, dir)?;
        if name == b"." && dir.raw().dot_omitted() {
            return Ok(Some(dir.nid()));
        }
        open.find(name)
    }

    /// A directory with its map, for those who look at its blocks.
    pub(crate) fn dir(&self, inode: &Inode) -> Result<Dir<'_>> {
        Dir::open(self, inode)
    }
}

/// One entry of a directory, as long as its block is looked at: see [`DirEntry`].
pub(crate) struct EntryRef<'a> {
    pub(crate) nid: Nid,
    pub(crate) file_type: Option<FileType>,
    pub(crate) name: &'a [u8],
    pub(crate) next: u64,
}

/// The place behind a "." that is not stored.
const DOT_TAKEN: u64 = 1;

/// Where a listing goes on behind entry `i` of block `n`, which has `count` of them.
fn next_of(bits: BlockBits, n: u64, i: usize, count: usize) -> u64 {
    if i + 1 < count {
        (n << bits.get()) + ((i + 1) * LEN) as u64
    } else {
        (n + 1) << bits.get()
    }
}

/// Iterator over a directory's entries: see [`Image::read_dir`].
pub struct ReadDir<'a> {
    dir: Dir<'a>,
    dot: bool,
    block: u64,
    index: usize,
    held: Option<DirBlock>,
}

impl ReadDir<'_> {
    /// Shows all that is left to `show`, until it returns false: what the iterator does, without a copy of each name.
    pub(crate) fn each(mut self, mut show: impl FnMut(EntryRef<'_>) -> bool) -> Result<()> {
        if self.dot {
            let dot = EntryRef {
                nid: self.dir.inode.nid(),
                file_type: Some(FileType::Dir),
                name: b".",
                next: DOT_TAKEN,
            };
            if !show(dot) {
                return Ok(());
            }
        }
        let bits = self.dir.image.superblock().block_bits;
        while self.block < self.dir.blocks() {
            let held = self.dir.block(self.block)?;
            let view = held.view()?;
            for i in self.index..view.count() {
                let entry = self.dir.entry(self.block, &view, i)?;
                let shown = EntryRef {
                    nid: entry.nid,
                    file_type: type_of(entry.file_type),
                    name: entry.name,
                    next: next_of(bits, self.block, i, view.count()),
                };
                if !show(shown) {
                    return Ok(());
                }
            }
            self.block += 1;
            self.index = 0;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Option<DirEntry>> {
        if std::mem::take(&mut self.dot) {
            return Ok(Some(DirEntry {
                nid: self.dir.inode.nid(),
                file_type: Some(FileType::Dir),
                name: b".".to_vec(),
                next: DOT_TAKEN,
            }));
        }
        let bits = self.dir.image.superblock().block_bits;
        loop {
            if self.block >= self.dir.blocks() {
                return Ok(None);
            }
            let held = match self.held.take() {
                Some(held) => held,
                None => self.dir.block(self.block)?,
            };
            let view = held.view()?;
            if self.index >= view.count() {
                self.block += 1;
                self.index = 0;
                continue;
            }
            let entry = self.dir.entry(self.block, &view, self.index)?;
            let next = next_of(bits, self.block, self.index, view.count());
            self.index += 1;
            let entry = DirEntry {
                nid: entry.nid,
                file_type: type_of(entry.file_type),
                name: entry.name.to_vec(),
                next,
            };
            self.held = Some(held);
            return Ok(Some(entry));
        }
    }
}

impl Iterator for ReadDir<'_> {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            self.block = u64::MAX; // the end
        }
        step.transpose()
    }
}

/// The type that an entry's code stands for.
pub(crate) fn type_of(code: u8) -> Option<FileType> {
    Some(match code {
        1 => FileType::File,
        2 => FileType::Dir,
        3 => FileType::Char,
        4 => FileType::Block,
        5 => FileType::Fifo,
        6 => FileType::Socket,
        7 => FileType::Symlink,
        _ => return None,
    })
}
