//! Findings of a check: the violated rule, its severity, the place, and what was found.

use std::fmt;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Information: no reader is affected.
    Note,
    /// Violation that kernels tolerate: they read the image as intended.
    Warning,
    /// Violation that makes some reader fail or return other data.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident $text:literal,)*) => {
        /// Rule of the format, with its name in reports.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Rule {
            $($(#[$doc])* $name,)*
        }

        impl Rule {
            /// All rules of the format.
            pub const ALL: &[Rule] = &[$(Self::$name,)*];

            /// Returns the name, in lower case with hyphens.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

rules! {
    /// The checksum of the superblock matches its bytes.
    Checksum "checksum",
    /// Reserved fields are zero.
    Reserved "reserved",
    /// Every used feature has its bit, and every set bit is used.
    Features "features",
    /// The image has the length that the superblock states.
    ImageSize "image-size",
    /// The superblock states the number of inodes.
    InodeCount "inode-count",
    /// Compression records cover the settings of all clusters.
    Config "config",
    /// The root is a directory, and its ".." refers to itself.
    Root "root",
    /// Every directory has one "." for itself and one ".." for its parent.
    Dots "dots",
    /// Every directory has one name, and none contains itself.
    TreeShape "tree-shape",
    /// Directories are not nested deeper than the limit.
    Depth "depth",
    /// A directory block is well-formed, and zero after its last name.
    DirBlock "dir-block",
    /// Names are in ascending order without duplicates.
    NameOrder "name-order",
    /// Names have 1 to 255 bytes, no slash and no NUL.
    Name "name",
    /// The type of an entry is that of its inode.
    EntryType "entry-type",
    /// The inode is inside the image and well-formed.
    Inode "inode",
    /// Link counts equal the number of names.
    LinkCount "link-count",
    /// Nanoseconds are below 10^9.
    Time "time",
    /// Devices, fifos and sockets have no data.
    SpecialFile "special-file",
    /// The target of a symlink has 1 to 4095 bytes and no NUL.
    Symlink "symlink",
    /// Metadata of different inodes does not overlap, and data does not overlap metadata.
    Overlap "overlap",
    /// The xattr body is well-formed and filled exactly.
    XattrBody "xattr-body",
    /// Attributes have unique names that users see.
    XattrName "xattr-name",
    /// The name filter hides no attribute.
    XattrFilter "xattr-filter",
    /// A fingerprint equals the digest of the content.
    Fingerprint "fingerprint",
    /// ACLs are well-formed, as the kernel requires.
    Acl "acl",
    /// Data is inside its device.
    DataRange "data-range",
    /// The last block of a file is zero after its end.
    Padding "padding",
    /// The cluster index covers the file, and its distances agree with its heads.
    Index "index",
    /// A cluster decodes to exactly its extent.
    Cluster "cluster",
    /// Fragments are inside the packed inode.
    Fragment "fragment",
    /// An inode states the number of blocks of its clusters.
    BlockCount "block-count",
    /// A start list is well-formed, and its ranges are inside their devices.
    StartList "start-list",
    /// The image can be read.
    Io "io",
    /// The image stays below the limits of the reader.
    Limit "limit",
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Violation of a rule at one place of the image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Severity of the violation.
    pub severity: Severity,
    /// Rule that is violated.
    pub rule: Rule,
    /// Path, inode and byte.
    pub place: String,
    /// Found and expected values.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            severity,
            rule,
            place,
            what,
        } = self;
        write!(f, "{severity}[{rule}]: ")?;
        if !place.is_empty() {
            write!(f, "{place}: ")?;
        }
        f.write_str(what)
    }
}
