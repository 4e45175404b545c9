//! Daily backups of a tree that changes, by Tuff and by the programs that others use.
//!
//! ```text
//!  tree of day 0 ──► backup by each program in turn ──► tree of day 1 ──► … ──► stores of all days
//!                                                                       copies of them ──► prune, repair, no changes
//! ```
//!
//! `benchmarks/store` gets and builds the other programs outside the project. A sample counts only if the backup gives back its source: the
//! store is restored and compared after some days, and each restore that is measured is compared, too. Some cells have the store in a
//! bucket, and count requests and bytes.

mod bucket;
mod days;
mod definition;
mod program;
mod report;
mod task;

use crate::definition::Definition as _;
use crate::engines::version;
use crate::measure::process::Place;
use crate::measure::{stop, workspace};
use crate::options::{Emit, Options, Selection, choose, need_root, select};
use crate::record::state::CellState;
use crate::record::{Header, Labels, Line, labels};
use crate::{At, Error, Result};
use days::{Days, Scale};
use definition::{BucketStep, Cache, Cell, Definition, Way};
use std::path::{Path, PathBuf};
use task::{Bench, Sampled};

pub(crate) use report::{plot, render};

/// Text of the definition in `benchmarks/definitions`.
const DEFINITION: &str = include_str!("../../../../../benchmarks/definitions/store/days.toml");

/// Measure daily backups beside restic, kopia, borg and DwarFS
///
/// DIR is a folder that benchmarks/store made. It also keeps the tree, the stores and the state of the run: samples that it has are not
/// taken again, so that a run continues where it was stopped. Writes a record of all cells that match, and prints its tables. Needs
/// root.
#[derive(Clone, Debug, clap::Args)]
pub struct Conditions {
    /// Folder with the other programs
    dir: PathBuf,
    /// Make the tree of the first day anew, and exit
    #[arg(long)]
    make_days: bool,
    /// Number of days
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=30))]
    days: u32,
    /// Size of the tree
    #[arg(long, value_enum, default_value = "full")]
    scale: Scale,
    /// Repository with the history that the tree takes files from
    #[arg(long, value_name = "DIR", default_value = ".")]
    repository: PathBuf,
    /// Add cells with trees of N small files, in directories of 1,000 and in one directory
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1000..))]
    files: Option<u32>,
    #[command(flatten)]
    selection: Selection,
    /// Paths of programs, and folders of images and records.
    #[command(flatten)]
    pub options: Options,
}

impl Conditions {
    /// Returns true to print the cells, or to make the tree, in place of a run.
    pub fn is_without_record(&self) -> bool {
        self.selection.list || self.make_days
    }

    /// Returns the conditions with an absolute path, because commands run in other folders.
    fn absolute(&self) -> Result<Conditions> {
        Ok(Conditions {
            dir: std::path::absolute(&self.dir).at("find", &self.dir)?,
            ..self.clone()
        })
    }

    /// Returns the name of the state of a cell.
    fn name_of(&self, cell: Cell) -> String {
        match (cell, self.files) {
            (Cell::Files(..), Some(count)) => format!("{cell}-{count}"),
            _ => cell.to_string(),
        }
    }

    fn tree(&self, definition: &Definition) -> Days {
        let folder = self.dir.join(format!("days-{}", self.scale.name()));
        Days::new(folder, self.scale, &self.repository, &definition.commit)
    }
}

fn definition() -> Result<Definition> {
    Definition::parse("store", DEFINITION)
}

/// Returns the folder of the state: one for each program under test, scale and number of days.
fn state(conditions: &Conditions, tuff: &Path) -> Result<PathBuf> {
    let (digest, scale) = (workspace::digest(tuff)?, conditions.scale.name());
    let name = format!("state-{digest}-{scale}-{}", conditions.days);
    Ok(conditions.dir.join(name))
}

