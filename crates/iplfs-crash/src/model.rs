//! Simplest possible filesystem, as the expectation for a volume.

use std::collections::BTreeMap;
use tuff_iplfs::{BLOCK_SIZE, Errno, Error, Nid, Result, Volume, mode};

/// Number of an object in the model. It never changes and is never reused.
pub type ObjectId = u32;

/// Content of a file with holes. Only blocks that are not zero are stored.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sparse {
    /// Length of the file. Unit: bytes.
    pub size: u64,
    /// Blocks by their index.
    pub blocks: BTreeMap<u64, Vec<u8>>,
}

const BS: u64 = BLOCK_SIZE as u64;

impl Sparse {
    /// Writes bytes at an offset, and grows the file if necessary.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut rest = data;
        let mut at = offset;
        while !rest.is_empty() {
            let from = (at % BS) as usize;
            let (now, later) = rest.split_at(rest.len().min(BLOCK_SIZE - from));
            let block = self
                .blocks
                .entry(at / BS)
                .or_insert_with(|| vec![0; BLOCK_SIZE]);
            block[from..from + now.len()].copy_from_slice(now);
            at += now.len() as u64;
            rest = later;
        }
        self.size = self.size.max(offset + data.len() as u64);
        self.tidy();
    }

    /// Zeroes a range inside the file.
    pub fn zero(&mut self, offset: u64, end: u64) {
        for (index, block) in self
            .blocks
            .range_mut(offset / BS..end.div_ceil(BS).max(offset / BS))
        {
            let from = offset.saturating_sub(index * BS).min(BS) as usize;
            let to = (end - index * BS).min(BS) as usize;
            block[from..to].fill(0);
        }
        self.tidy();
    }

    /// Sets the length of the file.
    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size);
        }
        self.size = size;
    }

    fn tidy(&mut self) {
        self.blocks
            .retain(|_, block| block.iter().any(|byte| *byte != 0));
    }

    fn sum(&self) -> u32 {
        self.blocks.iter().fold(0, |sum, (index, b)| {
            crc32c::crc32c_append(sum ^ *index as u32, b)
        })
    }
}

impl From<Vec<u8>> for Sparse {
    fn from(bytes: Vec<u8>) -> Self {
        let mut sparse = Self::default();
        sparse.write(0, &bytes);
        sparse
    }
}

/// File, directory or other object.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Object {
    /// Type and permission bits.
    pub mode: u32,
    /// Content of a file, or target of a link.
    pub bytes: Sparse,
    /// Entries of a directory, by name.
    pub entries: BTreeMap<Vec<u8>, ObjectId>,
    /// Extended attributes, by name.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Time of the last change of content, counted in operations.
    pub mtime: i64,
    /// Time of creation, counted in operations.
    pub btime: i64,
}

impl Object {
    fn is_dir(&self) -> bool {
        self.mode & mode::TYPE == mode::DIR
    }
}

/// State of the whole filesystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Model {
    /// Objects by number. The root is 1.
    pub objects: BTreeMap<ObjectId, Object>,
    /// Number of the next object.
    pub next: ObjectId,
    /// Trees of snapshots, by name.
    pub snapshots: BTreeMap<String, Tree>,
}

/// Visible state of a filesystem: one inode per path.
pub type Tree = BTreeMap<String, VisibleInode>;

/// Visible state of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VisibleInode {
    /// First path, in order, that leads to the same object. Distinguishes hard links from copies.
    pub same_as: String,
    /// Type and permission bits.
    pub mode: u32,
    /// Number of links to the object.
    pub nlink: u32,
    /// Content of a file, or target of a link.
    pub bytes: Sparse,
    /// Extended attributes, by name.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Time of the last change of content.
    pub mtime: i64,
}

impl Default for Model {
    fn default() -> Self {
        let root = Object {
            mode: mode::DIR | 0o755,
            ..Object::default()
        };
        Self {
            objects: [(1, root)].into(),
            next: 2,
            snapshots: BTreeMap::new(),
        }
    }
}

