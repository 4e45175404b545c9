//! `--vmdk-desc`: writes a VMDK descriptor that concatenates an image and its devices to one disk for virtual machines.
//!
//! Source: VMware's "Virtual Disk Format 5.0", the descriptor of flat extents.

use crate::image::OpenArgs;
use std::fmt::Write as _;
use std::path::{Path, PathBuf, absolute};
use tuff_erofs::read::Image;
use tuff_erofs::{Error, Result};

/// Sector size. Unit: bytes.
const SECTOR: u64 = 512;
/// Longest extent, 2 GiB. Unit: sectors.
const EXTENT: u64 = 1 << 22;
/// Heads of the geometry that tools write when there is no BIOS.
const HEADS: u64 = 16;
const TRACK: u64 = 63;
const CYLINDERS: u64 = 16_383;

/// Writes the descriptor of the disk that consists of `image` and `devices` to `path`.
///
/// # Errors
///
/// `Usage` for a device name that a descriptor cannot express, or a device that does not directly follow its
/// predecessor; errors of reading the image and writing the text.
pub(super) fn describe(path: &Path, image: &Path, devices: &[PathBuf]) -> Result<()> {
    let opened = OpenArgs::default().open(&image.into())?;
    let text = text(path, image, devices, &opened)?;
    super::companion_file::write(path, text.as_bytes())
}

fn text(path: &Path, image: &Path, devices: &[PathBuf], opened: &Image) -> Result<String> {
    let (sb, slots) = (opened.superblock(), opened.slots());
    let refused = |what: &str| Err(Error::usage(format_args!("--vmdk-desc: {what}")));
    if slots.len() != devices.len() {
        return refused("what came from standard input has no name");
    }
    let sectors = |blocks: u64| blocks * (sb.block_bits.size() / SECTOR);
    let mut end = slots.first().map_or(sb.blocks, |slot| slot.uniaddr.0);
    let mut parts = vec![(image, sectors(end))];
    for (slot, device) in slots.iter().zip(devices) {
        if slot.uniaddr.0 != end {
            return refused("its devices are not adjacent");
        }
        end += slot.blocks;
        parts.push((device, sectors(slot.blocks)));
    }
    let [a, b, c, d, ..] = sb.uuid;
    let cid = u32::from_be_bytes([a, b, c, d]);
    let mut out = format!(
        "# Disk DescriptorFile\nversion=1\nCID={cid:08x}\nparentCID=ffffffff\ncreateType=\"twoGbMaxExtentFlat\"\n\n# Extent description\n"
    );
    for (file, sectors) in parts {
        let name = name(path, file)?;
        for from in (0..sectors).step_by(EXTENT as usize) {
            let len = EXTENT.min(sectors - from);
            // Writing to a String cannot fail.
            let _ = writeln!(out, "RW {len} FLAT \"{name}\" {from}");
        }
    }
    let cylinders = (sectors(end) / (HEADS * TRACK)).clamp(1, CYLINDERS);
    let _ = write!(
        out,
        "\n# The Disk Data Base\n#DDB\n\nddb.virtualHWVersion = \"4\"\nddb.geometry.cylinders = \"{cylinders}\"\nddb.geometry.heads = \"{HEADS}\"\nddb.geometry.sectors = \"{TRACK}\"\nddb.adapterType = \"ide\"\n"
    );
    Ok(out)
}

/// Name of a file in the descriptor at `path`: relative to its directory if possible.
fn name(path: &Path, file: &Path) -> Result<String> {
    let beside = path.parent().is_none_or(|dir| dir.as_os_str().is_empty());
    let named = match beside {
        true => Ok(file.to_owned()),
        false => absolute(file).map_err(|e| Error::io(file.display(), "cannot be named", e)),
    }?;
    match named.to_str() {
        Some(text) if !text.contains(['"', '\n']) => Ok(text.to_owned()),
        _ => Err(Error::usage(format_args!(
            "--vmdk-desc: {}: a descriptor cannot say this name",
            file.display()
        ))),
    }
}
