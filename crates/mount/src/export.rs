//! Export of image files: a read-only filesystem of named files, each read from a store.
//!
//! The kernel's EROFS can be mounted on such a file. Names and sizes stay, so the kernel may cache them and the content
//! without end. Files may be added to an export that [`grows`](ExportFs::growing): the kernel caches no absent name of it. A read that fails is EIO; if the server is killed, the kernel answers ENOTCONN. A read that waits for its
//! store occupies one serving thread: see [`THREADS`].

use crate::image::{StoreCounters, StoreRequests};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use tuff_fuse::Log;
use tuff_fuse::filesystem::{Entry, Filesystem, LookupResult, Node, Parts, Reader, Result, Seek};
use tuff_fuse::protocol::{Attr, ROOT, StatfsOut};
use tuff_store::ReadAt;

/// Number of serving threads, and so of reads that may wait for their stores at once.
pub const THREADS: usize = 16;

/// Longest read, so that the memory of all threads is small. Unit: pages of 4 KiB.
const READ_PAGES: u16 = 64;

/// Longest name of a file or directory. Unit: bytes.
const NAME_MAX: usize = 255;

const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;

/// Read-only filesystem of named files.
#[derive(Clone)]
pub struct ExportFs {
    /// Files and directories, in the order of their node numbers from [`ROOT`] on.
    nodes: Arc<RwLock<Vec<ExportNode>>>,
    /// True if files may be added.
    grows: bool,
    owner: (u32, u32),
    store_counters: Option<StoreCounters>,
    store_requests: Option<StoreRequests>,
    log: Log,
}

/// File or directory of an export.
#[derive(Clone)]
struct ExportNode {
    parent: Node,
    content: Content,
}

#[derive(Clone)]
enum Content {
    Directory(BTreeMap<String, Node>),
    File(Arc<ExportFile>),
}

struct ExportFile {
    /// Path in the export, for the log.
    path: String,
    store: Arc<dyn ReadAt>,
}

/// Name in an export that cannot be used: it occurs twice, or is not a relative path of plain names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadName(pub String);

impl ExportFs {
    /// Creates a filesystem of `files`: relative paths and their content. Failed reads are reported to `log`.
    ///
    /// # Errors
    /// Fails for a path that occurs twice, lies below a file, or has a component that is empty, ".", ".." or too long.
    pub fn new(
        files: impl IntoIterator<Item = (String, Arc<dyn ReadAt>)>,
        log: Log,
    ) -> Result<Self, BadName> {
        let root = ExportNode {
            parent: ROOT,
            content: Content::Directory(BTreeMap::new()),
        };
        let mut nodes = vec![root];
        add_all(&mut nodes, files)?;
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        Ok(Self {
            nodes: Arc::new(RwLock::new(nodes)),
            grows: false,
            owner: (uid.as_raw(), gid.as_raw()),
            store_counters: None,
            store_requests: None,
            log,
        })
    }

    /// Adds the counters of the stores.
    #[must_use]
    pub fn with_store_counters(self, store_counters: StoreCounters) -> Self {
        Self {
            store_counters: Some(store_counters),
            ..self
        }
    }

    /// Adds the requests of the stores.
    #[must_use]
    pub fn with_store_requests(self, store_requests: StoreRequests) -> Self {
        Self {
            store_requests: Some(store_requests),
            ..self
        }
    }

    /// The same export, to which files may be added.
    #[must_use]
    pub fn growing(self) -> Self {
        Self {
            grows: true,
            ..self
        }
    }

    /// Adds files to an export that grows.
    ///
    /// # Errors
    /// As [`new`](Self::new). No file is added then.
    pub fn add(
        &self,
        files: impl IntoIterator<Item = (String, Arc<dyn ReadAt>)>,
    ) -> Result<(), BadName> {
        assert!(self.grows, "bug: the kernel caches absent names");
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        let mut more = nodes.clone();
        add_all(&mut more, files)?;
        *nodes = more;
        Ok(())
    }

