//! Device commands, slot allocation, page programming and garbage collection.
//!
//! A write is mapped when it arrives, to the next slots of the open page of its stream. A page is
//! programmed when it is full. Until then its content is held in the write buffer, which survives a
//! power loss.
//!
//! Garbage collection is greedy and local to a LUN. The victim is the full block with the fewest
//! valid slots; these are moved to the cleaning stream of the LUN, and the victim is erased.
//!
//! Cleaning is paced by host writes. If a LUN is short of erased blocks, each page the host
//! programs there moves several pages of the victim. The number is chosen so that cleaning ends
//! before the reclaimed pages are used up.

use crate::clock::{Clock, Nanos, Timing};
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use crate::hist::Histogram;
use crate::map::{Compaction, Interval, IntervalMap, Map, PageMap};
use crate::nand::{BlockState, Faults, Nand, Payload, Staged, Wear};
use crate::units::{EraseBlock, Lba, Slot};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

/// Thresholds for garbage collection and map maintenance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cleaning {
    /// Number of erased blocks per LUN at or below which cleaning starts.
    pub low: u32,
    /// Interval between compactions of the whole map. Used only with [`Compaction::AtOnce`].
    pub map_period: Nanos,
}

impl Default for Cleaning {
    fn default() -> Self {
        Self {
            low: 2,
            map_period: Nanos::millis(1000),
        }
    }
}

/// Policy that selects the LUN for the next page of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Striping {
    /// The LUN that becomes free first; ties are resolved in round-robin order.
    LeastBusy,
    /// Strict round-robin, so that consecutive pages fill one block of every LUN, as zones require.
    InTurn,
}

/// Configuration of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Geometry of the device.
    pub geometry: Geometry,
    /// Latencies and service times.
    pub timing: Timing,
    /// Number of host streams. Each stream is written to separate erase blocks.
    pub streams: u32,
    /// Thresholds for garbage collection and map maintenance.
    pub cleaning: Cleaning,
    /// Policy that selects the LUN for the next page.
    pub striping: Striping,
    /// Settings of the interval map. `None` selects a page map over the exported capacity.
    pub interval: Option<Interval>,
    /// Faults injected by tests.
    pub faults: Faults,
}

impl Config {
    /// Replaces the map by an interval map. Look-ups take 1.88 times and changes 3.3 times as long,
    /// as published.
    pub fn with_interval(mut self, interval: Interval) -> Self {
        self.timing.map_get = Nanos(self.timing.map_get.0 * 188 / 100);
        self.timing.map_set = Nanos(self.timing.map_set.0 * 330 / 100);
        self.interval = Some(interval);
        self
    }
}

/// Counters of a device since its creation.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Blocks written by the host. Unit: slots.
    pub host_slots: u64,
    /// Blocks moved by garbage collection. Unit: slots.
    pub moved_slots: u64,
    /// Blocks read by the host, holes included. Unit: slots.
    pub read_slots: u64,
    /// Number of discard commands.
    pub discards: u64,
    /// Blocks unmapped by discards. Unit: slots.
    pub discarded_slots: u64,
    /// Erase blocks reclaimed by garbage collection.
    pub cleaned_blocks: u64,
    /// Map entries moved or examined by map maintenance.
    pub map_entries: u64,
    /// Longest firmware time of map maintenance in one command.
    pub map_stall_max: Nanos,
    /// Largest memory use of the map, sampled at each command. Unit: bytes.
    pub map_bytes_max: u64,
}

impl Counters {
    /// Slots programmed for each slot the host wrote. 1 before the first write.
    pub fn write_amplification(&self) -> f64 {
        (self.host_slots + self.moved_slots) as f64 / self.host_slots.max(1) as f64
    }

    /// Returns the difference to `earlier`; the maxima still cover the whole lifetime.
    pub fn since(&self, earlier: &Counters) -> Counters {
        Counters {
            host_slots: self.host_slots - earlier.host_slots,
            moved_slots: self.moved_slots - earlier.moved_slots,
            read_slots: self.read_slots - earlier.read_slots,
            discards: self.discards - earlier.discards,
            discarded_slots: self.discarded_slots - earlier.discarded_slots,
            cleaned_blocks: self.cleaned_blocks - earlier.cleaned_blocks,
            map_entries: self.map_entries - earlier.map_entries,
            ..*self
        }
    }
}

