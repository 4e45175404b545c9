//! The sixth room: how long real programs take to start from an image, as phones do all day: nobody else at work, beside
//! readers in the background, and with little memory.
//!
//! ```text
//!  tree ──► images ──► for each round, program and condition:
//!                        server A:  mount, start, compare, unmount;  B;  C
//! ```
//!
//! The tree is made of programs of this machine with what they need ([`tree`]), or given. A program runs with the mounted
//! image as its root, and what it says must be what it says with the tree as its root ([`rooted`]); a time of something else
//! does not count, and the server drops out for that program and condition.
//!
//! Every start has a mount of its own, so nothing of it is in the page cache but the image itself (`cache = "image"`), or not
//! even that (`cache = "none"`). The time is from fork to exit, taken by a process of its own inside that root ([`inside`]).

pub mod definition;
pub mod group;
pub mod inside;
pub mod record;
pub mod report;
pub mod rooted;
pub mod run;
pub mod tree;
