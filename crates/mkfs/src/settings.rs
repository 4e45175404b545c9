//! Options by name, for bindings to other languages.

use crate::options::{Compression, Dedupe, Fragments, Options};
use crate::{Error, Result};
use tuff_codec::Method;
use tuff_format::features::KernelVersion;

impl Options {
    /// Returns options from names and values, as bindings to other languages pass them. They are the options of
    /// `tuff build` with these names:
    ///
    /// | name | value |
    /// |---|---|
    /// | `kernel` | oldest Linux that must mount the image, such as `6.1`; without it, the oldest that supports the other options |
    /// | `compress` | `none`, or an algorithm and optionally a level, such as `zstd`, `lz4hc:12` or `lz4hc,12` |
    /// | `cluster` | largest cluster in bytes |
    /// | `dedupe` | `off`, `files` or `content` |
    /// | `fragments` | `off`, `tails`, `small` or `all` |
    /// | `timestamp` | modification time of all inodes in seconds since 1970 |
    /// | `uid`, `gid` | owner and group of all inodes |
    /// | `label` | volume label of at most 15 bytes |
    /// | `threads` | number of worker threads |
    ///
    /// ```
    /// use tuff_mkfs::{KernelVersion, Options};
    ///
    /// let options = Options::from_settings([("compress", "zstd,15"), ("cluster", "131072")])?;
    /// assert_eq!(options.kernel, KernelVersion(6, 10));
    /// assert!(Options::from_settings([("kernel", "6.1"), ("compress", "zstd")])?.check().is_err());
    /// # Ok::<(), tuff_mkfs::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Usage` for an unknown name or an invalid value. [`Options::check`] finds options that contradict each other.
    pub fn from_settings<'a>(
        settings: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self> {
        let settings: Vec<(&str, &str)> = settings.into_iter().collect();
        let kernel = settings.iter().rev().find(|(name, _)| *name == "kernel");
        let kernel = kernel.map(|(_, text)| parse_kernel(text)).transpose()?;
        let mut options = Self::for_kernel(kernel.unwrap_or(Self::default().kernel));
        // The algorithm limits the cluster, and the cluster determines that of fragments.
        let rank = |name: &str| ["compress", "cluster"].iter().position(|n| *n == name);
        let mut ordered = settings;
        ordered.sort_by_key(|(name, _)| rank(name).unwrap_or(usize::MAX));
        for (name, value) in ordered {
            options.set(name, value)?;
        }
        if kernel.is_none() {
            options.raise_kernel();
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "kernel" => {}
            "compress" => {
                let parsed = Compression::parse(value);
                self.compression.default = parsed.map_err(|e| e.within("compress"))?;
                self.fit_clusters();
            }
            "cluster" => self.set_cluster(number(name, value)?),
            "dedupe" => {
                let modes = [
                    ("off", Dedupe::Off),
                    ("files", Dedupe::Files),
                    ("content", Dedupe::Content),
                ];
                self.dedupe.mode = choice(name, value, &modes)?;
            }
            "fragments" => {
                let modes = [
                    ("off", Fragments::Off),
                    ("tails", Fragments::Tails),
                    ("small", Fragments::Small),
                    ("all", Fragments::All),
                ];
                self.layout.fragments = choice(name, value, &modes)?;
            }
            "timestamp" => self.metadata.timestamp = Some(number(name, value)?),
            "uid" => self.metadata.uid = Some(number(name, value)?),
            "gid" => self.metadata.gid = Some(number(name, value)?),
            "label" => self.metadata.label = value.into(),
            "threads" => self.resources.threads = Some(number::<usize>(name, value)?.max(1)),
            _ => {
                return Err(Error::usage(format_args!(
                    "{name} is not an option; known are kernel, compress, cluster, dedupe, fragments, timestamp, uid, gid, label and threads"
                )));
            }
        }
        Ok(())
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T> {
    value
        .parse()
        .map_err(|_| Error::usage(format_args!("{name} {value}: expected a number in range")))
}

fn choice<T: Copy>(name: &str, value: &str, choices: &[(&str, T)]) -> Result<T> {
    let found = choices.iter().find(|(choice, _)| *choice == value);
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let known: Vec<&str> = choices.iter().map(|(choice, _)| *choice).collect();
        Error::usage(format_args!(
            "{name} {value}: expected one of {}",
            known.join(", ")
        ))
    })
}

fn parse_kernel(text: &str) -> Result<KernelVersion> {
    KernelVersion::from_release(text)
        .filter(|kernel| *kernel >= KernelVersion::FIRST)
        .ok_or_else(|| {
            Error::usage(format_args!(
                "kernel {text}: expected a version such as 6.1, from {} on",
                KernelVersion::FIRST
            ))
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_settings_does_not_matter() {
        let of = |settings: &[(&'static str, &'static str)]| {
            let options = Options::from_settings(settings.iter().copied()).unwrap();
            let cluster = options.compression.cluster;
            (options.kernel, cluster, options.compression.default)
        };
        let one = of(&[
            ("cluster", "16384"),
            ("compress", "lzma"),
            ("kernel", "6.12"),
        ]);
        let other = of(&[
            ("kernel", "6.12"),
            ("compress", "lzma"),
            ("cluster", "16384"),
        ]);
        assert_eq!(one, other);
        assert_eq!(one.0, KernelVersion(6, 12));
        assert_eq!(one.1, 16384);
    }

    #[test]
    fn algorithms_and_levels_are_checked() {
        let level = |text| Compression::parse(text).map(|parsed| parsed.map(|c| c.level));
        for text in ["zstd:15", "zstd,15", "zstd,level=15"] {
            assert_eq!(level(text).unwrap(), Some(15), "{text}");
        }
        assert_eq!(level("lzma:109").unwrap(), Some(109));
        assert_eq!(level("none").unwrap(), None);
        for (text, wanted) in [
            ("lz5", "'lz5' is not an algorithm"),
            ("lz4hc:13", "lz4hc has no level '13'; it has "),
            ("lzma:50", "100 to 109"),
            ("zstd:fast", "no level 'fast'"),
        ] {
            let said = level(text).unwrap_err().to_string();
            assert!(said.contains(wanted), "{said}");
        }
    }

    #[test]
    fn unknown_names_and_values_are_named() {
        for (name, value) in [
            ("colour", "blue"),
            ("kernel", "5.3"),
            ("compress", "zip"),
            ("compress", "zstd,99"),
            ("cluster", "-1"),
            ("dedupe", "on"),
            ("uid", "root"),
        ] {
            let error = Options::from_settings([(name, value)]).err().unwrap();
            let text = error.to_string();
            assert!(matches!(error, Error::Usage(_)), "{text}");
            assert!(text.starts_with(name), "{text}");
        }
    }
}
