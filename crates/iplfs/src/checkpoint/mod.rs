//! Checkpoints: packs on the device, and the state of a checkpoint in progress.

pub(crate) mod pack;
pub(crate) mod state;
