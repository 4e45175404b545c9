//! Behaviour of `tuff volume`: round trips, exit codes, and one-line errors.

mod acl;
mod branch_streams;
mod branches;
mod common;
mod copy;
mod damage;
mod database;
mod errors;
mod full;
mod host;
mod mapped;
mod mount;
mod posix;
mod space;
mod statx;
mod sync;
mod unmount;
