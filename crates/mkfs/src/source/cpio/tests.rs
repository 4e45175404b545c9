//! Archives assembled by hand: their entries, and rejected ones.

use super::*;
use crate::source::error::SourceErrorKind;
use tuff_store::MemStore;

/// Builder of an archive.
#[derive(Clone, Default)]
struct Archive(Vec<u8>);

/// Fields of a member's header.
#[derive(Clone, Copy)]
struct Head<'a> {
    magic: &'a str,
    path: &'a str,
    mode: u32,
    ino: u32,
    nlink: u32,
    rdev: (u32, u32),
    sum: u32,
}

fn head(mode: u32, path: &str) -> Head<'_> {
    Head {
        magic: "070701",
        path,
        mode,
        ino: 0,
        nlink: 1,
        rdev: (0, 0),
        sum: 0,
    }
}

impl Archive {
    fn member(mut self, head: Head<'_>, data: &[u8]) -> Self {
        let fields = [
            head.ino,
            head.mode,
            1000,
            100,
            head.nlink,
            1_700_000_000,
            data.len() as u32,
            8,
            1,
            head.rdev.0,
            head.rdev.1,
            head.path.len() as u32 + 1,
            head.sum,
        ];
        self.0.extend(head.magic.bytes());
        for field in fields {
            self.0.extend(format!("{field:08X}").bytes());
        }
        self.0.extend(head.path.bytes().chain([0]));
        self.pad().raw(data).pad()
    }

    fn file(self, path: &str, data: &[u8]) -> Self {
        self.member(head(0o100_644, path), data)
    }

