//! Tables, charts and generated document blocks, used by all reports.

pub mod document;
pub mod plot;
pub mod table;
