//! Verification of a disk: partition table, hash tree, and signature of the root hash.

use crate::image::OpenArgs;
use crate::progress::Counter;
use crate::signing;
use crate::text::hex;
use crate::units::size;
use serde_json::{Value, json};
use std::ops::Range;
use std::path::Path;
use tuff_disk::Disk;
use tuff_erofs::check::Severity;
use tuff_erofs::verity::{self, Root, Verified};
use tuff_erofs::{Error, Result};

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

/// Finding about a disk.
pub(super) struct Finding {
    severity: Severity,
    rule: &'static str,
    place: &'static str,
    what: String,
}

impl Finding {
    pub(super) fn line(&self) -> String {
        format!(
            "{}[{}]: {}: {}",
            self.severity, self.rule, self.place, self.what
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({"severity": self.severity.to_string(), "rule": self.rule, "place": self.place, "message": self.what})
    }
}

/// Result of the verification.
pub(super) struct Report {
    pub(super) findings: Vec<Finding>,
    root: Option<Root>,
    verified_bytes: u64,
    signature: Signature,
}

impl Report {
    /// Line of the summary.
    pub(super) fn text(&self) -> String {
        let root = self
            .root
            .as_ref()
            .map_or("none".to_owned(), |root| hex(root));
        let signature = match self.signature {
            Signature::Missing => "not signed",
            Signature::Unverified => "signature not verified (--trust CERT verifies it)",
            Signature::Trusted => "signed by the certificate",
            Signature::Refused => "not signed by the certificate",
        };
        let verified = size(self.verified_bytes);
        format!("disk: {verified} match the root hash {root}; {signature}")
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "root_hash": self.root.as_ref().map(|root| hex(root)),
            "verified_bytes": self.verified_bytes,
            "signature": match self.signature {
                Signature::Missing => "none",
                Signature::Unverified => "unverified",
                Signature::Trusted => "trusted",
                Signature::Refused => "refused",
            },
        })
    }

    fn error(&mut self, rule: &'static str, place: &'static str, what: impl ToString) {
        self.findings.push(Finding {
            severity: Severity::Error,
            rule,
            place,
            what: what.to_string(),
        });
    }

    /// Checks the hash tree. `scan`: read all data.
    fn check_tree(&mut self, disk: &Disk, scan: Option<(usize, &Counter)>) -> Result<()> {
        let (Some(root), Some(tree)) = (disk.root(), disk.tree_store()) else {
            let what = "no partition has the type of a hash tree";
            self.error("hash-tree", "partition table", what);
            return Ok(());
        };
        let verified = match verity::open(disk.data_store(), tree, 0, root) {
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
        let (covered, range) = (verified.header().data_len(), &disk.data().range);
        if covered < range.end - range.start {
            let what = format!("the hash tree covers only its first {covered} bytes");
            self.error("hash-tree", "image", what);
        }
        match scan {
            Some((threads, counter)) => self.scan(&verified, threads, counter),
            None => Ok(()),
        }
    }

    fn scan(&mut self, verified: &Verified, threads: usize, counter: &Counter) -> Result<()> {
        let total = verified.header().data_len();
        counter.add_total(total);
        let damage = verified.scan(threads, &|bytes| {
            counter.add(bytes);
            Ok(())
        });
        let damage = damage.map_err(|e| Error::io("disk", "cannot read", e))?;
        let len = |range: &Range<u64>| range.end - range.start;
        let bad: u64 = damage.data.iter().chain(&damage.unknown).map(len).sum();
        self.verified_bytes = total.saturating_sub(bad);
        for (ranges, place) in [
            (&damage.data, "image"),
            (&damage.unknown, "image"),
            (&damage.tree, "hash tree"),
            (&damage.parity, "parity"),
        ] {
            for range in ranges {
                let what = format!(
                    "{} bytes at {} do not match the root hash",
                    len(range),
                    range.start
                );
                self.error("hash-tree", place, what);
            }
        }
        Ok(())
    }

    fn check_signature(&mut self, disk: &Disk, trust: Option<&Path>) -> Result<()> {
        let certificate = trust.map(signing::certificate).transpose()?;
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
    open: &OpenArgs,
    scan: Option<(usize, &Counter)>,
) -> Result<Report> {
    let mut report = Report {
        findings: Vec::new(),
        root: disk.root(),
        verified_bytes: 0,
        signature: Signature::Missing,
    };
    for damage in disk.damage() {
        report.error("partition-table", "partition table", damage);
    }
    if open.verity.is_some() && open.verity != disk.root() {
        let what = "the UUIDs of the partitions do not state the root hash that was given";
        report.error("hash-tree", "partition table", what);
    }
    report.check_tree(disk, scan)?;
    report.check_signature(disk, open.trust.as_deref())?;
    Ok(report)
}
