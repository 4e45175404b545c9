//! Start campaign: start times of real programs from an image, on an idle machine, with background reads and
//! writes, and with little memory.
//!
//! ```text
//!  tree ──► images ──► for each round, program and condition:
//!                        server A:  mount, start, compare, unmount;  B;  C
//! ```
//!
//! The tree is given, or assembled from local programs and the files they need (`tree`). A program runs
//! with the mounted image as its root directory ([`rooted`]). Its output must equal the output with the
//! source tree as its root; otherwise the server drops out for this program and condition.
//!
//! Every start has a fresh mount. The page cache holds only the image file (`cache = "image"`), or the image is a loop
//! device with direct I/O and nothing of it is cached (`cache = "device"`). A child process in the new root measures the time from fork to exit ([`inside`]).

pub mod definition;
pub mod inside;
pub(crate) mod report;
pub mod rooted;
pub mod run;
