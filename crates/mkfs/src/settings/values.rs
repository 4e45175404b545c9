//! Values of settings: their notations, and the files that some of them name.

use crate::options::{Compression, Rule};
use crate::source::lists::{lines, read_text};
use crate::{Error, Result};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;
use tuff_codec::Method;
use tuff_erofs::serve::Profile;
use tuff_format::BlockBits;
use tuff_format::features::KernelVersion;

pub(super) fn text(text: &str) -> Result<&str> {
    Ok(text)
}

pub(super) fn bytes(text: &str) -> Result<Vec<u8>> {
    Ok(text.into())
}

pub(super) fn flag(text: &str) -> Result<bool> {
    match text {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err(Error::usage("expected on or off")),
    }
}

pub(super) fn number<T: FromStr<Err: Display>>(text: &str) -> Result<T> {
    text.parse().map_err(Error::usage)
}

pub(super) fn number_in(text: &str, range: RangeInclusive<u32>) -> Result<u32> {
    let number = number(text)?;
    if range.contains(&number) {
        return Ok(number);
    }
    let (min, max) = range.into_inner();
    Err(Error::usage(format_args!(
        "{number} is not in {min}..={max}"
    )))
}

pub(super) fn size(text: &str) -> Result<u64> {
    parse_size(text).map_err(Error::usage)
}

pub(super) fn length(text: &str) -> Result<usize> {
    usize::try_from(size(text)?).map_err(|_| Error::usage("the size is too large"))
}

/// Parses a size: a number with an optional suffix K, M, G, T (powers of 1024; a trailing B or iB is fine).
///
/// # Errors
/// Describes text that is not a size.
pub fn parse_size(text: &str) -> std::result::Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => Some(0),
        "k" | "kb" | "kib" => Some(10),
        "m" | "mb" | "mib" => Some(20),
        "g" | "gb" | "gib" => Some(30),
        "t" | "tb" | "tib" => Some(40),
        _ => None,
    };
    let (Some(shift), Ok(number)) = (shift, number.parse::<u64>()) else {
        return Err(format!(
            "'{text}' is not a size; write for example 4096, 64K or 1M"
        ));
    };
    let bytes = number.checked_mul(1 << shift);
    bytes.ok_or_else(|| format!("'{text}' is too large"))
}

pub(super) fn block(text: &str) -> Result<BlockBits> {
    let size = size(text)?;
    if !size.is_power_of_two() || !(512..=65536).contains(&size) {
        let what = "a power of two from 512 to 65536 is needed";
        return Err(Error::usage(what));
    }
    BlockBits::new(size.trailing_zeros() as u8).map_err(Error::usage)
}

pub(super) fn percent(text: &str) -> Result<f64> {
    let percent = number(text)?;
    match (0.0..=100.0).contains(&percent) {
        true => Ok(percent),
        false => Err(Error::usage("from 0 to 100 percent")),
    }
}

/// Parses a version of Linux that can mount images at all.
///
/// # Errors
/// `Usage` for other text.
pub fn parse_kernel(text: &str) -> Result<KernelVersion> {
    match KernelVersion::from_release(text) {
        Some(kernel) if kernel >= KernelVersion::FIRST => Ok(kernel),
        Some(kernel) => Err(Error::usage(format_args!(
            "EROFS images are for Linux {} and newer, not {kernel}",
            KernelVersion::FIRST
        ))),
        None => Err(Error::usage("write it as 6.1, or as uname -r prints it")),
    }
}

/// Parses a UUID, `zero`, or `content` for one that is derived from the content.
///
/// # Errors
/// `Usage` for other text.
pub fn parse_uuid(text: &str) -> Result<Option<[u8; 16]>> {
    match text {
        "content" => return Ok(None),
        "zero" | "clear" => return Ok(Some([0; 16])),
        _ => {}
    }
    let bytes = hex::decode(text.replace('-', "")).ok();
    let uuid = bytes.and_then(|bytes| bytes.try_into().ok());
    uuid.map(Some).ok_or_else(|| {
        Error::usage(format_args!(
            "'{text}' is not a UUID; write 32 hexadecimal digits, zero or content"
        ))
    })
}

/// Parses the salt of a hash tree.
///
/// # Errors
/// `Usage` for other text.
pub fn parse_salt(text: &str) -> Result<Vec<u8>> {
    match hex::decode(text) {
        Ok(bytes) if bytes.len() <= 256 => Ok(bytes),
        Ok(_) => Err(Error::usage("a salt has at most 256 bytes")),
        Err(_) => Err(Error::usage("the salt is not a row of hexadecimal digits")),
    }
}

