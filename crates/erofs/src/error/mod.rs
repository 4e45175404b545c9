//! Errors of this crate: seven kinds of failure, each with its place.

mod place;

pub use place::{Output, Place, Step};

use std::fmt;
use std::io;
use tuff_store::StoreError;

/// Result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of an operation on an image. Each variant carries the place and a one-sentence description.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The image violates a rule of its format.
    Corrupt(Detail),
    /// The image uses a feature that this version does not support.
    Unsupported(Detail),
    /// The image, or an operation on it, exceeds a named limit.
    Limit(Detail),
    /// A host operation failed, such as a read, a write or an allocation of disk space.
    Io(Detail, io::Error),
    /// A source of a build is damaged or has an unsupported form.
    Source(Detail),
    /// The caller's request is invalid or names an object that does not exist.
    Usage(Detail),
    /// No signature by a certificate that the caller trusts comes with the image.
    Untrusted(Detail),
}

/// Place and description of an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detail {
    place: Place,
    what: String,
    remedy: Option<Remedy>,
}

/// Choice of the caller that avoids an error. The CLI maps it to one of its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Open the image together with its extra devices.
    Devices,
    /// Open the base or source image together with its extra devices.
    SourceDevices,
    /// Give the start of the image in its file.
    Offset,
    /// Build an image of the directory.
    BuildImage,
    /// Replace the hash tree that the image already has.
    ReplaceHashTree,
    /// Write the hash tree to a separate file.
    SeparateHashTree,
    /// Replace files that exist in the target.
    Overwrite,
    /// Accept a superblock with a wrong checksum.
    IgnoreChecksum,
    /// Name a path that the image has.
    ExistingPath,
    /// Add a hash tree to the image, or name the file that has it.
    AddHashTree,
    /// Build for newer kernels.
    NewerKernel,
    /// Allow more files to be extracted.
    MoreFiles,
    /// Allow more bytes to be extracted.
    MoreBytes,
    /// Provide what mounts need on this host.
    MountHost,
    /// Allow a larger image.
    LargerBudget,
}

impl Error {
    /// Returns a `Corrupt` error at a place.
    pub fn corrupt(place: impl Into<Place>, what: impl fmt::Display) -> Self {
        Self::Corrupt(Detail::new(place, what))
    }

    /// Returns an `Unsupported` error at a place.
    pub fn unsupported(place: impl Into<Place>, what: impl fmt::Display) -> Self {
        Self::Unsupported(Detail::new(place, what))
    }

    /// Returns a `Limit` error at a place.
    pub fn limit(place: impl Into<Place>, what: impl fmt::Display) -> Self {
        Self::Limit(Detail::new(place, what))
    }

    /// Returns an `Io` error at a place.
    pub fn io(place: impl Into<Place>, what: impl fmt::Display, source: io::Error) -> Self {
        Self::Io(Detail::new(place, what), source)
    }

