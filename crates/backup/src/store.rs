//! A backup store in a directory, or in a [`bucket`](crate::bucket), which may be [encrypted](crate::sealed).
//!
//! ```text
//! store.json             identity and compression, written once
//! lock                   locked by the one run that writes
//! packs/0000.pack        clusters of all snapshots, a row of segments
//! segments/00000001.dir  where each range of a segment is
//! segments/00000001.tree its hash tree and parity
//! snapshots/00000001.json
//! index                  where each range is, made from the directories
//! seen/00000001          what the files of a snapshot were like on the host, for the next run
//! pins/                  snapshots in use, which `prune` keeps
//! ```

use crate::bucket::{Blocks, Bucket, Objects, STORE};
use crate::cluster::BLOCK;
use crate::cut::Cuts;
use crate::digest::Digest;
use crate::directories::{Directories, Found, Segment};
use crate::files::{self, TEXT_MAX};
use crate::index::{Index, Slot};
use crate::keys::{self, is_key};
use crate::marked::Marked;
use crate::pack::{HEADER_LEN, PACK_MAX, PACKS_MAX, Pack};
use crate::parity::{self, SegmentTree};
use crate::seal;
use crate::seen;
use crate::segment::{self, DIRECTORY_MAX, Directory, SegmentHeader};
use crate::snapshot::Snapshot;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tuff_codec::{Algorithm, EncoderSpec, Method};
use tuff_format::features::incompat;
use tuff_format::superblock::{self, Superblock};
use tuff_mkfs::{
    Error, KernelVersion, MemoryTree, Options, Place, Progress, Result, Source, build_to,
};
use tuff_store::ReadAt;

const FORMAT: u64 = 1;
/// Most snapshots of a store.
const SNAPSHOTS_MAX: usize = 10_000;

/// Inode and time of a file: seconds and nanoseconds since 1970.
type FileIdentity = (u64, i64, i64);

/// Compression of a store's ranges, which stays the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreCompression {
    /// Compression method of all ranges.
    pub method: Method,
    /// Compression level of the method.
    pub level: i32,
    /// Largest cluster, a multiple of 4 KiB. Groups of small files have clusters of a quarter. Unit: bytes.
    pub cluster: usize,
}

impl Default for StoreCompression {
    fn default() -> Self {
        Self {
            method: Method::Zstd,
            level: 3,
            cluster: 128 << 10,
        }
    }
}

impl StoreCompression {
    pub(crate) fn spec(self) -> EncoderSpec {
        EncoderSpec::new(self.method, self.cluster).with_level(self.level)
    }

    /// Settings of groups of small files.
    pub(crate) fn group_spec(self) -> EncoderSpec {
        let cluster = (self.cluster / 4).next_multiple_of(BLOCK).max(2 * BLOCK);
        EncoderSpec::new(self.method, cluster).with_level(self.level)
    }

    pub(crate) fn algorithm(self) -> Algorithm {
        self.method.algorithm()
    }
}

/// Backup store that is open for reading, or for one run that writes.
#[derive(Debug)]
pub struct Store {
    pub(crate) path: PathBuf,
    pub(crate) id: [u8; 16],
    pub(crate) compression: StoreCompression,
    pub(crate) cuts: Cuts,
    pub(crate) packs: Vec<Pack>,
    /// Segments whose directories can be read, by number.
    pub(crate) segments: BTreeMap<u32, Segment>,
    directories: Directories,
    pub(crate) index: Index,
    /// States of the files of directories when they were listed.
    states: BTreeMap<u32, FileIdentity>,
    /// Highest number that a segment or a rest of one has.
    last_segment: u32,
    /// Damage that was found when the store was opened, a sentence for each.
    pub(crate) damage: Vec<String>,
    /// Held while the store is written.
    lock: Option<File>,
    /// Objects of a store in a bucket, of which `path` has copies.
    pub(crate) objects: Option<Arc<Objects>>,
    /// Ranges that a run must store anew, because they will be removed.
    pub(crate) marked: Option<Marked>,
    /// Lock that excludes all other runs that write, where a bucket is a directory.
    pub(crate) excluded: Option<File>,
    /// This host notes the newest snapshot, so that it knows a store that was put back to an earlier state.
    pub(crate) remembers: bool,
    /// Time at which the store was opened.
    pub(crate) opened: SystemTime,
}

impl Drop for Store {
    /// Gives the locks back, which processes that are being started may have inherited.
    fn drop(&mut self) {
        for lock in [&self.lock, &self.excluded].into_iter().flatten() {
            let _ = lock.unlock();
        }
    }
}

