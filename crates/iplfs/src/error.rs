//! Errors of the crate, by the cases that callers distinguish.

use std::fmt;
use std::io;

/// Result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Error of an operation on a volume.
#[derive(Debug)]
pub enum Error {
    /// The bytes of the volume contradict the specification. The text names the place and what was expected.
    Corrupt(String),
    /// The volume is sound but needs a feature that this version does not support.
    Unsupported(String),
    /// A limit of the format or of the options was reached.
    Limit(String),
    /// The device failed. The text names the operation.
    Io(io::Error, String),
    /// The arguments of the call are not valid.
    Usage(String),
    /// POSIX error, such as "no such entry".
    Posix(Errno),
}

/// POSIX errors that operations on a volume return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errno {
    /// ENOENT: no such entry.
    NotFound,
    /// EEXIST: the name is taken.
    Exists,
    /// ENOTDIR: a directory is required.
    NotDirectory,
    /// EISDIR: not permitted for a directory.
    IsDirectory,
    /// ENOTEMPTY: the directory has entries.
    NotEmpty,
    /// ENOSPC: the live blocks would exceed the quota.
    NoSpace,
    /// ENOSPC: the host has no free space, although the quota is not exhausted.
    HostFull,
    /// ENAMETOOLONG: a name is longer than 255 bytes.
    NameTooLong,
    /// EINVAL: invalid combination of arguments.
    Invalid,
    /// EMLINK: the link count would overflow.
    TooManyLinks,
    /// ENODATA: no such extended attribute.
    NoAttribute,
    /// EPERM: never permitted for this type of inode.
    NotPermitted,
    /// EFBIG: the offset exceeds the largest file size.
    FileTooBig,
    /// E2BIG: the extended attributes of one object do not fit.
    TooBig,
    /// EROFS: the volume was mounted read-only.
    ReadOnly,
    /// ESTALE: the inode number is not in use.
    Stale,
    /// ENXIO: no data (or hole) at or after the offset.
    NoSuchOffset,
    /// EOPNOTSUPP: not offered by this filesystem.
    NotSupported,
    /// EBUSY: the snapshot is open.
    Busy,
    /// EDQUOT: the quota of the owner is exhausted.
    Quota,
}

impl Errno {
    /// Error number on Linux.
    pub fn code(self) -> i32 {
        match self {
            Errno::NotFound => 2,
            Errno::Exists => 17,
            Errno::NotDirectory => 20,
            Errno::IsDirectory => 21,
            Errno::NotEmpty => 39,
            Errno::NoSpace | Errno::HostFull => 28,
            Errno::NameTooLong => 36,
            Errno::Invalid => 22,
            Errno::TooManyLinks => 31,
            Errno::NoAttribute => 61,
            Errno::NotPermitted => 1,
            Errno::FileTooBig => 27,
            Errno::TooBig => 7,
            Errno::ReadOnly => 30,
            Errno::Stale => 116,
            Errno::NoSuchOffset => 6,
            Errno::NotSupported => 95,
            Errno::Busy => 16,
            Errno::Quota => 122,
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Errno::NotFound => "no such entry",
            Errno::Exists => "the name is taken",
            Errno::NotDirectory => "is not a directory",
            Errno::IsDirectory => "is a directory",
            Errno::NotEmpty => "the directory is not empty",
            Errno::NoSpace => "no space left in the volume",
            Errno::HostFull => "no space left on the host of the volume",
            Errno::NameTooLong => "the name is too long",
            Errno::Invalid => "invalid argument",
            Errno::TooManyLinks => "has too many links",
            Errno::NoAttribute => "no such extended attribute",
            Errno::NotPermitted => "is not permitted",
            Errno::FileTooBig => "the file is too large",
            Errno::TooBig => "the extended attributes are too large",
            Errno::ReadOnly => "the volume is read-only",
            Errno::Stale => "the inode is gone",
            Errno::NoSuchOffset => "no data or hole after this offset",
            Errno::NotSupported => "is not supported",
            Errno::Busy => "is in use",
            Errno::Quota => "the limit of a user, group or project is reached",
        })
    }
}

impl Error {
    /// Error number that a mount reports. Damage and device failures are both EIO, as in other filesystems. A full
    /// device is ENOSPC.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Posix(errno) => errno.code(),
            Error::Io(e, _) => match e.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => 28,
                _ => 5,
            },
            Error::Corrupt(_) => 5,
            Error::Unsupported(_) => 95,
            Error::Limit(_) => 28,
            Error::Usage(_) => 22,
        }
    }

    pub(crate) fn corrupt(place: impl fmt::Display, what: impl fmt::Display) -> Self {
        Error::Corrupt(format!("{place}: {what}"))
    }

    pub(crate) fn io(e: io::Error, doing: impl fmt::Display) -> Self {
        Error::Io(e, doing.to_string())
    }

    /// Returns whether the error may leave a half-done change in memory.
    pub(crate) fn is_fatal_midway(&self) -> bool {
        !matches!(self, Error::Posix(_) | Error::Usage(_))
    }
}

/// Returns the error number that a mount reports, as [`Error::errno`].
impl From<Error> for rustix::io::Errno {
    fn from(error: Error) -> Self {
        Self::from_raw_os_error(error.errno())
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Error::Posix(errno)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Corrupt(what) => write!(f, "corrupt volume: {what}"),
            Error::Unsupported(what) => write!(f, "unsupported volume: {what}"),
            Error::Limit(what) => write!(f, "limit reached: {what}"),
            Error::Io(e, doing) => write!(f, "{doing}: {e}"),
            Error::Usage(what) => write!(f, "{what}"),
            Error::Posix(errno) => write!(f, "{errno} (errno {})", errno.code()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io(e, _) => Some(e),
            _ => None,
        }
    }
}