impl Model {
    /// Returns the object at a path such as `/d/c`.
    pub fn at(&self, path: &str) -> Option<ObjectId> {
        let mut id = 1;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            id = *self.objects.get(&id)?.entries.get(name.as_bytes())?;
        }
        Some(id)
    }

    /// Splits a path into its directory and its last name.
    pub fn parent(&self, path: &str) -> Option<(ObjectId, Vec<u8>)> {
        let (dir, name) = path.rsplit_once('/')?;
        let id = self.at(dir)?;
        self.objects
            .get(&id)?
            .is_dir()
            .then(|| (id, name.as_bytes().to_vec()))
    }

    /// Adds an object under a name.
    pub fn add(&mut self, dir: ObjectId, name: &[u8], object: Object) -> ObjectId {
        let id = self.next;
        self.next += 1;
        self.objects.insert(id, object);
        self.object(dir).entries.insert(name.to_vec(), id);
        id
    }

    /// Returns an object that exists.
    pub fn object(&mut self, id: ObjectId) -> &mut Object {
        self.objects.entry(id).or_default()
    }

    /// Returns every name of an object.
    pub fn names(&self, id: ObjectId) -> Vec<(ObjectId, Vec<u8>)> {
        let mut names = Vec::new();
        for (dir, object) in &self.objects {
            names.extend(
                object
                    .entries
                    .iter()
                    .filter(|(_, to)| **to == id)
                    .map(|(name, _)| (*dir, name.clone())),
            );
        }
        names
    }

    /// Removes objects without a name.
    pub fn sweep(&mut self) {
        loop {
            let named: Vec<ObjectId> = self
                .objects
                .values()
                .flat_map(|o| o.entries.values().copied())
                .collect();
            let before = self.objects.len();
            self.objects.retain(|id, _| *id == 1 || named.contains(id));
            if self.objects.len() == before {
                return;
            }
        }
    }

    /// Visible state of the files, and of every snapshot under its name.
    pub fn tree(&self) -> Tree {
        let mut tree = self.present();
        for (name, snapshot) in &self.snapshots {
            tree.extend(
                snapshot
                    .iter()
                    .map(|(path, seen)| (format!("{name}:{path}"), seen.clone())),
            );
        }
        tree
    }

    /// Visible state without the snapshots.
    pub fn present(&self) -> Tree {
        let mut tree = Tree::new();
        let mut first: BTreeMap<ObjectId, String> = BTreeMap::new();
        self.visit(1, "/", &mut tree, &mut first);
        tree
    }

    fn visit(
        &self,
        id: ObjectId,
        path: &str,
        tree: &mut Tree,
        first: &mut BTreeMap<ObjectId, String>,
    ) {
        let object = &self.objects[&id];
        let same_as = first.entry(id).or_insert_with(|| path.to_string()).clone();
        let nlink = if object.is_dir() {
            2 + object
                .entries
                .values()
                .filter(|id| self.objects[id].is_dir())
                .count() as u32
        } else {
            self.names(id).len() as u32
        };
        let seen = VisibleInode {
            same_as,
            mode: object.mode,
            nlink,
            bytes: object.bytes.clone(),
            xattrs: object.xattrs.clone(),
            mtime: object.mtime,
        };
        tree.insert(path.to_string(), seen);
        for (name, child) in &object.entries {
            let path = join(path, name);
            self.visit(*child, &path, tree, first);
        }
    }
}

fn join(dir: &str, name: &[u8]) -> String {
    format!(
        "{}/{}",
        dir.trim_end_matches('/'),
        String::from_utf8_lossy(name)
    )
}

/// Visible state of a mounted volume.
pub fn tree_of(volume: &mut Volume) -> Result<Tree> {
    let mut tree = Tree::new();
    let mut first: BTreeMap<Nid, String> = BTreeMap::new();
    visit_volume(volume, Nid::ROOT, "/", &mut tree, &mut first)?;
    let names: Vec<String> = volume
        .snapshots()
        .iter()
        .map(|snapshot| snapshot.name.clone())
        .collect();
    for name in names {
        let snapshot = tree_of(&mut volume.open_snapshot(&name)?)?;
        tree.extend(
            snapshot
                .into_iter()
                .map(|(path, seen)| (format!("{name}:{path}"), seen)),
        );
    }
    Ok(tree)
}

fn visit_volume(
    volume: &mut Volume,
    ino: Nid,
    path: &str,
    tree: &mut Tree,
    first: &mut BTreeMap<Nid, String>,
) -> Result<()> {
    let attr = volume.attr(ino)?;
    let is_dir = attr.mode & mode::TYPE == mode::DIR;
    let same_as = first.entry(ino).or_insert_with(|| path.to_string()).clone();
    let bytes = if is_dir {
        Sparse::default()
    } else {
        content(volume, ino, attr.size)?
    };
    let xattrs = volume.xattrs(ino)?;
    let seen = VisibleInode {
        same_as,
        mode: attr.mode,
        nlink: attr.nlink,
        bytes,
        xattrs,
        mtime: attr.mtime.sec,
    };
    tree.insert(path.to_string(), seen);
    if is_dir {
        let mut entries = volume.read_dir(ino, 2, usize::MAX)?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            visit_volume(volume, entry.ino, &join(path, &entry.name), tree, first)?;
        }
    }
    Ok(())
}

/// Reads the data of a file, without its holes.
fn content(volume: &mut Volume, ino: Nid, size: u64) -> Result<Sparse> {
    let mut sparse = Sparse {
        size,
        ..Sparse::default()
    };
    let mut at = 0;
    while at < size {
        let data = match volume.seek_data(ino, at) {
            Ok(data) => data,
            Err(Error::Posix(Errno::NoSuchOffset)) => break,
            Err(e) => return Err(e),
        };
        let hole = volume.seek_hole(ino, data)?;
        sparse.write(data, &volume.read(ino, data, (hole - data) as usize)?);
        at = hole;
    }
    sparse.size = size;
    Ok(sparse)
}

/// Describes the first difference between two trees.
pub fn difference(want: &Tree, got: &Tree) -> Option<String> {
    for (path, seen) in got {
        match want.get(path) {
            None => return Some(format!("{path} exists")),
            Some(other) if other != seen => {
                let bytes = |s: &VisibleInode| {
                    format!(
                        "{} bytes {:#x}, mode {:o}, {} links",
                        s.bytes.size,
                        s.bytes.sum(),
                        s.mode,
                        s.nlink
                    )
                };
                return Some(format!(
                    "{path}: {} (mtime {}, {} xattrs, same as {}), expected {} (mtime {}, {} xattrs, same as {})",
                    bytes(seen),
                    seen.mtime,
                    seen.xattrs.len(),
                    seen.same_as,
                    bytes(other),
                    other.mtime,
                    other.xattrs.len(),
                    other.same_as
                ));
            }
            _ => {}
        }
    }
    want.keys()
        .find(|path| !got.contains_key(*path))
        .map(|path| format!("{path} is missing"))
}