impl Store {
    /// True if the directory holds a store.
    ///
    /// # Errors
    /// `Io` if that cannot be found out.
    pub fn is_at(path: &Path) -> Result<bool> {
        let name = path.join(STORE);
        let found = match files::metadata(&name) {
            Err(e) if is_absent(&e) => Ok(false),
            found => found.map(|_| true),
        };
        found.map_err(|e| Error::io(Place::file(name.display()), "cannot find", e))
    }

    /// Makes a store in a directory that is absent or empty.
    ///
    /// # Errors
    /// `Usage` for a directory with something in it; `Io` of the host.
    pub fn create(path: &Path, compression: StoreCompression) -> Result<()> {
        let place = || Place::file(path.display());
        let failed = |e| Error::io(place(), "cannot create a backup store", e);
        private(path, true).map_err(failed)?;
        if !files::list(path).map_err(failed)?.is_empty() {
            return Err(Error::usage(format_args!(
                "{}: not empty, and no backup store",
                path.display()
            )));
        }
        let header = header(compression)?;
        create_directories(path)?;
        // Last: the directory is a store from here on.
        files::create(&path.join(STORE), header.as_bytes())
    }

    /// Makes a store in a place of a bucket that has no object.
    ///
    /// # Errors
    /// `Usage` for a place with something in it, or if the bucket does not keep conditions; `Io` of the bucket.
    pub fn create_in_bucket(bucket: &dyn Bucket, compression: StoreCompression) -> Result<()> {
        let header = header(compression)?;
        Self::is_free(bucket)?;
        Self::create_header(bucket, header.as_bytes())
    }

    /// Refuses a place that has an object. Keys are left by a run that ended before it made its store.
    pub(crate) fn is_free(bucket: &dyn Bucket) -> Result<()> {
        let url = bucket.url();
        let listed = bucket.list();
        let listed = listed.map_err(|e| Error::io(Place::file(&url), "cannot list", e))?;
        match listed.iter().all(|object| is_key(&object.name)) {
            true => Ok(()),
            false => Err(Error::usage(format_args!(
                "{url}: not empty, and no backup store"
            ))),
        }
    }

    /// Makes the object that makes a place a store.
    pub(crate) fn create_header(bucket: &dyn Bucket, header: &[u8]) -> Result<()> {
        let url = bucket.url();
        let failed = |e| Error::io(Place::file(&url), "cannot create a backup store", e);
        bucket.create(STORE, header).map_err(failed)?;
        // Other bytes: a client may take the same ones for a request that it has repeated.
        match bucket.create(STORE, b"another store") {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            Err(e) => Err(failed(e)),
            Ok(_) => {
                let _ = bucket.remove(STORE);
                Err(Error::usage(format_args!(
                    "{url}: the bucket ignores `If-None-Match`, without which two runs could overwrite each other's data; use another one"
                )))
            }
        }
    }

