//! Cold starts of programs out of `tuff mount URL`, beside a download of the whole image and the plain tree.
//!
//! ```text
//!  image in memory ──► HTTP server of this process ──► link: latency, bandwidth, loss ──► tuff mount ──► program
//! ```
//!
//! All answers pass one link, one after another. An answer is sent when its last byte would have arrived, plus the latency. This
//! leaves out handshakes and the slow start of TCP, and it favours small answers, whose first bytes a real network delivers
//! earlier. A lost answer breaks off in its middle. Every start has an empty cache of its own; the plain tree is in the page cache.

use super::serve::image::Build;
use super::serve::server::{Served, Server};
use super::start::definition::{Definition, Program};
use super::start::inside::{Answer, Order};
use super::start::rooted::Rooted;
use super::start::run::{make, start};
use crate::definition::Definition as _;
use crate::engines::version;
use crate::measure::workspace::{self, Work};
use crate::measure::{helper, stop};
use crate::options::{Emit, Options, need_root};
use crate::record::{Header, Line, Record, labels};
use crate::report::table::{self, Columns, Figure, Table};
use crate::{At, Error, Result};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tuff_testkit::{Rng, http};

/// Text of the definition in `benchmarks/definitions`.
const DEFINITION: &str = include_str!("../../../../benchmarks/definitions/remote/programs.toml");
/// Ways to start a program, with the options of `tuff mount`. PROFILE stands for the profile of an earlier start.
const WAYS: [(&str, &[&str]); 5] = [
    (TREE, &[]),
    (DOWNLOAD, &[]),
    ("no profile", &[]),
    ("profile", &["--prefetch=PROFILE"]),
    ("profile, fill", &["--prefetch=PROFILE", "--fill"]),
];
const TREE: &str = "plain tree";
/// Path of the image on the server.
const PATH: &str = "/image";
const DOWNLOAD: &str = "download first";

/// Start programs out of images behind a URL, over an emulated network
///
/// Compares mounts without a profile, with one, and with one while the rest is fetched, with a download of the whole image
/// first, and with the plain tree. Writes a record and prints its tables. Requires root, because programs run with the mount as
/// their root directory.
#[derive(Clone, Debug, clap::Args)]
pub struct Conditions {
    /// Time from the last byte of an answer at the server to its arrival, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 20)]
    pub latency: u64,
    /// Bandwidth of the link in Mbit/s
    #[arg(long, value_name = "MBIT", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub bandwidth: u64,
    /// Answers of 1000 that break off in their middle
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub loss: usize,
    /// Number of starts of each program in each way (default: that of the definition)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub starts: Option<u32>,
    /// Start only programs whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Paths of programs, and folders of images and records.
    #[command(flatten)]
    pub options: Options,
}

/// Link between server and client.
struct Link {
    /// Time from which on the link is free.
    free: Instant,
    rng: Rng,
    bytes: u64,
}

/// Server of an image behind a link.
struct Remote {
    server: http::Server,
    link: Arc<Mutex<Link>>,
}

impl Remote {
    fn serve(image: &Arc<Vec<u8>>, conditions: &Conditions, seed: u64) -> Remote {
        let link = Arc::new(Mutex::new(Link {
            free: Instant::now(),
            rng: Rng::new(seed),
            bytes: 0,
        }));
        let (image, shared) = (Arc::clone(image), Arc::clone(&link));
        let latency = Duration::from_millis(conditions.latency);
        let bytes_per_second = conditions.bandwidth as f64 * 1e6 / 8.0;
        let loss = conditions.loss;
        let server = http::Server::start(move |request| {
            let mut answer = match request.path.as_str() {
                PATH => http::Answer::object(request, &image, "\"1\""),
                // A profile beside the image, for example.
                _ => http::Answer::status(404),
            };
            let length = answer.body.len();
            let mut link = shared.lock().unwrap_or_else(|e| e.into_inner());
            let now = Instant::now();
            link.bytes += length as u64;
            let time = Duration::from_secs_f64(length as f64 / bytes_per_second);
            link.free = link.free.max(now) + time;
            answer.delay = link.free - now + latency;
            if link.rng.below(1000) < loss {
                answer.cut = Some(length / 2);
            }
            answer
        });
        Remote { server, link }
    }
}

