//! Writes of an fsync, and what a mount recovers after it.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use tuff_iplfs::backend::MemDevice;
use tuff_iplfs::{
    BlockAddr, BlockDevice, Caller, FormatOptions, Fsync, Log, MountOptions, Nid, Time, Volume,
    mode, rebuild,
};
use tuff_iplfs_crash::verify::no_findings;

const NOW: Time = Time { sec: 1, nsec: 0 };
const CALLER: Caller = Caller {
    now: NOW,
    uid: 0,
    gid: 0,
};

/// Device that records writes, and prepares blocks as a host does.
struct Noting {
    inner: MemDevice,
    writes: Mutex<Vec<Range<u64>>>,
    prepared: Mutex<Vec<Range<u64>>>,
}

impl Noting {
    fn new() -> Arc<Self> {
        let device = Arc::new(Self {
            inner: MemDevice::new(),
            writes: Mutex::default(),
            prepared: Mutex::default(),
        });
        let options = FormatOptions::new([1; 16], [2; 16], 1 << 20);
        Volume::format(device.clone(), &options).unwrap();
        device
    }

    fn take_writes(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.writes.lock().unwrap())
    }
}

impl BlockDevice for Noting {
    fn read(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read(addr, buf)
    }
    fn write(&self, addr: BlockAddr, data: &[u8]) -> io::Result<()> {
        let blocks = data.len() as u64 / 4096;
        self.writes.lock().unwrap().push(addr.0..addr.0 + blocks);
        self.inner.write(addr, data)
    }
    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }
    fn discard(&self, blocks: Range<u64>) -> io::Result<()> {
        self.inner.discard(blocks)
    }
    fn allocated(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        self.inner.allocated(blocks)
    }
    fn knows_allocated(&self) -> bool {
        true
    }
    fn prepare(&self, blocks: Range<u64>) -> io::Result<bool> {
        let zeros = vec![0; (blocks.end - blocks.start) as usize * 4096];
        self.inner.write(BlockAddr(blocks.start), &zeros)?;
        self.prepared.lock().unwrap().push(blocks);
        Ok(true)
    }
}

fn mount(device: &Arc<Noting>, prepare_blocks: u64) -> Volume {
    let options = MountOptions {
        prepare_blocks,
        ..MountOptions::default()
    };
    Volume::mount(device.clone(), options).unwrap()
}

fn file(volume: &mut Volume, name: &[u8], bytes: &[u8]) -> Nid {
    let attr = volume.create(Nid::ROOT, name, mode::FILE | 0o644, 0, &CALLER);
    let ino = attr.unwrap().ino;
    volume.write(ino, 0, bytes, NOW).unwrap();
    ino
}

fn is_sound(device: &Arc<Noting>) {
    let device: Arc<dyn BlockDevice> = device.clone();
    let report = no_findings(&device, "check");
    assert!(report.leaked.is_empty() && report.clean);
}

#[test]
fn a_small_change_is_one_write_to_one_log() {
    let device = Noting::new();
    let mut volume = mount(&device, 0);
    // Past the slots in the inode, so that a direct node changes too.
    let ino = file(&mut volume, b"f", &vec![1; 400 * 4096]);
    volume.sync().unwrap();
    device.take_writes();
    volume.write(ino, 300 * 4096 + 5, &[2; 5000], NOW).unwrap();
    assert_eq!(volume.begin_fsync(ino).unwrap(), Fsync::Flush);
    let writes = device.take_writes();
    // Two nodes and two blocks of data.
    let [one] = &writes[..] else {
        panic!("{writes:?}")
    };
    assert_eq!(one.end - one.start, 4);
    let place = volume.superblock().geometry.place(BlockAddr(one.start));
    assert_eq!(place.map(|(log, _)| log), Some(Log::WarmNode));
    // The mount is lost to a crash. The next one has the data.
    drop(volume);
    let mut volume = mount(&device, 0);
    assert_eq!(volume.stats().adopted_groups, 1);
    let bytes = volume.read(ino, 300 * 4096, 8192).unwrap();
    assert!(bytes[..5].iter().all(|b| *b == 1) && bytes[5..5005].iter().all(|b| *b == 2));
    volume.drain().unwrap();
    volume.unmount().unwrap();
    is_sound(&device);
}

