//! Commands that build, extract and check images: definition, run and tables.

pub mod backup;
pub mod definition;
pub(crate) mod report;
pub mod run;
