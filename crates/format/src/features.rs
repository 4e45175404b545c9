//! Features of an image and the first kernel that supports each.
//!
//! [`Feature`] is the only table of kernel versions: one constant per superblock bit, compression algorithm and layout.
//! [`Superblock::features`](crate::superblock::Superblock::features) lists the features that an image uses.
//!
//! Source: `docs/reference/format/layout.md`, section 19.1.

use core::fmt;

/// Version of the Linux kernel: its two leading numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion(pub u8, pub u8);

impl KernelVersion {
    /// First kernel that mounts EROFS images.
    pub const FIRST: Self = Self(5, 4);

    /// Kernels with long-term support since [`FIRST`](Self::FIRST), oldest first.
    pub const LONG_TERM: [Self; 7] = [
        Self::FIRST,
        Self(5, 10),
        Self(5, 15),
        Self(6, 1),
        Self(6, 6),
        Self(6, 12),
        Self(6, 18),
    ];

    /// True if this kernel supports `feature`.
    pub const fn supports(self, feature: Feature) -> bool {
        let min = feature.min_kernel;
        self.0 > min.0 || self.0 == min.0 && self.1 >= min.1
    }

    /// Parses a version, or a release as `uname -r` prints it: "6.1", "6.12.0", "6.1.0-18-amd64", "6.6+".
    pub fn from_release(release: &str) -> Option<Self> {
        let (major, rest) = release.split_once('.')?;
        let (minor, suffix) = match rest.find(|c: char| !c.is_ascii_digit()) {
            Some(end) => rest.split_at(end),
            None => (rest, ""),
        };
        let is_release = suffix.is_empty() || suffix.starts_with(['.', '-', '+', '_']);
        // `u8::from_str` accepts a sign.
        if !is_release || !major.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        Some(Self(major.parse().ok()?, minor.parse().ok()?))
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Bits of `feature_compat`. Kernels that do not know a bit ignore it.
pub mod compat {
    /// The superblock checksum is valid.
    pub const SB_CHKSUM: u32 = 0x01;
    /// Stored times are modification times.
    pub const MTIME: u32 = 0x02;
    /// Inodes have a bloom filter of their xattr names.
    pub const XATTR_FILTER: u32 = 0x04;
    /// Shared xattrs are in the metabox.
    pub const SHARED_EA_IN_METABOX: u32 = 0x08;
    /// The table of long xattr name prefixes is in the image, not in the packed inode.
    pub const PLAIN_XATTR_PFX: u32 = 0x10;
    /// Files have a fingerprint xattr, for page cache sharing.
    pub const ISHARE_XATTRS: u32 = 0x20;
    /// Union of all bits that this crate knows.
    pub const KNOWN: u32 = 0x3F;
}

/// Bits of `feature_incompat`. Kernels refuse to mount an image with a bit that they do not know.
pub mod incompat {
    /// Compressed data is right-aligned in its pcluster, after zeros. Set on every image with compressed data.
    pub const LZ4_0PADDING: u32 = 0x001;
    /// Compression configurations follow the superblock (`COMPR_CFGS`), or pclusters may have several blocks
    /// (`BIG_PCLUSTER`).
    pub const COMPR_CFGS: u32 = 0x002;
    /// Chunk-based files, which may have holes.
    pub const CHUNKED_FILE: u32 = 0x004;
    /// A device table (`DEVICE_TABLE`), or a second algorithm in one file (`COMPR_HEAD2`).
    pub const DEVICE_TABLE: u32 = 0x008;
    /// The last pcluster of a file may be inline, after its index.
    pub const ZTAILPACKING: u32 = 0x010;
    /// Fragments in the packed inode (`FRAGMENTS`), or extents that use a prefix of a pcluster (`DEDUPE`).
    pub const FRAGMENTS: u32 = 0x020;
    /// Long xattr name prefixes.
    pub const XATTR_PREFIXES: u32 = 0x040;
    /// 48-bit block addresses, encoded extents and a 64-bit root nid.
    pub const BIT48: u32 = 0x080;
    /// Inodes in the metabox inode.
    pub const METABOX: u32 = 0x100;
    /// Union of all bits that this crate reads.
    pub const KNOWN: u32 = 0x1FF;
}

/// Part of an image that records the use of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// A bit of `feature_compat`. The image mounts on older kernels, too.
    Compat(u32),
    /// A bit of `feature_incompat`.
    Incompat(u32),
    /// An algorithm id in the compression configurations.
    Algorithm(u8),
    /// Other fields of the image, or none: the use of the image implies it.
    Implied,
}

/// A feature and the first kernel that supports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Part of the image that records the use of the feature.
    pub marker: Marker,
    /// Name as EROFS tools print it. Features that share a bit have a joint name.
    pub name: &'static str,
    /// First kernel that supports the feature. For compat bits: that uses it.
    pub min_kernel: KernelVersion,
}

