//! Reading with proof.

use crate::header::{Broken, HEADER_LEN, Header};
use crate::make::lock;
use crate::shape::Shape;
use crate::{DIGEST_LEN, Hasher, Root};
use std::io;
use std::sync::{Arc, Mutex};
use tuff_store::ReadAt;

/// Hash blocks that are kept, verified: 4 MiB, the digests of 512 MiB, where both kinds of blocks have 4096 bytes.
const KEPT: usize = 1024;

/// A hash block: its level, its number there, its bytes.
type Kept = (usize, u64, Arc<[u8]>);

/// A store whose bytes are those that a root hash stands for: whatever else lies there is an error of kind
/// `InvalidData`. Each read is verified anew, from the data to a hash block that was verified before.
pub struct Verified {
    pub(crate) data: Arc<dyn ReadAt>,
    tree: Arc<dyn ReadAt>,
    pub(crate) header: Header,
    pub(crate) shape: Shape,
    pub(crate) hasher: Hasher,
    root: Root,
    kept: Box<[Mutex<Option<Kept>>]>,
}

impl Verified {
    /// Takes `data`, whose header lies in `tree` at `hash_offset`.
    ///
    /// # Errors
    /// `InvalidData` with a [`Broken`] inside if there is no header or one that cannot be used, or the data ends before its last block; what
    /// reading it gives.
    pub fn open(
        data: Arc<dyn ReadAt>,
        tree: Arc<dyn ReadAt>,
        hash_offset: u64,
        root: Root,
    ) -> io::Result<Self> {
        let header = read_header(&*tree, hash_offset)?;
        let short = "the data is shorter than its hash tree says";
        if data.size() <= header.data_len() - u64::from(header.data_block) {
            return Err(broken(Broken::Corrupt(short)));
        }
        Ok(Self {
            shape: header.shape(hash_offset),
            hasher: Hasher::new(&header.salt),
            data,
            tree,
            header,
            root,
            kept: (0..KEPT).map(|_| Mutex::default()).collect(),
        })
    }

    /// Whether the top of the tree is what the root hash stands for: otherwise nothing can be said about anything.
    ///
    /// # Errors
    /// What reading it gives.
    pub fn is_rooted(&self) -> io::Result<bool> {
        let Some(last) = self.shape.levels.len().checked_sub(1) else {
            return Ok(true);
        };
        match self.hash_block(last, 0) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// What the tree says about itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// A hash block, verified.
    pub(crate) fn hash_block(&self, level: usize, number: u64) -> io::Result<Arc<[u8]>> {
        // Neighbours in neighbouring places, levels apart.
        let place = (number as usize).wrapping_add(level * 257) % KEPT;
        if let Some((l, n, bytes)) = &*lock(&self.kept[place])
            && (*l, *n) == (level, number)
        {
            return Ok(Arc::clone(bytes));
        }
        let size = u64::from(self.header.hash_block);
        let at = self.shape.levels[level].at + number * size;
        let mut bytes = vec![0; size as usize];
        self.tree.read_exact_at(&mut bytes, at)?;
        let digest = self.hasher.digest(&bytes);
        if !self.is_expected(level + 1, number, &digest)? {
            return Err(mismatch(format_args!("the hash block at byte {at}")));
        }
        let bytes: Arc<[u8]> = bytes.into();
        *lock(&self.kept[place]) = Some((level, number, Arc::clone(&bytes)));
        Ok(bytes)
    }

    /// Whether block `number` has this digest by what level `level` says; behind the last level that is the root hash.
    pub(crate) fn is_expected(&self, level: usize, number: u64, digest: &Root) -> io::Result<bool> {
        if level == self.shape.levels.len() {
            return Ok(*digest == self.root);
        }
        let above = self.hash_block(level, number / self.shape.per)?;
        // Fits: within a hash block.
        let at = (number % self.shape.per) as usize * DIGEST_LEN;
        Ok(above[at..at + DIGEST_LEN] == *digest)
    }

    /// Reads whole blocks from block `first` on, and verifies them.
    fn read_blocks(&self, buf: &mut [u8], first: u64) -> io::Result<()> {
        let size = self.header.data_block as usize;
        let at = first * size as u64;
        // Behind the end of the data there may be nothing; that counts as zeros.
        let there = self.data.size().saturating_sub(at).min(buf.len() as u64) as usize;
        self.data.read_exact_at(&mut buf[..there], at)?;
        buf[there..].fill(0);
        for (number, block) in (first..).zip(buf.chunks_exact(size)) {
            if !self.is_expected(0, number, &self.hasher.digest(block))? {
                let at = number * size as u64;
                return Err(mismatch(format_args!("block {number}, at byte {at},")));
            }
        }
        Ok(())
    }
}

impl ReadAt for Verified {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = self.size().saturating_sub(offset);
        let n = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if n == 0 {
            return Ok(0);
        }
        let buf = &mut buf[..n];
        let size = u64::from(self.header.data_block);
        let (first, end) = (offset / size, (offset + n as u64).div_ceil(size));
        if offset.is_multiple_of(size) && (n as u64).is_multiple_of(size) {
            self.read_blocks(buf, first)?;
            return Ok(n);
        }
        // Fits: a block more than `n` on either side.
        let mut whole = vec![0; ((end - first) * size) as usize];
        self.read_blocks(&mut whole, first)?;
        let skip = (offset - first * size) as usize;
        buf.copy_from_slice(&whole[skip..skip + n]);
        Ok(n)
    }

    fn size(&self) -> u64 {
        self.header.data_len()
    }

    fn will_need(&self, offset: u64, len: u64) {
        self.data.will_need(offset, len);
    }

    fn done_with(&self, offset: u64, len: u64) {
        self.data.done_with(offset, len);
    }
}

/// The root hash that a tree itself stands for: that of `data` if neither is damaged.
///
/// # Errors
/// As [`Verified::open`].
pub fn stated_root(data: &dyn ReadAt, tree: &dyn ReadAt, hash_offset: u64) -> io::Result<Root> {
    let header = read_header(tree, hash_offset)?;
    let (store, at, size) = match header.shape(hash_offset).levels.last() {
        Some(top) => (tree, top.at, header.hash_block),
        None => (data, 0, header.data_block),
    };
    let mut block = vec![0; size as usize];
    store.read_exact_at(&mut block, at)?;
    Ok(Hasher::new(&header.salt).digest(&block))
}

/// The header at `hash_offset` of `tree`.
///
/// # Errors
/// `InvalidData` with a [`Broken`] inside, or what reading gives.
pub fn read_header(tree: &dyn ReadAt, hash_offset: u64) -> io::Result<Header> {
    let mut bytes = [0; HEADER_LEN];
    match tree.read_exact_at(&mut bytes, hash_offset) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err(broken(Broken::Missing)),
        Err(e) => Err(e),
        Ok(()) => Header::decode(&bytes).map_err(broken),
    }
}

fn broken(e: Broken) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}

fn mismatch(what: std::fmt::Arguments<'_>) -> io::Error {
    let what = format!("{what} is not what the root hash stands for");
    io::Error::new(io::ErrorKind::InvalidData, what)
}
