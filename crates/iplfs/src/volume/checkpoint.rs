//! Checkpoints.
//!
//! The order of the steps makes a checkpoint atomic and free of leaks:
//!
//! ```text
//!  data ► nodes ► node address table ► body with the discard log ► flush ► both seals ► flush ► discards of the last one
//!  └─────────────────── begin ─────────────────────────────────┘         └── seal ──┘         └ end
//! ```
//!
//! Only the flushes take long. They need no access to the volume, which may change meanwhile. Changes after the
//! beginning belong to the next checkpoint. No node is written before the end, because an older checkpoint would take
//! it for its own.

use crate::checkpoint::pack::seal_version;
use crate::checkpoint::state::{Checkpoint, CheckpointInProgress, UncommittedChanges};
use crate::device::blocks_in;
use crate::disk::address::{BLOCK_SIZE, BlockAddr, Log, Nid};
use crate::disk::checkpoint::{CheckpointBody, LogMarks, Phase, SEALS, Seal};
use crate::error::{Error, Result};
use crate::log::dead_blocks::DeadBlocks;
use crate::log::discard_log::to_entries;
use crate::options::{DiscardMode, DiscardRule};
use crate::volume::state::{Volume, WriteState};
use std::io;
use std::ops::Range;

/// Maximum number of rounds of a drain. Each round moves every dead block to its next state; more rounds indicate a
/// bug.
const DRAIN_ROUNDS: usize = 12;

/// Lengths and checksums of a body and of its copy.
struct BodyChecksums {
    body_crc: u32,
    copy_crc: u32,
    copy_blocks: u32,
    overflow_blocks: u32,
}

/// Appends a copy of the first blocks of a body.
fn with_copy(mut body: Vec<u8>, blocks: u64) -> Vec<u8> {
    body.extend_from_within(..blocks as usize * BLOCK_SIZE);
    body
}

impl Volume {
    /// Makes all changes durable.
    pub fn sync(&mut self) -> Result<()> {
        self.writable()?;
        if self.checkpoint.has_changes || self.checkpoint.is_required {
            self.checkpoint()
        } else {
            self.complete_checkpoint()
        }
    }

    pub(crate) fn checkpoint(&mut self) -> Result<()> {
        self.complete_checkpoint()?;
        self.writable()?;
        self.leave_full_regions()?;
        self.write_dirty()?;
        self.commit(Phase::Mounted)
    }

    /// Unmounts the volume. Open inodes without a name are freed by the next mount. Fails if changes could not be
    /// made durable.
    pub fn unmount(mut self) -> Result<()> {
        if self.state == WriteState::ReadOnly {
            return Ok(());
        }
        self.complete_checkpoint()?;
        self.writable()?;
        self.write_dirty()?;
        self.discard_prepared();
        self.commit(Phase::Clean)?;
        self.shrink_preallocation();
        Ok(())
    }

    /// Begins a checkpoint of all changes; `None` if there is nothing to do. The caller flushes the device,
    /// [seals](Self::seal_checkpoint) the checkpoint, flushes again and [ends](Self::end_checkpoint) it. Other
    /// operations may run in between. A checkpoint in progress is completed first.
    pub fn begin_checkpoint(&mut self) -> Result<Option<Checkpoint>> {
        self.complete_checkpoint()?;
        self.writable()?;
        if !self.checkpoint.has_changes
            && !self.checkpoint.is_required
            && !self.checkpoint_frees_blocks()
        {
            return Ok(None);
        }
        self.leave_full_regions()?;
        self.write_dirty()?;
        self.begin_commit(Phase::Mounted, false)?;
        Ok(Some(Checkpoint(self.checkpoint.version + 1)))
    }

    /// Begins a checkpoint in any case, and returns the seal that describes it.
    pub(crate) fn begin_checkpoint_sealed(&mut self) -> Result<(Checkpoint, Seal)> {
        self.complete_checkpoint()?;
        self.writable()?;
        self.leave_full_regions()?;
        self.write_dirty()?;
        self.begin_commit(Phase::Mounted, false)?;
        match &self.checkpoint.in_progress {
            Some(started) => Ok((Checkpoint(started.seal.version), started.seal.clone())),
            None => Err(Error::Limit("the checkpoint failed".to_owned())),
        }
    }

