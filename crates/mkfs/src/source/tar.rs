//! Tar archives: v7, ustar, PAX and GNU, with long names, holes, xattrs and times before 1970.
//!
//! Two ways to read, over one parser:
//!
//! * [`TarReader`] reads any stream once, front to back. The data of a member can be read until the next one is asked for.
//! * [`scan_file`] visits only the headers of an uncompressed tar that can be read at any position. Entries say where
//!   their data lies.
//!
//! What holds for every [`Entry`] that comes out: its path has no `.`, `..` or empty component; only the root has the
//! empty path, and it is a directory; the runs of a sparse file ascend and add up to the stored bytes. Entries come in
//! the archive's order, also those that name a path again.
//!
//! ACLs come as attributes (`SCHILY.xattr.system.posix_acl_*`) or in words (`SCHILY.acl.*`, which count where there is no
//! attribute). Their entries for names without a number are left out with a warning.
//!
//! What is passed over in silence: user and group names, access and change times, BSD flags, comments, volume labels, the
//! data of hard links, and whatever follows the end-of-archive blocks.

mod acl;
mod feed;
mod header;
mod parser;
mod pax;
mod sparse;
#[cfg(test)]
mod tests;

use super::Entry;
use super::error::SourceError;
use feed::{Positional, Stream};
use parser::Parser;
use std::io::{self, Read};
use tuff_store::ReadAt;

/// Reads a tar from a stream.
///
/// ```
/// use std::io::Read;
/// use tuff_mkfs::source::tar::TarReader;
///
/// let archive = [0u8; 1024];
/// let mut tar = TarReader::new("empty.tar", &archive[..]);
/// while let Some(entry) = tar.next_entry()? {
///     let mut data = Vec::new();
///     tar.data().read_to_end(&mut data)?;
///     println!("{}: {} bytes", entry.path.escape_ascii(), data.len());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TarReader<R> {
    parser: Parser<Stream<R>>,
}

impl<R: Read> TarReader<R> {
    /// A reader at the beginning of a tar. `source` names it in messages. Reads are buffered here.
    pub fn new(source: impl Into<String>, reader: R) -> Self {
        Self {
            parser: Parser::new(source.into(), Stream::new(reader)),
        }
    }

    /// The next member, `None` at the end of the archive. Passes over what was not read of the one before.
    ///
    /// Regular files come with [`Content::Stream`](super::Content::Stream) or
    /// [`Content::SparseStream`](super::Content::SparseStream), empty ones with
    /// [`Content::None`](super::Content::None).
    ///
    /// # Errors
    ///
    /// Says where the archive is broken, or what of it is not supported. Nothing can be read afterwards.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, SourceError> {
        self.parser.next_entry()
    }

    /// What was left out of the members so far, to be told to whoever asked for them.
    pub fn warning(&self) -> Option<String> {
        self.parser.warning()
    }

    /// The stored bytes of the member that [`next_entry`](Self::next_entry) gave last: of a sparse file, its runs back
    /// to back. Empty for anything that is not a regular file.
    pub fn data(&mut self) -> MemberData<'_, R> {
        MemberData {
            parser: &mut self.parser,
        }
    }

    /// How far the tar was read: where the data begins of the regular file that [`next_entry`](Self::next_entry) gave last, if
    /// none of it was read. Unit: bytes.
    pub fn position(&self) -> u64 {
        self.parser.position()
    }

    /// Reads what is left of the stream and throws it away. Returns how many bytes that were.
    ///
    /// Whoever writes into a pipe then sees no broken pipe, and a compressed stream is checked to its end.
    ///
    /// # Errors
    ///
    /// The stream could not be read or decompressed.
    pub fn finish(mut self) -> Result<u64, SourceError> {
        self.parser.drain()
    }
}

/// The data of one member. See [`TarReader::data`].
///
/// An archive that ends within the data gives an error, not a short read; [`SourceError::from`] takes the
/// [`SourceError`] out of the [`io::Error`] again.
pub struct MemberData<'a, R> {
    parser: &'a mut Parser<Stream<R>>,
}

impl<R: Read> MemberData<'_, R> {
    /// How many bytes are left. Unit: bytes.
    pub fn left(&self) -> u64 {
        self.parser.data_left()
    }
}

impl<R: Read> Read for MemberData<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.parser.read_data(buf)?)
    }
}

/// Visits the headers of an uncompressed tar; no data is read.
///
/// Regular files come with [`Content::Range`](super::Content::Range) or [`Content::Sparse`](super::Content::Sparse), empty
/// ones with [`Content::None`](super::Content::None). `source` names the tar in messages.
pub fn scan_file<S: ReadAt + ?Sized>(source: impl Into<String>, store: &S) -> TarScan<'_, S> {
    TarScan {
        parser: Parser::new(source.into(), Positional::new(store)),
    }
}

/// The members of a tar. See [`scan_file`]. Ends after the first error.
pub struct TarScan<'a, S: ?Sized> {
    parser: Parser<Positional<'a, S>>,
}

impl<S: ReadAt + ?Sized> TarScan<'_, S> {
    /// The next member, `None` at the end of the archive.
    ///
    /// # Errors
    ///
    /// As [`TarReader::next_entry`]. A member whose data reaches beyond the end of the file is an error here already.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, SourceError> {
        self.parser.next_entry()
    }

    /// What was left out of the members so far, to be told to whoever asked for them.
    pub fn warning(&self) -> Option<String> {
        self.parser.warning()
    }
}

impl<S: ReadAt + ?Sized> Iterator for TarScan<'_, S> {
    type Item = Result<Entry, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.parser.has_failed() {
            return None;
        }
        self.next_entry().transpose()
    }
}
