//! Definition of the campaign: programs with their settings, and the cells in which they are compared.

use crate::definition::{self, check_unique};
use crate::record::Bar;
use serde::Deserialize;
use std::fmt;

/// Definition: programs, and what is the same for all.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Definition {
    /// Purpose of the definition, as a sentence.
    #[allow(dead_code)]
    about: String,
    /// Number of rounds of cells that can be repeated.
    pub(super) rounds: u32,
    /// Commit whose files the tree has on the last day.
    pub(super) commit: String,
    /// Days after which each store is restored and compared with the tree.
    pub(super) verified: Vec<u32>,
    /// Smallest memory of the control group in cells of many files. Unit: MiB.
    pub(super) memory_mib: u64,
    #[serde(default)]
    pub(super) bars: Vec<Bar>,
    #[serde(rename = "way")]
    pub(super) ways: Vec<Way>,
}

/// Program with its settings.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Way {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Compression, as the program names it.
    pub(super) level: String,
    /// All levels of the cell `levels`. Empty for the one of `level` alone.
    #[serde(default)]
    levels: Vec<String>,
    pub(super) encryption: String,
    /// Number of days of which the program makes a backup. All if it is None.
    days: Option<u32>,
    /// True for a store in a bucket, in cells that have one.
    #[serde(skip)]
    pub(super) is_in_bucket: bool,
}

/// Program that makes backups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    Tuff,
    Restic,
    Kopia,
    Borg,
    /// An image by mkdwarfs.
    Dwarfs,
}

impl Way {
    /// Returns the way with each level of the cell `levels`.
    pub(super) fn at_all_levels(&self) -> Vec<Way> {
        let levels = match self.levels.is_empty() {
            true => std::slice::from_ref(&self.level),
            false => &self.levels[..],
        };
        let at = |level: &String| Way {
            level: level.clone(),
            ..self.clone()
        };
        levels.iter().map(at).collect()
    }

    /// Returns the way with a store in a bucket, for the first two days. None if the program has none there.
    pub(super) fn in_bucket(&self) -> Option<Way> {
        matches!(self.kind, Kind::Tuff | Kind::Restic | Kind::Kopia).then(|| Way {
            is_in_bucket: true,
            days: Some(2),
            ..self.clone()
        })
    }

    /// Returns the last day, counted from 0, of which the program makes a backup.
    pub(super) fn last_day(&self, days: u32) -> u32 {
        self.days.unwrap_or(days).min(days) - 1
    }
}

/// Conditions of samples that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cell {
    /// First backup into a new store, with all levels.
    Levels,
    /// Backup of a day.
    Day(u32),
    /// Backup of the last day once more, with all or nothing of the tree in the page cache.
    Unchanged(Cache),
    RestoreFile,
    RestoreAll,
    /// Mount until the first byte of a file is read.
    Mount(Server),
    /// Check that reads all content.
    Check,
    /// Check and repair of a store with damage.
    Repair,
    /// Removal of all snapshots but a few.
    Prune,
    /// Step with a store in a bucket.
    Bucket(BucketStep),
    /// Step with a tree of many files, in a control group.
    Files(Shape, Step),
}

/// Step of a cell with a store in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BucketStep {
    /// First backup, of the first day.
    First,
    /// Backup of the second day.
    Day,
    /// Backup of the second day once more.
    Unchanged,
    RestoreFile,
    /// Removal of the snapshot of the first day.
    Prune,
}

/// State of the page cache before a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cache {
    Warm,
    Cold,
}

/// Filesystem that serves a mounted snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    Fuse,
    Kernel,
}

/// Directories of many files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// 1,000 files in each directory.
    Spread,
    /// All files in one directory.
    One,
}

/// Step of a cell of many files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Backup,
    Check,
    Mount,
    Prune,
}

impl Cell {
    /// Returns all cells of a number of days in the order of their measurement.
    pub(super) fn all(days: u32, has_files: bool) -> Vec<Cell> {
        let mut cells = vec![Cell::Levels];
        for day in 0..days {
            cells.push(Cell::Day(day));
            // Trees of days only follow one another.
            let steps: &[BucketStep] = match day {
                0 => &[BucketStep::First],
                1 => &[
                    BucketStep::Day,
                    BucketStep::Unchanged,
                    BucketStep::RestoreFile,
                    BucketStep::Prune,
                ],
                _ => &[],
            };
            cells.extend(steps.iter().copied().map(Cell::Bucket));
        }
        cells.extend([
            Cell::Unchanged(Cache::Warm),
            Cell::Unchanged(Cache::Cold),
            Cell::RestoreFile,
            Cell::RestoreAll,
            Cell::Mount(Server::Fuse),
            Cell::Mount(Server::Kernel),
            Cell::Check,
            Cell::Repair,
            Cell::Prune,
        ]);
        if has_files {
            for shape in [Shape::Spread, Shape::One] {
                let steps = [Step::Backup, Step::Check, Step::Mount, Step::Prune];
                cells.extend(steps.map(|step| Cell::Files(shape, step)));
            }
        }
        cells
    }

