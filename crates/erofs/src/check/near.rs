//! Metadata reads of the walk, which are mostly sequential.
//!
//! The last window is kept outside the cache that all threads share. After a few sequential windows the next ones are
//! requested in advance, and idle workers read them.

use crate::Result;
use crate::read::fetch::WINDOW;
use crate::read::{Bytes, Image, Inode, Nid, Space};
use std::ops::Range;
use tuff_format::inode::EXTENDED_LEN;

/// Number of windows per request.
const PART: u64 = 16;

/// Largest number of windows requested in advance: a quarter of the cache.
const AHEAD: u64 = 64;

/// Metadata reader of the walk.
pub(super) struct Near<'a> {
    image: &'a Image,
    /// Last window: space, number and bytes.
    last: Option<(Space, u64, Bytes)>,
    /// Number of sequential windows.
    streak: u64,
    /// First window that was not requested yet.
    requested_end: u64,
}

impl<'a> Near<'a> {
    pub(super) fn new(image: &'a Image) -> Self {
        Self {
            image,
            last: None,
            streak: 0,
            requested_end: 0,
        }
    }

    /// Returns an inode, like [`Image::inode`]. `ahead` receives the windows to read in advance.
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

    /// Fails if the bytes cannot be read.
    pub(super) fn check_readable(&self, space: Space, pos: u64, len: usize) -> Result<()> {
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
            self.requested_end = 0;
        }
        // At most as many windows are requested as were sequential so far: a limit for useless reads.
        let until = n + 1 + self.streak.min(AHEAD);
        let from = self.requested_end.max(n + 1);
        if space == Space::Image && until >= from + PART {
            self.requested_end = until;
            ahead(from..until);
        }
        let window = self.image.window_of(space, n);
        self.last = window.ok().map(|bytes| (space, n, bytes));
    }
}
