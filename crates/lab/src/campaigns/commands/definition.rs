//! Definitions of comparisons of commands: `benchmarks/definitions/*.toml`.
//!
//! A definition is a list of tasks. A task has one action (build, extract, check), settings that are
//! translated into the options of each tool, the participating tools, and the bars for the result.
//!
//! ```toml
//! about = "one sentence"
//! rounds = 5
//!
//! [[task]]
//! name = "LZ4 4K"
//! action = "build"
//! settings = { algorithm = "lz4", cluster = "4K", fragments = "off" }
//! run = [{ tool = "tuff" }, { tool = "mkfs.erofs" }]
//! bars = [{ measure = "wall", against = "mkfs.erofs", at_most = 1.0 }]
//! ```
//!
//! Invariants, checked when a definition is parsed:
//!
//! * Task names are unique for each action. Labels are unique in a task.
//! * Bars refer to existing runs.
//! * The tool of each run supports the action and the settings.

use crate::engines::settings::{Action, Settings, Size};
use crate::engines::{self, Tool};
use serde::Deserialize;

/// Definition: a list of tasks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// Name of the definition, taken from the file name; also the name of the record.
    #[serde(skip)]
    pub name: String,
    /// Description of the purpose.
    #[serde(default)]
    pub about: String,
    /// Number of rounds of tasks without their own.
    #[serde(default = "default_rounds")]
    pub rounds: u32,
    /// Tasks, in the order of execution and of the report.
    #[serde(rename = "task")]
    pub tasks: Vec<Task>,
}

fn default_rounds() -> u32 {
    5
}

/// Comparison of tools in one action.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Name in tables, unique among the tasks with the same action.
    pub name: String,
    /// Action of every run.
    pub action: Action,
    /// Default settings of the runs, and settings of the images to extract or check.
    #[serde(default)]
    pub settings: Settings,
    /// Builder of the EROFS images to extract or check. SquashFS images are built by mksquashfs.
    #[serde(default = "default_maker")]
    pub image_by: Tool,
    /// Participating tools, in the order of a round.
    #[serde(rename = "run")]
    pub runs: Vec<Run>,
    /// Bars for the result.
    #[serde(default)]
    pub bars: Vec<Bar>,
    /// Names of the trees of this task. None selects all trees.
    pub trees: Option<Vec<String>>,
    /// Number of rounds. None selects the definition's.
    pub rounds: Option<u32>,
    /// Whether caches are dropped before each sample.
    #[serde(default)]
    pub cold: bool,
    /// Whether the whole tree is copied out of a mount of each built image, with rsync.
    #[serde(default)]
    pub copy: bool,
}

fn default_maker() -> Tool {
    Tool::MkfsErofs
}

/// Participant of a task.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Tool that performs the action.
    pub tool: Tool,
    /// Name in tables. None selects the tool's name.
    label: Option<String>,
    /// Settings that replace those of the task entirely.
    settings: Option<Settings>,
    /// Arguments appended verbatim to those of the settings.
    #[serde(default)]
    pub extra: Vec<String>,
}

impl Run {
    /// Returns the name in tables, unique in the task.
    pub fn label(&self) -> &str {
        self.label.as_deref().unwrap_or(self.tool.name())
    }

    /// Returns the settings of this run as a part of `task`.
    pub fn settings<'a>(&'a self, task: &'a Task) -> &'a Settings {
        self.settings.as_ref().unwrap_or(&task.settings)
    }
}

/// Upper limit for a run.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bar {
    /// Measure to which the limit applies.
    pub measure: Measure,
    /// Label of the run to which the bar applies.
    #[serde(default = "default_held")]
    pub run: String,
    /// Label of the base of a ratio. None for a limit in bytes.
    pub against: Option<String>,
    /// Limit: a ratio of medians (number), or bytes in the worst sample (size).
    pub at_most: Limit,
    /// Names of the trees of this bar. None selects all trees.
    pub trees: Option<Vec<String>>,
}

impl Bar {
    /// Returns whether the bar applies to the tree `tree`.
    pub fn is_for(&self, tree: &str) -> bool {
        is_listed(&self.trees, tree)
    }
}

fn is_listed(trees: &Option<Vec<String>>, tree: &str) -> bool {
    trees
        .as_ref()
        .is_none_or(|t| t.iter().any(|name| name == tree))
}

fn default_held() -> String {
    Tool::Tuff.name().to_owned()
}

/// Measure of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// Elapsed time, as measured by a wall clock.
    Wall,
    /// User and system time of all threads.
    Cpu,
    /// Largest resident memory of the command, in bytes.
    Memory,
    /// Size of the image in bytes.
    Size,
}

/// Limit of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Limit {
    /// Ratio to the median of another run.
    Ratio(f64),
    /// Absolute limit in bytes.
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
                return wrong(format!("another {} task has the same name", task.action));
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
        if (self.cold || self.copy) && self.action != Action::Build {
            return Err("only build tasks can be cold or copy the tree".to_owned());
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
        for bar in &self.bars {
            for name in std::iter::once(&bar.run).chain(&bar.against) {
                if !labels.contains(&name.as_str()) {
                    return Err(format!(
                        "a bar names '{name}', which is not a run of the task"
                    ));
                }
            }
            if matches!(bar.at_most, Limit::Ratio(_)) != bar.against.is_some() {
                return Err("a bar is a ratio against a run, or a size without one".to_owned());
            }
            if bar.against.is_none() && matches!(bar.measure, Measure::Wall | Measure::Cpu) {
                return Err("a bar on time must be a ratio".to_owned());
            }
        }
        Ok(())
    }

    /// Returns whether the task runs on the tree `tree`.
    pub fn is_for(&self, tree: &str) -> bool {
        is_listed(&self.trees, tree)
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
          { tool = "mkfs.erofs" },
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

    /// Each replacement violates one rule, which the message must name.
    #[test]
    fn a_definition_that_makes_no_sense_is_rejected() {
        for (from, to, message) in [
            (
                "action = \"build\"",
                "action = \"check\"\ncold = true",
                "only build tasks can be cold",
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
                "against = \"mkfs.erofs\"",
                "against = \"mkfs\"",
                "a bar names 'mkfs'",
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

    /// Checks all shipped definitions, so that mistakes are found before a measurement.
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
