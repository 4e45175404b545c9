//! From file contents to blocks and extents, on all cores, in one order.
//!
//! ```text
//!  add_file ────► batch ────► [workers] ──► collect, in ticket order ──► output, FileData
//!  add_packed ──► segment ──►     ▲                 │ ends of files          ▲
//!                                 └── packed inode ◄┴──► held until all else is placed
//! ```
//!
//! `data` says what a file comes to, `place` puts results in order, `ends` keeps what waits for the packed inode.
//!
//! The packed inode lies behind all files: first whole files, in the order in which they were added, then ends of files. So
//! its clusters are consecutive, and its index can be COMPACT.
//!
//! Invariants:
//!
//! * Tickets are given in the order of `add_file`, and results are taken in that order: the bytes do not depend on the
//!   number of threads.
//! * The segments of a file lie back to back; those of the packed inode come last.
//! * All segments but a file's last have a multiple of the block size.

pub(crate) mod address;
mod adopted;
mod base_files;
mod block_buffer;
pub(crate) mod checksums;
mod chunks;
mod data;
mod external;
mod fragments;
pub(crate) mod grain;
pub(crate) mod input;
mod packed;
mod packer;
mod pending;
pub(crate) mod piece;
mod placement;
pub(crate) mod pool;
mod probe;
pub(crate) mod segment;
mod separate;
pub(crate) mod shared_clusters;
pub(crate) mod sparse;
mod tail_fragments;
pub(crate) mod worker;

pub(crate) use data::{Encoded, FileData, FileTail};
pub(crate) use packed::Packed;
pub(crate) use packer::{FileSharing, PackOptions, Packer};
pub(crate) use sparse::Sparse;
pub(crate) use worker::{job_cost, segment_for, segment_size};
