//! States of the files of a snapshot on the host: files that are as they were are not read again.
//!
//! The list is a hint of this host. Without it, or if it is damaged, the next run reads every file. A list without a manifest tells
//! that the manifest was lost: `forget` removes the list first.

use crate::digest::Digest;
use crate::files;
use crate::store::Store;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};
use tuff_mkfs::Result;

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

/// States of the files of a snapshot, in the order of its tree.
#[derive(Default)]
pub(crate) struct Seen {
    bytes: Vec<u8>,
    /// Bytes that were taken.
    at: usize,
}

impl Seen {
    /// Reads the list of a snapshot. Empty if there is none.
    pub(crate) fn read(store: &Store, number: u32) -> Self {
        let bytes = files::read(&path(store, number), SEEN_MAX).unwrap_or_default();
        let whole = bytes.len() >= MAGIC.len() + 32
            && bytes.starts_with(&MAGIC)
            && (bytes.len() - MAGIC.len() - 32).is_multiple_of(LEN)
            && Digest::of_bytes(&bytes[..bytes.len() - 32]).0 == bytes[bytes.len() - 32..];
        if !whole {
            return Self::default();
        }
        let mut bytes = bytes;
        bytes.truncate(bytes.len() - 32);
        Self {
            bytes,
            at: MAGIC.len(),
        }
    }

    /// State of the next file.
    pub(crate) fn next(&mut self) -> FileState {
        let bytes = self.bytes.get(self.at..self.at + LEN)?;
        self.at += LEN;
        let mut state = [0; 6];
        for (field, bytes) in state.iter_mut().zip(bytes.as_chunks().0) {
            *field = u64::from_le_bytes(*bytes);
        }
        // A file that was not to be trusted.
        (state != [0; 6]).then_some(state)
    }

    /// Adds the state of a file to a new list.
    pub(crate) fn add(&mut self, state: FileState) {
        for field in state.unwrap_or_default() {
            self.bytes.extend_from_slice(&field.to_le_bytes());
        }
    }

    /// Writes a new list, and empties that of the parent.
    pub(crate) fn write(&self, store: &Store, number: u32, parent: Option<u32>) -> Result<()> {
        let mut bytes = [&MAGIC[..], &self.bytes].concat();
        let digest = Digest::of_bytes(&bytes);
        bytes.extend_from_slice(&digest.0);
        files::replace(&path(store, number), &bytes)?;
        if let Some(parent) = parent {
            // A list that stays takes space and nothing else. An empty one tells that there is a manifest.
            let _ = fs::write(path(store, parent), b"");
        }
        Ok(())
    }
}

/// File of the list of a snapshot.
pub(crate) fn path(store: &Store, number: u32) -> PathBuf {
    store.path.join(format!("seen/{number:08}"))
}
