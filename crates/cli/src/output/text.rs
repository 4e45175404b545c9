//! Formats names, modes and times for users and scripts.

use jiff::Timestamp;
use serde_json::{Map, Value};
use std::fmt::{self, Write};
use tuff_erofs::read::FileType;

/// Returns true for characters that a terminal or a browser obeys, or that are invisible: control characters, line and paragraph
/// separators, and invisible characters of format, among them those that change the direction of text.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}')
}

/// Appends `bytes` as one line: hidden characters, backslashes and invalid UTF-8 are escaped as in C.
pub(crate) fn escape(bytes: &[u8], out: &mut String) {
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\r' => out.push_str("\\r"),
                '\\' => out.push_str("\\\\"),
                c if is_hidden(c) => {
                    let mut buf = [0; 4];
                    for b in c.encode_utf8(&mut buf).bytes() {
                        out.push_str(&format!("\\x{b:02x}"));
                    }
                }
                c => out.push(c),
            }
        }
        for b in chunk.invalid() {
            out.push_str(&format!("\\x{b:02x}"));
        }
    }
}

/// Escapes `bytes`: see [`escape`].
pub(crate) fn escaped(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    escape(bytes, &mut out);
    out
}

/// Reverses [`escape`]. `None` for text that is not escaped.
pub(crate) fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text);
    let mut is_escaped = false;
    while let Some((byte, later)) = rest.split_first() {
        rest = later;
        if *byte != b'\\' {
            out.push(*byte);
            continue;
        }
        is_escaped = true;
        let (kind, later) = rest.split_first()?;
        rest = later;
        out.push(match kind {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'\\' => b'\\',
            b'x' => {
                let (digits, later) = rest.split_at_checked(2)?;
                rest = later;
                hex::decode(digits).ok()?[0]
            }
            _ => return None,
        });
    }
    is_escaped.then_some(out)
}

/// Returns a path below a directory; the directory itself is `/`.
pub(crate) fn or_root(path: &[u8]) -> &[u8] {
    match path {
        b"" => b"/",
        path => path,
    }
}

/// Escapes a path below a directory; the directory itself is `/`.
pub(crate) fn escaped_path(path: &[u8]) -> String {
    escaped(or_root(path))
}

/// Writer of text that becomes a part of one line: hidden characters are escaped, backslashes are kept. Everything that the
/// command prints passes through it, so that no name affects a terminal.
pub(crate) struct Line<W>(pub(crate) W);

impl<W: fmt::Write> fmt::Write for Line<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if text.bytes().all(|b| matches!(b, b' '..=b'~')) {
            return self.0.write_str(text);
        }
        text.chars().try_for_each(|c| match is_hidden(c) {
            true => write!(self.0, "{}", c.escape_default()),
            false => self.0.write_char(c),
        })
    }
}

/// Escapes hidden characters, so that the text is one line and does not affect a terminal; backslashes are kept.
pub(crate) fn escaped_line(text: impl fmt::Display) -> String {
    let mut out = Line(String::new());
    // Writing to a String cannot fail.
    let _ = write!(out, "{text}");
    out.0
}

/// Formats a value as one line of JSON. Hidden characters are escaped, so that no name affects a terminal.
pub(crate) fn json(value: &Value) -> String {
    let text = value.to_string();
    if !text.chars().any(is_hidden) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        // These characters occur in strings only.
        match is_hidden(c) {
            true => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            false => out.push(c),
        }
    }
    out
}

/// Returns the entries of a JSON object.
pub(crate) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(entries) => entries,
        _ => Map::new(),
    }
}

/// Adds bytes to a JSON object as a string. Bytes that are not UTF-8 are also added in hexadecimal as `KEY_hex`.
pub(crate) fn put_bytes(object: &mut Map<String, Value>, key: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => _ = object.insert(key.to_owned(), text.into()),
        Err(_) => {
            let lossy = String::from_utf8_lossy(bytes).into_owned();
            object.insert(key.to_owned(), lossy.into());
            object.insert(format!("{key}_hex"), hex::encode(bytes).into());
        }
    }
}

