//! Directory trees as lists of digests, compared by facets.
//!
//! A walk is in bytewise order of path components, so equal trees give equal lists. Reading a tree
//! for its digest also fills the page cache.

use crate::{At, Error, Result};
use rustix::fs::{lgetxattr, llistxattr};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{File, FileType, Metadata};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Property of a tree that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Facet {
    /// Paths and types of files.
    Names,
    /// Content of files, targets of symbolic links, device numbers.
    Bytes,
    /// Permission bits, set-id and sticky bits.
    Modes,
    /// Owners and groups of all files.
    Owners,
    /// Modification times in whole seconds.
    Seconds,
    /// Modification times, fraction below a second.
    Nanoseconds,
    /// Names and values of extended attributes.
    Xattrs,
    /// Groups of names that are hard links to one file.
    Links,
}

/// All facets, in the order of [`Entry::digests`].
pub const FACETS: [Facet; 8] = [
    Facet::Names,
    Facet::Bytes,
    Facet::Modes,
    Facet::Owners,
    Facet::Seconds,
    Facet::Nanoseconds,
    Facet::Xattrs,
    Facet::Links,
];

impl fmt::Display for Facet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Facet::Names => "names",
            Facet::Bytes => "bytes",
            Facet::Modes => "modes",
            Facet::Owners => "owners",
            Facet::Seconds => "times",
            Facet::Nanoseconds => "nanoseconds",
            Facet::Xattrs => "xattrs",
            Facet::Links => "hard links",
        })
    }
}

/// Path of a tree with its digests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Path relative to the root, without a leading slash; empty for the root.
    pub path: Vec<u8>,
    /// Digests in the order of [`FACETS`].
    pub digests: [u64; FACETS.len()],
}

/// List of a walked tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// Entries in bytewise order of their paths' components, the root first.
    pub entries: Vec<Entry>,
    /// Totals of the tree.
    pub size: TreeSize,
}

/// Size of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeSize {
    /// Paths, the root included.
    pub entries: u64,
    /// Paths of regular files.
    pub files: u64,
    /// Sum of the sizes of regular files, each hard link once.
    pub bytes: u64,
}

/// Difference of two trees in one facet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Facet in which the trees differ.
    pub facet: Facet,
    /// Number of entries that differ or are missing in one tree.
    pub count: u64,
    /// Path of the first such entry.
    pub first: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference {
            facet,
            count,
            first,
        } = self;
        let entries = if *count == 1 { "entry" } else { "entries" };
        write!(f, "{facet} differ in {count} {entries}, first '{first}'")
    }
}

impl Tree {
    /// Walks the tree below `root` and reads all files.
    pub fn read(root: &Path) -> Result<Tree> {
        let mut walk = Walk::default();
        let mut entries = Vec::new();
        let mut buffer = vec![0; 1 << 20];
        each(root, |path, full, metadata| {
            let digests = walk.digests(path, full, metadata, &mut buffer)?;
            entries.push(Entry {
                path: path.as_os_str().as_bytes().to_vec(),
                digests,
            });
            Ok(())
        })?;
        Ok(Tree {
            entries,
            size: walk.size,
        })
    }

    /// Returns a digest of all entries as 16 hexadecimal digits.
    pub fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for entry in &self.entries {
            hasher.update(&entry.path);
            hasher.update(&[0]);
            for digest in entry.digests {
                hasher.update(&digest.to_le_bytes());
            }
        }
        hasher.finalize().to_hex()[..16].to_owned()
    }

    /// Returns the facets in which `other` differs from this tree. A missing or additional path
    /// counts as a difference of names only.
    pub fn differences(&self, other: &Tree) -> Vec<Difference> {
        let mut counts: [Option<Difference>; FACETS.len()] = std::array::from_fn(|_| None);
        let mut count = |at: usize, path: &[u8]| {
            let found = counts[at].get_or_insert_with(|| Difference {
                facet: FACETS[at],
                count: 0,
                first: String::from_utf8_lossy(path).into_owned(),
            });
            found.count += 1;
        };
        let of = other.entries.iter();
        let mut theirs: HashMap<&[u8], &Entry> = of.clone().map(|e| (&*e.path, e)).collect();
        for ours in &self.entries {
            match theirs.remove(&*ours.path) {
                Some(found) => {
                    for at in (0..FACETS.len()).filter(|at| ours.digests[*at] != found.digests[*at])
                    {
                        count(at, &ours.path);
                    }
                }
                None => count(0, &ours.path),
            }
        }
        for entry in of.filter(|e| theirs.contains_key(&*e.path)) {
            count(0, &entry.path);
        }
        counts.into_iter().flatten().collect()
    }
}

