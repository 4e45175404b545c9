//! Round trips, concatenation and damage, for each format.

use super::*;
use crate::source::error::SourceErrorKind;
use crate::source::expansion::CONTENT_FREE;
use std::io::Write;
use std::sync::mpsc;
use std::time::Duration;

const FORMATS: [Compression; 3] = [Compression::Gzip, Compression::Xz, Compression::Zstd];

/// Writes an LZMA stream with an end marker.
fn lzma(data: &[u8]) -> Vec<u8> {
    let options = liblzma::stream::LzmaOptions::new_preset(1).unwrap();
    let stream = Stream::new_lzma_encoder(&options).unwrap();
    let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

/// Member of lzip: the stream of LZMA without its header, and a trailer.
fn lzip(data: &[u8]) -> Vec<u8> {
    let stream = &lzma(data)[13..];
    let mut crc = flate2::Crc::new();
    crc.update(data);
    let len = 6 + stream.len() + 20;
    [
        // A dictionary of 1 MiB, as in the preset.
        &b"LZIP\x01\x14"[..],
        stream,
        &crc.sum().to_le_bytes(),
        &(data.len() as u64).to_le_bytes(),
        &(len as u64).to_le_bytes(),
    ]
    .concat()
}

/// Regression: both formats were refused.
#[test]
fn lzma_and_lzip_are_read_and_their_truncations_are_errors() {
    let data = b"some data that is not very long, that is not";
    for (stream, format) in [
        (lzma(data), Compression::Lzma),
        (lzip(data), Compression::Lzip),
    ] {
        assert_eq!(Compression::detect(&stream).unwrap(), format);
        assert_eq!(read(&stream).unwrap(), data);
        for len in MAGIC_LEN..stream.len() {
            let error = read(&stream[..len]).unwrap_err();
            assert_eq!(error.kind(), SourceErrorKind::Corrupt, "{error}");
        }
    }
    let two = [lzip(b"first "), lzip(b"second")].concat();
    assert_eq!(read(&two).unwrap(), b"first second");
}

#[test]
fn names_of_members_are_no_lzma_header() {
    let mut block = [0; 512];
    for len in 0..100 {
        block[..len].fill(b']');
        assert_eq!(
            Compression::detect(&block[..MAGIC_LEN]).unwrap(),
            Compression::Plain
        );
    }
    for name in [
        &b"]"[..],
        b"a",
        b"./",
        b"@@@@@",
        b"    ",
        b"0",
        b"\xc3\xa9\xc3\xa9",
    ] {
        block = [0; 512];
        block[..name.len()].copy_from_slice(name);
        assert_eq!(
            Compression::detect(&block[..MAGIC_LEN]).unwrap(),
            Compression::Plain
        );
    }
}

fn compress(format: Compression, data: &[u8]) -> Vec<u8> {
    match format {
        Compression::Plain => data.to_vec(),
        Compression::Lzma => lzma(data),
        Compression::Lzip => lzip(data),
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
        "a.tar.bz2: byte 0: compressed with bzip2; gzip, xz, lzma, lzip and zstd can be read"
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

/// Regression: text after a gzip stream refused the whole archive.
#[test]
fn what_follows_a_gzip_stream_is_ignored_with_a_warning_unless_it_is_zeros() {
    let gzip = compress(Compression::Gzip, b"data");
    let read = |after: &[u8]| {
        let rules = StreamRules::default();
        let all = Cursor::new([&gzip[..], after].concat());
        let (_, mut reader) = open_with("test", all, &rules).unwrap();
        let mut data = Vec::new();
        let read = reader.read_to_end(&mut data);
        read.map(|_| (data, rules.warning()))
            .map_err(SourceError::from)
    };
    let message = |at: usize| {
        let at = gzip.len() + at;
        format!("test: the gzip stream ends before byte {at}; what follows is ignored")
    };
    let data = b"data".to_vec();
    assert_eq!(read(&[0; 1_000_000]).unwrap(), (data.clone(), None));
    for (garbage, at) in [(&b"garbage"[..], 0), (b"\0\0garbage", 2), (b"\x1f\x8cx", 0)] {
        assert_eq!(read(garbage).unwrap(), (data.clone(), Some(message(at))));
    }
    let far = [&vec![0; 1_000_000][..], b"x"].concat();
    assert_eq!(read(&far).unwrap(), (data, Some(message(1_000_000))));
    // Another member that is cut or damaged is an error.
    for member in [
        &b"\x1f"[..],
        b"\x1f\x8b",
        b"\x1f\x8b\x08\0\0",
        b"\x1f\x8b\x07\0\0\0\0\0\0\0",
    ] {
        assert_eq!(read(member).unwrap_err().kind(), SourceErrorKind::Corrupt);
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

/// Regression: a stream could unpack to a million times its size.
#[test]
fn data_far_larger_than_its_stream_is_refused() {
    for format in FORMATS {
        let stream = compress(format, &vec![0; 32 << 20]);
        // Many streams of zeros are a large stream.
        let all = Cursor::new(stream.repeat(3));
        let (_, mut reader) = open("test", all).unwrap();
        let mut buffer = vec![0; 1 << 20];
        let mut sum = 0;
        let end = loop {
            match reader.read(&mut buffer) {
                Ok(0) => break None,
                Ok(n) => sum += n,
                Err(e) => break Some(SourceError::from(e)),
            }
        };
        // Streams of gzip are at least a thousandth of their data.
        match format {
            Compression::Gzip => assert!(end.is_none() && sum == 3 * (32 << 20)),
            _ => {
                let end = end.unwrap();
                assert_eq!(end.kind(), SourceErrorKind::Limit, "{end}");
                assert!(end.to_string().contains("limit max_expansion"), "{end}");
                assert!(sum as u64 <= CONTENT_FREE + 2 * BUFFER_LEN as u64);
            }
        }
    }
}
