//! `tuff-lab fio`: fio's matrix.

use super::how::program_at;
use std::path::PathBuf;
use tuff_lab::fio::record::{self, Line};
use tuff_lab::fio::{self, report};
use tuff_lab::record::RecordWriter;
use tuff_lab::serve::run::program;
use tuff_lab::{Error, Result};

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
    /// Put speeds and costs of the record into this document, between <!-- lab:begin BLOCK --> and <!-- lab:end BLOCK -->
    #[arg(long, value_name = "FILE", requires_all = ["block", "from"])]
    readme: Option<PathBuf>,
    /// Name of the block
    #[arg(long, value_name = "BLOCK", requires = "readme")]
    block: Option<String>,
    /// Rounds of everything
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 5)]
    rounds: u32,
    /// Only places whose name contains this, such as volume, ext4 or image
    #[arg(long, value_name = "TEXT")]
    place: Option<String>,
    /// Only cells whose name contains this, such as 'at random' or direct
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Length of the file, in MiB
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=2048), default_value_t = 256)]
    file: u64,
    /// Where a program is (default: PATH, and beside this program)
    #[arg(long, value_name = "NAME=PATH")]
    tool: Vec<String>,
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
    let lines = record::read(&path)?;
    if let (Some(readme), Some(block)) = (&args.readme, &args.block) {
        let command = format!(
            "tuff-lab fio --from {} --readme {} --block {block}",
            path.display(),
            readme.display()
        );
        tuff_lab::report::fill(readme, block, &report::brief(&lines), &command)?;
        return Ok(fine);
    }
    let tables = report::render(&lines);
    print!("{tables}");
    let path = path.with_extension("md");
    std::fs::write(&path, tables).map_err(|e| Error::io("write", &path, e))?;
    Ok(fine)
}

/// Measures, and returns where the record is, and whether ours was fine.
fn measure(args: &Args) -> Result<(PathBuf, bool)> {
    let given: Vec<_> = args
        .tool
        .iter()
        .map(|t| program_at(t))
        .collect::<Result<_>>()?;
    let found = PROGRAMS.iter();
    let conditions = fio::Conditions {
        programs: found
            .filter_map(|name| Some(((*name).to_owned(), program(name, &given)?)))
            .collect(),
        rounds: args.rounds,
        place: args.place.clone(),
        only: args.only.clone(),
        file_mib: args.file,
        work: args.work.clone(),
    };
    conditions.plan()?;
    let mut writer = RecordWriter::create(&args.records, "fio")?;
    eprintln!("record: {}", writer.path().display());
    let mut measured = false;
    let done = fio::run(&conditions, &mut |line| {
        measured |= matches!(line, Line::Sample(_) | Line::Failed(_));
        writer.write_any(line)
    });
    let path = writer.path().to_owned();
    if !measured {
        writer.give_up();
    }
    done.map(|fine| (path, fine))
}
