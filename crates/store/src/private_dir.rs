//! Directories whose content no other user can change: caches, records of uploads, stores of layers.
//!
//! A directory is opened once and checked: it belongs to this user or to root, and no other user can write to it. Its files
//! are opened below its descriptor, so that a path that changes meanwhile leads nowhere else. Symbolic links are never
//! followed, and a file is used only if it is a regular file of this user with one name.

use crate::host::retry;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Bits of a mode by which others than the owner may write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Directory that only this user and root can change.
#[derive(Debug)]
pub struct PrivateDir {
    dir: OwnedFd,
    path: PathBuf,
}

impl PrivateDir {
    /// Opens a directory, and creates it and its parents for this user alone if it does not exist.
    ///
    /// # Errors
    /// `PermissionDenied` if it is a symbolic link, belongs to another user than this one and root, or can be written by
    /// others; other errors of the host.
    pub fn open(path: &Path) -> io::Result<Self> {
        // A slash at the end would follow a symbolic link.
        let path: PathBuf = std::path::absolute(path)?.components().collect();
        match Self::existing(path.clone()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let mut builder = DirBuilder::new();
                builder.recursive(true).mode(0o700).create(&path)?;
                Self::existing(path)
            }
            opened => opened,
        }
    }

    fn existing(path: PathBuf) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = retry(|| rustix::fs::openat(CWD, &path, flags, Mode::empty()));
        let dir = opened.map_err(|e| match e {
            Errno::LOOP | Errno::NOTDIR if path.is_symlink() => {
                denied("is a symbolic link; name the directory that it leads to")
            }
            e => e.into(),
        })?;
        Self::checked(dir, path)
    }

    fn checked(dir: OwnedFd, path: PathBuf) -> io::Result<Self> {
        let stat = retry(|| rustix::fs::fstat(&dir))?;
        let advice =
            "so others could change what is kept there; remove it, or name another directory";
        if let Some(what) = owner_or_mode(&stat) {
            return Err(denied(format_args!("{what}, {advice}")));
        }
        Ok(Self { dir, path })
    }

    /// Absolute path of the directory, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a directory below this one, and creates it for this user alone.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn subdir(&self, name: &str) -> io::Result<Self> {
        match retry(|| rustix::fs::mkdirat(&self.dir, name, Mode::from_raw_mode(0o700))) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = self.path.join(name);
        let opened = retry(|| rustix::fs::openat(&self.dir, name, flags, Mode::empty()));
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        let dir = opened.map_err(|e| named(e.into()))?;
        Self::checked(dir, path.clone()).map_err(named)
    }

    /// Opens a file for reading and writing, and creates it for this user alone.
    ///
    /// # Errors
    /// `PermissionDenied` for a symbolic link, a special file, a file of another user, one that others can write, and one
    /// with several names; other errors of the host.
    pub fn file(&self, name: &str) -> io::Result<File> {
        self.open_file(name, OFlags::RDWR | OFlags::CREATE)
    }

    /// Opens a file that exists for reading.
    ///
    /// # Errors
    /// Those of [`file`](Self::file).
    pub fn read(&self, name: &str) -> io::Result<File> {
        self.open_file(name, OFlags::RDONLY)
    }

    fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        // A pipe must not block.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let refused = |what: &str| {
            let path = self.path.join(name);
            denied(format_args!("{} {what}; remove it", path.display()))
        };
        let mode = Mode::from_raw_mode(0o600);
        let opened = retry(|| rustix::fs::openat(&self.dir, name, flags, mode));
        let file = opened.map_err(|e| match e {
            Errno::LOOP => refused("is a symbolic link"),
            Errno::ISDIR | Errno::NXIO => refused("is not a regular file"),
            e => e.into(),
        })?;
        let stat = retry(|| rustix::fs::fstat(&file))?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(refused("is not a regular file"));
        }
        if let Some(what) = owner_or_mode(&stat) {
            return Err(refused(&what));
        }
        // A file that was removed meanwhile has none.
        if stat.st_nlink > 1 {
            return Err(refused("has another name (hard link)"));
        }
        Ok(file.into())
    }

    /// Metadata of a file, if there is one. A symbolic link is not followed.
    ///
    /// # Errors
    /// Errors of the host.
    pub fn metadata(&self, name: impl AsRef<Path>) -> io::Result<Option<Metadata>> {
        let name = name.as_ref();
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match retry(|| rustix::fs::openat(&self.dir, name, flags, Mode::empty())) {
            Ok(file) => File::from(file).metadata().map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Gives a file another name, which replaces a file of that name.
    ///
    /// # Errors
    /// Errors of the host.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let renamed = retry(|| rustix::fs::renameat(&self.dir, from, &self.dir, to));
        renamed.map_err(io::Error::from)
    }

    /// Removes a file or symbolic link. One that does not exist is no error.
    ///
    /// # Errors
    /// Errors of the host.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match retry(|| rustix::fs::unlinkat(&self.dir, name, AtFlags::empty())) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// Errors of the host.
    pub fn symlink(&self, target: &Path, name: &str) -> io::Result<()> {
        let linked = retry(|| rustix::fs::symlinkat(target, &self.dir, name));
        linked.map_err(io::Error::from)
    }

    /// Names of all entries.
    ///
    /// # Errors
    /// Errors of the host.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.dir)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }
}

