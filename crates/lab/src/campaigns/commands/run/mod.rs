//! Execution of a definition in interleaved rounds. Each result is verified before its sample counts.
//!
//! ```text
//!  for each tree:  read it (digest, warm cache)
//!    for each task:  build and verify the input images
//!      round 1: A  B  C      results verified in full
//!      round 2: A  B  C      sizes compared (in full with verify_every_round)
//!      ...
//!    read the tree again: it must not have changed
//! ```
//!
//! A tool that fails or whose result is wrong drops out of the task with a record line that states the
//! reason. The other tools continue.

mod judge;

use crate::campaigns::commands::definition::{Definition, Task};
use crate::campaigns::commands::record::{
    FailedLine, Header, Line, MadeLine, SampleLine, SubjectLine, TaskLine, TreeLine, VerdictLine,
};
use crate::engines::settings::{Action, Settings};
use crate::engines::{self, Found, Places, Plan, TOOLS, Tool};
use crate::measure::machine::{self, Machine};
use crate::measure::stop;
use crate::measure::workspace::{self, Work};
use crate::measure::{self, Job};
use crate::verify::tree::{Tree, TreeSize};
use crate::{Error, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tuff_testkit::Rng;

/// Parameters of a run that the definition leaves open.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Names and paths of the trees.
    pub trees: Vec<(String, PathBuf)>,
    /// Paths of tools. Tools not listed are searched for.
    pub tools: Vec<(Tool, PathBuf)>,
    /// Number of rounds of every task, in place of the definition's.
    pub rounds: Option<u32>,
    /// Substring of task names. Only matching tasks run.
    pub only: Option<String>,
    /// Seed of the order in each round. None selects the order of the definition.
    pub seed: Option<u64>,
    /// Directory for images and extracted trees.
    pub work: PathBuf,
    /// Share of CPU time of other processes above which a sample is loud.
    pub max_foreign: f64,
    /// Maximum number of repetitions of a loud sample.
    pub retries: u32,
    /// Whether results are compared in full in every round.
    pub verify_every_round: bool,
    /// Parent of the control group that is created for each command.
    pub cgroup: Option<PathBuf>,
}

impl Conditions {
    fn wants(&self, task: &Task, tree: &str) -> bool {
        let only = self.only.as_ref();
        task.is_for(tree) && only.is_none_or(|only| task.name.contains(only))
    }

    /// Returns whether a task of the definition is selected on one of the trees.
    pub fn want_any(&self, definition: &Definition) -> bool {
        let mut trees = self.trees.iter();
        trees.any(|(tree, _)| definition.tasks.iter().any(|task| self.wants(task, tree)))
    }
}

/// Callback that receives each line of the record.
pub type Emit<'a> = &'a mut dyn FnMut(&Line) -> Result<()>;

/// Runs `definition`. Returns true if `tuff` succeeded with correct results in all of its runs.
pub fn run(definition: &Definition, conditions: &Conditions, emit: Emit<'_>) -> Result<bool> {
    let work = Work::create(&conditions.work)?;
    let found: Vec<Found> = TOOLS
        .iter()
        .filter_map(|t| engines::find(*t, &conditions.tools).transpose())
        .collect::<Result<_>>()?;
    emit(&Line::Header(Header {
        format: crate::record::FORMAT,
        definition: definition.name.clone(),
        machine: Machine::inspect()?,
        tools: found.iter().map(|f| f.receipt.clone()).collect(),
        cache: "warm: each tree and image is read once before the first round".to_owned(),
        work_filesystem: workspace::filesystem(work.folder())?,
        seed: conditions.seed,
        max_foreign: conditions.max_foreign,
        retries: conditions.retries,
        verify_every_round: conditions.verify_every_round,
    }))?;
    let mut session = Session {
        conditions,
        found,
        work,
        emit,
        random: conditions.seed.map(Rng::new),
        ours_fine: true,
    };
    for (name, path) in &conditions.trees {
        session.tree(definition, name, path)?;
    }
    Ok(session.ours_fine)
}

struct Session<'a> {
    conditions: &'a Conditions,
    found: Vec<Found>,
    work: Work,
    emit: Emit<'a>,
    random: Option<Rng>,
    ours_fine: bool,
}

/// Source tree of the rounds.
struct Source<'a> {
    name: &'a str,
    path: PathBuf,
    tree: Tree,
}

