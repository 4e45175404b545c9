//! Reads single entries of directories, by pages that are kept.

use crate::cluster::{BLOCK, Cluster, blocks_of};
use crate::digest::Digest;
use crate::index::Slot;
use crate::pages::Pages;
use crate::segment::{MemberEntry, RangeEntry, SegmentHeader, decode_clusters};
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of pages that are kept: 16 MiB.
const PAGES: usize = 4096;
/// Most files that are open.
const OPEN_MAX: usize = 128;
/// Most clusters of a range, which has a few MiB.
const CLUSTERS_MAX: u32 = 1 << 16;

/// Place of a range.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) pack: u16,
    /// First block of its clusters, or of those of its group.
    pub(crate) block: u32,
    pub(crate) clusters: Vec<Cluster>,
    /// Start and length of the range in its group. `None` for a range with clusters of its own.
    pub(crate) part: Option<(u32, u32)>,
}

impl Found {
    /// Place of the clusters in the pack, and their length. Unit: bytes.
    pub(crate) fn place(&self) -> (u64, u64) {
        let blocks: u64 = self.clusters.iter().map(|c| u64::from(c.blocks)).sum();
        (u64::from(self.block) * BLOCK as u64, blocks * BLOCK as u64)
    }
}

/// Segment whose directory was read.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) header: SegmentHeader,
    /// File of the directory.
    pub(crate) path: PathBuf,
    /// The directory as parity gives it, where its file is damaged.
    pub(crate) corrected: Option<Arc<[u8]>>,
}

/// Entries of directories, by their pages.
pub(crate) struct Directories {
    state: Mutex<(Pages, HashMap<u32, Arc<File>>)>,
}

impl Default for Directories {
    fn default() -> Self {
        Self {
            state: Mutex::new((Pages::new(PAGES), HashMap::new())),
        }
    }
}

impl fmt::Debug for Directories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Directories")
    }
}

impl Directories {
    /// Forgets all pages: a directory was replaced.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Reads the entry of a slot, and what it refers to. `None` if the entry is not that of `digest`.
    pub(crate) fn find(
        &self,
        segment: &Segment,
        (slot, is_member): (Slot, bool),
        digest: Digest,
    ) -> io::Result<Option<Found>> {
        let header = &segment.header;
        let (range, part) = match is_member {
            false => (slot.entry, None),
            true => {
                let bytes = self.read(segment, header.member_at(slot.entry))?;
                let member = MemberEntry::decode(&bytes);
                if member.digest != digest || member.group >= header.ranges {
                    return Ok(None);
                }
                (member.group, Some((member.offset, member.len)))
            }
        };
        let range = RangeEntry::decode(&self.read(segment, header.range_at(range))?);
        let is_same = part.is_some() || range.digest == digest;
        let end = range.first.checked_add(range.count);
        if !is_same || range.count > CLUSTERS_MAX || end.is_none_or(|end| end > header.clusters) {
            return Ok(None);
        }
        let clusters = self.read(segment, header.cluster_at(range.first, range.count))?;
        let clusters = decode_clusters(&clusters);
        Ok(blocks_of(&clusters).map(|_| Found {
            pack: header.pack,
            block: range.block,
            clusters,
            part,
        }))
    }

    fn read(&self, segment: &Segment, at: Range<u64>) -> io::Result<Vec<u8>> {
        if let Some(bytes) = &segment.corrected {
            // Fits: it is in memory.
            let bytes = bytes.get(at.start as usize..at.end as usize);
            return Ok(bytes.ok_or(io::ErrorKind::UnexpectedEof)?.to_vec());
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (pages, files) = &mut *state;
        let number = segment.header.number;
        pages.read((number, segment.header.len()), at, &mut || {
            if let Some(file) = files.get(&number) {
                return Ok(Arc::clone(file));
            }
            if files.len() >= OPEN_MAX {
                files.clear();
            }
            let file = Arc::new(crate::files::open(&segment.path)?);
            files.insert(number, Arc::clone(&file));
            Ok(file)
        })
    }
}
