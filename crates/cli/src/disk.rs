//! Disks with partitions: where the command takes an image, and where it writes one.

use crate::file_kind::is_image;
use crate::remote;
use crate::signing;
use crate::text::{escaped_line, hex, parse_root};
use crate::units::size;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_disk::{Disk, Table};
use tuff_erofs::verity::Root;
use tuff_erofs::{Error, Result};
use tuff_format::superblock;
use tuff_signature::Certificate;
use tuff_store::{FileStore, ReadAt};

/// Opens the disk in a store. `None` for an image, and for other stores without a partition table.
pub(crate) fn open(store: &Arc<dyn ReadAt>, path: &Path) -> Result<Option<Disk>> {
    let mut head = [0; superblock::OFFSET as usize + 4];
    // A boot sector or a partition table may precede the superblock of an image.
    if store.read_exact_at(&mut head, 0).is_err() || is_image(&head) {
        return Ok(None);
    }
    let name = remote::shown(path);
    let name = name.display();
    Disk::open(Arc::clone(store)).map_err(|e| match e {
        tuff_disk::Error::Io(e) => Error::io(name, "cannot read the partition table", e),
        tuff_disk::Error::NoRoot => Error::source(format_args!(
            "{name}: is a GPT partition table without a root or /usr partition: give the start of an image with --offset"
        )),
        tuff_disk::Error::Corrupt(what) => Error::corrupt(
            name,
            format_args!("is a GPT partition table that is damaged: {what}; give the start of an image with --offset"),
        ),
    })
}

/// Opens the disk in a file or block device. `None` for other files, and for URLs.
pub(crate) fn open_file(path: &Path) -> Result<Option<Disk>> {
    if remote::is_url(path) {
        return Ok(None);
    }
    match FileStore::open(path) {
        Ok(store) => open(&(Arc::new(store) as Arc<dyn ReadAt>), path),
        // The caller reports a file that cannot be opened.
        Err(_) => Ok(None),
    }
}

/// Reason why a signature that can be read is not trusted.
const NOT_SIGNED: &str = "no signature of the root hash is by the certificate";

fn not_trusted(path: &Path, certificate: &Certificate, what: &str) -> Error {
    let by = certificate.place();
    let what = format_args!("{what}, so it is not trusted by {by}");
    Error::untrusted(path.display(), what)
}

/// Root hash of a disk, if its signature is by the certificate in a file.
pub(crate) fn trusted(disk: &Disk, path: &Path, certificate: &Path) -> Result<Root> {
    let certificate = signing::certificate(certificate)?;
    let refused = |what: &str| not_trusted(path, &certificate, what);
    let record = disk.record().map_err(|e| match e {
        tuff_disk::Error::Io(e) => Error::io(path.display(), "cannot read the signature", e),
        e => refused(&e.to_string()),
    })?;
    let record = record.ok_or_else(|| refused("the disk has no signature partition"))?;
    if disk.root() != Some(record.root) {
        return Err(refused(
            "the root hash that was signed is not that of the partitions",
        ));
    }
    match certificate.has_signed(&record.root, &record.signature) {
        true => Ok(record.root),
        false => Err(refused(NOT_SIGNED)),
    }
}

/// Files of a disk without a partition table, by the names that systemd expects.
pub(crate) struct FlatFiles {
    /// File with the hash tree.
    pub(crate) tree: PathBuf,
    /// Root hash in hexadecimal digits.
    pub(crate) root: PathBuf,
    /// Signature of the root hash in DER.
    pub(crate) signature: PathBuf,
}

impl FlatFiles {
    /// Files of the image at `path`. `None` for a path without a name.
    pub(crate) fn beside(path: &Path) -> Option<Self> {
        let name = path.file_name().filter(|_| path != Path::new("-"))?;
        let stem = match path.extension() {
            Some(raw) if raw == "raw" => path.file_stem().unwrap_or(name),
            _ => name,
        };
        let with = |suffix: &str| {
            let mut name = stem.to_owned();
            name.push(suffix);
            path.with_file_name(name)
        };
        Some(Self {
            tree: with(".verity"),
            root: with(".roothash"),
            signature: with(".roothash.p7s"),
        })
    }

    /// All three, the signature last.
    pub(crate) fn all(&self) -> [&PathBuf; 3] {
        [&self.tree, &self.root, &self.signature]
    }

    /// Root hash, if its signature is by the certificate in a file.
    pub(crate) fn trusted(&self, certificate: &Path) -> Result<Root> {
        let certificate = signing::certificate(certificate)?;
        let text = read_small(&self.root)?;
        let root = parse_root(String::from_utf8_lossy(&text).trim());
        let root = root.map_err(|what| Error::corrupt(self.root.display(), what))?;
        match certificate.has_signed(&root, &read_small(&self.signature)?) {
            true => Ok(root),
            false => Err(not_trusted(&self.signature, &certificate, NOT_SIGNED)),
        }
    }
}

/// Reads a root hash or a signature. What follows its longest possible length is left out.
fn read_small(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(64 << 10).read_to_end(&mut bytes));
    read.map_err(|e| Error::io(path.display(), "cannot read", e))?;
    Ok(bytes)
}

/// Disk that was written.
pub(crate) struct DiskSummary {
    /// Path of the disk.
    pub(crate) out: PathBuf,
    /// Length of the disk. Unit: bytes.
    pub(crate) len: u64,
    /// Partition table. `None` for files without one.
    pub(crate) table: Option<Table>,
    /// Files beside the image.
    pub(crate) files: Vec<PathBuf>,
    /// Fingerprint of the certificate that signed.
    pub(crate) fingerprint: Option<[u8; 32]>,
}

impl DiskSummary {
    /// Lines at the end of the summary of a build.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<12} {}", escaped_line(value));
        };
        for partition in self.table.iter().flat_map(|table| &table.partitions) {
            let len = size(partition.range.end - partition.range.start);
            line(
                &format!("partition {}", partition.number),
                format!(
                    "{}, {len} at byte {}",
                    partition.name, partition.range.start
                ),
            );
        }
        for file in &self.files {
            line("file", file.display().to_string());
        }
        match &self.fingerprint {
            Some(fingerprint) => line("signed by", format!("sha256 {}", hex(fingerprint))),
            None => line(
                "signed by",
                "none: --sign KEY,CERT signs the root hash".to_owned(),
            ),
        }
        if self.out != Path::new("-") {
            line(
                "disk",
                format!("{} in {}", size(self.len), self.out.display()),
            );
        }
        text
    }

    /// Value of the key `disk`.
    pub(crate) fn json(&self) -> Value {
        let files: Vec<_> = self
            .files
            .iter()
            .map(|path| path.to_string_lossy())
            .collect();
        json!({
            "disk_bytes": self.len,
            "uuid": self.table.as_ref().map(|table| table.disk.to_string()),
            "sector_bytes": self.table.as_ref().map(|table| table.sector),
            "partitions": self.table.as_ref().map(partitions_json),
            "certificate_fingerprint": self.fingerprint.as_ref().map(|digest| hex(digest)),
            "companion_files": files,
        })
    }
}

/// Formats the partitions of a table as a JSON array.
pub(crate) fn partitions_json(table: &Table) -> Value {
    let partitions = table.partitions.iter().map(|partition| {
        json!({
            "number": partition.number, "name": partition.name,
            "type": partition.kind.to_string(), "uuid": partition.id.to_string(),
            "offset": partition.range.start, "length": partition.range.end - partition.range.start,
        })
    });
    partitions.collect()
}