/// Write frontier of a stream on a LUN: the open block and the page being filled.
struct Frontier {
    block: EraseBlock,
    page: u32,
    staged: Vec<Staged>,
    /// Staged slots that occupy the write buffer.
    buffered: u32,
}

struct Lun {
    free: VecDeque<EraseBlock>,
    /// Write frontier of each host stream, followed by that of the cleaning stream.
    open: Vec<Option<Frontier>>,
    /// Victim block and the next page to examine.
    victim: Option<(EraseBlock, u32)>,
    /// Failed blocks whose valid slots are being moved before they are retired.
    failing: Vec<EraseBlock>,
}

/// Model of a flash device with translation layer, garbage collection and virtual time.
pub struct Flash {
    geometry: Geometry,
    timing: Timing,
    cleaning: Cleaning,
    striping: Striping,
    at_once: bool,
    nand: Nand,
    map: Box<dyn Map>,
    clock: Clock,
    luns: Vec<Lun>,
    valid: Vec<u32>,
    /// LUN for the next page of each host stream.
    next_lun: Vec<u32>,
    /// Times at which programmed slots leave the write buffer, with their number.
    releases: BinaryHeap<Reverse<(Nanos, u32)>>,
    buffered: u32,
    next_upkeep: Nanos,
    host_reads: u64,
    counters: Counters,
    read_times: Histogram,
    write_times: Histogram,
}

impl Flash {
    /// Creates a device. Panics if the geometry is unusable or if an entry of the interval map
    /// covers more than one block. Larger entries are supported by the map alone.
    pub fn new(config: Config) -> Self {
        let geometry = config.geometry;
        assert!(geometry.is_sound(), "{geometry:?} makes no device");
        let map: Box<dyn Map> = match config.interval {
            Some(interval) => {
                assert_eq!(interval.unit_bits, 0, "the device maps blocks of 4 KiB");
                Box::new(IntervalMap::new(interval))
            }
            None => Box::new(PageMap::new(geometry.exported_slots)),
        };
        let lun = |l: u32| Lun {
            free: (0..geometry.blocks_per_lun)
                .map(|b| EraseBlock(l * geometry.blocks_per_lun + b))
                .collect(),
            open: (0..=config.streams).map(|_| None).collect(),
            victim: None,
            failing: Vec::new(),
        };
        Self {
            geometry,
            timing: config.timing,
            cleaning: config.cleaning,
            striping: config.striping,
            at_once: config
                .interval
                .is_some_and(|i| i.compaction == Compaction::AtOnce),
            nand: Nand::new(geometry, config.faults),
            map,
            clock: Clock::new(geometry, config.timing),
            luns: (0..geometry.luns()).map(lun).collect(),
            valid: vec![0; geometry.blocks() as usize],
            next_lun: (0..config.streams).map(|s| s % geometry.luns()).collect(),
            releases: BinaryHeap::new(),
            buffered: 0,
            next_upkeep: config.cleaning.map_period,
            host_reads: 0,
            counters: Counters::default(),
            read_times: Histogram::new(),
            write_times: Histogram::new(),
        }
    }

    /// Geometry of the device.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Counters since the device was created.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Counts of programmed pages, erased blocks and retired blocks.
    pub fn wear(&self) -> Wear {
        self.nand.wear()
    }

    /// Mapped blocks. Unit: slots.
    pub fn mapped(&self) -> u64 {
        self.map.mapped()
    }

    /// Memory use of the map. Unit: bytes.
    pub fn map_bytes(&self) -> u64 {
        self.map.bytes()
    }

    /// Latencies of read commands.
    pub fn read_times(&self) -> &Histogram {
        &self.read_times
    }

    /// Latencies of write commands.
    pub fn write_times(&self) -> &Histogram {
        &self.write_times
    }

    /// Time at which all dies are idle.
    pub fn idle_at(&self) -> Nanos {
        let free = (0..self.geometry.luns()).map(|l| self.clock.lun_free(l));
        free.max().unwrap_or_default()
    }