/// Runs all starts. Returns true if all programs printed what they print with the plain tree.
pub fn run(conditions: &Conditions, emit: Emit<'_>) -> Result<bool> {
    need_root("changing the root directory of programs")?;
    let definition = Definition::parse("remote", DEFINITION)?;
    let tuff = conditions.options.need("tuff")?;
    let work = Work::create(conditions.options.work())?;
    let only = conditions.only.as_deref().unwrap_or_default();
    let named = definition.programs.iter().filter(|p| p.name.contains(only));
    let mut without = Vec::new();
    let (tree, programs) = make(&definition, named, &work, &mut without)?;
    let starts = conditions.starts.unwrap_or(definition.starts);
    let settings = [
        ("latency, ms", conditions.latency.to_string()),
        ("bandwidth, Mbit/s", conditions.bandwidth.to_string()),
        ("loss, answers of 1000", conditions.loss.to_string()),
        ("starts", starts.to_string()),
        ("version", version(&tuff)),
    ];
    emit(&Line::Header(Header::here("remote", settings)?))?;
    for (cell, reason) in without {
        emit(&Line::failure(cell, reason))?;
    }
    let path = work.path("image");
    let build = Build {
        tree: &tree,
        work: &work,
        options: &conditions.options,
    };
    let built = build.run(&definition.images[0], &path, emit)?;
    built.map_err(Error::Command)?;
    let session = Session {
        conditions,
        tuff,
        image: Arc::new(std::fs::read(&path).at("read", &path)?),
        path,
        work,
        tree,
    };
    let mut fine = true;
    for program in programs {
        let cell = |way: &str| labels([("program", &program.name), ("way", way)]);
        if let Err(reason) = session.profile(program)? {
            emit(&Line::failure(labels([("program", &program.name)]), reason))?;
            continue;
        }
        let mut expected = None;
        for round in 1..=starts {
            for (way, options) in WAYS {
                stop::check()?;
                let failure = match session.start(program, way, options, u64::from(round))? {
                    Ok((values, answer)) if *expected.get_or_insert(answer.clone()) == answer => {
                        eprintln!("{}, {way}: {:.0} ms", program.name, values["cold_ms"]);
                        emit(&Line::sample(cell(way), round, values))?;
                        continue;
                    }
                    Ok(_) => "the output differs from that with the plain tree".to_owned(),
                    Err(reason) => reason,
                };
                fine = false;
                emit(&Line::failure(cell(way), failure))?;
            }
        }
    }
    Ok(fine)
}

struct Session<'a> {
    conditions: &'a Conditions,
    tuff: PathBuf,
    image: Arc<Vec<u8>>,
    /// Path of the image.
    path: PathBuf,
    work: Work,
    tree: PathBuf,
}

type Values = BTreeMap<String, f64>;

