//! Rows of the extents of a file.

use serde_json::{Value, json};
use tuff_erofs::Result;
use tuff_erofs::read::{DeviceId, Extent, Image, Inode, Location};
use tuff_format::cluster::Coding;

/// Heading of the columns of [`Line::text`].
pub(crate) const HEADING: &str =
    "     offset      length        physical     plength  coding      flags";

/// Calls `f` with each extent of an inode, and true for the last one.
pub(crate) fn each(
    image: &Image,
    inode: &Inode,
    mut f: impl FnMut(&Extent, bool) -> Result<()>,
) -> Result<()> {
    for extent in image.extents(inode, 0..inode.size())? {
        let extent = extent?;
        f(&extent, extent.end() >= inode.size())?;
    }
    Ok(())
}

/// Extent as a row of columns.
pub(crate) struct Line {
    offset: u64,
    len: u64,
    /// Position and length in the image.
    physical: Option<(u64, u64)>,
    coding: &'static str,
    flags: Vec<String>,
}

impl Line {
    /// Returns the row of an extent.
    pub(crate) fn new(extent: &Extent, last: bool) -> Self {
        let mut flags = Vec::new();
        let (physical, coding) = match extent.location {
            Location::Hole => (None, "hole"),
            Location::Raw { device, pos } => {
                if device != DeviceId::PRIMARY {
                    flags.push(format!("device={device}"));
                }
                (Some((pos, extent.len)), "plain")
            }
            Location::Cluster(cluster) => {
                if cluster.partial {
                    flags.push("partial".to_owned());
                }
                let coding = coding_name(cluster.coding.into());
                (Some((cluster.pos, cluster.len.into())), coding)
            }
            Location::Inline {
                space,
                pos,
                len,
                coding,
            } => {
                flags.push("inline".to_owned());
                if space == tuff_erofs::read::Space::Metabox {
                    flags.push("metabox".to_owned());
                }
                let coding = if coding == Coding::Stored {
                    "plain"
                } else {
                    coding_name(coding)
                };
                (Some((pos, len.into())), coding)
            }
            Location::Fragment { offset } => {
                flags.push("packed".to_owned());
                (Some((offset, extent.len)), "fragment")
            }
        };
        if last {
            flags.push("last".to_owned());
        }
        Self {
            offset: extent.offset,
            len: extent.len,
            physical,
            coding,
            flags,
        }
    }

    /// Formats the row as text.
    pub(crate) fn text(&self) -> String {
        let (pos, plen) = match self.physical {
            Some((pos, plen)) => (format!("{pos:#x}"), plen.to_string()),
            None => ("-".to_owned(), "-".to_owned()),
        };
        let flags = self.flags.join(",");
        format!(
            "{:>11} {:>11} {pos:>15} {plen:>11}  {:<10}  {flags}",
            self.offset, self.len, self.coding
        )
        .trim_end()
        .to_owned()
    }

    /// Formats the row for a narrow view: range in the file, range in the image, coding.
    #[cfg(feature = "explore")]
    pub(crate) fn short(&self) -> String {
        let place = match self.physical {
            Some((pos, plen)) => format!("{pos:#x}+{plen}"),
            None => "-".to_owned(),
        };
        format!("{}+{} {place} {}", self.offset, self.len, self.coding)
    }

    /// Formats the row as a JSON object.
    pub(crate) fn json(&self) -> Value {
        json!({
            "offset": self.offset, "length": self.len,
            "physical": self.physical.map(|p| p.0), "plength": self.physical.map(|p| p.1),
            "coding": self.coding, "flags": self.flags,
        })
    }
}

/// Name of a coding.
pub(crate) fn coding_name(coding: Coding) -> &'static str {
    match coding {
        Coding::Stored => "stored",
        Coding::Interlaced => "interlaced",
        Coding::Compressed(id) => algorithm_name(id),
    }
}

/// Name of an algorithm.
pub(crate) fn algorithm_name(id: u8) -> &'static str {
    match id {
        0 => "lz4",
        1 => "lzma",
        2 => "deflate",
        _ => "zstd",
    }
}
