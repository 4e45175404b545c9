//! Images with blocks of 8 to 64 KiB, for kernels with pages of that size.
//!
//! A kernel with smaller pages mounts none of them. They are verified by this reader and the
//! checker; kernels with large enough pages compare the tree, too.

use std::fs;
use tuff_erofs::check;
use tuff_format::BlockBits;
use tuff_mkfs::{Dedupe, Fragments, KernelVersion, Metadata, Method, Options, SparsePolicy};
use tuff_testkit::Scratch;
use tuff_testkit::kernel::by_kernel;
use tuff_testkit::tree::assert_same;
use tuff_testkit::tree::from_source;
use tuff_testkit::tree::host_tree;
use tuff_testkit::tree::image_tree;
use tuff_testkit::tree::nasty_tree;
use tuff_testkit::tree::open;
use tuff_testkit::variants::{build_dir, compression};

fn options(block_log2: u8, method: Option<Method>) -> Options {
    let mut o = Options::for_kernel(KernelVersion(6, 18));
    o.block = BlockBits::new(block_log2).unwrap();
    o.compression.default = method.and_then(|m| compression(m, m.default_level()));
    o.output.verify = true;
    o.fit_clusters();
    o
}

/// Layouts that depend on the block size.
fn variants(block_log2: u8) -> Vec<(String, Options)> {
    let plain = |method| options(block_log2, Some(method));
    let mut large = plain(Method::Lz4);
    large.set_cluster(1 << 20);
    large.dedupe.mode = Dedupe::Content;
    let mut packed = plain(Method::Zstd);
    packed.set_cluster(256 << 10);
    packed.layout.fragments = Fragments::All;
    packed.metadata.form = Metadata::Compressed;
    let mut inline = plain(Method::Deflate);
    inline.layout.fragments = Fragments::Off;
    inline.layout.tail_packing = true;
    let mut anywhere = plain(Method::Lzma);
    anywhere.layout.unaligned = true;
    anywhere.layout.tail_packing = false;
    let mut chunks = options(block_log2, None);
    chunks.layout.chunk = Some(128 << 10);
    chunks.layout.sparse = SparsePolicy::Keep;
    let variants = [
        ("stored", options(block_log2, None)),
        ("LZ4", plain(Method::Lz4)),
        ("LZ4, clusters of 1 MiB, parts shared", large),
        ("Zstandard, packed, metabox", packed),
        ("DEFLATE, ends inline", inline),
        ("LZMA, unaligned", anywhere),
        ("chunks", chunks),
    ];
    let named = |(name, o)| (format!("{name}, blocks of {}", 1 << block_log2), o);
    variants.into_iter().map(named).collect()
}

#[test]
fn images_with_large_blocks_contain_the_tree() {
    let scratch = Scratch::new("blocks");
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    nasty_tree(&at("tree"));
    let expected = host_tree(&at("tree"));
    let ignore = from_source(&expected);
    for (what, options) in (13..=16).flat_map(variants) {
        build_dir(&at("tree"), &at("image"), &options);
        let image = open(&at("image"));
        assert_eq!(image.superblock().block_bits, options.block, "{what}");
        let report = check::check(&image, &check::Options::default(), |_| ());
        let message: Vec<_> = report.findings.iter().map(|f| f.what.to_string()).collect();
        assert!(report.is_clean(), "{what}: {message:?}");
        assert_same(&what, &expected, &image_tree(&image), ignore);
    }
}

#[test]
#[cfg_attr(target_arch = "x86_64", ignore = "has pages of 4096 bytes only")]
fn a_kernel_with_large_pages_agrees() {
    let page = rustix::param::page_size();
    if page == 4096 {
        let why = "this kernel has pages of 4096 bytes, and mounts no larger blocks";
        tuff_testkit::skipped(format_args!("{why}"));
        return;
    }
    let scratch = Scratch::new("blocks-kernel");
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    nasty_tree(&at("tree"));
    let expected = host_tree(&at("tree"));
    let ignore = from_source(&expected);
    for (what, options) in (13..=page.ilog2() as u8).flat_map(variants) {
        build_dir(&at("tree"), &at("image"), &options);
        by_kernel(&at("image"), &[], &at("mnt"), &|way, dir| {
            assert_same(
                &format!("{what}, {way}"),
                &expected,
                &host_tree(dir),
                ignore,
            );
        });
    }
}

#[test]
fn clusters_are_whole_blocks() {
    let mut o = options(16, Some(Method::Lz4));
    assert_eq!(
        (
            o.compression.cluster,
            o.layout.fragment_cluster,
            o.metadata.cluster
        ),
        (65536, 65536, 65536)
    );
    o.compression.cluster = 32 << 10;
    let why = o.check().unwrap_err().to_string();
    assert_eq!(
        why,
        "cluster size 32768: it must be a multiple of the block size 65536, up to 1048576"
    );
}
