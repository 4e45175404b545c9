//! Trees as lists of records, from the host and from an image, and their differences. Tests use them to compare two readers of
//! one image.

use crate::content::{mixed, noise, text};
use crate::is_root;
use rustix::fs::{self as rfs, AtFlags, CWD, Mode, SeekFrom, XattrFlags};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tuff_erofs::read::{FileType, Image, Inode, Location};
use tuff_erofs::{Error, Place};

/// Everything that a user can observe about one name in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Path relative to the root, without a leading slash. The path of the root is empty.
    pub path: Vec<u8>,
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the owner.
    pub gid: u32,
    /// Modification time: seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// Number of hard links.
    pub nlink: u64,
    /// Size in bytes, as in `st_size`.
    pub size: u64,
    /// Major and minor number of a device.
    pub device: Option<(u32, u32)>,
    /// Target, if the inode is a symlink.
    pub target: Option<Vec<u8>>,
    /// Values of extended attributes by name.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Hash of the content of a regular file.
    pub content: Option<u64>,
    /// Ranges of data in a regular file: start and end.
    pub data: Option<Vec<(u64, u64)>>,
    /// First path in ascending order with the same inode.
    pub same_as: Vec<u8>,
}

/// Records the tree under a directory of the host.
pub fn host_tree(root: &Path) -> Vec<Record> {
    let mut out = Vec::new();
    let mut todo = vec![Vec::new()];
    while let Some(path) = todo.pop() {
        let full = join(root, &path);
        let stat = rfs::statat(CWD, &full, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        let kind = FileType::from_mode(stat.st_mode as u16).unwrap();
        if kind == FileType::Dir {
            for entry in std::fs::read_dir(&full).unwrap() {
                todo.push(child(&path, entry.unwrap().file_name().as_bytes()));
            }
        }
        let (mut content, mut data) = (None, None);
        if kind == FileType::File {
            content = Some(hash(std::fs::File::open(&full).unwrap()).unwrap());
            data = Some(host_data(&full, stat.st_size as u64));
        }
        let special = matches!(kind, FileType::Char | FileType::Block);
        out.push((
            (stat.st_dev, stat.st_ino),
            Record {
                mode: stat.st_mode,
                uid: stat.st_uid,
                gid: stat.st_gid,
                mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
                nlink: stat.st_nlink as u64,
                size: stat.st_size as u64,
                device: special.then(|| (rfs::major(stat.st_rdev), rfs::minor(stat.st_rdev))),
                target: (kind == FileType::Symlink).then(|| {
                    std::fs::read_link(&full)
                        .unwrap()
                        .as_os_str()
                        .as_bytes()
                        .to_vec()
                }),
                xattrs: host_xattrs(&full),
                content,
                data,
                same_as: Vec::new(),
                path,
            },
        ));
    }
    finish(out)
}

/// Records the tree of an image, read by the library.
pub fn image_tree(image: &Image) -> Vec<Record> {
    try_image_tree(image).unwrap()
}

/// Records the tree of an image that may be damaged, read by the library.
///
/// # Errors
/// The first error of the image.
pub fn try_image_tree(image: &Image) -> tuff_erofs::Result<Vec<Record>> {
    let mut out = Vec::new();
    let mut todo = vec![(Vec::new(), image.root()?)];
    while let Some((path, inode)) = todo.pop() {
        if inode.is_dir() {
            for entry in image.read_dir(&inode)? {
                let entry = entry?;
                if matches!(&entry.name[..], b"." | b"..") {
                    continue;
                }
                assert_eq!(
                    image.lookup(&inode, &entry.name)?,
                    Some(entry.nid),
                    "lookup finds the listed nid"
                );
                todo.push((child(&path, &entry.name), image.inode(entry.nid)?));
            }
        }
        out.push((inode.nid(), try_image_record(image, &inode, path)?));
    }
    Ok(finish(out))
}

/// Records one inode of an image.
pub fn image_record(image: &Image, inode: &Inode, path: Vec<u8>) -> Record {
    try_image_record(image, inode, path).unwrap()
}

fn try_image_record(image: &Image, inode: &Inode, path: Vec<u8>) -> tuff_erofs::Result<Record> {
    let file = inode.file_type() == FileType::File;
    Ok(Record {
        path,
        mode: inode.mode().into(),
        uid: inode.uid(),
        gid: inode.gid(),
        mtime: inode.mtime(),
        nlink: inode.nlink().into(),
        size: inode.size(),
        device: inode.device(),
        target: match inode.file_type() {
            FileType::Symlink => Some(image.readlink(inode)?),
            _ => None,
        },
        xattrs: image
            .xattrs(inode)?
            .into_iter()
            .map(|x| (x.name, x.value))
            .collect(),
        content: match file {
            true => Some(
                hash(image.reader(inode)?)
                    .map_err(|e| Error::io(Place::image(), "cannot read", e))?,
            ),
            false => None,
        },
        data: match file {
            true => Some(image_data(image, inode)?),
            false => None,
        },
        same_as: Vec::new(),
    })
}

fn image_data(image: &Image, inode: &Inode) -> tuff_erofs::Result<Vec<(u64, u64)>> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for extent in image.extents(inode, 0..u64::MAX)? {
        let extent = extent?;
        if extent.location == Location::Hole {
            continue;
        }
        match runs.last_mut() {
            Some((_, end)) if *end == extent.offset => *end = extent.end(),
            _ => runs.push((extent.offset, extent.end())),
        }
    }
    Ok(runs)
}

