//! `--block-list-file`: lists the blocks of each file, for tools that create block-level updates.
//!
//! ```text
//!  /system/app/Clock/Clock.apk 40027-40064 40101
//! ```
//!
//! Each line has the first path of a file, from the mount point on, and its block ranges in file order, both ends
//! included. Inline data, fragments and data on other devices have no blocks in the image. Blocks shared by several
//! files are listed for each of them.
//!
//! Source: Android's `releasetools`, `sparse_img.py` (`LoadFileBlockMap`), which reads it.

use crate::image::OpenArgs;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;
use tuff_erofs::Result;
use tuff_erofs::read::{DeviceId, FileType, Image, Inode, Location};
use tuff_erofs::walk::Walk;

/// Writes the list of the image at `offset` of `file` to `path`. Returns the number of omitted files: the format cannot
/// express white space or control characters in a path.
///
/// # Errors
///
/// Errors of reading the image and writing the list.
pub(super) fn list(path: &Path, file: &Path, offset: u64, mount_point: &[u8]) -> Result<usize> {
    let open = OpenArgs {
        offset,
        ..OpenArgs::default()
    };
    let (text, left_out) = text(&*open.open(&file.into())?, mount_point)?;
    super::companion_file::write(path, &text)?;
    Ok(left_out)
}

fn text(image: &Image, mount_point: &[u8]) -> Result<(Vec<u8>, usize)> {
    let mount_point = mount_point.strip_suffix(b"/").unwrap_or(mount_point);
    let (mut out, mut left_out) = (Vec::new(), 0);
    let mut seen = HashSet::new();
    for entry in Walk::root(image)? {
        let entry = entry?;
        let again = entry.inode.nlink() > 1 && !seen.insert(entry.inode.nid());
        if again || entry.inode.file_type() != FileType::File {
            continue;
        }
        let runs = runs(image, &entry.inode)?;
        if runs.is_empty() {
            continue;
        }
        let path = [mount_point, &entry.path].join(&b'/');
        if path.iter().any(|&byte| byte <= b' ') {
            left_out += 1;
            continue;
        }
        out.extend_from_slice(&path);
        let mut line = String::new();
        for (first, last) in runs {
            // Writing to a String cannot fail.
            let _ = match first == last {
                true => write!(line, " {first}"),
                false => write!(line, " {first}-{last}"),
            };
        }
        line.push('\n');
        out.extend_from_slice(line.as_bytes());
    }
    Ok((out, left_out))
}

/// Returns the first and last block of each run of a file's blocks, in file order.
fn runs(image: &Image, inode: &Inode) -> Result<Vec<(u64, u64)>> {
    let sb = image.superblock();
    let bits = sb.block_bits.get();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for extent in image.extents(inode, 0..inode.size())? {
        let extent = extent?;
        let (pos, len) = match extent.location {
            Location::Raw { device, pos } if device == DeviceId::PRIMARY => (pos, extent.len),
            Location::Cluster(cluster) => (cluster.pos, cluster.len.into()),
            _ => continue,
        };
        let (first, last) = (pos >> bits, (pos + len).saturating_sub(1) >> bits);
        // Addresses on other devices follow those of the image.
        if last >= sb.blocks {
            continue;
        }
        match runs.last_mut() {
            // Adjacent to the previous range, or in its last block.
            Some(run) if first == run.1 + 1 || first == run.1 => run.1 = last,
            _ => runs.push((first, last)),
        }
    }
    Ok(runs)
}
