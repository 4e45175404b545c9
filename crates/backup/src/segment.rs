//! Segments: rows of clusters in a pack, and their directories, which state where each range is.
//!
//! ```text
//! segments/00000001.dir:  header │ ranges │ clusters │ members │ digest
//! ```
//!
//! A segment counts when its directory has its name. All numbers are little endian.

use crate::cluster::{BLOCK, Cluster, blocks_of};
use crate::digest::Digest;
use crate::pack::{PACK_MAX, PACKS_MAX, field, is_sealed, put_fields, seal};
use std::ops::Range;

const MAGIC: [u8; 8] = *b"TUFFSEGM";
/// Longest segment. Unit: bytes.
pub(crate) const SEGMENT_MAX: u64 = 256 << 20;
/// Length of a directory with which its segment is full: tiny files have more entries than content. Unit: bytes.
pub(crate) const DIRECTORY_FULL: u64 = 16 << 20;
/// Longest directory that is read. Unit: bytes.
pub(crate) const DIRECTORY_MAX: u64 = 64 << 20;
/// Length of the header of a directory. Unit: bytes.
pub(crate) const HEADER_LEN: usize = 96;
/// Lengths of the entries of a directory. Unit: bytes.
const RANGE_LEN: usize = 44;
const CLUSTER_LEN: usize = 8;
const MEMBER_LEN: usize = 44;
/// Bytes of a directory that are encoded at once.
const PIECE_LEN: usize = 64 << 10;

/// True if a segment can be at a place.
pub(crate) fn is_segment(pack: u16, start: u32, blocks: u32) -> bool {
    let end = u64::from(start) + u64::from(blocks);
    pack < PACKS_MAX
        && start >= 1
        && end <= PACK_MAX / BLOCK as u64
        && u64::from(blocks) <= SEGMENT_MAX / BLOCK as u64
}

/// Range with clusters of its own. A group of small files is one, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RangeEntry {
    pub(crate) digest: Digest,
    /// First block in the pack.
    pub(crate) block: u32,
    /// Number of its first cluster, and their count.
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// Range that is a part of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberEntry {
    pub(crate) digest: Digest,
    /// Number of the group among the ranges.
    pub(crate) group: u32,
    /// Position in the group. Unit: bytes.
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

/// Header of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// Segments are counted through all packs.
    pub(crate) number: u32,
    pub(crate) pack: u16,
    /// First block in the pack.
    pub(crate) start: u32,
    pub(crate) blocks: u32,
    pub(crate) ranges: u32,
    pub(crate) clusters: u32,
    pub(crate) members: u32,
}

impl SegmentHeader {
    fn encode(&self, store: &[u8; 16]) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(store);
        let fields = [
            self.number,
            self.pack.into(),
            self.start,
            self.blocks,
            self.ranges,
            self.clusters,
            self.members,
        ];
        put_fields(&mut bytes[24..], &fields);
        seal(&mut bytes);
        bytes
    }

    /// Reads a header. `None` if it is damaged or of another store.
    pub(crate) fn decode(bytes: &[u8], store: &[u8; 16]) -> Option<Self> {
        let bytes = bytes.get(..HEADER_LEN)?;
        if bytes[..8] != MAGIC || bytes[8..24] != *store || !is_sealed(bytes) {
            return None;
        }
        let field = |i| field(&bytes[24..], i);
        let header = Self {
            number: field(0),
            pack: u16::try_from(field(1)).ok()?,
            start: field(2),
            blocks: field(3),
            ranges: field(4),
            clusters: field(5),
            members: field(6),
        };
        let is_placed = is_segment(header.pack, header.start, header.blocks);
        (is_placed && header.len() <= DIRECTORY_MAX).then_some(header)
    }

    /// Length of the directory. Unit: bytes.
    pub(crate) fn len(&self) -> u64 {
        self.members_at() + u64::from(self.members) * MEMBER_LEN as u64 + 32
    }

    fn clusters_at(&self) -> u64 {
        HEADER_LEN as u64 + u64::from(self.ranges) * RANGE_LEN as u64
    }

    fn members_at(&self) -> u64 {
        self.clusters_at() + u64::from(self.clusters) * CLUSTER_LEN as u64
    }

    /// Place of a range in the directory. Unit: bytes.
    pub(crate) fn range_at(&self, number: u32) -> Range<u64> {
        let start = HEADER_LEN as u64 + u64::from(number) * RANGE_LEN as u64;
        start..start + RANGE_LEN as u64
    }

    /// Place of clusters in the directory. Unit: bytes.
    pub(crate) fn cluster_at(&self, first: u32, count: u32) -> Range<u64> {
        let start = self.clusters_at() + u64::from(first) * CLUSTER_LEN as u64;
        start..start + u64::from(count) * CLUSTER_LEN as u64
    }

    /// Place of a member in the directory. Unit: bytes.
    pub(crate) fn member_at(&self, number: u32) -> Range<u64> {
        let start = self.members_at() + u64::from(number) * MEMBER_LEN as u64;
        start..start + MEMBER_LEN as u64
    }
}

