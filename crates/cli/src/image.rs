//! Arguments shared by the verbs that read an image, and opening of that image.

use crate::advice;
use crate::devices;
use crate::disk::{self, FlatFiles};
use crate::progress::{Counter, Meter};
use crate::remote::{self, RemoteArgs, RemoteImage};
use crate::text::parse_root;
use crate::units::parse_size;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_disk::Disk;
use tuff_erofs::read::{Image, OpenOptions};
use tuff_erofs::verity::{self, Extent, HashTree, Root, TreePlace, Verified, WithTree};
use tuff_erofs::{Error, Remedy, Result};
use tuff_store::{FileStore, ReadAt, Window};

/// Path of an image, and the options to open it.
#[derive(Clone, clap::Args)]
pub(crate) struct ImageArgs {
    /// Image: a file, a block device, or a URL (https://, http://, s3://, oci://, file://)
    #[arg(value_name = "IMAGE")]
    pub(crate) image: PathBuf,
    #[command(flatten)]
    pub(crate) open: OpenArgs,
}

/// Options to open an image.
#[derive(Clone, Default, clap::Args)]
pub(crate) struct OpenArgs {
    /// Byte offset of the image in its file
    #[arg(long, default_value = "0", value_parser = parse_size, value_name = "BYTES", help_heading = "Image")]
    pub(crate) offset: u64,
    /// Extra device, once for each slot of the device table. Images that the table names by UUID may come in any order, and
    /// are looked for beside IMAGE if they are not given
    #[arg(long, value_name = "FILE", help_heading = "Image")]
    pub(crate) device: Vec<PathBuf>,
    /// Accept a superblock with a wrong checksum
    #[arg(long, help_heading = "Image")]
    pub(crate) no_checksum: bool,
    /// Verify every read against the dm-verity hash tree with this root hash
    #[arg(long, visible_alias = "root-hash", value_parser = parse_root, value_name = "ROOT-HASH", help_heading = "Image")]
    pub(crate) verity: Option<Root>,
    /// Hash tree, if it is not appended to the image
    #[arg(long, requires = "verity", value_name = "FILE", help_heading = "Image")]
    pub(crate) verity_tree: Option<PathBuf>,
    /// Refuse the image unless a signature of its root hash by this certificate comes with it, and verify every read
    #[arg(long, conflicts_with_all = ["verity", "offset"], value_name = "CERT", help_heading = "Image")]
    pub(crate) trust: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    /// Callback for blocks repaired from parity.
    #[arg(skip)]
    pub(crate) on_mend: Option<OnMend>,
    /// Compares what is read with the hash tree of the image, if it has one, also without a root hash.
    #[arg(skip)]
    pub(crate) compares_tree: bool,
    /// Counter of the bytes that are read.
    #[arg(skip)]
    pub(crate) counter: Option<Arc<Counter>>,
}

/// Callback for a repaired block: true for one of the hash tree, and its byte offset.
pub(crate) type OnMend = Arc<dyn Fn(bool, u64) + Send + Sync>;

impl ImageArgs {
    /// Arguments with which an image is opened whose reads the meter counts.
    pub(crate) fn watched(&self, meter: &Meter) -> Self {
        Self {
            open: self.open.watched(meter),
            ..self.clone()
        }
    }

    /// Opens the image with its devices.
    pub(crate) fn open(&self) -> Result<Image> {
        self.open.open(&self.image)
    }

    /// Opens the image with its devices, for verbs that give out its content: damage is an error if the image has a hash
    /// tree.
    pub(crate) fn open_compared(&self) -> Result<Image> {
        let open = OpenArgs {
            compares_tree: true,
            ..self.open.clone()
        };
        open.open(&self.image)
    }

    /// Files that the image is read from, which no output may replace.
    pub(crate) fn files(&self) -> Vec<&Path> {
        self.open.files(&self.image)
    }

    /// Opens the image even if its superblock has a wrong checksum, for verbs that report that.
    pub(crate) fn open_unverified(&self) -> Result<Image> {
        self.open.open_with(&self.image, false)
    }

    /// Adds the path of the image to an error about its content, unless the error names it.
    pub(crate) fn named(&self, e: Error) -> Error {
        let path = remote::shown(&self.image);
        match e {
            Error::Corrupt(_) | Error::Unsupported(_) | Error::Limit(_)
                if !e.place().is_in_file(path.display()) =>
            {
                e.within(path.display())
            }
            e => e,
        }
    }