const fn compat_flag(bit: u32, name: &'static str, major: u8, minor: u8) -> Feature {
    Feature::new(Marker::Compat(bit), name, major, minor)
}

const fn incompat_flag(bit: u32, name: &'static str, major: u8, minor: u8) -> Feature {
    Feature::new(Marker::Incompat(bit), name, major, minor)
}

const fn algorithm(id: u8, name: &'static str, major: u8, minor: u8) -> Feature {
    Feature::new(Marker::Algorithm(id), name, major, minor)
}

const fn implied(name: &'static str, major: u8, minor: u8) -> Feature {
    Feature::new(Marker::Implied, name, major, minor)
}

impl Feature {
    /// CRC-32C of the superblock.
    pub const SB_CHKSUM: Self = compat_flag(compat::SB_CHKSUM, "sb_chksum", 5, 5);
    /// Stored times are modification times.
    pub const MTIME: Self = compat_flag(compat::MTIME, "mtime", 5, 18);
    /// Bloom filter of xattr names.
    pub const XATTR_FILTER: Self = compat_flag(compat::XATTR_FILTER, "xattr_filter", 6, 6);
    /// Shared xattrs in the metabox.
    pub const SHARED_EA_IN_METABOX: Self =
        compat_flag(compat::SHARED_EA_IN_METABOX, "shared_ea_in_metabox", 6, 17);
    /// Xattr name prefixes outside the packed inode.
    pub const PLAIN_XATTR_PFX: Self =
        compat_flag(compat::PLAIN_XATTR_PFX, "plain_xattr_pfx", 6, 17);
    /// Fingerprint xattrs, by which files of several images share page cache.
    pub const ISHARE_XATTRS: Self = compat_flag(compat::ISHARE_XATTRS, "ishare_xattrs", 7, 0);

    /// Compressed data that is right-aligned in its pcluster.
    pub const LZ4_0PADDING: Self = incompat_flag(incompat::LZ4_0PADDING, "0padding", 5, 3);
    /// Compression configurations after the superblock.
    pub const COMPR_CFGS: Self =
        incompat_flag(incompat::COMPR_CFGS, "compr_cfgs, big_pcluster", 5, 13);
    /// Physical clusters of several blocks. Shares its bit with [`COMPR_CFGS`](Self::COMPR_CFGS).
    pub const BIG_PCLUSTER: Self = Self::COMPR_CFGS;
    /// Chunk-based files, which may be sparse.
    pub const CHUNKED_FILE: Self = incompat_flag(incompat::CHUNKED_FILE, "chunked_file", 5, 15);
    /// Data on extra devices.
    pub const DEVICE_TABLE: Self =
        incompat_flag(incompat::DEVICE_TABLE, "device_table, compr_head2", 5, 16);
    /// A second algorithm in one file. Shares its bit with [`DEVICE_TABLE`](Self::DEVICE_TABLE).
    pub const COMPR_HEAD2: Self = Self::DEVICE_TABLE;
    /// Tail packing of compressed files.
    pub const ZTAILPACKING: Self = incompat_flag(incompat::ZTAILPACKING, "ztailpacking", 5, 17);
    /// Fragments in the packed inode.
    pub const FRAGMENTS: Self = incompat_flag(incompat::FRAGMENTS, "fragments, dedupe", 6, 1);
    /// Extents that share pclusters. Shares its bit with [`FRAGMENTS`](Self::FRAGMENTS).
    pub const DEDUPE: Self = Self::FRAGMENTS;
    /// Long xattr name prefixes.
    pub const XATTR_PREFIXES: Self =
        incompat_flag(incompat::XATTR_PREFIXES, "xattr_prefixes", 6, 4);
    /// 48-bit layout: large addresses, modification times in compact inodes.
    pub const BIT48: Self = incompat_flag(incompat::BIT48, "48bit", 6, 15);
    /// Byte-aligned pclusters in encoded extents. Shares its bit with [`BIT48`](Self::BIT48).
    pub const ENCODED_EXTENTS: Self = Self::BIT48;
    /// Compressed metadata in the metabox inode.
    pub const METABOX: Self = incompat_flag(incompat::METABOX, "metabox", 6, 17);

