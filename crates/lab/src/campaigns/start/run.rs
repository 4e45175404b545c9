//! Execution of a definition of the start campaign.

use super::definition::{CONDITIONS, Condition, Definition, ImageSpec, Program, ServerSpec};
use super::group::{self, Group};
use super::inside::{Answer, Background, Order, Started};
use super::record::{FailedLine, Header, ImageLine, Line, ProgramLine, SampleLine, WithoutLine};
use super::rooted::Rooted;
use crate::campaigns::serve::definition::Cache;
use crate::campaigns::serve::run::{program, version};
use crate::campaigns::serve::server::{Served, Server};
use crate::engines::settings::Action;
use crate::engines::{self, Places};
use crate::measure::machine::Machine;
use crate::measure::root::{self, Root};
use crate::measure::stop;
use crate::measure::workspace::{self, Work};
use crate::measure::{self, Job};
use crate::{Error, Result};
use rustix::fs::{Advice, fadvise};
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tuff_flash_sim::experiment::random::Rng;

/// Parameters of a run that the definition leaves open.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Tree with the programs. None assembles one from local programs.
    pub tree: Option<PathBuf>,
    /// Names and paths of programs. Programs not listed are searched for.
    pub tools: Vec<(String, PathBuf)>,
    /// Number of starts, in place of the definition's.
    pub starts: Option<u32>,
    /// Substring of program names. Only matching programs are started.
    pub only: Option<String>,
    /// Selected conditions. Empty selects all of them.
    pub conditions: Vec<Condition>,
    /// State of the image's pages, in place of the definition's.
    pub cache: Option<Cache>,
    /// Parent of the control groups that are created. None selects the default of [`group::parent`].
    pub cgroup: Option<PathBuf>,
    /// Directory for the tree, images and mount points.
    pub work: PathBuf,
}