    /// Occupies the firmware for a command with `get` look-ups and `set` changes, and for due map
    /// maintenance. `earned` is the number of blocks that pay for maintenance. Writes pay, because
    /// a log writes as many blocks as it discards. Discards do not, because they come in bursts and
    /// delay the host.
    fn firmware(&mut self, now: Nanos, get: u64, set: u64, earned: u64) -> Nanos {
        let mut entries = 0;
        if self.at_once {
            if now >= self.next_upkeep {
                self.next_upkeep = now + self.cleaning.map_period;
                entries = self.map.maintain_all();
            }
        } else {
            // A command over many blocks pays as much as the same number of single-block commands.
            for _ in 0..earned.min(64) {
                entries += self.map.maintain();
            }
        }
        let upkeep = self.timing.map_entry.times(entries);
        let c = &mut self.counters;
        c.map_entries += entries;
        c.map_stall_max = c.map_stall_max.max(upkeep);
        c.map_bytes_max = c.map_bytes_max.max(self.map.bytes());
        let own = self.timing.map_get.times(get) + self.timing.map_set.times(set);
        self.clock.firmware(now, self.timing.command + own + upkeep)
    }

    /// Writes consecutive blocks from `lba` in a stream. Returns the time of acknowledgement, at
    /// which the data is durable.
    pub fn write(
        &mut self,
        now: Nanos,
        lba: Lba,
        data: Vec<Payload>,
        stream: u32,
    ) -> Result<Nanos> {
        let count = data.len() as u64;
        let stream = (stream as usize).min(self.next_lun.len() - 1);
        let mut at = self.firmware(now, 0, count, count);
        at = self.clock.link(at, count);
        for (i, payload) in data.into_iter().enumerate() {
            at = self.buffer_room(at);
            let lba = Lba(lba.0 + i as u64);
            // A full device accepts only overwrites of mapped blocks.
            if self.map.mapped() >= self.geometry.exported_slots && self.map.get(lba).is_none() {
                let exported = self.geometry.exported_slots;
                return Err(Error::Full { exported });
            }
            self.stage_host(at, lba, payload, stream)?;
            self.counters.host_slots += 1;
        }
        let done = at + self.timing.write_latency + self.timing.write_latency_slot.times(count);
        self.write_times.add(done - now);
        Ok(done)
    }

    /// Reads consecutive blocks from `lba`, with `None` for unmapped ones. Returns the time at
    /// which the last block has arrived.
    pub fn read(
        &mut self,
        now: Nanos,
        lba: Lba,
        count: u64,
    ) -> Result<(Nanos, Vec<Option<Payload>>)> {
        let start = self.firmware(now, count, 0, 1) + self.timing.read_latency;
        let number = self.host_reads;
        self.host_reads += 1;
        self.counters.read_slots += count;
        let mut out = Vec::with_capacity(count as usize);
        let mut end = start;
        let mut page: Option<(Slot, u32)> = None;
        for lba in (lba.0..lba.0 + count).map(Lba) {
            let Some(slot) = self.map.get(lba) else {
                out.push(None);
                continue;
            };
            if let Some(payload) = self.staged(slot) {
                out.push(Some(payload));
                continue;
            }
            if self.nand.read_fails(number) {
                return Err(Error::Uncorrectable { lba, slot });
            }
            let (owner, payload) = self.nand.read(slot)?;
            assert_eq!(owner, lba, "the spare area names another block");
            out.push(Some(payload.clone()));
            // Consecutive slots of one page are sensed together.
            let first = Slot(slot.0 - slot.0 % self.geometry.slots_per_page);
            match &mut page {
                Some((open, slots)) if *open == first => *slots += 1,
                _ => {
                    end = end.max(self.sense(start, page));
                    page = Some((first, 1));
                }
            }
        }
        end = end.max(self.sense(start, page));
        let done = self.clock.link(end, count);
        self.read_times.add(done - now);
        Ok((done, out))
    }

    /// Reads `slots` slots of one page from its die and returns the end of the transfer.
    fn sense(&mut self, now: Nanos, page: Option<(Slot, u32)>) -> Nanos {
        page.map_or(now, |(slot, slots)| {
            let lun = self.geometry.lun_of(self.geometry.block_of(slot));
            self.clock.read(lun, now, slots)
        })
    }

