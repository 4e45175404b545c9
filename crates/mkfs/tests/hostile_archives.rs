//! Archives with extreme or broken values: each gives an image that our own check accepts, or an error.

use std::path::Path;
use tuff_erofs::check::{self, Severity};
use tuff_erofs::{Error, Result};
use tuff_mkfs::{
    Compression, Dedupe, KernelVersion, Metadata, Options, Progress, Source, TarStream, build_to,
};
use tuff_store::MemStore;
use tuff_testkit::kernel::input_with;

/// Tar that is put together by hand.
#[derive(Clone, Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn block(&mut self, name: &[u8], flag: u8, size: u64, change: impl FnOnce(&mut [u8])) {
        let mut block = vec![0; 512];
        let len = name.len().min(100);
        block[..len].copy_from_slice(&name[..len]);
        block[100..108].copy_from_slice(b"0000644\0");
        block[108..116].copy_from_slice(b"0000000\0");
        block[116..124].copy_from_slice(b"0000000\0");
        block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
        block[136..148].copy_from_slice(b"00000000000\0");
        block[156] = flag;
        block[257..265].copy_from_slice(b"ustar\x0000");
        change(&mut block);
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend(block);
    }

    fn data(&mut self, data: &[u8]) {
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
    }

    /// Appends an extended header.
    fn pax(mut self, records: &[(&[u8], &[u8])]) -> Self {
        let mut body = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut len = rest + 1;
            while len != rest + len.to_string().len() {
                len += 1;
            }
            body.extend_from_slice(format!("{len} ").as_bytes());
            body.extend([key, &b"="[..], value, b"\n"].concat());
        }
        self.block(b"pax", b'x', body.len() as u64, |_| ());
        self.data(&body);
        self
    }

    fn file(self, name: &[u8], data: &[u8]) -> Self {
        let mut tar = match name.len() {
            ..100 => self,
            _ => self.pax(&[(b"path", name)]),
        };
        tar.block(name, b'0', data.len() as u64, |_| ());
        tar.data(data);
        tar
    }

    fn link(self, flag: u8, name: &[u8], target: &[u8]) -> Self {
        let mut tar = self.pax(&[(b"linkpath", target)]);
        tar.block(name, flag, 0, |_| ());
        tar
    }

    fn special(mut self, flag: u8, name: &[u8]) -> Self {
        self.block(name, flag, 0, |_| ());
        self
    }

    fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

/// Builds an image in memory. Returns it with its warnings.
fn built(source: Source, options: &Options) -> Result<(Vec<u8>, Vec<String>)> {
    let mut image = Vec::new();
    let summary = build_to(&[source], options, &mut image, &Progress::default())?;
    Ok((image, summary.stats.warnings))
}

fn assert_clean(what: &str, image: &[u8]) {
    let store = MemStore::new(image.to_vec());
    let image = tuff_erofs::read::Image::open(store, Default::default());
    let image = image.unwrap_or_else(|e| panic!("{what}: {e}"));
    let report = check::check(&image, &check::Options::default(), |_| ());
    let found = report.findings.iter();
    let errors: Vec<_> = found.filter(|f| f.severity == Severity::Error).collect();
    assert!(errors.is_empty(), "{what}: {errors:?}");
}

/// Options of different forms of metadata and data.
fn forms() -> Vec<Options> {
    let mut forms = vec![Options::default(), Options::for_kernel(KernelVersion(5, 4))];
    let mut small = Options::for_kernel(KernelVersion(6, 18));
    small.metadata.form = Metadata::Compressed;
    small.compression.default = Some(Compression::parse("lz4").unwrap().unwrap());
    small.dedupe.mode = Dedupe::Off;
    forms.push(small);
    forms
}

/// Builds a tar in each form, and checks the images. Returns the warnings, or the error.
fn outcome(what: &str, tar: &[u8]) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for options in forms() {
        let stream = TarStream::new("hostile.tar", std::io::Cursor::new(tar.to_vec()));
        let (image, warnings) = built(Source::TarStream(stream), &options)?;
        assert_clean(what, &image);
        // The image as a source gives another that is as good.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, &image).unwrap();
        let (again, _) = built(Source::Image(input_with(&path, &[])), &options)?;
        assert_clean(what, &again);
        all = warnings;
    }
    Ok(all)
}

