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
    /// Returns the error number on Linux, and the text.
    fn number_and_text(self) -> (i32, &'static str) {
        match self {
            Self::NotFound => (2, "no such entry"),
            Self::Exists => (17, "the name is taken"),
            Self::NotDirectory => (20, "is not a directory"),
            Self::IsDirectory => (21, "is a directory"),
            Self::NotEmpty => (39, "the directory is not empty"),
            Self::NoSpace => (28, "no space left in the volume"),
            Self::HostFull => (28, "no space left on the host of the volume"),
            Self::NameTooLong => (36, "the name is too long"),
            Self::Invalid => (22, "invalid argument"),
            Self::TooManyLinks => (31, "has too many links"),
            Self::NoAttribute => (61, "no such extended attribute"),
            Self::NotPermitted => (1, "is not permitted"),
            Self::FileTooBig => (27, "the file is too large"),
            Self::TooBig => (7, "the extended attributes are too large"),
            Self::ReadOnly => (30, "the volume is read-only"),
            Self::Stale => (116, "the inode is gone"),
            Self::NoSuchOffset => (6, "no data or hole after this offset"),
            Self::NotSupported => (95, "is not supported"),
            Self::Busy => (16, "is in use"),
            Self::Quota => (122, "the limit of a user, group or project is reached"),
        }
    }

    /// Error number on Linux.
    pub fn code(self) -> i32 {
        self.number_and_text().0
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.number_and_text().1)
    }
}

impl Error {
    /// Exit code of a command that fails with this error, as in the reference of exit codes.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_)
            | Error::Posix(Errno::NotFound | Errno::Exists | Errno::Invalid | Errno::NameTooLong) => {
                2
            }
            Error::Corrupt(_) => 3,
            Error::Unsupported(_) | Error::Limit(_) => 4,
            Error::Io(..) | Error::Posix(Errno::HostFull) => 5,
            Error::Posix(_) => 4,
        }
    }

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
