//! Execution of a definition in interleaved rounds. Each result is verified before its sample counts.
//!
//! ```text
//!  for each tree:  read it (digest, warm cache)
//!    for each task:  build and verify the input images
//!      round 1: A  B  C      results verified in full
//!      round 2: A  B  C      digests of images compared, extracted trees in full
//!      ...
//!    read the tree again: it must not have changed
//! ```
//!
//! A tool that fails or whose result is wrong drops out of the task with a record line that states the
//! reason. The other tools continue.

mod copy;
mod judge;

use crate::campaigns::commands::definition::{Definition, Task};
use crate::campaigns::commands::report;
use crate::definition::{Definition as _, check_unique};
use crate::engines::settings::{Action, Settings};
use crate::engines::{self, Found, Places, Plan, TOOLS, Tool};
use crate::measure::stop;
use crate::measure::workspace::{self, Work};
use crate::measure::{self, Job, Usage, helper, machine};
use crate::options::{Emit, Options};
use crate::record::{Header, Labels, Line, Sample, labels};
use crate::verify::tree::{Tree, TreeSize};
use crate::verify::{Judge, Verdict};
use crate::{At, Error, Result};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tuff_testkit::Rng;

/// Share of the CPU time of other processes above which a sample is loud.
const MAX_FOREIGN: f64 = 0.1;

/// Parameters of a run that the definition leaves open.
#[derive(Clone, Debug, clap::Args)]
pub struct Conditions {
    /// Tree to measure on (default for NAME: the last component of the path)
    #[arg(long = "tree", required = true, value_name = "[NAME=]DIR", value_parser = tree_at)]
    pub trees: Vec<(String, PathBuf)>,
    /// Number of rounds (default: that of the definition)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Run only tasks whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Shuffle the order of tools in each round with this seed (default: the order of the definition, rotated in each round)
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Repeat a sample up to N times if other processes used more than a tenth of the CPU time
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub retries: u32,
    /// Paths of programs, and folders of images and records.
    #[command(flatten)]
    pub options: Options,
}

/// Parses `[NAME=]DIR`.
fn tree_at(text: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = match text.split_once('=') {
        Some((name, path)) => (name.to_owned(), PathBuf::from(path)),
        None => {
            let name = Path::new(text).file_name().unwrap_or(OsStr::new("tree"));
            (name.to_string_lossy().into_owned(), PathBuf::from(text))
        }
    };
    match path.is_dir() {
        true => Ok((name, path)),
        false => Err("not a directory".to_owned()),
    }
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

    /// Returns the folder for images and extracted trees.
    pub fn work(&self) -> &Path {
        let work = self.options.work.as_deref();
        work.unwrap_or(Path::new("/dev/shm"))
    }
}

