//! Options by name, for the command and for bindings to other languages.
//!
//! One [table](SETTINGS) has name, form, range, default and description of each setting. A new option is a field of
//! [`Options`] and a row of the table.

mod table;
mod values;

pub use table::{Form, SETTINGS, Setting};
pub use values::{
    mount_point, parse_kernel, parse_salt, parse_size, parse_uuid, parse_verity_block,
};

use crate::options::Fragments;
use crate::options::Options;
use crate::source::lists::{lines, read_text};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use tuff_format::BlockBits;
use tuff_format::features::Feature;

/// Values of settings of a build.
///
/// ```
/// use tuff_mkfs::settings::Settings;
///
/// let mut settings = Settings::default();
/// settings.set("compress", "zstd:15")?;
/// settings.set("no-xattrs", "on")?;
/// assert!(!settings.options()?.metadata.xattrs);
/// # Ok::<(), tuff_mkfs::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Values by position in the table.
    values: BTreeMap<usize, Vec<OsString>>,
    /// Prefix of names in messages.
    prefix: &'static str,
}

impl Settings {
    /// Returns no settings. Messages have `prefix` before names.
    pub fn with_prefix(prefix: &'static str) -> Self {
        let values = BTreeMap::new();
        Self { values, prefix }
    }

    /// Sets a setting to a value, or adds the value if the setting may have several.
    ///
    /// # Errors
    /// `Usage` for an unknown name or an invalid value.
    pub fn set(&mut self, name: &str, value: impl AsRef<OsStr>) -> Result<()> {
        let value = value.as_ref();
        let Some(setting) = Setting::find(name) else {
            let known: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
            return Err(Error::usage(format_args!(
                "{name} is not an option; known are {}",
                known.join(", ")
            )));
        };
        let checked = setting.check(value);
        checked.map_err(|e| self.wrong(name, &format!("{}: {}", value.display(), e.what())))?;
        let values = self.values.entry(position(name)).or_default();
        if !setting.repeats {
            values.clear();
        }
        // A flag that is off is absent.
        if setting.form != Form::Flag || value == "on" || value == "true" {
            values.push(value.to_owned());
        }
        Ok(())
    }

    /// Returns the values of a setting of the table.
    pub fn all(&self, name: &str) -> &[OsString] {
        self.values.get(&position(name)).map_or(&[], Vec::as_slice)
    }

    /// Returns the value of a setting of the table.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.all(name).last().map(OsString::as_os_str)
    }

    /// Returns true if a setting of the table has a value. A flag that is off has none.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Checks that no settings contradict each other.
    ///
    /// # Errors
    /// `Usage` with the names of two settings.
    pub fn check(&self) -> Result<()> {
        let given = SETTINGS.iter().filter(|setting| self.has(setting.name));
        for setting in given {
            if let Some(other) = setting.conflicts.iter().find(|other| self.has(other)) {
                let what = format!("cannot be used with {}{other}", self.prefix);
                return Err(self.wrong(setting.name, &what));
            }
            if let Some(needed) = setting.needs.filter(|needed| !self.has(needed)) {
                let what = format!("you need {}{needed} as well", self.prefix);
                return Err(self.wrong(setting.name, &what));
            }
        }
        Ok(())
    }

    /// Returns the options, for the kernel that is set or the oldest one that supports the other options.
    ///
    /// # Errors
    /// `Usage` for settings that contradict each other, as far as [`Options::check`] does not find them. Errors of
    /// reading the files that settings name.
    pub fn options(&self) -> Result<Options> {
        self.check()?;
        let mut options = Options::default();
        for (position, values) in &self.values {
            for value in values {
                (SETTINGS[*position].apply)(&mut options, value)?;
            }
        }
        if self.has("dict") && !options.has_dict() {
            let what = "only LZMA and Zstandard have a dictionary; choose one of them";
            return Err(self.wrong("dict", what));
        }
        self.adapt(&mut options)?;
        if !self.has("kernel") {
            options.raise_kernel();
        }
        Ok(options)
    }

    /// Sets the options that depend on the absence of settings, or on all values of several.
    fn adapt(&self, o: &mut Options) -> Result<()> {
        if self.has("tar-index") && !self.has("block-size") {
            o.block = BlockBits::new(9).map_err(Error::usage)?;
        }
        // Fragments and tail packing both store tails. Enabling one alone disables the other.
        match (self.has("fragments"), self.has("tail-packing")) {
            (false, true) if o.layout.tail_packing => o.layout.fragments = Fragments::Off,
            (true, false) => {
                let has_tails = matches!(o.layout.fragments, Fragments::Tails | Fragments::All);
                let can = o.kernel.supports(Feature::ZTAILPACKING) && !self.has("unaligned");
                o.layout.tail_packing = can && !has_tails;
            }
            _ => {}
        }
        // An automatic choice may enable it, but tail packing was requested explicitly.
        o.layout.unaligned &= self.has("unaligned") || !o.layout.tail_packing;
        let mut patterns = self.all("exclude").to_vec();
        for file in self.all("exclude-from") {
            patterns.extend(
                lines(&read_text(file.as_ref())?)
                    .into_iter()
                    .map(Into::into),
            );
        }
        o.sources.exclude = values::glob_set(patterns.iter().filter_map(|p| p.to_str()))?;
        Ok(())
    }

    fn wrong(&self, name: &str, what: &str) -> Error {
        Error::usage(format_args!("{}{name}: {what}", self.prefix))
    }
}

