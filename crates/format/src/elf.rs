//! Headers and dynamic section of ELF files, as far as a dynamic loader reads them.
//!
//! ```text
//! header ──► program headers ──► dynamic section ──► strings: needed libraries, directories
//!                 └──► addresses ──► places in the file
//! ```
//!
//! Everything that a file states is a claim of its author: it is compared with the length of the file, or with a limit, before it is
//! read.
//!
//! Sources: System V ABI, chapters 4 and 5; ld.so(8).

use alloc::vec::Vec;
use core::ops::Range;

/// Program headers of a file. One with more is no file that a loader takes.
const HEADERS_MAX: u64 = 64;
/// Longest dynamic section. Unit: bytes.
const DYNAMIC_MAX: u64 = 64 << 10;
/// Bytes at the start of a file that have the header. Unit: bytes.
const HEAD_LEN: usize = 64;

/// Segment that is mapped.
pub const PT_LOAD: u64 = 1;
/// Kind of the segment that has the dynamic section.
pub const PT_DYNAMIC: u64 = 2;
/// Path of the dynamic loader.
pub const PT_INTERP: u64 = 3;
/// Kind of the segments that have notes.
pub const PT_NOTE: u64 = 4;
/// Part that is read-only after relocation.
pub const PT_GNU_RELRO: u64 = 0x6474_e552;

/// Name of a needed library.
pub const DT_NEEDED: u64 = 1;
/// Address of the table of strings.
pub const DT_STRTAB: u64 = 5;
/// Length of the table of strings.
pub const DT_STRSZ: u64 = 10;
/// Name of the library.
pub const DT_SONAME: u64 = 14;
/// Directories that are searched first, for the file and what it loads.
pub const DT_RPATH: u64 = 15;
/// Directories that are searched for the file alone.
pub const DT_RUNPATH: u64 = 29;

/// Kind of processor code. Only files with the same one are loaded together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abi {
    /// Addresses have 64 bits instead of 32.
    pub is_wide: bool,
    /// The least significant byte comes first.
    pub is_little: bool,
    /// Number of the processor.
    pub machine: u16,
}

impl Abi {
    /// Reads the header of a file. `None` if it is no ELF file.
    #[must_use]
    pub fn decode(head: &[u8]) -> Option<Self> {
        let [0x7f, b'E', b'L', b'F', class @ (1 | 2), data @ (1 | 2), ..] = *head else {
            return None;
        };
        let mut abi = Self {
            is_wide: class == 2,
            is_little: data == 1,
            machine: 0,
        };
        // Fits: a number of 16 bits.
        abi.machine = abi.number(head, 18, 2)? as u16;
        Some(abi)
    }

    /// Number of `len` bytes, at most 8.
    #[must_use]
    pub fn number(self, bytes: &[u8], at: usize, len: usize) -> Option<u64> {
        let field = bytes.get(at..at.checked_add(len)?)?;
        let join = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Some(match self.is_little {
            true => field.iter().rev().fold(0, join),
            false => field.iter().fold(0, join),
        })
    }

    /// Number of the size of an address, at one of two places.
    #[must_use]
    pub fn address(self, bytes: &[u8], narrow: usize, wide: usize) -> Option<u64> {
        let at = if self.is_wide { wide } else { narrow };
        self.number(bytes, at, self.word())
    }

    /// Size of an address. Unit: bytes.
    #[must_use]
    pub fn word(self) -> usize {
        if self.is_wide { 8 } else { 4 }
    }

    /// Place of the program headers, and the size of one. `None` for a file that no loader takes.
    fn headers(self, head: &[u8]) -> Option<(Range<u64>, u64)> {
        let offset = self.address(head, 28, 32)?;
        let at = if self.is_wide { 54 } else { 42 };
        let (size, count) = (self.number(head, at, 2)?, self.number(head, at + 2, 2)?);
        let expected = if self.is_wide { 56 } else { 32 };
        let end = offset.checked_add(size.checked_mul(count)?)?;
        (size == expected && count <= HEADERS_MAX).then_some((offset..end, size))
    }
}

/// Program header, as far as a loader uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Kind of the segment.
    pub kind: u64,
    /// Position in the file. Unit: bytes.
    pub offset: u64,
    /// Address of the segment in memory.
    pub address: u64,
    /// Length in the file. Unit: bytes.
    pub len: u64,
}

/// Entries of the dynamic section: tags and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dynamic(Vec<(u64, u64)>);

impl Dynamic {
    /// Values of the entries with a tag.
    pub fn all(&self, tag: u64) -> impl Iterator<Item = u64> {
        let of_tag = self.0.iter().filter(move |entry| entry.0 == tag);
        of_tag.map(|entry| entry.1)
    }

    /// Value of the last entry with a tag, which is the one that counts.
    #[must_use]
    pub fn value(&self, tag: u64) -> Option<u64> {
        self.all(tag).last()
    }
}

