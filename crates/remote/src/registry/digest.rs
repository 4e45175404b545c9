//! Digests of blobs and manifests: `sha256:` and 64 hexadecimal digits.

use sha2::{Digest, Sha256};

/// Bytes of a root hash in 64 hexadecimal digits.
pub(crate) fn root(text: &str) -> Option<tuff_verity::Root> {
    hex::decode(text).ok()?.try_into().ok()
}

/// Digest of bytes, as registries write it.
pub(crate) fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_hashes_consist_of_digits_alone() {
        let digits = "0f".repeat(32);
        assert_eq!(root(&digits), Some([0x0f; 32]));
        for text in [digits.replace("0f", "+f"), digits.replace("0f", "\u{e9}")] {
            assert_eq!(root(&text), None, "{text}");
        }
        assert_eq!(root(&digits[1..]), None);
    }
}