/// Calls `visit` for each path below `root`, parents first, names ascending. The stack is explicit,
/// because trees can be deeper than the call stack.
fn each(root: &Path, mut visit: impl FnMut(&Path, &Path, &Metadata) -> Result<()>) -> Result<()> {
    let mut stack = vec![PathBuf::new()];
    while let Some(path) = stack.pop() {
        let full = if path.as_os_str().is_empty() {
            root.to_owned()
        } else {
            root.join(&path)
        };
        let metadata = std::fs::symlink_metadata(&full).at("stat", &full)?;
        visit(&path, &full, &metadata)?;
        if metadata.is_dir() {
            let listing = std::fs::read_dir(&full).at("list", &full)?;
            let names: std::io::Result<Vec<OsString>> =
                listing.map(|entry| entry.map(|e| e.file_name())).collect();
            let mut names = names.at("list", &full)?;
            // Descending, because the stack reverses the order.
            names.sort_unstable_by(|a, b| b.as_bytes().cmp(a.as_bytes()));
            stack.extend(names.iter().map(|name| path.join(name)));
        }
    }
    Ok(())
}

#[derive(Default)]
struct Walk {
    /// First path of each file with several links, by device and inode number.
    links: HashMap<(u64, u64), Vec<u8>>,
    size: TreeSize,
}

impl Walk {
    /// Counts the entry. Returns the first path of the same file if the entry is a further hard
    /// link.
    fn count(&mut self, path: &Path, metadata: &Metadata) -> Option<&[u8]> {
        use std::collections::hash_map::Entry;
        let mut first = None;
        if !metadata.is_dir() && metadata.nlink() > 1 {
            match self.links.entry((metadata.dev(), metadata.ino())) {
                Entry::Occupied(known) => first = Some(known.into_mut()),
                Entry::Vacant(new) => {
                    new.insert(path.as_os_str().as_bytes().to_vec());
                }
            }
        }
        self.size.entries += 1;
        if metadata.is_file() {
            self.size.files += 1;
            self.size.bytes += if first.is_none() { metadata.len() } else { 0 };
        }
        first.map(|f| f.as_slice())
    }

    fn digests(
        &mut self,
        path: &Path,
        full: &Path,
        metadata: &Metadata,
        buffer: &mut [u8],
    ) -> Result<[u64; FACETS.len()]> {
        let links = digest(self.count(path, metadata).unwrap_or(b""));
        Ok([
            digest(&[type_letter(metadata.file_type())]),
            content(full, metadata, buffer)?,
            u64::from(metadata.mode() & 0o7777),
            u64::from(metadata.uid()) << 32 | u64::from(metadata.gid()),
            // The values are only compared; the cast keeps all bits.
            metadata.mtime() as u64,
            metadata.mtime_nsec() as u64,
            xattrs(full)?,
            links,
        ])
    }
}

/// Returns the first eight bytes of the BLAKE3 of `bytes`.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    short(&blake3::hash(bytes))
}

fn short(hash: &blake3::Hash) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&hash.as_bytes()[..8]);
    u64::from_le_bytes(first)
}

fn type_letter(kind: FileType) -> u8 {
    match kind {
        k if k.is_dir() => b'd',
        k if k.is_file() => b'f',
        k if k.is_symlink() => b'l',
        k if k.is_char_device() => b'c',
        k if k.is_block_device() => b'b',
        k if k.is_fifo() => b'p',
        _ => b's',
    }
}

fn content(full: &Path, metadata: &Metadata, buffer: &mut [u8]) -> Result<u64> {
    let kind = metadata.file_type();
    if kind.is_symlink() {
        let target = std::fs::read_link(full).at("read the link", full)?;
        return Ok(digest(target.as_os_str().as_bytes()));
    }
    if kind.is_char_device() || kind.is_block_device() {
        return Ok(metadata.rdev());
    }
    if !kind.is_file() {
        return Ok(0);
    }
    let mut file = File::open(full).at("open", full)?;
    let mut hasher = blake3::Hasher::new();
    loop {
        match file.read(buffer).at("read", full)? {
            0 => return Ok(short(&hasher.finalize())),
            n => hasher.update(&buffer[..n]),
        };
    }
}

