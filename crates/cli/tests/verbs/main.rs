//! Behaviour of the verbs over an image: output, exit codes, and files left on the host.

#[path = "../../../erofs/tests/assemble/mod.rs"]
mod assemble;
mod common;
mod compat;
mod compat_dump;
mod copy;
mod defects;
mod faults;
mod help;
mod hostile;
mod judge;
mod mount;
mod outputs;
mod patch;
#[path = "../../../erofs/tests/hostile/shapes.rs"]
mod shapes;
mod show;
mod source_archives;
mod source_cpio;
mod source_faults;
mod source_image;
mod source_oci;
mod threads;
mod verity;
mod wrong_files;
