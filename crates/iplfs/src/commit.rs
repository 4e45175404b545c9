//! Checkpoints, and discards on their way out.
//!
//! Order of a checkpoint, which is what makes it atomic and leak-free:
//!
//! ```text
//!  data ► nodes ► node address table ► body with the discard log ► flush ► both seals ► flush ► discards of the last one
//! ```

use crate::areas::{Addr, BLOCK_SIZE, Log, Nid};
use crate::dead::DeadMap;
use crate::device::blocks_in;
use crate::discard::{DiscardMode, to_entries};
use crate::disk::checkpoint::{Body, LogMarks, Phase, SEALS, Seal};
use crate::error::{Error, Result};
use crate::volume::{State, Volume};
use std::collections::BTreeSet;
use std::ops::Range;

/// Rounds of a drain before it is called a mistake: each round moves every dead block one state on.
const DRAIN_ROUNDS: usize = 12;

impl Volume {
    /// Makes everything done so far durable.
    pub fn sync(&mut self) -> Result<()> {
        self.writable()?;
        if self.changed || self.must_checkpoint {
            self.checkpoint()
        } else {
            Ok(())
        }
    }

    pub(crate) fn checkpoint(&mut self) -> Result<()> {
        self.writable()?;
        self.write_all()?;
        self.commit(Phase::Mounted)
    }

    /// Ends the use of the volume. What is held open without a name goes at the next mount. An error if something done was lost.
    pub fn unmount(mut self) -> Result<()> {
        if self.state == State::ReadOnly {
            return Ok(());
        }
        self.writable()?;
        self.write_all()?;
        self.give_prepared_back();
        self.commit(Phase::Clean)
    }

    /// Writes what is dirty in memory, except the node address table.
    fn write_all(&mut self) -> Result<()> {
        for ino in self.pages.dirty_inos() {
            self.write_pages(ino)?;
        }
        // Inodes after the nodes that their own map names, so that a file's nodes lie together.
        let nids: Vec<Nid> = self.dirty.values().flatten().copied().collect();
        self.write_nodes(&nids, false)
    }

    /// Bytes of a body that fit the pack.
    pub(crate) fn body_room(&self) -> usize {
        (self.sb.geometry.pack_blocks as usize - SEALS as usize) * BLOCK_SIZE
    }

    /// A checkpoint whose journal is empty: the tree on the device is the whole node address table.
    pub(crate) fn checkpoint_whole_table(&mut self) -> Result<()> {
        self.write_all()?;
        if !self.nat.journal().is_empty() {
            self.write_nat()?;
        }
        self.commit(Phase::Mounted)
    }

    fn write_nat(&mut self) -> Result<()> {
        let head = self.marks[Log::Meta.index()].head;
        let update = self.nat.prepare(&*self.dev, &self.sb.geometry, head)?;
        self.append(Log::Meta, &update.bytes)?;
        for addr in &update.dead {
            self.kill(*addr);
        }
        self.nat.apply(update);
        Ok(())
    }

    /// Commits the state of memory as the next checkpoint. Everything dirty but the node address table has been written.
    pub(crate) fn commit(&mut self, phase: Phase) -> Result<()> {
        self.commit_body(phase, false)
    }

    /// Commits the state that was just read from the device, in another phase. Nothing is appended and the part of the body outside the pack
    /// stays where it is: a crash before this commit would make the next mount append at the same place again.
    pub(crate) fn commit_again(&mut self, phase: Phase) -> Result<()> {
        self.commit_body(phase, true)
    }

