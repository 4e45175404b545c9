//! Input of cpio archives: plain and compressed sections of a stream or a file.

use super::super::compressed::{Compression, MAGIC_LEN, SingleStream, decode_error};
use super::super::error::SourceError;
use super::super::expansion::Expansion;
use super::header::{HEADER_LEN, is_header};
use std::io::{self, BufRead, BufReader, Read};
use tuff_store::ReadAt;

const STREAM_BUFFER: usize = 64 << 10;

/// Buffer size of reads around a header. Unit: bytes.
const STORE_BUFFER: usize = 4 << 10;

/// Length of the stream's start that [`begins`] examines: enough for the first bytes of any
/// compressed block. Unit: bytes.
const START_LEN: u64 = 256 << 10;

pub(super) enum Input<'a> {
    Plain(RawInput<'a>),
    Compressed {
        reader: Box<BufReader<Frame<'a>>>,
        /// Number of decoded bytes.
        position: u64,
        /// Start of the section in the source. Unit: bytes.
        start: u64,
    },
    /// Placeholder while the state changes.
    Taken,
}

/// Unmodified bytes of the source.
pub(super) struct RawInput<'a> {
    reader: RawReader<'a>,
    /// Bytes that were peeked.
    back: Vec<u8>,
    back_at: usize,
    position: u64,
    /// The last section was in gzip.
    follows_gzip: bool,
    /// Limit on the data of compressed sections.
    limit: Expansion,
}

enum RawReader<'a> {
    Stream(BufReader<Box<dyn Read + Send + 'a>>),
    Store(BufReader<StoreReader<'a>>),
}

struct StoreReader<'a> {
    store: &'a dyn ReadAt,
    at: u64,
}

/// Single gzip member, xz stream or Zstandard frame.
pub(super) struct Frame<'a> {
    stream: SingleStream<RawInput<'a>>,
    /// Start of the frame in the source. Unit: bytes.
    start: u64,
    /// Number of decoded bytes.
    decoded: u64,
}

impl Read for StoreReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.store.read_at(buf, self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

impl Read for Frame<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.stream.read(buf).map_err(|e| {
            if e.kind() == io::ErrorKind::Interrupted {
                return e;
            }
            decode_error(self.stream.format(), self.stream.input().position, e).into()
        })?;
        self.decoded += n as u64;
        let input = self.stream.input();
        input
            .limit
            .check(self.decoded, input.position - self.start)?;
        Ok(n)
    }
}

impl Read for RawInput<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let have = self.fill_buf()?;
        let n = have.len().min(buf.len());
        buf[..n].copy_from_slice(&have[..n]);
        self.consume(n);
        Ok(n)
    }
}

impl BufRead for RawInput<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.back_at < self.back.len() {
            return Ok(&self.back[self.back_at..]);
        }
        match &mut self.reader {
            RawReader::Stream(reader) => reader.fill_buf(),
            RawReader::Store(reader) => reader.fill_buf(),
        }
    }

    fn consume(&mut self, n: usize) {
        self.position += n as u64;
        if self.back_at < self.back.len() {
            self.back_at += n;
            return;
        }
        match &mut self.reader {
            RawReader::Stream(reader) => reader.consume(n),
            RawReader::Store(reader) => reader.consume(n),
        }
    }
}

impl RawInput<'_> {
    /// Returns the next bytes without consuming them.
    fn peek(&mut self, len: usize) -> io::Result<&[u8]> {
        let mut bytes = vec![0; len];
        let n = fill(self, &mut bytes)?;
        bytes.truncate(n);
        bytes.extend(self.back.drain(self.back_at..));
        (self.back, self.back_at) = (bytes, 0);
        self.position -= n as u64;
        Ok(&self.back[..n])
    }

    /// Number of remaining bytes, if known.
    fn left(&self) -> Option<u64> {
        match &self.reader {
            RawReader::Stream(_) => None,
            RawReader::Store(reader) => {
                let store = reader.get_ref().store;
                Some(store.size().saturating_sub(self.position))
            }
        }
    }

    /// Skips bytes by seeking. Returns how many of `count` were skipped.
    fn jump(&mut self, count: u64) -> u64 {
        let Some(left) = self.left() else { return 0 };
        let count = count.min(left);
        let RawReader::Store(reader) = &mut self.reader else {
            return 0;
        };
        let buffered = reader.buffer().len() as u64;
        if self.back_at < self.back.len() || count <= buffered {
            return 0;
        }
        reader.consume(reader.buffer().len());
        reader.get_mut().at += count - buffered;
        self.position += count;
        count
    }
}

