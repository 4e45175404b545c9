//! Round trips, concatenation and damage, for each format.

use super::*;
use crate::source::error::SourceErrorKind;
use std::io::Write;
use std::sync::mpsc;
use std::time::Duration;

const FORMATS: [Compression; 3] = [Compression::Gzip, Compression::Xz, Compression::Zstd];

fn compress(format: Compression, data: &[u8]) -> Vec<u8> {
    match format {
        Compression::Plain => data.to_vec(),
        Compression::Gzip => {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(data).unwrap();
            encoder.finish().unwrap()
        }
        Compression::Xz => {
            let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
            encoder.write_all(data).unwrap();
            encoder.finish().unwrap()
        }
        Compression::Zstd => {
            let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
            encoder.include_checksum(true).unwrap();
            encoder.write_all(data).unwrap();
            encoder.finish().unwrap()
        }
    }
}

/// Data of several buffers with different content.
fn sample() -> Vec<u8> {
    (0..700_000u32)
        .flat_map(|i| format!("{} ", i.wrapping_mul(2_654_435_761) >> 12).into_bytes())
        .collect()
}

fn read(compressed: &[u8]) -> Result<Vec<u8>, SourceError> {
    let (_, mut reader) = open("test", Cursor::new(compressed.to_vec()))?;
    let mut out = Vec::new();
    reader.read_to_end(&mut out)?;
    Ok(out)
}

#[test]
fn every_format_is_detected_by_its_first_bytes() {
    for format in FORMATS {
        let (found, _) = open("test", Cursor::new(compress(format, b"data"))).unwrap();
        assert_eq!(found, format);
    }
    let skippable = b"\x5a\x2a\x4d\x18\x03\0\0\0abc";
    assert_eq!(Compression::detect(skippable).unwrap(), Compression::Zstd);
    for plain in [&b""[..], b"\x1f", b"\xfd7zXZ", b"BZh9.txt\0\0", b"LZIP\0"] {
        assert_eq!(Compression::detect(plain).unwrap(), Compression::Plain);
    }
}

#[test]
fn formats_that_cannot_be_read_are_named() {
    let error = open("a.tar.bz2", Cursor::new(b"BZh91AY&SY...."))
        .err()
        .unwrap();
    assert_eq!(error.kind(), SourceErrorKind::Unsupported);
    assert_eq!(
        error.to_string(),
        "a.tar.bz2: byte 0: compressed with bzip2; gzip, xz and zstd can be read"
    );
}

#[test]
fn compressed_data_is_read_back() {
    let data = sample();
    assert!(data.len() > 4 * BUFFER_LEN);
    for format in [&FORMATS[..], &[Compression::Plain]].concat() {
        assert!(
            read(&compress(format, &data)).unwrap() == data,
            "{format:?}"
        );
        for short in [&b""[..], b"x"] {
            assert_eq!(read(&compress(format, short)).unwrap(), short, "{format:?}");
        }
    }
}

#[test]
fn concatenated_streams_are_one() {
    for format in FORMATS {
        let parts = [&b"first "[..], b"", b"second ", &vec![b'x'; 3 << 20]];
        let all: Vec<u8> = parts
            .iter()
            .flat_map(|part| compress(format, part))
            .collect();
        assert!(read(&all).unwrap() == parts.concat(), "{format:?}");
    }
}

#[test]
fn skippable_frames_are_skipped() {
    let skippable = b"\x50\x2a\x4d\x18\x04\0\0\0skip";
    let frame = compress(Compression::Zstd, b"data");
    let all = [skippable, &frame[..], skippable, &frame[..], skippable].concat();
    assert_eq!(read(&all).unwrap(), b"datadata");
}

