//! Differences between two trees: of two images, or of an image and a directory of the host.
//!
//! ```text
//!  names of a directory in A ─┐
//!                             ├─► merged ──► only in one: removed, added ──► with all below
//!  names of a directory in B ─┘            └► in both: compared, and entered if both are directories
//! ```
//!
//! Invariants:
//!
//! * Paths come in tree order: parents first, names in bytewise order, however many threads compare bytes.
//! * What is compared is what a mount would show, not how an image stores it: layouts, inode numbers and the sizes and
//!   link counts of directories never differ.

mod compare;
mod content;
mod host;
mod node;
mod side;

pub use compare::{Change, Difference, Options, Totals, diff};
pub use host::HostTree;
pub use side::Side;