    fn commit_body(&mut self, phase: Phase, again: bool) -> Result<()> {
        if !again && self.nat.journal().len() > self.options.journal_max {
            self.write_nat()?;
        }
        let version = self.version + 1;
        // What the last body took beyond its pack dies with this commit, and only this log can still say so.
        if !again {
            self.dead.insert_range(self.overflow.clone());
        }
        let fresh = std::mem::replace(&mut self.dead, DeadMap::new(self.sb.geometry.section_bits));
        let result = self.write_pack(phase, version, &fresh, again);
        let (overflow, fresh_runs) = match result {
            Ok(done) => done,
            Err(e) => {
                // What died stays dead; some blocks may have joined it while the pack was written.
                for run in fresh.runs() {
                    self.dead.insert_range(run);
                }
                self.must_checkpoint = true;
                return Err(e);
            }
        };
        self.version = version;
        self.pack = 1 - self.pack;
        self.pending.confirm();
        self.pending.add(fresh_runs, version);
        self.overflow = overflow;
        self.nat.committed();
        self.must_checkpoint = false;
        self.changed = false;
        if phase != Phase::Recovering {
            self.since = Default::default();
            self.base_seq = self.next_seq;
        }
        self.stats.checkpoints += 1;
        match phase {
            Phase::Clean | Phase::Receiving => Ok(()),
            Phase::Mounted | Phase::Recovering => self.dispatch(),
        }
    }

    /// Writes body and seals. Returns where the body overflowed to and the runs that are new in the discard log.
    fn write_pack(
        &mut self,
        phase: Phase,
        version: u64,
        fresh: &DeadMap,
        again: bool,
    ) -> Result<(Range<u64>, Vec<Range<u64>>)> {
        let room = self.body_room() as u64;
        let mut fresh_runs = fresh.runs();
        let mut body = Body {
            snapshots: self.snapshots.clone(),
            orphans: self.orphans.iter().copied().collect(),
            journal: self
                .nat
                .journal()
                .iter()
                .map(|(nid, entry)| (*nid, *entry))
                .collect(),
            discards: self.log_entries(&fresh_runs),
        };
        let extra = |b: &Body| {
            (b.byte_len() as u64)
                .saturating_sub(room)
                .div_ceil(BLOCK_SIZE as u64)
        };
        let mut overflow = 0..0;
        let want = extra(&body);
        if want > 0 && again {
            overflow = self.overflow.clone();
            if overflow.end - overflow.start != want
                || crc32c::crc32c(&body.encode()) != self.body_crc
            {
                return Err(Error::corrupt(
                    "checkpoint body",
                    "does not encode to the bytes it was read from",
                ));
            }
        } else if want > 0 {
            let bytes = body.encode();
            let placed = if want > self.options.overflow_blocks_max || !self.options.rules.hold(8) {
                None
            } else {
                self.append(Log::Meta, &bytes[room as usize..]).ok()
            };
            match placed {
                Some(addr) => overflow = addr.0..addr.0 + want,
                None => {
                    // Rule 8: better a leak that is known than a checkpoint that cannot be made.
                    let must = (body.byte_len() - body.discards.len() * 16) as u64;
                    let keep = room.checked_sub(must).ok_or_else(|| {
                        Error::Limit(
                            "what a checkpoint must hold does not fit its pack".to_string(),
                        )
                    })? / 16;
                    self.leak_beyond(keep as usize, &mut fresh_runs);
                    body.discards = self.log_entries(&fresh_runs);
                }
            }
        }
        let bytes = body.encode();
        let in_pack = &bytes[..bytes.len().min(room as usize)];
        let seal = self.seal(phase, version, &body, crc32c::crc32c(&bytes), &overflow);
        if let Err(e) = self.write_body_and_seals(in_pack, &seal) {
            if !again {
                self.dead.insert_range(overflow);
            }
            return Err(e);
        }
        self.body_crc = seal.body_crc;
        self.marks = seal.logs;
        self.roll_tag = seal.roll_tag;
        Ok((overflow, fresh_runs))
    }

    fn write_body_and_seals(&mut self, body: &[u8], seal: &Seal) -> Result<()> {
        let start = self.sb.geometry.pack_start(1 - self.pack);
        if !body.is_empty() {
            self.write_fixed(Addr(start.0 + SEALS), body)?;
        }
        self.flush()?;
        let block = seal.encode();
        self.write_fixed(start, &[block, block].concat())?;
        self.flush()
    }

