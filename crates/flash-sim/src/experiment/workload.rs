//! Synthetic workloads, and the meter of their throughput and latency.

use crate::experiment::error::Result;
use crate::experiment::filesystem::{FileId, Fs};
use crate::experiment::random::{Rng, Zipf};
use crate::{Counters, Histogram, Nanos};
use std::collections::{BTreeMap, BTreeSet};

/// Measurements of one sampling interval, with running totals.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Sample {
    /// Total number of operations.
    pub ops: u64,
    /// Virtual time of the sample. Unit: seconds.
    pub seconds: f64,
    /// Operations per virtual second since the last sample.
    pub rate: f64,
    /// Write amplification of the device since the last sample.
    pub amplification: f64,
    /// Total blocks written to the device by the host.
    pub host_blocks: u64,
    /// Total blocks moved by the filesystem.
    pub moved_blocks: u64,
    /// Total blocks moved by the device.
    pub device_moved: u64,
    /// Memory use of the map. Unit: bytes.
    pub map_bytes: u64,
}

/// Measures operations in virtual time and samples them at a fixed number of operations.
pub struct Meter {
    per_sample: u64,
    ops: u64,
    last: (Nanos, u64, Counters),
    /// Latencies of all operations since the last [`restart`](Meter::restart).
    pub times: Histogram,
    /// All samples since the meter was created.
    pub samples: Vec<Sample>,
}

impl Meter {
    /// Creates a meter that starts at the current virtual time and samples every `per_sample`
    /// operations.
    pub fn new(fs: &dyn Fs, per_sample: u64) -> Self {
        let disk = fs.disk().lock();
        Self {
            per_sample: per_sample.max(1),
            ops: 0,
            last: (disk.now(), 0, disk.flash.counters()),
            times: Histogram::new(),
            samples: Vec::new(),
        }
    }

    /// Clears the latencies; the samples are kept.
    pub fn restart(&mut self) {
        self.times = Histogram::new();
    }

    /// Performs an operation, with `cpu` of host time, and returns its duration.
    pub fn op(
        &mut self,
        fs: &mut dyn Fs,
        cpu: Nanos,
        work: impl FnOnce(&mut dyn Fs) -> Result<()>,
    ) -> Result<Nanos> {
        let start = fs.disk().lock().now();
        work(fs)?;
        fs.disk().lock().spend(cpu)?;
        // A regular checkpoint delays all clients, including that of the current operation.
        fs.tick()?;
        let took = fs.disk().lock().now() - start;
        self.times.add(took);
        self.ops += 1;
        if self.ops.is_multiple_of(self.per_sample) {
            self.sample(fs);
        }
        Ok(took)
    }

    fn sample(&mut self, fs: &dyn Fs) {
        let disk = fs.disk().lock();
        let (now, counters) = (disk.now(), disk.flash.counters());
        let (before, ops, earlier) = &self.last;
        self.samples.push(Sample {
            ops: self.ops,
            seconds: now.seconds(),
            rate: (self.ops - ops) as f64 / (now - *before).seconds().max(1e-9),
            amplification: counters.since(earlier).write_amplification(),
            host_blocks: counters.host_slots,
            moved_blocks: fs.cleaned().moved_blocks,
            device_moved: counters.moved_slots,
            map_bytes: disk.flash.map_bytes(),
        });
        self.last = (now, self.ops, counters);
    }
}

/// Harmonic mean of the sample rates, which weights each sample by its duration.
pub fn mean_rate(samples: &[Sample]) -> f64 {
    let time: f64 = samples.iter().map(|s| 1.0 / s.rate).sum();
    samples.len() as f64 / time.max(1e-12)
}

/// Coefficient of variation: standard deviation of the rates divided by their mean.
pub fn variation(samples: &[Sample]) -> f64 {
    let n = samples.len().max(1) as f64;
    let mean = samples.iter().map(|s| s.rate).sum::<f64>() / n;
    let variance = samples.iter().map(|s| (s.rate - mean).powi(2)).sum::<f64>() / n;
    variance.sqrt() / mean.max(1e-12)
}

/// Rate of the last eighth divided by that of the preceding eighth; 1 in steady state.
pub fn drift(samples: &[Sample]) -> f64 {
    let n = samples.len();
    let eighth = (n / 8).max(1).min(n / 2);
    if eighth == 0 {
        return f64::NAN;
    }
    mean_rate(&samples[n - eighth..]) / mean_rate(&samples[n - 2 * eighth..n - eighth])
}

/// Random writes of single blocks to one file, as buffered fio `randwrite` with four jobs.
pub struct RandomWrite {
    file: FileId,
    blocks: u64,
    rng: Rng,
}

/// CPU time of a buffered write: 17 µs in the page cache, divided by four jobs.
const BUFFERED_WRITE: Nanos = Nanos(17_000 / 4);

