//! What a request got: bytes in the caller's buffer, and bytes that are lent.

use super::cluster_cache::CachedCluster;
use std::ops::Range;
use std::sync::Arc;

/// A run of an answer that lies in memory of the server.
pub(crate) struct Lent {
    /// Where in the answer it is.
    pub(crate) at: Range<usize>,
    pub(crate) held: Arc<CachedCluster>,
    /// Where in the cluster it starts.
    pub(crate) from: usize,
}

/// A part of a file that another cache should have: see [`Server::take_rest`](super::Server::take_rest).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// Where in the file it starts. Unit: bytes.
    pub offset: u64,
    /// Unit: bytes.
    pub len: usize,
    /// The reader goes ahead in steps of so many bytes: this is where it is, and parts as long as this one are wanted at
    /// its next steps. Unit: bytes.
    pub step: Option<u64>,
}

impl Rest {
    /// Which of its bytes are whole pages of 4096 bytes, or the last one of a file of `size` bytes.
    pub(crate) fn pages(&self, size: u64) -> Range<usize> {
        const PAGE: u64 = 4096;
        let end = self.offset + self.len as u64;
        let to = if end == size { end } else { end / PAGE * PAGE };
        let from = self.offset.next_multiple_of(PAGE).min(to.max(self.offset));
        // Fits: both are inside.
        (from - self.offset) as usize..(to.max(from) - self.offset) as usize
    }
}

/// The bytes of one request, in order: see [`Server::read_lent`](super::Server::read_lent). What is lent stays as it
/// is until the session is used again.
pub struct Reply<'a> {
    pub(crate) buf: &'a [u8],
    pub(crate) lent: &'a [Lent],
}

impl<'a> Reply<'a> {
    /// Unit: bytes. Fewer than the buffer holds only at the end of the file.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buf.len()
    }

    /// True at the end of the file.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    /// The most parts that [`parts`](Self::parts) has.
    #[must_use]
    pub fn parts_max(&self) -> usize {
        2 * self.lent.len() + 1
    }

    /// The bytes as runs that follow each other, none of them empty.
    pub fn parts(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (buf, lent) = (self.buf, self.lent);
        let between = move |i: usize| {
            let from = i.checked_sub(1).map_or(0, |i| lent[i].at.end);
            let to = lent.get(i).map_or(buf.len(), |l| l.at.start);
            &buf[from..to]
        };
        (0..=lent.len())
            .flat_map(move |i| {
                let held = lent.get(i).map(|l| &l.held.bytes()[l.from..][..l.at.len()]);
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
    fn a_rest_is_whole_pages_or_ends_with_the_file() {
        let pages = |offset, len, size| {
            let step = None;
            Rest { offset, len, step }.pages(size)
        };
        assert_eq!(pages(0, 10_000, 1 << 20), 0..8192);
        assert_eq!(pages(0, 10_000, 10_000), 0..10_000);
        assert_eq!(pages(1, 10_000, 1 << 20), 4095..8191);
        assert_eq!(pages(4097, 10_000, 14_097), 4095..10_000);
        assert!(pages(1, 100, 1 << 20).is_empty());
    }

    #[test]
    fn parts_follow_each_other() {
        let buf = *b"ab__e__";
        let held = CachedCluster::of(b"-cdfg");
        let lent = |at: Range<usize>, from| Lent {
            at,
            held: held.clone(),
            from,
        };
        let lent = [lent(2..4, 1), lent(5..7, 3)];
        let answer = Reply {
            buf: &buf,
            lent: &lent,
        };
        assert_eq!(answer.parts().collect::<Vec<_>>().concat(), b"abcdefg");
        assert!(answer.parts().count() <= answer.parts_max());
        assert_eq!(answer.parts().count(), 4, "nothing follows the last one");
    }
}
