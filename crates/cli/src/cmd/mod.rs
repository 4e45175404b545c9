//! Verbs of the command, one per file or directory.

pub(crate) mod build_image;
pub(crate) mod cat;
pub(crate) mod check;
pub(crate) mod compat;
pub(crate) mod completions;
pub(crate) mod diff;
pub(crate) mod dump;
pub(crate) mod extents;
pub(crate) mod extract;
pub(crate) mod info;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod mount;
pub(crate) mod profile;
#[cfg(feature = "remote")]
pub(crate) mod pull;
#[cfg(feature = "remote")]
pub(crate) mod push;
pub(crate) mod stat;
pub(crate) mod stats;
pub(crate) mod suggest;
pub(crate) mod tar;
pub(crate) mod umount;
pub(crate) mod verity;
pub(crate) mod volume;
