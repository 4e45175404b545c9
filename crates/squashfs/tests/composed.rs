//! Images that are put together by hand, whole and with contradictions.

use tuff_squashfs::{Error, Image, InodeKind, Result};
use tuff_store::MemStore;

const PLAIN: u32 = 1 << 24;
const NO_FRAGMENT: u32 = u32::MAX;

/// References of the inodes of [`whole`].
const ROOT: u16 = 0;
const DIR: u16 = 32;
const FILE: u16 = 64;

/// Parts of an image, each in one block of metadata that is not compressed.
struct Parts {
    inodes: Vec<u8>,
    entries: Vec<u8>,
}

fn dir(mode: u16, entries: (u16, u16)) -> Vec<u8> {
    let mut inode = header(1, mode);
    inode.extend(0u32.to_le_bytes());
    inode.extend(2u32.to_le_bytes());
    inode.extend((entries.1 + 3).to_le_bytes());
    inode.extend(entries.0.to_le_bytes());
    inode.extend(1u32.to_le_bytes());
    inode
}

fn file(size: u32, fragment: u32, blocks: &[u32]) -> Vec<u8> {
    let mut inode = header(2, 0o644);
    for field in [96, fragment, 0, size] {
        inode.extend(field.to_le_bytes());
    }
    inode.extend(blocks.iter().flat_map(|size| size.to_le_bytes()));
    inode
}

fn header(kind: u16, mode: u16) -> Vec<u8> {
    let mut inode = [kind, mode, 0, 0].map(u16::to_le_bytes).concat();
    inode.extend([1_700_000_000u32, 1].map(u32::to_le_bytes).concat());
    inode
}

fn entries(list: &[(&[u8], u16, u16)]) -> Vec<u8> {
    let mut bytes = [list.len() as u32 - 1, 0, 1].map(u32::to_le_bytes).concat();
    for (name, inode, kind) in list {
        let fields = [*inode, 0, *kind, name.len() as u16 - 1];
        bytes.extend(fields.map(u16::to_le_bytes).concat());
        bytes.extend_from_slice(name);
    }
    bytes
}

/// Image with the directory `d`, the file `d/f` with seven bytes, and its second name `f`.
fn whole() -> Parts {
    parts(&[(b"d", DIR, 1), (b"f", FILE, 2)], &[(b"f", FILE, 2)])
}

fn parts(root: &[(&[u8], u16, u16)], below: &[(&[u8], u16, u16)]) -> Parts {
    let (root, below) = (entries(root), entries(below));
    let len = root.len() as u16;
    let inodes = [
        dir(0o755, (0, len)),
        dir(0o700, (len, below.len() as u16)),
        file(7, NO_FRAGMENT, &[7 | PLAIN]),
    ];
    Parts {
        inodes: inodes.concat(),
        entries: [root, below].concat(),
    }
}

impl Parts {
    fn bytes(&self) -> Vec<u8> {
        let mut image = vec![0; 96];
        image.extend_from_slice(b"content");
        let mut block = |bytes: &[u8]| {
            let at = image.len() as u64;
            image.extend((bytes.len() as u16 | 0x8000).to_le_bytes());
            image.extend_from_slice(bytes);
            at
        };
        let inode_table = block(&self.inodes);
        let directory_table = block(&self.entries);
        let ids = block(&5u32.to_le_bytes());
        let id_table = image.len() as u64;
        image.extend(ids.to_le_bytes());
        let len = image.len() as u64;
        let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"hsqs");
        for (at, field) in [(4, 3), (12, 131_072u32)] {
            put(at, &field.to_le_bytes());
        }
        for (at, field) in [(20, 1), (22, 17), (26, 1), (28, 4u16)] {
            put(at, &field.to_le_bytes());
        }
        let tables = [
            (40, len),
            (48, id_table),
            (56, u64::MAX),
            (64, inode_table),
            (72, directory_table),
            (80, u64::MAX),
            (88, u64::MAX),
        ];
        for (at, field) in tables {
            put(at, &field.to_le_bytes());
        }
        image
    }
}

/// Reads all of an image. Returns its paths, and the content of its files.
fn read(bytes: Vec<u8>) -> Result<Vec<(String, Vec<u8>)>> {
    let image = Image::open(MemStore::new(bytes))?;
    let mut found = Vec::new();
    for entry in image.walk() {
        let entry = entry?;
        assert_eq!((entry.inode.uid, entry.inode.mtime), (5, 1_700_000_000));
        let mut content = Vec::new();
        if let InodeKind::File(layout) = &entry.inode.kind {
            image.data_runs(layout)?;
            content.resize(layout.size.min(1 << 20) as usize, 0);
            image.read_exact(&image.content(layout)?, &mut content, 0)?;
        }
        found.push((String::from_utf8(entry.path).unwrap(), content));
    }
    Ok(found)
}

