//! Combinations of build options that tests iterate over, and options of the `mkfs.erofs` in PATH.

use std::path::Path;
use std::process::Command;
use tuff_mkfs::MetadataOptions;
use tuff_mkfs::{
    Compression, Dedupe, Fragments, InodeForm, KernelVersion, Metadata, Method, Options, Progress,
    Rule, Source, SparsePolicy, build,
};
use tuff_store::Target;

/// Command lines of `mkfs.erofs`. Older versions reject some of them.
pub const MKFS_OPTIONS: &[&[&str]] = &[
    &[],
    &["-Enoinline_data"],
    &["-Eforce-inode-extended"],
    &["-Eforce-inode-compact", "-T0"],
    &["-zlz4"],
    &["-zlz4", "-Elegacy-compress"],
    &["-zlz4hc,9", "-C65536"],
    &["-zlz4hc", "-C16384", "-Eztailpacking"],
    &["-zlz4", "-Elegacy-compress,ztailpacking"],
    &["-zlz4", "-C32768", "-Efragments"],
    &["-zlz4hc", "-C65536", "-Eall-fragments,ztailpacking"],
    &["-zlz4", "-C65536", "-Ededupe"],
    &["-zlz4", "-C4096", "-Ededupe,fragments,ztailpacking"],
    &["-zlzma", "-C65536"],
    &["-zlzma", "-C65536", "-Eall-fragments,dedupe"],
    &["--chunksize=4096"],
    &["--chunksize=65536", "-x-1"],
    &["-x1"],
    &["-b1024", "-zlz4"],
];

/// Builds an image of `source` with the `mkfs.erofs` in PATH. Reports the reason and returns `None` if that fails.
pub fn mkfs(image: &Path, source: &Path, options: &[&str]) -> Option<()> {
    let out = Command::new("mkfs.erofs")
        .args(options)
        .arg(image)
        .arg(source)
        .output();
    match out {
        Ok(out) if out.status.success() => Some(()),
        Ok(out) => {
            let why = String::from_utf8_lossy(&out.stderr);
            let why = why.lines().find(|l| !l.is_empty()).unwrap_or("").to_owned();
            crate::note(format_args!("mkfs.erofs {options:?}: {why}"));
            None
        }
        Err(e) => {
            crate::skipped(format_args!("mkfs.erofs: {e}"));
            None
        }
    }
}

/// Extracts an image with the `fsck.erofs` in PATH into `target`, and compares contents with those of `tree`. Reports why
/// if the program is missing or does not support the image.
///
/// # Panics
/// If it fails in another way, or a content differs.
pub fn fsck_agrees(image: &Path, devices: &[&Path], tree: &Path, target: &Path) {
    if !fsck_extracts(image, devices, target) {
        return;
    }
    let mut dirs = vec![tree.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if kind.is_dir() {
                dirs.push(path);
            } else if kind.is_file() {
                let expected = std::fs::read(&path).unwrap();
                let found = target.join(path.strip_prefix(tree).unwrap());
                let found = std::fs::read(found).unwrap();
                // Versions up to 1.9.3 leave out holes at the end.
                let cut = found.len().min(expected.len());
                let rest = expected[cut..].iter().all(|byte| *byte == 0);
                assert!(found == expected[..cut] && rest, "{}", path.display());
            }
        }
    }
    std::fs::remove_dir_all(target).unwrap();
}

/// Extracts an image with the `fsck.erofs` in PATH. Returns false if it cannot.
fn fsck_extracts(image: &Path, devices: &[&Path], target: &Path) -> bool {
    let out = Command::new("fsck.erofs")
        .args(
            devices
                .iter()
                .map(|path| format!("--device={}", path.display())),
        )
        .arg(format!("--extract={}", target.display()))
        .arg("--overwrite")
        .arg(image)
        .output();
    let out = match out {
        Ok(out) => out,
        Err(e) => {
            crate::skipped(format_args!("fsck.erofs: {e}"));
            return false;
        }
    };
    let message = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    let unsupported = ["unidentified", "unsupported", "not supported", "upgrade"];
    if unsupported.iter().any(|word| message.contains(word)) {
        let why = message.lines().next().unwrap_or_default();
        crate::note(format_args!("fsck.erofs is too old: {why}"));
        return false;
    }
    assert!(out.status.success(), "fsck.erofs: {message}");
    true
}