fn host_data(path: &Path, size: u64) -> Vec<(u64, u64)> {
    let file = std::fs::File::open(path).unwrap();
    let (mut runs, mut at) = (Vec::new(), 0);
    while let Ok(start) = rfs::seek(&file, SeekFrom::Data(at)) {
        let end = rfs::seek(&file, SeekFrom::Hole(start)).unwrap().min(size);
        runs.push((start, end));
        at = end;
    }
    runs
}

fn host_xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0u8; 1 << 16];
    let n = rfs::llistxattr(path, &mut names[..]).unwrap();
    let mut out = BTreeMap::new();
    for name in names[..n].split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0u8; 1 << 16];
        let n = rfs::lgetxattr(path, name, &mut value[..]).unwrap();
        value.truncate(n);
        out.insert(name.to_vec(), value);
    }
    out
}

fn hash(mut from: impl Read) -> std::io::Result<u64> {
    let mut hasher = DefaultHasher::new();
    let mut buf = vec![0; 1 << 20];
    loop {
        // Filled before hashing, so that the hash does not depend on the lengths of single reads.
        let mut n = 0;
        while n < buf.len() {
            match from.read(&mut buf[n..])? {
                0 => break,
                m => n += m,
            }
        }
        hasher.write(&buf[..n]);
        if n < buf.len() {
            return Ok(hasher.finish());
        }
    }
}

fn finish<K: Eq + std::hash::Hash + Copy>(mut found: Vec<(K, Record)>) -> Vec<Record> {
    found.sort_by(|a, b| a.1.path.cmp(&b.1.path));
    let mut first: HashMap<K, Vec<u8>> = HashMap::new();
    for (key, record) in &mut found {
        let path = first.entry(*key).or_insert_with(|| record.path.clone());
        record.same_as.clone_from(path);
    }
    found.into_iter().map(|(_, record)| record).collect()
}

/// Parts of two trees that a comparison ignores.
#[derive(Clone, Copy, Default)]
pub struct Ignore {
    /// Link counts of directories, which some filesystems do not maintain.
    pub dir_nlink: bool,
    /// Size fields of directories.
    pub dir_size: bool,
    /// Positions and lengths of holes.
    pub holes: bool,
    /// Nanoseconds of modification times.
    pub nsec: bool,
    /// Modification times of all inodes.
    pub times: bool,
    /// User and group ids.
    pub owners: bool,
    /// Names and values of extended attributes.
    pub xattrs: bool,
}

/// Returns what a comparison with the source tree ignores: values that the filesystem of the host decides itself, and holes.
pub fn from_source(tree: &[Record]) -> Ignore {
    // Some filesystems do not count subdirectories.
    let counts = tree
        .iter()
        .any(|r| r.mode & 0xF000 == 0x4000 && r.nlink > 1);
    Ignore {
        dir_size: true,
        dir_nlink: !counts,
        holes: true,
        ..Ignore::default()
    }
}