    /// True if a place of a bucket has a store.
    ///
    /// # Errors
    /// `Io` of the bucket.
    pub fn is_in_bucket(bucket: &dyn Bucket) -> Result<bool> {
        match bucket.read(STORE, 0..1) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::io(Place::file(bucket.url()), "cannot read", e)),
        }
    }

    /// Opens a store in a bucket. `copies`: directory of this host for what is not content, made if needed. Nothing in it is needed
    /// again, but without it more is read. `writes`: for a run that writes.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`open_to_write`](Self::open_to_write), and those of requests.
    pub fn open_bucket(bucket: Arc<dyn Bucket>, copies: &Path, writes: bool) -> Result<Self> {
        let url = bucket.url();
        let broken = || Error::corrupt(Place::file(&url), "not the header of a backup store");
        let text = match bucket.read(STORE, 0..TEXT_MAX) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::usage(format_args!("{url}: no backup store")));
            }
            read => read.map_err(|e| Error::io(Place::file(&url), "cannot read", e))?,
        };
        let header: Value = serde_json::from_slice(&text).map_err(|_| broken())?;
        let mut id = [0; 16];
        hex::decode_to_slice(header["id"].as_str().ok_or_else(broken)?, &mut id)
            .map_err(|_| broken())?;
        let failed = |e| Error::io(Place::file(copies.display()), "cannot create", e);
        let name = copies.join(STORE);
        if files::read(&name, TEXT_MAX).ok().as_ref() != Some(&text) {
            match fs::remove_dir_all(copies) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
                _ => {}
            }
            private(copies, true).map_err(failed)?;
            create_directories(copies)?;
            files::create(&name, &text)?;
        }
        let lock = if writes { Some(lock(copies)?) } else { None };
        let excluded = match writes {
            true => bucket.exclude().map_err(|e| match e.kind() {
                std::io::ErrorKind::WouldBlock => busy(Path::new(&url)),
                _ => Error::io(Place::file(&url), "cannot lock", e),
            })?,
            false => None,
        };
        let objects = Arc::new(Objects::new(bucket, id));
        let listing = File::create(copies.join("listing")).map_err(failed)?;
        listing.lock().map_err(failed)?;
        objects.sync(copies)?;
        drop(listing);
        let mut store = Self::open_with(copies, lock, Some(objects))?;
        store.excluded = excluded;
        if writes {
            store.marked = store.read_marked()?;
            store.packs.iter().try_for_each(Pack::cut)?;
        }
        Ok(store)
    }

    /// Opens a store for reading.
    ///
    /// # Errors
    /// `Usage` for a directory that is no store; `Io` and `Corrupt` of its files.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, None, None)
    }

    /// Opens a store for writing, which one run does at a time.
    ///
    /// # Errors
    /// As [`open`](Self::open), and `Usage` if another run writes.
    pub fn open_to_write(path: &Path) -> Result<Self> {
        if !Self::is_at(path)? {
            return Err(no_store(path));
        }
        let mut store = Self::open_with(path, Some(lock(path)?), None)?;
        // A damaged file may be the one that tells where the last segment ends.
        if store.damage.is_empty() {
            let trees = store.numbers("segments", ".tree")?;
            let last = store.segments.last_key_value().map(|(number, _)| *number);
            if let Some(rest) = trees.last().filter(|tree| last < Some(**tree)) {
                files::remove(&store.tree_path(*rest))?;
                store.load()?;
            }
            store.packs.iter().try_for_each(Pack::cut)?;
            // A run that ended early has not written the directory of its last segment.
            let last = store.segments.last_key_value();
            let last = last.filter(|(_, segment)| segment.corrected.is_some());
            if let Some((number, segment)) = last {
                let (number, directory) = (*number, store.directory(segment)?);
                store.replace_directory(&directory)?;
                store
                    .segments
                    .entry(number)
                    .and_modify(|segment| segment.corrected = None);
            }
        }
        Ok(store)
    }

    fn open_with(path: &Path, lock: Option<File>, objects: Option<Arc<Objects>>) -> Result<Self> {
        if !Self::is_at(path)? {
            return Err(no_store(path));
        }
        let name = path.join(STORE);
        let broken = || {
            Error::corrupt(
                Place::file(name.display()),
                "not the header of a backup store",
            )
        };
        let text = files::read(&name, TEXT_MAX)
            .map_err(|e| Error::io(Place::file(name.display()), "cannot read", e))?;
        let header: Value = serde_json::from_slice(&text).map_err(|_| broken())?;
        match header["tuff-backup-store"].as_u64() {
            Some(FORMAT) => {}
            Some(keys::FORMAT) => {
                return Err(Error::usage(format_args!(
                    "{}: an encrypted backup store, which needs its key",
                    path.display()
                )));
            }
            Some(newer) => {
                return Err(Error::usage(format_args!(
                    "{}: a backup store of format {newer}; this version of Tuff knows format {FORMAT}",
                    path.display()
                )));
            }
            None => return Err(broken()),
        }
        let mut id = [0; 16];
        hex::decode_to_slice(header["id"].as_str().ok_or_else(broken)?, &mut id)
            .map_err(|_| broken())?;
        let mut cuts = [0; 32];
        let secret = header["cuts"].as_str();
        if let Some(digits) = secret {
            hex::decode_to_slice(digits, &mut cuts).map_err(|_| broken())?;
        }
        let compression = || {
            let method = Method::from_name(header["method"].as_str()?)?;
            let level = i32::try_from(header["level"].as_i64()?).ok()?;
            let cluster = usize::try_from(header["cluster"].as_u64()?).ok()?;
            (method.has_level(level)
                && cluster.is_multiple_of(BLOCK)
                && (2 * BLOCK..=1 << 20).contains(&cluster))
            .then_some(StoreCompression {
                method,
                level,
                cluster,
            })
        };
        let mut store = Self {
            path: path.to_owned(),
            id,
            compression: compression().ok_or_else(broken)?,
            cuts: Cuts::new(secret.map(|_| &cuts)),
            packs: Vec::new(),
            segments: BTreeMap::new(),
            states: BTreeMap::new(),
            directories: Directories::default(),
            index: Index::new(id, path),
            last_segment: 0,
            damage: Vec::new(),
            lock,
            objects,
            marked: None,
            excluded: None,
            remembers: false,
            opened: SystemTime::now(),
        };
        store.load()?;
        Ok(store)
    }

    /// Opens packs, and reads the directories that the file of the index does not have.
    pub(crate) fn load(&mut self) -> Result<()> {
        self.index = Index::open(&self.index_path(), self.id, &self.path);
        self.load_segments()?;
        match self.index.is_sound() {
            true => Ok(()),
            false => self.load_all(),
        }
    }

    /// Opens packs and reads all directories.
    pub(crate) fn load_all(&mut self) -> Result<()> {
        self.index = Index::new(self.id, &self.path);
        self.load_segments()
    }

    /// Saves the index, which is a hint for the next run.
    pub(crate) fn save_index(&mut self) -> std::io::Result<()> {
        let now = SystemTime::now();
        for (number, segment) in &self.segments {
            if segment.corrected.is_none() && self.index.lacks_state(*number) {
                let metadata = files::metadata(&segment.path)?;
                let state = seen::state(&metadata, now);
                let is_whole = metadata.len() == segment.header.len();
                self.index.set_state(*number, state.filter(|_| is_whole));
            }
        }
        self.index.save(&self.index_path())
    }

    fn index_path(&self) -> PathBuf {
        self.path.join("index")
    }

    fn load_segments(&mut self) -> Result<()> {
        self.packs.clear();
        self.segments.clear();
        self.directories.clear();
        self.damage.clear();
        if let Some(objects) = &self.objects {
            objects.clear();
        }
        self.states = self.directory_states()?;
        let packs = self.numbers("packs", ".pack")?;
        let directories = self.numbers("segments", ".dir")?;
        let trees = self.numbers("segments", ".tree")?;
        let count = packs.last().map_or(0, |last| last.saturating_add(1));
        self.add_packs(count)?;
        self.last_segment = *directories.last().max(trees.last()).unwrap_or(&0);
        let mut numbers = [directories, trees].concat();
        numbers.sort_unstable();
        numbers.dedup();
        for number in numbers {
            self.load_segment(number)?;
        }
        if !self.damage.is_empty() {
            // A segment whose directory cannot be read may be anywhere in the file.
            self.packs.iter_mut().try_for_each(Pack::claim_all)?;
        }
        for pack in &self.packs {
            if pack.is_missing() {
                self.damage
                    .push(format!("{}: is missing", pack.path.display()));
            } else if !pack.has_front {
                let place = pack.path.display();
                self.damage
                    .push(format!("{place}: the first block is damaged"));
            }
        }
        Ok(())
    }

    /// True if no directory was replaced or removed since the store was opened: addresses of ranges are what they were.
    pub(crate) fn is_as_opened(&self) -> Result<bool> {
        let states = self.directory_states()?;
        let mut old = self.states.iter();
        Ok(old.all(|(number, state)| states.get(number) == Some(state)))
    }

    fn directory_states(&self) -> Result<BTreeMap<u32, FileIdentity>> {
        let mut states = BTreeMap::new();
        for number in self.numbers("segments", ".dir")? {
            let path = self.directory_path(number);
            let metadata = match files::metadata(&path) {
                Err(e) if is_absent(&e) => continue,
                metadata => metadata
                    .map_err(|e| Error::io(Place::file(path.display()), "cannot read", e))?,
            };
            let state = (metadata.ino(), metadata.mtime(), metadata.mtime_nsec());
            states.insert(number, state);
        }
        Ok(states)
    }

    /// Opens packs up to a number of them.
    fn add_packs(&mut self, count: u32) -> Result<()> {
        for number in self.packs.len() as u32..count.min(PACKS_MAX.into()) {
            // Fits: compared with the most packs.
            let number = number as u16;
            let path = self.pack_path(number);
            // In a bucket, it is for what this host reads and writes.
            if self.objects.is_some() && !path.exists() {
                self.create_pack(number)?;
            }
            let image = self.empty_image(number)?;
            let mut pack = Pack::open(path, self.id, number, image)?;
            pack.objects = self.objects.clone().map(|objects| objects as _);
            self.packs.push(pack);
        }
        Ok(())
    }

    /// Reads the directory of a segment, or recovers it with the parity. Of one that the index has, the header is read.
    pub(crate) fn load_segment(&mut self, number: u32) -> Result<()> {
        let path = self.directory_path(number);
        let metadata = files::metadata(&path).ok();
        let state = metadata.and_then(|metadata| seen::state(&metadata, SystemTime::now()));
        if self.index.covers(number, state) {
            let header = files::read(&path, segment::HEADER_LEN as u64).ok();
            let header = header.and_then(|bytes| SegmentHeader::decode(&bytes, &self.id));
            if let Some(header) = header.filter(|header| header.number == number) {
                self.add_packs(u32::from(header.pack) + 1)?;
                self.adopt(header, None);
                if let (Some(objects), Some(digest)) = (&self.objects, self.index.digest(number)) {
                    self.damage.extend(objects.damage(number, digest, None));
                }
                return Ok(());
            }
        }
        let mut is_absent = false;
        let mut bytes = match files::read(&path, DIRECTORY_MAX + 1) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                is_absent = true;
                Vec::new()
            }
            Err(e) if self.objects.is_some() && self.lock.is_some() => {
                // New segments would get its addresses.
                return Err(Error::io(Place::file(path.display()), "cannot read", e));
            }
            Err(e) => {
                self.damage.push(format!("{}: {e}", path.display()));
                Vec::new()
            }
        };
        // The directory of another segment is damage, too.
        let is_own = |directory: &Directory| directory.number == number;
        let mut directory = Directory::decode(&bytes, &self.id).filter(is_own);
        let mut corrected = None;
        if directory.is_none() && self.objects.is_some() {
            self.damage.push(format!("{}: is damaged", path.display()));
        } else if directory.is_none() {
            let front = parity::front(&self.tree_path(number), &self.id);
            let front = front.ok().flatten();
            if let Some(front) = front.filter(|front| front.number == number) {
                self.add_packs(u32::from(front.pack) + 1)?;
                self.claim(front.pack, front.start + front.blocks);
                corrected = self.recovered_directory(number, std::mem::take(&mut bytes));
            }
            let decode = |bytes: &[u8]| Directory::decode(bytes, &self.id);
            directory = corrected.as_deref().and_then(decode).filter(is_own);
            let state = match directory {
                Some(_) => {
                    "is damaged, and is read with the parity; `tuff store repair` writes it anew"
                }
                None => "is damaged or missing",
            };
            // A run that ends early leaves a tree without a directory.
            if !is_absent || number != self.last_segment {
                self.damage.push(format!("{}: {state}", path.display()));
            }
        }
        let Some(directory) = directory else {
            return Ok(());
        };
        let state = state.filter(|_| corrected.is_none());
        let digest = segment::digest(corrected.as_deref().unwrap_or(&bytes));
        // The index grows by what they hold.
        drop(bytes);
        self.index.add(&directory, digest, state);
        self.add_packs(u32::from(directory.pack) + 1)?;
        self.adopt(directory.header(), corrected);
        if let Some(objects) = &self.objects {
            let gaps = directory.gaps();
            let gaps: u32 = gaps.iter().map(|gap| gap.end - gap.start).sum();
            let blocks = Some(directory.blocks - gaps);
            self.damage.extend(objects.damage(number, digest, blocks));
        }
        Ok(())
    }

    /// Adds a segment that is complete, and is in the index.
    fn adopt(&mut self, header: SegmentHeader, corrected: Option<Arc<[u8]>>) {
        self.claim(header.pack, header.start + header.blocks);
        self.last_segment = self.last_segment.max(header.number);
        if let Some(objects) = &self.objects {
            objects.add(header, self.directory_path(header.number));
        }
        let segment = Segment {
            header,
            path: self.directory_path(header.number),
            corrected,
        };
        self.segments.insert(header.number, segment);
    }

    /// Notes that addresses of a pack up to `end` are in use.
    fn claim(&mut self, pack: u16, end: u32) {
        if let Some(pack) = self.packs.get_mut(usize::from(pack)) {
            pack.end = pack.end.max(end);
        }
    }

    /// Directory of a segment as the parity gives it.
    fn recovered_directory(&self, number: u32, bytes: Vec<u8>) -> Option<Arc<[u8]>> {
        let tree = self.tree_path(number);
        let tree = SegmentTree::open(&tree, &self.id, &self.packs, bytes, Vec::new());
        let tree = tree.ok().flatten()?;
        // Fits: a directory is in memory.
        let mut bytes = vec![0; tree.front.directory_len as usize];
        let read = tree.verified.read_exact_at(&mut bytes, tree.data_len());
        read.ok().map(|()| bytes.into())
    }

    /// Reads a whole directory.
    ///
    /// # Errors
    /// `Corrupt` if it was damaged since the store was opened.
    pub(crate) fn directory(&self, segment: &Segment) -> Result<Directory> {
        let place = || Place::file(segment.path.display());
        let bytes = match &segment.corrected {
            Some(bytes) => bytes.to_vec(),
            None => files::read(&segment.path, DIRECTORY_MAX + 1)
                .map_err(|e| Error::io(place(), "cannot read", e))?,
        };
        let directory = Directory::decode(&bytes, &self.id);
        directory.ok_or_else(|| Error::corrupt(place(), "the directory is damaged"))
    }

    /// Opens tree and parity of a segment. `None` if there are none, or if they are those of another directory.
    pub(crate) fn tree(&self, directory: &Directory) -> Result<Option<SegmentTree>> {
        let path = self.tree_path(directory.number);
        let path_of = self.directory_path(directory.number);
        let bytes = files::read(&path_of, DIRECTORY_MAX + 1).unwrap_or_default();
        let tree = SegmentTree::open(&path, &self.id, &self.packs, bytes, directory.gaps());
        let tree = tree.map_err(|e| Error::io(Place::file(path.display()), "cannot read", e))?;
        let digest = directory.digest(&self.id);
        Ok(tree.filter(|tree| tree.front.directory == digest))
    }

    /// Numbers of the files of a directory of the store, ascending.
    pub(crate) fn numbers(&self, dir: &str, end: &str) -> Result<Vec<u32>> {
        let dir = self.path.join(dir);
        let failed = |e| Error::io(Place::file(dir.display()), "cannot list", e);
        let mut numbers = Vec::new();
        for path in files::list(&dir).map_err(failed)? {
            let name = path.file_name().and_then(|name| name.to_str());
            let stem = name.and_then(|name| name.strip_suffix(end));
            numbers.extend(stem.and_then(|stem| stem.parse::<u32>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    pub(crate) fn directory_path(&self, number: u32) -> PathBuf {
        self.path.join(format!("segments/{number:08}.dir"))
    }

    pub(crate) fn tree_path(&self, number: u32) -> PathBuf {
        self.path.join(format!("segments/{number:08}.tree"))
    }

    /// Number for a new segment.
    pub(crate) fn next_segment(&self) -> u32 {
        self.last_segment + 1
    }

    /// Ends a segment whose clusters are written. They are durable before tree and parity are made, and those before the directory.
    pub(crate) fn commit(&mut self, directory: &Directory, threads: usize) -> Result<()> {
        if directory.ranges.is_empty() {
            return Ok(());
        }
        let pack = &self.packs[usize::from(directory.pack)];
        let bytes = directory.encode(&self.id);
        match &self.objects {
            None => {
                pack.sync()?;
                self.write_tree(directory, threads)?;
            }
            Some(objects) => {
                let failed = |e| Error::io(Place::file(pack.path.display()), "cannot read", e);
                let file = pack.file().and_then(File::try_clone).map_err(failed)?;
                let blocks = Blocks::new(directory, file);
                let digest = segment::digest(&bytes);
                objects.upload(directory.number, digest, Arc::new(blocks))?;
            }
        }
        let name = format!("segments/{:08}.dir", directory.number);
        if !self.create_new(&name, &bytes)? {
            return Err(self.exists(&name));
        }
        let pack = &self.packs[usize::from(directory.pack)];
        if self.objects.is_some() {
            // It is in the bucket, from where little is read again.
            pack.punch(directory.start..directory.start + directory.blocks)?;
        }
        self.index.add(directory, segment::digest(&bytes), None);
        self.adopt(directory.header(), None);
        Ok(())
    }

    /// Error of a file that another run has made.
    pub(crate) fn exists(&self, name: &str) -> Error {
        match &self.objects {
            Some(objects) => objects.changed(),
            None => Error::io(
                Place::file(self.path.join(name).display()),
                "cannot create",
                std::io::ErrorKind::AlreadyExists.into(),
            ),
        }
    }

    /// Makes a file of the store that must not exist, durably. Returns false if it does.
    pub(crate) fn create_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let path = self.path.join(name);
        if let Some(objects) = &self.objects {
            let is_new = objects.create(name, bytes)?;
            if is_new {
                self.copy(name, bytes)?;
            }
            return Ok(is_new);
        }
        match files::create(&path, bytes) {
            Err(_) if path.try_exists().unwrap_or(false) => Ok(false),
            made => made.map(|()| true),
        }
    }

    /// Writes a file of the store or replaces it, durably.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        match &self.objects {
            None => files::replace(&self.path.join(name), bytes),
            Some(objects) => {
                objects.replace(name, bytes)?;
                self.copy(name, bytes)
            }
        }
    }

    /// Removes a file of the store. One that is not there is no error.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        if let Some(objects) = &self.objects {
            objects.remove(name)?;
        }
        files::remove(&self.path.join(name))
    }

    /// Keeps a copy of an object that this process has written.
    fn copy(&self, name: &str, bytes: &[u8]) -> Result<()> {
        files::replace(&self.path.join(name), bytes)?;
        self.objects
            .as_ref()
            .map_or(Ok(()), |objects| objects.write_copies(&self.path))
    }

    /// Writes tree and parity for a directory.
    pub(crate) fn write_tree(&self, directory: &Directory, threads: usize) -> Result<()> {
        let path = self.tree_path(directory.number);
        let written = parity::write(
            &path,
            &self.id,
            &self.packs[usize::from(directory.pack)],
            &directory.header(),
            directory.encode(&self.id),
            directory.gaps(),
            threads,
        );
        written.map_err(|e| Error::io(Place::file(path.display()), "cannot write", e))
    }

    /// Replaces the directory of a segment by one that has less.
    pub(crate) fn replace_directory(&mut self, directory: &Directory) -> Result<()> {
        self.replace(
            &format!("segments/{:08}.dir", directory.number),
            &directory.encode(&self.id),
        )
    }

    /// Compression of the store.
    pub fn compression(&self) -> StoreCompression {
        self.compression
    }

    /// Bytes of all packs.
    pub fn stored_bytes(&self) -> u64 {
        self.packs.iter().map(Pack::len).sum()
    }

    /// Bytes that packs, directories, trees and parity take on the disk, without holes.
    pub fn taken_bytes(&self) -> u64 {
        if let Some(objects) = &self.objects {
            return objects.bytes();
        }
        let files = ["packs", "segments"].iter().flat_map(|dir| {
            let entries = fs::read_dir(self.path.join(dir)).into_iter().flatten();
            entries.filter_map(|entry| entry.ok()?.metadata().ok())
        });
        files.map(|metadata| 512 * metadata.blocks()).sum()
    }

    fn pack_path(&self, number: u16) -> PathBuf {
        self.path.join(format!("packs/{number:04}.pack"))
    }

    /// Adds a pack, which becomes the last one.
    pub(crate) fn add_pack(&mut self) -> Result<()> {
        // Fits: compared with the most packs.
        let number = self.packs.len() as u16;
        if number >= PACKS_MAX {
            return Err(Error::limit(
                Place::file(self.path.display()),
                format_args!(
                    "the store has {PACKS_MAX} packs of 128 GiB, which is the most; back up into another one"
                ),
            ));
        }
        self.create_pack(number)?;
        self.add_packs(u32::from(number) + 1)
    }

    /// Makes the file of a pack.
    pub(crate) fn create_pack(&self, number: u16) -> Result<()> {
        let image = self.empty_image(number)?;
        Pack::create(&self.pack_path(number), self.id, number, image)
    }

    /// Empty image of one block that claims the addresses of a pack.
    fn empty_image(&self, number: u16) -> Result<[u8; BLOCK]> {
        let mut image = Vec::new();
        let options = Options::for_kernel(KernelVersion(6, 18));
        let sources = [Source::Memory(MemoryTree::new())];
        build_to(&sources, &options, &mut image, &Progress::default())?;
        image.resize(BLOCK, 0);
        let superblock = Superblock::decode(&image[HEADER_LEN..]);
        let mut superblock = superblock.map_err(|e| Error::corrupt(Place::image(), e))?;
        superblock.blocks = PACK_MAX / BLOCK as u64;
        // Files may share clusters.
        superblock.incompat |= incompat::FRAGMENTS;
        superblock.uuid = self.id;
        let number = number.to_le_bytes();
        superblock.uuid[14] ^= number[1];
        superblock.uuid[15] ^= number[0];
        let bytes = superblock.encode();
        image[HEADER_LEN..HEADER_LEN + bytes.len()].copy_from_slice(&bytes);
        let covered = superblock::checksum_len(options.block);
        superblock::seal(&mut image[HEADER_LEN..HEADER_LEN + covered]);
        Ok(image.try_into().expect("it was resized to a block"))
    }

    /// All snapshots, ascending by number. Manifests that cannot be read are errors of their own.
    ///
    /// # Errors
    /// `Io` if the directory cannot be listed.
    pub fn snapshots(&self) -> Result<Vec<Result<Snapshot>>> {
        let numbers = self.numbers("snapshots", ".json")?;
        if numbers.len() > SNAPSHOTS_MAX {
            return Err(Error::limit(
                Place::file(self.path.join("snapshots").display()),
                "more than 10,000 snapshots",
            ));
        }
        Ok(numbers
            .into_iter()
            .map(|number| self.snapshot(number))
            .collect())
    }

    /// Numbers of snapshots of which a part is left, but no manifest: a disk has lost it after it was written.
    pub(crate) fn missing_manifests(&self) -> Result<Vec<u32>> {
        if self.objects.is_some() {
            // Other hosts remove manifests, too.
            return Ok(Vec::new());
        }
        let manifests = self.numbers("snapshots", ".json")?;
        let mut missing = self.numbers("seen", "")?;
        missing.retain(|number| manifests.binary_search(number).is_err());
        Ok(missing)
    }

    pub(crate) fn snapshot_path(&self, number: u32) -> PathBuf {
        self.path.join(format!("snapshots/{number:08}.json"))
    }

    /// Reads the manifest of a snapshot.
    ///
    /// # Errors
    /// `Usage` if there is none with this number; `Corrupt` for a damaged one.
    pub fn snapshot(&self, number: u32) -> Result<Snapshot> {
        let path = self.snapshot_path(number);
        let text = files::read(&path, TEXT_MAX).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Error::usage(format_args!(
                "{}: no snapshot {number}",
                self.path.display()
            )),
            _ => Error::io(Place::file(path.display()), "cannot read", e),
        })?;
        let snapshot = Snapshot::parse(number, &text);
        snapshot.ok_or_else(|| {
            Error::corrupt(
                Place::file(path.display()),
                "not the manifest of a snapshot",
            )
        })
    }

    /// Entry of a range in a directory, and whether it is that of a member. `alone`: with clusters of its own, as a range between
    /// others needs them.
    pub(crate) fn slot(&self, digest: Digest, alone: bool) -> Result<Option<(Slot, bool)>> {
        let found = self.index.find(digest, alone);
        found.map_err(|e| Error::io(Place::file(self.index_path().display()), "cannot read", e))
    }

    /// Place of a range.
    pub(crate) fn find(&self, digest: Digest, alone: bool) -> Result<Found> {
        let lost = || {
            let place = Place::file(self.path.display());
            Error::corrupt(place, format_args!("the range {digest} is in no pack"))
        };
        let slot = self.slot(digest, alone)?.ok_or_else(lost)?;
        let segment = self.segments.get(&slot.0.segment).ok_or_else(lost)?;
        let place = || Place::file(segment.path.display());
        let found = self.directories.find(segment, slot, digest);
        let found = found.map_err(|e| Error::io(place(), "cannot read", e))?;
        let found = found.filter(|found| usize::from(found.pack) < self.packs.len());
        found.ok_or_else(|| Error::corrupt(place(), "the directory is damaged"))
    }
}

