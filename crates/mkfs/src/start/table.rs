//! Table of programs: files that a program reads beside the libraries of its loader. It is data, in `programs.txt`.

use super::lookup::wildcard;

/// Version of the table's format.
const VERSION: &str = "1";

/// Table that is built in.
const TEXT: &str = include_str!("programs.txt");

/// Treatment of a program's arguments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// An argument may name a script.
    #[default]
    Interpreter,
    /// The arguments name a shell script, or are one.
    Shell,
    /// The arguments are variables and a command.
    Env,
    /// The command follows options and this number of words.
    Wrapper(usize),
}

/// Rows of a program.
#[derive(Clone, Debug, Default)]
pub(super) struct Rule {
    /// Patterns of its file's name.
    pub(super) names: Vec<&'static [u8]>,
    pub(super) kind: Kind,
    /// ELF files that it opens, with their libraries.
    pub(super) elf: Vec<&'static str>,
    /// Other files that it reads.
    pub(super) file: Vec<&'static str>,
    /// Directories of its modules.
    pub(super) library: Vec<&'static str>,
    /// Variables with directories of modules.
    pub(super) variables: Vec<&'static [u8]>,
    /// Modules that every start reads, as paths in the directories.
    pub(super) first: Vec<&'static str>,
    /// Names of files in the directories that are listed. Empty: all.
    pub(super) kinds: Vec<&'static [u8]>,
    /// Names in the directories that are left out, with everything below them.
    pub(super) skip: Vec<&'static [u8]>,
    /// Modules have bytecode as Python stores it.
    pub(super) has_bytecode: bool,
    /// Options with a value of their own.
    pub(super) values: Vec<&'static [u8]>,
    /// Options whose value is the name of a module.
    pub(super) module: Vec<&'static [u8]>,
    /// Options whose value is the path of the script.
    pub(super) script: Vec<&'static [u8]>,
    /// Options whose value is a list of paths.
    pub(super) paths: Vec<&'static [u8]>,
    /// Options whose value is program text, so that no script follows.
    pub(super) text: Vec<&'static [u8]>,
    /// Endings that may be added to the name of a script.
    pub(super) suffixes: Vec<&'static [u8]>,
    /// File that describes a package, in JSON, with its script as `main`.
    pub(super) package: Option<&'static str>,
}

/// Table of the programs that are known.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    programs: Vec<Rule>,
    /// Files for programs with a library: patterns of its name, and the files.
    libraries: Vec<Rule>,
    /// Files that every program may read.
    pub(super) every: Rule,
    /// Files of which only the first bytes are read: patterns of paths, and numbers of bytes.
    pub(super) heads: Vec<(&'static str, u64)>,
}

impl Table {
    /// Returns the table that is built in.
    pub(super) fn built_in() -> Self {
        // A test parses the text.
        Self::parse(TEXT).unwrap_or_default()
    }

