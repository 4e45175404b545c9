//! Superblock: the first 96 bytes of an image.

use crate::bytes::Fields;
use crate::compressor::Compressor;
use crate::error::{Error, Result};
use tuff_store::ReadAt;

/// First bytes of an image.
pub const MAGIC: [u8; 4] = *b"hsqs";

/// Length of the superblock. Unit: bytes.
const LEN: usize = 96;

/// Largest block of data. Unit: bytes.
const BLOCK_MAX: u32 = 1 << 20;

/// Position of a table that is not there.
const ABSENT: u64 = u64::MAX;

/// Superblock of an image.
#[derive(Clone, Debug)]
pub struct Superblock {
    /// Compressor of data and metadata.
    pub compressor: Compressor,
    /// Length of blocks of data: a power of two from 4 KiB to 1 MiB. Unit: bytes.
    pub block_size: u32,
    /// Number of inodes in the image.
    pub inodes: u32,
    /// Number of blocks of fragments.
    pub(crate) fragments: u32,
    /// Number of user and group IDs.
    pub(crate) ids: u16,
    /// Length of the image, without padding. Unit: bytes.
    pub bytes_used: u64,
    /// Inode of the root directory.
    pub(crate) root: u64,
    pub(crate) id_table: u64,
    pub(crate) xattr_table: Option<u64>,
    pub(crate) inode_table: u64,
    pub(crate) directory_table: u64,
    pub(crate) fragment_table: u64,
}

impl Superblock {
    pub(crate) fn read(store: &dyn ReadAt) -> Result<Self> {
        let mut fields = Fields([0; LEN]);
        if store.size() < LEN as u64 {
            return Err(Error::corrupt(0, "shorter than a superblock"));
        }
        store.read_exact_at(&mut fields.0, 0).map_err(Error::Io)?;
        let version = (fields.u16(28), fields.u16(30));
        if fields.0[..4] != MAGIC {
            return Err(match &fields.0[..4] {
                b"sqsh" => Error::Unsupported("a big-endian image, of a version before 4.0".into()),
                _ => Error::corrupt(0, "no SquashFS superblock"),
            });
        }
        if version != (4, 0) {
            let (major, minor) = version;
            let what = format!("SquashFS {major}.{minor}; only 4.0 can be read");
            return Err(Error::Unsupported(what));
        }
        let xattr_table = Some(fields.u64(56)).filter(|at| *at != ABSENT);
        let superblock = Self {
            compressor: Compressor::from_number(fields.u16(20))?,
            block_size: fields.u32(12),
            inodes: fields.u32(4),
            fragments: fields.u32(16),
            ids: fields.u16(26),
            bytes_used: fields.u64(40),
            root: fields.u64(32),
            id_table: fields.u64(48),
            xattr_table,
            inode_table: fields.u64(64),
            directory_table: fields.u64(72),
            fragment_table: fields.u64(80),
        };
        superblock.validate(fields.u16(22), store.size())?;
        Ok(superblock)
    }

    fn validate(&self, block_log: u16, size: u64) -> Result<()> {
        let block = self.block_size;
        let is_block = block.is_power_of_two() && (4096..=BLOCK_MAX).contains(&block);
        if !is_block || block.trailing_zeros() != u32::from(block_log) {
            return Err(Error::corrupt(
                12,
                format_args!("block size {block} with logarithm {block_log}"),
            ));
        }
        if self.bytes_used > size {
            return Err(Error::corrupt(
                40,
                format_args!("the image has {} bytes, the file {size}", self.bytes_used),
            ));
        }
        let tables = [
            ("ID table", 48, Some(self.id_table)),
            ("xattr table", 56, self.xattr_table),
            ("inode table", 64, Some(self.inode_table)),
            ("directory table", 72, Some(self.directory_table)),
            (
                "fragment table",
                80,
                Some(self.fragment_table).filter(|_| self.fragments > 0),
            ),
        ];
        for (name, field, at) in tables {
            let is_within = |at: &u64| (LEN as u64..self.bytes_used).contains(at);
            if at.is_some_and(|at| !is_within(&at)) {
                return Err(Error::corrupt(
                    field,
                    format_args!("the {name} is outside of the image"),
                ));
            }
        }
        Ok(())
    }
}
