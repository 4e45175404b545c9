//! Cpio archives with ASCII headers: newc (`070701`) and crc (`070702`). An initramfs is a sequence
//! of them.
//!
//! ```text
//! archive ─► zeros ─► archive ─► zeros ─► archive, compressed ─► end
//!    └─ header, name, data; header, name, data; ..; "TRAILER!!!"
//! ```
//!
//! [`CpioReader`] reads a stream once, front to back. From a file that can be read at any position,
//! it visits only the headers of plain archives. Both give the same entries.
//!
//! * A file with several names has its data at one of them, mostly the last. Earlier names follow
//!   it as hard links. If a file never gets data, its first name becomes an empty file. Further
//!   names with data are hard links to the first.
//! * Entries of a later archive replace those of an earlier one. Hard links do not cross archives.
//! * The checksum of regular files in crc archives is verified.
//!
//! Ignored without a warning: inode numbers, and data of members that are neither regular files nor
//! symbolic links.
//!
//! Sources: `cpio(5)` of FreeBSD; Linux, "initramfs buffer format"
//! (`early-userspace/buffer-format.rst`).

mod header;
mod input;
mod links;
#[cfg(test)]
mod tests;

pub use header::HEADER_LEN;
pub(crate) use input::begins;

use super::compressed::garbage_warning;
use super::error::{Quoted, SourceError};
use super::expansion::Expansion;
use super::member_path::normalise;
use super::{Content, Device, Entry, Kind, Meta};
use header::{Header, TRAILER};
use input::Input;
use links::LinkTracker;
use std::collections::VecDeque;
use std::io::{self, Read};
use tuff_store::ReadAt;

/// Maximum length of a name. Unit: bytes.
const NAME_BYTES_MAX: u32 = 64 << 10;

/// Maximum length of a symbolic link target with its zero byte. Unit: bytes.
const TARGET_BYTES_MAX: u32 = 4096;

/// Reader of cpio archives; see the [module](self).
pub struct CpioReader<'a> {
    input: Input<'a>,
    source: String,
    links: LinkTracker,
    /// Hard links to return next.
    ready: VecDeque<Entry>,
    current: Option<CurrentMember>,
    state: ReaderState,
    /// Start of bytes after a gzip stream that are no archive.
    garbage: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReaderState {
    /// Before the first archive.
    Fresh,
    /// Between two members of an archive.
    Within,
    /// After the trailer of an archive.
    Between,
    Ended,
    Failed,
}

/// Member whose data comes next.
struct CurrentMember {
    path: Vec<u8>,
    header_at: u64,
    stored: u64,
    left: u64,
    padding: u64,
    /// The data belongs to the last entry returned.
    readable: bool,
    /// Expected checksum, and the sum of the bytes read.
    sum: Option<(u32, u32)>,
}

impl<'a> CpioReader<'a> {
    /// Creates a reader of a stream. `source` names it in messages. Reads are buffered here.
    pub fn new(source: impl Into<String>, reader: impl Read + Send + 'a) -> Self {
        Self::with(source.into(), Input::stream(Box::new(reader)))
    }

    /// Creates a reader of a file that can be read at any position. Regular files of plain archives
    /// come with [`Content::Range`], those of compressed ones with [`Content::Stream`].
    pub fn of_store(source: impl Into<String>, store: &'a dyn ReadAt) -> Self {
        Self::with(source.into(), Input::store(store))
    }

    fn with(source: String, input: Input<'a>) -> Self {
        Self {
            input,
            source,
            links: LinkTracker::default(),
            ready: VecDeque::new(),
            current: None,
            state: ReaderState::Fresh,
            garbage: None,
        }
    }

    /// Sets the limit on the data of compressed archives.
    pub(crate) fn limited(mut self, limit: Expansion) -> Self {
        self.input.set_limit(limit);
        self
    }

