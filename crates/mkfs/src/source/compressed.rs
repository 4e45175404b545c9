//! Compressed streams: which format it is, and a reader of what was compressed.
//!
//! Decompression runs in a thread of its own, ahead of the consumer by a few buffers.

use super::error::SourceError;
use flate2::bufread::GzDecoder;
use liblzma::bufread::XzDecoder;
use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

/// As many bytes of a file as [`Compression::detect`] wants to see. Unit: bytes.
pub const MAGIC_LEN: usize = 10;

/// How a stream is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    Plain,
    /// gzip (RFC 1952), one or several members.
    Gzip,
    /// xz, one or several streams.
    Xz,
    /// Zstandard (RFC 8878), one or several frames, also skippable ones.
    Zstd,
}

impl Compression {
    /// Tells from the first [`MAGIC_LEN`] bytes (fewer if the file is shorter). Whatever is not known is plain.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](super::error::SourceErrorKind::Unsupported) for formats that are known not to be a tar and that cannot be read: bzip2,
    /// lzip, LZ4 and compress.
    pub fn detect(magic: &[u8]) -> Result<Self, SourceError> {
        let other = match magic {
            [0x1f, 0x8b, ..] => return Ok(Self::Gzip),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => return Ok(Self::Xz),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => return Ok(Self::Zstd),
            // A frame to be skipped, which may come first.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => return Ok(Self::Zstd),
            // With the magic of the first block: the text alone could be the name of a tar's first member.
            [
                b'B',
                b'Z',
                b'h',
                b'1'..=b'9',
                0x31,
                0x41,
                0x59,
                0x26,
                0x53,
                0x59,
                ..,
            ] => "bzip2",
            [b'L', b'Z', b'I', b'P', 1, ..] => "lzip",
            // A frame, and what an initramfs has.
            [0x04, 0x22, 0x4d, 0x18, ..] | [0x02, 0x21, 0x4c, 0x18, ..] => "LZ4",
            [0x1f, 0x9d, ..] => "compress",
            _ => return Ok(Self::Plain),
        };
        Err(SourceError::unsupported(format!(
            "compressed with {other}; gzip, xz and zstd can be read"
        )))
    }

    /// The bound on what a stream may ask for. Unit: bytes.
    fn memory_max(self) -> u64 {
        match self {
            Self::Plain | Self::Gzip => u64::MAX,
            Self::Xz => XZ_MEMORY_MAX,
            Self::Zstd => 1 << ZSTD_WINDOW_LOG_MAX,
        }
    }

    /// The format's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        }
    }
}

/// Looks at the first bytes of `reader` and decompresses it if need be. `source` names it in messages.
///
/// The reader that comes back gives a [`SourceError`] within an [`io::Error`] where the stream is damaged or ends early;
/// [`SourceError::from`] takes it out. A plain stream is read in the caller's thread.
///
/// # Errors
///
/// The first bytes cannot be read, or are of a format that cannot be read.
pub fn open(
    source: &str,
    mut reader: impl Read + Send + 'static,
) -> Result<(Compression, Box<dyn Read + Send>), SourceError> {
    let mut magic = Vec::with_capacity(MAGIC_LEN);
    let context = |error: SourceError| error.at_byte(0).in_source(source);
    // `read_to_end` tries again when it is interrupted.
    (&mut reader)
        .take(MAGIC_LEN as u64)
        .read_to_end(&mut magic)
        .map_err(|e| context(e.into()))?;
    let compression = Compression::detect(&magic).map_err(context)?;
    let whole = Cursor::new(magic).chain(reader);
    if compression == Compression::Plain {
        return Ok((compression, Box::new(whole)));
    }
    let input = Counted {
        inner: BufReader::with_capacity(INPUT_BUFFER, whole),
        position: 0,
    };
    let decoder = Decoder::new(compression, input).map_err(|e| context(e.into()))?;
    let ahead = Readahead::spawn(decoder, source.to_owned()).map_err(|e| context(e.into()))?;
    Ok((compression, Box::new(ahead)))
}

const INPUT_BUFFER: usize = 256 << 10;

/// Decompressed bytes travel in pieces of this size. Unit: bytes.
const PIECE: usize = 1 << 20;

/// So many full pieces may wait for the consumer.
const PIECES_AHEAD: usize = 3;

/// Dictionaries that need more memory than this are refused. `xz -9` needs 65 MiB. Unit: bytes.
const XZ_MEMORY_MAX: u64 = 256 << 20;

/// Windows beyond this are refused, as the `zstd` command does without `--long=31`. Unit: base-2 logarithm of bytes.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// The compressed input, with a note of how much of it was used.
struct Counted<R> {
    inner: BufReader<Chain<Cursor<Vec<u8>>, R>>,
    position: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.position += n as u64;
        Ok(n)
    }
}

