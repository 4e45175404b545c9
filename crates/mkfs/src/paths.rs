//! Which paths of a tree: by a glob, or by an expression.

use crate::{Error, Result};
use regex_automata::meta::Regex;
use regex_automata::util::syntax;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Paths, relative to the root and without a slash in front.
#[derive(Clone, Debug)]
pub enum Paths {
    /// Those that a glob matches as a whole.
    Glob(globset::GlobMatcher),
    /// Those in which an expression matches somewhere.
    Expression(Regex),
    /// This one.
    Exactly(Vec<u8>),
}

impl Paths {
    /// Those in which `expression` matches somewhere: of bytes, where a dot is any, in the syntax of the crate `regex`.
    ///
    /// # Errors
    ///
    /// `Usage`: it is no expression.
    pub fn expression(expression: &str) -> Result<Self> {
        let built = regex(expression);
        built.map(Self::Expression).map_err(Error::usage)
    }

    /// True if `path` is one of them.
    pub(crate) fn is_match(&self, path: &[u8]) -> bool {
        match self {
            Self::Glob(glob) => glob.is_match(OsStr::from_bytes(path)),
            Self::Expression(expression) => expression.is_match(path),
            Self::Exactly(exactly) => exactly == path,
        }
    }
}

/// An expression of bytes, where a dot is any; or what is wrong with it, in a few words.
pub(super) fn regex(expression: &str) -> std::result::Result<Regex, String> {
    let syntax = syntax::Config::new()
        .utf8(false)
        .unicode(false)
        .dot_matches_new_line(true);
    let built = Regex::builder().syntax(syntax).build(expression);
    built.map_err(|e| {
        let why = e
            .syntax_error()
            .map_or_else(|| e.to_string(), ToString::to_string);
        // The parser draws where; the last line says what.
        let why = why.lines().last().unwrap_or_default();
        why.trim_start_matches("error: ").to_owned()
    })
}

impl From<globset::GlobMatcher> for Paths {
    fn from(glob: globset::GlobMatcher) -> Self {
        Self::Glob(glob)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_matches_anywhere_and_any_byte() {
        let paths = Paths::expression("b.c$").unwrap();
        assert!(paths.is_match(b"a/b\xffc") && paths.is_match(b"b\nc"));
        assert!(!paths.is_match(b"b/c/d"));
        let said = Paths::expression("a(").unwrap_err().to_string();
        assert!(said.contains("unclosed group"), "{said}");
        assert!(Paths::Exactly(b"a".to_vec()).is_match(b"a"));
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
