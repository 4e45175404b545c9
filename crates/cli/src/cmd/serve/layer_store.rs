//! Directory of complete layers: plain files, bounded in size.
//!
//! A layer has its name only when it is complete and on the disk. A layer that is removed to make room leaves a symbolic link to
//! its file in the FUSE mount, so that its path stays valid for engines that have noted it.

use super::layer::Layer;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_erofs::{Error, Result};
use tuff_fuse::mountpoint;
use tuff_store::{FileStore, Output, Target};

/// Suffix of the files of layers.
const SUFFIX: &str = ".erofs";

/// Length of the parts in which a layer is copied. Unit: bytes.
const PART: usize = 1 << 20;

/// Directory of complete layers.
pub(super) struct LayerStore {
    dir: PathBuf,
    /// Directory of the FUSE mount, which links lead to.
    into: PathBuf,
    /// Largest size of all layers. Unit: bytes.
    max: u64,
}

/// Complete layer, as the search for room sees it.
struct Found {
    diff_id: String,
    /// Time of the last use. Unit: seconds since 1970.
    used: i64,
    /// Space on the disk. Unit: bytes.
    size: u64,
}

/// Path of a layer in both directories.
pub(super) fn path(diff_id: &str) -> String {
    let group = diff_id.get(..2).unwrap_or_default();
    format!("sha256/{group}/{diff_id}{SUFFIX}")
}

/// Path of the description of a layer's hash tree.
pub(super) fn verity_path(path: &str) -> String {
    format!("{path}.dmverity")
}

impl LayerStore {
    /// Opens a directory, and creates it if it does not exist.
    pub(super) fn open(dir: PathBuf, into: PathBuf, max: Option<u64>) -> Result<Self> {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        created.map_err(|e| Error::io(dir.display(), "cannot create", e))?;
        Ok(Self {
            dir,
            into,
            max: max.unwrap_or(u64::MAX),
        })
    }

    fn file(&self, diff_id: &str) -> PathBuf {
        self.dir.join(path(diff_id))
    }

    /// Reads a layer from its file if an earlier run has completed it.
    pub(super) fn adopt(&self, layer: &Layer) -> Result<()> {
        let file = self.file(&layer.diff_id);
        let is_complete =
            fs::symlink_metadata(&file).is_ok_and(|m| m.is_file() && m.len() == layer.size);
        if is_complete {
            let opened = FileStore::open(&file);
            layer.read_from(opened.map_err(|e| Error::io(file.display(), "cannot open", e))?);
        }
        Ok(())
    }

    /// Adds a complete layer, and makes the file its source.
    pub(super) fn add(&self, layer: &Layer, mut content: &File) -> io::Result<()> {
        let file = self.file(&layer.diff_id);
        let parent = file.parent().unwrap_or(&self.dir);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)?;
        let path = path(&layer.diff_id);
        if let Some(verity) = &layer.verity {
            self.write(&verity_path(&path), |output| {
                output.write_at(verity.as_bytes(), 0)?;
                Ok(verity.len() as u64)
            })?;
        }
        self.write(&path, |output| {
            let mut part = vec![0; PART];
            let mut at = 0;
            loop {
                match content.read(&mut part)? {
                    0 if at == layer.size => return Ok(at),
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    n => {
                        output.write_at(&part[..n], at)?;
                        at += n as u64;
                    }
                }
            }
        })?;
        layer.read_from(FileStore::open(&file)?);
        Ok(())
    }

    /// Writes a file and gives it its name when it is on the disk. `fill` returns its length.
    fn write(&self, path: &str, fill: impl FnOnce(&Output) -> io::Result<u64>) -> io::Result<()> {
        // An output would follow the link of a removed layer.
        let temporary = self.dir.join(format!("{path}.new"));
        let output = Output::create(&Target::Path(temporary.clone()))?;
        let len = fill(&output)?;
        output.finish(len, true)?;
        fs::rename(temporary, self.dir.join(path))
    }

    /// Tests whether `room` bytes fit. If `may_remove`, removes layers that are not mounted until they do, those that were
    /// not used for longest first. `layers` are those that are served.
    pub(super) fn make_room(
        &self,
        room: u64,
        may_remove: bool,
        layers: &[Arc<Layer>],
    ) -> io::Result<bool> {
        let mut found = self.found()?;
        let mut total: u64 = found.iter().map(|f| f.size).sum();
        let fits = |total: u64| total.saturating_add(room) <= self.max;
        if fits(total) {
            return Ok(true);
        }
        if room > self.max || !may_remove {
            return Ok(false);
        }
        let mounts = mountpoint::mounts()?;
        found.sort_by_key(|f| f.used);
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
            total -= old.size;
        }
        Ok(fits(total))
    }

    /// Removes a layer. One that is served leaves a link.
    fn remove(&self, diff_id: &str, is_served: bool) -> io::Result<()> {
        let file = self.file(diff_id);
        if is_served {
            let link = self.dir.join(format!("{}.link", path(diff_id)));
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(self.into.join(path(diff_id)), &link)?;
            return fs::rename(link, file);
        }
        fs::remove_file(&file)?;
        let _ = fs::remove_file(self.dir.join(verity_path(&path(diff_id))));
        Ok(())
    }

    /// All complete layers.
    fn found(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        for group in entries(&self.dir.join("sha256"))? {
            for path in entries(&group)? {
                let name = path.file_name().and_then(|name| name.to_str());
                let Some(diff_id) = name.and_then(|name| name.strip_suffix(SUFFIX)) else {
                    continue;
                };
                let meta = fs::symlink_metadata(&path)?;
                if meta.is_file() {
                    found.push(Found {
                        diff_id: diff_id.to_owned(),
                        used: meta.atime().max(meta.mtime()),
                        size: meta.blocks() * 512,
                    });
                }
            }
        }
        Ok(found)
    }
}

/// Paths in a directory. None if there is no such directory.
fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}
