//! Output for one inode: fields, directory entries, extents and content.

use super::Dump;
use crate::cmd::cat::copy;
use crate::cmd::stat::{has_data, storage};
use crate::text::{mode_string, time};
use std::ops::Range;
use tuff_erofs::read::{DeviceId, Extent, FileType, Image, Inode, Layout, Location};
use tuff_erofs::walk::{Entry, Walk, shown};
use tuff_erofs::{Error, Result};
use tuff_format::chunk;
use tuff_format::units::round_up;

impl Dump<'_> {
    /// Returns the first path of an inode, if it has one.
    pub(super) fn name(&mut self, inode: &Inode) -> Result<Option<Entry>> {
        for entry in Walk::root(self.image)? {
            match entry {
                Ok(entry) if entry.inode.nid() == inode.nid() => return Ok(Some(entry)),
                Ok(_) => {}
                Err(e) => self.wrong(e),
            }
        }
        Ok(None)
    }

    /// Prints the fields of an inode.
    pub(super) fn inode(&mut self, path: &str, inode: &Inode) -> Result<()> {
        let size = inode.size();
        let stored = stored_bytes(self.image, inode)?;
        let (raw, mode) = (inode.raw(), inode.mode());
        let (seconds, nanos) = inode.mtime();
        let out = &mut self.out;
        out.line(format_args!("Path : {path}"))?;
        out.line(format_args!(
            "Size: {size}  On-disk size: {stored}  {}",
            type_name(inode.file_type())
        ))?;
        out.line(format_args!(
            "NID: {}   Links: {}   Layout: {}   Compression ratio: {:.2}%",
            inode.nid().0,
            inode.nlink(),
            inode.layout() as u8,
            percent(stored, size)
        ))?;
        out.line(format_args!(
            "Inode size: {}   Xattr size: {}",
            raw.len(),
            raw.xattr_len()
        ))?;
        out.line(format_args!(
            "Uid: {}   Gid: {}  Access: {:04o}/{}",
            inode.uid(),
            inode.gid(),
            mode & 0o7777,
            &mode_string(mode)[1..]
        ))?;
        out.line(format_args!("Timestamp: {}.{nanos:09}", time(seconds)))
    }

    /// Prints the entries of a directory; for other inodes only the heading.
    pub(super) fn list(&mut self, inode: &Inode) -> Result<()> {
        self.out.line("")?;
        self.out.line("       NID TYPE  FILENAME")?;
        if !inode.is_dir() {
            return Ok(());
        }
        for entry in self.image.read_dir(inode)? {
            let entry = entry?;
            let code = entry.file_type.map_or(0, FileType::dirent_code);
            let name = shown(&entry.name);
            let name = name.strip_prefix('/').unwrap_or(&name);
            self.out
                .line(format_args!("{:>10} {code:>4}  {name}", entry.nid.0))?;
        }
        Ok(())
    }

    /// Prints the extents of an inode.
    pub(super) fn extents(&mut self, path: &str, inode: &Inode) -> Result<()> {
        self.out.line("")?;
        self.out
            .line(" Ext:   logical offset   |  length :     physical offset    |  length")?;
        let mut count = 0;
        for range in pieces(self.image, inode)? {
            for extent in self.image.extents(inode, range)? {
                let line = line(&extent?, inode, self.image);
                self.out.line(format_args!("{count:>4}: {line}"))?;
                count += 1;
            }
        }
        self.out.line(format_args!("{path}: {count} extents found"))
    }

    /// Writes the content of a file or the target of a symlink.
    pub(super) fn cat(&mut self, inode: &Inode) -> Result<()> {
        match inode.file_type() {
            FileType::Symlink => {
                let target = self.image.readlink(inode)?;
                self.out.bytes(&target)
            }
            FileType::File => {
                let name = format!("nid {}", inode.nid());
                copy(self.image, inode, &name, &mut self.out)
            }
            other => Err(Error::usage(format_args!(
                "--cat: nid {} is a {}, expected a file or a symlink",
                inode.nid(),
                other.name()
            ))),
        }
    }
}

/// Ranges whose extents are listed. A file in chunks is listed chunk by chunk, as the library would merge adjacent
/// ones.
fn pieces(image: &Image, inode: &Inode) -> Result<impl Iterator<Item = Range<u64>>> {
    // An inode without data has no chunk table to validate.
    let size = if has_data(inode) { inode.size() } else { 0 };
    let step = match inode.layout() {
        Layout::ChunkBased => {
            chunk::Format::decode(inode.raw().u)
                .map_err(|e| Error::format(format_args!("nid {}", inode.nid()), e))?
                .chunk_size(image.superblock().block_bits)
                .0
        }
        _ => size.max(1),
    };
    let pieces = 0..size.div_ceil(step);
    Ok(pieces.map(move |i| i * step..size.min((i + 1).saturating_mul(step))))
}

/// Formats an extent. Its length includes the whole last block, except for compressed and inline data. Holes and
/// fragments have no address.
fn line(extent: &Extent, inode: &Inode, image: &Image) -> String {
    let block = image.superblock().block_bits.size();
    let whole = match extent.location {
        Location::Raw { .. } | Location::Hole if !is_compressed(inode) => {
            round_up(extent.len, block)
        }
        _ => extent.len,
    };
    let (device, start, stored) = match extent.location {
        Location::Hole | Location::Fragment { .. } => (DeviceId::PRIMARY, 0, 0),
        Location::Raw { device, pos } => (device, pos, whole),
        Location::Cluster(cluster) => (DeviceId::PRIMARY, cluster.pos, cluster.len.into()),
        Location::Inline { pos, len, .. } => (DeviceId::PRIMARY, pos, len.into()),
    };
    let device = match device {
        DeviceId::PRIMARY => String::new(),
        n => format!("  # device {n}"),
    };
    format!(
        "{:>8}..{:>8} | {whole:>7} : {start:>10}..{:>10} | {stored:>7}{device}",
        extent.offset,
        extent.offset.saturating_add(whole),
        start.saturating_add(stored)
    )
}

/// Size of the data in the image: counted blocks for a compressed file, else everything but holes. Unit: bytes.
pub(super) fn stored_bytes(image: &Image, inode: &Inode) -> Result<u64> {
    if is_compressed(inode) {
        let block = image.superblock().block_bits.size();
        return Ok(inode.raw().u.saturating_mul(block));
    }
    Ok(storage(image, inode)?.stored_bytes)
}

/// Returns true if an inode has a cluster index.
pub(super) fn is_compressed(inode: &Inode) -> bool {
    let layout = inode.layout();
    matches!(layout, Layout::CompressedFull | Layout::CompressedCompact)
}

/// Share in percent; 100 if `whole` is 0.
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 100.0,
        _ => part as f64 * 100.0 / whole as f64,
    }
}

/// Name of a file type in the output.
pub(super) fn type_name(kind: FileType) -> &'static str {
    match kind {
        FileType::File => "regular file",
        FileType::Dir => "directory",
        FileType::Symlink => "symlink file",
        FileType::Char => "char dev",
        FileType::Block => "block dev",
        FileType::Fifo => "FIFO file",
        FileType::Socket => "SOCK file",
    }
}