    /// Unmaps blocks. Returns the time of acknowledgement, at which the discard has taken effect.
    pub fn discard(&mut self, now: Nanos, blocks: Range<u64>) -> Result<Nanos> {
        let mut freed = 0;
        let (geometry, valid) = (self.geometry, &mut self.valid);
        self.map.clear(blocks, &mut |slot| {
            valid[geometry.block_of(slot).0 as usize] -= 1;
            freed += 1;
        });
        self.counters.discards += 1;
        self.counters.discarded_slots += freed;
        Ok(self.firmware(now, 0, freed, 0))
    }

    /// Returns the completion time of a flush. Acknowledged writes are durable already, so it only
    /// costs time.
    pub fn flush(&mut self, now: Nanos) -> Nanos {
        self.firmware(now, 0, 0, 1) + self.timing.flush
    }

    /// Waits until the write buffer has room for one more slot.
    fn buffer_room(&mut self, mut at: Nanos) -> Nanos {
        while let Some(Reverse((when, slots))) = self.releases.peek().copied() {
            let full = self.buffered >= self.timing.buffer_slots;
            if when > at && !full {
                break;
            }
            at = at.max(when);
            self.buffered -= slots;
            self.releases.pop();
        }
        at
    }

    /// Content of a slot that is not yet programmed.
    fn staged(&self, slot: Slot) -> Option<Payload> {
        let block = self.geometry.block_of(slot);
        let lun = &self.luns[self.geometry.lun_of(block) as usize];
        let open = lun.open.iter().flatten().find(|f| f.block == block)?;
        if self.geometry.page_of(slot) != open.page {
            return None;
        }
        let staged = open
            .staged
            .get((slot.0 % self.geometry.slots_per_page) as usize)?;
        staged.as_ref().map(|(_, payload)| payload.clone())
    }

    fn stage_host(&mut self, now: Nanos, lba: Lba, payload: Payload, stream: usize) -> Result<()> {
        let lun = self.open_any(now, stream)?;
        self.buffered += 1;
        if self.stage(now, lun, stream, lba, payload, 1)? {
            // The page is being programmed: the next one uses another LUN, and this LUN may have to
            // clean.
            self.clean_some(now, lun)?;
            self.next_lun[stream] = self.choose(now, lun);
        }
        Ok(())
    }

    /// Selects the LUN for the page that follows one on `lun`.
    fn choose(&self, now: Nanos, lun: u32) -> u32 {
        let luns = self.geometry.luns();
        let turn = (1..=luns).map(|i| (lun + i) % luns);
        let first = match self.striping {
            Striping::LeastBusy => turn.min_by_key(|l| self.clock.lun_free(*l).since(now)),
            Striping::InTurn => turn.take(1).next(),
        };
        first.unwrap_or(lun)
    }

    /// Opens a page on the selected LUN, or on the next one that has room. Discards may free space
    /// on a single LUN only.
    fn open_any(&mut self, now: Nanos, stream: usize) -> Result<u32> {
        for _ in 0..self.geometry.luns() {
            let lun = self.next_lun[stream];
            match self.open(now, lun, stream) {
                Ok(()) => return Ok(lun),
                Err(Error::WornOut { .. }) => {
                    self.next_lun[stream] = (lun + 1) % self.geometry.luns();
                }
                Err(e) => return Err(e),
            }
        }
        Err(self.worn_out())
    }

    /// Assigns a block to the next slot of the open page. Returns true if this filled the page.
    fn stage(
        &mut self,
        now: Nanos,
        lun: u32,
        stream: usize,
        lba: Lba,
        payload: Payload,
        buffered: u32,
    ) -> Result<bool> {
        self.open(now, lun, stream)?;
        let (geometry, host) = (self.geometry, stream < self.next_lun.len());
        let Some(open) = &mut self.luns[lun as usize].open[stream] else {
            return Err(self.worn_out());
        };
        let slot = Slot(geometry.page_start(open.block, open.page).0 + open.staged.len() as u32);
        let old = match self.map.set(lba, slot) {
            Ok(old) => old,
            Err(why) => {
                self.buffered -= buffered;
                return Err(Error::OutOfRange { lba, why });
            }
        };
        self.valid[open.block.0 as usize] += 1;
        open.staged.push(Some((lba, payload)));
        open.buffered += buffered;
        let full = open.staged.len() == geometry.slots_per_page as usize;
        if let Some(old) = old {
            self.valid[geometry.block_of(old).0 as usize] -= 1;
        }
        self.counters.moved_slots += u64::from(!host);
        if full {
            self.program(now, lun, stream)?;
        }
        Ok(full)
    }

