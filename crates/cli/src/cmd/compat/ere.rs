//! Translates POSIX extended regular expressions, as glibc reads them, to the syntax of the regex crate.
//!
//! Backslashes inside brackets and braces that form no interval are literal. An operator with nothing before it is
//! dropped, and a second operator repeats the result of the first. `\<` and `\>` are word boundaries. Back references
//! are rejected.

use tuff_erofs::{Error, Result};
use tuff_mkfs::Paths;

/// Returns a filter for paths in which the expression of `option` matches anywhere.
pub(super) fn paths(option: &str, expression: &str) -> Result<Paths> {
    let wrong = |what: &dyn std::fmt::Display| {
        Error::usage(format_args!("{option}: expression '{expression}': {what}"))
    };
    let ours = translated(expression).map_err(|what| wrong(&what))?;
    Paths::expression(&ours).map_err(|e| wrong(&e.what()))
}

/// Character classes: names between `[:` and `:]`.
const CLASSES: [&str; 12] = [
    "alnum", "alpha", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space",
    "upper", "xdigit",
];

fn translated(expression: &str) -> Result<String, &'static str> {
    let mut out = String::new();
    // Start positions of the open groups, and of the last atom that an operator may follow.
    let (mut groups, mut atom) = (Vec::new(), None);
    let mut repeated = false;
    let mut rest = expression;
    while let Some(c) = rest.chars().next() {
        let start = out.len();
        let mut len = c.len_utf8();
        let interval = if c == '{' { interval(rest) } else { None };
        match c {
            '*' | '+' | '?' | '{' if c != '{' || interval.is_some() => {
                len = interval.as_ref().map_or(1, |(len, _)| *len);
                if let Some(at) = atom {
                    if repeated {
                        out.insert_str(at, "(?:");
                        out.push(')');
                    }
                    match interval {
                        Some((_, text)) => out.push_str(&text),
                        None => out.push(c),
                    }
                    repeated = true;
                }
                rest = &rest[len..];
                continue;
            }
            '(' => {
                groups.push(start);
                out.push_str("(?:");
                atom = None;
            }
            ')' => {
                atom = Some(
                    groups
                        .pop()
                        .ok_or("a closing parenthesis without an opening one")?,
                );
                out.push(')');
            }
            '|' | '^' => {
                out.push(c);
                atom = None;
            }
            '[' => {
                len = bracket(rest, &mut out)?;
                atom = Some(start);
            }
            '\\' => {
                let escaped = rest[1..].chars().next().ok_or("it ends in a backslash")?;
                len += escaped.len_utf8();
                escape(escaped, &mut out)?;
                atom = Some(start);
            }
            '.' | '$' => {
                out.push(c);
                atom = Some(start);
            }
            c => {
                literal(c, &mut out);
                atom = Some(start);
            }
        }
        repeated = false;
        rest = &rest[len..];
    }
    if !groups.is_empty() {
        return Err("a parenthesis is not closed");
    }
    Ok(out)
}

/// Parses an interval. Returns its length and its translation, or `None` for a literal brace.
fn interval(text: &str) -> Option<(usize, String)> {
    let inside = text[1..].split_once('}')?.0;
    let (low, high) = inside.split_once(',').unwrap_or((inside, inside));
    let is_number = |n: &str| n.bytes().all(|b| b.is_ascii_digit());
    if inside.is_empty() || inside == "," || !is_number(low) || !is_number(high) {
        return None;
    }
    let low = if low.is_empty() { "0" } else { low };
    let text = match inside.contains(',') {
        true => format!("{{{low},{high}}}"),
        false => format!("{{{low}}}"),
    };
    Some((inside.len() + 2, text))
}

/// Translates a bracket expression. Returns its length.
fn bracket(text: &str, out: &mut String) -> Result<usize, &'static str> {
    const OPEN: &str = "a bracket is not closed";
    let mut at = 1;
    out.push('[');
    if text[at..].starts_with('^') {
        out.push('^');
        at += 1;
    }
    let first = at;
    loop {
        let rest = &text[at..];
        let c = rest.chars().next().ok_or(OPEN)?;
        if c == ']' && at > first {
            out.push(']');
            return Ok(at + 1);
        }
        if rest.starts_with("[=") || rest.starts_with("[.") {
            return Err("collating elements are not known here");
        }
        if let Some(class) = rest.strip_prefix("[:") {
            let (class, _) = class.split_once(":]").ok_or(OPEN)?;
            if !CLASSES.contains(&class) {
                return Err("a class in brackets that is not known");
            }
            out.push_str(&format!("[:{class}:]"));
            at += class.len() + 4;
            continue;
        }
        match c {
            // Between two characters it denotes a range.
            '-' if at > first && !rest[1..].starts_with(']') => out.push('-'),
            c => literal(c, out),
        }
        at += c.len_utf8();
    }
}

/// Translates an escape sequence.
fn escape(c: char, out: &mut String) -> Result<(), &'static str> {
    match c {
        '1'..='9' => return Err("back references are not known here"),
        'w' | 'W' | 's' | 'S' | 'b' | 'B' => out.extend(['\\', c]),
        '<' => out.push_str(r"\b{start}"),
        '>' => out.push_str(r"\b{end}"),
        '`' => out.push_str(r"\A"),
        '\'' => out.push_str(r"\z"),
        c => literal(c, out),
    }
    Ok(())
}

fn literal(c: char, out: &mut String) {
    // A backslash before these two would make them word boundaries.
    if c.is_ascii_punctuation() && c != '<' && c != '>' {
        out.push('\\');
    }
    out.push(c);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_mean_what_they_mean_in_c() {
        for (theirs, ours) in [
            ("run/*", r"run\/*"),
            (
                "^usr/share/(doc|man)/.*\\.gz$",
                r"^usr\/share\/(?:doc|man)\/.*\.gz$",
            ),
            ("*.o", ".o"),
            ("(*a|+b)", "(?:a|b)"),
            ("a+?b", "(?:a+)?b"),
            ("(ab)*+", "(?:(?:ab)*)+"),
            ("x{2}{,3}", "(?:x{2}){0,3}"),
            ("a{b}", r"a\{b\}"),
            ("[]a\\&&-]", r"[\]a\\\&\&\-]"),
            ("[^[:alpha:]0-9]", "[^[:alpha:]0-9]"),
            (r"\<lib\>\d", r"\b{start}lib\b{end}d"),
            ("a-b~<", r"a\-b\~<"),
        ] {
            assert_eq!(translated(theirs).as_deref(), Ok(ours), "{theirs}");
            assert!(paths("-x", theirs).is_ok(), "{theirs}");
        }
        for wrong in [
            "[[:]",
            "a(",
            "a)",
            "[a",
            "a\\",
            r"(a)\1",
            "[[=a=]]",
            "[[:what:]]",
        ] {
            assert!(paths("-x", wrong).is_err(), "{wrong}");
        }
    }
}
