//! Built images, mounted by the kernel, contain the source tree, and this library's reader agrees.

use std::path::{Path, PathBuf};
use std::process::Command;
use tuff_format::features::{Feature, flags_of, min_kernel};
use tuff_mkfs::{
    Dedupe, Fragments, KernelVersion, LayoutOptions, Metadata, Method, Options, Progress, Source,
    SparsePolicy, build,
};
use tuff_store::Target;
use tuff_testkit::content::noise;
use tuff_testkit::tree::{
    Ignore, Record, assert_same, from_source, host_tree, image_tree, nasty_tree, open,
};
use tuff_testkit::variants::{build_dir, compression, variants};
use tuff_testkit::{Scratch, is_root};

/// Available ways to mount an image. Reports a skip if there is none.
fn ways_to_mount() -> Vec<&'static str> {
    if !is_root() {
        tuff_testkit::skipped("mounting needs root");
        return Vec::new();
    }
    let _ = Command::new("modprobe").arg("erofs").output();
    if !std::fs::read_to_string("/proc/filesystems")
        .unwrap_or_default()
        .contains("erofs")
    {
        tuff_testkit::skipped("this kernel has no erofs");
        return Vec::new();
    }
    let mut ways = vec!["loop"];
    if running().supports(Feature::FILE_BACKED_MOUNT) {
        ways.push("file");
    } else {
        tuff_testkit::skipped("mounts straight from a file need Linux 6.12");
    }
    ways
}

/// Version of the running kernel.
fn running() -> KernelVersion {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    KernelVersion::from_release(release.trim_end()).unwrap()
}

/// True, with a reported skip, if the running kernel is too old for the image.
fn is_too_new(name: &str, image: &Path) -> bool {
    let needs = min_kernel(flags_of(0, open(image).superblock().incompat));
    let too_new = needs > running();
    if too_new {
        tuff_testkit::skipped(format_args!("{name}: mounting it needs Linux {needs}"));
    }
    too_new
}

/// Mounted image, unmounted on drop.
struct Mount(PathBuf);

