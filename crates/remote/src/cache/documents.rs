//! Documents about images in the cache: manifests, configurations, signatures, profiles, and what tags named last.
//!
//! A file has the digest of its content, so that a damaged one counts as absent. Its name is a digest of the scope and of the name
//! of the document. A scope is a repository with the name of a login: other logins see nothing of it.

use super::directory::{DOCUMENT_SUFFIX, Directory};
use sha2::{Digest, Sha256};
use std::io::{self, Read};
use std::sync::Arc;
use std::time::SystemTime;

const MAGIC: &[u8; 8] = b"TUFFDOC1";

/// Longest document. Unit: bytes.
const LEN_MAX: usize = 5 << 20;

/// Largest number of documents.
const COUNT_MAX: usize = 4096;

/// Largest size of all documents, if the cache is large. Unit: bytes.
const SIZE_MAX: u64 = 64 << 20;

/// Documents of one scope.
pub(crate) struct Documents {
    directory: Arc<Directory>,
    scope: [u8; 32],
}

impl Documents {
    /// Documents of the scope that `parts` name.
    pub(crate) fn new(directory: Arc<Directory>, parts: &[&str]) -> Self {
        Self {
            directory,
            scope: digest_of_all(parts.iter().map(|part| part.as_bytes())),
        }
    }

    /// Document of this name. `None` if there is none, or a damaged one.
    pub(crate) fn get(&self, name: &str) -> Option<Vec<u8>> {
        let file = self.directory.document(&self.file_name(name)).ok()?;
        let mut bytes = Vec::new();
        let limit = (MAGIC.len() + 32 + LEN_MAX) as u64;
        (&file).take(limit).read_to_end(&mut bytes).ok()?;
        let rest = bytes.strip_prefix(MAGIC)?;
        let (digest, content) = rest.split_at_checked(32)?;
        if Sha256::digest(content)[..] != *digest {
            return None;
        }
        // Those that were not used for longest are removed first. A file of another user need not be writable.
        let _ = file.set_modified(SystemTime::now());
        Some(content.to_vec())
    }

    /// Keeps a document. A full disk loses it, which costs a request later.
    pub(crate) fn put(&self, name: &str, content: &[u8]) {
        if content.len() > LEN_MAX {
            return;
        }
        let digest = Sha256::digest(content);
        let bytes = [&MAGIC[..], &digest, content].concat();
        let _ = self.store(name, bytes);
    }

    fn store(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        let bound = SIZE_MAX.min(self.directory.max() / 16);
        if bytes.len() as u64 > bound {
            return Ok(());
        }
        self.directory
            .store_document(&self.file_name(name), &bytes)?;
        self.directory.bound_documents(COUNT_MAX, bound)
    }

    fn file_name(&self, name: &str) -> String {
        let digest = digest_of_all([&self.scope[..], name.as_bytes()].into_iter());
        format!("{}{DOCUMENT_SUFFIX}", hex::encode(digest))
    }
}

/// Digest of parts, each with its length.
fn digest_of_all<'a>(parts: impl Iterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn documents_are_found_in_their_scope_only_and_damaged_ones_are_absent() {
        let dir = tuff_testkit::unused_path("documents");
        let directory = Arc::new(Directory::open(&dir, 1 << 30).unwrap());
        let of = |parts: &[&str]| Documents::new(Arc::clone(&directory), parts);
        let (mine, other) = (of(&["r", "user a"]), of(&["r", "user b"]));
        mine.put("tags/v1", b"one");
        mine.put("tags/v1", b"two");
        assert_eq!(mine.get("tags/v1").as_deref(), Some(&b"two"[..]));
        assert_eq!(mine.get("tags/v2"), None);
        assert_eq!(other.get("tags/v1"), None);
        assert_eq!(of(&["ru", "ser a"]).get("tags/v1"), None);
        let path = dir.join(mine.file_name("tags/v1"));
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            assert_eq!(mine.get("tags/v1"), None, "{at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(mine.get("tags/v1"), None, "{at}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn documents_have_a_bound_and_the_oldest_go_first() {
        let dir = tuff_testkit::unused_path("documents-bound");
        let directory = Arc::new(Directory::open(&dir, 16 << 20).unwrap());
        let documents = Documents::new(directory, &["r"]);
        let content = vec![7; 200_000];
        documents.put("first", &content);
        let old = fs::File::open(dir.join(documents.file_name("first"))).unwrap();
        old.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        for n in 0..10 {
            documents.put(&n.to_string(), &content);
        }
        assert_eq!(documents.get("first"), None);
        let size: u64 = fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        assert!(size <= (1 << 20) + 16, "{size}");
        assert!(documents.get("9").is_some());
        documents.put("large", &vec![7; 2 << 20]);
        assert_eq!(documents.get("large"), None);
        fs::remove_dir_all(&dir).unwrap();
    }
}
