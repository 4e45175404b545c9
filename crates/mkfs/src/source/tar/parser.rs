//! The one parser under both ways of reading.
//!
//! * Between two calls of [`Parser::next_entry`] the feed stands somewhere in the data of the current member, `left`
//!   bytes before its end; [`Parser::read_data`] moves it, the next call passes over the rest.
//! * After an error the parser stays closed: what follows a broken header cannot be trusted.
//! * Memory is bounded by named limits, whatever the headers say: buffers grow only as bytes arrive.

mod member;

use super::super::Entry;
use super::super::error::SourceError;
use super::feed::Feed;
use super::header::{BLOCK, Block, Header, is_header};
use super::pax::{Field, PAX_BYTES_MAX, Pax, Scope};
use crate::tally::AffectedPaths;

/// Longest name or link target in a GNU `L` or `K` record. Unit: bytes.
pub(super) const LONG_NAME_BYTES_MAX: u64 = 1 << 20;

/// Largest piece of an extended header that is allocated before it was seen to exist. Unit: bytes.
const READ_STEP: usize = 64 << 10;

/// What begins with zeros is an archive without members if so much behind them is zeros, too. Unit: bytes.
const BLANK_BYTES: usize = 128 << 10;

pub(super) struct Parser<F> {
    feed: F,
    source: String,
    global: Pax,
    peeked: Option<Read>,
    current: Option<Current>,
    state: State,
    /// There was a header.
    begun: bool,
    /// Members with an ACL for names whose number is not known.
    nameless: AffectedPaths,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Reading,
    Ended,
    Failed,
}

/// A block as far as the source had it.
struct Read {
    block: Block,
    /// Less than a block only at the end of the source.
    len: usize,
}

/// The member whose data comes next.
struct Current {
    path: Vec<u8>,
    header_at: u64,
    /// Bytes in the archive, without padding.
    stored: u64,
    /// How many of them lie ahead.
    left: u64,
    /// Zeros after them.
    padding: u64,
    /// Whether the data belongs to the entry; a hard link's does not.
    readable: bool,
}

impl Current {
    fn truncated(&self, found: u64) -> SourceError {
        SourceError::corrupt(format!(
            "stored bytes end early, expected {}, found {found}",
            self.stored
        ))
        .in_member(&self.path)
        .at_byte(self.header_at)
    }
}