impl Mount {
    fn new(image: &Path, dir: &Path, way: &str) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        if way == "loop" {
            let out = Command::new("mount")
                .args(["-t", "erofs", "-o", "loop,ro"])
                .arg(image)
                .arg(dir)
                .output()
                .unwrap();
            assert!(
                out.status.success(),
                "mount: {}",
                String::from_utf8_lossy(&out.stderr)
            );
        } else {
            let flags = rustix::mount::MountFlags::RDONLY;
            rustix::mount::mount(image, dir, "erofs", flags, None)
                .unwrap_or_else(|e| panic!("mount from a file: {e}"));
        }
        Self(dir.to_owned())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A concurrent test that spawns a command may briefly hold a file of the mount, so unmount
        // lazily.
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Asserts that the kernel shows the expected tree by every way to mount.
fn kernel_agrees(name: &str, image: &Path, expected: &[Record], ignore: Ignore) {
    if is_too_new(name, image) {
        return;
    }
    for way in ways_to_mount() {
        let mount = Mount::new(image, &image.with_extension("mnt"), way);
        let what = format!("{name}: mounted by {way}");
        assert_same(&what, expected, &host_tree(&mount.0), ignore);
    }
}

#[test]
fn the_kernel_reads_back_what_was_built() {
    let scratch = Scratch::new("build-kernel");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    nasty_tree(&source);
    tuff_testkit::tree::longest_name(&source);
    let expected = host_tree(&source);
    let ignore = from_source(&expected);
    let ways = ways_to_mount();
    let has_fsck = Command::new("fsck.erofs").arg("-V").output().is_ok();
    if !has_fsck {
        tuff_testkit::skipped("no fsck.erofs on PATH");
    }
    for (i, (name, options)) in variants().into_iter().enumerate() {
        let image = scratch.path().join(format!("{i}.erofs"));
        build_dir(&source, &image, &options);
        let ours = image_tree(&open(&image));
        assert_same(&format!("{name}: this reader"), &expected, &ours, ignore);
        let too_new = is_too_new(&name, &image);
        // One way for each variant. Each compression and each of the six layouts is mounted in every way.
        let turn = (i + i / 6) % ways.len().max(1);
        if let Some(way) = ways.get(turn).filter(|_| !too_new) {
            let mount = Mount::new(&image, &scratch.path().join("mnt"), way);
            let kernel = host_tree(&mount.0);
            assert_same(
                &format!("{name}: mounted by {way}"),
                &expected,
                &kernel,
                ignore,
            );
            // The two readers must agree, except that kernels before 6.13 show no holes.
            assert_same(
                &format!("{name}: {way} and this reader"),
                &kernel,
                &ours,
                Ignore {
                    holes: true,
                    ..Ignore::default()
                },
            );
        }
        if has_fsck {
            check_by_incumbent(&image, &name, &options);
        }
        std::fs::remove_file(&image).unwrap();
    }
}

/// Extracts with Debian's fsck.erofs, if it supports the format.
fn check_by_incumbent(image: &Path, name: &str, options: &Options) {
    // Version 1.5 reports blocks below 4 KiB as damage.
    if options.block.get() != 12 {
        return;
    }
    let out = Command::new("fsck.erofs")
        .arg("--extract")
        .arg(image)
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    if !out.status.success()
        && [
            "please upgrade",
            "unidentified",
            "unsupported",
            "unknown compression format",
            "Operation not supported",
        ]
        .iter()
        .any(|s| message.contains(s))
    {
        tuff_testkit::note(format_args!(
            "{name}: fsck.erofs is too old: {}",
            message.lines().next().unwrap_or_default()
        ));
        return;
    }
    assert!(out.status.success(), "{name}: fsck.erofs: {message}");
}

#[test]
fn holes_are_preserved() {
    let scratch = Scratch::new("build-holes");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    let file = |name: &str, size: u64, runs: &[(u64, usize)]| {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::create(source.join(name)).unwrap();
        file.set_len(size).unwrap();
        for (at, len) in runs {
            file.write_all_at(&tuff_testkit::content::noise(*len, *at), *at)
                .unwrap();
        }
    };
    file("trailing", 8 << 20, &[(0, 1 << 20)]);
    file("only", 5 << 20, &[]);
    file("leading", 5 << 20, &[(4 << 20, 1 << 20)]);
    file("middle", 3 << 20, &[(0, 4096), ((3 << 20) - 4096, 4096)]);
    file(
        "many",
        4 << 20,
        &[(65536, 65536), (1 << 20, 4096), (2 << 20, 300_000)],
    );

    file("odd-end", (1 << 20) + 17, &[(1 << 20, 17)]);
    let expected = host_tree(&source);
    let has_holes = expected
        .iter()
        .any(|r| r.data.as_ref().is_some_and(Vec::is_empty) && r.size > 0);
    if !has_holes {
        tuff_testkit::skipped("the filesystem of the temporary directory shows no holes");
        return;
    }
    let mut options = Options::default();
    options.layout.sparse = SparsePolicy::Keep;
    options.kernel = KernelVersion(6, 18);
    let image = scratch.path().join("image");
    build_dir(&source, &image, &options);
    assert!(std::fs::metadata(&image).unwrap().len() < 6 << 20);
    let ignore = Ignore {
        dir_size: true,
        dir_nlink: true,
        ..Ignore::default()
    };
    let ours = image_tree(&open(&image));
    assert_same("holes, this reader", &expected, &ours, ignore);
    kernel_agrees("holes", &image, &expected, ignore);
}

/// Regression: the kernel rejected an unaligned image with small blocks and a file of 128 KiB of
/// noise. Uncompressed clusters were limited by LZ4's limit only, not by that of the kernel.
#[test]
fn uncompressed_clusters_respect_the_limit_of_the_kernel() {
    let scratch = Scratch::new("build-stored");
    let (source, image) = (scratch.path().join("source"), scratch.path().join("image"));
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("noise"), noise(131_073, 1)).unwrap();
    std::fs::write(source.join("text"), tuff_testkit::content::text(50_000, 2)).unwrap();
    let expected = host_tree(&source);
    for bits in 9..=12 {
        let mut options = Options::for_kernel(KernelVersion(6, 18));
        options.block = tuff_format::BlockBits::new(bits).unwrap();
        options.compression.default = compression(Method::Lz4, 2);
        (options.compression.cluster, options.layout.fragments) = (12 << 10, Fragments::Off);
        (options.layout.unaligned, options.layout.tail_packing) = (true, false);
        options.fit_clusters();
        build_dir(&source, &image, &options);
        let name = format!("blocks of {}", 1 << bits);
        let report = tuff_erofs::check::check(&open(&image), &Default::default(), |_| ());
        assert!(report.is_clean(), "{name}: {:?}", report.findings);
        kernel_agrees(&name, &image, &expected, from_source(&expected));
    }
}

