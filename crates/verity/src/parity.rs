//! Parity behind a tree: Reed-Solomon, as dm-verity's forward error correction has it.
//!
//! ```text
//!  covered: data blocks, then the tree's, without its header; `rounds` blocks are a row
//!
//!            │ round 0 │ round 1 │ ... │ each column of blocks has the same place in its row
//!  symbol 0  │ block 0 │ block 1 │ ... │
//!  symbol 1  │ block `rounds`    │ ... │ byte k of all blocks of a column, and `roots` bytes of parity,
//!    ...     │         │         │     │ are a codeword of 255 bytes
//! ```
//!
//! Digests say which blocks are damaged, so that a column can have as many of them as there are roots: bursts of up to
//! `roots` rows are mended. Field: GF(2^8) by 0x11d; the generator's roots are the first powers of 2.
//!
//! Source: the kernel's `Documentation/admin-guide/device-mapper/verity.rst`; the layout was seen in what veritysetup writes.

use crate::header::{Broken, Header};
use crate::shape::Shape;
use std::io;
use tuff_store::ReadAt;

/// Symbols of a codeword.
const SYMBOLS: usize = 255;

/// The number of roots that there may be, as the kernel has it.
pub const ROOTS: std::ops::RangeInclusive<u32> = 2..=24;

/// Powers of 2, twice, and their logarithms.
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

/// 2 to the power of `n`.
fn power(n: usize) -> u8 {
    FIELD.power[n % 255]
}

/// Products of one number with all others.
fn products(a: u8) -> [u8; 256] {
    std::array::from_fn(|b| times(a, b as u8))
}

/// How blocks are spread over codewords.
#[derive(Clone, Debug)]
pub(crate) struct Spread {
    pub(crate) roots: usize,
    /// Blocks in a row.
    pub(crate) rounds: u64,
    /// Of a block. Unit: bytes.
    pub(crate) block: u64,
    /// Blocks that are covered.
    pub(crate) blocks: u64,
    data_blocks: u64,
    /// Where the tree begins behind its header. Unit: bytes.
    tree_at: u64,
    /// Where the parity begins. Unit: bytes.
    pub(crate) at: u64,
}

impl Spread {
    /// Fails for what dm-verity knows no parity of.
    pub(crate) fn new(header: &Header, shape: &Shape, roots: u32) -> Result<Self, Broken> {
        if header.data_block != header.hash_block {
            return Err(Broken::Unsupported(
                "parity of a hash tree whose blocks have another size than the data's",
            ));
        }
        if !ROOTS.contains(&roots) {
            return Err(Broken::Corrupt("parity has 2 to 24 roots"));
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

    /// Where the parity ends. Unit: bytes.
    pub(crate) fn end(&self) -> u64 {
        self.at + self.row() * self.roots as u64
    }

    /// Length of a row, which is the number of codewords. Unit: bytes.
    pub(crate) fn row(&self) -> u64 {
        self.rounds * self.block
    }

    /// Length of a round's parity. Unit: bytes.
    pub(crate) fn round_len(&self) -> u64 {
        self.block * self.roots as u64
    }

    /// Covered blocks of one codeword.
    pub(crate) fn rows(&self) -> usize {
        SYMBOLS - self.roots
    }

    /// The number of roots for which the parity ends where a store does, if there is one. Unit: bytes.
    pub(crate) fn found(header: &Header, shape: &Shape, len: u64) -> Option<Self> {
        let spreads = ROOTS.filter_map(|roots| Self::new(header, shape, roots).ok());
        spreads.into_iter().find(|spread| spread.end() == len)
    }

    /// Number of the block that is row `row` of a round; `None` behind the end, where zeros count.
    pub(crate) fn block_of(&self, round: u64, row: usize) -> Option<u64> {
        let block = row as u64 * self.rounds + round;
        (block < self.blocks).then_some(block)
    }

    /// Number of the covered block that lies at byte `at` of the tree's store.
    pub(crate) fn of_tree(&self, at: u64) -> u64 {
        self.data_blocks + (at - self.tree_at) / self.block
    }

    /// Where a block lies: in the data, or in the tree. Unit: bytes.
    pub(crate) fn place(&self, block: u64) -> Place {
        match block.checked_sub(self.data_blocks) {
            None => Place::Data(block * self.block),
            Some(n) => Place::Tree(self.tree_at + n * self.block),
        }
    }
}

/// Where a covered block lies. Unit: bytes.
pub(crate) enum Place {
    Data(u64),
    Tree(u64),
}

/// Data and tree, one behind the other.
pub(crate) struct Covered<'a> {
    pub(crate) data: &'a dyn ReadAt,
    pub(crate) tree: &'a dyn ReadAt,
    pub(crate) spread: &'a Spread,
}

impl Covered<'_> {
    /// Reads from byte `at` on; zeros behind the end of data and of all.
    pub(crate) fn read(&self, mut at: u64, mut buf: &mut [u8]) -> io::Result<()> {
        let spread = self.spread;
        let data_len = spread.data_blocks * spread.block;
        while !buf.is_empty() {
            let left = |end: u64| end.saturating_sub(at).min(buf.len() as u64) as usize;
            let (n, there) = if at < data_len {
                (left(data_len), left(data_len.min(self.data.size())))
            } else {
                let n = left(spread.blocks * spread.block);
                (if n == 0 { buf.len() } else { n }, n)
            };
            let (now, rest) = std::mem::take(&mut buf).split_at_mut(n);
            now[there..].fill(0);
            if at < data_len {
                self.data.read_exact_at(&mut now[..there], at)?;
            } else {
                let at = spread.tree_at + (at - data_len);
                self.tree.read_exact_at(&mut now[..there], at)?;
            }
            at += n as u64;
            buf = rest;
        }
        Ok(())
    }
}

