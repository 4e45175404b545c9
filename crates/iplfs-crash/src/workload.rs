//! Operations of the crash workloads, on a volume and on the model.

use crate::model::{Model, Object, ObjectId};
use tuff_iplfs::{
    Allocate, Caller, Error, Nid, Rename, Result, SetAttr, SetXattr, Time, Volume, mode,
};

/// Operation on one or two paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Create an empty file.
    Create(&'static str),
    /// Create an empty directory.
    Mkdir(&'static str),
    /// Create a symbolic link.
    Symlink(&'static str),
    /// Create a file without a name, write to it, and link it.
    Tmpfile(&'static str),
    /// Add a name to a file.
    Link(&'static str, &'static str),
    /// Remove a name of a file.
    Unlink(&'static str),
    /// Remove an empty directory.
    Rmdir(&'static str),
    /// Rename a file or directory.
    Rename(&'static str, &'static str, Rename),
    /// Write `len` bytes at an offset.
    Write(&'static str, u64, usize),
    /// Set the length of a file.
    Truncate(&'static str, u64),
    /// Reserve, punch or zero a range.
    Allocate(&'static str, Allocate, u64, u64),
    /// Set an extended attribute of this length.
    SetXattr(&'static str, usize),
    /// Remove the extended attribute.
    RemoveXattr(&'static str),
    /// Change the permissions of an inode.
    Chmod(&'static str, u32),
    /// Take a snapshot of this name.
    Snapshot(&'static str),
    /// Delete the snapshot of this name.
    DeleteSnapshot(&'static str),
}

/// Persistence that follows an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Persist {
    /// No persistence at all.
    None,
    /// An fsync of the target of the operation.
    Fsync,
    /// An fdatasync of the target of the operation.
    Fdatasync,
    /// A sync of the whole volume.
    Sync,
    /// The next part of a checkpoint that runs concurrently with the operations: begin, seal, end, discards.
    Background,
}

/// Kinds of persistence that complete before the next operation.
pub const PERSISTS: [Persist; 4] = [
    Persist::None,
    Persist::Fsync,
    Persist::Fdatasync,
    Persist::Sync,
];

/// Operation and its persistence.
pub type Step = (Op, Persist);

const XATTR: &[u8] = b"user.x";

impl Op {
    /// Path for an fsync after the operation: the object if it still has a name, else the directory that lost the
    /// name.
    pub fn target(&self) -> &'static str {
        match self {
            Op::Create(p) | Op::Mkdir(p) | Op::Symlink(p) | Op::Tmpfile(p) | Op::Link(_, p) => p,
            Op::Rename(_, p, _) | Op::Write(p, ..) | Op::Truncate(p, _) | Op::Allocate(p, ..) => p,
            Op::SetXattr(p, _) | Op::RemoveXattr(p) | Op::Chmod(p, _) => p,
            Op::Snapshot(_) | Op::DeleteSnapshot(_) => "/",
            Op::Unlink(p) | Op::Rmdir(p) => p.rsplit_once('/').map_or("/", |(dir, _)| dir),
        }
    }

    /// Applies the operation to the model. Returns false, and leaves the model unchanged, if it is not possible.
    pub fn model(&self, m: &mut Model, now: i64) -> bool {
        self.try_model(m, now).is_some()
    }

    fn try_model(&self, m: &mut Model, now: i64) -> Option<()> {
        let fresh = |mode_bits| Object {
            mode: mode_bits,
            mtime: now,
            btime: now,
            ..Object::default()
        };
        match *self {
            Op::Create(p) => new(m, p, fresh(mode::FILE | 0o644), now),
            Op::Mkdir(p) => new(m, p, fresh(mode::DIR | 0o755), now),
            Op::Symlink(p) => new(
                m,
                p,
                Object {
                    bytes: b"some/where".to_vec().into(),
                    ..fresh(mode::LINK | 0o777)
                },
                now,
            ),
            Op::Tmpfile(p) => new(
                m,
                p,
                Object {
                    bytes: pattern(now, 0, 5000).into(),
                    ..fresh(mode::FILE | 0o600)
                },
                now,
            ),
            Op::Link(a, b) => {
                let id = m
                    .at(a)
                    .filter(|id| m.objects[id].mode & mode::TYPE != mode::DIR)?;
                let (dir, name) = m.parent(b)?;
                if m.at(b).is_some() {
                    return None;
                }
                m.object(dir).entries.insert(name, id);
                m.object(dir).mtime = now;
                Some(())
            }
            Op::Unlink(p) => gone(m, p, false, now),
            Op::Rmdir(p) => gone(m, p, true, now),
            Op::Rename(a, b, how) => rename(m, a, b, how, now),
            Op::Write(p, offset, len) => {
                let file = file(m, p)?;
                file.bytes.write(offset, &pattern(now, offset, len));
                file.mtime = now;
                Some(())
            }
            Op::Truncate(p, size) => {
                let file = file(m, p)?;
                file.bytes.resize(size);
                file.mtime = now;
                Some(())
            }
            Op::Allocate(p, how, offset, len) => {
                let file = file(m, p)?;
                let end = offset + len;
                if matches!(
                    how,
                    Allocate::Reserve | Allocate::ZeroRange { keep_size: false }
                ) {
                    file.bytes.size = file.bytes.size.max(end);
                }
                if matches!(how, Allocate::PunchHole | Allocate::ZeroRange { .. }) {
                    file.bytes.zero(offset, end);
                    file.mtime = now;
                }
                Some(())
            }
            Op::SetXattr(p, len) => {
                let id = m.at(p)?;
                m.object(id)
                    .xattrs
                    .insert(XATTR.to_vec(), pattern(now, 0, len));
                Some(())
            }
            Op::RemoveXattr(p) => {
                let id = m.at(p)?;
                m.object(id).xattrs.remove(XATTR).map(|_| ())
            }
            Op::Chmod(p, bits) => {
                let id = m.at(p)?;
                let object = m.object(id);
                object.mode = object.mode & mode::TYPE | bits;
                Some(())
            }
            Op::Snapshot(name) => {
                if m.snapshots.contains_key(name) {
                    return None;
                }
                let present = m.present();
                m.snapshots.insert(name.to_string(), present);
                Some(())
            }
            Op::DeleteSnapshot(name) => m.snapshots.remove(name).map(|_| ()),
        }
    }

    /// Applies the operation to a volume.
    pub fn volume(&self, v: &mut Volume, now: i64) -> Result<()> {
        let time = Time { sec: now, nsec: 0 };
        let caller = Caller {
            now: time,
            uid: 0,
            gid: 0,
        };
        match *self {
            Op::Create(p) => {
                let (dir, name) = parent(v, p)?;
                v.create(dir, name, mode::FILE | 0o644, 0, &caller)
                    .map(drop)
            }
            Op::Mkdir(p) => {
                let (dir, name) = parent(v, p)?;
                v.create(dir, name, mode::DIR | 0o755, 0, &caller).map(drop)
            }
            Op::Symlink(p) => {
                let (dir, name) = parent(v, p)?;
                v.symlink(dir, name, b"some/where", &caller).map(drop)
            }
            Op::Tmpfile(p) => {
                let (dir, name) = parent(v, p)?;
                let ino = v.tmpfile(dir, 0o600, &caller)?.ino;
                v.write(ino, 0, &pattern(now, 0, 5000), time)?;
                let linked = v.link(ino, dir, name, &caller);
                v.release(ino);
                linked.map(drop)
            }
            Op::Link(a, b) => {
                let ino = at(v, a)?;
                let (dir, name) = parent(v, b)?;
                v.link(ino, dir, name, &caller).map(drop)
            }
            Op::Unlink(p) => {
                let (dir, name) = parent(v, p)?;
                v.unlink(dir, name, &caller)
            }
            Op::Rmdir(p) => {
                let (dir, name) = parent(v, p)?;
                v.rmdir(dir, name, &caller)
            }
            Op::Rename(a, b, how) => {
                let (from, name) = parent(v, a)?;
                let (to, new) = parent(v, b)?;
                v.rename(from, name, to, new, how, &caller)
            }
            Op::Write(p, offset, len) => {
                let ino = at(v, p)?;
                v.write(ino, offset, &pattern(now, offset, len), time)
                    .map(drop)
            }
            Op::Truncate(p, size) => {
                let ino = at(v, p)?;
                v.set_attr(
                    ino,
                    &SetAttr {
                        size: Some(size),
                        ..SetAttr::default()
                    },
                    time,
                )
                .map(drop)
            }
            Op::Allocate(p, how, offset, len) => {
                let ino = at(v, p)?;
                v.fallocate(ino, how, offset, len, time)
            }
            Op::SetXattr(p, len) => {
                let ino = at(v, p)?;
                v.set_xattr(ino, XATTR, &pattern(now, 0, len), SetXattr::Any, time)
            }
            Op::RemoveXattr(p) => {
                let ino = at(v, p)?;
                v.remove_xattr(ino, XATTR, time)
            }
            Op::Chmod(p, bits) => {
                let ino = at(v, p)?;
                v.set_attr(
                    ino,
                    &SetAttr {
                        mode: Some(bits),
                        ..SetAttr::default()
                    },
                    time,
                )
                .map(drop)
            }
            Op::Snapshot(name) => v.snapshot(name, time),
            Op::DeleteSnapshot(name) => v.delete_snapshot(name),
        }
    }
}

/// Returns the inode at a path.
pub fn at(v: &mut Volume, path: &str) -> Result<Nid> {
    let mut ino = Nid::ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        ino = v.lookup(ino, name.as_bytes())?;
    }
    Ok(ino)
}

fn parent<'p>(v: &mut Volume, path: &'p str) -> Result<(Nid, &'p [u8])> {
    let (dir, name) = path
        .rsplit_once('/')
        .ok_or_else(|| Error::Usage(format!("path {path} has no slash")))?;
    Ok((at(v, dir)?, name.as_bytes()))
}

/// Bytes that depend on the operation that wrote them, so that bytes of other files are recognised.
fn pattern(now: i64, offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64)
        .map(|at| (now as u64 * 37 + at * 11 + at / 251 + 1) as u8 | 1)
        .collect()
}

fn file<'m>(m: &'m mut Model, path: &str) -> Option<&'m mut Object> {
    let id = m.at(path)?;
    let object = m.object(id);
    (object.mode & mode::TYPE == mode::FILE).then_some(object)
}

fn new(m: &mut Model, path: &str, object: Object, now: i64) -> Option<()> {
    let (dir, name) = m.parent(path)?;
    if m.at(path).is_some() {
        return None;
    }
    m.add(dir, &name, object);
    m.object(dir).mtime = now;
    Some(())
}

fn gone(m: &mut Model, path: &str, want_dir: bool, now: i64) -> Option<()> {
    let id = m.at(path)?;
    let object = &m.objects[&id];
    let is_dir = object.mode & mode::TYPE == mode::DIR;
    if is_dir != want_dir || !object.entries.is_empty() {
        return None;
    }
    let (dir, name) = m.parent(path)?;
    m.object(dir).entries.remove(&name);
    m.object(dir).mtime = now;
    m.sweep();
    Some(())
}

fn under(m: &Model, dir: ObjectId, top: ObjectId) -> bool {
    dir == top || m.names(dir).iter().any(|(up, _)| under(m, *up, top))
}

fn rename(m: &mut Model, a: &str, b: &str, how: Rename, now: i64) -> Option<()> {
    let id = m.at(a)?;
    let (from, name) = m.parent(a)?;
    let (to, new) = m.parent(b)?;
    let is_dir = |m: &Model, id: ObjectId| m.objects[&id].mode & mode::TYPE == mode::DIR;
    if is_dir(m, id) && under(m, to, id) {
        return None;
    }
    let target = m.at(b);
    match (how, target) {
        (Rename::NoReplace, Some(_)) | (Rename::Exchange, None) => return None,
        (Rename::Exchange, Some(other)) => {
            if is_dir(m, other) && under(m, from, other) {
                return None;
            }
            m.object(from).entries.insert(name, other);
        }
        (_, target) => {
            if let Some(other) = target {
                if other == id {
                    return None;
                }
                if is_dir(m, id) != is_dir(m, other) || !m.objects[&other].entries.is_empty() {
                    return None;
                }
            }
            m.object(from).entries.remove(&name);
            if how == Rename::Whiteout {
                m.add(
                    from,
                    &name,
                    Object {
                        mode: mode::CHAR,
                        mtime: now,
                        btime: now,
                        ..Object::default()
                    },
                );
            }
        }
    }
    m.object(to).entries.insert(new, id);
    m.object(from).mtime = now;
    m.object(to).mtime = now;
    m.sweep();
    Some(())
}

/// Operations that create the base volume of every workload.
pub fn base() -> Vec<Op> {
    let mut ops = vec![
        Op::Create("/a"),
        Op::Write("/a", 0, 100),
        Op::Create("/b"),
        Op::Write("/b", 0, 9000),
        Op::Mkdir("/d"),
        Op::Create("/d/c"),
        Op::Write("/d/c", 0, 5000),
        Op::Mkdir("/e"),
        Op::Create("/big"),
        Op::Write("/big", 0, 10),
        Op::Write("/big", 290 * 4096, 6000),
        Op::Write("/big", 300 * 4096, 100),
        Op::Create("/x"),
        Op::SetXattr("/x", 1000),
        Op::Link("/x", "/d/x"),
        Op::Mkdir("/full"),
        Op::Mkdir("/g"),
        Op::Create("/g/x"),
        Op::Write("/g/x", 0, 4200),
    ];
    ops.extend(FULL.iter().map(|path| Op::Create(path)));
    // Some dead blocks, so that a discard log exists from the start.
    ops.push(Op::Write("/b", 0, 5000));
    ops.push(Op::Write("/d/c", 4096, 10));
    ops
}

/// Name of 255 bytes, which takes 32 slots.
macro_rules! long_name {
    ($first:literal) => {
        concat!(
            "/full/",
            $first,
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "aa",
        )
    };
}

/// Names that leave twelve free slots in an inline directory.
const FULL: [&str; 5] = [
    long_name!("a"),
    long_name!("b"),
    long_name!("c"),
    long_name!("d"),
    long_name!("e"),
];
/// Name of thirteen slots, one more than the inline directory has free.
const FULL_NEW: &str = "/full/this name needs thirteen slots, which is one more than there are left in the inode of its directory, yes";

/// Sequences in which an operation depends on another that is not durable yet. Each runs with every persistence after
/// its last operation, and between its operations.
pub fn dependent() -> Vec<Vec<Op>> {
    use Rename::{Exchange, Replace, Whiteout};
    let rename = Op::Rename;
    vec![
        // A directory that is not empty in the checkpoint gives its name to a file.
        vec![Op::Unlink("/g/x"), Op::Rmdir("/g"), Op::Create("/g")],
        vec![
            rename("/g/x", "/n", Replace),
            Op::Rmdir("/g"),
            Op::Create("/g"),
            Op::Write("/g", 0, 5000),
        ],
        vec![
            rename("/g/x", "/n", Replace),
            rename("/e", "/g", Replace),
            Op::Rmdir("/g"),
            Op::Create("/g"),
        ],
        // A number that is freed during a checkpoint is not free at its end.
        vec![
            Op::Chmod("/b", 0o600),
            Op::Unlink("/a"),
            Op::Chmod("/x", 0o600),
            Op::Create("/n"),
        ],
        // A name moves to another inode, and its first owner survives.
        vec![Op::Link("/a", "/l"), Op::Unlink("/a"), Op::Create("/a")],
        vec![
            rename("/a", "/n", Replace),
            Op::Create("/a"),
            Op::Write("/a", 0, 4100),
        ],
        vec![
            rename("/a", "/b", Exchange),
            Op::Unlink("/a"),
            Op::Create("/a"),
        ],
        vec![
            rename("/a", "/n", Whiteout),
            Op::Unlink("/a"),
            Op::Create("/a"),
        ],
        vec![
            Op::Link("/b", "/l"),
            rename("/a", "/b", Replace),
            Op::Unlink("/b"),
            Op::Create("/b"),
        ],
        // A name moves to another inode, and its first owner is freed.
        vec![
            Op::Create("/n"),
            Op::Write("/n", 0, 10),
            Op::Unlink("/n"),
            Op::Create("/n"),
            Op::Write("/n", 0, 9000),
        ],
        vec![
            Op::Unlink("/big"),
            Op::Create("/big"),
            Op::Write("/big", 0, 9000),
        ],
        vec![
            Op::Unlink("/x"),
            Op::Create("/x"),
            Op::Unlink("/d/x"),
            Op::Create("/d/x"),
        ],
        // A file in a directory that is new or was moved.
        vec![
            Op::Mkdir("/m"),
            Op::Create("/m/n"),
            Op::Write("/m/n", 0, 100),
        ],
        vec![
            rename("/d", "/m", Replace),
            Op::Create("/m/n"),
            Op::Write("/m/n", 0, 100),
        ],
        vec![
            Op::Create("/g/n"),
            rename("/g", "/m", Replace),
            Op::Write("/m/n", 0, 100),
        ],
        // Nodes that are created and freed between fsyncs.
        vec![
            Op::Truncate("/big", 4096),
            Op::Write("/big", 290 * 4096, 10),
            Op::Truncate("/big", 0),
            Op::Write("/big", 962 * 4096, 10),
        ],
        vec![
            Op::Write("/big", 962 * 4096, 10),
            Op::Write("/big", 2000 * 4096, 10),
            Op::Truncate("/big", 963 * 4096),
        ],
        vec![
            Op::RemoveXattr("/x"),
            Op::SetXattr("/x", 2000),
            Op::SetXattr("/x", 5),
            Op::SetXattr("/x", 3000),
        ],
        vec![
            Op::Truncate("/b", 0),
            Op::Write("/b", 0, 10),
            Op::Write("/b", 0, 5000),
            Op::Unlink("/b"),
        ],
        // Snapshots around changes.
        vec![
            Op::Snapshot("s"),
            Op::Unlink("/big"),
            Op::Snapshot("t"),
            Op::DeleteSnapshot("s"),
        ],
        vec![
            Op::Write("/b", 0, 9000),
            Op::Snapshot("s"),
            Op::Write("/b", 0, 9000),
            Op::DeleteSnapshot("s"),
        ],
    ]
}

/// Operations that workloads consist of. Some are possible only after others: sequences with an impossible one are
/// skipped.
pub fn alphabet() -> Vec<Op> {
    use Allocate::{KeepSize, PunchHole, Reserve, ZeroRange};
    vec![
        Op::Create("/n"),
        Op::Create("/d/n"),
        Op::Create("/a"),
        Op::Create("/d/c"),
        Op::Create("/m/n"),
        Op::Create(FULL_NEW),
        Op::Unlink(FULL[2]),
        Op::Mkdir("/m"),
        Op::Symlink("/s"),
        Op::Tmpfile("/n"),
        Op::Link("/b", "/l"),
        Op::Link("/n", "/d/l"),
        Op::Link("/a", "/d/n"),
        Op::Unlink("/a"),
        Op::Unlink("/b"),
        Op::Unlink("/big"),
        Op::Unlink("/n"),
        Op::Unlink("/x"),
        Op::Unlink("/d/c"),
        Op::Rmdir("/e"),
        Op::Rename("/a", "/n", Rename::Replace),
        Op::Rename("/a", "/b", Rename::Replace),
        Op::Rename("/n", "/a", Rename::Replace),
        Op::Rename("/n", "/d/n", Rename::NoReplace),
        Op::Rename("/d/c", "/a", Rename::Replace),
        Op::Rename("/d", "/e", Rename::Replace),
        Op::Rename("/d", "/e/d", Rename::Replace),
        Op::Rename("/a", "/d/c", Rename::Exchange),
        Op::Rename("/d", "/e", Rename::Exchange),
        Op::Rename("/a", "/n", Rename::Whiteout),
        Op::Rename("/d/x", "/b", Rename::Whiteout),
        Op::Write("/a", 20, 50),
        Op::Write("/a", 50, 6000),
        Op::Write("/b", 4096, 4096),
        Op::Write("/b", 9000, 6000),
        Op::Write("/d/c", 100, 4500),
        Op::Write("/n", 0, 30),
        Op::Write("/n", 0, 5000),
        Op::Write("/big", 290 * 4096 + 5, 4096),
        Op::Write("/big", 700 * 4096, 10),
        Op::Write("/big", 1000 * 4096, 10),
        Op::Truncate("/a", 7),
        Op::Truncate("/b", 100),
        Op::Truncate("/b", 0),
        Op::Truncate("/a", 20000),
        Op::Truncate("/big", 295 * 4096 + 100),
        Op::Truncate("/big", 4096),
        Op::Allocate("/b", PunchHole, 100, 5000),
        Op::Allocate("/big", PunchHole, 290 * 4096, 4096),
        Op::Allocate("/b", ZeroRange { keep_size: false }, 4000, 9000),
        Op::Allocate("/a", Reserve, 0, 20000),
        Op::Allocate("/b", KeepSize, 8192, 20000),
        Op::SetXattr("/a", 20),
        Op::SetXattr("/a", 1500),
        Op::SetXattr("/x", 10),
        Op::RemoveXattr("/x"),
        Op::Chmod("/d/c", 0o711),
        Op::Snapshot("s"),
        Op::Snapshot("t"),
        Op::DeleteSnapshot("s"),
        Op::DeleteSnapshot("old"),
    ]
}