    /// LZ4, the first algorithm.
    pub const LZ4: Self = algorithm(0, "lz4", 5, 4);
    /// MicroLZMA, as of XZ Utils.
    pub const LZMA: Self = algorithm(1, "lzma", 5, 16);
    /// DEFLATE without a zlib header.
    pub const DEFLATE: Self = algorithm(2, "deflate", 6, 6);
    /// Zstandard, one frame per pcluster.
    pub const ZSTD: Self = algorithm(3, "zstd", 6, 10);

    /// Blocks smaller than a page.
    pub const SUBPAGE_BLOCKS: Self = implied("blocks smaller than 4 KiB", 6, 4);
    /// Compressed data in blocks smaller than a page.
    pub const SUBPAGE_COMPRESSION: Self = implied("blocks smaller than 4 KiB", 6, 8);
    /// A label that fills its field, without a NUL.
    pub const FULL_LABEL: Self = implied("a label of 16 bytes", 6, 15);
    /// Mounts of a regular file, without a loop device.
    pub const FILE_BACKED_MOUNT: Self = implied("file-backed mounts", 6, 12);

    /// Features with a superblock bit: first `feature_compat`, then `feature_incompat`, each ascending.
    pub const FLAGS: &[Self] = &[
        Self::SB_CHKSUM,
        Self::MTIME,
        Self::XATTR_FILTER,
        Self::SHARED_EA_IN_METABOX,
        Self::PLAIN_XATTR_PFX,
        Self::ISHARE_XATTRS,
        Self::LZ4_0PADDING,
        Self::COMPR_CFGS,
        Self::CHUNKED_FILE,
        Self::DEVICE_TABLE,
        Self::ZTAILPACKING,
        Self::FRAGMENTS,
        Self::XATTR_PREFIXES,
        Self::BIT48,
        Self::METABOX,
    ];

    /// All algorithms, indexed by their id.
    pub const ALGORITHMS: [Self; 4] = [Self::LZ4, Self::LZMA, Self::DEFLATE, Self::ZSTD];

    const fn new(marker: Marker, name: &'static str, major: u8, minor: u8) -> Self {
        Self {
            marker,
            name,
            min_kernel: KernelVersion(major, minor),
        }
    }

    /// Returns the feature of an algorithm id. `None` for an unknown id.
    pub fn of_algorithm(id: u8) -> Option<Self> {
        Self::ALGORITHMS.get(usize::from(id)).copied()
    }

    /// Returns the feature that a block size requires, if any. `compressed`: the image has compressed data.
    pub const fn of_block_size(bits: crate::BlockBits, compressed: bool) -> Option<Self> {
        match (bits.get(), compressed) {
            (12.., _) => None,
            (_, true) => Some(Self::SUBPAGE_COMPRESSION),
            (_, false) => Some(Self::SUBPAGE_BLOCKS),
        }
    }

