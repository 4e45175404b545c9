//! Faults of servers, networks, disks and processes.

mod campaign;
#[path = "../remote/common.rs"]
mod common;
mod plan;
mod server;
