//! Campaign over the crash states of `crates/iplfs`, in units. It can be interrupted between units and
//! resumed.
//!
//! ```text
//!  plan: ones │ tricky │ pairs 1 of 256 … │ beside 1 of 256 … │ threes, twelves, snapshots, long logs, by seed │ each rule off
//!  done:  records crash.jsonl, crash-2.jsonl …, with a sample for each unit ──► tables of all records of the folder
//! ```
//!
//! A unit gives the same result at any time and on any machine, because its random numbers depend only on the
//! campaign's seed and the unit's name. So an interrupted campaign gives the same result as an uninterrupted
//! one.

use crate::options::{Emit, minutes};
use crate::record::{Header, Line, Record, labels};
use crate::report::table::{self, Columns, Figure, Table};
use crate::verify::tree;
use crate::{At, Error, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tuff_iplfs::DiscardRule;
use tuff_iplfs_crash::{Campaign, Tally, scenario};

/// Number of units that all pairs are divided into.
const PAIR_PARTS: usize = 256;
/// Rules that workloads test; scenarios test the remaining ones.
const BY_WORKLOADS: [DiscardRule; 3] = [
    DiscardRule::DurableCheckpoint,
    DiscardRule::LogUntilFlush,
    DiscardRule::NoReuse,
];

/// Test volumes after simulated power losses: all pairs of operations, random sequences, and each safety rule disabled
///
/// Writes records, and prints the tables of all records in the folder; a repeated run with the same folder resumes. Exit code 1
/// if there are findings.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Folder in which records are written
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Time limit; random sequences are added until it is reached (default: run the plan once)
    #[arg(long, value_name = "N", value_parser = minutes)]
    pub minutes: Option<Duration>,
    /// Number of rounds of random sequences in the plan
    #[arg(long, default_value_t = 40, value_name = "N")]
    pub rounds: usize,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Number of parallel test units
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub threads: usize,
    /// Run only this group; may be repeated
    #[arg(long, value_name = "GROUP", value_parser = GROUPS.map(|(name, _)| name))]
    pub only: Vec<String>,
}

/// Unit of a campaign: a part of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Unit {
    group: &'static str,
    number: usize,
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

impl Unit {
    fn name(self) -> String {
        format!("{} {}", self.group, self.number)
    }

    /// Runs the unit. The tally is valid even if the unit fails.
    fn run(self, seed: u64) -> (Tally, Result<(), String>) {
        let made = match self.group {
            "rules" => return without_rule(DiscardRule::ALL[self.number - 1], seed),
            "snapshots" => Campaign::with_snapshot(None, seed),
            "long logs" => Campaign::with_long_log(None, seed),
            _ => Campaign::new(None, seed),
        };
        let mut c = match made {
            Ok(c) => c,
            Err(e) => return (Tally::default(), Err(e)),
        };
        let found = match self.group {
            "ones" => c.single_operations(),
            "tricky" => c.dependent_sequences(),
            "pairs" => c.pairs_of_operations(PAIR_PARTS, self.number),
            "beside" => c.pairs_during_checkpoint(PAIR_PARTS, self.number),
            "threes" => c.sampled(3, 50),
            "twelves" => c.sampled(12, 15),
            "snapshots" => c.sampled(3, 25).and_then(|()| c.sampled(12, 10)),
            _ => {
                c.samples = 1;
                c.sampled(2, 4)
            }
        };
        (c.tally, found)
    }
}

/// Disables a rule. Returns an error if the suite does not detect that.
fn without_rule(rule: DiscardRule, seed: u64) -> (Tally, Result<(), String>) {
    let mut tally = Tally::default();
    let noticed = if BY_WORKLOADS.contains(&rule) {
        Campaign::new(Some(rule), seed).and_then(|mut c| {
            c.samples = 3;
            let found = c.single_operations().and_then(|()| c.sampled(3, 200));
            tally = c.tally;
            found
        })
    } else {
        let shows = match rule {
            DiscardRule::OlderCheckpoint => scenario::the_older_checkpoint_stays_intact,
            DiscardRule::Readers => scenario::readers_see_the_bytes_they_resolved,
            DiscardRule::EmptyZones => scenario::only_dead_zones_are_released,
            DiscardRule::WholeGranules => {
                scenario::granules_are_released_after_their_last_block_died
            }
            DiscardRule::LogOverflow => scenario::a_long_discard_log_overflows_without_a_leak,
            _ => scenario::unavoidable_leaks_are_found_by_trim,
        };
        if let Err(e) = shows(None) {
            return (tally, Err(format!("with all rules: {e}")));
        }
        shows(Some(rule))
    };
    match noticed {
        Err(_) => (tally, Ok(())),
        Ok(()) => (
            tally,
            Err(format!("the suite passes without the rule {rule:?}")),
        ),
    }
}

/// Runs the remaining units of a campaign: those without a sample in the records of its folder.
///
/// # Errors
/// `Usage` if a record is of another seed, or of another build of this program.
pub fn run(options: &Options, emit: Emit<'_>) -> Result<()> {
    let program = std::env::current_exe()
        .and_then(std::fs::read)
        .at("read", Path::new("this program"))?;
    let build = blake3::hash(&program).to_hex()[..16].to_owned();
    let settings = [("seed", options.seed.to_string()), ("build", build)];
    let header = Header::here("crash", settings)?;
    let done = done(&options.out, &header)?;
    emit(&Line::Header(header))?;
    let begin = Instant::now();
    let is_open = || options.minutes.is_none_or(|limit| begin.elapsed() < limit);
    let todo = Mutex::new(plan(options).filter(|unit| !done.contains(&unit.name())));
    let (lines, results) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            let lines = lines.clone();
            let (todo, is_open) = (&todo, &is_open);
            scope.spawn(move || {
                while is_open() {
                    let next = todo.lock().unwrap_or_else(|e| e.into_inner()).next();
                    // A closed channel means that the record cannot be written.
                    if next.is_none_or(|unit| lines.send(one(unit, options.seed)).is_err()) {
                        break;
                    }
                }
            });
        }
        drop(lines);
        for unit in results {
            unit.iter().try_for_each(&mut *emit)?;
        }
        Ok(())
    })
}