impl<'a> Input<'a> {
    pub(super) fn stream(reader: Box<dyn Read + Send + 'a>) -> Self {
        let reader = BufReader::with_capacity(STREAM_BUFFER, reader);
        Self::raw(RawReader::Stream(reader))
    }

    pub(super) fn store(store: &'a dyn ReadAt) -> Self {
        let store = StoreReader { store, at: 0 };
        Self::raw(RawReader::Store(BufReader::with_capacity(
            STORE_BUFFER,
            store,
        )))
    }

    fn raw(reader: RawReader<'a>) -> Self {
        Self::Plain(RawInput {
            reader,
            back: Vec::new(),
            back_at: 0,
            position: 0,
            follows_gzip: false,
            limit: Expansion::default(),
        })
    }

    /// Sets the limit on the data of compressed sections, before anything is read.
    pub(super) fn set_limit(&mut self, limit: Expansion) {
        if let Self::Plain(raw) = self {
            raw.limit = limit;
        }
    }

    fn reader(&mut self) -> &mut dyn BufRead {
        match self {
            Self::Plain(raw) => raw,
            Self::Compressed { reader, .. } => reader,
            Self::Taken => unreachable!("the placeholder is replaced before it is used"),
        }
    }

    /// Position in the source, or in the decoded data of a compressed section. Unit: bytes.
    pub(super) fn position(&self) -> u64 {
        match self {
            Self::Plain(raw) => raw.position,
            Self::Compressed { position, .. } => *position,
            Self::Taken => 0,
        }
    }

    /// True after a section in gzip, until the next archive begins.
    pub(super) fn follows_gzip(&self) -> bool {
        matches!(self, Self::Plain(raw) if raw.follows_gzip)
    }

    /// Start of the current compressed section.
    pub(super) fn compressed_at(&self) -> Option<u64> {
        match self {
            Self::Compressed { start, .. } => Some(*start),
            _ => None,
        }
    }

    /// Position of the next bytes in the source, if they can be read there later.
    pub(super) fn offset(&self) -> Option<u64> {
        self.left().map(|_| self.position())
    }

    /// Number of remaining bytes, if known.
    pub(super) fn left(&self) -> Option<u64> {
        match self {
            Self::Plain(raw) => raw.left(),
            _ => None,
        }
    }

    /// Fills `buf`. Returns the number of bytes read, which is smaller only at the end.
    pub(super) fn fill(&mut self, buf: &mut [u8]) -> Result<usize, SourceError> {
        let mut done = 0;
        loop {
            let n = fill(self.reader(), &mut buf[done..])?;
            if let Self::Compressed { position, .. } = self {
                *position += n as u64;
            }
            done += n;
            if done == buf.len() || !self.next_frame()? {
                return Ok(done);
            }
        }
    }

    /// Skips `count` bytes. Returns the number skipped, which is smaller only at the end.
    pub(super) fn skip(&mut self, count: u64) -> Result<u64, SourceError> {
        let mut done = match self {
            Self::Plain(raw) => raw.jump(count),
            _ => 0,
        };
        while done < count {
            let have = fill_buffer(self.reader())?.len();
            let left = usize::try_from(count - done).unwrap_or(usize::MAX);
            let n = have.min(left);
            self.reader().consume(n);
            if let Self::Compressed { position, .. } = self {
                *position += n as u64;
            }
            done += n as u64;
            if n == 0 && !self.next_frame()? {
                break;
            }
        }
        Ok(done)
    }

