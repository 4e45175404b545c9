//! Behaviour of the verbs over an image: output, exit codes, and files left on the host.

mod cases;
mod chains;
mod common;
mod compat;
mod compat_dump;
mod completions;
mod copy;
mod coverage;
mod defects;
mod digests;
mod disk;
mod doctor;
#[cfg(feature = "explore")]
mod explore;
mod faults;
mod help;
mod hostile;
mod hostile_names;
mod judge;
#[cfg(feature = "remote")]
mod kernel_devices;
#[cfg(feature = "remote")]
mod kernel_remote;
mod mount;
mod outputs;
mod patch;
mod poisoned;
#[cfg(feature = "remote")]
mod push;
#[cfg(feature = "remote")]
mod push_layers;
mod released;
#[cfg(feature = "remote")]
mod remote;
#[cfg(feature = "remote")]
mod remote_ahead;
mod remote_login;
#[cfg(feature = "report")]
mod report;
#[cfg(feature = "remote")]
mod serve;
#[cfg(feature = "remote")]
mod serve_shared;
#[cfg(feature = "remote")]
mod servers;
mod show;
mod source_archives;
mod source_cpio;
mod source_faults;
mod source_image;
mod source_oci;
mod source_squashfs;
#[cfg(feature = "remote")]
mod start_lists;
#[cfg(feature = "remote")]
mod start_trace;
mod store;
mod store_keys;
mod store_pins;
mod terminal;
mod threads;
mod verity;
mod wrong_files;
