//! Encoding of attributes, and decoding of their changes.

use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use tuff_fuse::fields::Fields;
use tuff_fuse::filesystem::Result;
use tuff_fuse::protocol::{Attr, AttrOut, EntryOut};
use tuff_iplfs::{BLOCK_SIZE, Error, Nid, SetAttr, Time};
use zerocopy::IntoBytes;

/// Names never change without the kernel's knowledge. Unit: seconds.
pub(super) const FOR_EVER: u64 = i64::MAX as u64;
/// Attributes change when dirty pages are written: the space used. Unit: seconds.
const ATTR_VALID: u64 = 1;

pub(super) fn errno_of(e: Error) -> Errno {
    Errno::from_raw_os_error(e.errno())
}

/// Returns the time of the kernel's coarse clock, with which it stamps inodes. With a finer clock a new file would
/// have another time than at its first write, which costs a request.
pub(super) fn now() -> Time {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Time {
        sec: now.tv_sec,
        nsec: now.tv_nsec as u32, // fits: below 10^9
    }
}

pub(super) fn nid(node: u64) -> Result<Nid> {
    u32::try_from(node).map(Nid).map_err(|_| Errno::STALE)
}

pub(super) fn attr_of(attr: &tuff_iplfs::Attr) -> Attr {
    Attr {
        ino: u64::from(attr.ino.0),
        size: attr.size,
        blocks: attr.blocks * (BLOCK_SIZE as u64 / 512),
        atime: attr.atime.sec as u64, // two's complement, as the protocol has it
        mtime: attr.mtime.sec as u64,
        ctime: attr.ctime.sec as u64,
        atime_nsec: attr.atime.nsec,
        mtime_nsec: attr.mtime.nsec,
        ctime_nsec: attr.ctime.nsec,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_SIZE as u32,
        flags: 0,
    }
}

pub(super) fn entry_of(attr: &tuff_iplfs::Attr) -> EntryOut {
    EntryOut {
        node: u64::from(attr.ino.0),
        generation: u64::from(attr.generation),
        entry_valid: FOR_EVER,
        attr_valid: ATTR_VALID,
        attr: attr_of(attr),
        ..Default::default()
    }
}

pub(super) fn attr_out(attr: &tuff_iplfs::Attr) -> Vec<u8> {
    let reply = AttrOut {
        valid: ATTR_VALID,
        attr: attr_of(attr),
        ..Default::default()
    };
    reply.as_bytes().to_vec()
}

/// Returns the value, or its length if `size` is 0.
pub(super) fn sized(size: u32, value: Vec<u8>) -> Result<Vec<u8>> {
    if size == 0 {
        let len = u32::try_from(value.len()).map_err(|_| Errno::TOOBIG)?;
        return Ok([len, 0].as_bytes().to_vec());
    }
    if value.len() > size as usize {
        return Err(Errno::RANGE);
    }
    Ok(value)
}

/// Changes of a SETATTR request.
pub(super) struct Change {
    pub(super) set: SetAttr,
    /// Time of the change.
    pub(super) time: Time,
    /// True if set-user-id and set-group-id are cleared. A change of owner does so, except for one to the present
    /// owner. `chown` with neither user nor group sends only the time, and no other call does.
    pub(super) drops_ids: bool,
    /// True if capabilities are cleared.
    pub(super) drops_capabilities: bool,
}

/// Decodes a SETATTR request.
pub(super) fn set_attr(f: &mut Fields<'_>) -> Result<Change> {
    let (valid, _, _fh, size, _owner) = (f.u32()?, f.u32()?, f.u64()?, f.u64()?, f.u64()?);
    let (atime, mtime, ctime) = (f.u64()?, f.u64()?, f.u64()?);
    let (atime_nsec, mtime_nsec, ctime_nsec) = (f.u32()?, f.u32()?, f.u32()?);
    let (bits, _, uid, gid) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
    let present = now();
    let time = |at: u32, now_at: u32, sec: u64, nsec: u32| match valid {
        v if v >> now_at & 1 == 1 => Some(present),
        // Two's complement, as in the protocol.
        v if v >> at & 1 == 1 => Some(Time {
            sec: sec as i64,
            nsec,
        }),
        _ => None,
    };
    let has = |bit: u32| valid >> bit & 1 == 1;
    let set = SetAttr {
        mode: has(0).then_some(bits),
        uid: has(1).then_some(uid),
        gid: has(2).then_some(gid),
        size: has(3).then_some(size),
        atime: time(4, 7, atime, atime_nsec),
        mtime: time(5, 8, mtime, mtime_nsec),
        ..SetAttr::default()
    };
    const TIME_OF_CHANGE: u32 = 1 << 10;
    // Without the file handle and the lock owner, which identify the client.
    let changes = valid & !(1 << 6 | 1 << 9);
    Ok(Change {
        time: time(10, 31, ctime, ctime_nsec).unwrap_or(present),
        drops_ids: has(11) || changes == TIME_OF_CHANGE,
        drops_capabilities: has(1) || has(2) || has(3) || changes == TIME_OF_CHANGE,
        set,
    })
}