/// What headers in front of a member say about it.
#[derive(Default)]
struct Pending {
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
            state: State::Reading,
            begun: false,
            nameless: AffectedPaths::default(),
        }
    }

    /// What was left out of the members so far.
    pub(super) fn warning(&self) -> Option<String> {
        let warning = self.nameless.warning(
            "ACL entries for names, without a number, were left out (tar --numeric-owner writes numbers)",
        )?;
        Some(format!("{}: {warning}", self.source))
    }

    /// The next member; `None` at the end of the archive.
    pub(super) fn next_entry(&mut self) -> Result<Option<Entry>, SourceError> {
        match self.state {
            State::Ended => return Ok(None),
            State::Failed => {
                return Err(SourceError::usage(
                    "nothing can be read after an error in the archive",
                )
                .in_source(&self.source));
            }
            State::Reading => {}
        }
        // Holds for every early return below.
        self.state = State::Failed;
        let entry = self.advance().map_err(|e| e.in_source(&self.source))?;
        self.state = match entry {
            Some(_) => State::Reading,
            None => State::Ended,
        };
        Ok(entry)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.state == State::Failed
    }

    /// Reads the data of the current member. 0 only at its end or for an empty `buf`.
    pub(super) fn read_data(&mut self, buf: &mut [u8]) -> Result<usize, SourceError> {
        let Some(current) = self.current.as_mut().filter(|current| current.readable) else {
            return Ok(0);
        };
        let wanted = usize::try_from(current.left).unwrap_or(usize::MAX);
        let wanted = wanted.min(buf.len());
        if wanted == 0 {
            return Ok(0);
        }
        let at = self.feed.position();
        let got = self.feed.fill(&mut buf[..wanted]).map_err(|e| {
            SourceError::from(e)
                .in_member(&current.path)
                .at_byte(at)
                .in_source(&self.source)
        })?;
        current.left -= got as u64;
        if got < wanted {
            let found = current.stored - current.left;
            return Err(current.truncated(found).in_source(&self.source));
        }
        Ok(got)
    }

    /// How many bytes of the current member can still be read.
    pub(super) fn data_left(&self) -> u64 {
        match &self.current {
            Some(current) if current.readable => current.left,
            _ => 0,
        }
    }

    /// Reads the source to its end. Returns how many bytes that were.
    pub(super) fn drain(&mut self) -> Result<u64, SourceError> {
        let at = self.feed.position();
        self.feed
            .skip(u64::MAX)
            .map_err(|e| SourceError::from(e).at_byte(at).in_source(&self.source))
    }

    fn advance(&mut self) -> Result<Option<Entry>, SourceError> {
        self.pass_over_current()?;
        let mut pending = Pending::default();
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
                    pending.pax.take(&body, body_at, Scope::Local)?;
                    pending.has_pax = true;
                }
                b'g' => {
                    let (body_at, body) = self.read_extension(&header, at, PAX_BYTES_MAX)?;
                    self.global.take(&body, body_at, Scope::Global)?;
                    // Stands alone: git writes one and nothing else for an empty tree.
                    continue;
                }
                b'L' => pending.long_path = Some(self.read_long_name(&header, at)?),
                b'K' => pending.long_link = Some(self.read_long_name(&header, at)?),
                // A volume's label, and Solaris ACLs as text.
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
                _ => {
                    let raw_path = raw_path(&header, &pending);
                    let entry = self.member(&header, at, pending, &raw_path);
                    return entry
                        .map(Some)
                        .map_err(|e| e.in_member(&raw_path).at_byte(at));
                }
            }
            pending.first_at.get_or_insert(at);
        }
    }

    /// Makes what comes next the data of a member.
    fn begin(&mut self, raw_path: &[u8], at: u64, stored: u64, readable: bool) {
        let block = BLOCK as u64;
        let padding = (block - stored % block) % block;
        let mut current = Current {
            path: raw_path.to_vec(),
            header_at: at,
            stored,
            left: stored,
            padding,
            readable,
        };
        // Only a hard link's first block is ever looked at in advance, and here it turned out to be data.
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
        // Padding that is missing at the end of the source is no loss.
        self.feed.skip(current.padding).map_err(failed)?;
        Ok(())
    }

    /// The body of an extended header, and where it begins.
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

    /// The body of an `L` or `K` header: a name with a zero byte after it.
    fn read_long_name(&mut self, header: &Header, at: u64) -> Result<Vec<u8>, SourceError> {
        let (_, mut name) = self.read_extension(header, at, LONG_NAME_BYTES_MAX)?;
        if let Some(end) = name.iter().position(|&c| c == 0) {
            name.truncate(end);
        }
        Ok(name)
    }

    /// The next block that is a header. `None` at the end of the archive.
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
            self.begun = true;
            return Ok(Some(read.block));
        }
        // Two blocks of zeros end an archive. What follows them is nobody's business, and one of them, or none, is
        // enough at the end of the source; but one between two members means that something went wrong.
        if !self.begun && read.len == 0 {
            let what = "nothing is there; an archive without members has blocks of zeros";
            return Err(SourceError::corrupt(what).at_byte(at));
        }
        if read.len == BLOCK {
            let mut second = self.read_block()?;
            if second.len == BLOCK && is_header(&second.block) {
                return Err(SourceError::corrupt(
                    "a single block of zeros, with another member after it",
                )
                .at_byte(at));
            }
            // An image of a filesystem begins with zeros, too.
            let mut looked = 0;
            while !self.begun && second.len == BLOCK && looked < BLANK_BYTES {
                if second.block.iter().any(|&c| c != 0) {
                    let what = "zeros where the first member should be, and other bytes behind them: this is no tar";
                    return Err(SourceError::corrupt(what).at_byte(at));
                }
                second = self.read_block()?;
                looked += BLOCK;
            }
        }
        Ok(None)
    }

    fn read_block(&mut self) -> Result<Read, SourceError> {
        if let Some(read) = self.peeked.take() {
            return Ok(read);
        }
        let at = self.feed.position();
        let mut block = [0; BLOCK];
        let len = self
            .feed
            .fill(&mut block)
            .map_err(|e| SourceError::from(e).at_byte(at))?;
        Ok(Read { block, len })
    }

    /// Where the next block begins.
    pub(super) fn position(&self) -> u64 {
        let peeked = self.peeked.as_ref().map_or(0, |read| read.len as u64);
        self.feed.position() - peeked
    }
}

/// The member's name: what tells more counts before what tells less.
fn raw_path(header: &Header, pending: &Pending) -> Vec<u8> {
    if let Some(name) = pending.pax.sparse.name() {
        return name.to_vec();
    }
    match (pending.pax.path.resolve(&Field::Absent), &pending.long_path) {
        (Some(path), _) => path,
        (None, Some(path)) => path.clone(),
        (None, None) => header.path(),
    }
}
