//! Reed-Solomon parity after a tree, in the layout of dm-verity's forward error correction.
//!
//! ```text
//! covered: data blocks, then the blocks of the tree without its header; a row has `rounds` blocks
//!
//! │ round 0 │ round 1 │ ... │ a round is the blocks of one column
//!  symbol 0  │ block 0 │ block 1 │ ... │
//!  symbol 1  │ block `rounds`    │ ... │ byte k of all blocks of a column, and `roots` bytes of parity,
//!    ...     │         │         │     │ are a codeword of 255 bytes
//! ```
//!
//! Digests locate the damaged blocks, so that a round can have as many of them as there are roots. Bursts of up to
//! `roots` rows are correctable. The field is GF(2^8) with the polynomial 0x11d; the roots of the generator are the
//! first powers of 2.
//!
//! Source: the kernel's `Documentation/admin-guide/device-mapper/verity.rst` and the output of veritysetup.

use crate::header::{Header, HeaderError};
use crate::layout::TreeLayout;
use std::io;
use tuff_store::ReadAt;

/// Number of symbols in a codeword.
const SYMBOLS: usize = 255;

/// Numbers of roots that the kernel supports.
pub const ROOTS: std::ops::RangeInclusive<u32> = 2..=24;

/// Powers of 2, repeated once, and their logarithms.
struct Field {
    power: [u8; 512],
    log: [u8; 256],
}

static FIELD: Field = {
    let mut field = Field {
        power: [0; 512],
        log: [0; 256],
    };
    let (mut x, mut i) = (1u16, 0);
    while i < 255 {
        field.power[i] = x as u8;
        field.power[i + 255] = x as u8;
        field.log[x as usize] = i as u8;
        x <<= 1;
        if x & 0x100 != 0 {
            x ^= 0x11d;
        }
        i += 1;
    }
    field
};

fn times(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    FIELD.power[usize::from(FIELD.log[usize::from(a)]) + usize::from(FIELD.log[usize::from(b)])]
}

fn inverse(a: u8) -> u8 {
    FIELD.power[255 - usize::from(FIELD.log[usize::from(a)])]
}

/// Returns 2 to the power of `n`.
fn power(n: usize) -> u8 {
    FIELD.power[n % 255]
}

/// Returns the products of `a` with all field elements.
fn products(a: u8) -> [u8; 256] {
    std::array::from_fn(|b| times(a, b as u8))
}

/// Layout of the parity: which blocks form a codeword.
#[derive(Clone, Debug)]
pub(crate) struct ParityLayout {
    pub(crate) roots: usize,
    /// Number of blocks in a row.
    pub(crate) rounds: u64,
    /// Size of a block. Unit: bytes.
    pub(crate) block: u64,
    /// Number of covered blocks.
    pub(crate) blocks: u64,
    data_blocks: u64,
    /// Position of the first hash block. Unit: bytes.
    tree_at: u64,
    /// Position of the parity. Unit: bytes.
    pub(crate) at: u64,
}

impl ParityLayout {
    /// Fails for trees and numbers of roots for which dm-verity defines no parity.
    pub(crate) fn new(
        header: &Header,
        shape: &TreeLayout,
        roots: u32,
    ) -> Result<Self, HeaderError> {
        if header.data_block != header.hash_block {
            return Err(HeaderError::Unsupported(
                "parity of a hash tree whose hash and data blocks differ in size",
            ));
        }
        if !ROOTS.contains(&roots) {
            return Err(HeaderError::Corrupt("parity has 2 to 24 roots"));
        }
        let block = u64::from(header.data_block);
        let tree_at = shape.body();
        let blocks = header.data_blocks + (shape.end - tree_at) / block;
        Ok(Self {
            roots: roots as usize,
            rounds: blocks.div_ceil((SYMBOLS - roots as usize) as u64),
            block,
            blocks,
            data_blocks: header.data_blocks,
            tree_at,
            at: shape.end,
        })
    }

    /// End of the parity. Unit: bytes.
    pub(crate) fn end(&self) -> u64 {
        self.at + self.row() * self.roots as u64
    }

    /// Length of a row, which is the number of codewords. Unit: bytes.
    pub(crate) fn row(&self) -> u64 {
        self.rounds * self.block
    }

    /// Length of the parity of one round. Unit: bytes.
    pub(crate) fn round_len(&self) -> u64 {
        self.block * self.roots as u64
    }

    /// Number of data symbols in a codeword.
    pub(crate) fn rows(&self) -> usize {
        SYMBOLS - self.roots
    }

    /// Finds the layout whose parity ends at `len`, the length of the store. Unit: bytes.
    pub(crate) fn found(header: &Header, shape: &TreeLayout, len: u64) -> Option<Self> {
        let spreads = ROOTS.filter_map(|roots| Self::new(header, shape, roots).ok());
        spreads.into_iter().find(|spread| spread.end() == len)
    }

    /// Returns the number of the block in row `row` of a round. `None` past the covered blocks, where zeros count.
    pub(crate) fn block_of(&self, round: u64, row: usize) -> Option<u64> {
        let block = row as u64 * self.rounds + round;
        (block < self.blocks).then_some(block)
    }

