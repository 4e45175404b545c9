//! Directory of complete layers: plain files, bounded in size.
//!
//! ```text
//! STORE/sha256/ab/abcd….erofs            layer, whose SHA-256 is its name
//! STORE/sha256/ab/abcd….erofs.dmverity   root hash of its hash tree, which was compared with the tree
//! STORE/verified                         files that were compared with their names, by inode and time of change
//! ```
//!
//! A layer has its name only when it is complete, on the disk, and compared with its name: engines take it for every image
//! with this layer. A layer that is removed to make room leaves a symbolic link to its file in the FUSE mount, so that its
//! path stays valid for engines that have noted it.

use super::digest::{WRONG_DIGEST, copy_digest, digest, states_tree_of};
use super::layer::Layer;
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tuff_erofs::{Error, Result};
use tuff_fuse::mountpoint;
use tuff_store::{FileStore, PrivateDir};

/// Suffix of the files of layers.
const SUFFIX: &str = ".erofs";

/// Suffix of the descriptions of hash trees.
const VERITY_SUFFIX: &str = ".dmverity";

/// Suffix of files that are not complete.
const TEMPORARY_SUFFIX: &str = ".new";

/// Longest description of a hash tree. Unit: bytes.
const VERITY_MAX: u64 = 4096;

/// File with the files that were compared with their names. The directory is private, and no process but root's can set the
/// time of the last change of a file.
const VERIFIED: &str = "verified";

/// Longest list of these files: about 100 bytes for each. Unit: bytes.
const VERIFIED_MAX: u64 = 64 << 20;

/// Directory of complete layers.
pub struct LayerStore {
    dir: PrivateDir,
    /// Directory of the FUSE mount, which links lead to.
    into: PathBuf,
    /// Largest size of all layers. Unit: bytes.
    max: u64,
}

/// Complete layer, as a scan of the directory sees it.
struct Found {
    diff_id: String,
    meta: Metadata,
}

/// Path of a layer in both directories.
pub(crate) fn path(diff_id: &str) -> String {
    format!("sha256/{}/{diff_id}{SUFFIX}", group(diff_id))
}

/// Path of the description of a layer's hash tree.
pub(crate) fn verity_path(path: &str) -> String {
    format!("{path}{VERITY_SUFFIX}")
}

fn group(diff_id: &str) -> &str {
    diff_id.get(..2).unwrap_or_default()
}

/// True for the 64 digits of a SHA-256 in lower case.
pub(crate) fn is_digest(name: &str) -> bool {
    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    name.len() == 64 && name.bytes().all(is_hex)
}

/// State of a file that changes whenever its content does.
fn fingerprint(diff_id: &str, meta: &Metadata) -> String {
    let (device, inode, size) = (meta.dev(), meta.ino(), meta.len());
    let (modified, changed) = (meta.mtime(), meta.ctime());
    let (modified_ns, changed_ns) = (meta.mtime_nsec(), meta.ctime_nsec());
    format!(
        "{diff_id} {device} {inode} {size} {modified}.{modified_ns:09} {changed}.{changed_ns:09}"
    )
}

impl LayerStore {
    /// Opens a directory, and creates it for this user alone if it does not exist.
    ///
    /// # Errors
    /// `Io` if others can change the directory, or it cannot be created.
    pub fn open(dir: PathBuf, into: PathBuf, max: Option<u64>) -> Result<Self> {
        let opened = PrivateDir::open(&dir);
        Ok(Self {
            dir: opened.map_err(|e| Error::io(dir.display(), "cannot keep layers there", e))?,
            into,
            max: max.unwrap_or(u64::MAX),
        })
    }

    /// Directory with the layers whose names begin like this one.
    fn group_of(&self, diff_id: &str) -> io::Result<PrivateDir> {
        self.dir.subdir("sha256")?.subdir(group(diff_id))
    }

    /// Absolute path of a layer.
    fn file(&self, diff_id: &str) -> PathBuf {
        self.dir.path().join(path(diff_id))
    }

