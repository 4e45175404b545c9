//! Execution of a definition of the start campaign.

use super::definition::{CONDITIONS, Condition, Definition, Program};
use super::inside::{Answer, Background, Order, Started};
use super::rooted::Rooted;
use crate::campaigns::serve::definition::Cache;
use crate::campaigns::serve::image::Build;
use crate::campaigns::serve::server::{Served, Server, ServerSpec, available};
use crate::definition::Definition as _;
use crate::measure::cgroup::{self, Group};
use crate::measure::device::{DIRECT, Device, READ_ONLY};
use crate::measure::helper;
use crate::measure::root::{self, Root};
use crate::measure::stop;
use crate::measure::workspace::{self, Work};
use crate::options::{Emit, Options, need_root};
use crate::record::{Header, Labels, Line, labels};
use crate::{At, Error, Result};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tuff_flash_sim::experiment::random::Rng;

/// Parameters of a run that the definition leaves open.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Conditions {
    /// Root tree that contains the programs (default: built from this machine's programs and their dependencies)
    #[arg(long, value_name = "DIR")]
    pub tree: Option<PathBuf>,
    /// Number of starts of each program (default: that of the definition)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub starts: Option<u32>,
    /// Start only programs whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Measure only this condition; may be repeated
    #[arg(long, value_name = "NAME")]
    pub condition: Vec<Condition>,
    /// Mount a loop device with direct I/O, so that the image is read from the disk
    #[arg(long)]
    pub evict: bool,
    /// Paths of programs, and folders of images and records.
    #[command(flatten)]
    pub options: Options,
}

impl Conditions {
    fn cache(&self, definition: &Definition) -> Cache {
        match self.evict {
            true => Cache::Device,
            false => definition.cache,
        }
    }
}

/// Seed of the background reads.
const SEED: u64 = 1;
/// Minimum size of the background file in bytes. It is at least as large as the largest memory limit.
const BACKGROUND_LENGTH: u64 = 16 << 20;
/// Time limit of a start.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Runs a definition, with a header before its lines.
pub fn run_alone(
    name: &str,
    definition: &Definition,
    conditions: &Conditions,
    emit: Emit<'_>,
) -> Result<bool> {
    let starts = conditions.starts.unwrap_or(definition.starts);
    let filesystem = workspace::filesystem(conditions.options.work())?;
    let tree = match conditions.tree {
        Some(_) => "given",
        None => "made of programs of this machine",
    };
    let settings = [
        ("definition", name.to_owned()),
        ("cache", conditions.cache(definition).describe().to_owned()),
        ("images", format!("on {filesystem}")),
        ("starts", starts.to_string()),
        ("tree", tree.to_owned()),
        ("seed", SEED.to_string()),
    ];
    emit(&Line::Header(Header::here("start", settings)?))?;
    let definition = definition.clone().for_options(&conditions.options);
    run(&definition, conditions, emit)
}

