//! The append-only logs: what blocks in them became invalid, and when the device may be told.

pub(crate) mod dead_blocks;
pub(crate) mod discard_log;
pub(crate) mod free_space;
pub(crate) mod readers;
pub(crate) mod state;
