//! Append-only logs: their heads, the blocks that died in them, and the discard log.

pub(crate) mod dead_blocks;
pub(crate) mod discard_log;
pub(crate) mod free_space;
pub(crate) mod readers;
pub(crate) mod state;