    /// Compares every file with its name, unless an earlier run has done so, and removes the files that do not match. Calls
    /// `report` with one sentence about each of these, and `progress` with the number of bytes compared and of all.
    ///
    /// `layers` are those that are served: a link takes the place of a file of theirs.
    ///
    /// # Errors
    /// `Io` if a file cannot be read or removed, or others can change a directory.
    pub fn verify(
        &self,
        layers: &[Layer],
        report: &dyn Fn(&str),
        progress: &dyn Fn(u64, u64),
    ) -> Result<()> {
        let failed = |e| Error::io(self.dir.path().display(), "cannot compare the layers", e);
        let known = self.known().map_err(failed)?;
        let all = self.found().map_err(failed)?;
        let (mut right, new): (Vec<Found>, Vec<Found>) = all.into_iter().partition(|found| {
            let line = fingerprint(&found.diff_id, &found.meta);
            known.get(&found.diff_id) == Some(&line)
        });
        let total: u64 = new.iter().map(|found| found.meta.len()).sum();
        let mut done = 0;
        for found in new {
            let is_right = self.compare(&found, &|bytes| progress(done + bytes, total));
            let is_right = is_right.map_err(failed)?;
            done += found.meta.len();
            if is_right {
                right.push(found);
                continue;
            }
            let served = layers.iter().any(|layer| layer.diff_id == found.diff_id);
            self.remove(&found.diff_id, served).map_err(failed)?;
            let group = self.group_of(&found.diff_id).map_err(failed)?;
            let verity = format!("{}{SUFFIX}{VERITY_SUFFIX}", found.diff_id);
            group.remove(&verity).map_err(failed)?;
            report(&format!(
                "{}: removed, because its content does not have the digest that is its name",
                self.file(&found.diff_id).display()
            ));
        }
        self.note(&right).map_err(failed)
    }

    /// Compares a file with its name. A description of another hash tree is removed.
    fn compare(&self, found: &Found, progress: &dyn Fn(u64)) -> io::Result<bool> {
        let group = self.group_of(&found.diff_id)?;
        let name = format!("{}{SUFFIX}", found.diff_id);
        let file = match group.read(&name) {
            Ok(file) => file,
            // Not a file of this user alone.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(false),
            Err(e) => return Err(e),
        };
        if digest(&file, progress)? != found.diff_id {
            return Ok(false);
        }
        let verity = format!("{name}{VERITY_SUFFIX}");
        if let Ok(description) = group.read(&verity) {
            let mut text = String::new();
            let read = description.take(VERITY_MAX).read_to_string(&mut text);
            if read.is_err() || !states_tree_of(file, &text) {
                group.remove(&verity)?;
            }
        }
        Ok(true)
    }

    /// Files that earlier runs have compared with their names, by diffID.
    fn known(&self) -> io::Result<HashMap<String, String>> {
        let mut text = String::new();
        let file = self.dir.file(VERIFIED)?;
        // A list that is damaged costs another comparison.
        let _ = file.take(VERIFIED_MAX).read_to_string(&mut text);
        let known = text.lines().filter_map(|line| {
            let (diff_id, _) = line.split_once(' ')?;
            Some((diff_id.to_owned(), line.to_owned()))
        });
        Ok(known.collect())
    }

    /// Replaces the list of files that were compared with their names.
    fn note(&self, right: &[Found]) -> io::Result<()> {
        let lines = right.iter().map(|f| fingerprint(&f.diff_id, &f.meta));
        let text: String = lines.map(|line| line + "\n").collect();
        let (file, temporary) = temporary(&self.dir, VERIFIED)?;
        (&file).write_all(text.as_bytes())?;
        self.dir.rename(&temporary, VERIFIED)
    }

    /// Adds a file to that list.
    fn note_also(&self, diff_id: &str, meta: &Metadata) -> io::Result<()> {
        let mut file = self.dir.file(VERIFIED)?;
        file.seek(SeekFrom::End(0))?;
        writeln!(file, "{}", fingerprint(diff_id, meta))
    }

    /// Reads a layer from its file if an earlier run has completed it. [`verify`](Self::verify) has compared the file.
    ///
    /// # Errors
    /// `Io` if a file cannot be opened.
    pub fn adopt(&self, layer: &Layer) -> Result<()> {
        let failed = |e| Error::io(self.file(&layer.diff_id).display(), "cannot open", e);
        let group = self.group_of(&layer.diff_id).map_err(failed)?;
        let name = format!("{}{SUFFIX}", layer.diff_id);
        let found = group.metadata(&name).map_err(failed)?;
        if found.is_some_and(|meta| meta.is_file() && meta.len() == layer.size) {
            let opened = group.read(&name).and_then(FileStore::new);
            layer.read_from(opened.map_err(failed)?);
        }
        Ok(())
    }

    /// Adds a complete layer, and makes the file its source.
    ///
    /// # Errors
    /// `InvalidData` if the content does not have the digest that is its name, or the hash tree that the manifest states;
    /// errors of the host.
    pub(crate) fn add(&self, layer: &Layer, content: &File) -> io::Result<()> {
        let group = self.group_of(&layer.diff_id)?;
        let name = format!("{}{SUFFIX}", layer.diff_id);
        let (file, new) = temporary(&group, &name)?;
        let added = self.fill(layer, content, &file).and_then(|()| {
            if let Some(text) = &layer.verity {
                let verity = format!("{name}{VERITY_SUFFIX}");
                let (file, temporary) = temporary(&group, &verity)?;
                (&file).write_all(text.as_bytes())?;
                file.sync_all()?;
                group.rename(&temporary, &verity)?;
            }
            group.rename(&new, &name)
        });
        if let Err(e) = added {
            let _ = group.remove(&new);
            return Err(e);
        }
        let file = group.read(&name)?;
        // Without the note, the next run compares the file again.
        let _ = file
            .metadata()
            .and_then(|meta| self.note_also(&layer.diff_id, &meta));
        layer.read_from(FileStore::new(file)?);
        Ok(())
    }

