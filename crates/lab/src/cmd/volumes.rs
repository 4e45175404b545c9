//! `tuff-lab volumes`: volumes beside ext4.

use super::how::program_at;
use std::path::PathBuf;
use tuff_lab::record::RecordWriter;
use tuff_lab::serve::run::program;
use tuff_lab::volumes::record::{self, Line};
use tuff_lab::volumes::{self, report};
use tuff_lab::{Error, Result};

/// Measure volumes beside ext4 on a loop device and the host's own filesystem
///
/// Small files made and deleted, a large one written and read, pages written over and made durable, and how long others wait beside
/// those who write. Writes the record and its table as NAME.jsonl and NAME.md. Root's, for the loop device.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Measure nothing; make the table of this record again
    #[arg(long, value_name = "RECORD")]
    from: Option<PathBuf>,
    /// Rounds of everything
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 5)]
    rounds: u32,
    /// Only loads of groups whose name contains this: files, stream, overwrite, fdatasync, beside
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Where our program is (default: PATH, and beside this program)
    #[arg(long, value_name = "NAME=PATH")]
    tool: Vec<String>,
    /// Folder on the host that volumes are made on
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    work: PathBuf,
    /// Where the record goes
    #[arg(long, default_value = "benchmarks/record/volumes", value_name = "DIR")]
    records: PathBuf,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let path = match &args.from {
        Some(path) => path.clone(),
        None => measure(args)?,
    };
    let (header, samples) = record::read(&path)?;
    let table = report::render(&header, &samples);
    print!("{table}");
    let path = path.with_extension("md");
    std::fs::write(&path, table).map_err(|e| Error::io("write", &path, e))?;
    Ok(true)
}

/// Measures, and returns where the record is.
fn measure(args: &Args) -> Result<PathBuf> {
    let given: Vec<_> = args
        .tool
        .iter()
        .map(|t| program_at(t))
        .collect::<Result<_>>()?;
    let tuff = program("tuff", &given).ok_or_else(|| {
        Error::Usage("no program tuff is found; --tool tuff=PATH says where".to_owned())
    })?;
    let conditions = volumes::Conditions {
        tuff,
        rounds: args.rounds,
        only: args.only.clone(),
        work: args.work.clone(),
    };
    conditions.plan()?;
    let mut writer = RecordWriter::create(&args.records, "volumes")?;
    eprintln!("record: {}", writer.path().display());
    let mut measured = false;
    let done = volumes::run(&conditions, &mut |line| {
        measured |= matches!(line, Line::Sample(_));
        writer.write_any(line)
    });
    let path = writer.path().to_owned();
    if !measured {
        writer.give_up();
    }
    done.map(|()| path)
}
