//! The kernel's FUSE protocol: what a request and a reply look like in bytes.
//!
//! ```text
//! request   in header 40 | structure of the operation, if it has one | names, data
//! reply     out header 16 | structures, data
//! ```
//!
//! Numbers are in the machine's own order. Source: the kernel's public header `uapi/linux/fuse.h`, protocol 7.45; servers
//! and kernels of different minor versions agree on the smaller one.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// Newest minor version that is known here.
pub const MINOR: u32 = 45;
/// Oldest minor version that is served: its structures have the lengths below.
pub const MINOR_MIN: u32 = 23;
/// The node that is the root.
pub const ROOT: u64 = 1;

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty),* $(,)? } = $len:literal)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $len);
    )*};
}

wire! {
    /// In front of every request.
    InHeader {
        /// Of the whole request. Unit: bytes.
        len: u32,
        /// What is asked: see [`op`].
        opcode: u32,
        /// Names the request in its reply.
        unique: u64,
        /// What it is about.
        node: u64,
        /// Of the process that asks.
        uid: u32,
        /// Of the process that asks.
        gid: u32,
        /// Of the process that asks.
        pid: u32,
        /// Length of extensions at the end. Unit: 8 bytes.
        total_extlen: u16,
        /// Nothing.
        padding: u16,
    } = 40

    /// In front of every reply.
    OutHeader {
        /// Of the whole reply. Unit: bytes.
        len: u32,
        /// 0, or an error number, negated.
        error: i32,
        /// Of the request.
        unique: u64,
    } = 16

    /// A request and its reply in a ring of io_uring: what is not in the payload.
    RingHeader {
        /// [`InHeader`], then [`OutHeader`] in its place.
        in_out: [u64; 16],
        /// The operation's structure.
        op: [u64; 16],
        /// Nothing.
        flags: u64,
        /// Names the request in its reply's commit.
        commit: u64,
        /// Unit: bytes.
        payload_len: u32,
        /// Nothing.
        padding: u32,
        /// Nothing.
        reserved: u64,
    } = 288

    /// INIT, what the kernel has.
    InitIn {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
        /// Unit: bytes.
        max_readahead: u32,
        /// Bits 0 to 31 of [`init`].
        flags: u32,
    } = 16

    /// INIT, what the server takes.
    InitOut {
        /// Major version.
        major: u32,
        /// Minor version that both speak.
        minor: u32,
        /// Unit: bytes.
        max_readahead: u32,
        /// Bits 0 to 31 of [`init`].
        flags: u32,
        /// Requests that wait in the background.
        max_background: u16,
        /// From how many on the device counts as busy.
        congestion_threshold: u16,
        /// Longest write. Unit: bytes.
        max_write: u32,
        /// Granularity of times. Unit: nanoseconds.
        time_gran: u32,
        /// Longest read or write. Unit: pages of 4 KiB.
        max_pages: u16,
        /// For DAX.
        map_alignment: u16,
        /// Bits 32 to 63 of [`init`].
        flags2: u32,
        /// For passthrough.
        max_stack_depth: u32,
        /// Unit: seconds.
        request_timeout: u16,
        /// Nothing.
        unused: [u16; 11],
    } = 64

    /// A notice that the kernel shall keep data of a file; behind an [`OutHeader`] with [`NOTIFY_STORE`] as its error.
    NotifyStore {
        /// The file.
        node: u64,
        /// Unit: bytes.
        offset: u64,
        /// Unit: bytes.
        size: u32,
        /// Nothing.
        padding: u32,
    } = 24

    /// Notice that the kernel is to write back and drop pages of a file; follows an [`OutHeader`] with [`NOTIFY_INVAL_INODE`] as its error.
    NotifyInvalInode {
        /// Node id of the file.
        node: u64,
        /// Start of the range. Unit: bytes.
        offset: u64,
        /// Length of the range; 0 stands for everything from `offset` on. Unit: bytes.
        len: u64,
    } = 24

    /// Attributes of a node.
    Attr {
        /// Number that `stat` shows.
        ino: u64,
        /// Unit: bytes.
        size: u64,
        /// Unit: 512 bytes.
        blocks: u64,
        /// Unit: seconds since 1970, as two's complement.
        atime: u64,
        /// As `atime`.
        mtime: u64,
        /// As `atime`.
        ctime: u64,
        /// Unit: nanoseconds.
        atime_nsec: u32,
        /// Unit: nanoseconds.
        mtime_nsec: u32,
        /// Unit: nanoseconds.
        ctime_nsec: u32,
        /// Type and permissions.
        mode: u32,
        /// Link count.
        nlink: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Device number in the kernel's 32-bit form.
        rdev: u32,
        /// Preferred length of reads. Unit: bytes.
        blksize: u32,
        /// Nothing that is used here.
        flags: u32,
    } = 88

    /// LOOKUP and entries of READDIRPLUS.
    EntryOut {
        /// 0: there is no such name (LOOKUP), or nothing is said of it (READDIRPLUS).
        node: u64,
        /// Tells two uses of one node number apart.
        generation: u64,
        /// How long the name is valid. Unit: seconds.
        entry_valid: u64,
        /// How long the attributes are valid. Unit: seconds.
        attr_valid: u64,
        /// Unit: nanoseconds.
        entry_valid_nsec: u32,
        /// Unit: nanoseconds.
        attr_valid_nsec: u32,
        /// The attributes.
        attr: Attr,
    } = 128

    /// GETATTR.
    AttrOut {
        /// How long they are valid. Unit: seconds.
        valid: u64,
        /// Unit: nanoseconds.
        valid_nsec: u32,
        /// Nothing.
        dummy: u32,
        /// The attributes.
        attr: Attr,
    } = 104

    /// READ, READDIR, READDIRPLUS.
    ReadIn {
        /// Handle of an open file.
        fh: u64,
        /// Unit: bytes; for directories whatever the server said.
        offset: u64,
        /// Unit: bytes.
        size: u32,
        /// Flags.
        read_flags: u32,
        /// For locks.
        lock_owner: u64,
        /// Of the open file.
        flags: u32,
        /// Nothing.
        padding: u32,
    } = 40

    /// A directory entry, before its name, which is padded to 8 bytes.
    Dirent {
        /// Number that `readdir` shows.
        ino: u64,
        /// Where a listing goes on behind it.
        off: u64,
        /// Unit: bytes.
        name_len: u32,
        /// As in `d_type`.
        kind: u32,
    } = 24

    /// GETXATTR and LISTXATTR: room for the answer, or 0 to ask how long it is.
    GetxattrIn {
        /// Unit: bytes.
        size: u32,
        /// Nothing.
        padding: u32,
    } = 8

    /// STATFS.
    StatfsOut {
        /// All blocks.
        blocks: u64,
        /// Free ones.
        bfree: u64,
        /// Free ones for everybody.
        bavail: u64,
        /// All inodes.
        files: u64,
        /// Free ones.
        ffree: u64,
        /// Block size. Unit: bytes.
        bsize: u32,
        /// Longest name. Unit: bytes.
        namelen: u32,
        /// Unit of `blocks`. Unit: bytes.
        frsize: u32,
        /// Nothing.
        padding: u32,
        /// Nothing.
        spare: [u32; 6],
    } = 80

    /// LSEEK.
    LseekIn {
        /// Handle of an open file.
        fh: u64,
        /// Unit: bytes.
        offset: u64,
        /// [`SEEK_DATA`] or [`SEEK_HOLE`].
        whence: u32,
        /// Nothing.
        padding: u32,
    } = 24

    /// LSEEK.
    LseekOut {
        /// Unit: bytes.
        offset: u64,
    } = 8
}

