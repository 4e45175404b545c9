//! `tuff store mount`: mounts a snapshot.

use super::snapshot::{SnapshotArgs, image, pin};
use crate::next_command::shell_word;
use crate::out::Out;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use tuff_erofs::{Error, Result};
use tuff_mkfs::Progress;

/// Mount a snapshot of a backup store
///
/// The snapshot is a tree of the absolute paths that were backed up, read-only. It is served through FUSE, or mounted by the kernel
/// with --kernel, until `tuff umount DIR`.
///
/// --image writes the image of the snapshot, which holds metadata only, and prints the commands by which the kernel mounts it
/// without Tuff.
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
    /// Write the image here instead, and print commands that mount it
    #[arg(long, value_name = "IMAGE", conflicts_with_all = ["kernel", "allow_other"])]
    image: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let (store, snapshot) = args.snapshot.open()?;
    // Before addresses are read.
    let held = pin(&store, &snapshot)?;
    if let Some(path) = &args.image {
        let image = store.image(&snapshot, path, &Progress::default())?;
        let pin = match held {
            Some(_) => Some(store.pin_for_kernel(&snapshot)?),
            None => None,
        };
        let mut out = Out::new();
        let mut options = String::from("ro");
        for (i, device) in image.devices.iter().enumerate() {
            let device = shell_word(device);
            out.line(format_args!(
                "pack{i}=$(losetup --read-only --find --show {device})"
            ))?;
            options.push_str(&format!(",device=$pack{i}"));
        }
        let (path, dir) = (shell_word(path), shell_word(&args.dir));
        out.line(format_args!(
            "mount -t erofs -o loop,{options} {path} {dir}"
        ))?;
        let packs: Vec<String> = (0..image.devices.len())
            .map(|i| format!("$pack{i}"))
            .collect();
        out.line("# After umount:")?;
        out.line(format_args!("# losetup --detach {}", packs.join(" ")))?;
        if let Some(pin) = pin {
            let store = shell_word(&args.snapshot.store);
            out.line(format_args!("# tuff store unpin {store} {pin}"))?;
        }
        return out.finish();
    }
    let (_temporary, image) = image(&store, &snapshot)?;
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
