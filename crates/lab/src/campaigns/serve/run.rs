//! Execution of a definition of the serve campaign.

use super::definition::{Cache, Definition, Workload};
use super::image::{Build, ImageSpec};
use super::server::{Able, Served, Server, ServerSpec, available};
use super::workload::{Answer, Script};
use crate::definition::Definition as _;
use crate::measure::cgroup::{self, Membership};
use crate::measure::device::{DIRECT, Device, READ_ONLY};
use crate::measure::machine;
use crate::measure::stop;
use crate::measure::workspace::{self, Work};
use crate::options::{Emit, Options};
use crate::record::{Bar, Header, Labels, Line, labels};
use crate::{At, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Parameters of a run that the definition leaves open.
#[derive(Clone, Debug, clap::Args)]
pub struct Conditions {
    /// Source tree of the images, from which the expected answers are taken
    #[arg(long, value_name = "DIR")]
    pub tree: PathBuf,
    /// Number of rounds for each workload (default: that of the definition)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Measure only workloads whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Measure only images whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    pub image: Option<String>,
    /// Paths of programs, and folders of images and records.
    #[command(flatten)]
    pub options: Options,
}

/// Seed of the random offsets.
const SEED: u64 = 1;

/// Runs a definition, with a header before its lines.
pub fn run_alone(
    name: &str,
    definition: &Definition,
    conditions: &Conditions,
    emit: Emit<'_>,
) -> Result<bool> {
    let filesystem = workspace::filesystem(conditions.options.work())?;
    let settings = [
        ("definition", name.to_owned()),
        ("cache", definition.cache.describe().to_owned()),
        ("images", format!("on {filesystem}")),
        ("seed", SEED.to_string()),
    ];
    emit(&Line::Header(Header::here("serve", settings)?))?;
    let definition = definition.clone().for_options(&conditions.options);
    run(&definition, conditions, emit)
}

/// Runs `definition`. Returns true if `tuff` took part in all workloads for its images with correct answers. The
/// caller writes the header.
pub fn run(definition: &Definition, conditions: &Conditions, emit: Emit<'_>) -> Result<bool> {
    let tree = conditions
        .tree
        .canonicalize()
        .at("find", &conditions.tree)?;
    let work = Work::create(conditions.options.work())?;
    let (servers, ours_fine) = available(&definition.servers, &conditions.options, emit)?;
    let mut session = Session {
        tree,
        work,
        cache: definition.cache,
        emit,
        ours_fine,
    };
    let rounds = conditions.rounds.unwrap_or(definition.rounds);
    let matches = |only: &Option<String>, name: &str| {
        only.as_ref()
            .is_none_or(|only| name.contains(only.as_str()))
    };
    for spec in &definition.images {
        let workloads = definition.workloads.iter();
        let workloads: Vec<&Workload> = workloads
            .filter(|w| w.is_for(&spec.name) && matches(&conditions.only, &w.name))
            .collect();
        if workloads.is_empty() || !matches(&conditions.image, &spec.name) {
            continue;
        }
        stop::check()?;
        let image = session.work.path("image");
        let build = Build {
            tree: &session.tree,
            work: &session.work,
            options: &conditions.options,
        };
        if let Err(reason) = build.run(spec, &image, session.emit)? {
            session.failed(labels([("image", &spec.name)]), true, reason)?;
            continue;
        }
        for workload in workloads {
            let able = servers
                .iter()
                .filter(|(s, _)| s.kind.serves(spec.filesystem()));
            session.workload(workload, spec, &image, &able.collect::<Vec<_>>(), rounds)?;
        }
        workspace::remove(&image)?;
    }
    Ok(session.ours_fine)
}

struct Session<'a> {
    tree: PathBuf,
    work: Work,
    cache: Cache,
    emit: Emit<'a>,
    ours_fine: bool,
}