    /// Seals a checkpoint, after a flush that started after its beginning. Returns false if an operation completed
    /// the checkpoint meanwhile.
    ///
    /// # Errors
    /// Also if an operation tried to complete it and failed: then nothing of it is durable.
    pub fn seal_checkpoint(&mut self, checkpoint: Checkpoint) -> Result<bool> {
        let under_way = self.is_in_progress(checkpoint)?;
        if under_way {
            self.seal_in_progress()?;
        }
        Ok(under_way)
    }

    /// Ends a checkpoint, after a flush that started after its sealing.
    ///
    /// # Errors
    /// Those of [`seal_checkpoint`](Self::seal_checkpoint).
    pub fn end_checkpoint(&mut self, checkpoint: Checkpoint) -> Result<()> {
        if self.is_in_progress(checkpoint)? {
            self.finish_in_progress();
        }
        Ok(())
    }

    /// Returns false if the checkpoint is durable, and an error if it failed.
    fn is_in_progress(&self, checkpoint: Checkpoint) -> Result<bool> {
        self.writable()?;
        if checkpoint.0 <= self.checkpoint.version {
            return Ok(false);
        }
        match self.checkpoint.in_progress {
            Some(_) => Ok(true),
            None => Err(Error::Limit("the checkpoint failed".to_owned())),
        }
    }

    /// Completes the checkpoint in progress, if there is one.
    pub(crate) fn complete_checkpoint(&mut self) -> Result<()> {
        match &self.checkpoint.in_progress {
            None => return Ok(()),
            Some(started) if started.sealed => {}
            Some(_) => {
                self.writable()?;
                self.flush()?;
                self.seal_in_progress()?;
            }
        }
        self.writable()?;
        self.flush()?;
        self.finish_in_progress();
        Ok(())
    }

    /// Writes dirty pages and nodes. The node address table stays dirty.
    pub(crate) fn write_dirty(&mut self) -> Result<()> {
        self.require_own_device()?;
        for ino in self.pages.dirty_inos() {
            self.write_pages(ino)?;
        }
        // Ordered by inode, so that the nodes of a file lie together, with the inode after its own map nodes.
        let nids: Vec<Nid> = self.nodes.dirty();
        self.write_nodes(&nids, false)
    }

    /// Maximum length of a body that fits the pack. Unit: bytes.
    pub(crate) fn body_capacity(&self) -> usize {
        (self.sb.geometry.pack_blocks as usize - SEALS as usize) * BLOCK_SIZE
    }

    /// Makes a checkpoint with an empty journal: the tree on the device is the complete node address table.
    pub(crate) fn checkpoint_whole_table(&mut self) -> Result<()> {
        self.complete_checkpoint()?;
        self.write_dirty()?;
        if !self.nat.journal().is_empty() {
            self.write_nat()?;
        }
        self.commit(Phase::Mounted)
    }

    /// Writes everything dirty, with the whole node address table. A checkpoint has to
    /// [begin](Self::begin_prepared_checkpoint) next.
    pub(crate) fn begin_whole_table(&mut self) -> Result<()> {
        self.complete_checkpoint()?;
        self.leave_full_regions()?;
        self.write_dirty()?;
        match self.nat.journal().is_empty() {
            true => Ok(()),
            false => self.write_nat(),
        }
    }

    /// Begins a checkpoint of what was just written.
    pub(crate) fn begin_prepared_checkpoint(&mut self) -> Result<Checkpoint> {
        self.begin_commit(Phase::Mounted, false)?;
        Ok(Checkpoint(self.checkpoint.version + 1))
    }

    fn write_nat(&mut self) -> Result<()> {
        let head = self.logs.marks[Log::Meta.index()].head;
        let update = self.nat.plan_update(&*self.dev, &self.sb.geometry, head)?;
        self.append(Log::Meta, &update.bytes)?;
        for addr in &update.dead {
            self.free_block(*addr);
        }
        self.nat.apply(update);
        Ok(())
    }

    /// Commits the state of memory as the next checkpoint. Everything dirty but the node address table must have been
    /// written.
    pub(crate) fn commit(&mut self, phase: Phase) -> Result<()> {
        self.commit_body(phase, false)
    }

    /// Commits the state that was just read from the device, in another phase. Nothing is appended, and the part of
    /// the body outside the pack stays where it is: after a crash before this commit, the next mount would append at
    /// the same addresses again.
    pub(crate) fn commit_unchanged(&mut self, phase: Phase) -> Result<()> {
        self.commit_body(phase, true)
    }

