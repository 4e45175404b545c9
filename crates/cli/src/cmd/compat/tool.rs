//! Tools whose command lines are understood.

use crate::out;
use std::ffi::OsStr;
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

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mkfs => "mkfs.erofs",
            Self::Fsck => "fsck.erofs",
            Self::Dump => "dump.erofs",
        }
    }

    /// Says what this is: a line, and perhaps a list, as callers parse them, and a line for people.
    pub(super) fn version(self, list: Option<&str>) -> Result<ExitCode> {
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
