//! The device: commands in, slots assigned, pages programmed, dead blocks cleaned.
//!
//! A write is mapped when it arrives: its slots are the next ones of the open page of its stream. A page is programmed when it is
//! full. Until then its content is in the write buffer, which survives a loss of power.
//!
//! Cleaning is greedy and works inside one LUN: the full block with the fewest valid slots gives its valid slots to the
//! LUN's cleaning stream and is erased. It is paced: while a LUN is short of erased blocks, every page the host programs there
//! moves as many pages of the victim as are needed to be done when the gain is used up.

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

/// When cleaning starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cleaning {
    /// Erased blocks of a LUN at which it starts to clean.
    pub low: u32,
    /// How often the whole map is tidied at once, if its compaction is of that kind.
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

/// Where the next page of a stream goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Striping {
    /// To the LUN that is free first, the next one in turn among equals.
    LeastBusy,
    /// To the next one in turn, always: so many pages fill one block of every LUN exactly, as a zone wants it.
    InTurn,
}

/// How a device is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Its shape.
    pub geometry: Geometry,
    /// How long everything takes.
    pub timing: Timing,
    /// Streams of the host that are kept in separate blocks.
    pub streams: u32,
    /// When cleaning starts.
    pub cleaning: Cleaning,
    /// Where the next page of a stream goes.
    pub striping: Striping,
    /// The interval map to use; `None` for a page map over what is exported.
    pub interval: Option<Interval>,
    /// What is to fail.
    pub faults: Faults,
}

impl Config {
    /// The same device with an interval map; its look-ups and changes take as much longer as was published, 1.88 and 3.3 times.
    pub fn with_interval(mut self, interval: Interval) -> Self {
        self.timing.map_get = Nanos(self.timing.map_get.0 * 188 / 100);
        self.timing.map_set = Nanos(self.timing.map_set.0 * 330 / 100);
        self.interval = Some(interval);
        self
    }
}

/// What happened since the device was made.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Blocks the host wrote. Unit: slots.
    pub host_slots: u64,
    /// Blocks that cleaning wrote again. Unit: slots.
    pub moved_slots: u64,
    /// Blocks the host read, holes included. Unit: slots.
    pub read_slots: u64,
    /// Discard commands.
    pub discards: u64,
    /// Blocks that discards unmapped. Unit: slots.
    pub discarded_slots: u64,
    /// Blocks cleaned.
    pub cleaned_blocks: u64,
    /// Entries that the map moved or looked at to tidy itself.
    pub map_entries: u64,
    /// Longest time the firmware was taken by one piece of that.
    pub map_stall_max: Nanos,
    /// Largest memory of the map seen at a command. Unit: bytes.
    pub map_bytes_max: u64,
}

impl Counters {
    /// Slots programmed for each slot the host wrote. 1 before anything was written.
    pub fn write_amplification(&self) -> f64 {
        (self.host_slots + self.moved_slots) as f64 / self.host_slots.max(1) as f64
    }

    /// What happened after `earlier`; the maxima are those of all time.
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

/// An open block of one stream on one LUN, and the page that is being filled.
struct Frontier {
    block: EraseBlock,
    page: u32,
    staged: Vec<Staged>,
    /// Slots of the staged page that wait in the write buffer.
    buffered: u32,
}

struct Lun {
    free: VecDeque<EraseBlock>,
    /// For each stream of the host, then the cleaning stream.
    open: Vec<Option<Frontier>>,
    /// Block being cleaned and the page to look at next.
    victim: Option<(EraseBlock, u32)>,
    /// Blocks that failed and are being emptied, to be retired.
    failing: Vec<EraseBlock>,
}

/// A flash device.
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
    /// Next LUN of each stream of the host.
    next_lun: Vec<u32>,
    /// When slots leave the write buffer.
    releases: BinaryHeap<Reverse<(Nanos, u32)>>,
    buffered: u32,
    next_upkeep: Nanos,
    host_reads: u64,
    counters: Counters,
    read_times: Histogram,
    write_times: Histogram,
}

impl Flash {
    /// A new device. Panics if its geometry makes none, or if an entry of its interval map covers more than a block: that is for
    /// the map alone.
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

    /// The shape of the device.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Pages programmed, blocks erased and retired.
    pub fn wear(&self) -> Wear {
        self.nand.wear()
    }

    /// Blocks mapped. Unit: slots.
    pub fn mapped(&self) -> u64 {
        self.map.mapped()
    }

    /// Memory that the map needs now. Unit: bytes.
    pub fn map_bytes(&self) -> u64 {
        self.map.bytes()
    }

    /// Times of read commands.
    pub fn read_times(&self) -> &Histogram {
        &self.read_times
    }

    /// Times of write commands.
    pub fn write_times(&self) -> &Histogram {
        &self.write_times
    }

