//! Tar index: an image of the metadata only. All data stays in the tar, which becomes a device of
//! the image.
//!
//! ```text
//! unified addresses   0 ........ end of the image │ end ........ end + blocks of the tar
//!                     inodes, directories         │ the tar, byte for byte
//! ```
//!
//! The tar is read once: only the headers of a file, all of a stream. The block size is 512 bytes
//! like a tar's, so every file begins at a block. Only runs of a sparse file may begin elsewhere;
//! such a file is copied into the image.

use super::stream::StoppableReader;
use super::tar::{enlarge_pipe, read_start};
use super::{ContentProvider, Loader, in_source};
use crate::pack::{Packer, Sparse};
use crate::progress::Progress;
use crate::source::compressed::{self, Compression, MAGIC_LEN};
use crate::source::cpio::{self, HEADER_LEN};
use crate::source::error::{Quoted, SourceError};
use crate::source::spec::Source;
use crate::source::tar::TarReader;
use crate::source::{Content, DataRun, Kind};
use crate::tree::{InodeId, Tree};
use crate::{Error, Place, Result};
use std::io::{BufReader, Cursor, Read, Seek};
use std::os::fd::AsFd;
use std::sync::Arc;
use tuff_format::inode::FileType;

impl Loader<'_> {
    /// Adds the members of the only source, a tar, to the tree.
    pub(super) fn load_index(
        &mut self,
        source: &Source,
        tree: &mut Tree,
        packer: &mut Packer<'_>,
        progress: &Progress,
    ) -> Result<()> {
        let (name, mut file) = match source {
            Source::Tar(path) => {
                let name = path.display().to_string();
                let file = tuff_store::open_stream(path);
                let file =
                    file.map_err(|e| Error::io(Place::file(&name), "cannot open the source", e))?;
                (name, file)
            }
            Source::TarStdin => {
                let name = "standard input".to_owned();
                let stdin = std::io::stdin().as_fd().try_clone_to_owned();
                let stdin = stdin
                    .map_err(|e| Error::io(Place::file(&name), "cannot open the source", e))?;
                (name, stdin.into())
            }
            Source::TarStream(_) | Source::Memory(_) => {
                return Err(Error::usage(format_args!(
                    "{}: an index needs a tar in a file, which readers of the image open as well",
                    source.name()
                )));
            }
            Source::Dir(path)
            | Source::Manifest(path)
            | Source::Image { path, .. }
            | Source::TarWithin { file: path, .. } => {
                return Err(Error::usage(format_args!(
                    "{}: an index needs a tar, but this source is not one",
                    path.display()
                )));
            }
        };
        // In a file that is read from the middle, positions differ from those in the tar.
        let is_file = file.metadata().is_ok_and(|m| m.is_file());
        if !is_file || file.stream_position().is_ok_and(|at| at > 0) {
            enlarge_pipe(&file);
            let reader = BufReader::new(StoppableReader::new(file, progress.stop_flag()));
            let indexed = self.index_stream(&name, reader, tree, packer, progress);
            // A reader that was stopped returns an error that is not the cause.
            progress.check()?;
            return indexed;
        }
        let mut magic = [0; HEADER_LEN];
        let n = read_start(&file, &mut magic)
            .map_err(|e| Error::io(Place::file(&name), "cannot read", e))?;
        reject_cpio(&name, &magic[..n])?;
        let compression = Compression::detect(&magic[..n.min(MAGIC_LEN)]);
        reject_compressed(
            &name,
            compression.map_err(|e| Error::from(e.in_source(&name)))?,
        )?;
        let size = file.metadata().map(|m| m.len());
        let size = size.map_err(|e| Error::io(Place::file(&name), "cannot examine", e))?;
        self.load_tar(&name, file, None, tree, progress)?;
        packer.set_external(self.blocks(&name, size)?);
        Ok(())
    }

    /// Indexes a tar stream. Only the contents of files that cannot be referred to are kept.
    fn index_stream(
        &mut self,
        name: &str,
        reader: impl Read + Send + 'static,
        tree: &mut Tree,
        packer: &mut Packer<'_>,
        progress: &Progress,
    ) -> Result<()> {
        let (mut reader, mut start) = (reader, Vec::new());
        let read = (&mut reader)
            .take(HEADER_LEN as u64)
            .read_to_end(&mut start);
        read.map_err(|e| Error::from(SourceError::from(e).at_byte(0).in_source(name)))?;
        reject_cpio(name, &start)?;
        let reader = Cursor::new(start).chain(reader);
        let (compression, reader) = compressed::open(name, reader).map_err(Error::from)?;
        reject_compressed(name, compression)?;
        let mut tar = TarReader::new(name, reader);
        while let Some(mut entry) = tar.next_entry().map_err(Error::from)? {
            let size = match entry.kind {
                Kind::File { size } => size,
                _ => 0,
            };
            let mut copied = None;
            if let (Content::Stream, runs) = entry.content.parts() {
                let offset = tar.position();
                let runs = runs.map(|runs| placed(runs, offset));
                entry.content = Content::Range { offset };
                if let Some(runs) = runs {
                    if self.referred(size, &runs).is_none() {
                        copied = Some(Arc::clone(&runs));
                    }
                    entry.content = entry.content.sparse(runs);
                }
            }
            let added = self.add(entry, tree, progress);
            let added = added.map_err(|e| in_source(e, Place::file(name)))?;
            if let (Some(inode), Some(runs)) = (added, copied) {
                let policy = Arc::clone(&self.policies.default);
                self.stream_sparse(inode, size, &runs, &mut tar, &policy, packer)?;
            }
        }
        self.warnings.extend(tar.warnings());
        let at = tar.position();
        let rest = tar.finish().map_err(Error::from)?;
        packer.set_external(self.blocks(name, at + rest)?);
        self.providers.push(ContentProvider::default());
        Ok(())
    }

    /// Number of whole blocks in a tar of `size` bytes.
    fn blocks(&self, name: &str, size: u64) -> Result<u32> {
        let blocks = u32::try_from(size / self.options.block.size()).ok();
        blocks
            .filter(|b| *b < 1 << 31)
            .ok_or_else(|| Error::limit(name, "a tar with an index must be smaller than 1 TiB"))
    }

    /// Sets the position in the tar for every file of the finished tree.
    pub(super) fn refer(&mut self, tree: &Tree, packer: &mut Packer<'_>) -> Result<()> {
        let mut copied = Vec::new();
        let order = tree.inode_order();
        self.check_expansion(tree, &order)?;
        for inode in order {
            let size = tree.size(inode);
            if tree.file_type(inode) != FileType::File || size == 0 {
                continue;
            }
            match tree.content(inode).parts() {
                (Content::Range { offset }, None) => {
                    let block = self.block(tree, inode, *offset, size, packer)?;
                    packer.add_external(inode, size, block);
                }
                (_, Some(runs)) => {
                    let stored: u64 = runs.iter().map(|r| r.len).sum();
                    let first = runs.first().map_or(0, |r| r.source_offset);
                    match self.referred(size, runs) {
                        Some(sparse) => {
                            let block = self.block(tree, inode, first, stored, packer)?;
                            packer.add_external_sparse(inode, size, size - stored, sparse, block);
                        }
                        None => copied.push((first, inode)),
                    }
                }
                _ => {}
            }
        }
        if let Some(ContentProvider::Archive { file: Some(_), .. }) = self.providers.last() {
            // In the order of the stream.
            copied.sort_unstable();
            for (_, inode) in &copied {
                self.pack_file(tree, *inode, super::FileDecision::default(), packer)?;
            }
        }
        Ok(())
    }

    /// First block of a file's data. Fails if a block is missing: the kernel reads nothing after
    /// the last whole block.
    fn block(
        &self,
        tree: &Tree,
        inode: InodeId,
        offset: u64,
        len: u64,
        packer: &Packer<'_>,
    ) -> Result<u32> {
        let bits = self.options.block;
        let (first, end) = (offset >> bits.get(), bits.count(offset + len));
        debug_assert!(offset.is_multiple_of(bits.size()), "data follows a header");
        if end > packer.external() {
            let path = tree.path(inode);
            return Err(Error::from(SourceError::unsupported(format!(
                "{}: the tar ends inside the last block of its data; append zeros up to a multiple of {} bytes to index it",
                Quoted(&path),
                bits.size()
            ))));
        }
        // Fits: a tar has less than 2^31 blocks.
        Ok(first as u32)
    }

    /// Chunks of a sparse file, if they start at blocks of the tar.
    fn referred(&self, size: u64, runs: &[DataRun]) -> Option<Sparse> {
        Sparse::exact(size, runs, self.options.block)
    }
}

/// Fails if the source is a cpio.
fn reject_cpio(name: &str, mut start: &[u8]) -> Result<()> {
    if cpio::begins(&mut start, &mut Vec::new()).is_ok_and(|begins| begins) {
        let what = "an index needs a tar, but this is a cpio";
        return Err(Error::usage(format_args!("{name}: {what}")));
    }
    Ok(())
}

/// Fails if the tar is compressed.
fn reject_compressed(name: &str, compression: Compression) -> Result<()> {
    match compression {
        Compression::Plain => Ok(()),
        other => Err(Error::from(
            SourceError::unsupported(format!(
                "compressed with {}, but an index refers to the bytes of a plain tar: decompress it first",
                other.name()
            ))
            .in_source(name),
        )),
    }
}

/// Assigns consecutive positions to runs, from `at` on.
fn placed(runs: &[DataRun], mut at: u64) -> Arc<[DataRun]> {
    let place = |run: &DataRun| {
        let source_offset = at;
        at += run.len;
        DataRun {
            source_offset,
            ..*run
        }
    };
    runs.iter().map(place).collect()
}
