//! Reading with proof.

use crate::header::{Broken, HEADER_LEN, Header};
use crate::parity::{Covered, Place, Round, Spread};
use crate::shape::Shape;
use crate::work::lock;
use crate::{DIGEST_LEN, Hasher, Root};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tuff_store::ReadAt;

/// Hash blocks that are kept, verified: 4 MiB, the digests of 512 MiB, where both kinds of blocks have 4096 bytes.
const KEPT: usize = 1024;

/// A hash block: its level, its number there, its bytes.
type Kept = (usize, u64, Arc<[u8]>);

/// A store whose bytes are those that a root hash stands for: whatever else lies there is mended by the parity, if there is any,
/// or else an error of kind `InvalidData`. Each read is verified anew, from the data to a hash block that was verified before.
pub struct Verified {
    pub(crate) data: Arc<dyn ReadAt>,
    pub(crate) tree: Arc<dyn ReadAt>,
    pub(crate) header: Header,
    pub(crate) shape: Shape,
    pub(crate) hasher: Hasher,
    root: Root,
    /// How the parity behind the tree lies, if there is any.
    pub(crate) parity: Option<Spread>,
    kept: Box<[Mutex<Option<Kept>>]>,
    mended: AtomicU64,
    on_mend: Option<OnMend>,
}

/// Told of a block that was mended: whether it is one of the tree, and where it lies. Unit: bytes.
type OnMend = Box<dyn Fn(bool, u64) + Send + Sync>;