/// Runs `definition` and writes a record of the campaign `campaign`. Returns true if `tuff` succeeded with correct
/// results in all of its runs.
pub fn run(
    campaign: &str,
    name: &str,
    definition: &Definition,
    conditions: &Conditions,
    emit: Emit<'_>,
) -> Result<bool> {
    let trees: Vec<&str> = conditions.trees.iter().map(|(name, _)| &**name).collect();
    check_unique("tree", &trees).map_err(Error::Usage)?;
    if !conditions.want_any(definition) {
        return Err(Error::Usage("--only matches no task".to_owned()));
    }
    let definition = &definition.clone().for_options(&conditions.options);
    let work = Work::create(conditions.work())?;
    let mut found = Vec::new();
    for tool in TOOLS {
        if let Some(path) = conditions.options.program(tool.name()) {
            found.push(Found::at(tool, path)?);
        }
    }
    let mut header = Header::here(
        campaign,
        [
            ("definition", name.to_owned()),
            ("results on", workspace::filesystem(work.folder())?),
            (report::NOISE_LIMIT, MAX_FOREIGN.to_string()),
            ("retries", conditions.retries.to_string()),
        ],
    )?;
    if let Some(seed) = conditions.seed {
        header
            .conditions
            .insert("seed".to_owned(), seed.to_string());
    }
    for found in &found {
        let text = format!("{} ({})", found.number(), found.digest);
        header.conditions.insert(found.tool.name().to_owned(), text);
    }
    emit(&Line::Header(header))?;
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

/// Measured values of one attempt.
struct Attempt {
    values: BTreeMap<String, f64>,
    /// Share of the CPU time of other processes, if it is above the limit.
    loud: Option<f64>,
}

/// Summary of a command's output.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Made {
    image_bytes: u64,
    image_digest: Option<String>,
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
        let path = path.canonicalize().at("find", path)?;
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
        let (mib, filesystem) = (size.bytes >> 20, workspace::filesystem(&source.path)?);
        let (entries, digest) = (size.entries, source.tree.digest());
        let text = format!("{entries} entries, {mib} MiB, digest {digest}, on {filesystem}");
        (self.emit)(&Line::note(labels([("tree", name)]), text))?;
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
        for bar in &task.bars {
            let mut bar = bar.clone();
            if bar.cell.get("tree").is_some_and(|tree| tree != source.name) {
                continue;
            }
            let tool = bar.cell.remove("tool");
            let tool = tool.unwrap_or_else(|| Tool::Tuff.name().to_owned());
            bar.cell.extend(cell(task, source.name, &tool));
            (self.emit)(&Line::Bar(bar))?;
        }
        if task.cold {
            let text = "caches dropped before each sample";
            (self.emit)(&Line::note(labels([("task", &task.name)]), text))?;
        }
        self.work.clear()?;
        let mut subjects = self.subjects(task, source)?;
        for round in 1..=rounds {
            for at in self.order(subjects.len(), round) {
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
            let mut command = plan.shown();
            for note in &plan.notes {
                command = format!("{command} ({note})");
            }
            self.note(task, run.label(), command)?;
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
        (self.emit)(&Line::failure(cell(task, source.name, label), reason))
    }

    /// Records a text about a run of the task.
    fn note(&mut self, task: &Task, label: &str, text: String) -> Result<()> {
        let action = task.action.to_string();
        let cell = labels([("action", &action), ("task", &task.name), ("tool", label)]);
        (self.emit)(&Line::note(cell, text))
    }

    /// Records how a result was verified, and which metadata a tool did not preserve.
    fn verified(&mut self, label: &str, verdict: &Verdict) -> Result<()> {
        let by = match &verdict.judge {
            Judge::KernelMount => "mounted by the kernel and compared with the source".to_owned(),
            Judge::ExtractedBy(tool) => {
                format!("not mounted; extracted by {} and compared", tool.name())
            }
            Judge::Walk => "compared with the source".to_owned(),
            Judge::Damage => "rejects a damaged copy".to_owned(),
        };
        let lost = verdict
            .differ
            .iter()
            .map(|d| format!("; some {} differ", d.facet));
        let text = by + &lost.collect::<String>();
        (self.emit)(&Line::note(labels([("tool", label)]), text))
    }

    fn find(&self, tool: Tool) -> Option<Found> {
        self.found.iter().find(|f| f.tool == tool).cloned()
    }

    /// Returns the order of the tools of a round. Without a seed it is rotated in every round, so that no tool always runs first.
    fn order(&mut self, count: usize, round: u32) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        match &mut self.random {
            Some(random) => order.sort_by_cached_key(|_| random.draw()),
            None => order.rotate_left((round as usize - 1) % count.max(1)),
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
        if let Err(message) = self.run_unmeasured(&found.path, &arguments, Duration::MAX / 4) {
            let message = self.scrub(&message, &found, source);
            return Ok(Err(format!("no image to read: {message}")));
        }
        let verdict = self.judge_image(source, maker, &image)?;
        let wrong = verdict.wrong.clone();
        self.note(
            task,
            maker.name(),
            format!("{} (input image)", plan.shown()),
        )?;
        self.verified(maker.name(), &verdict)?;
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
        }
    }

    /// Runs a command without measuring it. The error is the reason for its failure.
    fn run_unmeasured(
        &self,
        program: &Path,
        arguments: &[OsString],
        limit: Duration,
    ) -> Result<String, String> {
        let mut command = Command::new(program);
        let folder = self.work.folder();
        command.args(arguments).current_dir(folder);
        helper::run(command.env("TMPDIR", folder), 0, limit)
    }

    /// Runs one round of a tool, with attempts until a sample is quiet.
    fn round(
        &mut self,
        task: &Task,
        source: &Source<'_>,
        subject: &mut Subject<'_>,
        round: u32,
    ) -> Result<()> {
        let mut attempts = Vec::new();
        let mut failure = None;
        for _ in 0..=self.conditions.retries {
            stop::check()?;
            self.work.clear_results()?;
            self.prepare_target(subject.found.tool, source)?;
            if task.cold {
                workspace::forget_caches(&subject.found.path)?;
            }
            let arguments = subject.plan.arguments(self.places(source, &subject.image));
            let outcome = measure::sample(&self.job(&subject.found.path, &arguments))?;
            let mut attempt = self.attempt(&outcome.usage, source.tree.size);
            let is_quiet = attempt.loud.is_none();
            if outcome.usage.exit != Some(0) {
                let exit = outcome.usage.exit;
                let code = exit.map_or("a signal".to_owned(), |c| format!("exit code {c}"));
                let message = self.scrub(&outcome.message, &subject.found, source);
                failure = Some(format!("{code}: {message}"));
            } else {
                match self.examine(task, source, subject)? {
                    Ok((made, verdict)) => {
                        let bytes = made.image_bytes as f64;
                        attempt.values.insert("image_bytes".to_owned(), bytes);
                        subject.known.get_or_insert(made);
                        if let Some(verdict) = verdict {
                            if round == 1 {
                                self.verified(subject.label, &verdict)?;
                            }
                            failure = verdict.wrong.map(|wrong| format!("wrong result: {wrong}"));
                        }
                    }
                    Err(reason) => failure = Some(reason),
                }
            }
            show(&cell(task, source.name, subject.label), round, &attempt);
            attempts.push(attempt);
            if failure.is_some() || is_quiet {
                break;
            }
        }
        let counts = match failure {
            None => quietest(&attempts),
            Some(_) => None,
        };
        for (at, attempt) in attempts.into_iter().enumerate() {
            let sample = Sample {
                cell: cell(task, source.name, subject.label),
                round,
                values: attempt.values,
            };
            (self.emit)(&match counts == Some(at) {
                true => Line::Sample(sample),
                false => Line::Rejected(sample),
            })?;
        }
        if failure.is_none() && task.copy {
            failure = self.copy(task, source, subject, round)?;
        }
        if let Some(reason) = failure {
            subject.alive = false;
            self.failed(task, source, subject.label, subject.found.tool, reason)?;
        }
        Ok(())
    }

    /// Returns the values of a measured command that handled a tree of the given size.
    fn attempt(&self, usage: &Usage, size: TreeSize) -> Attempt {
        let mut values = BTreeMap::new();
        let mut put = |name: &str, value: f64| values.insert(name.to_owned(), value);
        put("wall_ns", usage.wall_ns as f64);
        put("cpu_us", (usage.user_us + usage.system_us) as f64);
        put("max_rss_bytes", usage.max_rss_bytes as f64);
        put("foreign_us", usage.foreign_us as f64);
        put("steal_us", usage.steal_us as f64);
        put("read_bytes", usage.read_bytes as f64);
        put("mb_per_s", size.bytes as f64 / 1e6 / usage.wall_s());
        let loud = usage.is_loud(MAX_FOREIGN);
        if loud {
            put(report::NOISE, usage.foreign_share());
        }
        Attempt {
            values,
            loud: loud.then(|| usage.foreign_share()),
        }
    }
}

