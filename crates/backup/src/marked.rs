//! Entries that a run of `prune` found without use in a bucket. A later one removes what is still without use; until then runs of `backup`
//! store such ranges again.
//!
//! ```text
//! marked:  header │ for each segment: number, digest of its directory, bits of ranges, bits of members │ names of data │ digest
//! ```

use crate::digest::Digest;
use crate::index::Slot;
use crate::pack::{is_sealed, seal};
use crate::slots::SegmentMarks;
use std::collections::{BTreeMap, HashSet};
use std::time::SystemTime;

const MAGIC: [u8; 8] = *b"TUFFMARK";
const VERSION: u32 = 1;
/// Name of the object.
pub(crate) const NAME: &str = "marked";

/// Marks of a store in a bucket.
#[derive(Debug, Default)]
pub(crate) struct Marked {
    /// Entries without use, by their segment, and the digest of the directory that they belong to.
    pub(crate) segments: BTreeMap<u32, (Digest, SegmentMarks)>,
    /// Objects with data that belong to no directory.
    pub(crate) names: Vec<String>,
    /// Number of the last segment at that time.
    pub(crate) last: u32,
    /// Time of the bucket.
    pub(crate) time: Option<SystemTime>,
    /// Ranges of later segments, and whether they have clusters of their own.
    pub(crate) newer: HashSet<(Digest, bool)>,
}

impl Marked {
    pub(crate) fn encode(&self, store: &[u8; 16]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let number = |bytes: &mut Vec<u8>, n: usize| {
            // Fits: at most the number of entries of a directory.
            bytes.extend_from_slice(&(n as u32).to_le_bytes());
        };
        number(&mut bytes, VERSION as usize);
        bytes.extend_from_slice(store);
        bytes.extend_from_slice(&self.last.to_le_bytes());
        number(&mut bytes, self.segments.len());
        for (segment, (digest, marks)) in &self.segments {
            bytes.extend_from_slice(&segment.to_le_bytes());
            bytes.extend_from_slice(&digest.0);
            for words in [&marks.ranges, &marks.members] {
                number(&mut bytes, words.len());
                for word in words {
                    bytes.extend_from_slice(&word.to_le_bytes());
                }
            }
        }
        number(&mut bytes, self.names.len());
        for name in &self.names {
            number(&mut bytes, name.len());
            bytes.extend_from_slice(name.as_bytes());
        }
        bytes.extend_from_slice(&[0; 32]);
        seal(&mut bytes);
        bytes
    }

    /// Reads marks. `None` if they are damaged or of another store.
    pub(crate) fn decode(bytes: &[u8], store: &[u8; 16]) -> Option<Self> {
        if bytes.len() < 32 || !is_sealed(bytes) {
            return None;
        }
        let mut rest = &bytes[..bytes.len() - 32];
        let mut take = |len: usize| rest.split_off(..len);
        let number = |bytes: &[u8]| Some(u32::from_le_bytes(*bytes.first_chunk()?));
        if take(8)? != MAGIC || number(take(4)?)? != VERSION || take(16)? != store {
            return None;
        }
        let mut marked = Self {
            last: number(take(4)?)?,
            ..Self::default()
        };
        for _ in 0..number(take(4)?)? {
            let segment = number(take(4)?)?;
            let digest = Digest(*take(32)?.first_chunk()?);
            let mut words = || {
                let count = number(take(4)?)? as usize;
                let words = take(count.checked_mul(8)?)?.as_chunks().0.iter();
                Some(words.map(|word| u64::from_le_bytes(*word)).collect())
            };
            let marks = SegmentMarks {
                ranges: words()?,
                members: words()?,
            };
            marked.segments.insert(segment, (digest, marks));
        }
        for _ in 0..number(take(4)?)? {
            let len = number(take(4)?)? as usize;
            let name = str::from_utf8(take(len)?).ok()?;
            marked.names.push(name.to_owned());
        }
        Some(marked)
    }

    /// True if the entry of a directory has no use.
    pub(crate) fn has(&self, (slot, is_member): (Slot, bool)) -> bool {
        let marks = self.segments.get(&slot.segment);
        marks.is_some_and(|(_, marks)| match is_member {
            true => marks.has_member(slot.entry),
            false => marks.has_range(slot.entry),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_as_they_were_written_and_damage_is_found() {
        let marks = SegmentMarks {
            ranges: vec![1, u64::MAX],
            members: vec![],
        };
        let marked = Marked {
            segments: [(7, (Digest([5; 32]), marks))].into(),
            names: vec!["segments/00000003-0011223344556677.data".to_owned()],
            last: 9,
            ..Marked::default()
        };
        let bytes = marked.encode(&[3; 16]);
        let read = Marked::decode(&bytes, &[3; 16]).unwrap();
        assert_eq!(read.encode(&[3; 16]), bytes);
        assert!(read.has((
            Slot {
                segment: 7,
                entry: 0
            },
            false
        )));
        assert!(!read.has((
            Slot {
                segment: 7,
                entry: 1
            },
            false
        )));
        assert!(!read.has((
            Slot {
                segment: 7,
                entry: 0
            },
            true
        )));
        assert!(Marked::decode(&bytes, &[4; 16]).is_none());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(Marked::decode(&damaged, &[3; 16]).is_none(), "{at}");
            // Lengths that lead beyond the end, with a digest that is right.
            let mut cut = bytes[..at].to_vec();
            cut.extend_from_slice(&[0; 32]);
            seal(&mut cut);
            let _ = Marked::decode(&cut, &[3; 16]);
        }
    }
}
