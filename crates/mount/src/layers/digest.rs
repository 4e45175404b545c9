//! Comparison of layers with their names and with the descriptions of their hash trees.

use sha2::{Digest, Sha256};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tuff_erofs::verity::{self, Extent, TreePlace};
use tuff_store::{FileStore, ReadAt};

/// Sentence about a layer whose content is not that of its name.
pub(crate) const WRONG_DIGEST: &str = "its content does not have the digest that is its name";

/// Length of the parts in which a layer is read. Unit: bytes.
const PART: usize = 1 << 20;

/// Reads a file from its start and calls `part` with each part and its position.
fn parts(file: &File, mut part: impl FnMut(&[u8], u64) -> io::Result<()>) -> io::Result<u64> {
    let mut bytes = vec![0; PART];
    let mut at = 0;
    loop {
        match file.read_at(&mut bytes, at) {
            Ok(0) => return Ok(at),
            Ok(n) => {
                part(&bytes[..n], at)?;
                at += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// SHA-256 of a file in hexadecimal digits. Calls `progress` with the number of bytes that were read.
pub(crate) fn digest(file: &File, progress: &dyn Fn(u64)) -> io::Result<String> {
    let mut hash = Sha256::new();
    parts(file, |part, at| {
        hash.update(part);
        progress(at + part.len() as u64);
        Ok(())
    })?;
    Ok(hex::encode(hash.finalize()))
}

/// Copies `len` bytes to an empty file, and returns their SHA-256 in hexadecimal digits.
pub(crate) fn copy_digest(from: &File, len: u64, to: &File) -> io::Result<String> {
    let mut hash = Sha256::new();
    let copied = parts(from, |part, at| {
        hash.update(part);
        to.write_all_at(part, at)
    })?;
    match copied == len {
        true => Ok(hex::encode(hash.finalize())),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// True if the description of a hash tree, JSON with its root hash and its position, is that of the tree in a layer.
pub(crate) fn states_tree_of(file: File, description: &str) -> bool {
    let description: serde_json::Value = serde_json::from_str(description).unwrap_or_default();
    let root = description["roothash"].as_str().map(tuff_open::parse_root);
    let (Some(Ok(root)), Some(offset)) = (root, description["hashoffset"].as_u64()) else {
        return false;
    };
    let Ok(store) = FileStore::new(file) else {
        return false;
    };
    let store: Arc<dyn ReadAt> = Arc::new(store);
    let tree = TreePlace::appended(Arc::clone(&store), offset);
    verity::open(store, tree, Some(root), Extent::Image)
        .is_ok_and(|tree| tree.is_top_sound().unwrap_or(false))
}
