//! Campaign over the crash states of `crates/iplfs`, in units. It can be interrupted between units and
//! resumed.
//!
//! ```text
//!  plan: ones │ tricky │ pairs 1 of 256 … │ beside 1 of 256 … │ threes, twelves, snapshots, long logs, by seed │ each rule off
//!  done:  progress.jsonl, a line for each unit      report.md, from all lines
//! ```
//!
//! A unit gives the same result at any time and on any machine, because its random numbers depend only on the
//! campaign's seed and the unit's name. So an interrupted campaign gives the same result as an uninterrupted
//! one.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tuff_iplfs::Rules;
use tuff_iplfs_crash::{Campaign, Tally, scenario};

/// Number of units that all pairs are divided into.
const PAIR_PARTS: usize = 256;
/// Rules that workloads test; scenarios test the remaining ones.
const BY_WORKLOADS: [u8; 3] = [1, 3, 4];

/// Extent and selection of a campaign.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of the campaign.
    pub seed: u64,
    /// Time after which no unit starts. Until then the campaign continues with more seeds. None ends it with
    /// the plan.
    pub minutes: Option<f64>,
    /// Number of rounds of sampled workloads in the plan.
    pub rounds: u32,
    /// Number of units that run in parallel.
    pub threads: usize,
    /// Names of the groups to run. Empty selects all.
    pub groups: Vec<String>,
}

/// Unit of a campaign.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Ones,
    Tricky,
    Pairs(usize),
    Beside(usize),
    Threes(u32),
    Twelves(u32),
    Snapshots(u32),
    LongLogs(u32),
    WithoutRule(u8),
}

/// Names and descriptions of the groups in the order of the report.
pub const GROUPS: [(&str, &str); 9] = [
    ("ones", "every single operation with every persistence"),
    (
        "tricky",
        "hand-written sequences with dependencies on state that is not yet durable",
    ),
    (
        "pairs",
        "every pair of operations with every pair of persistences",
    ),
    (
        "beside",
        "every pair of operations, the second during a checkpoint of the first",
    ),
    ("threes", "sampled sequences of three operations"),
    ("twelves", "sampled sequences of twelve operations"),
    (
        "snapshots",
        "sampled sequences of three and twelve operations on a volume with a snapshot",
    ),
    (
        "long logs",
        "sampled pairs of operations with a discard log longer than its pack",
    ),
    (
        "rules",
        "each of the nine discard rules disabled: the suite must fail",
    ),
];

impl What {
    fn group(self) -> &'static str {
        GROUPS[match self {
            What::Ones => 0,
            What::Tricky => 1,
            What::Pairs(_) => 2,
            What::Beside(_) => 3,
            What::Threes(_) => 4,
            What::Twelves(_) => 5,
            What::Snapshots(_) => 6,
            What::LongLogs(_) => 7,
            What::WithoutRule(_) => 8,
        }]
        .0
    }

    fn name(self) -> String {
        match self {
            What::Ones | What::Tricky => self.group().to_owned(),
            What::Pairs(n) | What::Beside(n) => format!("{} {n}", self.group()),
            What::Threes(n) | What::Twelves(n) | What::Snapshots(n) | What::LongLogs(n) => {
                format!("{} {n}", self.group())
            }
            What::WithoutRule(n) => format!("without rule {n}"),
        }
    }

    /// Runs the unit. The tally is valid even if the unit fails.
    fn run(self, seed: u64) -> (Tally, Result<(), String>) {
        let made = match self {
            What::Snapshots(_) => Campaign::with_snapshot(Rules::default(), seed),
            What::LongLogs(_) => Campaign::with_long_log(Rules::default(), seed),
            What::WithoutRule(n) => return without_rule(n, seed),
            _ => Campaign::new(Rules::default(), seed),
        };
        let mut c = match made {
            Ok(c) => c,
            Err(e) => return (Tally::default(), Err(e)),
        };
        let found = match self {
            What::Ones => c.single_operations(),
            What::Tricky => c.dependent_sequences(),
            What::Pairs(n) => c.pairs_of_operations(PAIR_PARTS, n),
            What::Beside(n) => c.pairs_during_checkpoint(PAIR_PARTS, n),
            What::Threes(_) => c.sampled(3, 50),
            What::Twelves(_) => c.sampled(12, 15),
            What::Snapshots(_) => c.sampled(3, 25).and_then(|()| c.sampled(12, 10)),
            What::LongLogs(_) => {
                c.samples = 1;
                c.sampled(2, 4)
            }
            What::WithoutRule(_) => Ok(()),
        };
        (c.tally, found)
    }
}

