//! Allocation of positions for inodes.

use super::parts::Form;
use tuff_format::device::SLOT_LEN;
use tuff_format::inode::ALIGN;
use tuff_format::superblock;
use tuff_format::units::round_up;

/// Upper bound in bytes of what precedes the inodes of block 0: 1024 bytes, superblock, compression records of at most
/// 256 bytes, and a device slot.
pub(crate) const SUPERBLOCK_END: u64 = superblock::OFFSET + 256 + SLOT_LEN as u64;

/// Inode zone while it is filled.
pub(super) struct Zone {
    block: u64,
    /// End of the allocated blocks. Everything before it is used or listed in `gaps`.
    pub(super) end: u64,
    /// Free ranges inside blocks: position and length.
    gaps: Vec<(u64, u64)>,
}

/// Largest number of gaps: enough to fill blocks well, few enough to keep neighbouring inodes together.
const GAPS_MAX: usize = 48;

impl Zone {
    pub(super) fn new(block: u64) -> Self {
        Self {
            block,
            end: 0,
            gaps: Vec::new(),
        }
    }

    /// Returns a zone after `len` bytes, the first of which start a block.
    pub(super) fn after(len: u64, block: u64) -> Self {
        let mut zone = Self::new(block);
        zone.end = round_up(len, block);
        let start = round_up(len, ALIGN);
        zone.give_back(start, zone.end - start);
        zone
    }

    /// Returns the inode zone of an image, in block 0 if `front` is set.
    pub(super) fn of_image(front: bool, block: u64) -> Self {
        match front {
            true => Self::after_superblock(block),
            false => Self::new(block),
        }
    }

    /// Returns a zone in block 0.
    pub(super) fn after_superblock(block: u64) -> Self {
        Self {
            block,
            end: block,
            gaps: vec![(SUPERBLOCK_END, block - SUPERBLOCK_END)],
        }
    }

    /// Allocates an inode. Its inline tail does not cross a block, and does not start one if it is encoded.
    pub(super) fn place(&mut self, form: &Form) -> u64 {
        let (before, tail) = (form.before_tail, form.tail);
        let len = before + tail;
        if len <= self.block {
            let fitting = self
                .gaps
                .iter()
                .enumerate()
                .filter(|(_, (_, free))| *free >= len);
            if let Some((i, _)) = fitting.min_by_key(|(_, (at, free))| (*free, *at)) {
                let (at, free) = self.gaps.swap_remove(i);
                self.give_back(
                    at + round_up(len, ALIGN),
                    free.saturating_sub(round_up(len, ALIGN)),
                );
                return at;
            }
        }
        let mut start = self.end;
        let within = (start + before) % self.block;
        let begins = |within: u64| form.has_encoded_tail() && within.is_multiple_of(self.block);
        if tail > 0 && (within + tail > self.block || begins(within)) {
            let next = (self.block - within) % self.block;
            let mut shift = round_up(next, ALIGN);
            if begins(within + shift) {
                shift += ALIGN;
            }
            self.give_back(start, shift);
            start += shift;
        }
        let stop = round_up(start + len, ALIGN);
        self.end = round_up(stop, self.block);
        self.give_back(stop, self.end - stop);
        start
    }

    /// Returns the room in bytes from `at` to the end of its block, for an inode right behind the one that was placed last.
    pub(super) fn room_at(&self, at: u64) -> u64 {
        let gap = self.gaps.iter().find(|(start, _)| *start == at);
        gap.map_or(self.block, |(_, free)| *free)
    }

    /// Allocates `len` bytes at `at`, as [`room_at`](Self::room_at) states.
    pub(super) fn place_at(&mut self, at: u64, len: u64) {
        let len = round_up(len, ALIGN);
        match self.gaps.iter().position(|(start, _)| *start == at) {
            Some(i) => {
                let (_, free) = self.gaps.swap_remove(i);
                self.give_back(at + len, free.saturating_sub(len));
            }
            None => {
                assert_eq!(at, self.end, "nothing else was placed there");
                self.end += self.block;
                self.give_back(at + len, self.block.saturating_sub(len));
            }
        }
    }

    fn give_back(&mut self, at: u64, len: u64) {
        if len < ALIGN {
            return;
        }
        if self.gaps.len() >= GAPS_MAX {
            // The smallest gap is the least useful.
            if let Some((i, _)) = self
                .gaps
                .iter()
                .enumerate()
                .min_by_key(|(_, (at, free))| (*free, *at))
            {
                self.gaps.swap_remove(i);
            }
        }
        self.gaps.push((at, len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tuff_format::inode::Layout;

    fn form(layout: Layout, before_tail: u64, tail: u64) -> Form {
        Form {
            extended: false,
            layout,
            size: 1 << 20,
            before_tail,
            tail,
        }
    }

    #[test]
    fn places_do_not_overlap_and_tails_do_not_cross_blocks() {
        let mut zone = Zone::new(4096);
        let mut seed = 3u64;
        let mut placed = Vec::new();
        let (mut encoded, mut begin) = (0, 0);
        for _ in 0..5000 {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let before = 32 + (seed >> 40) % 200 * if seed >> 60 == 0 { 100 } else { 1 };
            let tail = if seed >> 33 & 1 == 0 {
                0
            } else {
                (seed >> 20) % 4001
            };
            let layout = match seed >> 34 & 1 {
                0 => Layout::FlatInline,
                _ => Layout::CompressedFull,
            };
            let form = form(layout, before & !7, tail);
            let before = form.before_tail;
            let at = zone.place(&form);
            assert_eq!(at % 32, 0);
            if form.has_encoded_tail() {
                assert_ne!((at + before) % 4096, 0);
                encoded += 1;
            } else {
                begin += u64::from(tail > 0 && (at + before).is_multiple_of(4096));
            }
            assert!(tail == 0 || (at + before) % 4096 + tail <= 4096);
            placed.push((at, at + before + tail));
        }
        placed.sort_unstable();
        assert!(placed.windows(2).all(|w| w[0].1 <= w[1].0));
        assert!(placed.last().unwrap().1 <= zone.end);
        let used: u64 = placed.iter().map(|(a, b)| b - a).sum();
        assert!(used * 10 > zone.end * 9, "{used} of {}", zone.end);
        assert!(encoded > 1000 && begin > 10, "{encoded} and {begin}");
    }
}