impl Session<'_> {
    fn workload(
        &mut self,
        workload: &Workload,
        spec: &ImageSpec,
        image: &Path,
        servers: &[&Able<'_>],
        rounds: u32,
    ) -> Result<()> {
        let script = Script::new(&workload.reads, &self.tree, SEED)?;
        let (answer, _) = script.run(&self.tree)?;
        for bar in &workload.bars {
            let mut bar: Bar = bar.clone();
            bar.cell.insert("read".to_owned(), workload.name.clone());
            (self.emit)(&Line::Bar(bar))?;
        }
        let mut alive = vec![true; servers.len()];
        for round in 1..=rounds {
            for turn in 0..servers.len() {
                // Rotates the order in every round, so that no server always runs first.
                let at = (turn + round as usize) % servers.len();
                let ((server, program), alive) = (servers[at], &mut alive[at]);
                if !*alive {
                    continue;
                }
                stop::check()?;
                let cell = labels([
                    ("image", &spec.name),
                    ("read", &workload.name),
                    ("server", &server.name),
                ]);
                let image = (image, spec.filesystem());
                match self.sample(&script, answer, image, server, program.as_deref())? {
                    Ok(values) => {
                        let name = (&spec.name, &workload.name, &server.name);
                        eprintln!("{name:?}: round {round}: {:.2} ms", values["cold_ns"] / 1e6);
                        (self.emit)(&Line::sample(cell, round, values))?;
                    }
                    Err(reason) => {
                        *alive = false;
                        self.failed(cell, server.kind == Server::Tuff, reason)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Mounts an image and runs the passes. The inner error is a failure of the server.
    fn sample(
        &self,
        script: &Script,
        expected: Answer,
        (image, filesystem): (&Path, &str),
        server: &ServerSpec,
        program: Option<&Path>,
    ) -> Result<Result<BTreeMap<String, f64>, String>> {
        let point = self.work.path("mount");
        // Dropped last: a group must be empty when it is removed.
        let mut charges = None;
        let device = match self.cache {
            Cache::Image => {
                workspace::digest(image)?;
                None
            }
            Cache::Device => {
                if let Some(program) = program {
                    // Its pages must not count as pages of the image.
                    workspace::digest(program)?;
                }
                let parent = cgroup::parent();
                charges = parent
                    .map(|parent| Membership::join(&parent, None))
                    .transpose()?;
                Some(Device::attach(image, &[READ_ONLY, DIRECT])?)
            }
        };
        let source = device.as_ref().map_or(image, Device::path);
        let source = (source, filesystem);
        let served = match Served::start(server.kind, program, &server.extra, source, &point)? {
            Ok(served) => served,
            Err(reason) => return Ok(Err(reason)),
        };
        let mut values = BTreeMap::new();
        let passes: &[&str] = match device {
            None => &["cold", "warm"],
            Some(_) => &["cold"],
        };
        for pass in passes {
            let took = match script.run(served.point()) {
                Ok((answer, took)) if answer == expected => took,
                Ok(_) => {
                    return Ok(Err(
                        "the data returned differs from the source tree".to_owned()
                    ));
                }
                Err(e) => {
                    let text = e.to_string().replace(&*point.to_string_lossy(), "MOUNT");
                    return Ok(Err(text));
                }
            };
            values.insert(format!("{pass}_ns"), nanos(took.wall) as f64);
            values.insert(format!("{pass}_client_ns"), nanos(took.client) as f64);
            if *pass == "cold" {
                values.extend(served.used());
                if let Some(device) = &device {
                    let mib = expected.bytes as f64 / f64::from(1 << 20);
                    let speed = mib / took.wall.as_secs_f64().max(1e-9);
                    values.insert("mib_per_s".to_owned(), speed);
                    values.extend(costs(script, &served, device, charges.as_ref(), expected));
                }
            }
        }
        Ok(Ok(values))
    }

    fn failed(&mut self, cell: Labels, ours: bool, text: String) -> Result<()> {
        eprintln!("{cell:?}: {text}");
        self.ours_fine &= !ours;
        (self.emit)(&Line::failure(cell, text))
    }
}

/// Returns the bytes read from the device, and the memory charged to this process and the server, in bytes.
fn costs(
    script: &Script,
    served: &Served,
    device: &Device,
    charges: Option<&Membership>,
    answer: Answer,
) -> BTreeMap<String, f64> {
    let mut values = BTreeMap::new();
    let mut insert = |name: &str, value: f64| values.insert(name.to_owned(), value);
    if let Some(read) = device.read_bytes() {
        insert("device_bytes", read as f64);
        insert("device_ratio", read as f64 / answer.bytes.max(1) as f64);
    }
    let files: BTreeSet<PathBuf> = script.files().map(|f| served.point().join(f)).collect();
    let charged = charges.and_then(Membership::charged);
    let (Some(charged), Ok(content)) = (charged, machine::cached_bytes(&files)) else {
        return values;
    };
    let other = charged.cache.saturating_sub(content);
    let daemon = served.anonymous_bytes().unwrap_or(0);
    let sum = content + other + charged.kernel + daemon;
    insert("content_bytes", content as f64);
    insert("other_cache_bytes", other as f64);
    insert("kernel_bytes", charged.kernel as f64);
    insert("daemon_bytes", daemon as f64);
    insert("memory_bytes", sum as f64);
    values
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
