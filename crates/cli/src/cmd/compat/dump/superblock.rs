//! Output of the superblock: lines of dump.erofs, and variables for udev.

use super::Dump;
use crate::cmd::info::{build_time, uuid};
use crate::cmd::stat::extents::algorithm_name;
use crate::text::c_time;
use tuff_erofs::Result;
use tuff_format::features::{Feature, KernelVersion, flags_of, incompat};
use tuff_format::superblock::{BASE_LEN, MAGIC, Superblock};

/// Unit of the superblock's extension slots. Unit: bytes.
const SLOT_LEN: usize = 16;

impl Dump<'_> {
    /// Prints a line for each field.
    pub(super) fn superblock(&mut self) -> Result<()> {
        let sb = self.image.superblock();
        self.field("magic number", format_args!("0x{MAGIC:08X}"))?;
        self.field("blocksize", sb.block_bits.size())?;
        // Blocks of extra devices are included.
        let further = self.image.slots().iter().map(|slot| slot.blocks);
        self.field("blocks", further.fold(sb.blocks, u64::saturating_add))?;
        self.field("inode metadata start block", sb.meta_blkaddr)?;
        self.field("shared xattr metadata start block", sb.xattr_blkaddr)?;
        self.field("root nid", sb.root.0)?;
        if let Some(packed) = sb.packed {
            self.field("packed nid", packed.0)?;
        }
        if let Some(metabox) = sb.metabox {
            self.field("metabox nid", metabox.0)?;
        }
        match sb.has(incompat::COMPR_CFGS) {
            true => self.field("compr_algs", algorithms(sb))?,
            false => self.field("lz4_max_distance", sb.algs_or_distance)?,
        }
        self.field("sb_size", BASE_LEN + SLOT_LEN * usize::from(sb.ext_slots))?;
        self.field("inode count", sb.inodes)?;
        self.field("created", c_time(build_time(sb).0))?;
        self.field("compatible features", names(flags_of(sb.compat, 0)))?;
        self.field("incompatible features", names(flags_of(0, sb.incompat)))?;
        self.field("UUID", uuid(&sb.uuid))?;
        let kernel = sb.min_kernel();
        if sb.incompat != 0 || kernel > KernelVersion::FIRST {
            let name = "Required upstream Linux kernel version:";
            self.out.line(format_args!("{name:<45} {kernel}"))?;
        }
        Ok(())
    }

    fn field(&mut self, name: &str, value: impl std::fmt::Display) -> Result<()> {
        let name = format!("Filesystem {name}:");
        self.out.line(format_args!("{name:<45} {value}"))
    }

    /// Prints the variables that udev imports.
    pub(super) fn udev(&mut self) -> Result<()> {
        let uuid = uuid(&self.image.superblock().uuid);
        self.out.line(format_args!("ID_FS_UUID={uuid}"))?;
        self.out.line(format_args!("ID_FS_UUID_ENC={uuid}"))?;
        self.out.line("ID_FS_TYPE=erofs")?;
        self.out.line("ID_FS_USAGE=filesystem")
    }
}

fn algorithms(sb: &Superblock) -> String {
    let ids = (0..4).filter(|id| sb.algorithms() & 1 << id != 0);
    ids.map(algorithm_name).collect::<Vec<_>>().join(", ")
}

/// Feature names as dump.erofs spells them, each followed by a space.
fn names(features: impl Iterator<Item = Feature>) -> String {
    let names = features.map(|f| match f {
        Feature::SB_CHKSUM => "sb_csum ".to_owned(),
        Feature::LZ4_0PADDING => "lz4_0padding ".to_owned(),
        Feature::DEVICE_TABLE => "device_table ".to_owned(),
        Feature { name, .. } => name.replace(',', "") + " ",
    });
    names.collect()
}
