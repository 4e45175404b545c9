//! Names of the files of a start: a list, a program or the command of a container image.

use serde_json::Value;
use std::ops::Range;

/// Directories that a runtime searches if the configuration sets no others.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// File that a start reads. A list may have a file twice: its first parts, and later all of it. The rest follows there, before
/// the files after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartFile {
    /// Path in the image, without `/` at its start.
    pub path: Vec<u8>,
    /// Parts of the file that are read first, in bytes. The rest follows after the first parts of all files. Empty: all of it
    /// comes first.
    pub first: Vec<Range<u64>>,
}

/// Way in which the files that a start reads are found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// The image has no start list.
    #[default]
    None,
    /// These files, in their order.
    Files(Vec<StartFile>),
    /// Files that the start of the program at this path of the image reads.
    Path(Vec<u8>),
    /// Files that the start of the command of a container image reads.
    Command(Command),
}

impl Start {
    /// Returns the start of the program at a path, or none for `none`.
    pub fn with(path: &[u8]) -> Self {
        match path {
            b"none" => Self::None,
            path => Self::Path(path.to_vec()),
        }
    }
}

/// Command of a container image, as its configuration states it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// First words of the command (`Entrypoint`).
    pub entrypoint: Vec<Vec<u8>>,
    /// Words after them (`Cmd`).
    pub arguments: Vec<Vec<u8>>,
    /// Variables of the environment, as `NAME=VALUE`.
    pub environment: Vec<Vec<u8>>,
    /// Working directory. Empty for the root.
    pub directory: Vec<u8>,
}

impl Command {
    /// Reads the command of the configuration of an OCI or Docker image, in JSON. `None` if it names no command.
    pub fn of_config(config: &[u8]) -> Option<Self> {
        let config: Value = serde_json::from_slice(config).ok()?;
        let config = config.get("config")?;
        let words = |name| -> Vec<Vec<u8>> {
            let words = config.get(name).and_then(Value::as_array);
            let words = words.into_iter().flatten().filter_map(Value::as_str);
            words.map(|word| word.as_bytes().to_vec()).collect()
        };
        let directory = config.get("WorkingDir").and_then(Value::as_str);
        let command = Self {
            entrypoint: words("Entrypoint"),
            arguments: words("Cmd"),
            environment: words("Env"),
            directory: directory.unwrap_or_default().into(),
        };
        let is_named = !command.entrypoint.is_empty() || !command.arguments.is_empty();
        is_named.then_some(command)
    }

    /// Returns the words of the command.
    pub(super) fn words(&self) -> Vec<Vec<u8>> {
        self.entrypoint
            .iter()
            .chain(&self.arguments)
            .cloned()
            .collect()
    }

    /// Returns the value of a variable; empty if it is not set. The last one counts.
    pub(super) fn variable(&self, name: &[u8]) -> &[u8] {
        let value =
            |pair: &'_ Vec<u8>| pair.strip_prefix(name)?.strip_prefix(b"=").map(<[u8]>::len);
        let found = self
            .environment
            .iter()
            .rev()
            .find_map(|pair| Some((pair, value(pair)?)));
        found.map_or(&[], |(pair, len)| &pair[pair.len() - len..])
    }

    /// Returns the directories with programs.
    pub(super) fn path(&self) -> Vec<Vec<u8>> {
        let path = match self.variable(b"PATH") {
            [] => PATH.as_bytes(),
            path => path,
        };
        path.split(|byte| *byte == b':')
            .map(<[u8]>::to_vec)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_states_the_command() {
        let text = br#"{"config":{"Entrypoint":["/e","a"],"Cmd":["b"],"Env":["PATH=/x:/y","A=1","A=2","AB=3"],"WorkingDir":"/w"}}"#;
        let command = Command::of_config(text).unwrap();
        assert_eq!(command.words(), [&b"/e"[..], b"a", b"b"]);
        assert_eq!(command.path(), [b"/x", b"/y"]);
        assert_eq!(command.variable(b"A"), b"2");
        assert_eq!(command.variable(b"B"), b"");
        assert_eq!(command.directory, b"/w");
        let empty = Command::default();
        assert_eq!(empty.path().len(), 6);
        for text in [
            "",
            "[]",
            "{}",
            r#"{"config":{}}"#,
            r#"{"config":{"Cmd":null,"Entrypoint":7}}"#,
        ] {
            assert_eq!(Command::of_config(text.as_bytes()), None, "{text}");
        }
    }
}
