//! Snapshots as images: metadata, built from the records, whose devices are the packs.

use crate::cluster::{BLOCK, Cluster};
use crate::device::PackDevice;
use crate::digest::Digest;
use crate::record::{RangeRef, are_alone};
use crate::snapshot::Snapshot;
use crate::store::Store;
use crate::tree::TreeReader;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tuff_erofs::read::{Image, OpenOptions};
use tuff_mkfs::source::{Content, Entry, Kind};
use tuff_mkfs::{
    Compression, Error, Fragments, InputImage, KernelVersion, Options, Place, PlacedCluster,
    PlacedData, PlacedPart, PlacedTree, Progress, Result, Source, build,
};
use tuff_store::{FileStore, ReadAt, Target};

/// Image of a snapshot, without the data of its files.
pub struct SnapshotImage {
    /// File of the image.
    pub path: PathBuf,
    /// Packs, in the order of the device table of the image.
    pub devices: Vec<PathBuf>,
    stores: Vec<Arc<dyn ReadAt>>,
}

impl SnapshotImage {
    /// Opens the image with its packs.
    ///
    /// # Errors
    /// Those of opening an image.
    pub fn open(&self) -> Result<Image> {
        let failed = |e| Error::io(Place::file(self.path.display()), "cannot open", e);
        let store = FileStore::open(&self.path).map_err(failed)?;
        let options = OpenOptions {
            devices: self.stores.clone(),
            ..OpenOptions::default()
        };
        Image::open(store, options).map_err(|e| e.within(Place::file(self.path.display())))
    }
}

impl Store {
    /// Builds the image of a snapshot at `path`. Equal snapshots of equal stores give equal images.
    ///
    /// # Errors
    /// `Corrupt` if the store has lost parts of the snapshot; `Io` of store and target.
    pub fn image(
        self: &Arc<Self>,
        snapshot: &Snapshot,
        path: &Path,
        progress: &Progress,
    ) -> Result<SnapshotImage> {
        let (mut bases, mut stores, mut devices) =
            (Vec::new(), Vec::<Arc<dyn ReadAt>>::new(), Vec::new());
        for (number, pack) in (0..).zip(&self.packs) {
            let failed = |e| Error::io(Place::file(pack.path.display()), "cannot read", e);
            let device: Arc<dyn ReadAt> = match &self.objects {
                None => Arc::new(FileStore::open(&pack.path).map_err(failed)?),
                Some(objects) => {
                    let (store, objects) = (Arc::clone(self), Arc::clone(objects));
                    Arc::new(PackDevice::new(store, objects, number))
                }
            };
            let image = Image::open(Arc::clone(&device), OpenOptions::default());
            let image = image.map_err(|e| e.within(Place::file(pack.path.display())))?;
            bases.push(InputImage::new(image, pack.path.clone(), Vec::new()));
            stores.push(device);
            devices.push(pack.path.clone());
        }
        let tree = SnapshotTree {
            store: Arc::clone(self),
            snapshot: snapshot.clone(),
            ranges: RangeLists::new(path)?,
        };
        let mut options = Options::for_kernel(KernelVersion(6, 18));
        let compression = self.compression();
        options.compression.default = Some(Compression {
            method: compression.method,
            level: compression.level,
            dict: None,
        });
        options.compression.cluster = compression.cluster;
        options.layout.fragments = Fragments::Tails;
        options.fit_clusters();
        options.dedupe.bases = bases;
        let sources = [Source::Placed(Arc::new(tree))];
        build(&sources, &options, &Target::Path(path.to_owned()), progress)?;
        Ok(SnapshotImage {
            path: path.to_owned(),
            devices,
            stores,
        })
    }
}

/// Tree of a snapshot as the source of an image.
struct SnapshotTree {
    store: Arc<Store>,
    snapshot: Snapshot,
    ranges: RangeLists,
}

/// Length of a buffer for ranges. Unit: bytes.
const BUFFER: usize = 256 << 10;
/// Length of a range, and of the number of ranges before those of a file. Unit: bytes.
const RANGE_LEN: usize = 36;
const COUNT_LEN: usize = 4;

/// Ranges of all files, in a file without a name.
struct RangeLists {
    file: File,
    len: Mutex<u64>,
}

impl RangeLists {
    /// Makes the file beside an image.
    fn new(image: &Path) -> Result<Self> {
        let dir = image.parent().filter(|dir| !dir.as_os_str().is_empty());
        let file = tuff_store::anonymous(dir.unwrap_or(Path::new(".")));
        let file = file.map_err(|e| {
            let place = Place::file(image.display());
            Error::io(place, "cannot create", e)
        })?;
        Ok(Self {
            file,
            len: Mutex::new(0),
        })
    }

    fn failed(e: io::Error) -> Error {
        Error::io(Place::image(), "cannot keep the ranges of files", e)
    }

