//! A flash device as a host sees it: a queue of commands in virtual time, and a place for discards to wait in.
//!
//! Writes are submitted and waited for only when the queue is full or something flushes; reads are waited for at once.
//! The host's own work is charged with [`Disk::spend`].

use crate::experiment::error::{Error, Result, failed};
use crate::{Config, Flash, Lba, Nanos, Payload, SLOT_BYTES};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tuff_iplfs::{BlockAddr, BlockDevice};

/// Blocks of the largest command.
const COMMAND_BLOCKS: usize = 32;
/// Commands under way at most.
const DEPTH: usize = 32;

/// When discards go to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Discards {
    /// When they are issued.
    Eager,
    /// As F2FS sends them: a few in a round, only after the device had nothing to do for a while. If `forced_above` blocks are
    /// mapped, they go in any case, because nothing else makes room.
    Idle {
        /// Commands in a round.
        round: usize,
        /// Time between rounds.
        interval: Nanos,
        /// Time without a command that counts as idle.
        idle: Nanos,
        /// Mapped blocks above which discards are sent whatever else is under way.
        forced_above: u64,
    },
    /// Dropped.
    Never,
}

/// Commands that the host sent.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Read commands.
    pub reads: u64,
    /// Blocks read.
    pub read_blocks: u64,
    /// Blocks written.
    pub written_blocks: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards that were sent while the device was idle.
    pub idle_discards: u64,
}

/// Ranges that wait to be discarded, disjoint, by start.
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

    /// What is written again must not be discarded any more.
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

/// The device and the host's side of it.
pub struct Disk {
    /// The device.
    pub flash: Flash,
    now: Nanos,
    under_way: BinaryHeap<Reverse<Nanos>>,
    policy: Discards,
    waiting: Waiting,
    next_round: Nanos,
    last_done: Nanos,
    /// What was sent.
    pub sent: Sent,
}

impl Disk {
    /// A new device.
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

    /// The present.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// The host works for a while, or waits.
    pub fn spend(&mut self, time: Nanos) -> Result<()> {
        self.now += time;
        self.polite()
    }

    /// Writes blocks from `lba` on, in a stream of the device.
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

    /// Reads blocks from `lba` on and waits for them.
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

    /// Reads several runs at once, as many as the queue takes, and waits for all.
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

    /// Waits for everything under way.
    pub fn wait(&mut self) {
        while let Some(Reverse(done)) = self.under_way.pop() {
            self.now = self.now.max(done);
        }
    }

    /// Waits for everything under way and flushes the device.
    pub fn flush(&mut self) -> Result<()> {
        self.wait();
        self.sent.flushes += 1;
        self.now = self.flash.flush(self.now);
        self.last_done = self.now;
        Ok(())
    }

    /// Declares blocks dead; what happens then is the policy's.
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

    /// A round of waiting discards, if the policy wants one now.
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

/// A disk that a volume and the one who watches it share.
#[derive(Clone)]
pub struct Shared {
    disk: Arc<Mutex<Disk>>,
    /// Bits of an address below the number of its stream.
    area_bits: u32,
}

impl Shared {
    /// Shares a disk. Streams are the areas of addresses with so many bits of offset.
    pub fn new(disk: Disk, area_bits: u32) -> Self {
        Self {
            disk: Arc::new(Mutex::new(disk)),
            area_bits,
        }
    }

    /// The disk, for as long as nobody else uses it.
    pub fn lock(&self) -> MutexGuard<'_, Disk> {
        // One thread uses a disk; if it panicked, nobody looks any more.
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
        let payloads = data.chunks_exact(SLOT_BYTES).map(Payload::of).collect();
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
    fn waiting_ranges_merge_and_are_cut() {
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
    fn a_polite_discard_waits_until_nobody_asks_for_anything() {
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
    fn a_full_device_makes_discards_go() {
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
    fn a_block_that_is_written_again_is_not_discarded() {
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
