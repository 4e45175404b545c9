//! Compressed streams: detection of the format, and decompression.
//!
//! Decompression runs in a separate thread, a few buffers ahead of the consumer.

use super::error::SourceError;
use flate2::bufread::GzDecoder;
use liblzma::bufread::XzDecoder;
use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

/// Number of leading bytes that [`Compression::detect`] examines. Unit: bytes.
pub const MAGIC_LEN: usize = 10;

/// Compression format of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Data without a known compression format.
    Plain,
    /// gzip (RFC 1952), one or several members.
    Gzip,
    /// xz, one or several streams.
    Xz,
    /// Zstandard (RFC 8878), one or several frames, including skippable ones.
    Zstd,
}

impl Compression {
    /// Detects the format from the first [`MAGIC_LEN`] bytes, or fewer if the file is shorter.
    /// Unknown data is plain.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](super::error::SourceErrorKind::Unsupported) for known formats that cannot be
    /// read: bzip2, lzip, LZ4 and compress.
    pub fn detect(magic: &[u8]) -> Result<Self, SourceError> {
        let other = match magic {
            [0x1f, 0x8b, ..] => return Ok(Self::Gzip),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => return Ok(Self::Xz),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => return Ok(Self::Zstd),
            // A skippable frame, which may come first.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => return Ok(Self::Zstd),
            // Includes the magic of the first block, because the text alone could be the name of a
            // tar's first member.
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
            // The frame format, and the legacy format of an initramfs.
            [0x04, 0x22, 0x4d, 0x18, ..] | [0x02, 0x21, 0x4c, 0x18, ..] => "LZ4",
            [0x1f, 0x9d, ..] => "compress",
            _ => return Ok(Self::Plain),
        };
        Err(SourceError::unsupported(format!(
            "compressed with {other}; gzip, xz and zstd can be read"
        )))
    }

    /// Memory limit of the decoder. Unit: bytes.
    fn memory_max(self) -> u64 {
        match self {
            Self::Plain | Self::Gzip => u64::MAX,
            Self::Xz => XZ_MEMORY_MAX,
            Self::Zstd => 1 << ZSTD_WINDOW_LOG_MAX,
        }
    }

    /// Name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        }
    }
}

/// Detects the format of `reader` and decompresses it if necessary. `source` names it in messages.
///
/// The returned reader wraps a [`SourceError`] in an [`io::Error`] if the stream is damaged or ends
/// early; [`SourceError::from`] extracts it. A plain stream is read in the caller's thread.
///
/// # Errors
///
/// The first bytes cannot be read, or the format is unsupported.
pub fn open(
    source: &str,
    mut reader: impl Read + Send + 'static,
) -> Result<(Compression, Box<dyn Read + Send>), SourceError> {
    let mut magic = Vec::with_capacity(MAGIC_LEN);
    let context = |error: SourceError| error.at_byte(0).in_source(source);
    // `read_to_end` retries after an interruption.
    (&mut reader)
        .take(MAGIC_LEN as u64)
        .read_to_end(&mut magic)
        .map_err(|e| context(e.into()))?;
    let compression = Compression::detect(&magic).map_err(context)?;
    let whole = Cursor::new(magic).chain(reader);
    if compression == Compression::Plain {
        return Ok((compression, Box::new(whole)));
    }
    let input = CountedInput {
        inner: BufReader::with_capacity(INPUT_BUFFER, whole),
        position: 0,
    };
    let decoder = Decoder::new(compression, input).map_err(|e| context(e.into()))?;
    let ahead =
        BackgroundDecoder::spawn(decoder, source.to_owned()).map_err(|e| context(e.into()))?;
    Ok((compression, Box::new(ahead)))
}

const INPUT_BUFFER: usize = 256 << 10;

/// Size of a buffer of decompressed data. Unit: bytes.
const BUFFER_LEN: usize = 1 << 20;

/// Number of full buffers that may wait for the consumer.
const FULL_BUFFERS_MAX: usize = 3;

/// Limit of the decoder's memory. `xz -9` needs 65 MiB. Unit: bytes.
const XZ_MEMORY_MAX: u64 = 256 << 20;

/// Maximum window, as of the `zstd` command without `--long=31`. Unit: base-2 logarithm of bytes.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// Compressed input that counts the bytes consumed.
struct CountedInput<R> {
    inner: BufReader<Chain<Cursor<Vec<u8>>, R>>,
    position: u64,
}

impl<R: Read> Read for CountedInput<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.position += n as u64;
        Ok(n)
    }
}

