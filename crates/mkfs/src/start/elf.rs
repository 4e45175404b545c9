//! Parts of an ELF file that a dynamic loader reads: what it needs, and which bytes it touches.
//!
//! Sources: those of `tuff_format::elf`, which reads the headers; the specification "ELF dlopen metadata".

use crate::Result;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ops::{Deref, Range};
use tuff_format::elf::{
    Abi, DT_NEEDED, DT_RPATH, DT_RUNPATH, DT_SONAME, DT_STRSZ, DT_STRTAB, Dynamic, PT_DYNAMIC,
    PT_GNU_RELRO, PT_INTERP, PT_NOTE, text,
};

/// Libraries that one file may need.
const NEEDED_MAX: usize = 512;
/// Longest table of strings. Unit: bytes.
const STRINGS_MAX: u64 = 16 << 20;
/// Longest name of a library. Unit: bytes.
const NAME_MAX: usize = 1024;
/// Longest list of directories. Unit: bytes.
const LIST_MAX: usize = 8192;
/// Longest section of notes. Unit: bytes.
const NOTES_MAX: u64 = 64 << 10;
/// Relocations that are read to find the pages that they change. Unit: bytes.
const RELOCATIONS_MAX: u64 = 4 << 20;
/// Size of the pages that a loader touches. Unit: bytes.
const PAGE: u64 = 4096;
/// Ranges that describe one file.
const RANGES_MAX: usize = 64;

/// Type of a note with libraries for `dlopen`, by the owner `FDO`.
const NOTE_DLOPEN: u64 = 0x407c_0c0a;
/// Flag of `DT_FLAGS_1`: the default directories are not searched.
const NODEFLIB: u64 = 0x800;

/// ELF file, as far as a loader needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Elf {
    pub(super) abi: Abi,
    /// Path of the dynamic loader.
    pub(super) interpreter: Option<Vec<u8>>,
    /// Names or paths of libraries, in the order in which they are loaded.
    pub(super) needed: Vec<Vec<u8>>,
    /// Libraries that the file may open later: names of which the first one that exists counts.
    pub(super) opened: Vec<Vec<Vec<u8>>>,
    pub(super) soname: Option<Vec<u8>>,
    /// Directories that are searched first, for this file and what it loads.
    pub(super) rpath: Option<Vec<u8>>,
    /// Directories that are searched for this file alone.
    pub(super) runpath: Option<Vec<u8>>,
    /// The default directories are not searched.
    pub(super) no_default: bool,
    /// Parts that a loader touches. Unit: bytes. Empty if they cannot be told.
    pub(super) touched: Vec<Range<u64>>,
}

/// Reads a part of a file, given by offset and length. Returns fewer bytes where the file ends.
pub(super) type ReadPart<'a> = &'a dyn Fn(u64, usize) -> Result<Vec<u8>>;

/// Tags of the tables whose length is not stated: hashes, symbols and versions.
const TABLES: [u64; 6] = [4, 6, 0x6fff_fef5, 0x6fff_fff0, 0x6fff_fffc, 0x6fff_fffe];
/// Tags of the relocations of procedures: address, length in bytes and form, which is the tag of another table.
const PROCEDURES: (u64, u64, u64) = (23, 2, 20);
/// Tags of other relocations: address, length in bytes, and form.
const RELOCATIONS: [(u64, u64, Relocations); 3] = [
    (DT_RELA, 8, Relocations::Rela),
    (17, 18, Relocations::Rel),
    (36, 35, Relocations::Relr),
];
const DT_RELA: u64 = 7;
const DT_INIT: u64 = 12;
const DT_FLAGS_1: u64 = 0x6fff_fffb;

/// Form of a table of relocations, by the size of its entries.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Relocations {
    /// Each entry is an address and a type.
    #[default]
    Rel,
    /// Each entry is an address, a type and an addend.
    Rela,
    /// Addresses, each with bitmaps of those that follow.
    Relr,
}

