//! Measurement campaigns: each runs a set of workloads and writes a record or a report.

pub mod experiments;
