//! How requests come and replies go.

pub mod device;
pub mod push;
mod ring;
pub mod uring;

use crate::filesystem::Parts;
use crate::handler::{Handler, Reply, Request};
use crate::protocol;
use rustix::io::Errno;
use std::str::FromStr;

/// Which way requests come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Through rings of io_uring where the kernel offers them, else through the device.
    #[default]
    Auto,
    /// Through `/dev/fuse`.
    Dev,
    /// Through rings of io_uring, or not at all.
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

/// Header and body of the reply to `request`. `None`: it gets none.
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

/// What to do after an error of the device.
enum After {
    /// This request is gone; go on with the next.
    Next,
    /// The mount is gone.
    End,
}

fn after(error: Errno, handler: &Handler, doing: &str) -> After {
    match error {
        // Interrupted by a signal, or the asking program was.
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
