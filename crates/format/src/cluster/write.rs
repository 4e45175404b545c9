//! Encoding of an index from a list of placed extents.

use super::compact::{Geometry, NO_BLOCK};
use super::header::{BIG_1, BIG_2, COMPACTED_2B, FRAGMENT, INLINE, MapHeader};
use super::{DISTANCE_MAX, HeadKind, Lcluster, full};
use crate::BlockBits;
use crate::units::round_up;
use alloc::vec::Vec;

/// Extent with the location of its pcluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Length in the file. Unit: bytes. Extents follow each other without gaps from offset 0.
    pub len: u64,
    /// Encoding of the pcluster.
    pub kind: HeadKind,
    /// First block of the pcluster. 0 for an inline or fragment tail.
    pub block: u32,
    /// Number of blocks of the pcluster, at least 1. 0 for an inline or fragment tail.
    pub blocks: u16,
    /// True if the extent is a prefix of the decoded pcluster.
    pub partial: bool,
}

/// Location of the last extent's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// In a pcluster of its own, like all other extents.
    Cluster,
    /// In an inline pcluster of this length. Unit: bytes.
    Inline(u16),
    /// In the packed inode, at this position. Unit: bytes.
    Fragment(u64),
}

/// Encoded map header and index of an inode, without the inline pcluster.
pub struct Index {
    /// True for the compacted layout.
    pub compact: bool,
    /// Bytes of the map header and index, for an 8-byte aligned position.
    pub bytes: Vec<u8>,
}

/// Encodes map header and index. `header_pos % 32` determines the packs of a compacted index. The result is a full
/// index if a compacted one cannot express the extents or `want_compact` is false.
pub fn index(
    pieces: &[Piece],
    tail: Tail,
    algorithm: u8,
    header_pos: u64,
    bits: BlockBits,
    want_compact: bool,
) -> Index {
    let size: u64 = pieces.iter().map(|p| p.len).sum();
    let big = pieces.iter().any(|p| p.blocks > 1);
    let entries = lclusters(pieces, tail, size, bits, big);
    let flags = if big { BIG_1 | BIG_2 } else { 0 };
    let (word, tail_flag) = match tail {
        Tail::Cluster => (0, 0),
        Tail::Inline(len) => (u32::from(len) << 16, INLINE),
        Tail::Fragment(offset) => (offset as u32, FRAGMENT),
    };
    // Only the full index can hold the high half of a fragment position.
    let far = matches!(tail, Tail::Fragment(offset) if offset >> 32 != 0);
    let header = |advise| {
        MapHeader::Index {
            word,
            advise,
            algorithms: algorithm,
            cluster_bits: 0,
        }
        .encode()
    };
    if want_compact && !far {
        let geometry = Geometry::new(
            header_pos + 8,
            entries.len() as u64,
            bits.get() <= 12,
            bits.get(),
            big,
        );
        if let Some(packs) = geometry.ok().and_then(|g| g.encode(&entries)) {
            let two = if bits.get() <= 12 { COMPACTED_2B } else { 0 };
            let mut bytes = header(flags | tail_flag | two).to_vec();
            bytes.extend_from_slice(&packs);
            return Index {
                compact: true,
                bytes,
            };
        }
    }
    let mut bytes = header(flags | tail_flag).to_vec();
    bytes.resize(full::START as usize, 0);
    full::encode(&entries, &mut bytes);
    Index {
        compact: false,
        bytes,
    }
}

/// Length of the result of [`index`] for the given form. Unit: bytes.
pub fn index_len(size: u64, header_pos: u64, bits: BlockBits, compact: bool, big: bool) -> u64 {
    let total = bits.count(size);
    if compact {
        let geometry = Geometry::new(header_pos + 8, total, bits.get() <= 12, bits.get(), big);
        8 + geometry.map_or(0, |g| g.len())
    } else {
        full::START + full::ENTRY_LEN * total
    }
}

/// Position of the map header after an inode and its xattrs. Unit: bytes.
pub fn header_pos(inode_end: u64) -> u64 {
    round_up(inode_end, 8)
}