/// Reason why others than this user and root can change a file or directory. `None` if they cannot.
fn owner_or_mode(stat: &Stat) -> Option<String> {
    let owner = stat.st_uid;
    if owner != rustix::process::geteuid().as_raw() && owner != 0 {
        return Some(format!("belongs to user {owner}"));
    }
    let mode = stat.st_mode & 0o7777;
    (mode & WRITABLE_BY_OTHERS != 0).then(|| format!("can be written by others (mode {mode:o})"))
}

fn denied(what: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, what.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn dir() -> (tempfile::TempDir, PathBuf) {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("private");
        (parent, path)
    }

    fn refusal<T: std::fmt::Debug>(opened: io::Result<T>) -> String {
        let e = opened.unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::PermissionDenied, "{e}");
        e.to_string()
    }

    #[test]
    fn what_is_created_is_for_this_user_alone() {
        let (_parent, path) = dir();
        let private = PrivateDir::open(&path.join("in")).unwrap();
        private.file("f").unwrap();
        private.subdir("d").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&path.join("in")), 0o700);
        assert_eq!(mode(&path.join("in/d")), 0o700);
        assert_eq!(mode(&path.join("in/f")), 0o600);
    }

    #[test]
    fn a_directory_that_others_can_change_is_refused() {
        let (parent, path) = dir();
        fs::create_dir(&path).unwrap();
        for mode in [0o777, 0o1777, 0o775, 0o722] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let message = refusal(PrivateDir::open(&path));
            assert!(message.contains("can be written by others"), "{message}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        PrivateDir::open(&path).unwrap();
        let link = parent.path().join("link");
        symlink(&path, &link).unwrap();
        for link in [link.clone(), link.join(""), link.join(".")] {
            let message = refusal(PrivateDir::open(&link));
            assert!(message.contains("is a symbolic link"), "{message}");
        }
        if !rustix::process::geteuid().is_root() {
            return tuff_testkit::skipped("only root gives directories away");
        }
        chown(&path, Some(12345), None).unwrap();
        let message = refusal(PrivateDir::open(&path));
        assert!(message.contains("belongs to user 12345"), "{message}");
    }

    #[test]
    fn planted_files_are_refused() {
        let (parent, path) = dir();
        let private = PrivateDir::open(&path).unwrap();
        let victim = parent.path().join("victim");
        fs::write(&victim, "kept").unwrap();
        symlink(&victim, path.join("link")).unwrap();
        symlink(parent.path().join("none"), path.join("dangling")).unwrap();
        fs::hard_link(&victim, path.join("hard")).unwrap();
        fs::create_dir(path.join("directory")).unwrap();
        fs::write(path.join("open"), "").unwrap();
        fs::set_permissions(path.join("open"), Permissions::from_mode(0o666)).unwrap();
        let pipe = Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(CWD, path.join("pipe"), pipe).unwrap();
        for (name, words) in [
            ("link", "is a symbolic link"),
            ("dangling", "is a symbolic link"),
            ("hard", "has another name"),
            ("directory", "is not a regular file"),
            ("pipe", "is not a regular file"),
            ("open", "can be written by others"),
        ] {
            let message = refusal(private.file(name));
            assert!(
                message.contains(words) && message.contains(name),
                "{message}"
            );
            let message = refusal(private.read(name));
            assert!(message.contains(words), "{message}");
        }
        assert!(!parent.path().join("none").exists());
        assert_eq!(fs::read(&victim).unwrap(), b"kept");
        let message = private.subdir("link").unwrap_err().to_string();
        assert!(message.contains("link"), "{message}");
        private.remove("link").unwrap();
        assert!(victim.exists());
        if !rustix::process::geteuid().is_root() {
            return tuff_testkit::skipped("only root gives files away");
        }
        fs::write(path.join("foreign"), "").unwrap();
        chown(path.join("foreign"), Some(12345), None).unwrap();
        let message = refusal(private.file("foreign"));
        assert!(message.contains("belongs to user 12345"), "{message}");
    }

    #[test]
    fn files_stay_in_the_directory_that_was_opened() {
        let (parent, path) = dir();
        let private = PrivateDir::open(&path).unwrap();
        let moved = parent.path().join("moved");
        fs::rename(&path, &moved).unwrap();
        fs::create_dir(&path).unwrap();
        private.file("f").unwrap();
        private.rename("f", "g").unwrap();
        assert!(moved.join("g").exists() && !path.join("g").exists());
        assert_eq!(private.names().unwrap(), ["g"]);
        assert!(
            private.metadata("g").unwrap().is_some() && private.metadata("f").unwrap().is_none()
        );
    }
}