    fn linked(self, ino: u32, path: &str, data: &[u8]) -> Self {
        let head = Head {
            ino,
            nlink: 2,
            ..head(0o100_644, path)
        };
        self.member(head, data)
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn pad(mut self) -> Self {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn end(self) -> Self {
        self.member(head(0, "TRAILER!!!"), b"")
    }
}

/// Path, type and mode, and data or target.
type ReadMember = (String, String, Vec<u8>);

fn got(cpio: &mut CpioReader<'_>, whole: &[u8]) -> Result<Vec<ReadMember>, SourceError> {
    let mut all = Vec::new();
    while let Some(entry) = cpio.next_entry()? {
        let mut data = Vec::new();
        match (&entry.content, &entry.kind) {
            (Content::Stream, _) => drop(cpio.data().read_to_end(&mut data)?),
            (Content::Range { offset }, Kind::File { size }) => {
                data = whole[*offset as usize..][..*size as usize].to_vec();
            }
            (Content::None, _) => {}
            other => panic!("{other:?}"),
        }
        let kind = match entry.kind {
            Kind::Hardlink(target) | Kind::Symlink(target) => {
                data = target;
                "link".to_owned()
            }
            Kind::Char(d) | Kind::Block(d) => format!("device {}:{}", d.major, d.minor),
            Kind::File { .. } => format!("file {:o}", entry.meta.mode),
            other => format!("{other:?}").to_lowercase(),
        };
        let path = String::from_utf8_lossy(&entry.path).into_owned();
        all.push((path, kind, data));
    }
    Ok(all)
}

/// Entries of an archive, read as a stream and as a file.
fn read(bytes: &[u8]) -> Result<Vec<ReadMember>, SourceError> {
    let streamed = got(&mut CpioReader::new("a.cpio", bytes), bytes);
    let store = MemStore::new(bytes);
    let scanned = got(&mut CpioReader::of_store("a.cpio", &store), bytes);
    match (&streamed, &scanned) {
        (Ok(streamed), Ok(scanned)) => assert_eq!(streamed, scanned),
        (Err(streamed), Err(scanned)) => assert_eq!(streamed.kind(), scanned.kind()),
        other => panic!("{other:?}"),
    }
    streamed
}

fn has(bytes: &[u8], expected: &[(&str, &str, &str)]) {
    let found = read(bytes).unwrap();
    let found: Vec<(&str, &str, &str)> = found
        .iter()
        .map(|(p, k, d)| (&p[..], &k[..], std::str::from_utf8(d).unwrap()))
        .collect();
    assert_eq!(found, expected);
}

fn fails(bytes: &[u8], expected: &str) {
    let error = read(bytes).unwrap_err().to_string();
    assert!(error.contains(expected), "{expected}: {error}");
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, data).unwrap();
    encoder.finish().unwrap()
}

fn xz(data: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
    std::io::Write::write_all(&mut encoder, data).unwrap();
    encoder.finish().unwrap()
}

fn zstd(data: &[u8]) -> Vec<u8> {
    zstd::encode_all(data, 1).unwrap()
}

#[test]
fn every_file_type_is_read() {
    let device = |mode, path| Head {
        rdev: (8, 300),
        ..head(mode, path)
    };
    let bytes = Archive::default()
        .member(head(0o040_755, "."), b"")
        .member(head(0o040_755, "./dir"), b"")
        .file("dir/f", b"hello")
        .member(head(0o104_711, "/empty"), b"")
        .member(head(0o120_777, "sym"), b"dir/f")
        .member(head(0o120_777, "counted"), b"dir/f\0")
        .member(device(0o020_600, "chr"), b"")
        .member(device(0o060_600, "blk"), b"")
        .member(head(0o010_600, "fifo"), b"")
        .member(head(0o140_600, "sock"), b"")
        .end()
        .0;
    has(
        &bytes,
        &[
            ("", "dir", ""),
            ("dir", "dir", ""),
            ("dir/f", "file 644", "hello"),
            ("empty", "file 4711", ""),
            ("sym", "link", "dir/f"),
            ("counted", "link", "dir/f"),
            ("chr", "device 8:300", ""),
            ("blk", "device 8:300", ""),
            ("fifo", "fifo", ""),
            ("sock", "socket", ""),
        ],
    );
}

#[test]
fn names_that_come_before_their_data_are_links_to_it() {
    let bytes = Archive::default()
        .linked(7, "a", b"")
        .linked(7, "b", b"")
        .linked(8, "gone", b"")
        .file("gone", b"replaced")
        .linked(7, "c", b"data")
        .linked(7, "d", b"")
        .linked(7, "e", b"other data, of which nothing is kept")
        .linked(8, "left", b"")
        .linked(8, "left too", b"")
        .end()
        // Inode numbers of another archive are independent.
        .linked(7, "f", b"new")
        .end()
        .0;
    has(
        &bytes,
        &[
            ("gone", "file 644", "replaced"),
            ("c", "file 644", "data"),
            ("a", "link", "c"),
            ("b", "link", "c"),
            ("d", "link", "c"),
            ("e", "link", "c"),
            ("left", "file 644", ""),
            ("left too", "link", "left"),
            ("f", "file 644", "new"),
        ],
    );
}

#[test]
fn archives_follow_each_other_with_zeros_between_and_compressed_or_not() {
    let one = |name: &str| Archive::default().file(name, name.as_bytes()).end().0;
    let (a, b, c, d) = (one("a"), one("b"), one("c"), one("d"));
    let expected = ["a", "b", "c", "d"].map(|name| (name, "file 644", name));
    let zeros = [0; 700];
    for bytes in [
        [&a[..], &b, &c, &d].concat(),
        [&a[..], &zeros, &b, &gzip(&[&c[..], &zeros, &d].concat())].concat(),
        [
            &a[..],
            &gzip(&b),
            &zeros[..3],
            &xz(&c),
            &zeros,
            &zstd(&d),
            &zeros,
        ]
        .concat(),
        [&zstd(&a)[..], &zstd(&b), &c, &zeros, &gzip(&d)].concat(),
        // Split at any position into frames of one format.
        {
            let all = [&a[..], &b, &c, &d].concat();
            [zstd(&all[..57]), zstd(&all[57..300]), zstd(&all[300..])].concat()
        },
        {
            let all = [&a[..], &b, &c, &d].concat();
            [gzip(&all[..112]), gzip(b""), gzip(&all[112..])].concat()
        },
    ] {
        has(&bytes, &expected);
    }
}

#[test]
fn checksums_are_verified() {
    let with = |sum| {
        let head = Head {
            magic: "070702",
            sum,
            ..head(0o100_600, "f")
        };
        // Writers store no sum for a symbolic link.
        let link = Head {
            mode: 0o120_777,
            path: "l",
            sum: 0,
            ..head
        };
        let archive = Archive::default().member(head, b"\x01\x02\xff");
        archive.member(link, b"f").end().0
    };
    let found = read(&with(0x102)).unwrap();
    assert_eq!(found[0].2, b"\x01\x02\xff");
    fails(
        &with(0x103),
        "member \"f\": checksum of the data is wrong, expected 0x00000103, found 0x00000102",
    );
}

#[test]
fn damaged_archives_have_their_message() {
    let file = Archive::default().file("f", b"hello");
    fails(b"", "the source is empty");
    fails(&[0; 600], "the source is empty");
    fails(&file.0, "the archive ends without a trailer");
    fails(
        &file.0[..60],
        "header is cut short, expected 110 bytes, found 60",
    );
    fails(&file.0[..111], "name is cut short");
    fails(
        &file.0[..114],
        "member \"f\": stored bytes end early, expected 5, found 2",
    );
    fails(
        &file.clone().end().raw(b"junk").0,
        "neither a cpio archive nor zeros",
    );
    fails(
        &file.clone().raw(b"junk").end().0,
        "not a cpio header, found \"junk07\"",
    );
    fails(
        &file.clone().end().raw(b"BZh91AY&SY").0,
        "compressed with bzip2",
    );
    fails(
        &file.clone().end().raw(&[2, 0x21, 0x4c, 0x18]).0,
        "compressed with LZ4",
    );
    fails(
        &Archive::default().raw(b"0707070000010000020000").0,
        "header is cut short",
    );
    fails(
        &Archive::default().raw(b"070707").raw(&[b'0'; 200]).0,
        "cannot be read; create it with cpio -H newc",
    );
    for (path, expected) in [("../f", "contains \"..\""), ("", "path is empty")] {
        fails(&Archive::default().file(path, b"x").end().0, expected);
    }
    fails(
        &Archive::default().file(".", b"x").end().0,
        "the root is given as something",
    );
    fails(
        &Archive::default().member(head(0o120_777, "l"), b"").end().0,
        "symbolic link to \"\"",
    );
    fails(
        &Archive::default()
            .member(head(0o120_777, "l"), &[b'x'; 5000])
            .end()
            .0,
        "target of 5000 bytes",
    );
    fails(
        &Archive::default().member(head(0o644, "l"), b"").end().0,
        "file type 0 is not known",
    );
    let device = Head {
        rdev: (5000, 1),
        ..head(0o020_600, "c")
    };
    fails(
        &Archive::default().member(device, b"").end().0,
        "device number 5000,1",
    );
    let mut bytes = file.clone().end().0;
    bytes[20] = b'x';
    fails(&bytes, "invalid hexadecimal number");
    let mut bytes = file.clone().end().0;
    bytes[111] = b'g';
    fails(&bytes, "only zero byte");
    let long = Archive::default().file(&"n".repeat(70_000), b"").end().0;
    assert_eq!(read(&long).unwrap_err().kind(), SourceErrorKind::Limit);
    let packed = gzip(&file.clone().end().0);
    let whole = file.end().0;
    fails(
        &[&whole[..], &packed[..packed.len() - 9]].concat(),
        "gzip stream ends early",
    );
    let mut damaged = packed;
    let at = damaged.len() - 6;
    damaged[at] ^= 1;
    fails(
        &[&whole[..], &damaged].concat(),
        "a.cpio: archive at byte 244: gzip stream is damaged",
    );
}

#[test]
fn every_truncation_and_flipped_bit_ends() {
    let plain = Archive::default()
        .linked(1, "a", b"")
        .linked(1, "b", b"data")
        .end()
        .0;
    let whole = [
        &plain[..],
        &[0; 9],
        &gzip(&plain),
        &zstd(&plain),
        &xz(&plain),
    ]
    .concat();
    assert_eq!(read(&whole).unwrap().len(), 8);
    for len in 0..whole.len() {
        let _ = read(&whole[..len]);
    }
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let _ = read(&bytes);
    }
}
