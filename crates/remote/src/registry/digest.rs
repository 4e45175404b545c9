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
        // `from_str_radix` would accept a sign.
        let digit = |i: usize| char::from(pair[i]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8; // fits: two digits
    }
    Some(root)
}

/// Digest of bytes, as registries write it.
pub(crate) fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_hashes_consist_of_digits_alone() {
        let digits = "0f".repeat(32);
        assert_eq!(unhex(&digits), Some([0x0f; 32]));
        for text in [digits.replace("0f", "+f"), digits.replace("0f", "\u{e9}")] {
            assert_eq!(unhex(&text), None, "{text}");
        }
        assert_eq!(unhex(&digits[1..]), None);
    }
}