/// Returns one line for each path that differs.
pub fn diff(a: &[Record], b: &[Record], ignore: Ignore) -> Vec<String> {
    let mut out = Vec::new();
    let of = |t: &[Record]| -> BTreeMap<Vec<u8>, Record> {
        t.iter()
            .map(|r| (r.path.clone(), normal(r, ignore)))
            .collect()
    };
    let (a, b) = (of(a), of(b));
    for (path, left) in &a {
        let name = String::from_utf8_lossy(path);
        let Some(right) = b.get(path) else {
            out.push(format!("{name}: only in the first"));
            continue;
        };
        let mut line = String::new();
        macro_rules! field {
            ($($f:ident)*) => {$(
                if left.$f != right.$f {
                    let _ = write!(line, " {}: {:?} vs {:?};", stringify!($f), left.$f, right.$f);
                }
            )*};
        }
        field!(mode uid gid mtime nlink size device target xattrs content data same_as);
        if !line.is_empty() {
            out.push(format!("{name}:{line}"));
        }
    }
    for path in b.keys().filter(|p| !a.contains_key(*p)) {
        out.push(format!(
            "{}: only in the second",
            String::from_utf8_lossy(path)
        ));
    }
    out
}

fn normal(record: &Record, ignore: Ignore) -> Record {
    let mut r = record.clone();
    let dir = r.mode & 0xF000 == 0x4000;
    if dir && ignore.dir_nlink {
        r.nlink = 0;
    }
    if dir && ignore.dir_size {
        r.size = 0;
    }
    if ignore.holes {
        r.data = None;
    }
    if ignore.nsec {
        r.mtime.1 = 0;
    }
    if ignore.times {
        r.mtime = (0, 0);
    }
    if ignore.owners {
        (r.uid, r.gid) = (0, 0);
    }
    if ignore.xattrs {
        r.xattrs.clear();
    }
    r
}

/// Asserts that two trees are equal; reports the first 20 differences.
#[track_caller]
pub fn assert_same(what: &str, a: &[Record], b: &[Record], ignore: Ignore) {
    let lines = diff(a, b, ignore);
    assert!(
        lines.is_empty(),
        "{what}: {} differences\n{}",
        lines.len(),
        lines
            .iter()
            .take(20)
            .cloned()
            .collect::<Vec<_>>()
            .join("\n")
    );
}

