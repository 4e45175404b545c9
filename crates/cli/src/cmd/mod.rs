//! The verbs.

pub mod build;
