//! Random small trees that depend on a seed. File sizes are near limits of builders. Content is shared,
//! repeated, sparse or incompressible.

use crate::{At, Error, Result};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, lsetxattr,
    makedev, mknodat, utimensat,
};
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use tuff_testkit::Rng;

/// Sizes at which the behaviour of builders changes: blocks, clusters, segments.
const LIMITS: [usize; 11] = [
    0, 512, 1024, 4096, 8192, 16384, 32768, 65536, 131_072, 262_144, 1_048_576,
];

/// Maximum length of a piece of one kind within a file. Unit: bytes.
const PIECE_MAX: usize = 200_000;

/// Maximum length of a file. Unit: bytes.
const FILE_MAX: usize = 3 << 20;

/// Maximum path length of a directory that gets entries. Below the 4096 bytes of the system. Unit: bytes.
const PATH_MAX: usize = 1500;

/// Tree under construction, with paths and content that later steps reuse.
pub(super) struct Gardener<'a> {
    rng: Rng,
    root: &'a Path,
    /// True if devices, owners and privileged attributes can be created.
    privileged: bool,
    dirs: Vec<PathBuf>,
    files: Vec<PathBuf>,
    /// Symbolic links and special files.
    others: Vec<PathBuf>,
    /// Byte ranges of earlier files.
    shared: Vec<Vec<u8>>,
    names: usize,
    /// True if long runs of zeros may become holes.
    sparse: bool,
    /// True if a tar may be unable to store the whole tree.
    beyond_tar: bool,
    /// True if hard links exist or existed.
    links: bool,
}

impl<'a> Gardener<'a> {
    /// Creates a generator for an empty folder.
    pub(super) fn new(mut rng: Rng, root: &'a Path) -> Self {
        Self {
            sparse: rng.below(3) == 0,
            rng,
            root,
            privileged: rustix::process::geteuid().is_root(),
            dirs: vec![root.to_owned()],
            files: Vec::new(),
            others: Vec::new(),
            shared: Vec::new(),
            names: 0,
            beyond_tar: false,
            links: false,
        }
    }

    /// Returns true with probability 1/`n`.
    fn one_in(&mut self, n: usize) -> bool {
        self.rng.below(n) == 0
    }

    /// Fills the folder with the initial tree.
    pub(super) fn plant(&mut self) -> Result<()> {
        for _ in 0..5 + self.rng.below(60) {
            self.add()?;
        }
        if self.one_in(6) {
            self.crowd()?;
        }
        if self.one_in(6) {
            self.descend()?;
        }
        self.settle()
    }

    /// True if files may contain holes.
    pub(super) fn is_sparse(&self) -> bool {
        self.sparse
    }

    /// True if a tar cannot store the tree: sockets, or hard links to special files, exist or existed.
    pub(super) fn is_beyond_tar(&self) -> bool {
        self.beyond_tar
    }

    /// True if hard links exist or existed.
    pub(super) fn has_links(&self) -> bool {
        self.links
    }

    /// Returns paths below the root in random order. Some occur twice and some are missing.
    pub(super) fn order(&mut self) -> Vec<PathBuf> {
        let mut order = Vec::new();
        for _ in 0..self.files.len() {
            let path = &self.files[self.rng.below(self.files.len())];
            order.extend(path.strip_prefix(self.root).map(Path::to_owned));
        }
        order
    }

    /// Changes the tree by random additions, removals, renames and edits.
    pub(super) fn change(&mut self) -> Result<()> {
        for _ in 0..1 + self.rng.below(12) {
            match self.rng.below(8) {
                0..3 => self.add()?,
                3 => self.remove()?,
                4 => self.rename()?,
                _ => {
                    if let Some(path) = self.some_file() {
                        self.edit(&path)?;
                    }
                }
            }
        }
        self.settle()
    }

    /// Creates a directory of hundreds of files.
    fn crowd(&mut self) -> Result<()> {
        let dir = self.new_dir()?;
        let filled = self.one_in(2);
        for i in 0..200 + self.rng.below(300) {
            let path = dir.join(format!("one of many, number {i}"));
            let content = match filled {
                true => format!("{} {}", i % 90, "and so on ".repeat(i % 50)),
                false => String::new(),
            };
            fs::write(&path, content).at("write", &path)?;
        }
        Ok(())
    }

    /// Creates a deep chain of directories and adds an entry.
    fn descend(&mut self) -> Result<()> {
        let mut path = self.place();
        for _ in 0..20 + self.rng.below(60) {
            path.push("deeper");
        }
        fs::create_dir_all(&path).at("create", &path)?;
        self.dirs.push(path);
        self.add()
    }

    fn some_file(&mut self) -> Option<PathBuf> {
        let at = self.rng.below(self.files.len());
        self.files.get(at).cloned()
    }