impl<R: Read> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.inner.consume(amount);
        self.position += amount as u64;
    }
}

enum Decoder<R: Read> {
    Gzip(Gzip<R>),
    Xz(XzDecoder<Counted<R>>),
    Zstd(zstd::Decoder<'static, Counted<R>>),
}

impl<R: Read> Decoder<R> {
    fn new(compression: Compression, input: Counted<R>) -> io::Result<Self> {
        Ok(match compression {
            Compression::Plain => unreachable!("a plain stream needs no decoder"),
            Compression::Gzip => Self::Gzip(Gzip::Member(Box::new(GzDecoder::new(input)))),
            Compression::Xz => {
                let stream = liblzma::stream::Stream::new_stream_decoder(
                    XZ_MEMORY_MAX,
                    liblzma::stream::CONCATENATED,
                )
                .map_err(io::Error::from)?;
                Self::Xz(XzDecoder::new_stream(input, stream))
            }
            Compression::Zstd => {
                let mut decoder = zstd::Decoder::with_buffer(input)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                Self::Zstd(decoder)
            }
        })
    }

    fn format(&self) -> Compression {
        match self {
            Self::Gzip(_) => Compression::Gzip,
            Self::Xz(_) => Compression::Xz,
            Self::Zstd(_) => Compression::Zstd,
        }
    }

    /// How many compressed bytes were used.
    fn input_position(&self) -> u64 {
        match self {
            Self::Gzip(Gzip::Member(decoder)) => decoder.get_ref().position,
            Self::Gzip(Gzip::Ended { position }) => *position,
            Self::Xz(decoder) => decoder.get_ref().position,
            Self::Zstd(decoder) => decoder.get_ref().position,
        }
    }
}

impl<R: Read> Read for Decoder<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(decoder) => decoder.read(buf),
            Self::Xz(decoder) => decoder.read(buf),
            Self::Zstd(decoder) => decoder.read(buf),
        }
    }
}

/// One gzip member, xz stream or Zstandard frame. At its end the input stands behind it.
pub(crate) enum One<R: BufRead> {
    Gzip(Box<GzDecoder<R>>),
    Xz(XzDecoder<R>),
    Zstd(zstd::Decoder<'static, R>),
}

impl<R: BufRead> One<R> {
    pub(crate) fn new(compression: Compression, input: R) -> io::Result<Self> {
        Ok(match compression {
            Compression::Plain => unreachable!("a plain stream needs no decoder"),
            Compression::Gzip => Self::Gzip(Box::new(GzDecoder::new(input))),
            Compression::Xz => {
                let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY_MAX, 0);
                Self::Xz(XzDecoder::new_stream(
                    input,
                    stream.map_err(io::Error::from)?,
                ))
            }
            Compression::Zstd => {
                let mut decoder = zstd::Decoder::with_buffer(input)?.single_frame();
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                Self::Zstd(decoder)
            }
        })
    }

    pub(crate) fn format(&self) -> Compression {
        match self {
            Self::Gzip(_) => Compression::Gzip,
            Self::Xz(_) => Compression::Xz,
            Self::Zstd(_) => Compression::Zstd,
        }
    }

    pub(crate) fn input(&self) -> &R {
        match self {
            Self::Gzip(decoder) => decoder.get_ref(),
            Self::Xz(decoder) => decoder.get_ref(),
            Self::Zstd(decoder) => decoder.get_ref(),
        }
    }

    pub(crate) fn into_input(self) -> R {
        match self {
            Self::Gzip(decoder) => decoder.into_inner(),
            Self::Xz(decoder) => decoder.into_inner(),
            Self::Zstd(decoder) => decoder.finish(),
        }
    }
}

impl<R: BufRead> Read for One<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(decoder) => decoder.read(buf),
            Self::Xz(decoder) => decoder.read(buf),
            Self::Zstd(decoder) => decoder.read(buf),
        }
    }
}

/// Members one after the other. Zeros after the last one are padding, as tapes and block devices add.
enum Gzip<R> {
    Member(Box<GzDecoder<Counted<R>>>),
    Ended {
        /// How many compressed bytes were used.
        position: u64,
    },
}

impl<R: Read> Gzip<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let Self::Member(decoder) = self else {
                return Ok(0);
            };
            let n = decoder.read(buf)?;
            if n > 0 || buf.is_empty() {
                return Ok(n);
            }
            let ended = Self::Ended {
                position: decoder.get_ref().position,
            };
            let Self::Member(decoder) = std::mem::replace(self, ended) else {
                return Ok(0);
            };
            let mut input = decoder.into_inner();
            match input.fill_buf()?.first() {
                None => {}
                Some(0) => only_zeros(&mut input)?,
                Some(_) => *self = Self::Member(Box::new(GzDecoder::new(input))),
            }
        }
    }
}

