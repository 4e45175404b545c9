//! The verbs.

pub(crate) mod build;
pub(crate) mod cat;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod diff;
pub(crate) mod dump;
pub(crate) mod extents;
pub(crate) mod extract;
pub(crate) mod info;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod stat;
pub(crate) mod tar;
pub(crate) mod volume;
