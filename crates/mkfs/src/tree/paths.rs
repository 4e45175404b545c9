//! Selection of paths by a glob, a regular expression or an exact match.

use crate::{Error, Result};
use regex_automata::meta::Regex;
use regex_automata::util::syntax;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Matcher of paths relative to the root, without a leading slash.
#[derive(Clone, Debug)]
pub enum Paths {
    /// Paths that a glob matches as a whole.
    Glob(globset::GlobMatcher),
    /// Paths in which a regular expression matches anywhere.
    Expression(Regex),
    /// The path with exactly this name.
    Exactly(Vec<u8>),
    /// Any of these paths.
    Any(Arc<HashSet<Vec<u8>>>),
}

impl Paths {
    /// Compiles a regular expression that may match anywhere in a path. It has the syntax of the
    /// crate `regex` and works on bytes; a dot matches any byte.
    ///
    /// # Errors
    ///
    /// `Usage`: the syntax is invalid.
    pub fn expression(expression: &str) -> Result<Self> {
        let built = regex(expression);
        built.map(Self::Expression).map_err(Error::usage)
    }

    /// True if `path` matches.
    pub(crate) fn is_match(&self, path: &[u8]) -> bool {
        match self {
            Self::Glob(glob) => glob.is_match(OsStr::from_bytes(path)),
            Self::Expression(expression) => expression.is_match(path),
            Self::Exactly(exactly) => exactly == path,
            Self::Any(paths) => paths.contains(path),
        }
    }
}

/// Compiles a regular expression on bytes, where a dot matches any byte. Returns a short error
/// message otherwise.
pub(crate) fn regex(expression: &str) -> std::result::Result<Regex, String> {
    let syntax = syntax::Config::new()
        .utf8(false)
        .unicode(false)
        .dot_matches_new_line(true);
    let built = Regex::builder().syntax(syntax).build(expression);
    built.map_err(|e| {
        let why = e
            .syntax_error()
            .map_or_else(|| e.to_string(), ToString::to_string);
        // The last line of the parser's message holds the cause.
        let why = why.lines().last().unwrap_or_default();
        why.trim_start_matches("error: ").to_owned()
    })
}

impl From<globset::GlobMatcher> for Paths {
    fn from(glob: globset::GlobMatcher) -> Self {
        Self::Glob(glob)
    }
}

/// Length of the deepest directory path that is an ancestor of, or equal to, both directories.
pub(crate) fn common_dir(a: &[u8], b: &[u8]) -> usize {
    let same = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let ends_at = |path: &[u8], at: usize| path.get(at).is_none_or(|byte| *byte == b'/');
    if ends_at(a, same) && ends_at(b, same) {
        return same;
    }
    a[..same].iter().rposition(|b| *b == b'/').unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_matches_anywhere_and_any_byte() {
        let paths = Paths::expression("b.c$").unwrap();
        assert!(paths.is_match(b"a/b\xffc") && paths.is_match(b"b\nc"));
        assert!(!paths.is_match(b"b/c/d"));
        let message = Paths::expression("a(").unwrap_err().to_string();
        assert!(message.contains("unclosed group"), "{message}");
        assert!(Paths::Exactly(b"a".to_vec()).is_match(b"a"));
    }
}
