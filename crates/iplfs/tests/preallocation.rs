//! A host that other programs fill completely: the preallocation past the heads suffices for deletes.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::Mutex;
use tuff_iplfs::backend::MemDevice;
use tuff_iplfs::{
    BlockAddr, BlockDevice, Caller, FormatOptions, Geometry, MountOptions, Nid, Time, Volume, mode,
};
use tuff_iplfs_crash::verify::no_findings;

const CALLER: Caller = Caller {
    now: Time { sec: 1, nsec: 0 },
    uid: 0,
    gid: 0,
};

/// Host that other programs fill. Only preallocated space, and space that is released, remains.
#[derive(Default)]
struct Host {
    inner: MemDevice,
    reserved: Mutex<BTreeSet<u64>>,
    capacity: Mutex<Option<u64>>,
}

impl Host {
    /// Number of allocated blocks, with `more` in addition.
    fn taken(&self, more: Range<u64>) -> u64 {
        let mut taken = self.reserved.lock().unwrap().clone();
        taken.extend(self.inner.blocks().keys());
        taken.extend(more);
        taken.len() as u64
    }

    fn fill(&self) {
        *self.capacity.lock().unwrap() = Some(self.taken(0..0));
    }

    fn empty(&self) {
        *self.capacity.lock().unwrap() = None;
    }

    fn has_room(&self, blocks: Range<u64>) -> io::Result<()> {
        match *self.capacity.lock().unwrap() {
            Some(limit) if self.taken(blocks) > limit => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }
}

impl BlockDevice for Host {
    fn read(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read(addr, buf)
    }
    fn write(&self, addr: BlockAddr, data: &[u8]) -> io::Result<()> {
        self.has_room(addr.0..addr.0 + data.len() as u64 / 4096)?;
        self.inner.write(addr, data)
    }
    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }
    fn discard(&self, blocks: Range<u64>) -> io::Result<()> {
        self.release_preallocated(blocks.clone())?;
        self.inner.discard(blocks)
    }
    fn allocated(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        self.inner.allocated(blocks)
    }
    fn knows_allocated(&self) -> bool {
        true
    }
    fn preallocate(&self, blocks: Range<u64>) -> io::Result<()> {
        self.has_room(blocks.clone())?;
        self.reserved.lock().unwrap().extend(blocks);
        Ok(())
    }
    fn release_preallocated(&self, blocks: Range<u64>) -> io::Result<()> {
        let mut reserved = self.reserved.lock().unwrap();
        reserved.retain(|addr| !blocks.contains(addr));
        Ok(())
    }
    fn free_blocks(&self) -> io::Result<Option<u64>> {
        let limit = *self.capacity.lock().unwrap();
        Ok(limit.map(|limit| limit.saturating_sub(self.taken(0..0))))
    }
}

fn new() -> Arc<Host> {
    let host = Arc::new(Host::default());
    let format = FormatOptions {
        geometry: Geometry {
            area_bits: 29,
            section_bits: 8,
            zone_bits: 4,
            pack_blocks: 8,
        },
        ..FormatOptions::new([1; 16], [2; 16], 1 << 16)
    };
    Volume::format(host.clone(), &format).unwrap();
    host
}

fn mount(host: &Arc<Host>) -> Volume {
    let options = MountOptions {
        window_blocks: 2048,
        ..MountOptions::default()
    };
    Volume::mount(host.clone(), options).unwrap()
}

fn put(v: &mut Volume, name: &str, blocks: usize) -> tuff_iplfs::Result<()> {
    let ino = v
        .create(Nid::ROOT, name.as_bytes(), mode::FILE, 0, &CALLER)?
        .ino;
    v.write(ino, 0, &vec![7; blocks * 4096], CALLER.now)?;
    Ok(())
}

fn exists(v: &mut Volume, name: &str) -> bool {
    v.lookup(Nid::ROOT, name.as_bytes()).is_ok()
}

/// Bug: files deleted on a full host reappeared, because the checkpoint of the deletion found no space. The ballast
/// file that was released for it went to other programs.
#[test]
fn deletes_are_durable_on_a_full_host() {
    let host = new();
    let mut v = mount(&host);
    for n in 0..40 {
        put(&mut v, &format!("f{n}"), 40).unwrap();
    }
    v.sync().unwrap();
    // Some memory is dirty when the space is taken.
    put(&mut v, "dirty", 200).unwrap();
    host.fill();
    assert_eq!(put(&mut v, "more", 1).unwrap_err().errno(), 28);
    for n in 0..10 {
        v.unlink(Nid::ROOT, format!("f{n}").as_bytes(), &CALLER)
            .unwrap();
        v.sync().unwrap();
        // Other programs take the released space.
        host.fill();
    }
    // A crash, and a mount on the full host.
    drop(v);
    let mut v = mount(&host);
    assert!(exists(&mut v, "dirty") && !exists(&mut v, "f9") && exists(&mut v, "f10"));
    v.unlink(Nid::ROOT, b"f10", &CALLER).unwrap();
    v.unmount().unwrap();
    // An orderly unmount keeps space for this as well.
    let mut v = mount(&host);
    assert!(!exists(&mut v, "f10"));
    v.unlink(Nid::ROOT, b"f11", &CALLER).unwrap();
    v.unmount().unwrap();
    host.empty();
    let mut v = mount(&host);
    assert!(!exists(&mut v, "f11"));
    put(&mut v, "more", 100).unwrap();
    v.drain().unwrap();
    v.unmount().unwrap();
    let device: Arc<dyn BlockDevice> = host;
    assert!(no_findings(&device, "after").leaked.is_empty());
}

/// Bug: each attempt used up the addresses of the blocks that it could not write. After thousands of attempts the log
/// was exhausted, and free space on the host did not help.
#[test]
fn repeated_failures_on_a_full_host_use_up_no_addresses() {
    let host = new();
    let mut v = mount(&host);
    // More than the preallocation.
    put(&mut v, "large", 1500).unwrap();
    host.fill();
    for _ in 0..100 {
        assert_eq!(v.sync().unwrap_err().errno(), 28);
    }
    host.empty();
    v.sync().unwrap();
    put(&mut v, "more", 100).unwrap();
    v.unmount().unwrap();
    let device: Arc<dyn BlockDevice> = host;
    assert!(no_findings(&device, "after").leaked.is_empty());
}
