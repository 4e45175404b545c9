//! Parser shared by both readers.
//!
//! * Between two calls of [`Parser::next_entry`] the feed is within the data of the current member,
//!   `left` bytes before its end. [`Parser::read_data`] advances it, and the next call skips the
//!   rest.
//! * After an error the parser stays closed, since data after a damaged header cannot be trusted.
//! * Memory is bounded by named limits: buffers grow only as bytes arrive.

mod member;

use super::super::Entry;
use super::super::error::SourceError;
use super::feed::Feed;
use super::header::{BLOCK, Block, Header, is_header};
use super::pax::{Field, PAX_BYTES_MAX, Pax, Scope};
use crate::source::tally::AffectedPaths;

/// Maximum length of a name or link target in a GNU `L` or `K` record. Unit: bytes.
pub(super) const LONG_NAME_BYTES_MAX: u64 = 1 << 20;

/// Size of the steps in which an extended header is allocated while it is read. Unit: bytes.
const READ_STEP: usize = 64 << 10;

/// Length of leading zeros that identify an archive without members. Unit: bytes.
const BLANK_BYTES: usize = 128 << 10;

pub(super) struct Parser<F> {
    feed: F,
    source: String,
    global: Pax,
    peeked: Option<BlockRead>,
    current: Option<CurrentMember>,
    state: ParserState,
    /// A header was read.
    has_member: bool,
    /// The source ends without a block of zeros.
    is_unended: bool,
    /// A global header gives a name or a link target to every member.
    has_global_name: bool,
    /// Number of members without a name that were left out.
    nameless: u64,
    /// Members whose ACL has names without a number.
    unnumbered_acls: AffectedPaths,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ParserState {
    Reading,
    Ended,
    Failed,
}

/// Type of a member, according to its type flag.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MemberType {
    File,
    OldSparse,
    Dir,
    Symlink,
    Hardlink,
    Char,
    Block,
    Fifo,
}

/// Block as read from the source.
struct BlockRead {
    block: Block,
    /// Less than a block only at the end of the source.
    len: usize,
}

/// Member whose data comes next.
struct CurrentMember {
    path: Vec<u8>,
    header_at: u64,
    /// Length of its data in the archive, without padding. Unit: bytes.
    stored: u64,
    /// Number of its bytes that were not read. Unit: bytes.
    left: u64,
    /// Number of zeros after the data. Unit: bytes.
    padding: u64,
    /// The data belongs to the entry; that of a hard link does not.
    readable: bool,
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

/// Extended headers that precede a member.
#[derive(Default)]
struct PendingHeaders {
    first_at: Option<u64>,
    has_pax: bool,
    pax: Pax,
    long_path: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
}

impl<F: Feed> Parser<F> {
    pub(super) fn new(source: String, feed: F) -> Self {
        Self {
            feed,
            source,
            global: Pax::default(),
            peeked: None,
            current: None,
            state: ParserState::Reading,
            has_member: false,
            is_unended: false,
            has_global_name: false,
            nameless: 0,
            unnumbered_acls: AffectedPaths::default(),
        }
    }

    /// Warnings about what was left out, and about an archive that may be cut.
    pub(super) fn warnings(&self) -> Vec<String> {
        let acls = self.unnumbered_acls.warning(
            "ACL entries for names, without a number, were left out (tar --numeric-owner writes numbers)",
        );
        let nameless = (self.nameless > 0)
            .then(|| format!("members without a name were left out: {}", self.nameless));
        let global = "path or linkpath in a global extended header was left out";
        let global = self.has_global_name.then(|| global.to_owned());
        let end =
            "no blocks of zeros mark the end of the archive; if it is cut, members are missing";
        let end = self.is_unended.then(|| end.to_owned());
        let all = [acls, nameless, global, end].into_iter().flatten();
        all.map(|warning| format!("{}: {warning}", self.source))
            .collect()
    }

    /// Returns the next member, or `None` at the end of the archive.
    pub(super) fn next_entry(&mut self) -> Result<Option<Entry>, SourceError> {
        match self.state {
            ParserState::Ended => return Ok(None),
            ParserState::Failed => {
                return Err(SourceError::usage(
                    "nothing can be read after an error in the archive",
                )
                .in_source(&self.source));
            }
            ParserState::Reading => {}
        }
        // Every early return below leaves the parser closed.
        self.state = ParserState::Failed;
        let entry = self.advance().map_err(|e| e.in_source(&self.source))?;
        self.state = match entry {
            Some(_) => ParserState::Reading,
            None => ParserState::Ended,
        };
        Ok(entry)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.state == ParserState::Failed
    }

