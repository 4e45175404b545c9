//! Backup stores: snapshots of trees over shared packs. Each snapshot becomes an EROFS image of metadata whose devices are the
//! packs, so that the stock kernel mounts it.
//!
//! ```text
//! sources ──► records of the tree ──► leaves ──► groups ─┐
//!        └──► content, cut into ranges ──► clusters ─────┴──► packs, segment by segment ──► manifest
//!
//! manifest ──► leaves ──► records ──► image of metadata, built by tuff-mkfs ──► kernel, extract, diff
//! ```
//!
//! A range is named by the digest of its content. Records name ranges and nothing else, so packs may be written anew without any
//! change of a snapshot. Format: `docs/reference/format/backup-store.md`.

mod check;
mod cluster;
mod cut;
mod diff;
mod digest;
mod encode;
mod encoders;
mod files;
mod image;
mod index;
mod pack;
mod record;
mod run;
mod seen;
mod snapshot;
mod store;
mod tree;

pub use check::{Checked, Depth};
pub use digest::Digest;
pub use image::SnapshotImage;
pub use run::{Report, Request, default_series};
pub use snapshot::Snapshot;
pub use store::{Store, StoreCompression};
