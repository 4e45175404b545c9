//! What a request got: bytes in the caller's buffer, and bytes that are lent.

use super::decoded::Held;
use std::ops::Range;
use std::sync::Arc;

/// A run of an answer that lies in memory of the server.
pub(crate) struct Lent {
    /// Where in the answer it is.
    pub(crate) at: Range<usize>,
    pub(crate) held: Arc<Held>,
    /// Where in the cluster it starts.
    pub(crate) from: usize,
}

/// The bytes of one request, in order: see [`Server::read_lent`](super::Server::read_lent). What is lent stays as it
/// is until the session is used again.
pub struct Answer<'a> {
    pub(crate) buf: &'a [u8],
    pub(crate) lent: &'a [Lent],
}

impl<'a> Answer<'a> {
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
    fn parts_follow_each_other() {
        let buf = *b"ab__e__";
        let held = Held::of(b"-cdfg");
        let lent = |at: Range<usize>, from| Lent {
            at,
            held: held.clone(),
            from,
        };
        let lent = [lent(2..4, 1), lent(5..7, 3)];
        let answer = Answer {
            buf: &buf,
            lent: &lent,
        };
        assert_eq!(answer.parts().collect::<Vec<_>>().concat(), b"abcdefg");
        assert!(answer.parts().count() <= answer.parts_max());
        assert_eq!(answer.parts().count(), 4, "nothing follows the last one");
    }
}
