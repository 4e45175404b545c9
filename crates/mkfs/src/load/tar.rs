//! Tar archives as sources: files that can be read at any position, and streams. Cpio archives are
//! recognised and passed on.
//!
//! A stream is packed while it is read, where no decision depends on later members. Otherwise it is
//! copied to a file first, and the image equals one built from that file.

use super::stream::StoppableReader;
use super::{BUDGET_STEP, ContentProvider, Loader};
use crate::options::Dedupe;
use crate::pack::content::FileContent;
use crate::pack::files::{sparse_chunks, written_zeros};
use crate::pack::memory_budget::Budget;
use crate::pack::worker::Policy;
use crate::pack::{FileSharing, segment_size};
use crate::source::compressed::{self, Compression, MAGIC_LEN, StreamRules};
use crate::source::container::Digested;
use crate::source::cpio::{self, HEADER_LEN};
use crate::source::error::SourceError;
use crate::source::expansion::Expansion;
use crate::source::file::SourceFile;
use crate::source::stream::TarStream;
use crate::source::tar::{self, TarReader};
use crate::source::{Content, DataRun, Kind};
use crate::tree::InodeId;
use crate::{Error, Result};
use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use tuff_store::{FileStore, ReadAt, Window, open_regular, open_stream};

/// Tar in a stream.
struct TarInput<'a, R> {
    name: &'a str,
    reader: R,
    /// Expected SHA-256 of the uncompressed tar.
    unpacked: Option<&'a [u8; 32]>,
}

impl Loader<'_, '_> {
    /// Loads a tar by path: a file, compressed or not, or a pipe.
    pub(super) fn load_tar_path(&mut self, path: &Path) -> Result<()> {
        let name = path.display().to_string();
        let file = open_stream(path).map_err(|e| Error::io(&name, "cannot open the source", e))?;
        let mut magic = [0; HEADER_LEN];
        let seekable = file.metadata().is_ok_and(|m| m.is_file());
        let n = if seekable {
            read_start(&file, &mut magic).map_err(|e| Error::io(&name, "cannot read", e))?
        } else {
            0
        };
        if cpio::begins(&mut &magic[..n], &mut Vec::new()).is_ok_and(|begins| begins) {
            return self.load_cpio(&name, file);
        }
        let plain = Compression::detect(&magic[..n])
            .map_err(|e| Error::from(e.in_source(&name)))?
            == Compression::Plain;
        if seekable && plain {
            self.load_tar(&name, file, None)
        } else {
            self.load_stream(&name, file)
        }
    }