    fn nodes(&self) -> RwLockReadGuard<'_, Vec<ExportNode>> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, node: Node) -> Result<Arc<ExportFile>> {
        match &find(&self.nodes(), node)?.content {
            Content::File(file) => Ok(Arc::clone(file)),
            Content::Directory(_) => Err(Errno::ISDIR),
        }
    }
}

fn find(nodes: &[ExportNode], node: Node) -> Result<&ExportNode> {
    let index = usize::try_from(node.wrapping_sub(ROOT)).ok();
    let found = index.and_then(|index| nodes.get(index));
    found.ok_or(Errno::STALE)
}

/// Names of a directory, and its parent.
fn directory(nodes: &[ExportNode], node: Node) -> Result<(&BTreeMap<String, Node>, Node)> {
    let found = find(nodes, node)?;
    match &found.content {
        Content::Directory(names) => Ok((names, found.parent)),
        Content::File(_) => Err(Errno::NOTDIR),
    }
}

fn add_all(
    nodes: &mut Vec<ExportNode>,
    files: impl IntoIterator<Item = (String, Arc<dyn ReadAt>)>,
) -> Result<(), BadName> {
    for (path, store) in files {
        add(nodes, &path, store).ok_or(BadName(path))?;
    }
    Ok(())
}

/// Adds a file and the directories of its path. Returns None if the path cannot be used.
fn add(nodes: &mut Vec<ExportNode>, path: &str, store: Arc<dyn ReadAt>) -> Option<()> {
    let is_plain = |name: &str| {
        !matches!(name, "" | "." | "..") && name.len() <= NAME_MAX && !name.contains('\0')
    };
    let (mut dir, mut rest) = (ROOT, path);
    while let Some((name, below)) = rest.split_once('/') {
        let known = match &nodes[(dir - ROOT) as usize].content {
            Content::Directory(names) => names.get(name).copied(),
            Content::File(_) => return None,
        };
        let empty = || Content::Directory(BTreeMap::new());
        dir = match known {
            Some(node) => node,
            None if is_plain(name) => insert(nodes, dir, name, empty())?,
            None => return None,
        };
        rest = below;
    }
    let content = Content::File(Arc::new(ExportFile {
        path: path.to_owned(),
        store,
    }));
    is_plain(rest).then_some(())?;
    insert(nodes, dir, rest, content).map(|_| ())
}

fn kind(nodes: &[ExportNode], node: Node) -> u32 {
    match find(nodes, node).map(|node| &node.content) {
        Ok(Content::File(_)) => FILE,
        Ok(Content::Directory(_)) | Err(_) => DIRECTORY,
    }
}

/// Adds a node to a directory. Returns None if the directory is a file, or has the name already.
fn insert(nodes: &mut Vec<ExportNode>, parent: Node, name: &str, content: Content) -> Option<Node> {
    let node = ROOT + nodes.len() as u64;
    let Content::Directory(names) = &mut nodes[(parent - ROOT) as usize].content else {
        return None;
    };
    if names.contains_key(name) {
        return None;
    }
    names.insert(name.to_owned(), node);
    nodes.push(ExportNode { parent, content });
    Some(node)
}

impl Filesystem for ExportFs {
    fn lookup(&self, dir: Node, name: &[u8]) -> Result<Option<LookupResult>> {
        let node = match name {
            b"." => Some(dir),
            b".." => Some(directory(&self.nodes(), dir)?.1),
            name => {
                let nodes = self.nodes();
                let (names, _) = directory(&nodes, dir)?;
                let name = std::str::from_utf8(name).ok();
                name.and_then(|name| names.get(name)).copied()
            }
        };
        if node.is_none() && self.grows {
            return Err(Errno::NOENT);
        }
        let found = node.map(|node| {
            let attr = self.attr(node)?;
            Ok(LookupResult { node, attr })
        });
        found.transpose()
    }

    fn attr(&self, node: Node) -> Result<Attr> {
        let (mode, nlink, size) = match &find(&self.nodes(), node)?.content {
            Content::Directory(_) => (DIRECTORY | 0o500, 2, 0),
            Content::File(file) => (FILE | 0o400, 1, file.store.size()),
        };
        Ok(Attr {
            ino: node,
            size,
            blocks: size.div_ceil(512),
            mode,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            blksize: 4096,
            ..Attr::default()
        })
    }

