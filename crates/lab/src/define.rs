//! What is measured, as data: `benchmarks/definitions/*.toml`.
//!
//! A definition is a list of tasks. A task is one action (build, extract, check) with settings that every tool gets in
//! its own language, the tools that take part, and the bars that the result is held to.
//!
//! ```toml
//! about = "one sentence"
//! rounds = 5
//!
//! [[task]]
//! name = "LZ4 4K"
//! action = "build"
//! settings = { algorithm = "lz4", cluster = "4K", fragments = "off" }
//! run = [{ tool = "tuff" }, { tool = "mkfs.erofs", incumbent = true }]
//! bars = [{ measure = "wall", against = "mkfs.erofs", at_most = 1.0 }]
//! ```
//!
//! Invariants, checked by [`Definition::parse`]: names of tasks with the same action, and labels of runs
//! in a task, are unique; at most one run is the incumbent; bars speak of runs that exist; every run's tool can do the
//! action, and knows the settings.

use crate::engine::{self, Tool};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// A file of tasks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// Name, from the file's name; also the name of the record.
    #[serde(skip)]
    pub name: String,
    /// What the definition is for, in a sentence.
    #[serde(default)]
    pub about: String,
    /// Rounds of every task that does not say otherwise.
    #[serde(default = "default_rounds")]
    pub rounds: u32,
    /// Tasks, in the order they run and are reported.
    #[serde(rename = "task")]
    pub tasks: Vec<Task>,
}

fn default_rounds() -> u32 {
    5
}

/// One comparison.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Name, unique among the definition's tasks of the same action, shown in tables.
    pub name: String,
    /// What every run does.
    pub action: Action,
    /// Settings of every run that has none of its own, and of the images that are extracted or checked.
    #[serde(default)]
    pub settings: Settings,
    /// Who makes the EROFS image that is extracted or checked. SquashFS images are made by mksquashfs.
    #[serde(default = "default_maker")]
    pub image_by: Tool,
    /// Who takes part, in the order of a round.
    #[serde(rename = "run")]
    pub runs: Vec<Run>,
    /// What the result is held to.
    #[serde(default)]
    pub bars: Vec<Bar>,
    /// Names of trees that the task is for; all when absent.
    pub trees: Option<Vec<String>>,
    /// Rounds, when they differ from the definition's.
    pub rounds: Option<u32>,
    /// No cache has the tree when a tool begins.
    #[serde(default)]
    pub cold: bool,
}

fn default_maker() -> Tool {
    Tool::MkfsErofs
}

/// One participant of a task.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The tool.
    pub tool: Tool,
    /// Name in tables; the tool's when absent.
    label: Option<String>,
    /// Settings in place of (not added to) the task's.
    settings: Option<Settings>,
    /// Arguments passed as they are, after those that the settings become.
    #[serde(default)]
    pub extra: Vec<String>,
    /// Ratios are of this run.
    #[serde(default)]
    pub incumbent: bool,
}

impl Run {
    /// Name in tables, unique in the task.
    pub fn label(&self) -> &str {
        self.label.as_deref().unwrap_or(self.tool.name())
    }

    /// What the run is set to, in `task`.
    pub fn settings<'a>(&'a self, task: &'a Task) -> &'a Settings {
        self.settings.as_ref().unwrap_or(&task.settings)
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// A tree becomes an image.
    Build,
    /// An image becomes a tree.
    Extract,
    /// An image is read through: every structure, every byte of data decoded.
    Check,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Build => "build",
            Action::Extract => "extract",
            Action::Check => "check",
        })
    }
}

/// What a build is asked for, in words that belong to no tool. An absent value means the tool's own default, and
/// becomes no argument.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Compression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<Algorithm>,
    /// Level, in the algorithm's own scale.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<u32>,
    /// Physical cluster of EROFS (size of the output), block of SquashFS (size of the input).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Size>,
    /// Dictionary or window of LZMA and Zstandard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dict: Option<Size>,
    /// Ends of compressed files behind their inodes (EROFS).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inline_tails: Option<bool>,
    /// What is packed together with other files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fragments: Option<Fragments>,
    /// Cluster of packed fragments (EROFS).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fragment_cluster: Option<Size>,
    /// What is stored once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedupe: Option<Dedupe>,
    /// Clusters begin anywhere (Tuff).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unaligned: Option<bool>,
    /// Settings per file, chosen by the tool towards this goal (Tuff).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto: Option<String>,
    /// The oldest kernel that the image is for (Tuff).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Restore extended attributes on extraction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xattrs: Option<bool>,
    /// Worker threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
}