/// What is left of a codeword while it is divided: at most 24 bytes, the first one lowest.
trait Rest: Copy + Default {
    fn of(bytes: &[u8]) -> Self;
    /// The first byte.
    fn first(self) -> u8;
    /// Without the first byte, and `other` added.
    fn next(self, other: Self) -> Self;
    fn bytes(self) -> [u8; 24];
}

impl Rest for u64 {
    fn of(bytes: &[u8]) -> Self {
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

/// Up to 24 bytes.
#[derive(Clone, Copy, Default)]
struct Long(u128, u64);

impl Rest for Long {
    fn of(bytes: &[u8]) -> Self {
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

/// Makes parity.
pub(crate) struct Encoder {
    /// The generator without its first coefficient, which is 1.
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

    /// The parity of codewords `from..from + count`, with `roots` bytes each, into `out`.
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

    /// The same, of rows that `read` gives by their numbers.
    pub(crate) fn encode_rows(
        &self,
        read: &dyn Fn(usize, &mut [u8]) -> io::Result<()>,
        count: usize,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        if self.generator.len() <= 8 {
            self.encode_by::<u64>(read, count, out)
        } else {
            self.encode_by::<Long>(read, count, out)
        }
    }

    fn encode_by<R: Rest>(
        &self,
        read: &dyn Fn(usize, &mut [u8]) -> io::Result<()>,
        count: usize,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        let table: Vec<R> = (0..=255)
            .map(|b| {
                let row: Vec<u8> = self.generator.iter().map(|g| times(*g, b)).collect();
                R::of(&row)
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

/// A round as it was read: the sums that would be zero, were nothing damaged.
pub(crate) struct Round {
    /// Number n is the polynomial of each codeword at 2^n.
    sums: Vec<Vec<u8>>,
}

impl Round {
    /// `rows` has the block of each row; `parity` the round's parity, codeword after codeword.
    pub(crate) fn new(rows: &[Vec<u8>], parity: &[u8], roots: usize) -> Self {
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

    /// What is to be added to the blocks of these rows, at most as many as there are roots, if all others are sound.
    pub(crate) fn corrections(&self, damaged: &[usize]) -> Vec<Vec<u8>> {
        // Damage times powers of its places is the sums.
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

/// The inverse of a matrix of powers of different numbers, which has one.
fn invert(mut matrix: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let n = matrix.len();
    for (i, row) in matrix.iter_mut().enumerate() {
        row.extend((0..n).map(|j| u8::from(i == j)));
    }
    for i in 0..n {
        let pivot = (i..n)
            .find(|r| matrix[*r][i] != 0)
            .expect("it has an inverse");
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
    fn powers_come_round_after_255_steps() {
        assert_eq!(power(0), 1);
        assert_eq!(power(255), 1);
        assert_eq!(power(8), 0x1d);
        for a in 1..=255u8 {
            assert_eq!(times(a, inverse(a)), 1);
            assert_eq!(times(a, 0), 0);
        }
    }

    #[test]
    fn long_rests_are_as_short_ones() {
        let (mut short, mut long) = (u64::default(), Long::default());
        let mut seed = 1u64;
        for _ in 0..1000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bytes = seed.to_le_bytes();
            assert_eq!(short.first(), long.first());
            short = short.next(u64::of(&bytes));
            long = long.next(Long::of(&bytes));
            assert_eq!(short.bytes(), long.bytes());
        }
        let bytes: Vec<u8> = (1..=24).collect();
        assert_eq!(Long::of(&bytes).bytes()[..], bytes);
        assert_eq!(
            Long::of(&bytes).next(Long::default()).bytes()[..23],
            bytes[1..]
        );
    }
}
