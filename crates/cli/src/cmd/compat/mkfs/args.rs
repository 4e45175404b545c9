//! Options of `mkfs.erofs` with their values.

use std::ffi::OsString;
use std::path::PathBuf;
use tuff_mkfs::{
    Compression, CompressionOptions, Dedupe, DedupeOptions, Fragments, LayoutOptions, Options,
};

/// Parsed arguments of `mkfs.erofs`.
#[derive(Default)]
pub(super) struct MkfsArgs {
    pub(super) help: bool,
    pub(super) version: bool,
    pub(super) quiet: bool,
    /// Overwrite a device whatever it contains.
    pub(super) force: bool,
    /// Options that a single argument determines.
    pub(super) options: Options,
    pub(super) block: Option<u64>,
    /// Algorithms of `-z`, in order.
    pub(super) algorithms: Vec<Compression>,
    pub(super) cluster: Option<u64>,
    pub(super) fragment_cluster: Option<u64>,
    pub(super) fragment_dedupe: bool,
    pub(super) dedupe: Option<Dedupe>,
    pub(super) plain_prefixes: bool,
    /// Chunk tables have no device numbers.
    pub(super) blockmap: bool,
    pub(super) hints: Option<PathBuf>,
    pub(super) time: Option<i64>,
    pub(super) mkfs_time: bool,
    pub(super) ignore_mtime: bool,
    pub(super) tar: bool,
    /// Store only metadata of a tar, and refer to its data.
    pub(super) index: bool,
    /// Copy the data of source images.
    pub(super) data: bool,
    pub(super) aufs: bool,
    pub(super) strip_overlay: bool,
    /// Path of the VMDK descriptor.
    pub(super) vmdk: Option<PathBuf>,
    /// Path of the block list.
    pub(super) block_list: Option<PathBuf>,
    pub(super) offset: u64,
    pub(super) align_blocks: u64,
    /// Notes for the user.
    pub(super) notes: Vec<String>,
    /// `--product-out` was given; it takes effect only with a table of owners.
    pub(super) product_out: bool,
    /// `FILE` and the sources.
    pub(super) operands: Vec<OsString>,
}

impl MkfsArgs {
    /// Returns the values of an empty command line.
    pub(super) fn new() -> Self {
        Self {
            // Defaults of mkfs.erofs, which differ from those of the library.
            options: Options {
                compression: CompressionOptions {
                    default: None,
                    ..CompressionOptions::default()
                },
                layout: LayoutOptions {
                    tail_packing: false,
                    fragments: Fragments::Off,
                    ..LayoutOptions::default()
                },
                dedupe: DedupeOptions {
                    mode: Dedupe::Off,
                    ..DedupeOptions::default()
                },
                ..Options::default()
            },
            fragment_dedupe: true,
            align_blocks: 1,
            ..Self::default()
        }
    }
}
