//! Tar archives: v7, ustar, PAX and GNU, with long names, holes, xattrs and times before 1970.
//!
//! Two readers share one parser:
//!
//! * [`TarReader`] reads any stream once, front to back. The data of a member can be read before
//!   the next member.
//! * [`scan_file`] visits only the headers of an uncompressed tar that can be read at any position.
//!   Entries contain the positions of their data.
//!
//! Every [`Entry`] satisfies these invariants:
//!
//! * Its path has no `.`, `..` or empty component. Only the root has the empty path, and it is a
//!   directory.
//! * The runs of a sparse file ascend and add up to the stored bytes.
//! * Entries come in the order of the archive, including repeated paths.
//!
//! ACLs come as attributes (`SCHILY.xattr.system.posix_acl_*`) or as text (`SCHILY.acl.*`);
//! attributes take precedence. ACL entries for names without a number are left out with a warning.
//!
//! Left out with a warning: members without a name, and a name in a global extended header. An archive that ends
//! after a member, without blocks of zeros, is complete, with a warning; one that ends anywhere else is an error.
//!
//! Ignored without a warning: user and group names, access and change times, BSD flags, comments,
//! volume labels, the data of hard links, and anything after the end-of-archive blocks.

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
    /// Creates a reader at the beginning of a tar. `source` names it in messages. Reads are
    /// buffered here.
    pub fn new(source: impl Into<String>, reader: R) -> Self {
        Self {
            parser: Parser::new(source.into(), Stream::new(reader)),
        }
    }

    /// Returns the next member, or `None` at the end of the archive. Skips unread data of the
    /// previous member.
    ///
    /// Regular files come with [`Content::Stream`](super::Content::Stream), alone or within
    /// [`Content::Sparse`](super::Content::Sparse), empty ones with
    /// [`Content::None`](super::Content::None).
    ///
    /// # Errors
    ///
    /// The archive is damaged or uses an unsupported feature. Nothing can be read afterwards.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, SourceError> {
        self.parser.next_entry()
    }

    /// Warnings about what was left out, and about an archive that may be cut. Complete at its end.
    pub fn warnings(&self) -> Vec<String> {
        self.parser.warnings()
    }

    /// Stored data of the last member from [`next_entry`](Self::next_entry): for a sparse file, its
    /// runs back to back. Empty for other types than regular files.
    pub fn data(&mut self) -> MemberData<'_, R> {
        MemberData {
            parser: &mut self.parser,
        }
    }

    /// Position in the tar. After [`next_entry`](Self::next_entry) this is the start of the
    /// member's data, if it is a regular file. Unit: bytes.
    pub fn position(&self) -> u64 {
        self.parser.position()
    }

    /// Reads and discards the rest of the stream. Returns its length.
    ///
    /// The writer of a pipe then gets no `SIGPIPE`, and a compressed stream is checked to its end.
    ///
    /// # Errors
    ///
    /// The stream cannot be read or decompressed.
    pub fn finish(mut self) -> Result<u64, SourceError> {
        self.parser.drain()
    }
}

/// Data of one member; see [`TarReader::data`].
///
/// An archive that ends within the data gives an error instead of a short read;
/// [`SourceError::from`] extracts the [`SourceError`] from the [`io::Error`].
pub struct MemberData<'a, R> {
    parser: &'a mut Parser<Stream<R>>,
}

impl<R: Read> MemberData<'_, R> {
    /// Number of bytes left. Unit: bytes.
    pub fn left(&self) -> u64 {
        self.parser.data_left()
    }
}

impl<R: Read> Read for MemberData<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.parser.read_data(buf)?)
    }
}

/// Visits the headers of an uncompressed tar without reading data.
///
/// Regular files come with [`Content::Range`](super::Content::Range), alone or within
/// [`Content::Sparse`](super::Content::Sparse), empty ones with
/// [`Content::None`](super::Content::None). `source` names the tar in messages.
pub fn scan_file<S: ReadAt + ?Sized>(source: impl Into<String>, store: &S) -> TarScan<'_, S> {
    TarScan {
        parser: Parser::new(source.into(), Positional::new(store)),
    }
}

/// Iterator over the members of a tar; see [`scan_file`]. Ends after the first error.
pub struct TarScan<'a, S: ?Sized> {
    parser: Parser<Positional<'a, S>>,
}

impl<S: ReadAt + ?Sized> TarScan<'_, S> {
    /// Returns the next member, or `None` at the end of the archive.
    ///
    /// # Errors
    ///
    /// As for [`TarReader::next_entry`]. A member whose data exceeds the end of the file is an
    /// error at once.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, SourceError> {
        self.parser.next_entry()
    }

    /// Warnings about what was left out, and about an archive that may be cut. Complete at its end.
    pub fn warnings(&self) -> Vec<String> {
        self.parser.warnings()
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
