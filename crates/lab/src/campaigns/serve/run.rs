//! Execution of a definition of the serve campaign.

use super::definition::{Cache, Definition, ImageSpec, ServerSpec, Workload};
use super::record::{FailedLine, Header, ImageLine, Line, SampleLine, WorkloadLine};
use super::server::{Served, Server, Used};
use super::workload::{Answer, Script, Took};
use crate::engines::settings::Action;
use crate::engines::{self, Places, Tool};
use crate::measure::machine::{self, Machine};
use crate::measure::stop;
use crate::measure::workspace::{self, Work};
use crate::measure::{self, Job};
use crate::{Error, Result};
use rustix::fs::{Advice, fadvise};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Parameters of a run that the definition leaves open.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Source tree, from which the images are built and the answers are taken.
    pub tree: PathBuf,
    /// Names and paths of programs. Programs not listed are searched for.
    pub tools: Vec<(String, PathBuf)>,
    /// Number of rounds, in place of the definition's.
    pub rounds: Option<u32>,
    /// Substring of workload names. Only matching workloads run.
    pub only: Option<String>,
    /// Substring of image names. Only matching images are used.
    pub image: Option<String>,
    /// Directory for images and mount points.
    pub work: PathBuf,
}

/// Seed of the random offsets.
const SEED: u64 = 1;

/// Time limit of an image build.
const MAKING: Duration = Duration::from_secs(3600);

/// Runs `definition`. Returns true if `tuff` took part in all workloads for its images with correct answers.
pub fn run(
    definition: &Definition,
    conditions: &Conditions,
    emit: &mut dyn FnMut(&Line) -> Result<()>,
) -> Result<bool> {
    let tree = conditions.tree.canonicalize();
    let tree = tree.map_err(|e| Error::io("find", &conditions.tree, e))?;
    let mut session = Session {
        tree,
        conditions,
        work: Work::create(&conditions.work)?,
        emit,
        ours_fine: true,
    };
    let mut programs = Vec::new();
    let mut servers = Vec::new();
    for server in &definition.servers {
        let program = server
            .kind
            .program()
            .map(|name| program(name, &conditions.tools));
        let version = match &program {
            None => "the running kernel".to_owned(),
            Some(None) => "not found".to_owned(),
            Some(Some(path)) => version(path),
        };
        servers.push((server.name.clone(), version));
        programs.push(program);
    }
    (session.emit)(&Line::Header(Header {
        format: crate::record::FORMAT,
        definition: definition.name.clone(),
        machine: Machine::inspect()?,
        cache: definition.cache,
        work_filesystem: workspace::filesystem(session.work.folder())?,
        servers,
        seed: SEED,
    }))?;
    let wanted = |only: &Option<String>, name: &str| {
        only.as_ref()
            .is_none_or(|only| name.contains(only.as_str()))
    };
    for spec in definition
        .images
        .iter()
        .filter(|i| wanted(&conditions.image, &i.name))
    {
        let workloads = definition.workloads.iter();
        let workloads: Vec<&Workload> = workloads
            .filter(|w| w.is_for(&spec.name) && wanted(&conditions.only, &w.name))
            .collect();
        if workloads.is_empty() {
            continue;
        }
        let image = match session.make(spec)? {
            Ok(image) => image,
            Err(reason) => {
                session.failed("", &spec.name, None, reason)?;
                continue;
            }
        };
        let all = definition.servers.iter().zip(&programs);
        let able: Vec<(&ServerSpec, Option<&Path>)> = all
            .filter(|(s, _)| s.kind.serves(spec.by.format()))
            .filter_map(|(s, program)| match program {
                None => Some((s, None)),
                Some(program) => Some((s, Some(program.as_deref()?))),
            })
            .collect();
        for workload in workloads {
            let rounds = conditions.rounds.unwrap_or(definition.rounds);
            session.workload(workload, spec, &image, &able, rounds, definition.cache)?;
        }
        workspace::remove(&image)?;
    }
    Ok(session.ours_fine)
}

/// Returns the path of a program: the given path if it is executable, or the result of a search without one.
pub fn program(name: &str, given: &[(String, PathBuf)]) -> Option<PathBuf> {
    match given.iter().rev().find(|(n, _)| n == name) {
        Some((_, path)) => Some(path.clone()).filter(|p| engines::is_program(p)),
        None => engines::search(name),
    }
}