    /// Returns the superblock field that records the feature, "compat" or "incompat", and its bit there. `None` for
    /// features without a bit.
    pub const fn flag(self) -> Option<(&'static str, u32)> {
        match self.marker {
            Marker::Compat(bit) => Some(("compat", bit)),
            Marker::Incompat(bit) => Some(("incompat", bit)),
            Marker::Algorithm(_) | Marker::Implied => None,
        }
    }

    /// True if kernels before [`min_kernel`](Self::min_kernel) cannot mount the image.
    pub const fn is_required(self) -> bool {
        !matches!(self.marker, Marker::Compat(_))
    }
}

/// Returns the features whose bits are set, in the order of [`Feature::FLAGS`].
pub fn flags_of(compat: u32, incompat: u32) -> impl Iterator<Item = Feature> {
    let is_set = move |f: &Feature| match f.marker {
        Marker::Compat(bit) => compat & bit != 0,
        Marker::Incompat(bit) => incompat & bit != 0,
        Marker::Algorithm(_) | Marker::Implied => false,
    };
    Feature::FLAGS.iter().copied().filter(is_set)
}

/// Returns the oldest kernel that supports all of `features`, compat bits aside.
pub fn min_kernel(features: impl IntoIterator<Item = Feature>) -> KernelVersion {
    let required = features.into_iter().filter(|f| f.is_required());
    let newest = required.map(|f| f.min_kernel).max();
    newest
        .unwrap_or(KernelVersion::FIRST)
        .max(KernelVersion::FIRST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_bit_is_in_the_table_once() {
        for (field, known) in [("compat", compat::KNOWN), ("incompat", incompat::KNOWN)] {
            let flags = Feature::FLAGS.iter().filter_map(|f| f.flag());
            let bits = flags.filter_map(|(f, bit)| (f == field).then_some(bit));
            let union = bits.fold(0, |union, bit| {
                assert_eq!(union & bit, 0, "{field} {bit:#x}");
                union | bit
            });
            assert_eq!(union, known, "{field}");
        }
    }

    #[test]
    fn algorithms_are_indexed_by_their_id() {
        for (id, algorithm) in (0..).zip(Feature::ALGORITHMS) {
            assert_eq!(algorithm.marker, Marker::Algorithm(id));
            assert_eq!(Feature::of_algorithm(id), Some(algorithm));
        }
        assert_eq!(Feature::of_algorithm(4), None);
    }

    #[test]
    fn compat_bits_do_not_raise_the_minimum() {
        assert_eq!(min_kernel([]), KernelVersion(5, 4));
        assert_eq!(min_kernel(flags_of(0x3F, 0)), KernelVersion(5, 4));
        assert_eq!(min_kernel(flags_of(0x3F, 0x001)), KernelVersion(5, 4));
        assert_eq!(min_kernel(flags_of(0, 0x023)), KernelVersion(6, 1));
        assert_eq!(min_kernel([Feature::ZSTD]), KernelVersion(6, 10));
    }

    #[test]
    fn a_kernel_supports_features_of_its_own_version_and_older() {
        for (kernel, is_supported) in [
            (KernelVersion(5, 16), false),
            (KernelVersion(5, 17), true),
            (KernelVersion(6, 0), true),
            (KernelVersion(4, 19), false),
        ] {
            assert_eq!(kernel.supports(Feature::ZTAILPACKING), is_supported);
        }
    }

    #[test]
    fn releases_are_parsed_with_and_without_a_suffix() {
        for (release, version) in [
            ("5.4", Some((5, 4))),
            ("6.12.0", Some((6, 12))),
            ("6.1.0-18-amd64", Some((6, 1))),
            ("6.15-rc3", Some((6, 15))),
            ("6.6+", Some((6, 6))),
            ("6", None),
            ("6.", None),
            ("6.x", None),
            ("6.1 ", None),
            ("+6.1", None),
            ("6.300", None),
        ] {
            let version = version.map(|(major, minor)| KernelVersion(major, minor));
            assert_eq!(KernelVersion::from_release(release), version, "{release}");
        }
    }
}
