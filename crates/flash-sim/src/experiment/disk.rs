//! Host side of the flash device: a command queue in virtual time and a queue of deferred discards.
//!
//! Writes are asynchronous until the queue is full or a flush is issued; reads are synchronous. CPU
//! time of the host is added with [`Disk::spend`].

use crate::experiment::error::{Error, Result, failed};
use crate::{Config, Flash, Lba, Nanos, Payload, SLOT_BYTES};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tuff_iplfs::{BlockAddr, BlockDevice};

/// Largest number of blocks in one command.
const COMMAND_BLOCKS: usize = 32;
/// Largest number of commands in flight.
const DEPTH: usize = 32;

/// Policy that decides when discards are sent to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Discards {
    /// Immediately when they are issued.
    Eager,
    /// In small batches after an idle period, as in F2FS. Above `forced_above` mapped blocks,
    /// discards are sent immediately, because nothing else frees space.
    Idle {
        /// Number of commands in a batch.
        round: usize,
        /// Minimum time between batches.
        interval: Nanos,
        /// Time without a command that counts as idle.
        idle: Nanos,
        /// Number of mapped blocks above which discards are sent immediately.
        forced_above: u64,
    },
    /// Discards are dropped and never reach the device.
    Never,
}

/// Counters of the commands sent to the device.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Number of read commands.
    pub reads: u64,
    /// Number of blocks read.
    pub read_blocks: u64,
    /// Number of blocks written.
    pub written_blocks: u64,
    /// Number of flush commands.
    pub flushes: u64,
    /// Number of discards sent while the device was idle.
    pub idle_discards: u64,
}

/// Deferred discards: disjoint ranges, as end by start.
#[derive(Default)]
struct Waiting(BTreeMap<u64, u64>);

impl Waiting {
    fn add(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&s, &e)) = self.0.range(..=start).next_back()
            && e >= start
        {
            (start, end) = (s, end.max(e));
        }
        while let Some((&s, &e)) = self.0.range(start..=end).next() {
            end = end.max(e);
            self.0.remove(&s);
        }
        self.0.insert(start, end);
    }

    /// Removes a range, because rewritten blocks must not be discarded.
    fn remove(&mut self, range: Range<u64>) {
        let before = self
            .0
            .range(..range.start)
            .next_back()
            .map(|(&s, &e)| (s, e));
        if let Some((s, e)) = before
            && e > range.start
        {
            self.0.insert(s, range.start);
            if e > range.end {
                self.0.insert(range.end, e);
            }
        }
        while let Some((&s, &e)) = self.0.range(range.clone()).next() {
            self.0.remove(&s);
            if e > range.end {
                self.0.insert(range.end, e);
            }
        }
    }
}

/// A flash device with the command queue and discard policy of its host.
pub struct Disk {
    /// The simulated device of the disk.
    pub flash: Flash,
    now: Nanos,
    under_way: BinaryHeap<Reverse<Nanos>>,
    policy: Discards,
    waiting: Waiting,
    next_round: Nanos,
    last_done: Nanos,
    /// Counters of the commands sent.
    pub sent: Sent,
}

impl Disk {
    /// Creates a disk on a new device.
    pub fn new(config: Config, policy: Discards) -> Self {
        Self {
            flash: Flash::new(config),
            now: Nanos(0),
            under_way: BinaryHeap::new(),
            policy,
            waiting: Waiting::default(),
            next_round: Nanos(0),
            last_done: Nanos(0),
            sent: Sent::default(),
        }
    }

    /// Returns the current virtual time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Advances the virtual time by CPU or idle time of the host.
    pub fn spend(&mut self, time: Nanos) -> Result<()> {
        self.now += time;
        self.polite()
    }

    /// Writes consecutive blocks from `lba` in a device stream.
    pub fn write(&mut self, lba: u64, mut data: Vec<Payload>, stream: u32) -> Result<()> {
        let count = data.len() as u64;
        self.waiting.remove(lba..lba + count);
        self.sent.written_blocks += count;
        let mut at = lba;
        while !data.is_empty() {
            let rest = data.split_off(data.len().min(COMMAND_BLOCKS));
            let part = std::mem::replace(&mut data, rest);
            let blocks = part.len() as u64;
            self.queue_room();
            let done = self.flash.write(self.now, Lba(at), part, stream);
            self.submitted(done.map_err(|e| failed("write", &e))?);
            at += blocks;
        }
        self.polite()
    }