impl Session<'_> {
    fn mount(&self, image: &Path, options: &[String]) -> Result<Result<Served, String>> {
        let (point, tuff) = (self.work.path("mount"), Some(&*self.tuff));
        Served::start(Server::Tuff, tuff, options, (image, "erofs"), &point)
    }

    /// Records the profile of a program, from a mount of the image itself.
    fn profile(&self, program: &Program) -> Result<Result<(), String>> {
        let option = format!("--record={}", self.work.path("profile").display());
        let served = match self.mount(&self.path, &[option])? {
            Ok(served) => served,
            Err(reason) => return Ok(Err(reason)),
        };
        let rooted = Rooted::on(served)?;
        Ok(start(&Order::new(rooted.point(), &program.command))?.map(|_| ()))
    }

    /// Starts a program in a way. The inner error is the reason for a failure.
    fn start(
        &self,
        program: &Program,
        way: &str,
        options: &[&str],
        seed: u64,
    ) -> Result<Result<(Values, Answer), String>> {
        let (cache, local) = (self.work.path("cache"), self.work.path("downloaded"));
        workspace::remove(&cache)?;
        let remote = Remote::serve(&self.image, self.conditions, seed);
        let url = remote.server.url(PATH);
        let begin = Instant::now();
        let rooted = if way == TREE {
            Rooted::of_tree(&self.tree, &self.work.path("mount"))?
        } else {
            let profile = self.work.path("profile").display().to_string();
            let options = options
                .iter()
                .map(|option| option.replace("PROFILE", &profile));
            let mut options: Vec<String> = options.collect();
            let image = if way == DOWNLOAD {
                let words = "-sS --retry 99 --retry-all-errors --retry-delay 1".split(' ');
                let paths = [OsStr::new("-o"), local.as_os_str(), OsStr::new(&url)];
                helper::output("curl", words.map(OsStr::new).chain(paths))?;
                local
            } else {
                options.push(format!("--cache-dir={}", cache.display()));
                PathBuf::from(url)
            };
            match self.mount(&image, &options)? {
                Ok(served) => Rooted::on(served)?,
                Err(reason) => return Ok(Err(reason)),
            }
        };
        let done = match start(&Order::new(rooted.point(), &program.command))? {
            Ok(done) if done.answer.exit == 0 => done,
            Ok(done) => {
                return Ok(Err(format!(
                    "exits with {}: {}",
                    done.answer.exit, done.said
                )));
            }
            Err(reason) => return Ok(Err(reason)),
        };
        let time = begin.elapsed();
        let mut values = Values::new();
        let mut put = |name: &str, value: f64| values.insert(name.to_owned(), value);
        put("cold_ms", time.as_secs_f64() * 1e3);
        put("start_ms", done.ns as f64 / 1e6);
        if way != TREE {
            put("requests", remote.server.take_requests().len() as f64);
            let link = remote.link.lock().unwrap_or_else(|e| e.into_inner());
            put("sent_bytes", link.bytes as f64);
        }
        let words = ["stats", "--json"].map(OsStr::new).into_iter();
        if way != TREE
            && let Ok(stats) = helper::json(&self.tuff, words.chain([rooted.point().as_os_str()]))
            && let Some(misses) = find(&stats, "remote_demand_misses")
        {
            put("demand_misses", misses);
        }
        values.extend(rooted.served().map(Served::used).unwrap_or_default());
        Ok(Ok((values, done.answer)))
    }
}

/// Returns the first number of a name in a JSON value, at any depth.
fn find(value: &serde_json::Value, name: &str) -> Option<f64> {
    let object = value.as_object()?;
    let here = object.get(name).and_then(serde_json::Value::as_f64);
    here.or_else(|| object.values().find_map(|inner| find(inner, name)))
}

const COLD: Figure = Figure::new("cold_ms", "from the mount to the exit, ms", 1.0);
const FIGURES: [Figure; 7] = [
    COLD,
    Figure::new("start_ms", "the program alone, ms", 1.0),
    Figure::new("sent_bytes", "sent by the server, MiB", 1_048_576.0),
    Figure::new("requests", "requests", 1.0),
    Figure::new("demand_misses", "reads that waited for the network", 1.0),
    Figure::new("daemon_cpu_us", "CPU time of the mount, ms", 1e3),
    Figure::new("daemon_peak_bytes", "memory of the mount, MiB", 1_048_576.0),
];

/// Renders a table for each figure.
pub(crate) fn render(record: &Record) -> String {
    let table = |figure: Figure| {
        let is_time = figure.value == COLD.value;
        let table = Table {
            title: figure.title,
            rows: &["program"],
            columns: Columns::Label("way", figure),
            base: ("way", if is_time { &[DOWNLOAD] } else { &[] }),
            spread: is_time,
            ..table::PLAIN
        };
        table.render(record)
    };
    table::heading(record) + &FIGURES.map(table).concat() + &table::notes(record)
}

/// Draws the time of each program in each way as bars.
pub(crate) fn plot(record: &Record) -> Result<String> {
    table::bar_plot(record, &["program"], "way", Some(&COLD), "ms")
}
