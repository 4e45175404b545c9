//! Compressed streams: detection of the format, and decompression.
//!
//! Decompression runs in a separate thread, a few buffers ahead of the consumer.

use super::error::SourceError;
use super::expansion::Expansion;
use flate2::bufread::GzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::Stream;
use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use zstd::zstd_safe::{self, zstd_sys};

/// Number of leading bytes that [`Compression::detect`] examines. Unit: bytes.
pub const MAGIC_LEN: usize = 13;

/// Compression format of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Data without a known compression format.
    Plain,
    /// gzip (RFC 1952), one or several members.
    Gzip,
    /// xz, one or several streams.
    Xz,
    /// LZMA alone (`.lzma`), the format before xz.
    Lzma,
    /// lzip, one or several members.
    Lzip,
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
    /// read: bzip2, LZ4 and compress.
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
            [b'L', b'Z', b'I', b'P', 1, ..] => return Ok(Self::Lzip),
            // The frame format, and the legacy format of an initramfs.
            [0x04, 0x22, 0x4d, 0x18, ..] | [0x02, 0x21, 0x4c, 0x18, ..] => "LZ4",
            [0x1f, 0x9d, ..] => "compress",
            _ if is_lzma(magic) => return Ok(Self::Lzma),
            _ => return Ok(Self::Plain),
        };
        Err(SourceError::unsupported(format!(
            "compressed with {other}; gzip, xz, lzma, lzip and zstd can be read"
        )))
    }

    /// Memory limit of the decoder. Unit: bytes.
    fn memory_max(self) -> u64 {
        match self {
            Self::Plain | Self::Gzip => u64::MAX,
            Self::Xz | Self::Lzma | Self::Lzip => XZ_MEMORY_MAX,
            Self::Zstd => 1 << ZSTD_WINDOW_LOG_MAX,
        }
    }

    /// Name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Lzma => "lzma",
            Self::Lzip => "lzip",
            Self::Zstd => "zstd",
        }
    }
}

/// True for the header of an LZMA stream, which has no magic: a properties byte, the size of the dictionary, and the
/// size of the data. The dictionary is 2^n or 3 * 2^n, as xz requires, so that no name of a tar's member fits.
fn is_lzma(magic: &[u8]) -> bool {
    let Some(&[properties, d0, d1, d2, d3, s0, s1, s2, s3, s4, s5, s6, s7]) =
        magic.first_chunk::<MAGIC_LEN>()
    else {
        return false;
    };
    const PROPERTIES_END: u8 = 9 * 5 * 5;
    const DICTIONARY_MIN: u32 = 1 << 12;
    const SIZE_END: u64 = 1 << 38;
    let dictionary = u32::from_le_bytes([d0, d1, d2, d3]);
    let size = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
    let odd = dictionary >> dictionary.trailing_zeros().min(31);
    properties < PROPERTIES_END
        && dictionary >= DICTIONARY_MIN
        && (matches!(odd, 1 | 3) || dictionary == u32::MAX)
        && (size < SIZE_END || size == u64::MAX)
}

/// Limit of a stream, and the warning that its reader adds while it is read.
#[derive(Clone, Default)]
pub(crate) struct StreamRules {
    limit: Expansion,
    warning: Arc<Mutex<Option<String>>>,
}

impl StreamRules {
    pub(crate) fn new(limit: Expansion) -> Self {
        let warning = Arc::default();
        Self { limit, warning }
    }

