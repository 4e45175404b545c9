//! Paths and versions of the programs under measurement.

use crate::engines;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path of a program: the given path if it is executable, or the result of a search without one.
pub fn program(name: &str, given: &[(String, PathBuf)]) -> Option<PathBuf> {
    match given.iter().rev().find(|(n, _)| n == name) {
        Some((_, path)) => Some(path.clone()).filter(|p| engines::is_program(p)),
        None => engines::search(name),
    }
}

/// Returns the first line with a version number in the output of `--version`. Some programs write it to
/// standard error or exit with a failure.
pub(crate) fn version(program: &Path) -> String {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let argument = match &*name {
        name if name.ends_with("squashfs") => "-version",
        name if name.starts_with("mkfs.") => "-V",
        _ => "--version",
    };
    let Ok(output) = Command::new(program).arg(argument).output() else {
        return "unknown version".to_owned();
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    version_line(&text, &name)
        .unwrap_or("unknown version")
        .replace(&*program.to_string_lossy(), &name)
}

/// Prefers lines with the name of the program, because FUSE servers also report versions of their libraries.
fn version_line<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let digit = |b: &u8| b.is_ascii_digit();
    let has_number = |line: &&str| {
        let mut threes = line.as_bytes().windows(3);
        threes.any(|w| matches!(w, [a, b'.', b] if digit(a) && digit(b)))
    };
    let mut lines: Vec<&str> = text.lines().filter(has_number).collect();
    lines.sort_by_key(|l| !l.contains(name));
    lines.first().map(|l| l.trim())
}

#[cfg(test)]
mod tests {
    use super::version_line;

    #[test]
    fn a_version_has_digits_around_a_dot() {
        let text = "library 3.14\nusage: -1\n  server 1.9.3 (c)\n";
        assert_eq!(version_line(text, "server"), Some("server 1.9.3 (c)"));
        assert_eq!(version_line(text, "other"), Some("library 3.14"));
        assert_eq!(version_line("no 1 version.", "no"), None);
    }
}