/// Bytes of a fixed number from the start of some.
fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes[..N]
        .try_into()
        .expect("as many bytes as the type has")
}

impl RangeEntry {
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        Self {
            digest: Digest(fixed(bytes)),
            block: u32::from_le_bytes(fixed(&bytes[32..])),
            first: u32::from_le_bytes(fixed(&bytes[36..])),
            count: u32::from_le_bytes(fixed(&bytes[40..])),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.digest.0);
        for field in [self.block, self.first, self.count] {
            out.extend_from_slice(&field.to_le_bytes());
        }
    }
}

impl MemberEntry {
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        Self {
            digest: Digest(fixed(bytes)),
            group: u32::from_le_bytes(fixed(&bytes[32..])),
            offset: u32::from_le_bytes(fixed(&bytes[36..])),
            len: u32::from_le_bytes(fixed(&bytes[40..])),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.digest.0);
        for field in [self.group, self.offset, self.len] {
            out.extend_from_slice(&field.to_le_bytes());
        }
    }
}

/// Reads clusters of a directory.
pub(crate) fn decode_clusters(bytes: &[u8]) -> Vec<Cluster> {
    let clusters = bytes.chunks_exact(CLUSTER_LEN).map(|bytes| Cluster {
        content: u32::from_le_bytes(fixed(bytes)),
        blocks: u16::from_le_bytes(fixed(&bytes[4..])),
        is_stored: bytes[6] & 1 != 0,
    });
    clusters.collect()
}

/// Digest at the end of a directory's bytes.
pub(crate) fn digest(bytes: &[u8]) -> Digest {
    let digest = bytes.last_chunk();
    Digest(*digest.expect("a directory is longer"))
}

/// Directory of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Directory {
    pub(crate) number: u32,
    pub(crate) pack: u16,
    /// First block in the pack.
    pub(crate) start: u32,
    pub(crate) blocks: u32,
    pub(crate) ranges: Vec<RangeEntry>,
    pub(crate) clusters: Vec<Cluster>,
    pub(crate) members: Vec<MemberEntry>,
}

impl Directory {
    pub(crate) fn header(&self) -> SegmentHeader {
        // Fits: a segment has less than 2^32 bytes.
        SegmentHeader {
            number: self.number,
            pack: self.pack,
            start: self.start,
            blocks: self.blocks,
            ranges: self.ranges.len() as u32,
            clusters: self.clusters.len() as u32,
            members: self.members.len() as u32,
        }
    }

    /// Bytes of the directory.
    pub(crate) fn encode(&self, store: &[u8; 16]) -> Vec<u8> {
        // Fits: it is in memory, with entries that are no shorter.
        let mut bytes = Vec::with_capacity(self.header().len() as usize);
        let digest = self.digest_of(store, &mut |piece| bytes.extend_from_slice(piece));
        bytes.extend_from_slice(&digest.0);
        bytes
    }

    /// Digest at the end of its bytes.
    pub(crate) fn digest(&self, store: &[u8; 16]) -> Digest {
        self.digest_of(store, &mut |_| ())
    }

