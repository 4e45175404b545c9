//! Checkpoints: packs on the device, and the state of one under way.

pub(crate) mod pack;
pub(crate) mod state;
