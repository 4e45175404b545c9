//! `tuff-lab run` and `build`: tasks of definitions, and a task with settings from the command line.

use std::path::PathBuf;
use tuff_lab::campaigns::commands::definition::Definition;
use tuff_lab::campaigns::commands::run::{self, Conditions};
use tuff_lab::campaigns::{self, measure};
use tuff_lab::definition::{self, Definition as _};
use tuff_lab::engines::settings::Size;
use tuff_lab::measure::machine;
use tuff_lab::record::{Line, Record};
use tuff_lab::{Error, Result};

/// Runs the tasks of definitions that match the trees and `--only`, each with a record of its own.
pub(crate) fn run_all(definitions: &[PathBuf], conditions: &Conditions) -> Result<bool> {
    let read = |path: &PathBuf| Ok((definition::name(path), Definition::read(path)?));
    let mut definitions: Vec<(String, Definition)> =
        definitions.iter().map(read).collect::<Result<_>>()?;
    definitions.retain(|(_, definition)| conditions.want_any(definition));
    if definitions.is_empty() {
        return Err(Error::Usage(
            "nothing to do: no task matches these trees and --only".to_owned(),
        ));
    }
    let today = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    let folder = format!("{today}-{}", machine::host_name());
    let mut fine = true;
    for (name, definition) in &definitions {
        fine &= measure(&conditions.options, &folder, name, |emit| {
            run::run("commands", name, definition, conditions, emit)
        })?;
    }
    Ok(fine)
}

/// Measure building images from trees with the given settings, and print the table
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Algorithm and level, such as zstd:3
    #[arg(
        short = 'z',
        long,
        default_value = "lz4hc:9",
        value_name = "ALG[:LEVEL]"
    )]
    compress: String,
    /// Cluster size (EROFS) or block size (SquashFS)
    #[arg(short = 'C', long, default_value = "64K", value_name = "SIZE")]
    cluster: Size,
    #[command(flatten)]
    conditions: Conditions,
}

/// Runs the command. Returns false if our own tool failed or gave a wrong result.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let (compress, cluster) = (&args.compress, args.cluster);
    let (algorithm, level) = match compress.split_once(':') {
        Some((algorithm, level)) => (algorithm, format!(", level = {level}")),
        None => (compress.as_str(), String::new()),
    };
    let definition = format!(
        "[[task]]\nname = '{compress} {cluster}'\naction = 'build'\n\
        settings = {{ algorithm = '{algorithm}'{level}, cluster = '{cluster}', inline_tails = false, fragments = 'off', dedupe = 'off' }}\n\
        run = [{{ tool = 'tuff' }}, {{ tool = 'mkfs.erofs' }}, {{ tool = 'mksquashfs' }}]\n"
    );
    let name = "command line";
    let definition = Definition::parse(name, &definition)?;
    let mut lines: Vec<Line> = Vec::new();
    let fine = run::run(
        "commands",
        name,
        &definition,
        &args.conditions,
        &mut |line| {
            lines.push(line.clone());
            Ok(())
        },
    )?;
    print!("{}", campaigns::report(&Record::collect(lines)?)?);
    Ok(fine)
}