/// Position of a setting in the table.
fn position(name: &str) -> usize {
    let found = SETTINGS.iter().position(|setting| setting.name == name);
    found.expect("the name is in the table")
}

impl Options {
    /// Returns options from [`SETTINGS`], by names and values, as bindings to other languages pass them.
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
    /// As for [`Settings::set`] and [`Settings::options`]. [`Options::check`] finds options that contradict each other.
    pub fn from_settings<'a>(
        settings: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self> {
        let mut given = Settings::default();
        for (name, value) in settings {
            given.set(name, value)?;
        }
        given.options()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Compression, EXPANSION_MAX, KernelVersion};

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
        for (text, expected) in [
            ("lz5", "'lz5' is not an algorithm"),
            ("lz4hc:13", "lz4hc has no level '13'; it has "),
            ("lzma:50", "100 to 109"),
            ("zstd:fast", "no level 'fast'"),
        ] {
            let message = level(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
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
            ("dedupe", "some"),
            ("uid", "root"),
            ("threads", "0"),
            ("no-xattrs", "maybe"),
        ] {
            let error = Options::from_settings([(name, value)]).err().unwrap();
            let text = error.to_string();
            assert!(matches!(error, Error::Usage(_)), "{text}");
            assert!(text.starts_with(name), "{text}");
        }
    }

    #[test]
    fn settings_that_contradict_each_other_are_named() {
        for (settings, expected) in [
            (
                &[("all-root", "on"), ("uid", "0")][..],
                "all-root: cannot be used with uid",
            ),
            (
                &[("verity-fec", "2")],
                "verity-fec: you need verity as well",
            ),
            (
                &[("compress", "lz4"), ("dict", "64K")],
                "dict: only LZMA and Zstandard",
            ),
        ] {
            let error = Options::from_settings(settings.iter().copied())
                .err()
                .unwrap();
            assert!(error.to_string().starts_with(expected), "{error}");
        }
        let off = [("all-root", "off"), ("uid", "7")];
        assert_eq!(Options::from_settings(off).unwrap().metadata.uid, Some(7));
    }

    #[test]
    fn rows_of_the_table_are_consistent() {
        let mut names = std::collections::BTreeSet::new();
        for setting in SETTINGS {
            assert!(names.insert(setting.name), "{}", setting.name);
            assert!(setting.help().len() > 10, "{}", setting.name);
            let needs = setting.needs.iter();
            for other in setting.conflicts.iter().chain(needs) {
                assert!(Setting::find(other).is_some(), "{other}");
            }
            let values = setting.choices.iter().chain(&setting.default);
            for value in values.chain(&setting.value_if_missing) {
                setting.check(value.as_ref()).unwrap();
            }
        }
        let expansion = Setting::find("max-expansion").unwrap().default;
        assert_eq!(expansion, Some(EXPANSION_MAX.to_string().as_str()));
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64K"), Ok(65536));
        assert_eq!(parse_size("1MiB"), Ok(1 << 20));
        for text in ["x", "", "12Q", "99999999999999T"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn releases_of_kernels_are_versions() {
        for (text, kernel) in [
            ("5.4", Some(KernelVersion(5, 4))),
            ("6.12", Some(KernelVersion(6, 12))),
            ("6.12.0", Some(KernelVersion(6, 12))),
            ("6.18.44-fc-v657", Some(KernelVersion(6, 18))),
            ("6.1.0-18-amd64", Some(KernelVersion(6, 1))),
            ("6.15-rc3", Some(KernelVersion(6, 15))),
            ("6.6+", Some(KernelVersion(6, 6))),
            ("4.19.0-26-amd64", None),
            ("6", None),
            ("6.", None),
            ("six.1", None),
            ("6.1x", None),
            ("-6.1", None),
            ("+6.1", None),
            ("", None),
        ] {
            assert_eq!(parse_kernel(text).ok(), kernel, "{text}");
        }
    }

    #[test]
    fn uuids_are_read() {
        let uuid = parse_uuid("00112233-4455-6677-8899-aabbccddeeff").unwrap();
        assert_eq!(uuid.unwrap()[15], 0xff);
        assert!(parse_uuid("0011").is_err());
        assert!(parse_uuid("zz112233-4455-6677-8899-aabbccddeeff").is_err());
    }

    #[test]
    fn patterns_without_a_slash_match_anywhere() {
        let patterns = ["*.o", "/var/log/*", "usr/doc/"].map(|pattern| ("exclude", pattern));
        let set = Options::from_settings(patterns).unwrap().sources.exclude;
        for path in ["a.o", "x/y/a.o", "var/log/x", "usr/doc"] {
            assert!(set.is_match(path), "{path}");
        }
        for path in ["a.c", "x/var/log/y", "var/log/x/y"] {
            assert!(!set.is_match(path), "{path}");
        }
    }
}