    /// Fails if some of the image's data is on a device that was not given.
    pub(crate) fn with_devices(&self, image: &Image) -> Result<()> {
        self.open.with_devices(image, &self.image)
    }
}

impl OpenArgs {
    /// As [`ImageArgs::watched`].
    pub(crate) fn watched(&self, meter: &Meter) -> Self {
        Self {
            counter: meter.is_shown().then(|| Arc::clone(meter.counter())),
            ..self.clone()
        }
    }

    /// Files of the image at `path`: the image, its extra devices and its hash tree.
    pub(crate) fn files<'a>(&'a self, path: &'a Path) -> Vec<&'a Path> {
        let beside = self.device.iter().chain(&self.verity_tree);
        std::iter::once(path)
            .chain(beside.map(PathBuf::as_path))
            .collect()
    }

    /// Returns the arguments for each of several images, which share the given devices.
    pub(crate) fn of_each(&self, paths: &[&Path]) -> Result<Vec<Self>> {
        let is_elsewhere = self.offset > 0 || paths.iter().any(|path| remote::is_url(path));
        if self.device.is_empty() || is_elsewhere {
            return Ok(vec![self.clone(); paths.len()]);
        }
        let all = devices::of_images(paths, &self.device, "--device", true)?;
        let own = |device| Self {
            device,
            ..self.clone()
        };
        Ok(all.into_iter().map(own).collect())
    }

    /// Returns the arguments with a device for each slot of the image at `path`, as far as devices are given or beside it.
    /// Only given ones are used where a root hash or a certificate covers everything that is read.
    pub(crate) fn with_found_devices(&self, path: &Path) -> Self {
        let is_covered = self.verity.is_some() || self.trust.is_some();
        let is_file = self.offset == 0 && !remote::is_url(path);
        let device = match is_file && !is_covered {
            true => devices::of_image(path, &self.device),
            false => self.device.clone(),
        };
        Self {
            device,
            ..self.clone()
        }
    }

    /// Fails if some of the data of the image at `path` is on a device that was not given.
    pub(crate) fn with_devices(&self, image: &Image, path: &Path) -> Result<()> {
        image.has_devices().map_err(|e| {
            let name = remote::shown(path);
            let is_covered = self.verity.is_some() || self.trust.is_some();
            match devices::missing(path, &self.device).filter(|_| !is_covered) {
                Some(what) => Error::usage(format_args!("{}: {what}", name.display()))
                    .with_remedy(Remedy::Devices),
                None => e.within(name.display()),
            }
        })
    }

    /// Opens the image at `path`.
    pub(crate) fn open(&self, path: &Path) -> Result<Image> {
        self.open_with(path, !self.no_checksum)
    }

    /// Opens the file or device at `path` from the offset of the image.
    pub(crate) fn store(&self, path: &Path) -> Result<Arc<dyn ReadAt>> {
        match self.remote(path)? {
            Some(store) => self.at_offset(store, path),
            None => self.at_offset(Arc::new(file(path)?), path),
        }
    }

    /// Opens the extra devices that the command line names.
    pub(crate) fn devices(&self) -> Result<Vec<Arc<dyn ReadAt>>> {
        let opened = self
            .device
            .iter()
            .map(|path| Ok(Arc::new(file(path)?) as Arc<dyn ReadAt>));
        opened.collect()
    }

    /// Opens the store of an image behind a URL. Returns None for a path.
    pub(crate) fn remote(&self, path: &Path) -> Result<Option<Arc<RemoteImage>>> {
        match remote::is_url(path) {
            true => {
                let has_devices = !self.device.is_empty() || self.offset > 0;
                remote::open(path, &self.remote, self.verified_remotely(), has_devices).map(Some)
            }
            false => Ok(None),
        }
    }

    /// Disk at `path`, in which the image is a partition. `None` for other files.
    pub(crate) fn disk(&self, path: &Path) -> Result<Option<Disk>> {
        match self.offset {
            0 => disk::open_file(path),
            _ => Ok(None),
        }
    }

    fn at_offset(&self, store: Arc<dyn ReadAt>, path: &Path) -> Result<Arc<dyn ReadAt>> {
        if self.offset > store.size() {
            return Err(Error::usage(format_args!(
                "{}: --offset {} is past its end, byte {}",
                remote::shown(path).display(),
                self.offset,
                store.size()
            )));
        }
        Ok(match self.offset {
            0 => match disk::open(&store, path)? {
                Some(disk) => disk.data_store(),
                None => store,
            },
            offset => Arc::new(Window::from(store, offset)),
        })
    }

