//! Images as sources: their entries in order, and the content of their files.

use super::input_image::InputImage;
use super::{Content, DataRun, Device, Entry, Kind, Meta};
use crate::{Error, Place, Remedy, Result};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use tuff_erofs::read::WorkBudget;
use tuff_erofs::read::{Image, Inode};
use tuff_erofs::serve::{ServeOptions, Server, Session};
use tuff_erofs::walk::{self, Walk};
use tuff_format::Nid;
use tuff_format::inode::FileType;

/// Files of an image, which many threads read at once.
pub(crate) trait ImageFiles: Send + Sync {
    /// Fills `buf` from `offset` of the file with this key. Errors name its path.
    fn read_exact(&self, key: u64, path: &[u8], buf: &mut [u8], offset: u64) -> Result<()>;
}

/// Source image. Many threads read it at once; neighbours in its packed inode are decoded once.
pub(crate) struct ImageSource {
    server: Server,
    name: String,
    /// Sessions of idle threads.
    sessions: Mutex<Vec<Session>>,
}

impl ImageSource {
    /// Reads an image. Caches at most `budget` bytes of decoded data.
    ///
    /// # Errors
    ///
    /// * Errors of opening the image.
    /// * `Usage`: a device is missing.
    pub(crate) fn new(input: &InputImage, budget: usize) -> Result<Self> {
        let name = input.name().display().to_string();
        let image = input.reopen()?;
        image.has_devices().map_err(|e| {
            e.within(Place::file(&name))
                .with_remedy(Remedy::SourceDevices)
        })?;
        let options = ServeOptions {
            budget,
            ..ServeOptions::default()
        };
        Ok(Self {
            server: Server::new(image, options),
            name,
            sessions: Mutex::default(),
        })
    }

    /// Budget that limits the content read from the image.
    pub(crate) fn content_budget(&self) -> WorkBudget {
        self.server.image().content_budget()
    }

    /// Calls `take` with each entry, parents first. Further names of an inode come as hard links.
    pub(crate) fn each(&self, take: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()> {
        let image = self.server.image();
        let mut firsts: HashMap<Nid, Vec<u8>> = HashMap::new();
        let walk = Walk::root(image).map_err(|e| e.within(Place::file(&self.name)))?;
        for found in walk {
            let found = found.map_err(|e| e.within(Place::file(&self.name)))?;
            let inode = &found.inode;
            let first = if inode.is_dir() || inode.nlink() < 2 {
                None
            } else {
                firsts.get(&inode.nid()).cloned()
            };
            let entry = match first {
                Some(first) => Ok(Entry {
                    kind: Kind::Hardlink(first),
                    meta: meta(inode),
                    xattrs: Vec::new(),
                    content: Content::None,
                    path: found.path,
                }),
                None => {
                    if !inode.is_dir() && inode.nlink() > 1 {
                        firsts.insert(inode.nid(), found.path.clone());
                    }
                    entry(image, inode, &found.path).map_err(|e| {
                        e.within(Place::path(walk::shown(&found.path)))
                            .within(Place::file(&self.name))
                    })
                }
            };
            take(entry?)?;
        }
        Ok(())
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, Vec<Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ImageFiles for ImageSource {
    fn read_exact(&self, key: u64, path: &[u8], buf: &mut [u8], offset: u64) -> Result<()> {
        let nid = Nid(key);
        let session = self.sessions().pop();
        let mut session = session.unwrap_or_else(|| self.server.session());
        let read = || {
            let inode = self.server.inode(nid)?;
            let n = self.server.read(&mut session, &inode, offset, buf)?;
            match n == buf.len() {
                true => Ok(()),
                false => Err(Error::corrupt(
                    format_args!("nid {nid}"),
                    "data ends before its size",
                )),
            }
        };
        let result = { read }();
        self.sessions().push(session);
        result.map_err(|e| {
            e.within(Place::path(walk::shown(path)))
                .within(Place::file(&self.name))
        })
    }
}

fn meta(inode: &Inode) -> Meta {
    let (mtime, mtime_nsec) = inode.mtime();
    Meta {
        mode: inode.mode() & 0o7777,
        uid: inode.uid(),
        gid: inode.gid(),
        mtime,
        // A damaged image may have more.
        mtime_nsec: mtime_nsec.min(999_999_999),
    }
}

fn entry(image: &Image, inode: &Inode, path: &[u8]) -> Result<Entry> {
    let device = || {
        let (major, minor) = inode.device().unwrap_or((0, 0));
        Device { major, minor }
    };
    let mut content = Content::None;
    let kind = match inode.file_type() {
        FileType::File => {
            let size = inode.size();
            if size > 0 {
                content = content_of(image, inode)?;
            }
            Kind::File { size }
        }
        FileType::Dir => Kind::Dir,
        FileType::Symlink => Kind::Symlink(image.readlink(inode)?),
        FileType::Char => Kind::Char(device()),
        FileType::Block => Kind::Block(device()),
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
    };
    let mut xattrs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    if inode.has_xattrs() {
        let found = image.xattrs(inode)?;
        xattrs.extend(found.into_iter().map(|x| (x.name, x.value)));
        xattrs.sort_unstable();
    }
    Ok(Entry {
        path: path.to_vec(),
        kind,
        meta: meta(inode),
        xattrs,
        content,
    })
}

/// Location of a file's content: its nid, and the data runs if it has holes.
fn content_of(image: &Image, inode: &Inode) -> Result<Content> {
    let location = Content::Range {
        offset: inode.nid().0,
    };
    if !image.may_have_holes(inode)? {
        return Ok(location);
    }
    let mut runs: Vec<DataRun> = Vec::new();
    let mut holes = false;
    for run in image.runs(inode, 0..inode.size())? {
        let run = run?;
        let (start, len) = (run.range.start, run.range.end - run.range.start);
        match runs.last_mut() {
            _ if run.is_hole => holes = true,
            Some(last) if last.file_offset + last.len == start => last.len += len,
            _ => runs.push(DataRun {
                file_offset: start,
                source_offset: 0,
                len,
            }),
        }
    }
    Ok(match holes {
        true => location.sparse(runs),
        false => location,
    })
}
