//! Access profiles: the parts of a tree that are used, in which order, and in how many recordings.
//! The text format is described in `docs/reference/profile.md`.
//!
//! ```text
//! tuff profile 1
//! # when_us runs offset length path
//! 1204 1 0 131072 /usr/bin/python3
//! ```

use super::server::Server;
use crate::read::{Image, Nid, ReadDir};
use crate::{Error, Result};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};

/// First line of a profile.
pub const MAGIC: &str = "tuff profile 1";

/// Maximum number of lines that are accepted.
const LINES_MAX: usize = 1 << 22;

/// Use of a part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathUse {
    /// Absolute path in the image.
    pub path: Vec<u8>,
    /// File offset. Unit: bytes.
    pub offset: u64,
    /// Length. Unit: bytes, at least 1.
    pub len: u64,
    /// Time of the first use since the start of the recording. Unit: microseconds.
    pub when_us: u64,
    /// Number of recordings in which the part was used.
    pub runs: u32,
}

/// Uses in the order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Uses, ascending by `when_us`.
    pub uses: Vec<PathUse>,
}

impl Profile {
    /// True if `bytes` starts with the first line of a profile.
    #[must_use]
    pub fn is_profile(bytes: &[u8]) -> bool {
        bytes.split(|b| *b == b'\n').next() == Some(MAGIC.as_bytes())
    }

    /// Parses the text of a profile.
    ///
    /// # Errors
    /// `Usage` with the number of the invalid line.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if !Self::is_profile(bytes) {
            return Err(Error::usage(format_args!(
                "not a profile: the first line is not '{MAGIC}'"
            )));
        }
        let mut uses = Vec::new();
        for (i, line) in bytes.split(|b| *b == b'\n').enumerate().skip(1) {
            if line.is_empty() || line[0] == b'#' {
                continue;
            }
            if i > LINES_MAX {
                return Err(Error::usage(format_args!(
                    "the profile has more than {LINES_MAX} lines"
                )));
            }
            let parsed = parse_line(line).ok_or_else(|| {
                Error::usage(format_args!(
                    "profile, line {}: expected 'when_us runs offset length /path'",
                    i + 1
                ))
            })?;
            uses.push(parsed);
        }
        uses.sort_by_key(|u| u.when_us);
        Ok(Self { uses })
    }

    /// Writes the profile as text.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        writeln!(out, "{MAGIC}\n# when_us runs offset length path")?;
        for u in &self.uses {
            write!(out, "{} {} {} {} ", u.when_us, u.runs, u.offset, u.len)?;
            for byte in &u.path {
                match byte {
                    b'%' | 0..=0x1F | 0x7F.. => write!(out, "%{byte:02X}")?,
                    byte => out.write_all(&[*byte])?,
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }

    /// Merges several profiles: runs are added up, and the earliest time is kept.
    #[must_use]
    pub fn merge(profiles: &[Self]) -> Self {
        // Uses by path.
        let mut files: BTreeMap<&[u8], Vec<&PathUse>> = BTreeMap::new();
        for u in profiles.iter().flat_map(|p| &p.uses) {
            files.entry(&u.path).or_default().push(u);
        }
        let mut uses = Vec::new();
        for (path, parts) in files {
            let ends = parts
                .iter()
                .flat_map(|u| [u.offset, u.offset.saturating_add(u.len)]);
            let mut cuts: Vec<u64> = ends.collect();
            cuts.sort_unstable();
            cuts.dedup();
            let mut pieces: Vec<PathUse> = Vec::new();
            let mut parts = parts;
            parts.sort_by_key(|u| u.offset);
            let (mut next, mut open) = (0, Vec::<&PathUse>::new());
            for cut in cuts.windows(2) {
                while next < parts.len() && parts[next].offset <= cut[0] {
                    open.push(parts[next]);
                    next += 1;
                }
                open.retain(|u| u.offset.saturating_add(u.len) > cut[0]);
                let Some(when_us) = open.iter().map(|u| u.when_us).min() else {
                    continue;
                };
                let runs = open.iter().fold(0u32, |n, u| n.saturating_add(u.runs));
                match pieces.last_mut() {
                    Some(last)
                        if last.offset + last.len == cut[0]
                            && (last.when_us, last.runs) == (when_us, runs) =>
                    {
                        last.len += cut[1] - cut[0];
                    }
                    _ => pieces.push(PathUse {
                        path: path.to_vec(),
                        offset: cut[0],
                        len: cut[1] - cut[0],
                        when_us,
                        runs,
                    }),
                }
            }
            uses.append(&mut pieces);
        }
        uses.sort_by_key(|u| u.when_us);
        Self { uses }
    }

    /// Paths in the order of their first use, without the leading slash.
    #[must_use]
    pub fn paths(&self) -> Vec<Vec<u8>> {
        let mut seen = HashSet::new();
        let uses = self.uses.iter().filter(|u| seen.insert(&u.path));
        uses.map(|u| u.path.strip_prefix(b"/").unwrap_or(&u.path).to_vec())
            .collect()
    }

    /// Uses by descending heat: those of the most recordings first, and the earliest of these.
    #[must_use]
    pub fn hottest(&self) -> Vec<&PathUse> {
        let mut uses: Vec<&PathUse> = self.uses.iter().collect();
        uses.sort_by_key(|u| (std::cmp::Reverse(u.runs), u.when_us));
        uses
    }
}

fn parse_line(line: &[u8]) -> Option<PathUse> {
    let mut fields = line.splitn(5, |b| *b == b' ');
    let mut number = || -> Option<u64> { std::str::from_utf8(fields.next()?).ok()?.parse().ok() };
    let (when_us, runs, offset, len) = (number()?, number()?, number()?, number()?);
    let text = fields.next()?;
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, more)) = rest.split_first() {
        rest = more;
        if *byte == b'%' {
            let (hex, more) = rest.split_first_chunk::<2>()?;
            let hex = std::str::from_utf8(hex)
                .ok()
                .filter(|h| !h.starts_with('+'))?;
            path.push(u8::from_str_radix(hex, 16).ok()?);
            rest = more;
        } else {
            path.push(*byte);
        }
    }
    let valid = path.first() == Some(&b'/') && len > 0 && offset.checked_add(len).is_some();
    valid.then_some(PathUse {
        path,
        offset,
        len,
        when_us,
        runs: runs.try_into().ok()?,
    })
}

