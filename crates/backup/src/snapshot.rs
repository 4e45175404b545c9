//! Manifests, which name snapshots and their trees.

use crate::digest::Digest;
use serde_json::{Value, json};

/// Snapshot of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Number in the store: runs are counted.
    pub number: u32,
    /// Snapshots of one series follow each other.
    pub series: String,
    /// Time at which the run ended. Unit: seconds since 1970.
    pub time: i64,
    /// Number of the snapshot before it in its series.
    pub parent: Option<u32>,
    /// Directories that were saved, by their absolute paths, with bytes that are no text escaped as `%XX`.
    pub sources: Vec<String>,
    /// Number of entries, without the directories above the sources.
    pub entries: u64,
    /// Number of regular files.
    pub files: u64,
    /// Content of the files. Unit: bytes.
    pub bytes: u64,
    /// Files that could not be read.
    pub left_out: u64,
    /// It has less than half of the files of the newest snapshot of its series that is not in doubt.
    pub lost_most: bool,
    /// Ranges that hold the list of the tree's leaves.
    pub(crate) tree: Vec<Digest>,
}

impl Snapshot {
    /// Paths of the saved directories below the root of the snapshot, without slashes at their ends. That of `/` is empty.
    pub fn roots(&self) -> Vec<Vec<u8>> {
        let roots = self.sources.iter().map(|source| {
            let (mut path, mut rest) = (Vec::new(), source.as_bytes());
            while let Some((byte, later)) = rest.split_first() {
                let digits = later.get(..2).filter(|_| *byte == b'%');
                let escaped = digits
                    .and_then(|digits| std::str::from_utf8(digits).ok())
                    .and_then(|digits| u8::from_str_radix(digits, 16).ok());
                path.push(escaped.unwrap_or(*byte));
                rest = escaped.map_or(later, |_| &later[2..]);
            }
            let start = path.iter().take_while(|byte| **byte == b'/').count();
            path.split_off(start)
        });
        roots.collect()
    }

    /// Text of the manifest.
    pub(crate) fn text(&self) -> String {
        let tree: Vec<String> = self.tree.iter().map(Digest::to_string).collect();
        let manifest = json!({
            "number": self.number,
            "series": self.series,
            "time": self.time,
            "parent": self.parent,
            "sources": self.sources,
            "entries": self.entries,
            "files": self.files,
            "bytes": self.bytes,
            "left_out": self.left_out,
            "lost_most": self.lost_most,
            "tree": tree,
        });
        let check = Digest::of_bytes(manifest.to_string().as_bytes()).to_string();
        format!("{:#}\n", json!({ "snapshot": manifest, "check": check }))
    }

    /// Reads a manifest. `None` if it is damaged, or that of another snapshot.
    pub(crate) fn parse(number: u32, text: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(text).ok()?;
        let manifest = &value["snapshot"];
        let check = Digest::of_bytes(manifest.to_string().as_bytes()).to_string();
        if value["check"].as_str()? != check {
            return None;
        }
        // The first stores have manifests without it.
        let is_other = |stated: u64| stated != u64::from(number);
        if manifest["number"].as_u64().is_some_and(is_other) {
            return None;
        }
        let strings = |key: &str| {
            let list = manifest[key].as_array()?.iter();
            list.map(|text| text.as_str().map(str::to_owned))
                .collect::<Option<Vec<_>>>()
        };
        let tree = strings("tree")?;
        Some(Self {
            number,
            series: manifest["series"].as_str()?.to_owned(),
            time: manifest["time"].as_i64()?,
            parent: manifest["parent"]
                .as_u64()
                .and_then(|n| u32::try_from(n).ok()),
            sources: strings("sources")?,
            entries: manifest["entries"].as_u64()?,
            files: manifest["files"].as_u64()?,
            bytes: manifest["bytes"].as_u64()?,
            left_out: manifest["left_out"].as_u64()?,
            lost_most: manifest["lost_most"].as_bool()?,
            tree: tree
                .iter()
                .map(|text| Digest::from_hex(text))
                .collect::<Option<_>>()?,
        })
    }
}
