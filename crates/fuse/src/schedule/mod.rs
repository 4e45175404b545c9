//! Placement of serving threads on processors.
//!
//! A small request takes less time than waking a thread on an idle processor. Three mechanisms avoid wake-ups:
//!
//! * [`affinity`]: `/dev/fuse`. The serving thread runs on the processor of a single client.
//! * [`cpu_latency`]: both transports. Idle processors poll instead of halting while requests arrive.
//! * `busy_poll`: io_uring, writable volumes. A thread polls for the next request before it blocks.

pub mod affinity;
pub(crate) mod busy_poll;
pub mod cpu_latency;
