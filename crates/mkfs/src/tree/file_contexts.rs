//! SELinux labels by path, from a `file_contexts` file.
//!
//! A line has an expression for a whole path, an optional type (`--` file, `-d`, `-l`, `-c`, `-b`,
//! `-p`, `-s`), and a context or `<<none>>`. The last matching line wins, but a line without
//! special characters takes precedence over all others, as in libselinux.

use crate::source::error::{Quoted, SourceError};
use crate::tree::paths::regex;
use crate::{Error, Result};
use regex_automata::meta::Regex;
use tuff_format::inode::FileType;

/// Name of the extended attribute with the label.
pub(crate) const LABEL: &[u8] = b"security.selinux";

/// SELinux labels by path.
#[derive(Clone, Debug)]
pub struct Contexts {
    /// Rules by descending precedence.
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    /// Common prefix of all matching paths.
    prefix: Vec<u8>,
    expression: Regex,
    file_type: Option<FileType>,
    /// Label with the terminating zero byte that the kernel and libselinux write. `None` for no
    /// label.
    context: Option<Vec<u8>>,
}

impl Contexts {
    /// Parses a `file_contexts` file. `name` appears in messages.
    ///
    /// # Errors
    ///
    /// Fails with the number of the first invalid line.
    pub fn parse(name: &str, text: &[u8]) -> Result<Self> {
        let (mut exact, mut rules) = (Vec::new(), Vec::new());
        for (i, line) in text.split(|b| *b == b'\n').enumerate() {
            let wrong = |what: String| {
                Error::from(
                    SourceError::corrupt(what)
                        .at_line(i as u64 + 1)
                        .in_source(name),
                )
            };
            let line = std::str::from_utf8(line).map_err(|_| wrong("not UTF-8".to_owned()))?;
            let words: Vec<&str> = line.split_whitespace().collect();
            let (pattern, letters, context) = match words[..] {
                [] => continue,
                [first, ..] if first.starts_with('#') => continue,
                [pattern, context] => (pattern, None, context),
                [pattern, letters, context] => (pattern, Some(letters), context),
                _ => {
                    let what = "expected an expression, perhaps a type, and a context";
                    return Err(wrong(what.to_owned()));
                }
            };
            let file_type = match letters {
                None => None,
                Some("--") => Some(FileType::File),
                Some("-d") => Some(FileType::Dir),
                Some("-l") => Some(FileType::Symlink),
                Some("-c") => Some(FileType::Char),
                Some("-b") => Some(FileType::Block),
                Some("-p") => Some(FileType::Fifo),
                Some("-s") => Some(FileType::Socket),
                Some(other) => {
                    return Err(wrong(format!(
                        "type '{other}'; known are --, -d, -l, -c, -b, -p and -s"
                    )));
                }
            };
            let expression = regex(&format!(r"\A(?:{pattern})\z")).map_err(|why| {
                wrong(format!("expression {}: {why}", Quoted(pattern.as_bytes())))
            })?;
            let (prefix, is_exact) = literal(pattern);
            let rule = Rule {
                prefix,
                expression,
                file_type,
                context: (context != "<<none>>").then(|| [context.as_bytes(), b"\0"].concat()),
            };
            if is_exact {
                exact.push(rule);
            } else {
                rules.push(rule);
            }
        }
        rules.append(&mut exact);
        rules.reverse();
        Ok(Self { rules })
    }

    /// Label of a path, which begins with a slash. `None` if no line matches or the line has
    /// `<<none>>`.
    pub(crate) fn label(&self, path: &[u8], file_type: FileType) -> Option<&[u8]> {
        let matches = |rule: &&Rule| {
            rule.file_type.is_none_or(|t| t == file_type)
                && path.starts_with(&rule.prefix)
                && rule.expression.is_match(path)
        };
        self.rules.iter().find(matches)?.context.as_deref()
    }
}

/// Literal prefix of an expression, and whether it is the whole expression.
fn literal(pattern: &str) -> (Vec<u8>, bool) {
    let bytes = pattern.as_bytes();
    let (mut prefix, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => match bytes.get(at + 1) {
                Some(b) if b.is_ascii_punctuation() => {
                    prefix.push(*b);
                    at += 2;
                    continue;
                }
                // A character class, or an incomplete escape.
                _ => break,
            },
            // The repeated character is optional.
            b'?' | b'*' | b'{' => {
                prefix.pop();
                break;
            }
            b'.' | b'^' | b'$' | b'+' | b'|' | b'[' | b'(' => break,
            b => prefix.push(b),
        }
        at += 1;
    }
    if pattern.contains('|') {
        prefix.clear();
    }
    (prefix, at == bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANDROID: &str = "\
# comment
/                    u:object_r:rootfs:s0
/system(/.*)?        u:object_r:system_file:s0
/system/bin/sh  --   u:object_r:shell_exec:s0
/system/bin/.*\\.so  u:object_r:lib:s0
/system/x\\.y         u:object_r:exact:s0
/system/x.*          u:object_r:later:s0
/(vendor|system/vendor)/bin(/.*)?  u:object_r:vendor:s0
/system/none(/.*)?   <<none>>
/dev/[a-c]+     -c   u:object_r:device:s0
";

    fn label(path: &str, file_type: FileType) -> String {
        let contexts = Contexts::parse("f", ANDROID.as_bytes()).unwrap();
        let found = contexts.label(path.as_bytes(), file_type);
        found.map_or("-".to_owned(), |l| {
            let text = String::from_utf8(l.to_vec()).unwrap();
            text.trim_start_matches("u:object_r:")
                .trim_end_matches(":s0\0")
                .to_owned()
        })
    }

    #[test]
    fn the_last_line_wins_except_over_literal_ones() {
        for (path, expected) in [
            ("/", "rootfs"),
            ("/system", "system_file"),
            ("/systemd", "-"),
            ("/system/a b/c", "system_file"),
            ("/system/bin/sh", "shell_exec"),
            ("/system/bin/a.so", "lib"),
            ("/system/bin/a.so.1", "system_file"),
            ("/system/x.y", "exact"),
            ("/system/xxy", "later"),
            ("/vendor/bin/q", "vendor"),
            ("/system/vendor/bin", "vendor"),
            ("/system/none/x", "-"),
            ("/dev/abc", "-"),
        ] {
            assert_eq!(label(path, FileType::File), expected, "{path}");
        }
        assert_eq!(label("/system/bin/sh", FileType::Symlink), "system_file");
        assert_eq!(label("/dev/abc", FileType::Char), "device");
        let raw = Contexts::parse("f", b"/s.* x:y").unwrap();
        assert_eq!(raw.label(b"/s\xff\n", FileType::Dir), Some(&b"x:y\0"[..]));
    }

    #[test]
    fn invalid_lines_are_reported_by_number() {
        for (text, says) in [
            (
                "/a x\n/b",
                "f: line 2: expected an expression, perhaps a type, and a context",
            ),
            (
                "/a -q x",
                "f: line 1: type '-q'; known are --, -d, -l, -c, -b, -p and -s",
            ),
            ("/a( x", "f: line 1: expression \"/a(\": unclosed group"),
            (
                &format!("/{}( x", "a".repeat(1000)),
                "aaa\"... (1002 bytes): unclosed group",
            ),
        ] {
            let message = Contexts::parse("f", text.as_bytes())
                .unwrap_err()
                .to_string();
            assert!(message.contains(says), "{message}");
        }
    }
}