    /// Returns the error of a failed read: `Corrupt` if the store rejects the bytes, `Io` otherwise.
    pub fn read(place: impl Into<Place>, len: u64, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::InvalidData => match source.downcast::<StoreError>() {
                Ok(e) => Self::corrupt(Place::file(e.store), e.what).within(place),
                Err(e) => Self::corrupt(place, e),
            },
            _ => Self::io(place, format_args!("reading {len} bytes"), source),
        }
    }

    /// Returns a `Source` error.
    pub fn source(what: impl fmt::Display) -> Self {
        Self::Source(Detail::new("", what))
    }

    /// Returns a `Usage` error.
    pub fn usage(what: impl fmt::Display) -> Self {
        Self::Usage(Detail::new("", what))
    }

    /// Returns an `Untrusted` error at a place.
    pub fn untrusted(place: impl Into<Place>, what: impl fmt::Display) -> Self {
        Self::Untrusted(Detail::new(place, what))
    }

    /// Converts a violated rule of the format into an error at a place.
    pub fn format(place: impl Into<Place>, error: tuff_format::Error) -> Self {
        let detail = Detail::new(place, error);
        match error.kind {
            tuff_format::Kind::Corrupt => Self::Corrupt(detail),
            tuff_format::Kind::Unsupported => Self::Unsupported(detail),
        }
    }

    /// Returns the same error with `place` as the enclosing context, for example `nid 36: cluster at byte 4096`.
    pub fn within(mut self, place: impl Into<Place>) -> Self {
        let d = self.detail_mut();
        d.place = std::mem::take(&mut d.place).within(place.into());
        self
    }

    /// Returns a copy of the error, for several files that fail from one cause.
    pub fn again(&self) -> Self {
        let detail = self.detail().clone();
        match self {
            Self::Corrupt(_) => Self::Corrupt(detail),
            Self::Unsupported(_) => Self::Unsupported(detail),
            Self::Limit(_) => Self::Limit(detail),
            Self::Source(_) => Self::Source(detail),
            Self::Usage(_) => Self::Usage(detail),
            Self::Untrusted(_) => Self::Untrusted(detail),
            Self::Io(_, e) => {
                let same = match e.raw_os_error() {
                    Some(code) => io::Error::from_raw_os_error(code),
                    None => io::Error::new(e.kind(), e.to_string()),
                };
                Self::Io(detail, same)
            }
        }
    }

    /// Returns the same error with a choice that avoids it.
    pub fn with_remedy(mut self, remedy: Remedy) -> Self {
        self.detail_mut().remedy = Some(remedy);
        self
    }

    /// Removes the choice that avoids the error, for an operation that does not offer it.
    #[must_use]
    pub fn without_remedy(mut self) -> Self {
        self.detail_mut().remedy = None;
        self
    }

    /// Choice of the caller that avoids the error, if there is one.
    pub fn remedy(&self) -> Option<Remedy> {
        self.detail().remedy
    }

    /// Returns the place of the error. May be empty.
    pub fn place(&self) -> &Place {
        &self.detail().place
    }

    /// Returns the description without the place.
    pub fn what(&self) -> &str {
        &self.detail().what
    }

    /// Returns the same error at the place `to`, if it is at `from`. For a stage that was not given the name of its file.
    pub fn rename_place(mut self, from: impl Into<Place>, to: impl Into<Place>) -> Self {
        let d = self.detail_mut();
        if d.place == from.into() {
            d.place = to.into();
        }
        self
    }

    /// Returns the same error with advice after its description.
    pub fn with_advice(mut self, advice: impl fmt::Display) -> Self {
        let d = self.detail_mut();
        d.what = format!("{}; {advice}", d.what);
        self
    }

    fn detail(&self) -> &Detail {
        match self {
            Self::Corrupt(d)
            | Self::Unsupported(d)
            | Self::Limit(d)
            | Self::Io(d, _)
            | Self::Source(d)
            | Self::Usage(d)
            | Self::Untrusted(d) => d,
        }
    }

    fn detail_mut(&mut self) -> &mut Detail {
        match self {
            Self::Corrupt(d)
            | Self::Unsupported(d)
            | Self::Limit(d)
            | Self::Io(d, _)
            | Self::Source(d)
            | Self::Usage(d)
            | Self::Untrusted(d) => d,
        }
    }
}

impl Detail {
    fn new(place: impl Into<Place>, what: impl fmt::Display) -> Self {
        Self {
            place: place.into(),
            what: what.to_string(),
            remedy: None,
        }
    }
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.place.steps().is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.what)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corrupt(d) => write!(f, "corrupt image: {d}"),
            Self::Unsupported(d) => write!(f, "unsupported image: {d}"),
            Self::Untrusted(d) => write!(f, "untrusted image: {d}"),
            Self::Limit(d) => write!(f, "limit reached: {d}"),
            Self::Io(d, e) => write!(f, "{d}: {e}"),
            Self::Source(d) | Self::Usage(d) => d.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(_, e) => Some(e),
            _ => None,
        }
    }
}