    fn parse(text: &'static str) -> Result<Self, String> {
        let mut table = Self::default();
        let lines = text.lines().map(str::trim).zip(1..);
        let mut lines = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
        let first = lines.next().map(|(line, _)| line);
        if first.and_then(|line| line.strip_prefix("version ")) != Some(VERSION) {
            return Err(format!("the first line is not 'version {VERSION}'"));
        }
        let mut at = None;
        for (line, number) in lines {
            if let Some(head) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
                let words: Vec<&str> = head.split_whitespace().collect();
                let Some((kind, names)) = words.split_first() else {
                    return Err(format!("line {number}: a section without a name"));
                };
                let rule = Rule {
                    names: names.iter().map(|name| name.as_bytes()).collect(),
                    ..Rule::default()
                };
                at = Some(*kind);
                match *kind {
                    "program" => table.programs.push(rule),
                    "library" => table.libraries.push(rule),
                    "every" => {}
                    other => return Err(format!("line {number}: no section is called {other}")),
                }
                continue;
            }
            if let ["head", size, path] = line.split_whitespace().collect::<Vec<_>>()[..] {
                let size = size.parse().map_err(|e| format!("line {number}: {e}"))?;
                table.heads.push((path, size));
                continue;
            }
            let rule = match at {
                Some("program") => table.programs.last_mut(),
                Some("library") => table.libraries.last_mut(),
                _ => Some(&mut table.every),
            };
            let rule = rule.ok_or_else(|| format!("line {number}: no section"))?;
            rule.set(line).map_err(|e| format!("line {number}: {e}"))?;
        }
        Ok(table)
    }

    /// Returns the rule of a program, by the name of its file or the name by which it was found.
    pub(super) fn program(&self, names: [&[u8]; 2]) -> Option<&Rule> {
        let of = |name| self.programs.iter().find(|rule| matches(&rule.names, name));
        names.into_iter().find_map(of)
    }

    /// Lists the files for a process that has loaded a library.
    pub(super) fn of_library<'t>(
        &'t self,
        name: &[u8],
    ) -> impl Iterator<Item = &'static str> + use<'t> {
        let rules = self
            .libraries
            .iter()
            .filter(|rule| matches(&rule.names, name));
        let files: Vec<&str> = rules.flat_map(|rule| rule.file.iter().copied()).collect();
        files.into_iter()
    }
}

impl Rule {
    /// Adds a line of a program's rule.
    fn set(&mut self, line: &'static str) -> Result<(), String> {
        let (key, values) = line.split_once(' ').unwrap_or((line, ""));
        let words = || values.split_whitespace();
        let bytes = || words().map(str::as_bytes);
        match key {
            "kind" => {
                self.kind = match words().collect::<Vec<_>>()[..] {
                    ["shell"] => Kind::Shell,
                    ["env"] => Kind::Env,
                    ["wrapper", n] => Kind::Wrapper(n.parse().map_err(|e| format!("{e}"))?),
                    _ => return Err(format!("no kind is called {values}")),
                }
            }
            "elf" => self.elf.extend(words()),
            "file" => self.file.extend(words()),
            "library" => self.library.extend(words()),
            "variables" => self.variables.extend(bytes()),
            "first" => self.first.extend(words()),
            "kinds" => self.kinds.extend(bytes()),
            "skip" => self.skip.extend(bytes()),
            "bytecode" => self.has_bytecode = true,
            "values" => self.values.extend(bytes()),
            "module" => self.module.extend(bytes()),
            "script" => self.script.extend(bytes()),
            "paths" => self.paths.extend(bytes()),
            "text" => self.text.extend(bytes()),
            "suffixes" => self.suffixes.extend(bytes()),
            "package" => self.package = words().next(),
            other => return Err(format!("no row is called {other}")),
        }
        Ok(())
    }
}

/// Returns true if one of the patterns matches.
pub(super) fn matches(patterns: &[&[u8]], name: &[u8]) -> bool {
    patterns.iter().any(|pattern| wildcard(pattern, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_valid() {
        let table = Table::parse(TEXT).unwrap();
        let python = table.program([b"python3.11", b"python3"]).unwrap();
        assert!(python.has_bytecode && !python.library.is_empty());
        let busybox = table.program([b"busybox", b"sh"]).unwrap();
        assert_eq!(busybox.kind, Kind::Shell);
        assert_eq!(
            table.program([b"gosu", b"x"]).unwrap().kind,
            Kind::Wrapper(1)
        );
        assert!(table.program([b"pythonic", b"x"]).is_none());
        assert_eq!(table.heads.len(), 1);
    }

    #[test]
    fn rows_that_are_not_known_are_named() {
        for (text, error) in [
            ("version 2\n", "version 1"),
            (
                "version 1\n[program x]\nfiles a\n",
                "line 3: no row is called files",
            ),
            (
                "version 1\n[other x]\n",
                "line 2: no section is called other",
            ),
            (
                "version 1\n[program x]\nkind y\n",
                "line 3: no kind is called y",
            ),
        ] {
            let found = Table::parse(text).unwrap_err();
            assert!(found.contains(error), "{found}");
        }
    }
}
