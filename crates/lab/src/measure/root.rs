//! Small root directory with real programs. It holds each program with the libraries reported by `ldd` and
//! further paths, in their local places. Symbolic links are preserved.

use crate::measure::workspace;
use crate::{At, Result};
use std::collections::BTreeSet;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, FileTimes};
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

/// Name of the file for background reads.
pub const BACKGROUND: &str = "background";
/// Maximum number of symbolic links in a path.
const LINKS_MAX: u32 = 40;

/// Root directory under construction.
#[derive(Debug)]
pub struct Root {
    folder: PathBuf,
    /// Local paths that were added.
    added: BTreeSet<PathBuf>,
}

impl Root {
    /// Creates an empty root with mount points for /proc, /dev and /tmp.
    pub fn create(folder: &Path) -> Result<Root> {
        for name in ["", "proc", "dev", "tmp", "root"] {
            let path = folder.join(name);
            std::fs::create_dir_all(&path).at("create", &path)?;
        }
        Ok(Root {
            folder: folder.to_owned(),
            added: BTreeSet::new(),
        })
    }

    /// Returns the path of the root.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Adds the local files and directories that match `pattern`, with libraries. Returns false if there are
    /// none.
    pub fn add(&mut self, pattern: &Path) -> Result<bool> {
        let found = matches(pattern);
        for path in &found {
            self.add_path(path)?;
        }
        Ok(!found.is_empty())
    }

    /// Writes a file at `path` below the root.
    pub fn write(&mut self, path: &Path, text: &str) -> Result<()> {
        let place = self.place(path);
        let parent = place.parent().unwrap_or(&place);
        std::fs::create_dir_all(parent).at("create", parent)?;
        std::fs::write(&place, text).at("write", &place)
    }

    /// Creates the file for background reads with a given length in bytes. It repeats the tree's own files,
    /// so that it compresses like them.
    pub fn write_background(&self, length: u64) -> Result<()> {
        let path = self.folder.join(BACKGROUND);
        let mut file = File::create(&path).at("create", &path)?;
        let mut files = Vec::new();
        list(&self.folder, &mut files)?;
        files.retain(|(f, length)| *f != path && *length > 0);
        let mut left = length;
        while left > 0 && !files.is_empty() {
            for (from, _) in &files {
                let source = File::open(from).at("open", from)?;
                left -= std::io::copy(&mut source.take(left), &mut file).at("write", &path)?;
            }
        }
        file.flush().at("write", &path)
    }

    /// Returns the path in the root for a local path.
    fn place(&self, path: &Path) -> PathBuf {
        self.folder.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Adds a path with the symbolic links and directories that lead to it.
    fn add_path(&mut self, path: &Path) -> Result<()> {
        let mut here = PathBuf::from("/");
        let mut rest: VecDeque<OsString> = VecDeque::new();
        push_front(&mut rest, path);
        let mut links = 0;
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                here.pop();
                continue;
            }
            let next = here.join(&name);
            // The target of a link may be missing. The link is kept.
            let Ok(attributes) = std::fs::symlink_metadata(&next) else {
                return Ok(());
            };
            if attributes.is_symlink() {
                let target = std::fs::read_link(&next).at("read", &next)?;
                let place = self.place(&next);
                if std::fs::symlink_metadata(&place).is_err() {
                    symlink(&target, &place).at("create", &place)?;
                }
                links += 1;
                if links > LINKS_MAX {
                    return Ok(());
                }
                if target.is_absolute() {
                    here = PathBuf::from("/");
                }
                push_front(&mut rest, &target);
            } else if attributes.is_dir() {
                let place = self.place(&next);
                if !place.is_dir() {
                    std::fs::create_dir(&place).at("create", &place)?;
                }
                here = next;
            } else {
                return match rest.is_empty() && attributes.is_file() {
                    true => self.add_file(&next),
                    false => Ok(()),
                };
            }
        }
        if here == Path::new("/") || !self.added.insert(here.clone()) {
            return Ok(());
        }
        let listing = std::fs::read_dir(&here).at("list", &here)?;
        for entry in listing {
            let entry = entry.at("list", &here)?;
            self.add_path(&entry.path())?;
        }
        Ok(())
    }

    /// Copies a file into an existing directory. Its modification time is kept, because compiled files are
    /// compared with their sources by time.
    fn add_file(&mut self, path: &Path) -> Result<()> {
        if !self.added.insert(path.to_owned()) {
            return Ok(());
        }
        let place = self.place(path);
        std::fs::copy(path, &place).at("copy", path)?;
        let modified = std::fs::metadata(path).and_then(|m| m.modified());
        let file = File::options().write(true).open(&place);
        file.and_then(|f| f.set_times(FileTimes::new().set_modified(modified?)))
            .at("set the times of", &place)?;
        if has_libraries(path) {
            for library in libraries(path) {
                self.add_path(&library)?;
            }
        }
        Ok(())
    }
}

/// Prepends the components of a path.
fn push_front(rest: &mut VecDeque<OsString>, path: &Path) {
    for part in path.components().rev() {
        match part {
            Component::Normal(name) => rest.push_front(name.to_owned()),
            Component::ParentDir => rest.push_front("..".into()),
            _ => {}
        }
    }
}

