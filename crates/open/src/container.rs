//! Containers of images: a file or device, a disk with partitions, or an object behind a URL.

use crate::certificate;
use crate::devices;
use crate::flat::FlatFiles;
use crate::options::{Device, Integrity, OpenOptions};
use crate::reference::ImageRef;
use crate::remote::RemoteImage;
use crate::tree::ImageTree;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_disk::Disk;
use tuff_erofs::verity::{self, Extent, Root, TreePlace, WithTree};
use tuff_erofs::{Error, Remedy, Result};
use tuff_format::superblock;
use tuff_signature::Certificate;
use tuff_store::{FileStore, ReadAt, Window};

/// Container of an image, opened once, with what verifies the image.
pub struct Container {
    pub(crate) reference: ImageRef,
    pub(crate) options: OpenOptions,
    store: Arc<dyn ReadAt>,
    disk: Option<Disk>,
    remote: Option<Arc<RemoteImage>>,
    devices: Vec<Device>,
    /// Root hash that was given or signed. `None` as well for several signed images, which the network clients verify.
    root: Option<Root>,
    /// File with the hash tree.
    tree: Option<PathBuf>,
}

impl Container {
    /// Opens the container of an image, and reads what a certificate is to verify.
    ///
    /// # Errors
    /// * `Io` and `Corrupt` for a file, object or partition table that cannot be read.
    /// * `Untrusted` if the certificate has not signed the image.
    /// * `Usage` for devices that nothing verifies, with an image that is verified.
    pub fn open(reference: &ImageRef, options: &OpenOptions) -> Result<Self> {
        let is_verified = |device: &Device| device.root.is_some();
        if options.integrity.is_some() && !options.devices.iter().all(is_verified) {
            return Err(Error::usage(
                "the hash tree of an image does not cover extra devices: give the root hash of each, or build one image without bases and blobs",
            ));
        }
        let (whole, remote): (Arc<dyn ReadAt>, _) = match reference {
            ImageRef::Path(path) => (Arc::new(file(path)?), None),
            ImageRef::Url(url) => {
                let (image, root) = RemoteImage::open(url, options)?;
                (Arc::<RemoteImage>::clone(&image), Some((image, root)))
            }
        };
        let disk = match options.offset {
            0 => disk(&whole, reference)?,
            _ => None,
        };
        let store = data(&whole, disk.as_ref(), reference, options.offset)?;
        let (root, tree) = match (&options.integrity, reference, &remote) {
            (Integrity::None, ..) => (None, None),
            (Integrity::Root { hash, tree }, ..) => (Some(*hash), tree.clone()),
            (Integrity::Certificate(_), _, Some((_, root))) => (*root, None),
            (Integrity::Certificate(by), ImageRef::Path(path), _) => {
                signed(path, disk.as_ref(), by)?
            }
            (Integrity::Certificate(_), ImageRef::Url(_), None) => {
                return Err(Error::usage("bug: a URL without a remote image"));
            }
        };
        let is_searched = !options.integrity.is_some() && options.offset == 0 && disk.is_none();
        let devices = match reference.path().filter(|_| is_searched) {
            Some(path) => devices::of_image(path, &*store, &options.devices),
            None => options.devices.clone(),
        };
        Ok(Self {
            reference: reference.clone(),
            options: options.clone(),
            store,
            disk,
            remote: remote.map(|(image, _)| image),
            devices,
            root,
            tree,
        })
    }

    /// Reference that the container was opened by.
    pub fn reference(&self) -> &ImageRef {
        &self.reference
    }

    /// Bytes of the image, from its start. Only those that were fetched from a URL are verified.
    pub fn store(&self) -> &Arc<dyn ReadAt> {
        &self.store
    }

    /// Disk in which the image is a partition.
    pub fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// Image behind a URL.
    pub fn remote(&self) -> Option<&Arc<RemoteImage>> {
        self.remote.as_ref()
    }

    /// Extra devices: those that were given, or those of each slot if all were found. An image behind a URL has its own.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Returns true if a root hash or a certificate verifies what is read.
    pub fn is_verified(&self) -> bool {
        self.options.integrity.is_some()
    }

    /// Returns true if the hash tree is in a file of its own.
    pub fn has_separate_tree(&self) -> bool {
        self.tree.is_some()
    }

