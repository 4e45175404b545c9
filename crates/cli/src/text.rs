//! Formats names, modes and times for users and scripts.

use serde_json::{Map, Value};
use tuff_erofs::read::FileType;

/// Appends `bytes` as one line: control characters, backslashes and invalid UTF-8 are escaped as in C.
pub(crate) fn escape(bytes: &[u8], out: &mut String) {
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\r' => out.push_str("\\r"),
                '\\' => out.push_str("\\\\"),
                c if c.is_control() || ('\u{2028}'..='\u{202e}').contains(&c) => {
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

/// Escapes a path below a directory; the directory itself is `/`.
pub(crate) fn escaped_path(path: &[u8]) -> String {
    match path {
        b"" => "/".to_owned(),
        path => escaped(path),
    }
}

/// Escapes control characters, so that the text is one line and does not affect a terminal; backslashes are kept.
pub(crate) fn escaped_line(text: &str) -> String {
    let clean = |c: char| -> String {
        if c.is_control() {
            c.escape_default().to_string()
        } else {
            c.to_string()
        }
    };
    text.chars().map(clean).collect()
}

/// Adds bytes to a JSON object as a string. Bytes that are not UTF-8 are also added in hexadecimal as `KEY_hex`.
pub(crate) fn put_bytes(object: &mut Map<String, Value>, key: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => _ = object.insert(key.to_owned(), text.into()),
        Err(_) => {
            let lossy = String::from_utf8_lossy(bytes).into_owned();
            object.insert(key.to_owned(), lossy.into());
            object.insert(format!("{key}_hex"), hex(bytes).into());
        }
    }
}

/// Formats bytes in hexadecimal, two digits each.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Parses the output of [`hex`].
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        // Fits: two digits.
        [high, low] => Some((digit(high)? << 4 | digit(low)?) as u8),
        _ => None,
    });
    pairs.collect()
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
    let t = civil(seconds);
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}",
        t[0], t[1], t[2], t[3], t[4], t[5]
    )
}

/// Formats a time in UTC with nanoseconds: `2024-01-02T03:04:05.123456789Z`.
pub(crate) fn full_time((seconds, nanos): (i64, u32)) -> String {
    let t = civil(seconds);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{nanos:09}Z",
        t[0], t[1], t[2], t[3], t[4], t[5]
    )
}

/// Formats a time in UTC like ctime(3): `Tue Jan  2 03:04:05 2024`.
pub(crate) fn c_time(seconds: i64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let t = civil(seconds);
    // Fits: the remainder is below 7, and a month is 1 to 12. 1970 began on a Thursday.
    let day = DAYS[seconds.div_euclid(86400).rem_euclid(7) as usize];
    let month = MONTHS[(t[1] - 1) as usize];
    format!(
        "{day} {month} {:>2} {:02}:{:02}:{:02} {}",
        t[2], t[3], t[4], t[5], t[0]
    )
}

/// Converts a time to year, month, day, hour, minute and second of the Gregorian calendar, in UTC.
fn civil(seconds: i64) -> [i64; 6] {
    let (days, rest) = (seconds.div_euclid(86400), seconds.rem_euclid(86400));
    // Years start in March here, so that the leap day is the last of a year; eras are 400 years, 146,097 days.
    let from_march = days + 719_468;
    let (era, day) = (
        from_march.div_euclid(146_097),
        from_march.rem_euclid(146_097),
    );
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    [year, month, date, rest / 3600, rest / 60 % 60, rest % 60]
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
        for extreme in [i64::MIN, i64::MAX] {
            assert!(!time(extreme).is_empty(), "no overflow");
            assert!(!c_time(extreme).is_empty(), "no overflow");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_there_twice() {
        let mut object = Map::new();
        put_bytes(&mut object, "path", b"a\xff");
        assert_eq!(object["path"], "a\u{fffd}");
        assert_eq!(object["path_hex"], "61ff");
    }
}