    /// Returns the name of what is measured, the label `task`.
    pub(super) fn task(self) -> &'static str {
        match self {
            Cell::Levels => "levels",
            Cell::Day(0) | Cell::Bucket(BucketStep::First) => "first backup",
            Cell::Day(_) | Cell::Bucket(BucketStep::Day) => "day with changes",
            Cell::Unchanged(Cache::Warm) => "no changes, warm",
            Cell::Unchanged(Cache::Cold) => "no changes, cold",
            Cell::Bucket(BucketStep::Unchanged) => "no changes",
            Cell::RestoreFile | Cell::Bucket(BucketStep::RestoreFile) => "restore one file",
            Cell::RestoreAll => "restore everything",
            Cell::Mount(Server::Fuse) => "mount",
            Cell::Mount(Server::Kernel) => "mount, kernel",
            Cell::Check => "check",
            Cell::Repair => "repair",
            Cell::Prune | Cell::Bucket(BucketStep::Prune) => "prune",
            Cell::Files(_, Step::Backup) => "files: backup",
            Cell::Files(_, Step::Check) => "files: check",
            Cell::Files(_, Step::Mount) => "files: mount",
            Cell::Files(_, Step::Prune) => "files: prune",
        }
    }

    /// Returns the rounds of the cell, given the number of those that can be repeated. Each day is a round of its own.
    pub(super) fn rounds(self, count: u32) -> std::ops::RangeInclusive<u32> {
        match self {
            Cell::Day(day) => day + 1..=day + 1,
            Cell::Levels | Cell::Files(..) => 1..=1,
            Cell::Bucket(BucketStep::First | BucketStep::Day) => 1..=1,
            _ => 1..=count,
        }
    }
}

/// The cell's name for `--cell`.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cell::Levels => f.write_str("levels"),
            Cell::Day(day) => write!(f, "day-{day:02}"),
            Cell::Unchanged(Cache::Warm) => f.write_str("unchanged-warm"),
            Cell::Unchanged(Cache::Cold) => f.write_str("unchanged-cold"),
            Cell::RestoreFile => f.write_str("restore-file"),
            Cell::RestoreAll => f.write_str("restore-all"),
            Cell::Mount(Server::Fuse) => f.write_str("mount-fuse"),
            Cell::Mount(Server::Kernel) => f.write_str("mount-kernel"),
            Cell::Check => f.write_str("check"),
            Cell::Repair => f.write_str("repair"),
            Cell::Prune => f.write_str("prune"),
            Cell::Bucket(step) => f.write_str(match step {
                BucketStep::First => "bucket-first",
                BucketStep::Day => "bucket-day",
                BucketStep::Unchanged => "bucket-unchanged",
                BucketStep::RestoreFile => "bucket-restore-file",
                BucketStep::Prune => "bucket-prune",
            }),
            Cell::Files(shape, step) => {
                let shape = match shape {
                    Shape::Spread => "spread",
                    Shape::One => "one",
                };
                let step = match step {
                    Step::Backup => "backup",
                    Step::Check => "check",
                    Step::Mount => "mount",
                    Step::Prune => "prune",
                };
                write!(f, "files-{shape}-{step}")
            }
        }
    }
}

impl definition::Definition for Definition {
    fn check(&self) -> Result<(), String> {
        let ways: Vec<&str> = self.ways.iter().map(|w| w.name.as_str()).collect();
        check_unique("way", &ways)?;
        for way in &self.ways {
            if !way.levels.is_empty() && !way.levels.contains(&way.level) {
                let Way { name, level, .. } = way;
                return Err(format!("way '{name}': '{level}' is not among its levels"));
            }
            if way.days == Some(0) {
                return Err(format!("way '{}': it has at least one day", way.name));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Definition as _;

    #[test]
    fn cells_have_names_of_their_own_in_the_order_of_the_days() {
        let names: Vec<String> = Cell::all(30, true).iter().map(Cell::to_string).collect();
        assert_eq!(
            names[..5],
            ["levels", "day-00", "bucket-first", "day-01", "bucket-day"]
        );
        assert_eq!(names[35], "day-29");
        assert_eq!(names.last().unwrap(), "files-one-prune");
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        check_unique("cell", &names).unwrap();
    }

    #[test]
    fn a_level_that_is_compared_is_measured_among_all() {
        let text = "about = 'a'\nrounds = 1\ncommit = 'c'\nverified = []\nmemory_mib = 1\n[[way]]\nname = 'w'\nkind = 'borg'\n\
                    level = 'lz4'\nlevels = ['zstd']\nencryption = 'none'\n";
        let error = Definition::parse("x", text).unwrap_err().to_string();
        assert_eq!(
            error,
            "definition 'x': way 'w': 'lz4' is not among its levels"
        );
        let way = Definition::parse("x", &text.replace("'zstd'", "'zstd', 'lz4'"))
            .unwrap()
            .ways[0]
            .clone();
        let levels: Vec<String> = way.at_all_levels().into_iter().map(|w| w.level).collect();
        assert_eq!(levels, ["zstd", "lz4"]);
        assert_eq!([1, 30].map(|days| way.last_day(days)), [0, 29]);
        assert!(way.in_bucket().is_none());
    }
}
