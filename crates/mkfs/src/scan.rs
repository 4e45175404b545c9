//! Sources as a tree whose files can be read: what a build would store, without building.

use crate::emit::targets::Targets;
use crate::environment::Environment;
use crate::load::complete::complete;
use crate::load::{Loaded, load};
use crate::options::{Dedupe, Options};
use crate::pack::content::FileContent;
use crate::pack::contents::Contents;
use crate::pack::policies::Policies;
use crate::pipeline::{is_read_once, start_packer};
use crate::progress::Progress;
use crate::source::spec::Source;
use crate::source::{Kind, Meta};
use crate::tree::{InodeId, NodeKind, ROOT, Tree};
use crate::{Error, Place, Result};
use std::fs::File;
use std::io;
use tuff_store::Output;

/// Tree of sources, merged in order.
pub struct Scan {
    tree: Tree,
    contents: Contents,
    /// Warnings about entries that were left out or changed.
    pub warnings: Vec<String>,
}

/// Full name and value of an extended attribute.
pub type ScannedXattr = (Box<[u8]>, Box<[u8]>);

/// Fills a buffer from a position of a file. Unit of the position: bytes.
pub type Fill<'a> = &'a dyn Fn(&mut [u8], u64) -> Result<()>;

/// Entry of a [`Scan`].
#[derive(Debug)]
pub struct ScannedEntry<'a> {
    /// Number of the inode. Names of one inode have the same.
    pub inode: u32,
    /// Number of directories above the entry. 0 for the root.
    pub depth: usize,
    /// Path below the root; empty for the root.
    pub path: &'a [u8],
    /// Type, with the data of that type. `Kind::Hardlink` does not occur.
    pub kind: Kind,
    /// Mode, owner and modification time.
    pub meta: Meta,
    /// Extended attributes with full names, sorted by name.
    pub xattrs: &'a [ScannedXattr],
    /// Number of names.
    pub nlink: u32,
}

/// Open file of a [`Scan`].
pub struct ScannedFile(FileContent);

impl Scan {
    /// Reads the tree of the sources. Their files are read later.
    ///
    /// # Errors
    /// `Usage` for a stream, which cannot be read twice; errors of reading the sources.
    pub fn new(sources: &[Source], options: &Options, progress: &Progress) -> Result<Self> {
        if let Some(stream) = sources.iter().find(|source| is_read_once(source)) {
            return Err(Error::usage(format_args!(
                "{} can be read only once, so name a file",
                stream.name()
            )));
        }
        let mut options = options.clone();
        // Files are not packed while the tree is read.
        options.dedupe.mode = Dedupe::Content;
        let output = Output::temporary();
        let output = output.map_err(|e| Error::io(Place::image(), "cannot create", e))?;
        let targets = Targets {
            image: &output,
            blob: None,
        };
        let environment = Environment::new(&options, targets, progress);
        let policies = Policies::new(&options);
        let mut packer = start_packer(&options, &policies, None, &environment)?;
        let mut loaded = load(
            sources,
            &options,
            &policies,
            true,
            &environment,
            &mut packer,
        )?;
        complete(&mut loaded, sources, &options)?;
        let Loaded {
            tree,
            contents,
            warnings,
            ..
        } = loaded;
        Ok(Self {
            tree,
            contents,
            warnings,
        })
    }

    /// Number of inodes.
    pub fn inodes(&self) -> u64 {
        self.tree.inode_order().len() as u64
    }

    /// Calls `take` with each entry: a directory before what is in it, names ascending by their bytes.
    ///
    /// # Errors
    /// Those of `take`.
    pub fn each(&self, take: &mut dyn FnMut(ScannedEntry<'_>) -> Result<()>) -> Result<()> {
        take(self.entry(ROOT, 0, b""))?;
        let mut path = Vec::new();
        // Children that are still to come of each directory, and the length of its path.
        let mut stack = vec![(self.tree.children(ROOT).iter(), 0)];
        while let Some((children, len)) = stack.last_mut() {
            path.truncate(*len);
            let Some(dentry) = children.next() else {
                stack.pop();
                continue;
            };
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(self.tree.name(dentry));
            take(self.entry(dentry.inode, stack.len(), &path))?;
            if matches!(self.tree.kind(dentry.inode), NodeKind::Dir) {
                stack.push((self.tree.children(dentry.inode).iter(), path.len()));
            }
        }
        Ok(())
    }

    fn entry<'a>(&'a self, inode: InodeId, depth: usize, path: &'a [u8]) -> ScannedEntry<'a> {
        let kind = match self.tree.kind(inode) {
            NodeKind::File { size } => Kind::File { size },
            NodeKind::Dir => Kind::Dir,
            NodeKind::Symlink(target) => Kind::Symlink(target.to_vec()),
            NodeKind::Char(device) => Kind::Char(device),
            NodeKind::Block(device) => Kind::Block(device),
            NodeKind::Fifo => Kind::Fifo,
            NodeKind::Socket => Kind::Socket,
        };
        ScannedEntry {
            inode,
            depth,
            path,
            kind,
            meta: self.tree.meta(inode),
            xattrs: &self.tree.xattr_sets()[self.tree.xattrs(inode) as usize],
            nlink: self.tree.nlink(inode),
        }
    }

    /// Length of all files, each once. Unit: bytes.
    pub fn bytes(&self) -> u64 {
        let files = self.tree.inode_order().into_iter();
        let lens = files.map(|inode| match self.tree.kind(inode) {
            NodeKind::File { size } => size,
            _ => 0,
        });
        lens.sum()
    }

    /// Opens a file of a source directory as it is, which may be other than the tree has it. `None` for a file of another source.
    ///
    /// # Errors
    /// Errors of finding the content. Those of opening the file are the inner result.
    pub fn open_host(&self, inode: u32) -> Result<Option<io::Result<File>>> {
        let content = self.contents.get(&self.tree, inode)?;
        Ok(content.and_then(|content| content.open_host()))
    }

    /// Opens a file, which may be read in any order. `None` for a file without content.
    ///
    /// # Errors
    /// Errors of finding the content.
    pub fn open(&self, inode: u32) -> Result<Option<ScannedFile>> {
        Ok(self.contents.get(&self.tree, inode)?.map(ScannedFile))
    }
}

impl ScannedFile {
    /// Calls `read` with a function that fills a buffer from a position. The file is opened once, and compared with what the
    /// tree has of it.
    ///
    /// # Errors
    /// Those of `read`, and `Io` for a file that changed, vanished or cannot be read.
    pub fn read(&self, read: &mut dyn FnMut(Fill<'_>) -> Result<()>) -> Result<()> {
        let open = self.0.open()?;
        read(&|buf, offset| open.read_exact(buf, offset))
    }
}
