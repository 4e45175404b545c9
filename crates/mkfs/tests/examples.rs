//! The examples, and trees in memory beside the same trees elsewhere.

use std::io::Read;
use std::path::Path;
use tuff_erofs::read::{FileType, Image, OpenOptions};
use tuff_erofs::walk::{Entry, Walk};
use tuff_mkfs::source::Kind;
use tuff_mkfs::{Error, MemoryTree, Options, Progress, Source, TarStream, build, build_to};
use tuff_store::{MemStore, Target};

#[path = "../examples/from_memory.rs"]
#[allow(dead_code, reason = "its main function is for the command line")]
mod from_memory;
#[path = "../examples/from_tar.rs"]
#[allow(dead_code, reason = "its main function is for the command line")]
mod from_tar;

fn open(bytes: Vec<u8>) -> Image {
    Image::open(MemStore::new(bytes), OpenOptions::default()).unwrap()
}

fn build_memory(tree: MemoryTree) -> Result<Vec<u8>, Error> {
    let mut image = Vec::new();
    let sources = [Source::Memory(tree)];
    build_to(
        &sources,
        &Options::default(),
        &mut image,
        &Progress::default(),
    )?;
    Ok(image)
}

#[test]
fn the_examples_build_images() {
    let image = open(from_memory::image().unwrap());
    let shadow = image.resolve(b"etc/shadow").unwrap();
    assert_eq!(
        (shadow.mode(), shadow.uid(), shadow.gid()),
        (0o100_640, 0, 42)
    );
    let null = image.resolve(b"dev/null").unwrap();
    assert_eq!((null.mode(), null.device()), (0o020_666, Some((1, 3))));
    assert_eq!(image.resolve(b"dev").unwrap().mode(), 0o040_755);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let summary = from_tar::convert(std::io::Cursor::new(tar()), &path).unwrap();
    assert_eq!(summary.stats.files, 1);
    let image = open(std::fs::read(&path).unwrap());
    let file = image.resolve(b"file").unwrap();
    let mut text = [0; 8];
    assert_eq!(image.read_at(&file, &mut text, 0).unwrap(), 4);
    assert_eq!(&text[..4], b"text");
}

/// All paths of an image with their attributes and contents.
fn records(image: &Image) -> Vec<String> {
    let record = |entry: tuff_erofs::Result<Entry>| {
        let Entry { path, inode } = entry.unwrap();
        let mut content = Vec::new();
        if inode.file_type() == FileType::File {
            image
                .reader(&inode)
                .unwrap()
                .read_to_end(&mut content)
                .unwrap();
        } else if inode.file_type() == FileType::Symlink {
            content = image.readlink(&inode).unwrap();
        }
        format!(
            "{} {:o} {} {} {} {:?} {:?} {:?} {}",
            path.escape_ascii(),
            inode.mode(),
            inode.uid(),
            inode.gid(),
            inode.nlink(),
            inode.mtime(),
            inode.device(),
            image.xattrs(&inode).unwrap(),
            content.escape_ascii()
        )
    };
    Walk::root(image).unwrap().map(record).collect()
}

/// Tar with one file.
fn tar() -> Vec<u8> {
    let mut head = [0; 512];
    head[..4].copy_from_slice(b"file");
    head[100..107].copy_from_slice(b"0000644");
    head[124..135].copy_from_slice(b"00000000004");
    head[156] = b'0';
    head[257..263].copy_from_slice(b"ustar\0");
    head[148..156].fill(b' ');
    let sum: u32 = head.iter().map(|b| u32::from(*b)).sum();
    head[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let mut tar = head.to_vec();
    tar.extend(b"text");
    tar.resize(512 * 4, 0);
    tar
}

#[test]
fn a_tree_in_memory_gives_the_files_of_the_same_manifest() {
    let dir = tempfile::tempdir().unwrap();
    let noise: Vec<u8> = (0..200_000u32)
        .map(|n| (n.wrapping_mul(n) >> 7) as u8)
        .collect();
    std::fs::write(dir.path().join("big"), &noise).unwrap();
    std::fs::write(dir.path().join("small"), "text\n").unwrap();
    let manifest = dir.path().join("manifest");
    std::fs::write(
        &manifest,
        "./z type=file mode=0600 uid=1 gid=2 time=5.000000006 contents=big xattr.user.k=v\n\
         ./y hardlink=z\n./x hardlink=y\n./d/e type=file contents=small\n./d type=dir mode=0700\n\
         ./l type=link link=d/e\n./p type=fifo\n./h type=file contents=big\n./none type=file size=0\n",
    )
    .unwrap();
    let path = dir.path().join("image");
    let target = Target::Path(path.clone());
    let progress = Progress::default();
    build(
        &[Source::Manifest(manifest)],
        &Options::default(),
        &target,
        &progress,
    )
    .unwrap();

    let mut tree = MemoryTree::new();
    tree.add_special("p", Kind::Fifo).unwrap();
    tree.add_hard_link("x", "y").unwrap();
    tree.add_hard_link("y", "/z").unwrap();
    let z = tree.add_file("z", noise).unwrap();
    z.set_mode(0o600)
        .set_owner(1, 2)
        .set_mtime(5, 6)
        .set_xattr("user.k", "v");
    tree.add_host_file("h", dir.path().join("big")).unwrap();
    tree.add_file("none", "").unwrap();
    tree.add_dir("d").unwrap().set_mode(0o700);
    tree.add_symlink("l", "d/e").unwrap();
    tree.add_file("d/e", "text\n").unwrap();
    let image = open(build_memory(tree).unwrap());
    assert_eq!(
        records(&image),
        records(&open(std::fs::read(path).unwrap()))
    );
}

#[test]
fn a_link_to_nothing_is_refused_by_name() {
    let mut tree = MemoryTree::new();
    tree.add_hard_link("link", "nothing").unwrap();
    let error = build_memory(tree).unwrap_err();
    assert!(matches!(error, Error::Source(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("tree in memory") && text.contains("nothing"),
        "{text}"
    );
}

#[test]
fn an_empty_tree_is_an_empty_root() {
    let image = open(build_memory(MemoryTree::new()).unwrap());
    let root = image.root().unwrap();
    assert_eq!(root.mode(), 0o040_755);
    assert_eq!(image.read_dir(&root).unwrap().count(), 2);
}

#[test]
fn a_stream_is_read_by_one_build() {
    let source = Source::TarStream(TarStream::new("layer", std::io::Cursor::new(tar())));
    let sources = [source];
    let run = || {
        let mut image = Vec::new();
        build_to(
            &sources,
            &Options::default(),
            &mut image,
            &Progress::default(),
        )
    };
    run().unwrap();
    let error = run().unwrap_err().to_string();
    assert_eq!(error, "layer: a stream can be read only once");
    let mut options = Options::default();
    options.output.size_budget = Some(1 << 20);
    let error = build_to(&sources, &options, &mut Vec::new(), &Progress::default()).unwrap_err();
    assert!(matches!(error, Error::Usage(_)), "{error}");
}

#[test]
fn a_tar_of_a_reader_gives_the_image_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("tar"), tar()).unwrap();
    let build_at = |source: Source, image: &Path| {
        let target = Target::Path(image.to_owned());
        build(
            &[source],
            &Options::default(),
            &target,
            &Progress::default(),
        )
        .unwrap();
        std::fs::read(image).unwrap()
    };
    let file = build_at(Source::Tar(at("tar")), &at("one"));
    let stream = TarStream::new("layer", std::fs::File::open(at("tar")).unwrap());
    assert!(file == build_at(Source::TarStream(stream), &at("other")));
}