    /// Returns an unused name: plain, long, or with unusual bytes.
    fn name(&mut self) -> OsString {
        self.names += 1;
        let mut name = format!("{}", self.names).into_bytes();
        match self.rng.below(8) {
            0 => name.extend(std::iter::repeat_n(b'n', self.rng.below(240))),
            1 => name.extend([0xff, b'\n', b' ', b'\\', 0x80]),
            2 => name.splice(0..0, *b".").for_each(drop),
            3 => name.extend(b".txt"),
            4 => name.extend(b".so"),
            _ => {}
        }
        OsString::from_vec(name)
    }

    /// Returns the path of a new entry in a random directory.
    fn place(&mut self) -> PathBuf {
        let dir = self.dirs[self.rng.below(self.dirs.len())].clone();
        match self.depth(&dir) < PATH_MAX {
            true => dir.join(self.name()),
            false => self.root.join(self.name()),
        }
    }

    /// Returns the length of a path below the root. Unit: bytes.
    fn depth(&self, path: &Path) -> usize {
        path.as_os_str().len() - self.root.as_os_str().len()
    }

    fn new_dir(&mut self) -> Result<PathBuf> {
        let path = self.place();
        fs::create_dir(&path).at("create", &path)?;
        self.dirs.push(path.clone());
        Ok(path)
    }

    fn add(&mut self) -> Result<()> {
        match self.rng.below(16) {
            0 | 1 => {
                self.new_dir()?;
            }
            2 => {
                let length = match self.one_in(4) {
                    true => 1 + self.rng.below(4090),
                    false => 1 + self.rng.below(80),
                };
                let target = OsString::from_vec(vec![b't'; length]);
                let path = self.place();
                symlink(target, &path).at("link", &path)?;
                self.others.push(path);
            }
            3 if !self.files.is_empty() => {
                let at = self.rng.below(self.files.len() + self.others.len());
                let old = match self.files.get(at) {
                    Some(file) => file.clone(),
                    None => self.others[at - self.files.len()].clone(),
                };
                self.links = true;
                self.beyond_tar |= at >= self.files.len() && !old.is_symlink();
                let path = self.place();
                fs::hard_link(&old, path).at("link", &old)?;
            }
            4 if !self.files.is_empty() => {
                let old = self.files[self.rng.below(self.files.len())].clone();
                let path = self.place();
                fs::copy(&old, &path).at("copy", &old)?;
                self.files.push(path.clone());
                if self.one_in(2) {
                    self.edit(&path)?;
                }
            }
            5 => self.special()?,
            _ => {
                let content = self.content();
                let path = self.place();
                self.write(&path, &content)?;
                self.files.push(path);
            }
        }
        Ok(())
    }

    fn special(&mut self) -> Result<()> {
        let kind = self.rng.below(4);
        // Fits: less than 2^12 and 2^20. Not 0:0, which is a whiteout.
        let minor = 1 + self.rng.below((1 << 20) - 1);
        let device = makedev(self.rng.below(4096) as u32, minor as u32);
        let (kind, device) = match kind {
            0 => (FileType::Socket, 0),
            1 if self.privileged => (FileType::CharacterDevice, device),
            2 if self.privileged => (FileType::BlockDevice, device),
            _ => (FileType::Fifo, 0),
        };
        self.beyond_tar |= kind == FileType::Socket;
        let path = self.place();
        mknodat(CWD, &path, kind, Mode::from_raw_mode(0o640), device).at("create", &path)?;
        self.others.push(path);
        Ok(())
    }

    /// Writes content. In sparse trees, zero blocks of some files become holes.
    fn write(&mut self, path: &Path, content: &[u8]) -> Result<()> {
        if !self.sparse || !self.one_in(3) {
            return fs::write(path, content).at("write", path);
        }
        let file = File::create(path).at("write", path)?;
        for (i, block) in content.chunks(4096).enumerate() {
            if block.iter().any(|b| *b != 0) {
                file.write_all_at(block, i as u64 * 4096)
                    .at("write", path)?;
            }
        }
        file.set_len(content.len() as u64).at("write", path)
    }

    /// Returns a length near a limit, or a random short one.
    fn length(&mut self) -> usize {
        match self.rng.below(4) {
            0 => self.rng.below(600),
            1 => self.rng.below(300_000),
            _ => {
                let limit = LIMITS[self.rng.below(LIMITS.len())] * (1 + self.rng.below(3));
                let near = match self.one_in(2) {
                    true => self.rng.below(3),
                    false => self.rng.below(3000),
                };
                match self.one_in(2) {
                    true => limit + near,
                    false => limit.saturating_sub(near),
                }
                .min(FILE_MAX)
            }
        }
    }

