//! Ranges in memory: decoded once, and compared with all digests that their directory states for them.

use crate::cluster::{BLOCK, Cluster};
use crate::digest::Digest;
use crate::encode::decode;
use crate::segment::{Directory, MemberEntry};
use std::ops::Range;
use tuff_codec::{Algorithm, Decoder};

/// Directory of a segment, with its ranges by their blocks and its members by their groups.
pub(crate) struct Ranges {
    pub(crate) directory: Directory,
    order: Vec<u32>,
    members: Vec<u32>,
}

impl Ranges {
    pub(crate) fn new(directory: Directory) -> Self {
        // Fits: a directory has less than 2^32 entries.
        let mut order: Vec<u32> = (0..directory.ranges.len() as u32).collect();
        order.sort_unstable_by_key(|i| directory.ranges[*i as usize].block);
        Self {
            members: by_group(&directory),
            directory,
            order,
        }
    }

    /// Blocks of the ranges that start with the last one at or before `block`. Ranges at the same place share all their blocks;
    /// `None` for others, and if `block` is between ranges.
    pub(crate) fn at(&self, block: u32) -> Option<Range<u32>> {
        let entries = self.entries(block)?;
        let mut all = entries.iter().map(|i| self.blocks(*i));
        let first = all.next()??;
        let is_same = all.all(|blocks| blocks.as_ref() == Some(&first));
        (is_same && first.contains(&block)).then_some(first)
    }

    fn blocks(&self, i: u32) -> Option<Range<u32>> {
        self.directory.blocks_of(&self.directory.ranges[i as usize])
    }

    /// Entries with the greatest start up to `block`.
    fn entries(&self, block: u32) -> Option<&[u32]> {
        let start = |i: &u32| self.directory.ranges[*i as usize].block;
        let end = self.order.partition_point(|i| start(i) <= block);
        let last = start(self.order[..end].last()?);
        let from = self.order[..end].partition_point(|i| start(i) < last);
        Some(&self.order[from..end])
    }

    /// Decodes the ranges that start at a block, which [`at`](Self::at) found, and compares them.
    pub(crate) fn unit(
        &self,
        decoder: &mut Decoder,
        algorithm: Algorithm,
        start: u32,
        bytes: Vec<u8>,
    ) -> Unit {
        let mut unit = Unit {
            bytes,
            content: Vec::new(),
            places: Vec::new(),
            bad: Vec::new(),
        };
        let entries = self.entries(start).unwrap_or_default();
        let first = entries.first();
        let clusters = first.map(|i| &self.directory.ranges[*i as usize]);
        let clusters = clusters.and_then(|range| self.directory.clusters_of(range));
        unit.decode(decoder, algorithm, clusters.unwrap_or_default());
        let mut whole = None;
        let len = unit.content.len();
        let mut bad = std::mem::take(&mut unit.bad);
        for i in entries {
            let parts = of_group(&self.directory, &self.members, *i).iter();
            let member = |i: &u32| &self.directory.members[*i as usize];
            let mut parts: Vec<&MemberEntry> = parts.map(member).collect();
            parts.sort_unstable_by_key(|member| member.offset);
            // Up to where members have compared everything.
            let mut compared = 0;
            let mut is_covered = true;
            for member in parts {
                let from = (member.offset as usize).min(len);
                let to = from.saturating_add(member.len as usize);
                let part = unit.content.get(from..to);
                if part.is_none_or(|part| Digest::of_bytes(part) != member.digest) {
                    bad.push(from..to.min(len));
                }
                is_covered &= from <= compared;
                compared = compared.max(to);
            }
            let digest = self.directory.ranges[*i as usize].digest;
            if !is_covered || compared < len {
                let found = *whole.get_or_insert_with(|| Digest::of_bytes(&unit.content));
                if found != digest {
                    bad.push(0..len);
                }
            }
        }
        unit.bad = merged(bad);
        unit
    }
}

/// Members of a directory, ordered by their groups.
pub(crate) fn by_group(directory: &Directory) -> Vec<u32> {
    // Fits: a directory has less than 2^32 entries.
    let mut members: Vec<u32> = (0..directory.members.len() as u32).collect();
    members.sort_by_key(|i| directory.members[*i as usize].group);
    members
}

/// Members of a group, among all, which are ordered by their groups.
pub(crate) fn of_group<'a>(directory: &Directory, members: &'a [u32], group: u32) -> &'a [u32] {
    let of = |i: &u32| directory.members[*i as usize].group;
    let start = members.partition_point(|i| of(i) < group);
    let end = members.partition_point(|i| of(i) <= group);
    &members[start..end]
}

/// Merges parts that touch or overlap.
fn merged(mut parts: Vec<Range<usize>>) -> Vec<Range<usize>> {
    parts.sort_unstable_by_key(|part| part.start);
    let mut merged: Vec<Range<usize>> = Vec::new();
    for part in parts {
        match merged.last_mut() {
            Some(last) if part.start <= last.end => last.end = last.end.max(part.end),
            _ => merged.push(part),
        }
    }
    merged
}

