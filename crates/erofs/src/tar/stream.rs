//! Writer for the members of a tar stream.

use super::header::{BLOCK, Header, Kind, NAME_LEN, record};
use super::sparse;
use std::io::{self, Write};
use std::ops::Range;

/// Record size of a tar in bytes. GNU tar pads archives to a multiple of it, a convention from tape drives.
const RECORD: u64 = 10_240;

/// Writer of a tar stream. Each member consists of a head, its data and a call to [`pad`](Self::pad).
/// [`finish`](Self::finish) ends the stream.
pub struct Stream<W> {
    out: W,
    bytes: u64,
    members: u64,
}

impl<W: Write> Stream<W> {
    /// Creates a tar stream on `out`, which should be buffered.
    pub fn new(out: W) -> Self {
        Self {
            out,
            bytes: 0,
            members: 0,
        }
    }

    /// Returns the number of members written.
    pub fn members(&self) -> u64 {
        self.members
    }

    /// Writes the head of a member: its header, preceded by PAX records for values that the header cannot represent,
    /// and by the records in `more`.
    ///
    /// # Errors
    /// Returns an error if a write fails, like all methods of this type. The stream is unusable afterwards.
    pub fn head(&mut self, header: &Header<'_>, more: &[u8]) -> io::Result<()> {
        let mut records = Vec::new();
        header.records(&mut records);
        records.extend_from_slice(more);
        if !records.is_empty() {
            let name = [b"PaxHeaders/", file_name(header.name)].concat();
            let front = Header {
                name: &name[..name.len().min(NAME_LEN)],
                kind: Kind::Records,
                mode: 0o644,
                uid: 0,
                gid: 0,
                size: records.len() as u64,
                mtime: (0, 0),
                link: &[],
                device: (0, 0),
            };
            self.put(&front.encode())?;
            self.put(&records)?;
            self.pad()?;
        }
        self.members += 1;
        self.put(&header.encode())
    }

    /// Writes the head of a sparse file in the "GNU.sparse 1.0" format. `header` contains the full file size. The data
    /// that follows consists of `runs` only, without gaps.
    ///
    /// # Errors
    /// See [`head`](Self::head).
    pub fn sparse_head(
        &mut self,
        header: &Header<'_>,
        runs: &[Range<u64>],
        more: &[u8],
    ) -> io::Result<()> {
        let map = sparse::map(runs, header.size);
        let mut records = Vec::new();
        record(b"GNU.sparse.major", b"1", &mut records);
        record(b"GNU.sparse.minor", b"0", &mut records);
        record(b"GNU.sparse.name", header.name, &mut records);
        let real = header.size.to_string();
        record(b"GNU.sparse.realsize", real.as_bytes(), &mut records);
        records.extend_from_slice(more);
        // A reader without support for the format extracts the map and data under this name.
        let stand_in = [b"GNUSparseFile.0/", file_name(header.name)].concat();
        let header = Header {
            name: &stand_in[..stand_in.len().min(NAME_LEN)],
            size: map.len() as u64 + runs.iter().map(|r| r.end - r.start).sum::<u64>(),
            ..*header
        };
        self.head(&header, &records)?;
        self.put(&map)
    }

    /// Writes data of the current member.
    ///
    /// # Errors
    /// See [`head`](Self::head).
    pub fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Writes zeros up to the next block boundary.
    ///
    /// # Errors
    /// See [`head`](Self::head).
    pub fn pad(&mut self) -> io::Result<()> {
        let over = (self.bytes % BLOCK as u64) as usize;
        if over > 0 {
            self.put(&[0; BLOCK][over..])?;
        }
        Ok(())
    }

    /// Ends the tar and returns its length in bytes.
    ///
    /// # Errors
    /// See [`head`](Self::head).
    pub fn finish(mut self) -> io::Result<u64> {
        let end = (self.bytes + 2 * BLOCK as u64).next_multiple_of(RECORD);
        // Fits: at most a record and two blocks.
        self.put(&vec![0; (end - self.bytes) as usize])?;
        self.out.flush()?;
        Ok(self.bytes)
    }
}

fn file_name(path: &[u8]) -> &[u8] {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}
