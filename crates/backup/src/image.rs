//! Snapshots as images: metadata, built from the records, whose devices are the packs.

use crate::cluster::{BLOCK, Cluster};
use crate::device::{Comparing, PackDevice};
use crate::digest::Digest;
use crate::pack::Pack;
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
    store: Arc<Store>,
}

impl SnapshotImage {
    /// Opens the image with its packs. Content that is read from it is as the packs have it; that of a store in a bucket is
    /// compared with its digests.
    ///
    /// # Errors
    /// Those of opening an image.
    pub fn open(&self) -> Result<Image> {
        self.open_with(self.store.devices()?)
    }

    /// Opens the image so that all content that is read is compared with its digests.
    ///
    /// # Errors
    /// Those of opening an image.
    pub fn open_comparing(&self) -> Result<Image> {
        self.open_with(self.store.comparing_devices())
    }

    /// Script for sh(1) that mounts the image at `dir` with losetup(8) and mount(8), as root. All its paths are absolute. The kernel
    /// detaches the loop devices when it is unmounted.
    ///
    /// # Errors
    /// `Usage` for a path with control characters or that is no UTF-8; `Io` if the current directory cannot be found.
    pub fn script(&self, dir: &Path) -> Result<String> {
        let mut script = String::from(SCRIPT);
        for pack in &self.devices {
            let pack = shell_word(pack)?;
            script += &format!("attach {pack}; options=$options,device=$loop\n");
        }
        let (image, dir) = (shell_word(&self.path)?, shell_word(dir)?);
        script += &format!("attach {image}\nmount -t erofs -o \"$options\" \"$loop\" {dir}\n");
        Ok(script)
    }

    fn open_with(&self, devices: Vec<Arc<dyn ReadAt>>) -> Result<Image> {
        let failed = |e| Error::io(Place::file(self.path.display()), "cannot open", e);
        let store = FileStore::open(&self.path).map_err(failed)?;
        let options = OpenOptions {
            devices,
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
        let mut bases = Vec::new();
        for (pack, device) in self.packs.iter().zip(self.devices()?) {
            let image = Image::open(device, OpenOptions::default());
            let image = image.map_err(|e| e.within(Place::file(pack.path.display())))?;
            bases.push(InputImage::new(image, pack.path.clone(), Vec::new()));
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
            devices: self.packs.iter().map(|pack| pack.path.clone()).collect(),
            store: Arc::clone(self),
        })
    }

    /// Packs as devices of an image.
    fn devices(self: &Arc<Self>) -> Result<Vec<Arc<dyn ReadAt>>> {
        if self.objects.is_some() {
            return Ok(self.comparing_devices());
        }
        let open = |pack: &Pack| -> Result<Arc<dyn ReadAt>> {
            let failed = |e| Error::io(Place::file(pack.path.display()), "cannot read", e);
            Ok(Arc::new(FileStore::open(&pack.path).map_err(failed)?))
        };
        self.packs.iter().map(open).collect()
    }

    fn comparing_devices(self: &Arc<Self>) -> Vec<Arc<dyn ReadAt>> {
        let comparing = Comparing::new(Arc::clone(self));
        let numbers = (0..).zip(&self.packs).map(|(number, _)| number);
        numbers
            .map(|number| Arc::new(PackDevice::new(&comparing, number)) as Arc<dyn ReadAt>)
            .collect()
    }
}

/// Begin of a script that mounts an image.
const SCRIPT: &str = r#"#!/bin/sh
# The kernel detaches the loop devices when the snapshot is unmounted.
set -e
loops= options=ro
trap 'test -z "$loops" || losetup --detach $loops' EXIT
attach() {
    loop=$(losetup --read-only --find --show "$1")
    loops="$loops $loop"
}
"#;

/// An absolute path, quoted for sh(1).
fn shell_word(path: &Path) -> Result<String> {
    let absolute = std::path::absolute(path).map_err(|e| {
        Error::io(
            Place::file(path.display()),
            "cannot find the absolute path",
            e,
        )
    })?;
    match absolute.to_str() {
        Some(text) if !text.chars().any(char::is_control) => {
            Ok(format!("'{}'", text.replace('\'', "'\\''")))
        }
        _ => Err(Error::usage(format_args!(
            "{}: a script cannot name a path with control characters or bytes that are no UTF-8",
            path.display()
        ))),
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