    /// Files of this host that the image is read from, with its devices and hash tree.
    pub fn files(&self) -> Vec<&Path> {
        let devices = self.devices.iter().map(|device| &device.image);
        let images = std::iter::once(&self.reference).chain(devices);
        let tree = self.tree.as_deref();
        images.filter_map(ImageRef::path).chain(tree).collect()
    }

    /// Start of the image in its file or object. Unit: bytes.
    pub fn offset(&self) -> u64 {
        let partition = self.disk.as_ref().map(|disk| disk.data().range.start);
        partition.unwrap_or(self.options.offset)
    }

    /// Hash tree of the image: in the file `separate`, or as the container has it.
    ///
    /// # Errors
    /// `Usage` if there is none, and errors of reading the image.
    pub fn tree(&self, separate: Option<&Path>) -> Result<ImageTree> {
        if let Some(tree) = self.tree_apart(separate)? {
            return Ok(tree);
        }
        let name = self.reference.name();
        if self.disk.is_some() {
            let what = "the disk has no partition with a hash tree";
            return Err(Error::usage(format_args!("{}: {what}", name.display())));
        }
        let at = verity::find(&self.store).map_err(|e| e.within(name.display()))?;
        Ok(self.appended(TreePlace::appended(Arc::clone(&self.store), at)))
    }

    /// As [`tree`](Self::tree). `None` for an image without one.
    ///
    /// # Errors
    /// Errors of reading the image.
    pub fn tree_if_any(&self) -> Result<Option<ImageTree>> {
        if let Some(tree) = self.tree_apart(None)? {
            return Ok(Some(tree));
        }
        let place = verity::appended(&self.store);
        let place = place.map_err(|e| e.within(self.reference.name().display()))?;
        Ok(place.map(|place| self.appended(place)))
    }

    fn appended(&self, place: TreePlace) -> ImageTree {
        ImageTree {
            place,
            extent: Extent::Image,
            stated: None,
            path: self.reference.name(),
        }
    }

    /// Hash tree in a file of its own, or in a partition.
    fn tree_apart(&self, separate: Option<&Path>) -> Result<Option<ImageTree>> {
        if let Some(path) = separate.or(self.tree.as_deref()) {
            return Ok(Some(ImageTree {
                place: TreePlace::separate(Arc::new(file(path)?), 0),
                extent: Extent::Image,
                stated: None,
                path: path.to_owned(),
            }));
        }
        let store = self.disk.as_ref().and_then(Disk::tree_store);
        Ok(store.map(|store| ImageTree {
            place: TreePlace::separate(store, 0),
            extent: Extent::Store,
            stated: self.disk.as_ref().and_then(Disk::root),
            path: self.reference.name(),
        }))
    }

    /// Bytes of the image, verified by what was given.
    pub(crate) fn verified_store(&self) -> Result<Arc<dyn ReadAt>> {
        let store = Arc::clone(&self.store);
        let is_network = self.reference.is_network();
        let store = match self.root {
            Some(_) if is_network && self.options.verifies_fetched() => store,
            Some(root) => {
                let verified = self.tree(None)?.open(store, Some(root))?;
                Arc::new(match self.options.on_repair.clone() {
                    Some(on_repair) => {
                        verified.with_repair_callback(move |tree, at| on_repair(tree, at))
                    }
                    None => verified,
                })
            }
            None if self.options.compares_tree && !is_network => match self.tree_if_any()? {
                Some(tree) => {
                    let verified = tree.open(Arc::clone(&store), None)?;
                    Arc::new(WithTree::new(verified, store))
                }
                None => store,
            },
            None => store,
        };
        Ok(self.watched(store))
    }

    /// Devices of the image. A root hash verifies each that has one.
    pub(crate) fn device_stores(&self) -> Result<Vec<Arc<dyn ReadAt>>> {
        let stores = match &self.remote {
            Some(remote) if self.devices.is_empty() => remote.devices().to_vec(),
            _ => {
                let opened = self.devices.iter().map(|device| self.device_store(device));
                opened.collect::<Result<_>>()?
            }
        };
        Ok(stores
            .into_iter()
            .map(|store| self.watched(store))
            .collect())
    }