    /// Reads data of the current member. Returns 0 only at its end or for an empty `buf`.
    pub(super) fn read_data(&mut self, buf: &mut [u8]) -> Result<usize, SourceError> {
        let Some(current) = self.current.as_mut().filter(|current| current.readable) else {
            return Ok(0);
        };
        let len = usize::try_from(current.left).unwrap_or(usize::MAX);
        let len = len.min(buf.len());
        if len == 0 {
            return Ok(0);
        }
        let at = self.feed.position();
        let got = self.feed.fill(&mut buf[..len]).map_err(|e| {
            SourceError::from(e)
                .in_member(&current.path)
                .at_byte(at)
                .in_source(&self.source)
        })?;
        current.left -= got as u64;
        if got < len {
            let found = current.stored - current.left;
            return Err(current.truncated(found).in_source(&self.source));
        }
        Ok(got)
    }

    /// Number of bytes of the current member that can still be read.
    pub(super) fn data_left(&self) -> u64 {
        match &self.current {
            Some(current) if current.readable => current.left,
            _ => 0,
        }
    }

    /// Reads the source to its end. Returns the number of bytes.
    pub(super) fn drain(&mut self) -> Result<u64, SourceError> {
        let at = self.feed.position();
        self.feed
            .skip(u64::MAX)
            .map_err(|e| SourceError::from(e).at_byte(at).in_source(&self.source))
    }

    fn advance(&mut self) -> Result<Option<Entry>, SourceError> {
        self.pass_over_current()?;
        let mut pending = PendingHeaders::default();
        loop {
            let at = self.position();
            let Some(block) = self.read_header_block(at)? else {
                return match pending.first_at {
                    None => Ok(None),
                    Some(first_at) => Err(SourceError::corrupt(
                        "extended header without a member after it",
                    )
                    .at_byte(first_at)),
                };
            };
            let header = Header::verify(block).map_err(|e| e.at_byte(at))?;
            match header.flag() {
                b'x' | b'X' => {
                    let (body_at, body) = self.read_extension(&header, at, PAX_BYTES_MAX)?;
                    // The last of several headers counts, as in GNU tar.
                    pending.pax = Pax::default();
                    pending.pax.take(&body, body_at, Scope::Local)?;
                    pending.has_pax = true;
                }
                b'g' => {
                    let (body_at, body) = self.read_extension(&header, at, PAX_BYTES_MAX)?;
                    self.global.take(&body, body_at, Scope::Global)?;
                    self.has_global_name |= self.global.has_name();
                    // May stand alone: git writes only this header for an empty tree.
                    continue;
                }
                b'L' => pending.long_path = Some(self.read_long_name(&header, at)?),
                b'K' => pending.long_link = Some(self.read_long_name(&header, at)?),
                // A volume label, and Solaris ACLs as text.
                b'V' | b'A' => {
                    self.begin(
                        &header.path(),
                        at,
                        header.size().map_err(|e| e.at_byte(at))?,
                        false,
                    );
                    self.pass_over_current()?;
                    continue;
                }
                flag => {
                    let mut raw_path = raw_path(&header, &pending);
                    if raw_path.is_empty() && matches!(flag, b'5' | b'D') {
                        raw_path = b".".to_vec();
                    }
                    if raw_path.is_empty() {
                        self.leave_out(&header, at, &pending)?;
                        pending = PendingHeaders::default();
                        continue;
                    }
                    let entry = self.member(&header, at, pending, &raw_path);
                    return entry
                        .map(Some)
                        .map_err(|e| e.in_member(&raw_path).at_byte(at));
                }
            }
            pending.first_at.get_or_insert(at);
        }
    }

    /// Skips a member that has no name.
    fn leave_out(
        &mut self,
        header: &Header,
        at: u64,
        pending: &PendingHeaders,
    ) -> Result<(), SourceError> {
        let stored = self.stored(header, b"", pending);
        let (member_type, stored) = stored.map_err(|e| e.at_byte(at))?;
        self.begin(b"", at, stored, false);
        if member_type == MemberType::OldSparse {
            self.old_sparse_runs(header).map_err(|e| e.at_byte(at))?;
        }
        self.nameless += 1;
        self.pass_over_current()
    }

    /// Starts the data of a member.
    fn begin(&mut self, raw_path: &[u8], at: u64, stored: u64, readable: bool) {
        let block = BLOCK as u64;
        let padding = (block - stored % block) % block;
        let mut current = CurrentMember {
            path: raw_path.to_vec(),
            header_at: at,
            stored,
            left: stored,
            padding,
            readable,
        };
        // Only the first block after a hard link is peeked, and here it turned out to be data.
        if stored > 0 && self.peeked.take().is_some() {
            current.left = stored.saturating_sub(block);
            if stored <= block {
                current.padding = 0;
            }
        }
        self.current = Some(current);
    }

