//! SquashFS images as sources: their entries in order, and the content of their files.

use super::error::SourceError;
use super::image::ImageFiles;
use super::{Content, DataRun, Device, Entry, Kind, Meta};
use crate::{Error, Place, Result};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tuff_squashfs::{FileContent, FileLayout, Image, Inode, InodeKind};
use tuff_store::FileStore;

/// Files that are kept open.
const OPEN_MAX: usize = 64;

/// Source image. Many threads read it at once.
pub(crate) struct SquashFsSource {
    image: Image,
    name: String,
    /// Open files by the references of their inodes, last used last.
    open: Mutex<Vec<(u64, Arc<FileContent>)>>,
}

impl SquashFsSource {
    /// Opens an image: a file or a block device.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let store = FileStore::open(path);
        let store = store.map_err(|e| Error::io(Place::file(&name), "cannot open", e))?;
        let image = Image::open(store).map_err(|e| source_error(e).in_source(&name))?;
        Ok(Self {
            image,
            name,
            open: Mutex::default(),
        })
    }

    /// Length of the image. Unit: bytes.
    pub(crate) fn len(&self) -> u64 {
        self.image.superblock().bytes_used
    }

    /// Calls `take` with each entry, parents first. Further names of an inode come as hard links.
    pub(crate) fn each(&self, take: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()> {
        let mut firsts: HashMap<u64, Vec<u8>> = HashMap::new();
        let mut walk = self.image.walk();
        while let Some(found) = walk.next() {
            let found = found.map_err(|e| self.failed(e, walk.path()))?;
            let (inode, path) = (found.inode, found.path);
            let is_linked = !inode.is_dir() && inode.nlink > 1;
            let first = firsts.get(&inode.reference).filter(|_| is_linked);
            if let Some(first) = first {
                take(Entry {
                    kind: Kind::Hardlink(first.clone()),
                    meta: meta(&inode),
                    xattrs: Vec::new(),
                    content: Content::None,
                    path,
                })?;
                continue;
            }
            if is_linked {
                firsts.insert(inode.reference, path.clone());
            }
            let entry = self.entry(&inode, path.clone());
            take(entry.map_err(|e| self.failed(e, &path))?)?;
        }
        Ok(())
    }

    fn entry(&self, inode: &Inode, path: Vec<u8>) -> tuff_squashfs::Result<Entry> {
        let device = |device: tuff_squashfs::Device| Device {
            major: device.major,
            minor: device.minor,
        };
        let mut content = Content::None;
        let kind = match &inode.kind {
            InodeKind::File(layout) => {
                if layout.size > 0 {
                    content = self.location(inode.reference, layout)?;
                }
                Kind::File { size: layout.size }
            }
            InodeKind::Dir(_) => Kind::Dir,
            InodeKind::Symlink(target) => Kind::Symlink(target.clone()),
            InodeKind::Char(number) => Kind::Char(device(*number)),
            InodeKind::Block(number) => Kind::Block(device(*number)),
            InodeKind::Fifo => Kind::Fifo,
            InodeKind::Socket => Kind::Socket,
        };
        Ok(Entry {
            path,
            kind,
            meta: meta(inode),
            xattrs: self.image.xattrs(inode)?,
            content,
        })
    }

    /// Location of a file's content: its inode, and the data runs if it has holes.
    fn location(&self, reference: u64, layout: &FileLayout) -> tuff_squashfs::Result<Content> {
        let location = Content::Range { offset: reference };
        let Some(runs) = self.image.data_runs(layout)? else {
            return Ok(location);
        };
        let runs = runs.into_iter().map(|run| DataRun {
            file_offset: run.start,
            source_offset: 0,
            len: run.end - run.start,
        });
        Ok(location.sparse(runs.collect::<Vec<_>>()))
    }

    /// Returns an open file.
    fn file(&self, reference: u64) -> tuff_squashfs::Result<Arc<FileContent>> {
        let open = || self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list = open();
        if let Some(at) = list.iter().position(|(key, _)| *key == reference) {
            let found = list.remove(at);
            list.push(found.clone());
            return Ok(found.1);
        }
        drop(list);
        let inode = self.image.inode(reference)?;
        let InodeKind::File(layout) = &inode.kind else {
            let what = "a file became something else while it was read";
            return Err(tuff_squashfs::Error::Corrupt(what.into()));
        };
        let file = Arc::new(self.image.content(layout)?);
        let mut list = open();
        if list.len() == OPEN_MAX {
            list.remove(0);
        }
        list.push((reference, Arc::clone(&file)));
        Ok(file)
    }

    fn failed(&self, e: tuff_squashfs::Error, path: &[u8]) -> Error {
        let e = source_error(e).in_member(path).in_source(&self.name);
        Error::from(e)
    }
}

impl ImageFiles for SquashFsSource {
    fn read_exact(&self, key: u64, path: &[u8], buf: &mut [u8], offset: u64) -> Result<()> {
        let read = self
            .file(key)
            .and_then(|file| self.image.read_exact(&file, buf, offset));
        read.map_err(|e| self.failed(e, path))
    }
}

fn source_error(e: tuff_squashfs::Error) -> SourceError {
    match e {
        tuff_squashfs::Error::Corrupt(what) => SourceError::corrupt(what),
        tuff_squashfs::Error::Unsupported(what) => SourceError::unsupported(what),
        tuff_squashfs::Error::Limit(what) => SourceError::limit(what),
        tuff_squashfs::Error::Io(e) => SourceError::io("cannot read", e),
    }
}

fn meta(inode: &Inode) -> Meta {
    Meta {
        mode: inode.mode,
        uid: inode.uid,
        gid: inode.gid,
        mtime: inode.mtime.into(),
        mtime_nsec: 0,
    }
}
