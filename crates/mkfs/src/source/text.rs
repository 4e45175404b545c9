//! Text encodings that tar records and manifests use for names and values.

use hex::FromHex;

/// Decodes base64 of the standard alphabet. Padding is optional. Returns `None` for invalid text.
pub(super) fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let body = match text {
        [body @ .., b'=', b'='] if text.len().is_multiple_of(4) => body,
        [body @ .., b'='] if text.len().is_multiple_of(4) => body,
        body => body,
    };
    let mut out = Vec::with_capacity(body.len() / 4 * 3 + 2);
    for group in body.chunks(4) {
        let mut bits = 0u32;
        for &c in group {
            bits = bits << 6 | u32::from(base64_digit(c)?);
        }
        match group.len() {
            4 => out.extend_from_slice(&[(bits >> 16) as u8, (bits >> 8) as u8, bits as u8]),
            3 if bits & 0b11 == 0 => {
                out.extend_from_slice(&[(bits >> 10) as u8, (bits >> 2) as u8]);
            }
            2 if bits & 0b1111 == 0 => out.push((bits >> 4) as u8),
            _ => return None,
        }
    }
    Some(out)
}

fn base64_digit(c: u8) -> Option<u8> {
    match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

/// Decodes `%XX`. A percent sign without two hexadecimal digits is kept.
///
/// `which` selects the decoded bytes that count: GNU tar encodes only `%` and `=`, and keeps any
/// other `%41`.
pub(super) fn percent(text: &[u8], which: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        if *first == b'%'
            && let Some((digits, after)) = tail.split_at_checked(2)
            && let Ok(byte) = <[u8; 1]>::from_hex(digits)
            && which(byte[0])
        {
            out.push(byte[0]);
            rest = after;
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    out
}

/// Parses a decimal number without a sign, at most 2^63 - 1.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    let digits = text.iter().all(u8::is_ascii_digit);
    let value: i64 = str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()?;
    u64::try_from(value).ok()
}

/// Like [`decimal`], with an optional minus sign.
pub(super) fn signed_decimal(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let value = i64::try_from(decimal(digits)?).ok()?;
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_decodes_with_and_without_padding() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zg", b"f"),
            ("Zm8=", b"fo"),
            ("Zm8", b"fo"),
            ("Zm9v", b"foo"),
            ("/+8A", b"\xff\xef\x00"),
        ] {
            assert_eq!(base64(text.as_bytes()).as_deref(), Some(bytes), "{text}");
        }
    }

    #[test]
    fn invalid_base64_is_rejected() {
        for text in [
            "Z", "Zg=", "Zg===", "Z g=", "Zh==", "Zm9", "=", "====", "Zm9v\n", "_-_-",
        ] {
            assert_eq!(base64(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn percent_decodes_only_the_selected_bytes() {
        assert_eq!(
            percent(b"a%3Db%25%41%", |b| b == b'=' || b == b'%'),
            b"a=b%%41%"
        );
        assert_eq!(percent(b"%41%4%+f", |_| true), b"A%4%+f");
    }

    #[test]
    fn decimal_stops_at_the_largest_signed_number() {
        assert_eq!(decimal(b"9223372036854775807"), Some(i64::MAX as u64));
        assert_eq!(decimal(b"9223372036854775808"), None);
        assert_eq!(decimal(b""), None);
        assert_eq!(decimal(b"+1"), None);
        assert_eq!(signed_decimal(b"-12"), Some(-12));
        assert_eq!(signed_decimal(b"-"), None);
    }
}
