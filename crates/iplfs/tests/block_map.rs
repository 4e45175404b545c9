//! Volumes over a block map, on a medium that is hardly larger than their content.

use std::collections::BTreeMap;
use std::sync::Arc;
use tuff_iplfs::backend::{Blocks, MappedDevice, MemDevice};
use tuff_iplfs::{
    BLOCK_SIZE, BlockAddr, BlockDevice, Caller, CheckOptions, Errno, Error, FormatOptions,
    MountOptions, Nid, Volume, check, mode,
};
use tuff_iplfs_crash::fixture::GEOMETRY;
use tuff_iplfs_crash::verify::{Unreadable, file_blocks, no_findings, no_wrong_bytes};
use tuff_iplfs_crash::{CrashDisk, Event, states};
use tuff_testkit::Rng;

/// Size of the medium. Unit: blocks.
const MEDIUM: u64 = 5120;

/// Opens the map on a medium.
fn open(medium: &Arc<MemDevice>) -> Arc<MappedDevice> {
    let device = MappedDevice::open(medium.clone(), MEDIUM).unwrap();
    Arc::new(device.expect("the medium has a map"))
}

/// Creates an empty volume that may take all of the medium.
fn create() -> Arc<MemDevice> {
    let medium = Arc::new(MemDevice::new());
    medium.set_capacity(Some(MEDIUM));
    let device = MappedDevice::create(medium.clone(), MEDIUM, [8; 16], &GEOMETRY).unwrap();
    let capacity = MappedDevice::capacity_on(MEDIUM, &GEOMETRY);
    let options = FormatOptions {
        geometry: GEOMETRY,
        reserve_blocks: 512,
        ..FormatOptions::new([3; 16], [5; 16], capacity)
    };
    Volume::format(Arc::new(device), &options).unwrap();
    medium
}

fn mount(medium: &Arc<MemDevice>) -> Volume {
    let options = MountOptions {
        dirty_pages_max: 64,
        window_blocks: 4096,
        ..MountOptions::default()
    };
    Volume::mount(open(medium), options).unwrap()
}

/// Creates a file of at most `max` blocks that hold their number, or until the volume is full. Returns its length.
fn fill(v: &mut Volume, name: &[u8], max: u64) -> (Nid, u64) {
    let caller = Caller::default();
    let ino = v
        .create(Nid::ROOT, name, mode::FILE | 0o644, 0, &caller)
        .unwrap()
        .ino;
    for index in 0..max {
        match v.write(ino, index * 4096, &block(index), caller.now) {
            Ok(_) => {}
            Err(Error::Posix(Errno::NoSpace)) => return (ino, index),
            Err(e) => panic!("block {index}: {e}"),
        }
    }
    (ino, max)
}

fn block(fill: u64) -> Vec<u8> {
    fill.to_le_bytes().repeat(BLOCK_SIZE / 8)
}

#[test]
fn a_volume_of_nine_tenths_takes_ten_times_its_size_in_random_overwrites() {
    let medium = create();
    let mut v = mount(&medium);
    let max = v.space().available() * 9 / 10;
    let (ino, blocks) = fill(&mut v, b"f", max);
    assert_eq!(blocks, max);
    assert!(blocks * 10 > MEDIUM * 7, "only {blocks} of {MEDIUM} blocks");
    let mut content: BTreeMap<u64, u64> = (0..blocks).map(|index| (index, index)).collect();
    let mut rng = Rng::new(4);
    for step in 0..blocks * 10 {
        let index = rng.below(blocks as usize) as u64;
        v.write(ino, index * 4096, &block(step), Caller::default().now)
            .unwrap_or_else(|e| panic!("overwrite {step}: {e}"));
        content.insert(index, step);
        match step % 4000 {
            1000 => v.fsync(ino).unwrap(),
            // Without an unmount, a power loss that loses nothing.
            2000 => {
                v.sync().unwrap();
                drop(v);
                v = mount(&medium);
            }
            3000 => {
                v.unmount().unwrap();
                let device: Arc<dyn BlockDevice> = open(&medium);
                no_findings(&device, &format!("after overwrite {step}"));
                v = mount(&medium);
            }
            _ => {}
        }
    }
    v.unmount().unwrap();
    let device: Arc<dyn BlockDevice> = open(&medium);
    let report = no_findings(&device, "at the end");
    assert_eq!(report.leaked, vec![0..0; 0]);
    drop(device);
    let mut v = mount(&medium);
    for (index, fill) in content {
        assert_eq!(v.read(ino, index * 4096, 4096).unwrap(), block(fill));
    }
    v.unlink(Nid::ROOT, b"f", &Caller::default()).unwrap();
    v.drain().unwrap();
    v.unmount().unwrap();
    // The medium keeps the metadata, and chunks with live blocks.
    let metadata = MEDIUM - MappedDevice::capacity_on(MEDIUM, &GEOMETRY);
    let held = medium.blocks().len() as u64;
    assert!(held < metadata + 6 * 256, "{held} blocks");
}