/// Returns the cell of a run.
fn cell(task: &Task, tree: &str, label: &str) -> Labels {
    let action = task.action.to_string();
    labels([
        ("action", &action),
        ("tree", tree),
        ("task", &task.name),
        ("tool", label),
    ])
}

/// Prints the progress of a run to standard error.
fn show(cell: &Labels, round: u32, attempt: &Attempt) {
    let name: Vec<&str> = cell.values().map(String::as_str).collect();
    let (name, wall) = (name.join(", "), attempt.values["wall_ns"] / 1e9);
    let loud = attempt.loud.map_or("", |_| ", beside other processes");
    eprintln!("{name}: round {round}: {wall:.3} s{loud}");
}

/// Returns the index of the attempt that counts: the last if it is quiet, otherwise the quietest.
fn quietest(attempts: &[Attempt]) -> Option<usize> {
    let share = |at: &usize| attempts[*at].loud.unwrap_or(-1.0);
    (0..attempts.len()).min_by(|a, b| share(a).total_cmp(&share(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(shares: &[Option<f64>]) -> Option<usize> {
        let attempt = |loud: &Option<f64>| Attempt {
            values: BTreeMap::new(),
            loud: *loud,
        };
        quietest(&shares.iter().map(attempt).collect::<Vec<_>>())
    }

    #[test]
    fn a_quiet_attempt_counts_and_otherwise_the_quietest() {
        assert_eq!(counted(&[Some(0.5), None]), Some(1));
        assert_eq!(counted(&[Some(0.5), Some(0.3), Some(0.4)]), Some(1));
        assert_eq!(counted(&[]), None);
    }
}
