//! Lookup of extents by file offset, for all index forms.

use super::header::{BIG_1, BIG_2, COMPACTED_2B, EXTENTS, FRAGMENT, INLINE, INTERLACED, MapHeader};
use super::{
    Coding, DECODED_MAX, Data, Extent, HeadKind, Lcluster, PCLUSTER_MAX, compact, extent, full,
};
use crate::features::incompat;
use crate::inode::Layout;
use crate::superblock::Superblock;
use crate::units::round_up;
use crate::{BlockBits, Error, Result};

/// Map of a compressed inode: the decoded map header, without the bytes of the index.
#[derive(Clone, Copy, Debug)]
pub struct Map {
    /// File size. Unit: bytes.
    pub size: u64,
    /// Form of the index.
    pub form: Form,
    bits: BlockBits,
    lcluster_bits: u8,
    /// Position of the index in the inode's space. Unit: bytes.
    index_pos: u64,
    index_len: u64,
    advise: u16,
    algorithms: u8,
    word: u32,
    allowed: u16,
}

/// Form of an index.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// No index: the whole file is a fragment.
    WholeFragment {
        /// Position in the packed inode's data. Unit: bytes.
        offset: u64,
    },
    /// Full index: 8 bytes per lcluster.
    Full,
    /// Compacted index: packs of lclusters.
    Compact(compact::Geometry),
    /// Records of encoded extents.
    Extents(extent::Table),
}

impl Map {
    /// Creates the map of an inode with a compressed `layout`. `header` is the map header, at `header_pos` of the
    /// inode's space.
    pub fn new(
        sb: &Superblock,
        layout: Layout,
        size: u64,
        header: &[u8],
        header_pos: u64,
    ) -> Result<Self> {
        let bits = sb.block_bits;
        let mut map = Self {
            size,
            form: Form::Full,
            bits,
            lcluster_bits: bits.get(),
            index_pos: header_pos + 8,
            index_len: 0,
            advise: 0,
            algorithms: 0,
            word: 0,
            allowed: sb.algorithms(),
        };
        let (word, advise, algorithms, cluster_bits) = match MapHeader::decode(header)? {
            MapHeader::WholeFragment { offset } => {
                map.form = Form::WholeFragment { offset };
                map.require_fragments(sb)?;
                return Ok(map);
            }
            MapHeader::Index {
                word,
                advise,
                algorithms,
                cluster_bits,
            } => (word, advise, algorithms, cluster_bits),
        };
        map.word = word;
        map.advise = advise;
        map.lcluster_bits = bits.get() + (cluster_bits & 15);
        if advise & FRAGMENT != 0 {
            map.require_fragments(sb)?;
        }
        if layout == Layout::CompressedFull && advise & EXTENTS != 0 {
            if !sb.has(incompat::BIT48) {
                return Err(Error::corrupt(
                    "encoded extents in an image without the 48bit feature",
                ));
            }
            let record = 4u8 << (advise >> 1 & 3);
            let count = if record < 16 {
                size.div_ceil(1 << map.lcluster_bits)
            } else {
                u64::from(word) | u64::from(u16::from_le_bytes([algorithms, cluster_bits])) << 32
            };
            // A lookup adds up all preceding 4-byte records, so their number is limited.
            if record == 4 && count > extent::ACCUMULATED_MAX {
                return Err(Error::unsupported("number of 4-byte extent records", count));
            }
            let table = extent::Table {
                record,
                count,
                extent_bits: map.lcluster_bits,
                fragment: advise & FRAGMENT != 0,
                interlaced: advise & INTERLACED != 0,
            };
            map.index_pos = round_up(header_pos + 8, record.into());
            map.index_len = table
                .len()
                .ok_or(Error::bad("number of extents", count, "fewer"))?;
            map.form = Form::Extents(table);
            return Ok(map);
        }
        map.algorithms = algorithms;
        if algorithms & 15 > 3 {
            return Err(Error::unsupported(
                "compression algorithm",
                (algorithms & 15).into(),
            ));
        }
        if advise & (BIG_1 | BIG_2) != 0 && !sb.has(incompat::COMPR_CFGS) {
            return Err(Error::corrupt(
                "big clusters in an image without the big_pcluster feature",
            ));
        }
        let total = size.div_ceil(1 << map.lcluster_bits);
        if layout == Layout::CompressedFull {
            map.index_pos = header_pos + full::START;
            map.index_len =
                total
                    .checked_mul(full::ENTRY_LEN)
                    .ok_or(Error::bad("file size", size, "less"))?;
            return Ok(map);
        }
        let big = advise & BIG_1 != 0;
        if big != (advise & BIG_2 != 0) {
            return Err(Error::bad(
                "map header flags of a compact index",
                advise.into(),
                "both big_pcluster bits or none",
            ));
        }
        let packs_2b = advise & COMPACTED_2B != 0;
        let geometry =
            compact::Geometry::new(map.index_pos, total, packs_2b, map.lcluster_bits, big)?;
        map.index_len = geometry.len();
        map.form = Form::Compact(geometry);
        Ok(map)
    }