    /// Reads consecutive blocks from `lba` and waits for completion.
    pub fn read(&mut self, lba: u64, count: u64) -> Result<Vec<Option<Payload>>> {
        self.sent.reads += 1;
        self.sent.read_blocks += count;
        let (done, data) = self
            .flash
            .read(self.now, Lba(lba), count)
            .map_err(|e| failed("read", &e))?;
        self.now = done;
        self.last_done = self.last_done.max(done);
        Ok(data)
    }

    /// Reads several ranges concurrently, limited by the queue depth, and waits for all.
    pub fn read_all(&mut self, runs: &[Range<u64>]) -> Result<()> {
        let mut last = self.now;
        for run in runs {
            self.queue_room();
            let count = run.end - run.start;
            self.sent.reads += 1;
            self.sent.read_blocks += count;
            let read = self.flash.read(self.now, Lba(run.start), count);
            let (done, _) = read.map_err(|e| failed("read", &e))?;
            self.submitted(done);
            last = last.max(done);
        }
        self.now = self.now.max(last);
        Ok(())
    }

    /// Waits for all commands in flight.
    pub fn wait(&mut self) {
        while let Some(Reverse(done)) = self.under_way.pop() {
            self.now = self.now.max(done);
        }
    }

    /// Waits for all commands in flight and flushes the device.
    pub fn flush(&mut self) -> Result<()> {
        self.wait();
        self.sent.flushes += 1;
        self.now = self.flash.flush(self.now);
        self.last_done = self.now;
        Ok(())
    }

    /// Discards blocks according to the policy.
    pub fn discard(&mut self, blocks: Range<u64>) -> Result<()> {
        match self.policy {
            Discards::Never => Ok(()),
            Discards::Eager => self.discard_now(blocks),
            Discards::Idle { .. } => {
                self.waiting.add(blocks);
                self.polite()
            }
        }
    }

    fn discard_now(&mut self, blocks: Range<u64>) -> Result<()> {
        self.queue_room();
        let done = self.flash.discard(self.now, blocks);
        self.submitted(done.map_err(|e| failed("discard", &e))?);
        Ok(())
    }

    /// Sends a batch of deferred discards if one is due.
    fn polite(&mut self) -> Result<()> {
        let Discards::Idle {
            round,
            interval,
            idle,
            forced_above,
        } = self.policy
        else {
            return Ok(());
        };
        while self.flash.mapped() > forced_above
            && let Some((start, end)) = self.waiting.0.pop_first()
        {
            self.discard_now(start..end)?;
        }
        if self.now < self.next_round || self.now.since(self.last_done) < idle {
            return Ok(());
        }
        self.next_round = self.now + interval;
        for _ in 0..round {
            let Some((start, end)) = self.waiting.0.pop_first() else {
                break;
            };
            self.sent.idle_discards += 1;
            let done = self.flash.discard(self.now, start..end);
            done.map_err(|e| failed("discard", &e))?;
        }
        Ok(())
    }

    fn queue_room(&mut self) {
        while self.under_way.len() >= DEPTH {
            if let Some(Reverse(done)) = self.under_way.pop() {
                self.now = self.now.max(done);
            }
        }
    }

    fn submitted(&mut self, done: Nanos) {
        self.last_done = self.last_done.max(done);
        self.under_way.push(Reverse(done));
    }
}

/// Handle of a disk shared by a filesystem and the measuring code.
#[derive(Clone)]
pub struct Shared {
    disk: Arc<Mutex<Disk>>,
    /// Position of the stream number in an address. Unit: bits.
    area_bits: u32,
}

impl Shared {
    /// Shares a disk. The address bits above `area_bits` select the stream.
    pub fn new(disk: Disk, area_bits: u32) -> Self {
        Self {
            disk: Arc::new(Mutex::new(disk)),
            area_bits,
        }
    }

