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
use std::process::ExitCode;
use tuff_lab::engines::settings::Action;

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

#[derive(Subcommand)]
enum Verb {
    Run(cmd::run::Args),
    /// Measure building images from trees with the given settings
    Build(cmd::one::Args),
    /// Measure extracting images with the given settings
    Extract(cmd::one::Args),
    /// Measure checking images with the given settings
    Check(cmd::one::Args),
    Serve(cmd::serve::Args),
    Soak(cmd::soak::Args),
    Start(cmd::start::Args),
    Volumes(cmd::volumes::Args),
    Fio(cmd::fio::Args),
    PowerLoss(cmd::power_loss::Args),
    Experiment(cmd::experiment::Args),
    Guest(cmd::guest::Args),
    #[command(subcommand)]
    Paper(cmd::paper::Verb),
    #[command(subcommand)]
    Campaign(cmd::stress::Verb),
    Report(cmd::report::Args),
    Page(cmd::page::Args),
    Corpus(cmd::corpus::Args),
    #[command(hide = true)]
    Sample(cmd::sample::Args),
    #[command(hide = true)]
    Inside(cmd::inside::Args),
    #[command(hide = true)]
    Agent(cmd::agent::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // These commands end immediately on a signal; the others stop between two samples.
    if !matches!(
        cli.verb,
        Verb::Sample(_)
            | Verb::Inside(_)
            | Verb::Agent(_)
            | Verb::Campaign(_)
            | Verb::Experiment(_)
            | Verb::Corpus(_)
            | Verb::Page(_)
    ) {
        tuff_lab::measure::stop::watch();
    }
    let result = match cli.verb {
        Verb::Run(args) => cmd::run::run(&args),
        Verb::Build(args) => cmd::one::run(&args, Action::Build),
        Verb::Extract(args) => cmd::one::run(&args, Action::Extract),
        Verb::Check(args) => cmd::one::run(&args, Action::Check),
        Verb::Serve(args) => cmd::serve::run(&args),
        Verb::Soak(args) => cmd::soak::run(&args),
        Verb::Start(args) => cmd::start::run(&args),
        Verb::Volumes(args) => cmd::volumes::run(&args),
        Verb::Fio(args) => cmd::fio::run(&args),
        Verb::PowerLoss(args) => cmd::power_loss::run(&args),
        Verb::Experiment(args) => cmd::experiment::run(&args),
        Verb::Guest(args) => cmd::guest::run(&args),
        Verb::Paper(verb) => cmd::paper::run(&verb),
        Verb::Agent(args) => cmd::agent::run(&args),
        Verb::Campaign(verb) => cmd::stress::run(&verb),
        Verb::Report(args) => cmd::report::run(&args),
        Verb::Page(args) => cmd::page::run(&args),
        Verb::Corpus(args) => cmd::corpus::run(&args),
        Verb::Sample(args) => cmd::sample::run(&args),
        Verb::Inside(args) => cmd::inside::run(&args),
    };
    match result {
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
