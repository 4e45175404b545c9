//! Settings of an encoder (method, level and sizes), their validation, and the match distance that an image announces
//! for them.

use std::fmt;
use std::ops::RangeInclusive;

use crate::Algorithm;

/// Largest input that one cluster may hold. Unit: bytes.
pub const INPUT_MAX: usize = 12 << 20;

/// Range of output sizes that an encoder fills. Unit: bytes.
const CLUSTER: RangeInclusive<usize> = 64..=1 << 20;

/// A compression method. Several methods may write the same [`Algorithm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// LZ4 with a greedy parse.
    Lz4,
    /// LZ4 with a thorough search for long matches.
    Lz4hc,
    /// DEFLATE as libdeflate compresses it.
    Deflate,
    /// MicroLZMA with the encoder of this crate.
    Lzma,
    /// Zstandard with the block writer of this crate.
    Zstd,
}

impl Method {
    /// All methods, in the order of their declaration.
    pub const ALL: [Method; 5] = [
        Method::Lz4,
        Method::Lz4hc,
        Method::Deflate,
        Method::Lzma,
        Method::Zstd,
    ];

    /// Returns the format that the method writes.
    #[must_use]
    pub fn algorithm(self) -> Algorithm {
        match self {
            Method::Lz4 | Method::Lz4hc => Algorithm::Lz4,
            Method::Deflate => Algorithm::Deflate,
            Method::Lzma => Algorithm::Lzma,
            Method::Zstd => Algorithm::Zstd,
        }
    }