    /// Root hash by which a remote store verifies what it fetches. It looks for the hash tree after the image.
    fn verified_remotely(&self) -> Option<Root> {
        self.verity
            .filter(|_| self.offset == 0 && self.verity_tree.is_none())
    }

    /// Image and options with the root hash that the certificate of `--trust` has signed.
    pub(crate) fn trusting(&self, path: &Path) -> Result<Option<(PathBuf, Self)>> {
        let Some(certificate) = &self.trust else {
            return Ok(None);
        };
        let mut open = Self {
            trust: None,
            ..self.clone()
        };
        open.remote.trust = Some(certificate.clone());
        let flat = FlatFiles::beside(path).filter(|_| !remote::is_url(path));
        let flat = flat.filter(|flat| flat.signature.is_file());
        let (path, root) = if let Some(disk) = disk::open_file(path)? {
            let root = disk::trusted(&disk, path, certificate)?;
            (path.to_owned(), Some(root))
        } else if let Some(flat) = flat {
            let root = flat.trusted(certificate)?;
            open.verity_tree = Some(flat.tree).filter(|tree| tree.is_file());
            (path.to_owned(), Some(root))
        } else {
            remote::trusted(path, certificate, &self.remote)?
        };
        if self.verity.is_some_and(|verity| root != Some(verity)) {
            return Err(Error::usage(
                "--trust: the root hash that was signed is not the one that was given",
            ));
        }
        open.verity = root;
        Ok(Some((path, open)))
    }

    fn open_with(&self, path: &Path, verify_checksum: bool) -> Result<Image> {
        if let Some((path, open)) = self.trusting(path)? {
            return open.open_with(&path, verify_checksum);
        }
        match self.remote(path)? {
            Some(store) => self.open_image(&store, path, verify_checksum),
            None => {
                let store = self.at_offset(Arc::new(file(path)?), path)?;
                let open = self.with_found_devices(path);
                open.open_store(store, open.devices()?, path, verify_checksum)
            }
        }
    }

    /// Opens the image of a store that [`remote`](Self::remote) returned for `path`.
    pub(crate) fn open_remote(&self, store: &Arc<RemoteImage>, path: &Path) -> Result<Image> {
        self.open_image(store, path, !self.no_checksum)
    }

    fn open_image(
        &self,
        image: &Arc<RemoteImage>,
        path: &Path,
        verify_checksum: bool,
    ) -> Result<Image> {
        let store = self.at_offset(Arc::<RemoteImage>::clone(image), path)?;
        let devices = match self.device.is_empty() {
            true => image.devices().to_vec(),
            false => self.devices()?,
        };
        self.open_store(store, devices, path, verify_checksum)
    }

    fn open_store(
        &self,
        store: Arc<dyn ReadAt>,
        devices: Vec<Arc<dyn ReadAt>>,
        path: &Path,
        verify_checksum: bool,
    ) -> Result<Image> {
        let shown = remote::shown(path);
        let is_verified = remote::is_remote(path) && self.verified_remotely().is_some();
        if is_verified && !self.device.is_empty() {
            return Err(devices_not_covered());
        }
        let devices = devices.into_iter().map(|device| self.counted(device));
        let options = OpenOptions {
            devices: devices.collect(),
            verify_checksum,
            ..OpenOptions::default()
        };
        let store = match self.verity {
            Some(_) if !is_verified => Arc::new(self.verified(store, self.verity, &shown)?),
            None if self.compares_tree && !remote::is_remote(path) => self.compared(store, path)?,
            _ => store,
        };
        let store = self.counted(store);
        let image = Image::open_shared(Arc::clone(&store), options);
        image.map_err(|e| match e {
            Error::Corrupt(_) => advice::not_opened(e, &shown, &*store),
            e => e.within(shown.display()),
        })
    }

    /// Compares what is read with the hash tree of the image, if it has one.
    fn compared(&self, store: Arc<dyn ReadAt>, path: &Path) -> Result<Arc<dyn ReadAt>> {
        let Some(tree) = self.tree_if_any(&store, path)? else {
            return Ok(store);
        };
        let verified = tree.open(Arc::clone(&store), None)?;
        Ok(Arc::new(WithTree::new(verified, store)))
    }

