//! Measured tools, and command lines with placeholders for paths.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Tool that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Tool {
    /// The program `tuff` of this project.
    #[serde(rename = "tuff")]
    Tuff,
    /// An earlier program of this project, to compare with. Only `--tool` gives its path.
    #[serde(rename = "tuff-before")]
    TuffBefore,
    /// Builder of EROFS images.
    #[serde(rename = "mkfs.erofs")]
    MkfsErofs,
    /// Checker and extractor of EROFS images.
    #[serde(rename = "fsck.erofs")]
    FsckErofs,
    /// Builder of SquashFS images.
    #[serde(rename = "mksquashfs")]
    Mksquashfs,
    /// Extractor of SquashFS images.
    #[serde(rename = "unsquashfs")]
    Unsquashfs,
    /// Builder of DwarFS images.
    #[serde(rename = "mkdwarfs")]
    Mkdwarfs,
    /// Extractor of DwarFS images.
    #[serde(rename = "dwarfsextract")]
    Dwarfsextract,
}

/// All tools, in the order of their names in help and records.
pub const TOOLS: [Tool; 8] = [
    Tool::Tuff,
    Tool::TuffBefore,
    Tool::MkfsErofs,
    Tool::FsckErofs,
    Tool::Mksquashfs,
    Tool::Unsquashfs,
    Tool::Mkdwarfs,
    Tool::Dwarfsextract,
];

/// Filesystem format of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// EROFS, built by `tuff` or mkfs.erofs.
    Erofs,
    /// SquashFS, built by mksquashfs.
    Squashfs,
    /// DwarFS, built by mkdwarfs. No kernel mounts it.
    Dwarfs,
}

impl Format {
    /// Name of the filesystem type, as in mount(8) if a kernel has it.
    pub fn name(self) -> &'static str {
        match self {
            Format::Erofs => "erofs",
            Format::Squashfs => "squashfs",
            Format::Dwarfs => "dwarfs",
        }
    }
}

impl Tool {
    /// Name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Tool::Tuff => "tuff",
            Tool::TuffBefore => "tuff-before",
            Tool::MkfsErofs => "mkfs.erofs",
            Tool::FsckErofs => "fsck.erofs",
            Tool::Mksquashfs => "mksquashfs",
            Tool::Unsquashfs => "unsquashfs",
            Tool::Mkdwarfs => "mkdwarfs",
            Tool::Dwarfsextract => "dwarfsextract",
        }
    }

    /// Format of the images that the tool builds or reads.
    pub fn format(self) -> Format {
        match self {
            Tool::Tuff | Tool::TuffBefore | Tool::MkfsErofs | Tool::FsckErofs => Format::Erofs,
            Tool::Mksquashfs | Tool::Unsquashfs => Format::Squashfs,
            Tool::Mkdwarfs | Tool::Dwarfsextract => Format::Dwarfs,
        }
    }

    /// Returns the tool that makes the image which this tool extracts or checks. `erofs` makes the EROFS images.
    pub fn maker(self, erofs: Tool) -> Tool {
        match self.format() {
            Format::Erofs => erofs,
            Format::Squashfs => Tool::Mksquashfs,
            Format::Dwarfs => Tool::Mkdwarfs,
        }
    }

    /// Returns true for a program of this project.
    pub fn is_ours(self) -> bool {
        matches!(self, Tool::Tuff | Tool::TuffBefore)
    }

    /// Returns true if equal inputs must give images of equal bytes.
    pub fn is_deterministic(self) -> bool {
        self.is_ours()
    }
}

/// Command line with placeholders for paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub(super) tool: Tool,
    pub(super) template: Vec<String>,
    /// Notes on settings that the tool supports only in part, for the table.
    pub notes: Vec<String>,
}

/// Values of the placeholders in a command line.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// Path of the source tree.
    pub tree: &'a Path,
    /// Path of the image: output of a build, input of other actions.
    pub image: &'a Path,
    /// Directory to extract to, which must not exist. That of dwarfsextract must exist and be empty.
    pub target: &'a Path,
}

impl Plan {
    /// Returns the command line for records and tables, with the names of the placeholders.
    pub fn shown(&self) -> String {
        let mut text = self.tool.name().to_owned();
        for word in &self.template {
            text.push(' ');
            text.push_str(&word.replace(['{', '}'], ""));
        }
        text
    }

    /// Returns the arguments with the placeholders replaced by paths.
    pub fn arguments(&self, places: Places<'_>) -> Vec<OsString> {
        let fill = |word: &String| {
            for (hole, path) in [
                ("{TREE}", places.tree),
                ("{IMAGE}", places.image),
                ("{TARGET}", places.target),
            ] {
                if let Some(prefix) = word.strip_suffix(hole) {
                    let mut bytes = prefix.as_bytes().to_vec();
                    bytes.extend_from_slice(path.as_os_str().as_bytes());
                    return OsString::from_vec(bytes);
                }
            }
            OsString::from(word)
        };
        self.template.iter().map(fill).collect()
    }
}

impl Plan {
    pub(super) fn word(&mut self, word: impl Into<String>) {
        self.template.push(word.into());
    }

    pub(super) fn words<const N: usize>(&mut self, words: [&str; N]) {
        self.template.extend(words.map(str::to_owned));
    }
}
