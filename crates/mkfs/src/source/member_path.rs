//! Normalisation of paths in archives and manifests to the form of
//! [`Entry::path`](super::Entry::path).

use super::error::{Quoted, SourceError};

/// Removes leading, trailing and doubled slashes and `.` components. The root becomes the empty
/// path.
///
/// # Errors
///
/// Rejects a `..` component, a zero byte and an empty path. `what` names the path in messages.
pub(super) fn normalise(raw: &[u8], what: &str) -> Result<Vec<u8>, SourceError> {
    if raw.is_empty() {
        return Err(SourceError::corrupt(format!("{what} is empty")));
    }
    if raw.contains(&0) {
        return Err(SourceError::corrupt(format!(
            "{what} {} contains a zero byte",
            Quoted(raw)
        )));
    }
    let mut path = Vec::with_capacity(raw.len());
    for component in raw.split(|&c| c == b'/') {
        match component {
            b"" | b"." => {}
            b".." => {
                return Err(SourceError::corrupt(format!(
                    "{what} {} contains \"..\"",
                    Quoted(raw)
                )));
            }
            name => {
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(name);
            }
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_and_dots_are_dropped() {
        for (raw, path) in [
            ("a", "a"),
            ("./a/b", "a/b"),
            ("/a//b/./c/", "a/b/c"),
            ("/", ""),
            ("./", ""),
            (".", ""),
            ("...", "..."),
            ("a/..b/c..", "a/..b/c.."),
        ] {
            assert_eq!(
                normalise(raw.as_bytes(), "path").unwrap(),
                path.as_bytes(),
                "{raw}"
            );
        }
    }

    #[test]
    fn paths_outside_the_root_are_rejected_by_name() {
        for raw in ["..", "../a", "a/../b", "/..", "a/.."] {
            let error = normalise(raw.as_bytes(), "path").unwrap_err();
            assert_eq!(error.to_string(), format!("path {raw:?} contains \"..\""));
        }
    }

    #[test]
    fn empty_paths_and_zero_bytes_are_rejected() {
        assert!(normalise(b"", "path").is_err());
        assert!(normalise(b"a\0b", "path").is_err());
    }
}
