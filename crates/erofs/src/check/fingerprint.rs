//! Comparison of fingerprints with the contents of files.

use super::finding::Rule;
use super::shared::Shared;
use crate::fingerprint::{PREFIX, digest_of};
use crate::read::FileType;
use crate::read::{Image, Inode};
use crate::walk::{Entry, Walk, shown};
use crate::{Error, Place, Result, threads};
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Compares the fingerprint of every file with its content, with `count` threads. Fingerprints in unsupported
/// forms are skipped.
pub(super) fn check(image: &Image, count: usize, shared: &Shared) {
    if image.fingerprint_name().is_none() {
        return;
    }
    // The walk has reported what cannot be read.
    let Ok(walk) = Walk::root(image) else { return };
    let walk = Mutex::new((walk, HashSet::new()));
    let next = || {
        let mut walk = walk.lock().unwrap_or_else(PoisonError::into_inner);
        let (walk, seen) = &mut *walk;
        walk.by_ref().flatten().find(|entry| {
            let inode = &entry.inode;
            let file = inode.file_type() == FileType::File && inode.size() > 0;
            file && (inode.nlink() == 1 || seen.insert(inode.nid()))
        })
    };
    let work = || {
        while let Some(Entry { path, inode }) = next() {
            match compare(image, &inode) {
                Ok(None) => {}
                Ok(Some(what)) => shared.error(Rule::Fingerprint, shown(&path), what),
                Err(e) => shared.failed(Rule::Fingerprint, Place::path(shown(&path)), &e),
            }
        }
    };
    std::thread::scope(|scope| {
        threads::start(scope, "fingerprint", count.saturating_sub(1), work);
        work();
    });
}

/// Returns the difference between fingerprint and content, if there is one.
fn compare(image: &Image, inode: &Inode) -> Result<Option<String>> {
    let Some(message) = image.fingerprint(inode)?.as_deref().and_then(digest) else {
        return Ok(None);
    };
    let mut reader = image.reader(inode)?;
    let found = digest_of(inode.size(), |buf, _| {
        let mut done = 0;
        while done < buf.len() {
            match reader.read_some(&mut buf[done..])? {
                0 => return Err(Error::corrupt("data", "ends before the file's size")),
                n => done += n,
            }
        }
        Ok(())
    })?;
    let differs = found[..] != message[..];
    Ok(differs.then(|| {
        format!(
            "sha256 {} of the content, expected {}",
            hex::encode(found),
            hex::encode(&message)
        )
    }))
}

/// Returns the digest in an attribute, raw or in hexadecimal.
fn digest(value: &[u8]) -> Option<Vec<u8>> {
    let digest = value.strip_prefix(PREFIX)?;
    match digest.len() {
        32 => Some(digest.to_vec()),
        64 => hex::decode(digest).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_raw_or_hexadecimal_and_others_are_left_alone() {
        let raw: Vec<u8> = (0..32).collect();
        assert_eq!(digest(&[PREFIX, &raw].concat()), Some(raw.clone()));
        let text = hex::encode(&raw);
        assert_eq!(
            digest(&[PREFIX, text.as_bytes()].concat()),
            Some(raw.clone())
        );
        assert_eq!(digest(&raw), None);
        assert_eq!(digest(&[PREFIX, &raw[1..]].concat()), None);
        assert_eq!(digest(&[PREFIX, &[b'g'; 64]].concat()), None);
        let signed = text.replace("0f", "+f");
        assert_eq!(digest(&[PREFIX, signed.as_bytes()].concat()), None);
    }
}
