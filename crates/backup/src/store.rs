//! A backup store in a directory.
//!
//! ```text
//! store.json          identity and compression, written once
//! lock                locked by the one run that writes
//! packs/0000.pack     clusters of all snapshots
//! snapshots/00000001.json
//! seen/00000001       what the files of a snapshot were like on the host, for the next run
//! ```

use crate::cluster::BLOCK;
use crate::digest::Digest;
use crate::encode::decode;
use crate::files;
use crate::index::{Found, Index};
use crate::pack::{HEADER_LEN, PACK_MAX, PACKS_MAX, Pack};
use crate::snapshot::Snapshot;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use tuff_codec::{Algorithm, Decoder, EncoderSpec, Method};
use tuff_format::features::incompat;
use tuff_format::superblock::{self, Superblock};
use tuff_mkfs::{
    Error, KernelVersion, MemoryTree, Options, Place, Progress, Result, Source, build_to,
};

/// Name of the file that makes a directory a store.
const NAME: &str = "store.json";
const FORMAT: u64 = 1;
/// Most snapshots of a store.
const SNAPSHOTS_MAX: usize = 10_000;

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
    pub(crate) index: Index,
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
        for name in ["packs", "snapshots", "seen"] {
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
        Self::open_with(path, Some(lock))
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
        let text = fs::read(&name)
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
            index: Index::default(),
            lock,
        };
        for number in 0..PACKS_MAX {
            let path = store.pack_path(number);
            if !path.exists() {
                break;
            }
            let pack = Pack::open(path, id, number, store.empty_image(number)?)?;
            store.index.add(number, &pack, 0)?;
            store.packs.push(pack);
        }
        Ok(store)
    }

    /// Compression of the store.
    pub fn compression(&self) -> StoreCompression {
        self.compression
    }

    /// Bytes of all packs.
    pub fn stored_bytes(&self) -> u64 {
        self.packs.iter().map(Pack::len).sum()
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
        let path = self.pack_path(number);
        let image = self.empty_image(number)?;
        Pack::create(&path, self.id, number, image)?;
        let pack = Pack::open(path, self.id, number, image)?;
        self.packs.push(pack);
        Ok(())
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
        let dir = self.path.join("snapshots");
        let failed = |e| Error::io(Place::file(dir.display()), "cannot list", e);
        let mut numbers = Vec::new();
        for name in fs::read_dir(&dir).map_err(failed)? {
            let name = name.map_err(failed)?.file_name();
            let stem = name.to_str().and_then(|name| name.strip_suffix(".json"));
            numbers.extend(stem.and_then(|stem| stem.parse::<u32>().ok()));
        }
        numbers.sort_unstable();
        if numbers.len() > SNAPSHOTS_MAX {
            return Err(Error::limit(
                Place::file(dir.display()),
                "more than 10,000 snapshots",
            ));
        }
        Ok(numbers
            .into_iter()
            .map(|number| self.snapshot(number))
            .collect())
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
        let text = fs::read(&path).map_err(|e| match e.kind() {
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
        let found = self.index.find(&self.packs, digest, alone)?;
        found.ok_or_else(|| {
            let place = Place::file(self.path.display());
            Error::corrupt(place, format_args!("the range {digest} is in no pack"))
        })
    }

    /// Reads a range and compares it with its name.
    pub(crate) fn read(
        &self,
        decoder: &mut Decoder,
        digest: Digest,
        alone: bool,
    ) -> Result<Vec<u8>> {
        let found = self.find(digest, alone)?;
        let pack = &self.packs[usize::from(found.pack)];
        let named = |e: Error| e.within(Place::file(pack.path.display()));
        let blocks: u64 = found.clusters.iter().map(|c| u64::from(c.blocks)).sum();
        let start = u64::from(found.block) * BLOCK as u64;
        let bytes = pack.read(start, blocks * BLOCK as u64)?;
        let mut content = Vec::new();
        let algorithm = self.compression.algorithm();
        decode(decoder, algorithm, &found.clusters, &bytes, &mut content).map_err(named)?;
        if let Some((offset, len)) = found.part {
            let (offset, len) = (offset as usize, len as usize);
            content = content
                .get(offset..offset.saturating_add(len))
                .unwrap_or_default()
                .to_vec();
        }
        match Digest::of_bytes(&content) == digest {
            true => Ok(content),
            false => Err(named(Error::corrupt(
                Place::image(),
                format_args!("the range {digest} is damaged"),
            ))),
        }
    }
}

fn no_store(path: &Path) -> Error {
    Error::usage(format_args!(
        "{}: no backup store; is its disk mounted?",
        path.display()
    ))
}