/// True for the error of a name that does not exist.
fn is_absent(e: &std::io::Error) -> bool {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    [NotFound, NotADirectory].contains(&e.kind())
}

/// Text of the header of a new store.
fn header(compression: StoreCompression) -> Result<String> {
    let id = seal::random();
    let id = id.map_err(|e| Error::io(Place::image(), "cannot make an identifier", e))?;
    header_of(compression, id, None)
}

/// Text of the header of a store. `cuts`: secret of the places of cuts.
pub(crate) fn header_of(
    compression: StoreCompression,
    id: [u8; 16],
    cuts: Option<[u8; 32]>,
) -> Result<String> {
    let spec = compression.spec();
    spec.build().map_err(|e| Error::usage(e.to_string()))?;
    let mut header = json!({
        "tuff-backup-store": FORMAT,
        "id": hex::encode(id),
        "method": compression.method.name(),
        "level": compression.level,
        "cluster": compression.cluster,
    });
    if let Some(cuts) = cuts {
        header["cuts"] = hex::encode(cuts).into();
    }
    Ok(format!("{header:#}\n"))
}

/// Makes a directory that only its owner can enter, unless it exists: a store has files that others could not read.
fn private(path: &Path, above: bool) -> std::io::Result<()> {
    fs::DirBuilder::new()
        .recursive(above)
        .mode(0o700)
        .create(path)
}

fn create_directories(path: &Path) -> Result<()> {
    let failed = |e| Error::io(Place::file(path.display()), "cannot create", e);
    for name in ["packs", "segments", "snapshots", "seen", "pins"] {
        private(&path.join(name), false).map_err(failed)?;
    }
    File::create(path.join("lock")).map_err(failed)?;
    Ok(())
}

/// Locks a store for the one run that writes to it.
fn lock(path: &Path) -> Result<File> {
    let name = path.join("lock");
    let failed = |e| Error::io(Place::file(name.display()), "cannot lock", e);
    let lock = File::options().create(true).append(true).open(&name);
    let lock = lock.map_err(failed)?;
    match files::try_lock(&lock) {
        Ok(true) => Ok(lock),
        Ok(false) => Err(busy(path)),
        Err(e) => Err(failed(e)),
    }
}

fn busy(path: &Path) -> Error {
    Error::usage(format_args!(
        "{}: another run writes to this backup store; wait for its end",
        path.display()
    ))
}

fn no_store(path: &Path) -> Error {
    Error::usage(format_args!(
        "{}: no backup store; is its disk mounted?",
        path.display()
    ))
}