/// Returns the compression with this method and level, and the default dictionary size.
pub fn compression(method: Method, level: i32) -> Option<Compression> {
    Some(Compression {
        method,
        level,
        dict: None,
    })
}

/// Builds an image of a directory.
pub fn build_dir(source: &Path, image: &Path, options: &Options) {
    let sources = [Source::Dir(source.to_owned())];
    build(
        &sources,
        options,
        &Target::Path(image.to_owned()),
        &Progress::default(),
    )
    .unwrap();
}

/// Returns named options of the builder. All of them verify the image.
pub fn variants() -> Vec<(String, Options)> {
    let newest = || Options::for_kernel(KernelVersion(6, 18));
    let mut all = vec![("defaults".to_owned(), Options::default())];
    all.push((
        "for 5.4".to_owned(),
        Options::for_kernel(KernelVersion(5, 4)),
    ));
    for (method, level, cluster) in [
        (Method::Lz4, 1, 4 << 10),
        (Method::Lz4, 1, 64 << 10),
        (Method::Lz4hc, 2, 1 << 20),
        (Method::Lz4hc, 3, 16 << 10),
        (Method::Lz4hc, 12, 128 << 10),
        (Method::Deflate, 1, 4 << 10),
        (Method::Deflate, 9, 64 << 10),
        (Method::Lzma, 0, 4 << 10),
        (Method::Lzma, 6, 1 << 20),
        (Method::Zstd, 3, 4 << 10),
        (Method::Zstd, 15, 64 << 10),
        (Method::Zstd, 1, 1 << 20),
    ] {
        for layout in ["plain", "tails", "fragments", "full", "small", "all"] {
            let mut o = newest();
            o.compression.default = compression(method, level);
            (o.compression.cluster, o.layout.fragment_cluster) = (cluster, cluster);
            o.layout.tail_packing = matches!(layout, "tails" | "small");
            o.layout.compact_index = layout != "full";
            o.layout.fragments = match layout {
                "fragments" => Fragments::Tails,
                "small" => Fragments::Small,
                "all" => Fragments::All,
                _ => Fragments::Off,
            };
            all.push((format!("{method} {level} {cluster} {layout}"), o));
        }
    }
    let mut stored = newest();
    stored.compression.default = None;
    all.push(("stored".to_owned(), stored.clone()));
    stored.layout.inline_data = false;
    stored.layout.sparse = SparsePolicy::Keep;
    stored.dedupe.mode = Dedupe::Off;
    all.push((
        "stored, no inline data, sparse, no dedupe".to_owned(),
        stored,
    ));
    for block in [9, 10, 11] {
        let mut o = newest();
        o.block = tuff_format::BlockBits::new(block).unwrap();
        o.compression.default = None;
        all.push((format!("stored, blocks of {}", 1 << block), o.clone()));
        o.compression.default = compression(Method::Lz4, 1);
        o.compression.cluster = 16 << 10;
        all.push((format!("lz4, blocks of {}", 1 << block), o));
    }
    let mut o = newest();
    o.metadata.inodes = InodeForm::Extended;
    o.metadata.xattr_share = 0;
    o.metadata.xattr_filter = false;
    o.metadata.checksum = false;
    o.compression.window = 64 << 10;
    o.layout.fragments = Fragments::Off;
    o.compression.min_saving = 0;
    all.push((
        "extended, everything shared, no filter, no checksum, small window".to_owned(),
        o,
    ));
    for fragments in [Fragments::Off, Fragments::Tails] {
        let mut o = newest();
        o.metadata.xattr_prefixes = vec![b"user.overlay.".to_vec(), b"trusted.overlay.".to_vec()];
        o.metadata.xattr_share = 1000;
        o.layout.fragments = fragments;
        o.layout.tail_packing = false;
        all.push((format!("attribute prefixes, fragments {fragments:?}"), o));
    }
    let mut o = newest();
    let rule = |glob: &str, compression, cluster| Rule {
        paths: globset::Glob::new(glob).unwrap().compile_matcher().into(),
        compression,
        cluster,
    };
    o.compression.rules = vec![
        rule("text*", compression(Method::Lzma, 1), Some(32 << 10)),
        rule("mixed*", compression(Method::Zstd, 5), None),
        rule("zeros", None, None),
        rule("shares*", compression(Method::Deflate, 5), Some(4 << 10)),
    ];
    all.push(("four algorithms".to_owned(), o));
    all.extend(metadata_variants());
    all.extend(unaligned_variants());
    for (_, options) in &mut all {
        options.output.verify = true;
    }
    all
}

