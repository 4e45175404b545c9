//! In-memory index of extents: 16 bytes per extent, cached in pages, so that the on-disk map is not
//! decoded for every request.
//!
//! ```text
//!  page of 1 MiB of a file        record
//!  ┌────────┬────────┬────────┐   start, relative to the page's first extent   4 bytes
//!  │ extent │ extent │ extent │   kind, flags, length on disk                  4 bytes
//!  └────────┴────────┴────────┘   position                                     8 bytes
//! ```
//!
//! An extent that is longer than a page is in each page that it touches. An extent ends where the
//! next one starts.

use crate::read::cache::Cache;
use crate::read::map::FileMap;
use crate::read::{Cluster, ClusterCoding, DeviceId, Extent, Image, Inode, Location, Nid, Space};
use crate::{Error, Result};
use std::sync::Arc;
use tuff_format::cluster::Coding;
use tuff_format::inode::Layout;

/// log2 of the file range that a page covers. Unit: log2 of bytes.
const PAGE_BITS: u32 = 20;

/// Memory accounted for a page in addition to its records. Unit: bytes.
const PAGE_COST: usize = 160;

/// Consecutive extents of a file.
pub(crate) struct Page {
    /// File offset of the first extent. Unit: bytes.
    base: u64,
    /// File offset of the end of the last extent. Unit: bytes.
    end: u64,
    records: Vec<Record>,
}

#[derive(Clone, Copy)]
struct Record {
    start: u32,
    /// Kind in bits 0 to 3, flags `PARTIAL` and `METABOX`, length or device from bit 8.
    word: u32,
    pos: u64,
}

const HOLE: u32 = 0;
const RAW: u32 = 1;
const FRAGMENT: u32 = 2;
const STORED: u32 = 3;
const INTERLACED: u32 = 4;
const COMPRESSED: u32 = 5; // to 8, by algorithm
const INLINE: u32 = 9; // stored; 10 to 13 by algorithm
const KIND: u32 = 15;
const PARTIAL: u32 = 1 << 4;
const METABOX: u32 = 1 << 5;
const LEN_SHIFT: u32 = 8;

fn coding_code(coding: ClusterCoding) -> u32 {
    match coding {
        ClusterCoding::Stored => STORED,
        ClusterCoding::Interlaced => INTERLACED,
        ClusterCoding::Compressed(id) => COMPRESSED + u32::from(id & 3),
    }
}

impl Record {
    /// `None` if a value does not fit. No valid map contains such an extent.
    fn new(base: u64, extent: &Extent) -> Option<Self> {
        let start = u32::try_from(extent.offset - base).ok()?;
        let len = |len: u32| (len >> (32 - LEN_SHIFT) == 0).then_some(len << LEN_SHIFT);
        let (word, pos) = match extent.location {
            Location::Hole => (HOLE, 0),
            Location::Raw { device, pos } => (RAW | u32::from(device.0) << LEN_SHIFT, pos),
            Location::Fragment { offset } => (FRAGMENT, offset),
            Location::Cluster(c) => {
                let partial = if c.partial { PARTIAL } else { 0 };
                (coding_code(c.coding) | partial | len(c.len)?, c.pos)
            }
            Location::Inline {
                space,
                pos,
                len: n,
                coding,
            } => {
                let kind = match coding {
                    Coding::Compressed(id) => INLINE + 1 + u32::from(id & 3),
                    _ => INLINE,
                };
                let space = if space == Space::Metabox { METABOX } else { 0 };
                (kind | space | len(n)?, pos)
            }
        };
        Some(Self { start, word, pos })
    }

