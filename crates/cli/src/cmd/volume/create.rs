//! `tuff volume create`: creates an empty volume.

use super::failure::{At, Failure, Result};
use super::open::{now, random, uuid};
use crate::out::Out;
use crate::text::hex;
use crate::units::{parse_size, size};
use serde_json::json;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tuff_iplfs::backend::{FileDevice, ZoneDir};
use tuff_iplfs::{BLOCK_SIZE, BlockDevice, Caller, FormatOptions, Geometry, Volume};
use tuff_store::retry;

/// Smallest quota: two checkpoint packs, the reserve and some data.
const SIZE_MIN: u64 = 16 << 20;

/// Create an empty volume
///
/// The default is a directory with one sparse file per zone: it works on every filesystem, and a dead zone is freed by
/// deleting its file.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory to create, or a file with --file, or an existing thin block device
    path: PathBuf,
    /// Largest size of the volume on its host, such as 10G
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    size: u64,
    /// Create one sparse file instead of a directory
    #[arg(long)]
    file: bool,
    /// Size of a zone file, a power of two
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G")]
    zone: u64,
    /// Address bits of each log area, 29 to 58 (default: 48, or fewer if the host file cannot be so long)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(29..=58))]
    area_bits: Option<u8>,
    /// Label, at most 64 bytes
    #[arg(long, default_value = "", value_name = "TEXT")]
    label: String,
    /// Owner of the root directory
    #[arg(long, default_value_t = 0, value_name = "N")]
    uid: u32,
    /// Group of the root directory
    #[arg(long, default_value_t = 0, value_name = "N")]
    gid: u32,
    /// Overwrite a block device whatever it contains
    #[arg(long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    if args.size < SIZE_MIN {
        let what = format!(
            "a volume of {} is too small, at least {} is needed",
            size(args.size),
            size(SIZE_MIN)
        );
        return Err(Failure::Usage(what));
    }
    let zone_blocks = zone_blocks(args.zone)?;
    let was_there = retry(|| args.path.metadata()).is_ok();
    let uuid = uuid().at("/dev/urandom")?;
    let hash_key = random().at("/dev/urandom")?;
    let made = make(args, zone_blocks);
    let (device, reach) = made.inspect_err(|_| {
        if !was_there {
            // Removes only an empty directory.
            let _ = std::fs::remove_dir(&args.path);
        }
    })?;
    let area_bits = args.area_bits.unwrap_or(reach.min(48));
    if area_bits > reach || area_bits < 29 {
        if args.file && !is_block(&args.path) {
            let _ = std::fs::remove_file(&args.path);
        }
        let what = format!(
            "{}: addresses of {} bits do not fit: the device supports {reach}, and at least 29 are needed",
            args.path.display(),
            args.area_bits.unwrap_or(29)
        );
        return Err(Failure::Usage(what));
    }
    let options = FormatOptions::new(uuid, hash_key, args.size / BLOCK_SIZE as u64);
    let options = FormatOptions {
        geometry: Geometry {
            area_bits,
            ..options.geometry
        },
        label: args.label.clone(),
        caller: Caller {
            now: now(),
            uid: args.uid,
            gid: args.gid,
        },
        ..options
    };
    let made = Volume::format(device, &options).at(args.path.display());
    made.inspect_err(|_| unmake(&args.path, was_there))?;
    let mut out = Out::new();
    if args.json {
        out.line(json!({
            "path": args.path.display().to_string(), "uuid": hex(&uuid),
            "quota_bytes": args.size, "area_bits": area_bits, "label": args.label,
        }))?;
    } else {
        out.line(format_args!(
            "{}: a volume of {}",
            args.path.display(),
            size(args.size)
        ))?;
    }
    out.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Creates the backing device. Returns it with its largest number of address bits per area.
fn make(args: &Args, zone_blocks: u64) -> Result<(Arc<dyn BlockDevice>, u8)> {
    let place = args.path.display();
    if is_block(&args.path) {
        if !args.force {
            let what = format!(
                "{place}: is a block device; --force creates a volume on it and destroys its content"
            );
            return Err(Failure::Usage(what));
        }
        let device = FileDevice::open(&args.path, false).at(&place)?;
        let reach = device.area_bits_max().at(&place)?;
        Ok((Arc::new(device), reach))
    } else if args.file {
        let device = FileDevice::create(&args.path).at(&place)?;
        let reach = device.area_bits_max().at(&place)?;
        Ok((Arc::new(device), reach))
    } else {
        Ok((
            Arc::new(ZoneDir::create(&args.path, zone_blocks).at(&place)?),
            58,
        ))
    }
}

/// Number of blocks in a zone of `bytes` bytes.
pub(super) fn zone_blocks(bytes: u64) -> Result<u64> {
    let blocks = bytes / BLOCK_SIZE as u64;
    if !bytes.is_power_of_two() || !(1 << 8..=1 << 24).contains(&blocks) {
        let what = format!("zones of {bytes} bytes, expected a power of two from 1M to 64G");
        return Err(Failure::Usage(what));
    }
    Ok(blocks)
}

/// Removes a partially created volume. An existing directory or device is kept.
pub(super) fn unmake(path: &Path, was_there: bool) {
    if retry(|| path.metadata()).is_ok_and(|m| m.is_dir()) {
        ZoneDir::unmake(path);
        if !was_there {
            let _ = std::fs::remove_dir(path);
        }
    } else if !is_block(path) {
        let _ = std::fs::remove_file(path);
    }
}

pub(super) fn is_block(path: &Path) -> bool {
    retry(|| path.metadata()).is_ok_and(|m| m.file_type().is_block_device())
}
