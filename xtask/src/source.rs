//! A scanner for Rust sources: tokens without comments, and comments without tokens.
//!
//! It does not parse. The checks of this crate need names, paths and braces only.

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
pub(crate) fn scan(source: &str) -> (Vec<Token>, Vec<Comment>) {
    let mut scanner = Scanner {
        chars: source.chars().collect(),
        at: 0,
        line: 1,
        tokens: Vec::new(),
        comments: Vec::new(),
    };
    while scanner.at < scanner.chars.len() {
        scanner.step();
    }
    (scanner.tokens, scanner.comments)
}

struct Scanner {
    chars: Vec<char>,
    at: usize,
    line: usize,
    tokens: Vec<Token>,
    comments: Vec<Comment>,
}

impl Scanner {
    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn advance(&mut self, count: usize) {
        for _ in 0..count {
            if self.peek(0) == '\n' {
                self.line += 1;
            }
            self.at += 1;
        }
    }

    fn push(&mut self, text: String, line: usize) {
        self.tokens.push(Token { text, line });
    }

    fn step(&mut self) {
        let c = self.peek(0);
        match c {
            '/' if self.peek(1) == '/' => self.line_comment(),
            '/' if self.peek(1) == '*' => self.block_comment(),
            '"' => self.string(),
            '\'' => self.quote(),
            c if c.is_alphabetic() || c == '_' => self.word(),
            c if c.is_ascii_digit() => self.number(),
            c if c.is_whitespace() => self.advance(1),
            ':' if self.peek(1) == ':' => {
                self.push("::".to_owned(), self.line);
                self.advance(2);
            }
            c => {
                self.push(c.to_string(), self.line);
                self.advance(1);
            }
        }
    }

    fn line_comment(&mut self) {
        let marker = match (self.peek(2), self.peek(3)) {
            ('!', _) => Marker::Inner,
            ('/', next) if next != '/' => Marker::Outer,
            _ => Marker::Plain,
        };
        let is_first_of_line = self.tokens.last().is_none_or(|t| t.line != self.line);
        let line = self.line;
        self.advance(if marker == Marker::Plain { 2 } else { 3 });
        let mut text = String::new();
        while self.at < self.chars.len() && self.peek(0) != '\n' {
            text.push(self.peek(0));
            self.advance(1);
        }
        let text = text.strip_prefix(' ').unwrap_or(&text).to_owned();
        match self.comments.last_mut() {
            Some(last)
                if is_first_of_line
                    && last.marker == marker
                    && last.line + last.lines.len() == line =>
            {
                last.lines.push(text);
            }
            _ => self.comments.push(Comment {
                line,
                marker,
                lines: vec![text],
            }),
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while self.at < self.chars.len() {
            match (self.peek(0), self.peek(1)) {
                ('/', '*') => {
                    depth += 1;
                    self.advance(2);
                }
                ('*', '/') => {
                    depth -= 1;
                    self.advance(2);
                    if depth == 0 {
                        return;
                    }
                }
                _ => self.advance(1),
            }
        }
    }

    /// A string without a raw prefix.
    fn string(&mut self) {
        self.push("\"".to_owned(), self.line);
        self.advance(1);
        while self.at < self.chars.len() && self.peek(0) != '"' {
            self.advance(if self.peek(0) == '\\' { 2 } else { 1 });
        }
        self.advance(1);
    }

    fn raw_string(&mut self) {
        self.push("\"".to_owned(), self.line);
        let mut hashes = 0;
        while self.peek(0) == '#' {
            hashes += 1;
            self.advance(1);
        }
        self.advance(1);
        while self.at < self.chars.len() {
            let closes = self.peek(0) == '"' && (1..=hashes).all(|i| self.peek(i) == '#');
            if closes {
                self.advance(1 + hashes);
                return;
            }
            self.advance(1);
        }
    }

    /// A character literal or a lifetime.
    fn quote(&mut self) {
        let line = self.line;
        if self.peek(1) == '\\' {
            self.advance(3);
            while self.at < self.chars.len() && self.peek(0) != '\'' {
                self.advance(1);
            }
            self.advance(1);
            self.push("\"".to_owned(), line);
        } else if self.peek(2) == '\'' {
            self.advance(3);
            self.push("\"".to_owned(), line);
        } else {
            self.advance(1);
            while self.peek(0).is_alphanumeric() || self.peek(0) == '_' {
                self.advance(1);
            }
            self.push("'".to_owned(), line);
        }
    }

    fn word(&mut self) {
        let line = self.line;
        let mut text = String::new();
        while self.peek(0).is_alphanumeric() || self.peek(0) == '_' {
            text.push(self.peek(0));
            self.advance(1);
        }
        let is_raw = text.ends_with('r') && text.len() <= 2;
        match self.peek(0) {
            '"' if is_raw => self.raw_string(),
            '#' if is_raw && matches!(self.peek(1), '"' | '#') => self.raw_string(),
            '"' if matches!(text.as_str(), "b" | "c") => self.string(),
            '\'' if text == "b" => self.quote(),
            // A raw identifier: `r#type`.
            '#' if text == "r" => self.advance(1),
            _ => self.push(text, line),
        }
    }

    fn number(&mut self) {
        let line = self.line;
        while self.peek(0).is_alphanumeric()
            || self.peek(0) == '_'
            || (self.peek(0) == '.' && self.peek(1).is_ascii_digit())
        {
            self.advance(1);
        }
        self.push("\"".to_owned(), line);
    }
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