    fn content(&mut self) -> Vec<u8> {
        let length = self.length();
        let mut out = Vec::with_capacity(length);
        while out.len() < length {
            let left = length - out.len();
            let n = match self.one_in(3) {
                true => left,
                false => 1 + self.rng.below(left.min(PIECE_MAX)),
            };
            self.piece(n, &mut out);
            out.truncate(length);
        }
        if out.len() > 1000 && self.shared.len() < 64 {
            let from = self.rng.below(out.len() / 2);
            let to = from + self.rng.below(out.len() - from);
            self.shared.push(out[from..to].to_vec());
        }
        out
    }

    /// Appends about `n` bytes of one kind to `out`.
    fn piece(&mut self, n: usize, out: &mut Vec<u8>) {
        let end = out.len() + n;
        match self.rng.below(7) {
            0 => out.resize(end, 0),
            1 => {
                while out.len() < end {
                    out.extend(self.rng.draw().to_le_bytes());
                }
            }
            2 if !self.shared.is_empty() => {
                let i = self.rng.below(self.shared.len());
                out.extend_from_slice(&self.shared[i]);
            }
            3 => {
                let period = 1 + self.rng.below(3000);
                let from = out.len();
                for _ in 0..period.min(n) {
                    out.push(self.rng.draw() as u8);
                }
                while out.len() < end {
                    out.push(out[from + (out.len() - from) % period]);
                }
            }
            _ => {
                while out.len() < end {
                    let word = self.rng.below(400);
                    out.extend(format!("word{} ", word * word).bytes());
                }
            }
        }
    }

    /// Returns a random path except the root.
    fn some_path(&mut self) -> Option<PathBuf> {
        let lists = [&self.files, &self.files, &self.others, &self.dirs];
        let list = lists[self.rng.below(lists.len())];
        let path = list.get(self.rng.below(list.len()))?;
        (path != self.root).then(|| path.clone())
    }

    fn remove(&mut self) -> Result<()> {
        let Some(gone) = self.some_path() else {
            return Ok(());
        };
        match self.dirs.contains(&gone) {
            true => fs::remove_dir_all(&gone),
            false => fs::remove_file(&gone),
        }
        .at("remove", &gone)?;
        for list in [&mut self.dirs, &mut self.files, &mut self.others] {
            list.retain(|path| !path.starts_with(&gone));
        }
        Ok(())
    }

    fn rename(&mut self) -> Result<()> {
        let to = self.place();
        let Some(from) = self.some_path().filter(|from| !to.starts_with(from)) else {
            return Ok(());
        };
        if self.dirs.contains(&from) && self.depth(&to) > PATH_MAX / 4 {
            return Ok(());
        }
        fs::rename(&from, &to).at("rename", &from)?;
        for list in [&mut self.dirs, &mut self.files, &mut self.others] {
            for path in list {
                if *path == from {
                    *path = to.clone();
                } else if let Ok(below) = path.strip_prefix(&from) {
                    *path = to.join(below);
                }
            }
        }
        Ok(())
    }

    /// Overwrites a part of a file, appends to it or truncates it.
    fn edit(&mut self, path: &Path) -> Result<()> {
        let file = File::options().write(true).open(path).at("write", path)?;
        let length = file.metadata().at("write", path)?.len();
        // Fits: the files are short.
        let at = self.rng.below(length as usize + 1) as u64;
        let mut piece = Vec::new();
        let n = 1 + self.rng.below(5000);
        self.piece(n, &mut piece);
        match self.rng.below(4) {
            0 => file.write_all_at(&piece, length).at("write", path),
            1 => file.set_len(at).at("write", path),
            _ => file.write_all_at(&piece, at).at("write", path),
        }
    }

    /// Sets modes, owners, attributes and times. Runs last, because other changes reset them.
    fn settle(&mut self) -> Result<()> {
        let mut all = Vec::new();
        below(self.root, &mut all)?;
        for path in all {
            // Each path has a separate generator, so that settings without permission do not affect other
            // paths.
            let mut rng = Rng::new(self.rng.draw());
            self.settle_one(&path, &mut rng)?;
        }
        Ok(())
    }

    fn settle_one(&self, path: &Path, rng: &mut Rng) -> Result<()> {
        let kind = fs::symlink_metadata(path).at("stat", path)?.file_type();
        time(path, rng)?;
        if self.privileged {
            let id = |rng: &mut Rng| match rng.below(9) {
                0 => rng.below(70_000) as u32,
                1 => u32::MAX - 1 - rng.below(1000) as u32,
                _ => 0,
            };
            let (uid, gid) = (Uid::from_raw(id(rng)), Gid::from_raw(id(rng)));
            chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                .at("change the owner of", path)?;
        }
        if !kind.is_symlink() {
            let mode = match rng.below(3) {
                // The owner keeps read and write permission; root has them anyway.
                0 => 0o600 | rng.below(0o10000) as u32,
                _ => 0o644,
            };
            let mode = if kind.is_dir() { mode | 0o700 } else { mode };
            fs::set_permissions(path, Permissions::from_mode(mode)).at("set the mode of", path)?;
        }
        attributes(path, &kind, self.privileged, rng)
    }
}

