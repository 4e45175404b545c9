//! All operations on an image, with none skipped for implausible values.

#![allow(unreachable_pub, reason = "module of a test")]

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_erofs::check::{self, Rule, check};
use tuff_erofs::diff::{self, Side, diff};
use tuff_erofs::dump::{
    Area, Items, LayoutStats, LayoutStatsOptions, NodeId, Regions, SpaceMap, TreeUsage,
};
use tuff_erofs::extract::{self, extract};
use tuff_erofs::read::{FileType, Image, Inode, OpenOptions};
use tuff_erofs::serve::{ServeOptions, Server};
use tuff_erofs::tar::TarWriter;
use tuff_erofs::walk::Walk;
use tuff_mkfs::{InputImage, KernelVersion, Progress, options::Verity};
use tuff_store::{MemStore, ReadAt, Target};
use tuff_testkit::Rng;
use tuff_testkit::kernel::open_with;

/// Maximum number of bytes that a case reads with the plain reader.
const READ: u64 = 4 << 20;
/// Maximum number of names that a case visits in walks of this module.
const NAMES: usize = 600;

/// Opens, checks, reads, lists, dumps, archives, compares, hashes, rebuilds, serves and extracts an
/// image with default limits. `turn` selects a quarter of the expensive operations. `around` is an
/// empty directory, in which only the target may exist afterwards.
pub fn use_all(bytes: &[u8], devices: &[Arc<dyn ReadAt>], around: &Path, turn: Option<u64>) {
    let open = |verify_checksum| {
        let options = OpenOptions {
            devices: devices.to_vec(),
            verify_checksum,
            ..OpenOptions::default()
        };
        Image::open(MemStore::new(bytes), options)
    };
    let _ = open(true);
    // The checksum would reject most damaged images.
    let Ok(image) = open(false) else { return };
    let one_thread = check::Options {
        threads: 1,
        findings: 50,
        ..check::Options::default()
    };
    let report = check(&image, &one_thread, |_| ());
    // A contradictory index may return different data from the start and from the middle. The check
    // reports it.
    let clear = report.findings.iter().all(|f| f.rule != Rule::Index) && report.dropped == 0;
    read(&image, bytes.len() as u64, clear);
    let mine = |n| turn.is_none_or(|turn| turn % 4 == n);
    if mine(0) {
        dump(&image);
    }
    if mine(1) {
        tar(&image);
        rebuild(bytes, devices, around);
    }
    if mine(2) {
        compare(&image);
        hash(bytes, around);
    }
    if mine(3) {
        take_out(&image, &around.join("extract"));
        serve(image);
    }
}

/// Builds a new image with this one as the source.
fn rebuild(bytes: &[u8], devices: &[Arc<dyn ReadAt>], around: &Path) {
    let path = |name: &str| around.join(name);
    std::fs::write(path("image"), bytes).unwrap();
    let mut files = Vec::new();
    for (n, device) in devices.iter().enumerate() {
        let file = path(&format!("device-{n}"));
        let mut bytes = vec![0; device.size() as usize];
        device.read_exact_at(&mut bytes, 0).unwrap();
        std::fs::write(&file, bytes).unwrap();
        files.push(file);
    }
    let mut options = tuff_mkfs::Options::for_kernel(KernelVersion(6, 18));
    options.resources.threads = Some(1);
    // Only the source is of interest, not the encoding.
    options.compression.default = None;
    let devices: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    // The probe is of images that open.
    if let Ok(image) = open_with(&path("image"), &devices) {
        let source = InputImage::new(image, path("image"), files.clone());
        let source = tuff_mkfs::Source::Image(source);
        let target = Target::Path(path("built"));
        let _ = tuff_mkfs::build(&[source], &options, &target, &Progress::default());
    }
    files.extend([path("image"), path("built")]);
    for file in files {
        let _ = std::fs::remove_file(file);
    }
}

