//! Stores in buckets. All that is not clusters has a copy in a directory of this host, which is opened like a store.
//!
//! ```text
//! bucket:     store.json  snapshots/00000001.json  segments/00000001.dir  segments/00000001-1f0c….data  pins/…  marked
//! directory:  the same without data, and packs/0000.pack: what a run is about to upload, and parts of trees that were read
//! ```
//!
//! The clusters of a segment are one object, without the blocks that its directory does not name. Its name has the start of the
//! directory's digest: with another directory there is another object. Names are given with conditions, so that of two runs that
//! write at the same time one fails.

use crate::cluster::BLOCK;
use crate::digest::Digest;
use crate::files::{self, TEXT_MAX};
use crate::pack::Clusters;
use crate::segment::{self, DIRECTORY_MAX, Directory, SegmentHeader};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};
use tuff_mkfs::{Error, Place, Result};
use tuff_store::{ReadAt, retry};

/// Name of the object that makes a place a store.
pub(crate) const STORE: &str = "store.json";
/// List of the copies in the directory of this host.
const COPIES: &str = "copies.json";
/// Time for which data is kept after nothing names it, because runs that have begun before may still count on it.
pub(crate) const GRACE: Duration = Duration::from_secs(7 * 86_400);
/// Longest time of a run, well below [`GRACE`].
pub(crate) const RUN_MAX: Duration = Duration::from_secs(5 * 86_400);

/// Object of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Name below the place of the store, with slashes.
    pub name: String,
    /// Unit: bytes.
    pub len: u64,
    /// It is another one when the object has another content: an ETag.
    pub tag: String,
    /// Time of the bucket at which it was written.
    pub modified: SystemTime,
}

/// Place of a store in a bucket. Errors have the kind `NotFound` for an object that is not there, and `AlreadyExists` for a condition
/// that does not hold.
pub trait Bucket: Send + Sync + fmt::Debug {
    /// URL of the place, for messages.
    fn url(&self) -> String;

    /// All objects, ascending by name.
    ///
    /// # Errors
    /// Those of the requests.
    fn list(&self) -> io::Result<Vec<Object>>;

    /// Reads a range of an object, or what the object has of it.
    ///
    /// # Errors
    /// Those of the request.
    fn read(&self, name: &str, range: Range<u64>) -> io::Result<Vec<u8>>;

    /// Writes a small object that must not exist. Returns its tag.
    ///
    /// # Errors
    /// Those of the request.
    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<String>;

    /// Replaces a small object that must have this tag. Returns the new one.
    ///
    /// # Errors
    /// Those of the request.
    fn replace(&self, name: &str, bytes: &[u8], tag: &str) -> io::Result<String>;

    /// Writes an object of any length. One with the same name has the same content.
    ///
    /// # Errors
    /// Those of the requests and of the content.
    fn upload(&self, name: &str, content: Arc<dyn ReadAt>) -> io::Result<()>;

    /// Removes an object. One that is not there is no error.
    ///
    /// # Errors
    /// Those of the request.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Excludes other runs that write while the file is open, where the bucket can. The error has the kind `WouldBlock` if there is one.
    ///
    /// # Errors
    /// Those of the disk.
    fn exclude(&self) -> io::Result<Option<File>> {
        Ok(None)
    }

    /// Corrects objects that have parity beside them. Returns the number of blocks, and a sentence for each object.
    ///
    /// # Errors
    /// Those of the disk.
    fn repair(&self, _threads: usize) -> io::Result<(u64, Vec<String>)> {
        Ok((0, Vec::new()))
    }

    /// Digest by which the data of a segment is named, in place of that of its directory.
    fn data_name(&self, digest: Digest) -> Digest {
        digest
    }
}

/// Data of a segment.
#[derive(Debug)]
struct Data {
    header: SegmentHeader,
    /// File of its directory.
    directory: PathBuf,
    /// Name of the object, and blocks that it leaves out.
    place: OnceLock<(String, Vec<Range<u32>>)>,
}

/// Objects of a store.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) bucket: Arc<dyn Bucket>,
    store: [u8; 16],
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Objects as they were listed, and as they were changed since.
    objects: BTreeMap<String, Object>,
    /// Segments by pack and first block.
    data: BTreeMap<(u16, u32), Arc<Data>>,
}