/// Sets random extended attributes and ACLs.
fn attributes(path: &Path, kind: &fs::FileType, privileged: bool, rng: &mut Rng) -> Result<()> {
    let set = |name: &str, value: &[u8]| {
        use rustix::io::Errno;
        match lsetxattr(path, name, value, XattrFlags::empty()) {
            // Filesystems may not support them, not for every file type, or not so many.
            Ok(()) | Err(Errno::NOTSUP | Errno::PERM | Errno::NOSPC) => Ok(()),
            Err(e) => Err(Error::io("set an attribute of", path, e.into())),
        }
    };
    // Lengths repeat, so that equal attributes can be shared.
    let value = |rng: &mut Rng| {
        let lengths = [0, 1, 4, 50, rng.below(200), rng.below(3000)];
        vec![b'v'; lengths[rng.below(lengths.len())]]
    };
    let plain = kind.is_file() || kind.is_dir();
    if plain && rng.below(3) == 0 {
        for _ in 0..1 + rng.below(3) {
            let name = format!("user.name{}", rng.below(9));
            set(&name, &value(rng))?;
        }
    }
    if privileged && rng.below(6) == 0 {
        set("trusted.overlay.origin", &[7; 29])?;
    }
    if privileged && rng.below(12) == 0 {
        let long = "long".repeat(rng.below(50));
        set(&format!("trusted.{long}{}", rng.below(3)), &value(rng))?;
    }
    if privileged && kind.is_file() && rng.below(8) == 0 {
        // Version 2: permitted and inheritable sets.
        let capability = [1u32 | 2 << 24, 1 << 13, 0, 0, 0].map(u32::to_le_bytes);
        set("security.capability", capability.as_flattened())?;
    }
    if plain && rng.below(8) == 0 {
        let list = acl(rng);
        set("system.posix_acl_access", &list)?;
        if kind.is_dir() {
            set("system.posix_acl_default", &list)?;
        }
    }
    Ok(())
}

/// Returns an ACL of version 2: user, a named user, group, mask, other.
fn acl(rng: &mut Rng) -> Vec<u8> {
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, allowed, id) in [
        (1u16, 6u16, u32::MAX),
        (2, 4, 1000 + rng.below(9) as u32),
        (4, 4, u32::MAX),
        (16, 4, u32::MAX),
        (32, 0, u32::MAX),
    ] {
        list.extend(tag.to_le_bytes());
        list.extend(allowed.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

/// Sets random access and modification times.
fn time(path: &Path, rng: &mut Rng) -> Result<()> {
    let seconds = match rng.below(8) {
        0 => -1_000_000 - rng.below(1_000_000) as i64,
        1 => 5_000_000_000 + rng.below(1_000_000) as i64,
        2 => 1_600_000_000 + rng.below(100_000_000) as i64,
        _ => 1_700_000_000,
    };
    let nanoseconds = match rng.below(2) {
        0 => 0,
        _ => rng.below(1_000_000_000),
    };
    let time = Timespec {
        tv_sec: seconds,
        // Fits: less than 2^30.
        tv_nsec: nanoseconds as _,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).at("set the time of", path)
}

/// Lists a folder and everything below it in the order of names. Children precede their folder, so that
/// setting times in this order is stable.
fn below(dir: &Path, all: &mut Vec<PathBuf>) -> Result<()> {
    let mut inside: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(dir).at("list", dir)? {
        inside.push(entry.at("list", dir)?.path());
    }
    inside.sort_unstable();
    for path in inside {
        if path.is_dir() && !path.is_symlink() {
            below(&path, all)?;
        } else {
            all.push(path);
        }
    }
    all.push(dir.to_owned());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::tree::Tree;

    #[test]
    fn the_same_seed_makes_the_same_tree_and_changes() {
        let folder = tempfile::tempdir().unwrap();
        let mut trees = Vec::new();
        for name in ["one", "two"] {
            let root = folder.path().join(name);
            fs::create_dir(&root).unwrap();
            let mut gardener = Gardener::new(Rng::new(11), &root);
            gardener.plant().unwrap();
            let planted = Tree::read(&root).unwrap();
            gardener.change().unwrap();
            let changed = Tree::read(&root).unwrap();
            assert!(!planted.differences(&changed).is_empty());
            trees.push([planted, changed]);
        }
        for (one, two) in trees[0].iter().zip(&trees[1]) {
            assert_eq!(one.differences(two), []);
            assert!(one.size.entries > 5);
        }
    }
}