    /// Returns the number of the covered block at byte `at` of the tree's store.
    pub(crate) fn of_tree(&self, at: u64) -> u64 {
        self.data_blocks + (at - self.tree_at) / self.block
    }

    /// Returns the position of a covered block.
    pub(crate) fn place(&self, block: u64) -> CoveredPlace {
        match block.checked_sub(self.data_blocks) {
            None => CoveredPlace::Data(block * self.block),
            Some(n) => CoveredPlace::Tree(self.tree_at + n * self.block),
        }
    }
}

/// Position of a covered block. Unit: bytes.
pub(crate) enum CoveredPlace {
    Data(u64),
    Tree(u64),
}

/// Reader of the covered blocks: data, then the tree.
pub(crate) struct Covered<'a> {
    pub(crate) data: &'a dyn ReadAt,
    pub(crate) tree: &'a dyn ReadAt,
    pub(crate) spread: &'a ParityLayout,
}

impl Covered<'_> {
    /// Fills `buf` from byte `at` on. Bytes past the data and past the tree are zeros.
    pub(crate) fn read(&self, mut at: u64, mut buf: &mut [u8]) -> io::Result<()> {
        let spread = self.spread;
        let data_len = spread.data_blocks * spread.block;
        while !buf.is_empty() {
            let left = |end: u64| end.saturating_sub(at).min(buf.len() as u64) as usize;
            let (n, available) = if at < data_len {
                (left(data_len), left(data_len.min(self.data.size())))
            } else {
                let n = left(spread.blocks * spread.block);
                (if n == 0 { buf.len() } else { n }, n)
            };
            let (now, rest) = std::mem::take(&mut buf).split_at_mut(n);
            now[available..].fill(0);
            if at < data_len {
                self.data.read_exact_at(&mut now[..available], at)?;
            } else {
                let at = spread.tree_at + (at - data_len);
                self.tree.read_exact_at(&mut now[..available], at)?;
            }
            at += n as u64;
            buf = rest;
        }
        Ok(())
    }
}

/// Remainder of a polynomial division: at most 24 bytes, the next coefficient first.
trait Remainder: Copy + Default {
    fn from_bytes(bytes: &[u8]) -> Self;
    /// Returns the first byte.
    fn first(self) -> u8;
    /// Drops the first byte and adds `other`.
    fn next(self, other: Self) -> Self;
    fn bytes(self) -> [u8; 24];
}

impl Remainder for u64 {
    fn from_bytes(bytes: &[u8]) -> Self {
        bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
    }

    fn first(self) -> u8 {
        self as u8
    }

    fn next(self, other: Self) -> Self {
        self >> 8 ^ other
    }

    fn bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.to_le_bytes());
        bytes
    }
}

/// Remainder of up to 24 bytes.
#[derive(Clone, Copy, Default)]
struct WideRemainder(u128, u64);

impl Remainder for WideRemainder {
    fn from_bytes(bytes: &[u8]) -> Self {
        let mut all = [0; 24];
        all[..bytes.len()].copy_from_slice(bytes);
        let (low, high) = all.split_at(16);
        let fold = |n: u128, b: &u8| n << 8 | u128::from(*b);
        Self(
            low.iter().rev().fold(0, fold),
            high.iter().rev().fold(0, fold) as u64,
        )
    }

    fn first(self) -> u8 {
        self.0 as u8
    }

    fn next(self, other: Self) -> Self {
        let low = self.0 >> 8 | u128::from(self.1) << 120;
        Self(low ^ other.0, self.1 >> 8 ^ other.1)
    }

    fn bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.0.to_le_bytes());
        bytes[16..].copy_from_slice(&self.1.to_le_bytes());
        bytes
    }
}

/// Reed-Solomon encoder for one number of roots.
pub(crate) struct Encoder {
    /// Generator polynomial without its leading coefficient, which is 1.
    generator: Vec<u8>,
}

impl Encoder {
    pub(crate) fn new(roots: usize) -> Self {
        let mut generator = vec![1u8];
        for i in 0..roots {
            let root = power(i);
            let mut next = vec![0; generator.len() + 1];
            for (j, c) in generator.iter().enumerate() {
                next[j] ^= c;
                next[j + 1] ^= times(*c, root);
            }
            generator = next;
        }
        generator.remove(0);
        Self { generator }
    }

    /// Computes the parity of codewords `from..from + count`, `roots` bytes each.
    pub(crate) fn encode(
        &self,
        covered: &Covered<'_>,
        from: u64,
        count: usize,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        let row_len = covered.spread.row();
        let read = |row: usize, buf: &mut [u8]| covered.read(row as u64 * row_len + from, buf);
        self.encode_rows(&read, count, out)
    }

    /// Computes the parity of `count` codewords whose rows `read` provides.
    pub(crate) fn encode_rows(
        &self,
        read: &dyn Fn(usize, &mut [u8]) -> io::Result<()>,
        count: usize,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        if self.generator.len() <= 8 {
            self.encode_by::<u64>(read, count, out)
        } else {
            self.encode_by::<WideRemainder>(read, count, out)
        }
    }

