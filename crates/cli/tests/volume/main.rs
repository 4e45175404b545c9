//! `tuff volume` as people and scripts meet it: what goes in comes out, exit codes, and one sentence on errors.

mod acl;
mod common;
mod copy;
mod damage;
mod errors;
mod full;
mod mount;
mod posix;