/// Reads a file of `size` bytes. `None` if it is no ELF file that a loader would take. `finds_parts`: the parts that a loader
/// touches are wanted.
pub(super) fn parse(read: ReadPart<'_>, size: u64, finds_parts: bool) -> Result<Option<Elf>> {
    let Some(file) = tuff_format::elf::File::open(read, size)? else {
        return Ok(None);
    };
    let file = Parser { file, size };
    let mut elf = Elf {
        abi: file.abi,
        interpreter: file.interpreter()?,
        opened: file.opened()?,
        ..Elf::default()
    };
    let Some(dynamic) = file.dynamic()? else {
        return Ok(Some(elf));
    };
    let strings = file.strings(&dynamic, STRINGS_MAX)?;
    let string = |at: u64, max| text(&strings, at, max).map(<[u8]>::to_vec);
    let list = |tag| string(dynamic.value(tag)?, LIST_MAX);
    elf.no_default = dynamic.value(DT_FLAGS_1).unwrap_or_default() & NODEFLIB != 0;
    let needed = dynamic.all(DT_NEEDED).take(NEEDED_MAX);
    elf.needed = needed.filter_map(|at| string(at, NAME_MAX)).collect();
    elf.soname = dynamic.value(DT_SONAME).and_then(|at| string(at, NAME_MAX));
    elf.rpath = list(DT_RPATH);
    elf.runpath = list(DT_RUNPATH);
    if finds_parts {
        elf.touched = file.touched(&dynamic)?;
    }
    Ok(Some(elf))
}

/// File whose program headers are known.
struct Parser<'a> {
    file: tuff_format::elf::File<ReadPart<'a>>,
    size: u64,
}

impl<'a> Deref for Parser<'a> {
    type Target = tuff_format::elf::File<ReadPart<'a>>;

    fn deref(&self) -> &Self::Target {
        &self.file
    }
}