/// Volume with a file that was overwritten at random, and both journal and table in use.
fn worn() -> Blocks {
    let medium = create();
    let mut v = mount(&medium);
    let (ino, _) = fill(&mut v, b"f", 3000);
    let mut rng = Rng::new(9);
    for step in 0..600 {
        let index = rng.below(1000) as u64;
        v.write(ino, index * 4096, &block(step), Caller::default().now)
            .unwrap();
        if step % 20 == 0 {
            v.fsync(ino).unwrap();
        }
    }
    v.unmount().unwrap();
    medium.blocks()
}

fn copied(blocks: &Blocks) -> Arc<MemDevice> {
    Arc::new(MemDevice::from_blocks(blocks.clone()))
}

#[test]
fn every_damaged_block_of_headers_journal_and_table_has_a_copy() {
    let blocks = worn();
    let mut v = mount(&copied(&blocks));
    let before = file_blocks(&mut v, Unreadable::Panic);
    drop(v);
    let data = MappedDevice::capacity_on(MEDIUM, &GEOMETRY);
    // The fixed blocks have copies of their own.
    let first = 16 + GEOMETRY.fixed_end();
    let half = (MEDIUM - data - first - 2) / 2;
    let metadata = (0..2)
        .chain(first..first + half)
        .chain(first + half + data..MEDIUM - 2)
        .chain(MEDIUM - 1..MEDIUM);
    let mut found = 0;
    for at in metadata {
        let medium = copied(&blocks);
        let mut bytes = [0; BLOCK_SIZE];
        medium.read(BlockAddr(at), &mut bytes).unwrap();
        bytes[37] ^= 4;
        medium.write(BlockAddr(at), &bytes).unwrap();
        let device: Arc<dyn BlockDevice> = open(&medium);
        let report = check(&device, CheckOptions::default()).unwrap();
        assert!(
            report.findings.len() <= 1,
            "block {at}: {:?}",
            report.findings
        );
        found += report.findings.len();
        drop(device);
        let mut v = mount(&medium);
        let after = file_blocks(&mut v, Unreadable::Panic);
        assert_eq!(no_wrong_bytes(&before, &after, &format!("block {at}")), 0);
        v.unmount().unwrap();
        let device: Arc<dyn BlockDevice> = open(&medium);
        no_findings(&device, &format!("block {at}, after a mount"));
    }
    // Unused parts of the journal have no content to lose.
    assert!(found > 10, "{found} findings");
}

#[test]
fn a_page_that_lost_both_copies_loses_its_blocks_only() {
    let blocks = worn();
    let mut v = mount(&copied(&blocks));
    let before = file_blocks(&mut v, Unreadable::Panic);
    drop(v);
    let capacity = MappedDevice::capacity_on(MEDIUM, &GEOMETRY);
    let is_page = |block: &[u8]| block.starts_with(b"TMAP");
    let pages: Vec<u64> = blocks
        .iter()
        .filter(|(_, block)| is_page(&block[..]))
        .map(|(at, _)| *at)
        .collect();
    assert_eq!(pages.len() as u64, 2 * capacity.div_ceil(509));
    let medium = copied(&blocks);
    // The last page: the superblocks, and the first blocks of the volume, lie elsewhere.
    for at in [pages[pages.len() / 2 - 1], pages[pages.len() - 1]] {
        medium.write(BlockAddr(at), &[7; BLOCK_SIZE]).unwrap();
    }
    let device: Arc<dyn BlockDevice> = open(&medium);
    let report = check(&device, CheckOptions::default()).unwrap();
    assert!(!report.findings.is_empty());
    tuff_iplfs::repair(&device, true, Caller::default().now).unwrap();
    drop(device);
    let device: Arc<dyn BlockDevice> = open(&medium);
    no_findings(&device, "after the repair");
    drop(device);
    let mut v = mount(&medium);
    let after = file_blocks(&mut v, Unreadable::Panic);
    no_wrong_bytes(&before, &after, "after the repair");
}

#[test]
fn a_full_volume_can_be_emptied() {
    let medium = create();
    let mut v = mount(&medium);
    fill(&mut v, b"f", u64::MAX);
    v.sync().unwrap();
    v.unlink(Nid::ROOT, b"f", &Caller::default()).unwrap();
    v.drain().unwrap();
    let (_, blocks) = fill(&mut v, b"g", u64::MAX);
    assert!(blocks * 10 > MEDIUM * 8, "only {blocks} of {MEDIUM} blocks");
    v.unmount().unwrap();
}

#[test]
fn the_same_calls_leave_the_same_bytes() {
    assert!(worn() == worn());
}

/// Use of an address, by positions in the record of the medium.
struct Use {
    addr: u64,
    fill: u64,
    /// Start and end of the write, `None` if it was durable before.
    write: Option<(usize, usize)>,
    /// Start and end of the discard.
    discard: Option<(usize, usize)>,
}

/// Size of a medium so small that blocks are soon used again. Unit: blocks.
const TINY: u64 = 340;

