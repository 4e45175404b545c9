//! Parses arguments like getopt_long: options and operands in any order, values attached or separate, abbreviated long
//! names.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use tuff_erofs::{Error, Result};

/// Options of a tool. Lists of long names are delimited by zero bytes, because some callers search the binary for
/// option names as C stores them.
pub(super) struct OptionTable {
    /// Letters of options without a value.
    pub(super) letters: &'static str,
    /// Letters of options with a value.
    pub(super) valued_letters: &'static str,
    /// Long options without a value.
    pub(super) flags: &'static [u8],
    /// Long options with a value, after `=` or as the next argument.
    pub(super) valued: &'static [u8],
    /// Long options with an optional value, after `=` only.
    pub(super) optional: &'static [u8],
}

/// Result of parsing one argument.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// Option by its full name, with dashes, and its value.
    Option(String, Option<OsString>),
    /// Argument that is not an option.
    Operand(OsString),
}

/// Parses `arguments` by the options of `grammar`.
pub(super) fn parse(arguments: &[OsString], grammar: &OptionTable) -> Result<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let bytes = argument.as_bytes();
        let mut next = || rest.next().cloned();
        match bytes {
            b"--" => {
                tokens.extend(rest.by_ref().cloned().map(Token::Operand));
            }
            [b'-', b'-', long @ ..] => tokens.push(grammar.long(long, &mut next)?),
            [b'-', short @ ..] if !short.is_empty() => {
                grammar.short(short, &mut next, &mut tokens)?;
            }
            _ => tokens.push(Token::Operand(argument.clone())),
        }
    }
    Ok(tokens)
}

/// Takes the operand of a tool that reads one image.
pub(super) fn one_image(image: &mut Option<PathBuf>, operand: OsString) -> Result<()> {
    if image.is_some() {
        let name = operand.display();
        return Err(Error::usage(format_args!("{name}: one image at a time")));
    }
    *image = Some(operand.into());
    Ok(())
}

impl OptionTable {
    fn long(&self, word: &[u8], next: &mut dyn FnMut() -> Option<OsString>) -> Result<Token> {
        let (name, value) = match word.iter().position(|b| *b == b'=') {
            Some(at) => (
                &word[..at],
                Some(OsString::from_vec(word[at + 1..].to_vec())),
            ),
            None => (word, None),
        };
        let whole = self.whole(name)?;
        let option = format!("--{}", String::from_utf8_lossy(whole));
        let has = |list| names(list).any(|n| n == whole);
        let value = match value {
            Some(_) if has(self.flags) => {
                return Err(Error::usage(format_args!("{option} has no value")));
            }
            None if has(self.valued) => {
                let none = || Error::usage(format_args!("{option}: its value is missing"));
                Some(next().ok_or_else(none)?)
            }
            value => value,
        };
        Ok(Token::Option(option, value))
    }

    /// Returns the option that `name` is, or abbreviates unambiguously.
    fn whole(&self, name: &[u8]) -> Result<&'static [u8]> {
        let lists = [self.flags, self.valued, self.optional];
        let all = || lists.into_iter().flat_map(names);
        if let Some(exact) = all().find(|n| *n == name) {
            return Ok(exact);
        }
        let shown = String::from_utf8_lossy(name);
        let mut found = all().filter(|n| n.starts_with(name));
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (Some(_), Some(_)) => Err(Error::usage(format_args!(
                "--{shown} is the beginning of several options"
            ))),
            (None, _) => Err(Error::usage(format_args!(
                "--{shown} is not a known option; --help lists them"
            ))),
        }
    }

    fn short(
        &self,
        letters: &[u8],
        next: &mut dyn FnMut() -> Option<OsString>,
        tokens: &mut Vec<Token>,
    ) -> Result<()> {
        for (i, letter) in letters.iter().enumerate() {
            let option = format!("-{}", char::from(*letter));
            let is = |list: &str| list.as_bytes().contains(letter);
            if is(self.valued_letters) {
                let value = match &letters[i + 1..] {
                    [] => next(),
                    glued => Some(OsStr::from_bytes(glued).to_owned()),
                };
                let none = || Error::usage(format_args!("{option}: its value is missing"));
                tokens.push(Token::Option(option.clone(), Some(value.ok_or_else(none)?)));
                return Ok(());
            }
            if !is(self.letters) {
                return Err(Error::usage(format_args!(
                    "{option} is not a known option; --help lists them"
                )));
            }
            tokens.push(Token::Option(option, None));
        }
        Ok(())
    }
}

/// Iterates over the names of a list.
fn names(list: &'static [u8]) -> impl Iterator<Item = &'static [u8]> {
    list.split(|b| *b == 0).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: OptionTable = OptionTable {
        letters: "ay",
        valued_letters: "zC",
        flags: b"\0quiet\0mkfs-time\0",
        valued: b"\0exclude-path\0exclude-regex\0sort\0",
        optional: b"\0tar\0",
    };

    fn read_all(line: &str) -> Result<String> {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let tokens = parse(&arguments, &OPTIONS)?;
        let text = tokens.iter().map(|word| match word {
            Token::Option(name, None) => format!("[{name}]"),
            Token::Option(name, Some(value)) => format!("[{name} {}]", value.display()),
            Token::Operand(place) => place.display().to_string(),
        });
        Ok(text.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn options_are_read_wherever_they_stand() {
        for (line, expected) in [
            ("out in -zlz4 -C 65536", "out in [-z lz4] [-C 65536]"),
            ("-ayzlz4 out", "[-a] [-y] [-z lz4] out"),
            ("--tar out --tar=f", "[--tar] out [--tar f]"),
            ("--sort none --sort=path x", "[--sort none] [--sort path] x"),
            (
                "--qui --mk - -- --quiet",
                "[--quiet] [--mkfs-time] - --quiet",
            ),
            ("-C -1 --sort=", "[-C -1] [--sort ]"),
        ] {
            assert_eq!(read_all(line).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn what_is_no_option_is_named() {
        for (line, expected) in [
            ("--quiet=1", "--quiet has no value"),
            ("--sort", "--sort: its value is missing"),
            ("-z", "-z: its value is missing"),
            (
                "--exclude x",
                "--exclude is the beginning of several options",
            ),
            ("--bogus", "--bogus is not a known option"),
            ("-aq", "-q is not a known option"),
        ] {
            let message = read_all(line).unwrap_err().to_string();
            assert!(message.contains(expected), "{line}: {message}");
        }
    }
}
