//! Error numbers of an image's errors.
//!
//! | error | number |
//! |---|---|
//! | the image is corrupt | EIO |
//! | a read of the image failed | EIO, but ENOMEM stays ENOMEM |
//! | the data is on a device that was not given | EIO |
//! | the image uses an unknown feature | EOPNOTSUPP |
//! | a limit was reached | EFBIG |
//! | the request is invalid | EINVAL |

use rustix::io::Errno;
use tuff_erofs::{Error, Remedy};

/// Returns the error number that the calling process receives.
pub fn errno(error: &Error) -> Errno {
    match error {
        Error::Io(_, e) if e.raw_os_error() == Some(Errno::NOMEM.raw_os_error()) => Errno::NOMEM,
        Error::Unsupported(_) => Errno::OPNOTSUPP,
        Error::Limit(_) => Errno::FBIG,
        // Data on a device that was not given is missing data for the caller.
        Error::Usage(_) if error.remedy() == Some(Remedy::Devices) => Errno::IO,
        Error::Usage(_) => Errno::INVAL,
        _ => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn every_error_kind_has_its_number() {
        let io = |n: Errno| Error::io("", "", io::Error::from_raw_os_error(n.raw_os_error()));
        let eof = Error::io("", "", io::ErrorKind::UnexpectedEof.into());
        for (error, requested) in [
            (Error::corrupt("", ""), Errno::IO),
            (Error::limit("", ""), Errno::FBIG),
            (Error::usage(""), Errno::INVAL),
            (Error::usage("").with_remedy(Remedy::Devices), Errno::IO),
            (io(Errno::NOMEM), Errno::NOMEM),
            (io(Errno::NXIO), Errno::IO),
            (eof, Errno::IO),
        ] {
            assert_eq!(errno(&error), requested, "{error:?}");
        }
    }
}
