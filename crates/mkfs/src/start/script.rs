//! Text of scripts: the line that names the interpreter, and the commands of a shell script.
//!
//! A script is not run, so variables have no values here. Commands with unknown words are cut before the first one.

/// Longest line that names an interpreter. Unit: bytes.
const LINE_MAX: usize = 256;
/// Commands of one script.
const COMMANDS_MAX: usize = 4096;
/// Words of one command.
const WORDS_MAX: usize = 64;
/// Depth of nested commands.
const DEPTH_MAX: usize = 32;

/// Words of a shell that start no program.
const BUILTINS: &str = "alias bg bind break case cd continue declare dirs done echo esac exit export false fg fi for function getopts \
hash help history in jobs kill let local logout mapfile popd printf pushd pwd read readonly return select set shift shopt \
suspend test times trap true type typeset ulimit umask unalias unset wait : [ [[ ]] ] }";

/// Words before a command.
const PREFIXES: &str = "! builtin command do elif else eval exec if nohup then time until while {";

/// Returns the interpreter and the argument that the first line names.
pub(super) fn shebang(head: &[u8]) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let line = head.strip_prefix(b"#!")?;
    let line = line.get(..LINE_MAX.min(line.len()))?;
    let line = line.split(|byte| matches!(byte, b'\n' | 0)).next()?;
    let line = line.trim_ascii();
    let end = line.iter().position(|byte| matches!(byte, b' ' | b'\t'));
    let (name, rest) = line.split_at(end.unwrap_or(line.len()));
    let argument = rest.trim_ascii();
    (!name.is_empty()).then(|| {
        (
            name.to_vec(),
            (!argument.is_empty()).then(|| argument.to_vec()),
        )
    })
}

/// Returns the command that `env` runs with these arguments.
pub(super) fn of_env(arguments: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut rest: Vec<Vec<u8>> = arguments.iter().take(WORDS_MAX).cloned().collect();
    for _ in 0..WORDS_MAX {
        let Some(word) = rest.first().cloned() else {
            break;
        };
        let split = [&b"-S"[..], b"-vS", b"-iS", b"--split-string="];
        if let Some(text) = split.iter().find_map(|option| word.strip_prefix(*option)) {
            let (text, used) = match (text, rest.get(1)) {
                ([], Some(next)) => (next.clone(), 2),
                _ => (text.to_vec(), 1),
            };
            let words = text
                .split(u8::is_ascii_whitespace)
                .filter(|w| !w.is_empty());
            let words: Vec<Vec<u8>> = words.map(unquoted).collect();
            rest.splice(..used, words);
            continue;
        }
        let used = match &word[..] {
            b"-u" | b"-C" | b"--unset" | b"--chdir" => 2,
            [b'-', ..] => 1,
            _ if word.contains(&b'=') => 1,
            _ => break,
        };
        rest.drain(..used.min(rest.len()));
    }
    rest
}

/// Word without quotes at its ends.
fn unquoted(word: &[u8]) -> Vec<u8> {
    let mut word = word;
    for quote in [b'"', b'\''] {
        let inner = word
            .strip_prefix(&[quote])
            .and_then(|w| w.strip_suffix(&[quote]));
        word = inner.unwrap_or(word);
    }
    word.to_vec()
}

/// Commands of a shell script.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Commands {
    /// Commands with the words that are known, up to the first unknown one.
    pub(super) commands: Vec<Vec<Vec<u8>>>,
    /// Scripts that are read in place.
    pub(super) sourced: Vec<Vec<u8>>,
    /// Other words that may name files.
    pub(super) words: Vec<Vec<u8>>,
    /// The arguments of the script are run as a command.
    pub(super) runs_arguments: bool,
}

/// Word of a command.
#[derive(Clone, Default)]
struct Word {
    text: Vec<u8>,
    /// The word depends on variables or on the output of commands.
    is_unknown: bool,
    is_quoted: bool,
}

/// Reads the commands of a shell script.
pub(super) fn commands(text: &[u8]) -> Commands {
    let mut found = Commands::default();
    for words in Splitter::new(text).split() {
        found.add(&words);
    }
    found
}

