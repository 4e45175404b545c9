//! `tuff umount`: unmounts images and volumes, even if their server is dead.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tuff_erofs::{Error, Result};
use tuff_fuse::mountpoint::{self, Detach, FSTYPE};

/// Unmount images and volumes
///
/// Waits until a volume is closed. Exit code 5 means that the server could not write the last changes. Also works if the
/// serving process was killed and every access fails with "transport endpoint is not connected".
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Mount points to unmount
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Detach immediately, even while the mount is in use
    #[arg(short, long)]
    lazy: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut lost = None;
    for dir in &args.dirs {
        let dir = mounted(dir)?;
        // The kernel's mounts are of images.
        let found = mountpoint::find(&dir).ok().flatten();
        let source = found.filter(|m| m.fstype == FSTYPE).map(|m| m.source);
        let waits = source.filter(|source| !args.lazy && is_in_use(source));
        let how = if args.lazy {
            Detach::Lazily
        } else {
            Detach::Now
        };
        mountpoint::detach(&dir, how).map_err(|e| cannot(&dir, e))?;
        if let Some(source) = waits {
            lost = lost.or(until_closed(&source).err());
        }
    }
    lost.map_or(Ok(ExitCode::SUCCESS), Err)
}

fn cannot(dir: &Path, e: io::Error) -> Error {
    let what = match e.kind() {
        io::ErrorKind::ResourceBusy => "cannot unmount what programs use (--lazy detaches it)",
        _ => "cannot unmount",
    };
    Error::io(dir.display(), what, e)
}

/// Returns true if `source` is a volume that is open for writing.
fn is_in_use(source: &Path) -> bool {
    let in_use = |e: io::Error| e.kind() == io::ErrorKind::ResourceBusy;
    source.exists() && tuff_iplfs::backend::open(source, true).is_err_and(in_use)
}

/// Waits until the server has closed the volume, which it writes for a moment after the unmount. Returns an error if it
/// was not closed cleanly.
fn until_closed(source: &Path) -> Result<()> {
    while is_in_use(source) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let well = tuff_iplfs::backend::open(source, true)
        .is_ok_and(|device| tuff_iplfs::is_unmounted(&*device).is_ok_and(|well| well));
    if well {
        return Ok(());
    }
    let why = "the host accepted no more writes, see the log of the server; the next mount has the durable state";
    Err(Error::io(
        source.display(),
        "the last changes are lost",
        io::Error::other(why),
    ))
}

/// Returns the mount point at `dir`, if it is a mount of tuff.
pub(super) fn mounted(dir: &Path) -> Result<PathBuf> {
    let failed = |e: io::Error| Error::io(dir.display(), "cannot examine the mount point", e);
    for place in [without_asking_it(dir), std::fs::canonicalize(dir)] {
        let Ok(place) = place else { continue };
        match mountpoint::find(&place).map_err(failed)? {
            Some(m) if m.fstype == FSTYPE || m.fstype == "erofs" => return Ok(place),
            Some(m) => {
                return Err(Error::usage(format_args!(
                    "{}: a mount of type {}, not of tuff; unmount it with umount(8)",
                    dir.display(),
                    m.fstype
                )));
            }
            None => {}
        }
    }
    Err(Error::usage(format_args!(
        "{}: not a mount point",
        dir.display()
    )))
}

/// Returns the absolute path of `dir` without accessing the mount itself, whose server may be dead.
fn without_asking_it(dir: &Path) -> io::Result<PathBuf> {
    let dir = std::path::absolute(dir)?;
    match (dir.parent(), dir.file_name()) {
        (Some(parent), Some(name)) => Ok(std::fs::canonicalize(parent)?.join(name)),
        _ => Ok(dir),
    }
}
