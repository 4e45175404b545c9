//! Text encodings that tar records and manifests use for names and values.

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

/// Value of a hexadecimal digit.
pub(super) fn hex_digit(c: u8) -> Option<u8> {
    // Fits: below 16.
    char::from(c).to_digit(16).map(|digit| digit as u8)
}

/// Decodes pairs of hexadecimal digits. Returns `None` for other text.
pub(super) fn hex(text: &[u8]) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs
        .iter()
        .map(|&[high, low]| Some(hex_digit(high)? << 4 | hex_digit(low)?))
        .collect()
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
            && let [high, low, after @ ..] = tail
            && let (Some(high), Some(low)) = (hex_digit(*high), hex_digit(*low))
            && which(high << 4 | low)
        {
            out.push(high << 4 | low);
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
    fn hex_requires_pairs() {
        assert_eq!(hex(b"00fFaB"), Some(vec![0x00, 0xff, 0xab]));
        assert_eq!(hex(b""), Some(vec![]));
        assert_eq!(hex(b"abc"), None);
        assert_eq!(hex(b"zz"), None);
    }

    #[test]
    fn percent_decodes_only_the_selected_bytes() {
        assert_eq!(
            percent(b"a%3Db%25%41%", |b| b == b'=' || b == b'%'),
            b"a=b%%41%"
        );
        assert_eq!(percent(b"%41%4", |_| true), b"A%4");
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