/// Returns the paths that match a pattern, in order. `*` matches any part of a name, but not a leading dot.
fn matches(pattern: &Path) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/")];
    for part in pattern.components() {
        let Component::Normal(part) = part else {
            continue;
        };
        let step = |folder: PathBuf| -> Vec<PathBuf> {
            let Some(star) = part.as_bytes().iter().position(|b| *b == b'*') else {
                return vec![folder.join(part)];
            };
            let (before, after) = (&part.as_bytes()[..star], &part.as_bytes()[star + 1..]);
            let is_match = |name: &OsStr| {
                let name = name.as_bytes();
                name.len() >= before.len() + after.len()
                    && name.starts_with(before)
                    && name.ends_with(after)
                    && (!before.is_empty() || !name.starts_with(b"."))
            };
            let listing = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            let mut names: Vec<PathBuf> = listing
                .filter(|e| is_match(&e.file_name()))
                .map(|e| e.path())
                .collect();
            names.sort();
            names
        };
        found = found.into_iter().flat_map(step).collect();
    }
    found.retain(|p| std::fs::symlink_metadata(p).is_ok());
    found
}

/// Returns whether a file is a program or a library, judged by its first bytes, mode and name.
fn has_libraries(path: &Path) -> bool {
    let mut magic = [0; 4];
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let executable = std::fs::metadata(path).is_ok_and(|m| m.permissions().mode() & 0o111 != 0);
    let read = File::open(path).and_then(|mut f| f.read_exact(&mut magic));
    read.is_ok() && magic == *b"\x7fELF" && (executable || name.contains(".so"))
}

/// Returns the libraries reported by `ldd`, including the loader. Empty if `ldd` does not support the file.
fn libraries(path: &Path) -> Vec<PathBuf> {
    let mut ldd = Command::new("ldd");
    let output = ldd.arg(path).stdin(Stdio::null()).output();
    let text = output.map(|o| o.stdout).unwrap_or_default();
    let words = text.split(u8::is_ascii_whitespace);
    words
        .filter(|w| w.starts_with(b"/"))
        .map(|w| PathBuf::from(OsString::from_vec(w.to_vec())))
        .collect()
}

/// Appends the regular files below a directory with their lengths in bytes, sorted by name.
pub fn list(folder: &Path, files: &mut Vec<(PathBuf, u64)>) -> Result<()> {
    let listing = std::fs::read_dir(folder).at("list", folder)?;
    let mut paths = Vec::new();
    for entry in listing {
        paths.push(entry.at("list", folder)?.path());
    }
    paths.sort();
    for path in paths {
        let attributes = std::fs::symlink_metadata(&path).at("stat", &path)?;
        if attributes.is_dir() {
            list(&path, files)?;
        } else if attributes.is_file() {
            files.push((path, attributes.len()));
        }
    }
    Ok(())
}

/// Returns path in the root and length in bytes of the file for background reads: the one created for it, or
/// else the largest. None if all files are empty.
pub fn background(tree: &Path) -> Result<Option<(PathBuf, u64)>> {
    let made = tree.join(BACKGROUND);
    if made.is_file() {
        return Ok(Some((
            Path::new("/").join(BACKGROUND),
            workspace::length(&made)?,
        )));
    }
    let mut files = Vec::new();
    list(tree, &mut files)?;
    let longest = files.into_iter().max_by_key(|(_, length)| *length);
    Ok(longest
        .filter(|(_, length)| *length > 0)
        .map(|(path, length)| {
            let path = path.strip_prefix(tree).unwrap_or(&path).to_owned();
            (Path::new("/").join(path), length)
        }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_comes_with_its_libraries_and_the_links_to_them() {
        let folder = tempfile::tempdir().unwrap();
        let mut root = Root::create(&folder.path().join("root")).unwrap();
        assert!(root.add(Path::new("/bin/sh")).unwrap());
        assert!(!root.add(Path::new("/bin/no-such-program-*")).unwrap());
        let is_there = |path: &Path| {
            // Links are resolved below the root, including absolute ones.
            let real = path.canonicalize().unwrap();
            root.folder()
                .join(real.strip_prefix("/").unwrap())
                .is_file()
        };
        assert!(is_there(Path::new("/bin/sh")));
        for library in libraries(Path::new("/bin/sh")) {
            assert!(is_there(&library), "{}", library.display());
        }
        root.write_background(5 << 20).unwrap();
        let found = background(root.folder()).unwrap();
        assert_eq!(found, Some(("/background".into(), 5 << 20)));
    }

    #[test]
    fn patterns_stand_for_parts_of_names() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["ab", "axb", "axc", ".b"] {
            std::fs::create_dir_all(folder.path().join(name).join("in")).unwrap();
        }
        let names = |pattern: &str| -> Vec<String> {
            let found = matches(&folder.path().join(pattern));
            let relative = found.iter().map(|p| p.strip_prefix(folder.path()).unwrap());
            relative.map(|p| p.to_string_lossy().into_owned()).collect()
        };
        assert_eq!(names("a*b"), ["ab", "axb"]);
        assert_eq!(names("*b/in"), ["ab/in", "axb/in"]);
        assert_eq!(names("a*/none"), [""; 0]);
    }

    #[test]
    fn a_folder_is_added_whole_with_dangling_links() {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join("from");
        std::fs::create_dir_all(from.join("sub")).unwrap();
        std::fs::write(from.join("sub/file"), "x").unwrap();
        symlink("nowhere", from.join("dangling")).unwrap();
        symlink("sub/..", from.join("loop")).unwrap();
        let mut root = Root::create(&folder.path().join("root")).unwrap();
        root.add(&from).unwrap();
        let place = root.place(&from);
        assert_eq!(std::fs::read(place.join("sub/file")).unwrap(), b"x");
        assert!(std::fs::read_link(place.join("dangling")).is_ok());
        assert!(std::fs::read_link(place.join("loop")).is_ok());
    }
}