/// Disables a rule. Returns an error if the suite does not detect that.
fn without_rule(rule: u8, seed: u64) -> (Tally, Result<(), String>) {
    let mut tally = Tally::default();
    let noticed = if BY_WORKLOADS.contains(&rule) {
        Campaign::new(Rules::without(rule), seed).and_then(|mut c| {
            c.samples = 3;
            let found = c.single_operations().and_then(|()| c.sampled(3, 200));
            tally = c.tally;
            found
        })
    } else {
        let shows = match rule {
            2 => scenario::the_older_checkpoint_stays_intact,
            5 => scenario::readers_see_the_bytes_they_resolved,
            6 => scenario::only_dead_zones_are_released,
            7 => scenario::granules_are_released_after_their_last_block_died,
            8 => scenario::a_long_discard_log_overflows_without_a_leak,
            _ => scenario::unavoidable_leaks_are_found_by_trim,
        };
        if let Err(e) = shows(Rules::default()) {
            return (tally, Err(format!("with all rules: {e}")));
        }
        shows(Rules::without(rule))
    };
    match noticed {
        Err(_) => (tally, Ok(())),
        Ok(()) => (tally, Err(format!("the suite passes without rule {rule}"))),
    }
}

/// Line of the progress file: the result of a unit.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
struct Line {
    unit: String,
    group: String,
    workloads: u64,
    states: u64,
    nested: u64,
    adopted: u64,
    seconds: f64,
    found: Option<String>,
}

/// First line of the progress file. Identifies the campaign that it belongs to.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
struct Head {
    campaign: String,
    seed: u64,
    build: String,
}

/// Runs the remaining units of a campaign and writes its report into the folder `out`. `build` is a digest of
/// the program; a campaign of another build is not continued. Returns true if no unit failed.
pub fn run(
    options: &Options,
    out: &Path,
    build: &str,
    told: &mut (dyn FnMut(&str) + Send),
) -> Result<bool> {
    if let Some(group) = options
        .groups
        .iter()
        .find(|g| !GROUPS.iter().any(|(name, _)| name == g))
    {
        return Err(Error::Usage(format!("group '{group}' does not exist")));
    }
    let limit = options
        .minutes
        .map(|m| Duration::try_from_secs_f64(m * 60.0))
        .transpose()
        .map_err(|e| Error::Usage(format!("duration of a campaign: {e}")))?;
    fs::create_dir_all(out).map_err(|e| Error::io("create", out, e))?;
    let path = out.join("progress.jsonl");
    let head = Head {
        campaign: "crash".to_owned(),
        seed: options.seed,
        build: build.to_owned(),
    };
    let mut done = read(&path, &head)?;
    if fs::metadata(&path).map_or(0, |m| m.len()) == 0 {
        append(&path, &head)?;
    }
    let begin = Instant::now();
    let mut todo = plan(options).filter(|w| !done.contains_key(&w.name()));
    let (todo, fresh) = (
        Mutex::new(std::iter::from_fn(move || {
            limit
                .is_none_or(|limit| begin.elapsed() < limit)
                .then(|| todo.next())?
        })),
        Mutex::new((Vec::new(), Ok(()), told)),
    );
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let next = todo.lock().unwrap_or_else(|e| e.into_inner()).next();
                    let Some(what) = next else { break };
                    let line = one(what, options.seed);
                    let mut state = fresh.lock().unwrap_or_else(|e| e.into_inner());
                    if let Err(e) = append(&path, &line) {
                        state.1 = Err(e);
                        break;
                    }
                    let text = match &line.found {
                        Some(found) => format!("{}: FAILED: {found}", line.unit),
                        None => format!("{}: {} + {} states", line.unit, line.states, line.nested),
                    };
                    (state.2)(&text);
                    state.0.push(line);
                }
            });
        }
    });
    let (lines, result, _) = fresh.into_inner().unwrap_or_else(|e| e.into_inner());
    result?;
    done.extend(lines.into_iter().map(|line| (line.unit.clone(), line)));
    let text = report(options, &done);
    let path = out.join("report.md");
    fs::write(&path, &text).map_err(|e| Error::io("write", &path, e))?;
    Ok(done.values().all(|line| line.found.is_none()))
}

