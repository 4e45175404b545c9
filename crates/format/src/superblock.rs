//! Superblock: 128 bytes at byte 1024 of the image, and optional slots of 16 bytes.
//!
//! ```text
//! 0x00 magic    checksum  compat    bits slots root/blocks_hi
//! 0x10 inodes             epoch
//! 0x20 nsec     blocks_lo meta_blk  xattr_blk
//! 0x30 uuid
//! 0x40 label
//! 0x50 incompat algs devs slot dir pfx_count pfx_start
//! 0x60 packed_nid         filter ishare      build_time
//! 0x70 root_nid           -
//! 0x80 metabox_nid        -                  (only with a slot)
//! ```
//! Source: `docs/reference/format/superblock.md`.

use crate::features::{Feature, KernelVersion, compat, flags_of, incompat, min_kernel};
use crate::{BlockAddr, BlockBits, Error, Nid, Result};
use alloc::vec::Vec;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Position of the superblock in the image. Unit: bytes.
pub const OFFSET: u64 = 1024;
/// Magic number, the first four bytes in little-endian order.
pub const MAGIC: u32 = 0xE0F5_E1E2;
/// Length without extension slots. Unit: bytes.
pub const BASE_LEN: usize = 128;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    magic: U32,
    checksum: U32,
    feature_compat: U32,
    blkszbits: u8,
    sb_extslots: u8,
    rootnid_2b_or_blocks_hi: U16,
    inos: U64,
    epoch: U64,
    fixed_nsec: U32,
    blocks_lo: U32,
    meta_blkaddr: U32,
    xattr_blkaddr: U32,
    uuid: [u8; 16],
    volume_name: [u8; 16],
    feature_incompat: U32,
    algs_or_distance: U16,
    extra_devices: U16,
    devt_slotoff: U16,
    dirblkbits: u8,
    xattr_prefix_count: u8,
    xattr_prefix_start: U32,
    packed_nid: U64,
    xattr_filter_reserved: u8,
    ishare_xattr_prefix_id: u8,
    reserved_6a: [u8; 2],
    build_time: U32,
    rootnid_8b: U64,
    reserved_78: U64,
}

const _: () = assert!(size_of::<Raw>() == BASE_LEN);

/// Superblock in decoded form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Bits of `feature_compat`, see [`compat`].
    pub compat: u32,
    /// Bits of `feature_incompat`, see [`incompat`].
    pub incompat: u32,
    /// CRC-32C as stored. [`seal`] computes it.
    pub checksum: u32,
    /// Block size of the image.
    pub block_bits: BlockBits,
    /// Number of 16-byte slots after the first 128 bytes.
    pub ext_slots: u8,
    /// Nid of the root directory.
    pub root: Nid,
    /// Number of inodes, for `statfs`.
    pub inodes: u64,
    /// Base time of compact inodes. Unit: seconds since 1970.
    pub epoch: i64,
    /// Nanoseconds of the modification time of compact inodes.
    pub fixed_nsec: u32,
    /// Size of the primary device. Unit: blocks.
    pub blocks: u64,
    /// Block of the inode with nid 0.
    pub meta_blkaddr: BlockAddr,
    /// Block from which the ids of shared xattrs count.
    pub xattr_blkaddr: BlockAddr,
    /// UUID in its on-disk byte order.
    pub uuid: [u8; 16],
    /// Volume label, padded with NUL.
    pub label: [u8; 16],
    /// With `COMPR_CFGS`: bit set of algorithms. Otherwise: largest LZ4 distance.
    pub algs_or_distance: u16,
    /// Number of slots in the device table.
    pub extra_devices: u16,
    /// Position of the device table. Unit: 128 bytes.
    pub devt_slotoff: u16,
    /// Number of long xattr name prefixes.
    pub xattr_prefix_count: u8,
    /// Position of the table of long prefixes in its container. Unit: 4 bytes.
    pub xattr_prefix_start: u32,
    /// Nid of the packed inode, which holds fragments.
    pub packed: Option<Nid>,
    /// Reserved byte of the xattr filter. Filters are invalid if it is not zero.
    pub xattr_filter_reserved: u8,
    /// Id of the long prefix of fingerprint xattrs, with `ISHARE_XATTRS`.
    pub ishare_prefix: u8,
    /// Time of the build. Unit: seconds since `epoch`.
    pub build_time: u32,
    /// Nid of the metabox inode, with `METABOX`.
    pub metabox: Option<Nid>,
}