/// Runs `definition`. Returns true if `tuff` took part wherever it was requested, with the expected output of
/// all programs. The caller writes the header.
pub fn run(definition: &Definition, conditions: &Conditions, emit: Emit<'_>) -> Result<bool> {
    need_root("changing the root directory of programs")?;
    let work = Work::create(conditions.options.work())?;
    let only = conditions.only.as_deref().unwrap_or_default();
    let named = definition.programs.iter().filter(|p| p.name.contains(only));
    let mut without: Vec<(Labels, String)> = Vec::new();
    let (tree, programs) = match &conditions.tree {
        Some(tree) => {
            let found = tree.canonicalize().at("find", tree)?;
            for name in ["proc", "dev", "tmp"] {
                if !found.join(name).is_dir() {
                    return Err(Error::Usage(format!(
                        "tree {}: no directory {name}",
                        tree.display()
                    )));
                }
            }
            (found, named.collect())
        }
        None => make(definition, named, &work, &mut without)?,
    };
    let background = root::background(&tree)?;
    let (able, ours_fine) = available(&definition.servers, &conditions.options, emit)?;
    let mut session = Session {
        tree,
        work,
        cache: conditions.cache(definition),
        background,
        group: None,
        emit,
        ours_fine,
    };
    for (cell, reason) in without {
        session.without(cell, reason)?;
    }
    let chosen = session.choose(conditions)?;
    let mut able_programs = Vec::new();
    for program in programs {
        match session.answer(program)? {
            Ok(answer) => able_programs.push((program, answer)),
            Err(reason) => session.without(labels([("program", &program.name)]), reason)?,
        }
    }
    if able_programs.is_empty() {
        return Err(Error::Usage("no program can be started".to_owned()));
    }
    let requested: BTreeSet<&str> = able.iter().map(|(s, _)| &*s.image).collect();
    let mut images = Vec::new();
    for spec in &definition.images {
        if !requested.contains(&*spec.name) {
            continue;
        }
        let image = session.work.path(&format!("image{}", images.len()));
        let build = Build {
            tree: &session.tree,
            work: &session.work,
            options: &conditions.options,
        };
        match build.run(spec, &image, session.emit)? {
            Ok(()) => images.push((&*spec.name, image, spec.filesystem())),
            Err(reason) => {
                session.without(labels([("image", &spec.name)]), reason)?;
                let ours = |s: &&ServerSpec| s.image == spec.name && s.kind == Server::Tuff;
                session.ours_fine &= !able.iter().any(|(s, _)| ours(s));
            }
        }
    }
    let subjects: Vec<Subject<'_>> = able
        .iter()
        .filter_map(|(spec, program)| {
            let (_, image, filesystem) = images.iter().find(|(n, ..)| *n == spec.image)?;
            Some(Subject {
                spec,
                program: program.as_deref(),
                image,
                filesystem,
            })
        })
        .collect();
    let starts = conditions.starts.unwrap_or(definition.starts);
    session.rounds(starts, &able_programs, &chosen, &subjects, &images)?;
    Ok(session.ours_fine)
}

/// Assembles a tree from local programs. Returns it with the programs that could be prepared.
pub(in crate::campaigns) fn make<'a>(
    definition: &'a Definition,
    programs: impl Iterator<Item = &'a Program>,
    work: &Work,
    without: &mut Vec<(Labels, String)>,
) -> Result<(PathBuf, Vec<&'a Program>)> {
    let mut root = Root::create(&work.path("root"))?;
    for need in &definition.needs {
        root.add(need)?;
    }
    let mut present = Vec::new();
    for program in programs {
        stop::check()?;
        let command = program.command.first().map(String::as_str);
        if !root.add(Path::new(command.unwrap_or_default()))? {
            let reason = "not installed on this machine".to_owned();
            without.push((labels([("program", &program.name)]), reason));
            continue;
        }
        for need in &program.needs {
            root.add(need)?;
        }
        for file in &program.files {
            root.write(&file.path, &file.text)?;
        }
        let mut failed = None;
        let prepared = Rooted::to_prepare(root.folder(), &work.path("mount"))?;
        for command in &program.prepare {
            match start(&Order::new(prepared.point(), command))? {
                Ok(done) if done.answer.exit == 0 => {}
                Ok(done) => failed = Some(done.message),
                Err(reason) => failed = Some(reason),
            }
        }
        match failed {
            None => present.push(program),
            Some(message) => without.push((
                labels([("program", &program.name)]),
                format!("preparation failed: {message}"),
            )),
        }
    }
    let limits = present.iter().filter_map(|p| p.limit).map(|l| l.0);
    root.write_background(limits.max().unwrap_or(0).max(BACKGROUND_LENGTH))?;
    Ok((root.folder().to_owned(), present))
}

/// Server with its program and image.
struct Subject<'a> {
    spec: &'a ServerSpec,
    program: Option<&'a Path>,
    image: &'a Path,
    filesystem: &'a str,
}

struct Session<'a> {
    tree: PathBuf,
    work: Work,
    cache: Cache,
    background: Option<(PathBuf, u64)>,
    /// Parent of the control group that is created for each start under pressure.
    group: Option<PathBuf>,
    emit: Emit<'a>,
    ours_fine: bool,
}