impl Commands {
    fn add(&mut self, words: &[Word]) {
        let is_arguments = |word: &Word| {
            let text = &word.text[..];
            [&b"$@"[..], b"$*", b"${@}", b"${*}"].contains(&text)
        };
        let mut words = words;
        // Prefixes and assignments come before the name of the program.
        while let Some((word, rest)) = words.split_first() {
            let is_prefix =
                !word.is_quoted && PREFIXES.split(' ').any(|p| p.as_bytes() == word.text);
            if !is_prefix && !is_assignment(&word.text) {
                break;
            }
            words = rest;
        }
        let Some(first) = words.first() else {
            return;
        };
        let name = &first.text[..];
        if words.iter().any(is_arguments) && !matches!(name, b"echo" | b"printf" | b"set") {
            self.runs_arguments = true;
        }
        if let (b"set", Some(at)) = (name, words.iter().position(|w| w.text == b"--")) {
            return self.add(words.get(at + 1..).unwrap_or_default());
        }
        let known = words.iter().take_while(|word| !word.is_unknown);
        let known: Vec<Vec<u8>> = known.map(|word| word.text.clone()).collect();
        let is_builtin = BUILTINS.split(' ').any(|b| b.as_bytes() == name);
        if !matches!(
            name,
            b"echo" | b"printf" | b"for" | b"export" | b"local" | b"case"
        ) {
            let others = words.iter().skip(1).filter(|word| !word.is_unknown);
            let others = others.map(|word| word.text.clone());
            self.words
                .extend(others.filter(|text| !text.is_empty() && !text.starts_with(b"-")));
        }
        match known.split_first() {
            Some((name, rest)) if name == b"." || name == b"source" => {
                self.sourced.extend(rest.first().cloned());
            }
            Some((name, _)) if !is_builtin && !name.is_empty() => self.commands.push(known),
            _ => {}
        }
    }
}

/// Returns true for `NAME=VALUE`.
fn is_assignment(word: &[u8]) -> bool {
    let name = word.split(|byte| *byte == b'=').next().unwrap_or_default();
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    name.len() < word.len() && !name.is_empty() && name.iter().all(is_name)
}

/// Splits a script into simple commands.
struct Splitter<'t> {
    rest: &'t [u8],
    word: Option<Word>,
    words: Vec<Word>,
    /// Commands around the current one, each with its unfinished word and whether that is in double quotes.
    outer: Vec<(Vec<Word>, Option<Word>, bool)>,
    in_quotes: bool,
    done: Vec<Vec<Word>>,
}

impl<'t> Splitter<'t> {
    fn new(rest: &'t [u8]) -> Self {
        Self {
            rest,
            word: None,
            words: Vec::new(),
            outer: Vec::new(),
            in_quotes: false,
            done: Vec::new(),
        }
    }

    fn split(mut self) -> Vec<Vec<Word>> {
        while let Some((byte, rest)) = self.rest.split_first() {
            self.rest = rest;
            if self.done.len() >= COMMANDS_MAX {
                return self.done;
            }
            match byte {
                b'\\' => {
                    let next = self.rest.split_first();
                    self.rest = next.map_or(&[][..], |(_, rest)| rest);
                    match next {
                        Some((b'\n', _)) | None => {}
                        Some((next, _)) => self.word().text.push(*next),
                    }
                }
                b'$' if self.rest.starts_with(b"(") => {
                    self.rest = &self.rest[1..];
                    self.word().is_unknown = true;
                    self.begin_nested();
                }
                b'$' => {
                    let word = self.word();
                    word.is_unknown = true;
                    word.text.push(b'$');
                }
                b'"' => {
                    self.word().is_quoted = true;
                    self.in_quotes = !self.in_quotes;
                }
                _ if self.in_quotes => self.word().text.push(*byte),
                b'\'' => {
                    let end = self.rest.iter().position(|byte| *byte == b'\'');
                    let (inside, after) = self.rest.split_at(end.unwrap_or(self.rest.len()));
                    self.rest = after.get(1..).unwrap_or_default();
                    let word = self.word();
                    word.is_quoted = true;
                    word.text.extend(inside);
                }
                b'#' if self.word.is_none() => {
                    let end = self.rest.iter().position(|byte| *byte == b'\n');
                    self.rest = self
                        .rest
                        .get(end.unwrap_or(self.rest.len())..)
                        .unwrap_or_default();
                }
                b'(' => self.begin_nested(),
                b')' => self.end_nested(),
                b'\n' | b';' | b'|' | b'&' | b'`' => self.end_command(),
                b'<' | b'>' => self.end_word(),
                byte if byte.is_ascii_whitespace() => self.end_word(),
                byte => self.word().text.push(*byte),
            }
        }
        while !self.outer.is_empty() {
            self.end_nested();
        }
        self.end_command();
        self.done
    }

    fn word(&mut self) -> &mut Word {
        self.word.get_or_insert_default()
    }

