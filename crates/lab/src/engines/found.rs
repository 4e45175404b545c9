//! Search for tools and their versions.

use super::tool::Tool;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
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
    /// Entry of the tool in the record.
    pub receipt: Receipt,
}

/// Identity of a tool for records, without its path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The tool that was found.
    pub tool: Tool,
    /// Version line that the tool prints.
    pub version: String,
    /// BLAKE3 of the program file, in hexadecimal, the first 16 digits.
    pub program_digest: String,
}

impl Receipt {
    /// Version number: the first word of the version line that begins with a digit, or `?`.
    pub fn number(&self) -> &str {
        let mut words = self.version.split([' ', '(', ')', 'v']);
        let number = words.find(|w| w.starts_with(|c: char| c.is_ascii_digit()));
        number.unwrap_or("?")
    }
}

/// Searches for a tool: at the path in `given`, otherwise beside this program (ours only),
/// otherwise in PATH. Returns `None` if it is not found, and an error if a given path is no
/// executable file.
pub fn find(tool: Tool, given: &[(Tool, PathBuf)]) -> Result<Option<Found>> {
    let path = match given.iter().rev().find(|(t, _)| *t == tool) {
        Some((_, path)) if is_program(path) => Some(path.clone()),
        Some((_, path)) => {
            return Err(Error::Usage(format!(
                "{} at {}: not an executable file",
                tool.name(),
                path.display()
            )));
        }
        None => search(tool.name()),
    };
    let Some(path) = path else { return Ok(None) };
    let version = version(tool, &path)?;
    let bytes = std::fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
    let program_digest = blake3::hash(&bytes).to_hex()[..16].to_owned();
    let receipt = Receipt {
        tool,
        version,
        program_digest,
    };
    Ok(Some(Found {
        tool,
        path,
        receipt,
    }))
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

/// Returns the version line. Some versions print it to standard error or exit with a failure.
fn version(tool: Tool, path: &Path) -> Result<String> {
    let output = Command::new(path)
        .arg(tool.version_argument())
        .output()
        .map_err(|e| Error::io("run", path, e))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let has_number = |l: &&str| {
        l.split([' ', 'v'])
            .any(|w| w.starts_with(|c: char| c.is_ascii_digit()))
    };
    let line = text
        .lines()
        .find(has_number)
        .unwrap_or("unknown version")
        .trim();
    Ok(line.replace(&*path.to_string_lossy(), tool.name()))
}

/// Returns the file name of a program, for messages.
pub fn shown_program(path: &Path) -> String {
    path.file_name()
        .unwrap_or(OsStr::new("?"))
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_numbers_are_parsed_from_the_output_of_every_tool() {
        for (line, number) in [
            ("tuff 0.1.0", "0.1.0"),
            ("mkfs.erofs (erofs-utils) 1.9.3", "1.9.3"),
            ("mkfs.erofs 1.5", "1.5"),
            ("mksquashfs version 4.5.1 (2022/03/17)", "4.5.1"),
            ("fsck.erofs (erofs-utils) v1.8", "1.8"),
            ("unknown version", "?"),
        ] {
            let receipt = Receipt {
                tool: Tool::Tuff,
                version: line.to_owned(),
                program_digest: String::new(),
            };
            assert_eq!(receipt.number(), number, "{line}");
        }
    }
}