fn xattr(name: &[u8], value: &[u8]) -> Tar {
    let key = [b"SCHILY.xattr.", name].concat();
    Tar::default().pax(&[(&key, value)]).file(b"f", b"1")
}

/// Regression: names above 255 bytes and ACLs that are none were stored.
#[test]
fn attributes_that_readers_reject_are_left_out_with_a_warning() {
    let long = |len: usize| [b"user.", &vec![b'a'; len - 5][..]].concat();
    let trusted = |len: usize| [b"trusted.", &vec![b'a'; len - 8][..]].concat();
    let acl = b"system.posix_acl_access";
    let valid_acl = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x04\0\x05\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
    let cases: [(&str, Tar, bool); 14] = [
        ("a name of 255 bytes", xattr(&long(255), b"v"), true),
        ("a name of 256 bytes", xattr(&long(256), b"v"), false),
        ("a name of 260 bytes", xattr(&long(260), b"v"), false),
        (
            "a trusted name of 255 bytes",
            xattr(&trusted(255), b"v"),
            true,
        ),
        (
            "a trusted name of 256 bytes",
            xattr(&trusted(256), b"v"),
            false,
        ),
        (
            "a trusted name of 263 bytes",
            xattr(&trusted(263), b"v"),
            false,
        ),
        (
            "a value of 65535 bytes",
            xattr(b"user.a", &[1; 65535]),
            true,
        ),
        (
            "a value of 65536 bytes",
            xattr(b"user.a", &[1; 65536]),
            false,
        ),
        ("no suffix", xattr(b"user.", b"v"), false),
        ("another namespace", xattr(b"os2.a", b"v"), false),
        ("an ACL", xattr(acl, valid_acl), true),
        ("an ACL that is none", xattr(acl, b"none"), false),
        (
            "an empty ACL",
            xattr(b"system.posix_acl_default", b""),
            false,
        ),
        (
            "an ACL name with a suffix",
            xattr(b"system.posix_acl_access2", valid_acl),
            false,
        ),
    ];
    for (what, tar, is_kept) in cases {
        let warnings = outcome(what, &tar.end()).unwrap();
        assert_eq!(warnings.is_empty(), is_kept, "{what}: {warnings:?}");
        for warning in warnings {
            assert!(warning.contains("\"f\": attribute \""), "{what}: {warning}");
            assert!(warning.contains("left out"), "{what}: {warning}");
        }
    }
}

