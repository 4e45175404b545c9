//! `tuff store mount`: mounts a snapshot.

use super::place;
use super::serve::serve;
use super::snapshot::{SnapshotArgs, image, pin};
use crate::cmd::mount::background::{self, Role};
use crate::next_command::shell_word;
use crate::out::Out;
use crate::text::is_hidden;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use tuff_erofs::{Error, Result};
use tuff_mkfs::Progress;

/// Mount a snapshot of a backup store
///
/// The snapshot is a tree of the absolute paths that were backed up, read-only. It is served through FUSE, or mounted by the kernel
/// with --kernel, until `tuff umount DIR`.
///
/// A snapshot in a bucket or in an encrypted store is served through FUSE. Parts are read when they are needed, and compared with their digests.
///
/// --print writes the image of the snapshot, which holds metadata only, and prints a script for sh(1) that mounts it without Tuff,
/// as root. Its loop devices are detached by the kernel when it is unmounted by umount(8).
///
/// The snapshot gets a pin, so that `tuff store prune` keeps what it names: until the end of a mount through FUSE, and until `tuff
/// store unpin` of one by the kernel.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    snapshot: SnapshotArgs,
    /// Mount point
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Let the kernel mount it, as root
    #[arg(long)]
    kernel: bool,
    /// Let all users read it, which the kernel's mounts do in any case
    #[arg(long)]
    allow_other: bool,
    /// Write the image here instead, and print a script that mounts it
    #[arg(long, value_name = "IMAGE", conflicts_with_all = ["kernel", "allow_other"])]
    print: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let role = Role::of_this_process(false);
    let is_served = place::is_served(&args.snapshot.place.store)?;
    if is_served && (args.kernel || args.print.is_some()) {
        return Err(Error::usage(
            "the kernel mounts no store in a bucket and no encrypted one; copy it into a directory first: tuff store copy",
        ));
    }
    if is_served && role == Role::Starter {
        return background::start();
    }
    let (store, snapshot) = args.snapshot.open()?;
    // Before addresses are read.
    let held = pin(&store, &snapshot)?;
    if let Some(path) = &args.print {
        let image = store.image(&snapshot, path, &Progress::default())?;
        let pin = match held {
            Some(_) => Some(store.pin_for_kernel(&snapshot)?),
            None => None,
        };
        let mut out = Out::new();
        let script = image.script(&args.dir)?;
        if script.chars().any(|c| c != '\n' && is_hidden(c)) {
            return Err(Error::usage(
                "a script cannot name paths with invisible characters",
            ));
        }
        out.lines(&script)?;
        if let Some(pin) = pin {
            let store = shell_word(&args.snapshot.place.store);
            out.line(format_args!(
                "# After umount: tuff store unpin {store} {pin}"
            ))?;
        }
        return out.finish();
    }
    let (temporary, image) = image(&store, &snapshot)?;
    if let (true, Role::Server { in_background }) = (is_served, role) {
        let opened = image.open()?;
        // It is open.
        drop(temporary);
        let name = &args.snapshot.place.store;
        return serve(opened, name, &args.dir, args.allow_other, in_background);
    }
    let program = std::env::current_exe();
    let program = program.map_err(|e| Error::io("tuff", "cannot find the program", e))?;
    let mut mount = Command::new(program);
    mount.arg("mount");
    for device in &image.devices {
        mount.arg("--device").arg(device);
    }
    if args.kernel {
        mount.arg("--kernel");
    }
    if args.allow_other {
        mount.arg("--allow-other");
    }
    let has_pin = held.is_some();
    if let Some(pin) = held {
        pin.leave_to_children()?;
    }
    // It returns when the mount is ready and has the image open.
    let status = mount.arg(&image.path).arg(&args.dir).status();
    let status = status.map_err(|e| Error::io("tuff", "cannot start the mount", e))?;
    if args.kernel && has_pin && status.success() {
        store.pin_for_kernel(&snapshot)?;
    }
    // Fits: codes of a program are below 256.
    Ok(ExitCode::from(status.code().map_or(5, |code| code as u8)))
}
