//! Resolution of paths that pages name.

use std::path::{Component, Path, PathBuf};

/// Resolves `.` and `..` of a path by its text.
pub(super) fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            part => out.push(part),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_resolved_by_their_text() {
        assert_eq!(normal(Path::new("a/b/../c/./d")), Path::new("a/c/d"));
    }
}