/// Appends a hash tree to the image.
fn hash(bytes: &[u8], around: &Path) {
    let path = around.join("hashed");
    std::fs::write(&path, bytes).unwrap();
    let expected = Verity {
        block: 4096,
        parity: None,
        salt: Vec::new(),
    };
    let _ = tuff_mkfs::hash_tree(&path, None, &expected, false, 1, &Progress::default());
    std::fs::remove_file(path).unwrap();
}

/// Sends requests as a kernel does for a mount: names, attributes, and pages at the start, at the
/// end and in the middle of files.
fn serve(image: Image) {
    let server = Server::new(image, ServeOptions::default());
    let mut session = server.session();
    let Ok(root) = server.inode(server.image().superblock().root) else {
        return;
    };
    let mut todo = vec![root];
    let (mut visited, mut page) = (0, vec![0; 128 << 10]);
    while let Some(inode) = todo.pop() {
        visited += 1;
        if visited > NAMES {
            return;
        }
        let _ = server.xattrs(&inode);
        match inode.file_type() {
            FileType::Dir => {
                let mut left = NAMES;
                let _ = server.list(&inode, 0, |listed| {
                    if let (false, Ok(child)) =
                        (listed.name.starts_with(b"."), server.inode(listed.nid))
                    {
                        todo.push(child);
                    }
                    left -= 1;
                    left > 0
                });
                let _ = server.lookup(&inode, b"name-0");
            }
            FileType::Symlink => _ = server.readlink(&inode),
            FileType::File => {
                for at in [0, inode.size() / 2, inode.size().saturating_sub(1)] {
                    let _ = server.read(&mut session, &inode, at, &mut page);
                    let _ = server.seek(&inode, at, false);
                    let _ = server.seek(&inode, at, true);
                }
            }
            _ => {}
        }
    }
}

/// Walks the tree, whatever its shape, and reads attributes, targets and files.
fn read(image: &Image, seed: u64, clear: bool) {
    let Ok(root) = image.root() else { return };
    let mut random = Rng::new(seed);
    let mut todo = vec![(root, 0)];
    let (mut visited, mut left) = (0, READ);
    while let Some((inode, depth)) = todo.pop() {
        visited += 1;
        if visited > NAMES {
            return; // a damaged tree may be a graph
        }
        for xattr in image.xattrs(&inode).into_iter().flatten() {
            let _ = image.xattr(&inode, &xattr.name);
        }
        let _ = image.xattr(&inode, b"user.colour");
        let _ = image.readlink(&inode);
        for extent in image
            .extents(&inode, 0..u64::MAX)
            .into_iter()
            .flatten()
            .take(1000)
        {
            if extent.is_err() {
                break;
            }
        }
        if inode.file_type() == FileType::Dir && depth < 10 {
            let _ = image.lookup(&inode, b"name-0");
            for entry in image
                .read_dir(&inode)
                .into_iter()
                .flatten()
                .flatten()
                .take(NAMES)
            {
                let _ = image.lookup(&inode, &entry.name);
                if let (false, Ok(child)) = (entry.name.starts_with(b"."), image.inode(entry.nid)) {
                    todo.push((child, depth + 1));
                }
            }
        } else {
            left -= read_file(image, &inode, left, &mut random, clear);
        }
    }
}

/// Reads at most `left` bytes from the start, then parts, which must be equal if the indexes are
/// `clear`. Returns the number of bytes read from the start.
fn read_file(image: &Image, inode: &Inode, left: u64, random: &mut Rng, clear: bool) -> u64 {
    let mut whole = Vec::new();
    let all = match image.reader(inode) {
        Ok(reader) => reader.take(left).read_to_end(&mut whole).is_ok(),
        Err(_) => false,
    };
    let mut part = [0; 5000];
    let middle = random.below_u64(inode.size());
    for at in [0, middle, inode.size().saturating_sub(1), u64::MAX] {
        let Ok(n) = image.read_at(inode, &mut part, at) else {
            continue;
        };
        let known = whole
            .get(at as usize..)
            .filter(|_| all && clear)
            .unwrap_or(&[]);
        let both = known.len().min(n);
        assert!(
            part[..both] == known[..both],
            "nid {}: byte {at}",
            inode.nid()
        );
    }
    whole.len() as u64
}