/// Values at the edges of the format, and beyond them.
#[test]
fn images_of_hostile_archives_are_accepted_by_the_check() {
    let many = |count: usize| {
        let names: Vec<Vec<u8>> = (0..count)
            .map(|n| format!("SCHILY.xattr.user.{n:05}").into_bytes())
            .collect();
        let records: Vec<(&[u8], &[u8])> = names.iter().map(|n| (&n[..], &b"v"[..])).collect();
        Tar::default()
            .pax(&records)
            .file(b"f", b"1")
            .file(b"g", b"")
    };
    let time = |text: &[u8]| Tar::default().pax(&[(b"mtime", text)]).file(b"f", b"1");
    let device = |major: &[u8], minor: &[u8]| {
        Tar::default()
            .pax(&[(b"SCHILY.devmajor", major), (b"SCHILY.devminor", minor)])
            .special(b'3', b"d")
    };
    let sparse = |size: &[u8], map: &[u8]| {
        Tar::default()
            .pax(&[
                (b"GNU.sparse.size", size),
                (b"GNU.sparse.numblocks", b"1"),
                (b"GNU.sparse.map", map),
            ])
            .file(b"s", b"x")
    };
    let deep =
        |levels: usize| Tar::default().file(&[&b"d/".repeat(levels)[..], b"f"].concat(), b"1");
    let long_names = |levels: usize| {
        let name = [&vec![b'n'; 255][..], b"/"].concat().repeat(levels);
        Tar::default().file(&[&name[..], b"f"].concat(), b"1")
    };
    let mut links = Tar::default().file(b"f", b"1");
    for n in 0..70_000 {
        links.block(format!("l{n}").as_bytes(), b'1', 0, |b| b[157] = b'f');
    }
    let mut dirs = Tar::default();
    for n in 0..70_000 {
        dirs.block(format!("d{n}").as_bytes(), b'5', 0, |_| ());
    }
    let file = |name: &[u8]| Tar::default().file(name, b"1");
    let link = |kind: u8, name: &[u8], target: &[u8]| Tar::default().link(kind, name, target);
    let special = |kind: u8, name: &[u8]| Tar::default().special(kind, name);
    let uid = |text: &[u8]| Tar::default().pax(&[(b"uid", text)]).file(b"f", b"");
    let cases: [(&str, Tar, bool); 38] = [
        ("300 attributes", many(300), true),
        ("5,000 attributes", many(5_000), true),
        ("30,000 attributes", many(30_000), false),
        ("time before 1970", time(b"-1.5"), true),
        ("largest time", time(b"9223372036854775807.999999999"), true),
        ("smallest time", time(b"-9223372036854775807"), true),
        (
            "time with a fraction of zero",
            time(b"5.0000000000000000000001"),
            true,
        ),
        ("largest device", device(b"4095", b"1048575"), true),
        ("major beyond", device(b"4096", b"0"), false),
        ("minor beyond", device(b"0", b"1048576"), false),
        ("negative device", device(b"-1", b"0"), false),
        ("null device", device(b"0", b"0"), true),
        ("link of 4095 bytes", link(b'2', b"l", &[b'a'; 4095]), true),
        ("link of 4096 bytes", link(b'2', b"l", &[b'a'; 4096]), false),
        ("link with a NUL", link(b'2', b"l", b"a\0b"), false),
        ("empty link", special(b'2', b"l"), false),
        ("hard link to nothing", link(b'1', b"l", b"none"), false),
        ("hard link to itself", link(b'1', b"l", b"l"), false),
        (
            "hard link to a directory",
            Tar::default().file(b"d/f", b"").link(b'1', b"l", b"d"),
            false,
        ),
        (
            "hard link to a pipe",
            special(b'6', b"p").link(b'1', b"l", b"p"),
            true,
        ),
        ("name of 255 bytes", file(&[b'n'; 255]), true),
        ("name of 256 bytes", file(&[b'n'; 256]), false),
        (
            "path with a NUL",
            Tar::default().pax(&[(b"path", b"a\0b")]).file(b"f", b""),
            false,
        ),
        (
            "names of all bytes",
            Tar::default().file(
                &(1..=255).filter(|b| *b != b'/').collect::<Vec<u8>>()[..200],
                b"1",
            ),
            true,
        ),
        ("name above its parent", file(b"a/../b"), false),
        ("file in a file", file(b"a").file(b"a/b", b"1"), true),
        ("uid of 32 bits", uid(b"4294967295"), true),
        ("uid of 33 bits", uid(b"4294967296"), false),
        (
            "sparse file of 8 EiB",
            sparse(b"9223372036854775807", b"9223372036854775806,1"),
            false,
        ),
        (
            "sparse file of 16 MiB",
            sparse(b"16777216", b"4096,1"),
            true,
        ),
        (
            "sparse file with its data behind its end",
            sparse(b"10", b"10,1"),
            false,
        ),
        ("directories 300 levels deep", deep(300), true),
        ("directories 70,000 levels deep", deep(70_000), false),
        ("directory paths of 250 KiB", long_names(1000), true),
        ("directory paths of 260 KiB", long_names(1040), false),
        ("70,000 hard links", links, true),
        ("70,000 directories", dirs, true),
        (
            "a root that is a file",
            file(b"./").special(b'6', b"."),
            false,
        ),
    ];
    for (what, tar, is_built) in cases {
        match outcome(what, &tar.end()) {
            Ok(_) => assert!(is_built, "{what}"),
            Err(e) => {
                assert!(!is_built, "{what}: {e}");
                assert!(
                    !matches!(e, Error::Io(..) | Error::Usage(_)),
                    "{what}: {e:?}"
                );
            }
        }
    }
}

