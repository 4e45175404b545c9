//! Extra devices of images: those that the caller gives, and those that are found beside the image.
//!
//! A slot of a device table may name an image by its UUID. Such a device may be given in any order, and is looked for in the
//! directory of the image if it is not given. A UUID proves nothing: a file counts only if its owner could replace the
//! image as well, and never where a root hash or a certificate has to cover everything that is read.

use crate::options::Device;
use crate::reference::ImageRef;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use tuff_erofs::read::devices::{DeviceTable, assign, names_image, tag_of};
use tuff_format::device::Slot;
use tuff_store::{FileStore, ReadAt};

/// Largest number of entries of a directory in which devices are looked for.
const ENTRIES_MAX: usize = 4096;
/// Prefix of the tag of an image without a UUID, which any other image without one has as well.
const NO_UUID: &[u8] = b"erofs:00000000000000000000000000000000";

/// Returns the devices of each of several images. A given device belongs to every image that names it by its UUID. Devices
/// without a name belong to the images in order; two images that are compared may both have all of them. Images behind URLs have
/// none of them.
///
/// # Errors
/// The first device that belongs to no image.
pub fn of_images(
    images: &[&ImageRef],
    given: &[Device],
    is_comparison: bool,
) -> Result<Vec<Vec<Device>>, Device> {
    let open = |image: &&ImageRef| image.path().and_then(Table::open);
    let tables: Vec<Option<Table>> = images.iter().map(open).collect();
    let is_named = |device: &&Device| {
        let tag = tag(device);
        let mut slots = tables.iter().flatten().flat_map(|table| &table.slots.slots);
        tag.is_some() && slots.any(|slot| names_image(slot) && Some(slot.tag) == tag)
    };
    let (named, other): (Vec<&Device>, Vec<&Device>) = given.iter().partition(is_named);
    let fits = |table: &Table| match table.is_inside {
        true => 0,
        false => table.slots.slots.len(),
    };
    let others = |table: &Table| {
        let own = named.iter().filter(|device| table.names(device)).count();
        fits(table).saturating_sub(own)
    };
    let outside = tables.iter().flatten().filter(|table| fits(table) > 0);
    let outside: Vec<&Table> = outside.collect();
    let shared = is_comparison
        && !outside.is_empty()
        && outside.iter().all(|table| others(table) == other.len());
    let mut next = other.iter();
    let mut all = Vec::with_capacity(images.len());
    for (image, table) in images.iter().zip(&tables) {
        let (Some(path), Some(table)) = (image.path(), table) else {
            all.push(Vec::new());
            continue;
        };
        let own = named.iter().filter(|device| table.names(device));
        let mut devices: Vec<Device> = own.map(|device| (*device).clone()).collect();
        match shared {
            true => devices.extend(other.iter().map(|device| (*device).clone())),
            false => {
                let rest = next.by_ref().take(others(table));
                devices.extend(rest.map(|device| (*device).clone()));
            }
        }
        all.push(table.complete(path, &devices).unwrap_or(devices));
    }
    match next.next() {
        Some(device) if !shared => Err((*device).clone()),
        _ => Ok(all),
    }
}

/// Returns the devices of the image in the file `path`, whose bytes are in `store`, in the order of its device table: those of
/// `given`, and others that are beside the image. Returns `given` if a device is missing, or if all data is in the file.
pub(crate) fn of_image(path: &Path, store: &dyn ReadAt, given: &[Device]) -> Vec<Device> {
    let complete = Table::read(store).and_then(|table| table.complete(path, given));
    complete.unwrap_or_else(|| given.to_vec())
}

/// Describes the first device of the image in the file `path`, whose bytes are in `store`, that is neither given nor beside it.
pub(crate) fn missing(path: &Path, store: &dyn ReadAt, given: &[Device]) -> Option<String> {
    let table = Table::read(store).filter(|table| !table.is_inside)?;
    let (found, _) = assign(&table.slots.slots, given.to_vec(), tag);
    let beside = Beside::list(path);
    for (number, (slot, found)) in (1..).zip(table.slots.slots.iter().zip(found)) {
        if found.is_some() {
            continue;
        }
        let what = match beside.find(slot, table.block_bytes()) {
            Search::Found(_) => continue,
            Search::Ambiguous(one, other) => format!(
                "data is on device {number}, and both {} and {} have its UUID",
                one.display(),
                other.display()
            ),
            Search::TooMany => format!(
                "data is on device {number}: it was not given, and the directory of the image has more than {ENTRIES_MAX} entries"
            ),
            Search::None if names_image(slot) => format!(
                "data is on device {number}, the image with UUID {}: it was not given, and no file beside the image is it",
                slot.tag[6..38].escape_ascii()
            ),
            Search::None => format!("data is on device {number}: it was not given"),
        };
        return Some(what);
    }
    None
}

/// Device table of an image in a file.
struct Table {
    slots: DeviceTable,
    /// All data follows the image in its file.
    is_inside: bool,
}

impl Table {
    /// Opens the table of the image at `path`. `None` if it is no image, or has no devices.
    fn open(path: &Path) -> Option<Self> {
        Self::read(&open(path)?)
    }

    fn read(store: &dyn ReadAt) -> Option<Self> {
        let slots = DeviceTable::read(store).ok()?;
        let is_inside = slots.is_inside(store.size());
        (!slots.slots.is_empty()).then_some(Self { slots, is_inside })
    }