    fn require_fragments(&self, sb: &Superblock) -> Result<()> {
        if !sb.has(incompat::FRAGMENTS) || sb.packed.is_none() {
            return Err(Error::corrupt(
                "a fragment in an image without the fragments feature or a packed inode",
            ));
        }
        Ok(())
    }

    /// Position of the index in the inode's space. Unit: bytes.
    pub fn index_pos(&self) -> u64 {
        self.index_pos
    }

    /// Length of the index. Unit: bytes. It grows with the stored file size: check it before loading the index.
    pub fn index_len(&self) -> u64 {
        self.index_len
    }

    /// Position of the inline pcluster in the inode's space, after the index. Unit: bytes.
    pub fn inline_pos(&self) -> u64 {
        self.index_pos.saturating_add(self.index_len)
    }

    /// Length of the inline pcluster, 0 if there is none. Unit: bytes.
    pub fn inline_len(&self) -> u32 {
        let has = self.advise & (INLINE | FRAGMENT) == INLINE
            && matches!(self.form, Form::Full | Form::Compact(_));
        if has { self.word >> 16 } else { 0 }
    }

    /// Flags of the map header.
    pub fn advise(&self) -> u16 {
        self.advise
    }

    /// Finds the extent that contains byte `offset`, which is below the file size. `index` is the bytes from
    /// [`index_pos`](Self::index_pos) on.
    pub fn extent_at(&self, index: &[u8], offset: u64) -> Result<Extent> {
        if offset >= self.size {
            return Err(Error::bad("file offset", offset, "inside the file"));
        }
        let extent = match self.form {
            Form::WholeFragment { offset } => {
                return Ok(Extent {
                    la: 0,
                    len: self.size,
                    data: Data::Fragment { offset },
                });
            }
            Form::Extents(table) => table.extent_at(index, offset, self.size, self.bits)?,
            Form::Full | Form::Compact(_) => self.from_lclusters(index, offset)?,
        };
        self.check(&extent)?;
        Ok(extent)
    }