#[test]
fn zeros_after_gzip_are_padding_and_anything_else_is_damage() {
    let gzip = compress(Compression::Gzip, b"data");
    let padded = [&gzip[..], &[0; 1_000_000]].concat();
    assert_eq!(read(&padded).unwrap(), b"data");
    for garbage in [&b"garbage"[..], b"\0garbage"] {
        let error = read(&[&gzip[..], garbage].concat()).unwrap_err();
        assert_eq!(error.kind(), SourceErrorKind::Corrupt);
    }
}

#[test]
fn every_truncation_is_an_error() {
    for format in FORMATS {
        let whole = compress(format, b"some data that is not very long, that is not");
        for len in MAGIC_LEN..whole.len() {
            let error = read(&whole[..len]).unwrap_err();
            assert_eq!(error.kind(), SourceErrorKind::Corrupt, "{error}");
            assert_eq!(
                error.to_string(),
                format!(
                    "test: {} stream ends early, after {len} compressed bytes",
                    format.name()
                )
            );
        }
    }
}

#[test]
fn every_flipped_bit_is_an_error_or_harmless() {
    for format in FORMATS {
        let data = b"some data that is not very long, that is not";
        let mut stream = compress(format, data);
        for byte in MAGIC_LEN..stream.len() {
            for bit in 0..8 {
                stream[byte] ^= 1 << bit;
                match read(&stream) {
                    Ok(read) => assert_eq!(read, data, "{format:?}: bit {bit} of byte {byte}"),
                    Err(error) => assert_ne!(error.kind(), SourceErrorKind::Io, "{error}"),
                }
                stream[byte] ^= 1 << bit;
            }
        }
    }
}

#[test]
fn windows_beyond_the_limit_are_rejected() {
    // Frame with a window of 2 GiB and one raw block of one byte.
    let zstd = b"\x28\xb5\x2f\xfd\x00\xa8\x09\x00\x00x";
    // Block header that requires a dictionary of 4 GiB.
    let mut block = vec![2, 0, 0x21, 1, 40, 0, 0, 0];
    let mut crc = flate2::Crc::new();
    crc.update(&block);
    block.extend(crc.sum().to_le_bytes());
    let mut xz = compress(Compression::Xz, b"")[..12].to_vec();
    xz.extend(block);
    for stream in [&zstd[..], &xz] {
        let error = read(stream).unwrap_err();
        assert_eq!(error.kind(), SourceErrorKind::Limit, "{error}");
        assert!(error.to_string().contains("needs more memory than the"));
    }
}

/// Reader that signals when it is dropped.
struct EndlessReader(mpsc::Sender<()>);

impl Read for EndlessReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // Empty skippable frames, which never end the stream.
        let frame = b"\x50\x2a\x4d\x18\0\0\0\0";
        let len = buf.len().min(frame.len());
        buf[..len].copy_from_slice(&frame[..len]);
        Ok(len)
    }
}

impl Drop for EndlessReader {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[test]
fn the_thread_ends_when_the_reader_is_dropped() {
    let (sender, dropped) = mpsc::channel();
    let frame = compress(Compression::Zstd, &vec![0; 16 << 20]);
    let reader = Cursor::new(frame).chain(EndlessReader(sender));
    let (_, mut reader) = open("test", reader).unwrap();
    reader.read_exact(&mut [0; 10]).unwrap();
    drop(reader);
    dropped
        .recv_timeout(Duration::from_secs(60))
        .expect("the thread lets go of its input");
}

/// Reader that fails like a disk.
struct FailingReader;

impl Read for FailingReader {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(5))
    }
}

#[test]
fn errors_of_the_system_are_not_damage() {
    for format in FORMATS {
        let start = compress(format, &sample())[..1000].to_vec();
        let (_, mut reader) = open("test", Cursor::new(start).chain(FailingReader)).unwrap();
        let error = SourceError::from(reader.read_to_end(&mut Vec::new()).unwrap_err());
        assert_eq!(error.kind(), SourceErrorKind::Io, "{error}");
        assert!(
            error.to_string().starts_with("test: cannot read: "),
            "{error}"
        );
    }
}
