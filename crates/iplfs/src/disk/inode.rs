//! Inode: attributes, small extended attributes, and either the content itself or the map of its blocks.
//!
//! ```text
//!    0 mode 4 │ nlink 4 │ uid 4 │ gid 4 │ size 8 │ blocks 8 │ atime 12 │ mtime 12 │ ctime 12 │ btime 12
//!   80 generation 4 │ flags 4 │ project 4 │ rdev 4 │ parent 4 │ xattr_nid 4 │ entries 8
//!  112 layout 1 │ depth 1 │ heat 1 │ name_len 1 │ xattr_len 2 │ inline_len 2 │ zero 8
//!  128 name 256 │ 384 xattr 208 │ 592 content 3464
//!  content, layout 0: file bytes    layout 1: directory slots    layout 2: 286 × {addr 8, crc 4} │ 6 × nid 4
//! ```
//!
//! `parent` and `name` state where the inode was created or last renamed to. Roll-forward needs them for a file that
//! is younger than the checkpoint, and a directory needs its parent for "..".

use super::dentry;
use super::slot::Slot;
use super::wire::{Get, Put};
use crate::disk::address::{BlockAddr, Nid};

/// Maximum length of inline content. Unit: bytes.
pub const INLINE_MAX: usize = 3464;
const _: () = assert!(dentry::INODE_BYTES <= INLINE_MAX);
/// Number of block slots in an inode.
pub const INODE_SLOTS: usize = 286;
/// Node numbers in an inode: two direct, two indirect, one double, one triple.
pub const INODE_NIDS: usize = 6;
/// Maximum length of inline extended attributes. Unit: bytes.
pub const INLINE_XATTR: usize = 208;

/// Point in time, as POSIX counts it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Time {
    /// Seconds since 1970, negative before.
    pub sec: i64,
    /// Nanoseconds of the second, below 10^9.
    pub nsec: u32,
}

/// Type bits of a mode, as in POSIX.
pub mod mode {
    /// Mask of the type bits.
    pub const TYPE: u32 = 0o170000;
    /// Type of a directory.
    pub const DIR: u32 = 0o040000;
    /// Type of a regular file.
    pub const FILE: u32 = 0o100000;
    /// Type of a symbolic link.
    pub const LINK: u32 = 0o120000;
    /// Type of a character device.
    pub const CHAR: u32 = 0o020000;
    /// Type of a block device.
    pub const BLOCK: u32 = 0o060000;
    /// Type of a named pipe.
    pub const FIFO: u32 = 0o010000;
    /// Type of a socket.
    pub const SOCKET: u32 = 0o140000;
}

/// Content of an inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// Inline data. Shorter than the file if the file ends with a hole.
    Inline(Vec<u8>),
    /// Inline directory: slots of entries.
    InlineDir(Box<[u8; INLINE_MAX]>),
    /// Map of data or directory blocks.
    Map(Box<BlockMap>),
}

/// Block map of an inode: slots and the roots of its node tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockMap {
    /// Slots of the first blocks of the file.
    pub slots: [Slot; INODE_SLOTS],
    /// Roots of the node tree, which map the blocks after those.
    pub nids: [Nid; INODE_NIDS],
}

impl BlockMap {
    /// Creates a map without blocks.
    pub fn empty() -> Box<Self> {
        Box::new(Self {
            slots: [Slot::HOLE; INODE_SLOTS],
            nids: [Nid::NONE; INODE_NIDS],
        })
    }
}

/// Inode of a file, directory or special file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    /// Type and permission bits, as POSIX defines them.
    pub mode: u32,
    /// Number of links. A directory counts "." and its subdirectories too.
    pub nlink: u32,
    /// User that owns the inode.
    pub uid: u32,
    /// Group that owns the inode.
    pub gid: u32,
    /// Length of the content. Unit: bytes.
    pub size: u64,
    /// Number of data blocks, reserved ones included, and of nodes other than the inode.
    pub blocks: u64,
    /// Time of the last read.
    pub atime: Time,
    /// Time of the last change of content.
    pub mtime: Time,
    /// Time of the last change of content or attributes.
    pub ctime: Time,
    /// Time at which the inode was created.
    pub btime: Time,
    /// Distinguishes two inodes that had the same number.
    pub generation: u32,
    /// Flags that applications set; the filesystem only stores them.
    pub flags: u32,
    /// Project that the inode is charged to.
    pub project: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Directory that contains `name`.
    pub parent: Nid,
    /// Node of the extended attributes, if they are not inline.
    pub xattr_nid: Nid,
    /// Number of entries of a directory, without "." and "..".
    pub entries: u64,
    /// Number of hash levels of a directory in blocks.
    pub depth: u8,
    /// Temperature of the data: 0 warm, 1 cold. Selects the log.
    pub heat: u8,
    /// Name under which the inode was created or last renamed.
    pub name: Vec<u8>,
    /// Inline extended attributes, encoded.
    pub xattr: Vec<u8>,
    /// Inline content, or the map of its blocks.
    pub content: Content,
}

