//! A full check, and the trim that follows from it.

mod checker;
mod names;
mod space;
mod trim;

pub(crate) use checker::name_paths;
pub use checker::{CheckOptions, Report, check};
