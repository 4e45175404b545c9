//! A scanner for Rust sources: tokens without comments, and comments without tokens.
//!
//! It does not parse. The checks of this crate need names, paths and braces only. Block comments are skipped.

use proc_macro2::{Span, TokenStream, TokenTree};

/// One token of a source file. White space and comments are not tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// Text as written. The text of a literal is `"`, so that no check mistakes it for code.
    pub(crate) text: String,
    /// Line in the file, from 1.
    pub(crate) line: usize,
}

/// Comment marker of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    /// A plain comment, `//`.
    Plain,
    /// Documentation of the next item, `///`.
    Outer,
    /// Documentation of the enclosing module, `//!`.
    Inner,
}

/// Consecutive comment lines with one marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Comment {
    /// Line of the first comment line, from 1.
    pub(crate) line: usize,
    /// Marker of each line.
    pub(crate) marker: Marker,
    /// Lines without their marker.
    pub(crate) lines: Vec<String>,
}

impl Comment {
    /// True for documentation, `///` and `//!`.
    pub(crate) fn is_doc(&self) -> bool {
        self.marker != Marker::Plain
    }
}

/// Splits a source into tokens and comments.
///
/// # Panics
/// Panics if the source is not made of Rust tokens.
pub(crate) fn scan(source: &str) -> (Vec<Token>, Vec<Comment>) {
    let stream: TokenStream = source.parse().expect("a source that compiles");
    let mut scanner = Scanner {
        source,
        gaps: source.as_bytes().to_vec(),
        tokens: Vec::new(),
        end: 0,
    };
    scanner.stream(stream);
    let comments = comments(&String::from_utf8_lossy(&scanner.gaps));
    (scanner.tokens, comments)
}

struct Scanner<'a> {
    source: &'a str,
    /// The source with an `x` for each byte of a token, which leaves white space and comments.
    gaps: Vec<u8>,
    tokens: Vec<Token>,
    /// Position after the last token in bytes.
    end: usize,
}

impl Scanner<'_> {
    fn stream(&mut self, stream: TokenStream) {
        for tree in stream {
            // The compiler presents comments of documentation as attributes.
            let source = &self.source[tree.span().byte_range()];
            if source.starts_with("//") || source.starts_with("/*") {
                continue;
            }
            match tree {
                TokenTree::Group(group) => {
                    self.push(None, group.span_open());
                    self.stream(group.stream());
                    self.push(None, group.span_close());
                }
                // A literal is one token, whatever it says.
                TokenTree::Literal(literal) => self.push(Some("\""), literal.span()),
                tree => self.push(None, tree.span()),
            }
        }
    }

    /// Adds a token, by default with its text.
    fn push(&mut self, text: Option<&str>, span: Span) {
        let range = span.byte_range();
        for byte in &mut self.gaps[range.clone()] {
            if *byte != b'\n' {
                *byte = b'x';
            }
        }
        let text = text.unwrap_or(self.source[range.clone()].trim_start_matches("r#"));
        let is_adjacent = self.end == range.start;
        self.end = range.end;
        match self.tokens.last_mut().filter(|_| is_adjacent) {
            Some(last) if last.text == ":" && text == ":" => last.text.push(':'),
            // The name of a lifetime ends its token.
            Some(last) if last.text == "'" => self.end = 0,
            _ => self.tokens.push(Token {
                text: text.to_owned(),
                line: span.start().line,
            }),
        }
    }
}

/// Returns the comments in the gaps between tokens.
fn comments(gaps: &str) -> Vec<Comment> {
    let mut comments: Vec<Comment> = Vec::new();
    for (line, gaps) in (1..).zip(gaps.lines()) {
        let Some(at) = gaps.find("//") else {
            continue;
        };
        let text = &gaps[at + 2..];
        let (marker, text) = match text.strip_prefix(['!', '/']) {
            Some(text) if gaps[at..].starts_with("//!") => (Marker::Inner, text),
            Some(text) if !text.starts_with('/') => (Marker::Outer, text),
            _ => (Marker::Plain, text),
        };
        let text = text.strip_prefix(' ').unwrap_or(text).to_owned();
        match comments.last_mut() {
            Some(last)
                if gaps[..at].trim().is_empty()
                    && last.marker == marker
                    && last.line + last.lines.len() == line =>
            {
                last.lines.push(text);
            }
            _ => comments.push(Comment {
                line,
                marker,
                lines: vec![text],
            }),
        }
    }
    comments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<String> {
        scan(source).0.into_iter().map(|t| t.text).collect()
    }

    #[test]
    fn strings_characters_and_comments_are_not_code() {
        let source = r####"a("x::y", r#"b"c::d"#, b'"', '\'', '\u{1F}', 'l') /* e /* f */ g */ // h
            i::j<'k>"####;
        let expected = [
            "a", "(", "\"", ",", "\"", ",", "\"", ",", "\"", ",", "\"", ",", "\"", ")", "i", "::",
            "j", "<", "'", ">",
        ];
        assert_eq!(texts(source), expected);
    }

    #[test]
    fn comments_are_grouped_by_marker_and_line() {
        let source = "//! a\n//! b\n\n/// c\nfn d() {} // e\n// f\n//// g\n";
        let found: Vec<_> = scan(source)
            .1
            .into_iter()
            .map(|c| (c.line, c.marker, c.lines.join("|")))
            .collect();
        assert_eq!(
            found,
            [
                (1, Marker::Inner, "a|b".to_owned()),
                (4, Marker::Outer, "c".to_owned()),
                (5, Marker::Plain, "e|f|// g".to_owned()),
            ]
        );
    }

    #[test]
    fn lines_are_counted_in_literals() {
        let (tokens, _) = scan("\"a\nb\\\nc\"\nd");
        assert_eq!(tokens.last().map(|t| t.line), Some(4));
    }
}
