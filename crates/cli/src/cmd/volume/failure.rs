//! Errors of the verbs over a volume.

use std::fmt::Display;
use std::io;
use tuff_iplfs::{Errno, Error};

/// Failure of a verb.
pub(super) enum Failure {
    /// Wrong arguments, or a request that makes no sense.
    Usage(String),
    /// I/O error of the host, with the path.
    Host(String, io::Error),
    /// Error of the volume at a path.
    Volume(String, Error),
    /// Error of an output.
    Other(tuff_erofs::Error),
}

pub(super) type Result<T> = std::result::Result<T, Failure>;

impl From<tuff_erofs::Error> for Failure {
    fn from(e: tuff_erofs::Error) -> Self {
        Self::Other(e)
    }
}

/// Advice for an error of a verb, if there is any.
pub(super) fn advice(failure: &Failure) -> Option<&'static str> {
    match failure {
        Failure::Host(_, e) | Failure::Volume(_, Error::Io(e, _))
            if e.kind() == io::ErrorKind::ResourceBusy =>
        {
            Some("unmount it with 'tuff umount', or wait for the verb that uses it")
        }
        Failure::Volume(_, Error::Posix(Errno::NoSpace)) => {
            Some("delete files or snapshots, or create a larger volume (--size)")
        }
        Failure::Volume(_, Error::Posix(Errno::HostFull)) => {
            Some("free space on the host; 'tuff volume trim' returns what the volume does not use")
        }
        Failure::Volume(_, Error::Posix(Errno::Quota)) => Some("'tuff volume quota' raises it"),
        _ => None,
    }
}

/// Adds the path of the volume to an error.
pub(super) trait At<T> {
    fn at(self, place: impl Display) -> Result<T>;
}

impl<T> At<T> for tuff_iplfs::Result<T> {
    fn at(self, place: impl Display) -> Result<T> {
        self.map_err(|e| Failure::Volume(place.to_string(), e))
    }
}

impl<T> At<T> for io::Result<T> {
    fn at(self, place: impl Display) -> Result<T> {
        self.map_err(|e| Failure::Host(place.to_string(), e))
    }
}
