//! A backup store in a directory.
//!
//! ```text
//! store.json             identity and compression, written once
//! lock                   locked by the one run that writes
//! packs/0000.pack        clusters of all snapshots, a row of segments
//! segments/00000001.dir  where each range of a segment is
//! segments/00000001.tree its hash tree and parity
//! snapshots/00000001.json
//! seen/00000001          what the files of a snapshot were like on the host, for the next run
//! pins/                  snapshots in use, which `prune` keeps
//! ```

use crate::cluster::BLOCK;
use crate::digest::Digest;
use crate::directories::{Directories, Found, Segment};
use crate::files;
use crate::index::Index;
use crate::pack::{HEADER_LEN, PACK_MAX, PACKS_MAX, Pack};
use crate::parity::{self, SegmentTree};
use crate::segment::{DIRECTORY_MAX, Directory};
use crate::snapshot::Snapshot;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_codec::{Algorithm, EncoderSpec, Method};
use tuff_format::features::incompat;
use tuff_format::superblock::{self, Superblock};
use tuff_mkfs::{
    Error, KernelVersion, MemoryTree, Options, Place, Progress, Result, Source, build_to,
};
use tuff_store::ReadAt;

/// Name of the file that makes a directory a store.
const NAME: &str = "store.json";
const FORMAT: u64 = 1;
/// Longest manifest, pin or header that is read. Unit: bytes.
pub(crate) const TEXT_MAX: u64 = 16 << 20;
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
}

impl Drop for Store {
    /// Gives the lock back, which processes that are being started may have inherited.
    fn drop(&mut self) {
        if let Some(lock) = &self.lock {
            let _ = lock.unlock();
        }
    }
}

impl Store {
    /// True if the directory holds a store.
    pub fn is_at(path: &Path) -> bool {
        path.join(NAME).exists()
    }

    /// Makes a store in a directory that is absent or empty.
    ///
    /// # Errors
    /// `Usage` for a directory with something in it; `Io` of the host.
    pub fn create(path: &Path, compression: StoreCompression) -> Result<()> {
        let place = || Place::file(path.display());
        let failed = |e| Error::io(place(), "cannot create a backup store", e);
        fs::create_dir_all(path).map_err(failed)?;
        let mut names = fs::read_dir(path).map_err(failed)?;
        if names.next().is_some() {
            return Err(Error::usage(format_args!(
                "{}: not empty, and no backup store",
                path.display()
            )));
        }
        compression
            .spec()
            .build()
            .map_err(|e| Error::usage(e.to_string()))?;
        for name in ["packs", "segments", "snapshots", "seen", "pins"] {
            fs::create_dir(path.join(name)).map_err(failed)?;
        }
        let mut id = [0; 16];
        let random = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
        random.map_err(|e| failed(e.into()))?;
        File::create(path.join("lock")).map_err(failed)?;
        let header = json!({
            "tuff-backup-store": FORMAT,
            "id": hex::encode(id),
            "method": compression.method.name(),
            "level": compression.level,
            "cluster": compression.cluster,
        });
        // Last: the directory is a store from here on.
        files::create(&path.join(NAME), format!("{header:#}\n").as_bytes())
    }