fn one(what: What, seed: u64) -> Line {
    let begin = Instant::now();
    let name = what.name();
    let seed = seed
        ^ u64::from_le_bytes(
            blake3::hash(name.as_bytes()).as_bytes()[..8]
                .try_into()
                .unwrap_or_default(),
        );
    let (tally, found) = what.run(seed);
    Line {
        group: what.group().to_owned(),
        unit: name,
        workloads: tally.workloads,
        states: tally.states,
        nested: tally.nested,
        adopted: tally.adopted,
        seconds: (begin.elapsed().as_secs_f64() * 10.0).round() / 10.0,
        found: found.err(),
    }
}

/// Returns the units of a campaign: exhaustive groups first, then sampled ones. With a time limit the sampled
/// units are endless.
fn plan(options: &Options) -> impl Iterator<Item = What> + use<> {
    let groups = options.groups.clone();
    let rounds = if options.minutes.is_some() {
        u32::MAX
    } else {
        options.rounds
    };
    let sampled = (0..rounds).flat_map(|n| {
        [
            What::Threes(n),
            What::Twelves(n),
            What::Snapshots(n),
            What::LongLogs(n),
        ]
    });
    [What::Ones, What::Tricky]
        .into_iter()
        .chain((1..=9).map(What::WithoutRule))
        .chain((0..PAIR_PARTS).map(What::Pairs))
        .chain((0..PAIR_PARTS).map(What::Beside))
        .chain(sampled)
        .filter(move |w| groups.is_empty() || groups.iter().any(|g| g == w.group()))
}

fn append(path: &Path, line: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(line)
        .map_err(|e| Error::Command(format!("cannot serialize a line: {e}")))?;
    let file = OpenOptions::new().append(true).create(true).open(path);
    file.and_then(|mut file| file.write_all(format!("{text}\n").as_bytes()))
        .map_err(|e| Error::io("write", path, e))
}

fn read(path: &Path, head: &Head) -> Result<BTreeMap<String, Line>> {
    let text = match fs::read_to_string(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        other => other.map_err(|e| Error::io("read", path, e))?,
    };
    // A killed campaign may have left an incomplete line.
    let whole = text.rfind('\n').map_or(0, |at| at + 1);
    if whole < text.len() {
        let cut = OpenOptions::new().write(true).open(path);
        cut.and_then(|file| file.set_len(whole as u64))
            .map_err(|e| Error::io("write", path, e))?;
    }
    let text = &text[..whole];
    if text.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut lines = text.lines();
    let bad = |n: usize, e: serde_json::Error| {
        Error::Corrupt(format!("{}, line {}: {e}", path.display(), n + 1))
    };
    let found: Head =
        serde_json::from_str(lines.next().unwrap_or_default()).map_err(|e| bad(0, e))?;
    if found != *head {
        return Err(Error::Usage(format!(
            "{} belongs to another campaign: its seed is {} or it was written by another build; use another folder",
            path.display(),
            found.seed
        )));
    }
    let mut done = BTreeMap::new();
    for (n, line) in text.lines().enumerate().skip(1) {
        match serde_json::from_str::<Line>(line) {
            Ok(line) => _ = done.insert(line.unit.clone(), line),
            Err(e) => return Err(bad(n, e)),
        }
    }
    Ok(done)
}

