//! Root hashes as text.

use tuff_erofs::verity::Root;

/// Parses a root hash: 64 hexadecimal digits.
///
/// # Errors
/// A sentence about any other text.
pub fn parse_root(text: &str) -> Result<Root, String> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        // Fits: two digits.
        [high, low] => Some((digit(high)? << 4 | digit(low)?) as u8),
        _ => None,
    });
    let bytes: Option<Vec<u8>> = pairs.collect();
    let root = bytes.and_then(|bytes| Root::try_from(bytes).ok());
    root.ok_or_else(|| format!("'{text}' is not a root hash, which has 64 hexadecimal digits"))
}