    /// Computes the digest, and calls `each` with the bytes before it, piece by piece.
    fn digest_of(&self, store: &[u8; 16], each: &mut dyn FnMut(&[u8])) -> Digest {
        let mut hasher = blake3::Hasher::new();
        let mut piece = self.header().encode(store).to_vec();
        let mut end = |piece: &mut Vec<u8>, len: usize| {
            if piece.len() >= len {
                hasher.update(piece);
                each(piece);
                piece.clear();
            }
        };
        for range in &self.ranges {
            range.encode(&mut piece);
            end(&mut piece, PIECE_LEN);
        }
        for cluster in &self.clusters {
            piece.extend_from_slice(&cluster.content.to_le_bytes());
            piece.extend_from_slice(&cluster.blocks.to_le_bytes());
            piece.extend_from_slice(&[u8::from(cluster.is_stored), 0]);
            end(&mut piece, PIECE_LEN);
        }
        for member in &self.members {
            member.encode(&mut piece);
            end(&mut piece, PIECE_LEN);
        }
        end(&mut piece, 0);
        Digest(*hasher.finalize().as_bytes())
    }

    /// Reads a directory. `None` if it is damaged or of another store. Everything that it names is inside its segment.
    pub(crate) fn decode(bytes: &[u8], store: &[u8; 16]) -> Option<Self> {
        let header = SegmentHeader::decode(bytes, store)?;
        if header.len() != bytes.len() as u64 || !is_sealed(bytes) {
            return None;
        }
        let entries = |from: u64, count: u32, len: usize| {
            // Fits: compared with the length.
            let from = from as usize;
            bytes[from..from + count as usize * len].chunks_exact(len)
        };
        let ranges = entries(HEADER_LEN as u64, header.ranges, RANGE_LEN);
        let members = entries(header.members_at(), header.members, MEMBER_LEN);
        let clusters = header.cluster_at(0, header.clusters);
        let directory = Self {
            number: header.number,
            pack: header.pack,
            start: header.start,
            blocks: header.blocks,
            ranges: ranges.map(RangeEntry::decode).collect(),
            clusters: decode_clusters(&bytes[clusters.start as usize..clusters.end as usize]),
            members: members.map(MemberEntry::decode).collect(),
        };
        let is_inside = |range: &RangeEntry| {
            let blocks = directory.blocks_of(range);
            blocks.is_some_and(|blocks| {
                blocks.start >= header.start && blocks.end <= header.start + header.blocks
            })
        };
        let is_sound = directory.ranges.iter().all(is_inside)
            && directory
                .members
                .iter()
                .all(|member| member.group < header.ranges);
        is_sound.then_some(directory)
    }

    /// Clusters of a range.
    pub(crate) fn clusters_of(&self, range: &RangeEntry) -> Option<&[Cluster]> {
        let first = range.first as usize;
        self.clusters
            .get(first..first.checked_add(range.count as usize)?)
    }

    /// Blocks of a range in the pack.
    pub(crate) fn blocks_of(&self, range: &RangeEntry) -> Option<Range<u32>> {
        let len = blocks_of(self.clusters_of(range)?)?;
        Some(range.block..range.block.checked_add(len)?)
    }

    /// Appends a range, and its members if it is a group. Its clusters are at the end of the segment.
    pub(crate) fn add(&mut self, new: &NewRange) {
        // Fits: a segment has less than 2^32 bytes.
        let number = self.ranges.len() as u32;
        self.ranges.push(RangeEntry {
            digest: new.digest,
            block: self.start + self.blocks,
            first: self.clusters.len() as u32,
            count: new.clusters.len() as u32,
        });
        self.clusters.extend_from_slice(&new.clusters);
        let members = new.members.iter();
        self.members
            .extend(members.map(|(digest, offset, len)| MemberEntry {
                digest: *digest,
                group: number,
                offset: *offset,
                len: *len,
            }));
        self.blocks += (new.bytes.len() / BLOCK) as u32;
    }

    /// The directory with some of its ranges and members. Addresses stay.
    pub(crate) fn keep(
        mut self,
        keeps_range: &dyn Fn(u32) -> bool,
        keeps_member: &dyn Fn(u32) -> bool,
    ) -> Self {
        // New number of each range.
        let mut numbers = vec![None; self.ranges.len()];
        let (mut ranges, mut clusters) = (0, Vec::new());
        let mut old = 0..;
        let all = std::mem::take(&mut self.clusters);
        self.ranges.retain_mut(|range| {
            // Fits: a directory has less than 2^32 entries.
            let (first, end) = (
                range.first as usize,
                range.first as usize + range.count as usize,
            );
            let found = all.get(first..end);
            let kept = old.next().filter(|old| keeps_range(*old)).zip(found);
            let Some((old, found)) = kept else {
                return false;
            };
            numbers[old as usize] = Some(ranges);
            ranges += 1;
            range.first = clusters.len() as u32;
            clusters.extend_from_slice(found);
            true
        });
        self.clusters = clusters;
        let mut old = 0..;
        self.members.retain_mut(|member| {
            let is_kept = old.next().is_some_and(keeps_member);
            let group = numbers[member.group as usize].filter(|_| is_kept);
            member.group = group.unwrap_or_default();
            group.is_some()
        });
        self
    }