    fn location(self) -> Location {
        let (len, pos) = (self.word >> LEN_SHIFT, self.pos);
        let cluster = |coding| {
            Location::Cluster(Cluster {
                pos,
                len,
                coding,
                partial: self.word & PARTIAL != 0,
            })
        };
        let inline = |coding| Location::Inline {
            space: if self.word & METABOX != 0 {
                Space::Metabox
            } else {
                Space::Image
            },
            pos,
            len,
            coding,
        };
        // Fits: algorithms are 0 to 3, devices have 16 bits.
        match self.word & KIND {
            HOLE => Location::Hole,
            RAW => Location::Raw {
                device: DeviceId(len as u16),
                pos,
            },
            FRAGMENT => Location::Fragment { offset: pos },
            STORED => cluster(ClusterCoding::Stored),
            INTERLACED => cluster(ClusterCoding::Interlaced),
            kind @ COMPRESSED..INLINE => {
                cluster(ClusterCoding::Compressed((kind - COMPRESSED) as u8))
            }
            INLINE => inline(Coding::Stored),
            kind => inline(Coding::Compressed((kind - INLINE - 1) as u8)),
        }
    }
}

impl Page {
    /// Loads the extents of `map` from the one that contains `from` to the one that ends at or
    /// after `until`.
    fn load(image: &Image, inode: &Inode, map: &FileMap, from: u64, until: u64) -> Result<Self> {
        let first = map.extent_at(image, from, until)?;
        let mut page = Self {
            base: first.offset,
            end: first.offset,
            records: Vec::new(),
        };
        let mut next = first;
        loop {
            if next.offset != page.end {
                return Err(Error::corrupt(
                    inode.place(),
                    format_args!(
                        "extent at file offset {}, expected {}",
                        next.offset, page.end
                    ),
                ));
            }
            let Some(record) = Record::new(page.base, &next) else {
                // The extent spans 4 GiB and others follow: they belong to the next page.
                break;
            };
            page.records.push(record);
            page.end = next.end();
            if page.end >= until {
                break;
            }
            // A damaged extent is reported only to requests that touch it.
            match map.extent_at(image, page.end, until) {
                Ok(extent) => next = extent,
                Err(_) => break,
            }
        }
        page.records.shrink_to_fit();
        Ok(page)
    }

    fn cost(&self) -> usize {
        PAGE_COST + self.records.len() * size_of::<Record>()
    }

    /// Position in the page of the extent that contains byte `offset` of the file, which the page
    /// covers.
    fn find(&self, offset: u64) -> usize {
        let at = offset - self.base;
        let after = self.records.partition_point(|r| u64::from(r.start) <= at);
        after - 1 // the first record starts at `base`
    }

    fn extent(&self, i: usize) -> Option<Extent> {
        let record = self.records.get(i)?;
        let offset = self.base + u64::from(record.start);
        let next = self.records.get(i + 1);
        let end = next.map_or(self.end, |r| self.base + u64::from(r.start));
        Some(Extent {
            offset,
            len: end - offset,
            location: record.location(),
        })
    }
}

/// Cache of pages, by inode and page number.
pub(crate) struct ExtentIndex(Cache<(Nid, u64), Arc<Page>>);

/// Iterates over the extents of one request.
pub(crate) struct Cursor<'a> {
    index: &'a ExtentIndex,
    image: &'a Image,
    inode: &'a Inode,
    /// Map of a flat file, which needs no pages. `None` for other layouts.
    map: Option<FileMap>,
    page: Option<Arc<Page>>,
    /// Position in `page` of the extent that was returned last.
    i: usize,
    /// End of the request. Unit: bytes of the file.
    until: u64,
}

impl ExtentIndex {
    pub(crate) fn new(budget: usize) -> Self {
        Self(Cache::new(budget, (budget >> 16).clamp(1, 8)))
    }

    pub(crate) fn shrink(&self, bytes: usize) {
        self.0.shrink(bytes);
    }

    pub(crate) fn used(&self) -> usize {
        self.0.used()
    }

