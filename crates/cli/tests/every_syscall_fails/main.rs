//! Every system call of a verb fails, one after another: nothing acknowledged is lost, nothing is half done.
//!
//! `strace` makes the n-th call of a kind fail, once or from then on, for each n that a healthy run reaches. By default
//! the errors that tell most are tried for every n, and a fixed sample of the rest; `TUFF_EVERY_SYSCALL=all` tries all.

mod extract;
mod image;
mod import;
mod inject;
mod mounted;
mod sweep;
mod tree;
