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
//! bars = [{ value = "wall_ns", against = { tool = "mkfs.erofs" }, at_most = 1.0 }]
//! ```
//!
//! Invariants, checked when a definition is parsed:
//!
//! * Task names are unique for each action. Labels are unique in a task.
//! * Bars refer to existing runs.
//! * The tool of each run supports the action and the settings.

use crate::definition::{RUNS, check_known, check_unique};
use crate::engines::settings::{Action, Settings};
use crate::engines::{self, Tool};
use crate::record::Bar;
use serde::Deserialize;

/// Definition: a list of tasks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
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
    /// Builder of the EROFS images to extract or check. SquashFS images are built by mksquashfs, DwarFS images by mkdwarfs.
    #[serde(default = "default_maker")]
    pub image_by: Tool,
    /// Participating tools, in the order of a round.
    #[serde(rename = "run")]
    pub runs: Vec<Run>,
    /// Bars for the result. Labels of the task are added to their cells, and our tool unless another one is named.
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

impl crate::definition::Definition for Definition {
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

    fn compare_with_earlier(&mut self) {
        for task in &mut self.tasks {
            task.bars.clear();
            task.runs.retain(|run| run.tool == Tool::Tuff);
            let runs = std::mem::take(&mut task.runs);
            for run in runs {
                let earlier = RUNS.map(|end| Run {
                    tool: Tool::TuffBefore,
                    label: Some(run.label().to_owned() + end),
                    ..run.clone()
                });
                task.runs.push(run);
                task.runs.extend(earlier);
            }
        }
        self.tasks.retain(|task| !task.runs.is_empty());
    }
}

impl Task {
    fn check(&self) -> Result<(), String> {
        if (self.cold || self.copy) && self.action != Action::Build {
            return Err("only build tasks can be cold or copy the tree".to_owned());
        }
        let labels: Vec<&str> = self.runs.iter().map(Run::label).collect();
        check_unique("run", &labels)?;
        for run in &self.runs {
            engines::plan(run.tool, self.action, run.settings(self), &run.extra)?;
            if self.action != Action::Build {
                let maker = run.tool.maker(self.image_by);
                engines::plan(maker, Action::Build, run.settings(self), &[])?;
            }
        }
        for bar in &self.bars {
            let tools = std::iter::once(&bar.cell).chain(&bar.against);
            for name in tools.filter_map(|cell| cell.get("tool")) {
                check_known("run", &labels, name)?;
            }
        }
        Ok(())
    }

    /// Returns whether the task runs on the tree `tree`.
    pub fn is_for(&self, tree: &str) -> bool {
        let trees = self.trees.as_ref();
        trees.is_none_or(|trees| trees.iter().any(|name| name == tree))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Definition as _;
    use crate::engines::settings::Size;

    const TASK: &str = r#"
        about = 'an example'
        rounds = 3
        [[task]]
        name = 'LZ4 64K'
        action = 'build'
        settings = { algorithm = 'lz4', cluster = '64K' }
        run = [
        { tool = 'tuff' },
        { tool = 'mksquashfs', label = 'squashfs 128K', settings = { algorithm = 'lz4', cluster = '128K' } },
        ]
        bars = [{ value = 'wall_ns', against = { tool = 'squashfs 128K' }, at_most = 1 }]
    "#;

    #[test]
    fn a_definition_is_read_as_written() {
        let d = Definition::parse("example", TASK).unwrap();
        let task = &d.tasks[0];
        assert_eq!(task.runs[1].label(), "squashfs 128K");
        assert_eq!(task.runs[1].settings(task).cluster, Some(Size(131_072)));
        assert_eq!(task.runs[0].settings(task).cluster, Some(Size(65536)));
        assert_eq!(task.bars[0].at_most, Some(1.0));
    }

    #[test]
    fn an_earlier_program_stands_beside_each_run_of_ours_and_others_are_left_out() {
        let mut d = Definition::parse("example", TASK).unwrap();
        d.compare_with_earlier();
        let task = &d.tasks[0];
        let labels: Vec<&str> = task.runs.iter().map(Run::label).collect();
        assert_eq!(labels, ["tuff", "tuff, before", "tuff, before again"]);
        let tools: Vec<Tool> = task.runs.iter().map(|run| run.tool).collect();
        assert_eq!(tools, [Tool::Tuff, Tool::TuffBefore, Tool::TuffBefore]);
        assert!(task.bars.is_empty());
        let others = TASK
            .replace("{ tool = 'tuff' },", "")
            .replace("bars =", "#");
        let mut d = Definition::parse("example", &others).unwrap();
        d.compare_with_earlier();
        assert!(d.tasks.is_empty());
    }

    /// Each replacement violates one rule, which the message must name.
    #[test]
    fn a_definition_that_makes_no_sense_is_rejected() {
        let cases = "\
            action = 'build' => action = 'check', cold = true => only build tasks
            algorithm = 'lz4', cluster = '64K' => algorithm = 'lz5' => lz5
            rounds = 3 => rounds = 0 => at least one round
            label = 'squashfs 128K' => label = 'tuff' => two runs are called 'tuff'
            against = { tool = 'squashfs 128K' => against = { tool = 'mkfs' => no run 'mkfs
            action = 'build' => action = 'check' => cannot check
            cluster = '64K' => cluster = '64Q' => not a size
            cluster = '64K' => clutser = '64K' => clutser";
        for case in cases.lines() {
            let parts: Vec<&str> = case.trim().split(" => ").collect();
            let to = parts[1].replace(", cold", "\ncold");
            assert!(TASK.contains(parts[0]), "{case}");
            let error = Definition::parse("example", &TASK.replacen(parts[0], &to, 1)).unwrap_err();
            assert!(error.to_string().contains(parts[2]), "{case}: {error}");
        }
    }
}