    /// Returns the next member, or `None` at the end of the last archive.
    ///
    /// # Errors
    ///
    /// An archive is damaged or uses an unsupported feature. Nothing can be read afterwards.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, SourceError> {
        if self.state == ReaderState::Failed {
            let what = "nothing can be read after an error in the archive";
            return Err(SourceError::usage(what).in_source(&self.source));
        }
        let entry = self.advance();
        entry.map_err(|e| {
            self.state = ReaderState::Failed;
            self.with_archive(e)
        })
    }

    /// Warning about bytes after a gzip stream that were ignored. Complete at the end.
    pub fn warning(&self) -> Option<String> {
        self.garbage.map(|at| garbage_warning(&self.source, at))
    }

    /// Data of the last member from [`next_entry`](Self::next_entry), if it came with
    /// [`Content::Stream`].
    pub fn data(&mut self) -> MemberData<'_, 'a> {
        MemberData { cpio: self }
    }

    /// Adds the archive to an error.
    fn with_archive(&self, error: SourceError) -> SourceError {
        match self.input.compressed_at() {
            Some(at) => error.in_source(&format!("{}: archive at byte {at}", self.source)),
            None => error.in_source(&self.source),
        }
    }

    fn advance(&mut self) -> Result<Option<Entry>, SourceError> {
        loop {
            if let Some(link) = self.ready.pop_front() {
                if let Some(current) = &mut self.current {
                    current.readable = false;
                }
                return Ok(Some(link));
            }
            self.pass_over_current()?;
            match self.state {
                ReaderState::Fresh | ReaderState::Between => {
                    if !self.input.next_archive()? {
                        if self.state == ReaderState::Fresh {
                            return Err(SourceError::corrupt("the source is empty").at_byte(0));
                        }
                        self.state = ReaderState::Ended;
                        continue;
                    }
                }
                ReaderState::Within => {}
                ReaderState::Ended | ReaderState::Failed => return Ok(None),
            }
            if let Some(entry) = self.member()? {
                return Ok(Some(entry));
            }
        }
    }

    /// Reads one member. `None` for a trailer, or a name that waits for its data.
    fn member(&mut self) -> Result<Option<Entry>, SourceError> {
        let at = self.input.position();
        let mut head = [0; HEADER_LEN];
        let n = self.input.fill(&mut head)?;
        let between = self.state != ReaderState::Within;
        if between && !head[..n].starts_with(b"0707") && !header::is_header(&head[..n]) {
            if self.input.follows_gzip() {
                self.garbage = Some(at);
                self.state = ReaderState::Ended;
                return Ok(None);
            }
            let what = "neither a cpio archive nor zeros";
            return Err(SourceError::corrupt(what).at_byte(at));
        }
        if n < HEADER_LEN {
            let what = match n {
                0 => "the archive ends without a trailer".to_owned(),
                _ => format!("header is cut short, expected {HEADER_LEN} bytes, found {n}"),
            };
            return Err(SourceError::corrupt(what).at_byte(at));
        }
        let header = Header::parse(&head).map_err(|e| e.at_byte(at))?;
        self.state = ReaderState::Within;
        let raw = self.name(&header).map_err(|e| e.at_byte(at))?;
        self.begin(&header, &raw, at);
        if raw == TRAILER {
            self.pass_over_current()?;
            self.ready.extend(self.links.end());
            self.state = ReaderState::Between;
            return Ok(None);
        }
        let entry = self.entry(&header, &raw);
        entry.map_err(|e| e.in_member(&raw).at_byte(at))
    }

    fn name(&mut self, header: &Header) -> Result<Vec<u8>, SourceError> {
        let len = header.name_len;
        if len > NAME_BYTES_MAX {
            let what = format!("name of {len} bytes, at most {NAME_BYTES_MAX} are read");
            return Err(SourceError::limit(what));
        }
        // Fits, as all lengths below: at most `NAME_BYTES_MAX`.
        let mut name = vec![0; len as usize];
        if self.input.fill(&mut name)? < name.len() {
            return Err(SourceError::corrupt("name is cut short"));
        }
        if name.pop() != Some(0) || name.contains(&0) {
            let what = "name does not end with its only zero byte";
            return Err(SourceError::corrupt(what));
        }
        self.input
            .skip(padding(HEADER_LEN as u64 + u64::from(len)))?;
        Ok(name)
    }

    /// Starts the data of a member.
    fn begin(&mut self, header: &Header, raw: &[u8], at: u64) {
        let stored = u64::from(header.size);
        self.current = Some(CurrentMember {
            path: raw.to_vec(),
            header_at: at,
            stored,
            left: stored,
            padding: padding(stored),
            readable: false,
            // Writers disagree about checksums of symbolic links.
            sum: header.sum.filter(|_| header.is_file()).map(|sum| (sum, 0)),
        });
    }

    fn entry(&mut self, header: &Header, raw: &[u8]) -> Result<Option<Entry>, SourceError> {
        let path = normalise(raw, "path")?;
        let meta = Meta {
            // Fits: 12 bits.
            mode: (header.mode & 0o7777) as u16,
            uid: header.uid,
            gid: header.gid,
            mtime: header.mtime.into(),
            mtime_nsec: 0,
        };
        self.links.remove_replaced(&path);
        let device = || {
            let (major, minor) = header.rdev;
            Device::new(major.into(), minor.into()).ok_or_else(|| {
                SourceError::corrupt(format!(
                    "device number {major},{minor}: expected a major below 4096 and a minor below 1048576"
                ))
            })
        };
        let kind = match header.mode & 0o170_000 {
            0o100_000 => Kind::File {
                size: header.size.into(),
            },
            0o040_000 => Kind::Dir,
            0o120_000 => Kind::Symlink(self.target(header)?),
            0o020_000 => Kind::Char(device()?),
            0o060_000 => Kind::Block(device()?),
            0o010_000 => Kind::Fifo,
            0o140_000 => Kind::Socket,
            other => {
                let what = format!("file type {other:o} is not known (octal)");
                return Err(SourceError::unsupported(what));
            }
        };
        if path.is_empty() && kind != Kind::Dir {
            let what = "the root is given as something that is not a directory";
            return Err(SourceError::corrupt(what));
        }
        let mut entry = Entry {
            path,
            kind,
            meta,
            xattrs: Vec::new(),
            content: Content::None,
        };
        let is_linked = header.nlink > 1 && !matches!(entry.kind, Kind::Dir | Kind::Symlink(_));
        if is_linked && let Some(first) = self.links.first(header.inode) {
            entry.kind = Kind::Hardlink(first.clone());
            return Ok(Some(entry));
        }
        if is_linked && entry.kind == (Kind::File { size: 0 }) {
            self.links.defer(header.inode, entry);
            return Ok(None);
        }
        if matches!(entry.kind, Kind::File { size: 1.. }) {
            entry.content = self.content()?;
        }
        if is_linked {
            self.ready = self.links.resolve(header.inode, &entry.path);
        }
        Ok(Some(entry))
    }

    /// Location of the current member's data.
    fn content(&mut self) -> Result<Content, SourceError> {
        let Some(current) = &mut self.current else {
            return Ok(Content::None);
        };
        let Some(offset) = self.input.offset() else {
            current.readable = true;
            return Ok(Content::Stream);
        };
        let have = self.input.left().unwrap_or(u64::MAX);
        if have < current.left {
            return Err(current.truncated(have));
        }
        if current.sum.is_some() {
            self.pass_over_data()?;
        }
        Ok(Content::Range { offset })
    }

    fn target(&mut self, header: &Header) -> Result<Vec<u8>, SourceError> {
        if header.size > TARGET_BYTES_MAX {
            let what = format!("symbolic link target of {} bytes", header.size);
            return Err(SourceError::corrupt(what));
        }
        let mut target = vec![0; header.size as usize];
        let mut done = 0;
        while done < target.len() {
            match self.read(&mut target[done..])? {
                0 => break,
                n => done += n,
            }
        }
        // Some writers include the terminating zero byte.
        if target.last() == Some(&0) {
            target.pop();
        }
        if target.is_empty() || target.contains(&0) {
            return Err(SourceError::corrupt(format!(
                "symbolic link to {}, expected a target without zero bytes",
                Quoted(&target)
            )));
        }
        Ok(target)
    }

    /// Reads data of the current member. Returns 0 only at its end or for an empty `buf`.
    fn read(&mut self, buf: &mut [u8]) -> Result<usize, SourceError> {
        let Some(current) = &mut self.current else {
            return Ok(0);
        };
        let len = usize::try_from(current.left).unwrap_or(usize::MAX);
        let len = len.min(buf.len());
        if len == 0 {
            return Ok(0);
        }
        let n = self.input.fill(&mut buf[..len])?;
        current.left -= n as u64;
        if n < len {
            return Err(current.truncated(current.stored - current.left));
        }
        if let Some((_, sum)) = &mut current.sum {
            let add = |sum: u32, byte: &u8| sum.wrapping_add((*byte).into());
            *sum = buf[..n].iter().fold(*sum, add);
        }
        match current.sum {
            Some((expected, found)) if current.left == 0 && expected != found => {
                Err(SourceError::corrupt(format!(
                    "checksum of the data is wrong, expected {expected:#010x}, found {found:#010x}"
                ))
                .in_member(&current.path)
                .at_byte(current.header_at))
            }
            _ => Ok(n),
        }
    }

    /// Reads the rest of the current member's data to verify its checksum.
    fn pass_over_data(&mut self) -> Result<(), SourceError> {
        let mut buf = vec![0; 64 << 10];
        while self.read(&mut buf)? > 0 {}
        Ok(())
    }

    fn pass_over_current(&mut self) -> Result<(), SourceError> {
        if self.current.as_ref().is_some_and(|c| c.sum.is_some()) {
            self.pass_over_data()?;
        }
        let Some(current) = self.current.take() else {
            return Ok(());
        };
        let passed = self.input.skip(current.left)?;
        if passed < current.left {
            return Err(current.truncated(current.stored - current.left + passed));
        }
        // Padding may be missing at the end of the source.
        self.input.skip(current.padding)?;
        Ok(())
    }
}

impl CurrentMember {
    fn truncated(&self, found: u64) -> SourceError {
        SourceError::corrupt(format!(
            "stored bytes end early, expected {}, found {found}",
            self.stored
        ))
        .in_member(&self.path)
        .at_byte(self.header_at)
    }
}

/// Number of zeros up to a multiple of 4, counted from the header.
fn padding(len: u64) -> u64 {
    len.next_multiple_of(4) - len
}

/// Data of one member; see [`CpioReader::data`].
pub struct MemberData<'r, 'a> {
    cpio: &'r mut CpioReader<'a>,
}

impl Read for MemberData<'_, '_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match &self.cpio.current {
            Some(current) if current.readable && self.cpio.state == ReaderState::Within => {}
            _ => return Ok(0),
        }
        let read = self.cpio.read(buf);
        Ok(read.map_err(|e| {
            self.cpio.state = ReaderState::Failed;
            self.cpio.with_archive(e)
        })?)
    }
}