    fn seal(
        &self,
        phase: Phase,
        version: u64,
        body: &Body,
        body_crc: u32,
        overflow: &Range<u64>,
    ) -> Seal {
        let window = self.options.window_blocks;
        let area = self.sb.geometry.area_blocks();
        let logs = self.marks.map(|m| {
            let limit = m.limit.max((m.head + window).min(m.far)).min(area);
            let scan = if phase == Phase::Recovering {
                m.scan
            } else {
                m.head
            };
            LogMarks {
                scan,
                head: m.head,
                limit,
                far: m.far.max(limit + window).min(area),
            }
        });
        Seal {
            version,
            roll_tag: if phase == Phase::Recovering {
                self.roll_tag
            } else {
                version
            },
            phase,
            needs_trim: self.needs_trim,
            next_seq: if phase == Phase::Recovering {
                self.base_seq
            } else {
                self.next_seq
            },
            next_nid: self.nat.next_nid,
            nat_height: self.nat.height,
            nat_root: self.nat.root.addr,
            nat_root_crc: self.nat.root.crc,
            nat_blocks: self.nat.blocks,
            live_blocks: self.live,
            inodes: self.inodes,
            held_blocks: self.held,
            next_generation: self.next_generation,
            snapshots: body.snapshots.len() as u32,
            orphans: body.orphans.len() as u32,
            journal: body.journal.len() as u32,
            discards: body.discards.len() as u32,
            body_crc,
            overflow: Addr(overflow.start),
            overflow_blocks: (overflow.end - overflow.start) as u32,
            logs,
        }
    }

    fn log_entries(&self, fresh: &[Range<u64>]) -> Vec<crate::disk::checkpoint::DiscardEntry> {
        let old: Vec<Range<u64>> = if self.options.rules.hold(3) {
            self.pending.iter().collect()
        } else {
            Vec::new()
        };
        let runs = old.into_iter().chain(fresh.iter().cloned());
        let mut entries: Vec<_> = runs.flat_map(to_entries).collect();
        entries.sort_unstable_by_key(|entry| entry.start);
        entries
    }

    /// Gives up discards until at most `keep` entries are left. They stay mapped on the device until `trim` finds them.
    fn leak_beyond(&mut self, keep: usize, fresh: &mut Vec<Range<u64>>) {
        self.needs_trim |= self.options.rules.hold(8);
        let old = self.pending.iter().flat_map(to_entries).count();
        let room = keep.saturating_sub(old);
        if fresh.len() > room {
            // The longest runs are worth most.
            fresh.sort_by_key(|run| std::cmp::Reverse(run.end - run.start));
            fresh.truncate(room);
            fresh.sort_by_key(|run| run.start);
        }
        if old > keep {
            self.pending.keep(keep);
        }
    }

    fn write_fixed(&mut self, addr: Addr, bytes: &[u8]) -> Result<()> {
        self.stats.pack_blocks += blocks_in(bytes);
        self.dev
            .write(addr, bytes)
            .map_err(|e| Error::io(e, format_args!("writing a checkpoint pack at {addr}")))
    }

