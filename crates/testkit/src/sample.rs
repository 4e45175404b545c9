//! Images of one small tree with many combinations of options, for tests that need an image with every kind of inode. Building
//! them needs no privileges.

use std::path::Path;
use std::sync::OnceLock;
use tuff_erofs::read::Image;
use tuff_format::BlockBits;
use tuff_mkfs::{
    Compression, Fragments, KernelVersion, Method, Options, Progress, Rule, Source, SparsePolicy,
    build,
};
use tuff_store::{MemStore, Target};

/// Manifest of the tree. [`contents`] returns the bytes of its files.
const MANIFEST: &str = "#mtree
/set type=file uid=0 gid=0 mode=0644 time=1700000000.000000000
. type=dir mode=0755
dir type=dir mode=0755 xattr.user.common.colour=blue
sub type=dir mode=0755
file
..
..
empty size=0
fifo type=fifo
hi xattr.user.common.colour=blue xattr.user.nothing=
./hi-too hardlink=hi
letters uid=100000 gid=70000 xattr.user.common.own=only\\040here
link type=link mode=0777 link=numbers
null type=char device=1,3
numbers mode=4755 xattr.user.common.colour=blue
numbers-more
packed
sparse
";

/// Returns text with one number per line.
pub fn lines(numbers: impl Iterator<Item = u32>) -> Vec<u8> {
    numbers
        .flat_map(|n| format!("{n}\n").into_bytes())
        .collect()
}

/// Returns the files that are not empty, by path.
pub fn contents() -> [(&'static str, Vec<u8>); 7] {
    let mut sparse = vec![0; 40_000];
    sparse[30_000..30_003].copy_from_slice(b"end");
    [
        ("numbers", lines(1..=2500)),
        ("numbers-more", lines((1..=2500).chain(5..=500))),
        ("letters", b"abc\n".repeat(4000)),
        ("packed", crate::content::noise(5000, 1)),
        ("hi", b"hello, erofs\n".to_vec()),
        ("sparse", sparse),
        ("dir/sub/file", b"deep\n".to_vec()),
    ]
}

/// Returns all images with their names.
pub fn all() -> &'static [(&'static str, Vec<u8>)] {
    static ALL: OnceLock<Vec<(&'static str, Vec<u8>)>> = OnceLock::new();
    ALL.get_or_init(make)
}

/// Returns the image with this name.
pub fn bytes(name: &str) -> Vec<u8> {
    let found = all().iter().find(|(n, _)| *n == name);
    found.expect("the name of a sample").1.clone()
}

/// Opens the image with this name.
pub fn image(name: &str) -> Image {
    open(&bytes(name))
}

/// Opens an image in memory.
pub fn open(bytes: &[u8]) -> Image {
    Image::open(MemStore::new(bytes), Default::default()).unwrap()
}

fn variants() -> Vec<(&'static str, Options)> {
    let with = |method: Option<(Method, i32)>, cluster: usize| {
        let mut o = Options::for_kernel(KernelVersion(6, 18));
        o.compression.default = method.map(|(method, level)| Compression {
            method,
            level,
            dict: None,
        });
        (o.compression.cluster, o.layout.fragment_cluster) = (cluster, cluster);
        o.layout.fragments = Fragments::Off;
        o.layout.tail_packing = false;
        o
    };
    let lz4 = || with(Some((Method::Lz4, 1)), 4096);
    let zstd = || with(Some((Method::Zstd, 3)), 16384);
    let mut plain = with(None, 4096);
    plain.block = BlockBits::new(9).unwrap();
    let mut chunk = with(None, 4096);
    chunk.layout.sparse = SparsePolicy::Keep;
    let mut full = with(Some((Method::Lz4, 1)), 16384);
    (full.layout.compact_index, full.layout.tail_packing) = (false, true);
    let mut lzma = with(Some((Method::Lzma, 1)), 16384);
    lzma.layout.fragments = Fragments::Tails;
    let mut deflate = with(Some((Method::Deflate, 5)), 8192);
    deflate.block = BlockBits::new(10).unwrap();
    let mut four = zstd();
    let rule = |glob: &str, method, level| Rule {
        paths: globset(glob).into(),
        compression: Some(Compression {
            method,
            level,
            dict: None,
        }),
        cluster: None,
    };
    four.compression.rules = vec![
        rule("numbers", Method::Lz4, 1),
        rule("letters", Method::Lzma, 1),
        rule("sparse", Method::Deflate, 5),
    ];
    let mut fragments = zstd();
    (
        fragments.layout.fragments,
        fragments.layout.fragment_cluster,
    ) = (Fragments::Tails, 65536);
    fragments.compression.cluster = 65536;
    let mut unaligned = zstd();
    (unaligned.layout.unaligned, unaligned.layout.fragments) = (true, Fragments::Tails);
    let prefixed = |mut o: Options| {
        o.metadata.xattr_prefixes = vec![b"user.common.".to_vec()];
        o
    };
    let mut packed = lz4();
    packed.layout.fragments = Fragments::Tails;
    vec![
        ("plain", plain),
        ("chunk", chunk),
        ("lz4", lz4()),
        ("lz4-full", full),
        ("lzma", lzma),
        ("deflate", deflate),
        ("zstd", zstd()),
        ("four", four),
        ("fragments", fragments),
        ("unaligned", unaligned),
        ("prefix-plain", prefixed(with(None, 4096))),
        ("prefix-packed", prefixed(packed)),
    ]
}

fn globset(glob: &str) -> globset::GlobMatcher {
    globset::Glob::new(glob).unwrap().compile_matcher()
}

fn make() -> Vec<(&'static str, Vec<u8>)> {
    let scratch = crate::Scratch::new("sample");
    let root = scratch.path();
    std::fs::create_dir_all(root.join("dir/sub")).unwrap();
    for (name, bytes) in contents() {
        write_sparse(&root.join(name), &bytes);
    }
    let entries: String = (100..230)
        .map(|i| format!("./dir/entry-{i} size=0\n"))
        .collect();
    let manifest = root.join("manifest");
    std::fs::write(&manifest, [MANIFEST, &entries].concat()).unwrap();
    let make = |(name, options): (&'static str, Options)| {
        let image = root.join("image");
        let sources = [Source::Manifest(manifest.clone())];
        let target = Target::Path(image.clone());
        build(&sources, &options, &target, &Progress::default())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        (name, std::fs::read(&image).unwrap())
    };
    variants().into_iter().map(make).collect()
}

/// Writes a file with holes in place of zero blocks.
fn write_sparse(path: &Path, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (i, block) in bytes.chunks(4096).enumerate() {
        if block.iter().any(|b| *b != 0) {
            file.write_all_at(block, 4096 * i as u64).unwrap();
        }
    }
}
