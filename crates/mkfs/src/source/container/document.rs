//! JSON documents of container images, and digests in them.

use crate::source::error::SourceError;
use crate::{Error, Result};
use serde_json::Value;

/// Returns the text if it is 64 hexadecimal digits of a SHA-256.
pub(super) fn digits(text: &str) -> Option<&str> {
    let is_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    (text.len() == 64 && text.bytes().all(is_hex)).then_some(text)
}

/// Hexadecimal digits of a `sha256:` digest in the document `place`.
pub(super) fn digest<'a>(place: &str, digest: Option<&'a Value>) -> Result<&'a str> {
    let digest = digest.and_then(Value::as_str).unwrap_or_default();
    digest
        .strip_prefix("sha256:")
        .and_then(digits)
        .ok_or_else(|| {
            let what = format!("'{digest}' is not a SHA-256 digest");
            broken(place, &what)
        })
}

pub(super) fn broken(place: &str, what: &str) -> Error {
    Error::from(SourceError::corrupt(what).in_source(place))
}

/// Largest number of values in a document. An image of 200 layers has some thousand.
const VALUES_MAX: usize = 60_000;

/// Parses a document. A value takes up to some hundred bytes of memory for two bytes of text, so their number is bounded.
pub(super) fn parse(place: &str, text: &[u8]) -> Result<Value> {
    // Each value but the first follows one of these bytes. Those in strings count as well, which changes nothing.
    let starts = text.iter().filter(|byte| b",:[{".contains(byte)).count();
    if starts > VALUES_MAX {
        let what = format_args!("the document has {starts} values, more than {VALUES_MAX}");
        return Err(Error::limit(place, what));
    }
    serde_json::from_slice(text).map_err(|e| broken(place, &e.to_string()))
}