impl Inode {
    /// Creates an inode without content.
    pub fn new(mode: u32, uid: u32, gid: u32, now: Time) -> Self {
        let content = if mode & mode::TYPE == mode::DIR {
            Content::InlineDir(Box::new([0; INLINE_MAX]))
        } else {
            Content::Inline(Vec::new())
        };
        Self {
            mode,
            nlink: 0,
            uid,
            gid,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            generation: 0,
            flags: 0,
            project: 0,
            rdev: 0,
            parent: Nid::NONE,
            xattr_nid: Nid::NONE,
            entries: 0,
            depth: 0,
            heat: 0,
            name: Vec::new(),
            xattr: Vec::new(),
            content,
        }
    }

    /// Group of a new inode in this directory, created by a caller of group `gid`.
    pub fn inherited_gid(&self, gid: u32) -> u32 {
        if self.mode & 0o2000 != 0 {
            self.gid
        } else {
            gid
        }
    }

    /// Returns whether the inode is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & mode::TYPE == mode::DIR
    }

    /// Returns whether the inode is a regular file.
    pub fn is_file(&self) -> bool {
        self.mode & mode::TYPE == mode::FILE
    }

    /// Returns whether the inode is a symbolic link.
    pub fn is_link(&self) -> bool {
        self.mode & mode::TYPE == mode::LINK
    }

    pub(crate) fn encode(&self, put: &mut Put<'_>) {
        for v in [self.mode, self.nlink, self.uid, self.gid] {
            put.u32(v);
        }
        put.u64(self.size);
        put.u64(self.blocks);
        for time in [self.atime, self.mtime, self.ctime, self.btime] {
            put.i64(time.sec);
            put.u32(time.nsec);
        }
        for v in [
            self.generation,
            self.flags,
            self.project,
            self.rdev,
            self.parent.0,
            self.xattr_nid.0,
        ] {
            put.u32(v);
        }
        put.u64(self.entries);
        let (layout, inline_len) = match &self.content {
            Content::Inline(bytes) => (0, bytes.len()),
            Content::InlineDir(_) => (1, 0),
            Content::Map(_) => (2, 0),
        };
        put.u8(layout);
        put.u8(self.depth);
        put.u8(self.heat);
        put.u8(self.name.len() as u8);
        put.u16(self.xattr.len() as u16);
        put.u16(inline_len as u16);
        put.u64(0);
        let mut name = [0; 256];
        name[..self.name.len()].copy_from_slice(&self.name);
        put.bytes(&name);
        let mut xattr = [0; INLINE_XATTR];
        xattr[..self.xattr.len()].copy_from_slice(&self.xattr);
        put.bytes(&xattr);
        match &self.content {
            Content::Inline(bytes) => put.bytes(bytes),
            Content::InlineDir(bytes) => put.bytes(&bytes[..]),
            Content::Map(map) => {
                for slot in &map.slots {
                    put.u64(slot.addr.0);
                    put.u32(slot.crc);
                }
                for nid in &map.nids {
                    put.u32(nid.0);
                }
            }
        }
    }

    pub(crate) fn decode(get: &mut Get<'_>) -> Result<Self, String> {
        let (mode, nlink, uid, gid) = (get.u32(), get.u32(), get.u32(), get.u32());
        let (size, blocks) = (get.u64(), get.u64());
        let mut times = [Time::default(); 4];
        for time in &mut times {
            *time = Time {
                sec: get.i64(),
                nsec: get.u32(),
            };
        }
        let (generation, flags, project, rdev) = (get.u32(), get.u32(), get.u32(), get.u32());
        let (parent, xattr_nid) = (Nid(get.u32()), Nid(get.u32()));
        let entries = get.u64();
        let (layout, depth, heat) = (get.u8(), get.u8(), get.u8());
        let name_len = usize::from(get.u8());
        let (xattr_len, inline_len) = (usize::from(get.u16()), usize::from(get.u16()));
        let _ = get.u64();
        if xattr_len > INLINE_XATTR || inline_len > INLINE_MAX {
            return Err(format!(
                "{xattr_len} bytes of attributes and {inline_len} of content in an inode"
            ));
        }
        let name = get.bytes(256)[..name_len].to_vec();
        let xattr = get.bytes(INLINE_XATTR)[..xattr_len].to_vec();
        let is_dir = mode & mode::TYPE == mode::DIR;
        let content = match layout {
            0 if !is_dir => Content::Inline(get.bytes(inline_len).to_vec()),
            1 if is_dir => Content::InlineDir(Box::new(get.array())),
            2 => {
                let mut map = BlockMap::empty();
                for slot in &mut map.slots {
                    *slot = Slot {
                        addr: BlockAddr(get.u64()),
                        crc: get.u32(),
                    };
                }
                for nid in &mut map.nids {
                    *nid = Nid(get.u32());
                }
                Content::Map(map)
            }
            other => return Err(format!("layout {other} for mode {mode:o}")),
        };
        if depth > dentry::DEPTH_MAX {
            return Err(format!(
                "directory depth {depth}, expected at most {}",
                dentry::DEPTH_MAX
            ));
        }
        let [atime, mtime, ctime, btime] = times;
        Ok(Self {
            mode,
            nlink,
            uid,
            gid,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            btime,
            generation,
            flags,
            project,
            rdev,
            parent,
            xattr_nid,
            entries,
            depth,
            heat,
            name,
            xattr,
            content,
        })
    }
}