    fn commit_body(&mut self, phase: Phase, again: bool) -> Result<()> {
        self.complete_checkpoint()?;
        self.begin_commit(phase, again)?;
        self.complete_checkpoint()?;
        match phase {
            Phase::Clean | Phase::Receiving => Ok(()),
            _ if self.options.discard == DiscardMode::Deferred => Ok(()),
            Phase::Mounted | Phase::Recovering => self.issue_discards(),
        }
    }

    /// Fails if another program has written a checkpoint. The lock of the device excludes programs that come by the same
    /// path or its loop device; other ways to the medium have locks of their own.
    fn require_own_device(&mut self) -> Result<()> {
        let own = self.checkpoint.newest.max(self.checkpoint.version);
        // Both seals of a checkpoint are written at once: one of each pack tells.
        let is_foreign = (0..2)
            .any(|pack| seal_version(&*self.dev, self.sb.geometry.pack_start(pack)) > Some(own));
        if !is_foreign {
            return Ok(());
        }
        let what = "another program has written to this volume since it was mounted here";
        self.state = WriteState::Broken(what.to_owned());
        let e = io::Error::new(io::ErrorKind::ResourceBusy, what);
        Err(Error::io(e, "writing a checkpoint"))
    }

    /// Writes the body of the next checkpoint.
    fn begin_commit(&mut self, phase: Phase, again: bool) -> Result<()> {
        self.settle_fork();
        if !again && self.nat.journal().len() > self.options.journal_max {
            self.write_nat()?;
        }
        // The overflow of the last body dies with this commit, and only its discard log can record that.
        if !again {
            self.dead.insert_range(self.checkpoint.overflow.clone());
        }
        let died = std::mem::replace(
            &mut self.dead,
            DeadBlocks::new(self.sb.geometry.section_bits),
        );
        match self.write_body(phase, &died, again) {
            Ok((seal, overflow, fresh)) => {
                self.discard_log.add(fresh, seal.version);
                self.nat.begin_commit();
                let changes = match phase {
                    Phase::Recovering => UncommittedChanges::default(),
                    _ => std::mem::take(&mut self.roll_forward.changes),
                };
                self.checkpoint.in_progress = Some(CheckpointInProgress {
                    phase,
                    seal,
                    overflow,
                    died,
                    changes,
                    sealed: false,
                });
                self.checkpoint.is_required = false;
                self.checkpoint.has_changes = false;
                Ok(())
            }
            Err(e) => {
                // The blocks stay dead. Others may have died while the body was written.
                self.dead.absorb(&died);
                self.checkpoint.is_required = true;
                Err(e)
            }
        }
    }

    /// Writes both seals of the checkpoint in progress. If that fails the checkpoint is aborted, and its changes go
    /// into the next one.
    fn seal_in_progress(&mut self) -> Result<()> {
        let Some(started) = &mut self.checkpoint.in_progress else {
            return Ok(());
        };
        started.sealed = true;
        self.checkpoint.newest = self.checkpoint.newest.max(started.seal.version);
        let block = started.seal.encode();
        let start = self.sb.geometry.pack_start(1 - self.checkpoint.pack);
        self.write_fixed(start, &[block, block].concat())
            .inspect_err(|_| self.abort_in_progress())
    }

    fn abort_in_progress(&mut self) {
        let Some(started) = self.checkpoint.in_progress.take() else {
            return;
        };
        self.discard_log.abort(started.seal.version);
        self.dead.absorb(&started.died);
        if started.phase != Phase::Recovering {
            self.dead.insert_range(started.overflow);
        }
        self.nat.abort_commit();
        self.roll_forward.changes.absorb(started.changes);
        self.checkpoint.is_required = true;
    }

    /// Makes the checkpoint in progress the newest committed one.
    fn finish_in_progress(&mut self) {
        let Some(started) = self.checkpoint.in_progress.take() else {
            return;
        };
        let seal = started.seal;
        self.checkpoint.version = seal.version;
        self.fork_points.committed(seal.version);
        self.checkpoint.pack = 1 - self.checkpoint.pack;
        self.discard_log.forget_issued();
        self.checkpoint.overflow = started.overflow;
        self.nat.end_commit();
        self.checkpoint.body_crc = seal.body_crc;
        self.roll_forward.tag = seal.roll_tag;
        for (mark, sealed) in self.logs.marks.iter_mut().zip(seal.logs) {
            // Blocks may have been appended since the checkpoint began.
            *mark = LogMarks {
                head: mark.head,
                ..sealed
            };
        }
        if started.phase != Phase::Recovering {
            self.roll_forward.base_seq = seal.next_seq;
        }
        self.stats.checkpoints += 1;
        self.lower_claim(started.phase);
    }