/// Writes, discards and flushes at random. Returns what was done, and the start and end of every flush.
fn exercise(
    disk: &Arc<CrashDisk>,
    next: &mut [u64; 6],
    kept: &[(u64, u64)],
    rng: &mut Rng,
) -> (Vec<Use>, Vec<(usize, usize)>) {
    let device = MappedDevice::open(disk.clone(), TINY).unwrap().unwrap();
    let mut uses: Vec<Use> = kept
        .iter()
        .map(|(addr, fill)| Use {
            addr: *addr,
            fill: *fill,
            write: None,
            discard: None,
        })
        .collect();
    let mut flushes = Vec::new();
    for _ in 0..80 {
        let start = disk.position();
        let live: Vec<usize> = (0..uses.len())
            .filter(|at| uses[*at].discard.is_none())
            .collect();
        match rng.below(8) {
            0..4 if live.len() < 200 => {
                let (area, blocks) = (rng.below(6), 1 + rng.below(9) as u64);
                let addr = ((area as u64 + 1) << GEOMETRY.area_bits) + next[area];
                next[area] += blocks;
                let bytes: Vec<u8> = (addr..addr + blocks).flat_map(block).collect();
                // Released blocks return with the next flush.
                if device.write(BlockAddr(addr), &bytes).is_err() {
                    continue;
                }
                let end = disk.position();
                uses.extend((addr..addr + blocks).map(|addr| Use {
                    addr,
                    fill: addr,
                    write: Some((start, end)),
                    discard: None,
                }));
            }
            0..7 if !live.is_empty() => {
                let from = rng.below(live.len());
                for at in live.into_iter().skip(from).take(1 + rng.below(5)) {
                    let (addr, start) = (uses[at].addr, disk.position());
                    device.discard(addr..addr + 1).unwrap();
                    uses[at].discard = Some((start, disk.position()));
                }
            }
            _ => {
                device.flush().unwrap();
                flushes.push((start, disk.position()));
            }
        }
    }
    (uses, flushes)
}

#[test]
fn after_every_crash_an_address_reads_as_the_contract_of_a_device_says() {
    let disk = Arc::new(CrashDisk::new(Blocks::new(), Arc::default(), u64::MAX));
    MappedDevice::create(disk.clone(), TINY, [6; 16], &GEOMETRY).unwrap();
    let mut base = disk.blocks();
    let mut rng = Rng::new(12);
    let mut next = [0; 6];
    let mut kept: Vec<(u64, u64)> = Vec::new();
    let mut crashes = 0;
    for round in 0..24 {
        let disk = Arc::new(CrashDisk::new(base.clone(), Arc::default(), u64::MAX));
        let (uses, flushes) = exercise(&disk, &mut next, &kept, &mut rng);
        let events = disk.events();
        let ends: Vec<usize> = (0..=events.len())
            .filter(|at| matches!(events.get(*at), None | Some(Event::Flush)))
            .collect();
        let mut last = None;
        states(&base, &events, 4, &mut rng, |blocks, from| {
            crashes += 1;
            let end = ends[ends.partition_point(|end| *end < from)];
            let is_durable = |done: usize| {
                let after = |(start, end): &(usize, usize)| *start >= done && *end <= from;
                flushes.iter().any(after)
            };
            let medium = Arc::new(MemDevice::from_blocks(blocks.clone()));
            let open = || MappedDevice::open(medium.clone(), TINY).unwrap().unwrap();
            let (device, mut found) = (open(), Vec::new());
            assert_eq!(device.damaged_files(), []);
            for used in &uses {
                let mut bytes = vec![0; BLOCK_SIZE];
                device.read(BlockAddr(used.addr), &mut bytes).unwrap();
                let is_new = bytes == block(used.fill);
                let place = format!("round {round}, crash after {from}, {:#x}", used.addr);
                assert!(is_new || bytes.iter().all(|byte| *byte == 0), "{place}");
                let may_be_new = used.write.is_none_or(|(start, _)| start <= end)
                    && used.discard.is_none_or(|(_, done)| !is_durable(done));
                let may_be_zero = used.write.is_some_and(|(_, done)| !is_durable(done))
                    || used.discard.is_some_and(|(start, _)| start <= end);
                assert!(if is_new { may_be_new } else { may_be_zero }, "{place}");
                let run = used.addr..used.addr + 1;
                assert_eq!(device.allocated(run).unwrap().len(), usize::from(is_new));
                if is_new {
                    found.push((used.addr, used.fill));
                }
            }
            // The next opening finds the same blocks.
            device.rewrite_damaged_files().unwrap();
            device.flush().unwrap();
            let again = open();
            for (addr, fill) in &found {
                let mut bytes = vec![0; BLOCK_SIZE];
                again.read(BlockAddr(*addr), &mut bytes).unwrap();
                assert!(bytes == block(*fill));
            }
            last = Some((blocks, found));
            Ok::<(), ()>(())
        })
        .unwrap();
        // The next round continues after the last crash.
        (base, kept) = last.unwrap();
    }
    assert!(crashes > 1000, "{crashes} crashes");
}