    /// Returns a cursor over the extents of an inode. The request ends at file offset `until`.
    pub(crate) fn cursor<'a>(
        &'a self,
        image: &'a Image,
        inode: &'a Inode,
        until: u64,
    ) -> Result<Cursor<'a>> {
        let simple =
            !inode.has_data() || matches!(inode.layout(), Layout::FlatPlain | Layout::FlatInline);
        Ok(Cursor {
            index: self,
            image,
            inode,
            map: if simple {
                Some(image.map(inode)?)
            } else {
                None
            },
            page: None,
            i: 0,
            until,
        })
    }

    fn page(&self, image: &Image, inode: &Inode, offset: u64) -> Result<Arc<Page>> {
        let n = offset >> PAGE_BITS;
        if let Some(page) = self.0.get(&(inode.nid(), n))
            && (page.base..page.end).contains(&offset)
        {
            return Ok(page);
        }
        let map = image.map(inode)?;
        let until = ((n + 1) << PAGE_BITS).min(inode.size());
        // Load from the start of the page. If something is damaged there, load from `offset`.
        let place = |e: Error| e.within(inode.place());
        let page = match Page::load(image, inode, &map, n << PAGE_BITS, until) {
            Ok(page) if (page.base..page.end).contains(&offset) => page,
            _ => Page::load(image, inode, &map, offset, until).map_err(place)?,
        };
        let page = Arc::new(page);
        self.0.put((inode.nid(), n), page.clone(), page.cost());
        Ok(page)
    }
}

impl Cursor<'_> {
    /// Returns the extent that contains byte `offset`, which is below the file size.
    pub(crate) fn extent(&mut self, offset: u64) -> Result<Extent> {
        if let Some(map) = &self.map {
            return map
                .extent_at(self.image, offset, self.until)
                .map_err(|e| e.within(self.inode.place()));
        }
        if let Some(page) = &self.page
            && (page.base..page.end).contains(&offset)
        {
            // Usually it is the extent after the previous one.
            if let Some(extent) = page.extent(self.i + 1)
                && extent.offset == offset
            {
                self.i += 1;
                return Ok(extent);
            }
        } else {
            self.page = Some(self.index.page(self.image, self.inode, offset)?);
        }
        let page = self.page.as_ref().expect("set above");
        self.i = page.find(offset);
        Ok(page.extent(self.i).expect("found above"))
    }

    /// End of the request. Unit: bytes of the file.
    pub(crate) fn until(&self) -> u64 {
        self.until
    }

    /// Extents after the one that was returned last, as far as they are in the same page.
    pub(crate) fn ahead(&self) -> impl Iterator<Item = Extent> {
        let page = self.page.as_deref();
        let from = self.i + 1;
        (from..).map_while(move |i| page.and_then(|p| p.extent(i)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_location_round_trips_through_a_record() {
        let cluster = |len, coding, partial| {
            Location::Cluster(Cluster {
                pos: 0xFFFF_FFFF_F000,
                len,
                coding,
                partial,
            })
        };
        let inline = |space, coding| Location::Inline {
            space,
            pos: 1 << 40,
            len: 4096,
            coding,
        };
        let mut all = vec![
            Location::Hole,
            Location::Raw {
                device: DeviceId(u16::MAX),
                pos: u64::MAX,
            },
            Location::Fragment { offset: 1 << 60 },
            cluster(1 << 20, ClusterCoding::Stored, false),
            cluster(512, ClusterCoding::Interlaced, true),
            inline(Space::Image, Coding::Stored),
        ];
        for id in 0..4 {
            all.push(cluster(1, ClusterCoding::Compressed(id), id % 2 == 0));
            all.push(inline(Space::Metabox, Coding::Compressed(id)));
        }
        for source in all {
            let extent = Extent {
                offset: 7000,
                len: 1,
                location: source,
            };
            let record = Record::new(5000, &extent).unwrap();
            assert_eq!((record.start, record.location()), (2000, source));
        }
        assert_eq!(size_of::<Record>(), 16);
    }
}
