//! Transports: `/dev/fuse` and io_uring.

pub mod device;
pub mod push;
mod ring;
pub mod uring;

use crate::filesystem::Parts;
use crate::handler::{Handler, Reply, Request};
use crate::protocol;
use rustix::io::Errno;
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

/// Returns header and body of the reply to `request`. None if no reply is expected.
pub(crate) fn head<'a>(
    request: &Request<'_>,
    reply: Reply<'a>,
) -> Option<(protocol::OutHeader, Parts<'a>)> {
    let (error, body) = match reply {
        Reply::Nothing => return None,
        Reply::Body(parts) => (0, parts),
        Reply::Error(e) => (-e.raw_os_error(), Parts::One(&[])),
    };
    let header = protocol::OutHeader {
        len: (size_of::<protocol::OutHeader>() + body.len()) as u32, // fits: at most a megabyte
        error,
        unique: request.header.unique,
    };
    Some((header, body))
}

/// Consequence of an error of the device.
enum After {
    /// The request is gone. The next one follows.
    Next,
    /// The mount is gone.
    End,
}

fn after(error: Errno, handler: &Handler, doing: &str) -> After {
    match error {
        // A signal interrupted this thread or the client.
        Errno::INTR | Errno::NOENT | Errno::AGAIN => After::Next,
        Errno::NODEV | Errno::CONNABORTED | Errno::NOTCONN => After::End,
        e => {
            let log = handler.log();
            log.line(format_args!("{doing} the FUSE device: {e}"));
            match e {
                Errno::INVAL | Errno::NOMEM => After::Next,
                _ => After::End,
            }
        }
    }
}