#[test]
fn an_image_is_read_whole() {
    let found = read(whole().bytes()).unwrap();
    let expected = [
        ("", &b""[..]),
        ("d", b""),
        ("d/f", b"content"),
        ("f", b"content"),
    ];
    assert_eq!(found.len(), expected.len());
    for ((path, content), (name, bytes)) in found.iter().zip(expected) {
        assert_eq!((path.as_str(), &content[..]), (name, bytes));
    }
}

#[test]
fn images_that_contradict_themselves_are_refused() {
    let with = |root: &[(&[u8], u16, u16)], below: &[(&[u8], u16, u16)]| parts(root, below).bytes();
    let one = |name: &'static [u8]| with(&[(b"d", DIR, 1)], &[(name, FILE, 2)]);
    let mut of_file = whole();
    of_file.inodes.truncate(64);
    let file_of = |inode: Vec<u8>| {
        let inodes = [&of_file.inodes[..], &inode].concat();
        let entries = of_file.entries.clone();
        Parts { inodes, entries }.bytes()
    };
    let long = [b'a'; 256];
    let cases: [(&str, Vec<u8>, &str); 15] = [
        (
            "a loop",
            with(&[(b"d", DIR, 1)], &[(b"r", ROOT, 1)]),
            "a second name",
        ),
        (
            "itself",
            with(&[(b"d", DIR, 1)], &[(b"d", DIR, 1)]),
            "a second name",
        ),
        ("dots", one(b".."), "is invalid"),
        ("a slash", one(b"a/b"), "is invalid"),
        ("a zero byte", one(b"a\0"), "is invalid"),
        (
            "a long name",
            with(&[(b"d", DIR, 1)], &[(&long, FILE, 2)]),
            "a name of 256 bytes",
        ),
        (
            "equal names",
            with(&[(b"d", DIR, 1), (b"d", FILE, 2)], &[(b"f", FILE, 2)]),
            "not behind",
        ),
        (
            "a type",
            with(&[(b"d", DIR, 1)], &[(b"f", FILE, 3)]),
            "of type 3 refers to",
        ),
        (
            "an inode in none",
            with(&[(b"d", DIR, 1)], &[(b"f", 500, 2)]),
            "a block of metadata with",
        ),
        ("no fragment", file_of(file(7, 3, &[])), "fragment 3 of 0"),
        (
            "a size",
            file_of(file(7, NO_FRAGMENT, &[PLAIN << 1 | 7])),
            "the stored size",
        ),
        (
            "a long block",
            file_of(file(7, NO_FRAGMENT, &[200_000])),
            "the stored size",
        ),
        (
            "a short block",
            file_of(file(9, NO_FRAGMENT, &[7 | PLAIN])),
            "7 bytes, expected 9",
        ),
        (
            "no zlib",
            file_of(file(7, NO_FRAGMENT, &[7])),
            "cannot be decoded as Zlib",
        ),
        (
            "few sizes",
            file_of(file(u32::MAX, NO_FRAGMENT, &[0])),
            "byte ",
        ),
    ];
    for (what, image, words) in cases {
        match read(image) {
            Err(Error::Corrupt(message)) => assert!(message.contains(words), "{what}: {message}"),
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[test]
fn superblocks_of_other_versions_and_sizes_are_refused() {
    let cases: [(&str, usize, &[u8], &str); 7] = [
        ("a version", 28, &[3, 0], "SquashFS 3.0"),
        ("big-endian", 0, b"sqsh", "big-endian"),
        ("a compressor", 20, &[9, 0], "compressor 9"),
        ("no image", 0, b"none", "no SquashFS superblock"),
        ("a block size", 12, &[0, 0, 64, 0], "block size 4194304"),
        ("a length", 40, &[0xff, 0xff], "the image has"),
        (
            "a table",
            64,
            &[0xff, 0xff, 1],
            "the inode table is outside",
        ),
    ];
    for (what, at, bytes, words) in cases {
        let mut image = whole().bytes();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        let error = read(image).unwrap_err();
        assert!(error.to_string().contains(words), "{what}: {error}");
    }
}

/// Every byte set to extremes, and every length: an answer or an error.
#[test]
fn each_changed_byte_gives_an_answer_or_an_error() {
    let image = whole().bytes();
    let mut refused = 0;
    for at in 0..image.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut changed = image.clone();
            changed[at] = value;
            let opened = std::panic::catch_unwind(|| match Image::open(MemStore::new(changed)) {
                Ok(image) => image.walk().all(|entry| entry.is_ok()),
                Err(_) => false,
            });
            refused += u32::from(!opened.unwrap());
        }
        assert!(read(image[..at].to_vec()).is_err(), "{at}");
    }
    assert!(refused > 300, "{refused}");
}