impl Session<'_> {
    /// Returns those of the requested conditions that this machine supports.
    fn choose(&mut self, conditions: &Conditions) -> Result<Vec<Condition>> {
        let requested =
            |c: &Condition| conditions.condition.is_empty() || conditions.condition.contains(c);
        let mut chosen = Vec::new();
        for condition in CONDITIONS.into_iter().filter(requested) {
            let mut lacks = None;
            if condition != Condition::Idle && self.background.is_none() {
                lacks = Some("the tree has no file with content".to_owned());
            } else if condition == Condition::Pressure {
                match cgroup::parent() {
                    None => {
                        lacks = Some("no control group with a memory limit is available".to_owned())
                    }
                    Some(parent) => match Group::create(&parent, Some(1 << 30)) {
                        Ok(_) => self.group = Some(parent),
                        Err(e) => lacks = Some(e.to_string()),
                    },
                }
            }
            match lacks {
                None => chosen.push(condition),
                Some(reason) => self.without(labels([("condition", condition.name())]), reason)?,
            }
        }
        Ok(chosen)
    }

    /// Returns exit status and output of a program with the source tree as its root. The inner error is the
    /// reason for which it cannot take part.
    fn answer(&mut self, program: &Program) -> Result<Result<Answer, String>> {
        let place = program.command.first().map_or("", String::as_str);
        let link = self.tree.join(place.trim_start_matches('/'));
        if std::fs::symlink_metadata(&link).is_err() {
            return Ok(Err("not in the tree".to_owned()));
        }
        let mut answers = Vec::new();
        for _ in 0..2 {
            let rooted = Rooted::of_tree(&self.tree, &self.work.path("mount"))?;
            match start(&self.order(rooted.point(), program, None))? {
                Ok(done) if done.answer.exit == 0 => answers.push(done.answer),
                Ok(done) => {
                    let (exit, message) = (done.answer.exit, done.message);
                    return Ok(Err(format!(
                        "with the tree as its root it exits with {exit}: {message}"
                    )));
                }
                Err(reason) => return Ok(Err(reason)),
            }
        }
        if answers[0] != answers[1] {
            return Ok(Err("its output differs between runs".to_owned()));
        }
        let answer = answers.remove(0);
        let limit = program
            .limit
            .map_or(String::new(), |l| format!(", limit {l}"));
        let text = format!("`{}`{limit}", program.command.join(" "));
        (self.emit)(&Line::note(labels([("program", &program.name)]), text))?;
        Ok(Ok(answer))
    }

    fn rounds(
        &mut self,
        starts: u32,
        programs: &[(&Program, Answer)],
        conditions: &[Condition],
        subjects: &[Subject<'_>],
        images: &[(&str, PathBuf, &str)],
    ) -> Result<()> {
        let mut out: BTreeSet<(usize, usize, usize)> = BTreeSet::new();
        let mut rng = Rng::new(SEED);
        let filled = self.background.as_ref().map_or(0, |(_, length)| *length);
        if conditions.contains(&Condition::Pressure) {
            for (program, _) in programs {
                let reason = match program.limit {
                    None => "its definition has no limit",
                    Some(limit) if limit.0 > filled => {
                        "no file of the tree is as large as its limit"
                    }
                    Some(_) => continue,
                };
                let cell = [("condition", "pressure"), ("program", &program.name)];
                self.without(labels(cell), reason.to_owned())?;
            }
        }
        let under_pressure = |p: &Program| p.limit.is_some_and(|limit| limit.0 <= filled);
        for round in 1..=starts {
            if self.cache == Cache::Image {
                for (_, image, _) in images {
                    workspace::digest(image)?;
                }
            }
            for (p, (program, answer)) in programs.iter().enumerate() {
                for (c, condition) in conditions.iter().enumerate() {
                    if *condition == Condition::Pressure && !under_pressure(program) {
                        continue;
                    }
                    // All servers get the same seed.
                    let seed = rng.draw();
                    for turn in 0..subjects.len() {
                        // Rotates the order in every round, so that no server always runs first.
                        let s = (turn + round as usize) % subjects.len();
                        if out.contains(&(p, c, s)) {
                            continue;
                        }
                        stop::check()?;
                        let subject = &subjects[s];
                        let done = self.sample(program, answer, *condition, subject, seed)?;
                        let cell = labels([
                            ("program", &program.name),
                            ("condition", condition.name()),
                            ("server", &subject.spec.name),
                        ]);
                        match done {
                            Ok(done) => {
                                let hits = done.limit_hits.map(|hits| ("limit_hits", hits as f64));
                                let values = [("start_ns", done.ns as f64)].into_iter().chain(hits);
                                (self.emit)(&Line::sample(cell, round, values))?;
                            }
                            Err(reason) => {
                                out.insert((p, c, s));
                                self.ours_fine &= subject.spec.kind != Server::Tuff;
                                self.without(cell, reason)?;
                            }
                        }
                    }
                }
            }
            eprintln!("round {round} of {starts}");
        }
        Ok(())
    }

    /// Mounts an image and starts a program on it. The inner error is a failure of the server.
    fn sample(
        &self,
        program: &Program,
        expected: &Answer,
        condition: Condition,
        subject: &Subject<'_>,
        seed: u64,
    ) -> Result<Result<Started, String>> {
        let point = self.work.path("mount");
        let device = match self.cache {
            Cache::Image => None,
            Cache::Device => Some(Device::attach(subject.image, &[READ_ONLY, DIRECT])?),
        };
        let group = match (condition, &self.group, program.limit) {
            (Condition::Pressure, Some(parent), Some(limit)) => {
                Some((Group::create(parent, Some(limit.0))?, limit.0))
            }
            _ => None,
        };
        let served = Served::start(
            subject.spec.kind,
            subject.program,
            &subject.spec.extra,
            (
                device.as_ref().map_or(subject.image, Device::path),
                subject.filesystem,
            ),
            &point,
        )?;
        let rooted = match served {
            Ok(served) => Rooted::on(served)?,
            Err(reason) => return Ok(Err(reason)),
        };
        let mut order = self.order(rooted.point(), program, Some((condition, seed)));
        if let Some((group, limit)) = &group {
            if let Some(daemon) = rooted.served().and_then(Served::process) {
                cgroup::enter(group.path(), daemon)?;
            }
            order.group = Some((group.path().to_owned(), *limit));
        }
        let done = start(&order)?;
        // The mount must be removed before the control group, which must be empty.
        drop(rooted);
        drop(group);
        Ok(done.and_then(|done| match done.answer == *expected {
            true => Ok(done),
            false => Err(format!(
                "the program exits with {}; exit status or output differ from those with the tree as its root: {}",
                done.answer.exit, done.message
            )),
        }))
    }

    fn order(&self, root: &Path, program: &Program, beside: Option<(Condition, u64)>) -> Order {
        let background = match beside {
            None | Some((Condition::Idle, _)) => None,
            Some((_, seed)) => self.background.as_ref().map(|(path, length)| Background {
                path: path.clone(),
                length: *length,
                written: self.work.path("written"),
                seed,
            }),
        };
        Order {
            background,
            ..Order::new(root, &program.command)
        }
    }

    fn without(&mut self, cell: Labels, text: String) -> Result<()> {
        eprintln!("{cell:?}: {text}");
        (self.emit)(&Line::failure(cell, text))
    }
}

