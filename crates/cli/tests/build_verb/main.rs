//! `tuff build` as people and scripts meet it: arguments, exit codes, faults, and nothing left behind.

mod choices;
mod common;
mod existing;
mod faults;
mod layers;
mod sources;
mod tables;
mod usage;
