//! Owners, modes and capabilities by path, from a canned `fs_config` file of Android.
//!
//! A line has a path, a user, a group, an octal mode, and optionally `capabilities=0x...`. The path
//! includes the mount point and has no leading slash. The path of the root is the mount point, `/`,
//! or empty (the line begins with a blank). As in Android's loader, a path may be quoted, with `\` before a quote or
//! a backslash, bits of the mode above 07777 are ignored, and so are further words.

use crate::source::error::SourceError;
use crate::{Error, Result};
use hashbrown::HashMap;
use std::borrow::Cow;

/// Name of the extended attribute with capabilities.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// Owners, modes and capabilities by path.
#[derive(Clone, Debug)]
pub struct FsConfig {
    entries: HashMap<Vec<u8>, Owner>,
}

/// Settings of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u16,
    capabilities: u64,
}

impl Owner {
    /// Value of the extended attribute: `vfs_cap_data` of revision 2, permitted and effective.
    /// `None` without capabilities.
    pub(crate) fn capability(&self) -> Option<Vec<u8>> {
        const REVISION_2_EFFECTIVE: u32 = 0x0200_0001;
        // Lower and upper 32 capabilities.
        let [low, high] = [self.capabilities as u32, (self.capabilities >> 32) as u32];
        let words = [REVISION_2_EFFECTIVE, low, 0, high, 0];
        (self.capabilities != 0).then(|| words.iter().flat_map(|w| w.to_le_bytes()).collect())
    }
}

impl FsConfig {
    /// Parses a canned `fs_config` file. `name` appears in messages.
    ///
    /// # Errors
    ///
    /// Fails with the number of the first invalid line.
    pub fn parse(name: &str, text: &[u8]) -> Result<Self> {
        let mut entries = HashMap::new();
        for (i, line) in text.split(|b| *b == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.trim_ascii().is_empty() || line.starts_with(b"#") {
                continue;
            }
            let (path, rest) = split_path(line);
            let owner = parse(rest).ok_or_else(|| {
                let what = "expected a path, a user, a group, an octal mode and perhaps capabilities=NUMBER";
                Error::from(SourceError::corrupt(what).at_line(i as u64 + 1).in_source(name))
            })?;
            entries.insert(trimmed(&path).to_vec(), owner);
        }
        Ok(Self { entries })
    }

    /// Settings of a path relative to the mount point. Both may begin with a slash.
    pub(crate) fn owner(&self, mount_point: &[u8], path: &[u8]) -> Option<Owner> {
        let mount_point = trimmed(mount_point);
        let found = if path.is_empty() {
            self.entries
                .get(mount_point)
                .or_else(|| self.entries.get(&b""[..]))
        } else if mount_point.is_empty() {
            self.entries.get(path)
        } else {
            self.entries.get(&[mount_point, path].join(&b'/'))
        };
        found.copied()
    }
}

fn trimmed(mut path: &[u8]) -> &[u8] {
    while let Some(rest) = path.strip_prefix(b"/") {
        path = rest;
    }
    path.strip_suffix(b"/").unwrap_or(path)
}

/// Splits the path off a line.
fn split_path(line: &[u8]) -> (Cow<'_, [u8]>, &[u8]) {
    let Some(quoted) = line.strip_prefix(b"\"") else {
        let end = line.iter().position(u8::is_ascii_whitespace);
        let (path, rest) = line.split_at(end.unwrap_or(line.len()));
        return (path.into(), rest);
    };
    let mut path = Vec::new();
    let mut bytes = quoted.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => break,
            b'\\' => path.extend(bytes.next()),
            byte => path.push(*byte),
        }
    }
    (path.into(), bytes.as_slice())
}

fn parse(rest: &[u8]) -> Option<Owner> {
    let mut words = rest
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let mut number = || std::str::from_utf8(words.next()?).ok();
    let (uid, gid) = (number()?.parse().ok()?, number()?.parse().ok()?);
    let mode = u32::from_str_radix(number()?, 8).ok()?;
    let capabilities = words.find_map(|word| word.strip_prefix(b"capabilities="));
    let capabilities = match capabilities.map(std::str::from_utf8) {
        None => 0,
        Some(value) => {
            let value = value.ok()?;
            match value.strip_prefix("0x").or(value.strip_prefix("0X")) {
                Some(hex) => u64::from_str_radix(hex, 16).ok()?,
                None => value.parse().ok()?,
            }
        }
    };
    Some(Owner {
        uid,
        gid,
        // Fits: 12 bits.
        mode: (mode & 0o7777) as u16,
        capabilities,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_get_the_owner_of_their_line() {
        let text = b" 0 0 0755\nsystem/bin 0 2000 0751\r\nsystem/bin/run 0 2000 0750 capabilities=0xc0\n# no\n";
        let config = FsConfig::parse("f", text).unwrap();
        let owner = |path: &str| config.owner(b"/system", path.as_bytes());
        assert_eq!(owner("").map(|o| o.mode), Some(0o755));
        assert_eq!(owner("bin").map(|o| (o.gid, o.mode)), Some((2000, 0o751)));
        assert_eq!(owner("bin").unwrap().capability(), None);
        assert_eq!(
            owner("bin/run").unwrap().capability().unwrap(),
            [
                1, 0, 0, 2, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
            ]
        );
        assert_eq!(owner("etc"), None);
        assert_eq!(config.owner(b"", b"system/bin"), owner("bin"));
    }

    /// Regression: such lines were refused, which Android's loader takes.
    #[test]
    fn lines_are_read_as_androids_loader_reads_them() {
        let text = br#"system/a 0 0 100755 capabilities=0x10 selabel=u:object_r:x:s0 /l=libx.so
"system/with space" 1 2 0644
"system/\"quoted\"" 3 4 0600 \xff
system/l 0 2000 0644 libx.so
"#;
        let config = FsConfig::parse("f", text).unwrap();
        let owner = |path: &str| {
            let owner = config.owner(b"/system", path.as_bytes()).unwrap();
            (owner.uid, owner.gid, owner.mode, owner.capabilities)
        };
        assert_eq!(owner("a"), (0, 0, 0o755, 0x10));
        assert_eq!(owner("with space"), (1, 2, 0o644, 0));
        assert_eq!(owner("\"quoted\""), (3, 4, 0o600, 0));
        assert_eq!(owner("l"), (0, 2000, 0o644, 0));
    }

    #[test]
    fn invalid_lines_are_reported_by_number() {
        for line in [
            "a 0 0",
            "a 0 0 9",
            "a 0 x 755",
            "a 0 0 755 capabilities=x",
            "\"a 0 0 755",
        ] {
            let text = format!("ok 0 0 755\n{line}\n");
            let message = FsConfig::parse("f", text.as_bytes())
                .unwrap_err()
                .to_string();
            assert!(
                message.contains("f: line 2: expected a path, a user"),
                "{message}"
            );
        }
    }
}
