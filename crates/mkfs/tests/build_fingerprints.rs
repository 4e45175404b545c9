//! Fingerprint attributes: every file that is not empty has its digest in any layout, and users do
//! not see it.

use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tuff_erofs::check::{self, Rule, check};
use tuff_erofs::read::{FileType, Image, Location};
use tuff_erofs::walk::Walk;
use tuff_mkfs::{
    Dedupe, Fragments, KernelVersion, Metadata, Method, Options, Progress, Source, build, like,
    patch,
};
use tuff_store::Target;
use tuff_testkit::Scratch;
use tuff_testkit::kernel::by_kernel;
use tuff_testkit::tree::{assert_same, from_source, host_tree, image_tree, nasty_tree, open};
use tuff_testkit::variants::compression;

fn options(kernel: KernelVersion) -> Options {
    let mut options = Options::for_kernel(kernel);
    options.metadata.fingerprints = Some(tuff_erofs::fingerprint::NAME.into());
    options.output.verify = true;
    options
}

fn make(source: Source, image: &Path, options: &Options) {
    let target = Target::Path(image.to_owned());
    build(&[source], options, &target, &Progress::default()).unwrap();
}

/// Checks the digest of every file and returns the number of files with one.
fn digests(image: &Image, tree: &Path) -> usize {
    let mut count = 0;
    for entry in Walk::root(image).unwrap() {
        let entry = entry.unwrap();
        let found = image.fingerprint(&entry.inode).unwrap();
        if entry.inode.file_type() != FileType::File || entry.inode.size() == 0 {
            assert_eq!(found, None);
            continue;
        }
        let path: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(&entry.path);
        let content = fs::read(tree.join(path)).unwrap();
        let expected = [&b"sha256:"[..], &Sha256::digest(&content)].concat();
        assert_eq!(found, Some(expected), "{}", tree.join(path).display());
        count += 1;
    }
    count
}

#[test]
fn every_file_has_a_hidden_digest() {
    let scratch = Scratch::new("fingerprints");
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    nasty_tree(&at("tree"));
    let expected = host_tree(&at("tree"));
    let packed = |kernel| {
        let mut options = options(kernel);
        options.compression.default = compression(Method::Lz4, 1);
        options
    };
    let with = [
        ("default", packed(KernelVersion(6, 6))),
        ("stored", {
            let mut options = options(KernelVersion(6, 4));
            options.compression.default = None;
            options.layout.fragments = Fragments::Off;
            options.dedupe.mode = Dedupe::Off;
            options
        }),
        ("fragments", {
            let mut options = packed(KernelVersion(6, 6));
            options.layout.fragments = Fragments::All;
            options.metadata.xattr_prefixes = vec![b"user.x".to_vec()];
            options
        }),
        ("seen", {
            let mut options = packed(KernelVersion(6, 6));
            options.metadata.fingerprints = Some(b"trusted.erofs.fp".to_vec());
            options
        }),
        ("boxed", {
            let mut options = packed(KernelVersion(6, 17));
            options.metadata.form = Metadata::Compressed;
            options
        }),
    ];
    let ignore = from_source(&expected);
    for (name, options) in with {
        make(Source::Dir(at("tree")), &at(name), &options);
        let image = open(&at(name));
        assert_eq!(
            image.fingerprint_name(),
            options.metadata.fingerprints,
            "{name}"
        );
        assert!(digests(&image, &at("tree")) > 5, "{name}");
        let options = check::Options {
            fingerprints: true,
            ..check::Options::default()
        };
        assert_eq!(check(&image, &options, |_| ()).findings, [], "{name}");
        if name != "seen" {
            assert_same(name, &expected, &image_tree(&image), ignore);
            by_kernel(&at(name), &[], &at("mnt"), &|way, dir| {
                let what = format!("{name}, {way}");
                assert_same(&what, &expected, &host_tree(dir), ignore);
            });
        }
    }
}

#[test]
fn a_patch_adds_fingerprints() {
    let scratch = Scratch::new("fingerprint-patch");
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    fs::write(at("tree/one"), "one").unwrap();
    make(
        Source::Dir(at("tree")),
        &at("image"),
        &options(KernelVersion(6, 6)),
    );
    fs::write(at("tree/two"), "two".repeat(9000)).unwrap();
    let like = like(&open(&at("image")), KernelVersion(6, 6)).unwrap();
    let sources = [Source::Dir(at("tree"))];
    patch(&sources, &like, &at("image"), &Progress::default()).unwrap();
    assert_eq!(digests(&open(&at("image")), &at("tree")), 2);
}

#[test]
fn a_wrong_digest_is_found() {
    let scratch = Scratch::new("fingerprint-wrong");
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    for name in ["one", "two"] {
        fs::write(at("tree").join(name), name.repeat(3000)).unwrap();
    }
    let stored = {
        let mut options = options(KernelVersion(6, 4));
        options.compression.default = None;
        options.layout.fragments = Fragments::Off;
        options
    };
    make(Source::Dir(at("tree")), &at("image"), &stored);
    let image = open(&at("image"));
    let root = image.root().unwrap();
    let nid = image.lookup(&root, b"two").unwrap().unwrap();
    let inode = image.inode(nid).unwrap();
    let mut extents = image.extents(&inode, 0..inode.size()).unwrap();
    let extent = extents.next().unwrap().unwrap();
    let Location::Raw { pos, .. } = extent.location else {
        panic!("{extent:?}");
    };
    let file = fs::File::options().write(true).open(at("image")).unwrap();
    file.write_all_at(b"x", pos + 5).unwrap();
    let image = open(&at("image"));
    let plain = check(&image, &check::Options::default(), |_| ());
    assert_eq!(plain.findings, []);
    for threads in [1, 3] {
        let options = check::Options {
            fingerprints: true,
            threads,
            ..check::Options::default()
        };
        let report = check(&image, &options, |_| ());
        let [finding] = &report.findings[..] else {
            panic!("{:?}", report.findings);
        };
        assert_eq!((finding.rule, &*finding.place), (Rule::Fingerprint, "/two"));
        assert!(finding.what.contains("expected"), "{}", finding.what);
    }
}
