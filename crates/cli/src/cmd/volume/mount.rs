//! `tuff volume mount`: serves a volume through FUSE until it is unmounted.

use super::failure::{At, Failure, Result};
use super::open::{VolumeArgs, device, mount};
use super::remount;
use super::snapshot::to_failure;
use crate::cmd::mount::background::{self, Role};
use crate::cmd::mount::options::{General, each_option};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tuff_erofs::THREADS_MAX;
use tuff_fuse::mountpoint::{self, MountOptions, Mountpoint};
use tuff_fuse::transport::Transport;
use tuff_fuse::{CpuLatencyMode, Log, Session, SessionOptions};
use tuff_iplfs::{BlockDevice, DiscardMode, Error, Volume};
use tuff_mount::lifetime::{Lifetime, Signals};
use tuff_mount::volume::{DiscardPolicy, SYNC_EVERY, VolumeServer};

/// Dirty pages that are gathered into one write: 1 MiB. The write that completes them waits for all.
const WRITE_BEHIND_PAGES: u64 = 256;
/// Dirty nodes in memory: 128 MiB. A checkpoint begins at half of it, so that writers do not wait for one.
const DIRTY_NODES: u64 = 32768;
/// Blocks preallocated for future fsyncs: 1 MiB.
const PREPARE_BLOCKS: u64 = 256;

/// Mount a volume for reading and writing
///
/// A background process serves the volume. The command returns when the mount is ready; the process ends when the volume is
/// unmounted (tuff umount, which waits for it, umount, fusermount3 -u) or on SIGTERM, SIGINT or SIGHUP. A busy mount is then
/// detached and served until its last user is done; a second signal closes the volume and ends the process in any case.
///
/// After a crash of the host or of that process the next mount recovers the volume. Data is durable after fsync or
/// fdatasync, and every earlier operation after fsync of a directory. The kernel forwards sync and syncfs only for block
/// devices that root mounts, from Linux 6.18 on. For others, tuff volume sync makes everything durable at once; data that sync
/// has written back is durable after --commit seconds.
///
/// With -o remount,ro or -o remount,rw a mount changes while programs use it. mount(8) does the same.
///
/// If the host is read-only, or has no space for the recovery, the volume is mounted read-only with a warning.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Directory to mount on
    dir: PathBuf,
    /// Mount this snapshot of the branch, read-only. In a directory, the branch may be mounted meanwhile
    #[arg(long, value_name = "NAME")]
    snapshot: Option<String>,
    /// Mount read-only; write nothing, not even for recovery
    #[arg(short, long)]
    read_only: bool,
    /// Mount options, as in fstab: ro, allow_other, branch=NAME, snapshot=NAME, commit=SECONDS, nosuid, nodev, noexec, sync, dirsync, fsname=, remount
    #[arg(short, value_name = "OPTION,...")]
    options: Vec<String>,
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
    /// Append log messages to this file [default: standard error, or the system log in the background]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Allow other users, subject to the permissions in the volume
    #[arg(long)]
    allow_other: bool,
    /// Interval of checkpoints and discards, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = parse_commit, default_value_t = SYNC_EVERY.as_secs() as u32)]
    commit: u32,
    /// Dispatch of discards: eager (all after each checkpoint), polite (at most 8 at a time, when no request came for 50
    /// ms), or dispatch (at most 16 every 50 ms)
    #[arg(long, value_name = "WHEN", default_value = "eager")]
    discard: DiscardPolicy,
    /// Serving threads [default: one per CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=THREADS_MAX.into()))]
    threads: Option<u16>,
    /// Transport of FUSE requests: dev (/dev/fuse), uring (io_uring), or auto (io_uring if the kernel supports it)
    #[arg(long, value_name = "HOW", default_value = "auto")]
    transport: Transport,
    /// Keep CPUs out of deep idle states between requests, which costs CPU time but reduces latency where wake-ups are
    /// slow: on, off, or auto (in virtual machines of up to 16 CPUs)
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    keep_awake: CpuLatencyMode,
}