    fn device_store(&self, device: &Device) -> Result<Arc<dyn ReadAt>> {
        if let (ImageRef::Path(path), None) = (&device.image, device.root) {
            return Ok(Arc::new(file(path)?));
        }
        let integrity = device.root.map(|hash| Integrity::Root { hash, tree: None });
        let options = OpenOptions {
            integrity: integrity.unwrap_or_default(),
            cache: self.options.cache.clone(),
            on_repair: self.options.on_repair.clone(),
            ..OpenOptions::default()
        };
        Self::open(&device.image, &options)?.verified_store()
    }

    fn watched(&self, store: Arc<dyn ReadAt>) -> Arc<dyn ReadAt> {
        match &self.options.watch {
            Some(watch) => watch(store),
            None => store,
        }
    }

    /// Describes an error about a device that is absent.
    pub(crate) fn absent_device(&self, e: Error) -> Error {
        let name = self.reference.name();
        let path = self
            .reference
            .path()
            .filter(|_| !self.options.integrity.is_some());
        let missing = path.and_then(|path| devices::missing(path, &*self.store, &self.devices));
        match missing {
            Some(what) => Error::usage(format_args!("{}: {what}", name.display()))
                .with_remedy(Remedy::Devices),
            None => e.within(name.display()),
        }
    }
}

/// Opens a file or block device.
fn file(path: &Path) -> Result<FileStore> {
    FileStore::open(path).map_err(|e| match e.kind() {
        io::ErrorKind::IsADirectory => Error::usage(format_args!(
            "{}: is a directory, expected an EROFS image",
            path.display()
        ))
        .with_remedy(Remedy::BuildImage),
        _ => Error::io(path.display(), "cannot open", e),
    })
}

/// Opens the disk in a store. `None` for an image, and for other stores without a partition table.
fn disk(store: &Arc<dyn ReadAt>, reference: &ImageRef) -> Result<Option<Disk>> {
    let mut head = [0; superblock::OFFSET as usize + 4];
    let is_read = store.read_exact_at(&mut head, 0).is_ok();
    // A boot sector or a partition table may precede the superblock of an image.
    if !is_read || head.ends_with(&superblock::MAGIC.to_le_bytes()) {
        return Ok(None);
    }
    let name = reference.name();
    let name = name.display();
    Disk::open(Arc::clone(store)).map_err(|e| match e {
        tuff_disk::Error::Io(e) => Error::io(name, "cannot read the partition table", e),
        tuff_disk::Error::NoRoot => Error::source(format_args!(
            "{name}: is a GPT partition table without a root or /usr partition"
        ))
        .with_remedy(Remedy::Offset),
        tuff_disk::Error::Corrupt(what) => Error::corrupt(
            name,
            format_args!("is a GPT partition table that is damaged: {what}"),
        )
        .with_remedy(Remedy::Offset),
    })
}

/// Bytes from the start of the image on.
fn data(
    whole: &Arc<dyn ReadAt>,
    disk: Option<&Disk>,
    reference: &ImageRef,
    offset: u64,
) -> Result<Arc<dyn ReadAt>> {
    if offset > whole.size() {
        let end = whole.size();
        return Err(Error::usage(format_args!(
            "{reference}: the offset of the image, {offset}, is past its end, byte {end}"
        )));
    }
    Ok(match (disk, offset) {
        (Some(disk), _) => disk.data_store(),
        (None, 0) => Arc::clone(whole),
        (None, offset) => Arc::new(Window::from(Arc::clone(whole), offset)),
    })
}

/// Root hash that a certificate has signed, and the file with the hash tree, if it has one of its own.
fn signed(
    path: &Path,
    disk: Option<&Disk>,
    by: &Certificate,
) -> Result<(Option<Root>, Option<PathBuf>)> {
    if let Some(disk) = disk {
        return Ok((Some(certificate::of_disk(disk, path, by)?), None));
    }
    let all = [FlatFiles::beside(path), FlatFiles::of_name(path)];
    let mut all: Vec<FlatFiles> = all.into_iter().flatten().collect();
    let Some(at) = all.iter().position(|flat| flat.signature.is_file()) else {
        let what = match all.iter().any(|flat| flat.root.is_file()) {
            true => "the image comes without a signature",
            false => "the image comes without a root hash that a signature could be of",
        };
        return Err(certificate::refused(path, by, what));
    };
    let flat = all.swap_remove(at);
    let root = certificate::of_files(&flat, path, by)?;
    Ok((Some(root), Some(flat.tree).filter(|tree| tree.is_file())))
}