    /// Iterates over the extents from the one that contains `offset` on. Ends after the first error.
    pub fn extents_from<'a>(&self, index: &'a [u8], offset: u64) -> Extents<'a> {
        Extents {
            map: *self,
            index,
            next: offset,
            started: false,
            failed: false,
        }
    }

    /// Number of lclusters. 0 for forms without lclusters.
    pub fn lclusters(&self) -> u64 {
        match self.form {
            Form::Full | Form::Compact(_) => self.size.div_ceil(1 << self.lcluster_bits),
            _ => 0,
        }
    }

    /// Decodes index entry `n` of a full or compacted index.
    pub fn lcluster(&self, index: &[u8], n: u64) -> Result<Lcluster> {
        match self.form {
            Form::Full => full::entry(index, n, self.lcluster_bits),
            Form::Compact(geometry) => geometry.entry(index, n),
            _ => Err(Error::corrupt("index entry of a form that has none")),
        }
    }

    /// Checks rules that single lookups do not: every distance in the index must agree with the heads.
    pub fn verify_index(&self, index: &[u8]) -> Result<()> {
        let total = self.lclusters();
        // Last head found, and the lcluster up to which the distances exclude another one.
        let (mut head, mut clear_to) = (0, 0);
        let past_a_head = |clear_to: u64, head: u64| {
            Err(Error::bad(
                "index entry: distance ahead leads to entry",
                clear_to,
                if head < total {
                    "not past the next head"
                } else {
                    "not past the last entry"
                },
            ))
        };
        for n in 0..total {
            match self.lcluster(index, n)? {
                Lcluster::Head { ofs, .. } => {
                    if n == 0 && ofs != 0 {
                        return Err(Error::bad(
                            "first index entry: cluster offset",
                            ofs.into(),
                            "0",
                        ));
                    }
                    if clear_to > n {
                        return past_a_head(clear_to, n);
                    }
                    (head, clear_to) = (n, 0);
                }
                Lcluster::Nonhead { .. } if n == 0 => {
                    return Err(Error::corrupt("the first index entry is not a head"));
                }
                Lcluster::Nonhead { back, .. } if u64::from(back) > n - head => {
                    return Err(Error::bad(
                        "index entry: distance back to its head",
                        back.into(),
                        "not past the head",
                    ));
                }
                Lcluster::Nonhead {
                    blocks: Some(_), ..
                } if n != head + 1 => {
                    return Err(Error::bad(
                        "index entry with a block count",
                        n,
                        "right behind its head",
                    ));
                }
                Lcluster::Nonhead { ahead, .. } => clear_to = clear_to.max(n + u64::from(ahead)),
            }
        }
        if clear_to > total {
            return past_a_head(clear_to, total);
        }
        Ok(())
    }

    fn head_of(&self, index: &[u8], offset: u64) -> Result<(u64, HeadKind, u16, u32, bool)> {
        let mut n = offset >> self.lcluster_bits;
        let within = (offset & ((1 << self.lcluster_bits) - 1)) as u16;
        let mut first = true;
        loop {
            let back = match self.lcluster(index, n)? {
                Lcluster::Head { ofs, .. } if first && ofs > within => 1,
                Lcluster::Head {
                    kind,
                    ofs,
                    block,
                    partial,
                } => return Ok((n, kind, ofs, block, partial)),
                Lcluster::Nonhead { back, .. } => u64::from(back),
            };
            first = false;
            n = match n.checked_sub(back) {
                Some(n) if back > 0 => n,
                _ => {
                    return Err(Error::bad(
                        "index entry: distance back to its head",
                        back,
                        "inside the file",
                    ));
                }
            };
        }
    }

    /// Returns the file offset at which the extent after head `n` starts.
    fn next_start(&self, index: &[u8], n: u64) -> Result<u64> {
        let total = self.lclusters();
        let mut m = n + 1;
        while m < total {
            match self.lcluster(index, m)? {
                Lcluster::Head { ofs, .. } => {
                    return Ok(((m << self.lcluster_bits) + u64::from(ofs)).min(self.size));
                }
                Lcluster::Nonhead { ahead, .. } => m += u64::from(ahead.max(1)),
            }
        }
        Ok(self.size)
    }

    #[expect(
        clippy::wrong_self_convention,
        reason = "it says where the extent is taken from"
    )]
    fn from_lclusters(&self, index: &[u8], offset: u64) -> Result<Extent> {
        let (n, kind, ofs, block, partial) = self.head_of(index, offset)?;
        let la = (n << self.lcluster_bits) + u64::from(ofs);
        if la > offset {
            return Err(Error::bad(
                "extent start",
                la,
                "at or before the offset that was asked for",
            ));
        }
        let end = self.next_start(index, n)?;
        if end <= offset {
            return Err(Error::bad(
                "extent end",
                end,
                "behind the offset that was asked for",
            ));
        }
        let len = end - la;
        let interlaced = self.advise & INTERLACED != 0;
        let coding = match kind {
            HeadKind::Plain if interlaced => Coding::Interlaced,
            HeadKind::Plain => Coding::Stored,
            HeadKind::Head1 => Coding::Compressed(self.algorithms & 15),
            HeadKind::Head2 => Coding::Compressed(self.algorithms >> 4),
        };
        let tail = end == self.size;
        if tail && self.advise & FRAGMENT != 0 {
            let hi = if matches!(self.form, Form::Full) {
                u64::from(block) << 32
            } else {
                0
            };
            return Ok(Extent {
                la,
                len,
                data: Data::Fragment {
                    offset: u64::from(self.word) | hi,
                },
            });
        }
        if tail && self.inline_len() != 0 {
            // An uncompressed inline tail is not interlaced, and never combined with the INTERLACED flag.
            let coding = if coding == Coding::Interlaced {
                Coding::Stored
            } else {
                coding
            };
            return Ok(Extent {
                la,
                len,
                data: Data::Inline {
                    len: self.inline_len(),
                    coding,
                },
            });
        }
        let blocks = self.blocks_of(index, n, kind)?;
        let pa = u64::from(block) << self.bits.get();
        let plen = u64::from(blocks) << self.bits.get();
        if plen == 0 || plen > PCLUSTER_MAX {
            return Err(Error::bad(
                "cluster length in blocks",
                blocks.into(),
                "at least 1 and at most 1 MiB",
            ));
        }
        Ok(Extent {
            la,
            len,
            data: Data::Cluster {
                pa,
                plen: plen as u32,
                coding,
                partial,
            },
        })
    }

    fn blocks_of(&self, index: &[u8], n: u64, kind: HeadKind) -> Result<u16> {
        let big = self.advise
            & if kind == HeadKind::Head1 {
                BIG_1
            } else {
                BIG_2
            }
            != 0;
        if (n + 1) << self.lcluster_bits >= self.size {
            return Ok(1);
        }
        match (self.lcluster(index, n + 1)?, big) {
            (Lcluster::Head { .. }, _) => Ok(1),
            (
                Lcluster::Nonhead {
                    blocks: Some(blocks),
                    ..
                },
                true,
            ) => Ok(blocks),
            (Lcluster::Nonhead { blocks: None, .. }, false) => Ok(1),
            (_, true) => Err(Error::bad(
                "index entry behind a head",
                n + 1,
                "a block count",
            )),
            (_, false) => Err(Error::bad(
                "index entry with a block count",
                n + 1,
                "none without big clusters",
            )),
        }
    }

    /// Checks the rules for extents of all forms.
    fn check(&self, extent: &Extent) -> Result<()> {
        let (coding, plen) = match extent.data {
            Data::Cluster {
                coding, plen, pa, ..
            } => {
                if u64::from(plen) > PCLUSTER_MAX {
                    return Err(Error::bad("cluster length", plen.into(), "at most 1048576"));
                }
                if pa
                    .checked_add(plen.into())
                    .is_none_or(|end| end >> 48 >= self.bits.size())
                {
                    return Err(Error::bad("cluster position", pa, "below 2^48 blocks"));
                }
                (coding, u64::from(plen))
            }
            Data::Inline { coding, len } => {
                if self.bits.within(self.inline_pos()) + u64::from(len) > self.bits.size() {
                    return Err(Error::bad(
                        "inline cluster length",
                        len.into(),
                        "not past the end of its block",
                    ));
                }
                (coding, u64::from(len))
            }
            Data::Fragment { .. } | Data::Hole => return Ok(()),
        };
        match coding {
            Coding::Compressed(id) if self.allowed & 1 << id == 0 => Err(Error::bad(
                "compression algorithm",
                id.into(),
                "one that the superblock lists",
            )),
            Coding::Compressed(_) if extent.len > DECODED_MAX => Err(Error::bad(
                "decoded extent length",
                extent.len,
                "at most 12582912",
            )),
            Coding::Stored | Coding::Interlaced if extent.len > plen => Err(Error::bad(
                "stored extent length",
                extent.len,
                "not more than its cluster",
            )),
            _ => Ok(()),
        }
    }

    /// Algorithm ids of HEAD1 and HEAD2.
    pub fn algorithms(&self) -> (u8, u8) {
        (self.algorithms & 15, self.algorithms >> 4)
    }
}

/// Iterator over extents, created by [`Map::extents_from`].
pub struct Extents<'a> {
    map: Map,
    index: &'a [u8],
    next: u64,
    started: bool,
    failed: bool,
}

impl Iterator for Extents<'_> {
    type Item = Result<Extent>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.next >= self.map.size {
            return None;
        }
        let extent = match self.map.extent_at(self.index, self.next) {
            // With records out of order, the search finds an extent that was returned before.
            Ok(extent) if self.started && extent.la != self.next => Err(Error::bad(
                "extent: file offset",
                extent.la,
                "the end of the one before",
            )),
            extent => extent,
        };
        self.started = true;
        match &extent {
            // Terminates: the extent contains `next`, so it ends after it.
            Ok(extent) => self.next = extent.end(),
            Err(_) => self.failed = true,
        }
        Some(extent)
    }
}