/// Bytes of a small archive are changed in turn.
#[test]
fn images_of_damaged_archives_are_accepted_by_the_check() {
    let tar = Tar::default()
        .pax(&[(b"SCHILY.xattr.user.a", b"1"), (b"mtime", b"1.5")])
        .file(b"d/f", b"content")
        .link(b'2', b"s", b"d")
        .file(b"s/g", b"")
        .special(b'3', b"c")
        .end();
    for at in (0..tar.len() - 1024).step_by(13) {
        for change in [1, 0x80] {
            let mut tar = tar.clone();
            tar[at] ^= change;
            // The checksum of the header would hide all else.
            let block = at / 512 * 512;
            if tar[block + 257..].starts_with(b"ustar") && !(148..156).contains(&(at - block)) {
                tar[block + 148..block + 156].fill(b' ');
                let sum: u32 = tar[block..block + 512].iter().map(|b| u32::from(*b)).sum();
                tar[block + 148..block + 156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            }
            let stream = TarStream::new("hostile.tar", std::io::Cursor::new(tar));
            let options = Options::default();
            if let Ok((image, _)) = built(Source::TarStream(stream), &options) {
                assert_clean(&format!("byte {at} changed by {change}"), &image);
            }
        }
    }
}

/// Archive of cpio in the newc form.
fn cpio(members: &[(&[u8], u32, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut all = members.to_vec();
    all.push((b"TRAILER!!!", 0, b""));
    for (n, (name, mode, data)) in all.iter().enumerate() {
        let numbers = [
            n,
            *mode as usize,
            0,
            0,
            1,
            0,
            data.len(),
            0,
            0,
            0xFFFF,
            0x1_0000,
            name.len() + 1,
            0,
        ];
        out.extend_from_slice(b"070701");
        for number in numbers {
            out.extend_from_slice(format!("{number:08x}").as_bytes());
        }
        out.extend_from_slice(name);
        out.push(0);
        out.resize(out.len().next_multiple_of(4), 0);
        out.extend_from_slice(data);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    out
}

#[test]
fn images_of_hostile_cpio_archives_are_accepted_by_the_check() {
    let file = |name: &'static [u8], data: &'static [u8]| (name, 0o100_644, data);
    let cases: [(&str, Vec<u8>, bool); 7] = [
        ("file", cpio(&[file(b"f", b"1")]), true),
        ("device beyond", cpio(&[(b"d", 0o020_644, b"")]), false),
        ("unknown type", cpio(&[(b"d", 0o150_644, b"")]), false),
        (
            "link of 4096 bytes",
            cpio(&[(b"l", 0o120_777, &[b'a'; 4096])]),
            false,
        ),
        (
            "path through a link",
            cpio(&[(b"l", 0o120_777, b"x"), file(b"l/f", b"1")]),
            true,
        ),
        (
            "circle of links",
            cpio(&[(b"l", 0o120_777, b"l"), file(b"l/f", b"1")]),
            false,
        ),
        ("name above its parent", cpio(&[file(b"../f", b"1")]), false),
    ];
    for (what, archive, is_built) in cases {
        let outcome = outcome(what, &archive);
        assert_eq!(outcome.is_ok(), is_built, "{what}: {outcome:?}");
    }
    let whole = cpio(&[file(b"f", b"12345"), file(b"g", b"1")]);
    for len in 1..whole.len() - 4 {
        assert!(outcome("cut", &whole[..len]).is_err(), "{len} bytes");
    }
}

/// Regression: a sparse member of 60 GB was written as zeros by a build for a kernel without chunks.
#[test]
fn zeros_for_holes_are_limited() {
    let size = 60u64 << 30;
    let tar = Tar::default()
        .pax(&[
            (b"GNU.sparse.size", size.to_string().as_bytes()),
            (b"GNU.sparse.numblocks", b"1"),
            (b"GNU.sparse.map", format!("{},1", size - 1).as_bytes()),
        ])
        .file(b"s", b"x")
        .end();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sparse.tar");
    std::fs::write(&path, &tar).unwrap();
    let sources = |path: &Path| {
        let stream = TarStream::new("t", std::io::Cursor::new(std::fs::read(path).unwrap()));
        [Source::Tar(path.to_owned()), Source::TarStream(stream)]
    };
    for mode in [Dedupe::Off, Dedupe::Files] {
        for source in sources(&path) {
            let mut options = Options::for_kernel(KernelVersion(5, 4));
            options.dedupe.mode = mode;
            let error = built(source, &options).unwrap_err();
            assert!(matches!(error, Error::Limit(_)), "{error:?}");
            let error = error.to_string();
            assert!(
                error.contains("\"s\"") && error.contains("limit max_expansion"),
                "{error}"
            );
        }
        for source in sources(&path) {
            let mut options = Options::default();
            options.dedupe.mode = mode;
            let (image, _) = built(source, &options).unwrap();
            assert!(image.len() < 16 << 20, "{} bytes", image.len());
            assert_clean("holes", &image);
        }
    }
}
