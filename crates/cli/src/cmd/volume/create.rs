//! `tuff volume create`: creates an empty volume.

use super::failure::{At, Failure, Result};
use super::open::{bytes, forks_left, now, random, require_path, uuid};
use crate::next_command::{self, shell_word};
use crate::out::Out;
use crate::overwrite::check_blank;
use crate::units::{parse_size, size};
use serde_json::json;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tuff_iplfs::backend::{FileDevice, MappedDevice, ZoneDir};
use tuff_iplfs::{BLOCK_SIZE, BlockDevice, Caller, FormatOptions, Volume};
use tuff_store::retry;

/// Smallest quota: two checkpoint packs, the reserve and some data.
const SIZE_MIN: u64 = 16 << 20;
/// Size of a device or file that certainly holds the smallest volume and its block map.
const MEDIUM_MIN: u64 = 20 << 20;

/// Create an empty volume
///
/// The default is a directory with one sparse file per zone: it works on every filesystem, and a dead zone is freed by
/// deleting its file. On a block device or an existing file of at least 20 MiB, a block map provides the address space of
/// the volume.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory to create, or a file with --file; or an existing block device or file
    path: PathBuf,
    /// Largest size of the volume, such as 10G [default: all of an existing device or file]
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Create one sparse file instead of a directory
    #[arg(long)]
    file: bool,
    /// Size of a zone file, a power of two
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G")]
    zone: u64,
    /// Size of a section, the unit of dead-block bitmaps, a power of two from 256K to 64G
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G")]
    section: u64,
    /// Address bits of each log area, 29 to 58, which limit the number of forks: 48 allow a million (default: 48, or fewer if
    /// the host file cannot be so long)
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
    /// Overwrite a block device or file whatever it contains
    #[arg(long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    require_path(&args.path)?;
    let zone_blocks = zone_blocks(args.zone)?;
    let mut options = FormatOptions::new(
        uuid().at("/dev/urandom")?,
        random().at("/dev/urandom")?,
        args.size.unwrap_or(SIZE_MIN) / BLOCK_SIZE as u64,
    );
    options.geometry.section_bits = section_bits(args.section)?;
    options.geometry.area_bits = args.area_bits.unwrap_or(options.geometry.area_bits);
    options.label.clone_from(&args.label);
    options.caller = Caller {
        now: now(),
        uid: args.uid,
        gid: args.gid,
    };
    let was_there = retry(|| args.path.metadata()).is_ok();
    let (device, options) = if is_medium(&args.path) && !args.file {
        on_medium(args, options)?
    } else {
        sparse(args, zone_blocks, options).inspect_err(|_| {
            if !was_there {
                // Removes only an empty directory.
                let _ = std::fs::remove_dir(&args.path);
            }
        })?
    };
    let made = Volume::format(device, &options).at(args.path.display());
    made.inspect_err(|_| unmake(&args.path, was_there))?;
    let quota = bytes(options.quota_blocks);
    let forks_left = forks_left(&args.path)?;
    let mut out = Out::new();
    if args.json {
        out.json(&json!({
            "path": args.path.display().to_string(), "uuid": hex::encode(options.uuid),
            "quota_bytes": quota, "area_bits": options.geometry.area_bits, "label": args.label,
            "forks_left": forks_left,
        }))?;
    } else {
        out.line(format_args!(
            "{}: a volume of {}",
            args.path.display(),
            size(quota)
        ))?;
        if let (Some(area_bits), Some(forks)) = (args.area_bits, forks_left) {
            out.line(format_args!(
                "addresses of {area_bits} bits allow {forks} forks and rollbacks in its life"
            ))?;
        }
        let command = format!("tuff volume mount {} DIR", shell_word(&args.path));
        next_command::line(command).map_or(Ok(()), |line| out.line(line))?;
    }
    Ok(out.finish()?)
}

type Created = (Arc<dyn BlockDevice>, FormatOptions);

/// Creates a block map on an existing block device or file.
fn on_medium(args: &Args, mut options: FormatOptions) -> Result<Created> {
    let place = args.path.display();
    if !args.force {
        check_blank(&args.path)?;
    }
    let medium = FileDevice::open(&args.path, false).at(&place)?;
    let blocks = medium.blocks().at(&place)?;
    let capacity = MappedDevice::capacity_on(blocks, &options.geometry);
    if bytes(capacity) < SIZE_MIN {
        return Err(Failure::Usage(format!(
            "{place}: {} are too small for a volume, at least {} are needed",
            size(bytes(blocks)),
            size(MEDIUM_MIN)
        )));
    }
    let quota = args.size.map_or(capacity, |size| size / BLOCK_SIZE as u64);
    if quota > capacity {
        return Err(Failure::Usage(format!(
            "{place}: has space for a volume of {}",
            size(bytes(capacity))
        )));
    }
    require_size(bytes(quota))?;
    options = FormatOptions {
        quota_blocks: quota,
        reserve_blocks: FormatOptions::new(options.uuid, options.hash_key, quota).reserve_blocks,
        ..options
    };
    let device = MappedDevice::create(Arc::new(medium), blocks, options.uuid, &options.geometry);
    Ok((Arc::new(device.at(&place)?), options))
}

/// Creates a directory of zone files, or a sparse file with `--file`.
fn sparse(args: &Args, zone_blocks: u64, mut options: FormatOptions) -> Result<Created> {
    let place = args.path.display();
    let Some(size) = args.size else {
        let what = format!("{place}: a new directory or file needs --size");
        return Err(Failure::Usage(what));
    };
    require_size(size)?;
    if !args.file {
        let device = ZoneDir::create(&args.path, zone_blocks).at(&place)?;
        return Ok((Arc::new(device), options));
    }
    let device = FileDevice::create(&args.path).at(&place)?;
    let reach = device.area_bits_max().at(&place)?;
    if args.area_bits.is_none() {
        options.geometry.area_bits = reach.min(48);
    }
    let area_bits = options.geometry.area_bits;
    if area_bits > reach || area_bits < 29 {
        let _ = std::fs::remove_file(&args.path);
        return Err(Failure::Usage(format!(
            "{place}: addresses of {} bits do not fit: the file supports {reach}, and at least 29 are needed",
            area_bits.max(29)
        )));
    }
    Ok((Arc::new(device), options))
}

fn require_size(bytes: u64) -> Result<()> {
    if bytes >= SIZE_MIN {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "a volume of {} is too small, at least {} is needed",
        size(bytes),
        size(SIZE_MIN)
    )))
}

/// Bits of an offset in a section of `bytes` bytes.
fn section_bits(bytes: u64) -> Result<u8> {
    let bits = (bytes / BLOCK_SIZE as u64).checked_ilog2().unwrap_or(0);
    if !bytes.is_power_of_two() || !(6..=24).contains(&bits) {
        let what = format!("sections of {bytes} bytes, expected a power of two from 256K to 64G");
        return Err(Failure::Usage(what));
    }
    Ok(bits as u8) // fits: at most 24
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
    } else if !was_there {
        let _ = std::fs::remove_file(path);
    }
}

/// Returns whether the path is a block device.
pub(super) fn is_block(path: &Path) -> bool {
    retry(|| path.metadata()).is_ok_and(|m| m.file_type().is_block_device())
}

/// Returns whether the path can store a block map.
fn is_medium(path: &Path) -> bool {
    is_block(path) || retry(|| path.metadata()).is_ok_and(|m| m.is_file())
}