    fn encode_by<R: Remainder>(
        &self,
        read: &dyn Fn(usize, &mut [u8]) -> io::Result<()>,
        count: usize,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        let table: Vec<R> = (0..=255)
            .map(|b| {
                let row: Vec<u8> = self.generator.iter().map(|g| times(*g, b)).collect();
                R::from_bytes(&row)
            })
            .collect();
        let mut rests = vec![R::default(); count];
        let mut buf = vec![0; count];
        for row in 0..SYMBOLS - self.generator.len() {
            read(row, &mut buf)?;
            for (rest, byte) in rests.iter_mut().zip(&buf) {
                *rest = rest.next(table[usize::from(rest.first() ^ byte)]);
            }
        }
        out.clear();
        for rest in rests {
            out.extend_from_slice(&rest.bytes()[..self.generator.len()]);
        }
        Ok(())
    }
}

/// Syndromes of a round: all zero if no block is damaged.
pub(crate) struct Syndromes {
    /// Element n holds the values of all codewords at 2^n.
    sums: Vec<Vec<u8>>,
}

impl Syndromes {
    /// Computes the syndromes of `rows` and of `parity`, which holds codeword after codeword.
    pub(crate) fn compute(rows: &[Vec<u8>], parity: &[u8], roots: usize) -> Self {
        let sum = |n: usize| {
            let by = products(power(n));
            let mut sum = vec![0u8; rows[0].len()];
            for row in rows {
                for (sum, byte) in sum.iter_mut().zip(row) {
                    *sum = by[usize::from(*sum)] ^ byte;
                }
            }
            for (sum, parity) in sum.iter_mut().zip(parity.chunks_exact(roots)) {
                let step = |sum: u8, byte: &u8| by[usize::from(sum)] ^ byte;
                *sum = parity.iter().fold(*sum, step);
            }
            sum
        };
        Self {
            sums: (0..roots).map(sum).collect(),
        }
    }

    /// Returns the corrections to add to the damaged rows, at most as many as there are roots. All other rows must
    /// be sound.
    pub(crate) fn corrections(&self, damaged: &[usize]) -> Vec<Vec<u8>> {
        // The syndromes are the corrections times powers of their positions: a Vandermonde system.
        let places: Vec<usize> = damaged.iter().map(|row| SYMBOLS - 1 - row).collect();
        let matrix: Vec<Vec<u8>> = (0..damaged.len())
            .map(|n| places.iter().map(|place| power(place * n)).collect())
            .collect();
        let correction = |factors: &Vec<u8>| {
            let mut found = vec![0u8; self.sums[0].len()];
            for (factor, sum) in factors.iter().zip(&self.sums) {
                let by = products(*factor);
                for (found, sum) in found.iter_mut().zip(sum) {
                    *found ^= by[usize::from(*sum)];
                }
            }
            found
        };
        invert(matrix).iter().map(correction).collect()
    }
}

/// Inverts a Vandermonde matrix of distinct elements.
fn invert(mut matrix: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let n = matrix.len();
    for (i, row) in matrix.iter_mut().enumerate() {
        row.extend((0..n).map(|j| u8::from(i == j)));
    }
    for i in 0..n {
        let pivot = (i..n)
            .find(|r| matrix[*r][i] != 0)
            .expect("a Vandermonde matrix is invertible");
        matrix.swap(i, pivot);
        let by = products(inverse(matrix[i][i]));
        let row: Vec<u8> = matrix[i].iter().map(|x| by[usize::from(*x)]).collect();
        for (other, line) in matrix.iter_mut().enumerate() {
            let by = products(line[i]);
            if other != i {
                for (x, y) in line.iter_mut().zip(&row) {
                    *x ^= by[usize::from(*y)];
                }
            }
        }
        matrix[i] = row;
    }
    matrix.into_iter().map(|row| row[n..].to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_repeat_after_255_steps() {
        assert_eq!(power(0), 1);
        assert_eq!(power(255), 1);
        assert_eq!(power(8), 0x1d);
        for a in 1..=255u8 {
            assert_eq!(times(a, inverse(a)), 1);
            assert_eq!(times(a, 0), 0);
        }
    }

    #[test]
    fn wide_and_narrow_remainders_are_equal() {
        let (mut short, mut long) = (u64::default(), WideRemainder::default());
        let mut seed = 1u64;
        for _ in 0..1000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bytes = seed.to_le_bytes();
            assert_eq!(short.first(), long.first());
            short = short.next(u64::from_bytes(&bytes));
            long = long.next(WideRemainder::from_bytes(&bytes));
            assert_eq!(short.bytes(), long.bytes());
        }
        let bytes: Vec<u8> = (1..=24).collect();
        assert_eq!(WideRemainder::from_bytes(&bytes).bytes()[..], bytes);
        assert_eq!(
            WideRemainder::from_bytes(&bytes)
                .next(WideRemainder::default())
                .bytes()[..23],
            bytes[1..]
        );
    }
}
