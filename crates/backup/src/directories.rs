//! Reads single entries of directories, by pages that are kept.

use crate::cluster::Cluster;
use crate::digest::Digest;
use crate::index::Slot;
use crate::segment::{MemberEntry, RangeEntry, SegmentHeader, decode_clusters};
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

const PAGE: usize = 4096;
/// Number of pages that are kept: 32 MiB.
const PAGES: usize = 8192;
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

/// Segment whose directory was read.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) header: SegmentHeader,
    /// File of the directory.
    pub(crate) path: PathBuf,
    /// The directory as parity gives it, where its file is damaged.
    pub(crate) corrected: Option<Arc<[u8]>>,
}

/// Pages of directories, each at the place that its number gives.
#[derive(Default)]
pub(crate) struct Directories {
    pages: Mutex<Vec<Option<Page>>>,
    files: Mutex<HashMap<u32, Arc<File>>>,
}

/// Segment and number of a page, and its bytes.
type Page = ((u32, u64), Box<[u8]>);

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
        Ok(Some(Found {
            pack: header.pack,
            block: range.block,
            clusters: decode_clusters(&clusters),
            part,
        }))
    }

    fn read(&self, segment: &Segment, at: Range<u64>) -> io::Result<Vec<u8>> {
        if let Some(bytes) = &segment.corrected {
            // Fits: it is in memory.
            let bytes = bytes.get(at.start as usize..at.end as usize);
            return Ok(bytes.ok_or(io::ErrorKind::UnexpectedEof)?.to_vec());
        }
        let mut found = Vec::with_capacity((at.end - at.start) as usize);
        let mut at = at;
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.resize_with(PAGES, || None);
        while at.start < at.end {
            let number = at.start / PAGE as u64;
            let key = (segment.header.number, number);
            // Pages of a directory do not collide with their neighbours.
            let place = (u64::from(key.0) * 977 + number) as usize % PAGES;
            let page = match &mut pages[place] {
                Some((found, bytes)) if *found == key => bytes,
                slot => {
                    let bytes = self.page(segment, number)?;
                    &slot.insert((key, bytes)).1
                }
            };
            let from = (at.start % PAGE as u64) as usize;
            let len = (PAGE - from).min((at.end - at.start) as usize);
            let part = page.get(from..from + len);
            found.extend_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
            at.start += len as u64;
        }
        Ok(found)
    }

    fn page(&self, segment: &Segment, number: u64) -> io::Result<Box<[u8]>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.len() >= OPEN_MAX {
            files.clear();
        }
        let file = match files.get(&segment.header.number) {
            Some(file) => Arc::clone(file),
            None => {
                let file = Arc::new(File::open(&segment.path)?);
                files.insert(segment.header.number, Arc::clone(&file));
                file
            }
        };
        drop(files);
        let start = number * PAGE as u64;
        let len = (PAGE as u64).min(segment.header.len().saturating_sub(start));
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}