    /// Returns the method's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Method::Lz4 => "lz4",
            Method::Lz4hc => "lz4hc",
            Method::Deflate => "deflate",
            Method::Lzma => "lzma",
            Method::Zstd => "zstd",
        }
    }

    /// Returns the method of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Method> {
        Method::ALL.into_iter().find(|method| method.name() == name)
    }

    /// Returns the range of levels.
    ///
    /// LZ4 level 2 is greedy with a larger table: slower than 1, with smaller output. The range of LZMA has a gap: 10
    /// to 99 do not exist, and 100 to 109 are the "extreme" variants of 0 to 9.
    #[must_use]
    pub fn levels(self) -> RangeInclusive<i32> {
        match self {
            Method::Lz4 => 1..=2,
            Method::Lz4hc => 2..=12,
            Method::Deflate => 1..=12,
            Method::Lzma => 0..=109,
            Method::Zstd => 1..=22,
        }
    }

    /// Returns true if the level exists.
    #[must_use]
    pub fn has_level(self, level: i32) -> bool {
        self.levels().contains(&level) && !(self == Method::Lzma && (10..100).contains(&level))
    }

    /// Returns the level used when none is given.
    #[must_use]
    pub fn default_level(self) -> i32 {
        match self {
            Method::Lz4 => 1,
            Method::Lz4hc => 9,
            Method::Deflate | Method::Lzma => 6,
            Method::Zstd => 3,
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Settings that determine the output of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EncoderSpec {
    /// Method, which determines the format of the output.
    pub method: Method,
    /// Compression level, one of [`Method::levels`].
    pub level: i32,
    /// Largest output size that the caller will request. Unit: bytes, 64 to 1 MiB.
    pub cluster: usize,
    /// Largest input that one output may hold. Unit: bytes, at most [`INPUT_MAX`].
    pub input_max: usize,
    /// Largest match distance, if not the method's default. Unit: bytes.
    ///
    /// LZMA accepts 4 KiB to 8 MiB, Zstandard a power of two from 1 KiB to 1 MiB. For other methods it must be
    /// `None`.
    pub dict: Option<usize>,
    /// Unit in which the caller allocates outputs. Unit: bytes, a power of two, at most the cluster.
    ///
    /// An output that holds all remaining input may have any length that takes no more units, and a faster level may
    /// write it. With 1, every byte counts.
    pub unit: usize,
}

/// Reason why an [`EncoderSpec`] is invalid or cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    pub(crate) what: String,
    pub(crate) is_memory: bool,
}

impl SpecError {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            is_memory: false,
        }
    }

    /// Returns true if memory could not be allocated: the settings are valid.
    #[must_use]
    pub fn is_memory(&self) -> bool {
        self.is_memory
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for SpecError {}

impl EncoderSpec {
    /// Returns the method's settings at its default level, for outputs of up to `cluster` bytes with the largest
    /// input allowed.
    #[must_use]
    pub fn new(method: Method, cluster: usize) -> Self {
        Self {
            method,
            level: method.default_level(),
            cluster,
            input_max: INPUT_MAX,
            dict: None,
            unit: 1,
        }
    }

    /// Returns the same settings at another level.
    #[must_use]
    pub fn with_level(self, level: i32) -> Self {
        Self { level, ..self }
    }

    /// Returns the largest match distance. An image announces it, so that readers can size their buffers. Unit:
    /// bytes.
    ///
    /// | algorithm | largest distance |
    /// |---|---|
    /// | LZ4 | 65535 |
    /// | DEFLATE | 32768, which is 15 window bits |
    /// | LZMA | the dictionary: by default 8 clusters, from 32 KiB to 8 MiB |
    /// | Zstandard | the window, a power of two: by default 8 clusters, from 32 KiB to 1 MiB |
    #[must_use]
    pub fn match_distance_max(&self) -> usize {
        match self.method {
            Method::Lz4 | Method::Lz4hc => 65535,
            Method::Deflate => 32768,
            Method::Lzma => self
                .dict
                .unwrap_or_else(|| (8 * self.cluster).clamp(32 << 10, 8 << 20)),
            Method::Zstd => self
                .dict
                // At most 8 clusters: rounding up to the next power of two would make readers' buffers
                // disproportionate.
                .unwrap_or_else(|| {
                    (1 << (8 * self.cluster).max(1).ilog2()).clamp(32 << 10, 1 << 20)
                }),
        }
    }

    /// Validates the settings.
    ///
    /// # Errors
    /// Names the first setting that is out of its range.
    pub fn check(&self) -> Result<(), SpecError> {
        let method = self.method;
        let err = |text: String| Err(SpecError::new(text));
        if !method.has_level(self.level) {
            let (low, high) = (
                method.levels().start().to_owned(),
                method.levels().end().to_owned(),
            );
            return match method {
                Method::Lzma => err(format!(
                    "lzma level {}, expected 0 to 9 or 100 to 109",
                    self.level
                )),
                _ => err(format!(
                    "{method} level {}, expected {low} to {high}",
                    self.level
                )),
            };
        }
        if !CLUSTER.contains(&self.cluster) {
            return err(format!(
                "cluster of {} bytes, expected 64 to 1048576",
                self.cluster
            ));
        }
        if self.input_max == 0 || self.input_max > INPUT_MAX {
            return err(format!(
                "window of {} bytes, expected 1 to {INPUT_MAX}",
                self.input_max
            ));
        }
        if !self.unit.is_power_of_two() || self.unit > self.cluster {
            return err(format!(
                "unit of {} bytes, expected a power of two of at most the cluster, {}",
                self.unit, self.cluster
            ));
        }
        match (method, self.dict) {
            (_, None) => Ok(()),
            (Method::Lzma, Some(dict)) if (4 << 10..=8 << 20).contains(&dict) => Ok(()),
            (Method::Lzma, Some(dict)) => err(format!(
                "lzma dictionary of {dict} bytes, expected 4 KiB to 8 MiB"
            )),
            (Method::Zstd, Some(dict))
                if dict.is_power_of_two() && (1 << 10..=1 << 20).contains(&dict) =>
            {
                Ok(())
            }
            (Method::Zstd, Some(dict)) => err(format!(
                "zstd window of {dict} bytes, expected a power of two from 1 KiB to 1 MiB"
            )),
            (_, Some(_)) => err(format!("{method} has no dictionary size")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_within_the_limits_of_the_format() {
        for method in Method::ALL {
            for cluster in [4096, 16384, 65536, 1 << 20] {
                let spec = EncoderSpec::new(method, cluster);
                assert_eq!(spec.check(), Ok(()));
                let expected = match (method, cluster) {
                    (Method::Lz4 | Method::Lz4hc, _) => 65535,
                    (Method::Deflate, _) => 32768,
                    (_, 4096) => 32768,
                    (_, 16384) => 131072,
                    (_, 65536) => 524288,
                    (Method::Lzma, _) => 8 << 20,
                    (_, _) => 1 << 20,
                };
                assert_eq!(spec.match_distance_max(), expected, "{method} {cluster}");
            }
        }
    }

    #[test]
    fn invalid_settings_are_named_in_the_error() {
        let spec = EncoderSpec::new(Method::Zstd, 4096);
        let text = |spec: EncoderSpec| spec.check().unwrap_err().to_string();
        assert_eq!(text(spec.with_level(0)), "zstd level 0, expected 1 to 22");
        assert_eq!(
            text(EncoderSpec::new(Method::Lzma, 4096).with_level(10)),
            "lzma level 10, expected 0 to 9 or 100 to 109"
        );
        assert_eq!(
            text(EncoderSpec {
                cluster: 63,
                ..spec
            }),
            "cluster of 63 bytes, expected 64 to 1048576"
        );
        assert_eq!(
            text(EncoderSpec {
                input_max: 0,
                ..spec
            }),
            "window of 0 bytes, expected 1 to 12582912"
        );
        assert_eq!(
            text(EncoderSpec {
                dict: Some(3000),
                ..spec
            }),
            "zstd window of 3000 bytes, expected a power of two from 1 KiB to 1 MiB"
        );
        for unit in [0, 3000, 8192] {
            assert_eq!(
                text(EncoderSpec { unit, ..spec }),
                format!(
                    "unit of {unit} bytes, expected a power of two of at most the cluster, 4096"
                )
            );
        }
        assert_eq!(
            text(EncoderSpec {
                method: Method::Deflate,
                level: 6,
                dict: Some(4096),
                ..spec
            }),
            "deflate has no dictionary size"
        );
    }

    #[test]
    fn method_names_parse_back_to_the_method() {
        for method in Method::ALL {
            assert_eq!(Method::from_name(method.name()), Some(method));
        }
        assert_eq!(Method::from_name("xz"), None);
    }
}