/// Operations.
pub mod op {
    #![allow(missing_docs, reason = "the names are the kernel's")]
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;

    /// The name of an operation, in small letters.
    pub fn name(opcode: u32) -> &'static str {
        match opcode {
            LOOKUP => "lookup",
            FORGET => "forget",
            GETATTR => "getattr",
            SETATTR => "setattr",
            READLINK => "readlink",
            SYMLINK => "symlink",
            MKNOD => "mknod",
            MKDIR => "mkdir",
            UNLINK => "unlink",
            RMDIR => "rmdir",
            RENAME => "rename",
            LINK => "link",
            OPEN => "open",
            READ => "read",
            WRITE => "write",
            STATFS => "statfs",
            RELEASE => "release",
            FSYNC => "fsync",
            SETXATTR => "setxattr",
            GETXATTR => "getxattr",
            LISTXATTR => "listxattr",
            REMOVEXATTR => "removexattr",
            FLUSH => "flush",
            INIT => "init",
            OPENDIR => "opendir",
            READDIR => "readdir",
            RELEASEDIR => "releasedir",
            FSYNCDIR => "fsyncdir",
            CREATE => "create",
            INTERRUPT => "interrupt",
            DESTROY => "destroy",
            IOCTL => "ioctl",
            BATCH_FORGET => "batch_forget",
            FALLOCATE => "fallocate",
            READDIRPLUS => "readdirplus",
            RENAME2 => "rename2",
            LSEEK => "lseek",
            SYNCFS => "syncfs",
            TMPFILE => "tmpfile",
            STATX => "statx",
            _ => "other",
        }
    }
}

/// What INIT agrees on, as one number of 64 bits.
pub mod init {
    #![allow(missing_docs, reason = "the names are the kernel's")]
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Code of a [`NotifyInvalInode`].
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Code of a [`NotifyStore`].
pub const NOTIFY_STORE: i32 = 4;

/// `whence` for the next byte of data.
pub const SEEK_DATA: u32 = 3;
/// `whence` for the next hole.
pub const SEEK_HOLE: u32 = 4;
