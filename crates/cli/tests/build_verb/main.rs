//! Behaviour of `tuff build`: arguments, exit codes, failures, and no partial output.

mod choices;
mod common;
mod existing;
mod faults;
mod layers;
mod sources;
mod tables;
mod usage;