/// The largest clusters of each block size, which kernels limit in blocks.
#[test]
fn the_largest_clusters_are_readable() {
    let scratch = Scratch::new("build-largest");
    let (source, image) = (scratch.path().join("source"), scratch.path().join("image"));
    std::fs::create_dir(&source).unwrap();
    // Data of low redundancy, so that clusters are filled.
    let letters = noise(5 << 20, 1).iter().map(|b| b & 31).collect::<Vec<_>>();
    std::fs::write(source.join("letters"), letters).unwrap();
    std::fs::write(source.join("text"), tuff_testkit::content::text(4 << 20, 2)).unwrap();
    let expected = host_tree(&source);
    for bits in 9..=12 {
        for (method, fragments) in [
            (Method::Lz4, Fragments::Off),
            (Method::Lz4hc, Fragments::All),
            (Method::Zstd, Fragments::Tails),
            (Method::Deflate, Fragments::All),
            (Method::Lzma, Fragments::Off),
        ] {
            let mut options = Options::for_kernel(KernelVersion(6, 18));
            options.block = tuff_format::BlockBits::new(bits).unwrap();
            options.compression.default = compression(method, 2);
            options.layout.fragments = fragments;
            options.layout.compact_index = method != Method::Deflate;
            let max = options.cluster_max(method);
            (options.compression.cluster, options.layout.fragment_cluster) = (2 << 20, 2 << 20);
            options.fit_clusters();
            assert!(options.compression.cluster <= max && options.compression.cluster * 2 > max);
            build_dir(&source, &image, &options);
            let name = format!("{method:?}, blocks of {}", 1 << bits);
            let report = tuff_erofs::check::check(&open(&image), &Default::default(), |_| ());
            assert!(report.is_clean(), "{name}: {:?}", report.findings);
            kernel_agrees(&name, &image, &expected, from_source(&expected));
            options.compression.cluster = max + (1 << bits);
            let refused = options.check().unwrap_err().to_string();
            assert!(refused.contains(&max.to_string()), "{name}: {refused}");
        }
    }
}

/// Metadata that fits is placed after the superblock, and content below half a block inline. Adding
/// one file at a time covers both sides of each limit.
#[test]
fn small_images_fit_in_the_first_block() {
    let scratch = Scratch::new("build-little");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    let image = scratch.path().join("image.erofs");
    let mut blocks = Vec::new();
    for n in 0..80 {
        std::fs::write(source.join(format!("f{n}")), vec![b'x'; n]).unwrap();
        let expected = host_tree(&source);
        let ignore = from_source(&expected);
        for (fragments, metadata) in [
            (Fragments::Off, Metadata::Plain),
            (Fragments::All, Metadata::Plain),
            (Fragments::All, Metadata::Short),
            (Fragments::All, Metadata::Compressed),
        ] {
            let mut options = Options::for_kernel(KernelVersion(6, 18));
            options.output.verify = true;
            options.layout.fragments = fragments;
            options.metadata.form = metadata;
            build_dir(&source, &image, &options);
            let name = format!("{} files, {fragments:?}, {metadata:?}", n + 1);
            assert_same(&name, &expected, &image_tree(&open(&image)), ignore);
            if n % 8 == 0 {
                kernel_agrees(&name, &image, &expected, ignore);
            }
            blocks.push(std::fs::metadata(&image).unwrap().len() / 4096);
            std::fs::remove_file(&image).unwrap();
        }
    }
    assert_eq!(blocks[0], 1);
    assert!(
        blocks.contains(&2) && blocks.last() > Some(&2),
        "{blocks:?}"
    );
}