impl RandomWrite {
    /// Creates a file of `blocks` blocks, all of them holes.
    pub fn new(fs: &mut dyn Fs, blocks: u64, seed: u64) -> Result<Self> {
        Ok(Self {
            file: fs.create()?,
            blocks,
            rng: Rng::new(seed),
        })
    }

    /// Writes one random block and returns the duration.
    pub fn step(&mut self, fs: &mut dyn Fs, meter: &mut Meter) -> Result<Nanos> {
        let index = self.rng.below(self.blocks);
        meter.op(fs, BUFFERED_WRITE, |fs| fs.write(self.file, index, 1))
    }
}

/// Creates, appends to, reads and deletes files, as filebench's fileserver.
pub struct FileServer {
    files: Vec<(FileId, u64)>,
    mean_blocks: u64,
    rng: Rng,
}

/// Largest size of an append. Unit: blocks; filebench's mean is 16 KiB.
const APPEND_BLOCKS: u64 = 4;

impl FileServer {
    /// Creates files of `mean_blocks` on average until they occupy `live_blocks`.
    pub fn new(fs: &mut dyn Fs, live_blocks: u64, mean_blocks: u64, seed: u64) -> Result<Self> {
        let mut server = Self {
            files: Vec::new(),
            mean_blocks,
            rng: Rng::new(seed),
        };
        let mut total = 0;
        // Files also grow by appends until they are deleted.
        while total < live_blocks {
            total += server.make(fs, live_blocks - total)?;
        }
        fs.sync()?;
        Ok(server)
    }

    /// Creates a file of at most `most` blocks and returns its size.
    fn make(&mut self, fs: &mut dyn Fs, most: u64) -> Result<u64> {
        // The sum of two uniform numbers replaces filebench's gamma distribution; the mean is the
        // same.
        let half = self.mean_blocks.max(2);
        let blocks = (self.rng.below(half) + self.rng.below(half) + 1).min(most.max(1));
        let file = fs.create()?;
        write_all(fs, file, 0, blocks)?;
        self.files.push((file, blocks));
        Ok(blocks)
    }

    /// Deletes a file, creates others in its place, appends to one and reads one completely.
    pub fn step(&mut self, fs: &mut dyn Fs, meter: &mut Meter) -> Result<()> {
        let pick = |rng: &mut Rng, n: usize| rng.below(n as u64) as usize;
        let gone = pick(&mut self.rng, self.files.len());
        let (file, blocks) = self.files.swap_remove(gone);
        meter.op(fs, Nanos::micros(2), |fs| fs.delete(file))?;
        let mut room = blocks;
        // New files and the append use as many blocks as the deleted file had, so the utilisation
        // is constant.
        let append = room.min(APPEND_BLOCKS).saturating_sub(1);
        room -= append;
        while room > 0 {
            let mut made = 0;
            meter.op(fs, Nanos::micros(5), |fs| {
                made = self.make(fs, room)?;
                Ok(())
            })?;
            room -= made;
        }
        if append > 0 {
            let i = pick(&mut self.rng, self.files.len());
            let (file, blocks) = self.files[i];
            meter.op(fs, Nanos::micros(2), |fs| fs.write(file, blocks, append))?;
            self.files[i].1 += append;
        }
        let i = pick(&mut self.rng, self.files.len());
        let (file, blocks) = self.files[i];
        meter.op(fs, Nanos::micros(5), |fs| fs.read(file, 0, blocks))?;
        Ok(())
    }
}

/// Writes the blocks `from..to` in steps of 1 MiB.
fn write_all(fs: &mut dyn Fs, file: FileId, from: u64, to: u64) -> Result<()> {
    for at in (from..to).step_by(256) {
        fs.write(file, at, (to - at).min(256))?;
    }
    Ok(())
}

/// Query mix of a database.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Queries {
    /// YCSB: each query uses one page, chosen by a Zipf distribution of skew 0.99. Each update
    /// commits.
    Ycsb {
        /// Fraction of updates, 0 to 1.
        updates: f64,
    },
    /// TPC-C-like: a transaction uses ten pages, seven of ten in a tenth of the database. It
    /// changes six and commits once.
    TpcC,
}

/// Outcome of a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The query changed a page.
    pub update: bool,
    /// The query read from the filesystem or committed to it.
    pub needed_fs: bool,
    /// Duration of the query without waiting for other clients.
    pub took: Nanos,
}

/// Blocks of a database page of 16 KiB.
const PAGE: u64 = 4;
/// Pages flushed in one batch through the double-write file.
const FLUSH: usize = 16;

