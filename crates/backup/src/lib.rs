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
//! change of a snapshot. Format: `docs/reference/backup-store.md`.

mod archive;
mod bucket;
mod check;
mod cluster;
mod copy;
mod cut;
mod device;
mod diff;
mod digest;
mod directories;
mod encode;
mod encoders;
mod faults;
mod files;
mod folder;
mod forget;
mod image;
mod index;
mod keys;
mod live;
mod marked;
mod object_parity;
mod pack;
mod pages;
mod parity;
mod pin;
mod prune;
mod read;
mod record;
mod repair;
mod run;
mod seal;
mod sealed;
mod seen;
mod segment;
mod slots;
mod snapshot;
mod store;
mod sweep;
mod tree;
mod unit;

#[cfg(test)]
mod campaign;
#[cfg(test)]
mod killed;
#[cfg(test)]
mod killed_sealed;

pub use bucket::{Bucket, Object};
pub use check::{Checked, Depth};
pub use copy::Copied;
pub use digest::Digest;
pub use folder::Folder;
pub use forget::{Choice, Policy};
pub use image::SnapshotImage;
pub use keys::{KeyEntry, KeyFile, Secret, StoreKey};
pub use pin::{HeldPin, Pin};
pub use prune::Pruned;
pub use repair::Repaired;
pub use run::{Report, Request, default_series};
pub use snapshot::Snapshot;
pub use store::{Store, StoreCompression};
