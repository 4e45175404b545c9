//! Common access to the two kinds of trees in a comparison.

use super::host::HostTree;
use super::node::Node;
use crate::read::{Image, Inode, Xattr};
use crate::walk::{push_name, shown};
use crate::{Error, Place, Result};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::os::unix::fs::FileExt;
use tuff_format::dirent::is_name;
use tuff_store::retry;

/// Tree on one side of a comparison.
pub enum Side<'a> {
    /// Tree of an image, and the image's name in error messages.
    Image(&'a Image, String),
    /// Directory of the host.
    Host(HostTree),
}

/// Readable content of a file on one side.
pub(super) enum Content<'a> {
    /// File of an image, and its place in error messages.
    Image(&'a Image, Inode, Place),
    /// File of the host, and its path.
    Host(std::fs::File, Place),
}

impl<'a> Side<'a> {
    pub(super) fn root(&self) -> Result<Node> {
        match self {
            Self::Image(image, image_name) => {
                Ok(node(image.root().map_err(|e| within(image_name, b"", e))?))
            }
            Self::Host(tree) => tree.root(),
        }
    }

    /// Adds the path and the name of the image to an error. Errors of the host have their place.
    pub(super) fn failed(&self, path: &[u8], e: Error) -> Error {
        match self {
            Self::Image(_, name) => within(name, path, e),
            Self::Host(_) => e,
        }
    }

    /// Returns the names in a directory, in bytewise order.
    pub(super) fn names(&mut self, path: &[u8], dir: &Node) -> Result<Vec<Vec<u8>>> {
        match self {
            Self::Host(tree) => tree.names(path),
            Self::Image(image, image_name) => {
                let within = |e: Error| within(image_name, path, e);
                let inode = inode_of(dir)?;
                let mut names: Vec<Vec<u8>> = Vec::new();
                for entry in image.read_dir(inode).map_err(within)? {
                    let name = entry.map_err(within)?.name;
                    if name == b"." || name == b".." {
                        continue;
                    }
                    if !is_name(&name) || names.last().is_some_and(|last| *last >= name) {
                        let name = String::from_utf8_lossy(&name);
                        let what = format_args!("entry {name:?} is no name, or out of order");
                        return Err(within(Error::corrupt(inode.place(), what)));
                    }
                    names.push(name);
                }
                Ok(names)
            }
        }
    }

    /// Returns the inode of `name` in the directory `dir`.
    pub(super) fn node(&mut self, path: &[u8], dir: &Node, name: &[u8]) -> Result<Node> {
        match self {
            Self::Host(tree) => tree.node(path, name),
            Self::Image(image, image_name) => {
                let within = |e: Error| within(image_name, path, e);
                let nid = image.lookup(inode_of(dir)?, name).map_err(within)?;
                let nid = nid.ok_or_else(|| {
                    let name = String::from_utf8_lossy(name);
                    let what = format_args!("entry {name:?} is listed, but not found");
                    within(Error::corrupt("directory", what))
                })?;
                Ok(node(image.inode(nid).map_err(within)?))
            }
        }
    }

    /// Returns the target of the symlink `name`.
    pub(super) fn target(&mut self, path: &[u8], name: &[u8], node: &Node) -> Result<Vec<u8>> {
        match self {
            Self::Host(tree) => tree.target(path, name),
            Self::Image(image, image_name) => {
                let target = image.readlink(inode_of(node)?);
                target.map_err(|e| within(image_name, &joined(path, name), e))
            }
        }
    }

    /// Returns the xattrs, sorted by name.
    pub(super) fn xattrs(&mut self, path: &[u8], name: &[u8], node: &Node) -> Result<Vec<Xattr>> {
        match self {
            Self::Host(tree) => tree.xattrs(path, name),
            Self::Image(image, image_name) => {
                let xattrs = image.xattrs(inode_of(node)?);
                let mut xattrs = xattrs.map_err(|e| within(image_name, &joined(path, name), e))?;
                xattrs.sort();
                Ok(xattrs)
            }
        }
    }

    /// Returns the content of the file `name`.
    pub(super) fn content(&mut self, path: &[u8], name: &[u8], node: &Node) -> Result<Content<'a>> {
        let full = joined(path, name);
        match self {
            Self::Host(tree) => Ok(Content::Host(
                tree.file(path, name)?,
                Place::file(tree.place(&full)),
            )),
            Self::Image(image, image_name) => {
                let place = Place::path(shown(&full)).within(Place::file(image_name));
                Ok(Content::Image(image, *inode_of(node)?, place))
            }
        }
    }

    /// Returns the image, if this side is one.
    pub(super) fn image(&self) -> Option<&'a Image> {
        match self {
            Self::Image(image, _) => Some(image),
            Self::Host(_) => None,
        }
    }

    /// Returns true for a host directory, where link counts may include names outside the tree.
    pub(super) fn is_host(&self) -> bool {
        matches!(self, Self::Host(_))
    }
}

impl Content<'_> {
    /// Returns the first position from `at` on that is not in a hole, at most `size`.
    pub(super) fn data_from(&self, at: u64, size: u64) -> Result<u64> {
        match self {
            Self::Image(image, inode, place) => {
                let within = |e: Error| e.within(place.clone());
                for run in image.runs(inode, at..size).map_err(within)? {
                    let run = run.map_err(within)?;
                    if !run.is_hole {
                        return Ok(run.range.start);
                    }
                }
                Ok(size)
            }
            Self::Host(file, place) => match retry(|| rustix::fs::seek(file, SeekFrom::Data(at))) {
                Ok(found) => Ok(found.min(size)),
                // No data up to the end, unless the file was truncated. A read will detect that.
                Err(Errno::NXIO) => match retry(|| file.metadata()) {
                    Ok(meta) if meta.len() >= size => Ok(size),
                    _ => Ok(at),
                },
                // The filesystem does not support `SEEK_DATA`.
                Err(Errno::INVAL) => Ok(at),
                Err(e) => Err(Error::io(place.clone(), "cannot seek", e.into())),
            },
        }
    }

    /// Fills `buf` from `offset` on, up to the end of the file. Returns the number of bytes read.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        match self {
            Self::Image(image, inode, place) => {
                let read = image.read_at(inode, buf, offset);
                read.map_err(|e| e.within(place.clone()))
            }
            Self::Host(file, place) => {
                let mut n = 0;
                while n < buf.len() {
                    match file.read_at(&mut buf[n..], offset + n as u64) {
                        Ok(0) => break,
                        Ok(more) => n += more,
                        Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                        Err(e) => return Err(Error::io(place.clone(), "cannot read", e)),
                    }
                }
                Ok(n)
            }
        }
    }
}

/// Adds a path and the name of its image to an error.
fn within(image_name: &str, path: &[u8], e: Error) -> Error {
    e.within(Place::path(shown(path)))
        .within(Place::file(image_name))
}

/// Path of the entry `name` of the directory at `dir`.
fn joined(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    push_name(&mut path, name);
    path
}

fn node(inode: Inode) -> Node {
    Node {
        kind: inode.file_type(),
        mode: inode.mode() & 0o7777,
        uid: inode.uid(),
        gid: inode.gid(),
        mtime: inode.mtime(),
        nlink: inode.nlink().into(),
        size: inode.size(),
        device: inode.device(),
        id: (0, inode.nid().0),
        inode: Some(inode),
    }
}

fn inode_of(node: &Node) -> Result<&Inode> {
    let inode = node.inode.as_ref();
    inode.ok_or_else(|| Error::usage("not of this image"))
}