/// Returns the names of the units that the records of a folder have.
fn done(folder: &Path, header: &Header) -> Result<BTreeSet<String>> {
    let is_record =
        |entry: std::fs::DirEntry| entry.path().extension().is_some_and(|e| e == "jsonl");
    let mut entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    if !entries.any(is_record) {
        return Ok(BTreeSet::new());
    }
    let record = Record::read(&[folder])?;
    if record
        .headers
        .iter()
        .any(|h| h.conditions != header.conditions)
    {
        return Err(Error::Usage(format!(
            "{} has records of another seed or build; use another folder",
            folder.display()
        )));
    }
    let units = record.samples.into_iter();
    Ok(units.filter_map(|mut s| s.cell.remove("unit")).collect())
}

/// Returns a sample of a unit, and its failure.
fn one(unit: Unit, seed: u64) -> Vec<Line> {
    let begin = Instant::now();
    let name = unit.name();
    let seed = seed ^ tree::digest(name.as_bytes());
    let (tally, found) = unit.run(seed);
    let cell = labels([("group", unit.group), ("unit", &name)]);
    // Counts are far below the limit of exact numbers.
    let values = [
        ("units", 1.0),
        ("workloads", tally.workloads as f64),
        ("states", tally.states as f64),
        ("nested", tally.nested as f64),
        ("adopted", tally.adopted as f64),
        ("minutes", begin.elapsed().as_secs_f64() / 60.0),
        ("failed", f64::from(u8::from(found.is_err()))),
    ];
    let mut lines = vec![Line::sample(cell.clone(), 1, values)];
    lines.extend(found.err().map(|found| Line::failure(cell, found)));
    lines
}

/// Returns the units of a campaign: exhaustive groups first, then sampled ones. With a time limit the sampled
/// units are endless.
fn plan(options: &Options) -> impl Iterator<Item = Unit> + use<> {
    let groups = options.only.clone();
    let rounds = match options.minutes {
        Some(_) => usize::MAX,
        None => options.rounds,
    };
    let part =
        |group, numbers: std::ops::Range<usize>| numbers.map(move |number| Unit { group, number });
    let sampled = (0..rounds).flat_map(|number| {
        ["threes", "twelves", "snapshots", "long logs"].map(|group| Unit { group, number })
    });
    part("ones", 0..1)
        .chain(part("tricky", 0..1))
        .chain(part("rules", 1..10))
        .chain(part("pairs", 0..PAIR_PARTS))
        .chain(part("beside", 0..PAIR_PARTS))
        .chain(sampled)
        .filter(move |unit| groups.is_empty() || groups.iter().any(|g| g == unit.group))
}

/// Table of the sums of all units of a group.
const SUMS: Table = Table {
    rows: &["group"],
    columns: Columns::Sums(&[
        Figure::new("units", "units", 1.0),
        Figure::new("workloads", "sequences", 1.0),
        Figure::new("states", "states", 1.0),
        Figure::new("nested", "nested", 1.0),
        Figure::new("minutes", "minutes", 1.0),
        Figure::new("failed", "failed units", 1.0),
    ]),
    ..table::PLAIN
};

/// Renders the sums of each group, and the failed units.
pub(crate) fn render(record: &Record) -> String {
    let about = GROUPS.map(|(group, about)| format!("* {group}: {about}\n"));
    table::heading(record)
        + "\nA state is a possible content of the device after a power loss. Nested states follow a second power loss during \
           recovery.\n\n"
        + &about.concat()
        + &SUMS.render(record)
        + &table::failures(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RecordWriter;

    #[test]
    fn an_interrupted_campaign_is_resumed_and_another_build_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let options = |minutes, seed| Options {
            out: folder.path().to_owned(),
            minutes,
            rounds: 1,
            seed,
            threads: 2,
            only: vec!["long logs".to_owned(), "rules".to_owned()],
        };
        let run = |minutes| {
            let mut writer = RecordWriter::new(folder.path(), "crash");
            let mut units = 0;
            run(&options(minutes, 3), &mut |line| {
                units += usize::from(matches!(line, Line::Sample(_)));
                // The last unit is not recorded, as if the campaign were interrupted.
                if units < 10 {
                    writer.write(line)
                } else {
                    Ok(())
                }
            })
            .unwrap();
            units
        };
        assert_eq!(run(Some(Duration::ZERO)), 0);
        assert_eq!(run(None), 10);
        assert_eq!(run(None), 1);
        assert_eq!(run(None), 0);
        let text = render(&Record::read(&[folder.path()]).unwrap());
        assert!(
            text.contains("\n| rules | 9 |") && text.contains("\n| long logs | 1 |"),
            "{text}"
        );
        let refused = super::run(&options(None, 4), &mut |_| Ok(()));
        assert!(matches!(refused, Err(Error::Usage(_))));
        assert!(minutes("-1").is_err() && minutes("inf").is_err());
    }
}
