//! Builder of tars, block by block.

use super::super::header::BLOCK;
use std::ops::Range;

pub(super) const USTAR: &[u8; 8] = b"ustar\x0000";
pub(super) const GNU: &[u8; 8] = b"ustar  \0";

/// Creates a header; other fields are zero or, for numbers, `0`.
#[derive(Clone)]
pub(super) struct Head([u8; BLOCK]);

impl Head {
    pub(super) fn new(flag: u8, name: &str) -> Self {
        let mut head = Self([0; BLOCK]);
        head.0[156] = flag;
        head.put(0..100, name.as_bytes())
            .mode(0o644)
            .uid(0)
            .size(0)
            .mtime(0)
            .magic(USTAR)
    }

    /// Writes raw bytes at the start of a field.
    pub(super) fn put(mut self, field: Range<usize>, bytes: &[u8]) -> Self {
        self.0[field][..bytes.len()].copy_from_slice(bytes);
        self
    }

    fn octal(self, field: Range<usize>, value: u64) -> Self {
        let digits = field.len() - 1;
        self.put(field, format!("{value:0digits$o}\0").as_bytes())
    }

    pub(super) fn mode(self, mode: u64) -> Self {
        self.octal(100..108, mode)
    }

    /// Sets user and group ID.
    pub(super) fn uid(self, id: u64) -> Self {
        self.octal(108..116, id).octal(116..124, id)
    }

    pub(super) fn size(self, size: u64) -> Self {
        self.octal(124..136, size)
    }

    pub(super) fn mtime(self, mtime: u64) -> Self {
        self.octal(136..148, mtime)
    }

    pub(super) fn link(self, target: &str) -> Self {
        self.put(157..257, target.as_bytes())
    }

    pub(super) fn magic(self, magic: &[u8; 8]) -> Self {
        self.put(257..265, magic)
    }

    pub(super) fn device(self, major: u64, minor: u64) -> Self {
        self.octal(329..337, major).octal(337..345, minor)
    }

    /// Header block with its checksum.
    pub(super) fn block(mut self) -> [u8; BLOCK] {
        seal(&mut self.0);
        self.0
    }
}

/// Updates the checksum of a header.
pub(super) fn seal(block: &mut [u8; BLOCK]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// Entry of an old GNU sparse map.
pub(super) fn sparse_entry(offset: u64, len: u64) -> Vec<u8> {
    format!("{offset:011o}\0{len:011o}\0").into_bytes()
}

/// PAX record `LENGTH KEY=VALUE\n` with its length.
pub(super) fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len != rest + len.to_string().len() {
        len += 1;
    }
    [format!("{len} {key}=").as_bytes(), value, b"\n"].concat()
}

/// Builder that appends members to an archive.
#[derive(Clone, Default)]
pub(super) struct Archive {
    pub(super) bytes: Vec<u8>,
    /// Positions of the headers.
    pub(super) headers: Vec<usize>,
}

impl Archive {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Appends a header without changing its size field.
    pub(super) fn head(mut self, head: Head) -> Self {
        self.headers.push(self.bytes.len());
        self.bytes.extend(head.block());
        self
    }

    /// Appends a header with the size of `data`, then `data` and its padding.
    pub(super) fn member(self, head: Head, data: &[u8]) -> Self {
        self.head(head.size(data.len() as u64)).raw(data).pad()
    }

    pub(super) fn file(self, name: &str, data: &[u8]) -> Self {
        self.member(Head::new(b'0', name), data)
    }

    pub(super) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    /// Appends zeros up to the next block.
    pub(super) fn pad(mut self) -> Self {
        self.bytes
            .resize(self.bytes.len().next_multiple_of(BLOCK), 0);
        self
    }

    pub(super) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        self.extended(b'x', records)
    }

    pub(super) fn global(self, records: &[(&str, &[u8])]) -> Self {
        self.extended(b'g', records)
    }

    fn extended(self, flag: u8, records: &[(&str, &[u8])]) -> Self {
        let body: Vec<u8> = records
            .iter()
            .flat_map(|(key, value)| record(key, value))
            .collect();
        self.member(Head::new(flag, "PaxHeaders/x"), &body)
    }

    /// Appends a GNU `L` or `K` record.
    pub(super) fn long(self, flag: u8, name: &[u8]) -> Self {
        let head = Head::new(flag, "././@LongLink").magic(GNU);
        self.member(head, &[name, b"\0"].concat())
    }

    /// Appends the two blocks of zeros.
    pub(super) fn end(self) -> Vec<u8> {
        self.raw(&[0; 2 * BLOCK]).bytes
    }
}
