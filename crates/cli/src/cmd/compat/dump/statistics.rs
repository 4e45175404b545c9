//! Statistics of all files of an image. They count names, so a file with two hard links counts twice.

use super::Dump;
use super::inode::{is_compressed, percent, stored_bytes, type_name};
use tuff_erofs::Result;
use tuff_erofs::read::{FileType, Inode};
use tuff_erofs::walk::{Entry, Walk};

/// File types in the order of the output.
const TYPES: [FileType; 7] = [
    FileType::File,
    FileType::Dir,
    FileType::Char,
    FileType::Block,
    FileType::Fifo,
    FileType::Socket,
    FileType::Symlink,
];

/// File extensions with a row of their own.
const ENDINGS: [&str; 9] = [
    ".txt", ".so", ".xml", ".apk", ".odex", ".vdex", ".oat", ".rc", ".otf",
];

/// Rows of the size histogram: below 1 KiB, below 2 KiB, and so on; the last is open.
const SIZES: usize = 17;

/// Width of a bar that stands for all. Unit: characters.
const BAR_LEN: usize = 50;

/// Counters of all inodes and names.
#[derive(Default)]
struct Counts {
    types: [u64; TYPES.len()],
    compressed: u64,
    uncompressed: u64,
    bytes: u64,
    stored_bytes: u64,
    sizes: [u64; SIZES],
    stored_sizes: [u64; SIZES],
    /// The last element counts all other extensions.
    endings: [u64; ENDINGS.len() + 1],
}

impl Dump<'_> {
    pub(super) fn statistics(&mut self) -> Result<()> {
        let counts = self.counts()?;
        self.totals(&counts)?;
        self.out.line("")?;
        self.out.line("Original file size distribution:")?;
        self.sizes(&counts.sizes, counts.files())?;
        self.out.line("")?;
        self.out.line("On-disk file size distribution:")?;
        self.sizes(&counts.stored_sizes, counts.files())?;
        self.out.line("")?;
        self.out.line("File type distribution:")?;
        self.heading("type")?;
        for (name, count) in ENDINGS.iter().chain(&["others"]).zip(counts.endings) {
            self.row(format_args!("{name:<17}"), count, counts.files())?;
        }
        Ok(())
    }

    fn counts(&mut self) -> Result<Counts> {
        let mut counts = Counts::default();
        let image = self.image;
        for entry in Walk::root(image)? {
            match entry {
                Ok(entry) => self.count(&entry, &mut counts),
                Err(e) => self.wrong(e),
            }
        }
        // The packed inode takes space, though it is no file.
        if let Some(packed) = image.packed() {
            self.count_stored(packed, &mut counts);
        }
        Ok(counts)
    }

    fn count(&mut self, entry: &Entry, counts: &mut Counts) {
        let kind = entry.inode.file_type();
        for (count, of) in counts.types.iter_mut().zip(TYPES) {
            *count += u64::from(of == kind);
        }
        if kind == FileType::File {
            counts.bytes = counts.bytes.saturating_add(entry.inode.size());
            counts.sizes[size_row(entry.inode.size())] += 1;
            counts.endings[ending(entry.name())] += 1;
        }
        self.count_stored(&entry.inode, counts);
    }

    fn count_stored(&mut self, inode: &Inode, counts: &mut Counts) {
        match is_compressed(inode) {
            true => counts.compressed += 1,
            false => counts.uncompressed += 1,
        }
        if inode.file_type() != FileType::File {
            return;
        }
        match stored_bytes(self.image, inode) {
            Ok(stored) => {
                counts.stored_bytes = counts.stored_bytes.saturating_add(stored);
                counts.stored_sizes[size_row(stored)] += 1;
            }
            Err(e) => self.wrong(e),
        }
    }

    fn totals(&mut self, counts: &Counts) -> Result<()> {
        let all: u64 = counts.types.iter().sum();
        let mut line = |what: &str, value: u64| {
            let line = format!("Filesystem {what} count:\t\t{value}\n");
            self.out.bytes(line.as_bytes())
        };
        line("total file", all)?;
        // An inode of any other type is corrupt.
        line("unknown type", 0)?;
        for (kind, count) in TYPES.into_iter().zip(counts.types) {
            line(type_name(kind), count)?;
        }
        let mut line = |what: &str, value: String| {
            let what = format!("Filesystem {what}:");
            self.out.line(format_args!("{what:<39} {value}"))
        };
        line("compressed files", counts.compressed.to_string())?;
        line("uncompressed files", counts.uncompressed.to_string())?;
        line(
            "total original file size",
            format!("{} Bytes", counts.bytes),
        )?;
        line("total file size", format!("{} Bytes", counts.stored_bytes))?;
        let rate = percent(counts.stored_bytes, counts.bytes);
        line("compress rate", format!("{rate:.2}%"))
    }

    fn sizes(&mut self, sizes: &[u64; SIZES], files: u64) -> Result<()> {
        self.heading(">=(KB) .. <(KB)")?;
        for (row, count) in sizes.iter().enumerate() {
            let from = if row == 0 { 0 } else { 1u64 << (row - 1) };
            let name = match row + 1 == SIZES {
                true => format!("{from:>6} ..       "),
                false => format!("{from:>6} .. {:<6}", 1u64 << row),
            };
            self.row(name, *count, files)?;
        }
        Ok(())
    }

    fn heading(&mut self, what: &str) -> Result<()> {
        let bar = "distribution";
        self.out.line(format_args!(
            "{what:<23}count            ratio |{bar:<BAR_LEN$}|"
        ))
    }

    fn row(&mut self, name: impl std::fmt::Display, count: u64, files: u64) -> Result<()> {
        // Without files every count is 0.
        let share = percent(count, files.max(1));
        let bar = "#".repeat(((share / 2.0) as usize).min(BAR_LEN));
        let line = format!("{name}\t{count:<12}{share:>8.2}% |{bar:<BAR_LEN$}|\n");
        self.out.bytes(line.as_bytes())
    }
}

impl Counts {
    fn files(&self) -> u64 {
        self.types[0]
    }
}

/// Row of a size in the histogram.
fn size_row(size: u64) -> usize {
    // Fits: at most 64.
    let bits = (u64::BITS - (size >> 10).leading_zeros()) as usize;
    bits.min(SIZES - 1)
}

/// Row of a name's extension.
fn ending(name: &[u8]) -> usize {
    let ends = |ending: &&str| name.ends_with(ending.as_bytes());
    ENDINGS.iter().position(ends).unwrap_or(ENDINGS.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_counted_in_powers_of_two() {
        for (size, row) in [
            (0, 0),
            (1023, 0),
            (1024, 1),
            (2047, 1),
            (2048, 2),
            ((32 << 20) - 1, 15),
            (32 << 20, 16),
            (u64::MAX, 16),
        ] {
            assert_eq!(size_row(size), row, "{size}");
        }
    }

    #[test]
    fn names_are_counted_by_their_whole_ending() {
        for (name, row) in [
            ("a.txt", 0),
            (".txt", 0),
            ("b.so.txt", 0),
            ("a.so", 1),
            ("a.otf", 8),
            ("a.tx", 9),
            ("a.", 9),
            ("liba.so.6", 9),
            ("a.TXT", 9),
        ] {
            assert_eq!(ending(name.as_bytes()), row, "{name}");
        }
    }
}
