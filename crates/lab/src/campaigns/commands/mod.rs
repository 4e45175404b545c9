//! Commands that build, extract and check images: definition, run, record and tables.

pub mod definition;
pub mod record;
pub mod report;
pub mod run;
