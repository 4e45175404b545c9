//! Structures and constants of the kernel's FUSE protocol.
//!
//! ```text
//! request   in header 40 | structure of the operation, if it has one | names, data
//! reply     out header 16 | structures, data
//! ```
//!
//! Numbers are in native byte order. Source: the kernel's public header `uapi/linux/fuse.h`, protocol 7.45. Servers
//! and kernels of different minor versions use the smaller one.

use zerocopy::native_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// Newest minor version that this server implements.
pub const MINOR: u32 = 45;
/// Oldest minor version that is served. Its structures have the lengths below.
pub const MINOR_MIN: u32 = 23;
/// Maximum length of a request through `/dev/fuse`. Unit: pages of 4 KiB.
pub const MAX_PAGES: u16 = 256;
/// Maximum length of a request through io_uring. Each slot has memory for one. Shorter requests would split clusters,
/// which are then decoded and copied in parts. Unit: pages of 4 KiB.
pub const RING_MAX_PAGES: u16 = 128;
/// Longest validity that the kernel accepts. Unit: seconds.
pub const FOREVER: u64 = i64::MAX as u64;
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

    /// INIT request: version and features of the kernel. Bits 32 to 63 of the features may follow.
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

    /// Request STATX, which the kernel sends if a caller asks for the time of creation.
    StatxIn {
        /// Flags of the request.
        getattr_flags: u32,
        /// Padding, which is always zero.
        reserved: u32,
        /// Handle of the open file.
        fh: u64,
        /// Flags of the call of statx(2).
        flags: u32,
        /// Fields that the caller asks for, see [`statx`].
        mask: u32,
    } = 24

    /// Time in a reply to STATX.
    StatxTime {
        /// Seconds since 1970, in two's complement.
        seconds: u64,
        /// Fraction of the second. Unit: nanoseconds.
        nanoseconds: u32,
        /// Padding, which is always zero.
        reserved: u32,
    } = 16

    /// Reply to STATX: attributes with the time of creation, and their validity.
    StatxOut {
        /// Validity of the attributes. Unit: seconds.
        valid: u64,
        /// Fraction of `valid`. Unit: nanoseconds.
        valid_nsec: u32,
        /// Flags, none of which is used.
        flags: u32,
        /// Reserved bytes, which are always zero.
        spare: [u64; 2],
        /// Fields that are present, see [`statx`].
        mask: u32,
        /// Preferred length of reads. Unit: bytes.
        blksize: u32,
        /// Attribute flags, all unused.
        attributes: u64,
        /// Number of hard links.
        nlink: u32,
        /// User that owns the file.
        uid: u32,
        /// Group that owns the file.
        gid: u32,
        /// File type and permissions.
        mode: u16,
        /// Padding, which is always zero.
        padding: u16,
        /// Inode number that `stat` returns.
        ino: u64,
        /// Length of the content. Unit: bytes.
        size: u64,
        /// Allocated space. Unit: 512 bytes.
        blocks: u64,
        /// Attribute flags that the filesystem has.
        attributes_mask: u64,
        /// Time of the last access.
        atime: StatxTime,
        /// Time at which the file was created.
        btime: StatxTime,
        /// Time of the last change.
        ctime: StatxTime,
        /// Time of the last modification.
        mtime: StatxTime,
        /// Major number of a device node.
        rdev_major: u32,
        /// Minor number of a device node.
        rdev_minor: u32,
        /// Device number of the filesystem, which the kernel fills in.
        dev: [u32; 2],
        /// Reserved bytes, which are always zero.
        unused: [u64; 14],
    } = 288

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

    /// Request MKNOD: the fields before the name.
    MknodIn {
        /// File type and permissions.
        mode: u32,
        /// Device number in the kernel's 32-bit form.
        rdev: u32,
        /// Permissions that the caller's umask removes.
        umask: u32,
        /// Padding, which is always zero.
        padding: u32,
    } = 16

    /// Request MKDIR: the fields before the name.
    MkdirIn {
        /// Permissions of the directory.
        mode: u32,
        /// Permissions that the caller's umask removes.
        umask: u32,
    } = 8

    /// Request CREATE or TMPFILE: the fields before the name.
    CreateIn {
        /// Flags of the open file.
        flags: u32,
        /// Permissions of the file.
        mode: u32,
        /// Permissions that the caller's umask removes.
        umask: u32,
        /// Flags of the request.
        open_flags: u32,
    } = 16

    /// Request RENAME2: the fields before the names.
    Rename2In {
        /// Directory of the new name.
        new_dir: u64,
        /// Flags of renameat2(2), such as `RENAME_EXCHANGE`.
        flags: u32,
        /// Padding, which is always zero.
        padding: u32,
    } = 16

    /// Request SETXATTR: the fields before the name and the value.
    SetxattrIn {
        /// Length of the value. Unit: bytes.
        size: u32,
        /// Flags of setxattr(2), such as `XATTR_CREATE`.
        flags: u32,
        /// Flags of the request: [`SETXATTR_ACL_KILL_SGID`].
        setxattr_flags: u32,
        /// Padding, which is always zero.
        padding: u32,
    } = 16

    /// Request WRITE. The data follows.
    WriteIn {
        /// Handle of the open file.
        fh: u64,
        /// Start of the data in the file. Unit: bytes.
        offset: u64,
        /// Number of bytes that follow.
        size: u32,
        /// Flags of the write: [`WRITE_CACHE`], [`WRITE_KILL_SUIDGID`].
        write_flags: u32,
        /// Owner of file locks.
        lock_owner: u64,
        /// Flags of the open file.
        flags: u32,
        /// Padding, which is always zero.
        padding: u32,
    } = 40

    /// Request SETATTR: attributes to set.
    SetattrIn {
        /// Fields that are set, see [`fattr`].
        valid: u32,
        /// Padding, which is always zero.
        padding: u32,
        /// Handle of the open file.
        fh: u64,
        /// Length of the content. Unit: bytes.
        size: u64,
        /// Owner of file locks.
        lock_owner: u64,
        /// Time of the last access, last modification and last change, as in [`Attr`].
        seconds: [u64; 3],
        /// Fractions of these times. Unit: nanoseconds.
        nanoseconds: [u32; 3],
        /// File type and permissions.
        mode: u32,
        /// Padding, which is always zero.
        unused4: u32,
        /// User that owns the file.
        uid: u32,
        /// Group that owns the file.
        gid: u32,
        /// Padding, which is always zero.
        unused5: u32,
    } = 88

    /// Request FALLOCATE: a range and what becomes of it.
    FallocateIn {
        /// Handle of the open file.
        fh: u64,
        /// Start of the range. Unit: bytes.
        offset: u64,
        /// Length of the range. Unit: bytes.
        length: u64,
        /// Operation, as of fallocate(2).
        mode: u32,
        /// Padding, which is always zero.
        padding: u32,
    } = 32

    /// Request IOCTL. The data follows.
    IoctlIn {
        /// Handle of the open file.
        fh: u64,
        /// Flags of the request.
        flags: u32,
        /// Command of ioctl(2).
        command: u32,
        /// Argument of ioctl(2).
        argument: u64,
        /// Length of the data. Unit: bytes.
        in_size: u32,
        /// Maximum length of data in the reply. Unit: bytes.
        out_size: u32,
    } = 32

    /// Reply to CREATE and TMPFILE: the entry, and a file handle, which nothing here uses.
    CreateOut {
        /// Entry of the new file.
        entry: EntryOut,
        /// Handle, flags and padding.
        open: [u64; 2],
    } = 144

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