/// Tool in a task.
struct Subject<'a> {
    label: &'a str,
    found: Found,
    plan: Plan,
    /// Input of extract and check, output of build.
    image: PathBuf,
    /// Verified output of the first round.
    known: Option<Made>,
    alive: bool,
}

/// Summary of a command's output.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Made {
    image_bytes: u64,
    image_digest: Option<String>,
    tree: Option<TreeSize>,
}

impl Session<'_> {
    fn tree(&mut self, definition: &Definition, name: &str, path: &Path) -> Result<()> {
        let tasks: Vec<&Task> = definition
            .tasks
            .iter()
            .filter(|t| self.conditions.wants(t, name))
            .collect();
        if tasks.is_empty() {
            return Ok(());
        }
        let path = path
            .canonicalize()
            .map_err(|e| Error::io("find", path, e))?;
        eprintln!("{name}: reading the tree");
        let source = Source {
            name,
            tree: Tree::read(&path)?,
            path,
        };
        let size = source.tree.size;
        if machine::memory_available().is_some_and(|m| size.bytes.saturating_mul(3) > m) {
            eprintln!(
                "tuff-lab: warning: {name} and its images may not fit in memory; caches may not stay warm"
            );
        }
        (self.emit)(&Line::Tree(TreeLine {
            tree: name.to_owned(),
            size,
            digest: source.tree.digest(),
            filesystem: workspace::filesystem(&source.path)?,
        }))?;
        for task in tasks {
            self.task(definition, task, &source)?;
        }
        if Tree::read(&source.path)?.digest() != source.tree.digest() {
            return Err(Error::Command(format!(
                "{name} changed during the measurement; the record is invalid"
            )));
        }
        Ok(())
    }

    fn task(&mut self, definition: &Definition, task: &Task, source: &Source<'_>) -> Result<()> {
        let rounds = self
            .conditions
            .rounds
            .or(task.rounds)
            .unwrap_or(definition.rounds);
        let incumbent = task
            .runs
            .iter()
            .find(|r| r.incumbent)
            .map(|r| r.label().to_owned());
        let for_tree = |t: &Option<Vec<String>>| {
            t.as_ref()
                .is_none_or(|t| t.iter().any(|n| n == source.name))
        };
        (self.emit)(&Line::Task(TaskLine {
            tree: source.name.to_owned(),
            task: task.name.clone(),
            action: task.action,
            rounds,
            incumbent,
            bars: task
                .bars
                .iter()
                .filter(|b| for_tree(&b.trees))
                .cloned()
                .collect(),
            cold: task.cold,
        }))?;
        self.work.clear()?;
        let mut subjects = self.subjects(task, source)?;
        for round in 1..=rounds {
            for at in self.order(subjects.len()) {
                let subject = &mut subjects[at];
                if subject.alive {
                    self.round(task, source, subject, round)?;
                }
            }
        }
        self.work.clear()
    }

    /// Returns the tools that can take part. A missing tool drops out.
    fn subjects<'t>(&mut self, task: &'t Task, source: &Source<'_>) -> Result<Vec<Subject<'t>>> {
        let mut subjects = Vec::new();
        let mut images: Vec<(Tool, Settings, Result<PathBuf, String>)> = Vec::new();
        for run in &task.runs {
            let settings = run.settings(task);
            let plan =
                engines::plan(run.tool, task.action, settings, &run.extra).map_err(Error::Usage)?;
            (self.emit)(&Line::Subject(SubjectLine {
                tree: source.name.to_owned(),
                task: task.name.clone(),
                label: run.label().to_owned(),
                tool: run.tool,
                settings: settings.clone(),
                command: plan.shown(),
                notes: plan.notes.clone(),
            }))?;
            let Some(found) = self.find(run.tool) else {
                let reason = format!("{} was not found", run.tool.name());
                self.failed(task, source, run.label(), run.tool, reason)?;
                continue;
            };
            let image = match task.action {
                Action::Build => Ok(self.work.path("image")),
                Action::Extract | Action::Check => {
                    let maker = run.tool.maker(task.image_by);
                    let known = images.iter().find(|(m, s, _)| *m == maker && s == settings);
                    match known {
                        Some((.., image)) => image.clone(),
                        None => {
                            let name = format!("made-{}", images.len());
                            let image = self.make(task, source, maker, settings, &name)?;
                            images.push((maker, settings.clone(), image.clone()));
                            image
                        }
                    }
                }
            };
            match image {
                Ok(image) => subjects.push(Subject {
                    label: run.label(),
                    found,
                    plan,
                    image,
                    known: None,
                    alive: true,
                }),
                Err(reason) => self.failed(task, source, run.label(), run.tool, reason)?,
            }
        }
        Ok(subjects)
    }

    fn failed(
        &mut self,
        task: &Task,
        source: &Source<'_>,
        label: &str,
        tool: Tool,
        reason: String,
    ) -> Result<()> {
        eprintln!(
            "{}: {} {}: {label} drops out: {reason}",
            source.name, task.action, task.name
        );
        if tool == Tool::Tuff {
            self.ours_fine = false;
        }
        (self.emit)(&Line::Failed(FailedLine {
            tree: source.name.to_owned(),
            task: task.name.clone(),
            label: label.to_owned(),
            reason,
        }))
    }

    fn find(&self, tool: Tool) -> Option<Found> {
        self.found.iter().find(|f| f.tool == tool).cloned()
    }

    fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        if let Some(random) = &mut self.random {
            shuffle(random, &mut order);
        }
        order
    }

    /// Builds and verifies an input image. The inner error is the reason for a failure.
    fn make(
        &mut self,
        task: &Task,
        source: &Source<'_>,
        maker: Tool,
        settings: &Settings,
        name: &str,
    ) -> Result<Result<PathBuf, String>> {
        let Some(found) = self.find(maker) else {
            return Ok(Err(format!(
                "{}, which builds the image, was not found",
                maker.name()
            )));
        };
        let plan = engines::plan(maker, Action::Build, settings, &[]).map_err(Error::Usage)?;
        let image = self.work.path(name);
        let arguments = plan.arguments(self.places(source, &image));
        let job = self.job(&found.path, &arguments);
        match measure::run_within(&job, Duration::MAX / 4)? {
            Some((Some(0), _)) => {}
            Some((_, said)) => {
                let said = self.scrub(&said, &found, source);
                return Ok(Err(format!(
                    "{} failed to build the image: {said}",
                    maker.name()
                )));
            }
            None => {
                return Ok(Err(format!(
                    "{} timed out while building the image",
                    maker.name()
                )));
            }
        }
        let verdict = self.judge_image(source, maker, &image)?;
        let wrong = verdict.wrong.clone();
        (self.emit)(&Line::Made(MadeLine {
            tree: source.name.to_owned(),
            task: task.name.clone(),
            tool: maker,
            command: plan.shown(),
            image_bytes: workspace::length(&image)?,
            verdict,
        }))?;
        // Reading the image also brings it into the page cache.
        workspace::digest(&image)?;
        Ok(match wrong {
            Some(wrong) => Err(format!(
                "the image built by {} is wrong: {wrong}",
                maker.name()
            )),
            None => Ok(image),
        })
    }

    fn places<'p>(&'p self, source: &'p Source<'_>, image: &'p Path) -> Places<'p> {
        Places {
            tree: &source.path,
            image,
            target: self.work.target(),
        }
    }

    fn job<'j>(&'j self, program: &'j Path, arguments: &'j [OsString]) -> Job<'j> {
        Job {
            program,
            arguments,
            folder: self.work.folder(),
            cgroup: self.conditions.cgroup.as_deref(),
        }
    }

    /// Runs one round of a tool, with attempts until a sample is quiet.
    fn round(
        &mut self,
        task: &Task,
        source: &Source<'_>,
        subject: &mut Subject<'_>,
        round: u32,
    ) -> Result<()> {
        let mut samples: Vec<SampleLine> = Vec::new();
        let mut failure = None;
        for attempt in 1..=self.conditions.retries + 1 {
            stop::check()?;
            self.work.clear_results(task.action)?;
            if task.cold {
                workspace::forget_caches(&subject.found.path)?;
            }
            let arguments = subject.plan.arguments(self.places(source, &subject.image));
            let outcome = measure::sample(&self.job(&subject.found.path, &arguments))?;
            let loud = outcome.usage.is_loud(self.conditions.max_foreign);
            let exit = outcome.usage.exit;
            let mut sample = SampleLine {
                tree: source.name.to_owned(),
                task: task.name.clone(),
                label: subject.label.to_owned(),
                round,
                attempt,
                kept: false,
                loud,
                usage: outcome.usage,
                image_bytes: 0,
                image_digest: None,
            };
            if exit != Some(0) {
                let code = exit.map_or("a signal".to_owned(), |c| format!("exit code {c}"));
                let said = self.scrub(&outcome.said, &subject.found, source);
                failure = Some(format!("{code}: {said}"));
                samples.push(sample);
                break;
            }
            let examined = self.examine(task, source, subject, round)?;
            let (sample_made, verdict) = match examined {
                Ok(pair) => pair,
                Err(reason) => {
                    failure = Some(reason);
                    samples.push(sample);
                    break;
                }
            };
            sample.image_bytes = sample_made.image_bytes;
            sample.image_digest = sample_made.image_digest.clone();
            show(task.action, &sample);
            samples.push(sample);
            if let Some(verdict) = verdict {
                let wrong = verdict.wrong.clone();
                (self.emit)(&Line::Verdict(VerdictLine {
                    tree: source.name.to_owned(),
                    task: task.name.clone(),
                    label: subject.label.to_owned(),
                    round,
                    verdict,
                }))?;
                if let Some(wrong) = wrong {
                    failure = Some(format!("wrong result: {wrong}"));
                    break;
                }
            }
            subject.known.get_or_insert(sample_made);
            if !loud {
                break;
            }
        }
        if failure.is_none() {
            keep_one(&mut samples);
        }
        for sample in samples {
            (self.emit)(&Line::Sample(sample))?;
        }
        if let Some(reason) = failure {
            subject.alive = false;
            self.failed(task, source, subject.label, subject.found.tool, reason)?;
        }
        Ok(())
    }
}

