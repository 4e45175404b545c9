//! The command `tuff-lab`.
//!
//! Exit codes, a stable interface for scripts:
//!
//! | code | meaning |
//! |---|---|
//! | 0 | success |
//! | 1 | our own tool failed or gave a wrong result; with `report --check`, the block is outdated |
//! | 2 | wrong arguments or an invalid definition |
//! | 3 | a record is corrupt |
//! | 5 | an operation of the host failed |
//! | 130 | interrupted by a signal |

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use tuff_lab::campaigns::stress::rounds::Tally;
use tuff_lab::campaigns::{
    cleaning, commands, corpus, embedded, experiments, fio, kernel, measure, paper_erofs, peers,
    power_loss, remote, serve, start, store, stress, volumes, xfstests,
};
use tuff_lab::definition::{self, Definition as _};
use tuff_lab::measure::stop;
use tuff_lab::{Error, Result};

mod cmd;

/// Measure Tuff and compare it with other tools
#[derive(Parser)]
#[command(
    name = "tuff-lab",
    version,
    max_term_width = 100,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

// The variants are parsed once.
#[allow(clippy::large_enum_variant)]
#[derive(Subcommand)]
enum Verb {
    /// Measure the tasks of definitions, and write the samples to records
    Run {
        /// Definition files to run
        #[arg(required = true, value_name = "DEFINITION")]
        definitions: Vec<PathBuf>,
        #[command(flatten)]
        conditions: commands::run::Conditions,
    },
    Build(cmd::build::Args),
    /// Measure reads through mounts: our FUSE server, the kernel, and other FUSE servers
    ///
    /// Writes a record and prints its tables.
    Serve {
        /// Definition file to run
        definition: PathBuf,
        #[command(flatten)]
        conditions: serve::run::Conditions,
    },
    Soak(serve::soak::Soak),
    /// Measure the start-up time of programs in images: idle, with concurrent reads and writes, under memory pressure
    ///
    /// Writes a record and prints its tables. Requires root, because programs run with the mount as their root directory.
    Start {
        /// Definition file to run
        definition: PathBuf,
        #[command(flatten)]
        conditions: start::run::Conditions,
    },
    Remote(remote::Conditions),
    Peers(peers::Conditions),
    Store(store::Conditions),
    Volumes(volumes::Conditions),
    Fio(fio::Conditions),
    PowerLoss(power_loss::Conditions),
    Experiment(experiments::Conditions),
    Guest(kernel::Conditions),
    /// Repeat the measurements of publications
    #[command(subcommand)]
    Paper(Paper),
    /// Stress-test images, volumes and clients of servers
    #[command(subcommand)]
    Campaign(Stress),
    /// Run test suites of others, built outside the project
    #[command(subcommand)]
    Suite(Suite),
    Report(cmd::report::Args),
    Page(cmd::page::Args),
    Corpus(corpus::Options),
    /// Run one command and print its resource usage
    #[command(hide = true)]
    Sample {
        /// Command with its arguments
        #[arg(last = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// Start one program as described by a job on standard input, and print the result
    #[command(hide = true)]
    Inside,
    /// Run the job of a guest as its first process
    #[command(hide = true)]
    Agent,
}

#[derive(Subcommand)]
enum Paper {
    Erofs(paper_erofs::Conditions),
    Embedded(embedded::Conditions),
    Backup(commands::backup::Conditions),
    Cleaning(cleaning::Conditions),
}

#[derive(Subcommand)]
enum Stress {
    Cache(stress::cache::Options),
    Crash(stress::crash::Options),
    Files(stress::files::Options),
    Hostile(stress::hostile::Options),
    Images(stress::images::Options),
    Kills(stress::kills::Options),
    Names(stress::names::Options),
}

#[derive(Subcommand)]
enum Suite {
    Xfstests(xfstests::Conditions),
}

/// Runs a command. Returns false if our own tool failed or gave a wrong result.
fn run(verb: &Verb) -> Result<bool> {
    match verb {
        Verb::Run {
            definitions,
            conditions: c,
        } => cmd::build::run_all(definitions, c),
        Verb::Build(args) => cmd::build::run(args),
        Verb::Serve {
            definition: path,
            conditions: c,
        } => {
            let name = definition::name(path);
            let definition = serve::definition::Definition::read(path)?;
            measure(&c.options, "serve", &name, |emit| {
                serve::run::run_alone(&name, &definition, c, emit)
            })
        }
        Verb::Soak(soak) => {
            let outcome = serve::soak::run(soak)?;
            print_json(&outcome)?;
            Ok(outcome.findings.is_empty())
        }
        Verb::Start {
            definition: path,
            conditions: c,
        } => {
            let name = definition::name(path);
            let definition = start::definition::Definition::read(path)?;
            measure(&c.options, "start", &name, |emit| {
                start::run::run_alone(&name, &definition, c, emit)
            })
        }
        Verb::Remote(c) => measure(&c.options, "remote", &c.record(), |e| remote::run(c, e)),
        Verb::Peers(c) if c.is_list() => peers::list(c),
        Verb::Peers(c) => measure(&c.options, "peers", "starts", |e| peers::run(c, e)),
        Verb::Store(c) if c.is_without_record() => store::prepare(c),
        Verb::Store(c) => measure(&c.options, "store", "store", |e| store::run(c, e)),
        Verb::Volumes(c) => measure(&c.options, "volumes", "volumes", |e| volumes::run(c, e)),
        Verb::Fio(c) => measure(&c.options, "fio", "fio", |e| fio::run(c, e)),
        Verb::PowerLoss(c) => measure(&c.options, "power-loss", "power-loss", |e| {
            power_loss::run(c, e)
        }),
        Verb::Experiment(c) => measure(&c.options, "experiment", "experiment", |e| {
            experiments::run(c, e)
        }),
        Verb::Guest(c) => measure(&c.options, "guest", "guest", |e| kernel::run(c, e)),
        Verb::Paper(Paper::Erofs(c)) => measure(&c.options, "paper-erofs", "erofs", |e| {
            paper_erofs::run(c, e)
        }),
        Verb::Paper(Paper::Embedded(c)) => {
            measure(&c.options, "embedded", "embedded", |e| embedded::run(c, e))
        }
        Verb::Paper(Paper::Backup(c)) => measure(&c.options, "backup", "backup", |e| {
            commands::backup::run(c, e)
        }),
        Verb::Paper(Paper::Cleaning(c)) => {
            measure(&c.options, "cleaning", "cleaning", |e| cleaning::run(c, e))
        }
        Verb::Campaign(Stress::Cache(options)) => Tally::print(options),
        Verb::Campaign(Stress::Crash(options)) => cmd::stress::crash(options),
        Verb::Campaign(Stress::Files(options)) => cmd::stress::files(options),
        Verb::Campaign(Stress::Hostile(options)) => Tally::print(options),
        Verb::Campaign(Stress::Images(options)) => Tally::print(options),
        Verb::Campaign(Stress::Kills(options)) => Tally::print(options),
        Verb::Campaign(Stress::Names(options)) => Tally::print(options),
        Verb::Suite(Suite::Xfstests(conditions)) => xfstests::run(conditions),
        Verb::Report(args) => cmd::report::run(args),
        Verb::Page(args) => cmd::page::run(args),
        Verb::Corpus(options) => corpus::run(options).map(|()| true),
        Verb::Sample { command } => {
            let (program, arguments) = command
                .split_first()
                .ok_or_else(|| Error::Usage("no command given".to_owned()))?;
            print_json(&tuff_lab::measure::take(program, arguments)?)
        }
        Verb::Inside => {
            let order = serde_json::from_reader(std::io::stdin())
                .map_err(|e| Error::Usage(format!("cannot parse the job: {e}")))?;
            print_json(&start::inside::start(&order)?)
        }
        Verb::Agent => cmd::agent::run(),
    }
}

/// Prints a value as JSON.
fn print_json(value: &impl serde::Serialize) -> Result<bool> {
    let text = serde_json::to_string(value)
        .map_err(|e| Error::Command(format!("cannot encode the result: {e}")))?;
    println!("{text}");
    Ok(true)
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // These commands end immediately on a signal; the others stop between two samples.
    if !matches!(
        cli.verb,
        Verb::Sample { .. }
            | Verb::Inside
            | Verb::Agent
            | Verb::Campaign(Stress::Crash(_) | Stress::Files(_))
            | Verb::Experiment(_)
            | Verb::Corpus(_)
            | Verb::Page(_)
    ) {
        stop::watch();
    }
    match run(&cli.verb) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(e) => {
            eprintln!("tuff-lab: {e}");
            ExitCode::from(e.exit_code())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