/// Compression algorithms, in no tool's spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// Stored.
    None,
    /// LZ4, fast parse.
    Lz4,
    /// LZ4, thorough parse.
    Lz4hc,
    /// DEFLATE by the tool's own or usual encoder.
    Deflate,
    /// DEFLATE by the encoder that mkfs.erofs calls libdeflate.
    Libdeflate,
    /// LZMA (EROFS: MicroLZMA; SquashFS: xz).
    Lzma,
    /// Zstandard.
    Zstd,
}

/// What is packed together with other files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fragments {
    /// Nothing.
    Off,
    /// Ends of files, and small files.
    Tails,
    /// Whole files.
    All,
}

/// What is stored once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dedupe {
    /// Nothing.
    Off,
    /// Files that are equal.
    Files,
    /// Equal pieces, wherever they lie.
    Content,
}

/// A size in bytes; written as a number, or with K, M or G for powers of 1024.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl std::str::FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, shift) = match text.as_bytes().last() {
            Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
            Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
            Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
            _ => (text, 0),
        };
        let number = digits.parse::<u64>().ok();
        let size = number.and_then(|n| n.checked_mul(1 << shift));
        size.map(Size)
            .ok_or_else(|| format!("'{text}' is not a size; write for example 4096, 64K or 1M"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, name) in [(1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")] {
            if self.0 >= unit && self.0.is_multiple_of(unit) {
                return write!(f, "{}{name}", self.0 / unit);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl Serialize for Size {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// What a run is held to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bar {
    /// What is compared.
    pub measure: Measure,
    /// Label of the run that is held to the bar.
    #[serde(default = "default_held")]
    pub run: String,
    /// Label of the run that a ratio is of; absent for a bar in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
    /// A ratio of medians (a number), or bytes in the worst sample (a size).
    pub at_most: Limit,
    /// Names of trees that the bar is for; all when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trees: Option<Vec<String>>,
}

fn default_held() -> String {
    Tool::Tuff.name().to_owned()
}

/// What a bar compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// Elapsed time.
    Wall,
    /// User and system time, all threads.
    Cpu,
    /// Peak resident memory.
    Memory,
    /// Size of the image.
    Size,
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Measure::Wall => "wall time",
            Measure::Cpu => "CPU time",
            Measure::Memory => "peak memory",
            Measure::Size => "image size",
        })
    }
}

/// The height of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Limit {
    /// Of another run's median.
    Ratio(f64),
    /// In bytes.
    Bytes(Size),
}

impl Definition {
    /// Reads and checks a definition file. Its name is the file's, without the extension.
    pub fn read(path: &Path) -> Result<Definition> {
        let text = std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Definition::parse(&name, &text)
    }

    /// Parses and checks the text of a definition.
    pub fn parse(name: &str, text: &str) -> Result<Definition> {
        let mut definition: Definition = toml::from_str(text)
            .map_err(|e| Error::Usage(format!("definition '{name}': {}", e.to_string().trim())))?;
        definition.name = name.to_owned();
        definition.check()?;
        Ok(definition)
    }

    /// Checks the invariants of the module.
    pub fn check(&self) -> Result<()> {
        for (i, task) in self.tasks.iter().enumerate() {
            let wrong = |what: String| {
                Err(Error::Usage(format!(
                    "definition '{}', task '{}': {what}",
                    self.name, task.name
                )))
            };
            let same = |t: &Task| t.name == task.name && t.action == task.action;
            if self.tasks[..i].iter().any(same) {
                return wrong(format!("two tasks that {} have the name", task.action));
            }
            if task.rounds.unwrap_or(self.rounds) == 0 {
                return wrong("at least one round is needed".to_owned());
            }
            if let Err(what) = task.check() {
                return wrong(what);
            }
        }
        Ok(())
    }
}

impl Task {
    fn check(&self) -> Result<(), String> {
        if self.cold && self.action != Action::Build {
            return Err("only builds can be cold: images lie where the results do".to_owned());
        }
        let labels: Vec<&str> = self.runs.iter().map(Run::label).collect();
        for (i, run) in self.runs.iter().enumerate() {
            if labels[..i].contains(&run.label()) {
                return Err(format!("two runs are called '{}'", run.label()));
            }
            engine::plan(run.tool, self.action, run.settings(self), &run.extra)?;
            if self.action != Action::Build {
                let maker = run.tool.maker(self.image_by);
                engine::plan(maker, Action::Build, run.settings(self), &[])?;
            }
        }
        if self.runs.iter().filter(|r| r.incumbent).count() > 1 {
            return Err("two runs are the incumbent".to_owned());
        }
        for bar in &self.bars {
            for name in std::iter::once(&bar.run).chain(&bar.against) {
                if !labels.contains(&name.as_str()) {
                    return Err(format!(
                        "a bar speaks of '{name}', which does not take part"
                    ));
                }
            }
            if matches!(bar.at_most, Limit::Ratio(_)) != bar.against.is_some() {
                return Err("a bar is a ratio against a run, or a size against none".to_owned());
            }
            if bar.against.is_none() && matches!(bar.measure, Measure::Wall | Measure::Cpu) {
                return Err("a bar of time is a ratio".to_owned());
            }
        }
        Ok(())
    }