/// True for objects of which the directory of this host has copies.
fn is_copied(name: &str) -> bool {
    let dir = name.split_once('/').map_or("", |(dir, _)| dir);
    name == "marked"
        || (dir == "segments" && name.ends_with(".dir"))
        || ["snapshots", "pins"].contains(&dir)
}

/// True for names that a store gives.
fn is_name(name: &str) -> bool {
    let parts = name.split('/');
    parts.clone().count() <= 2
        && parts.into_iter().all(|part| {
            !part.is_empty()
                && !part.starts_with('.')
                && part
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
        })
}

impl Objects {
    pub(crate) fn new(bucket: Arc<dyn Bucket>, store: [u8; 16]) -> Self {
        Self {
            bucket,
            store,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn error(&self, name: &str, what: &str, e: io::Error) -> Error {
        Error::io(
            Place::file(format!("{}/{name}", self.bucket.url())),
            what,
            e,
        )
    }

    /// Lists the bucket, and brings the copies in `path` up to date.
    pub(crate) fn sync(&self, path: &Path) -> Result<()> {
        let listed = self.bucket.list();
        let listed = listed.map_err(|e| self.error("", "cannot list", e))?;
        let objects = listed.into_iter().filter(|object| is_name(&object.name));
        let objects: BTreeMap<_, _> = objects
            .map(|object| (object.name.clone(), object))
            .collect();
        let copies = read_copies(path);
        for dir in ["segments", "snapshots", "pins"] {
            let dir_path = path.join(dir);
            let failed = |e| Error::io(Place::file(dir_path.display()), "cannot list", e);
            for file in files::list(&dir_path).map_err(failed)? {
                let file = file.file_name().unwrap_or_default();
                let name = format!("{dir}/{}", file.display());
                if !objects.contains_key(&name) {
                    files::remove(&path.join(&name))?;
                }
            }
        }
        if !objects.contains_key("marked") {
            files::remove(&path.join("marked"))?;
        }
        for object in objects.values().filter(|object| is_copied(&object.name)) {
            let file = path.join(&object.name);
            let is_known = copies.get(&object.name) == Some(&object.tag);
            let len = files::metadata(&file).map(|metadata| metadata.len());
            if !is_known || len.ok() != Some(object.len) {
                self.copy(object, &file)?;
            }
        }
        self.state().objects = objects;
        self.write_copies(path)
    }

    /// Copies an object into a file, which gets its time.
    fn copy(&self, object: &Object, file: &Path) -> Result<()> {
        let max = match object.name.starts_with("segments/") || object.name == "marked" {
            true => DIRECTORY_MAX,
            false => TEXT_MAX,
        };
        // One that is longer is damaged.
        let bytes = match self.read_whole(&object.name, object.len.min(max + 1)) {
            // It was removed since it was listed.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return files::remove(file),
            // It is damaged, which is told like damage of a file.
            Err(e) if e.kind() == io::ErrorKind::InvalidData => Vec::new(),
            read => read.map_err(|e| self.error(&object.name, "cannot read", e))?,
        };
        files::replace(file, &bytes)?;
        let set = File::options().append(true).open(file);
        let set = set.and_then(|file| file.set_modified(object.modified));
        set.map_err(|e| Error::io(Place::file(file.display()), "cannot set the time", e))
    }

    /// Reads an object in parts.
    fn read_whole(&self, name: &str, len: u64) -> io::Result<Vec<u8>> {
        const PART: u64 = 8 << 20;
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < len {
            let at = bytes.len() as u64;
            let part = self.bucket.read(name, at..len.min(at + PART))?;
            if part.is_empty() {
                break;
            }
            bytes.extend(part);
        }
        Ok(bytes)
    }

    /// Notes which objects the copies are of. Without the list they are read again.
    pub(crate) fn write_copies(&self, path: &Path) -> Result<()> {
        let state = self.state();
        let copied = state
            .objects
            .values()
            .filter(|object| is_copied(&object.name));
        let copies: BTreeMap<&str, &str> =
            copied.map(|object| (&*object.name, &*object.tag)).collect();
        files::replace(&path.join(COPIES), json!(copies).to_string().as_bytes())
    }

    /// Writes an object that must not exist. Returns false if it does.
    pub(crate) fn create(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        match self.bucket.create(name, bytes) {
            Ok(tag) => {
                self.note(name, bytes.len(), tag);
                Ok(true)
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(self.error(name, "cannot create", e)),
        }
    }

    /// Writes an object, which must be as it was listed, or be absent as it was.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let tag = self.object(name).map(|object| object.tag);
        let written = match tag {
            Some(tag) => self.bucket.replace(name, bytes, &tag),
            None => self.bucket.create(name, bytes),
        };
        let tag = written.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => self.changed(),
            _ => self.error(name, "cannot write", e),
        })?;
        self.note(name, bytes.len(), tag);
        Ok(())
    }

    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let removed = self.bucket.remove(name);
        removed.map_err(|e| self.error(name, "cannot remove", e))?;
        self.state().objects.remove(name);
        Ok(())
    }

    /// Error of a condition that does not hold.
    pub(crate) fn changed(&self) -> Error {
        Error::usage(format_args!(
            "{}: another run wrote to this backup store at the same time; run the command again",
            self.bucket.url()
        ))
    }

    fn note(&self, name: &str, len: usize, tag: String) {
        let object = Object {
            name: name.to_owned(),
            len: len as u64,
            tag,
            modified: SystemTime::now(),
        };
        self.state().objects.insert(name.to_owned(), object);
    }

    /// Object as it was listed or written.
    pub(crate) fn object(&self, name: &str) -> Option<Object> {
        self.state().objects.get(name).cloned()
    }

    /// Bytes of all objects. Lengths are claims of the bucket.
    pub(crate) fn bytes(&self) -> u64 {
        let state = self.state();
        let lens = state.objects.values().map(|object| object.len);
        lens.fold(0, u64::saturating_add)
    }

    /// Name of the data of a segment, whose directory has this digest.
    pub(crate) fn data_name(&self, number: u32, directory: Digest) -> String {
        let digest = self.bucket.data_name(directory);
        let (start, _) = digest.0.split_at(8);
        format!("segments/{number:08}-{}.data", hex::encode(start))
    }

    /// Names of all objects with data.
    pub(crate) fn data_names(&self) -> Vec<String> {
        let state = self.state();
        let names = state.objects.keys().filter(|name| name.ends_with(".data"));
        names.cloned().collect()
    }

    /// Adds the data of a segment, in place of that with the same start.
    pub(crate) fn add(&self, header: SegmentHeader, directory: PathBuf) {
        let data = Data {
            header,
            directory,
            place: OnceLock::new(),
        };
        let key = (header.pack, header.start);
        self.state().data.insert(key, Arc::new(data));
    }

    /// Number of the segment that has a block of a pack.
    pub(crate) fn segment_at(&self, pack: u16, block: u32) -> Option<u32> {
        let data = self.data(pack, block)?;
        Some(data.header.number)
    }

    fn data(&self, pack: u16, block: u32) -> Option<Arc<Data>> {
        let state = self.state();
        let before = state.data.range(..=(pack, block)).next_back();
        let (_, data) = before.filter(|(key, _)| key.0 == pack)?;
        (block < data.header.start + data.header.blocks).then(|| Arc::clone(data))
    }

    /// Forgets all segments.
    pub(crate) fn clear(&self) {
        self.state().data.clear();
    }

    /// Uploads the data of a segment, whose directory has this digest.
    pub(crate) fn upload(
        &self,
        number: u32,
        directory: Digest,
        content: Arc<dyn ReadAt>,
    ) -> Result<()> {
        let name = self.data_name(number, directory);
        let len = content.size();
        // A run that ended early has written it: the name stands for the content.
        if self.object(&name).is_some_and(|object| object.len == len) {
            return Ok(());
        }
        let uploaded = self.bucket.upload(&name, content);
        uploaded.map_err(|e| self.error(&name, "cannot upload", e))?;
        // Fits: a segment is in one file.
        self.note(&name, len as usize, String::new());
        Ok(())
    }

    /// Damage of the data of a segment that the list shows: a sentence. `blocks`: its length, if it is known.
    pub(crate) fn damage(
        &self,
        number: u32,
        directory: Digest,
        blocks: Option<u32>,
    ) -> Option<String> {
        let name = self.data_name(number, directory);
        let len = blocks.map(|blocks| u64::from(blocks) * BLOCK as u64);
        let place = format!("{}/{name}", self.bucket.url());
        match (self.object(&name), len) {
            (None, _) => Some(format!("{place}: is missing")),
            (Some(object), Some(len)) if object.len != len => {
                let found = object.len;
                Some(format!("{place}: has {found} bytes in place of {len}"))
            }
            _ => None,
        }
    }

    fn read_data(&self, data: &Data, start: u64, len: u64) -> io::Result<Vec<u8>> {
        let (name, gaps) = self.place(data)?;
        let first = u64::from(data.header.start) * BLOCK as u64;
        // Gaps are before or behind the clusters of a range.
        let before = gaps
            .iter()
            .map(|gap| u64::from(gap.start) * BLOCK as u64..u64::from(gap.end) * BLOCK as u64)
            .filter(|gap| gap.end <= start)
            .map(|gap| gap.end - gap.start);
        // Another process may have replaced the copy of the directory.
        let at = start.checked_sub(first + before.sum::<u64>());
        let at = at.ok_or(io::ErrorKind::InvalidData)?;
        let bytes = self.bucket.read(name, at..at + len)?;
        match bytes.len() as u64 == len {
            true => Ok(bytes),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn place<'a>(&self, data: &'a Data) -> io::Result<&'a (String, Vec<Range<u32>>)> {
        if let Some(place) = data.place.get() {
            return Ok(place);
        }
        let bytes = files::read(&data.directory, DIRECTORY_MAX + 1)?;
        let directory = Directory::decode(&bytes, &self.store);
        let directory = directory.ok_or(io::ErrorKind::InvalidData)?;
        let name = self.data_name(directory.number, segment::digest(&bytes));
        let place = (name, directory.gaps());
        Ok(data.place.get_or_init(|| place))
    }
}

