//! Placement of serving threads on processors.

pub mod affinity;
pub(crate) mod busy_poll;
pub mod cpu_latency;
