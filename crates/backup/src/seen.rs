//! States of the files of a snapshot on the host: files that are as they were are not read again.
//!
//! The list is a hint of this host. Without it, or if it is damaged, the next run reads every file. A list without a manifest tells
//! that the manifest was lost: `forget` removes the list first.

use crate::files::{self, NewFile};
use std::fs::{self, File, Metadata};
use std::io::{self, BufReader, BufWriter, Read, Seek, Take, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const MAGIC: [u8; 8] = *b"TUFFSEEN";

/// Times of a filesystem may be this coarse: that of FAT. A file that was changed within it before it was read may change again
/// without another time. Unit: nanoseconds.
const GRANULARITY: i128 = 2_000_000_000;

/// State of a file: size, inode, times of modification and change in nanoseconds. `None` for one that is read in any case.
pub(crate) type FileState = Option<[u64; 6]>;

/// Longest list that is read, of 44 million files. Unit: bytes.
const SEEN_MAX: u64 = 2 << 30;

/// Number of bytes of a state.
const LEN: usize = 48;
/// Length of the buffers of lists. Unit: bytes.
const BUFFER: usize = 64 << 10;

/// Returns the state of a file, if its times tell later changes. `now`: a time before the file was read.
pub(crate) fn state(metadata: &Metadata, now: SystemTime) -> FileState {
    let nanoseconds = |s: i64, ns: i64| i128::from(s) * 1_000_000_000 + i128::from(ns);
    let modified = nanoseconds(metadata.mtime(), metadata.mtime_nsec());
    let changed = nanoseconds(metadata.ctime(), metadata.ctime_nsec());
    let now = now.duration_since(UNIX_EPOCH).ok()?.as_nanos() as i128;
    identity(metadata).filter(|_| modified.max(changed) < now - GRANULARITY)
}

/// Returns the state of a file, whether or not its times tell later changes.
pub(crate) fn identity(metadata: &Metadata) -> FileState {
    Some([
        metadata.size(),
        metadata.ino(),
        metadata.mtime().cast_unsigned(),
        metadata.mtime_nsec().cast_unsigned(),
        metadata.ctime().cast_unsigned(),
        metadata.ctime_nsec().cast_unsigned(),
    ])
}

/// Reads the list of a snapshot, whose states are in the order of its tree.
pub(crate) struct SeenReader {
    reader: Take<BufReader<File>>,
}

impl SeenReader {
    /// Opens the list of a snapshot of the store at `store`. `None` if there is none, or if it is damaged.
    pub(crate) fn open(store: &Path, number: u32) -> Option<Self> {
        let mut reader =
            BufReader::with_capacity(BUFFER, crate::files::open(&path(store, number)).ok()?);
        let len = reader.get_ref().metadata().ok()?.len();
        let content = len.checked_sub(32).filter(|_| len <= SEEN_MAX)?;
        let states = content.checked_sub(MAGIC.len() as u64)?;
        let mut hasher = blake3::Hasher::new();
        io::copy(&mut reader.by_ref().take(content), &mut hasher).ok()?;
        let (mut digest, mut magic) = ([0; 32], [0; MAGIC.len()]);
        reader.read_exact(&mut digest).ok()?;
        reader.rewind().ok()?;
        reader.read_exact(&mut magic).ok()?;
        let is_whole = magic == MAGIC
            && states.is_multiple_of(LEN as u64)
            && digest == *hasher.finalize().as_bytes();
        is_whole.then(|| Self {
            reader: reader.take(states),
        })
    }

    /// State of the next file.
    pub(crate) fn next(&mut self) -> FileState {
        let mut bytes = [0; LEN];
        self.reader.read_exact(&mut bytes).ok()?;
        let mut state = [0; 6];
        for (field, bytes) in state.iter_mut().zip(bytes.as_chunks().0) {
            *field = u64::from_le_bytes(*bytes);
        }
        // A file that was not to be trusted.
        (state != [0; 6]).then_some(state)
    }
}

/// Writes the list of a new snapshot, under a temporary name until the snapshot has a number.
pub(crate) struct SeenWriter {
    /// The file, or why it cannot be written: a run goes on without it.
    writer: io::Result<BufWriter<NewFile>>,
    hasher: blake3::Hasher,
}

impl SeenWriter {
    /// Begins a list. Without a store, it is not written.
    pub(crate) fn create(store: Option<&Path>) -> Self {
        let create = |store: &Path| {
            let name = format!("seen/{}{}", std::process::id(), files::NEW);
            let file = NewFile::create(store.join(name))?;
            Ok(BufWriter::with_capacity(BUFFER, file))
        };
        let none = || Err(io::ErrorKind::NotFound.into());
        let mut list = Self {
            writer: store.map_or_else(none, create),
            hasher: blake3::Hasher::new(),
        };
        list.put(&MAGIC);
        list
    }

    /// Adds the state of the next file.
    pub(crate) fn add(&mut self, state: FileState) {
        let mut bytes = [0; LEN];
        for (place, field) in bytes.chunks_exact_mut(8).zip(state.unwrap_or_default()) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        self.put(&bytes);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.append(bytes);
    }

    fn append(&mut self, bytes: &[u8]) {
        if let Ok(writer) = &mut self.writer
            && let Err(e) = writer.write_all(bytes)
        {
            self.writer = Err(e);
        }
    }

    /// Gives the list its name, and removes that of the parent.
    pub(crate) fn finish(
        mut self,
        store: &Path,
        number: u32,
        parent: Option<u32>,
    ) -> io::Result<()> {
        let digest = *self.hasher.finalize().as_bytes();
        self.append(&digest);
        let file = self.writer?.into_inner();
        file.map_err(io::IntoInnerError::into_error)?
            .finish(&path(store, number))?;
        if let Some(parent) = parent {
            // A list that stays takes space and nothing else. An empty one tells that there is a manifest.
            let _ = fs::write(path(store, parent), b"");
        }
        Ok(())
    }
}

/// File of the list of a snapshot.
pub(crate) fn path(store: &Path, number: u32) -> PathBuf {
    store.join(format!("seen/{number:08}"))
}
