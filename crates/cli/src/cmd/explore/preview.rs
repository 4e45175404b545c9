//! Preview of a file: its first bytes as text, or in hexadecimal if they are no text.

use super::pane::Pane;
use crate::text::escaped;
use crate::units::size;
use ratatui::crossterm::event::KeyCode;
use tuff_erofs::Result;
use tuff_erofs::read::FileType;

/// Number of bytes that are shown.
const BYTES: usize = 256 << 10;
/// Number of bytes in a line of hexadecimal.
const HEX: usize = 16;
/// Maximum length of a line of text, in bytes. A longer line is continued on the next.
const LINE: usize = 500;

/// Lines of a file, and the first one that is shown.
pub(super) struct Preview {
    pub(super) title: String,
    pub(super) lines: Vec<String>,
    pub(super) top: usize,
}

impl Preview {
    /// Returns the preview of the node at the cursor.
    pub(super) fn new(pane: &Pane) -> Self {
        let id = pane.current();
        let path = format!("/{}", escaped(&pane.usage.path(id)));
        let (note, lines) = match content(pane) {
            Ok((note, lines)) => (note, lines),
            Err(e) => {
                let e = crate::text::escaped_line(e);
                (String::new(), vec![format!("cannot be read: {e}")])
            }
        };
        Self {
            title: format!("{path}{note}"),
            lines,
            top: 0,
        }
    }

    /// Scrolls. Returns false if the key ends the preview.
    pub(super) fn key(&mut self, key: KeyCode, page: usize) -> bool {
        let last = self.lines.len().saturating_sub(1);
        let page = page.max(1);
        self.top = match key {
            KeyCode::Up | KeyCode::Char('k') => self.top.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.top + 1,
            KeyCode::PageUp => self.top.saturating_sub(page),
            KeyCode::PageDown | KeyCode::Char(' ') => self.top + page,
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            KeyCode::Esc | KeyCode::Enter | KeyCode::Left | KeyCode::Char('q' | 'p' | 'h') => {
                return false;
            }
            _ => self.top,
        }
        .min(last);
        true
    }
}

fn content(pane: &Pane) -> Result<(String, Vec<String>)> {
    let inode = pane.image.inode(pane.usage.inode(pane.current()).nid)?;
    match inode.file_type() {
        FileType::File => {
            let len = usize::try_from(inode.size()).unwrap_or(usize::MAX);
            let mut bytes = vec![0; len.min(BYTES)];
            let n = pane.image.read_at(&inode, &mut bytes, 0)?;
            bytes.truncate(n);
            let note = match inode.size() > n as u64 {
                true => format!(" (first {} of {})", size(n as u64), size(inode.size())),
                false => String::new(),
            };
            let lines = if is_text(&bytes) {
                text(&bytes)
            } else {
                hex(&bytes)
            };
            Ok((note, lines))
        }
        FileType::Symlink => {
            let target = escaped(&pane.image.readlink(&inode)?);
            Ok((String::new(), vec![format!("symlink to {target}")]))
        }
        kind => Ok((
            String::new(),
            vec![format!("a {} has no content", kind.name())],
        )),
    }
}

/// Returns true for bytes without NUL that are UTF-8, apart from a character that the end cuts off.
fn is_text(bytes: &[u8]) -> bool {
    if bytes.contains(&0) {
        return false;
    }
    match std::str::from_utf8(bytes) {
        Ok(_) => true,
        Err(e) => e.error_len().is_none(),
    }
}

fn text(bytes: &[u8]) -> Vec<String> {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let lines = bytes.split(|b| *b == b'\n');
    let mut out = Vec::new();
    for line in lines {
        let line = String::from_utf8_lossy(line).replace('\t', "    ");
        let mut rest = &line[..];
        while rest.len() > LINE {
            // A character has at most four bytes.
            let cut = (LINE - 3..=LINE)
                .rev()
                .find(|at| rest.is_char_boundary(*at));
            let (start, end) = rest.split_at(cut.unwrap_or(rest.len()));
            out.push(crate::text::escaped_line(start));
            rest = end;
        }
        out.push(crate::text::escaped_line(rest));
    }
    out
}

fn hex(bytes: &[u8]) -> Vec<String> {
    let line = |(i, part): (usize, &[u8])| {
        let digits: Vec<String> = part.iter().map(|b| format!("{b:02x}")).collect();
        let printable = |b: &u8| {
            if b.is_ascii_graphic() {
                char::from(*b)
            } else {
                '.'
            }
        };
        let chars: String = part.iter().map(printable).collect();
        format!("{:08x}  {:<47}  {chars}", i * HEX, digits.join(" "))
    };
    bytes.chunks(HEX).enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_text_are_escaped() {
        assert_eq!(text(b"a\tb\n\x1b[2J\r\n"), ["a    b", r"\u{1b}[2J\r"]);
        assert_eq!(text(&[b'x'; LINE + 1]).len(), 2);
    }

    #[test]
    fn other_bytes_are_shown_in_hexadecimal() {
        assert!(!is_text(b"a\0"));
        assert!(!is_text(b"a\xffb"));
        assert!(is_text("ä".as_bytes()) && is_text(&"ä".as_bytes()[..1]));
        let lines = hex(b"0123456789abcdef\x1b");
        assert_eq!(
            lines[0],
            "00000000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  0123456789abcdef"
        );
        assert_eq!(lines[1].trim_end(), format!("00000010  {:<47}  .", "1b"));
    }
}
