//! Snapshots as images: metadata, built from the records, whose devices are the packs.

use crate::cluster::{BLOCK, Cluster};
use crate::device::PackDevice;
use crate::record::{RangeRef, are_alone};
use crate::snapshot::Snapshot;
use crate::store::Store;
use crate::tree::TreeReader;
use std::fmt;
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
            files: Mutex::default(),
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
    /// Ranges of all files, and where those of each file begin.
    files: Mutex<(Vec<RangeRef>, Vec<usize>)>,
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
        while let Some((path, record)) = tree.next()? {
            let mut content = Content::None;
            if matches!(record.kind, Kind::File { size } if size > 0) {
                let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
                let (ranges, starts) = &mut *files;
                content = Content::Range {
                    offset: starts.len() as u64,
                };
                starts.push(ranges.len());
                ranges.extend_from_slice(&record.ranges);
            }
            take(Entry {
                path,
                kind: record.kind,
                meta: record.meta,
                xattrs: record.xattrs,
                content,
            })?;
        }
        Ok(())
    }

    fn data(&self, key: u64) -> Result<PlacedData> {
        let ranges = {
            let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
            let (ranges, starts) = &*files;
            // Fits: it is the index of an element.
            let key = key as usize;
            let end = starts.get(key + 1).copied().unwrap_or(ranges.len());
            ranges[starts[key]..end].to_vec()
        };
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