#[test]
fn groups_after_data_are_found_in_order() {
    let device = Noting::new();
    let mut volume = mount(&device, 64);
    let (a, b) = (
        file(&mut volume, b"a", &[0; 4096]),
        file(&mut volume, b"b", &[0; 4096]),
    );
    volume.sync().unwrap();
    for round in 1..=50_u8 {
        for ino in [a, b] {
            // One to three blocks; every tenth round is too large for a group of one write.
            let blocks = if round % 10 == 0 {
                100
            } else {
                usize::from(round % 3) + 1
            };
            volume
                .write(ino, 0, &vec![round; blocks * 4096], NOW)
                .unwrap();
            volume.fsync(ino).unwrap();
        }
    }
    drop(volume);
    let mut volume = mount(&device, 64);
    assert_eq!(volume.stats().adopted_groups, 100);
    for ino in [a, b] {
        let bytes = volume.read(ino, 0, 100 * 4096).unwrap();
        assert!(bytes[..3 * 4096 - 4096].iter().all(|b| *b == 50));
        assert_eq!(bytes.len(), 100 * 4096);
    }
    volume.drain().unwrap();
    volume.unmount().unwrap();
    is_sound(&device);
}

#[test]
fn data_that_looks_like_a_node_stays_out_of_the_node_logs() {
    // Data that is a copy of a node block. A process that can read the device, such as the owner of an image of it,
    // could craft one that gives its inode to root.
    let device = Noting::new();
    let mut volume = mount(&device, 0);
    let ino = file(&mut volume, b"f", b"mine");
    volume.sync().unwrap();
    let g = volume.superblock().geometry;
    let mut node = vec![0; 4096];
    device.read(g.addr(Log::WarmNode, 0), &mut node).unwrap();
    let other = file(&mut volume, b"other", &node);
    device.take_writes();
    assert_eq!(volume.begin_fsync(other).unwrap(), Fsync::Flush);
    let logs: Vec<_> = device
        .take_writes()
        .iter()
        .map(|w| g.place(BlockAddr(w.start)).unwrap().0)
        .collect();
    assert_eq!(logs, [Log::WarmData, Log::WarmNode]);
    volume.write(ino, 0, b"still", NOW).unwrap();
    volume.unmount().unwrap();
    // Both packs are lost: the state is rebuilt from the nodes in the logs.
    for pack in [0, 1] {
        device.write(g.pack_start(pack), &[0; 8192]).unwrap();
    }
    let dev: Arc<dyn BlockDevice> = device.clone();
    rebuild(&dev, [9; 16], NOW).unwrap();
    let mut volume = mount(&device, 0);
    let found = volume.lookup(Nid::ROOT, b"f").unwrap();
    assert_eq!(volume.read(found, 0, 10).unwrap(), b"still");
}

#[test]
fn prepared_blocks_are_used_and_the_rest_is_released() {
    let device = Noting::new();
    let mut volume = mount(&device, 32);
    let ino = file(&mut volume, b"f", &[0; 4096]);
    volume.sync().unwrap();
    for round in 0..8_u8 {
        volume.write(ino, 0, &[round; 4096], NOW).unwrap();
        volume.fsync(ino).unwrap();
    }
    let prepared = device.prepared.lock().unwrap().clone();
    // The first fsync after a checkpoint prepares nothing. The second prepares enough to last.
    assert_eq!(prepared.len(), 1);
    let used = device
        .take_writes()
        .iter()
        .filter(|w| prepared[0].contains(&w.start))
        .count();
    assert_eq!(used, 6);
    let held = |device: &Noting| -> u64 {
        let runs = device.allocated(prepared[0].clone()).unwrap();
        runs.iter().map(|r| r.end - r.start).sum()
    };
    assert_eq!(held(&device), 32);
    volume.unmount().unwrap();
    assert_eq!(held(&device), 12);
    // After a crash they are released by the recovery.
    let mut volume = mount(&device, 32);
    for round in 0..8_u8 {
        volume.write(ino, 0, &[round; 4096], NOW).unwrap();
        volume.fsync(ino).unwrap();
    }
    drop(volume);
    let mut volume = mount(&device, 32);
    assert_eq!(volume.read(ino, 0, 1).unwrap(), [7]);
    volume.drain().unwrap();
    volume.unmount().unwrap();
    is_sound(&device);
}
