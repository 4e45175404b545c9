//! Random trees and their edits.

use rustix::fs::{
    self as rfs, AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags,
};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use tuff_testkit::content::{mixed, noise, text};
use tuff_testkit::{Rng, is_root};

/// Most entries of a tree.
const ENTRIES_MAX: usize = 120;
/// Most bytes of all files.
const BYTES_MAX: u64 = 6 << 20;

/// Tree that changes at random.
pub(super) struct RandomSource {
    pub(super) root: PathBuf,
    random: Rng,
    next: u64,
    /// Divisor of the lengths of files.
    scale: usize,
}

/// Entries below a directory, with their metadata, in an order that does not depend on the host.
fn entries(root: &Path) -> Vec<(PathBuf, fs::Metadata)> {
    let mut found = Vec::new();
    let mut todo = vec![root.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            if metadata.is_dir() {
                todo.push(path.clone());
            }
            found.push((path, metadata));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

impl RandomSource {
    pub(super) fn new(root: &Path, seed: u64, scale: usize) -> Self {
        fs::create_dir_all(root).unwrap();
        Self {
            root: root.to_owned(),
            random: Rng::new(seed),
            next: 0,
            scale,
        }
    }

    fn pick(&mut self, of: &dyn Fn(&fs::Metadata) -> bool) -> Option<PathBuf> {
        let mut all = entries(&self.root);
        all.retain(|(_, metadata)| of(metadata));
        let n = self.random.below(all.len());
        (!all.is_empty()).then(|| all.swap_remove(n).0)
    }

    /// Regular file with one name. Files that change while they are read are such.
    pub(super) fn file(&mut self) -> Option<PathBuf> {
        self.pick(&|metadata| metadata.is_file() && metadata.nlink() == 1)
    }

    fn dir(&mut self) -> PathBuf {
        match self.random.below(3) {
            0 => self.root.clone(),
            _ => self
                .pick(&fs::Metadata::is_dir)
                .unwrap_or(self.root.clone()),
        }
    }

    fn name(&mut self) -> PathBuf {
        let dir = self.dir();
        self.next += 1;
        let n = self.next;
        let name = match self.random.below(12) {
            0 => [b"\xff\xfe".as_slice(), n.to_string().as_bytes()].concat(),
            1 => format!("line\n{n}").into_bytes(),
            2 => format!("50%41, {n}").into_bytes(),
            3 => format!("{n}{}", "n".repeat(240)).into_bytes(),
            4 => format!(".{n}").into_bytes(),
            5 => format!("{n}.json").into_bytes(),
            _ => format!("name-{n}").into_bytes(),
        };
        dir.join(OsStr::from_bytes(&name))
    }

    /// Content of a new file.
    pub(super) fn content(&mut self) -> Vec<u8> {
        let len = match self.random.below(16) {
            0 => 0,
            1 => [1, 4095, 4096, 4097, 65_535, 65_536, 65_537][self.random.below(7)],
            2..=6 => self.random.below(4000),
            7..=10 => self.random.below(64 << 10),
            11..=13 => self.random.below(400_000),
            14 => 128 << 10,
            _ => self.random.below(1_500_000),
        } / self.scale;
        let seed = self.random.draw() % 50;
        match self.random.below(5) {
            0 | 1 => noise(len, seed),
            2 => text(len, seed),
            3 => mixed(len, seed),
            _ if self.random.below(3) == 0 => vec![0; len],
            _ => {
                // The content of another file, and something more.
                let other = self.pick(&fs::Metadata::is_file);
                let mut bytes = other.map_or_else(Vec::new, |path| fs::read(path).unwrap());
                bytes.extend_from_slice(&text(seed as usize, seed));
                bytes
            }
        }
    }

    pub(super) fn edit(&mut self, count: usize) {
        for _ in 0..count {
            self.edit_once();
        }
    }

    fn edit_once(&mut self) {
        let all = entries(&self.root);
        let bytes: u64 = all.iter().map(|(_, metadata)| metadata.len()).sum();
        let is_full = all.len() > ENTRIES_MAX || bytes > BYTES_MAX;
        match self.random.below(if is_full { 2 } else { 24 }) {
            0 => self.remove(),
            1 if is_full => {
                // The largest file.
                let largest = all.iter().filter(|(_, metadata)| metadata.is_file());
                if let Some((path, _)) = largest.max_by_key(|(_, metadata)| metadata.len()) {
                    fs::remove_file(path).unwrap();
                }
            }
            1..=8 => {
                let (path, content) = (self.name(), self.content());
                fs::write(path, content).unwrap();
            }
            9..=13 => {
                let seed = self.random.draw();
                if let Some(path) = self.pick(&fs::Metadata::is_file) {
                    change(&path, seed);
                }
            }
            14 => fs::create_dir(self.name()).unwrap(),
            15 => {
                // To a name in the root, which is below no directory that moves.
                let to = self.root.join(format!("moved-{}", self.next));
                self.next += 1;
                if let Some(from) = self.pick(&|_| true) {
                    fs::rename(from, to).unwrap();
                }
            }
            16 => {
                let (to, from) = (self.name(), self.pick(&fs::Metadata::is_file));
                if let Some(from) = from {
                    fs::hard_link(from, to).unwrap();
                }
            }
            17 => {
                let path = self.name();
                match self.random.below(3) {
                    0 => std::os::unix::fs::symlink("../target \u{fc}", path).unwrap(),
                    1 => rfs::mknodat(CWD, path, FileType::Fifo, 0o640.into(), 0).unwrap(),
                    _ if is_root() => {
                        let device = rfs::makedev(5, 1);
                        let kind = FileType::CharacterDevice;
                        rfs::mknodat(CWD, path, kind, 0o600.into(), device).unwrap();
                    }
                    _ => {}
                }
            }
            18 => {
                // A file with holes.
                let file = File::create(self.name()).unwrap();
                file.set_len(self.random.below_u64(900_000)).unwrap();
                file.write_all_at(&noise(5000, self.next), 100_000).unwrap();
            }
            _ => self.edit_attributes(),
        }
    }

    fn remove(&mut self) {
        if let Some(path) = self.pick(&|_| true) {
            match path.symlink_metadata().unwrap().is_dir() {
                true => fs::remove_dir_all(path).unwrap(),
                false => fs::remove_file(path).unwrap(),
            }
        }
    }

    fn edit_attributes(&mut self) {
        let Some(path) = self.pick(&|metadata| !metadata.is_symlink()) else {
            return;
        };
        match self.random.below(4) {
            0 => {
                let mode = Mode::from_raw_mode(self.random.below(0o10000) as u32 | 0o700);
                rfs::chmodat(CWD, &path, mode, AtFlags::empty()).unwrap();
            }
            1 if is_root() => {
                let (uid, gid) = (self.random.below(70_000), self.random.below(3));
                let (uid, gid) = (Uid::from_raw(uid as u32), Gid::from_raw(gid as u32));
                rfs::chownat(CWD, &path, Some(uid), Some(gid), AtFlags::empty()).unwrap();
            }
            2 => {
                let tv_sec = match self.random.below(4) {
                    0 => -5,
                    1 => 5_000_000_000,
                    _ => self.random.below(2_000_000_000) as i64,
                };
                let time = Timespec {
                    tv_sec,
                    tv_nsec: self.random.below(1_000_000_000) as i64,
                };
                let times = Timestamps {
                    last_access: time,
                    last_modification: time,
                };
                rfs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
            }
            _ => {
                let name = format!("user.name-{}", self.random.below(3));
                let value = noise(self.random.below(300), self.next);
                // Only files and directories have them, and not on every filesystem.
                let _ = rfs::lsetxattr(&path, &*name, &value, XattrFlags::empty());
            }
        }
    }
}

/// Changes the content of a file in one of several ways.
pub(super) fn change(path: &Path, seed: u64) {
    let mut random = Rng::new(seed);
    let metadata = path.metadata().unwrap();
    let len = metadata.len();
    let mut bytes = noise(1 + random.below(9000), seed);
    let file = File::options().write(true).open(path).unwrap();
    match random.below(6) {
        0 => file.set_len(random.below_u64(len + 1)).unwrap(),
        1 => file.write_all_at(&bytes, len).unwrap(),
        2 => {
            let mut content = fs::read(path).unwrap();
            let at = random.below(content.len() + 1);
            content.splice(at..at, bytes);
            fs::write(path, content).unwrap();
        }
        3 => {
            // A new file under the same name.
            let mut name = path.as_os_str().to_owned();
            name.push("~");
            // Names of the greatest length have no room.
            if fs::write(&name, &bytes).is_ok() {
                fs::rename(name, path).unwrap();
            }
        }
        n => {
            let at = random.below_u64(len);
            bytes.truncate((len - at) as usize);
            file.write_all_at(&bytes, at).unwrap();
            if n == 4 {
                // With the time that it had.
                file.set_modified(metadata.modified().unwrap()).unwrap();
            }
        }
    }
}
