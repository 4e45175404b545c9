//! Help of the verbs: short by default, complete with `--help-all` and in the manual pages.
//!
//! clap defines the arguments, `topics` adds common options, examples and exit codes, and `command` puts both together.

mod command;
mod topics;

pub(crate) use command::{Detail, command};
pub(crate) use topics::{Topic, topic};
