//! Attributes and their changes, between the protocol and the volume.

use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use tuff_fuse::filesystem::Result;
use tuff_fuse::protocol::{Attr, AttrOut, EntryOut, FOREVER, SetattrIn, fattr};
use tuff_iplfs::{BLOCK_SIZE, Nid, SetAttr, Time};

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

pub(super) fn entry_of(attr: &tuff_iplfs::Attr, valid: u64) -> EntryOut {
    EntryOut {
        node: u64::from(attr.ino.0),
        generation: u64::from(attr.generation),
        entry_valid: FOREVER,
        attr_valid: valid,
        attr: attr_of(attr),
        ..Default::default()
    }
}

pub(super) fn attr_out(attr: &tuff_iplfs::Attr, valid: u64) -> AttrOut {
    AttrOut {
        valid,
        attr: attr_of(attr),
        ..Default::default()
    }
}

/// Change of attributes, in terms of the volume.
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

impl From<SetattrIn> for Change {
    fn from(change: SetattrIn) -> Self {
        let present = now();
        let has = |field: u32| change.valid & field != 0;
        let time = |i: usize, field: u32, now: u32| match has(now) {
            true => Some(present),
            // Two's complement, as in the protocol.
            false => has(field).then(|| Time {
                sec: change.seconds[i] as i64,
                nsec: change.nanoseconds[i],
            }),
        };
        let set = SetAttr {
            mode: has(fattr::MODE).then_some(change.mode),
            uid: has(fattr::UID).then_some(change.uid),
            gid: has(fattr::GID).then_some(change.gid),
            size: has(fattr::SIZE).then_some(change.size),
            atime: time(0, fattr::ATIME, fattr::ATIME_NOW),
            mtime: time(1, fattr::MTIME, fattr::MTIME_NOW),
            ..SetAttr::default()
        };
        // The file handle and the lock owner identify the client.
        let is_only_ctime = change.valid & !(fattr::FH | fattr::LOCKOWNER) == fattr::CTIME;
        Self {
            time: time(2, fattr::CTIME, 0).unwrap_or(present),
            drops_ids: has(fattr::KILL_SUIDGID) || is_only_ctime,
            drops_capabilities: has(fattr::UID | fattr::GID | fattr::SIZE) || is_only_ctime,
            set,
        }
    }
}
