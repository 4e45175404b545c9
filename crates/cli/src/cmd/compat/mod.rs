//! Command lines of other tools' callers: `mkfs.erofs`, `fsck.erofs` and `dump.erofs`, as verbs and as names that `tuff` is
//! started under.
//!
//! `words` reads options as getopt_long does, `mkfs`, `fsck` and `dump` turn them into what the library takes, `ere` turns POSIX
//! expressions into ours. What an option asks for is done or refused; docs/reference/mkfs.md lists which. Exit codes are theirs: 0 and 1.

mod dump;
mod ere;
mod fsck;
mod mkfs;
mod words;

use crate::out;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;
use tuff_erofs::Result;

/// The version whose options are understood. Callers compare it with what they need.
const ERA: &str = "1.9.3";

/// A tool whose command line is understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tool {
    /// `mkfs.erofs`.
    Mkfs,
    /// `fsck.erofs`.
    Fsck,
    /// `dump.erofs`.
    Dump,
}

impl Tool {
    /// The tool with this name, perhaps behind a path.
    pub(crate) fn of(program: &OsStr) -> Option<Self> {
        let name = Path::new(program).file_name()?;
        [Self::Mkfs, Self::Fsck, Self::Dump]
            .into_iter()
            .find(|tool| name == tool.name())
    }

    fn name(self) -> &'static str {
        match self {
            Self::Mkfs => "mkfs.erofs",
            Self::Fsck => "fsck.erofs",
            Self::Dump => "dump.erofs",
        }
    }

    /// Does what the words ask for.
    pub(crate) fn run(self, words: &[OsString]) -> ExitCode {
        let done = match self {
            Self::Mkfs => mkfs::run(words),
            Self::Fsck => fsck::run(words),
            Self::Dump => dump::run(words),
        };
        match done {
            Ok(code) => code,
            Err(e) if out::reader_left(&e) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("{}: {e}", self.name());
                ExitCode::FAILURE
            }
        }
    }

    /// Says what this is: a line, and perhaps a list, as callers parse them, and a line for people.
    fn version(self, list: Option<&str>) -> Result<ExitCode> {
        let mut out = out::Out::new();
        let ours = env!("CARGO_PKG_VERSION");
        out.line(format_args!("{} (erofs-utils) {ERA}", self.name()))?;
        if let Some(list) = list {
            out.line(list)?;
        }
        out.line(format_args!(
            "this is Tuff {ours}, which takes the options of that version"
        ))?;
        out.finish()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A command line of one of these tools, from the first word on.
#[derive(clap::Args)]
pub(crate) struct Words {
    /// Options of that tool, and what it works on
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "WORD"
    )]
    pub(crate) words: Vec<OsString>,
}