    fn readlink(&self, _: Node) -> Result<Vec<u8>> {
        Err(Errno::INVAL)
    }

    fn max_pages(&self) -> u16 {
        READ_PAGES
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(ExportReader(self.clone()))
    }

    fn readdir(
        &self,
        dir: Node,
        offset: u64,
        each: &mut dyn FnMut(&Entry<'_>) -> bool,
    ) -> Result<()> {
        let nodes = self.nodes();
        let (names, parent) = directory(&nodes, dir)?;
        let dots = [(".", dir), ("..", parent)];
        let names = names.iter().map(|(name, node)| (name.as_str(), *node));
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, (name, node)) in dots.into_iter().chain(names).enumerate().skip(skip) {
            let entry = Entry {
                name: name.as_bytes(),
                node,
                ino: node,
                kind: kind(&nodes, node) >> 12,
                next: at as u64 + 1,
            };
            if !each(&entry) {
                break;
            }
        }
        Ok(())
    }

    fn getxattr(&self, node: Node, _: &[u8]) -> Result<Vec<u8>> {
        find(&self.nodes(), node)?;
        Err(Errno::NODATA)
    }

    fn listxattr(&self, node: Node, _: bool) -> Result<Vec<u8>> {
        find(&self.nodes(), node).map(|_| Vec::new())
    }

    fn statfs(&self) -> Result<StatfsOut> {
        let size = |node: &ExportNode| match &node.content {
            Content::Directory(_) => 0,
            Content::File(file) => file.store.size().div_ceil(4096),
        };
        let nodes = self.nodes();
        Ok(StatfsOut {
            blocks: nodes.iter().map(size).sum(),
            files: nodes.len() as u64,
            bsize: 4096,
            frsize: 4096,
            namelen: NAME_MAX as u32, // fits: 255
            ..StatfsOut::default()
        })
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let counters = self.store_counters.as_ref();
        counters.map_or_else(Vec::new, |counters| counters())
    }

    fn requests(&self, max: usize) -> String {
        let requests = self.store_requests.as_ref();
        requests.map_or_else(String::new, |requests| requests(max))
    }