    /// Loads a tar that is a part of a file, given by offset and length. Its data stays there unless it is compressed.
    /// `unpacked` is the expected SHA-256 of the uncompressed tar.
    pub(super) fn load_tar_within(
        &mut self,
        path: &Path,
        part: (u64, u64),
        unpacked: Option<&[u8; 32]>,
        name: &str,
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
            Compression::Plain => self.load_tar(name, file, Some(part)),
            _ => {
                let at = file.seek(SeekFrom::Start(offset));
                at.map_err(|e| Error::io(name, "cannot read", e))?;
                let stop = self.environment.progress.stop_flag();
                let loaded = self.load_reader(TarInput {
                    name,
                    reader: StoppableReader::new(file, stop).take(len),
                    unpacked,
                });
                self.environment.progress.check()?;
                loaded
            }
        }
    }

    /// Loads the headers of a tar that can be read at any position. Contents are read when they are packed. `part` is
    /// its offset and length within the file.
    pub(super) fn load_tar(
        &mut self,
        name: &str,
        file: File,
        part: Option<(u64, u64)>,
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
            self.add(entry, name)?;
        }
        self.warnings.extend(tar.warnings());
        self.contents.layers.push(ContentProvider::Archive {
            file: Some(Arc::new(SourceFile::new(file, name))),
            copy: None,
        });
        Ok(())
    }

    /// Loads a tar from a stream. A stop request ends a read that waits.
    pub(super) fn load_stream(&mut self, name: &str, file: File) -> Result<()> {
        enlarge_pipe(&file);
        let stop = self.environment.progress.stop_flag();
        let loaded = self.load_reader(TarInput {
            name,
            reader: BufReader::new(StoppableReader::new(file, stop)),
            unpacked: None,
        });
        // A reader that was stopped returns an error that is not the cause.
        self.environment.progress.check()?;
        loaded
    }

    /// Loads a tar from a reader of the caller.
    pub(super) fn load_tar_stream(&mut self, stream: &TarStream) -> Result<()> {
        let name = stream.name();
        let reader = stream
            .take()
            .ok_or_else(|| Error::usage(format_args!("{name}: a stream can be read only once")))?;
        self.load_reader(TarInput {
            name,
            reader: BufReader::new(reader),
            unpacked: None,
        })
    }

    /// Packs a stream while it is read, or copies it first if its contents are read again.
    fn load_reader(&mut self, input: TarInput<'_, impl Read + Send + 'static>) -> Result<()> {
        let TarInput {
            name,
            mut reader,
            unpacked,
        } = input;
        let mut start = Vec::new();
        let begins = cpio::begins(&mut reader, &mut start);
        let begins =
            begins.map_err(|e| Error::from(SourceError::from(e).at_byte(0).in_source(name)))?;
        let reader = Cursor::new(start).chain(reader);
        if begins && unpacked.is_none() {
            return self.load_cpio_stream(name, reader);
        }
        let limit = Expansion::new(self.options.resources.max_expansion);
        let rules = StreamRules::new(limit);
        let (_, mut reader) = compressed::open_with(name, reader, &rules).map_err(Error::from)?;
        if let Some(digest) = unpacked {
            reader = Box::new(Digested::new(reader, *digest, self.environment.threads));
        }
        // The content of a hard link that becomes a file of its own is read again.
        let reads_again =
            self.options.dedupe.mode == Dedupe::Content || !self.options.sources.hard_links;
        if self.packs_at_once && !reads_again {
            self.pack_stream(name, reader, limit)?;
            self.warnings.extend(rules.warning());
            return Ok(());
        }
        let progress = self.environment.progress;
        progress.stage("copy");
        let file = self.copy(name, reader)?;
        self.warnings.extend(rules.warning());
        progress.stage("walk");
        self.load_tar(name, file, None)
    }

    /// Packs the contents of a tar while it is read.
    fn pack_stream(&mut self, name: &str, reader: impl Read, limit: Expansion) -> Result<()> {
        self.packed = Some(Vec::new());
        let mut zeros = 0;
        let mut tar = TarReader::new(name, reader);
        while let Some(entry) = tar.next_entry().map_err(Error::from)? {
            let (Content::Stream, runs) = entry.content.parts() else {
                self.add(entry, name)?;
                continue;
            };
            let runs = runs.cloned();
            let Kind::File { size } = entry.kind else {
                continue;
            };
            if let Some(runs) = &runs {
                zeros += written_zeros(self.options, size, runs);
                let checked = limit.check(zeros, tar.position());
                checked.map_err(|e| Error::from(e.in_member(&entry.path).in_source(name)))?;
            }
            let (number, policy) = self.policies.by_path(|| entry.path.clone());
            let Some(inode) = self.add(entry, name)? else {
                continue;
            };
            if self.tree.len().is_multiple_of(BUDGET_STEP) {
                let budget = Budget::new(self.options, &self.tree, self.environment.threads);
                self.packer.set_in_flight(budget.in_flight);
            }
            match runs {
                Some(runs) => self.pack_sparse(inode, size, &runs, &mut tar, policy)?,
                None if size <= segment_size(policy) => {
                    // Fits: a segment is a few MiB.
                    let mut bytes = vec![0; size as usize];
                    tar.data()
                        .read_exact(&mut bytes)
                        .map_err(|e| Error::from(SourceError::from(e)))?;
                    let sharing = FileSharing {
                        duplicate_key: (self.options.dedupe.mode != Dedupe::Off).then_some(number),
                        ..FileSharing::default()
                    };
                    let content = FileContent::Bytes(bytes.into());
                    self.packer
                        .add_file(inode, size, content, policy, &sharing)?;
                }
                None => (self.packer).add_stream(inode, size, &mut tar.data(), policy)?,
            }
        }
        self.warnings.extend(tar.warnings());
        tar.finish().map_err(Error::from)?;
        self.contents.layers.push(ContentProvider::Elsewhere);
        Ok(())
    }

    /// Copies a tar stream to an anonymous file. It is parsed at the same time, so that errors are found here.
    fn copy(&self, name: &str, reader: impl Read) -> Result<File> {
        let (progress, temporary) = (self.environment.progress, &self.environment.temporary);
        let fail = |e| Error::io(temporary.display(), "cannot copy the stream", e);
        let mut copy = TeeReader {
            reader,
            file: tuff_store::anonymous(temporary).map_err(fail)?,
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

    /// Packs the stored runs of a sparse member through a temporary file, since chunks may cut them anywhere.
    pub(super) fn pack_sparse<R: Read>(
        &mut self,
        inode: InodeId,
        size: u64,
        runs: &[DataRun],
        tar: &mut TarReader<R>,
        policy: &Arc<Policy>,
    ) -> Result<()> {
        let temporary = &self.environment.temporary;
        let fail = |e| Error::io(temporary.display(), "cannot write temporary data", e);
        let mut file = tuff_store::anonymous(temporary).map_err(fail)?;
        std::io::copy(&mut tar.data(), &mut file).map_err(|e| Error::from(SourceError::from(e)))?;
        let runs = placed(runs, 0);
        let content = FileContent::Runs {
            file: Arc::new(SourceFile::new(file, "sparse member")),
            runs: Arc::clone(&runs),
        };
        if self.options.keeps_sparse(size, &runs) {
            let sparse = sparse_chunks(self.options, size, &runs);
            return (self.packer).add_sparse(inode, size, content, sparse, policy);
        }
        let sharing = FileSharing::default();
        (self.packer).add_file(inode, size, content, policy, &sharing)
    }
}

/// Assigns consecutive positions to runs, from `at` on.
pub(super) fn placed(runs: &[DataRun], mut at: u64) -> Arc<[DataRun]> {
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