    /// Makes what was written durable. If the device cannot, nobody knows which blocks it still has, and hosts forget that they ever
    /// had them: the only sound state is the one a new mount finds.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.dev.flush().map_err(|e| {
            self.state = State::Broken(format!("a flush failed: {e}"));
            Error::io(e, "flushing the device")
        })
    }

    // ---- discards ----

    /// Issues what the rules allow now.
    pub(crate) fn dispatch(&mut self) -> Result<()> {
        let max = match self.options.discard {
            DiscardMode::Eager => usize::MAX,
            DiscardMode::Polite(max) => max,
            DiscardMode::Never => return Ok(()),
        };
        let rules = self.options.rules;
        let mut before = if rules.hold(2) {
            self.version
        } else {
            self.version + 1
        };
        if let Some(oldest) = self.readers.oldest()
            && rules.hold(5)
        {
            before = before.min(oldest + 1);
        }
        let granule = self.dev.granule();
        let mut zones = BTreeSet::new();
        for run in self
            .pending
            .eligible(before, rules.hold(7))
            .into_iter()
            .take(max)
        {
            // Rule 7: part of a granule would be forgotten by the device; it waits in the log for its neighbours.
            let run = if rules.hold(7) {
                run.start.next_multiple_of(granule)..run.end - run.end % granule
            } else {
                run
            };
            if run.start >= run.end {
                continue;
            }
            if let Some(zone_blocks) = self.dev.zone_blocks() {
                zones.extend(run.start / zone_blocks..=(run.end - 1) / zone_blocks);
            }
            self.discard(run)?;
        }
        self.release_zones(zones)
    }

    fn discard(&mut self, run: Range<u64>) -> Result<()> {
        match self.dev.discard(run.clone()) {
            Ok(()) => {
                self.stats.discard_commands += 1;
                self.stats.discarded_blocks += run.end - run.start;
                self.pending.issued(run);
                Ok(())
            }
            // The run stays in the log and is tried again: a discard that fails is a delay, not damage.
            Err(_) => Ok(()),
        }
    }

    /// Rule 6: a zone that lies wholly below its log's durable head and holds nothing is given back as a whole. Looks at the given zones and at those
    /// that a head left since the last time.
    fn release_zones(&mut self, mut zones: BTreeSet<u64>) -> Result<()> {
        let Some(zone_blocks) = self.dev.zone_blocks() else {
            return Ok(());
        };
        let asking = |e| Error::io(e, "asking for zones");
        for log in Log::ALL {
            let passed = self.sb.geometry.range(
                log,
                self.zones_seen[log.index()]..self.marks[log.index()].scan,
            );
            if passed.start / zone_blocks < passed.end / zone_blocks {
                zones.extend(
                    self.dev
                        .zones(passed.start / zone_blocks..passed.end / zone_blocks)
                        .map_err(asking)?,
                );
                self.zones_seen[log.index()] = self.marks[log.index()].scan;
            }
        }
        for zone in zones {
            let blocks = zone * zone_blocks..(zone + 1) * zone_blocks;
            let Some((log, first)) = self.sb.geometry.place(Addr(blocks.start)) else {
                continue;
            };
            let below = first + zone_blocks <= self.marks[log.index()].scan;
            let empty = self.dev.allocated(blocks).map_err(asking)?.is_empty();
            // A zone that could not be released stays, empty, and is offered again by `trim`.
            if (below && empty || !self.options.rules.hold(6))
                && self.dev.release_zone(zone).is_ok()
            {
                self.stats.released_zones += 1;
            }
        }
        Ok(())
    }

    /// Looks at every zone again, also at those that a crash left empty.
    pub(crate) fn release_all_zones(&mut self) -> Result<()> {
        self.zones_seen = [0; 7];
        self.release_zones(BTreeSet::new())
    }

    /// Brings every dead block back to the device: checkpoints, discards, flushes, until nothing waits that can go.
    pub fn drain(&mut self) -> Result<()> {
        let mut left = u64::MAX;
        self.give_prepared_back();
        for _ in 0..DRAIN_ROUNDS {
            self.checkpoint()?;
            self.flush()?;
            self.pending.confirm();
            let now = self.dead.blocks() + self.pending.blocks();
            let unlogged = self.dead.blocks();
            if now == 0 || (unlogged == 0 && now == left) {
                break;
            }
            left = now;
        }
        // The packs still list what is gone; one more makes them agree with the device.
        self.checkpoint()
    }

    /// True if every reference to the volume's memory could be dropped without losing anything.
    pub fn is_synced(&self) -> bool {
        !self.changed && self.pages.dirty() == 0 && self.dirty_nodes == 0
    }
}
