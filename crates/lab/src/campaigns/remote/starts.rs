//! Cold starts of programs out of `tuff mount URL`, beside other ways to get them.

use super::session::{PATH, Session, Values, bar, counter, definition};
use crate::campaigns::serve::image::Build;
use crate::campaigns::serve::server::{Served, Server};
use crate::campaigns::start::definition::Program;
use crate::campaigns::start::inside::{Answer, Order};
use crate::campaigns::start::rooted::Rooted;
use crate::campaigns::start::run::start;
use crate::definition::RUNS;
use crate::measure::device::{DIRECT, Device, READ_ONLY};
use crate::measure::{helper, stop};
use crate::options::Emit;
use crate::record::{Line, labels};
use crate::{Error, Result};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Ways to start a program, with the options of `tuff mount`. PROFILE stands for the profile of an earlier start.
const WAYS: [(&str, &[&str]); 7] = [
    (TREE, &[]),
    (DOWNLOAD, &[]),
    (NO_PROFILE, &[]),
    (PROFILE, &["--prefetch=PROFILE"]),
    ("profile, fill", &["--prefetch=PROFILE", "--fill"]),
    ("kernel, no profile", &["--kernel"]),
    ("kernel, profile", &["--kernel", "--prefetch=PROFILE"]),
];
const TREE: &str = "plain tree";
pub(super) const DOWNLOAD: &str = "download first";
const NO_PROFILE: &str = "no profile";
const PROFILE: &str = "profile";
/// Shortest latency in milliseconds from which on the bars hold.
const LATENCY_MIN: u64 = 20;

/// Way to start a program, and the program that mounts.
struct Way {
    name: String,
    tuff: PathBuf,
    options: &'static [&'static str],
}

/// Returns the ways of a round. With an earlier program these are the mounts, and those of the earlier program, twice.
fn ways(session: &Session<'_>) -> Vec<Way> {
    let way = |name: String, tuff: &Path, options| Way {
        name,
        tuff: tuff.to_owned(),
        options,
    };
    let Some(earlier) = session.conditions.options.earlier() else {
        let ways = WAYS.iter();
        let ways = ways.map(|(name, options)| way((*name).to_owned(), &session.tuff, *options));
        return ways.collect();
    };
    let mounts = WAYS
        .iter()
        .filter(|(name, _)| ![TREE, DOWNLOAD].contains(name));
    let triple = |(name, options): &(&str, &'static [&'static str])| {
        let [before, again] = RUNS.map(|end| way((*name).to_owned() + end, &earlier, *options));
        [
            way((*name).to_owned(), &session.tuff, *options),
            before,
            again,
        ]
    };
    mounts.flat_map(triple).collect()
}

pub(super) fn run(session: &Session<'_>, emit: Emit<'_>) -> Result<bool> {
    let definition = definition()?;
    let (tree, programs) = session.programs(&definition, emit)?;
    let image = session.work.path("image");
    let build = Build {
        tree: &tree,
        work: &session.work,
        options: &session.conditions.options,
    };
    let built = build.run(&definition.images[0], &image, emit)?;
    built.map_err(Error::Command)?;
    let has_faults = !session.conditions.network.fault.is_empty();
    let is_comparison = session.conditions.options.earlier().is_some();
    if session.conditions.network.latency >= LATENCY_MIN && !has_faults && !is_comparison {
        emit(&bar("way", (PROFILE, Some(NO_PROFILE)), "cold_ms", 0.4))?;
        emit(&bar("way", (PROFILE, Some(DOWNLOAD)), "cold_ms", 0.6))?;
        emit(&bar(
            "way",
            (PROFILE, Some(NO_PROFILE)),
            "demand_misses",
            0.05,
        ))?;
        let kernel = ("kernel, profile", Some("kernel, no profile"));
        emit(&bar("way", kernel, "demand_misses", 0.05))?;
        emit(&bar("way", (PROFILE, None), "sent_ratio", 1.5))?;
        emit(&bar(
            "way",
            (NO_PROFILE, None),
            "requests_before_mount",
            2.0,
        ))?;
    }
    let rounds = session.conditions.starts.unwrap_or(definition.starts);
    let starts = Starts {
        session,
        tree: &tree,
        image: &image,
    };
    let mut fine = true;
    for program in programs {
        stop::check()?;
        if let Err(reason) = starts.profile(program)? {
            emit(&Line::failure(labels([("program", &program.name)]), reason))?;
            continue;
        }
        fine &= starts.program(program, rounds, emit)?;
    }
    Ok(fine)
}

struct Starts<'a> {
    session: &'a Session<'a>,
    tree: &'a Path,
    image: &'a Path,
}

/// Values of a start and the output of its program, or the reason for a failure.
type Start = std::result::Result<(Values, Answer), String>;

