//! Verification of results.
//!
//! ```text
//! build    image ──► kernel mount, read-only ──► tree ──► compared with the source
//!                 └─► (no mount possible: a reader extracts it, and the record states that)
//! extract  target ──► compared with the source
//! check    a good image passes, a damaged copy fails
//! ```
//!
//! Trees are compared facet by facet ([`tree::Facet`]), because tools differ in the metadata that they keep: SquashFS
//! truncates timestamps to seconds. The time of another tool counts if names, bytes and modes are right; other
//! differences are recorded and printed below the table. Our tool must get everything right.

pub mod mount;
pub mod tree;

use crate::engines::Tool;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tree::{Difference, Facet};

/// Method of verification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judge {
    /// The image was mounted by the running kernel and walked.
    KernelMount,
    /// The image was extracted by this tool, because it could not be mounted, and the tree was walked.
    ExtractedBy(Tool),
    /// The extracted tree was walked.
    Walk,
    /// A good image had to pass, and a damaged one had to be found.
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
    /// The verdict on a tree made by `tool` that differs from its source by `differ`.
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

/// Facets without which a result of `tool` does not count.
pub fn required(tool: Tool) -> &'static [Facet] {
    match tool {
        Tool::Tuff => &tree::FACETS,
        _ => &[Facet::Names, Facet::Bytes, Facet::Modes],
    }
}

/// Number of places that [`damage`] overwrites.
const WOUNDS: u64 = 8;

/// Makes a copy of an image with eight evenly spread stretches overwritten by 0xFF, up to 64 KiB each and together at
/// most an eighth of the image. A tool that decodes all data cannot miss that: some stretch lies in compressed data.
pub fn damage(image: &Path, copy: &Path) -> std::io::Result<()> {
    let length = std::fs::copy(image, copy)?;
    let file = File::options().write(true).open(copy)?;
    let stretch = (length / 64).min(65536);
    // Fits: at most 65536.
    let bytes = vec![0xFF; stretch as usize];
    for i in 0..WOUNDS {
        // Blocks, so that clusters are hit at their beginning, where the decoder looks first.
        let at = (length / (2 * WOUNDS) * (2 * i + 1)) & !4095;
        file.write_all_at(&bytes, at)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(facet: Facet) -> Difference {
        Difference {
            facet,
            count: 3,
            first: "a/b".to_owned(),
        }
    }

    #[test]
    fn a_rival_may_lose_times_but_not_bytes() {
        let times = Verdict::on_tree(
            Judge::Walk,
            Tool::FsckErofs,
            vec![difference(Facet::Nanoseconds)],
        );
        assert_eq!(times.wrong, None);
        let bytes = Verdict::on_tree(Judge::Walk, Tool::FsckErofs, vec![difference(Facet::Bytes)]);
        assert_eq!(
            bytes.wrong.as_deref(),
            Some("bytes differ in 3 entries, first 'a/b'")
        );
    }

    #[test]
    fn ours_may_lose_nothing() {
        for facet in tree::FACETS {
            let verdict = Verdict::on_tree(Judge::KernelMount, Tool::Tuff, vec![difference(facet)]);
            assert!(verdict.wrong.is_some(), "{facet:?}");
        }
    }

    #[test]
    fn damage_is_the_same_each_time_and_keeps_the_length() {
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