impl<R: Read> BufRead for CountedInput<R> {
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
    Xz(XzDecoder<CountedInput<R>>),
    Zstd(zstd::Decoder<'static, CountedInput<R>>),
}

impl<R: Read> Decoder<R> {
    fn new(compression: Compression, input: CountedInput<R>) -> io::Result<Self> {
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

    /// Number of compressed bytes consumed.
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

/// Decoder of a single gzip member, xz stream or Zstandard frame. At its end, the input is
/// positioned after it.
pub(crate) enum SingleStream<R: BufRead> {
    Gzip(Box<GzDecoder<R>>),
    Xz(XzDecoder<R>),
    Zstd(zstd::Decoder<'static, R>),
}

impl<R: BufRead> SingleStream<R> {
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

impl<R: BufRead> Read for SingleStream<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(decoder) => decoder.read(buf),
            Self::Xz(decoder) => decoder.read(buf),
            Self::Zstd(decoder) => decoder.read(buf),
        }
    }
}

/// Decoder of consecutive members. Zeros after the last one are padding, as added by tapes and
/// block devices.
enum Gzip<R> {
    Member(Box<GzDecoder<CountedInput<R>>>),
    Ended {
        /// Number of compressed bytes consumed.
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

/// Message from the decoding thread.
enum Message {
    Buffer(Vec<u8>),
    Failed(SourceError),
    End,
}

/// Reader of the data that a thread decodes.
///
/// The thread ends after its last message, or after this is dropped. It is joined at the end of the
/// stream or after an error, but not on an early drop, since it may block on a pipe.
struct BackgroundDecoder {
    thread: Option<JoinHandle<()>>,
    full: Receiver<Message>,
    empty: Sender<Vec<u8>>,
    buffer: Vec<u8>,
    at: usize,
    ended: bool,
}

impl BackgroundDecoder {
    fn spawn<R: Read + Send + 'static>(decoder: Decoder<R>, source: String) -> io::Result<Self> {
        let (send_full, full) = sync_channel(FULL_BUFFERS_MAX);
        let (empty, receive_empty) = channel();
        let thread = thread::Builder::new()
            .name("decompress".to_owned())
            .spawn(move || decode(decoder, &source, &send_full, &receive_empty))
            .map_err(|e| io::Error::new(e.kind(), format!("cannot start a thread: {e}")))?;
        Ok(Self {
            thread: Some(thread),
            full,
            empty,
            buffer: Vec::new(),
            at: 0,
            ended: false,
        })
    }
}

/// Body of the thread: fills buffers until the end. Stops when the receiver is gone.
fn decode<R: Read>(
    mut decoder: Decoder<R>,
    source: &str,
    full: &SyncSender<Message>,
    empty: &Receiver<Vec<u8>>,
) {
    loop {
        let mut buffer = empty.try_recv().unwrap_or_default();
        buffer.resize(BUFFER_LEN, 0);
        let mut len = 0;
        let mut last = None;
        while len < BUFFER_LEN && last.is_none() {
            match decoder.read(&mut buffer[len..]) {
                Ok(0) => last = Some(Message::End),
                Ok(n) => len += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    let failed = decode_error(decoder.format(), decoder.input_position(), e);
                    last = Some(Message::Failed(failed.in_source(source)));
                }
            }
        }
        buffer.truncate(len);
        if len > 0 && full.send(Message::Buffer(buffer)).is_err() {
            return;
        }
        if let Some(last) = last {
            // The receiver may be gone.
            let _ = full.send(last);
            return;
        }
    }
}

/// Converts a decoder's error. `near` is the number of compressed bytes consumed.
pub(crate) fn decode_error(format: Compression, near: u64, error: io::Error) -> SourceError {
    let name = format.name();
    // System errors come from the underlying reader, all others from the decoder.
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
    // Zstandard reports errors as text only.
    matches!(xz, Some(liblzma::stream::Error::MemLimit))
        || error.to_string().contains("requires too much memory")
}

impl Read for BackgroundDecoder {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.at == self.buffer.len() {
            if self.ended || buf.is_empty() {
                return Ok(0);
            }
            // Returns the buffer to the thread, which may be gone.
            let _ = self.empty.send(std::mem::take(&mut self.buffer));
            self.at = 0;
            let message = self.full.recv();
            if let Ok(Message::Buffer(buffer)) = message {
                self.buffer = buffer;
                continue;
            }
            let whole = self.thread.take().is_none_or(|t| t.join().is_ok());
            match message {
                Ok(Message::Failed(error)) => return Err(error.into()),
                Ok(_) if whole => self.ended = true,
                _ => return Err(io::Error::other("the decompression thread is gone")),
            }
        }
        let n = buf.len().min(self.buffer.len() - self.at);
        buf[..n].copy_from_slice(&self.buffer[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

#[cfg(test)]
mod tests;