impl Server {
    /// Uses recorded so far, in the order of time. Empty unless
    /// [`record`](super::ServeOptions::record) is set.
    #[must_use]
    pub fn recorded(&self) -> Vec<super::record::RecordedUse> {
        self.recorder.as_ref().map_or_else(Vec::new, |r| r.uses())
    }

    /// Profile of the uses recorded so far. If an inode has several paths, the first one in tree
    /// order is used.
    ///
    /// Walks the tree of the image until the paths of all files are found.
    ///
    /// # Errors
    /// If directories cannot be read.
    pub fn profile(&self) -> Result<Profile> {
        let recorded = self.recorded();
        let requested: HashSet<Nid> = recorded.iter().map(|u| u.nid).collect();
        let paths = self.paths_of(&requested)?;
        let uses = recorded.iter().filter_map(|u| {
            Some(PathUse {
                path: paths.get(&u.nid)?.clone(),
                offset: u.offset,
                len: u.len,
                when_us: u.when_us,
                runs: 1,
            })
        });
        Ok(Profile {
            uses: uses.collect(),
        })
    }

    fn paths_of(&self, requested: &HashSet<Nid>) -> Result<HashMap<Nid, Vec<u8>>> {
        let image = &self.image;
        let mut found = HashMap::new();
        let root = image.root()?;
        // Open directories from the root down, each with the length of its path. A damaged image
        // may link a directory twice; it is walked once.
        let mut seen = HashSet::from([root.nid()]);
        let mut path = Vec::new();
        let mut down: Vec<(ReadDir<&Image>, usize)> = vec![(image.read_dir(&root)?, 0)];
        while let Some((entries, len)) = down.last_mut() {
            if found.len() == requested.len() {
                break;
            }
            path.truncate(*len);
            let Some(entry) = entries.next().transpose()? else {
                down.pop();
                continue;
            };
            if matches!(&entry.name[..], b"." | b"..") {
                continue;
            }
            path.push(b'/');
            path.extend_from_slice(&entry.name);
            if requested.contains(&entry.nid) {
                found.entry(entry.nid).or_insert_with(|| path.clone());
            }
            let inode = image.inode(entry.nid)?;
            if inode.is_dir() && seen.insert(entry.nid) && down.len() < image.limits().depth {
                down.push((image.read_dir(&inode)?, path.len()));
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &str, offset: u64, len: u64, when_us: u64, runs: u32) -> PathUse {
        PathUse {
            path: path.into(),
            offset,
            len,
            when_us,
            runs,
        }
    }

    #[test]
    fn profiles_round_trip_as_text() {
        let mut odd = at("/with space%\n", 4096, 8192, 7, 3);
        odd.path.push(0xFF);
        let profile = Profile {
            uses: vec![at("/a", 0, 1, 5, 1), odd],
        };
        let mut text = Vec::new();
        profile.write(&mut text).unwrap();
        assert_eq!(
            String::from_utf8(text.clone()).unwrap(),
            "tuff profile 1\n# when_us runs offset length path\n5 1 0 1 /a\n7 3 4096 8192 /with space%25%0A%FF\n"
        );
        assert_eq!(Profile::parse(&text).unwrap(), profile);
    }

    #[test]
    fn invalid_lines_are_reported_by_number() {
        for line in [
            "x",
            "1 1 0 1 a",
            "1 1 0 0 /a",
            "1 1 0 1",
            "1 1 0 1 /a%4",
            "1 1 0 1 /%+1",
            "-1 1 0 1 /a",
            "1 1 18446744073709551615 1 /a",
        ] {
            let text = format!("{MAGIC}\n\n{line}\n");
            let e = Profile::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(e.contains("line 3"), "{line}: {e}");
        }
        assert!(Profile::parse(b"/a\n/b\n").is_err());
    }

    #[test]
    fn merging_adds_runs_and_keeps_the_earliest_time() {
        let a = Profile {
            uses: vec![at("/x", 0, 8192, 10, 1), at("/y", 0, 4096, 20, 1)],
        };
        let b = Profile {
            uses: vec![at("/x", 4096, 8192, 5, 1), at("/z", 0, 4096, 30, 2)],
        };
        let merged = Profile::merge(&[a.clone(), b]);
        assert_eq!(
            merged.uses,
            [
                at("/x", 4096, 4096, 5, 2),
                at("/x", 8192, 4096, 5, 1),
                at("/x", 0, 4096, 10, 1),
                at("/y", 0, 4096, 20, 1),
                at("/z", 0, 4096, 30, 2),
            ]
        );
        assert_eq!(
            merged.paths(),
            [b"x".to_vec(), b"y".to_vec(), b"z".to_vec()]
        );
        let hottest: Vec<u64> = merged.hottest().iter().map(|u| u.when_us).collect();
        assert_eq!(hottest, [5, 30, 5, 10, 20]);
        assert_eq!(Profile::merge(std::slice::from_ref(&a)), a);
    }
}
