//! Feature bits of the superblock: names and the kernel that first understands each.

/// A release of the Linux kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kernel(pub u8, pub u8);

impl core::fmt::Display for Kernel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Bits of `feature_compat`, which an older kernel may ignore.
pub mod compat {
    /// The superblock's checksum is valid.
    pub const SB_CHKSUM: u32 = 0x01;
    /// Stored times are modification times.
    pub const MTIME: u32 = 0x02;
    /// Inodes carry a filter of their attribute names.
    pub const XATTR_FILTER: u32 = 0x04;
    /// Shared attributes are inside the metabox.
    pub const SHARED_EA_IN_METABOX: u32 = 0x08;
    /// The table of long name prefixes is in the image itself.
    pub const PLAIN_XATTR_PFX: u32 = 0x10;
    /// Files carry a fingerprint for sharing of the page cache.
    pub const ISHARE_XATTRS: u32 = 0x20;
}

/// Bits of `feature_incompat`, which a kernel must know to mount the image.
pub mod incompat {
    /// Compressed data is right-aligned with zeros in front. Set on every image that has compressed data.
    pub const LZ4_0PADDING: u32 = 0x001;
    /// Compression records follow the superblock; clusters may span blocks.
    pub const COMPR_CFGS: u32 = 0x002;
    /// Chunk-based files.
    pub const CHUNKED_FILE: u32 = 0x004;
    /// A device table, or a second algorithm in one file.
    pub const DEVICE_TABLE: u32 = 0x008;
    /// The last cluster may lie behind the inode.
    pub const ZTAILPACKING: u32 = 0x010;
    /// Fragments in the packed inode; partial references.
    pub const FRAGMENTS: u32 = 0x020;
    /// Long prefixes of attribute names.
    pub const XATTR_PREFIXES: u32 = 0x040;
    /// 48-bit addresses, encoded extents, 64-bit root number.
    pub const BIT48: u32 = 0x080;
    /// Inodes inside the metabox inode.
    pub const METABOX: u32 = 0x100;
    /// All that this version reads.
    pub const KNOWN: u32 = 0x1FF;
}

/// One feature bit with its names.
pub struct Feature {
    /// True for `feature_incompat`.
    pub incompat: bool,
    /// The bit.
    pub bit: u32,
    /// Name, or names where features of one release share a bit.
    pub name: &'static str,
    /// First kernel that can use it (for compat bits: that looks at it).
    pub kernel: Kernel,
}

const fn feature(incompat: bool, bit: u32, name: &'static str, kernel: Kernel) -> Feature {
    Feature {
        incompat,
        bit,
        name,
        kernel,
    }
}

/// Every feature bit that is known.
pub const ALL: &[Feature] = &[
    feature(false, compat::SB_CHKSUM, "sb_chksum", Kernel(5, 5)),
    feature(false, compat::MTIME, "mtime", Kernel(5, 18)),
    feature(false, compat::XATTR_FILTER, "xattr_filter", Kernel(6, 6)),
    feature(
        false,
        compat::SHARED_EA_IN_METABOX,
        "shared_ea_in_metabox",
        Kernel(6, 17),
    ),
    feature(
        false,
        compat::PLAIN_XATTR_PFX,
        "plain_xattr_pfx",
        Kernel(6, 17),
    ),
    feature(false, compat::ISHARE_XATTRS, "ishare_xattrs", Kernel(7, 0)),
    feature(true, incompat::LZ4_0PADDING, "0padding", Kernel(5, 3)),
    feature(
        true,
        incompat::COMPR_CFGS,
        "compr_cfgs, big_pcluster",
        Kernel(5, 13),
    ),
    feature(true, incompat::CHUNKED_FILE, "chunked_file", Kernel(5, 15)),
    feature(
        true,
        incompat::DEVICE_TABLE,
        "device_table, compr_head2",
        Kernel(5, 16),
    ),
    feature(true, incompat::ZTAILPACKING, "ztailpacking", Kernel(5, 17)),
    feature(true, incompat::FRAGMENTS, "fragments, dedupe", Kernel(6, 1)),
    feature(
        true,
        incompat::XATTR_PREFIXES,
        "xattr_prefixes",
        Kernel(6, 4),
    ),
    feature(true, incompat::BIT48, "48bit", Kernel(6, 15)),
    feature(true, incompat::METABOX, "metabox", Kernel(6, 17)),
];

/// The oldest kernel that understands all of these incompat bits. Algorithms may need a newer one.
pub fn lowest_kernel(incompat: u32) -> Kernel {
    let newest = ALL
        .iter()
        .filter(|f| f.incompat && f.bit & incompat != 0)
        .map(|f| f.kernel)
        .max();
    newest.unwrap_or(Kernel(5, 4)).max(Kernel(5, 4))
}
