//! Output of the command: text, numbers, progress, errors with advice, and files.

pub(crate) mod advice;
pub(crate) mod next_command;
pub(crate) mod out;
pub(crate) mod overwrite;
pub(crate) mod progress;
pub(crate) mod sink;
pub(crate) mod text;
pub(crate) mod units;
