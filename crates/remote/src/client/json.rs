//! JSON from servers, with a bound on the memory that its values take.
//!
//! A value takes up to some hundred bytes of memory for two bytes of text, so a bound on the text alone is none.

use crate::error::{Error, Kind, Result};
use serde_json::Value;

/// Largest number of values in one document. An image of 200 layers has some thousand.
const VALUES_MAX: usize = 60_000;

/// Parses a document. `name` is what it is for messages, such as "manifest".
///
/// # Errors
/// `Limit` for a document of too many values, `Unsupported` for one that is not JSON.
pub(crate) fn parse(bytes: &[u8], place: &str, name: &str) -> Result<Value> {
    // Each value but the first follows one of these bytes. Those in strings count as well, which changes nothing.
    let starts = bytes.iter().filter(|byte| b",:[{".contains(byte)).count();
    if starts > VALUES_MAX {
        let what = format_args!("the {name} has {starts} values, more than {VALUES_MAX}");
        return Err(Error::new(Kind::Limit, place, what));
    }
    serde_json::from_slice(bytes).map_err(|_| {
        Error::new(
            Kind::Unsupported,
            place,
            format_args!("the {name} is not JSON"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_of_too_many_values_are_refused() {
        let list = |count: usize| format!("[{}]", vec!["{}"; count].join(","));
        let parsed = |text: &str| parse(text.as_bytes(), "oci://r/n", "manifest");
        assert_eq!(
            parsed(&list(20_000)).unwrap().as_array().unwrap().len(),
            20_000
        );
        let e = parsed(&list(30_001)).unwrap_err();
        assert_eq!(e.kind(), Kind::Limit);
        assert!(e.what().contains("the manifest has 60002 values"), "{e}");
        assert_eq!(parsed("{").unwrap_err().kind(), Kind::Unsupported);
    }
}
