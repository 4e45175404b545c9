//! Certificates, and the signatures of root hashes in disks and beside files.

use crate::flat::FlatFiles;
use crate::root::parse_root;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use tuff_disk::Disk;
use tuff_erofs::verity::Root;
use tuff_erofs::{Error, Result};
use tuff_signature::Certificate;

/// Longest root hash or signature in a file. Unit: bytes.
const LEN_MAX: u64 = 64 << 10;

/// Reason why a signature that can be read is not trusted.
const NOT_SIGNED: &str = "no signature of the root hash is by the certificate";

/// Reads a certificate.
///
/// # Errors
/// `Io` if the file cannot be read, `Usage` if it is no certificate.
pub fn certificate(path: &Path) -> Result<Certificate> {
    let bytes = std::fs::read(path).map_err(|e| Error::io(path.display(), "cannot read", e))?;
    Certificate::parse(&bytes, &path.display().to_string()).map_err(Error::usage)
}

/// Root hash of the disk at `path`, if its signature is by a certificate.
pub(crate) fn of_disk(disk: &Disk, path: &Path, certificate: &Certificate) -> Result<Root> {
    let refused = |what: &str| refused(path, certificate, what);
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

/// Root hash in the files beside the image at `path`, if its signature is by a certificate.
pub(crate) fn of_files(flat: &FlatFiles, path: &Path, certificate: &Certificate) -> Result<Root> {
    let text = match read_small(&flat.root) {
        Err(Error::Io(_, e)) if e.kind() == std::io::ErrorKind::NotFound => {
            let what = "the image comes without a root hash that a signature could be of";
            return Err(refused(path, certificate, what));
        }
        text => text?,
    };
    let root = parse_root(String::from_utf8_lossy(&text).trim());
    let root = root.map_err(|what| Error::corrupt(flat.root.display(), what))?;
    match certificate.has_signed(&root, &read_small(&flat.signature)?) {
        true => Ok(root),
        false => Err(refused(&flat.signature, certificate, NOT_SIGNED)),
    }
}

pub(crate) fn refused(path: &Path, certificate: &Certificate, what: &str) -> Error {
    let by = certificate.place();
    let what = format_args!("{what}, so it is not trusted by {by}");
    Error::untrusted(path.display(), what)
}

/// Reads a root hash or a signature. What follows its longest possible length is left out.
fn read_small(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LEN_MAX).read_to_end(&mut bytes));
    read.map_err(|e| Error::io(path.display(), "cannot read", e))?;
    Ok(bytes)
}
