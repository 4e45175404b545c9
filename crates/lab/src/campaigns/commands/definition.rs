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
//! Invariants, checked when a definition is parsed: names of tasks with the same action, and labels of runs
//! in a task, are unique; at most one run is the incumbent; bars speak of runs that exist; every run's tool can do the
//! action, and knows the settings.

use crate::engines::settings::{Action, Settings, Size};
use crate::engines::{self, Tool};
use serde::{Deserialize, Serialize};
use std::fmt;

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

impl crate::definition::Definition for Definition {
    fn set_name(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }

    fn check(&self) -> Result<(), String> {
        for (i, task) in self.tasks.iter().enumerate() {
            let wrong = |reason: String| Err(format!("task '{}': {reason}", task.name));
            let same = |t: &Task| t.name == task.name && t.action == task.action;
            if self.tasks[..i].iter().any(same) {
                return wrong(format!("two tasks that {} have the name", task.action));
            }
            if task.rounds.unwrap_or(self.rounds) == 0 {
                return wrong("at least one round is needed".to_owned());
            }
            if let Err(reason) = task.check() {
                return wrong(reason);
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
            engines::plan(run.tool, self.action, run.settings(self), &run.extra)?;
            if self.action != Action::Build {
                let maker = run.tool.maker(self.image_by);
                engines::plan(maker, Action::Build, run.settings(self), &[])?;
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
    use crate::definition::Definition as _;
    use std::path::Path;

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