    /// Writes the body. Returns its seal, the location of its overflow, and the runs that are new in the discard log.
    fn write_body(
        &mut self,
        phase: Phase,
        died: &DeadBlocks,
        again: bool,
    ) -> Result<(Seal, Range<u64>, Vec<Range<u64>>)> {
        let capacity = (self.body_capacity() / BLOCK_SIZE) as u64;
        let mut fresh = died.runs();
        let mut body = CheckpointBody {
            snapshots: self.snapshots.records.clone(),
            orphans: self.orphans.iter().copied().collect(),
            journal: self
                .nat
                .journal()
                .iter()
                .map(|(nid, entry)| (*nid, *entry))
                .collect(),
            discards: self.log_entries(&fresh),
        };
        let block = BLOCK_SIZE as u64;
        let extra = |blocks: u64| blocks.saturating_sub(capacity);
        let blocks = |len: usize| (len as u64).div_ceil(block);
        let (body_blocks, mut copy) = (blocks(body.byte_len()), blocks(body.copied_len()));
        let mut overflow = 0..0;
        let old = self.checkpoint.overflow.end - self.checkpoint.overflow.start;
        // A small pack has no copy: body and copy would always overflow, and each overflow would be in the next
        // discard log. If nothing may be appended, a checkpoint of an earlier version keeps its overflow and gets no
        // copy either.
        if 2 * copy + 1 > capacity || again && extra(body_blocks + copy) != old {
            copy = 0;
        }
        let want = extra(body_blocks + copy);
        if want > 0 && again {
            overflow = self.checkpoint.overflow.clone();
            if old != want || crc32c::crc32c(&body.encode()) != self.checkpoint.body_crc {
                return Err(Error::corrupt(
                    "checkpoint body",
                    "does not encode to the bytes it was read from",
                ));
            }
        } else if want > 0 {
            let bytes = with_copy(body.encode(), copy);
            let placed = if want > self.options.overflow_blocks_max
                || !self.options.holds(DiscardRule::LogOverflow)
            {
                None
            } else {
                self.append(Log::Meta, &bytes[(capacity * block) as usize..])
                    .ok()
            };
            match placed {
                Some(addr) => overflow = addr.0..addr.0 + want,
                None => {
                    // Rule 8: a known leak is better than a failed checkpoint, and a body without a copy is better
                    // than a leak.
                    copy = 0;
                    let must = body.copied_len() as u64;
                    let keep = (capacity * block).checked_sub(must).ok_or_else(|| {
                        Error::Limit("the checkpoint does not fit its pack".to_string())
                    })? / 16;
                    if body.discards.len() as u64 > keep {
                        self.leak_beyond(keep as usize, &mut fresh);
                        body.discards = self.log_entries(&fresh);
                    }
                }
            }
        }
        let bytes = body.encode();
        let body_crc = crc32c::crc32c(&bytes);
        let bytes = with_copy(bytes, copy);
        let copy_crc = crc32c::crc32c(&bytes[..(copy * block) as usize]);
        let sums = BodyChecksums {
            body_crc,
            copy_crc,
            copy_blocks: copy as u32, // fits: a pack has less
            overflow_blocks: extra(blocks(body.byte_len())) as u32,
        };
        let seal = self.seal(phase, &body, &sums, &overflow);
        let in_pack = &bytes[..bytes.len().min((capacity * block) as usize)];
        if !in_pack.is_empty() {
            let start = self.sb.geometry.pack_start(1 - self.checkpoint.pack);
            if let Err(e) = self.write_fixed(BlockAddr(start.0 + SEALS), in_pack) {
                if !again {
                    self.dead.insert_range(overflow);
                }
                return Err(e);
            }
        }
        Ok((seal, overflow, fresh))
    }

