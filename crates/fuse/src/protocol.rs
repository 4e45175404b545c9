//! Structures and constants of the kernel's FUSE protocol.
//!
//! ```text
//! request   in header 40 | structure of the operation, if it has one | names, data
//! reply     out header 16 | structures, data
//! ```
//!
//! Numbers are in native byte order. Source: the kernel's public header `uapi/linux/fuse.h`, protocol 7.45. Servers
//! and kernels of different minor versions use the smaller one.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// Newest minor version that this server implements.
pub const MINOR: u32 = 45;
/// Oldest minor version that is served. Its structures have the lengths below.
pub const MINOR_MIN: u32 = 23;
/// Node number of the root directory.
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
    /// Header of every request.
    InHeader {
        /// Length of the request. Unit: bytes.
        len: u32,
        /// Operation code, see [`op`].
        opcode: u32,
        /// Identifier of the request, repeated in its reply.
        unique: u64,
        /// Node that the operation applies to.
        node: u64,
        /// User of the calling process.
        uid: u32,
        /// Group of the calling process.
        gid: u32,
        /// Identifier of the calling process; 0 for the kernel.
        pid: u32,
        /// Length of extensions at the end. Unit: 8 bytes.
        total_extlen: u16,
        /// Padding, which is always zero.
        padding: u16,
    } = 40

    /// Header of every reply.
    OutHeader {
        /// Length of the reply. Unit: bytes.
        len: u32,
        /// Negated error number, or 0.
        error: i32,
        /// Identifier of the request.
        unique: u64,
    } = 16

    /// Header of an io_uring slot: the parts of a request and its reply that are not in the payload.
    RingHeader {
        /// [`InHeader`] of the request, replaced by the [`OutHeader`] of the reply.
        in_out: [u64; 16],
        /// Structure of the operation.
        op: [u64; 16],
        /// Flags, none of which is used.
        flags: u64,
        /// Identifier that commits the reply.
        commit: u64,
        /// Length of the payload. Unit: bytes.
        payload_len: u32,
        /// Padding, which is always zero.
        padding: u32,
        /// Reserved bytes, which are always zero.
        reserved: u64,
    } = 288

    /// INIT request: version and features of the kernel.
    InitIn {
        /// Major version of the kernel.
        major: u32,
        /// Minor version of the kernel.
        minor: u32,
        /// Maximum readahead of the kernel. Unit: bytes.
        max_readahead: u32,
        /// Features: bits 0 to 31 of [`init`].
        flags: u32,
    } = 16

    /// INIT reply: version and features that the server accepts.
    InitOut {
        /// Major version of the server.
        major: u32,
        /// Minor version that both sides use.
        minor: u32,
        /// Maximum readahead. Unit: bytes.
        max_readahead: u32,
        /// Negotiated features: bits 0 to 31 of [`init`].
        flags: u32,
        /// Maximum number of background requests.
        max_background: u16,
        /// Number of background requests from which the device counts as congested.
        congestion_threshold: u16,
        /// Longest write. Unit: bytes.
        max_write: u32,
        /// Granularity of times. Unit: nanoseconds.
        time_gran: u32,
        /// Longest read or write. Unit: pages of 4 KiB.
        max_pages: u16,
        /// Alignment of DAX mappings.
        map_alignment: u16,
        /// Negotiated features: bits 32 to 63 of [`init`].
        flags2: u32,
        /// Maximum stacking depth for passthrough.
        max_stack_depth: u32,
        /// Timeout of requests. Unit: seconds.
        request_timeout: u16,
        /// Reserved bytes, which are always zero.
        unused: [u16; 11],
    } = 64

    /// Notification that stores data in the page cache. Its [`OutHeader`] has [`NOTIFY_STORE`] as the error.
    NotifyStore {
        /// Node of the file.
        node: u64,
        /// Start of the data in the file. Unit: bytes.
        offset: u64,
        /// Length of the data. Unit: bytes.
        size: u32,
        /// Padding, which is always zero.
        padding: u32,
    } = 24

    /// Notification that makes the kernel write back and drop pages. Its [`OutHeader`] has [`NOTIFY_INVAL_INODE`] as
    /// the error.
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
        /// Inode number that `stat` returns.
        ino: u64,
        /// Length of the content. Unit: bytes.
        size: u64,
        /// Allocated space. Unit: 512 bytes.
        blocks: u64,
        /// Time of the last access. Unit: seconds since 1970, in two's complement.
        atime: u64,
        /// Time of the last modification, as `atime`.
        mtime: u64,
        /// Time of the last change, as `atime`.
        ctime: u64,
        /// Fraction of `atime`. Unit: nanoseconds.
        atime_nsec: u32,
        /// Fraction of `mtime`. Unit: nanoseconds.
        mtime_nsec: u32,
        /// Fraction of `ctime`. Unit: nanoseconds.
        ctime_nsec: u32,
        /// File type and permissions.
        mode: u32,
        /// Number of hard links.
        nlink: u32,
        /// User that owns the file.
        uid: u32,
        /// Group that owns the file.
        gid: u32,
        /// Device number in the kernel's 32-bit form.
        rdev: u32,
        /// Preferred length of reads. Unit: bytes.
        blksize: u32,
        /// Attribute flags, all unused.
        flags: u32,
    } = 88

    /// Reply to LOOKUP, and entries of READDIRPLUS.
    EntryOut {
        /// Node number. 0 means no such name (LOOKUP), or no attributes (READDIRPLUS).
        node: u64,
        /// Distinguishes two uses of one node number.
        generation: u64,
        /// Validity of the name. Unit: seconds.
        entry_valid: u64,
        /// Validity of the attributes. Unit: seconds.
        attr_valid: u64,
        /// Fraction of `entry_valid`. Unit: nanoseconds.
        entry_valid_nsec: u32,
        /// Fraction of `attr_valid`. Unit: nanoseconds.
        attr_valid_nsec: u32,
        /// Attributes of the node.
        attr: Attr,
    } = 128

    /// Reply to GETATTR: attributes and their validity.
    AttrOut {
        /// Validity of the attributes. Unit: seconds.
        valid: u64,
        /// Fraction of `valid`. Unit: nanoseconds.
        valid_nsec: u32,
        /// Padding, which is always zero.
        dummy: u32,
        /// Attributes of the node.
        attr: Attr,
    } = 104

    /// Request READ, READDIR or READDIRPLUS.
    ReadIn {
        /// Handle of the open file.
        fh: u64,
        /// Start of a read in bytes; for directories the `off` of an entry.
        offset: u64,
        /// Maximum length of the reply. Unit: bytes.
        size: u32,
        /// Flags of the read.
        read_flags: u32,
        /// Owner of file locks.
        lock_owner: u64,
        /// Flags of the open file.
        flags: u32,
        /// Padding, which is always zero.
        padding: u32,
    } = 40

    /// Directory entry without its name. The name follows and is padded to 8 bytes.
    Dirent {
        /// Inode number that `readdir` returns.
        ino: u64,
        /// Offset at which a listing continues after this entry.
        off: u64,
        /// Length of the name. Unit: bytes.
        name_len: u32,
        /// File type as in `d_type`.
        kind: u32,
    } = 24

    /// Request GETXATTR or LISTXATTR.
    GetxattrIn {
        /// Size of the client's buffer; 0 requests the length of the value. Unit: bytes.
        size: u32,
        /// Padding, which is always zero.
        padding: u32,
    } = 8

    /// Reply to STATFS: the size of the filesystem.
    StatfsOut {
        /// Total number of blocks.
        blocks: u64,
        /// Number of free blocks.
        bfree: u64,
        /// Number of free blocks for unprivileged users.
        bavail: u64,
        /// Total number of inodes.
        files: u64,
        /// Number of free inodes.
        ffree: u64,
        /// Preferred block size. Unit: bytes.
        bsize: u32,
        /// Longest name. Unit: bytes.
        namelen: u32,
        /// Size of a block in `blocks`. Unit: bytes.
        frsize: u32,
        /// Padding, which is always zero.
        padding: u32,
        /// Reserved bytes, which are always zero.
        spare: [u32; 6],
    } = 80

    /// Request LSEEK for data or holes.
    LseekIn {
        /// Handle of the open file.
        fh: u64,
        /// Start of the search. Unit: bytes.
        offset: u64,
        /// Target of the search: [`SEEK_DATA`] or [`SEEK_HOLE`].
        whence: u32,
        /// Padding, which is always zero.
        padding: u32,
    } = 24

    /// Reply to LSEEK: an offset.
    LseekOut {
        /// Position of the data or hole. Unit: bytes.
        offset: u64,
    } = 8
}

/// Operation codes of all requests.
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

    /// Returns the name of an operation in lower case, or "other".
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

/// Features that INIT negotiates, as bits of a 64-bit number.
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
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Notification code of a [`NotifyInvalInode`].
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Notification code of a [`NotifyStore`].
pub const NOTIFY_STORE: i32 = 4;

/// Value of `whence` for the next byte of data.
pub const SEEK_DATA: u32 = 3;
/// Value of `whence` for the next hole.
pub const SEEK_HOLE: u32 = 4;