    /// When the last die has nothing more to do.
    pub fn idle_at(&self) -> Nanos {
        let free = (0..self.geometry.luns()).map(|l| self.clock.lun_free(l));
        free.max().unwrap_or_default()
    }

    /// Takes the firmware for a command over `get` look-ups and `set` changes, and for upkeep of the map that is due. `earned` is the number of blocks
    /// that earn upkeep: written ones, because a log writes as many as it discards, but discards come in bursts, and somebody waits for their end.
    fn firmware(&mut self, now: Nanos, get: u64, set: u64, earned: u64) -> Nanos {
        let mut entries = 0;
        if self.at_once {
            if now >= self.next_upkeep {
                self.next_upkeep = now + self.cleaning.map_period;
                entries = self.map.maintain_all();
            }
        } else {
            // A command over many blocks earns as much as so many commands over one.
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

    /// Writes blocks from `lba` on, in one of the streams. Returns when the command is acknowledged; it is durable then.
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
            // Once all is mapped, only what is already mapped may be written.
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

    /// Reads blocks from `lba` on; `None` for what is not mapped. Returns when the last one has arrived.
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
            // Neighbours in one page are sensed together.
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

    /// Takes `slots` slots of one page off their die.
    fn sense(&mut self, now: Nanos, page: Option<(Slot, u32)>) -> Nanos {
        page.map_or(now, |(slot, slots)| {
            let lun = self.geometry.lun_of(self.geometry.block_of(slot));
            self.clock.read(lun, now, slots)
        })
    }

    /// Declares blocks dead. Returns when the command is acknowledged; it has taken effect then.
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

    /// Everything acknowledged is durable already; this is what a flush costs.
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

    /// Content of a slot that is not programmed yet.
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
            // The page is on its way: the next one goes to another LUN, and this one may have to clean.
            self.clean_some(now, lun)?;
            self.next_lun[stream] = self.choose(now, lun);
        }
        Ok(())
    }

    /// The LUN for the page after one that went to `lun`.
    fn choose(&self, now: Nanos, lun: u32) -> u32 {
        let luns = self.geometry.luns();
        let turn = (1..=luns).map(|i| (lun + i) % luns);
        let first = match self.striping {
            Striping::LeastBusy => turn.min_by_key(|l| self.clock.lun_free(*l).since(now)),
            Striping::InTurn => turn.take(1).next(),
        };
        first.unwrap_or(lun)
    }

    /// The LUN whose turn it is, or the next one that has room: what a host discards may all lie on one.
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

    /// Gives a block the next slot of an open page. True if that filled the page.
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

    /// Makes sure that a stream has an open page on a LUN.
    fn open(&mut self, now: Nanos, lun: u32, stream: usize) -> Result<()> {
        if self.luns[lun as usize].open[stream].is_some() {
            return Ok(());
        }
        let host = stream < self.next_lun.len();
        if host {
            // The last erased block is for cleaning.
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

    /// The page could not be programmed: its content goes to another block, so does what the block holds, and the block is retired.
    fn failed_program(
        &mut self,
        now: Nanos,
        lun: u32,
        stream: usize,
        open: Frontier,
        spare: Vec<Staged>,
    ) -> Result<()> {
        self.luns[lun as usize].failing.push(open.block);
        // It counts as buffered until it is programmed in its new place.
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

    /// The full block of a LUN with the fewest valid slots, the least worn of them.
    fn pick(&self, lun: u32) -> Option<EraseBlock> {
        let first = lun * self.geometry.blocks_per_lun;
        let failing = &self.luns[lun as usize].failing;
        (first..first + self.geometry.blocks_per_lun)
            .map(EraseBlock)
            .filter(|b| self.nand.state(*b) == BlockState::Full && !failing.contains(b))
            .min_by_key(|b| (self.valid[b.0 as usize], self.nand.erase_count(*b), b.0))
            .filter(|b| self.valid[b.0 as usize] < self.geometry.slots_per_block())
    }

    /// The share of a victim that one page of the host has to pay for.
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
        // Done when the pages that the victim gives are used up.
        let steps = pages.div_ceil((pages - kept.min(pages - 1)).max(1));
        for _ in 0..steps {
            if !self.clean_page(now, lun)? {
                break;
            }
        }
        Ok(())
    }

    /// Looks at the victim's next page that holds something, and erases the victim after the last. False when a victim is done.
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

    /// Gives the valid slots of a page to the cleaning stream of its LUN; returns how many.
    fn move_page(&mut self, now: Nanos, lun: u32, block: EraseBlock, page: u32) -> Result<u32> {
        let first = self.geometry.page_start(block, page);
        let mut found: Vec<(Lba, Payload)> = Vec::new();
        for slot in (first.0..first.0 + self.geometry.slots_per_page).map(Slot) {
            // Padding was never written for anybody.
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

    /// Panics if the device contradicts itself. Looks at everything; for tests.
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