impl Superblock {
    /// Superblock without content: all fields but the block size are 0 or absent.
    pub const fn empty(block_bits: BlockBits) -> Self {
        Self {
            compat: 0,
            incompat: 0,
            checksum: 0,
            block_bits,
            ext_slots: 0,
            root: Nid(0),
            inodes: 0,
            epoch: 0,
            fixed_nsec: 0,
            blocks: 0,
            meta_blkaddr: BlockAddr(0),
            xattr_blkaddr: BlockAddr(0),
            uuid: [0; 16],
            label: [0; 16],
            algs_or_distance: 0,
            extra_devices: 0,
            devt_slotoff: 0,
            xattr_prefix_count: 0,
            xattr_prefix_start: 0,
            packed: None,
            xattr_filter_reserved: 0,
            ishare_prefix: 0,
            build_time: 0,
            metabox: None,
        }
    }

    /// Decodes the superblock from the bytes at [`OFFSET`]: at least 144, or as many as the image has.
    ///
    /// Performs the kernel's mount-time checks, except the checksum: see [`checksum`].
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let (raw, rest) = Raw::read_from_prefix(bytes).map_err(|_| {
            Error::bad(
                "superblock length",
                bytes.len() as u64,
                "at least 128 bytes",
            )
        })?;
        if raw.magic.get() != MAGIC {
            return Err(Error::bad(
                "not an EROFS image, by its magic number",
                raw.magic.get().into(),
                "0xe0f5e1e2",
            ));
        }
        let incompat = raw.feature_incompat.get();
        if incompat & !incompat::KNOWN != 0 {
            return Err(Error::unsupported(
                "feature_incompat bit",
                (incompat & !incompat::KNOWN).into(),
            ));
        }
        let block_bits = BlockBits::new(raw.blkszbits)?;
        if raw.dirblkbits != 0 {
            return Err(Error::bad(
                "directory block bits",
                raw.dirblkbits.into(),
                "0",
            ));
        }
        // The kernel requires it in the first page.
        if BASE_LEN + 16 * usize::from(raw.sb_extslots) > 4096 - 1024 {
            return Err(Error::bad(
                "superblock extension slots",
                raw.sb_extslots.into(),
                "at most 184",
            ));
        }
        let wide = incompat & incompat::BIT48 != 0 && raw.rootnid_8b.get() != 0;
        let (root, blocks_hi) = if wide {
            (
                raw.rootnid_8b.get(),
                u64::from(raw.rootnid_2b_or_blocks_hi.get()),
            )
        } else {
            (raw.rootnid_2b_or_blocks_hi.get().into(), 0)
        };
        let packed = if incompat & incompat::FRAGMENTS != 0 {
            raw.packed_nid.get()
        } else {
            0
        };
        if Nid(packed).in_metabox() {
            return Err(Error::bad("packed inode number", packed, "bit 63 clear"));
        }
        let metabox = if incompat & incompat::METABOX != 0 {
            if raw.sb_extslots == 0 {
                return Err(Error::bad(
                    "superblock extension slots",
                    0,
                    "at least 1 with the metabox feature",
                ));
            }
            let nid = crate::wire::bytes(rest, 0, 8, "metabox inode number")?;
            let nid = u64::from_le_bytes(
                nid.try_into()
                    .map_err(|_| Error::corrupt("metabox inode number"))?,
            );
            if Nid(nid).in_metabox() {
                return Err(Error::bad("metabox inode number", nid, "bit 63 clear"));
            }
            Some(Nid(nid))
        } else {
            None
        };
        Ok(Self {
            compat: raw.feature_compat.get(),
            incompat,
            checksum: raw.checksum.get(),
            block_bits,
            ext_slots: raw.sb_extslots,
            root: Nid(root),
            inodes: raw.inos.get(),
            epoch: raw.epoch.get().cast_signed(),
            fixed_nsec: raw.fixed_nsec.get(),
            blocks: u64::from(raw.blocks_lo.get()) | blocks_hi << 32,
            meta_blkaddr: raw.meta_blkaddr.get().into(),
            xattr_blkaddr: raw.xattr_blkaddr.get().into(),
            uuid: raw.uuid,
            label: raw.volume_name,
            algs_or_distance: raw.algs_or_distance.get(),
            extra_devices: raw.extra_devices.get(),
            devt_slotoff: raw.devt_slotoff.get(),
            xattr_prefix_count: raw.xattr_prefix_count,
            xattr_prefix_start: raw.xattr_prefix_start.get(),
            packed: (packed != 0).then_some(Nid(packed)),
            xattr_filter_reserved: raw.xattr_filter_reserved,
            ishare_prefix: raw.ishare_xattr_prefix_id,
            build_time: raw.build_time.get(),
            metabox,
        })
    }

    /// Encodes the superblock with the checksum of `self`. Length: [`len`](Self::len).
    pub fn encode(&self) -> Vec<u8> {
        let wide = self.incompat & incompat::BIT48 != 0;
        let [b0, b1, b2, b3, b4, b5, ..] = self.blocks.to_le_bytes();
        let root = self.root.0.to_le_bytes();
        let raw = Raw {
            magic: U32::new(MAGIC),
            checksum: U32::new(self.checksum),
            feature_compat: U32::new(self.compat),
            blkszbits: self.block_bits.get(),
            sb_extslots: self.ext_slots,
            rootnid_2b_or_blocks_hi: if wide {
                U16::from_bytes([b4, b5])
            } else {
                U16::from_bytes([root[0], root[1]])
            },
            inos: U64::new(self.inodes),
            epoch: U64::new(self.epoch.cast_unsigned()),
            fixed_nsec: U32::new(self.fixed_nsec),
            blocks_lo: U32::from_bytes([b0, b1, b2, b3]),
            meta_blkaddr: low_half(self.meta_blkaddr),
            xattr_blkaddr: low_half(self.xattr_blkaddr),
            uuid: self.uuid,
            volume_name: self.label,
            feature_incompat: U32::new(self.incompat),
            algs_or_distance: U16::new(self.algs_or_distance),
            extra_devices: U16::new(self.extra_devices),
            devt_slotoff: U16::new(self.devt_slotoff),
            dirblkbits: 0,
            xattr_prefix_count: self.xattr_prefix_count,
            xattr_prefix_start: U32::new(self.xattr_prefix_start),
            packed_nid: U64::new(self.packed.map_or(0, |n| n.0)),
            xattr_filter_reserved: self.xattr_filter_reserved,
            ishare_xattr_prefix_id: self.ishare_prefix,
            reserved_6a: [0; 2],
            build_time: U32::new(self.build_time),
            rootnid_8b: U64::new(if wide { self.root.0 } else { 0 }),
            reserved_78: U64::new(0),
        };
        let mut out = raw.as_bytes().to_vec();
        out.resize(self.len(), 0);
        if let (Some(nid), Some(slot)) = (self.metabox, out.get_mut(BASE_LEN..BASE_LEN + 8)) {
            slot.copy_from_slice(&nid.0.to_le_bytes());
        }
        out
    }

    /// Length with extension slots. Unit: bytes.
    #[expect(clippy::len_without_is_empty, reason = "a superblock is never empty")]
    pub fn len(&self) -> usize {
        BASE_LEN + 16 * usize::from(self.ext_slots)
    }

    /// True if all of these incompat bits are set.
    pub fn has(&self, incompat: u32) -> bool {
        self.incompat & incompat == incompat
    }

    /// True if all of these compat bits are set.
    pub fn has_compat(&self, compat: u32) -> bool {
        self.compat & compat == compat
    }

    /// True if the xattr filters of inodes are valid.
    pub fn trusts_filters(&self) -> bool {
        self.has_compat(compat::XATTR_FILTER) && self.xattr_filter_reserved == 0
    }

    /// Bit set of the algorithms that compressed data may use.
    pub fn algorithms(&self) -> u16 {
        if self.has(incompat::COMPR_CFGS) {
            self.algs_or_distance
        } else {
            u16::from(self.has(incompat::LZ4_0PADDING) || self.algs_or_distance != 0)
        }
    }

    /// Returns the features that the superblock records: flags first, then algorithms and layout.
    pub fn features(&self) -> impl Iterator<Item = Feature> {
        let used = match self.has(incompat::COMPR_CFGS) {
            true => self.algs_or_distance,
            false => 0,
        };
        let compressed = self.algorithms() != 0;
        let is_full_label = !self.label.contains(&0);
        let algorithms = (0u8..).zip(Feature::ALGORITHMS);
        flags_of(self.compat, self.incompat)
            .chain(algorithms.filter_map(move |(id, f)| (used >> id & 1 != 0).then_some(f)))
            .chain(Feature::of_block_size(self.block_bits, compressed))
            .chain(is_full_label.then_some(Feature::FULL_LABEL))
    }

    /// Returns the oldest kernel that mounts the image.
    pub fn min_kernel(&self) -> KernelVersion {
        min_kernel(self.features())
    }

    /// Volume label up to its first NUL.
    pub fn label(&self) -> &[u8] {
        self.label.split(|b| *b == 0).next().unwrap_or(&[])
    }
}