#[test]
fn bytes_do_not_depend_on_threads_or_output() {
    let scratch = Scratch::new("build-threads");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    nasty_tree(&source);
    std::fs::write(
        source.join("large"),
        tuff_testkit::content::mixed(20 << 20, 5),
    )
    .unwrap();
    for (fragments, metadata) in [
        (Fragments::Off, Metadata::Plain),
        (Fragments::Tails, Metadata::Plain),
        (Fragments::Tails, Metadata::Compressed),
    ] {
        let images: Vec<Vec<u8>> = [1, 2, 7, 16]
            .into_iter()
            .map(|threads| {
                let image = scratch.path().join(format!("{threads}"));
                let mut options = Options::for_kernel(KernelVersion(6, 18));
                options.resources.threads = Some(threads);
                options.layout.fragments = fragments;
                options.metadata.form = metadata;
                options.compression.default = compression(Method::Lz4, 1);
                options.compression.cluster = 16 << 10;
                // One of them has a budget that makes the submitter wait.
                options.resources.memory = (threads == 7).then_some(1 << 20);
                build_dir(&source, &image, &options);
                std::fs::read(image).unwrap()
            })
            .collect();
        assert!(images.windows(2).all(|w| w[0] == w[1]), "{fragments:?}");
    }
}

#[test]
fn a_real_tree_is_read_back() {
    let source = ["/usr/share/perl", "/usr/lib/python3", "/usr/share/doc"]
        .map(Path::new)
        .into_iter()
        .find(|p| p.is_dir());
    let Some(source) = source else {
        tuff_testkit::skipped("no part of /usr to build from");
        return;
    };
    let scratch = Scratch::new("build-real");
    let expected = host_tree(source);
    let ignore = from_source(&expected);
    for fragments in [Fragments::Off, Fragments::Tails] {
        let image = scratch.path().join("image");
        build_dir(
            source,
            &image,
            &Options {
                layout: LayoutOptions {
                    fragments,
                    ..LayoutOptions::default()
                },
                ..Options::default()
            },
        );
        assert_same("this reader", &expected, &image_tree(&open(&image)), ignore);
        kernel_agrees("kernel", &image, &expected, ignore);
    }
}

/// Sixteen versions of some files, each with a few edits, and files that are difficult to share.
fn versions(root: &Path) {
    let mut text = tuff_testkit::content::text(700_000, 11);
    let mut binary = tuff_testkit::content::mixed(300_000, 12);
    let mut noise = tuff_testkit::content::noise(200_000, 13);
    let mut small = tuff_testkit::content::text(9_000, 14);
    for version in 0..16u64 {
        let dir = root.join(format!("v{version:02}"));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("text"), &text).unwrap();
        std::fs::write(dir.join("binary"), &binary).unwrap();
        std::fs::write(dir.join("noise"), &noise).unwrap();
        std::fs::write(dir.join("small"), &small).unwrap();
        std::fs::write(dir.join("same"), tuff_testkit::content::text(70_000, 15)).unwrap();
        // Inserts a line, removes a range and changes bytes. Two edits are closer than a block.
        let at = |len: usize, n: u64| (version * 7919 + n * 104_729) as usize % (len - 5000);
        let (a, b) = (at(text.len(), 1), at(binary.len(), 2));
        text.splice(
            a..a,
            tuff_testkit::content::text(60 + version as usize, version),
        );
        text[a + 900] ^= 1;
        binary.drain(b..b + 100 * version as usize);
        let c = at(noise.len(), 3);
        noise.splice(c..c + 10, tuff_testkit::content::noise(33, version));
        let d = at(small.len(), 4);
        small[d] ^= 2;
    }
    // A file that repeats itself; a shifted copy of a multi-segment file; prefix and suffix of
    // another file.
    let repeats = [
        text.clone(),
        tuff_testkit::content::noise(100, 5),
        text.clone(),
    ]
    .concat();
    std::fs::write(root.join("w-repeats"), &repeats).unwrap();
    let large = tuff_testkit::content::mixed((9 << 20) + 77, 16);
    std::fs::write(root.join("x-large"), &large).unwrap();
    std::fs::write(root.join("x-large-shifted"), [&b"!"[..], &large].concat()).unwrap();
    std::fs::write(root.join("y-begin"), &large[..150_001]).unwrap();
    std::fs::write(root.join("z-end"), &large[large.len() - 150_001..]).unwrap();
}

