//! Folder of a disk in place of a bucket, for encrypted stores. Segments have parity, since a disk keeps no copies of its own.

use crate::bucket::{Bucket, Object};
use crate::files::{self, NEW};
use crate::object_parity;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tuff_store::{ReadAt, retry};

/// Bytes that are copied at once. Unit: bytes.
const PART: usize = 1 << 20;
/// File that is locked while an object is replaced.
const LOCK: &str = "lock";
/// File that is locked by the run that writes.
const WRITER: &str = "writer";
/// Folder of the parity of segments.
const PARITY: &str = "parity";

/// Folder whose files are the objects.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Folder at a path. It is made with the first object.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// Path of an object. Names come from Tuff or from a list, which leaves other ones out.
    fn path_of(&self, name: &str) -> io::Result<PathBuf> {
        let is_sound = name.split('/').all(|part| !part.is_empty() && part != "..");
        match is_sound {
            true => Ok(self.path.join(name)),
            false => Err(ErrorKind::InvalidInput.into()),
        }
    }

    /// Makes the directory of an object.
    fn make_parent(path: &Path) -> io::Result<()> {
        match path.parent() {
            Some(parent) if !parent.exists() => {
                DirBuilder::new()
                    .recursive(true)
                    .mode(0o700)
                    .create(parent)?;
                files::sync_parent(parent)
            }
            _ => Ok(()),
        }
    }

    /// File of the parity of an object. `None` for one that has none.
    fn parity_of(&self, name: &str) -> Option<PathBuf> {
        let file = name.strip_prefix("segments/")?;
        Some(self.path.join(PARITY).join(file))
    }

    fn write_parity(&self, name: &str, path: &Path) -> io::Result<()> {
        let Some(parity) = self.parity_of(name) else {
            return Ok(());
        };
        Self::make_parent(&parity)?;
        object_parity::write(path, &parity, 1)
    }

    fn remove_parity(&self, name: &str) -> io::Result<()> {
        self.parity_of(name)
            .map_or(Ok(()), |parity| files::remove_file(&parity))
    }

    fn add(&self, dir: &str, objects: &mut Vec<Object>) -> io::Result<()> {
        let paths = match files::list(&self.path.join(dir)) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            paths => paths?,
        };
        for path in paths {
            let file = path.file_name().and_then(|name| name.to_str());
            let Some(file) = file.filter(|name| !name.ends_with(NEW)) else {
                continue;
            };
            let metadata = match retry(|| fs::symlink_metadata(&path)) {
                // It was removed since it was listed.
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            let name = match dir {
                "" => file.to_owned(),
                dir => format!("{dir}/{file}"),
            };
            let is_other = ["lost+found", PARITY].contains(&file);
            if metadata.is_dir() && dir.is_empty() && !is_other {
                self.add(file, objects)?;
            } else if metadata.is_file() && ![LOCK, WRITER].contains(&&*name) {
                objects.push(Object {
                    name,
                    len: metadata.len(),
                    tag: tag(&metadata),
                    modified: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                });
            }
        }
        Ok(())
    }
}

/// Tag of a file: another one has another.
fn tag(metadata: &fs::Metadata) -> String {
    format!(
        "{}-{}-{}-{}",
        metadata.ino(),
        metadata.ctime(),
        metadata.ctime_nsec(),
        metadata.len()
    )
}

impl Bucket for Folder {
    fn url(&self) -> String {
        self.path.display().to_string()
    }

    fn list(&self) -> io::Result<Vec<Object>> {
        let mut objects = Vec::new();
        self.add("", &mut objects)?;
        objects.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(objects)
    }

    fn read(&self, name: &str, range: Range<u64>) -> io::Result<Vec<u8>> {
        let file = files::open(&self.path_of(name)?)?;
        let end = range.end.min(retry(|| file.metadata())?.len());
        // Fits: readers bound what they ask for.
        let mut bytes = vec![0; end.saturating_sub(range.start) as usize];
        let mut at = 0;
        while at < bytes.len() {
            match retry(|| file.read_at(&mut bytes[at..], range.start + at as u64))? {
                0 => break,
                n => at += n,
            }
        }
        bytes.truncate(at);
        Ok(bytes)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<String> {
        let path = self.path_of(name)?;
        Self::make_parent(&path)?;
        files::create_file(&path, bytes)?;
        self.write_parity(name, &path)?;
        Ok(tag(&files::metadata(&path)?))
    }

    fn replace(&self, name: &str, bytes: &[u8], found: &str) -> io::Result<String> {
        let path = self.path_of(name)?;
        let lock = File::options()
            .create(true)
            .append(true)
            .open(self.path.join(LOCK))?;
        retry(|| lock.lock())?;
        if tag(&files::metadata(&path)?) != found {
            return Err(ErrorKind::AlreadyExists.into());
        }
        // That of the old content would bring it back.
        self.remove_parity(name)?;
        files::replace_file(&path, bytes)?;
        self.write_parity(name, &path)?;
        Ok(tag(&files::metadata(&path)?))
    }

    fn upload(&self, name: &str, content: Arc<dyn ReadAt>) -> io::Result<()> {
        let path = self.path_of(name)?;
        Self::make_parent(&path)?;
        let mut new = files::NewFile::create(files::temporary(&path))?;
        let mut buffer = vec![0; PART];
        let mut at = 0;
        while at < content.size() {
            // Fits: it is at most a part.
            let len = (content.size() - at).min(PART as u64) as usize;
            content.read_exact_at(&mut buffer[..len], at)?;
            io::Write::write_all(&mut new, &buffer[..len])?;
            at += len as u64;
        }
        self.remove_parity(name)?;
        new.finish(&path)?;
        self.write_parity(name, &path)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        files::remove_file(&self.path_of(name)?)?;
        self.remove_parity(name)
    }

    fn exclude(&self) -> io::Result<Option<File>> {
        let path = self.path.join(WRITER);
        let lock = File::options().create(true).append(true).open(path)?;
        match files::try_lock(&lock) {
            Ok(true) => Ok(Some(lock)),
            Ok(false) => Err(ErrorKind::WouldBlock.into()),
            Err(e) if e.kind() == ErrorKind::Unsupported => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn repair(&self, threads: usize) -> io::Result<(u64, Vec<String>)> {
        let (mut blocks, mut findings) = (0, Vec::new());
        for object in self.list()? {
            let Some(parity) = self.parity_of(&object.name) else {
                continue;
            };
            Self::make_parent(&parity)?;
            let path = self.path_of(&object.name)?;
            let done = object_parity::repair(&path, &parity, threads)?;
            blocks += done.blocks;
            let path = path.display();
            if done.blocks > 0 {
                findings.push(format!("{path}: corrected blocks: {}", done.blocks));
            }
            if done.lost > 0 {
                findings.push(format!("{path}: blocks that are lost: {}", done.lost));
            }
            if done.is_renewed {
                findings.push(format!("{}: was written anew", parity.display()));
            }
        }
        Ok((blocks, findings))
    }
}
