//! Text encodings in manifests: vis(3) escapes and hexadecimal.

/// Decodes escapes of vis(3): `\ooo`, `\n` and similar, `\^X`, `\M-x`, `\M^X`, and a backslash
/// before punctuation.
///
/// # Errors
///
/// Returns the position of a backslash that begins no valid escape.
pub(super) fn unvis(text: &[u8]) -> Result<Vec<u8>, usize> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        if *first != b'\\' {
            out.push(*first);
            rest = tail;
            continue;
        }
        let (byte, after) = escape(tail).ok_or(text.len() - rest.len())?;
        out.push(byte);
        rest = after;
    }
    Ok(out)
}

/// Decodes one escape after its backslash. Returns the byte and the rest.
fn escape(text: &[u8]) -> Option<(u8, &[u8])> {
    let (&first, tail) = text.split_first()?;
    let plain = match first {
        b'0'..=b'7' => return octal(text),
        b'^' => {
            let (&c, after) = tail.split_first()?;
            return Some((control(c)?, after));
        }
        b'M' => {
            let (&how, tail) = tail.split_first()?;
            let (&c, after) = tail.split_first()?;
            return match how {
                b'-' if c < 0x80 => Some((c | 0x80, after)),
                b'^' => Some((control(c)? | 0x80, after)),
                _ => None,
            };
        }
        b'a' => 0x07,
        b'b' => 0x08,
        b't' => b'\t',
        b'n' => b'\n',
        b'v' => 0x0b,
        b'f' => 0x0c,
        b'r' => b'\r',
        b'E' => 0x1b,
        b's' => b' ',
        b'$' => return None,
        c if c.is_ascii_punctuation() => c,
        _ => return None,
    };
    Some((plain, tail))
}

/// Parses one to three octal digits, at most 255.
fn octal(text: &[u8]) -> Option<(u8, &[u8])> {
    let mut value = 0u16;
    let mut used = 0;
    for &c in text.iter().take(3) {
        if !matches!(c, b'0'..=b'7') {
            break;
        }
        value = value << 3 | u16::from(c - b'0');
        used += 1;
    }
    Some((u8::try_from(value).ok()?, &text[used..]))
}

/// Control character of the notation `^c`.
fn control(c: u8) -> Option<u8> {
    match c {
        b'?' => Some(0x7f),
        b'@'..=b'_' => Some(c - b'@'),
        b'a'..=b'z' => Some(c - b'a' + 1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unvis_decodes_every_form_of_vis() {
        for (text, bytes) in [
            ("plain", &b"plain"[..]),
            (r"a\040b", b"a b"),
            (r"a\sb\tc", b"a b\tc"),
            (r"\#x\\", b"#x\\"),
            (r"\M-a\M^A\^A\^?", b"\xe1\x81\x01\x7f"),
            (r"\377\0\08", b"\xff\0\x008"),
            (r"\E\a\b\n\v\f\r", b"\x1b\x07\x08\n\x0b\x0c\r"),
            (r"\M- ", b"\xa0"),
        ] {
            assert_eq!(unvis(text.as_bytes()).as_deref(), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn unvis_reports_the_invalid_backslash() {
        assert_eq!(unvis(br"ab\q"), Err(2));
        assert_eq!(unvis(br"ab\"), Err(2));
        assert_eq!(unvis(br"\400"), Err(0));
        assert_eq!(unvis(br"x\M"), Err(1));
    }
}