fn only_zeros(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buf = input.fill_buf()?;
        let len = buf.len();
        if len == 0 {
            return Ok(());
        }
        if buf.iter().any(|&c| c != 0) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "neither another member nor zeros after the end",
            ));
        }
        input.consume(len);
    }
}

/// What the decoding thread sends.
enum Message {
    Piece(Vec<u8>),
    Failed(SourceError),
    End,
}

/// Reads what a thread decodes.
///
/// The thread ends when it is done or when this is dropped. It is waited for behind the stream's end or an error, when it has
/// nothing left to do, but not when this is dropped before, since it may hang on a pipe.
struct Readahead {
    thread: Option<JoinHandle<()>>,
    full: Receiver<Message>,
    empty: Sender<Vec<u8>>,
    piece: Vec<u8>,
    at: usize,
    ended: bool,
}

impl Readahead {
    fn spawn<R: Read + Send + 'static>(decoder: Decoder<R>, source: String) -> io::Result<Self> {
        let (send_full, full) = sync_channel(PIECES_AHEAD);
        let (empty, receive_empty) = channel();
        let thread = thread::Builder::new()
            .name("decompress".to_owned())
            .spawn(move || decode(decoder, &source, &send_full, &receive_empty))
            .map_err(|e| io::Error::new(e.kind(), format!("cannot start a thread: {e}")))?;
        Ok(Self {
            thread: Some(thread),
            full,
            empty,
            piece: Vec::new(),
            at: 0,
            ended: false,
        })
    }
}

/// The thread: fills pieces until the end. Whoever does not listen any more needs no message.
fn decode<R: Read>(
    mut decoder: Decoder<R>,
    source: &str,
    full: &SyncSender<Message>,
    empty: &Receiver<Vec<u8>>,
) {
    loop {
        let mut piece = empty.try_recv().unwrap_or_default();
        piece.resize(PIECE, 0);
        let mut len = 0;
        let mut last = None;
        while len < PIECE && last.is_none() {
            match decoder.read(&mut piece[len..]) {
                Ok(0) => last = Some(Message::End),
                Ok(n) => len += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    let failed = failure(decoder.format(), decoder.input_position(), e);
                    last = Some(Message::Failed(failed.in_source(source)));
                }
            }
        }
        piece.truncate(len);
        if len > 0 && full.send(Message::Piece(piece)).is_err() {
            return;
        }
        if let Some(last) = last {
            // A consumer that is gone needs no end.
            let _ = full.send(last);
            return;
        }
    }
}

/// What a decoder's error says, `near` so many compressed bytes.
pub(crate) fn failure(format: Compression, near: u64, error: io::Error) -> SourceError {
    let name = format.name();
    // An error of the system came through from the reader below; all others are the decoder's.
    if error.raw_os_error().is_some() {
        return SourceError::io("cannot read", error);
    }
    if wants_too_much_memory(&error) {
        return SourceError::limit(format!(
            "{name} stream needs more memory than the {} MiB allowed",
            format.memory_max() >> 20
        ));
    }
    SourceError::corrupt(match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            format!("{name} stream ends early, after {near} compressed bytes")
        }
        _ => format!("{name} stream is damaged near compressed byte {near}: {error}"),
    })
}

fn wants_too_much_memory(error: &io::Error) -> bool {
    let inner = error.get_ref();
    let xz = inner.and_then(|inner| inner.downcast_ref::<liblzma::stream::Error>());
    // Zstandard's errors come as text only.
    matches!(xz, Some(liblzma::stream::Error::MemLimit))
        || error.to_string().contains("requires too much memory")
}

impl Read for Readahead {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() {
            if self.ended || buf.is_empty() {
                return Ok(0);
            }
            // The thread takes it back if it is still there.
            let _ = self.empty.send(std::mem::take(&mut self.piece));
            self.at = 0;
            let message = self.full.recv();
            if let Ok(Message::Piece(piece)) = message {
                self.piece = piece;
                continue;
            }
            let whole = self.thread.take().is_none_or(|t| t.join().is_ok());
            match message {
                Ok(Message::Failed(error)) => return Err(error.into()),
                Ok(_) if whole => self.ended = true,
                _ => return Err(io::Error::other("the decompression thread is gone")),
            }
        }
        let n = buf.len().min(self.piece.len() - self.at);
        buf[..n].copy_from_slice(&self.piece[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

#[cfg(test)]
mod tests;