/// Returns options with pclusters that need not start at block boundaries.
fn unaligned_variants() -> Vec<(String, Options)> {
    let mut all = Vec::new();
    for (method, level, cluster, fragments) in [
        (Method::Lz4, 1, 4 << 10, Fragments::Off),
        (Method::Lz4hc, 9, 64 << 10, Fragments::Tails),
        (Method::Lz4hc, 2, 1 << 20, Fragments::Off),
        (Method::Deflate, 6, 16 << 10, Fragments::Off),
        (Method::Lzma, 1, 1 << 20, Fragments::All),
        (Method::Lzma, 6, 4 << 10, Fragments::Off),
        (Method::Zstd, 3, 64 << 10, Fragments::Small),
        (Method::Zstd, 1, 128 << 10, Fragments::Off),
    ] {
        for block in [12, 9] {
            let mut o = Options::for_kernel(KernelVersion(6, 18));
            o.layout.unaligned = true;
            o.block = tuff_format::BlockBits::new(block).unwrap();
            o.compression.default = compression(method, level);
            (o.compression.cluster, o.layout.fragment_cluster) = (cluster, cluster);
            o.layout.fragments = fragments;
            if fragments == Fragments::All {
                o.metadata.form = Metadata::Compressed;
            }
            o.fit_clusters();
            let name = format!(
                "unaligned {method} {level} {cluster}, blocks of {}",
                1 << block
            );
            all.push((name, o));
        }
    }
    all
}

/// Returns options with inode forms that need recent kernels.
fn metadata_variants() -> Vec<(String, Options)> {
    let with = |metadata| Options {
        metadata: MetadataOptions {
            form: metadata,
            ..Options::for_kernel(KernelVersion(6, 18)).metadata
        },
        ..Options::for_kernel(KernelVersion(6, 18))
    };
    let mut all = vec![("short inodes".to_owned(), with(Metadata::Short))];
    for (method, cluster, fragments) in [
        (Method::Lz4hc, 16 << 10, Fragments::Tails),
        (Method::Lz4, 4 << 10, Fragments::Off),
        (Method::Lzma, 64 << 10, Fragments::All),
        (Method::Deflate, 32 << 10, Fragments::Small),
        (Method::Zstd, 1 << 20, Fragments::Tails),
    ] {
        let mut o = with(Metadata::Compressed);
        o.compression.default = compression(method, method.default_level());
        (o.metadata.cluster, o.layout.fragments) = (cluster, fragments);
        all.push((format!("metadata by {method} {cluster}"), o));
    }
    for block in [9, 10] {
        let mut o = with(Metadata::Compressed);
        o.block = tuff_format::BlockBits::new(block).unwrap();
        all.push((format!("compressed metadata, blocks of {}", 1 << block), o));
    }
    let mut o = with(Metadata::Compressed);
    o.metadata.xattr_prefixes = vec![b"user.overlay.".to_vec(), b"trusted.overlay.".to_vec()];
    (o.metadata.xattr_share, o.metadata.inodes) = (0, InodeForm::Extended);
    all.push((
        "compressed metadata, attribute prefixes, everything shared".to_owned(),
        o,
    ));
    all
}
