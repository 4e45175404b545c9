//! `tuff volume stat`: prints identity and usage of a volume.

use super::failure::{At, Result};
use super::open::{VolumeArgs, bytes, device, forks_left};
use crate::out::{Out, field};
use crate::units::size;
use serde_json::json;
use std::process::ExitCode;
use tuff_iplfs::{BlockDevice, Log, MountOptions, Volume};

/// Show identity, usage and host space of a volume
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let place = args.volume.path.display();
    let device = device(&args.volume, true)?;
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let volume = Volume::mount(device.clone(), options).at(&place)?;
    let (space, sb) = (volume.space(), volume.superblock());
    let held = allocated(&*device, sb.geometry.area_blocks()).at(&place)?;
    let forks_left = forks_left(&args.volume.path)?;
    let label = String::from_utf8_lossy(&sb.label);
    let label = label.trim_end_matches('\0');
    let mut out = Out::new();
    if args.json {
        out.json(&json!({
            "uuid": hex::encode(sb.uuid), "label": label,
            "area_bits": sb.geometry.area_bits, "checkpoint": volume.checkpoint_version(),
            "quota_bytes": bytes(space.quota), "reserve_bytes": bytes(space.reserve),
            "available_bytes": bytes(space.available()),
            "live_bytes": bytes(space.live), "held_bytes": bytes(space.held),
            "dead_bytes": bytes(space.dead), "pending_bytes": bytes(space.pending),
            "allocated_bytes": held.map(bytes), "forks_left": forks_left,
            "inodes": space.inodes, "snapshots": volume.snapshots().len(), "limits": volume.quotas().len(), "needs_trim": space.needs_trim,
        }))?;
    } else {
        field!(out, 11, "uuid" => "{}", hex::encode(sb.uuid))?;
        if !label.is_empty() {
            field!(out, 11, "label" => "{}", crate::text::escaped(label.as_bytes()))?;
        }
        field!(out, 11, "checkpoint" => "{}", volume.checkpoint_version())?;
        field!(
            out, 11, "quota" => "{}, {} of it for deletes only",
            size(bytes(space.quota)), size(bytes(space.reserve))
        )?;
        field!(out, 11, "available" => "{}", size(bytes(space.available())))?;
        field!(out, 11, "live" => "{} in {} inodes", size(bytes(space.live)), space.inodes)?;
        field!(out, 11, "snapshots" => "{}, which hold {} more", volume.snapshots().len(), size(bytes(space.held)))?;
        field!(
            out, 11, "dead" => "{}, {} of it in the discard log",
            size(bytes(space.dead + space.pending)), size(bytes(space.pending))
        )?;
        let limits = volume.quotas().len();
        if limits > 0 {
            field!(out, 11, "limits" => "{limits}, which 'tuff volume quota' shows")?;
        }
        if let Some(forks) = forks_left {
            field!(out, 11, "forks left" => "{forks}")?;
        }
        let host = held.map_or(
            "unknown: a block device does not say".to_owned(),
            |blocks| size(bytes(blocks)),
        );
        field!(out, 11, "on the host" => "{host}")?;
        if space.needs_trim {
            out.line("some blocks have leaked: 'tuff volume trim' gives them back")?;
        }
    }
    Ok(out.finish()?)
}

/// Number of blocks allocated on the host, packs and superblocks included. `None` if it is unknown.
pub(super) fn allocated(
    device: &dyn BlockDevice,
    area_blocks: u64,
) -> std::io::Result<Option<u64>> {
    if !device.knows_allocated() {
        return Ok(None);
    }
    let runs = device.allocated(0..area_blocks * Log::ALL.len() as u64)?;
    Ok(Some(runs.iter().map(|run| run.end - run.start).sum()))
}
