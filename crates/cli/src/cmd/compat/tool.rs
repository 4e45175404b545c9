//! Tools whose command lines are understood.

use crate::out;
use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;
use tuff_erofs::{Error, Result};

/// Version of erofs-utils whose options are understood. Callers compare it with the version they need.
const ERA: &str = "1.9.3";

/// Tool whose command line is understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tool {
    Mkfs,
    Fsck,
    Dump,
}

impl Tool {
    /// Returns the tool with this name or path.
    pub(crate) fn from_name(program: &OsStr) -> Option<Self> {
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

    /// Prints a text.
    pub(super) fn print(text: &[u8]) -> Result<ExitCode> {
        let mut out = out::Out::new();
        out.bytes(text)?;
        out.finish()
    }

    /// The error for a command line without an image.
    pub(super) fn no_image() -> Error {
        Error::usage("IMAGE is missing")
    }

    /// Prints the version: a line and an optional list that callers parse, then a line for users.
    pub(super) fn version(self, list: Option<&str>) -> Result<ExitCode> {
        let mut out = out::Out::new();
        let ours = env!("CARGO_PKG_VERSION");
        out.line(format_args!("{} (erofs-utils) {ERA}", self.name()))?;
        if let Some(list) = list {
            out.line(list)?;
        }
        out.line(format_args!(
            "this is Tuff {ours}, which accepts the options of that version"
        ))?;
        out.finish()
    }
}
