//! Free space of the host that stores the device.

use crate::device::BlockDevice;
use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

/// Free space above which the host is not queried at every operation: 4 GiB. Unit: blocks.
const AMPLE: u64 = 1 << 20;
/// Time for which an ample answer is reused.
const REUSE_TIME: Duration = Duration::from_millis(10);

/// Free blocks of the host, queried rarely while there are many.
#[derive(Default)]
pub(crate) struct FreeSpace {
    last: Cell<Option<(u64, Instant)>>,
}

impl FreeSpace {
    /// Returns the free blocks, `None` if the device has no such limit.
    pub(crate) fn blocks(&self, dev: &dyn BlockDevice) -> io::Result<Option<u64>> {
        if let Some((free, at)) = self.last.get()
            && free > AMPLE
            && at.elapsed() < REUSE_TIME
        {
            return Ok(Some(free));
        }
        let free = dev.free_blocks()?;
        self.last.set(free.map(|free| (free, Instant::now())));
        Ok(free)
    }
}