    fn counted(&self, store: Arc<dyn ReadAt>) -> Arc<dyn ReadAt> {
        match &self.counter {
            Some(counter) => counter.watch(store),
            None => store,
        }
    }

    /// Wraps a store so that every read is verified: by the root hash, or the one that the hash tree states.
    pub(crate) fn verified(
        &self,
        store: Arc<dyn ReadAt>,
        root: Option<Root>,
        path: &Path,
    ) -> Result<Verified> {
        if !self.device.is_empty() {
            return Err(devices_not_covered());
        }
        let tree = self.tree(&store, path)?;
        let verified = tree.open(store, root)?;
        Ok(match self.on_mend.clone() {
            Some(told) => verified.with_repair_callback(move |tree, at| told(tree, at)),
            None => verified,
        })
    }

    /// Locates the hash tree of the image in `store`.
    pub(crate) fn tree<'a>(
        &'a self,
        store: &Arc<dyn ReadAt>,
        path: &'a Path,
    ) -> Result<ImageTree<'a>> {
        if let Some(tree) = self.tree_apart(path)? {
            return Ok(tree);
        }
        if self.disk(path)?.is_some() {
            let what = "the disk has no partition with a hash tree";
            return Err(Error::usage(format_args!("{}: {what}", path.display())));
        }
        let at = verity::find(store).map_err(|e| e.within(path.display()))?;
        Ok(ImageTree {
            place: TreePlace::appended(Arc::clone(store), at),
            extent: Extent::Image,
            stated: None,
            path,
        })
    }

    /// As [`tree`](Self::tree). `None` for an image without one.
    pub(crate) fn tree_if_any<'a>(
        &'a self,
        store: &Arc<dyn ReadAt>,
        path: &'a Path,
    ) -> Result<Option<ImageTree<'a>>> {
        if let Some(tree) = self.tree_apart(path)? {
            return Ok(Some(tree));
        }
        let place = verity::appended(store).map_err(|e| e.within(path.display()))?;
        Ok(place.map(|place| ImageTree {
            place,
            extent: Extent::Image,
            stated: None,
            path,
        }))
    }

    /// Hash tree in a file of its own, or in a partition.
    fn tree_apart<'a>(&'a self, path: &'a Path) -> Result<Option<ImageTree<'a>>> {
        if let Some(tree) = &self.verity_tree {
            return Ok(Some(ImageTree {
                place: TreePlace::separate(Arc::new(file(tree)?), 0),
                extent: Extent::Image,
                stated: None,
                path: tree,
            }));
        }
        let disk = self.disk(path)?;
        let store = disk.as_ref().and_then(Disk::tree_store);
        Ok(store.map(|store| ImageTree {
            place: TreePlace::separate(store, 0),
            extent: Extent::Store,
            stated: disk.as_ref().and_then(Disk::root),
            path,
        }))
    }
}

/// Hash tree of an image.
pub(crate) struct ImageTree<'a> {
    place: TreePlace,
    /// Bytes that it must cover.
    extent: Extent,
    /// Root hash that the partition table states.
    stated: Option<Root>,
    /// File that holds it.
    pub(crate) path: &'a Path,
}

impl ImageTree<'_> {
    /// The tree of `data` as its header describes it.
    pub(crate) fn header(&self, data: &Arc<dyn ReadAt>) -> Result<HashTree> {
        let stated = verity::stated(data, &self.place, self.extent);
        stated.map_err(|e| e.within(self.path.display()))
    }

    /// Opens `data` verified by the root hash, or else by the one that comes with the image.
    pub(crate) fn open(self, data: Arc<dyn ReadAt>, root: Option<Root>) -> Result<Verified> {
        let verified = verity::open(data, self.place, root.or(self.stated), self.extent);
        let verified = verified.map_err(|e| e.within(self.path.display()))?;
        Ok(match root {
            Some(_) => verified,
            None => verified.with_stated_root(),
        })
    }
}

fn devices_not_covered() -> Error {
    Error::usage(
        "--verity: the hash tree of an image does not cover extra devices; build one image without --base and --blob",
    )
}

fn file(path: &Path) -> Result<FileStore> {
    FileStore::open(path).map_err(|e| match e.kind() {
        io::ErrorKind::IsADirectory => Error::usage(format_args!(
            "{}: is a directory, expected an EROFS image; 'tuff build' makes one of it",
            path.display()
        )),
        _ => Error::io(path.display(), "cannot open", e),
    })
}
