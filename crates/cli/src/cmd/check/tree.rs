//! Comparison of an image with its hash tree.

use super::finding::Finding;
use crate::image::ImageArgs;
use crate::progress::Counter;
use crate::text::escaped;
use crate::units::size;
use serde_json::{Value, json};
use std::ops::Range;
use std::sync::Arc;
use tuff_erofs::verity::{self, Hit, Root, Verified};
use tuff_erofs::{Error, Place, Result};

/// Number of bytes that match a hash tree. Unit: bytes.
#[derive(Clone, Copy)]
pub(super) struct Matching {
    /// Bytes that the tree covers.
    pub(super) covered: u64,
    /// Bytes of them that match. `None` if the data was not read.
    pub(super) matching: Option<u64>,
}

impl Matching {
    /// States what matches `root`, the name of a root hash.
    pub(super) fn text(self, root: &str) -> String {
        let Self { covered, matching } = self;
        match matching {
            Some(matching) if matching == covered => {
                format!("{} match {root}", size(covered))
            }
            Some(matching) => format!(
                "{} of {} do not match {root}",
                size(covered - matching),
                size(covered)
            ),
            None => format!("{} are not compared with {root}", size(covered)),
        }
    }
}

/// Result for the hash tree that follows an image.
pub(super) struct Report {
    pub(super) findings: Vec<Finding>,
    root: Root,
    matching: Matching,
}

impl Report {
    /// Line of the summary.
    pub(super) fn text(&self) -> String {
        let root = format!("its root hash {}", hex::encode(self.root));
        let matching = self.matching.text(&root);
        format!("hash tree: {matching}; --verity ROOT-HASH proves the origin, too")
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "root_hash": hex::encode(self.root),
            "covered_bytes": self.matching.covered,
            "verified_bytes": self.matching.matching,
        })
    }
}

/// Compares an image with the hash tree that follows it, by the root hash that the tree states. `None` without a tree, and
/// for an image that is verified by a root hash or read over a network. `scan`: threads and counter to read all data with.
pub(super) fn check(image: &ImageArgs, scan: Option<(usize, &Counter)>) -> Result<Option<Report>> {
    let has_root = image.open.verity.is_some() || image.open.trust.is_some();
    if has_root || image.image.is_network() {
        return Ok(None);
    }
    let container = image.plain()?;
    let Some(tree) = container.tree_if_any()? else {
        return Ok(None);
    };
    let verified = tree.open(Arc::clone(container.store()), None)?;
    let (findings, matching) = compare(&verified, image, scan)?;
    Ok(Some(Report {
        findings,
        root: *verified.root(),
        matching,
    }))
}

/// Compares the data of a tree with it. Findings name the damaged ranges, and the files in them.
pub(super) fn compare(
    verified: &Verified,
    image: &ImageArgs,
    scan: Option<(usize, &Counter)>,
) -> Result<(Vec<Finding>, Matching)> {
    let range = verified.covered_range();
    let covered = range.end - range.start;
    let mut findings = Vec::new();
    let Some((threads, counter)) = scan else {
        let matching = None;
        return Ok((findings, Matching { covered, matching }));
    };
    counter.add_total(covered);
    let damage = verified.scan(threads, &|bytes| {
        counter.add(bytes);
        Ok(())
    });
    let damage = damage.map_err(|e| Error::io(Place::file(&image.image), "cannot read", e))?;
    let with = match verified.is_stated() {
        true => "hash tree",
        false => "root hash",
    };
    let len = |range: &Range<u64>| range.end - range.start;
    for (ranges, place) in [
        (&damage.data, "image"),
        (&damage.unknown, "image"),
        (&damage.tree, "hash tree"),
        (&damage.parity, "parity"),
    ] {
        for range in ranges {
            let what = format!(
                "{} bytes at {} do not match the {with}",
                len(range),
                range.start
            );
            findings.push(Finding::error("hash-tree", place, what));
        }
    }
    if !damage.data.is_empty() {
        files(image, &damage.data, &mut findings);
    }
    let bad: u64 = damage.data.iter().chain(&damage.unknown).map(len).sum();
    let matching = Some(covered.saturating_sub(bad));
    Ok((findings, Matching { covered, matching }))
}

/// Adds the files in damaged ranges. They are found through metadata that may itself be damaged, which the check of the
/// image reports.
fn files(image: &ImageArgs, damaged: &[Range<u64>], findings: &mut Vec<Finding>) {
    let Ok(image) = image.open_unchecked() else {
        return;
    };
    let _ = verity::hits(&image, damaged, &mut |hit| {
        let (path, what) = match hit {
            Hit::Content(path, range) => {
                let len = range.end - range.start;
                (path, format!("{len} bytes at {} are damaged", range.start))
            }
            Hit::Inode(path) => (path, "its inode is damaged".to_owned()),
        };
        findings.push(Finding::error(
            "hash-tree",
            &format!("/{}", escaped(&path)),
            what,
        ));
    });
}