impl Parser<'_> {
    fn interpreter(&self) -> Result<Option<Vec<u8>>> {
        match self.of_kind(PT_INTERP).next() {
            Some(s) => {
                let path = self.part(s.offset, s.len, LIST_MAX as u64)?;
                Ok(text(&path, 0, LIST_MAX).map(<[u8]>::to_vec))
            }
            None => Ok(None),
        }
    }

    /// Libraries that notes name.
    fn opened(&self) -> Result<Vec<Vec<Vec<u8>>>> {
        let mut opened = Vec::new();
        for segment in self.of_kind(PT_NOTE) {
            let bytes = self.part(segment.offset, segment.len, NOTES_MAX)?;
            let mut rest = &bytes[..];
            while let Some((note, after)) = self.note(rest) {
                rest = after;
                opened.extend(note.into_iter().flat_map(libraries));
                if opened.len() > NEEDED_MAX {
                    return Ok(opened);
                }
            }
        }
        Ok(opened)
    }

    /// Splits the first note off. The text is that of a note about `dlopen`.
    fn note<'b>(&self, bytes: &'b [u8]) -> Option<(Option<&'b [u8]>, &'b [u8])> {
        let field = |at| self.abi.number(bytes, at, 4);
        let (name_len, len, kind) = (field(0)?, field(4)?, field(8)?);
        let padded = |len: u64| usize::try_from(len.checked_next_multiple_of(4)?).ok();
        let name = bytes.get(12..12usize.checked_add(padded(name_len)?)?)?;
        let at = 12 + name.len();
        let text = bytes.get(at..at.checked_add(usize::try_from(len).ok()?)?)?;
        let after = bytes.get(at.checked_add(padded(len)?)?..).unwrap_or(&[]);
        let is_about = kind == NOTE_DLOPEN && name.starts_with(b"FDO\0");
        Some((is_about.then_some(text), after))
    }

    /// Parts of the file that a loader touches: headers, dynamic section, symbols, relocations and the pages that they
    /// change, and the entry.
    fn touched(&self, dynamic: &Dynamic) -> Result<Vec<Range<u64>>> {
        let mut pages = Pages::new(self.size);
        pages.add(0, self.headers_end);
        for segment in self.of_kind(PT_DYNAMIC).chain(self.of_kind(PT_GNU_RELRO)) {
            pages.add(segment.offset, segment.len);
        }
        let value = |tag| dynamic.value(tag);
        let place = |tag| value(tag).and_then(|address| self.offset(address));
        pages.add_at(place(DT_STRTAB), value(DT_STRSZ).unwrap_or_default());
        let (address, len, form) = PROCEDURES;
        let form = match value(form) {
            Some(DT_RELA) => Relocations::Rela,
            _ => Relocations::Rel,
        };
        let relocations = RELOCATIONS.into_iter().chain([(address, len, form)]);
        // A table ends where the next thing begins.
        let stated = relocations.clone().map(|(address, ..)| address);
        let all = TABLES.into_iter().chain(stated).chain([DT_STRTAB]);
        let mut starts: Vec<u64> = all.filter_map(value).collect();
        starts.sort_unstable();
        for table in TABLES.into_iter().filter_map(value) {
            let next = starts.iter().find(|start| **start > table);
            let len = next.map_or(PAGE, |next| next - table);
            pages.add_at(self.offset(table), len.min(RELOCATIONS_MAX));
        }
        for (address, len, form) in relocations {
            let (Some(offset), Some(len @ 1..)) = (place(address), value(len)) else {
                continue;
            };
            pages.add(offset, len.min(RELOCATIONS_MAX));
            let table = self.part(offset, len, RELOCATIONS_MAX)?;
            self.add_relocated(&table, form, &mut pages);
        }
        for address in self.entry.into_iter().chain(value(DT_INIT)) {
            pages.add_at(self.offset(address), 1);
        }
        Ok(pages.ranges())
    }

    /// Adds the pages that relocations change.
    fn add_relocated(&self, table: &[u8], form: Relocations, pages: &mut Pages) {
        let word = self.abi.word();
        let entry_len = match form {
            Relocations::Relr => word,
            Relocations::Rel => 2 * word,
            Relocations::Rela => 3 * word,
        };
        let mut next = 0u64;
        for entry in table.chunks_exact(entry_len) {
            let Some(value) = self.abi.number(entry, 0, word) else {
                return;
            };
            // A bitmap covers one word less than it has bits.
            let covered = match form == Relocations::Relr && value & 1 == 1 {
                true => word * (8 * word - 1),
                false => word,
            } as u64;
            let start = if covered > 8 { next } else { value };
            next = start.saturating_add(covered);
            pages.add_at(self.offset(start), covered);
        }
    }
}

/// Set of pages of a file.
struct Pages {
    set: BTreeSet<u64>,
    size: u64,
}

impl Pages {
    fn new(size: u64) -> Self {
        Self {
            set: BTreeSet::new(),
            size,
        }
    }

    fn add(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.size);
        // Bounded by the largest length that a caller passes.
        let len = end.saturating_sub(offset).min(4 * RELOCATIONS_MAX);
        if len > 0 {
            self.set.extend(offset / PAGE..=(offset + len - 1) / PAGE);
        }
    }

    fn add_at(&mut self, offset: Option<u64>, len: u64) {
        if let Some(offset) = offset {
            self.add(offset, len);
        }
    }

    /// Returns the ranges of the pages. The smallest gaps are closed until there are few.
    fn ranges(&self) -> Vec<Range<u64>> {
        let mut gap = 0;
        loop {
            let mut ranges: Vec<Range<u64>> = Vec::new();
            for page in &self.set {
                let (start, end) = (page * PAGE, (page + 1) * PAGE);
                match ranges.last_mut() {
                    Some(last) if start <= last.end + gap => last.end = end,
                    _ => ranges.push(start..end),
                }
            }
            if ranges.len() <= RANGES_MAX {
                if let Some(last) = ranges.last_mut() {
                    last.end = last.end.min(self.size);
                }
                return ranges;
            }
            gap = (2 * gap).max(PAGE);
        }
    }
}

