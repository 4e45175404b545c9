//! Splits a command line into words as bash does before it expands them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Quoting at a position of the line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quote {
    None,
    Single,
    Double,
}

/// Returns the words of the last command of a line; the last word ends at the cursor and may be empty. None if a word depends on
/// an expansion.
pub(super) fn split(line: &OsStr) -> Option<Vec<OsString>> {
    let mut words = Vec::new();
    // None between words.
    let mut word: Option<Vec<u8>> = None;
    let mut quote = Quote::None;
    let mut bytes = line.as_bytes().iter().copied();
    while let Some(byte) = bytes.next() {
        match (quote, byte) {
            (Quote::None, b' ' | b'\t' | b'\n') => words.extend(word.take()),
            (Quote::None, b';' | b'|' | b'&' | b'(' | b')' | b'<' | b'>') => {
                word = None;
                words.clear();
            }
            (Quote::None | Quote::Double, b'$' | b'`') => return None,
            (Quote::None, b'\'') => {
                quote = Quote::Single;
                word.get_or_insert_default();
            }
            (Quote::None, b'"') => {
                quote = Quote::Double;
                word.get_or_insert_default();
            }
            (Quote::Single, b'\'') | (Quote::Double, b'"') => quote = Quote::None,
            (Quote::None, b'\\') => word.get_or_insert_default().extend(bytes.next()),
            (Quote::Double, b'\\') => match bytes.next() {
                Some(next @ (b'"' | b'\\' | b'$' | b'`')) => {
                    word.get_or_insert_default().push(next)
                }
                next => {
                    let word = word.get_or_insert_default();
                    word.push(b'\\');
                    word.extend(next);
                }
            },
            (_, byte) => word.get_or_insert_default().push(byte),
        }
    }
    words.push(word.unwrap_or_default());
    Some(words.into_iter().map(OsString::from_vec).collect())
}

/// Length of the start of the last word that bash keeps: it replaces only what follows the last of some characters, such as ":".
pub(super) fn kept_len(words: &[OsString], replaced: &OsStr) -> Option<usize> {
    let last = words.last()?.as_bytes();
    // Within quotes, bash passes the word as it is; elsewhere with its backslashes.
    let plain = replaced.as_bytes();
    let unquoted = split(replaced)?.pop()?.into_vec();
    let mut fitting = [plain, &unquoted]
        .into_iter()
        .filter(|word| last.ends_with(word));
    fitting.next().map(|word| last.len() - word.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Option<Vec<String>> {
        let words = split(OsStr::new(line))?.into_iter();
        Some(words.map(|word| word.into_string().unwrap()).collect())
    }

    #[test]
    fn lines_are_split_as_bash_splits_them() {
        for (line, expected) in [
            ("tuff cat i /e", &["tuff", "cat", "i", "/e"][..]),
            ("tuff cat i ", &["tuff", "cat", "i", ""]),
            (r"tuff cat a\ b /c\'", &["tuff", "cat", "a b", "/c'"]),
            ("tuff cat 'a  b' \"/c d", &["tuff", "cat", "a  b", "/c d"]),
            (r#"tuff cat "a\"\n" '"#, &["tuff", "cat", "a\"\\n", ""]),
            ("cd x; tuff ls i", &["tuff", "ls", "i"]),
        ] {
            assert_eq!(words(line).unwrap(), expected, "{line}");
        }
        assert_eq!(words("tuff cat $IMAGE /"), None);
        assert_eq!(words("tuff cat \"`ls`\" /"), None);
    }

    #[test]
    fn bash_replaces_what_follows_a_colon() {
        let kept = |line: &str, replaced: &str| {
            kept_len(&split(OsStr::new(line)).unwrap(), OsStr::new(replaced))
        };
        assert_eq!(kept("tuff cat i /a/Foo::Ba", "Ba"), Some(8));
        assert_eq!(kept("tuff cat i /a/Foo::", ""), Some(8));
        assert_eq!(kept(r"tuff cat i /a\ b", r"/a\ b"), Some(0));
        assert_eq!(kept("tuff cat i '/a b ", "/a b "), Some(0));
        assert_eq!(kept("tuff cat i /a", "b"), None);
    }
}