    /// Ensures that a stream has an open page on a LUN.
    fn open(&mut self, now: Nanos, lun: u32, stream: usize) -> Result<()> {
        if self.luns[lun as usize].open[stream].is_some() {
            return Ok(());
        }
        let host = stream < self.next_lun.len();
        if host {
            // The last erased block is reserved for cleaning.
            while self.luns[lun as usize].free.len() <= 1 {
                self.clean_page(now, lun)?;
            }
        }
        let Some(block) = self.luns[lun as usize].free.pop_front() else {
            return Err(self.worn_out());
        };
        self.luns[lun as usize].open[stream] = Some(Frontier {
            block,
            page: 0,
            staged: Vec::new(),
            buffered: 0,
        });
        Ok(())
    }

    fn worn_out(&self) -> Error {
        Error::WornOut {
            retired: self.nand.wear().retired,
        }
    }

    /// Programs the full page of a stream.
    fn program(&mut self, now: Nanos, lun: u32, stream: usize) -> Result<()> {
        let Some(mut open) = self.luns[lun as usize].open[stream].take() else {
            return Ok(());
        };
        let content = std::mem::take(&mut open.staged);
        let spare = content.clone();
        let done = self.clock.program(lun, now);
        if !self.nand.program(open.block, open.page, content)? {
            return self.failed_program(now, lun, stream, open, spare);
        }
        if open.buffered > 0 {
            self.releases.push(Reverse((done, open.buffered)));
        }
        open.buffered = 0;
        open.page += 1;
        if open.page < self.geometry.pages_per_block {
            self.luns[lun as usize].open[stream] = Some(open);
        }
        Ok(())
    }

    /// Handles a program failure: rewrites the page and the valid slots of its block elsewhere and
    /// retires the block.
    fn failed_program(
        &mut self,
        now: Nanos,
        lun: u32,
        stream: usize,
        open: Frontier,
        spare: Vec<Staged>,
    ) -> Result<()> {
        self.luns[lun as usize].failing.push(open.block);
        // The content stays in the write buffer until it is programmed elsewhere.
        let mut buffered = open.buffered;
        let first = self.geometry.page_start(open.block, open.page).0;
        for (i, staged) in spare.into_iter().enumerate() {
            let Some((lba, payload)) = staged else {
                continue;
            };
            if self.map.get(lba) == Some(Slot(first + i as u32)) {
                self.stage(now, lun, stream, lba, payload, buffered.min(1))?;
                buffered -= buffered.min(1);
            }
        }
        self.buffered -= buffered;
        for page in 0..open.page {
            self.move_page(now, lun, open.block, page)?;
        }
        assert_eq!(self.valid[open.block.0 as usize], 0, "{:?}", open.block);
        self.luns[lun as usize].failing.retain(|b| *b != open.block);
        Ok(self.nand.retire(open.block)?)
    }

    /// Selects the victim: the full block of a LUN with the fewest valid slots, the least worn
    /// among equals.
    fn pick(&self, lun: u32) -> Option<EraseBlock> {
        let first = lun * self.geometry.blocks_per_lun;
        let failing = &self.luns[lun as usize].failing;
        (first..first + self.geometry.blocks_per_lun)
            .map(EraseBlock)
            .filter(|b| self.nand.state(*b) == BlockState::Full && !failing.contains(b))
            .min_by_key(|b| (self.valid[b.0 as usize], self.nand.erase_count(*b), b.0))
            .filter(|b| self.valid[b.0 as usize] < self.geometry.slots_per_block())
    }