/// Libraries in the text of a note: for each feature names, the first of which that exists is opened.
fn libraries(text: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let text = text.strip_suffix(b"\0").unwrap_or(text);
    let parsed: Option<Value> = serde_json::from_slice(text).ok();
    let features = parsed.as_ref().and_then(Value::as_array);
    let names = |feature: &Value| {
        let names = feature.get("soname").and_then(Value::as_array);
        let names = names.into_iter().flatten().filter_map(Value::as_str);
        names.map(|name| name.as_bytes().to_vec()).collect()
    };
    features.into_iter().flatten().map(names).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tuff_testkit::elf::Sample;

    fn parse_bytes(bytes: &[u8]) -> Option<Elf> {
        let read = |offset: u64, len: usize| {
            assert!(len <= 16 << 20);
            let from = usize::try_from(offset)
                .unwrap_or(usize::MAX)
                .min(bytes.len());
            Ok(bytes[from..bytes.len().min(from.saturating_add(len))].to_vec())
        };
        parse(&read, bytes.len() as u64, true).unwrap()
    }

    fn names(list: &[&str]) -> Vec<Vec<u8>> {
        list.iter().map(|name| name.as_bytes().to_vec()).collect()
    }

    fn sample(is_wide: bool, is_little: bool) -> Sample {
        Sample {
            is_wide,
            is_little,
            machine: 8,
            interpreter: "/lib/ld.so.1",
            needed: vec!["liba.so.1", "/opt/libb.so"],
            soname: "libs.so",
            rpath: "/r:$ORIGIN",
            runpath: "/run",
            note: r#"[{"feature":"x","soname":["libx.so.2","libx.so.1"]},{"soname":["liby.so"]},{}]"#,
        }
    }

    #[test]
    fn all_classes_and_byte_orders_are_read() {
        for (is_wide, is_little) in [(true, true), (true, false), (false, true), (false, false)] {
            let sample = sample(is_wide, is_little);
            let elf = parse_bytes(&sample.bytes()).unwrap();
            assert_eq!(
                (elf.abi.is_wide, elf.abi.is_little, elf.abi.machine),
                (is_wide, is_little, 8)
            );
            assert_eq!(elf.interpreter.as_deref(), Some(&b"/lib/ld.so.1"[..]));
            assert_eq!(elf.needed, names(&["liba.so.1", "/opt/libb.so"]));
            assert_eq!(elf.soname.as_deref(), Some(&b"libs.so"[..]));
            assert_eq!(elf.rpath.as_deref(), Some(&b"/r:$ORIGIN"[..]));
            assert_eq!(elf.runpath.as_deref(), Some(&b"/run"[..]));
            assert_eq!(elf.opened.len(), 3);
            assert_eq!(elf.opened[0], names(&["libx.so.2", "libx.so.1"]));
            assert_eq!(elf.touched, vec![0..sample.bytes().len() as u64]);
        }
    }

    #[test]
    fn changed_and_cut_files_are_read_without_a_panic() {
        let mut random = tuff_testkit::Rng::new(45);
        for (is_wide, is_little) in [(true, true), (false, false)] {
            let bytes = sample(is_wide, is_little).bytes();
            for len in 0..bytes.len() {
                parse_bytes(&bytes[..len]);
            }
            for _ in 0..20_000 {
                let mut bytes = bytes.clone();
                for _ in 0..1 + random.below(4) {
                    let at = random.below(bytes.len());
                    bytes[at] = match random.below(3) {
                        0 => 0xff,
                        1 => 0,
                        _ => random.below(256) as u8,
                    };
                }
                parse_bytes(&bytes);
            }
        }
    }

    #[test]
    fn ranges_of_a_file_are_few() {
        let mut pages = Pages::new(1 << 30);
        for i in 0..1000 {
            pages.add(i * 3 * PAGE, 10);
        }
        assert!(pages.ranges().len() <= RANGES_MAX);
        let mut pages = Pages::new(10_000);
        pages.add(0, 64);
        pages.add(8191, 100_000);
        pages.add(u64::MAX, u64::MAX);
        let ranges = pages.ranges();
        assert_eq!(ranges.first(), Some(&(0..10_000)));
        assert_eq!(ranges.len(), 1);
    }
}