    /// Locks the disk until the guard is dropped.
    pub fn lock(&self) -> MutexGuard<'_, Disk> {
        // A disk is used by one thread; a poisoned lock only follows its panic.
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn to_io(e: Error) -> io::Error {
    io::Error::other(e.to_string())
}

impl BlockDevice for Shared {
    fn read(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()> {
        let count = (buf.len() / SLOT_BYTES) as u64;
        let data = self.lock().read(addr.0, count).map_err(to_io)?;
        for (out, payload) in buf.chunks_exact_mut(SLOT_BYTES).zip(data) {
            match payload {
                Some(payload) => payload.copy_to(out),
                None => out.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, addr: BlockAddr, data: &[u8]) -> io::Result<()> {
        let payloads = data
            .chunks_exact(SLOT_BYTES)
            .map(Payload::from_bytes)
            .collect();
        let stream = (addr.0 >> self.area_bits) as u32;
        self.lock().write(addr.0, payloads, stream).map_err(to_io)
    }

    fn flush(&self) -> io::Result<()> {
        self.lock().flush().map_err(to_io)
    }

    fn discard(&self, blocks: Range<u64>) -> io::Result<()> {
        self.lock().discard(blocks).map_err(to_io)
    }

    fn allocated(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        Ok(vec![blocks])
    }

    fn knows_allocated(&self) -> bool {
        false
    }

    fn free_blocks(&self) -> io::Result<Option<u64>> {
        let disk = self.lock();
        let exported = disk.flash.geometry().exported_slots;
        Ok(Some(exported - disk.flash.mapped()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Preset;

    fn disk(policy: Discards) -> Disk {
        Disk::new(Preset::Nvme.config(1024), policy)
    }

    #[test]
    fn deferred_ranges_are_merged_and_split() {
        let mut w = Waiting::default();
        w.add(10..20);
        w.add(30..40);
        w.add(20..30);
        assert_eq!(w.0, [(10, 40)].into());
        w.remove(15..18);
        w.remove(38..50);
        assert_eq!(w.0, [(10, 15), (18, 38)].into());
        w.add(0..100);
        w.remove(0..100);
        assert!(w.0.is_empty());
    }

    #[test]
    fn an_idle_discard_waits_for_the_idle_time() {
        let idle = Nanos::millis(5);
        let mut d = disk(Discards::Idle {
            round: 8,
            interval: Nanos::millis(1),
            idle,
            forced_above: 1000,
        });
        d.write(0, vec![Payload::Fill(1); 100], 0).unwrap();
        d.discard(0..50).unwrap();
        d.write(100, vec![Payload::Fill(1); 10], 0).unwrap();
        assert_eq!(d.flash.mapped(), 110, "sent at once");
        d.spend(Nanos::millis(50)).unwrap();
        assert_eq!(d.flash.mapped(), 60, "not sent when idle");
        assert_eq!(d.sent.idle_discards, 1);
    }

    #[test]
    fn discards_are_forced_above_the_limit_of_mapped_blocks() {
        let policy = Discards::Idle {
            round: 8,
            interval: Nanos(0),
            idle: Nanos::millis(5),
            forced_above: 100,
        };
        let mut d = disk(policy);
        d.write(0, vec![Payload::Fill(1); 100], 0).unwrap();
        d.discard(0..50).unwrap();
        d.write(100, vec![Payload::Fill(1); 10], 0).unwrap();
        assert_eq!(d.flash.mapped(), 60);
    }

    #[test]
    fn a_rewritten_block_is_not_discarded() {
        let policy = Discards::Idle {
            round: 8,
            interval: Nanos(0),
            idle: Nanos(1),
            forced_above: 1000,
        };
        let mut d = disk(policy);
        d.write(0, vec![Payload::Fill(1); 4], 0).unwrap();
        d.discard(0..4).unwrap();
        d.write(1, vec![Payload::Fill(2)], 0).unwrap();
        d.spend(Nanos::millis(50)).unwrap();
        assert_eq!(d.read(1, 1).unwrap(), [Some(Payload::Fill(2))]);
        assert_eq!(d.flash.mapped(), 1);
    }
}
