//! Help of the verbs: short by default, complete with `--help-all` and in the manual pages.
//!
//! clap defines the arguments, `topics` adds common options, examples and exit codes, and `command` puts both together.

mod command;
mod topic;
mod topics;

pub(crate) use command::{Detail, command};
pub(crate) use topic::{EXIT_CODES, Topic};
pub(crate) use topics::topic;