    /// Opens a store for reading.
    ///
    /// # Errors
    /// `Usage` for a directory that is no store; `Io` and `Corrupt` of its files.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, None)
    }

    /// Opens a store for writing, which one run does at a time.
    ///
    /// # Errors
    /// As [`open`](Self::open), and `Usage` if another run writes.
    pub fn open_to_write(path: &Path) -> Result<Self> {
        if !Self::is_at(path) {
            return Err(no_store(path));
        }
        let name = path.join("lock");
        let failed = |e| Error::io(Place::file(name.display()), "cannot lock", e);
        let lock = File::options()
            .create(true)
            .append(true)
            .open(&name)
            .map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(Error::usage(format_args!(
                    "{}: another run writes to this backup store; wait for its end",
                    path.display()
                )));
            }
            Err(fs::TryLockError::Error(e)) => return Err(failed(e)),
        }
        let mut store = Self::open_with(path, Some(lock))?;
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

    fn open_with(path: &Path, lock: Option<File>) -> Result<Self> {
        if !Self::is_at(path) {
            return Err(no_store(path));
        }
        let name = path.join(NAME);
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
            packs: Vec::new(),
            segments: BTreeMap::new(),
            states: BTreeMap::new(),
            directories: Directories::default(),
            index: Index::default(),
            last_segment: 0,
            damage: Vec::new(),
            lock,
        };
        store.load()?;
        Ok(store)
    }

    /// Opens packs and reads all directories.
    pub(crate) fn load(&mut self) -> Result<()> {
        self.packs.clear();
        self.segments.clear();
        self.directories.clear();
        self.index = Index::default();
        self.damage.clear();
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
        let numbers = self.numbers("segments", ".dir")?.into_iter();
        let states = numbers.filter_map(|number| {
            let metadata = fs::metadata(self.directory_path(number)).ok()?;
            let state = (metadata.ino(), metadata.mtime(), metadata.mtime_nsec());
            Some((number, state))
        });
        Ok(states.collect())
    }

    /// Opens packs up to a number of them.
    fn add_packs(&mut self, count: u32) -> Result<()> {
        for number in self.packs.len() as u32..count.min(PACKS_MAX.into()) {
            // Fits: compared with the most packs.
            let number = number as u16;
            let path = self.pack_path(number);
            let image = self.empty_image(number)?;
            self.packs.push(Pack::open(path, self.id, number, image)?);
        }
        Ok(())
    }

    /// Reads the directory of a segment, or recovers it with the parity.
    fn load_segment(&mut self, number: u32) -> Result<()> {
        let path = self.directory_path(number);
        let mut is_absent = false;
        let bytes = match files::read(&path, DIRECTORY_MAX + 1) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                is_absent = true;
                Vec::new()
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
        if directory.is_none() {
            let front = parity::front(&self.tree_path(number), &self.id);
            let front = front.ok().flatten();
            if let Some(front) = front.filter(|front| front.number == number) {
                self.add_packs(u32::from(front.pack) + 1)?;
                self.claim(front.pack, front.start + front.blocks);
                corrected = self.recovered_directory(number, bytes);
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
        self.add_packs(u32::from(directory.pack) + 1)?;
        self.adopt(&directory, corrected);
        Ok(())
    }

    /// Adds a segment that is complete.
    pub(crate) fn adopt(&mut self, directory: &Directory, corrected: Option<Arc<[u8]>>) {
        self.claim(directory.pack, directory.start + directory.blocks);
        self.index.add(directory);
        self.last_segment = self.last_segment.max(directory.number);
        let segment = Segment {
            header: directory.header(),
            path: self.directory_path(directory.number),
            corrected,
        };
        self.segments.insert(directory.number, segment);
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
        let encoded = directory.encode(&self.id);
        Ok(tree.filter(|tree| encoded.ends_with(&tree.front.directory.0)))
    }

    /// Numbers of the files of a directory of the store, ascending.
    pub(crate) fn numbers(&self, dir: &str, end: &str) -> Result<Vec<u32>> {
        let dir = self.path.join(dir);
        let failed = |e| Error::io(Place::file(dir.display()), "cannot list", e);
        let mut numbers = Vec::new();
        for name in fs::read_dir(&dir).map_err(failed)? {
            let name = name.map_err(failed)?.file_name();
            let stem = name.to_str().and_then(|name| name.strip_suffix(end));
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
        self.packs[usize::from(directory.pack)].sync()?;
        self.write_tree(directory, threads)?;
        let path = self.directory_path(directory.number);
        files::create(&path, &directory.encode(&self.id))?;
        self.adopt(directory, None);
        Ok(())
    }

    /// Writes tree and parity for a directory.
    pub(crate) fn write_tree(&self, directory: &Directory, threads: usize) -> Result<()> {
        let path = self.tree_path(directory.number);
        let written = parity::write(
            &path,
            &self.id,
            &self.packs[usize::from(directory.pack)],
            &directory.header(),
            &directory.encode(&self.id),
            directory.gaps(),
            threads,
        );
        written.map_err(|e| Error::io(Place::file(path.display()), "cannot write", e))
    }

    /// Replaces the directory of a segment by one that has less.
    pub(crate) fn replace_directory(&mut self, directory: &Directory) -> Result<()> {
        files::replace(
            &self.directory_path(directory.number),
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

    /// Place of a range.
    pub(crate) fn find(&self, digest: Digest, alone: bool) -> Result<Found> {
        let lost = || {
            let place = Place::file(self.path.display());
            Error::corrupt(place, format_args!("the range {digest} is in no pack"))
        };
        let slot = self.index.find(digest, alone).ok_or_else(lost)?;
        let segment = self.segments.get(&slot.0.segment).ok_or_else(lost)?;
        let place = || Place::file(segment.path.display());
        let found = self.directories.find(segment, slot, digest);
        let found = found.map_err(|e| Error::io(place(), "cannot read", e))?;
        let found = found.filter(|found| usize::from(found.pack) < self.packs.len());
        found.ok_or_else(|| Error::corrupt(place(), "the directory is damaged"))
    }
}

fn no_store(path: &Path) -> Error {
    Error::usage(format_args!(
        "{}: no backup store; is its disk mounted?",
        path.display()
    ))
}