/// Entry of BATCH_FORGET: a node, and a number of look-ups that the kernel forgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ForgetOne {
    /// Node that is forgotten.
    pub node: U64,
    /// Number of look-ups that are forgotten.
    pub lookups: U64,
}

/// Replies to CREATE and TMPFILE have no file handle.
impl From<EntryOut> for CreateOut {
    fn from(entry: EntryOut) -> Self {
        Self {
            entry,
            open: [0; 2],
        }
    }
}

/// Operation codes of all requests.
pub mod op {
    #![allow(missing_docs, reason = "the names are the kernel's")]

    macro_rules! opcodes {
        ($($code:ident $name:literal = $number:literal)*) => {
            $(pub const $code: u32 = $number;)*

            /// Returns the name of an operation in lower case, or "other".
            pub fn name(opcode: u32) -> &'static str {
                match opcode {
                    $($code => $name,)*
                    _ => "other",
                }
            }
        };
    }

    opcodes! {
        LOOKUP "lookup" = 1
        FORGET "forget" = 2
        GETATTR "getattr" = 3
        SETATTR "setattr" = 4
        READLINK "readlink" = 5
        SYMLINK "symlink" = 6
        MKNOD "mknod" = 8
        MKDIR "mkdir" = 9
        UNLINK "unlink" = 10
        RMDIR "rmdir" = 11
        RENAME "rename" = 12
        LINK "link" = 13
        OPEN "open" = 14
        READ "read" = 15
        WRITE "write" = 16
        STATFS "statfs" = 17
        RELEASE "release" = 18
        FSYNC "fsync" = 20
        SETXATTR "setxattr" = 21
        GETXATTR "getxattr" = 22
        LISTXATTR "listxattr" = 23
        REMOVEXATTR "removexattr" = 24
        FLUSH "flush" = 25
        INIT "init" = 26
        OPENDIR "opendir" = 27
        READDIR "readdir" = 28
        RELEASEDIR "releasedir" = 29
        FSYNCDIR "fsyncdir" = 30
        CREATE "create" = 35
        INTERRUPT "interrupt" = 36
        DESTROY "destroy" = 38
        IOCTL "ioctl" = 39
        BATCH_FORGET "batch_forget" = 42
        FALLOCATE "fallocate" = 43
        READDIRPLUS "readdirplus" = 44
        RENAME2 "rename2" = 45
        LSEEK "lseek" = 46
        SYNCFS "syncfs" = 50
        TMPFILE "tmpfile" = 51
        STATX "statx" = 52
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

/// Fields of a reply to STATX.
pub mod statx {
    /// All fields that stat(2) reports.
    pub const BASIC_STATS: u32 = 0x7ff;
    /// Time at which the file was created.
    pub const BTIME: u32 = 0x800;
}

/// Fields that SETATTR sets.
pub mod fattr {
    #![allow(missing_docs, reason = "the names are the kernel's")]
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const LOCKOWNER: u32 = 1 << 9;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// WRITE flag: write-back of the page cache. The kernel cleared privileges when the page was written.
pub const WRITE_CACHE: u32 = 1 << 0;
/// WRITE flag: the writer may not keep set-user-id and set-group-id.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// SETXATTR flag: the access list clears set-group-id.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// Notification code of a [`NotifyInvalInode`].
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Notification code of a [`NotifyStore`].
pub const NOTIFY_STORE: i32 = 4;

/// Flag of GETATTR: the file handle is stated.
pub const GETATTR_FH: u32 = 1;

/// Value of `whence` for the next byte of data.
pub const SEEK_DATA: u32 = 3;
/// Value of `whence` for the next hole.
pub const SEEK_HOLE: u32 = 4;