/// Performs a start in a child process. The inner error is the message of a child that failed.
pub(in crate::campaigns) fn start(order: &Order) -> Result<Result<Started, String>> {
    let lab = std::env::current_exe().map_err(|e| Error::Io("find this program".to_owned(), e))?;
    let text = serde_json::to_string(order);
    let text = text.map_err(|e| Error::Command(format!("cannot encode the request: {e}")))?;
    // The process group includes the program, so that it is ended as well after a timeout.
    let mut command = Command::new(&lab);
    command.arg("inside").stdin(Stdio::piped());
    let write = |child: &mut Child| {
        // A write error means that the child has exited, and its status gives the reason.
        let _ = child.stdin.take()?.write_all(text.as_bytes());
        None
    };
    let ended = helper::finish(&mut command, TIME_LIMIT, write, |_| ()).at("run", &lab)?;
    let Some(status) = ended.status else {
        return Ok(Err("it timed out".to_owned()));
    };
    if !status.success() {
        let message = ended.message();
        let message = message.trim_start_matches("tuff-lab: ");
        let root = order.root.to_string_lossy();
        return Ok(Err(format!(
            "{status}: {}",
            message.replace(&*root, "ROOT")
        )));
    }
    let done = serde_json::from_slice(&ended.output);
    done.map(Ok)
        .map_err(|e| Error::Command(format!("cannot parse the reply of the child process: {e}")))
}
