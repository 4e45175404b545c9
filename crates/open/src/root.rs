//! Root hashes as text.

use tuff_erofs::verity::Root;

/// Parses a root hash: 64 hexadecimal digits.
///
/// # Errors
/// A sentence about any other text.
pub fn parse_root(text: &str) -> Result<Root, String> {
    let bytes = hex::decode(text).ok();
    let root = bytes.and_then(|bytes| Root::try_from(bytes).ok());
    root.ok_or_else(|| format!("'{text}' is not a root hash, which has 64 hexadecimal digits"))
}
