//! Measurement campaigns. Each runs a set of workloads and writes a record or a report.

pub mod cleaning;
pub mod commands;
pub mod corpus;
pub mod embedded;
pub mod experiments;
pub mod fio;
pub mod kernel;
pub mod paper_erofs;
pub mod peers;
pub mod power_loss;
pub mod remote;
pub mod serve;
pub mod start;
pub mod store;
pub mod stress;
pub mod volumes;
pub mod xfstests;

use crate::options::{Emit, Options};
use crate::record::{Record, RecordWriter};
use crate::{Error, Result};
use std::path::Path;

/// Runs a campaign, writes its record `name` and prints its tables. `folder` is the default folder of its records, below
/// benchmarks/record. Returns false if our own tool failed or gave a wrong result.
pub fn measure(
    options: &Options,
    folder: &str,
    name: &str,
    campaign: impl FnOnce(Emit<'_>) -> Result<bool>,
) -> Result<bool> {
    let default = || Path::new("benchmarks/record").join(folder);
    let folder = options.records.clone().unwrap_or_else(default);
    let mut writer = RecordWriter::new(&folder, name);
    let fine = campaign(&mut |line| writer.write(line))?;
    let path = writer.path().ok_or_else(|| {
        Error::Usage("nothing to do: no measurement matches the given filters".to_owned())
    })?;
    print!("{}", report(&Record::read(&[path])?)?);
    Ok(fine)
}

/// Renders the tables of a record, as its campaign defines them.
pub fn report(record: &Record) -> Result<String> {
    match record.campaign() {
        "backup" | "commands" => Ok(commands::report::render(record)),
        "cleaning" => Ok(cleaning::report::render(record)),
        "crash" => Ok(stress::crash::render(record)),
        "embedded" => Ok(embedded::report::render(record)),
        "experiment" => Ok(experiments::render(record)),
        "fio" => Ok(fio::report::render(record)),
        "guest" => Ok(kernel::render(record)),
        "power-loss" => Ok(power_loss::report::render(record)),
        "paper erofs" => Ok(paper_erofs::report::render(record)),
        "peers" => Ok(peers::render(record)),
        "remote" => Ok(remote::render(record)),
        "serve" => Ok(serve::report::render(record)),
        "start" => Ok(start::report::render(record)),
        "store" => Ok(store::render(record)),
        "volumes" => Ok(volumes::report::render(record)),
        other => Err(Error::Usage(format!("no campaign is called '{other}'"))),
    }
}

/// Draws the chart of a record as an SVG document.
pub fn plot(record: &Record) -> Result<String> {
    match record.campaign() {
        "backup" | "commands" => commands::report::plot(record),
        "cleaning" => cleaning::report::plot(record),
        "experiment" => experiments::plot(record),
        "fio" => fio::report::plot(record),
        "power-loss" => power_loss::report::plot(record),
        "paper erofs" => paper_erofs::report::plot(record),
        "peers" => peers::plot(record),
        "remote" => remote::plot(record),
        "serve" => serve::report::plot(record),
        "start" => start::report::plot(record),
        "store" => store::plot(record),
        "volumes" => volumes::report::plot(record),
        other => Err(Error::Usage(format!("campaign '{other}' has no chart"))),
    }
}