/// Database model with a buffer pool, a redo log that commits each change, and a double-write file,
/// as InnoDB.
pub struct Database {
    data: FileId,
    log: FileId,
    double_write: FileId,
    pages: u64,
    log_blocks: u64,
    log_at: u64,
    queries: Queries,
    zipf: Zipf,
    rng: Rng,
    pool: usize,
    /// Pages in the pool by last use. `used` holds the time of last use by page.
    by_use: BTreeMap<u64, u64>,
    used: BTreeMap<u64, u64>,
    dirty: BTreeSet<u64>,
    clock: u64,
}

impl Database {
    /// Creates a database of `blocks` written blocks and a buffer pool of `pool_share` of its
    /// pages.
    pub fn new(
        fs: &mut dyn Fs,
        blocks: u64,
        pool_share: f64,
        queries: Queries,
        seed: u64,
    ) -> Result<Self> {
        let log_blocks = (blocks / 100).max(64);
        let pages = (blocks - log_blocks - FLUSH as u64 * PAGE) / PAGE;
        let (data, log, double_write) = (fs.create()?, fs.create()?, fs.create()?);
        write_all(fs, data, 0, pages * PAGE)?;
        write_all(fs, log, 0, log_blocks)?;
        write_all(fs, double_write, 0, FLUSH as u64 * PAGE)?;
        fs.sync()?;
        Ok(Self {
            data,
            log,
            double_write,
            pages,
            log_blocks,
            log_at: 0,
            queries,
            zipf: Zipf::new(pages, 0.99),
            rng: Rng::new(seed),
            pool: ((pages as f64 * pool_share) as usize).max(2 * FLUSH),
            by_use: BTreeMap::new(),
            used: BTreeMap::new(),
            dirty: BTreeSet::new(),
            clock: 0,
        })
    }

    /// Performs one query of the mix.
    pub fn step(&mut self, fs: &mut dyn Fs, meter: &mut Meter) -> Result<Answer> {
        let cpu = Nanos::micros(20);
        match self.queries {
            Queries::Ycsb { updates } => {
                let page = self.zipf.draw(&mut self.rng);
                let change = self.rng.unit() < updates;
                let needed_fs = change || !self.used.contains_key(&page);
                let took = meter.op(fs, cpu, |fs| {
                    self.touch(fs, page, change)?;
                    if change { self.commit(fs) } else { Ok(()) }
                })?;
                Ok(Answer {
                    update: change,
                    needed_fs,
                    took,
                })
            }
            Queries::TpcC => {
                let took = meter.op(fs, cpu.times(10), |fs| {
                    for i in 0..10 {
                        let range = if self.rng.below(10) < 7 {
                            self.pages / 10
                        } else {
                            self.pages
                        };
                        let page = self.rng.below(range.max(1));
                        self.touch(fs, page, i < 6)?;
                    }
                    self.commit(fs)
                })?;
                Ok(Answer {
                    update: true,
                    needed_fs: true,
                    took,
                })
            }
        }
    }

    /// Loads a page into the pool and marks it dirty if `change` is set.
    fn touch(&mut self, fs: &mut dyn Fs, page: u64, change: bool) -> Result<()> {
        self.clock += 1;
        if let Some(last) = self.used.insert(page, self.clock) {
            self.by_use.remove(&last);
        } else {
            if self.used.len() > self.pool {
                self.evict(fs)?;
            }
            fs.read(self.data, page * PAGE, PAGE)?;
        }
        self.by_use.insert(self.clock, page);
        if change {
            self.dirty.insert(page);
        }
        Ok(())
    }

    /// Evicts the least recently used page. If it is dirty, a batch of the oldest dirty pages is
    /// flushed first.
    fn evict(&mut self, fs: &mut dyn Fs) -> Result<()> {
        let oldest = self.by_use.first_key_value().map(|(_, page)| *page);
        if oldest.is_some_and(|page| self.dirty.contains(&page)) {
            let old = self.by_use.values().filter(|p| self.dirty.contains(p));
            let mut batch: Vec<u64> = old.take(FLUSH).copied().collect();
            batch.sort_unstable();
            fs.write(self.double_write, 0, batch.len() as u64 * PAGE)?;
            fs.fsync(self.double_write)?;
            for page in &batch {
                fs.write(self.data, page * PAGE, PAGE)?;
                self.dirty.remove(page);
            }
            fs.fsync(self.data)?;
        }
        if let Some((_, page)) = self.by_use.pop_first() {
            self.used.remove(&page);
        }
        Ok(())
    }

    fn commit(&mut self, fs: &mut dyn Fs) -> Result<()> {
        fs.write(self.log, self.log_at, 1)?;
        // A log block holds about eight records.
        if self.rng.below(8) == 0 {
            self.log_at = (self.log_at + 1) % self.log_blocks;
        }
        fs.fsync(self.log)
    }
}