#[test]
fn versions_of_files_share_parts() {
    let scratch = Scratch::new("build-versions");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    versions(&source);
    let expected = host_tree(&source);
    let ignore = from_source(&expected);
    let image = scratch.path().join("image");
    let build_with = |options: &Options| {
        let sources = [Source::Dir(source.clone())];
        let target = Target::Path(image.clone());
        build(&sources, options, &target, &Progress::default()).unwrap()
    };
    let settings = [
        (Method::Lz4, 1, 4 << 10, Fragments::Off),
        (Method::Lz4hc, 9, 64 << 10, Fragments::Tails),
        (Method::Lz4, 1, 64 << 10, Fragments::Small),
        (Method::Lz4, 1, 16 << 10, Fragments::All),
        (Method::Zstd, 3, 128 << 10, Fragments::Tails),
        (Method::Zstd, 1, 16 << 10, Fragments::Off),
        (Method::Deflate, 1, 32 << 10, Fragments::Tails),
        (Method::Lzma, 0, 64 << 10, Fragments::Off),
    ];
    let unaligned = [settings[0], settings[1], settings[5], settings[7]].map(|s| (s, true));
    let all = settings.map(|s| (s, false)).into_iter().chain(unaligned);
    for ((method, level, cluster, fragments), unaligned) in all {
        let name = format!("{method} {level} {cluster} {fragments:?} {unaligned}");
        let mut options = Options::for_kernel(KernelVersion(6, 18));
        options.compression.default = compression(method, level);
        (options.compression.cluster, options.layout.fragment_cluster) =
            (cluster, cluster.min(16 << 10));
        options.layout.fragments = fragments;
        options.layout.unaligned = unaligned;
        options.layout.tail_packing =
            matches!(fragments, Fragments::Off | Fragments::Small) && !unaligned;
        options.dedupe.mode = Dedupe::Files;
        let files = build_with(&options).image_bytes;
        options.dedupe.mode = Dedupe::Content;
        let summary = build_with(&options);
        if fragments != Fragments::All {
            assert!(summary.stats.shared_bytes > 1 << 20, "{name}");
            assert!(summary.image_bytes < files, "{name}");
        }
        // All but the first of sixteen versions have a similar tail.
        if fragments == Fragments::Tails {
            assert!(summary.stats.similar_tails > 14, "{name}");
        }
        let report = tuff_erofs::check::check(&open(&image), &Default::default(), |_| ());
        assert!(report.is_clean(), "{name}: {:?}", report.findings);
        assert_same(&name, &expected, &image_tree(&open(&image)), ignore);
        kernel_agrees(&name, &image, &expected, ignore);
    }
}

#[test]
fn shared_parts_do_not_depend_on_threads() {
    let scratch = Scratch::new("build-versions-threads");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    versions(&source);
    for (fragments, unaligned) in [
        (Fragments::Tails, false),
        (Fragments::All, false),
        (Fragments::Tails, true),
        (Fragments::Off, true),
    ] {
        let images: Vec<Vec<u8>> = [1, 2, 7, 16]
            .into_iter()
            .map(|threads| {
                let image = scratch.path().join(format!("{threads}"));
                let mut options = Options::for_kernel(KernelVersion(6, 18));
                options.resources.threads = Some(threads);
                options.layout.fragments = fragments;
                options.layout.unaligned = unaligned;
                options.dedupe.mode = Dedupe::Content;
                options.compression.default = compression(Method::Lz4, 1);
                build_dir(&source, &image, &options);
                std::fs::read(image).unwrap()
            })
            .collect();
        assert!(
            images.windows(2).all(|w| w[0] == w[1]),
            "{fragments:?} {unaligned}"
        );
    }
}
