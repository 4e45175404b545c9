//! Extents of files in memory, 16 bytes each, by pages: the index of a file is decoded once, not at every request.
//!
//! ```text
//!  page of 1 MiB of a file        record
//!  ┌────────┬────────┬────────┐   start, from the page's first extent   4
//!  │ extent │ extent │ extent │   kind, flag, length on disk             4
//!  └────────┴────────┴────────┘   position                               8
//! ```
//!
//! An extent that is longer than a page is in each page that it touches. Where the next one starts is where it ends.

use crate::read::cache::Cache;
use crate::read::map::FileMap;
use crate::read::{Cluster, ClusterCoding, Extent, Image, Inode, Location, Nid, Space};
use crate::{Error, Result};
use std::sync::Arc;
use tuff_format::cluster::Coding;
use tuff_format::inode::Layout;

/// How much of a file a page is about. Unit: log2 of bytes.
const PAGE_BITS: u32 = 20;

/// What is counted for a page beyond its records. Unit: bytes.
const PAGE_COST: usize = 160;

/// Some extents of a file that follow each other.
pub(crate) struct Page {
    /// Where the first extent starts. Unit: bytes.
    base: u64,
    /// Where the last one ends. Unit: bytes.
    end: u64,
    records: Vec<Record>,
}

#[derive(Clone, Copy)]
struct Record {
    start: u32,
    /// Kind in bits 0 to 3, `PARTIAL`, `METABOX`, length or device in the others.
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
    /// `None` if the numbers do not fit, which means that the extent comes from no valid map.
    fn new(base: u64, extent: &Extent) -> Option<Self> {
        let start = u32::try_from(extent.offset - base).ok()?;
        let len = |len: u32| (len >> (32 - LEN_SHIFT) == 0).then_some(len << LEN_SHIFT);
        let (word, pos) = match extent.location {
            Location::Hole => (HOLE, 0),
            Location::Raw { device, pos } => (RAW | u32::from(device) << LEN_SHIFT, pos),
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
                device: len as u16,
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
    /// The extents of `map` from the one that holds `from` to the one that ends at or behind `until`.
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
                // An extent that spans 4 GiB and is followed by others: they go into the next page.
                break;
            };
            page.records.push(record);
            page.end = next.end();
            if page.end >= until {
                break;
            }
            // A damaged extent is nobody's business but of those who ask for it.
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

    /// Number of the extent that holds byte `offset`, which lies in this page.
    fn find(&self, offset: u64) -> usize {
        let at = offset - self.base;
        let behind = self.records.partition_point(|r| u64::from(r.start) <= at);
        behind - 1 // the first record starts at the base
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

/// The pages that are kept.
pub(crate) struct Index(Cache<(Nid, u64), Arc<Page>>);

/// Goes over the extents of one request.
pub(crate) struct Cursor<'a> {
    server_index: &'a Index,
    image: &'a Image,
    inode: &'a Inode,
    /// For files whose map is no larger than a page.
    map: Option<FileMap>,
    page: Option<Arc<Page>>,
    /// The record that was asked for last.
    i: usize,
    /// Where the request ends.
    until: u64,
}

impl Index {
    pub(crate) fn new(budget: usize) -> Self {
        Self(Cache::new(budget, (budget >> 16).clamp(1, 8)))
    }

    pub(crate) fn shrink(&self, bytes: usize) {
        self.0.shrink(bytes);
    }

    pub(crate) fn used(&self) -> usize {
        self.0.used()
    }

    /// A cursor for bytes up to `until` of an inode.
    pub(crate) fn cursor<'a>(
        &'a self,
        image: &'a Image,
        inode: &'a Inode,
        until: u64,
    ) -> Result<Cursor<'a>> {
        let simple =
            !inode.has_data() || matches!(inode.layout(), Layout::FlatPlain | Layout::FlatInline);
        Ok(Cursor {
            server_index: self,
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
        // From the start of the page; but if something is broken there, from where it is wanted.
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
    /// The extent that holds byte `offset`, which is below the size.
    pub(crate) fn extent(&mut self, offset: u64) -> Result<Extent> {
        if let Some(map) = &self.map {
            return map
                .extent_at(self.image, offset, self.until)
                .map_err(|e| e.within(self.inode.place()));
        }
        if let Some(page) = &self.page
            && (page.base..page.end).contains(&offset)
        {
            // Mostly the one behind the last.
            if let Some(extent) = page.extent(self.i + 1)
                && extent.offset == offset
            {
                self.i += 1;
                return Ok(extent);
            }
        } else {
            self.page = Some(self.server_index.page(self.image, self.inode, offset)?);
        }
        let page = self.page.as_ref().expect("set above");
        self.i = page.find(offset);
        Ok(page.extent(self.i).expect("found above"))
    }

    /// Where the request ends. Unit: bytes of the file.
    pub(crate) fn until(&self) -> u64 {
        self.until
    }

    /// Extents behind the last one that was asked for, as far as they are at hand.
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
    fn every_source_survives_packing() {
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
                device: u16::MAX,
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