impl Verified {
    /// Takes `data`, whose header lies in `tree` at `hash_offset`. There is parity if the store of the tree ends where parity of some number of
    /// roots would.
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
        let shape = header.shape(hash_offset);
        Ok(Self {
            parity: Spread::found(&header, &shape, tree.size()),
            shape,
            hasher: Hasher::new(&header.salt),
            data,
            tree,
            header,
            root,
            kept: (0..KEPT).map(|_| Mutex::default()).collect(),
            mended: AtomicU64::new(0),
            on_mend: None,
        })
    }

    /// Says of how many roots the parity is, where the length of the store does not: on a block device.
    ///
    /// # Errors
    /// As [`open`](Self::open), for a number of roots that there cannot be.
    pub fn with_parity(self, roots: u32) -> io::Result<Self> {
        let parity = Spread::new(&self.header, &self.shape, roots).map_err(broken)?;
        Ok(Self {
            parity: Some(parity),
            ..self
        })
    }

    /// Calls `told` each time that a block is read damaged and given out mended: whether it is one of the tree, and its first byte
    /// in its store.
    #[must_use]
    pub fn with_mends_told(self, told: impl Fn(bool, u64) + Send + Sync + 'static) -> Self {
        Self {
            on_mend: Some(Box::new(told)),
            ..self
        }
    }

    /// Roots of the parity, if there is any.
    pub fn roots(&self) -> Option<u32> {
        // Fits: at most 24.
        self.parity.as_ref().map(|spread| spread.roots as u32)
    }

    /// Blocks that were read damaged and given out mended so far.
    pub fn mended(&self) -> u64 {
        self.mended.load(Ordering::Relaxed)
    }

    /// Whether the top of the tree is what the root hash stands for, or can be mended: otherwise nothing can be said about
    /// anything.
    ///
    /// # Errors
    /// What reading it gives.
    pub fn is_rooted(&self) -> io::Result<bool> {
        let Some(last) = self.shape.levels.len().checked_sub(1) else {
            return Ok(true);
        };
        match self.hash_block(last, 0, true) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// What the tree says about itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// A hash block, verified; `mend` says whether a damaged one is mended.
    fn hash_block(&self, level: usize, number: u64, mend: bool) -> io::Result<Arc<[u8]>> {
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
        let read = self.tree.read_exact_at(&mut bytes, at);
        let sound = match read {
            Ok(()) => self.is_expected(level + 1, number, &self.hasher.digest(&bytes), mend)?,
            Err(_) => false,
        };
        if !sound {
            let spread = self.parity.as_ref().filter(|_| mend);
            match spread.and_then(|spread| self.mended_block(spread.of_tree(at))) {
                Some(mended) => bytes = mended,
                None => {
                    read?;
                    return Err(mismatch(format_args!("the hash block at byte {at}")));
                }
            }
        }
        let bytes: Arc<[u8]> = bytes.into();
        *lock(&self.kept[place]) = Some((level, number, Arc::clone(&bytes)));
        Ok(bytes)
    }

    /// Whether block `number` has this digest by what level `level` says; behind the last level that is the root hash.
    pub(crate) fn is_expected(
        &self,
        level: usize,
        number: u64,
        digest: &Root,
        mend: bool,
    ) -> io::Result<bool> {
        if level == self.shape.levels.len() {
            return Ok(*digest == self.root);
        }
        let above = self.hash_block(level, number / self.shape.per, mend)?;
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
        let mut read = self.data.read_exact_at(&mut buf[..there], at);
        if read.is_err() && self.parity.is_none() {
            return read;
        }
        buf[there..].fill(0);
        for (number, block) in (first..).zip(buf.chunks_exact_mut(size)) {
            if self.is_expected(0, number, &self.hasher.digest(block), true)? {
                continue;
            }
            match self.mended_block(number) {
                Some(mended) => block.copy_from_slice(&mended),
                None => {
                    std::mem::replace(&mut read, Ok(()))?;
                    let at = number * size as u64;
                    return Err(mismatch(format_args!("block {number}, at byte {at},")));
                }
            }
        }
        Ok(())
    }

    /// A covered block as the parity has it, if that is what the root hash stands for.
    fn mended_block(&self, number: u64) -> Option<Vec<u8>> {
        let spread = self.parity.as_ref()?;
        let mended = self.mend(number % spread.rounds);
        let (_, bytes) = mended.into_iter().find(|(n, _)| *n == number)?;
        self.mended.fetch_add(1, Ordering::Relaxed);
        if let Some(told) = &self.on_mend {
            match spread.place(number) {
                Place::Data(at) => told(false, at),
                Place::Tree(at) => told(true, at),
            }
        }
        Some(bytes)
    }

    pub(crate) fn covered<'a>(&'a self, spread: &'a Spread) -> Covered<'a> {
        Covered {
            data: &*self.data,
            tree: &*self.tree,
            spread,
        }
    }

    /// The rows of a round as they should be, damaged ones mended, if that is known.
    pub(crate) fn sound_rows(&self, spread: &Spread, round: u64) -> Option<Vec<Vec<u8>>> {
        let (mut rows, mut damaged, unknown) = self.rows(spread, round);
        for row in unknown {
            // With what mends its part of the tree.
            let number = spread.block_of(round, row)?;
            if !self.is_sound_by(number, &rows[row], true)? {
                damaged.push(row);
            }
        }
        if !damaged.is_empty() {
            let mended = self.mend(round);
            for row in damaged {
                let number = spread.block_of(round, row)?;
                let (_, bytes) = mended.iter().find(|(n, _)| *n == number)?;
                rows[row].copy_from_slice(bytes);
            }
        }
        Some(rows)
    }

    /// The blocks of a round by their rows, and which rows are damaged, and which may be.
    fn rows(&self, spread: &Spread, round: u64) -> (Vec<Vec<u8>>, Vec<usize>, Vec<usize>) {
        let covered = self.covered(spread);
        // Fits: a block.
        let mut rows = vec![vec![0; spread.block as usize]; spread.rows()];
        let (mut damaged, mut unknown) = (Vec::new(), Vec::new());
        for (n, row) in rows.iter_mut().enumerate() {
            let Some(number) = spread.block_of(round, n) else {
                continue;
            };
            let read = covered.read(number * spread.block, row);
            match (read, self.is_sound(number, row)) {
                (Err(_), _) | (_, Some(false)) => damaged.push(n),
                (_, Some(true)) => {}
                (_, None) => unknown.push(n),
            }
        }
        (rows, damaged, unknown)
    }

    /// The damaged blocks of a round, mended: numbers of covered blocks, and their bytes. Only those that are then what the root
    /// hash stands for.
    pub(crate) fn mend(&self, round: u64) -> Vec<(u64, Vec<u8>)> {
        let Some(spread) = &self.parity else {
            return Vec::new();
        };
        let (rows, mut damaged, unknown) = self.rows(spread, round);
        if damaged.is_empty() || damaged.len() > spread.roots {
            return Vec::new();
        }
        let len = spread.round_len();
        let mut parity = vec![0; len as usize]; // fits: 24 blocks
        let at = spread.at + round * len;
        if self.tree.read_exact_at(&mut parity, at).is_err() {
            return Vec::new();
        }
        let read = Round::new(&rows, &parity, spread.roots);
        let mended = |damaged: &[usize]| -> Vec<(u64, Vec<u8>)> {
            let blocks = damaged.iter().zip(read.corrections(damaged));
            let blocks = blocks.filter_map(|(row, mut block)| {
                for (byte, was) in block.iter_mut().zip(&rows[*row]) {
                    *byte ^= was;
                }
                let number = spread.block_of(round, *row)?;
                (self.is_sound(number, &block) == Some(true)).then_some((number, block))
            });
            blocks.collect()
        };
        let found = mended(&damaged);
        if !found.is_empty() || damaged.len() == spread.roots {
            return found;
        }
        // One of those that cannot be verified, for their part of the tree is what is to be mended, may be damaged, too.
        let also = unknown.into_iter().map(|row| {
            damaged.push(row);
            let found = mended(&damaged);
            damaged.pop();
            found
        });
        also.into_iter()
            .find(|found| !found.is_empty())
            .unwrap_or_default()
    }

    /// Whether a covered block is what the root hash stands for; `None` if its digest is damaged.
    pub(crate) fn is_sound(&self, number: u64, bytes: &[u8]) -> Option<bool> {
        self.is_sound_by(number, bytes, false)
    }

    fn is_sound_by(&self, number: u64, bytes: &[u8], mend: bool) -> Option<bool> {
        let digest = self.hasher.digest(bytes);
        let (level, number) = match self.parity.as_ref().map(|spread| spread.place(number)) {
            Some(Place::Tree(at)) => {
                let (level, number) = self.shape.find(at, self.header.hash_block.into());
                (level + 1, number)
            }
            _ => (0, number),
        };
        self.is_expected(level, number, &digest, mend).ok()
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

/// The roots of the parity behind the tree at `hash_offset`, if the store ends where it would.
pub fn find_roots(header: &Header, hash_offset: u64, store_len: u64) -> Option<u32> {
    let spread = Spread::found(header, &header.shape(hash_offset), store_len)?;
    Some(spread.roots as u32) // fits: at most 24
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