impl Starts<'_> {
    fn program(&self, program: &Program, rounds: u32, emit: Emit<'_>) -> Result<bool> {
        let cell = |way: &str| labels([("program", &program.name), ("way", way)]);
        let disk_bytes = self.disk_bytes(program)?;
        let mut ways = ways(self.session);
        let (mut fine, mut expected) = (true, None);
        for round in 1..=rounds {
            // No way always runs first.
            ways.rotate_left(1);
            for way in &ways {
                stop::check()?;
                let name = &way.name;
                let failure = match self.start(program, way, u64::from(round))? {
                    Ok((mut values, answer))
                        if *expected.get_or_insert(answer.clone()) == answer =>
                    {
                        eprintln!("{}, {name}: {:.0} ms", program.name, values["cold_ms"]);
                        if let Some(sent) = values.get("sent_bytes") {
                            values.insert("sent_ratio".to_owned(), sent / disk_bytes);
                        }
                        emit(&Line::sample(cell(name), round, values))?;
                        continue;
                    }
                    Ok(_) => "the output differs from that with the plain tree".to_owned(),
                    Err(reason) => reason,
                };
                fine = false;
                emit(&Line::failure(cell(name), failure))?;
            }
        }
        Ok(fine)
    }

    /// Records the profile of a program, from a mount of the image itself.
    fn profile(&self, program: &Program) -> Result<Result<(), String>> {
        let option = format!("--record={}", self.session.work.path("profile").display());
        let served = match self
            .session
            .mount(&self.session.tuff, self.image, &[option])?
        {
            Ok(served) => served,
            Err(reason) => return Ok(Err(reason)),
        };
        let rooted = Rooted::on(served)?;
        let done = start(&Order::new(rooted.point(), &program.command))?;
        Ok(done.map(|_| ()))
    }

    /// Returns the bytes that the kernel reads from a disk for a start out of the image.
    fn disk_bytes(&self, program: &Program) -> Result<f64> {
        let device = Device::attach(self.image, &[READ_ONLY, DIRECT])?;
        let point = self.session.work.path("mount");
        let source = (device.path(), "erofs");
        let served = Served::start(Server::Kernel, None, &[], source, &point)?;
        let rooted = Rooted::on(served.map_err(Error::Command)?)?;
        let done = start(&Order::new(rooted.point(), &program.command))?;
        done.map_err(Error::Command)?;
        let read = device.read_bytes();
        drop(rooted);
        read.map(|read| read as f64)
            .ok_or_else(|| Error::Command("the loop device counts no reads".to_owned()))
    }

    /// Starts a program in a way. The inner error is the reason for a failure.
    fn start(&self, program: &Program, way: &Way, seed: u64) -> Result<Start> {
        let name = way.name.as_str();
        let work = &self.session.work;
        let local = work.path("downloaded");
        let cache = self.session.empty_cache()?;
        let remote = self.session.serve(self.image, seed)?;
        let url = remote.url(PATH);
        let mut values = Values::new();
        let mut put = |name: &str, value: f64| values.insert(name.to_owned(), value);
        let begin = Instant::now();
        let mut before = 0;
        let rooted = if name == TREE {
            Rooted::of_tree(self.tree, &work.path("mount"))?
        } else {
            let profile = work.path("profile").display().to_string();
            let options = way
                .options
                .iter()
                .map(|option| option.replace("PROFILE", &profile));
            let mut options: Vec<String> = options.collect();
            let image = if name == DOWNLOAD {
                let words = "-sS --retry 99 --retry-all-errors --retry-delay 1".split(' ');
                let paths = [OsStr::new("-o"), local.as_os_str(), OsStr::new(&url)];
                helper::output("curl", words.map(OsStr::new).chain(paths))?;
                local
            } else {
                options.push(cache);
                PathBuf::from(url)
            };
            let served = match self.session.mount(&way.tuff, &image, &options)? {
                Ok(served) => served,
                Err(reason) => return Ok(Err(reason)),
            };
            before = remote.take_requests(PATH);
            if name == NO_PROFILE {
                put("requests_before_mount", before as f64);
            }
            Rooted::on(served)?
        };
        let done = match start(&Order::new(rooted.point(), &program.command))? {
            Ok(done) if done.answer.exit == 0 => done,
            Ok(done) => {
                return Ok(Err(format!(
                    "exits with {}: {}",
                    done.answer.exit, done.message
                )));
            }
            Err(reason) => return Ok(Err(reason)),
        };
        put("cold_ms", begin.elapsed().as_secs_f64() * 1e3);
        put("start_ms", done.ns as f64 / 1e6);
        if name != TREE {
            put("requests", (before + remote.take_requests(PATH)) as f64);
            put("sent_bytes", remote.sent_bytes() as f64);
        }
        for figure in ["demand_misses", "demand_waits"] {
            let value = counter(&way.tuff, rooted.point(), &format!("remote_{figure}"));
            if let Some(value) = value.filter(|_| name != TREE) {
                put(figure, value);
            }
        }
        values.extend(rooted.served().map(Served::used).unwrap_or_default());
        Ok(Ok((values, done.answer)))
    }
}
