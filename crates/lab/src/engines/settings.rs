//! Settings of builds and extractions that are independent of a tool.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Action that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// A tree becomes an image.
    Build,
    /// An image becomes a tree.
    Extract,
    /// An image is read through: every structure, every byte of data decoded.
    Check,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Build => "build",
            Action::Extract => "extract",
            Action::Check => "check",
        })
    }
}

/// Settings of a build, independent of the tool. An absent value means the default of the tool and adds no argument.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Compression of file data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<Algorithm>,
    /// Level, in the algorithm's own scale.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<u32>,
    /// Physical cluster of EROFS (size of the output), block of SquashFS (size of the input).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Size>,
    /// Dictionary or window of LZMA and Zstandard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dict: Option<Size>,
    /// Tail packing of compressed files (EROFS).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inline_tails: Option<bool>,
    /// Files that are packed together with others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fragments: Option<Fragments>,
    /// Cluster of packed fragments (EROFS).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fragment_cluster: Option<Size>,
    /// Data that is stored once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedupe: Option<Dedupe>,
    /// Clusters begin anywhere (Tuff).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unaligned: Option<bool>,
    /// Settings per file, chosen by the tool towards this goal (Tuff).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto: Option<String>,
    /// The oldest kernel that the image is for (Tuff).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Restore extended attributes on extraction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xattrs: Option<bool>,
    /// Number of worker threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
}

/// Compression algorithms, in no tool's spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// Files are stored uncompressed.
    None,
    /// LZ4 with the fast parser.
    Lz4,
    /// LZ4 with the thorough parser.
    Lz4hc,
    /// DEFLATE by the tool's own or usual encoder.
    Deflate,
    /// DEFLATE by the encoder that mkfs.erofs calls libdeflate.
    Libdeflate,
    /// LZMA (EROFS: MicroLZMA; SquashFS: xz).
    Lzma,
    /// Zstandard at a level.
    Zstd,
}

/// Files that are packed together with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fragments {
    /// No files are packed.
    Off,
    /// Ends of files, and small files.
    Tails,
    /// Whole files are packed.
    All,
}

/// Data that is stored once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dedupe {
    /// Nothing is deduplicated.
    Off,
    /// Files that are equal.
    Files,
    /// Equal pieces, wherever they lie.
    Content,
}

/// A size in bytes; written as a number, or with K, M or G for powers of 1024.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl std::str::FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, shift) = match text.as_bytes().last() {
            Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
            Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
            Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
            _ => (text, 0),
        };
        let number = digits.parse::<u64>().ok();
        let size = number.and_then(|n| n.checked_mul(1 << shift));
        size.map(Size)
            .ok_or_else(|| format!("'{text}' is not a size; write for example 4096, 64K or 1M"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, name) in [(1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")] {
            if self.0 >= unit && self.0.is_multiple_of(unit) {
                return write!(f, "{}{name}", self.0 / unit);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl Serialize for Size {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_they_are_read() {
        for (text, bytes) in [
            ("4K", 4096),
            ("64K", 65536),
            ("1M", 1 << 20),
            ("100", 100),
            ("2G", 2 << 30),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)));
            assert_eq!(Size(bytes).to_string(), text);
        }
        assert!("".parse::<Size>().is_err());
        assert!("K".parse::<Size>().is_err());
        assert!("99999999999G".parse::<Size>().is_err());
    }
}