    /// Appends what `fill` adds to a buffer for each file. It gets the position of the next file.
    fn append(&self, fill: &mut dyn FnMut(u64, &mut Vec<u8>) -> Result<bool>) -> Result<()> {
        let mut len = self.len.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = Vec::new();
        loop {
            let goes_on = fill(*len + buffer.len() as u64, &mut buffer)?;
            if buffer.len() >= BUFFER || !goes_on {
                self.file
                    .write_all_at(&buffer, *len)
                    .map_err(Self::failed)?;
                *len += buffer.len() as u64;
                buffer.clear();
            }
            if !goes_on {
                return Ok(());
            }
        }
    }

    /// Ranges of a file, by their position.
    fn read(&self, at: u64) -> Result<Vec<RangeRef>> {
        // A file with content has a range or more.
        let mut bytes = vec![0; COUNT_LEN + RANGE_LEN];
        self.file
            .read_exact_at(&mut bytes, at)
            .map_err(Self::failed)?;
        let count = u32::from_le_bytes(*bytes.first_chunk().expect("it is longer"));
        let rest = bytes.len();
        bytes.resize(COUNT_LEN + count as usize * RANGE_LEN, 0);
        if bytes.len() > rest {
            let read = self
                .file
                .read_exact_at(&mut bytes[rest..], at + rest as u64);
            read.map_err(Self::failed)?;
        }
        let ranges = bytes[COUNT_LEN..].chunks_exact(RANGE_LEN).map(|bytes| {
            let (digest, len) = bytes.split_at(RANGE_LEN - 4);
            RangeRef {
                digest: Digest(digest.try_into().expect("32 bytes")),
                len: u32::from_le_bytes(len.try_into().expect("4 bytes")),
            }
        });
        Ok(ranges.collect())
    }
}

impl fmt::Debug for SnapshotTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SnapshotTree")
            .field(&self.snapshot.number)
            .finish()
    }
}

impl PlacedTree for SnapshotTree {
    fn name(&self) -> String {
        format!(
            "{}, snapshot {}",
            self.store.path.display(),
            self.snapshot.number
        )
    }

    fn each(&self, take: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()> {
        let mut tree = TreeReader::new(&self.store, &self.snapshot);
        self.ranges.append(&mut |at, buffer| {
            let Some((path, record)) = tree.next()? else {
                return Ok(false);
            };
            let mut content = Content::None;
            if matches!(record.kind, Kind::File { size } if size > 0) {
                content = Content::Range { offset: at };
                // Fits: a record is shorter.
                buffer.extend_from_slice(&(record.ranges.len() as u32).to_le_bytes());
                for range in &record.ranges {
                    buffer.extend_from_slice(&range.digest.0);
                    buffer.extend_from_slice(&range.len.to_le_bytes());
                }
            }
            take(Entry {
                path,
                kind: record.kind,
                meta: record.meta,
                xattrs: record.xattrs,
                content,
            })?;
            Ok(true)
        })
    }

    fn data(&self, key: u64) -> Result<PlacedData> {
        let ranges = self.ranges.read(key)?;
        let store = &self.store;
        let (mut clusters, mut tail) = (Vec::new(), None);
        for (range, alone) in are_alone(&ranges) {
            let found = store.find(range.digest, alone)?;
            let placed = placed(store, found.pack, found.block, &found.clusters);
            let Some((offset, len)) = found.part else {
                clusters.extend(placed);
                continue;
            };
            let (from, to) = (u64::from(offset), u64::from(offset) + u64::from(len));
            let mut end = 0;
            let mut start = None;
            let covering = placed.into_iter().filter(|cluster| {
                let begin = end;
                end += u64::from(cluster.content);
                let covers = begin < to && end > from;
                if covers && start.is_none() {
                    start = Some(begin);
                }
                covers
            });
            let covering: Vec<PlacedCluster> = covering.collect();
            // It is the last range.
            tail = Some(PlacedPart {
                // Fits: packs have less than 2^25 blocks, and there are 63.
                group: (u32::from(found.pack) << 25) | found.block,
                offset: from,
                len: to - from,
                start: start.unwrap_or(from),
                clusters: covering,
            });
        }
        Ok(PlacedData { clusters, tail })
    }
}

/// Clusters as bases have them.
fn placed(store: &Store, pack: u16, block: u32, clusters: &[Cluster]) -> Vec<PlacedCluster> {
    let mut pos = u64::from(block) * BLOCK as u64;
    let algorithm = store.compression().algorithm() as u8;
    let placed = clusters.iter().map(|cluster| {
        let start = pos;
        let len = u32::from(cluster.blocks) * BLOCK as u32;
        pos += u64::from(len);
        PlacedCluster {
            base: pack,
            pos: start,
            len,
            content: cluster.content,
            algorithm: (!cluster.is_stored).then_some(algorithm),
        }
    });
    placed.collect()
}