    /// Returns the warning about a stream that was read to its end.
    pub(crate) fn warning(&self) -> Option<String> {
        let warning = self.warning.lock();
        warning.unwrap_or_else(PoisonError::into_inner).take()
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
    reader: impl Read + Send + 'static,
) -> Result<(Compression, Box<dyn Read + Send>), SourceError> {
    open_with(source, reader, &StreamRules::default())
}

/// Like [`open`], with a limit on the data of a compressed stream, and a warning if bytes at its end are ignored.
pub(crate) fn open_with(
    source: &str,
    mut reader: impl Read + Send + 'static,
    rules: &StreamRules,
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
    let rules = rules.clone();
    let ahead = BackgroundDecoder::spawn(decoder, source.to_owned(), rules)
        .map_err(|e| context(e.into()))?;
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
    Xz(Compression, XzDecoder<CountedInput<R>>),
    Zstd(zstd::Decoder<'static, CountedInput<R>>),
}

impl<R: Read> Decoder<R> {
    fn new(compression: Compression, input: CountedInput<R>) -> io::Result<Self> {
        Ok(match compression {
            Compression::Plain => unreachable!("a plain stream needs no decoder"),
            Compression::Gzip => Self::Gzip(Gzip::Member(Box::new(GzDecoder::new(input)))),
            Compression::Xz | Compression::Lzma | Compression::Lzip => Self::Xz(
                compression,
                lzma_decoder(compression, input, liblzma::stream::CONCATENATED)?,
            ),
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
            Self::Xz(format, _) => *format,
            Self::Zstd(_) => Compression::Zstd,
        }
    }

    /// Number of compressed bytes consumed.
    fn input_position(&self) -> u64 {
        match self {
            Self::Gzip(Gzip::Member(decoder)) => decoder.get_ref().position,
            Self::Gzip(Gzip::Ended { position, .. }) => *position,
            Self::Xz(_, decoder) => decoder.get_ref().position,
            Self::Zstd(decoder) => decoder.get_ref().position,
        }
    }
}

impl<R: Read> Read for Decoder<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(decoder) => decoder.read(buf),
            Self::Xz(_, decoder) => decoder.read(buf),
            Self::Zstd(decoder) => decoder.read(buf),
        }
    }
}

/// Decoder of xz, LZMA or lzip.
fn lzma_decoder<R: BufRead>(
    compression: Compression,
    input: R,
    flags: u32,
) -> io::Result<XzDecoder<R>> {
    let stream = match compression {
        Compression::Lzma => Stream::new_lzma_decoder(XZ_MEMORY_MAX),
        Compression::Lzip => Stream::new_lzip_decoder(XZ_MEMORY_MAX, flags),
        _ => Stream::new_stream_decoder(XZ_MEMORY_MAX, flags),
    };
    let stream = stream.map_err(io::Error::from)?;
    Ok(XzDecoder::new_stream(input, stream))
}

/// Decoder of a single gzip member, xz stream or Zstandard frame. At its end, the input is
/// positioned after it.
pub(crate) enum SingleStream<R: BufRead> {
    Gzip(Box<GzDecoder<R>>),
    Xz(Compression, XzDecoder<R>),
    Zstd(zstd::Decoder<'static, R>),
}

impl<R: BufRead> SingleStream<R> {
    pub(crate) fn new(compression: Compression, input: R) -> io::Result<Self> {
        Ok(match compression {
            Compression::Plain => unreachable!("a plain stream needs no decoder"),
            Compression::Gzip => Self::Gzip(Box::new(GzDecoder::new(input))),
            Compression::Xz | Compression::Lzma | Compression::Lzip => {
                Self::Xz(compression, lzma_decoder(compression, input, 0)?)
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
            Self::Xz(format, _) => *format,
            Self::Zstd(_) => Compression::Zstd,
        }
    }

    pub(crate) fn input(&self) -> &R {
        match self {
            Self::Gzip(decoder) => decoder.get_ref(),
            Self::Xz(_, decoder) => decoder.get_ref(),
            Self::Zstd(decoder) => decoder.get_ref(),
        }
    }

    pub(crate) fn into_input(self) -> R {
        match self {
            Self::Gzip(decoder) => decoder.into_inner(),
            Self::Xz(_, decoder) => decoder.into_inner(),
            Self::Zstd(decoder) => decoder.finish(),
        }
    }
}

impl<R: BufRead> Read for SingleStream<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(decoder) => decoder.read(buf),
            Self::Xz(_, decoder) => decoder.read(buf),
            Self::Zstd(decoder) => decoder.read(buf),
        }
    }
}