    /// Does the task concern a tree of this name?
    pub fn is_for(&self, tree: &str) -> bool {
        self.trees
            .as_ref()
            .is_none_or(|t| t.iter().any(|n| n == tree))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: &str = r#"
        about = "an example"
        rounds = 3
        [[task]]
        name = "LZ4 64K"
        action = "build"
        settings = { algorithm = "lz4", cluster = "64K" }
        run = [
          { tool = "tuff" },
          { tool = "mkfs.erofs", incumbent = true },
          { tool = "mksquashfs", label = "squashfs 128K", settings = { algorithm = "lz4", cluster = "128K" } },
        ]
        bars = [
          { measure = "wall", against = "mkfs.erofs", at_most = 1 },
          { measure = "memory", at_most = "300M", trees = ["root"] },
        ]
    "#;

    #[test]
    fn a_definition_is_read_as_written() {
        let d = Definition::parse("example", TASK).unwrap();
        let task = &d.tasks[0];
        assert_eq!((d.name.as_str(), d.rounds), ("example", 3));
        assert_eq!(task.settings.cluster, Some(Size(65536)));
        assert_eq!(task.runs[2].label(), "squashfs 128K");
        assert_eq!(task.runs[2].settings(task).cluster, Some(Size(131_072)));
        assert_eq!(task.runs[1].settings(task).cluster, Some(Size(65536)));
        assert_eq!(task.bars[0].at_most, Limit::Ratio(1.0));
        assert_eq!(task.bars[1].at_most, Limit::Bytes(Size(300 << 20)));
        assert_eq!(task.bars[1].run, "tuff");
    }

    /// Each replacement breaks one rule; the message names it.
    #[test]
    fn a_definition_that_makes_no_sense_is_rejected() {
        for (from, to, message) in [
            (
                "action = \"build\"",
                "action = \"check\"\ncold = true",
                "only builds can be cold",
            ),
            (
                "algorithm = \"lz4\", cluster = \"64K\"",
                "algorithm = \"lz5\"",
                "lz5",
            ),
            ("rounds = 3", "rounds = 0", "at least one round"),
            (
                "label = \"squashfs 128K\"",
                "label = \"tuff\"",
                "two runs are called 'tuff'",
            ),
            (
                "tool = \"tuff\" }",
                "tool = \"tuff\", incumbent = true }",
                "two runs are the incumbent",
            ),
            (
                "against = \"mkfs.erofs\"",
                "against = \"mkfs\"",
                "speaks of 'mkfs'",
            ),
            (
                "at_most = 1 }",
                "at_most = \"1M\" }",
                "a ratio against a run",
            ),
            ("action = \"build\"", "action = \"check\"", "cannot check"),
            ("cluster = \"64K\"", "cluster = \"64Q\"", "not a size"),
            ("cluster = \"64K\"", "clutser = \"64K\"", "clutser"),
        ] {
            assert!(TASK.contains(from), "{from}");
            let error = Definition::parse("example", &TASK.replacen(from, to, 1)).unwrap_err();
            assert!(
                error.to_string().contains(message),
                "{from} -> {to}: {error}"
            );
        }
    }

    #[test]
    fn sizes_are_written_as_they_are_read() {
        for (text, bytes) in [
            ("4K", 4096),
            ("64K", 65536),
            ("1M", 1 << 20),
            ("100", 100),
            ("2G", 2 << 30),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)));
            assert_eq!(Size(bytes).to_string(), text);
        }
        assert!("".parse::<Size>().is_err());
        assert!("K".parse::<Size>().is_err());
        assert!("99999999999G".parse::<Size>().is_err());
    }

    /// The files that ship are checked here, so that a typing mistake does not wait for a quiet machine.
    #[test]
    fn every_definition_that_ships_makes_sense() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/definitions");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                continue;
            }
            let definition = Definition::read(&path).unwrap();
            assert!(!definition.about.is_empty(), "{}", definition.name);
            count += 1;
        }
        assert!(count >= 4, "{count} definitions");
    }
}
