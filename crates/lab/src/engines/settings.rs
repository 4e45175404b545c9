//! Settings of builds and extractions that are independent of a tool.

use serde::Deserialize;
use std::fmt;

/// Action that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Builds an image from a tree.
    Build,
    /// Extracts the tree of an image.
    Extract,
    /// Reads the whole image: every structure is checked and all data is decoded.
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
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Compression algorithm of file data.
    pub algorithm: Option<Algorithm>,
    /// Compression level on the scale of the algorithm. Without an algorithm, that of mkdwarfs.
    pub level: Option<u32>,
    /// Size of a physical cluster of EROFS (compressed) or of a block of SquashFS or DwarFS (uncompressed).
    pub cluster: Option<Size>,
    /// Tail packing of compressed files (EROFS).
    pub inline_tails: Option<bool>,
    /// Selection of files that are packed together as fragments.
    pub fragments: Option<Fragments>,
    /// Cluster size of the packed inode (EROFS).
    pub fragment_cluster: Option<Size>,
    /// Scope of deduplication: none, whole files or any equal data.
    pub dedupe: Option<Dedupe>,
    /// Allow clusters that are not aligned to blocks (Tuff).
    pub unaligned: Option<bool>,
    /// Choose settings per file for this goal (Tuff).
    pub auto: Option<String>,
    /// Oldest kernel that must be able to mount the image (Tuff).
    pub kernel: Option<String>,
}

/// Compression algorithms, independent of the names used by the tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// LZ4 with the fast parser.
    Lz4,
    /// LZ4 with the high-compression match finder.
    Lz4hc,
    /// DEFLATE with the default encoder of the tool.
    Deflate,
    /// DEFLATE with the libdeflate encoder of mkfs.erofs.
    Libdeflate,
    /// LZMA (EROFS: MicroLZMA; SquashFS: xz).
    Lzma,
    /// Zstandard with the level of the settings.
    Zstd,
}

/// Selection of files that are packed together as fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fragments {
    /// No files are packed.
    Off,
    /// Small files and the tails of larger files are packed.
    Tails,
    /// Whole files are packed.
    All,
}

/// Scope of deduplication: none, whole files or any equal data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dedupe {
    /// Equal data is stored repeatedly.
    Off,
    /// Equal data is shared at any position, including parts of files.
    Content,
}

/// Size in bytes, written as a number with an optional suffix K, M or G for powers of 1024.
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
            .ok_or_else(|| format!("'{text}' is not a size; expected for example 4096, 64K or 1M"))
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
    fn sizes_round_trip_through_text() {
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
