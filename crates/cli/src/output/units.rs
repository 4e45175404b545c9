//! Formats and parses sizes and shares.

pub(crate) use tuff_mkfs::settings::parse_size;

/// Page size that a kernel needs for blocks larger than usual pages. Returns `None` for other blocks.
pub(crate) fn pages_needed(block_size: u64) -> Option<String> {
    let kib = block_size >> 10;
    (block_size > 4096).then(|| format!("with pages of {kib} KiB or more"))
}

/// Formats a size with three or four digits and a unit.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    // 1023.96 would be shown as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Formats a number with its noun: "1 error", "2 errors".
pub(crate) fn counted(number: impl TryInto<u64>, noun: &str) -> String {
    // Fits: counts have at most 64 bits.
    let number = number.try_into().unwrap_or(u64::MAX);
    match number {
        1 => format!("1 {noun}"),
        n => format!("{n} {noun}s"),
    }
}

/// Formats a share in percent. Shares of next to nothing say nothing: they are "> 999 %". A part that is not 0 is not shown as 0.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let share = part as f64 * 100.0 / whole as f64;
    match part {
        0 => "0.0 %".to_owned(),
        _ if share >= 999.95 => "> 999 %".to_owned(),
        _ if share < 0.05 => "< 0.1 %".to_owned(),
        _ if part < whole && share >= 99.95 => "99.9 %".to_owned(),
        _ => format!("{share:.1} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size((1 << 20) - 1), "1.0 MiB");
        assert_eq!(size(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn shares_are_readable_numbers() {
        for (part, whole, expected) in [
            (1, 2, "50.0 %"),
            (0, 7, "0.0 %"),
            (7, 7, "100.0 %"),
            (3, 2, "150.0 %"),
            (1, u64::MAX, "< 0.1 %"),
            (u64::MAX - 1, u64::MAX, "99.9 %"),
            (99_999, 100_000, "99.9 %"),
            (88_666_112, 1, "> 999 %"),
            (5, 0, "-"),
        ] {
            assert_eq!(percent(part, whole), expected, "{part} of {whole}");
        }
    }
}
