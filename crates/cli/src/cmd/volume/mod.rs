//! `tuff volume`: IPLFS volumes, one verb per file.

mod check;
mod create;
mod export;
mod import;
mod mount;
mod quota;
mod receive;
mod send;
mod snapshot;
mod stat;
mod tar;
mod trim;

use crate::text::escaped_line;
use clap::Subcommand;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tuff_iplfs::{BlockDevice, Errno, Error, MountOptions, Time, Volume, backend};

/// Create, mount, check and replicate writable IPLFS volumes
///
/// A volume is a log-structured filesystem that returns free space to its host. It lies in a directory of sparse zone files,
/// in one sparse file, or on a thin block device. A verb locks the volume while it runs.
#[derive(clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Create(create::Args),
    Check(check::Args),
    Stat(stat::Args),
    Trim(trim::Args),
    Mount(mount::Args),
    Quota(quota::Args),
    Export(export::Args),
    Import(import::Args),
    Send(send::Args),
    Receive(receive::Args),
    #[command(subcommand)]
    Snapshot(snapshot::Verb),
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> tuff_erofs::Result<ExitCode> {
    let result = match &args.verb {
        Verb::Create(args) => create::run(args),
        Verb::Check(args) => check::run(args),
        Verb::Stat(args) => stat::run(args),
        Verb::Trim(args) => trim::run(args),
        Verb::Mount(args) => mount::run(args),
        Verb::Quota(args) => quota::run(args),
        Verb::Export(args) => export::run(args),
        Verb::Import(args) => import::run(args),
        Verb::Send(args) => send::run(args),
        Verb::Receive(args) => receive::run(args),
        Verb::Snapshot(verb) => snapshot::run(verb),
    };
    let (code, what) = match result {
        Ok(code) => return Ok(code),
        Err(Failure::Other(e)) => return Err(e),
        Err(Failure::Usage(what)) => (2, what),
        Err(Failure::Host(place, e)) => (5, format!("{place}: {e}")),
        Err(Failure::Volume(place, e)) => (code(&e), format!("{place}: {e}")),
    };
    eprintln!("tuff: {}", escaped_line(&what));
    Ok(ExitCode::from(code))
}

/// Why a verb stopped.
enum Failure {
    /// Wrong arguments, or a request that makes no sense.
    Usage(String),
    /// The host failed, at a place.
    Host(String, io::Error),
    /// The volume at a place said so.
    Volume(String, Error),
    /// Standard output, or a file of ours.
    Other(tuff_erofs::Error),
}

type Result<T> = std::result::Result<T, Failure>;

impl From<tuff_erofs::Error> for Failure {
    fn from(e: tuff_erofs::Error) -> Self {
        Self::Other(e)
    }
}

/// The exit code of an error of a volume, as the table in `main.rs` has it.
fn code(e: &Error) -> u8 {
    match e {
        Error::Usage(_) => 2,
        Error::Corrupt(_) => 3,
        Error::Io(..) | Error::Posix(Errno::HostFull) => 5,
        Error::Posix(Errno::NotFound | Errno::Exists | Errno::Invalid | Errno::NameTooLong) => 2,
        Error::Unsupported(_) | Error::Limit(_) | Error::Posix(_) => 4,
    }
}

/// Says at which volume an error happened.
trait At<T> {
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

/// Opens what holds a volume.
fn device(path: &Path, read_only: bool) -> Result<Arc<dyn BlockDevice>> {
    let place = path.display();
    match backend::open(path, read_only) {
        Err(e) if e.kind() == io::ErrorKind::InvalidData => {
            Err(Error::Corrupt(e.to_string())).at(place)
        }
        other => other.at(place),
    }
}

/// Opens a volume. Read-only, nothing is written, not even what a recovery would.
fn mount(path: &Path, read_only: bool) -> Result<Volume> {
    let options = MountOptions {
        read_only,
        ..MountOptions::default()
    };
    Volume::mount(device(path, read_only)?, options).at(path.display())
}

/// The present.
fn now() -> Time {
    // A clock before 1970 is as good as none.
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Time {
        sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nsec: since.subsec_nanos(),
    }
}

/// Random bytes.
fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A random identity.
fn uuid() -> io::Result<[u8; 16]> {
    let mut uuid = random()?;
    // The bits that say "random" in a UUID.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

/// Bytes of so many blocks.
fn bytes(blocks: u64) -> u64 {
    blocks.saturating_mul(tuff_iplfs::BLOCK_SIZE as u64)
}