struct Session<'a> {
    tree: PathBuf,
    conditions: &'a Conditions,
    work: Work,
    emit: &'a mut dyn FnMut(&Line) -> Result<()>,
    ours_fine: bool,
}

impl Session<'_> {
    /// Builds an image. The inner error is the reason for a failure.
    fn make(&mut self, spec: &ImageSpec) -> Result<Result<PathBuf, String>> {
        let maker: Tool = spec.by;
        let Some(program) = program(maker.name(), &self.conditions.tools) else {
            return Ok(Err(format!(
                "{}, which builds the image, was not found",
                maker.name()
            )));
        };
        let plan =
            engines::plan(maker, Action::Build, &spec.settings, &[]).map_err(Error::Usage)?;
        let image = self.work.path("image");
        workspace::remove(&image)?;
        let arguments = plan.arguments(Places {
            tree: &self.tree,
            image: &image,
            target: self.work.target(),
        });
        eprintln!("{}: {}", spec.name, plan.shown());
        let job = Job {
            program: &program,
            arguments: &arguments,
            folder: self.work.folder(),
            cgroup: None,
        };
        match measure::run_within(&job, MAKING)? {
            Some((Some(0), _)) => {}
            Some((_, said)) => {
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
        (self.emit)(&Line::Image(ImageLine {
            image: spec.name.clone(),
            command: plan.shown(),
            image_bytes: workspace::length(&image)?,
        }))?;
        // Only clean pages can be evicted.
        File::open(&image)
            .and_then(|f| f.sync_all())
            .map_err(|e| Error::io("sync", &image, e))?;
        Ok(Ok(image))
    }

    fn workload(
        &mut self,
        workload: &Workload,
        spec: &ImageSpec,
        image: &Path,
        servers: &[(&ServerSpec, Option<&Path>)],
        rounds: u32,
        cache: Cache,
    ) -> Result<()> {
        let script = Script::new(&workload.reads, &self.tree, SEED)?;
        let (answer, _) = script.run(&self.tree)?;
        let bars = workload.bars.iter();
        let bars = bars.filter(|b| b.image.as_ref().is_none_or(|i| *i == spec.name));
        (self.emit)(&Line::Workload(WorkloadLine {
            workload: workload.name.clone(),
            image: spec.name.clone(),
            answer,
            bars: bars.cloned().collect(),
        }))?;
        let mut alive = vec![true; servers.len()];
        for round in 1..=rounds {
            for ((server, program), alive) in servers.iter().zip(&mut alive) {
                if !*alive {
                    continue;
                }
                stop::check()?;
                match self.sample(&script, answer, (spec, image), (server, *program), cache)? {
                    Ok((cold, warm, used)) => {
                        let line = SampleLine {
                            workload: workload.name.clone(),
                            image: spec.name.clone(),
                            server: server.name.clone(),
                            round,
                            cold_ns: nanos(cold.wall),
                            warm_ns: nanos(warm.wall),
                            cold_asker_ns: Some(nanos(cold.asker)),
                            warm_asker_ns: Some(nanos(warm.asker)),
                            used,
                        };
                        eprintln!(
                            "{}: {}: round {round}: {} cold {:.2} ms, warm {:.2} ms",
                            spec.name,
                            workload.name,
                            server.name,
                            cold.wall.as_secs_f64() * 1e3,
                            warm.wall.as_secs_f64() * 1e3
                        );
                        (self.emit)(&Line::Sample(line))?;
                    }
                    Err(reason) => {
                        *alive = false;
                        self.failed(&workload.name, &spec.name, Some(server), reason)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Mounts an image and runs both passes. The inner error is a failure of the server.
    fn sample(
        &self,
        script: &Script,
        expected: Answer,
        (spec, image): (&ImageSpec, &Path),
        (server, program): (&ServerSpec, Option<&Path>),
        cache: Cache,
    ) -> Result<Result<(Took, Took, Used), String>> {
        let point = self.work.path("mount");
        let image = (image, spec.by.format().name());
        let free_before = prepare(image.0, cache)?;
        let served = match server.kind {
            Server::Tree => Served::tree(&self.tree),
            kind => match Served::start(kind, program, &server.extra, image, &point)? {
                Ok(served) => served,
                Err(reason) => return Ok(Err(reason)),
            },
        };
        let mut passes = [Took::default(); 2];
        let mut used = None;
        for pass in &mut passes {
            match script.run(served.point()) {
                Ok((answer, took)) if answer == expected => *pass = took,
                Ok(_) => {
                    return Ok(Err(
                        "the data returned differs from the source tree".to_owned()
                    ));
                }
                Err(e) => {
                    let text = e.to_string().replace(&*point.to_string_lossy(), "MOUNT");
                    return Ok(Err(text));
                }
            }
            if used.is_none() {
                used = Some(Used {
                    system_bytes: free_before
                        .zip(machine::memory_free())
                        .map(|(before, after)| before.saturating_sub(after)),
                    held_bytes: free_before.and_then(|_| held(script, &served, image.0)),
                    ..served.used()
                });
            }
        }
        Ok(Ok((passes[0], passes[1], used.unwrap_or_default())))
    }

    fn failed(
        &mut self,
        workload: &str,
        image: &str,
        server: Option<&ServerSpec>,
        reason: String,
    ) -> Result<()> {
        let name = server.map_or("", |s| &s.name);
        eprintln!("{image}: {workload}: {name} drops out: {reason}");
        if server.is_none_or(|s| s.kind == Server::Tuff) {
            self.ours_fine = false;
        }
        (self.emit)(&Line::Failed(FailedLine {
            workload: workload.to_owned(),
            image: image.to_owned(),
            server: name.to_owned(),
            reason,
        }))
    }
}

/// Puts the image's pages into the state required before the next mount. Returns the free memory in bytes if
/// all caches could be dropped.
fn prepare(image: &Path, cache: Cache) -> Result<Option<u64>> {
    match cache {
        Cache::Image => workspace::digest(image).map(|_| None),
        Cache::None => {
            rustix::fs::sync();
            if std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok() {
                return Ok(machine::memory_free());
            }
            let file = File::open(image).map_err(|e| Error::io("open", image, e))?;
            let evicted = fadvise(&file, 0, None, Advice::DontNeed);
            evicted.map_err(|e| Error::io("evict", image, e.into()))?;
            Ok(None)
        }
    }
}

/// Returns the page cache of the image and the files read, plus resident memory of a daemon, in bytes. None
/// without `fincore`, or if there are too many files for its command line.
fn held(script: &Script, served: &Served, image: &Path) -> Option<u64> {
    let files = script.files().map(|file| served.point().join(file));
    let files: BTreeSet<PathBuf> = files.chain([image.to_owned()]).collect();
    let cached = machine::cached_bytes(&files).ok()?;
    Some(cached + served.resident_bytes().unwrap_or(0))
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the first line with a version number in the output of `--version`. Some programs write it to
/// standard error or exit with a failure.
pub(crate) fn version(program: &Path) -> String {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let argument = match name.ends_with("squashfs") {
        true => "-version",
        false => "--version",
    };
    let Ok(output) = Command::new(program).arg(argument).output() else {
        return "unknown version".to_owned();
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    version_line(&text, &name)
        .unwrap_or("unknown version")
        .replace(&*program.to_string_lossy(), &name)
}

/// Prefers lines with the name of the program, because FUSE servers also report versions of their libraries.
fn version_line<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let digit = |b: &u8| b.is_ascii_digit();
    let has_number = |line: &&str| {
        let mut threes = line.as_bytes().windows(3);
        threes.any(|w| matches!(w, [a, b'.', b] if digit(a) && digit(b)))
    };
    let mut lines: Vec<&str> = text.lines().filter(has_number).collect();
    lines.sort_by_key(|l| !l.contains(name));
    lines.first().map(|l| l.trim())
}

#[cfg(test)]
mod tests {
    use super::version_line;

    #[test]
    fn a_version_has_digits_around_a_dot() {
        let text = "library 3.14\nusage: -1\n  server 1.9.3 (c)\n";
        assert_eq!(version_line(text, "server"), Some("server 1.9.3 (c)"));
        assert_eq!(version_line(text, "other"), Some("library 3.14"));
        assert_eq!(version_line("no 1 version.", "no"), None);
    }
}