/// Returns the samples that a cell lacks, in the order of their measurement. The order of the ways changes in each round.
fn missing<'w>(cell: Cell, ways: &'w [Way], rounds: u32, state: &CellState) -> Vec<(u32, &'w Way)> {
    let mut missing = Vec::new();
    for round in cell.rounds(rounds) {
        let turn = (0..ways.len()).map(|n| &ways[(n + round as usize - 1) % ways.len()]);
        missing.extend(
            turn.filter(|way| !state.has(&label(cell, way), round))
                .map(|way| (round, way)),
        );
    }
    missing
}

/// Returns the ways of a cell.
fn ways_of(cell: Cell, ways: &[Way], days: u32) -> Vec<Way> {
    match cell {
        Cell::Levels => ways.iter().flat_map(Way::at_all_levels).collect(),
        Cell::Day(day) => {
            let is_in = |way: &&Way| day <= way.last_day(days);
            ways.iter().filter(is_in).cloned().collect()
        }
        // The tree of the last day is not what these programs have.
        Cell::Unchanged(_) => {
            let is_in = |way: &&Way| way.last_day(days) + 1 == days;
            ways.iter().filter(is_in).cloned().collect()
        }
        Cell::Bucket(_) => ways.iter().filter_map(Way::in_bucket).collect(),
        Cell::Mount(definition::Server::Kernel) => {
            let is_ours = |way: &&Way| way.kind == definition::Kind::Tuff;
            ways.iter().filter(is_ours).cloned().collect()
        }
        _ => ways.to_vec(),
    }
}

/// Returns the labels of a way in a cell.
fn label(cell: Cell, way: &Way) -> Labels {
    let place = match way.is_in_bucket {
        true => "bucket",
        false => "directory",
    };
    let mut labels = labels([("task", cell.task()), ("way", &way.name), ("place", place)]);
    let mut put = |name: &str, value: String| _ = labels.insert(name.to_owned(), value);
    match cell {
        Cell::Levels => put("level", way.level.clone()),
        Cell::Files(definition::Shape::Spread, _) => put("shape", "1,000 in a directory".into()),
        Cell::Files(definition::Shape::One, _) => put("shape", "one directory".into()),
        _ => {}
    }
    labels
}

/// Prints the names of the cells, or makes the tree of the first day.
///
/// # Errors
/// Fails if the folder is not one of `benchmarks/store`, or the packages of the tree cannot be had.
pub fn prepare(conditions: &Conditions) -> Result<bool> {
    let definition = definition()?;
    let conditions = &conditions.absolute()?;
    if conditions.make_days {
        conditions.tree(&definition).begin()?;
        return Ok(true);
    }
    let folder = state(conditions, &conditions.options.need("tuff")?)?;
    let rounds = conditions.selection.rounds.unwrap_or(definition.rounds);
    for cell in Cell::all(conditions.days, conditions.files.is_some()) {
        let state = CellState::open(&folder, &conditions.name_of(cell))?;
        let ways = ways_of(cell, &definition.ways, conditions.days);
        println!("{cell} {}", missing(cell, &ways, rounds, &state).len());
    }
    Ok(true)
}

