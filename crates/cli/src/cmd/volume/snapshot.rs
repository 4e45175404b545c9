//! `tuff volume snapshot`: creates, lists and deletes snapshots.

use super::failure::{At, Failure, Result};
use super::live::{mount_point, request};
use super::open::{VolumeArgs, bytes, mount, now};
use crate::out::Out;
use crate::text::{escaped, full_time};
use crate::units::size;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use tuff_iplfs::{Errno, Error};
use tuff_mount::volume::Control;

/// Create, list and delete snapshots
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// Create a snapshot of the current state
    ///
    /// The path may be the mount point of a volume. What programs wrote before the command began is in the snapshot, also
    /// what the kernel has not written yet; nothing is that began after it returned. In between it is one instant of the
    /// volume.
    Create(NameArgs),
    /// List snapshots, oldest first
    List(ListArgs),
    /// Delete a snapshot and return its space to the host
    ///
    /// The path may be the mount point of a volume.
    Delete(NameArgs),
}

/// Arguments that name a snapshot of a volume.
#[derive(clap::Args)]
pub(crate) struct NameArgs {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Name of the snapshot
    name: String,
}

/// Arguments of the list of snapshots.
#[derive(clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(verb: &Verb) -> Result<ExitCode> {
    match verb {
        Verb::Create(args) | Verb::Delete(args) if is_mount_point(args) => {
            let control = match verb {
                Verb::Create(_) => Control::CreateSnapshot(args.name.clone()),
                _ => Control::DeleteSnapshot(args.name.clone()),
            };
            request(&args.volume.path, &control)?;
        }
        Verb::Create(args) => {
            let mut volume = mount(&args.volume, false)?;
            let made = volume.snapshot(&args.name, now());
            made.map_err(|e| to_failure(&args.volume.path, &args.name, e))?;
            volume.unmount().at(args.volume.path.display())?;
        }
        Verb::Delete(args) => {
            let mut volume = mount(&args.volume, false)?;
            let gone = volume.delete_snapshot(&args.name);
            gone.map_err(|e| to_failure(&args.volume.path, &args.name, e))?;
            volume.drain().at(args.volume.path.display())?;
            volume.unmount().at(args.volume.path.display())?;
        }
        Verb::List(args) => list(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn is_mount_point(args: &NameArgs) -> bool {
    args.volume.branch.is_none() && mount_point(&args.volume.path).is_some()
}

fn list(args: &ListArgs) -> Result<()> {
    let volume = mount(&args.volume, true)?;
    let mut out = Out::new();
    if args.json {
        let list: Vec<Value> = volume
            .snapshots()
            .iter()
            .map(|s| {
                json!({
                    "name": s.name, "time": full_time((s.time.sec, s.time.nsec)), "checkpoint": s.version,
                    "live_bytes": bytes(s.live_blocks), "inodes": s.inodes,
                })
            })
            .collect();
        out.json(&json!({"snapshots": list}))?;
    } else {
        for s in volume.snapshots() {
            let time = full_time((s.time.sec, s.time.nsec));
            let live = size(bytes(s.live_blocks));
            out.line(format_args!(
                "{time}  {live:>10}  {}",
                escaped(s.name.as_bytes())
            ))?;
        }
    }
    out.finish()?;
    Ok(())
}

/// Converts the error of a snapshot operation to a message.
pub(super) fn to_failure(path: &Path, name: &str, e: Error) -> Failure {
    let place = path.display();
    match e {
        Error::Posix(Errno::NotFound) => {
            Failure::Usage(format!("{place}: has no snapshot '{name}'"))
        }
        Error::Posix(Errno::Exists) => {
            Failure::Usage(format!("{place}: has a snapshot '{name}' already"))
        }
        Error::Posix(Errno::Invalid) => Failure::Usage(format!(
            "'{name}' is not a valid name for a snapshot: 1 to 64 bytes without '/'"
        )),
        Error::Posix(Errno::Busy) => Failure::Volume(
            place.to_string(),
            Error::Unsupported(format!("snapshot '{name}' is mounted: unmount it first")),
        ),
        other => Failure::Volume(place.to_string(), other),
    }
}
