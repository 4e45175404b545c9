//! What a check finds: which rule is broken, how bad it is, where, and what was there instead.

use std::fmt;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing: nothing reads wrong because of it.
    Note,
    /// Against the rules, but kernels read the image as it was meant.
    Warning,
    /// Some reader fails, or reads something else than was meant.
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
        /// A rule of the format, named as in reports.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Rule {
            $($(#[$doc])* $name,)*
        }

        impl Rule {
            /// Every rule.
            pub const ALL: &[Rule] = &[$(Self::$name,)*];

            /// The name, in lower case with hyphens.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

rules! {
    /// The superblock's checksum covers what is there.
    Checksum "checksum",
    /// What is reserved is zero.
    Reserved "reserved",
    /// A feature that is used has its bit, and a bit that is set is used.
    Features "features",
    /// The image is as long as the superblock says.
    ImageSize "image-size",
    /// The superblock's count of inodes is the number of inodes there are.
    InodeCount "inode-count",
    /// Compression records cover what clusters use.
    Config "config",
    /// The root is a directory, and its own parent.
    Root "root",
    /// ".." names the directory that names this one, "." this one itself, each once.
    Dots "dots",
    /// Every directory has one name, and none is inside itself.
    TreeShape "tree-shape",
    /// Directories are not nested deeper than the limit.
    Depth "depth",
    /// A directory block is well-formed, zero behind its last name.
    DirBlock "dir-block",
    /// Names ascend, none comes twice.
    NameOrder "name-order",
    /// Names have 1 to 255 bytes, no slash and no NUL.
    Name "name",
    /// An entry's type is its inode's type.
    EntryType "entry-type",
    /// The inode lies inside the image and is well-formed.
    Inode "inode",
    /// Link counts are the number of names.
    LinkCount "link-count",
    /// Nanoseconds are below 10^9.
    Time "time",
    /// Devices, fifos and sockets have no data.
    SpecialFile "special-file",
    /// A symlink's target has 1 to 4095 bytes and no NUL.
    Symlink "symlink",
    /// What belongs to different inodes does not overlap, and data does not overlap metadata.
    Overlap "overlap",
    /// The attribute body is well-formed and exactly filled.
    XattrBody "xattr-body",
    /// Attributes have names that users see, no two the same.
    XattrName "xattr-name",
    /// The name filter hides no attribute.
    XattrFilter "xattr-filter",
    /// A digest that a file has as an attribute is that of its content.
    Fingerprint "fingerprint",
    /// ACLs are well-formed.
    Acl "acl",
    /// Data lies inside its device.
    DataRange "data-range",
    /// What is behind the end of a file in its last block is zero.
    Padding "padding",
    /// The index of clusters covers the file, and its distances agree with its heads.
    Index "index",
    /// A cluster decodes to exactly its extent.
    Cluster "cluster",
    /// Fragments lie inside the packed inode.
    Fragment "fragment",
    /// The count of blocks in an inode is the number of blocks its clusters have.
    BlockCount "block-count",
    /// The image can be read at all.
    Io "io",
    /// The image asks for no more than the limits allow.
    Limit "limit",
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Which rule.
    pub rule: Rule,
    /// Where: path, inode, byte.
    pub place: String,
    /// What was found, and what was expected.
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
