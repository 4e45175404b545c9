//! Store that verifies what it reads, and corrects it where there is parity.

use crate::coverage::{TreePlace, covered};
use crate::header::{HEADER_LEN, Header, HeaderError};
use crate::layout::TreeLayout;
use crate::parity::{Covered, CoveredPlace, ParityLayout, Syndromes};
use crate::threads::lock;
use crate::{DIGEST_LEN, Hasher, Root};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tuff_store::ReadAt;

/// Number of verified hash blocks in the cache. With blocks of 4096 bytes they take 4 MiB and cover 512 MiB.
const CACHED_BLOCKS: usize = 1024;

/// Verified hash block: level, number in the level, bytes.
type CachedBlock = (usize, u64, Arc<[u8]>);

/// Store whose contents are verified against a root hash. A block that does not match is corrected from the parity,
/// if there is one; otherwise the read fails with `InvalidData`. Each read verifies the data up to a hash block in
/// the cache.
pub struct Verified {
    pub(crate) data: Arc<dyn ReadAt>,
    pub(crate) tree: Arc<dyn ReadAt>,
    pub(crate) header: Header,
    pub(crate) shape: TreeLayout,
    pub(crate) hasher: Hasher,
    root: Root,
    /// True if the root hash comes from where the data comes from.
    is_stated: bool,
    /// Bytes of the data that can be read.
    covered: Range<u64>,
    /// Layout of the parity, if there is one.
    pub(crate) parity: Option<ParityLayout>,
    cache: Box<[Mutex<Option<CachedBlock>>]>,
    corrected: AtomicU64,
    on_repair: Option<OnRepair>,
}

/// Callback for a corrected block: true for a block of the tree, and its position. Unit: bytes.
type OnRepair = Box<dyn Fn(bool, u64) + Send + Sync>;

impl Verified {
    /// Opens `data` with its tree. Parity is found by the length of the store that holds the tree.
    ///
    /// `claim` returns the number of bytes that the data claims to have. It reads them through this store: verified, and
    /// none after the bytes with digests. Once opened, the store has the bytes that [`covered`](crate::covered) returns.
    ///
    /// # Errors
    /// * `InvalidData` with a [`HeaderError`] if there is no usable header or the data ends before its last block.
    /// * `InvalidData` with [`NotCovered`](crate::NotCovered) if the tree does not cover the claim.
    /// * Errors of reading the header, and of `claim`.
    pub fn open(
        data: Arc<dyn ReadAt>,
        tree: TreePlace,
        root: Root,
        claim: impl FnOnce(&Self) -> io::Result<u64>,
    ) -> io::Result<Self> {
        let header = read_header(&*tree.store, tree.hash_offset)?;
        let size = data.size();
        let short = "the data is shorter than its hash tree requires";
        if size <= header.data_len() - u64::from(header.data_block) {
            return Err(broken(HeaderError::Corrupt(short)));
        }
        let shape = TreeLayout::new(&header, tree.hash_offset);
        let mut verified = Self {
            parity: ParityLayout::found(&header, &shape, tree.store.size()),
            shape,
            hasher: Hasher::new(&header.salt),
            data,
            covered: 0..header.data_len(),
            tree: Arc::clone(&tree.store),
            header,
            root,
            is_stated: false,
            cache: (0..CACHED_BLOCKS).map(|_| Mutex::default()).collect(),
            corrected: AtomicU64::new(0),
            on_repair: None,
        };
        let claim = claim(&verified)?;
        let last = tree.data_len_max(size);
        // A short last block counts as padded with zeros.
        let end = last.checked_next_multiple_of(verified.header.data_block.into());
        let end = end.filter(|_| !tree.is_appended).unwrap_or(last);
        let covered = covered(verified.header.data_len(), claim, end);
        verified.covered = covered.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        Ok(verified)
    }

