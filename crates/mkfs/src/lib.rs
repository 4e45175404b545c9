//! Builder of EROFS images.
//!
//! ```text
//! sources ──► load ──► tree ──► dedupe ──► pack ──► layout ──► emit
//!   I/O                pure    workers   workers    pure      output
//! ```
//!
//! No stage calls back into an earlier one. If requested, `verify` reads the output of `emit`. A tar stream cannot be
//! read twice: its files are packed while it is loaded, without deduplication of parts. Compressed metadata is packed
//! after the data of all files.
//!
//! # Examples
//!
//! Build from memory:
//!
//! ```no_run
#![doc = include_str!("../examples/from_memory.rs")]
//! ```
//!
//! Build from a tar stream:
//!
//! ```no_run
#![doc = include_str!("../examples/from_tar.rs")]
//! ```

mod base;
mod dedupe;
mod emit;
mod environment;
mod image_options;
mod layout;
mod load;
pub mod options;
mod pack;
mod patch;
mod pipeline;
pub mod presets;
pub mod progress;
mod scan;
pub mod settings;
pub mod source;
mod start;
mod start_list;
pub mod stats;
mod tree;
mod verify;
mod verity;

pub use image_options::{like, like_in_detail};
pub use options::available_threads;
pub use options::{
    Auto, Compression, CompressionOptions, Dedupe, DedupeOptions, Fragments, InodeForm,
    LayoutOptions, Metadata, MetadataOptions, Options, OutputOptions, ResourceOptions, Rule,
    SourceOptions, SparsePolicy, Verity,
};
pub use patch::{compact, patch};
pub use pipeline::{Summary, build, build_to};
pub use presets::suggest;
pub use progress::Progress;
pub use scan::{Fill, Scan, ScannedEntry, ScannedFile, ScannedXattr};
pub use source::container::{Container, ContainerImage, container_image};
pub use source::expansion::EXPANSION_MAX;
pub use source::input_image::InputImage;
pub use source::left_out::LeftOut;
pub use source::memory::{MemoryEntry, MemoryTree};
pub use source::placed::{PlacedCluster, PlacedData, PlacedPart, PlacedTree};
pub use source::spec::Source;
pub use source::stream::TarStream;
pub use start::{Command, Start, StartFile};
pub use stats::Stats;
pub use tree::Whiteouts;
pub use tree::file_contexts::Contexts;
pub use tree::fs_config::FsConfig;
pub use tree::paths::Paths;
pub use tuff_codec::Method;
pub use tuff_erofs::{Error, Place, Remedy, Result};
pub use tuff_format::features::KernelVersion;
pub use verity::hash_tree;
