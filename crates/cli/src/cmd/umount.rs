//! `tuff umount`: unmounts images and volumes, even if their server is dead.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tuff_erofs::{Error, Result};
use tuff_fuse::holders::{self, Holder};
use tuff_fuse::mountpoint::{self, Detach, Mounted};
use tuff_iplfs::{BlockDevice, backend};

/// Time after the unmount in which a copy of the mount may end on its own. Processes that are ending have one.
const HOLDER_TIME: Duration = Duration::from_secs(2);
/// Time between two looks at a volume that is not closed.
const POLL: Duration = Duration::from_millis(5);

/// Unmount images and volumes
///
/// Waits until a volume is closed. If the filesystem stays mounted elsewhere, such as in the mount namespace of a container,
/// the place is named. Exit code 5 means that the server could not write the last changes of a volume, or that the volume
/// stays mounted elsewhere. Also works if the serving process was killed and every access fails with "transport endpoint is
/// not connected".
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
    let mut failed = None;
    for dir in &args.dirs {
        let dir = mounted(dir)?;
        // The kernel's mounts are of images, and several of them may share a filesystem.
        let found = mountpoint::find(&dir).ok().flatten();
        let found = found.filter(|m| m.is_served() && !args.lazy);
        let is_volume = found.as_ref().is_some_and(|m| is_in_use(&m.source));
        let snapshot = found
            .as_ref()
            .and_then(|m| MountedSnapshot::parse(&m.source));
        let how = if args.lazy {
            Detach::Lazily
        } else {
            Detach::Now
        };
        mountpoint::detach(&dir, how).map_err(|e| cannot(&dir, e))?;
        let Some(found) = found else { continue };
        if let Some(snapshot) = snapshot {
            snapshot.until_closed();
        } else if is_volume {
            failed = failed.or(until_closed(&found).err());
        } else if let Some(holder) = lasting_holder(&found, || true) {
            let shown = dir.display();
            eprintln!("tuff: {shown}: unmounted, but its server lives on: {holder}");
        }
    }
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// Returns a mount that still has the filesystem after a while. None if it ends, or if `lives` says that it ended.
fn lasting_holder(mounted: &Mounted, lives: impl Fn() -> bool) -> Option<Holder> {
    let start = Instant::now();
    while lives() {
        let holder = holders::find(mounted)?;
        if start.elapsed() > HOLDER_TIME {
            return Some(holder);
        }
        std::thread::sleep(POLL * 10);
    }
    None
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
    open(source).is_err_and(in_use)
}

/// Opens the volume of a mount, whose source is a path, or a path with a branch: `/path@name`.
fn open(source: &Path) -> io::Result<Arc<dyn BlockDevice>> {
    let text = source.to_string_lossy();
    match text.rsplit_once('@') {
        Some((path, branch)) if !source.exists() => {
            backend::open_branch(Path::new(path), Some(branch), true)
        }
        _ => backend::open(source, true),
    }
}

/// Snapshot that is the source of a mount: `/path@branch:snapshot`.
struct MountedSnapshot {
    dir: PathBuf,
    branch: String,
    name: String,
}

impl MountedSnapshot {
    /// Returns the snapshot of a volume in a directory that `source` names, if it is mounted.
    fn parse(source: &Path) -> Option<Self> {
        let text = source.to_str()?;
        let (path, rest) = text.rsplit_once('@')?;
        let (branch, name) = rest.split_once(':')?;
        let found = Self {
            dir: PathBuf::from(path),
            branch: branch.to_owned(),
            name: name.to_owned(),
        };
        found.is_mounted().then_some(found)
    }

    fn is_mounted(&self) -> bool {
        tuff_iplfs::is_snapshot_mounted(&self.dir, Some(&self.branch), &self.name).unwrap_or(false)
    }

    /// Waits until the server has given the snapshot up. Another mount may keep it, so the time is limited.
    fn until_closed(&self) {
        let start = Instant::now();
        while self.is_mounted() && start.elapsed() < HOLDER_TIME {
            std::thread::sleep(POLL);
        }
    }
}

/// Waits until the server has closed the volume, which it writes for a moment after the unmount. Returns an error if it
/// was not closed cleanly, or if it stays mounted elsewhere.
fn until_closed(mounted: &Mounted) -> Result<()> {
    let source = &mounted.source;
    let lives = || is_in_use(source);
    if let Some(holder) = lasting_holder(mounted, lives) {
        let dir = mounted.dir.display();
        let why = io::Error::new(io::ErrorKind::ResourceBusy, holder.to_string());
        return Err(Error::io(
            dir,
            "unmounted, but the volume is still in use",
            why,
        ));
    }
    // Without another mount the server writes, however long that takes.
    while lives() {
        std::thread::sleep(POLL);
    }
    let well =
        open(source).is_ok_and(|device| tuff_iplfs::is_unmounted(&*device).is_ok_and(|well| well));
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
            Some(m) if m.is_served() || m.fstype == "erofs" => return Ok(place),
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