/// ELF file whose program headers are known. `R` reads a part of it, given by position and length, and returns fewer bytes where the
/// file ends.
pub struct File<R> {
    /// Kind of its code.
    pub abi: Abi,
    /// Address of the first instruction.
    pub entry: Option<u64>,
    /// End of the program headers in the file. Unit: bytes.
    pub headers_end: u64,
    segments: Vec<Segment>,
    size: u64,
    read: R,
}

impl<E, R: Fn(u64, usize) -> Result<Vec<u8>, E>> File<R> {
    /// Reads the headers of a file of `size` bytes. `None` if it is no ELF file that a loader takes.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn open(read: R, size: u64) -> Result<Option<Self>, E> {
        let head = read(0, HEAD_LEN)?;
        let headers = |abi: Abi| Some((abi, abi.headers(&head)?));
        let Some((abi, (place, header_len))) = Abi::decode(&head).and_then(headers) else {
            return Ok(None);
        };
        // Fits: there are at most 64 headers.
        let table = read(place.start, (place.end - place.start) as usize)?;
        let segment = |bytes: &[u8]| {
            Some(Segment {
                kind: abi.number(bytes, 0, 4)?,
                offset: abi.address(bytes, 4, 8)?,
                address: abi.address(bytes, 8, 16)?,
                len: abi.address(bytes, 16, 32)?,
            })
        };
        let segments = table.chunks_exact(header_len as usize).filter_map(segment);
        Ok(Some(Self {
            abi,
            entry: abi.address(&head, 24, 24),
            headers_end: place.end,
            segments: segments.collect(),
            size,
            read,
        }))
    }

    /// Segments of a kind.
    pub fn of_kind(&self, kind: u64) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(move |s| s.kind == kind)
    }

    /// Reads a part of at most `max` bytes.
    ///
    /// # Errors
    /// Those of reading.
    pub fn part(&self, offset: u64, len: u64, max: u64) -> Result<Vec<u8>, E> {
        // Fits: the limits are a few MiB.
        (self.read)(offset, len.min(max) as usize)
    }

    /// Converts an address to a place in the file.
    #[must_use]
    pub fn offset(&self, address: u64) -> Option<u64> {
        self.of_kind(PT_LOAD).find_map(|segment| {
            let inside = address.checked_sub(segment.address)?;
            let offset = segment.offset.checked_add(inside)?;
            (inside < segment.len && offset < self.size).then_some(offset)
        })
    }

    /// Reads the dynamic section. `None` for a file without one.
    ///
    /// # Errors
    /// Those of reading.
    pub fn dynamic(&self) -> Result<Option<Dynamic>, E> {
        let Some(segment) = self.of_kind(PT_DYNAMIC).next() else {
            return Ok(None);
        };
        let bytes = self.part(segment.offset, segment.len, DYNAMIC_MAX)?;
        let word = self.abi.word();
        let entries = bytes.chunks_exact(2 * word).filter_map(|entry| {
            let tag = self.abi.number(entry, 0, word)?;
            Some((tag, self.abi.number(entry, word, word)?))
        });
        let entries = entries.take_while(|(tag, _)| *tag != 0);
        Ok(Some(Dynamic(entries.collect())))
    }

    /// Reads at most `max` bytes of the table of strings.
    ///
    /// # Errors
    /// Those of reading.
    pub fn strings(&self, dynamic: &Dynamic, max: u64) -> Result<Vec<u8>, E> {
        let place = dynamic.value(DT_STRTAB).and_then(|at| self.offset(at));
        match (place, dynamic.value(DT_STRSZ)) {
            (Some(offset), Some(len)) => self.part(offset, len, max),
            _ => Ok(Vec::new()),
        }
    }
}

/// Bytes from `at` up to the next zero, which follows after at most `max` bytes. `None` if there are none.
#[must_use]
pub fn text(strings: &[u8], at: u64, max: usize) -> Option<&[u8]> {
    let rest = strings.get(usize::try_from(at).ok()?..)?;
    let len = rest.iter().take(max).position(|byte| *byte == 0)?;
    rest.get(..len).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_order_and_size_of_the_header() {
        let mut head = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0";
        let abi = Abi::decode(&head).unwrap();
        assert_eq!((abi.is_wide, abi.is_little, abi.machine), (true, true, 62));
        assert_eq!(abi.number(&[1, 2], 0, 2), Some(0x201));
        head[4..6].copy_from_slice(&[1, 2]);
        let abi = Abi::decode(&head).unwrap();
        assert_eq!((abi.is_wide, abi.machine), (false, 0x3e00));
        assert_eq!(abi.address(&[1, 2, 3, 4, 5], 1, 0), Some(0x0203_0405));
        assert_eq!(abi.number(&[1, 2], 1, 2), None);
        head[4] = 3;
        assert_eq!(Abi::decode(&head), None);
        assert_eq!(Abi::decode(&head[..5]), None);
    }

    #[test]
    fn strings_end_with_a_zero() {
        assert_eq!(text(b"\0ab\0c", 1, 9), Some(&b"ab"[..]));
        assert_eq!(text(b"\0ab\0c", 1, 2), None);
        for at in [0, 4, 5, u64::MAX] {
            assert_eq!(text(b"\0ab\0c", at, 9), None);
        }
    }
}