/// Parses the block size of a hash tree.
///
/// # Errors
/// `Usage` for other text.
pub fn parse_verity_block(text: &str) -> Result<u32> {
    match u32::try_from(size(text)?) {
        Ok(n) if n.is_power_of_two() && (512..=4096).contains(&n) => Ok(n),
        _ => Err(Error::usage("a power of two from 512 to 4096 is needed")),
    }
}

impl Compression {
    /// Parses `none`, or an algorithm with an optional level: `zstd`, `zstd:9`, `zstd,9` or `zstd,level=9`.
    ///
    /// # Errors
    /// `Usage` for an unknown algorithm, or for a level that it lacks.
    pub fn parse(text: &str) -> Result<Option<Self>> {
        if matches!(text, "none" | "stored") {
            return Ok(None);
        }
        let (name, level) = match text.split_once([':', ',']) {
            Some((name, level)) => (name, Some(level.trim_start_matches("level="))),
            None => (text, None),
        };
        let method = Method::from_name(name).ok_or_else(|| {
            Error::usage(format_args!(
                "'{name}' is not an algorithm; known are none, lz4, lz4hc, deflate, lzma and zstd"
            ))
        })?;
        let parsed = level.map_or(Some(method.default_level()), |level| level.parse().ok());
        let valid = parsed.filter(|level| method.has_level(*level));
        let level = valid.ok_or_else(|| {
            let levels = match (method, method.levels().into_inner()) {
                (Method::Lzma, _) => "0 to 9, and 100 to 109 for their extreme forms".to_owned(),
                (_, (low, high)) => format!("{low} to {high}"),
            };
            let given = level.unwrap_or_default();
            Error::usage(format_args!(
                "{name} has no level '{given}'; it has {levels}"
            ))
        })?;
        Ok(Some(Self {
            method,
            level,
            dict: None,
        }))
    }
}

/// Parses the rule `GLOB=ALG[:LEVEL][,CLUSTER]`.
pub(super) fn rule(text: &str) -> Result<Rule> {
    let (pattern, settings) = text
        .rsplit_once('=')
        .ok_or_else(|| Error::usage("write GLOB=ALG[:LEVEL][,CLUSTER]"))?;
    let (algorithm, cluster) = match settings.split_once(',') {
        Some((algorithm, cluster)) => (algorithm, Some(length(cluster)?)),
        None => (settings, None),
    };
    Ok(Rule {
        paths: glob(pattern)?.compile_matcher().into(),
        compression: Compression::parse(algorithm)?,
        cluster,
    })
}

/// Returns a matcher of any of the patterns.
pub(super) fn glob_set<'a>(patterns: impl Iterator<Item = &'a str>) -> Result<globset::GlobSet> {
    let mut set = globset::GlobSetBuilder::new();
    for pattern in patterns {
        set.add(glob(pattern)?);
    }
    let built = set.build();
    built.map_err(|e| Error::usage(format_args!("patterns: {e}")))
}

/// Parses a pattern. Without a slash it matches names anywhere, with one it matches paths from the root.
pub(super) fn glob(pattern: &str) -> Result<globset::Glob> {
    let path = pattern.trim_end_matches('/').trim_start_matches("./");
    let anchored = match path.strip_prefix('/') {
        Some(path) => path.to_owned(),
        None if path.contains('/') || pattern.starts_with("./") => path.to_owned(),
        None => format!("**/{path}"),
    };
    let built = globset::GlobBuilder::new(&anchored)
        .literal_separator(true)
        .backslash_escape(true)
        .build();
    built.map_err(|e| Error::usage(format_args!("pattern '{pattern}': {}", e.kind())))
}

/// Reads the paths of a list or a profile, in order.
pub(super) fn order(file: &Path) -> Result<Vec<Vec<u8>>> {
    let text = read_text(file)?;
    // A profile of another version is not a list either.
    if text.starts_with(b"tuff profile ") {
        let profile = Profile::parse(&text).map_err(|e| e.within(file.display()))?;
        return Ok(profile.paths());
    }
    let path = |line: String| line.trim_start_matches("./").trim_matches('/').into();
    Ok(lines(&text).into_iter().map(path).collect())
}

/// Converts a mount point to the form of the options: empty, or with a leading slash.
pub fn mount_point(path: &[u8]) -> Vec<u8> {
    match path.strip_prefix(b"/").unwrap_or(path) {
        [] => Vec::new(),
        inside => [b"/", inside].concat(),
    }
}