    /// Copies a layer and compares it with its name and its description.
    fn fill(&self, layer: &Layer, content: &File, file: &File) -> io::Result<()> {
        let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        if copy_digest(content, layer.size, file)? != layer.diff_id {
            return wrong(WRONG_DIGEST);
        }
        match &layer.verity {
            Some(text) if !states_tree_of(file.try_clone()?, text) => {
                wrong("it has another hash tree than the manifest states")
            }
            _ => file.sync_all(),
        }
    }

    /// Tests whether `room` bytes fit. If `may_remove`, removes layers that are not mounted until they do, those that were
    /// not used for longest first. `layers` are those that are served.
    pub(crate) fn make_room(
        &self,
        room: u64,
        may_remove: bool,
        layers: &[Arc<Layer>],
    ) -> io::Result<bool> {
        let mut found = self.found()?;
        let size = |found: &Found| found.meta.blocks() * 512;
        let mut total: u64 = found.iter().map(size).sum();
        let fits = |total: u64| total.saturating_add(room) <= self.max;
        if fits(total) {
            return Ok(true);
        }
        if room > self.max || !may_remove {
            return Ok(false);
        }
        let mounts = mountpoint::mounts()?;
        found.sort_by_key(|f| f.meta.atime().max(f.meta.mtime()));
        for old in found {
            if fits(total) {
                break;
            }
            let file = self.file(&old.diff_id);
            if mounts.iter().any(|m| m.source == file) {
                continue;
            }
            let served = layers.iter().find(|layer| layer.diff_id == old.diff_id);
            self.remove(&old.diff_id, served.is_some())?;
            if let Some(layer) = served {
                layer.forget_file();
            }
            total -= size(&old);
        }
        Ok(fits(total))
    }

    /// Removes a layer. One that is served leaves a link.
    fn remove(&self, diff_id: &str, is_served: bool) -> io::Result<()> {
        let group = self.group_of(diff_id)?;
        let name = format!("{diff_id}{SUFFIX}");
        if is_served {
            let link = format!("{name}.link");
            group.remove(&link)?;
            group.symlink(&self.into.join(path(diff_id)), &link)?;
            return group.rename(&link, &name);
        }
        group.remove(&name)?;
        group.remove(&format!("{name}{VERITY_SUFFIX}"))
    }

    /// All files with the name of a layer. Files that a killed process has left are removed.
    fn found(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        let groups = self.dir.subdir("sha256")?;
        for name in groups.names()? {
            let is_group = groups.metadata(&name)?.is_some_and(|meta| meta.is_dir());
            let Some(name) = name.to_str().filter(|_| is_group) else {
                continue;
            };
            let group = groups.subdir(name)?;
            for file in group.names()? {
                let Some(file) = file.to_str() else { continue };
                if file.ends_with(TEMPORARY_SUFFIX) {
                    remove_stale(&group, file)?;
                }
                // Engines look for nothing else.
                let diff_id = file.strip_suffix(SUFFIX).filter(|id| is_digest(id));
                let Some(diff_id) = diff_id.filter(|id| id.starts_with(name)) else {
                    continue;
                };
                let meta = group.metadata(file)?;
                if let Some(meta) = meta.filter(|meta| !meta.is_symlink()) {
                    found.push(Found {
                        diff_id: diff_id.to_owned(),
                        meta,
                    });
                }
            }
        }
        Ok(found)
    }
}

/// Creates a file that gets the name `name` later, and returns its temporary name. It is locked, so that other processes
/// know that it is in use.
fn temporary(dir: &PrivateDir, name: &str) -> io::Result<(File, String)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let temporary = format!("{name}.{}-{number}{TEMPORARY_SUFFIX}", std::process::id());
    dir.remove(&temporary)?;
    let file = dir.file(&temporary)?;
    file.lock()?;
    Ok((file, temporary))
}

/// Removes a temporary file unless a process writes it.
fn remove_stale(dir: &PrivateDir, name: &str) -> io::Result<()> {
    match dir.read(name).map(|file| file.try_lock().is_ok()) {
        Ok(false) => Ok(()),
        _ => dir.remove(name),
    }
}
