//! Meaning of the path of a program and of its arguments: where its modules are, and which script it runs.

use super::lookup::{base, parent};
use super::table::Rule;

/// Places that patterns of the table name.
pub(super) struct Places<'p> {
    prefix: &'p [u8],
    found: &'p [u8],
    version: Vec<u8>,
    /// Letters of the name.
    name: &'p [u8],
}

impl<'p> Places<'p> {
    /// Places of the program in the file `file`, which was found by the path `path`.
    pub(super) fn new(file: &'p [u8], path: &'p [u8]) -> Self {
        let name = base(file);
        let at = name
            .iter()
            .position(u8::is_ascii_digit)
            .unwrap_or(name.len());
        let (name, version) = name.split_at(at);
        let mut version = version.to_vec();
        // A major version alone stands for all minor ones.
        if !version.contains(&b'.') {
            version.push(b'*');
        }
        let above = |path: &'p [u8]| parent(parent(path));
        Self {
            prefix: above(file),
            found: above(path),
            version,
            name,
        }
    }

    /// Replaces the names of places in a pattern.
    pub(super) fn fill(&self, pattern: &str) -> Vec<u8> {
        let mut out = Vec::new();
        let mut rest = pattern.as_bytes();
        while let Some(byte) = rest.first() {
            let names: [(&[u8], &[u8]); 3] = [
                (b"{prefix}", self.prefix),
                (b"{found}", self.found),
                (b"{version}", &self.version),
            ];
            let known = names
                .iter()
                .find_map(|(name, value)| Some((rest.strip_prefix(*name)?, *value)));
            match known {
                Some((after, value)) => {
                    out.extend(value);
                    rest = after;
                }
                None => {
                    out.push(*byte);
                    rest = &rest[1..];
                }
            }
        }
        out
    }

    /// Part of the name of bytecode: `cpython-311`.
    pub(super) fn tag(&self) -> Vec<u8> {
        let digits = self.version.iter().filter(|byte| **byte != b'.');
        let name: &[u8] = if self.name == b"pypy" {
            b"pypy"
        } else {
            b"cpython-"
        };
        name.iter().chain(digits).copied().collect()
    }
}

/// Arguments of an interpreter.
#[derive(Default)]
pub(super) struct Arguments<'p> {
    pub(super) script: Option<&'p [u8]>,
    pub(super) module: Option<&'p [u8]>,
    pub(super) paths: Vec<&'p [u8]>,
}

impl<'p> Arguments<'p> {
    pub(super) fn read(rule: &Rule, words: &'p [Vec<u8>]) -> Self {
        let mut read = Self::default();
        let mut words = words.iter().map(Vec::as_slice);
        while let Some(word) = words.next() {
            let is = |options: &[&[u8]]| options.contains(&word);
            if is(&rule.script) {
                read.script = words.next();
                break;
            } else if is(&rule.module) {
                read.module = words.next();
                break;
            } else if is(&rule.text) {
                break;
            } else if is(&rule.paths) {
                let list = words.next().unwrap_or_default();
                read.paths.extend(list.split(|byte| *byte == b':').take(64));
            } else if is(&rule.values) {
                words.next();
            } else if !word.starts_with(b"-") {
                // Only options name the script of some programs.
                read.script = Some(word).filter(|_| !rule.kinds.is_empty());
                break;
            }
        }
        read
    }
}

/// Script that a shell runs.
pub(super) struct ShellScript<'p> {
    /// Path of the script, or its text.
    pub(super) word: &'p [u8],
    pub(super) is_text: bool,
    /// Words after it.
    pub(super) arguments: &'p [Vec<u8>],
}

impl<'p> ShellScript<'p> {
    /// Finds the script in the arguments of a shell. `None` without one.
    pub(super) fn in_arguments(mut arguments: &'p [Vec<u8>]) -> Option<Self> {
        let mut is_text = false;
        while let Some((word, rest)) = arguments.split_first() {
            match &word[..] {
                b"-o" => arguments = rest.get(1..).unwrap_or_default(),
                [sign @ (b'-' | b'+'), options @ ..] => {
                    is_text |=
                        *sign == b'-' && !options.starts_with(b"-") && options.contains(&b'c');
                    arguments = rest;
                    if options.is_empty() || options == b"-" {
                        break;
                    }
                }
                _ => break,
            }
        }
        let (word, arguments) = arguments.split_first()?;
        Some(Self {
            word,
            is_text,
            arguments,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::Table;
    use super::*;

    #[test]
    fn places_follow_from_the_program() {
        let path = b"/venv/bin/python";
        let places = Places::new(b"usr/bin/python3.11", path);
        assert_eq!(
            places.fill("{prefix}/lib/python{version}/*"),
            b"usr/lib/python3.11/*"
        );
        assert_eq!(places.fill("{found}/x{"), b"/venv/x{");
        assert_eq!(places.tag(), b"cpython-311");
        let places = Places::new(b"python3", path);
        assert_eq!(
            places.fill("{prefix}/lib/python{version}"),
            b"/lib/python3*"
        );
        assert_eq!(places.tag(), b"cpython-3*");
    }

    #[test]
    fn arguments_of_a_shell_name_a_script_or_are_one() {
        let read = |words: &str| {
            let words: Vec<Vec<u8>> = words.split(' ').map(|word| word.into()).collect();
            let script = ShellScript::in_arguments(&words)?;
            let word = String::from_utf8_lossy(script.word).into_owned();
            Some((word, script.is_text, script.arguments.len()))
        };
        let some = |word: &str, is_text, rest| Some((word.to_owned(), is_text, rest));
        assert_eq!(read("run.sh a b"), some("run.sh", false, 2));
        assert_eq!(read("-e -o pipefail run.sh"), some("run.sh", false, 0));
        assert_eq!(read("-ec echo sh"), some("echo", true, 1));
        assert_eq!(read("+c -- -c"), some("-c", false, 0));
        assert_eq!(read("-e"), None);
    }

    #[test]
    fn arguments_name_the_script() {
        let table = Table::built_in();
        let read = |name: &str, words: &str| {
            let rule = table.program([name.as_bytes(), b""]).unwrap();
            let words: Vec<Vec<u8>> = words.split(' ').map(|word| word.into()).collect();
            let read = Arguments::read(rule, &words);
            let text = |word: Option<&[u8]>| word.map(|w| String::from_utf8_lossy(w).into_owned());
            (text(read.script), text(read.module), read.paths.len())
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            read("python3.11", "-X dev -u app.py -m x"),
            (some("app.py"), None, 0)
        );
        assert_eq!(
            read("python3", "-m http.server 80"),
            (None, some("http.server"), 0)
        );
        assert_eq!(read("python3", "-c pass x.py"), (None, None, 0));
        assert_eq!(read("java", "-Xmx1g -cp a.jar:lib/* Main"), (None, None, 2));
        assert_eq!(read("java", "-jar app.jar"), (some("app.jar"), None, 0));
        assert_eq!(
            read("node", "--require x server"),
            (some("server"), None, 0)
        );
    }
}
