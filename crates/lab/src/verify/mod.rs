//! Verification of results.
//!
//! ```text
//! build    image ──► kernel mount, read-only ──► tree ──► compared with the source
//!                 └─► (no mount possible: a reader extracts it, and the record states that)
//! extract  target ──► compared with the source
//! check    a good image passes, a damaged copy fails
//! ```
//!
//! Trees are compared by facets ([`tree::Facet`]), because tools preserve different metadata:
//! SquashFS truncates timestamps to seconds. For other tools, names, bytes and modes must match;
//! further differences are recorded and printed below the table. For our tool, all facets must
//! match.

pub mod mount;
pub mod tree;

use crate::engines::Tool;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tree::{Difference, Facet};

/// Method by which a result was verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judge {
    /// The kernel mounted the image, and the mounted tree was compared.
    KernelMount,
    /// This tool extracted the image, because it could not be mounted, and the extracted tree was
    /// compared.
    ExtractedBy(Tool),
    /// The extracted tree was compared.
    Walk,
    /// The check had to pass a good image and reject a damaged copy.
    Damage,
}

/// Result of a verification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Method of the verification.
    pub judge: Judge,
    /// Facets that differ from the source.
    pub differ: Vec<Difference>,
    /// Reason for which the result does not count.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub wrong: Option<String>,
}

impl Verdict {
    /// Returns the verdict on a tree made by `tool` with the differences `differ` from its source.
    pub fn on_tree(judge: Judge, tool: Tool, differ: Vec<Difference>) -> Verdict {
        let must = required(tool);
        let fatal = differ.iter().find(|d| must.contains(&d.facet));
        let wrong = fatal.map(ToString::to_string);
        Verdict {
            judge,
            differ,
            wrong,
        }
    }
}

/// Facets that must match for a result of another tool to count.
pub const OTHERS: [Facet; 3] = [Facet::Names, Facet::Bytes, Facet::Modes];

/// Returns the facets that must match for a result of `tool` to count.
pub fn required(tool: Tool) -> &'static [Facet] {
    match tool {
        Tool::Tuff | Tool::TuffBefore => &tree::FACETS,
        _ => &OTHERS,
    }
}

/// Number of ranges that [`damage`] overwrites.
const WOUNDS: u64 = 8;

/// Copies an image and overwrites eight evenly distributed ranges with 0xFF. Each has up to 64 KiB;
/// together they are at most an eighth of the image. A tool that decodes all data must detect this,
/// because some ranges are in compressed data.
pub fn damage(image: &Path, copy: &Path) -> std::io::Result<()> {
    let length = std::fs::copy(image, copy)?;
    let file = File::options().write(true).open(copy)?;
    let stretch = (length / 64).min(65536);
    // Fits: at most 65536.
    let bytes = vec![0xFF; stretch as usize];
    for i in 0..WOUNDS {
        // Aligned to blocks, so that the beginning of a cluster is damaged.
        let at = (length / (2 * WOUNDS) * (2 * i + 1)) & !4095;
        file.write_all_at(&bytes, at)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_tool_must_preserve_all_facets_and_another_one_all_data() {
        let wrong = |tool, facet| {
            let first = "a/b".to_owned();
            let count = 3;
            let differ = vec![Difference {
                facet,
                count,
                first,
            }];
            Verdict::on_tree(Judge::Walk, tool, differ).wrong
        };
        for facet in tree::FACETS {
            assert!(wrong(Tool::Tuff, facet).is_some(), "{facet:?}");
        }
        assert_eq!(wrong(Tool::FsckErofs, Facet::Nanoseconds), None);
        let bytes = wrong(Tool::FsckErofs, Facet::Bytes).unwrap();
        assert_eq!(bytes, "bytes differ in 3 entries, first 'a/b'");
    }

    #[test]
    fn damage_is_deterministic_and_keeps_the_length() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("image"), vec![0; 1 << 20]).unwrap();
        damage(&at("image"), &at("one")).unwrap();
        damage(&at("image"), &at("two")).unwrap();
        let one = std::fs::read(at("one")).unwrap();
        assert_eq!(one, std::fs::read(at("two")).unwrap());
        assert_eq!(one.len(), 1 << 20);
        assert_eq!(one.iter().filter(|b| **b == 0xFF).count(), 8 * 16384);
        assert_eq!(one[65536], 0xFF);
        assert_eq!(one[0], 0);
    }
}