fn xattrs(full: &Path) -> Result<u64> {
    let failed = |e: Errno| Error::io("read the attributes of", full, e.into());
    let mut list = vec![0; 256];
    let used = loop {
        match llistxattr(full, &mut list) {
            Ok(0) | Err(Errno::NOTSUP) => return Ok(0),
            Ok(n) => break n,
            Err(Errno::RANGE) => list.resize(list.len() * 2, 0),
            Err(e) => return Err(failed(e)),
        }
    };
    let mut names: Vec<&[u8]> = list[..used]
        .split(|b| *b == 0)
        .filter(|n| !n.is_empty())
        .collect();
    names.sort_unstable();
    let mut hasher = blake3::Hasher::new();
    let mut value = vec![0; 256];
    for name in names {
        let length = loop {
            match lgetxattr(full, OsStr::from_bytes(name), &mut value) {
                Ok(n) => break n,
                Err(Errno::RANGE) => value.resize(value.len() * 2, 0),
                Err(e) => return Err(failed(e)),
            }
        };
        hasher
            .update(&(name.len() as u64).to_le_bytes())
            .update(name);
        hasher
            .update(&(length as u64).to_le_bytes())
            .update(&value[..length]);
    }
    Ok(short(&hasher.finalize()))
}

/// Returns the path of an entry with its bytes unchanged.
pub fn path_of(entry: &Entry) -> PathBuf {
    PathBuf::from(OsString::from_vec(entry.path.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::{Duration, UNIX_EPOCH};

    /// Creates a (file), b (hard link to a), d/, d/l (symbolic link) and z (file) with fixed times.
    fn plant(root: &Path) {
        std::fs::create_dir_all(root.join("d")).unwrap();
        std::fs::write(root.join("a"), "content").unwrap();
        std::fs::hard_link(root.join("a"), root.join("b")).unwrap();
        symlink("../a", root.join("d/l")).unwrap();
        std::fs::write(root.join("z"), "other").unwrap();
        let time = rustix::fs::Timespec {
            tv_sec: 1_000_000_000,
            tv_nsec: 5,
        };
        let times = rustix::fs::Timestamps {
            last_access: time,
            last_modification: time,
        };
        for path in ["a", "d/l", "z", "d", "."] {
            let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::utimensat(rustix::fs::CWD, root.join(path), &times, flags).unwrap();
        }
    }

    fn two() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        plant(&one);
        plant(&two);
        (folder, one, two)
    }

    fn found(one: &Path, two: &Path) -> Vec<(Facet, u64, String)> {
        let differences = Tree::read(one)
            .unwrap()
            .differences(&Tree::read(two).unwrap());
        differences
            .into_iter()
            .map(|d| (d.facet, d.count, d.first))
            .collect()
    }

    #[test]
    fn equal_trees_have_equal_digests_and_no_differences() {
        let (_keep, one, two) = two();
        let (a, b) = (Tree::read(&one).unwrap(), Tree::read(&two).unwrap());
        assert_eq!(a.digest(), b.digest());
        assert_eq!(a.differences(&b), []);
        assert_eq!(
            a.size,
            TreeSize {
                entries: 6,
                files: 3,
                bytes: 12
            }
        );
        let paths: Vec<PathBuf> = a.entries.iter().map(path_of).collect();
        assert_eq!(paths, ["", "a", "b", "d", "d/l", "z"].map(PathBuf::from));
    }

    /// Each change affects only its own facet.
    #[test]
    fn a_change_affects_only_its_facet() {
        let at = |seconds, nanos| UNIX_EPOCH + Duration::new(seconds, nanos);
        let set = |root: &Path, time| {
            let file = File::options().write(true).open(root.join("z")).unwrap();
            file.set_modified(time).unwrap();
        };
        let base = at(1_000_000_000, 5);
        type Change<'a> = (Facet, &'a dyn Fn(&Path));
        let changes: [Change<'_>; 4] = [
            (Facet::Bytes, &|root| {
                std::fs::write(root.join("z"), "OTHER").unwrap();
                set(root, base);
            }),
            (Facet::Modes, &|root| {
                let mode = std::fs::Permissions::from_mode(0o4711);
                std::fs::set_permissions(root.join("z"), mode).unwrap();
            }),
            (Facet::Seconds, &|root| set(root, at(1_000_000_001, 5))),
            (Facet::Nanoseconds, &|root| set(root, at(1_000_000_000, 6))),
        ];
        for (facet, change) in changes {
            let (_keep, one, two) = two();
            change(&two);
            assert_eq!(found(&one, &two), [(facet, 1, "z".to_owned())]);
        }
        // Changes of names change the time of the root, too.
        let (_keep, one, two) = two();
        let root = std::fs::metadata(&two).unwrap().modified().unwrap();
        std::fs::rename(two.join("z"), two.join("y")).unwrap();
        std::fs::remove_file(two.join("b")).unwrap();
        std::fs::copy(two.join("a"), two.join("b")).unwrap();
        let b = File::options().write(true).open(two.join("b")).unwrap();
        b.set_modified(base).unwrap();
        File::open(&two).unwrap().set_modified(root).unwrap();
        let expected = [(Facet::Names, 2, "z"), (Facet::Links, 1, "b")];
        assert_eq!(
            found(&one, &two),
            expected.map(|(f, n, at)| (f, n, at.to_owned()))
        );
    }
}
