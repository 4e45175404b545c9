//! Commands of `tuff-lab` that are no campaign with a single record.

pub(crate) mod agent;
pub(crate) mod build;
pub(crate) mod page;
pub(crate) mod report;
pub(crate) mod stress;
