//! Full check of a volume, and the trim based on it.

mod checker;
mod names;
mod space;
mod trim;

pub(crate) use checker::name_paths;
pub use checker::{CheckOptions, Report, check};