    fn block_bytes(&self) -> u64 {
        self.slots.block_bits.size()
    }

    /// Returns true if a slot names the image in `device`.
    fn names(&self, device: &Device) -> bool {
        let tag = tag(device);
        let mut slots = self.slots.slots.iter();
        tag.is_some() && slots.any(|slot| names_image(slot) && Some(slot.tag) == tag)
    }

    /// Returns a device for each slot, or `None` if one is missing.
    fn complete(&self, path: &Path, given: &[Device]) -> Option<Vec<Device>> {
        if given.is_empty() && self.is_inside {
            return None;
        }
        let (found, rest) = assign(&self.slots.slots, given.to_vec(), tag);
        if !rest.is_empty() {
            return None;
        }
        let mut beside = None;
        let slots = self.slots.slots.iter().zip(found);
        let found = slots.map(|(slot, found)| {
            found.or_else(|| {
                let beside = beside.get_or_insert_with(|| Beside::list(path));
                match beside.find(slot, self.block_bytes()) {
                    Search::Found(path) => Some(ImageRef::Path(path).into()),
                    _ => None,
                }
            })
        });
        found.collect()
    }
}

/// Returns the tag of a slot for the image in the file or block device of `device`.
fn tag(device: &Device) -> Option<[u8; 64]> {
    tag_of(&open(device.image.path()?)?)
}

/// Opens a file or a block device. Returns `None` for everything else: a pipe can be read once.
fn open(path: &Path) -> Option<FileStore> {
    let meta = fs::metadata(path).ok()?;
    let is_device = meta.file_type().is_block_device();
    (meta.is_file() || is_device)
        .then(|| FileStore::open(path).ok())
        .flatten()
}

/// Result of a search.
enum Search {
    Found(PathBuf),
    None,
    /// Two different files hold an image with the UUID.
    Ambiguous(PathBuf, PathBuf),
    /// The directory has too many entries.
    TooMany,
}

/// Images in the directory of an image.
struct Beside {
    /// Paths with the tags and the lengths in bytes, by path. Several names of a file are listed once.
    images: Vec<(PathBuf, [u8; 64], u64)>,
    is_complete: bool,
}

impl Beside {
    /// Lists the images beside the file `image`: those in the directory of its path, and in that of the file itself if the
    /// path is a symbolic link.
    fn list(image: &Path) -> Self {
        let mut beside = Self {
            images: Vec::new(),
            is_complete: true,
        };
        let Some(own) = fs::metadata(image).ok().filter(Metadata::is_file) else {
            return beside;
        };
        let parent = |path: &Path| match path.parent() {
            Some(dir) if dir.as_os_str().is_empty() => Some(PathBuf::from(".")),
            dir => dir.map(Path::to_owned),
        };
        let mut dirs: Vec<PathBuf> = parent(image).into_iter().collect();
        if image.is_symlink() {
            dirs.extend(fs::canonicalize(image).ok().as_deref().and_then(parent));
        }
        let mut known = vec![(own.dev(), own.ino())];
        for dir in dirs {
            beside.add(&dir, &own, &mut known);
        }
        beside
    }

    fn add(&mut self, dir: &Path, own: &Metadata, known: &mut Vec<(u64, u64)>) {
        let Ok(entries) = fs::read_dir(dir) else {
            return;
        };
        let mut paths: Vec<PathBuf> = Vec::new();
        for entry in entries.flatten() {
            if paths.len() == ENTRIES_MAX {
                self.is_complete = false;
                return;
            }
            paths.push(match dir == Path::new(".") {
                true => entry.file_name().into(),
                false => entry.path(),
            });
        }
        paths.sort_unstable();
        for path in paths {
            // A link of another user could name another file a moment later.
            let is_trusted = fs::symlink_metadata(&path).is_ok_and(|meta| is_trusted(&meta, own));
            let Some(file) = is_trusted
                .then(|| tuff_store::open_regular(&path).ok())
                .flatten()
            else {
                continue;
            };
            let Ok(meta) = file.metadata() else { continue };
            let id = (meta.dev(), meta.ino());
            if !is_trusted_file(&meta, own) || known.contains(&id) {
                continue;
            }
            known.push(id);
            if let Some(tag) = FileStore::new(file)
                .ok()
                .as_ref()
                .and_then(|store| tag_of(store))
            {
                self.images.push((path, tag, meta.len()));
            }
        }
    }

    /// Finds the image that a slot names.
    fn find(&self, slot: &Slot, block: u64) -> Search {
        if !names_image(slot) || slot.tag.starts_with(NO_UUID) {
            return Search::None;
        }
        let len = slot.blocks.saturating_mul(block);
        let mut found = self
            .images
            .iter()
            .filter(|(_, tag, size)| *tag == slot.tag && *size >= len);
        match (found.next(), found.next()) {
            _ if !self.is_complete => Search::TooMany,
            (Some((path, ..)), None) => Search::Found(path.clone()),
            (Some((one, ..)), Some((other, ..))) => Search::Ambiguous(one.clone(), other.clone()),
            (None, _) => Search::None,
        }
    }
}

/// Returns true if the owner of a file or link is root, this user, or the owner of the image.
fn is_trusted(meta: &Metadata, image: &Metadata) -> bool {
    let user = rustix::process::geteuid().as_raw();
    [0, user, image.uid()].contains(&meta.uid())
}

fn is_trusted_file(meta: &Metadata, image: &Metadata) -> bool {
    meta.is_file() && is_trusted(meta, image)
}
