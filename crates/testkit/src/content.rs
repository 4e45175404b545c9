//! Generated contents of files. A seed and a size always give the same bytes.

use crate::Rng;

/// Returns words in random order, which compress well.
pub fn text(size: usize, seed: u64) -> Vec<u8> {
    let words = [
        "the ", "cluster ", "of ", "an ", "inode ", "index ", "holds ", "extents ", "and\n",
        "zero ",
    ];
    let mut random = Rng::new(seed ^ 0x5eed);
    let mut out = Vec::with_capacity(size + 16);
    while out.len() < size {
        out.extend_from_slice(words[random.below(10)].as_bytes());
    }
    out.truncate(size);
    out
}

/// Returns random bytes, which do not compress.
pub fn noise(size: usize, seed: u64) -> Vec<u8> {
    let mut random = Rng::new(seed ^ 0xdead_beef);
    (0..size).map(|_| random.draw() as u8).collect()
}

/// Returns alternating runs of [`text`] and [`noise`].
pub fn mixed(size: usize, seed: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let mut i = seed;
    while out.len() < size {
        let n = 3000 + (i * 7919 % 9000) as usize;
        out.extend(if i.is_multiple_of(2) {
            text(n, i)
        } else {
            noise(n, i)
        });
        i += 1;
    }
    out.truncate(size);
    out
}
