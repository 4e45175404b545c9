//! Placement of serving threads on processors.
//!
//! A small request takes less time than waking a thread on an idle processor. A session avoids wake-ups in one of
//! two ways:
//!
//! * It keeps idle processors awake while requests arrive ([`cpu_latency`]). Threads of writable volumes on io_uring
//!   then poll for the next request before they block (`busy_poll`).
//! * Where that is not permitted, the thread that reads `/dev/fuse` follows a single client ([`affinity`]).

pub mod affinity;
pub(crate) mod busy_poll;
pub mod cpu_latency;