    fn seal(
        &self,
        phase: Phase,
        body: &CheckpointBody,
        sums: &BodyChecksums,
        overflow: &Range<u64>,
    ) -> Seal {
        let version = self.checkpoint.version + 1;
        let window = self.options.window_blocks;
        let logs = self.logs.marks.map(|m| {
            // A stream may continue in another region.
            let end = match phase {
                Phase::Receiving => self.sb.geometry.area_blocks(),
                _ => self.log_end(m.head),
            };
            let limit = m.limit.max((m.head + window).min(m.far)).min(end);
            let scan = if phase == Phase::Recovering {
                m.scan
            } else {
                m.head
            };
            LogMarks {
                scan,
                head: m.head,
                limit,
                far: m.far.max(limit + window).min(end),
            }
        });
        Seal {
            version,
            roll_tag: if phase == Phase::Recovering {
                self.roll_forward.tag
            } else {
                version
            },
            phase,
            needs_trim: self.needs_trim,
            next_seq: if phase == Phase::Recovering {
                self.roll_forward.base_seq
            } else {
                self.roll_forward.next_seq
            },
            next_nid: self.nat.next_nid,
            nat_height: self.nat.height,
            nat_root: self.nat.root.addr,
            nat_root_crc: self.nat.root.crc,
            nat_blocks: self.nat.blocks,
            live_blocks: self.live,
            inodes: self.inodes,
            held_blocks: self.snapshots.held_blocks,
            next_generation: self.next_generation,
            snapshots: body.snapshots.len() as u32,
            orphans: body.orphans.len() as u32,
            journal: body.journal.len() as u32,
            discards: body.discards.len() as u32,
            body_crc: sums.body_crc,
            overflow: BlockAddr(overflow.start),
            overflow_blocks: sums.overflow_blocks,
            copy_blocks: sums.copy_blocks,
            copy_crc: sums.copy_crc,
            logs,
            shared_blocks: self.fork_points.shared_blocks,
            released: self.fork_points.released,
        }
    }

    fn log_entries(&self, fresh: &[Range<u64>]) -> Vec<crate::disk::checkpoint::DiscardEntry> {
        let old: Vec<Range<u64>> = if self.options.holds(DiscardRule::LogUntilFlush) {
            self.discard_log.iter().collect()
        } else {
            Vec::new()
        };
        let runs = old.into_iter().chain(fresh.iter().cloned());
        let mut entries: Vec<_> = runs.flat_map(to_entries).collect();
        entries.sort_unstable_by_key(|entry| entry.start);
        entries
    }

    /// Drops discards until at most `keep` entries are left. Their blocks stay allocated on the device until a trim
    /// finds them.
    fn leak_beyond(&mut self, keep: usize, fresh: &mut Vec<Range<u64>>) {
        self.needs_trim |= self.options.holds(DiscardRule::LogOverflow);
        let old = self.discard_log.iter().flat_map(to_entries).count();
        let remaining = keep.saturating_sub(old);
        if fresh.len() > remaining {
            // Keep the longest runs.
            fresh.sort_by_key(|run| std::cmp::Reverse(run.end - run.start));
            fresh.truncate(remaining);
            fresh.sort_by_key(|run| run.start);
        }
        if old > keep {
            self.discard_log.keep_longest(keep);
        }
    }

    fn write_fixed(&mut self, addr: BlockAddr, bytes: &[u8]) -> Result<()> {
        self.stats.pack_blocks += blocks_in(bytes);
        self.dev
            .write(addr, bytes)
            .map_err(|e| Error::io(e, format_args!("writing a checkpoint pack at {addr}")))
    }

    /// Flushes the device. After a failed flush it is unknown which blocks the device has, and hosts report the loss
    /// only once. The only sound state is the one that a new mount finds.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.dev.flush().map_err(|e| {
            self.state = WriteState::Broken(format!("a flush failed: {e}"));
            Error::io(e, "flushing the device")
        })
    }

    /// Releases all dead blocks: makes checkpoints, discards and flushes until nothing is left that can be released.
    pub fn drain(&mut self) -> Result<()> {
        let mut left = u64::MAX;
        self.discard_prepared();
        for _ in 0..DRAIN_ROUNDS {
            self.checkpoint()?;
            if self.options.discard == DiscardMode::Deferred {
                self.issue_discards()?;
            }
            self.flush()?;
            self.discard_log.forget_issued();
            let now = self.dead.blocks() + self.discard_log.blocks();
            let unlogged = self.dead.blocks();
            if now == 0 || (unlogged == 0 && now == left) {
                break;
            }
            left = now;
        }
        // The packs still list released blocks. One more checkpoint makes them agree with the device.
        self.checkpoint()
    }
}
