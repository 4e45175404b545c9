//! `tuff-lab fio`: fio's matrix.

use super::options::Programs;
use super::record::{self, Block};
use std::path::PathBuf;
use tuff_lab::Result;
use tuff_lab::campaigns::fio::{self, report};
use tuff_lab::campaigns::serve::run::program;

/// Programs that take part.
const PROGRAMS: [&str; 5] = ["tuff", "fio", "erofsfuse", "mksquashfs", "fsck.erofs"];

/// Measure with fio: volumes beside ext4, XFS and Btrfs, images beside SquashFS
///
/// In a row and at random, small and large, direct and buffered, reading, writing and both; with the time of a request and of all processors,
/// what mounting and checking take, and what an empty filesystem takes. Writes the record and its tables as NAME.jsonl and NAME.md. Root's,
/// for the loop devices.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Measure nothing; make the tables of this record again
    #[arg(long, value_name = "RECORD")]
    from: Option<PathBuf>,
    #[command(flatten)]
    block: Block,
    /// Rounds of everything
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 5)]
    rounds: u32,
    /// Only places whose name contains this, such as volume, ext4 or image
    #[arg(long, value_name = "TEXT")]
    place: Option<String>,
    /// Only cells whose name contains this, such as random or direct
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Length of the file, in MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=2048), default_value_t = 256)]
    file: u64,
    #[command(flatten)]
    programs: Programs,
    /// Folder on the host that filesystems are made on
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work: PathBuf,
    /// Where the record goes
    #[arg(long, default_value = "benchmarks/record/fio", value_name = "DIR")]
    records: PathBuf,
}

/// Runs the verb. False if ours failed or was wrong.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let (path, fine) = match &args.from {
        Some(path) => (path.clone(), true),
        None => measure(args)?,
    };
    let lines = tuff_lab::record::read(&path)?;
    if args.block.is_requested() {
        args.block.fill("fio", &[path], &report::brief(&lines))?;
        return Ok(fine);
    }
    let tables = report::render(&lines);
    print!("{tables}");
    record::write_beside(&path, "md", &tables)?;
    Ok(fine)
}

/// Measures. Returns the path of the record, and false if ours failed or was wrong.
fn measure(args: &Args) -> Result<(PathBuf, bool)> {
    let given = args.programs.given()?;
    let programs = PROGRAMS.iter();
    let conditions = fio::Conditions {
        programs: programs
            .filter_map(|name| Some(((*name).to_owned(), program(name, &given)?)))
            .collect(),
        rounds: args.rounds,
        place: args.place.clone(),
        only: args.only.clone(),
        file_mib: args.file,
        work: args.work.clone(),
    };
    conditions.plan()?;
    record::write(&args.records, "fio", |emit| fio::run(&conditions, emit))
}
