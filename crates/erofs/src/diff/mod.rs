//! Comparison of two trees: of two images, or of an image and a host directory.
//!
//! ```text
//!   names of a directory in A ─┐
//!                              ├─► merged ──► only in one: removed or added, with everything below
//!   names of a directory in B ─┘            └► in both: compared, and entered if both are directories
//! ```
//!
//! Invariants:
//!
//! * Paths are reported in tree order: parents first, names in bytewise order, independent of the number of threads.
//! * The comparison covers the view of a mount, not its storage: layouts, inode numbers, and the sizes and link counts
//!   of directories never differ.

mod compare;
mod content;
mod host;
mod node;
mod side;

pub use compare::{Change, Difference, Options, Totals, diff};
pub use host::HostTree;
pub use side::Side;
