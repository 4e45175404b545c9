//! State of the chunks of an image: a header and an entry of 16 bytes per chunk.
//!
//! An entry holds the checksum of the chunk and a generation. An odd generation means that the chunk is present. Every
//! change adds 1, so a reader that finds the same entry before and after it read a chunk has read that chunk.
//!
//! Nothing is flushed. After a power failure an entry may belong to bytes that were never written; the checksum finds
//! them on first use.

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const MAGIC: &[u8; 8] = b"TUFFCHK2";

/// Length of the header, which is followed by the entries. Unit: bytes.
const HEADER_LEN: u64 = 32;

/// Length of an entry. Unit: bytes.
const ENTRY_LEN: u64 = 16;

/// State of one chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// XXH3 of the bytes of the chunk.
    pub(crate) checksum: u64,
    /// Number of changes of the entry.
    pub(crate) generation: u64,
}

impl Entry {
    /// Decodes the bytes of an entry.
    fn decode(bytes: &[u8]) -> Self {
        let (checksum, generation) = bytes.split_at(8);
        Self {
            checksum: number(checksum),
            generation: number(generation),
        }
    }

    /// Returns the entry after the chunk of this one is removed.
    pub(crate) fn removed(self) -> Self {
        Self {
            checksum: 0,
            // A damaged file may hold any number.
            generation: self.generation.wrapping_add(1),
        }
    }

    /// Returns true if the chunk is in the cache.
    pub(crate) fn is_present(self) -> bool {
        self.generation % 2 == 1
    }
}

/// Number of eight bytes, the lowest first.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// File with the state of all chunks.
pub(crate) struct StateFile(File);

impl StateFile {
    /// Wraps an open file. A file with another header becomes empty.
    pub(crate) fn new(file: File, size: u64, chunk: u64) -> io::Result<Self> {
        let mut expected = [0; HEADER_LEN as usize];
        expected[..8].copy_from_slice(MAGIC);
        expected[8..16].copy_from_slice(&size.to_le_bytes());
        expected[16..24].copy_from_slice(&chunk.to_le_bytes());
        let mut found = [0; HEADER_LEN as usize];
        let is_known = match file.read_exact_at(&mut found, 0) {
            Ok(()) => found == expected,
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => false,
            Err(e) => return Err(e),
        };
        if !is_known {
            file.set_len(0)?;
            file.write_all_at(&expected, 0)?;
        }
        file.set_len(HEADER_LEN + size.div_ceil(chunk) * ENTRY_LEN)?;
        Ok(Self(file))
    }

    /// Length of the chunks of a file, and the size of its image, as its header states them. Unit: bytes.
    pub(crate) fn stated(file: &File) -> io::Result<(u64, u64)> {
        let mut header = [0; HEADER_LEN as usize];
        file.read_exact_at(&mut header, 0)?;
        match &header[..8] == MAGIC {
            true => Ok((number(&header[16..24]), number(&header[8..16]))),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Reads the entry of a chunk.
    pub(crate) fn entry(&self, chunk: u64) -> io::Result<Entry> {
        let mut bytes = [0; ENTRY_LEN as usize];
        self.0
            .read_exact_at(&mut bytes, HEADER_LEN + chunk * ENTRY_LEN)?;
        Ok(Entry::decode(&bytes))
    }

    /// Numbers of the chunks that are in the cache, of the first `len`. Holes of the file are skipped.
    pub(crate) fn present(&self, len: u64) -> io::Result<Vec<u64>> {
        let mut present = Vec::new();
        let mut bytes = [0; 1024 * ENTRY_LEN as usize];
        let mut first = 0;
        while first < len {
            let at = HEADER_LEN + first * ENTRY_LEN;
            let data = match seek(&self.0, SeekFrom::Data(at)) {
                Ok(data) => data.max(at),
                Err(Errno::NXIO) => break,
                // A filesystem that does not know holes has none.
                Err(_) => at,
            };
            first = (data - HEADER_LEN) / ENTRY_LEN;
            // Fits: at most 1024 entries.
            let bytes = &mut bytes[..(len.saturating_sub(first).min(1024) * ENTRY_LEN) as usize];
            self.0
                .read_exact_at(bytes, HEADER_LEN + first * ENTRY_LEN)?;
            for (chunk, entry) in (first..).zip(bytes.chunks_exact(ENTRY_LEN as usize)) {
                if Entry::decode(entry).is_present() {
                    present.push(chunk);
                }
            }
            first += 1024;
        }
        Ok(present)
    }

    /// Writes the entry of a chunk.
    pub(crate) fn set(&self, chunk: u64, entry: Entry) -> io::Result<()> {
        let mut bytes = [0; ENTRY_LEN as usize];
        bytes[..8].copy_from_slice(&entry.checksum.to_le_bytes());
        bytes[8..].copy_from_slice(&entry.generation.to_le_bytes());
        self.0.write_all_at(&bytes, HEADER_LEN + chunk * ENTRY_LEN)
    }
}