    /// Skips zeros up to the next archive. Returns false at the end of the source.
    pub(super) fn next_archive(&mut self) -> Result<bool, SourceError> {
        loop {
            let have = fill_buffer(self.reader())?;
            let zeros = have.iter().take_while(|b| **b == 0).count();
            let (len, at_end) = (have.len(), have.is_empty());
            self.reader().consume(zeros);
            if let Self::Compressed { position, .. } = self {
                *position += zeros as u64;
            }
            if zeros < len {
                let Self::Plain(raw) = self else {
                    return Ok(true);
                };
                let at = raw.position;
                let magic = raw.peek(MAGIC_LEN)?;
                let compression = Compression::detect(magic).map_err(|e| e.at_byte(at))?;
                if compression == Compression::Plain {
                    return Ok(true);
                }
                self.decode(compression, at, 0)?;
                continue;
            }
            if at_end {
                match std::mem::replace(self, Self::Taken) {
                    Self::Compressed { reader, .. } => {
                        let one = reader.into_inner().stream;
                        let follows_gzip = one.format() == Compression::Gzip;
                        let raw = one.into_input();
                        *self = Self::Plain(RawInput {
                            follows_gzip,
                            ..raw
                        });
                    }
                    plain => {
                        *self = plain;
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// Continues with the next frame after one that ends within an archive. Returns false if there
    /// is none of the same format.
    fn next_frame(&mut self) -> Result<bool, SourceError> {
        let (format, at, position) = match std::mem::replace(self, Self::Taken) {
            Self::Compressed {
                reader,
                position,
                start,
            } => {
                let one = reader.into_inner().stream;
                let format = one.format();
                *self = Self::Plain(one.into_input());
                (format, start, position)
            }
            plain => {
                *self = plain;
                return Ok(false);
            }
        };
        let Self::Plain(raw) = self else {
            return Ok(false);
        };
        let next = Compression::detect(raw.peek(MAGIC_LEN)?);
        // Other data is reported as an early end of the archive.
        if next.is_ok_and(|next| next == format) {
            self.decode(format, at, position)?;
            return Ok(true);
        }
        Ok(false)
    }

    fn decode(
        &mut self,
        compression: Compression,
        start: u64,
        position: u64,
    ) -> Result<(), SourceError> {
        if let Self::Plain(raw) = std::mem::replace(self, Self::Taken) {
            let at = raw.position;
            let stream = SingleStream::new(compression, raw)
                .map_err(|e| SourceError::from(e).at_byte(start))?;
            let frame = Frame {
                stream,
                start: at,
                decoded: 0,
            };
            *self = Self::Compressed {
                reader: Box::new(BufReader::with_capacity(STREAM_BUFFER, frame)),
                position,
                start,
            };
        }
        Ok(())
    }
}

fn fill(reader: &mut dyn BufRead, buf: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match reader.read(&mut buf[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Returns buffered bytes, or none at the end.
fn fill_buffer(reader: &mut dyn BufRead) -> io::Result<&[u8]> {
    loop {
        match reader.fill_buf() {
            Ok(_) => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    reader.fill_buf()
}

/// True if a stream begins with a cpio header, plain or compressed. The bytes read are appended to
/// `start`.
pub(crate) fn begins(reader: &mut dyn Read, start: &mut Vec<u8>) -> io::Result<bool> {
    reader.take(HEADER_LEN as u64).read_to_end(start)?;
    match Compression::detect(start) {
        Ok(Compression::Plain) => Ok(is_header(start)),
        // The caller reports the unsupported format.
        Err(_) => Ok(false),
        Ok(compression) => {
            reader.take(START_LEN).read_to_end(start)?;
            let mut head = Vec::new();
            let frame = SingleStream::new(compression, &start[..]);
            // Data that cannot be decoded is not a cpio.
            let decoded = frame.and_then(|one| one.take(HEADER_LEN as u64).read_to_end(&mut head));
            Ok(decoded.is_ok() && is_header(&head))
        }
    }
}
