//! The sample tree in many forms, written by Tuff (see `tuff_testkit::sample`). Each form is compared with an
//! expectation written out here, in parts and as a whole.

use std::collections::BTreeMap;
use tuff_erofs::check::{Options, check};
use tuff_erofs::read::{FileType, Image};
use tuff_testkit::sample::{all, lines, open};
use tuff_testkit::tree::Record;
use tuff_testkit::tree::image_tree;

/// Expected type and permissions, and for files the content, by path.
fn expected() -> BTreeMap<&'static str, (FileType, u16, Option<Vec<u8>>)> {
    let file = |mode, bytes: Vec<u8>| (FileType::File, mode, Some(bytes));
    let mut sparse = vec![0; 40_000];
    sparse[30_000..30_003].copy_from_slice(b"end");
    BTreeMap::from([
        ("numbers", file(0o4755, lines(1..=2500))),
        (
            "numbers-more",
            file(0o644, lines((1..=2500).chain(5..=500))),
        ),
        ("letters", file(0o644, b"abc\n".repeat(4000))),
        ("hi", file(0o644, b"hello, erofs\n".to_vec())),
        ("hi-too", file(0o644, b"hello, erofs\n".to_vec())),
        ("empty", file(0o644, Vec::new())),
        ("sparse", file(0o644, sparse)),
        ("dir/sub/file", file(0o644, b"deep\n".to_vec())),
        ("dir/entry-100", file(0o644, Vec::new())),
        ("dir/entry-229", file(0o644, Vec::new())),
        ("dir", (FileType::Dir, 0o755, None)),
        ("dir/sub", (FileType::Dir, 0o755, None)),
        ("link", (FileType::Symlink, 0o777, None)),
        ("fifo", (FileType::Fifo, 0o644, None)),
        ("null", (FileType::Char, 0o644, None)),
    ])
}

#[test]
fn every_form_contains_the_tree() {
    let mut first: Option<Vec<Record>> = None;
    for (name, bytes) in all() {
        let image = open(bytes);
        for (path, (kind, mode, content)) in expected() {
            let inode = image
                .resolve(path.as_bytes())
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(inode.file_type(), kind, "{name}: {path}");
            assert_eq!(inode.mode() & 0o7777, mode, "{name}: {path}");
            assert_eq!(inode.mtime(), (1_700_000_000, 0), "{name}: {path}");
            if let Some(content) = content {
                let mut got = Vec::new();
                std::io::copy(&mut image.reader(&inode).unwrap(), &mut got).unwrap();
                assert!(got == content, "{name}: {path}");
            }
        }
        check_attributes(name, &image);
        // The remaining attributes are equal in all forms.
        let mut tree = image_tree(&image);
        for record in &mut tree {
            record.data = None; // holes depend on the layout
            if record.mode & 0xF000 == 0x4000 {
                record.size = 0; // and so do sizes of directories
            }
        }
        assert_eq!(tree.len(), 12 + 3 + 130, "{name}");
        match &first {
            None => first = Some(tree),
            Some(first) => assert!(
                tuff_testkit::tree::diff(first, &tree, Default::default()).is_empty(),
                "{name}"
            ),
        }
    }
}

fn check_attributes(name: &str, image: &Image) {
    let hi = image.resolve(b"hi").unwrap();
    assert_eq!(hi.nlink(), 2, "{name}");
    assert_eq!(image.resolve(b"hi-too").unwrap().nid(), hi.nid(), "{name}");
    assert_eq!(
        image.xattr(&hi, b"user.common.colour").unwrap().unwrap(),
        b"blue",
        "{name}"
    );
    assert_eq!(
        image.xattr(&hi, b"user.nothing").unwrap().unwrap(),
        b"",
        "{name}"
    );
    assert_eq!(
        image.xattr(&hi, b"user.common.own").unwrap(),
        None,
        "{name}"
    );
    assert_eq!(image.xattrs(&hi).unwrap().len(), 2, "{name}");
    let letters = image.resolve(b"letters").unwrap();
    assert_eq!((letters.uid(), letters.gid()), (100_000, 70_000), "{name}");
    assert_eq!(
        image.xattr(&letters, b"user.common.own").unwrap().unwrap(),
        b"only here",
        "{name}"
    );
    let link = image.resolve(b"link").unwrap();
    assert_eq!(image.readlink(&link).unwrap(), b"numbers", "{name}");
    assert_eq!(
        image.resolve_following(b"link").unwrap(),
        image.resolve(b"/numbers").unwrap(),
        "{name}"
    );
    assert_eq!(
        image.resolve(b"null").unwrap().device(),
        Some((1, 3)),
        "{name}"
    );
    assert!(
        image.resolve(b"hi/there").is_err() && image.resolve(b"missing").is_err(),
        "{name}"
    );
}

#[test]
fn the_check_finds_nothing_in_any_form() {
    for (name, bytes) in all() {
        let report = check(&open(bytes), &Options::default(), |_| ());
        assert!(report.is_clean(), "{}: {:#?}", name, report.findings);
        assert_eq!(report.totals.directories, 3);
    }
}

#[test]
fn reads_at_any_offset_match_a_sequential_reader() {
    let mut random = tuff_testkit::Rng::new(1);
    for (name, bytes) in all() {
        let image = open(bytes);
        for file in [
            &b"numbers"[..],
            b"numbers-more",
            b"letters",
            b"packed",
            b"sparse",
            b"hi",
        ] {
            let inode = image.resolve(file).unwrap();
            let mut all = Vec::new();
            std::io::copy(&mut image.reader(&inode).unwrap(), &mut all).unwrap();
            let mut reader = image.reader(&inode).unwrap();
            for _ in 0..60 {
                let at = random.below_u64(all.len() as u64 + 10);
                let n = random.below_u64(20_000) as usize;
                let mut buf = vec![0xEE; n];
                let got = image.read_at(&inode, &mut buf, at).unwrap();
                let from = (at as usize).min(all.len());
                let requested = &all[from..(from + n).min(all.len())];
                assert!(&buf[..got] == requested, "{}: {n} bytes at {at}", name);
                use std::io::{Read, Seek, SeekFrom};
                reader.seek(SeekFrom::Start(at)).unwrap();
                let mut again = Vec::new();
                reader
                    .by_ref()
                    .take(n as u64)
                    .read_to_end(&mut again)
                    .unwrap();
                assert!(again == requested, "{}: reader, {n} bytes at {at}", name);
            }
        }
    }
}
