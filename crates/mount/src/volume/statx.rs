//! Reply to STATX, which has the time of creation beside the attributes.

use super::fields::attr_of;
use tuff_fuse::protocol::{StatxOut, StatxTime, statx};
use tuff_iplfs::{Attr, Time};

/// Returns the reply. Unit of `valid`: seconds.
pub(super) fn statx_out(attr: &Attr, valid: u64) -> StatxOut {
    let shown = attr_of(attr);
    // Zero: the inode states none.
    let has_btime = attr.btime != Time::default();
    let (rdev_major, rdev_minor) = device(shown.rdev);
    StatxOut {
        valid,
        mask: statx::BASIC_STATS | if has_btime { statx::BTIME } else { 0 },
        blksize: shown.blksize,
        nlink: shown.nlink,
        uid: shown.uid,
        gid: shown.gid,
        mode: shown.mode as u16, // fits: type and permissions
        ino: shown.ino,
        size: shown.size,
        blocks: shown.blocks,
        atime: time(attr.atime),
        btime: time(attr.btime),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major,
        rdev_minor,
        ..StatxOut::default()
    }
}

fn time(time: Time) -> StatxTime {
    StatxTime {
        seconds: time.sec as u64, // two's complement, as the protocol has it
        nanoseconds: time.nsec,
        reserved: 0,
    }
}

/// Splits a device number in the kernel's 32-bit form.
fn device(rdev: u32) -> (u32, u32) {
    (rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xf_ff00)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_without_a_time_of_creation_shows_none() {
        let mut volume = {
            use std::sync::Arc;
            use tuff_iplfs::{FormatOptions, MountOptions, Volume, backend::MemDevice};
            let device = Arc::new(MemDevice::new());
            // Formatted at the time 0.
            Volume::format(
                device.clone(),
                &FormatOptions::new([1; 16], [2; 16], 1 << 20),
            )
            .unwrap();
            Volume::mount(device, MountOptions::default()).unwrap()
        };
        let mut attr = volume.attr(tuff_iplfs::Nid::ROOT).unwrap();
        assert_eq!(statx_out(&attr, 1).mask, statx::BASIC_STATS);
        attr.btime.nsec = 1;
        assert_eq!(statx_out(&attr, 1).mask, statx::BASIC_STATS | statx::BTIME);
    }

    #[test]
    fn device_numbers_are_split_as_the_kernel_joins_them() {
        assert_eq!(device(0x803), (8, 3));
        assert_eq!(device(0x1230_0745), (7, 0x1_2345));
    }
}
