//! Transports: `/dev/fuse` and io_uring.

pub(crate) mod connection;
pub(crate) mod device;
pub(crate) mod push;
pub mod replies;
pub(crate) mod ring;
pub(crate) mod uring;

use std::io;
use std::str::FromStr;

/// Transport that carries requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Selects io_uring where the kernel offers it, otherwise the device.
    #[default]
    Auto,
    /// Uses `/dev/fuse` in any case.
    Dev,
    /// Uses io_uring, or fails.
    Uring,
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Self::Auto),
            "dev" => Ok(Self::Dev),
            "uring" => Ok(Self::Uring),
            _ => Err(format!(
                "{s:?} is no transport: expected auto, dev or uring"
            )),
        }
    }
}

/// Creates a ring as a mount does, and drops it.
///
/// # Errors
/// Fails if the kernel lacks or forbids io_uring, or if there are too many processors.
pub fn probe_io_uring() -> io::Result<()> {
    uring::rings::Rings::probe().map(drop)
}
