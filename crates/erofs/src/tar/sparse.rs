//! Sparse files: the data ranges of an inode, and their map in the "GNU.sparse 1.0" format.
//!
//! The map is text that precedes the data. It contains the number of ranges, then the offset and length of each, one
//! number per line, and zeros up to a multiple of 512 bytes. If the file ends in a hole, a final range of length 0
//! gives the file size. Source: GNU tar manual, "Storing Sparse Files", "PAX Format, Version 1.0".

use super::header::BLOCK;
use crate::Result;
use crate::read::{Image, Inode};
use std::ops::Range;

/// Returns the data ranges of a file with holes, aligned to tar blocks except at the end of the file. `None` if the
/// file has no holes.
pub(super) fn runs(image: &Image, inode: &Inode) -> Result<Option<Vec<Range<u64>>>> {
    let (size, block) = (inode.size(), BLOCK as u64);
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut holes = false;
    for run in image.runs(inode, 0..size)? {
        let run = run?;
        if run.is_hole {
            holes = true;
            continue;
        }
        let start = run.range.start / block * block;
        let end = run.range.end.next_multiple_of(block).min(size);
        match runs.last_mut() {
            Some(last) if last.end >= start => last.end = last.end.max(end),
            _ => runs.push(start..end),
        }
    }
    // Alignment can remove all holes, if they are smaller than a block.
    let whole = runs.first().is_some_and(|r| *r == (0..size));
    Ok((holes && !whole).then_some(runs))
}

/// Encodes the map of `runs` for a file of `size` bytes.
pub(super) fn map(runs: &[Range<u64>], size: u64) -> Vec<u8> {
    let open_end = runs.last().is_none_or(|r| r.end < size);
    let mut out = format!("{}\n", runs.len() + usize::from(open_end));
    for run in runs {
        out += &format!("{}\n{}\n", run.start, run.end - run.start);
    }
    if open_end {
        out += &format!("{size}\n0\n");
    }
    let mut out = out.into_bytes();
    out.resize(out.len().next_multiple_of(BLOCK), 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_say_where_the_file_ends() {
        assert!(map(&[], 5000).starts_with(b"1\n5000\n0\n\0"));
        assert!(map(&[0..512, 4096..5000], 5000).starts_with(b"2\n0\n512\n4096\n904\n\0"));
        assert!(
            map(std::slice::from_ref(&(512..1024)), 5000).starts_with(b"2\n512\n512\n5000\n0\n\0")
        );
        let many: Vec<_> = (0..100u64).map(|i| i * 8192..i * 8192 + 4096).collect();
        let map = map(&many, 100 * 8192);
        assert_eq!(map.len() % BLOCK, 0);
        assert!(map.starts_with(b"101\n"));
    }
}
