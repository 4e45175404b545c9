//! Command lines of `mkfs.erofs`, `fsck.erofs` and `dump.erofs`, as verbs and as names of the program.
//!
//! `getopt` parses options like getopt_long. `mkfs`, `fsck` and `dump` convert them to options of the library, and
//! `ere` translates POSIX expressions. Each option is implemented or rejected, as docs/reference/mkfs.md lists. Exit
//! codes are those of erofs-utils: 0 and 1.

mod dump;
mod ere;
mod fsck;
mod getopt;
mod mkfs;
mod tool;

use crate::out;
use std::ffi::OsString;
use std::process::ExitCode;

pub(crate) use tool::Tool;

/// Runs a tool with its arguments.
pub(crate) fn run(tool: Tool, args: &[OsString]) -> ExitCode {
    let done = match tool {
        Tool::Mkfs => mkfs::run(args),
        Tool::Fsck => fsck::run(args),
        Tool::Dump => dump::run(args),
    };
    match done {
        Ok(code) => code,
        Err(e) if out::reader_left(&e) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{}: {e}", tool.name());
            ExitCode::FAILURE
        }
    }
}

/// Uninterpreted arguments of one of these tools.
#[derive(clap::Args)]
pub(crate) struct RawArgs {
    /// Options and operands of the tool
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "WORD"
    )]
    pub(crate) args: Vec<OsString>,
}