    /// Blocks of the segment that no range has, ascending.
    pub(crate) fn gaps(&self) -> Vec<Range<u32>> {
        let mut used: Vec<Range<u32>> = self
            .ranges
            .iter()
            .filter_map(|range| self.blocks_of(range))
            .collect();
        used.sort_unstable_by_key(|blocks| blocks.start);
        let mut gaps = Vec::new();
        let mut at = self.start;
        for blocks in used {
            if blocks.start > at {
                gaps.push(at..blocks.start);
            }
            at = at.max(blocks.end);
        }
        let end = self.start + self.blocks;
        if at < end {
            gaps.push(at..end);
        }
        gaps
    }
}

/// Range that a store does not have yet.
#[derive(Debug)]
pub(crate) struct NewRange {
    pub(crate) digest: Digest,
    pub(crate) clusters: Vec<Cluster>,
    /// The clusters, whole blocks.
    pub(crate) bytes: Vec<u8>,
    /// Parts of a group: digest, position and length.
    pub(crate) members: Vec<(Digest, u32, u32)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: [u8; 16] = [3; 16];

    fn directory() -> Directory {
        let mut directory = Directory {
            number: 1,
            pack: 2,
            start: 7,
            ..Directory::default()
        };
        for n in 0..3u8 {
            let cluster = Cluster {
                content: 5000,
                blocks: 2,
                is_stored: n == 1,
            };
            directory.add(&NewRange {
                digest: Digest::of_bytes(&[n]),
                clusters: vec![cluster; 2],
                bytes: vec![0; 4 * BLOCK],
                members: vec![(Digest::of_bytes(&[n, n]), 0, 5000)],
            });
        }
        directory
    }

    #[test]
    fn directories_are_read_as_they_were_written_and_keep_addresses() {
        let directory = directory();
        let bytes = directory.encode(&STORE);
        assert_eq!(Directory::decode(&bytes, &STORE), Some(directory.clone()));
        assert_eq!(Directory::decode(&bytes, &[4; 16]), None);
        assert_eq!(directory.gaps(), []);
        let kept = directory
            .clone()
            .keep(&|range| range != 1, &|member| member != 2);
        assert_eq!(kept.gaps().len(), 1);
        assert_eq!(kept.gaps()[0], 11..15);
        assert_eq!((kept.ranges[1].block, kept.members.len()), (15, 1));
        assert_eq!(Directory::decode(&kept.encode(&STORE), &STORE), Some(kept));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(Directory::decode(&damaged, &STORE), None, "{at}");
            assert_eq!(Directory::decode(&bytes[..at], &STORE), None, "{at}");
        }
    }

    /// Claims that a digest covers, because the one who makes them has made it.
    #[test]
    fn directories_that_claim_too_much_are_refused() {
        type Claim = fn(&mut Directory);
        let claims: [Claim; 11] = [
            |d| d.pack = PACKS_MAX,
            |d| d.start = 0,
            |d| d.start = u32::MAX,
            |d| d.blocks = u32::MAX,
            |d| d.blocks = (SEGMENT_MAX / BLOCK as u64) as u32 + 1,
            |d| d.blocks = 11,
            |d| d.ranges[0].block = 6,
            |d| d.ranges[2].first = u32::MAX,
            |d| d.clusters[0].content = u32::MAX,
            |d| d.clusters[0].blocks = u16::MAX,
            |d| d.members[0].group = 3,
        ];
        for (n, claim) in claims.iter().enumerate() {
            let mut directory = directory();
            claim(&mut directory);
            let bytes = directory.encode(&STORE);
            assert_eq!(Directory::decode(&bytes, &STORE), None, "claim {n}");
        }
    }
}