/// Takes the samples that are missing. Returns false if a way of ours failed.
///
/// # Errors
/// Fails if the host or the folder of the programs fails.
pub fn run(conditions: &Conditions, emit: Emit<'_>) -> Result<bool> {
    need_root("mounting snapshots")?;
    let tuff = conditions.options.need("tuff")?;
    let conditions = &conditions.absolute()?;
    let place = Place::open(&conditions.dir, "store")?;
    let definition = definition()?;
    let rounds = conditions.selection.rounds.unwrap_or(definition.rounds);
    let days = conditions.tree(&definition);
    let state = state(conditions, &tuff)?;
    std::fs::create_dir_all(&state).at("create", &state)?;
    let work = workspace::Work::create(&conditions.dir)?;
    let bench = Bench {
        definition: &definition,
        place: &place,
        tuff: &tuff,
        days: &days,
        day_count: conditions.days,
        state: state.clone(),
        scratch: work.folder().to_owned(),
        files: conditions.dir.join("files"),
    };
    let settings = [
        ("version", version(&tuff)),
        ("others", place.versions()?),
        ("rounds", rounds.to_string()),
        ("scale", conditions.scale.name().to_owned()),
        ("days", conditions.days.to_string()),
        (
            "files",
            conditions
                .files
                .map_or("none".to_owned(), |n| n.to_string()),
        ),
    ];
    emit(&Line::Header(Header::here("store", settings)?))?;
    let ways: Vec<&Way> = definition.ways.iter().collect();
    let ways = select(
        &ways,
        |way| way.name.clone(),
        "--way",
        conditions.selection.way.as_ref(),
    )?;
    let ways: Vec<Way> = ways.into_iter().cloned().collect();
    for bar in &definition.bars {
        emit(&Line::Bar(bar.clone()))?;
    }
    for way in &ways {
        let text = format!("level {}, encryption: {}", way.level, way.encryption);
        emit(&Line::note(labels([("way", &way.name)]), text))?;
    }
    let all = Cell::all(conditions.days, conditions.files.is_some());
    let mut fine = true;
    for &cell in choose(&all, conditions.selection.cell.as_ref())? {
        let mut lines = CellState::open(&state, &conditions.name_of(cell))?;
        let ways = ways_of(cell, &ways, conditions.days);
        for (round, way) in missing(cell, &ways, rounds, &lines) {
            stop::check()?;
            // A way that failed in this run has a line.
            if !lines.has(&label(cell, way), round) {
                take(&bench, conditions, cell, way, round, &mut lines)?;
            }
        }
        for line in &lines.lines {
            let is_ours = |cell: &Labels| cell.get("way").is_some_and(|way| way == "tuff");
            let is_missing = |text: &str| text.contains("removes no snapshots");
            fine &= !matches!(line, Line::Failure(note) if is_ours(&note.cell) && !is_missing(&note.text));
            emit(line)?;
        }
    }
    Ok(fine)
}

/// Takes a sample of a way, and adds it to the state of its cell.
fn take(
    bench: &Bench<'_>,
    conditions: &Conditions,
    cell: Cell,
    way: &Way,
    round: u32,
    lines: &mut CellState,
) -> Result<()> {
    let labels = label(cell, way);
    let sampled = match sample(bench, conditions, cell, way, round) {
        Ok(sampled) => sampled,
        Err(Error::Command(reason)) => {
            eprintln!("{cell}, {}: {reason}", way.name);
            return lines.add(Line::failure(labels, reason));
        }
        // The conditions of the cell are not given yet.
        Err(Error::Usage(reason)) => {
            eprintln!("{cell}, {}: left out; {reason}", way.name);
            return Ok(());
        }
        Err(e) => return Err(e),
    };
    let values = ["wall_ms", "first_byte_ms", "found_ms"];
    let time = values.iter().find_map(|name| sampled.values.get(*name));
    let time = time.copied().unwrap_or(0.0) / 1e3;
    eprintln!(
        "{cell}, round {round}, {} {}: {time:.2} s",
        way.name, way.level
    );
    for note in sampled.notes {
        lines.add(Line::note(labels.clone(), note))?;
    }
    lines.add(Line::sample(labels, round, sampled.values))
}

