//! Campaign of hostile servers: verbs on URLs whose servers break every rule.
//!
//! | module | content |
//! |---|---|
//! | `faults` | faults, from the table `faults.toml` |
//! | `reply` | answers, and their damage |
//! | `world` | servers, and the secrets of their clients |
//! | `case` | one verb and what must hold |
//!
//! First each fault of the table meets several verbs with their default limits. Then random cases combine up to three faults with
//! damaged answers, and a short deadline. All traffic stays on the loopback interface.

mod case;
mod faults;
mod reply;
mod world;

use super::program::SealedImage;
use super::rounds::{self, Campaign, Tally};
use crate::measure::workspace;
use crate::{At, Result};
use case::{Case, Program};
use faults::FAULTS;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tuff_testkit::Rng;
use world::{Plan, World};

/// Memory of a verb above that of the same verbs on honest servers. Unit: KiB.
const MEMORY_MAX: u64 = 64 << 10;

/// Run verbs on images behind hostile web servers, registries and buckets
///
/// Each run must end in time, with a documented exit code, one sentence and right bytes or none. No other origin may receive a
/// password, a token, a key, a signature or a secret query. On a wrong result, prints the seed, the faults and the command, and
/// exits with 1.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Number of random cases after the table
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pub rounds: u64,
    /// Number of cases at once
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub workers: u64,
    /// Leave out the faults of the table that wait for the deadline of a minute
    #[arg(long)]
    pub fast: bool,
    /// Folder of the image and the caches, seed, time and programs.
    #[command(flatten)]
    pub common: rounds::Options,
}

/// Counters of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Number of faults of the table that were met.
    pub faults: u64,
    /// Number of runs of verbs.
    pub runs: u64,
    /// Number of runs by exit code.
    pub codes: BTreeMap<i32, u64>,
    /// Bytes that other origins received, in which secrets were looked for.
    pub searched: u64,
    /// Peak memory of a verb on honest servers. Unit: KiB.
    pub honest_memory: u64,
    /// Peak memory of a verb. Unit: KiB.
    pub memory: u64,
}

impl rounds::Counts for Counts {
    const UNIT: &'static str = "runs";

    fn count(&self) -> u64 {
        self.runs
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} faults, {} bytes searched for secrets",
            self.faults, self.searched
        )?;
        let codes = self.codes.iter();
        let codes: Vec<String> = codes
            .map(|(code, runs)| format!("{code}: {runs}"))
            .collect();
        writeln!(f, "exit codes: {}", codes.join(", "))?;
        write!(
            f,
            "peak memory: {} KiB, {} KiB on honest servers",
            self.memory, self.honest_memory
        )
    }
}

/// Work of a campaign: a row of the table with the number of its verb, or a random case.
#[derive(Clone, Copy)]
enum Job {
    Row(usize, usize),
    Random(u64),
}

impl Campaign for Options {
    type Counts = Counts;

    fn run(&self, tally: &mut Tally<Counts>) -> Result<()> {
        let tuff = self.common.options.need("tuff")?;
        let out = &self.common.out;
        fs::create_dir_all(out).at("create", out)?;
        let out = out.canonicalize().at("find", out)?;
        let (image, program) = prepare(&tuff, &out)?;
        let image = Arc::new(image);
        let begin = Instant::now();
        let shared = Mutex::new(tally);
        let add = |done: Result<case::Done>| -> Result<()> {
            let mut tally = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let done = done?;
            let counts = &mut tally.counts;
            counts.runs += 1;
            *counts.codes.entry(done.code).or_default() += 1;
            counts.searched += done.searched;
            counts.memory = counts.memory.max(done.memory);
            let limit = counts.honest_memory + MEMORY_MAX;
            if counts.honest_memory > 0 && done.memory > limit {
                let what = format!(
                    "{}: {} KiB of memory, limit {limit}",
                    done.name, done.memory
                );
                tally.findings.push(what);
            }
            tally.findings.extend(done.finding);
            tally.show();
            Ok(())
        };
        // The honest rows of the table come first: they show what the verbs need.
        let fast = self.fast;
        let rows = move |is_right: bool| {
            let rows = (0..FAULTS.len()).filter(move |row| FAULTS[*row].is_right == is_right);
            let rows = rows.filter(move |row| !fast || !FAULTS[*row].is_slow);
            rows.flat_map(|row| case::verbs_of_row(row).map(move |verb| Job::Row(row, verb)))
        };
        let honest: Vec<Job> = rows(true).collect();
        let hostile: Vec<Job> = rows(false).collect();
        let random = (0..self.rounds).map(|round| Job::Random(self.common.seed + round));
        let random: Vec<Job> = random.collect();
        for (number, jobs) in [honest, hostile, random].iter().enumerate() {
            self.work(begin, jobs, &image, &program, &out, &add)?;
            let mut tally = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let counts = &mut tally.counts;
            if number == 0 {
                counts.honest_memory = counts.memory;
            }
            if number == 1 {
                let met = |fault: &&faults::Fault| !fast || !fault.is_slow;
                counts.faults = FAULTS.iter().filter(met).count() as u64;
            }
        }
        Ok(())
    }
}

