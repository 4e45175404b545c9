//! Device of a volume whose reads are counted, and a stream whose bytes are, for the display of progress.

use crate::progress::{Counter, Meter};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;
use tuff_iplfs::{BlockAddr, BlockDevice, BranchDevice, Finding};

/// Device whose reads are counted.
struct WatchedDevice {
    device: Arc<dyn BlockDevice>,
    counter: Arc<Counter>,
}

/// Counts what is read from a device, if the meter is shown.
pub(super) fn device(device: Arc<dyn BlockDevice>, meter: &Meter) -> Arc<dyn BlockDevice> {
    match meter.is_shown() {
        true => Arc::new(WatchedDevice {
            device,
            counter: Arc::clone(meter.counter()),
        }),
        false => device,
    }
}

impl BlockDevice for WatchedDevice {
    fn read(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()> {
        self.device.read(addr, buf)?;
        self.counter.add(buf.len() as u64);
        Ok(())
    }

    fn read_uncached(&self, addr: BlockAddr, buf: &mut [u8]) -> io::Result<()> {
        self.device.read_uncached(addr, buf)
    }

    fn write(&self, addr: BlockAddr, data: &[u8]) -> io::Result<()> {
        self.device.write(addr, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }

    fn discard(&self, blocks: Range<u64>) -> io::Result<()> {
        self.device.discard(blocks)
    }

    fn allocated(&self, blocks: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        self.device.allocated(blocks)
    }

    fn knows_allocated(&self) -> bool {
        self.device.knows_allocated()
    }

    fn granule(&self) -> u64 {
        self.device.granule()
    }

    fn zone_blocks(&self) -> Option<u64> {
        self.device.zone_blocks()
    }

    fn release_zone(&self, zone: u64) -> io::Result<()> {
        self.device.release_zone(zone)
    }

    fn zones(&self, zones: Range<u64>) -> io::Result<Vec<u64>> {
        self.device.zones(zones)
    }

    fn preallocate(&self, blocks: Range<u64>) -> io::Result<()> {
        self.device.preallocate(blocks)
    }

    fn release_preallocated(&self, blocks: Range<u64>) -> io::Result<()> {
        self.device.release_preallocated(blocks)
    }

    fn prepare(&self, blocks: Range<u64>) -> io::Result<bool> {
        self.device.prepare(blocks)
    }

    fn release_free_space(&self) -> bool {
        self.device.release_free_space()
    }

    fn free_blocks(&self) -> io::Result<Option<u64>> {
        self.device.free_blocks()
    }

    fn branch(&self) -> Option<&dyn BranchDevice> {
        self.device.branch()
    }

    fn claim(&self, exclusive: bool) -> io::Result<()> {
        self.device.claim(exclusive)
    }

    fn unlock(&self) {
        self.device.unlock();
    }

    fn damaged_files(&self) -> Vec<Finding> {
        self.device.damaged_files()
    }

    fn rewrite_damaged_files(&self) -> io::Result<()> {
        self.device.rewrite_damaged_files()
    }
}

/// Stream whose bytes are counted in either direction.
pub(super) struct WatchedStream<'a, S> {
    stream: S,
    counter: &'a Counter,
}

impl<'a, S> WatchedStream<'a, S> {
    pub(super) fn new(stream: S, meter: &'a Meter) -> Self {
        let counter = meter.counter();
        Self { stream, counter }
    }
}

impl<S: Read> Read for WatchedStream<'_, S> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.stream.read(buf)?;
        self.counter.add(n as u64);
        Ok(n)
    }
}

impl<S: Write> Write for WatchedStream<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.stream.write(bytes)?;
        self.counter.add(n as u64);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
