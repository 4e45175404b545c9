//! Parts that all reports share: charts, and generated blocks of documents.

pub mod document;
pub mod plot;