/// Adds what only root creates: devices, owners, privileged attributes and an access control list.
fn privileged_entries(root: &Path) {
    for (name, major, minor) in [("char", 5, 1), ("block", 259, 0x12345)] {
        let kind = if name == "char" {
            rfs::FileType::CharacterDevice
        } else {
            rfs::FileType::BlockDevice
        };
        let dev = rfs::makedev(major, minor);
        rfs::mknodat(CWD, root.join(name), kind, 0o660.into(), dev).unwrap();
    }
    for (name, uid, gid) in [
        ("text7", 1000, 100),
        ("text8", 100_000, 70_000),
        ("link", 12, 13),
        ("empty", 5, 5),
    ] {
        let (uid, gid) = (rfs::Uid::from_raw(uid), rfs::Gid::from_raw(gid));
        rfs::chownat(
            CWD,
            root.join(name),
            Some(uid),
            Some(gid),
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .unwrap();
    }
    for (name, value) in [
        ("trusted.overlay.opaque", &b"y"[..]),
        ("security.note", b"label"),
    ] {
        rfs::lsetxattr(root.join("empty"), name, value, XattrFlags::empty()).unwrap();
        rfs::lsetxattr(root.join("link"), name, value, XattrFlags::empty()).unwrap();
    }
    let acl = [
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 1, 0, 0, 0, 4, 0, 4, 0, 255, 255,
        255, 255, 16, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
    ];
    rfs::lsetxattr(
        root.join("text9"),
        "system.posix_acl_access",
        &acl,
        XattrFlags::empty(),
    )
    .unwrap();
}

/// Creates a tree of edge cases: sizes, names, holes, types, owners, xattrs and times. Without root privileges it reports what
/// it omits.
pub fn nasty_tree(root: &Path) {
    let dir = |p: &str| std::fs::create_dir_all(root.join(p)).unwrap();
    let put = |p: &str, bytes: &[u8]| std::fs::write(root.join(p), bytes).unwrap();
    dir("empty");
    for (i, size) in [
        0, 1, 13, 4095, 4096, 4097, 8191, 8192, 12288, 65536, 100_000, 1_000_003,
    ]
    .into_iter()
    .enumerate()
    {
        put(&format!("text{i}"), &text(size, i as u64));
        put(&format!("noise{i}"), &noise(size, i as u64));
        put(&format!("mixed{i}"), &mixed(size, i as u64));
    }
    put("copy-of-text11", &text(1_000_003, 11));
    let mut tail = text(300_000, 99);
    tail.extend_from_slice(&text(1_000_003, 11)[..400_000]);
    put("shares-text11", &tail);
    put("zeros", &vec![0; 700_000]);
    // Names that sort before, between and after "." and "..", and bytes that are not UTF-8.
    dir("names");
    for name in [
        &b"!bang"[..],
        b"-dash",
        b"..a",
        b"...",
        b".hidden",
        b"a b",
        b"\xff\xfe",
        b"\n",
        b"caf\xc3\xa9",
    ] {
        std::fs::write(join(&root.join("names"), name), name).unwrap();
    }
    // mkfs.erofs 1.5 fails on names of 255 bytes: see `longest_name`.
    std::fs::write(root.join("names").join("n".repeat(254)), b"long").unwrap();
    dir("many");
    for i in 0..2000 {
        put(&format!("many/entry-{i:05}-{}", "x".repeat(i % 40)), b"");
    }
    let mut deep = root.join("deep");
    for i in 0..40 {
        deep.push(format!("level-{i}"));
    }
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(deep.join("bottom"), b"here").unwrap();
    std::fs::hard_link(root.join("text3"), root.join("hard-a")).unwrap();
    std::fs::hard_link(root.join("text3"), root.join("empty/hard-b")).unwrap();
    std::os::unix::fs::symlink("text1", root.join("link")).unwrap();
    std::os::unix::fs::symlink("x".repeat(4000), root.join("link-long")).unwrap();
    std::os::unix::fs::symlink("../nowhere/\u{fc}", root.join("empty/dangling")).unwrap();
    rfs::mknodat(CWD, root.join("fifo"), rfs::FileType::Fifo, 0o640.into(), 0).unwrap();
    rfs::mknodat(
        CWD,
        root.join("socket"),
        rfs::FileType::Socket,
        0o600.into(),
        0,
    )
    .unwrap();
    // Holes at the start, in the middle, at the end and in the whole file.
    for (name, size, pieces) in [
        ("hole-first", 300_000, &[200_000u64][..]),
        ("hole-middle", 600_000, &[0, 500_000]),
        ("hole-last", 900_000, &[0]),
        ("hole-only", 500_000, &[]),
    ] {
        let file = std::fs::File::create(root.join(name)).unwrap();
        for at in pieces {
            use std::os::unix::fs::FileExt;
            file.write_all_at(&text(10_000, *at), *at).unwrap();
        }
        file.set_len(size).unwrap();
    }
    for (name, value) in [
        ("user.empty", &b""[..]),
        ("user.a", b"b"),
        ("user.binary", &[0, 255, 1]),
    ] {
        for file in ["text2", "text5", "empty", "noise9"] {
            rfs::lsetxattr(root.join(file), name, value, XattrFlags::empty()).unwrap();
        }
    }
    rfs::lsetxattr(
        root.join("text4"),
        "user.big",
        &noise(2000, 7),
        XattrFlags::empty(),
    )
    .unwrap();
    for i in 0..20 {
        let name = format!("user.overlay.long.prefix.{i}");
        rfs::lsetxattr(
            root.join("text6"),
            &*name,
            &noise(i * 7, i as u64),
            XattrFlags::empty(),
        )
        .unwrap();
    }
    if is_root() {
        privileged_entries(root);
    } else {
        eprintln!("not root: no devices, owners or privileged attributes in the tree");
    }
    for (name, mode) in [
        ("text1", 0o4755),
        ("text2", 0o2711),
        ("empty", 0o1777),
        ("noise1", 0),
    ] {
        rfs::chmodat(
            CWD,
            root.join(name),
            Mode::from_raw_mode(mode),
            AtFlags::empty(),
        )
        .unwrap();
    }
    for (name, sec, nsec) in [
        ("text1", 1, 999_999_999),
        ("text2", -5, 7),
        ("noise2", 5_000_000_000, 0),
        ("link", 77, 1),
    ] {
        let time = rfs::Timespec {
            tv_sec: sec,
            tv_nsec: nsec,
        };
        let times = rfs::Timestamps {
            last_access: time,
            last_modification: time,
        };
        rfs::utimensat(CWD, root.join(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

/// Adds a file whose name has the maximum length.
pub fn longest_name(root: &Path) {
    std::fs::write(root.join("n".repeat(255)), b"longest").unwrap();
}

/// Opens an image file without extra devices.
pub fn open(path: &Path) -> Image {
    Image::open(
        tuff_store::FileStore::open(path).unwrap(),
        Default::default(),
    )
    .unwrap()
}

fn child(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        return name.to_vec();
    }
    [path, b"/", name].concat()
}

fn join(root: &Path, path: &[u8]) -> PathBuf {
    if path.is_empty() {
        root.to_owned()
    } else {
        root.join(OsStr::from_bytes(path))
    }
}