impl Options {
    /// Runs jobs by several workers, each with servers of its own.
    fn work(
        &self,
        begin: Instant,
        jobs: &[Job],
        image: &Arc<SealedImage>,
        program: &Program,
        out: &Path,
        add: &(dyn Fn(Result<case::Done>) -> Result<()> + Sync),
    ) -> Result<()> {
        let (next, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        let worker = |number: u64| -> Result<()> {
            let world = World::new(Arc::clone(image));
            let folder = out.join(format!("worker-{number}"));
            while !is_over.load(Ordering::SeqCst) && !self.common.is_over(begin) {
                crate::measure::stop::check()?;
                let at = next.fetch_add(1, Ordering::SeqCst);
                // Fits: the list is in memory.
                let Some(job) = jobs.get(at as usize) else {
                    break;
                };
                workspace::remove(&folder)?;
                fs::create_dir(&folder).at("create", &folder)?;
                let (name, plan, verb, is_random) = match *job {
                    Job::Row(row, verb) => (
                        format!("row {row} ({})", FAULTS[row].name),
                        Plan::row(row),
                        verb,
                        false,
                    ),
                    Job::Random(seed) => {
                        let mut rng = Rng::new(seed);
                        let plan = Plan::random(&mut rng);
                        let names: Vec<_> = plan.faults.iter().map(|fault| &*fault.name).collect();
                        let verb = rng.below(case::VERBS);
                        (
                            format!("seed {seed} ({})", names.join(", ")),
                            plan,
                            verb,
                            true,
                        )
                    }
                };
                let case = Case {
                    name,
                    plan,
                    verb,
                    is_random,
                    world: &world,
                    program,
                    folder: &folder,
                };
                add(case.run())?;
            }
            workspace::remove(&folder)
        };
        let results: Vec<Result<()>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.workers.max(1))
                .map(|number| {
                    let (worker, is_over) = (&worker, &is_over);
                    scope.spawn(move || {
                        let result = worker(number);
                        if result.is_err() {
                            is_over.store(true, Ordering::SeqCst);
                        }
                        result
                    })
                })
                .collect();
            let joined = threads.into_iter().map(|thread| {
                let ended = thread.join();
                ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            joined.collect()
        });
        results.into_iter().collect()
    }
}

/// Builds the image that is served, and what its files hold.
fn prepare(tuff: &Path, out: &Path) -> Result<(SealedImage, Program)> {
    let tree = out.join("tree");
    workspace::remove(&tree)?;
    fs::create_dir(&tree).at("create", &tree)?;
    let mut rng = Rng::new(7);
    let data: Vec<u8> = (0..600 << 10).map(|_| rng.draw() as u8).collect(); // any byte
    fs::write(tree.join("data"), &data).at("write", &tree)?;
    fs::write(tree.join("hello"), "hello\n").at("write", &tree)?;
    let path = out.join("image.erofs");
    let image = SealedImage::build(tuff, &[], &tree, &path)?;
    let mut content = data;
    content.extend_from_slice(b"hello\n");
    let program = Program {
        tuff: tuff.to_owned(),
        content,
        image: path,
    };
    Ok((image, program))
}
