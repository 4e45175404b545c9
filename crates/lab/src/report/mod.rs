//! Tables, charts and generated document blocks, used by all reports.

pub mod document;
pub(crate) mod earlier;
pub mod page;
pub mod plot;
pub mod table;
