//! Directories: blocks, iteration over entries, and lookup by name.

use super::fetch::Bytes;
use super::image::Image;
use super::inode::Inode;
use super::map::FileMap;
use crate::{Error, Result};
use std::ops::Deref;
use std::sync::Arc;
use tuff_format::dirent::{Block, Dirent, LEN};
use tuff_format::inode::FileType;
use tuff_format::{BlockBits, Nid};

/// Directory entry with an owned name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Inode number of the target.
    pub nid: Nid,
    /// Type according to the entry. `None` for an unknown code.
    pub file_type: Option<FileType>,
    /// 1 to 255 arbitrary bytes; "." and ".." occur as well. Validate with
    /// [`is_name`](tuff_format::dirent::is_name) before use in a path.
    pub name: Vec<u8>,
    /// Position of the following entry, for [`Image::read_dir_from`].
    pub next: u64,
}

/// Validated block of a directory.
pub(crate) struct DirBlock {
    bytes: Bytes,
}

impl DirBlock {
    /// Returns the parsed block. Cannot fail for a block from [`Dir::block`], which validates it.
    pub(crate) fn view(&self) -> Result<Block<'_>> {
        Block::new(&self.bytes).map_err(|e| Error::format("", e))
    }

    /// Returns the bytes of the block that are inside the directory.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Open directory with its map loaded.
pub(crate) struct Dir<I> {
    image: I,
    inode: Inode,
    map: FileMap,
}

impl<I: Deref<Target = Image>> Dir<I> {
    pub(crate) fn open(image: I, inode: &Inode) -> Result<Self> {
        if !inode.is_dir() {
            return Err(Error::usage(format_args!(
                "nid {} is not a directory",
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
        let map = image.map(inode)?;
        let inode = *inode;
        Ok(Self { image, inode, map })
    }

    /// Returns the number of directory blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.image.superblock().block_bits.count(self.inode.size())
    }

    /// Reads and validates block `n`, which must be below [`blocks`](Self::blocks).
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

    /// Binary search for a name: first over the blocks by their first names, then inside one block.
    fn find(&self, name: &[u8]) -> Result<Option<Nid>> {
        let (mut lo, mut hi) = (0, self.blocks());
        let mut best = None;
        // Find the last block whose first name is at most `name`.
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
    /// Returns all entries of a directory in stored order, including "." and "..".
    ///
    /// # Errors
    /// `Usage` if the inode is not a directory. `Limit` if it is longer than
    /// [`Limits::dir_size`](super::Limits::dir_size). The iterator ends after its first error.
    pub fn read_dir(&self, dir: &Inode) -> Result<ReadDir<&Self>> {
        self.read_dir_from(dir, 0)
    }

    /// Returns the entries from a position: 0, or the [`next`](DirEntry::next) of an entry.
    ///
    /// # Errors
    /// As for [`read_dir`](Self::read_dir).
    pub fn read_dir_from(&self, dir: &Inode, from: u64) -> Result<ReadDir<&Self>> {
        ReadDir::open(self, dir, from)
    }

    /// As [`read_dir`](Self::read_dir), as an iterator that shares the image instead of borrowing it.
    ///
    /// # Errors
    /// As for [`read_dir`](Self::read_dir).
    pub fn read_dir_shared(self: &Arc<Self>, dir: &Inode) -> Result<ReadDir<Arc<Self>>> {
        ReadDir::open(Arc::clone(self), dir, 0)
    }

    /// Returns the inode number of entry `name`. `None` if there is none.
    ///
    /// Uses binary search, as the kernel does. In a directory that is not sorted it may miss entries.
    ///
    /// # Errors
    /// As for [`read_dir`](Self::read_dir), and `Corrupt` for an invalid block on the search path.
    pub fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<Nid>> {
        let open = Dir::open(self, dir)?;
        if name == b"." && dir.raw().dot_omitted() {
            return Ok(Some(dir.nid()));
        }
        open.find(name)
    }

    /// Opens a directory for access to its blocks.
    pub(crate) fn dir(&self, inode: &Inode) -> Result<Dir<&Self>> {
        Dir::open(self, inode)
    }
}

/// Directory entry that borrows its name from the block; see [`DirEntry`].
pub(crate) struct EntryRef<'a> {
    pub(crate) nid: Nid,
    pub(crate) file_type: Option<FileType>,
    pub(crate) name: &'a [u8],
    pub(crate) next: u64,
}

/// Position after a "." that is not stored.
const DOT_TAKEN: u64 = 1;

/// Returns the position after entry `i` of block `n`, which has `count` entries.
fn next_of(bits: BlockBits, n: u64, i: usize, count: usize) -> u64 {
    if i + 1 < count {
        (n << bits.get()) + ((i + 1) * LEN) as u64
    } else {
        (n + 1) << bits.get()
    }
}

/// Iterator over the entries of a directory; see [`Image::read_dir`]. `I` borrows or shares the image.
pub struct ReadDir<I> {
    dir: Dir<I>,
    dot: bool,
    block: u64,
    index: usize,
    held: Option<DirBlock>,
}

impl<I: Deref<Target = Image>> ReadDir<I> {
    pub(crate) fn open(image: I, dir: &Inode, from: u64) -> Result<Self> {
        // A "." that is not stored takes position 0; the first stored entry is then at position DOT_TAKEN.
        let dot = dir.raw().dot_omitted() && from == 0;
        let at = from.saturating_sub(u64::from(from == DOT_TAKEN && dir.raw().dot_omitted()));
        let bits = image.superblock().block_bits;
        Ok(ReadDir {
            dir: Dir::open(image, dir)?,
            dot,
            block: at >> bits.get(),
            // Fits: less than the block size.
            index: bits.within(at) as usize / LEN,
            held: None,
        })
    }

    /// Calls `show` with the remaining entries until it returns false. Avoids the copy of each name that the
    /// iterator makes.
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

impl<I: Deref<Target = Image>> Iterator for ReadDir<I> {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            self.block = u64::MAX; // the end
        }
        step.transpose()
    }
}

/// Maps the type code of an entry. `None` for an unknown code.
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
