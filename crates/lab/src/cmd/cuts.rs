//! `tuff-lab cuts`: power cuts and wrong bits.

use super::how::program_at;
use std::path::PathBuf;
use tuff_lab::cuts::record::{self, Failure, Line};
use tuff_lab::cuts::{self, report};
use tuff_lab::record::RecordWriter;
use tuff_lab::serve::run::program;
use tuff_lab::{Error, Result};

/// Cut the power while somebody writes, and get bits wrong: volumes beside ext4, XFS and Btrfs
///
/// Each round makes a filesystem on a disk in memory that forgets what was not flushed, or flips bits; afterwards it is mounted, compared
/// with what was promised, checked, and repaired where it has to be. Writes the record and its tables as NAME.jsonl and NAME.md. Exit code 1
/// if a volume is not clean after a cut, or silently wrong. Root's, for the loop device.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Do nothing; make the tables of this record again
    #[arg(long, value_name = "RECORD")]
    from: Option<PathBuf>,
    /// Put the tables of the record into this document, between <!-- lab:begin BLOCK --> and <!-- lab:end BLOCK -->
    #[arg(long, value_name = "FILE", requires_all = ["block", "from"])]
    readme: Option<PathBuf>,
    /// Name of the block
    #[arg(long, value_name = "BLOCK", requires = "readme")]
    block: Option<String>,
    /// Rounds of each failure on each filesystem
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 20)]
    rounds: u32,
    /// What all chance comes from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Only filesystems whose name contains this: volume, ext4, XFS, Btrfs
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Only this failure; may be given again
    #[arg(long, value_name = "NAME")]
    failure: Vec<Failure>,
    /// Where our program is (default: PATH, and beside this program)
    #[arg(long, value_name = "NAME=PATH")]
    tool: Vec<String>,
    /// Folder for mount points
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work: PathBuf,
    /// Where the record goes
    #[arg(long, default_value = "benchmarks/record/cuts", value_name = "DIR")]
    records: PathBuf,
}

/// Runs the verb. False if ours did not hold.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let path = match &args.from {
        Some(path) => path.clone(),
        None => measure(args)?,
    };
    let lines = record::read(&path)?;
    let tables = report::render(&lines);
    if let (Some(readme), Some(block)) = (&args.readme, &args.block) {
        let command = format!(
            "tuff-lab cuts --from {} --readme {} --block {block}",
            path.display(),
            readme.display()
        );
        tuff_lab::report::fill(readme, block, &tables, &command)?;
        return Ok(true);
    }
    print!("{tables}");
    let path = path.with_extension("md");
    std::fs::write(&path, tables).map_err(|e| Error::io("write", &path, e))?;
    let failed = report::failed(&lines);
    if let Some(round) = failed {
        eprintln!(
            "tuff-lab: a volume did not hold: round {}, {}, seed {}: {}, {}",
            round.round,
            round.failure.name(),
            round.seed,
            round.outcome.name(),
            round.found.as_deref().unwrap_or_default()
        );
    }
    Ok(failed.is_none())
}

/// Does the rounds, and returns where the record is.
fn measure(args: &Args) -> Result<PathBuf> {
    let given: Vec<_> = args
        .tool
        .iter()
        .map(|t| program_at(t))
        .collect::<Result<_>>()?;
    let tuff = program("tuff", &given).ok_or_else(|| {
        Error::Usage("no program tuff is found; --tool tuff=PATH says where".to_owned())
    })?;
    let conditions = cuts::Conditions {
        tuff,
        rounds: args.rounds,
        seed: args.seed,
        only: args.only.clone(),
        failures: args.failure.clone(),
        work: args.work.clone(),
    };
    conditions.plan()?;
    let mut writer = RecordWriter::create(&args.records, "cuts")?;
    eprintln!("record: {}", writer.path().display());
    let mut measured = false;
    let done = cuts::run(&conditions, &mut |line| {
        measured |= matches!(line, Line::Round(_));
        writer.write_any(line)
    });
    let path = writer.path().to_owned();
    if !measured {
        writer.give_up();
    }
    done.map(|()| path)
}