    /// Performs the share of cleaning that one programmed host page has to pay for.
    fn clean_some(&mut self, now: Nanos, lun: u32) -> Result<()> {
        let free = self.luns[lun as usize].free.len() as u32;
        if self.luns[lun as usize].victim.is_none() && free > self.cleaning.low {
            return Ok(());
        }
        if self.luns[lun as usize].victim.is_none() {
            let Some(block) = self.pick(lun) else {
                return Ok(());
            };
            self.luns[lun as usize].victim = Some((block, 0));
        }
        let Some((block, _)) = self.luns[lun as usize].victim else {
            return Ok(());
        };
        let pages = self.geometry.pages_per_block;
        let kept = self.valid[block.0 as usize].div_ceil(self.geometry.slots_per_page);
        // Cleaning must end before the pages reclaimed from the victim are used up.
        let steps = pages.div_ceil((pages - kept.min(pages - 1)).max(1));
        for _ in 0..steps {
            if !self.clean_page(now, lun)? {
                break;
            }
        }
        Ok(())
    }

    /// Moves the victim's next page with valid slots, or erases the victim after its last one.
    /// Returns false once the victim is erased.
    fn clean_page(&mut self, now: Nanos, lun: u32) -> Result<bool> {
        if self.luns[lun as usize].victim.is_none() {
            let Some(block) = self.pick(lun) else {
                return Err(self.worn_out());
            };
            self.luns[lun as usize].victim = Some((block, 0));
        }
        let Some((block, mut page)) = self.luns[lun as usize].victim else {
            return Ok(false);
        };
        while page < self.geometry.pages_per_block && self.valid[block.0 as usize] > 0 {
            let moved = self.move_page(now, lun, block, page)?;
            page += 1;
            if moved > 0 {
                self.luns[lun as usize].victim = Some((block, page));
                return Ok(true);
            }
        }
        self.luns[lun as usize].victim = None;
        self.counters.cleaned_blocks += 1;
        self.clock.erase(lun, now);
        if self.nand.erase(block)? {
            self.luns[lun as usize].free.push_back(block);
        }
        Ok(false)
    }

    /// Moves the valid slots of a page to the cleaning stream of its LUN and returns their number.
    fn move_page(&mut self, now: Nanos, lun: u32, block: EraseBlock, page: u32) -> Result<u32> {
        let first = self.geometry.page_start(block, page);
        let mut found: Vec<(Lba, Payload)> = Vec::new();
        for slot in (first.0..first.0 + self.geometry.slots_per_page).map(Slot) {
            // Padding has no owner.
            let Ok((lba, payload)) = self.nand.read(slot) else {
                continue;
            };
            if self.map.get(lba) == Some(slot) {
                found.push((lba, payload.clone()));
            }
        }
        if found.is_empty() {
            return Ok(0);
        }
        let count = found.len() as u32;
        self.clock.read(lun, now, count);
        let cleaning = self.next_lun.len();
        for (lba, payload) in found {
            self.stage(now, lun, cleaning, lba, payload, 0)?;
        }
        Ok(count)
    }

    /// Panics if the state of the device is inconsistent. For tests: examines every block.
    pub fn assert_sound(&self) {
        self.map.assert_sound();
        let mut valid = vec![0; self.valid.len()];
        self.map.each(&mut |lba, slot| {
            valid[self.geometry.block_of(slot).0 as usize] += 1;
            if self.staged(slot).is_none() {
                let owner = self.nand.read(slot).map(|(owner, _)| owner);
                assert_eq!(owner, Ok(lba), "owner of {slot:?}");
            }
        });
        assert_eq!(valid, self.valid, "valid slots of the erase blocks");
        assert!(self.map.mapped() <= self.geometry.exported_slots);
        let mut staged = 0;
        for (l, lun) in self.luns.iter().enumerate() {
            for block in &lun.free {
                assert_eq!(
                    self.nand.state(*block),
                    BlockState::Erased,
                    "free {block:?}"
                );
                assert_eq!(self.valid[block.0 as usize], 0, "free {block:?}");
            }
            for open in lun.open.iter().flatten() {
                assert_eq!(self.geometry.lun_of(open.block), l as u32);
                let next = match self.nand.state(open.block) {
                    BlockState::Erased => 0,
                    BlockState::Open { next } => next,
                    state => panic!("open {:?} is {state:?}", open.block),
                };
                assert_eq!(open.page, next, "page of open {:?}", open.block);
                staged += open.buffered;
            }
        }
        let leaving: u32 = self.releases.iter().map(|Reverse((_, n))| n).sum();
        assert_eq!(leaving + staged, self.buffered, "slots in the write buffer");
    }
}