/// Prints the progress of a run to standard error.
fn show(action: Action, sample: &SampleLine) {
    let SampleLine {
        tree,
        task,
        label,
        round,
        usage,
        ..
    } = sample;
    let mut warning = String::new();
    if sample.loud {
        warning = format!(
            ", warning: other processes used {:.0} % of the CPU",
            usage.foreign_share() * 100.0
        );
    }
    if usage.read_bytes > 0 {
        warning += &format!(", warning: {} bytes came from a device", usage.read_bytes);
    }
    eprintln!(
        "{tree}: {action} {task}: round {round}: {label} {:.3} s, CPU {:.3} s, {} MiB{warning}",
        usage.wall_s(),
        usage.cpu_s(),
        usage.max_rss_bytes >> 20
    );
}

/// Marks the sample that counts: the last if it is quiet, otherwise the quietest.
fn keep_one(samples: &mut [SampleLine]) {
    let share = |s: &SampleLine| {
        if s.loud {
            s.usage.foreign_share()
        } else {
            -1.0
        }
    };
    let best = samples
        .iter_mut()
        .min_by(|a, b| share(a).total_cmp(&share(b)));
    if let Some(best) = best {
        best.kept = true;
    }
}

/// Shuffles with the Fisher-Yates algorithm.
fn shuffle(random: &mut Rng, items: &mut [usize]) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.below(last + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Usage;

    fn sample(attempt: u32, foreign_us: u64, loud: bool) -> SampleLine {
        SampleLine {
            tree: String::new(),
            task: String::new(),
            label: String::new(),
            round: 1,
            attempt,
            kept: false,
            loud,
            usage: Usage {
                wall_ns: 1_000_000_000,
                cpus: 1,
                foreign_us,
                ..Usage::default()
            },
            image_bytes: 0,
            image_digest: None,
        }
    }

    fn kept(mut samples: Vec<SampleLine>) -> Vec<u32> {
        keep_one(&mut samples);
        samples
            .iter()
            .filter(|s| s.kept)
            .map(|s| s.attempt)
            .collect()
    }

    #[test]
    fn a_quiet_attempt_is_kept() {
        assert_eq!(
            kept(vec![sample(1, 500_000, true), sample(2, 90_000, false)]),
            [2]
        );
    }

    #[test]
    fn without_a_quiet_attempt_the_quietest_is_kept() {
        let loud = vec![
            sample(1, 500_000, true),
            sample(2, 300_000, true),
            sample(3, 400_000, true),
        ];
        assert_eq!(kept(loud), [2]);
    }

    #[test]
    fn a_seed_gives_the_same_order_everywhere() {
        let mut order: Vec<usize> = (0..6).collect();
        shuffle(&mut Rng::new(7), &mut order);
        let mut again: Vec<usize> = (0..6).collect();
        shuffle(&mut Rng::new(7), &mut again);
        assert_eq!(order, again);
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3, 4, 5]);
    }
}
