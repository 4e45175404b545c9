//! Packing: contents of files become blocks and extents, on all CPUs, in one order.
//!
//! ```text
//! add_file ────► batch ────► [workers] ──► collect, in ticket order ──► output, FileData
//! add_packed ──► segment ──►     ▲                 │ tails of files         ▲
//!                                 └── packed inode ◄┴──► pending until all else is placed
//! ```
//!
//! `packer` submits jobs, `worker` encodes them, `placement` records the results, `fragments` collects tails for the
//! packed inode.
//!
//! The packed inode follows all files: first whole files in the order of submission, then tails. Its clusters are
//! consecutive, so that it can have a COMPACT index.
//!
//! Invariants:
//!
//! * Tickets are issued in the order of `add_file`, and results are taken in that order: the image does not depend on
//!   the number of threads.
//! * The segments of a file are back to back; those of the packed inode come last.
//! * All segments but the last of a file have a multiple of the block size.

pub(crate) mod address;
mod adopted;
mod base_files;
mod block_buffer;
pub(crate) mod checksums;
mod chunks;
pub(crate) mod content;
pub(crate) mod contents;
mod data;
pub(crate) mod encoder;
mod external;
pub(crate) mod files;
mod fragments;
pub(crate) mod grain;
pub(crate) mod memory_budget;
mod packed;
mod packer;
mod pending;
pub(crate) mod piece;
mod placement;
pub(crate) mod policies;
pub(crate) mod pool;
mod probe;
pub(crate) mod segment;
mod separate;
pub(crate) mod shared_clusters;
pub(crate) mod sparse;
pub(crate) mod spill;
pub(crate) mod stage;
mod tail_fragments;
pub(crate) mod tar_index;
pub(crate) mod worker;

pub(crate) use data::{Chunks, Encoded, FileData, FileTail};
pub(crate) use packed::Packed;
pub(crate) use packer::{FileSharing, PackOptions, Packer};
pub(crate) use sparse::Sparse;
pub(crate) use worker::{job_cost, segment_for, segment_size};
