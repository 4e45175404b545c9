//! Reply to a read request: bytes in the caller's buffer, and ranges of cached clusters by
//! reference.

use super::cluster_cache::CachedCluster;
use crate::read::Extent;
use std::ops::Range;
use std::sync::Arc;

/// Range of a reply that references a cached cluster.
pub(crate) struct ClusterReference {
    /// Position in the reply.
    pub(crate) at: Range<usize>,
    pub(crate) held: Arc<CachedCluster>,
    /// Start of the range in the cluster.
    pub(crate) from: usize,
}

/// Range of a file to push to a cache above the server: see
/// [`Server::take_push`](super::Server::take_push). A range longer than 1 MiB is read in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushRange {
    /// File offset. Unit: bytes.
    pub offset: u64,
    /// Length of the range. Unit: bytes.
    pub len: usize,
    /// Stride of a strided reader whose request at `offset` was answered. Ranges of the same length at
    /// multiples of the stride after `offset` can be pushed, too. `None` for other readers. Unit: bytes.
    pub step: Option<u64>,
}

impl PushRange {
    /// Returns the part of a range of the packed inode that is in a fragment, as a range of the file. `start`: position of the
    /// fragment in the packed inode. `extent`: the fragment in the file.
    pub(crate) fn in_fragment(self, start: u64, extent: &Extent) -> Option<Self> {
        let from = self.offset.max(start);
        let end = self.offset.saturating_add(self.len as u64);
        let to = end.min(start.saturating_add(extent.len));
        (from < to).then(|| Self {
            offset: extent.offset + (from - start),
            // Fits: at most the length of the range.
            len: (to - from) as usize,
            step: self.step,
        })
    }

    /// Returns the part of the range that consists of whole pages of 4096 bytes. The last page of a
    /// file of `size` bytes may be shorter.
    pub(crate) fn pages(&self, size: u64) -> Range<usize> {
        const PAGE: u64 = 4096;
        let end = self.offset + self.len as u64;
        let to = if end == size { end } else { end / PAGE * PAGE };
        let from = self.offset.next_multiple_of(PAGE).min(to.max(self.offset));
        // Fits: both are inside the range.
        (from - self.offset) as usize..(to.max(from) - self.offset) as usize
    }
}

/// Bytes of one reply, in order: see
/// [`Server::read_by_reference`](super::Server::read_by_reference). Referenced clusters are
/// unchanged until the session is used again.
pub struct Reply<'a> {
    pub(crate) buf: &'a [u8],
    pub(crate) references: &'a [ClusterReference],
}

impl<'a> Reply<'a> {
    /// Length in bytes. Less than that of the buffer only at the end of the file.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buf.len()
    }

    /// True if the reply has no bytes, which means end of file.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    /// Upper bound of the number of [`parts`](Self::parts).
    #[must_use]
    pub fn parts_max(&self) -> usize {
        2 * self.references.len() + 1
    }

    /// Consecutive non-empty slices that make up the reply.
    pub fn parts(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (buf, references) = (self.buf, self.references);
        let between = move |i: usize| {
            let from = i.checked_sub(1).map_or(0, |i| references[i].at.end);
            let to = references.get(i).map_or(buf.len(), |l| l.at.start);
            &buf[from..to]
        };
        (0..=references.len())
            .flat_map(move |i| {
                let held = references
                    .get(i)
                    .map(|l| &l.held.bytes()[l.from..][..l.at.len()]);
                [Some(between(i)), held]
            })
            .flatten()
            .filter(|part| !part.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushed_ranges_are_whole_pages_or_end_with_the_file() {
        let pages = |offset, len, size| {
            let step = None;
            PushRange { offset, len, step }.pages(size)
        };
        assert_eq!(pages(0, 10_000, 1 << 20), 0..8192);
        assert_eq!(pages(0, 10_000, 10_000), 0..10_000);
        assert_eq!(pages(1, 10_000, 1 << 20), 4095..8191);
        assert_eq!(pages(4097, 10_000, 14_097), 4095..10_000);
        assert!(pages(1, 100, 1 << 20).is_empty());
    }

    #[test]
    fn parts_concatenate_to_the_reply() {
        let buf = *b"ab__e__";
        let held = CachedCluster::from_bytes(b"-cdfg");
        let reference = |at: Range<usize>, from| ClusterReference {
            at,
            held: held.clone(),
            from,
        };
        let references = [reference(2..4, 1), reference(5..7, 3)];
        let answer = Reply {
            buf: &buf,
            references: &references,
        };
        assert_eq!(answer.parts().collect::<Vec<_>>().concat(), b"abcdefg");
        assert!(answer.parts().count() <= answer.parts_max());
        assert_eq!(
            answer.parts().count(),
            4,
            "there is no part after the last reference"
        );
    }
}
