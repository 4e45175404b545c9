//! Search for tools and their versions.

use super::tool::Tool;
use crate::{At, Result};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tool that was found, with its version.
#[derive(Clone, Debug)]
pub struct Found {
    /// The tool that was found.
    pub tool: Tool,
    /// Path of its program.
    pub path: PathBuf,
    /// Version line that the tool prints.
    pub version: String,
    /// BLAKE3 of the program file, in hexadecimal, the first 16 digits.
    pub digest: String,
}

impl Found {
    /// Returns the tool whose program is at `path`.
    pub fn at(tool: Tool, path: PathBuf) -> Result<Found> {
        let bytes = std::fs::read(&path).at("read", &path)?;
        Ok(Found {
            tool,
            version: version(&path),
            digest: blake3::hash(&bytes).to_hex()[..16].to_owned(),
            path,
        })
    }

    /// Version number: the first word of the version line that begins with a digit, or `?`.
    pub fn number(&self) -> &str {
        number(&self.version)
    }
}

/// Searches for a program beside this one (ours only), and then in PATH.
pub(crate) fn search(name: &str) -> Option<PathBuf> {
    let beside = std::env::current_exe()
        .ok()
        .filter(|_| name == Tool::Tuff.name());
    let beside = beside.and_then(|exe| exe.parent().map(Path::to_owned));
    let path = std::env::var_os("PATH").unwrap_or_default();
    beside
        .into_iter()
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join(name))
        .find(|p| is_program(p))
}

pub(crate) fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Returns the first line with a version number in the output of a program. Some programs write it to standard error or exit
/// with a failure.
pub(crate) fn version(program: &Path) -> String {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let argument = match &*name {
        name if name.ends_with("squashfs") => "-version",
        name if name.contains("dwarfs") => "-h",
        name if name.starts_with("mkfs.") || name.starts_with("fsck.") => "-V",
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

/// Returns the first two numbers of a version.
pub(crate) fn numbers(version: &str) -> [u32; 2] {
    let mut numbers = version
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    std::array::from_fn(|_| numbers.next().unwrap_or(0))
}

fn number(version: &str) -> &str {
    let mut words = version.split([' ', '(', ')', ',', 'v']);
    let number = words.find(|w| w.starts_with(|c: char| c.is_ascii_digit()));
    number.unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_digits_around_a_dot() {
        let text = "library 3.14\nusage: -1\n  server 1.9.3 (c)\n";
        assert_eq!(version_line(text, "server"), Some("server 1.9.3 (c)"));
        assert_eq!(version_line(text, "other"), Some("library 3.14"));
        assert_eq!(version_line("no 1 version.", "no"), None);
    }

    #[test]
    fn version_numbers_are_parsed_from_the_output_of_every_tool() {
        for (line, expected) in [
            ("mkfs.erofs (erofs-utils) 1.9.3", "1.9.3"),
            ("mksquashfs version 4.5.1 (2022/03/17)", "4.5.1"),
            ("fsck.erofs (erofs-utils) v1.8", "1.8"),
            ("dwarfs (v0.15.3, fuse version 312)", "0.15.3"),
            ("unknown version", "?"),
        ] {
            assert_eq!(number(line), expected, "{line}");
        }
        assert_eq!(numbers("6.18.44-fc-v595"), [6, 18]);
        assert!(numbers("6.10") > numbers("6.1.0-56-amd64"));
    }
}
