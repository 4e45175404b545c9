//! Fault injection: every system call of a verb fails, one run at a time. Acknowledged data must survive, and no output
//! may be partial.
//!
//! `strace` makes the n-th call of a kind fail, once or permanently, for each n of a healthy run. By default the most
//! revealing errors are injected for the first and the last eight n and one in four of the others, and the other errors for a
//! fixed sample. `TUFF_EVERY_SYSCALL=all` injects all.

mod extract;
mod image;
mod import;
mod inject;
mod mounted;
mod store;
mod sweep;
mod tree;
