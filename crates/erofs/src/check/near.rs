//! Metadata as a walk reads it: mostly from front to back.
//!
//! The last window is at hand without asking the cache that all threads share. Once some windows came one after the
//! other, those that follow are asked for in advance: a worker that has nothing else to do reads them.

use crate::Result;
use crate::read::fetch::WINDOW;
use crate::read::{Bytes, Image, Inode, Nid, Space};
use std::ops::Range;
use tuff_format::inode::EXTENDED_LEN;

/// Windows that are asked for at once. Unit: windows.
const PART: u64 = 16;

/// The most windows that are asked for in advance: a quarter of the cache. Unit: windows.
const AHEAD: u64 = 64;

/// The walk's own way to metadata.
pub(super) struct Near<'a> {
    image: &'a Image,
    /// The last window: where it is, its number, its bytes.
    last: Option<(Space, u64, Bytes)>,
    /// How many windows came one after the other.
    streak: u64,
    /// Windows in front of this one were asked for.
    asked: u64,
}

impl<'a> Near<'a> {
    pub(super) fn new(image: &'a Image) -> Self {
        Self {
            image,
            last: None,
            streak: 0,
            asked: 0,
        }
    }

    /// As [`Image::inode`]. `ahead` is told which windows will be wanted soon.
    pub(super) fn inode(&mut self, nid: Nid, ahead: impl FnOnce(Range<u64>)) -> Result<Inode> {
        let (space, pos) = self.image.inode_position(nid)?;
        let n = pos / WINDOW;
        if !matches!(&self.last, Some((s, last, _)) if (*s, *last) == (space, n)) {
            self.turn_to(space, n, ahead);
        }
        match self.held(space, pos, EXTENDED_LEN) {
            Some(bytes) => self.image.inode_from(nid, pos, bytes),
            None => self.image.inode(nid),
        }
    }

    /// Fails if bytes cannot be read.
    pub(super) fn look(&self, space: Space, pos: u64, len: usize) -> Result<()> {
        match self.held(space, pos, len) {
            Some(_) => Ok(()),
            None => self.image.bytes(space, pos, len).map(drop),
        }
    }

    fn held(&self, space: Space, pos: u64, len: usize) -> Option<&[u8]> {
        let (held, n, window) = self.last.as_ref()?;
        let from = usize::try_from(pos.checked_sub(n * WINDOW)?).ok()?;
        let bytes = window.get(from..from.checked_add(len)?)?;
        (*held == space).then_some(bytes)
    }

    fn turn_to(&mut self, space: Space, n: u64, ahead: impl FnOnce(Range<u64>)) {
        let follows = matches!(&self.last, Some((s, last, _)) if *s == space && last + 1 == n);
        self.streak = if follows { self.streak + 1 } else { 0 };
        if !follows {
            self.asked = 0;
        }
        // What is asked for in vain is at most what was of use before.
        let until = n + 1 + self.streak.min(AHEAD);
        let from = self.asked.max(n + 1);
        if space == Space::Image && until >= from + PART {
            self.asked = until;
            ahead(from..until);
        }
        let window = self.image.window_of(space, n);
        self.last = window.ok().map(|bytes| (space, n, bytes));
    }
}