    fn end_word(&mut self) {
        if let Some(word) = self.word.take()
            && self.words.len() < WORDS_MAX
        {
            self.words.push(word);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        if !self.words.is_empty() {
            self.done.push(std::mem::take(&mut self.words));
        }
    }

    fn begin_nested(&mut self) {
        if self.outer.len() >= DEPTH_MAX {
            return self.end_command();
        }
        let words = std::mem::take(&mut self.words);
        self.outer.push((words, self.word.take(), self.in_quotes));
        self.in_quotes = false;
    }

    fn end_nested(&mut self) {
        self.end_command();
        if let Some((words, word, in_quotes)) = self.outer.pop() {
            (self.words, self.word, self.in_quotes) = (words, word, in_quotes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Vec<u8>> {
        text.split(' ')
            .map(|word| word.as_bytes().to_vec())
            .collect()
    }

    #[test]
    fn the_first_line_names_interpreter_and_argument() {
        let read = |text: &str| {
            let (name, argument) = shebang(text.as_bytes())?;
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            Some((text(name), argument.map(text).unwrap_or_default()))
        };
        let is = |text, name: &str, argument: &str| {
            assert_eq!(
                read(text),
                Some((name.to_owned(), argument.to_owned())),
                "{text}"
            );
        };
        is("#!/bin/sh\nx", "/bin/sh", "");
        is(
            "#! /usr/bin/env  -S python3 -u \n",
            "/usr/bin/env",
            "-S python3 -u",
        );
        is("#!/bin/sh -e", "/bin/sh", "-e");
        assert_eq!(read("#!\n"), None);
        assert_eq!(read("#/bin/sh"), None);
        let long = format!("#!/{}", "a".repeat(9999));
        assert_eq!(read(&long).unwrap().0.len(), LINE_MAX);
    }

    #[test]
    fn env_runs_what_follows_its_options() {
        for (text, runs) in [
            ("python3 x.py", "python3 x.py"),
            ("-i A=1 -u B C=2 node", "node"),
            ("-", ""),
        ] {
            let runs = runs.split(' ').filter(|w| !w.is_empty());
            let runs: Vec<Vec<u8>> = runs.map(|w| w.into()).collect();
            assert_eq!(of_env(&words(text)), runs, "{text}");
        }
        let split = [b"-S A=1 'perl' -w".to_vec(), b"/x".to_vec()];
        assert_eq!(of_env(&split), words("perl -w /x"));
        let split = [b"-S".to_vec(), b"ruby -w".to_vec(), b"/x".to_vec()];
        assert_eq!(of_env(&split), words("ruby -w /x"));
    }

    #[test]
    fn commands_of_a_script_are_found() {
        let script = r#"#!/bin/sh
# no "command
set -e
if [ "$(id -u)" = '0' ] && ! grep -q x /etc/conf; then
    PATH="$PATH:/x" exec gosu postgres "$BASH_SOURCE" "$@"
fi
. /lib/functions.sh
find "/docker-entrypoint.d/" -type f | sort -V
echo please install more
set -- nginx "$@"
case "$1" in -h) help_me ;; esac
(cd /x; ls)
exec "$@"
"#;
        let found = commands(script.as_bytes());
        let names: Vec<&[u8]> = found.commands.iter().map(|c| &c[0][..]).collect();
        let expected: Vec<&[u8]> = vec![
            b"id", b"grep", b"gosu", b"find", b"sort", b"nginx", b"help_me", b"ls",
        ];
        assert_eq!(names, expected);
        assert!(found.runs_arguments);
        assert_eq!(found.sourced, vec![b"/lib/functions.sh"]);
        assert!(found.words.contains(&b"/docker-entrypoint.d/".to_vec()));
        assert!(!found.words.contains(&b"install".to_vec()));
        let gosu = found.commands.iter().find(|c| c[0] == b"gosu");
        assert_eq!(gosu, Some(&words("gosu postgres")));
        assert!(!commands(b"echo \"$@\"; exec nginx").runs_arguments);
    }

    #[test]
    fn any_text_is_split_without_a_panic() {
        let mut random = tuff_testkit::Rng::new(3);
        let bytes = b"a$(\"'`\\\n;|)#{ <";
        for _ in 0..20_000 {
            let len = random.below(40);
            let text: Vec<u8> = (0..len).map(|_| bytes[random.below(bytes.len())]).collect();
            commands(&text);
            shebang(&text);
        }
        commands(&b"$(".repeat(100_000));
    }
}
