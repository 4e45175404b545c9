//! The command line: verbs and their arguments, its errors, and the paths in images that arguments select.

pub(crate) mod cli;
pub(crate) mod select;
pub(crate) mod usage;
