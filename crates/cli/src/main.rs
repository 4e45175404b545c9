//! The `tuff` command: one verb per file in `cmd`.
//!
//! Exit codes, which scripts may rely on:
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | `check` and `diff`: something was found |
//! | 2 | wrong arguments, or a request that makes no sense |
//! | 3 | the image, or what it is to be built from, is corrupt |
//! | 4 | the image is unsupported, or a limit was reached |
//! | 5 | the host failed: a file that cannot be read, a full disk |
//! | 130 | stopped by a signal |

mod cmd;
mod progress;
mod units;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tuff_image::Error;

/// Build, read, check and extract EROFS images.
#[derive(Parser)]
#[command(name = "tuff", version, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Build(Box<cmd::build::Args>),
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Build(args) => cmd::build::run(*args),
    };
    match result {
        Ok(code) => code,
        Err(e) => {
            eprintln!("tuff: {e}");
            ExitCode::from(exit_code(&e))
        }
    }
}

/// The exit code of an error.
fn exit_code(e: &Error) -> u8 {
    match e {
        Error::Usage(_) => 2,
        Error::Corrupt(_) | Error::Source(_) => 3,
        Error::Io(_, e) if e.kind() == std::io::ErrorKind::Interrupted => 130,
        Error::Io(..) => 5,
        _ => 4,
    }
}
