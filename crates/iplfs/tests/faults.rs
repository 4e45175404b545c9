//! Failing devices: one call of every kind fails, at every point of a run.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tuff_iplfs::backend::{MappedDevice, MemDevice};
use tuff_iplfs::{BlockAddr, BlockDevice, Error, FormatOptions, Geometry, MountOptions, Volume};
use tuff_iplfs_crash::model::{Model, difference, tree_of};
use tuff_iplfs_crash::verify::no_findings;
use tuff_iplfs_crash::workload::{Op, Persist, alphabet, at, base};
use tuff_testkit::Rng;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    Read,
    Write,
    Flush,
    Discard,
}

/// Device on which the n-th call of one kind fails, once.
struct Flaky {
    inner: Arc<MemDevice>,
    call: Call,
    countdown: AtomicI64,
}

impl Flaky {
    fn pass(&self, call: Call) -> io::Result<()> {
        if call == self.call && self.countdown.fetch_sub(1, Ordering::Relaxed) == 0 {
            return Err(io::Error::other("put in on purpose"));
        }
        Ok(())
    }

    fn has_failed(&self) -> bool {
        self.countdown.load(Ordering::Relaxed) < 0
    }
}

impl BlockDevice for Flaky {
    fn read(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()> {
        self.pass(Call::Read)?;
        self.inner.read(addr, buf)
    }
    fn write(&self, addr: BlockAddr, data: &[u8]) -> io::Result<()> {
        // A failed write leaves half of its blocks.
        if let Err(e) = self.pass(Call::Write) {
            self.inner.write(addr, &data[..data.len() / 8192 * 4096])?;
            return Err(e);
        }
        self.inner.write(addr, data)
    }
    fn flush(&self) -> io::Result<()> {
        self.pass(Call::Flush)
    }
    fn discard(&self, blocks: Range<u64>) -> io::Result<()> {
        self.pass(Call::Discard)?;
        self.inner.discard(blocks)
    }
    fn allocated(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        self.inner.allocated(blocks)
    }
    fn knows_allocated(&self) -> bool {
        true
    }
}

/// Size of the medium of a block map.
const MEDIUM: u64 = 8192;

/// Opens the device of the volume on a medium.
fn device_on(medium: Arc<dyn BlockDevice>, is_mapped: bool) -> Result<Arc<dyn BlockDevice>, Error> {
    if !is_mapped {
        return Ok(medium);
    }
    match MappedDevice::open(medium, MEDIUM) {
        Ok(device) => Ok(Arc::new(device.expect("the medium has a map"))),
        Err(e) => Err(Error::Io(e, "opening the block map".to_owned())),
    }
}

/// Runs random operations, of which failed ones must have no effect. Returns false once the fault lies past the end
/// of the run. With `is_mapped`, the fault is one of the medium below a block map.
fn run(call: Call, n: i64, seed: u64, is_mapped: bool) -> bool {
    let inner = Arc::new(MemDevice::new());
    let geometry = Geometry {
        area_bits: 29,
        section_bits: 8,
        zone_bits: 4,
        pack_blocks: 6,
    };
    let format = FormatOptions {
        geometry,
        reserve_blocks: 256,
        ..FormatOptions::new([3; 16], [5; 16], 4096)
    };
    if is_mapped {
        MappedDevice::create(inner.clone(), MEDIUM, [4; 16], &geometry).unwrap();
    }
    let sound = || device_on(inner.clone(), is_mapped).unwrap();
    Volume::format(sound(), &format).unwrap();
    let options = MountOptions {
        window_blocks: 512,
        journal_max: 8,
        node_cache_max: 8,
        ..MountOptions::default()
    };
    let mut v = Volume::mount(sound(), options.clone()).unwrap();
    let mut model = Model::default();
    for (now, op) in base().iter().enumerate() {
        op.volume(&mut v, now as i64).unwrap();
        assert!(op.model(&mut model, now as i64));
    }
    v.unmount().unwrap();

    let flaky = Arc::new(Flaky {
        inner: inner.clone(),
        call,
        countdown: AtomicI64::new(n),
    });
    let place = format!("{call:?} {n}, seed {seed}, block map: {is_mapped}");
    // The newest state known to be durable, and the current one.
    let mut durable = model.clone();
    // State with a snapshot whose last flush failed: it may or may not exist.
    let mut perhaps = model.clone();
    let mut rng = Rng::new(seed);
    let ops = alphabet();
    let device = device_on(flaky.clone(), is_mapped);
    if let Ok(mut v) = device.and_then(|device| Volume::mount(device, options.clone())) {
        for now in 100..140 {
            let op: &Op = &ops[rng.below(ops.len())];
            let persist = [Persist::None, Persist::Fsync, Persist::Sync][rng.below(3)];
            let mut next = model.clone();
            let possible = op.model(&mut next, now);
            let was_broken = v.is_broken();
            match op.volume(&mut v, now) {
                Ok(()) => model = if possible { next } else { model },
                Err(Error::Posix(_)) => {
                    assert!(!possible || v.is_broken(), "{place}: {op:?} is refused")
                }
                Err(e) => {
                    assert!(flaky.has_failed(), "{place}: {op:?}: {e}");
                    perhaps = if possible && !was_broken {
                        next
                    } else {
                        perhaps
                    };
                }
            }
            let result = match persist {
                Persist::Sync => v.sync(),
                Persist::Fsync => at(&mut v, op.target()).and_then(|ino| v.fsync(ino)),
                _ => Ok(()),
            };
            if persist == Persist::Sync && result.is_ok() {
                durable = model.clone();
            }
        }
        if !v.is_broken() {
            // The fault may hit this read. It occurs only once.
            let seen = tree_of(&mut v)
                .or_else(|_| tree_of(&mut v))
                .unwrap_or_else(|e| panic!("{place}: {e}"));
            assert_eq!(difference(&model.tree(), &seen), None, "{place}");
            if v.drain().is_ok() {
                durable = model.clone();
            }
        }
    }
    // In any case the next mount finds a sound volume.
    let mut v = Volume::mount(sound(), options).unwrap_or_else(|e| panic!("{place}: {e}"));
    let seen = tree_of(&mut v).unwrap_or_else(|e| panic!("{place}: {e}"));
    if durable == model && seen != perhaps.tree() {
        assert_eq!(
            difference(&model.tree(), &seen),
            None,
            "{place}, after the next mount"
        );
    }
    v.drain().unwrap();
    let leaked = v.trim().unwrap();
    v.unmount().unwrap();
    let report = no_findings(&sound(), &place);
    assert!(report.leaked.is_empty(), "{place}");
    assert_eq!(leaked, 0, "{place}: blocks leaked");
    flaky.has_failed()
}

fn every(call: Call) {
    for (seed, is_mapped) in [(0, false), (1, false), (2, false), (3, true)] {
        let mut n = 0;
        while run(call, n, seed, is_mapped) {
            n += 1;
        }
        println!("{call:?}, seed {seed}: {n} places");
        // A block map passes on few discards.
        assert!(n > 10 || call == Call::Discard && is_mapped);
    }
}

#[test]
fn a_failed_read_changes_nothing() {
    every(Call::Read);
}

#[test]
fn a_failed_write_loses_nothing_that_was_durable() {
    every(Call::Write);
}

#[test]
fn after_a_failed_flush_only_a_new_mount_is_trusted() {
    every(Call::Flush);
}

#[test]
fn a_failed_discard_is_retried() {
    every(Call::Discard);
}

/// A caller that waits for a checkpoint learns the result, even if another operation completed it.
#[test]
fn waiters_learn_that_the_seal_of_a_checkpoint_failed() {
    let inner = Arc::new(MemDevice::new());
    Volume::format(
        inner.clone(),
        &FormatOptions::new([3; 16], [5; 16], 1 << 16),
    )
    .unwrap();
    let flaky = Arc::new(Flaky {
        inner,
        call: Call::Write,
        countdown: AtomicI64::new(i64::MAX),
    });
    let mut v = Volume::mount(flaky.clone(), MountOptions::default()).unwrap();
    base()[0].volume(&mut v, 1).unwrap();

    let lost = v.begin_checkpoint().unwrap().unwrap();
    flaky.countdown.store(0, Ordering::Relaxed);
    assert!(v.sync().is_err());
    assert!(flaky.has_failed());
    assert!(v.seal_checkpoint(lost).is_err());
    assert!(v.end_checkpoint(lost).is_err());

    // Its changes become part of the next checkpoint.
    let next = v.begin_checkpoint().unwrap().unwrap();
    v.sync().unwrap();
    assert!(!v.seal_checkpoint(next).unwrap());
    v.end_checkpoint(next).unwrap();
}
