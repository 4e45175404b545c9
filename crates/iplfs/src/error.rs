//! What can go wrong, in cases that callers branch on.

use std::fmt;
use std::io;

/// Result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Debug)]
pub enum Error {
    /// The volume's bytes contradict the specification. Says where and what was expected.
    Corrupt(String),
    /// The volume is sound, but asks for something this version does not know.
    Unsupported(String),
    /// A limit of the format or of the options was reached.
    Limit(String),
    /// The device failed. The text says what was being done.
    Io(io::Error, String),
    /// The caller asked for something that makes no sense.
    Usage(String),
    /// An ordinary answer of a POSIX filesystem, such as "no such entry".
    Posix(Errno),
}

/// The POSIX errors that operations of a volume can return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errno {
    /// ENOENT: no such entry.
    NotFound,
    /// EEXIST: the name is taken.
    Exists,
    /// ENOTDIR: a directory was needed.
    NotDirectory,
    /// EISDIR: anything but a directory was needed.
    IsDirectory,
    /// ENOTEMPTY: the directory still holds entries.
    NotEmpty,
    /// ENOSPC: the live blocks would pass the quota.
    NoSpace,
    /// ENOSPC: the host has no room for more, though the quota has.
    HostFull,
    /// ENAMETOOLONG: a name is longer than 255 bytes.
    NameTooLong,
    /// EINVAL: the arguments make no sense together.
    Invalid,
    /// EMLINK: the link count would overflow.
    TooManyLinks,
    /// ENODATA: no such extended attribute.
    NoAttribute,
    /// EPERM: never allowed on this kind of object.
    NotPermitted,
    /// EFBIG: the offset lies past the largest file.
    FileTooBig,
    /// E2BIG: the extended attributes of one object do not fit.
    TooBig,
    /// EROFS: the volume was mounted read-only.
    ReadOnly,
    /// ESTALE: the inode number names nothing any more.
    Stale,
    /// ENXIO: no data (or hole) at or after the offset.
    NoSuchOffset,
    /// EOPNOTSUPP: not offered by this filesystem.
    NotSupported,
    /// EBUSY: in use.
    Busy,
    /// EDQUOT: the owner has as much as is allowed.
    Quota,
}

impl Errno {
    /// The number Linux gives this error.
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
            Errno::NotDirectory => "is no directory",
            Errno::IsDirectory => "is a directory",
            Errno::NotEmpty => "the directory is not empty",
            Errno::NoSpace => "no space left in the volume",
            Errno::HostFull => "no space left on the host of the volume",
            Errno::NameTooLong => "the name is too long",
            Errno::Invalid => "makes no sense",
            Errno::TooManyLinks => "has too many links",
            Errno::NoAttribute => "no such extended attribute",
            Errno::NotPermitted => "is not permitted",
            Errno::FileTooBig => "the file is too large",
            Errno::TooBig => "the extended attributes are too large",
            Errno::ReadOnly => "the volume is read-only",
            Errno::Stale => "the inode is gone",
            Errno::NoSuchOffset => "no data behind this offset",
            Errno::NotSupported => "is not supported",
            Errno::Busy => "is in use",
            Errno::Quota => "the limit of a user, group or project is reached",
        })
    }
}

impl Error {
    /// The errno that a mount reports for this error. Damage and device failures are both EIO there, as in other filesystems; a device without room is ENOSPC.
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

    /// True for the errors after which a half-done change may sit in memory.
    pub(crate) fn is_fatal_midway(&self) -> bool {
        !matches!(self, Error::Posix(_) | Error::Usage(_))
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
