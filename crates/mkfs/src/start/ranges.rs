//! Parts of large files that a start reads first.

use super::loader::{ElfFiles, LARGE};
use super::lookup::{Files, Found};
use crate::Result;
use std::ops::Range;

/// Size of the pages to which ranges are rounded. Unit: bytes.
const PAGE: u64 = 4096;
/// Bytes at the end of a ZIP archive that hold the place of its directory: 22, and a comment.
const ZIP_END: u64 = 22 + 0xffff;
/// First bytes of a file of Java modules, on a machine with the same byte order.
const MODULES: [u8; 4] = 0xcafe_dada_u32.to_le_bytes();

/// Returns the first parts of a file. Empty if it is small, or if they cannot be told.
pub(super) fn first(files: &Files<'_>, elves: &ElfFiles, file: &Found) -> Result<Vec<Range<u64>>> {
    let size = files.tree.size(file.inode);
    if size <= LARGE {
        return Ok(Vec::new());
    }
    if let Some(elf) = elves.known(file.inode) {
        return Ok(elf.touched.clone());
    }
    let head = files.head(file.inode, 28)?;
    let range = if head.starts_with(&MODULES) || head.starts_with(&[0xca, 0xfe, 0xda, 0xda]) {
        modules(&head)
    } else if head.starts_with(b"PK\x03\x04") {
        let start = size.saturating_sub(ZIP_END);
        let end = files.read(file.inode, start, ZIP_END as usize)?;
        archive(&end)
    } else {
        None
    };
    let range = range.and_then(|range| rounded(range, size));
    Ok(range.into_iter().collect())
}

/// Returns the first bytes of a file as its first part.
pub(super) fn head(files: &Files<'_>, file: &Found, len: u64) -> Vec<Range<u64>> {
    let size = files.tree.size(file.inode);
    let range = (len < size).then(|| rounded(0..len, size));
    range.flatten().into_iter().collect()
}

fn rounded(range: Range<u64>, size: u64) -> Option<Range<u64>> {
    let start = range.start / PAGE * PAGE;
    let end = range.end.checked_next_multiple_of(PAGE)?.min(size);
    (start < end).then_some(start..end)
}

/// Index of a file of Java modules: header, two tables of numbers, locations and strings.
fn modules(head: &[u8]) -> Option<Range<u64>> {
    let is_little = head.starts_with(&MODULES);
    let number = |at: usize| {
        let field: [u8; 4] = head.get(at..at + 4)?.try_into().ok()?;
        Some(u64::from(match is_little {
            true => u32::from_le_bytes(field),
            false => u32::from_be_bytes(field),
        }))
    };
    Some(0..28 + 8 * number(16)? + number(20)? + number(24)?)
}

/// Directory of a ZIP archive, which is at its end. `end` is that end of the file.
fn archive(end: &[u8]) -> Option<Range<u64>> {
    let at = end.windows(4).rposition(|bytes| bytes == b"PK\x05\x06")?;
    let number = |at: usize| {
        let field: [u8; 4] = end.get(at..at + 4)?.try_into().ok()?;
        Some(u64::from(u32::from_le_bytes(field)))
    };
    let (len, start) = (number(at + 12)?, number(at + 16)?);
    Some(start..start + len + (end.len() - at) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_of_archives_are_found() {
        let mut end = vec![7; 10];
        end.extend(b"PK\x05\x06");
        end.extend([0; 8]);
        end.extend(1000u32.to_le_bytes());
        end.extend(5000u32.to_le_bytes());
        end.extend([0, 0]);
        assert_eq!(archive(&end), Some(5000..6022));
        assert_eq!(archive(b"PK\x05\x06"), None);
        assert_eq!(archive(b""), None);
        let mut head = 0xcafe_dada_u32.to_be_bytes().to_vec();
        for number in [0u32, 0, 0, 10, 20, 30] {
            head.extend(number.to_be_bytes());
        }
        assert_eq!(modules(&head), Some(0..158));
        assert_eq!(modules(&head[..20]), None);
        assert_eq!(rounded(5000..6022, 1 << 20), Some(4096..8192));
        assert_eq!(rounded(1 << 40..1 << 41, 5), None);
        assert_eq!(rounded(0..u64::MAX, 5), None);
    }
}