/// Narrows an address whose field has no high half. The builder limits such addresses to 32 bits.
fn low_half(addr: BlockAddr) -> U32 {
    debug_assert!(addr.0 <= u32::MAX.into());
    U32::new(addr.0 as u32)
}

/// Number of bytes from [`OFFSET`] on that the checksum covers.
pub fn checksum_len(bits: BlockBits) -> usize {
    if bits.size_usize() > 1024 {
        bits.size_usize() - 1024
    } else {
        bits.size_usize()
    }
}

/// Computes the CRC-32C of `covered`, without the final inversion and with zeros in place of the stored checksum.
/// `covered` starts at [`OFFSET`] and has [`checksum_len`] bytes.
pub fn checksum(covered: &[u8]) -> u32 {
    static CRC32C: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);
    let mut digest = CRC32C.digest();
    digest.update(covered.get(..4).unwrap_or(&[]));
    digest.update(&[0; 4]);
    digest.update(covered.get(8..).unwrap_or(&[]));
    !digest.finalize()
}

/// Computes the checksum of `covered` and stores it there. Must be the last change.
pub fn seal(covered: &mut [u8]) {
    let sum = checksum(covered).to_le_bytes();
    if let Some(field) = covered.get_mut(4..8) {
        field.copy_from_slice(&sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            compat: compat::SB_CHKSUM | compat::MTIME | compat::XATTR_FILTER,
            incompat: incompat::LZ4_0PADDING,
            checksum: 0x95BA_E7FF,
            root: Nid(36),
            inodes: 4,
            epoch: 1_700_000_000,
            blocks: 14,
            label: *b"wk\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            algs_or_distance: 0xFFFF,
            ..Superblock::empty(BlockBits::B4K)
        }
    }

    #[test]
    fn the_worked_example_encodes_byte_for_byte() {
        // Worked example of docs/reference/format/superblock.md.
        let expected = [
            "e2e1f5e0 ffe7ba95 07000000 0c002400",
            "04000000 00000000 00f15365 00000000",
            "00000000 0e000000 00000000 00000000",
            "00000000 00000000 00000000 00000000",
            "776b0000 00000000 00000000 00000000",
            "01000000 ffff0000 00000000 00000000",
            "00000000 00000000 00000000 00000000",
            "00000000 00000000 00000000 00000000",
        ];
        let hex: alloc::string::String = expected.concat().split_whitespace().collect();
        let bytes: Vec<u8> = (0..hex.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap())
            .collect();
        assert_eq!(sample().encode(), bytes);
        assert_eq!(Superblock::decode(&bytes).unwrap(), sample());
    }

    #[test]
    fn wide_fields_and_the_metabox_survive_a_round_trip() {
        let mut sb = sample();
        sb.incompat |= incompat::BIT48 | incompat::METABOX | incompat::FRAGMENTS;
        sb.root = Nid(1 << 63 | 77);
        sb.blocks = 0x1234_5678_9ABC;
        sb.ext_slots = 1;
        sb.metabox = Some(Nid(99));
        sb.packed = Some(Nid(101));
        assert_eq!(Superblock::decode(&sb.encode()).unwrap(), sb);
    }

    #[test]
    fn the_checksum_is_crc32c_without_inversion() {
        static CRC32C: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);
        assert_eq!(!CRC32C.checksum(b"123456789"), 0x1CF9_6D7C);
    }

    #[test]
    fn every_truncation_is_an_error() {
        let bytes = sample().encode();
        for n in 0..bytes.len() {
            assert!(Superblock::decode(&bytes[..n]).is_err());
        }
    }

    #[test]
    fn unknown_incompat_bits_are_unsupported() {
        let mut sb = sample();
        sb.incompat |= 0x200;
        assert_eq!(
            Superblock::decode(&sb.encode()).unwrap_err().kind,
            crate::Kind::Unsupported
        );
    }
}