fn report(options: &Options, done: &BTreeMap<String, Line>) -> String {
    let mut text = format!(
        "# Crash campaign\n\nSeed {}. A state is a possible content of the device after a power loss. Nested states follow a second power loss during recovery.\n\n\
         | | units | sequences | states | nested | minutes | failed units |\n|---|--:|--:|--:|--:|--:|--:|\n",
        options.seed
    );
    let mut total = Tally::default();
    for (group, about) in GROUPS {
        let lines: Vec<&Line> = done.values().filter(|l| l.group == group).collect();
        let sum = |of: fn(&Line) -> u64| lines.iter().map(|l| of(l)).sum::<u64>();
        let (workloads, states, nested) =
            (sum(|l| l.workloads), sum(|l| l.states), sum(|l| l.nested));
        let minutes = lines.iter().fold(0.0, |sum, l| sum + l.seconds) / 60.0;
        let found = lines.iter().filter(|l| l.found.is_some()).count();
        let of = match group {
            "ones" | "tricky" => " of 1".to_owned(),
            "pairs" => format!(" of {PAIR_PARTS}"),
            "rules" => " of 9".to_owned(),
            _ => String::new(),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {group}: {about} | {}{of} | {workloads} | {states} | {nested} | {minutes:.1} | {found} |",
            lines.len()
        );
        total.workloads += workloads;
        total.states += states;
        total.nested += nested;
    }
    let _ = writeln!(
        text,
        "| all | {} | {} | {} | {} | | {} |",
        done.len(),
        total.workloads,
        total.states,
        total.nested,
        done.values().filter(|l| l.found.is_some()).count()
    );
    for line in done.values() {
        if let Some(found) = &line.found {
            let _ = writeln!(text, "\n* **{}**: {found}", line.unit);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(minutes: Option<f64>) -> Options {
        Options {
            seed: 3,
            minutes,
            rounds: 1,
            threads: 2,
            groups: vec!["long logs".to_owned(), "rules".to_owned()],
        }
    }

    #[test]
    fn an_interrupted_campaign_is_resumed() {
        let dir = tempfile::tempdir().unwrap();
        let mut units = Vec::new();
        assert!(
            run(&options(Some(0.0)), dir.path(), "b", &mut |u| units
                .push(u.to_owned()))
            .unwrap()
        );
        assert_eq!(units, [] as [String; 0]);
        assert!(
            run(&options(None), dir.path(), "b", &mut |u| units
                .push(u.to_owned()))
            .unwrap()
        );
        assert_eq!(units.len(), 10, "{units:?}");
        let report = fs::read_to_string(dir.path().join("report.md")).unwrap();
        assert!(report.contains("| 9 of 9 |"), "{report}");
        // The last line is incomplete.
        let path = dir.path().join("progress.jsonl");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 5]).unwrap();
        units.clear();
        assert!(
            run(&options(None), dir.path(), "b", &mut |u| units
                .push(u.to_owned()))
            .unwrap()
        );
        assert_eq!(units.len(), 1, "{units:?}");
        let again = fs::read_to_string(dir.path().join("report.md")).unwrap();
        let counts = |text: &str| -> Vec<String> {
            let lines = text.lines().filter(|l| l.starts_with("| "));
            lines
                .map(|l| l.split('|').take(6).collect::<String>())
                .collect()
        };
        assert_eq!(counts(&again), counts(&report));
        // The first line is missing or incomplete.
        for len in [0, 5] {
            fs::write(&path, &text[..len]).unwrap();
            assert!(run(&options(Some(0.0)), dir.path(), "b", &mut |_| {}).unwrap());
            let head = fs::read_to_string(&path).unwrap();
            assert_eq!(head, text[..=text.find('\n').unwrap()]);
        }
        for minutes in [f64::NAN, f64::INFINITY, -1.0] {
            let found = run(&options(Some(minutes)), dir.path(), "b", &mut |_| {});
            assert!(matches!(found, Err(Error::Usage(_))));
        }
        // Another build is refused.
        assert!(matches!(
            run(&options(None), dir.path(), "c", &mut |_| {}),
            Err(Error::Usage(_))
        ));
    }
}