/// Formats a mode like `ls -l`: `drwxr-xr-t`.
pub(crate) fn mode_string(mode: u16) -> String {
    let kind = match FileType::from_mode(mode) {
        Some(FileType::File) => '-',
        Some(FileType::Dir) => 'd',
        Some(FileType::Symlink) => 'l',
        Some(FileType::Char) => 'c',
        Some(FileType::Block) => 'b',
        Some(FileType::Fifo) => 'p',
        Some(FileType::Socket) => 's',
        None => '?',
    };
    let mut out = String::from(kind);
    // Shift, special bit, and its letter with and without execute permission.
    for (shift, special, with, without) in [
        (6, 0o4000, 's', 'S'),
        (3, 0o2000, 's', 'S'),
        (0, 0o1000, 't', 'T'),
    ] {
        let bits = mode >> shift;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => with,
            (true, false) => without,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    out
}

/// Formats a time in UTC: `2024-01-02 03:04:05`.
pub(crate) fn time(seconds: i64) -> String {
    format_time(seconds, "%Y-%m-%d %H:%M:%S").unwrap_or_else(|| format!("@{seconds}"))
}

/// Formats a time in UTC with nanoseconds: `2024-01-02T03:04:05.123456789Z`.
pub(crate) fn full_time((seconds, nanos): (i64, u32)) -> String {
    match format_time(seconds, "%Y-%m-%dT%H:%M:%S") {
        Some(text) => format!("{text}.{nanos:09}Z"),
        None => format!("@{seconds}.{nanos:09}"),
    }
}

/// Formats a time in UTC like ctime(3): `Tue Jan  2 03:04:05 2024`.
pub(crate) fn c_time(seconds: i64) -> String {
    format_time(seconds, "%a %b %e %H:%M:%S %Y").unwrap_or_else(|| format!("@{seconds}"))
}

/// Formats a time in UTC by a strftime(3) pattern. Returns `None` outside the years -9999 to 9999, which the calendar lacks and an
/// image may contain. Callers then print the seconds since 1970, as `date --date=@SECONDS` takes them.
fn format_time(seconds: i64, pattern: &str) -> Option<String> {
    let time = Timestamp::from_second(seconds).ok()?;
    Some(time.strftime(pattern).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strange_names_stay_on_one_line_and_differ() {
        assert_eq!(escaped("grün und blau".as_bytes()), "grün und blau");
        assert_eq!(escaped(b"a\nb\\n\x1b\xff\x7f"), r"a\nb\\n\x1b\xff\x7f");
    }

    #[test]
    fn escaped_names_are_read_back() {
        let names: [&[u8]; 4] = [
            b"a\nb\\n\x1b\xff\x7f",
            b"\\",
            b"\\x41",
            "grün\u{202e}".as_bytes(),
        ];
        for name in names {
            assert_eq!(unescaped(escaped(name).as_bytes()).unwrap(), name);
        }
        for text in ["plain", "", r"a\", r"a\q", r"\x4", r"\xgg"] {
            assert_eq!(unescaped(text.as_bytes()), None, "{text}");
        }
    }

    /// One character of each kind that a terminal obeys or does not show.
    const HIDDEN: &str = "\x01\x1b\x7f\u{80}\u{9b}\u{ad}\u{61c}\u{180e}\u{200b}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\
        \u{2060}\u{2066}\u{2069}\u{206f}\u{feff}\u{fff9}\u{1d173}\u{e0001}\u{e007f}";

    #[test]
    fn hidden_characters_are_escaped_in_names_lines_and_json() {
        for c in HIDDEN.chars() {
            let name = format!("a{c}b");
            let bytes: String = c
                .to_string()
                .bytes()
                .map(|b| format!("\\x{b:02x}"))
                .collect();
            assert_eq!(escaped(name.as_bytes()), format!("a{bytes}b"));
            assert_eq!(escaped_line(&name), format!("a\\u{{{:x}}}b", u32::from(c)));
            let shown = json(&Value::from(name.as_str()));
            assert!(shown.bytes().all(|b| matches!(b, b' '..=b'~')), "{shown}");
            assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), name);
        }
        assert_eq!(
            json(&Value::from("\u{7f}\u{9b}\u{2066}\u{e0001}")),
            r#""\u007f\u009b\u2066\udb40\udc01""#
        );
        assert_eq!(escaped_line("a\nb\tc\\d"), r"a\nb\tc\d");
    }

    #[test]
    fn letters_of_all_scripts_are_shown_as_they_are() {
        let name = "größe 日本 한글 עברית عربي ❤\u{fe0f} 🎉";
        assert_eq!(escaped(name.as_bytes()), name);
        assert_eq!(escaped_line(name), name);
        assert_eq!(json(&Value::from(name)), format!("\"{name}\""));
    }

    #[test]
    fn modes_are_as_ls_shows_them() {
        assert_eq!(mode_string(0o100644), "-rw-r--r--");
        assert_eq!(mode_string(0o041777), "drwxrwxrwt");
        assert_eq!(mode_string(0o041776), "drwxrwxrwT");
        assert_eq!(mode_string(0o104755), "-rwsr-xr-x");
        assert_eq!(mode_string(0o102644), "-rw-r-Sr--");
        assert_eq!(mode_string(0o020600), "crw-------");
    }

    #[test]
    fn times_follow_the_calendar() {
        assert_eq!(time(0), "1970-01-01 00:00:00");
        assert_eq!(time(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(time(1_700_000_000), "2023-11-14 22:13:20");
        assert_eq!(time(-1), "1969-12-31 23:59:59");
        assert_eq!(time(-2_208_988_800), "1900-01-01 00:00:00");
        assert_eq!(
            full_time((4_102_444_799, 5)),
            "2099-12-31T23:59:59.000000005Z"
        );
        assert_eq!(c_time(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(c_time(1_704_164_645), "Tue Jan  2 03:04:05 2024");
        assert_eq!(c_time(-1), "Wed Dec 31 23:59:59 1969");
    }

    #[test]
    fn times_outside_the_calendar_are_seconds_since_1970() {
        assert_eq!(time(i64::MAX), "@9223372036854775807");
        assert_eq!(c_time(i64::MIN), "@-9223372036854775808");
        assert_eq!(full_time((i64::MAX, 7)), "@9223372036854775807.000000007");
    }

    #[test]
    fn bytes_that_are_no_text_are_there_twice() {
        let mut object = Map::new();
        put_bytes(&mut object, "path", b"a\xff");
        assert_eq!(object["path"], "a\u{fffd}");
        assert_eq!(object["path_hex"], "61ff");
    }
}
