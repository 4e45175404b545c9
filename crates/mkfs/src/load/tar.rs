//! Tar archives as sources: files that can be read at any position, and streams. Cpio archives are
//! recognised and passed on.
//!
//! A stream is packed while it is read, where no decision depends on later members. Otherwise it is
//! copied to a file first, and the image equals one built from that file.

use super::stream::StoppableReader;
use super::{BUDGET_STEP, ContentProvider, Loader, in_source};
use crate::options::Dedupe;
use crate::pack::content::FileContent;
use crate::pack::memory_budget::Budget;
use crate::pack::worker::Policy;
use crate::pack::{FileSharing, Packer, segment_size};
use crate::progress::Progress;
use crate::source::compressed::{self, Compression, MAGIC_LEN, StreamRules};
use crate::source::container::Digested;
use crate::source::cpio::{self, HEADER_LEN};
use crate::source::error::SourceError;
use crate::source::expansion::Expansion;
use crate::source::file::SourceFile;
use crate::source::stream::TarStream;
use crate::source::tar::{self, TarReader};
use crate::source::{Content, DataRun, Kind};
use crate::tree::{InodeId, Tree};
use crate::{Error, Place, Result};
use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use tuff_store::{FileStore, ReadAt, Window, open_regular, open_stream};

impl Loader<'_> {
    /// Loads a tar by path: a file, compressed or not, or a pipe.
    pub(super) fn load_tar_path(
        &mut self,
        path: &Path,
        pack: bool,
        tree: &mut Tree,
        packer: &mut Packer<'_>,
        progress: &Progress,
    ) -> Result<()> {
        let name = path.display().to_string();
        let file = open_stream(path)
            .map_err(|e| Error::io(Place::file(&name), "cannot open the source", e))?;
        let mut magic = [0; HEADER_LEN];
        let seekable = file.metadata().is_ok_and(|m| m.is_file());
        let n = if seekable {
            read_start(&file, &mut magic)
                .map_err(|e| Error::io(Place::file(&name), "cannot read", e))?
        } else {
            0
        };
        if cpio::begins(&mut &magic[..n], &mut Vec::new()).is_ok_and(|begins| begins) {
            return self.load_cpio(&name, file, tree, progress);
        }
        let plain = Compression::detect(&magic[..n])
            .map_err(|e| Error::from(e.in_source(&name)))?
            == Compression::Plain;
        if seekable && plain {
            self.load_tar(&name, file, None, tree, progress)
        } else {
            self.load_stream(&name, file, pack, tree, packer, progress)
        }
    }

    /// Loads a tar that is a part of a file, given by offset and length. Its data stays there
    /// unless it is compressed.
    #[expect(
        clippy::too_many_arguments,
        reason = "offset, length and digest locate the tar"
    )]
    pub(super) fn load_tar_within(
        &mut self,
        path: &Path,
        part: (u64, u64),
        unpacked: Option<&[u8; 32]>,
        name: &str,
        pack: bool,
        tree: &mut Tree,
        packer: &mut Packer<'_>,
        progress: &Progress,
    ) -> Result<()> {
        let mut file =
            open_regular(path).map_err(|e| Error::io(name, "cannot open the source", e))?;
        let (offset, len) = part;
        // Fits: at most MAGIC_LEN.
        let mut magic = vec![0; len.min(MAGIC_LEN as u64) as usize];
        let read = file.read_exact_at(&mut magic, offset);
        read.map_err(|e| Error::io(name, "cannot read", e))?;
        let compression = Compression::detect(&magic);
        match compression.map_err(|e| Error::from(e.in_source(name)))? {
            Compression::Plain => self.load_tar(name, file, Some(part), tree, progress),
            _ => {
                let at = file.seek(SeekFrom::Start(offset));
                at.map_err(|e| Error::io(name, "cannot read", e))?;
                let reader = StoppableReader::new(file, progress.stop_flag()).take(len);
                let loaded = self.load_reader(name, reader, unpacked, pack, tree, packer, progress);
                progress.check()?;
                loaded
            }
        }
    }

    /// Loads the headers of a tar that can be read at any position. Contents are read when they are
    /// packed. `part` is its offset and length within the file.
    pub(super) fn load_tar(
        &mut self,
        name: &str,
        file: File,
        part: Option<(u64, u64)>,
        tree: &mut Tree,
        progress: &Progress,
    ) -> Result<()> {
        let store = FileStore::new(
            file.try_clone()
                .map_err(|e| Error::io(name, "cannot open", e))?,
        );
        let store = store.map_err(|e| Error::io(name, "cannot examine", e))?;
        let (start, len) = part.unwrap_or((0, store.size()));
        let store = Window::part(store, start, len);
        let mut tar = tar::scan_file(name, &store);
        while let Some(mut entry) = tar.next_entry().map_err(Error::from)? {
            entry.content = entry.content.shifted_by(start);
            self.add(entry, tree, progress)
                .map_err(|e| in_source(e, Place::file(name)))?;
        }
        self.warnings.extend(tar.warnings());
        self.providers.push(ContentProvider::Archive {
            file: Some(Arc::new(SourceFile::new(file, name))),
            copy: None,
        });
        Ok(())
    }

    /// Loads a tar from a stream. A stop request ends a read that waits.
    pub(super) fn load_stream(
        &mut self,
        name: &str,
        file: File,
        pack: bool,
        tree: &mut Tree,
        packer: &mut Packer<'_>,
        progress: &Progress,
    ) -> Result<()> {
        enlarge_pipe(&file);
        let reader = BufReader::new(StoppableReader::new(file, progress.stop_flag()));
        let loaded = self.load_reader(name, reader, None, pack, tree, packer, progress);
        // A reader that was stopped returns an error that is not the cause.
        progress.check()?;
        loaded
    }

    /// Loads a tar from a reader of the caller.
    pub(super) fn load_tar_stream(
        &mut self,
        stream: &TarStream,
        pack: bool,
        tree: &mut Tree,
        packer: &mut Packer<'_>,
        progress: &Progress,
    ) -> Result<()> {
        let name = stream.name();
        let reader = stream
            .take()
            .ok_or_else(|| Error::usage(format_args!("{name}: a stream can be read only once")))?;
        let reader = BufReader::new(reader);
        self.load_reader(name, reader, None, pack, tree, packer, progress)
    }

    /// Packs a stream while it is read, or copies it first for deduplication. `unpacked` is the
    /// expected SHA-256 of the uncompressed tar.
    #[expect(
        clippy::too_many_arguments,
        reason = "what a stream is and where it goes"
    )]
    fn load_reader(
        &mut self,
        name: &str,
        reader: impl Read + Send + 'static,
        unpacked: Option<&[u8; 32]>,
        pack: bool,
        tree: &mut Tree,
        packer: &mut Packer<'_>,
        progress: &Progress,
    ) -> Result<()> {
        let mut reader = reader;
        let mut start = Vec::new();
        let begins = cpio::begins(&mut reader, &mut start);
        let begins =
            begins.map_err(|e| Error::from(SourceError::from(e).at_byte(0).in_source(name)))?;
        let reader = Cursor::new(start).chain(reader);
        if begins && unpacked.is_none() {
            return self.load_cpio_stream(name, reader, tree, progress);
        }
        let limit = Expansion::new(self.options.resources.max_expansion);
        let rules = StreamRules::new(limit);
        let (_, mut reader) = compressed::open_with(name, reader, &rules).map_err(Error::from)?;
        if let Some(digest) = unpacked {
            reader = Box::new(Digested::new(reader, *digest, self.threads));
        }
        // The content of a hard link that becomes a file of its own is read again.
        let reads_again =
            self.options.dedupe.mode == Dedupe::Content || !self.options.sources.hard_links;
        if !pack || reads_again {
            progress.stage("copy");
            let file = self.copy(name, reader, progress)?;
            self.warnings.extend(rules.warning());
            progress.stage("walk");
            return self.load_tar(name, file, None, tree, progress);
        }
        self.packed = true;
        let mut zeros = 0;
        let mut tar = TarReader::new(name, reader);
        while let Some(entry) = tar.next_entry().map_err(Error::from)? {
            let (Content::Stream, runs) = entry.content.parts() else {
                self.add(entry, tree, progress)
                    .map_err(|e| in_source(e, Place::file(name)))?;
                continue;
            };
            let runs = runs.cloned();
            let Kind::File { size } = entry.kind else {
                continue;
            };
            if let Some(runs) = &runs {
                zeros += self.written_zeros(size, runs);
                let checked = limit.check(zeros, tar.position());
                checked.map_err(|e| Error::from(e.in_member(&entry.path).in_source(name)))?;
            }
            let (number, policy) = self.policies.of(|| entry.path.clone());
            let policy = Arc::clone(policy);
            let added = self.add(entry, tree, progress);
            let Some(inode) = added.map_err(|e| in_source(e, Place::file(name)))? else {
                continue;
            };
            if tree.len().is_multiple_of(BUDGET_STEP) {
                packer.set_in_flight(Budget::new(self.options, tree, self.threads).in_flight);
            }
            match runs {
                Some(runs) => self.stream_sparse(inode, size, &runs, &mut tar, &policy, packer)?,
                None if size <= segment_size(&policy) => {
                    // Fits: a segment is a few MiB.
                    let mut bytes = vec![0; size as usize];
                    tar.data()
                        .read_exact(&mut bytes)
                        .map_err(|e| Error::from(SourceError::from(e)))?;
                    let with = FileSharing {
                        duplicate_key: (self.options.dedupe.mode != Dedupe::Off).then_some(number),
                        ..FileSharing::default()
                    };
                    let content = FileContent::Bytes(bytes.into());
                    packer.add_file(inode, size, content, &policy, &with)?;
                }
                None => packer.add_stream(inode, size, &mut tar.data(), &policy)?,
            }
        }
        self.warnings.extend(tar.warnings());
        tar.finish().map_err(Error::from)?;
        self.warnings.extend(rules.warning());
        self.providers.push(ContentProvider::default());
        Ok(())
    }

    /// Copies a tar stream to an anonymous file. It is parsed at the same time, so that errors are
    /// found here.
    fn copy(&self, name: &str, reader: impl Read, progress: &Progress) -> Result<File> {
        let fail = |e| Error::io(self.temporary.display(), "cannot copy the stream", e);
        let mut copy = TeeReader {
            reader,
            file: tuff_store::anonymous(self.temporary).map_err(fail)?,
            failed: None,
        };
        let mut tar = TarReader::new(name, &mut copy);
        let read = || {
            while tar.next_entry()?.is_some() {
                if progress.check().is_err() {
                    return Ok(());
                }
            }
            tar.finish().map(drop)
        };
        let read = read();
        progress.check()?;
        match copy.failed {
            Some(e) => Err(fail(e)),
            None => read.map(|()| copy.file).map_err(Error::from),
        }
    }

    /// Packs the stored runs of a sparse member through a temporary file, since chunks may cut them
    /// anywhere.
    pub(super) fn stream_sparse<R: Read>(
        &mut self,
        inode: InodeId,
        size: u64,
        runs: &[DataRun],
        tar: &mut TarReader<R>,
        policy: &Arc<Policy>,
        packer: &mut Packer<'_>,
    ) -> Result<()> {
        let fail = |e| Error::io(self.temporary.display(), "cannot write temporary data", e);
        let mut file = tuff_store::anonymous(self.temporary).map_err(fail)?;
        std::io::copy(&mut tar.data(), &mut file).map_err(|e| Error::from(SourceError::from(e)))?;
        let mut at = 0;
        let placed = |r: &DataRun| {
            let run = DataRun {
                source_offset: at,
                ..*r
            };
            at += r.len;
            run
        };
        let runs: Arc<[DataRun]> = runs.iter().map(placed).collect();
        let content = FileContent::Runs {
            file: Arc::new(SourceFile::new(file, "sparse member")),
            runs: Arc::clone(&runs),
        };
        if self.options.keeps_sparse(size, &runs) {
            return packer.add_sparse(inode, size, content, self.sparse(size, &runs), policy);
        }
        packer.add_file(inode, size, content, policy, &FileSharing::default())
    }
}

/// Reader that copies its data to a file.
struct TeeReader<R> {
    reader: R,
    file: File,
    /// Error of the write that ended the copy.
    failed: Option<std::io::Error>,
}

impl<R: Read> Read for TeeReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = self.reader.read(buf)?;
        if let Err(e) = self.file.write_all(&buf[..n]) {
            self.failed = Some(e);
            return Err(std::io::ErrorKind::Other.into());
        }
        Ok(n)
    }
}

/// Enlarges the buffer of a pipe, so that its two ends wait for each other a sixteenth as often.
/// Ignores files and refusals.
pub(super) fn enlarge_pipe(pipe: impl AsFd) {
    const PIPE_BUFFER: usize = 1 << 20;
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_BUFFER);
}

pub(super) fn read_start(file: &File, buf: &mut [u8]) -> std::io::Result<usize> {
    let mut n = 0;
    while n < buf.len() {
        match tuff_store::retry(|| file.read_at(&mut buf[n..], n as u64))? {
            0 => break,
            more => n += more,
        }
    }
    Ok(n)
}
