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
use super::tar::{enlarge_pipe, placed, read_start};
use super::{ContentProvider, Loader};
use crate::pack::Sparse;
use crate::source::compressed::{self, Compression, MAGIC_LEN};
use crate::source::cpio::{self, HEADER_LEN};
use crate::source::error::SourceError;
use crate::source::spec::Source;
use crate::source::tar::TarReader;
use crate::source::{Content, Kind};
use crate::{Error, Place, Result};
use std::io::{BufReader, Cursor, Read, Seek};
use std::os::fd::AsFd;
use std::sync::Arc;

impl Loader<'_, '_> {
    /// Adds the members of the only source, a tar, to the tree.
    pub(super) fn load_index(&mut self, source: &Source) -> Result<()> {
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
            Source::TarStream(_) | Source::Memory(_) | Source::Placed(_) => {
                return Err(Error::usage(format_args!(
                    "{}: an index needs a tar in a file, which readers of the image open as well",
                    source.name()
                )));
            }
            Source::Dir(_)
            | Source::Manifest(_)
            | Source::Image(_)
            | Source::SquashFs(_)
            | Source::TarWithin { .. } => {
                return Err(Error::usage(format_args!(
                    "{}: an index needs a tar, but this source is not one",
                    source.name()
                )));
            }
        };
        // In a file that is read from the middle, positions differ from those in the tar.
        let is_file = file.metadata().is_ok_and(|m| m.is_file());
        if !is_file || file.stream_position().is_ok_and(|at| at > 0) {
            enlarge_pipe(&file);
            let stop = self.environment.progress.stop_flag();
            let reader = BufReader::new(StoppableReader::new(file, stop));
            let indexed = self.index_stream(&name, reader);
            // A reader that was stopped returns an error that is not the cause.
            self.environment.progress.check()?;
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
        self.load_tar(&name, file, None)?;
        let blocks = self.blocks(&name, size)?;
        self.packer.set_external(blocks);
        Ok(())
    }

    /// Indexes a tar stream. Only the contents of files that cannot be referred to are kept.
    fn index_stream(&mut self, name: &str, reader: impl Read + Send + 'static) -> Result<()> {
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
                    if Sparse::exact(size, &runs, self.options.block).is_none() {
                        copied = Some(Arc::clone(&runs));
                    }
                    entry.content = entry.content.sparse(runs);
                }
            }
            if let (Some(inode), Some(runs)) = (self.add(entry, || Place::file(name))?, copied) {
                let policy = &self.policies.default;
                self.pack_sparse(inode, size, &runs, &mut tar, policy)?;
            }
        }
        self.warnings.extend(tar.warnings());
        let at = tar.position();
        let rest = tar.finish().map_err(Error::from)?;
        let blocks = self.blocks(name, at + rest)?;
        self.packer.set_external(blocks);
        self.contents.layers.push(ContentProvider::Elsewhere);
        Ok(())
    }

    /// Number of whole blocks in a tar of `size` bytes.
    fn blocks(&self, name: &str, size: u64) -> Result<u32> {
        let blocks = u32::try_from(size / self.options.block.size()).ok();
        blocks
            .filter(|b| *b < 1 << 31)
            .ok_or_else(|| Error::limit(name, "a tar with an index must be smaller than 1 TiB"))
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
