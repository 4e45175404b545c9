//! Measurement campaigns. Each runs a set of workloads and writes a record or a report.

pub mod commands;
pub mod corpus;
pub mod embedded;
pub mod experiments;
pub mod fio;
pub mod kernel;
pub mod power_loss;
pub mod serve;
pub mod start;
pub mod stress;
pub mod volumes;