impl Clusters for Objects {
    fn read(&self, pack: u16, start: u64, len: u64) -> Option<io::Result<Vec<u8>>> {
        let data = self.data(pack, u32::try_from(start / BLOCK as u64).ok()?)?;
        let header = &data.header;
        let end = u64::from(header.start + header.blocks) * BLOCK as u64;
        Some(self.read_data(&data, start, len.min(end - start)))
    }
}

/// Copies that a directory has: names and tags.
fn read_copies(path: &Path) -> BTreeMap<String, String> {
    let text = files::read(&path.join(COPIES), DIRECTORY_MAX).unwrap_or_default();
    let value: Value = serde_json::from_slice(&text).unwrap_or_default();
    let entries = value.as_object().into_iter().flatten();
    entries
        .filter_map(|(name, tag)| Some((name.clone(), tag.as_str()?.to_owned())))
        .collect()
}

/// Blocks of a file that are uploaded, without gaps.
pub(crate) struct Blocks {
    pub(crate) file: File,
    /// Places in the file, ascending. Unit: bytes.
    pub(crate) parts: Vec<Range<u64>>,
}

impl Blocks {
    /// Blocks of a segment in the file of its pack.
    pub(crate) fn new(directory: &Directory, file: File) -> Self {
        let byte = |block: u32| u64::from(block) * BLOCK as u64;
        let mut parts = Vec::new();
        let mut start = directory.start;
        for gap in directory.gaps() {
            parts.push(byte(start)..byte(gap.start));
            start = gap.end;
        }
        parts.push(byte(start)..byte(directory.start + directory.blocks));
        parts.retain(|part| !part.is_empty());
        Self { file, parts }
    }
}

impl ReadAt for Blocks {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut before = 0;
        for part in &self.parts {
            let len = part.end - part.start;
            if offset < before + len {
                let n = (before + len - offset).min(buf.len() as u64) as usize;
                let at = part.start + offset - before;
                return retry(|| self.file.read_at(&mut buf[..n], at));
            }
            before += len;
        }
        Ok(0)
    }

    fn size(&self) -> u64 {
        self.parts.iter().map(|part| part.end - part.start).sum()
    }
}