/// Decoder of consecutive members. Zeros after the last one are padding, as added by tapes and block devices. Other
/// bytes are ignored with a warning, as by gzip.
enum Gzip<R> {
    Member(Box<GzDecoder<CountedInput<R>>>),
    Ended {
        /// Number of compressed bytes consumed.
        position: u64,
        /// Start of bytes that belong to no member.
        garbage: Option<u64>,
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
                garbage: None,
            };
            let Self::Member(decoder) = std::mem::replace(self, ended) else {
                return Ok(0);
            };
            let mut input = decoder.into_inner();
            // A member that is cut after one byte is reported by its decoder.
            *self = match input.fill_buf()? {
                [0x1f] | [0x1f, 0x8b, ..] => Self::Member(Box::new(GzDecoder::new(input))),
                _ => Self::Ended {
                    garbage: after_gzip(&mut input)?,
                    position: input.position,
                },
            };
        }
    }
}

/// Reads to the end of the input, so that the writer of a pipe gets no `SIGPIPE`. Returns the position of the first
/// byte that is not zero.
fn after_gzip<R: Read>(input: &mut CountedInput<R>) -> io::Result<Option<u64>> {
    let mut garbage = None;
    loop {
        let buf = match input.fill_buf() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            filled => filled?,
        };
        let (len, first) = (buf.len(), buf.iter().position(|b| *b != 0));
        if len == 0 {
            return Ok(garbage);
        }
        if let (None, Some(first)) = (garbage, first) {
            garbage = Some(input.position + first as u64);
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
    fn spawn<R: Read + Send + 'static>(
        decoder: Decoder<R>,
        source: String,
        rules: StreamRules,
    ) -> io::Result<Self> {
        let (send_full, full) = sync_channel(FULL_BUFFERS_MAX);
        let (empty, receive_empty) = channel();
        let thread = thread::Builder::new()
            .name("decompress".to_owned())
            .spawn(move || decode(decoder, &source, &rules, &send_full, &receive_empty))
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
    rules: &StreamRules,
    full: &SyncSender<Message>,
    empty: &Receiver<Vec<u8>>,
) {
    let mut decoded = 0;
    loop {
        let mut buffer = empty.try_recv().unwrap_or_default();
        buffer.resize(BUFFER_LEN, 0);
        let mut len = 0;
        let mut last = None;
        while len < BUFFER_LEN && last.is_none() {
            match decoder.read(&mut buffer[len..]) {
                Ok(0) => {
                    if let Decoder::Gzip(Gzip::Ended {
                        garbage: Some(at), ..
                    }) = &decoder
                    {
                        *rules.warning.lock().unwrap_or_else(PoisonError::into_inner) =
                            Some(garbage_warning(source, *at));
                    }
                    last = Some(Message::End);
                }
                Ok(n) => len += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    let failed = decode_error(decoder.format(), decoder.input_position(), e);
                    last = Some(Message::Failed(failed.in_source(source)));
                }
            }
        }
        decoded += len as u64;
        if let Err(e) = rules.limit.check(decoded, decoder.input_position()) {
            let e = e.at_byte(decoder.input_position());
            last = Some(Message::Failed(e.in_source(source)));
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

/// Warning about bytes after a gzip stream.
pub(crate) fn garbage_warning(source: &str, at: u64) -> String {
    format!("{source}: the gzip stream ends before byte {at}; what follows is ignored")
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
    // The crate passes on no code but the library's name of it.
    let too_large = zstd_sys::ZSTD_ErrorCode::ZSTD_error_frameParameter_windowTooLarge;
    let too_large = zstd_safe::get_error_name((too_large as usize).wrapping_neg());
    matches!(xz, Some(liblzma::stream::Error::MemLimit))
        || inner.is_some_and(|inner| inner.to_string() == too_large)
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
