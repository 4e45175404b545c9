//! Members of a tar, one after the other.

use super::header::{BLOCK, Header, Kind, NAME_LEN, record};
use super::sparse;
use std::io::{self, Write};
use std::ops::Range;

/// A tar is padded to a multiple of this, as tape drives once wanted it and GNU tar still does. Unit: bytes.
const RECORD: u64 = 10_240;

/// A tar that is written: the head of each member, its data, [`pad`](Self::pad), and [`finish`](Self::finish) at the end.
pub struct Stream<W> {
    out: W,
    bytes: u64,
    members: u64,
}

impl<W: Write> Stream<W> {
    /// A tar on `out`, which should be buffered.
    pub fn new(out: W) -> Self {
        Self {
            out,
            bytes: 0,
            members: 0,
        }
    }

    /// Members so far.
    pub fn members(&self) -> u64 {
        self.members
    }

    /// A member's head: the header, and in front of it records of what that cannot say, and `more` records.
    ///
    /// # Errors
    /// A failed write, as of all methods here. The stream is not usable any more after one.
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

    /// The head of a file with holes, whose size `header` says: what follows is the data of `runs` only, one after the
    /// other. Form: "GNU.sparse 1.0".
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
        // A reader that does not know the form finds map and data under this name.
        let stand_in = [b"GNUSparseFile.0/", file_name(header.name)].concat();
        let header = Header {
            name: &stand_in[..stand_in.len().min(NAME_LEN)],
            size: map.len() as u64 + runs.iter().map(|r| r.end - r.start).sum::<u64>(),
            ..*header
        };
        self.head(&header, &records)?;
        self.put(&map)
    }

    /// Bytes of a member.
    ///
    /// # Errors
    /// See [`head`](Self::head).
    pub fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Zeros up to the next block.
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

    /// The end of the tar. Returns its length. Unit: bytes.
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
