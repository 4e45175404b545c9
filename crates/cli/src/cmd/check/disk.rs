//! Verification of a disk: partition table, hash tree, and signature of the root hash.

use super::finding::Finding;
use super::tree::{self, Matching};
use crate::image::ImageArgs;
use crate::progress::Counter;
use serde_json::{Value, json};
use std::path::Path;
use tuff_disk::Disk;
use tuff_erofs::verity::{self, Extent, Root, TreePlace};
use tuff_erofs::{Error, Result};
use tuff_open::certificate;

/// Result for the signature of a disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signature {
    /// The disk has none.
    Missing,
    /// No certificate was given.
    Unverified,
    /// It is by the certificate.
    Trusted,
    /// It is not by the certificate, or cannot be read.
    Refused,
}

/// Result of the verification.
pub(super) struct Report {
    pub(super) findings: Vec<Finding>,
    root: Option<Root>,
    /// Bytes that match the root hash. `None` without a usable hash tree.
    matching: Option<Matching>,
    signature: Signature,
}

impl Report {
    /// Line of the summary.
    pub(super) fn text(&self) -> String {
        let signature = match self.signature {
            Signature::Missing => "not signed",
            Signature::Unverified => "signature not verified (--trust CERT verifies it)",
            Signature::Trusted => "signed by the certificate",
            Signature::Refused => "not signed by the certificate",
        };
        let root = self.root.as_ref().map(hex::encode);
        let tree = match (root, self.matching) {
            (None, _) => "no hash tree".to_owned(),
            (Some(root), None) => format!("no usable hash tree for the root hash {root}"),
            (Some(root), Some(matching)) => matching.text(&format!("the root hash {root}")),
        };
        format!("disk: {tree}; {signature}")
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "root_hash": self.root.as_ref().map(hex::encode),
            "verified_bytes": self.matching.map_or(0, |found| found.matching.unwrap_or(0)),
            "signature": match self.signature {
                Signature::Missing => "none",
                Signature::Unverified => "unverified",
                Signature::Trusted => "trusted",
                Signature::Refused => "refused",
            },
        })
    }

    fn error(&mut self, rule: &'static str, place: &str, what: impl ToString) {
        self.findings.push(Finding::error(rule, place, what));
    }

    /// Checks the hash tree. `scan`: read all data.
    fn check_tree(
        &mut self,
        disk: &Disk,
        image: &ImageArgs,
        scan: Option<(usize, &Counter)>,
    ) -> Result<()> {
        let (Some(root), Some(tree)) = (disk.root(), disk.tree_store()) else {
            let what = "no partition has the type of a hash tree";
            self.error("hash-tree", "partition table", what);
            return Ok(());
        };
        let tree = TreePlace::separate(tree, 0);
        let verified = match verity::open(disk.data_store(), tree, Some(root), Extent::Store) {
            Ok(verified) => verified,
            Err(e @ Error::Io(..)) => return Err(e),
            Err(e) => {
                self.error("hash-tree", "hash tree", e);
                return Ok(());
            }
        };
        let failed = |e| Error::io("disk", "cannot read", e);
        if !verified.is_top_sound().map_err(failed)? {
            let what = "the UUIDs of the partitions do not state the root hash of the hash tree";
            self.error("hash-tree", "partition table", what);
            return Ok(());
        }
        let (findings, matching) = tree::compare(&verified, image, scan)?;
        self.findings.extend(findings);
        self.matching = Some(matching);
        Ok(())
    }

    fn check_signature(&mut self, disk: &Disk, trust: Option<&Path>) -> Result<()> {
        let certificate = trust.map(certificate).transpose()?;
        let record = match disk.record() {
            Ok(record) => record,
            Err(tuff_disk::Error::Io(e)) => return Err(Error::io("disk", "cannot read", e)),
            Err(e) => {
                self.signature = Signature::Refused;
                self.error("signature", "signature", e);
                return Ok(());
            }
        };
        let Some(record) = record else {
            if certificate.is_some() {
                self.error(
                    "signature",
                    "partition table",
                    "no partition has the type of a signature",
                );
            }
            return Ok(());
        };
        self.signature = Signature::Unverified;
        if disk.root() != Some(record.root) {
            self.signature = Signature::Refused;
            let what = "it is for another root hash than that of the partitions";
            self.error("signature", "signature", what);
            return Ok(());
        }
        if let Some(certificate) = certificate {
            self.signature = match certificate.has_signed(&record.root, &record.signature) {
                true => Signature::Trusted,
                false => Signature::Refused,
            };
            if self.signature == Signature::Refused {
                let what = format!("it is not by the certificate {}", certificate.place());
                self.error("signature", "signature", what);
            } else if record
                .fingerprint
                .is_some_and(|digest| digest != certificate.fingerprint())
            {
                self.error(
                    "signature",
                    "signature",
                    "it states the fingerprint of another certificate",
                );
            }
        }
        Ok(())
    }
}

/// Verifies a disk. `scan`: threads and counter to read all data with, or only the top of the hash tree.
pub(super) fn check(
    disk: &Disk,
    image: &ImageArgs,
    scan: Option<(usize, &Counter)>,
) -> Result<Report> {
    let mut report = Report {
        findings: Vec::new(),
        root: disk.root(),
        matching: None,
        signature: Signature::Missing,
    };
    for damage in disk.damage() {
        report.error("partition-table", "partition table", damage);
    }
    let open = &image.open;
    if open.verity.is_some() && open.verity != disk.root() {
        let what = "the UUIDs of the partitions do not state the root hash that was given";
        report.error("hash-tree", "partition table", what);
    }
    report.check_tree(disk, image, scan)?;
    report.check_signature(disk, open.trust.as_deref())?;
    Ok(report)
}