fn dump(image: &Image) {
    let regions = Regions::collect(image);
    let mut end = (None, 0);
    for item in Items::all(image, &regions) {
        assert!(item.start <= item.end);
        if end.0 == Some(item.area) {
            assert!(item.start <= end.1 || item.error.is_some(), "a gap");
        }
        end = (Some(item.area), item.end.max(end.1));
    }
    let _ = LayoutStats::collect(image, LayoutStatsOptions::default());
    usage(image, &regions);
}

/// Asserts that the bytes attributed to files and the cells of the map add up, whatever the image contains.
fn usage(image: &Image, regions: &Regions) {
    let map = SpaceMap::collect(image, &regions.list, Area::Store(0), 100);
    let mapped: u64 = map.cells.iter().flatten().sum();
    assert_eq!(mapped, image.store_size());
    let Ok(usage) = TreeUsage::collect(image) else {
        return;
    };
    let stored: u64 = usage.stats.by_type.values().map(|g| g.stored_bytes).sum();
    let sums = usage.sums(NodeId::ROOT);
    assert_eq!(
        sums.stored_bytes + usage.packed_unused_bytes + usage.metabox_bytes,
        stored
    );
    assert_eq!(sums.inodes, usage.stats.inodes());
    for id in usage.all().take(NAMES) {
        assert_eq!(usage.find(&usage.path(id)), Some(id));
        assert!(usage.sharers(id, 3).len() <= 3);
        assert!(usage.path(id).len() <= image.limits().path_len + 256);
        let children = usage.children(id).filter(|id| !usage.is_hard_link(*id));
        let below: u64 = children.map(|id| usage.sums(id).stored_bytes).sum();
        assert!(below <= usage.sums(id).stored_bytes);
    }
}

fn tar(image: &Image) {
    let mut writer = TarWriter::new(image, io::sink(), Default::default());
    for entry in Walk::root(image).into_iter().flatten() {
        if entry.and_then(|e| writer.append(&e)).is_err() {
            return;
        }
    }
    let _ = writer.finish();
}

/// Asserts that an image is equal to itself, or that comparing fails.
fn compare(image: &Image) {
    let (mut a, mut b) = (
        Side::Image(image, "a".to_owned()),
        Side::Image(image, "b".to_owned()),
    );
    let options = diff::Options {
        threads: 1,
        ..diff::Options::default()
    };
    let mut names = 0;
    let result = diff(&mut a, &mut b, &options, &mut |path, change| {
        names += 1;
        panic!("{}: {change:?}", path.escape_ascii());
    });
    assert!(result.is_err() || names == 0);
}

/// Extracts the image into `around`, and asserts that nothing else appears there.
fn take_out(image: &Image, around: &Path) {
    std::fs::create_dir_all(around).unwrap();
    let target = around.join("target");
    let options = extract::Options {
        keep_going: true,
        owners: Some(false),
        threads: 2,
        ..extract::Options::default()
    };
    let _ = extract(image, &target, &options, |_| ());
    for entry in std::fs::read_dir(around).unwrap() {
        let name = entry.unwrap().file_name();
        assert_eq!(name, "target", "created outside the target");
    }
    if std::fs::remove_dir_all(&target).is_err() {
        // Not writable, or nested more deeply than file descriptors allow.
        for (command, flags) in [("chmod", ["-R", "u+rwx"]), ("rm", ["-r", "-f"])] {
            let mut command = std::process::Command::new(command);
            let _ = command.args(flags).arg(&target).output();
        }
    }
}
