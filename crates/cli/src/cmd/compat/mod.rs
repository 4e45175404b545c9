//! Command lines of other tools' callers: `mkfs.erofs`, `fsck.erofs` and `dump.erofs`, as verbs and as names that `tuff` is
//! started under.
//!
//! `words` reads options as getopt_long does, `mkfs`, `fsck` and `dump` turn them into what the library takes, `ere` turns POSIX
//! expressions into ours. What an option asks for is done or refused; docs/reference/mkfs.md lists which. Exit codes are theirs: 0 and 1.

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

/// A command line of one of these tools, from the first word on.
#[derive(clap::Args)]
pub(crate) struct RawArgs {
    /// Options of that tool, and what it works on
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "WORD"
    )]
    pub(crate) args: Vec<OsString>,
}
