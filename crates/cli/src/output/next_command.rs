//! Suggestion of the next command, for people at a terminal.

use crate::text::{escaped, is_hidden};
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the line that suggests a command, if standard output is a terminal. Verbs call it where they print a summary.
pub(crate) fn line(command: impl std::fmt::Display) -> Option<String> {
    let is_seen = std::io::stdout().is_terminal();
    is_seen.then(|| format!("next         {command}"))
}

/// Quotes a path for a shell.
pub(crate) fn shell_word(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:=@%,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('-') {
        true => text.into_owned(),
        false if text.starts_with('-') => shell_word(&Path::new(".").join(path)),
        false if text.chars().any(is_hidden) => {
            format!("$'{}'", escaped(bytes).replace('\'', "\\'"))
        }
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_where_a_shell_needs_it() {
        for (path, word) in [
            ("a/b.erofs", "a/b.erofs"),
            ("-a", "./-a"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
            ("a'\u{1b}\n\\", r"$'a\'\x1b\n\\'"),
        ] {
            assert_eq!(shell_word(Path::new(path)), word);
        }
    }
}