fn parse_commit(text: &str) -> std::result::Result<u32, String> {
    let seconds = text.parse().ok().filter(|n| (1..=3600).contains(n));
    seconds.ok_or_else(|| "expected a number of seconds from 1 to 3600".to_owned())
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    // Access times are not kept, and /proc/mounts says so.
    let mut general = General::with_flags(MountFlags::NOATIME);
    general.allow_other |= args.allow_other;
    let mut commit = args.commit;
    let mut branch = args.volume.branch.clone();
    let mut is_remount = false;
    let mut snapshot = args.snapshot.clone();
    for list in &args.options {
        each_option(list, |name, value| match (name, value) {
            ("commit", Some(seconds)) => {
                commit = parse_commit(seconds)?;
                Ok(())
            }
            ("remount", None) => {
                is_remount = true;
                Ok(())
            }
            ("branch", Some(name)) => {
                branch = Some(name.to_owned());
                Ok(())
            }
            ("snapshot", Some(name)) => {
                snapshot = Some(name.to_owned());
                Ok(())
            }
            _ => general.one(name, value),
        })?;
    }
    // "rw" comes with each line of fstab, and does not undo the flag.
    general.read_only |= args.read_only || snapshot.is_some();
    if is_remount {
        return remount::run(&args.dir, &general);
    }
    let Role::Server { in_background } = Role::of_this_process(args.foreground) else {
        return Ok(background::start()?);
    };
    if in_background {
        background::leave_terminal();
    }
    let log = background::log(args.log.as_deref(), in_background)?;
    let how = tuff_iplfs::MountOptions {
        write_behind_pages: WRITE_BEHIND_PAGES,
        dirty_nodes_max: DIRTY_NODES,
        prepare_blocks: PREPARE_BLOCKS,
        discard: match args.discard {
            DiscardPolicy::Eager => DiscardMode::Eager,
            DiscardPolicy::Polite | DiscardPolicy::Dispatch => DiscardMode::Deferred,
        },
        ..tuff_iplfs::MountOptions::default()
    };
    let place = VolumeArgs {
        path: args.volume.path.clone(),
        branch,
    };
    let volume = match &snapshot {
        Some(name) => open_snapshot(&place, name)?,
        None => open(&place, general.read_only, how, &log)?,
    };
    let has_name = general.source.is_some();
    let options = MountOptions {
        source: general
            .source
            .unwrap_or_else(|| place.source(snapshot.as_deref())),
        allow_other: general.allow_other,
        flags: general.flags,
        has_block_device: !has_name && may_have_device(&place.path),
    };
    let stop = Signals::of_end()?;
    let threads = args
        .threads
        .map_or_else(tuff_fuse::session::default_threads, usize::from);
    let device = volume.device();
    let read_only = volume.is_read_only();
    let every = Duration::from_secs(commit.into());
    let server = VolumeServer::new(volume, log.clone())
        .every(every)
        .discarding(args.discard);
    let mountpoint = attach(&args.dir, &*device, read_only, options).at("cannot mount")?;
    let dir = mountpoint.dir.clone();
    let how = SessionOptions {
        threads,
        transport: args.transport,
        cpu_latency: args.keep_awake,
        ..SessionOptions::default()
    };
    let server = Arc::new(server);
    let session = Session::start(Arc::clone(&server), mountpoint, how).at(args.dir.display())?;
    let end = {
        let (place, log) = (place.path.clone(), log.clone());
        move || end_early(&server, &place, &log)
    };
    let life = Lifetime::start(stop, session, dir, log.clone(), end)?;
    life.or_detach(background::ready(in_background))?;
    if let Err(e) = life.wait().unmount() {
        // In the background the exit code is lost, so the error is logged.
        if in_background {
            log.line(format_args!("{}: {e}", args.volume.path.display()));
        }
        return Err(e).at(args.volume.path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns true if a mount can have the block device at `path`.
fn may_have_device(path: &Path) -> bool {
    let is_device = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
    is_device && rustix::process::geteuid().is_root()
}

/// Mounts a connection, with the block device where the kernel takes it.
fn attach(
    dir: &Path,
    device: &dyn BlockDevice,
    read_only: bool,
    mut options: MountOptions,
) -> io::Result<Mountpoint> {
    let attach = match read_only {
        true => mountpoint::attach,
        false => mountpoint::attach_writable,
    };
    if options.has_block_device {
        device.claim(false)?;
        match attach(dir, &options) {
            Ok(mountpoint) => return Ok(mountpoint),
            // The kernel may lack fuseblk, or refuse devices that are open for writing.
            Err(_) => device.claim(!read_only)?,
        }
        options.has_block_device = false;
    }
    attach(dir, &options)
}

/// Opens a snapshot of a volume. Where processes cannot share a volume, it is opened for reading.
fn open_snapshot(volume: &VolumeArgs, name: &str) -> Result<Volume> {
    let path = &volume.path;
    let opened = match path.is_dir() {
        true => tuff_iplfs::mount_snapshot(path, volume.branch.as_deref(), name),
        false => mount(volume, true)?.open_snapshot(name),
    };
    opened.map_err(|e| to_failure(path, name, e))
}

/// Opens the volume, read-only if its host does not accept writes.
fn open(
    volume: &VolumeArgs,
    read_only: bool,
    how: tuff_iplfs::MountOptions,
    log: &Log,
) -> Result<Volume> {
    let place = volume.path.display();
    let mount = |read_only: bool| {
        let how = tuff_iplfs::MountOptions {
            read_only,
            ..how.clone()
        };
        Volume::mount(device(volume, read_only)?, how).at(&place)
    };
    if read_only {
        return mount(true);
    }
    let failed = match mount(false) {
        Ok(volume) => return Ok(volume),
        Err(failed) => failed,
    };
    let (Failure::Host(_, why) | Failure::Volume(_, Error::Io(why, _))) = &failed else {
        return Err(failed);
    };
    // A device on a full host, or one that lost its medium, reports any error as EIO.
    let is_device_error = why.raw_os_error() == Some(Errno::IO.raw_os_error());
    match why.kind() {
        io::ErrorKind::StorageFull
        | io::ErrorKind::QuotaExceeded
        | io::ErrorKind::ReadOnlyFilesystem => {}
        _ if is_device_error => {}
        _ => return Err(failed),
    }
    let message = format!("{place}: mounted for reading only: {why}");
    // The first error says more than one of this attempt.
    let volume = mount(true).map_err(|_| failed)?;
    eprintln!("tuff: {message}");
    log.line(format_args!("{message}"));
    Ok(volume)
}

/// Closes the volume and ends the process, although the filesystem is still in use.
fn end_early(server: &VolumeServer, place: &Path, log: &Log) {
    // None: the process is ending.
    let Some(done) = server.end_early() else {
        return;
    };
    let place = place.display();
    match &done {
        Ok(()) => log.again(format_args!("{place}: closed at a second signal")),
        Err(e) => log.again(format_args!("{place}: {e}")),
    }
    std::process::exit(if done.is_ok() { 0 } else { 5 });
}
