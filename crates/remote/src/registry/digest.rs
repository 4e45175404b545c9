//! Digests of blobs and manifests: `sha256:` and 64 hexadecimal digits.

use sha2::{Digest, Sha256};

/// Digits of bytes in lower case.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes of a root hash in 64 hexadecimal digits.
pub(crate) fn unhex(text: &str) -> Option<tuff_verity::Root> {
    let mut root = tuff_verity::Root::default();
    if text.len() != root.len() * 2 {
        return None;
    }
    for (byte, pair) in root.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(root)
}

/// Digest of bytes, as registries write it.
pub(crate) fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}