    /// Opens `data` as [`open`](Self::open) does, with the root hash that the top of the tree gives. That finds damage of the
    /// data, and nothing that was changed on purpose.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_stated(
        data: Arc<dyn ReadAt>,
        tree: TreePlace,
        claim: impl FnOnce(&Self) -> io::Result<u64>,
    ) -> io::Result<Self> {
        let root = stated_root(&*data, &*tree.store, tree.hash_offset)?;
        Ok(Self::open(data, tree, root, claim)?.with_stated_root())
    }

    /// Notes that the root hash comes from where the data comes from.
    #[must_use]
    pub fn with_stated_root(self) -> Self {
        Self {
            is_stated: true,
            ..self
        }
    }

    /// True if the root hash comes from where the data comes from, which proves nothing about its author.
    pub fn is_stated(&self) -> bool {
        self.is_stated
    }

    /// Root hash that reads are verified against.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Sets the number of roots, where the length of the store does not tell it: on a block device.
    ///
    /// # Errors
    /// As [`open`](Self::open), and if dm-verity does not support this number of roots.
    pub fn with_parity(self, roots: u32) -> io::Result<Self> {
        let parity = ParityLayout::new(&self.header, &self.shape, roots).map_err(broken)?;
        Ok(Self {
            parity: Some(parity),
            ..self
        })
    }

    /// Calls `callback` for each block that is read damaged and corrected: true for a block of the tree, and its
    /// position in its store.
    #[must_use]
    pub fn with_repair_callback(
        self,
        callback: impl Fn(bool, u64) + Send + Sync + 'static,
    ) -> Self {
        Self {
            on_repair: Some(Box::new(callback)),
            ..self
        }
    }

    /// Number of roots of the parity, if there is one.
    pub fn roots(&self) -> Option<u32> {
        // Fits: at most 24.
        self.parity.as_ref().map(|spread| spread.roots as u32)
    }

    /// Number of blocks that were read damaged and corrected.
    pub fn corrected_blocks(&self) -> u64 {
        self.corrected.load(Ordering::Relaxed)
    }

    /// Returns true if the top of the tree matches the root hash, or can be corrected. Otherwise nothing can be
    /// verified.
    ///
    /// # Errors
    /// Errors of reading the top of the tree.
    pub fn is_top_sound(&self) -> io::Result<bool> {
        let Some(last) = self.shape.levels.len().checked_sub(1) else {
            return Ok(true);
        };
        match self.hash_block(last, 0, true) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Verifies all blocks of the tree, from its top down. Corrects none.
    ///
    /// # Errors
    /// `InvalidData` for a block that does not match, and errors of reading the tree.
    pub fn verify_tree(&self) -> io::Result<()> {
        for (level, place) in self.shape.levels.iter().enumerate().rev() {
            for number in 0..place.blocks {
                self.hash_block(level, number, false)?;
            }
        }
        Ok(())
    }

    /// Verifies data that the caller has read from `offset` on. A short last block is padded with zeros.
    ///
    /// # Errors
    /// `InvalidInput` if `offset` is inside a block, `InvalidData` for a block that does not match, and errors of
    /// reading the tree.
    pub fn verify(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let size = self.header.data_block as usize;
        if !offset.is_multiple_of(size as u64) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let first = offset / size as u64;
        for (number, block) in (first..).zip(data.chunks(size)) {
            let digest = match block.len() == size {
                true => self.hasher.digest(block),
                false => {
                    let mut padded = block.to_vec();
                    padded.resize(size, 0);
                    self.hasher.digest(&padded)
                }
            };
            if !self.is_expected(0, number, &digest, false)? {
                let at = number * size as u64;
                return Err(self.mismatch(format_args!("block {number}, at byte {at},")));
            }
        }
        Ok(())
    }

    /// Verifies hash blocks that the caller has read from `offset` of the store of the tree on, each by the one above it.
    ///
    /// # Errors
    /// `InvalidInput` if these are no hash blocks, `InvalidData` for a block that does not match, and errors of reading the
    /// tree.
    pub fn verify_hash_blocks(&self, offset: u64, blocks: &[u8]) -> io::Result<()> {
        let size = u64::from(self.header.hash_block);
        let range = self.hash_blocks();
        let is_aligned = offset.is_multiple_of(size) && (blocks.len() as u64).is_multiple_of(size);
        let is_inside = range.contains(&offset) && blocks.len() as u64 <= range.end - offset;
        if !is_aligned || !is_inside {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // Fits: at most 64 KiB.
        for (at, block) in (offset..)
            .step_by(size as usize)
            .zip(blocks.chunks_exact(size as usize))
        {
            let (level, number) = self.shape.find(at, size);
            if !self.is_expected(level + 1, number, &self.hasher.digest(block), false)? {
                return Err(self.mismatch(format_args!("the hash block at byte {at}")));
            }
        }
        Ok(())
    }

    /// Positions of the hash blocks that verify some of the data, in the store of the tree: a range for each level, from the
    /// top down. Unit: bytes.
    pub fn hash_blocks_of(&self, data: Range<u64>) -> Vec<Range<u64>> {
        path_of(&self.header, &self.shape, data)
    }

    /// Positions of all hash blocks in the store of the tree. They depend on the root hash, unlike the header. Unit:
    /// bytes.
    pub fn hash_blocks(&self) -> Range<u64> {
        self.shape.body()..self.shape.end
    }

    /// Verified digest of a data block.
    ///
    /// # Errors
    /// `InvalidInput` for a block past the end, `InvalidData` if the tree does not match the root hash, and errors of
    /// reading the tree.
    pub fn digest(&self, block: u64) -> io::Result<Root> {
        if block >= self.header.data_blocks {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if self.shape.levels.is_empty() {
            return Ok(self.root);
        }
        let hashes = self.hash_block(0, block / self.shape.per, false)?;
        // Fits: an offset in a hash block.
        let at = (block % self.shape.per) as usize * DIGEST_LEN;
        let mut digest = Root::default();
        digest.copy_from_slice(&hashes[at..at + DIGEST_LEN]);
        Ok(digest)
    }

    /// Bytes of the data that the root hash covers, and that can be read.
    pub fn covered_range(&self) -> Range<u64> {
        self.covered.clone()
    }

    fn mismatch(&self, what: std::fmt::Arguments<'_>) -> io::Error {
        let with = match self.is_stated {
            true => "hash tree",
            false => "root hash",
        };
        let what = format!("{what} does not match the {with}");
        io::Error::new(io::ErrorKind::InvalidData, what)
    }

    /// Parameters of the tree.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns a verified hash block. `correct`: corrects a damaged one.
    fn hash_block(&self, level: usize, number: u64, correct: bool) -> io::Result<Arc<[u8]>> {
        // Neighbours share no slot, and levels are apart.
        let place = (number as usize).wrapping_add(level * 257) % CACHED_BLOCKS;
        if let Some((l, n, bytes)) = &*lock(&self.cache[place])
            && (*l, *n) == (level, number)
        {
            return Ok(Arc::clone(bytes));
        }
        let size = u64::from(self.header.hash_block);
        let at = self.shape.levels[level].at + number * size;
        let mut bytes = vec![0; size as usize];
        let read = self.tree.read_exact_at(&mut bytes, at);
        let sound = match read {
            Ok(()) => self.is_expected(level + 1, number, &self.hasher.digest(&bytes), correct)?,
            Err(_) => false,
        };
        if !sound {
            let spread = self.parity.as_ref().filter(|_| correct);
            match spread.and_then(|spread| self.corrected_block(spread.of_tree(at))) {
                Some(block) => bytes = block,
                None => {
                    read?;
                    return Err(self.mismatch(format_args!("the hash block at byte {at}")));
                }
            }
        }
        let bytes: Arc<[u8]> = bytes.into();
        *lock(&self.cache[place]) = Some((level, number, Arc::clone(&bytes)));
        Ok(bytes)
    }

    /// Returns true if level `level` holds this digest for block `number`. Above the top level that is the root
    /// hash.
    pub(crate) fn is_expected(
        &self,
        level: usize,
        number: u64,
        digest: &Root,
        correct: bool,
    ) -> io::Result<bool> {
        if level == self.shape.levels.len() {
            return Ok(*digest == self.root);
        }
        let above = self.hash_block(level, number / self.shape.per, correct)?;
        // Fits: an offset in a hash block.
        let at = (number % self.shape.per) as usize * DIGEST_LEN;
        Ok(above[at..at + DIGEST_LEN] == *digest)
    }

    /// Reads and verifies whole blocks from block `first` on.
    fn read_blocks(&self, buf: &mut [u8], first: u64) -> io::Result<()> {
        let size = self.header.data_block as usize;
        let at = first * size as u64;
        // Bytes past the end of the data count as zeros.
        let available = self.data.size().saturating_sub(at).min(buf.len() as u64) as usize;
        let mut read = self.data.read_exact_at(&mut buf[..available], at);
        if read.is_err() && self.parity.is_none() {
            return read;
        }
        buf[available..].fill(0);
        for (number, block) in (first..).zip(buf.chunks_exact_mut(size)) {
            if self.is_expected(0, number, &self.hasher.digest(block), true)? {
                continue;
            }
            match self.corrected_block(number) {
                Some(bytes) => block.copy_from_slice(&bytes),
                None => {
                    std::mem::replace(&mut read, Ok(()))?;
                    let at = number * size as u64;
                    return Err(self.mismatch(format_args!("block {number}, at byte {at},")));
                }
            }
        }
        Ok(())
    }

    /// Returns a covered block corrected from the parity, if the result matches the root hash.
    fn corrected_block(&self, number: u64) -> Option<Vec<u8>> {
        let spread = self.parity.as_ref()?;
        let corrected = self.correct_round(number % spread.rounds);
        let (_, bytes) = corrected.into_iter().find(|(n, _)| *n == number)?;
        self.corrected.fetch_add(1, Ordering::Relaxed);
        if let Some(callback) = &self.on_repair {
            match spread.place(number) {
                CoveredPlace::Data(at) => callback(false, at),
                CoveredPlace::Tree(at) => callback(true, at),
            }
        }
        Some(bytes)
    }

    pub(crate) fn parity_input<'a>(&'a self, spread: &'a ParityLayout) -> Covered<'a> {
        Covered {
            data: &*self.data,
            tree: &*self.tree,
            spread,
        }
    }

    /// Returns the sound rows of a round, damaged ones corrected. `None` if that is not possible.
    pub(crate) fn sound_rows(&self, spread: &ParityLayout, round: u64) -> Option<Vec<Vec<u8>>> {
        let (mut rows, mut damaged, unknown) = self.rows(spread, round);
        for row in unknown {
            // Verifies again with a corrected tree.
            let number = spread.block_of(round, row)?;
            if !self.is_sound_by(number, &rows[row], true)? {
                damaged.push(row);
            }
        }
        if !damaged.is_empty() {
            let corrected = self.correct_round(round);
            for row in damaged {
                let number = spread.block_of(round, row)?;
                let (_, bytes) = corrected.iter().find(|(n, _)| *n == number)?;
                rows[row].copy_from_slice(bytes);
            }
        }
        Some(rows)
    }

    /// Reads the rows of a round. Also returns which of them are damaged, and which cannot be verified.
    fn rows(&self, spread: &ParityLayout, round: u64) -> (Vec<Vec<u8>>, Vec<usize>, Vec<usize>) {
        let covered = self.parity_input(spread);
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

    /// Corrects the damaged blocks of a round. Returns the numbers and bytes of those that then match the root
    /// hash.
    pub(crate) fn correct_round(&self, round: u64) -> Vec<(u64, Vec<u8>)> {
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
        let read = Syndromes::compute(&rows, &parity, spread.roots);
        let correct = |damaged: &[usize]| -> Vec<(u64, Vec<u8>)> {
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
        let found = correct(&damaged);
        if !found.is_empty() || damaged.len() == spread.roots {
            return found;
        }
        // One more block may be damaged, among those that cannot be verified because their part of the tree is
        // itself damaged.
        // damaged, too.
        let also = unknown.into_iter().map(|row| {
            damaged.push(row);
            let found = correct(&damaged);
            damaged.pop();
            found
        });
        also.into_iter()
            .find(|found| !found.is_empty())
            .unwrap_or_default()
    }

    /// Returns true if a covered block matches the root hash. `None` if its digest is damaged.
    pub(crate) fn is_sound(&self, number: u64, bytes: &[u8]) -> Option<bool> {
        self.is_sound_by(number, bytes, false)
    }

    fn is_sound_by(&self, number: u64, bytes: &[u8], correct: bool) -> Option<bool> {
        let digest = self.hasher.digest(bytes);
        let (level, number) = match self.parity.as_ref().map(|spread| spread.place(number)) {
            Some(CoveredPlace::Tree(at)) => {
                let (level, number) = self.shape.find(at, self.header.hash_block.into());
                (level + 1, number)
            }
            _ => (0, number),
        };
        self.is_expected(level, number, &digest, correct).ok()
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
        // Fits: `n` and two blocks.
        let mut whole = vec![0; ((end - first) * size) as usize];
        self.read_blocks(&mut whole, first)?;
        let skip = (offset - first * size) as usize;
        buf.copy_from_slice(&whole[skip..skip + n]);
        Ok(n)
    }

    fn size(&self) -> u64 {
        self.covered.end
    }

    fn will_need(&self, offset: u64, len: u64) {
        self.data.will_need(offset, len);
    }

    fn done_with(&self, offset: u64, len: u64) {
        self.data.done_with(offset, len);
    }
}

/// Computes the root hash from the top of a tree. It is that of `data` only if neither is damaged.
///
/// # Errors
/// As [`Verified::open`].
pub fn stated_root(data: &dyn ReadAt, tree: &dyn ReadAt, hash_offset: u64) -> io::Result<Root> {
    let header = read_header(tree, hash_offset)?;
    let (store, at, size) = match TreeLayout::new(&header, hash_offset).levels.last() {
        Some(top) => (tree, top.at, header.hash_block),
        None => (data, 0, header.data_block),
    };
    let mut block = vec![0; size as usize];
    store.read_exact_at(&mut block, at)?;
    Ok(Hasher::new(&header.salt).digest(&block))
}

/// Calls `f` with the number and the digest of each data block of the tree at `hash_offset`. Nothing is verified.
///
/// # Errors
/// `InvalidData` with a [`HeaderError`] inside, or errors of reading.
pub fn unverified_digests(
    tree: &dyn ReadAt,
    hash_offset: u64,
    mut f: impl FnMut(u64, &Root),
) -> io::Result<()> {
    let header = read_header(tree, hash_offset)?;
    let shape = TreeLayout::new(&header, hash_offset);
    let Some(leaves) = shape.levels.first() else {
        return Ok(());
    };
    let size = u64::from(header.hash_block);
    let mut hashes = vec![0; size as usize];
    for number in 0..leaves.blocks {
        tree.read_exact_at(&mut hashes, leaves.at + number * size)?;
        let first = number * shape.per;
        let count = shape.per.min(header.data_blocks - first) as usize; // fits: digests of a hash block
        let digests = hashes.as_chunks::<DIGEST_LEN>().0;
        for (block, digest) in (first..).zip(&digests[..count]) {
            f(block, digest);
        }
    }
    Ok(())
}

/// Positions of the hash blocks that verify some of the data, in the store that holds the tree at `hash_offset`: a range for each
/// level, from the top down. Unit: bytes.
pub fn hash_blocks_of(header: &Header, hash_offset: u64, data: Range<u64>) -> Vec<Range<u64>> {
    path_of(header, &TreeLayout::new(header, hash_offset), data)
}

fn path_of(header: &Header, shape: &TreeLayout, data: Range<u64>) -> Vec<Range<u64>> {
    let block = u64::from(header.data_block);
    let blocks = data.start / block..data.end.div_ceil(block);
    shape.path(blocks, header.hash_block.into())
}

/// Returns the number of roots of the parity after the tree at `hash_offset`, if parity ends where the store does.
pub fn find_roots(header: &Header, hash_offset: u64, store_len: u64) -> Option<u32> {
    let spread = ParityLayout::found(header, &TreeLayout::new(header, hash_offset), store_len)?;
    Some(spread.roots as u32) // fits: at most 24
}

/// Reads the header at `hash_offset` of `tree`.
///
/// # Errors
/// `InvalidData` with a [`HeaderError`] inside, or errors of reading.
pub fn read_header(tree: &dyn ReadAt, hash_offset: u64) -> io::Result<Header> {
    let mut bytes = [0; HEADER_LEN];
    match tree.read_exact_at(&mut bytes, hash_offset) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err(broken(HeaderError::Missing)),
        Err(e) => Err(e),
        Ok(()) => Header::decode(&bytes).map_err(broken),
    }
}

fn broken(e: HeaderError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}