    fn seek(&self, node: Node, offset: u64, what: Seek) -> Result<u64> {
        let size = self.file(node)?.store.size();
        match what {
            _ if offset >= size => Err(Errno::NXIO),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }
}

/// Reads files for one thread.
struct ExportReader(ExportFs);

impl Reader for ExportReader {
    fn read<'a>(
        &'a mut self,
        node: Node,
        offset: u64,
        buf: &'a mut [u8],
        _: bool,
    ) -> Result<Parts<'a>> {
        let file = self.0.file(node)?;
        let ExportFile { path, store } = &*file;
        let left = store.size().saturating_sub(offset);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let buf = &mut buf[..len];
        match store.read_exact_at(buf, offset) {
            Ok(()) => Ok(Parts::One(buf)),
            Err(e) => {
                let end = offset + len as u64;
                self.0
                    .log
                    .line(format_args!("{path}: bytes {offset} to {end}: {e}"));
                Err(Errno::IO)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use tuff_store::MemStore;

    /// Store whose reads fail.
    struct Failing;

    impl ReadAt for Failing {
        fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
            Err(io::Error::other("gone"))
        }

        fn size(&self) -> u64 {
            100
        }
    }

    fn file(bytes: &[u8]) -> Arc<dyn ReadAt> {
        Arc::new(MemStore::new(bytes.to_vec()))
    }

    fn export(files: &[(&str, &[u8])]) -> Result<ExportFs, BadName> {
        let files = files
            .iter()
            .map(|(path, bytes)| ((*path).to_owned(), file(bytes)));
        ExportFs::new(files, Log::none())
    }

    fn names(fs: &ExportFs, dir: Node, offset: u64) -> Vec<String> {
        let mut names = Vec::new();
        fs.readdir(dir, offset, &mut |entry| {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            true
        })
        .unwrap();
        names
    }

    #[test]
    fn files_are_found_by_their_paths_and_read() {
        let fs = export(&[("b/c/d", b"first"), ("b/a", b"second")]).unwrap();
        let find = |dir, name: &[u8]| fs.lookup(dir, name).unwrap().unwrap();
        let b = find(ROOT, b"b").node;
        assert_eq!(names(&fs, ROOT, 0), [".", "..", "b"]);
        assert_eq!(names(&fs, b, 1), ["..", "a", "c"]);
        assert_eq!(names(&fs, b, 4), [""; 0]);
        let c = find(b, b"c").node;
        let d = find(c, b"d");
        assert_eq!((d.attr.size, d.attr.mode), (5, FILE | 0o400));
        assert_eq!(find(c, b"..").node, b);
        assert!(fs.lookup(ROOT, b"a").unwrap().is_none());
        assert_eq!(fs.lookup(d.node, b"x"), Err(Errno::NOTDIR));
        let mut buf = [0; 16];
        let mut reader = fs.reader();
        let read = reader.read(d.node, 2, &mut buf, false).unwrap();
        assert_eq!(read, Parts::One(b"rst"));
        let mut buf = [0; 16];
        assert!(reader.read(d.node, 9, &mut buf, false).unwrap().is_empty());
        assert_eq!(fs.attr(99), Err(Errno::STALE));
    }

    #[test]
    fn files_are_added_to_an_export_that_grows() {
        let fs = export(&[("a/b", b"first")]).unwrap().growing();
        let dir = fs.lookup(ROOT, b"a").unwrap().unwrap().node;
        let first = fs.lookup(dir, b"b").unwrap().unwrap();
        // An error, which the kernel does not keep.
        assert_eq!(fs.lookup(dir, b"c"), Err(Errno::NOENT));
        let mut reader = fs.reader();
        let more = |path: &str| (path.to_owned(), file(b"second"));
        assert!(fs.add([more("a/c"), more("a/b")]).is_err());
        assert_eq!(fs.lookup(dir, b"c"), Err(Errno::NOENT));
        fs.add([more("a/c"), more("d/e")]).unwrap();
        let found = fs.lookup(dir, b"c").unwrap().unwrap();
        let mut buf = [0; 16];
        let read = reader.read(found.node, 0, &mut buf, false).unwrap();
        assert_eq!(read, Parts::One(b"second"));
        assert_eq!(fs.lookup(dir, b"b").unwrap(), Some(first));
        assert_eq!(names(&fs, ROOT, 2), ["a", "d"]);
    }

    #[test]
    fn paths_that_cannot_be_used_are_refused() {
        for bad in ["", "/a", "a//b", "a/../b", "a/", ".", "a\0"] {
            assert_eq!(export(&[(bad, b"")]).err(), Some(BadName(bad.to_owned())));
        }
        let long = "n".repeat(256);
        assert!(export(&[(&long, b"")]).is_err());
        assert!(export(&[("a", b""), ("a", b"")]).is_err());
        assert!(export(&[("a", b""), ("a/b", b"")]).is_err());
        assert!(export(&[("a/b", b""), ("a", b"")]).is_err());
    }

    #[test]
    fn a_read_that_fails_is_an_io_error_and_is_logged() {
        let lines = Arc::new(std::sync::Mutex::new(Vec::new()));
        let message = Arc::clone(&lines);
        let log = Log::new(move |line| message.lock().unwrap().push(line.to_owned()));
        let failing: Arc<dyn ReadAt> = Arc::new(Failing);
        let fs = ExportFs::new([("f".to_owned(), failing)], log).unwrap();
        let node = fs.lookup(ROOT, b"f").unwrap().unwrap().node;
        let mut buf = [0; 40];
        assert_eq!(fs.reader().read(node, 80, &mut buf, false), Err(Errno::IO));
        assert_eq!(*lines.lock().unwrap(), ["f: bytes 80 to 100: gone"]);
    }
}
