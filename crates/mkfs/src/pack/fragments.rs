//! Tails of files and whole files of a stream: the last part of the packed inode.

use super::address::{FragmentAddr, FragmentLocation};
use super::content::FileContent;
use super::packer::Packer;
use super::worker::segment_size;
use super::worker::{Job, Part};
use crate::Result;
use crate::tree::PACKED;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Memory in bytes per tail in the table of known tails, which doubles when it is full.
const KNOWN_COST: u64 = 50;
/// First ticket of the segments of tails.
const ENDS_TICKETS: u64 = 1 << 63;

impl Packer<'_> {
    /// Appends a tail or a whole file and returns its address. Tails are compared with earlier ones; whole files were
    /// compared already.
    pub(super) fn add_fragment(&mut self, bytes: &[u8], whole: bool) -> FragmentAddr {
        let mut key = [0; 16];
        if !whole {
            key.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
            if let Some(known) = self.ends.known.get(&key) {
                self.result.stats.fragment_dedupe_bytes += bytes.len() as u64;
                return *known;
            }
        }
        let hash = xxh3_64(bytes) as u32;
        if self.options.cuts.has(hash, bytes.len() as u64) {
            self.cut_tails();
        }
        let ends = &mut self.ends;
        let offset = FragmentLocation::Tails(ends.submitted + ends.buf.len() as u64);
        let offset = FragmentAddr::new(offset);
        if !whole {
            ends.known.insert(key, offset);
            self.tables += KNOWN_COST;
        }
        ends.buf.extend_from_slice(bytes);
        self.result.stats.fragments += 1;
        offset
    }

    /// Lets a cluster start at the next tail.
    pub(super) fn cut_tails(&mut self) {
        let ends = &mut self.ends;
        if ends.buf.is_empty() {
            return;
        }
        let block = self.options.bits.size_usize();
        let len = ends.buf.len().next_multiple_of(block);
        ends.buf.resize(len, 0);
        let cut = ends.submitted + len as u64;
        if ends.cuts.back() != Some(&cut) {
            ends.cuts.push_back(cut);
        }
    }

    /// Submits full segments of tails to the workers; at the end, the rest.
    pub(super) fn submit_fragments(&mut self, end: bool) {
        let continued = self.continues_tails();
        if end && continued {
            // More pieces follow, and none of them may start in the block of another.
            let len = self.ends.buf.len();
            let block = self.options.bits.size_usize();
            self.ends.buf.resize(len.next_multiple_of(block), 0);
        }
        let policy = Arc::clone(&self.options.packed);
        let segment = segment_size(&policy) as usize;
        loop {
            let ends = &mut self.ends;
            let cut = ends.cuts.front().map(|cut| (cut - ends.submitted) as usize);
            let cut = cut.filter(|cut| *cut <= segment);
            let len = cut.unwrap_or(segment).min(ends.buf.len());
            if len == 0 || len < segment && cut.is_none() && !end {
                return;
            }
            if cut.is_some() {
                ends.cuts.pop_front();
            }
            let rest = ends.buf.split_off(len);
            let bytes: Arc<[u8]> = std::mem::replace(&mut ends.buf, rest).into();
            let id = ENDS_TICKETS + ends.segments;
            let part = Part {
                first: ends.segments == 0 && self.streamed == 0,
                last: end && ends.buf.is_empty() && !continued,
                ..Part::segment(PACKED, FileContent::Bytes(bytes), (0, len), &policy)
            };
            ends.pending.push_back(id);
            ends.submitted += len as u64;
            ends.segments += 1;
            self.pool.submit(
                Job {
                    id,
                    cost: 2 * len as u64,
                    parts: vec![part],
                    advised: false,
                },
                true,
            );
        }
    }

    /// Takes the segments of tails that are encoded; with `wait`, all that were submitted.
    pub(super) fn store_fragments(&mut self, wait: bool) -> Result<()> {
        while let Some(id) = self.ends.pending.front().copied() {
            let out = if wait {
                self.pool.take(id)?
            } else {
                match self.pool.try_take(id) {
                    Some(out) => out?,
                    None => break,
                }
            };
            self.ends.pending.pop_front();
            self.ends
                .encoded
                .put(out.data.bytes(), (out.digest, out.parts))?;
            self.pool.recycle(out.data);
        }
        Ok(())
    }
}