/// Place of a cluster in a unit. Unit: bytes.
struct ClusterPlace {
    /// Position of its bytes, and of its content.
    at: usize,
    content: usize,
    cluster: Cluster,
}

/// Ranges at one place in a pack: encoded bytes, content, and the parts of the content that are damaged.
pub(crate) struct Unit {
    bytes: Vec<u8>,
    content: Vec<u8>,
    places: Vec<ClusterPlace>,
    bad: Vec<Range<usize>>,
}

impl Unit {
    /// Decodes each cluster. The content of one that is damaged is zeros.
    fn decode(&mut self, decoder: &mut Decoder, algorithm: Algorithm, clusters: &[Cluster]) {
        let mut at = 0;
        for cluster in clusters {
            let content = self.content.len();
            self.places.push(ClusterPlace {
                at,
                content,
                cluster: *cluster,
            });
            let bytes = self.bytes.get(at..).unwrap_or_default();
            let one = std::slice::from_ref(cluster);
            let end = content + cluster.content as usize;
            if decode(decoder, algorithm, one, bytes, &mut self.content).is_err() {
                self.content.truncate(content);
                self.content.resize(end, 0);
                self.bad.push(content..end);
            }
            at += usize::from(cluster.blocks) * BLOCK;
        }
    }

    /// Memory that the unit takes. Unit: bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + self.content.len()
    }

    fn is_good(&self, part: Range<usize>) -> bool {
        let next = self.bad.partition_point(|bad| bad.end <= part.start);
        self.bad.get(next).is_none_or(|bad| bad.start >= part.end)
    }

    /// The cluster whose bytes are at a position.
    fn place(&self, at: usize) -> Option<&ClusterPlace> {
        let end = self.places.partition_point(|place| place.at <= at);
        self.places[..end].last()
    }

    /// Gives the start of what a compressed cluster holds, of which `used` must be right. `None` if it is no such cluster, false if
    /// it is damaged.
    pub(crate) fn content_at(
        &self,
        at: usize,
        len: usize,
        used: Range<usize>,
        dst: &mut [u8],
    ) -> Option<bool> {
        let place = self.place(at).filter(|place| place.at == at)?;
        let cluster = &place.cluster;
        if cluster.is_stored || usize::from(cluster.blocks) * BLOCK != len {
            return None;
        }
        let content = &self.content[place.content..][..cluster.content as usize];
        let Some(part) = content.get(..dst.len()) else {
            return Some(false);
        };
        dst.copy_from_slice(part);
        Some(self.is_good(place.content + used.start..place.content + used.end))
    }

    /// Gives bytes as they are stored, up to the end of the unit or to damage. 0 if they are damaged.
    pub(crate) fn read(&self, at: usize, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buf.len() {
            let Some(place) = self.place(at + done) else {
                break;
            };
            let within = at + done - place.at;
            let len = usize::from(place.cluster.blocks) * BLOCK;
            let n = (len.saturating_sub(within)).min(buf.len() - done);
            let content = place.cluster.content as usize;
            // Bytes that are content as they are stored; those of a compressed cluster depend on all of it.
            let used = match place.cluster.is_stored {
                true => within.min(content)..(within + n).min(content),
                false => 0..content,
            };
            let is_good = self.is_good(place.content + used.start..place.content + used.end);
            let bytes = self.bytes.get(at + done..at + done + n);
            match bytes.filter(|_| is_good && n > 0) {
                Some(bytes) => buf[done..done + n].copy_from_slice(bytes),
                None => break,
            }
            done += n;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::RangeEncoder;
    use crate::segment::{NewRange, RangeEntry};
    use tuff_codec::{EncoderSpec, Method};
    use tuff_testkit::content::{noise, text};

    const MEMBER: usize = 50_000;

    /// A segment with a group of four members, and with a range. Returns it, its bytes, and the content of the group.
    fn segment() -> (Directory, Vec<u8>, Vec<u8>) {
        let mut encoder = RangeEncoder::new(&EncoderSpec::new(Method::Zstd, 8 << 10)).unwrap();
        let mut directory = Directory {
            start: 1,
            ..Directory::default()
        };
        let mut group = Vec::new();
        for n in 0..4 {
            group.extend(if n == 2 {
                noise(MEMBER, n)
            } else {
                text(MEMBER, n)
            });
        }
        let members = (0..4).map(|n| {
            let digest = Digest::of_bytes(&group[n * MEMBER..][..MEMBER]);
            (digest, (n * MEMBER) as u32, MEMBER as u32)
        });
        let mut all = Vec::new();
        for (content, members) in [(&group, members.collect()), (&text(90_000, 9), Vec::new())] {
            let probe = encoder.probe(content);
            let (clusters, bytes) = encoder.encode(content, probe).unwrap();
            all.extend_from_slice(&bytes);
            directory.add(&NewRange {
                digest: Digest::of_bytes(content),
                clusters,
                bytes,
                members,
            });
        }
        (directory, all, group)
    }

    fn unit(directory: &Directory, block: u32, bytes: &[u8]) -> Option<Unit> {
        let ranges = Ranges::new(directory.clone());
        let blocks = ranges.at(block)?;
        let at = |block: u32| (block - 1) as usize * BLOCK;
        let bytes = bytes[at(blocks.start)..at(blocks.end)].to_vec();
        Some(ranges.unit(
            &mut Decoder::default(),
            Algorithm::Zstd,
            blocks.start,
            bytes,
        ))
    }

    /// Members of the group that can be read, cluster by cluster, and equal what they were.
    fn readable(unit: &Unit, group: &[u8]) -> Vec<usize> {
        let is_readable = |n: &usize| {
            let (from, to) = (n * MEMBER, (n + 1) * MEMBER);
            unit.places.iter().all(|place| {
                let end = place.content + place.cluster.content as usize;
                let used = from.max(place.content)..to.min(end);
                if used.is_empty() {
                    return true;
                }
                let expected = &group[used.clone()];
                let within = used.start - place.content..used.end - place.content;
                if place.cluster.is_stored {
                    let mut found = vec![0; within.len()];
                    let read = unit.read(place.at + within.start, &mut found);
                    assert!(read == 0 || found == expected);
                    return read > 0;
                }
                let len = usize::from(place.cluster.blocks) * BLOCK;
                let mut found = vec![0; within.end];
                let good = unit.content_at(place.at, len, within.clone(), &mut found);
                assert!(good != Some(true) || found[within] == *expected);
                good == Some(true)
            })
        };
        (0..4).filter(is_readable).collect()
    }

    #[test]
    fn members_beside_damage_are_read() {
        let (directory, mut bytes, group) = segment();
        let whole = unit(&directory, 1, &bytes).unwrap();
        assert_eq!(readable(&whole, &group), [0, 1, 2, 3]);
        // In a compressed cluster of the first member, and in a stored block of the third.
        let stored = whole.places.iter().find(|place| place.cluster.is_stored);
        let stored = stored.unwrap().at;
        bytes[BLOCK + 100] ^= 1;
        let damaged = unit(&directory, 1, &bytes).unwrap();
        let found = readable(&damaged, &group);
        assert!(!found.contains(&0) && found.ends_with(&[2, 3]), "{found:?}");
        bytes[stored + 5] ^= 1;
        let damaged = unit(&directory, 1, &bytes).unwrap();
        assert_eq!(*readable(&damaged, &group).last().unwrap(), 3);
        assert!(!readable(&damaged, &group).contains(&2));
    }

    #[test]
    fn forged_ranges_and_members_are_refused() {
        let (directory, bytes, group) = segment();
        let second = directory.ranges[1].block;
        let damaged = |directory: &Directory, block: u32| {
            let unit = unit(directory, block, &bytes)?;
            let place = &unit.places[0];
            let mut content = vec![0; place.cluster.content as usize];
            let len = usize::from(place.cluster.blocks) * BLOCK;
            let used = 0..content.len();
            unit.content_at(place.at, len, used, &mut content)
        };
        assert_eq!(damaged(&directory, second), Some(true));
        // The digest of other content.
        let mut forged = directory.clone();
        forged.ranges[1].digest = Digest::of_bytes(b"other");
        assert_eq!(damaged(&forged, second), Some(false));
        // Another entry for the same place, with a digest that is not of its content.
        let mut forged = directory.clone();
        forged.ranges.push(RangeEntry {
            digest: Digest::of_bytes(b"other"),
            ..directory.ranges[1]
        });
        assert_eq!(damaged(&forged, second), Some(false));
        // One that ends elsewhere.
        forged.ranges.last_mut().unwrap().count -= 1;
        assert_eq!(damaged(&forged, second), None);
        // Members with the digests of others, or at other places.
        for (offset, of, left) in [(0, 1, &[1, 2, 3][..]), (100, 0, &[2, 3])] {
            let mut forged = directory.clone();
            forged.members[0].digest = directory.members[of].digest;
            forged.members[0].offset = offset;
            let unit = unit(&forged, 1, &bytes).unwrap();
            assert_eq!(readable(&unit, &group), left, "{offset}, {of}");
        }
        // Content of no member is compared as a part of the group.
        let mut forged = directory.clone();
        forged.members.remove(3);
        let unit = |forged: &Directory| unit(forged, 1, &bytes).unwrap();
        assert_eq!(readable(&unit(&forged), &group), [0, 1, 2, 3]);
        forged.ranges[0].digest = Digest::of_bytes(b"other");
        assert_eq!(readable(&unit(&forged), &group), [0; 0]);
    }
}