    fn pass_over_current(&mut self) -> Result<(), SourceError> {
        let Some(current) = self.current.take() else {
            return Ok(());
        };
        let at = self.feed.position();
        let failed = |e| SourceError::from(e).in_member(&current.path).at_byte(at);
        let passed = self.feed.skip(current.left).map_err(failed)?;
        if passed < current.left {
            return Err(current.truncated(current.stored - current.left + passed));
        }
        let passed = self.feed.skip(current.padding).map_err(failed)?;
        if passed < current.padding {
            return Err(SourceError::corrupt(format!(
                "the archive ends within the zeros after the member, expected {}, found {passed}: it is cut, and later members are missing",
                current.padding
            ))
            .in_member(&current.path)
            .at_byte(current.header_at));
        }
        Ok(())
    }

    /// Body of an extended header, and its position.
    fn read_extension(
        &mut self,
        header: &Header,
        at: u64,
        limit: u64,
    ) -> Result<(u64, Vec<u8>), SourceError> {
        let path = header.path();
        let size = header.size().map_err(|e| e.in_member(&path).at_byte(at))?;
        if size > limit {
            return Err(SourceError::limit(format!(
                "extended header of {size} bytes, at most {limit} are read"
            ))
            .in_member(&path)
            .at_byte(at));
        }
        self.begin(&path, at, size, true);
        let body_at = self.position();
        // Fits: at most `limit`.
        let size = size as usize;
        let mut body = Vec::new();
        while body.len() < size {
            let from = body.len();
            body.resize(size.min(from + READ_STEP), 0);
            self.read_data(&mut body[from..])?;
        }
        self.pass_over_current()?;
        Ok((body_at, body))
    }

    /// Body of an `L` or `K` header: a name with a terminating zero byte.
    fn read_long_name(&mut self, header: &Header, at: u64) -> Result<Vec<u8>, SourceError> {
        let (_, mut name) = self.read_extension(header, at, LONG_NAME_BYTES_MAX)?;
        if let Some(end) = name.iter().position(|&c| c == 0) {
            name.truncate(end);
        }
        Ok(name)
    }

    /// Returns the next header block, or `None` at the end of the archive.
    fn read_header_block(&mut self, at: u64) -> Result<Option<Block>, SourceError> {
        let read = self.read_block()?;
        let bytes = &read.block[..read.len];
        if bytes.iter().any(|&c| c != 0) {
            if read.len < BLOCK {
                return Err(SourceError::corrupt(format!(
                    "header is cut short, expected {BLOCK} bytes, found {}",
                    read.len
                ))
                .at_byte(at));
            }
            self.has_member = true;
            return Ok(Some(read.block));
        }
        // Two blocks of zeros end an archive, and data after them is ignored. At the end of the
        // source, one or none is enough; one between two members is an error.
        if !self.has_member && read.len == 0 {
            let what = "the archive is empty; an archive without members has blocks of zeros";
            return Err(SourceError::corrupt(what).at_byte(at));
        }
        if !self.has_member && read.len < BLOCK {
            let what = format!("not a tar: {} bytes, and no block of {BLOCK}", read.len);
            return Err(SourceError::corrupt(what).at_byte(at));
        }
        self.is_unended = read.len < BLOCK;
        if read.len == BLOCK {
            let mut second = self.read_block()?;
            if second.len == BLOCK && is_header(&second.block) {
                return Err(SourceError::corrupt(
                    "a single block of zeros, with another member after it",
                )
                .at_byte(at));
            }
            // A filesystem image begins with zeros, too.
            let mut zeros_checked = 0;
            while !self.has_member && second.len == BLOCK && zeros_checked < BLANK_BYTES {
                if second.block.iter().any(|&c| c != 0) {
                    let what =
                        "zeros instead of the first member, followed by other bytes: not a tar";
                    return Err(SourceError::corrupt(what).at_byte(at));
                }
                second = self.read_block()?;
                zeros_checked += BLOCK;
            }
        }
        Ok(None)
    }

    fn read_block(&mut self) -> Result<BlockRead, SourceError> {
        if let Some(read) = self.peeked.take() {
            return Ok(read);
        }
        let at = self.feed.position();
        let mut block = [0; BLOCK];
        let len = self
            .feed
            .fill(&mut block)
            .map_err(|e| SourceError::from(e).at_byte(at))?;
        Ok(BlockRead { block, len })
    }

    /// Position of the next block.
    pub(super) fn position(&self) -> u64 {
        let peeked = self.peeked.as_ref().map_or(0, |read| read.len as u64);
        self.feed.position() - peeked
    }
}

/// Name of the member by precedence: sparse name, PAX path, GNU long name, header.
fn raw_path(header: &Header, pending: &PendingHeaders) -> Vec<u8> {
    if let Some(name) = pending.pax.sparse.name() {
        return name.to_vec();
    }
    match (pending.pax.path.resolve(&Field::Absent), &pending.long_path) {
        (Some(path), _) => path,
        (None, Some(path)) => path.clone(),
        (None, None) => header.path(),
    }
}