/// Creates one index entry per lcluster.
///
/// The packer guarantees that each extent but the last ends in a later lcluster than the one it starts in.
fn lclusters(pieces: &[Piece], tail: Tail, size: u64, bits: BlockBits, big: bool) -> Vec<Lcluster> {
    let lcluster = bits.size();
    let mut entries = Vec::with_capacity(bits.count(size) as usize);
    let mut la = 0u64;
    for (i, piece) in pieces.iter().enumerate() {
        let last = i + 1 == pieces.len();
        let end = la + piece.len;
        let (head, next) = (la / lcluster, end / lcluster);
        assert!(
            last || next > head,
            "a piece of {} bytes at {la} shares its lcluster with the next",
            piece.len
        );
        assert_eq!(entries.len() as u64, head);
        let block = match tail {
            // High half of the position. Readers of a compacted index ignore the address.
            Tail::Fragment(offset) if last => (offset >> 32) as u32,
            Tail::Inline(_) if last => NO_BLOCK,
            _ => piece.block,
        };
        entries.push(Lcluster::Head {
            kind: piece.kind,
            ofs: (la % lcluster) as u16,
            block,
            partial: piece.partial,
        });
        for n in head + 1..next {
            let blocks = (n == head + 1 && big).then_some(match tail {
                Tail::Inline(_) if last => 1,
                Tail::Fragment(_) if last => 0,
                _ => piece.blocks,
            });
            entries.push(Lcluster::Nonhead {
                back: (n - head).min(DISTANCE_MAX) as u16,
                ahead: (next - n).min(u16::MAX.into()) as u16,
                blocks,
            });
        }
        if last && !size.is_multiple_of(lcluster) && next > head {
            let ofs = (size % lcluster) as u16;
            entries.push(Lcluster::Head {
                kind: HeadKind::Plain,
                ofs,
                block: NO_BLOCK,
                partial: false,
            });
        }
        la = end;
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::super::{Coding, Data, Extent, Map};
    use super::*;
    use crate::features::incompat;
    use crate::inode::Layout;
    use crate::superblock::Superblock;
    use crate::{BlockBits, Nid, Result};

    fn superblock() -> Superblock {
        Superblock {
            incompat: incompat::LZ4_0PADDING | incompat::COMPR_CFGS | incompat::FRAGMENTS,
            algs_or_distance: 0b1111,
            packed: Some(Nid(99)),
            ..Superblock::empty(BlockBits::B4K)
        }
    }

    fn piece(len: u64, kind: HeadKind, block: u32, blocks: u16) -> Piece {
        Piece {
            len,
            kind,
            block,
            blocks,
            partial: false,
        }
    }

    fn extents(index: &Index, size: u64, header_pos: u64) -> Vec<Extent> {
        let layout = if index.compact {
            Layout::CompressedCompact
        } else {
            Layout::CompressedFull
        };
        let map = Map::new(&superblock(), layout, size, &index.bytes, header_pos).unwrap();
        assert_eq!(map.inline_pos(), header_pos + index.bytes.len() as u64);
        let body = &index.bytes[(map.index_pos() - header_pos) as usize..];
        map.verify_index(body).unwrap();
        map.extents_from(body, 0).collect::<Result<_>>().unwrap()
    }

    fn example() -> Vec<Piece> {
        use HeadKind::{Head1, Plain};
        [
            (8401, Head1),
            (8405, Head1),
            (8441, Head1),
            (8674, Head1),
            (5361, Head1),
            (4096, Plain),
            (4879, Head1),
            (8356, Head1),
            (8386, Head1),
            (8388, Head1),
            (8333, Head1),
            (13418, Head1),
            (3362, Plain),
        ]
        .iter()
        .enumerate()
        .map(|(i, (len, kind))| piece(*len, *kind, i as u32 + 1, 1))
        .collect()
    }

    #[test]
    fn the_worked_compact_example_is_reproduced() {
        let index = index(&example(), Tail::Cluster, 0, 0x520, BlockBits::B4K, true);
        assert!(index.compact);
        let expected = "00000000 01000000 0010012000000000 d110012001000000 a611012002000000 \
                        9f5200 1848c925 72592017 00967401 e0791700 ae7a0120 ce17000a 8003000000 \
                        0320a2030c000000 c40000000d000000";
        let hex: alloc::string::String = expected.split_whitespace().collect();
        let got: alloc::string::String = index
            .bytes
            .iter()
            .map(|b| alloc::format!("{b:02x}"))
            .collect();
        // The terminator's pack may have any base: only heads with an address count.
        assert_eq!(got[..got.len() - 8], hex[..hex.len() - 8]);
        let found = extents(&index, 98500, 0x520);
        assert_eq!(found.len(), 13);
        assert_eq!(found[12].la, 95138);
        let pa = 13 << 12;
        assert_eq!(
            found[12].data,
            Data::Cluster {
                pa,
                plen: 4096,
                coding: Coding::Stored,
                partial: false
            }
        );
    }

    #[test]
    fn the_worked_big_example_is_reproduced() {
        let pieces = [
            piece(38764, HeadKind::Head1, 1, 4),
            piece(28510, HeadKind::Head1, 5, 4),
            piece(31226, HeadKind::Head1, 9, 3),
        ];
        let index = index(&pieces, Tail::Cluster, 0, 0x540, BlockBits::B4K, true);
        assert!(index.compact);
        let expected = "00000000 07000000 0010042801000000 0220062005000000 0420042005000000 \
                        06e0018800b25d04a800380012800 5a001a86c0da002e00048000e800 5000000 06200120";
        let hex: alloc::string::String = expected.split_whitespace().collect();
        let got: alloc::string::String = index
            .bytes
            .iter()
            .map(|b| alloc::format!("{b:02x}"))
            .collect();
        // Packs without a head may have any base.
        let same = |range: core::ops::Range<usize>| assert_eq!(got[range.clone()], hex[range]);
        same(0..40);
        same(48..56);
        same(64..136);
        let found = extents(&index, 98500, 0x540);
        let starts: Vec<_> = found.iter().map(|e| (e.la, e.len)).collect();
        assert_eq!(starts, [(0, 38764), (38764, 28510), (67274, 31226)]);
        assert_eq!(
            found[2].data,
            Data::Cluster {
                pa: 9 << 12,
                plen: 12288,
                coding: Coding::Compressed(0),
                partial: false
            }
        );
    }

    #[test]
    fn the_worked_inline_example_is_reproduced() {
        let mut pieces = example();
        pieces[12] = piece(3362, HeadKind::Head1, 0, 0);
        let index = index(&pieces, Tail::Inline(1946), 0, 0x520, BlockBits::B4K, false);
        assert!(!index.compact);
        assert_eq!(index.bytes[..8], [0, 0, 0x9a, 7, 8, 0, 0, 0]);
        assert_eq!(
            index.bytes[16 + 19 * 8..16 + 20 * 8],
            [1, 0, 0x38, 0x0f, 0x0c, 0, 0, 0]
        );
        let found = extents(&index, 98500, 0x520);
        assert_eq!(
            found[12].data,
            Data::Inline {
                len: 1946,
                coding: Coding::Compressed(0)
            }
        );
    }

    /// Random extents, in all forms and with all tails, survive a round trip.
    #[test]
    fn extents_survive_a_round_trip() {
        let mut seed = 7u64;
        let mut rnd = |n: u64| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for round in 0..3000u64 {
            let mut pieces = Vec::new();
            let mut block = 100u32;
            let count = 1 + rnd(40);
            for i in 0..count {
                let last = i + 1 == count;
                let p = match rnd(4) {
                    0 => piece(
                        if last { 1 + rnd(4096) } else { 4096 },
                        HeadKind::Plain,
                        block,
                        1,
                    ),
                    k => {
                        let blocks = if round % 2 == 0 {
                            1
                        } else {
                            1 + rnd(16) as u16
                        };
                        let extra = if k == 3 { rnd(3_000_000) } else { rnd(9000) };
                        piece(
                            u64::from(blocks) * 4096 + 1 + extra,
                            HeadKind::Head1,
                            block,
                            blocks,
                        )
                    }
                };
                block += u32::from(p.blocks);
                if round % 7 == 6 {
                    block += rnd(3) as u32; // Compacted packs cannot express gaps.
                }
                pieces.push(p);
            }
            let tail = match round % 5 {
                0 => Tail::Inline(17),
                1 => Tail::Fragment(if round % 2 == 0 { 12345 } else { 5 << 32 | 7 }),
                _ => Tail::Cluster,
            };
            if tail != Tail::Cluster {
                let p = pieces.last_mut().unwrap();
                (p.block, p.blocks, p.kind) = (0, 0, HeadKind::Head1);
            }
            let size: u64 = pieces.iter().map(|p| p.len).sum();
            let header_pos = 8 * (4 + rnd(4));
            let index = index(&pieces, tail, 0, header_pos, BlockBits::B4K, round % 3 != 0);
            let far = matches!(tail, Tail::Fragment(offset) if offset >> 32 != 0);
            let requested = round % 3 != 0 && round % 7 != 6 && !far;
            assert!(
                index.compact || !requested,
                "round {round}: back to back is compact"
            );
            let big = pieces.iter().any(|p| p.blocks > 1);
            let len = index_len(size, header_pos, BlockBits::B4K, index.compact, big);
            assert_eq!(len, index.bytes.len() as u64);
            if matches!(tail, Tail::Inline(_)) && (header_pos + len) % 4096 > 4096 - 17 {
                continue; // An inline pcluster must not cross a block: it is not written, and readers reject it.
            }
            let found = extents(&index, size, header_pos);
            assert_eq!(found.len(), pieces.len(), "round {round}");
            let mut la = 0;
            for (i, (p, e)) in pieces.iter().zip(&found).enumerate() {
                assert_eq!((e.la, e.len), (la, p.len), "round {round} piece {i}");
                la += p.len;
                let coding = if p.kind == HeadKind::Plain {
                    Coding::Stored
                } else {
                    Coding::Compressed(0)
                };
                let data = match tail {
                    Tail::Inline(len) if i + 1 == pieces.len() => Data::Inline {
                        len: len.into(),
                        coding,
                    },
                    Tail::Fragment(offset) if i + 1 == pieces.len() => Data::Fragment { offset },
                    _ => {
                        let (pa, plen) = (u64::from(p.block) << 12, u32::from(p.blocks) << 12);
                        Data::Cluster {
                            pa,
                            plen,
                            coding,
                            partial: false,
                        }
                    }
                };
                assert_eq!(e.data, data, "round {round} piece {i}");
            }
        }
    }

    #[test]
    fn no_mutation_of_an_index_panics_or_hangs() {
        for compact in [false, true] {
            let pieces = [
                piece(38764, HeadKind::Head1, 1, 4),
                piece(28510, HeadKind::Head1, 5, 4),
                piece(31226, HeadKind::Plain, 0, 0),
            ];
            let good = index(&pieces, Tail::Inline(9), 0, 0x540, BlockBits::B4K, compact);
            let layout = if compact {
                Layout::CompressedCompact
            } else {
                Layout::CompressedFull
            };
            for bit in 0..good.bytes.len() * 8 {
                let mut bad = good.bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                let Ok(map) = Map::new(&superblock(), layout, 98500, &bad, 0x540) else {
                    continue;
                };
                let start = (map.index_pos() - 0x540) as usize;
                let body = bad.get(start..).unwrap_or(&[]);
                let _ = map.verify_index(body);
                for offset in (0..98500).step_by(1000) {
                    if let Ok(e) = map.extent_at(body, offset) {
                        assert!(e.la <= offset && offset < e.end());
                    }
                }
            }
        }
    }
}
