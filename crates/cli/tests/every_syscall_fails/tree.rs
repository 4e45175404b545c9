//! Test tree with every kind of entry, and comparison of trees.

use rustix::fs::{CWD, FileType, Mode, XattrFlags, lgetxattr, llistxattr, lsetxattr, mknodat};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Creates a tree: large and small files, duplicates, a hole, hard links, a symlink, attributes, a FIFO and
/// directories.
pub(crate) fn make(dir: &Path) {
    fs::create_dir_all(dir.join("sub/deep")).unwrap();
    fs::write(dir.join("big"), bytes(300_000, 1)).unwrap();
    fs::write(dir.join("text"), "a line of some text\n".repeat(4000)).unwrap();
    fs::write(dir.join("sub/same"), "a line of some text\n".repeat(4000)).unwrap();
    fs::write(dir.join("empty"), "").unwrap();
    fs::write(dir.join("sub/deep/small"), "small").unwrap();
    let sparse = File::create(dir.join("sub/sparse")).unwrap();
    sparse.write_all_at(&bytes(5000, 2), 500_000).unwrap();
    fs::hard_link(dir.join("text"), dir.join("sub/hard")).unwrap();
    std::os::unix::fs::symlink("../text", dir.join("sub/link")).unwrap();
    mknodat(
        CWD,
        dir.join("pipe"),
        FileType::Fifo,
        Mode::from_raw_mode(0o640),
        0,
    )
    .unwrap();
    fs::set_permissions(dir.join("big"), fs::Permissions::from_mode(0o600)).unwrap();
    // A filesystem without attributes gives a tree without them.
    let _ = lsetxattr(dir.join("big"), "user.colour", b"blue", XattrFlags::empty());
    let _ = lsetxattr(
        dir.join("sub"),
        "user.long",
        &bytes(500, 3),
        XattrFlags::empty(),
    );
    set_times(dir);
}

/// Sets fixed times, independent of the time of the test.
fn set_times(path: &Path) {
    let meta = fs::symlink_metadata(path).unwrap();
    if meta.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            set_times(&entry.unwrap().path());
        }
    }
    let time = rustix::fs::Timespec {
        tv_sec: 1_600_000_000,
        tv_nsec: 5,
    };
    let times = rustix::fs::Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Pseudo-random bytes of a given seed.
pub(crate) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

/// Lists a file or directory and everything below it, except symlinks.
pub(crate) fn paths(root: &Path) -> Vec<PathBuf> {
    let mut all = vec![root.to_owned()];
    let mut seen = 0;
    while let Some(path) = all.get(seen) {
        seen += 1;
        if path.is_dir() {
            let entries = fs::read_dir(path).unwrap();
            let below = entries.map(|entry| entry.unwrap().path());
            all.extend(below.filter(|path| !path.is_symlink()).collect::<Vec<_>>());
        }
    }
    all
}

/// Entry of a tree with its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) mode: u32,
    owner: (u32, u32),
    links: u64,
    time: (i64, i64),
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Content of a file, target of a link.
    pub(crate) content: Vec<u8>,
}

/// Content of a tree, by path.
pub(crate) type Contents = BTreeMap<String, Entry>;

/// Reads a whole tree.
pub(crate) fn contents(root: &Path) -> Contents {
    let mut all = Contents::new();
    let mut todo = vec![(String::new(), root.to_owned())];
    while let Some((name, path)) = todo.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let content = if meta.is_dir() {
            for entry in fs::read_dir(&path).unwrap() {
                let entry = entry.unwrap();
                let below = entry.file_name().into_string().unwrap();
                todo.push((format!("{name}/{below}"), entry.path()));
            }
            Vec::new()
        } else if meta.is_symlink() {
            fs::read_link(&path)
                .unwrap()
                .into_os_string()
                .into_encoded_bytes()
        } else if meta.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        let entry = Entry {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            links: if meta.is_dir() { 0 } else { meta.nlink() },
            time: (meta.mtime(), meta.mtime_nsec()),
            xattrs: xattrs(&path),
            content,
        };
        all.insert(name, entry);
    }
    all
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 4096];
    let len = llistxattr(path, &mut names[..]).unwrap_or(0);
    let names = names[..len].split(|b| *b == 0).filter(|n| !n.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 4096];
            let len = lgetxattr(path, name, &mut value[..]).unwrap();
            (name.to_vec(), value[..len].to_vec())
        })
        .collect()
}

/// Returns the first difference between two trees.
pub(crate) fn difference(expected: &Contents, found: &Contents) -> Option<String> {
    for (path, entry) in expected {
        match found.get(path) {
            None => return Some(format!("{path:?} is missing")),
            Some(other) if other.content != entry.content => {
                return Some(format!("{path:?} has other content"));
            }
            Some(other) if other != entry => {
                let brief = |e: &Entry| (e.mode, e.owner, e.links, e.time, e.xattrs.len());
                let (expected, found) = (brief(entry), brief(other));
                return Some(format!(
                    "{path:?} has {found:?} in the place of {expected:?}"
                ));
            }
            Some(_) => {}
        }
    }
    let more = found.keys().find(|path| !expected.contains_key(*path))?;
    Some(format!("{more:?} is too much"))
}
