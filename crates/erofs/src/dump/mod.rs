//! Map of all bytes of an image to the structures that contain them.
//!
//! ```text
//!   tables, inodes, indexes, data ──► regions, sorted ──► one item per region, and one per gap ──► space table
//!            regions.rs                                              item.rs                       space.rs
//! ```
//!
//! [`TreeUsage`] adds the sizes of every file, and [`SpaceMap`] the purposes of equal parts of the image.
//!
//! Invariants:
//!
//! * The items of an area are contiguous: bytes that belong to no structure form an item of their own.
//! * An item represents all of its bytes: as fields that encode to the same bytes, in hexadecimal where they do not, or
//!   as a digest for data.

mod area;
mod attribution;
mod item;
mod layout_stats;
mod limits;
mod regions;
mod sharing;
mod space;
mod space_map;
mod usage;

pub use area::Area;
pub use item::{Fields, Item, Items, Value};
pub use layout_stats::{AlgorithmStats, GroupStats, LayoutStats, LayoutStatsOptions};
pub use regions::{Codings, Kind, Region, Regions};
pub use space::{Row, SpaceTable};
pub use space_map::{Purpose, SpaceMap};
pub use usage::{InodeUsage, NodeId, Sums, TreeUsage};