fn sample(
    bench: &Bench<'_>,
    conditions: &Conditions,
    cell: Cell,
    way: &Way,
    round: u32,
) -> Result<Sampled> {
    let day = match cell {
        Cell::Levels | Cell::Bucket(BucketStep::First) => Some(0),
        Cell::Day(day) => Some(day),
        Cell::Bucket(BucketStep::Day | BucketStep::Unchanged) => Some(1),
        _ => None,
    };
    if let Some(day) = day {
        seek(bench.days, day)?;
    }
    if let Some(made) = store_of(cell, way, conditions.days) {
        let state = CellState::open(&bench.state, &made.to_string())?;
        let has = |round| state.has(&label(made, way), round);
        if !made.rounds(1).all(has) {
            return Err(Error::Usage(format!("cell {made} comes first")));
        }
    }
    match cell {
        Cell::Levels => bench.level(way),
        Cell::Day(day) => bench.day(way, day),
        Cell::Bucket(step) => match step {
            BucketStep::First => bench.day(way, 0),
            BucketStep::Day => bench.day(way, 1),
            BucketStep::Unchanged => bench.unchanged(way, Cache::Warm, round),
            BucketStep::RestoreFile => bench.restore(way, Some(Path::new(days::FILE))),
            BucketStep::Prune => bench.prune(way, round),
        },
        Cell::Unchanged(cache) => bench.unchanged(way, cache, round),
        Cell::RestoreFile => bench.restore(way, Some(Path::new(days::FILE))),
        Cell::RestoreAll => bench.restore(way, None),
        Cell::Mount(server) => bench.mount(way, server),
        Cell::Check => bench.check(way),
        Cell::Repair => bench.repair(way),
        Cell::Prune => bench.prune(way, round),
        Cell::Files(shape, step) => {
            bench.files(way, shape, step, conditions.files.unwrap_or_default())
        }
    }
}

/// Returns the cell that leaves the store with which a cell begins. None for a new store, and for cells that look for it themselves.
fn store_of(cell: Cell, way: &Way, days: u32) -> Option<Cell> {
    match cell {
        Cell::Levels | Cell::Day(_) | Cell::Files(..) | Cell::Bucket(BucketStep::First) => None,
        Cell::Bucket(BucketStep::Day) => Some(Cell::Bucket(BucketStep::First)),
        Cell::Bucket(_) => Some(Cell::Bucket(BucketStep::Day)),
        _ => Some(Cell::Day(way.last_day(days))),
    }
}

/// Makes the tree that of a day. Days only follow one another.
fn seek(days: &Days, day: u32) -> Result<()> {
    if days.day().is_none() {
        days.begin()?;
    }
    match days.day() {
        Some(now) if now > day => Err(Error::Usage(format!(
            "the tree is that of day {now}; --make-days begins again, with new stores"
        ))),
        Some(now) if now < day => {
            days.advance()?;
            seek(days, day)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_take_turns_and_one_that_makes_images_has_the_first_day_alone() {
        let definition = definition().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let order = |cell: Cell| -> Vec<String> {
            let state = CellState::open(folder.path(), &cell.to_string()).unwrap();
            let ways = ways_of(cell, &definition.ways, 30);
            let missing = missing(cell, &ways, 2, &state);
            missing.iter().map(|(_, way)| way.name.clone()).collect()
        };
        let days = [0, 1].map(|day| order(Cell::Day(day)));
        assert_eq!(days[0][..2], ["tuff", "restic"]);
        assert_eq!(days[1][..2], ["restic", "kopia"]);
        assert_eq!(
            days.map(|ways| ways.contains(&"DwarFS".to_owned())),
            [true, false]
        );
        assert_eq!(
            order(Cell::Bucket(BucketStep::First)),
            ["tuff", "restic", "kopia"]
        );
        let all = order(Cell::RestoreAll);
        assert_eq!(all.len(), 2 * definition.ways.len());
        assert_eq!(
            order(Cell::Mount(definition::Server::Kernel)),
            ["tuff", "tuff"]
        );
    }

    #[test]
    fn each_sample_of_a_run_has_labels_of_its_own() {
        let definition = definition().unwrap();
        let mut all = Vec::new();
        for cell in Cell::all(30, true) {
            for way in ways_of(cell, &definition.ways, 30) {
                let sample = (label(cell, &way), cell.rounds(1));
                assert!(!all.contains(&sample), "{sample:?}");
                all.push(sample);
            }
        }
    }
}