/// Seed of the background reads.
const SEED: u64 = 1;
/// Minimum size of the background file in bytes. It is at least as large as the largest memory limit.
const BACKGROUND_LENGTH: u64 = 16 << 20;
/// Time limit of an image build.
const MAKING: Duration = Duration::from_secs(3600);
/// Time limit of a start.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `definition`. Returns true if `tuff` took part wherever it was requested, with the expected output of
/// all programs.
pub fn run(
    definition: &Definition,
    conditions: &Conditions,
    emit: &mut dyn FnMut(&Line) -> Result<()>,
) -> Result<bool> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::Usage(
            "changing the root directory of programs requires root".to_owned(),
        ));
    }
    let work = Work::create(&conditions.work)?;
    let only = conditions.only.as_deref().unwrap_or_default();
    let named = definition.programs.iter().filter(|p| p.name.contains(only));
    let mut without = Vec::new();
    let (tree, programs) = match &conditions.tree {
        Some(tree) => {
            let found = tree.canonicalize();
            let found = found.map_err(|e| Error::io("find", tree, e))?;
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
    let mut files = Vec::new();
    root::list(&tree, &mut files)?;
    let background = root::background(&tree)?;
    let cache = conditions.cache.unwrap_or(definition.cache);
    let mut able = Vec::new();
    let mut versions = Vec::new();
    for server in &definition.servers {
        let program = server.kind.program();
        let place = program.map(|name| program_at(name, conditions));
        let version = match &place {
            None => "the running kernel".to_owned(),
            Some(None) => "not found".to_owned(),
            Some(Some(path)) => version(path),
        };
        versions.push((server.name.clone(), version));
        match place {
            Some(None) => without.push((server.name.clone(), "not found".to_owned())),
            Some(Some(path)) => able.push((server, Some(path))),
            None => able.push((server, None)),
        }
    }
    emit(&Line::Header(Header {
        format: crate::record::FORMAT,
        definition: definition.name.clone(),
        machine: Machine::inspect()?,
        cache,
        work_filesystem: workspace::filesystem(work.folder())?,
        servers: versions,
        starts: conditions.starts.unwrap_or(definition.starts),
        tree: (
            files.len() as u64,
            files.iter().map(|(_, length)| length).sum(),
        ),
        tree_made: conditions.tree.is_none(),
        seed: SEED,
    }))?;
    let mut session = Session {
        tree,
        work,
        cache,
        background,
        group: None,
        tools: conditions,
        emit,
        ours_fine: true,
    };
    for (what, reason) in without {
        session.without(&what, &reason)?;
    }
    let chosen = session.choose(conditions)?;
    let mut answered = Vec::new();
    for program in programs {
        match session.answer(program)? {
            Ok(answer) => answered.push((program, answer)),
            Err(reason) => session.without(&program.name, &reason)?,
        }
    }
    let asked: BTreeSet<&str> = able.iter().map(|(s, _)| &*s.image).collect();
    let mut images = Vec::new();
    for spec in &definition.images {
        if !asked.contains(&*spec.name) || answered.is_empty() {
            continue;
        }
        match session.make(spec, images.len(), &files)? {
            Ok(image) => images.push((&*spec.name, image, spec.by.filesystem())),
            Err(reason) => {
                session.without(&spec.name, &reason)?;
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
    session.rounds(starts, &answered, &chosen, &subjects, &images)?;
    Ok(session.ours_fine)
}

/// Assembles a tree from local programs. Returns it with the programs that could be prepared.
fn make<'a>(
    definition: &'a Definition,
    programs: impl Iterator<Item = &'a Program>,
    work: &Work,
    without: &mut Vec<(String, String)>,
) -> Result<(PathBuf, Vec<&'a Program>)> {
    let mut root = Root::create(&work.path("root"))?;
    for need in &definition.needs {
        root.add(need)?;
    }
    let mut there = Vec::new();
    for program in programs {
        stop::check()?;
        let command = program.command.first().map(String::as_str);
        if !root.add(Path::new(command.unwrap_or_default()))? {
            without.push((
                program.name.clone(),
                "not installed on this machine".to_owned(),
            ));
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
            let order = Order {
                root: prepared.point().to_owned(),
                command: command.clone(),
                background: None,
                group: None,
            };
            match start(&order)? {
                Ok(done) if done.answer.exit == 0 => {}
                Ok(done) => failed = Some(done.said),
                Err(reason) => failed = Some(reason),
            }
        }
        match failed {
            None => there.push(program),
            Some(said) => {
                without.push((program.name.clone(), format!("preparation failed: {said}")))
            }
        }
    }
    let limits = there.iter().filter_map(|p| p.limit).map(|l| l.0);
    root.write_background(limits.max().unwrap_or(0).max(BACKGROUND_LENGTH))?;
    Ok((root.folder().to_owned(), there))
}

fn program_at(name: &str, conditions: &Conditions) -> Option<PathBuf> {
    program(name, &conditions.tools)
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
    tools: &'a Conditions,
    emit: &'a mut dyn FnMut(&Line) -> Result<()>,
    ours_fine: bool,
}

impl Session<'_> {
    /// Returns those of the requested conditions that this machine supports.
    fn choose(&mut self, conditions: &Conditions) -> Result<Vec<Condition>> {
        let asked =
            |c: &Condition| conditions.conditions.is_empty() || conditions.conditions.contains(c);
        let mut chosen = Vec::new();
        for condition in CONDITIONS.into_iter().filter(asked) {
            let mut lacks = None;
            if condition != Condition::Idle && self.background.is_none() {
                lacks = Some("the tree has no file with content".to_owned());
            } else if condition == Condition::Pressure {
                let parent = conditions.cgroup.clone().or_else(group::parent);
                match parent {
                    None => {
                        lacks = Some("no control group with a memory limit is available".to_owned())
                    }
                    Some(parent) => match Group::create(&parent, 1 << 30) {
                        Ok(_) => self.group = Some(parent),
                        Err(e) => lacks = Some(e.to_string()),
                    },
                }
            }
            match lacks {
                None => chosen.push(condition),
                Some(reason) => self.without(condition.name(), &reason)?,
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
                    let (exit, said) = (done.answer.exit, done.said);
                    return Ok(Err(format!(
                        "with the tree as its root it exits with {exit}: {said}"
                    )));
                }
                Err(reason) => return Ok(Err(reason)),
            }
        }
        if answers[0] != answers[1] {
            return Ok(Err("its output differs between runs".to_owned()));
        }
        let answer = answers.remove(0);
        (self.emit)(&Line::Program(ProgramLine {
            program: program.name.clone(),
            command: program.command.clone(),
            answer: answer.clone(),
            limit: program.limit.map(|l| l.0),
        }))?;
        Ok(Ok(answer))
    }

    /// Builds an image. The inner error is the reason for a failure.
    fn make(
        &mut self,
        spec: &ImageSpec,
        number: usize,
        files: &[(PathBuf, u64)],
    ) -> Result<Result<PathBuf, String>> {
        let name = spec.by.program();
        let Some(program) = program_at(name, self.tools) else {
            return Ok(Err(format!(
                "{name}, which builds the image, was not found"
            )));
        };
        let image = self.work.path(&format!("image{number}"));
        let (arguments, shown) = match spec.by.tool() {
            Some(tool) => {
                let plan = engines::plan(tool, Action::Build, &spec.settings, &[])
                    .map_err(Error::Usage)?;
                let arguments = plan.arguments(Places {
                    tree: &self.tree,
                    image: &image,
                    target: self.work.target(),
                });
                (arguments, plan.shown())
            }
            None => {
                // Estimated from whole blocks, with 25 % and 128 MiB for inodes, directories and the journal.
                let blocks: u64 = files
                    .iter()
                    .map(|(_, length)| length.div_ceil(4096) + 1)
                    .sum();
                let mib = ((blocks * 4096 * 5 / 4) >> 20) + 128;
                let size = format!("{mib}M");
                let words = ["-q", "-F", "-d"].map(OsString::from);
                let tree = self.tree.clone().into_os_string();
                let places = [tree, image.clone().into_os_string(), size.clone().into()];
                (
                    words.into_iter().chain(places).collect(),
                    format!("mkfs.ext4 -q -F -d TREE IMAGE {size}"),
                )
            }
        };
        eprintln!("{}: {shown}", spec.name);
        let job = Job {
            program: &program,
            arguments: &arguments,
            folder: self.work.folder(),
            cgroup: None,
        };
        match measure::run_within(&job, MAKING)? {
            Some((Some(0), _)) => {}
            Some((_, said)) => return Ok(Err(format!("{name} failed to build the image: {said}"))),
            None => return Ok(Err(format!("{name} timed out while building the image"))),
        }
        // Only clean pages can be evicted.
        let file = File::open(&image).and_then(|f| f.sync_all().map(|()| f));
        let attributes = file
            .and_then(|f| f.metadata())
            .map_err(|e| Error::io("sync", &image, e))?;
        (self.emit)(&Line::Image(ImageLine {
            image: spec.name.clone(),
            command: shown,
            version: match spec.by.tool() {
                Some(tool) => engines::find(tool, &[(tool, program.clone())])?
                    .map_or_else(String::new, |found| found.receipt.version),
                None => ext4_version(&program),
            },
            image_bytes: attributes.blocks() * 512,
        }))?;
        Ok(Ok(image))
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
                self.without(&format!("pressure on {}", program.name), reason)?;
            }
        }
        let under_pressure = |p: &Program| p.limit.is_some_and(|limit| limit.0 <= filled);
        for round in 1..=starts {
            if self.cache == Cache::Image {
                for (_, image, _) in images {
                    read_through(image)?;
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
                        let server = subject.spec.name.clone();
                        match done {
                            Ok(done) => (self.emit)(&Line::Sample(SampleLine {
                                program: program.name.clone(),
                                condition: *condition,
                                server,
                                round,
                                ns: done.ns,
                                limit_hits: done.limit_hits,
                            }))?,
                            Err(reason) => {
                                out.insert((p, c, s));
                                let name = &program.name;
                                eprintln!(
                                    "{name}: {}: {server} drops out: {reason}",
                                    condition.name()
                                );
                                self.ours_fine &= subject.spec.kind != Server::Tuff;
                                (self.emit)(&Line::Failed(FailedLine {
                                    program: name.clone(),
                                    condition: *condition,
                                    server,
                                    reason,
                                }))?;
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
        if self.cache == Cache::None {
            let file =
                File::open(subject.image).map_err(|e| Error::io("open", subject.image, e))?;
            fadvise(&file, 0, None, Advice::DontNeed)
                .map_err(|e| Error::io("evict", subject.image, e.into()))?;
        }
        let group = match (condition, &self.group, program.limit) {
            (Condition::Pressure, Some(parent), Some(limit)) => {
                Some((Group::create(parent, limit.0)?, limit.0))
            }
            _ => None,
        };
        let served = Served::start(
            subject.spec.kind,
            subject.program,
            &subject.spec.extra,
            (subject.image, subject.filesystem),
            &point,
        )?;
        let rooted = match served {
            Ok(served) => Rooted::on(served)?,
            Err(reason) => return Ok(Err(reason)),
        };
        let mut order = self.order(rooted.point(), program, Some((condition, seed)));
        if let Some((group, limit)) = &group {
            if let Some(daemon) = rooted.served().and_then(Served::process) {
                group::enter(group.path(), daemon)?;
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
                done.answer.exit, done.said
            )),
        }))
    }

    fn order(&self, root: &Path, program: &Program, beside: Option<(Condition, u64)>) -> Order {
        let background = match beside {
            None | Some((Condition::Idle, _)) => None,
            Some((_, seed)) => self.background.as_ref().map(|(path, length)| Background {
                path: path.clone(),
                length: *length,
                seed,
            }),
        };
        Order {
            root: root.to_owned(),
            command: program.command.clone(),
            background,
            group: None,
        }
    }

    fn without(&mut self, what: &str, reason: &str) -> Result<()> {
        eprintln!("without {what}: {reason}");
        (self.emit)(&Line::Without(WithoutLine {
            what: what.to_owned(),
            reason: reason.to_owned(),
        }))
    }
}

/// Returns the version of mkfs.ext4: the first line of its standard error.
fn ext4_version(program: &Path) -> String {
    let output = Command::new(program).arg("-V").output();
    let text = output.map(|o| o.stderr).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().next().unwrap_or("unknown version").to_owned()
}

/// Reads a file to bring it into the page cache.
fn read_through(path: &Path) -> Result<()> {
    let mut file = File::open(path).map_err(|e| Error::io("open", path, e))?;
    let mut buffer = vec![0; 1 << 20];
    while file
        .read(&mut buffer)
        .map_err(|e| Error::io("read", path, e))?
        > 0
    {}
    Ok(())
}

/// Performs a start in a child process. The inner error is the message of a child that failed.
fn start(order: &Order) -> Result<Result<Started, String>> {
    let lab = std::env::current_exe().map_err(|e| Error::Io("find this program".to_owned(), e))?;
    let text = serde_json::to_string(order);
    let text = text.map_err(|e| Error::Command(format!("cannot encode the request: {e}")))?;
    // The process group includes the program, so that it is ended as well after a timeout.
    let mut child = Command::new(&lab)
        .arg("inside")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| Error::io("run", &lab, e))?;
    let group = Pid::from_child(&child);
    let waiting = |e| Error::io("wait for", &lab, e);
    if let Some(mut pipe) = child.stdin.take() {
        // A write error means that the child has exited, and its status gives the reason.
        let _ = pipe.write_all(text.as_bytes());
    }
    let end = Instant::now() + PATIENCE;
    // The child's reply is shorter than a pipe's buffer, so the child cannot block while it is not read.
    while child.try_wait().map_err(waiting)?.is_none() {
        if Instant::now() > end {
            let _ = kill_process_group(group, Signal::KILL);
            child.wait().map_err(waiting)?;
            return Ok(Err("it timed out".to_owned()));
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    let output = child.wait_with_output().map_err(waiting)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().trim_start_matches("tuff-lab: ");
        let root = order.root.to_string_lossy();
        return Ok(Err(format!(
            "{}: {}",
            output.status,
            said.replace(&*root, "ROOT")
        )));
    }
    let done = serde_json::from_slice(&output.stdout);
    done.map(Ok)
        .map_err(|e| Error::Command(format!("cannot parse the reply of the child process: {e}")))
}
