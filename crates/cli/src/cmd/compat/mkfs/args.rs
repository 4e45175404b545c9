//! Options of `mkfs.erofs` with their values.

use std::ffi::OsString;
use std::path::PathBuf;
use tuff_mkfs::{
    Compression, CompressionOptions, Dedupe, DedupeOptions, Fragments, LayoutOptions, Options,
};

/// What was asked for.
pub(super) struct MkfsArgs {
    pub(super) help: bool,
    pub(super) version: bool,
    pub(super) quiet: bool,
    /// A device is overwritten whatever it holds.
    pub(super) force: bool,
    /// As far as one option says it all.
    pub(super) options: Options,
    pub(super) block: Option<u64>,
    /// Of `-z`, in its order.
    pub(super) algorithms: Vec<Compression>,
    pub(super) cluster: Option<u64>,
    pub(super) fragment_cluster: Option<u64>,
    pub(super) fragment_dedupe: bool,
    pub(super) dedupe: Option<Dedupe>,
    pub(super) plain_prefixes: bool,
    pub(super) hints: Option<PathBuf>,
    pub(super) time: Option<i64>,
    pub(super) mkfs_time: bool,
    pub(super) ignore_mtime: bool,
    pub(super) tar: bool,
    /// Of a tar, only the metadata.
    pub(super) index: bool,
    /// Of images, all data, too.
    pub(super) data: bool,
    pub(super) aufs: bool,
    pub(super) strip_overlay: bool,
    /// Where a descriptor of the disk goes.
    pub(super) vmdk: Option<PathBuf>,
    /// Where a list of blocks by file goes.
    pub(super) block_list: Option<PathBuf>,
    pub(super) offset: u64,
    pub(super) align_blocks: u64,
    /// What people should know.
    pub(super) notes: Vec<String>,
    /// `--product-out`, which needs a table of owners to mean something.
    pub(super) product_out: bool,
    /// `FILE` and what follows it.
    pub(super) operands: Vec<OsString>,
}

impl MkfsArgs {
    /// Values without any option.
    pub(super) fn new() -> Self {
        Self {
            help: false,
            version: false,
            quiet: false,
            force: false,
            // What callers get who ask for nothing.
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
            block: None,
            algorithms: Vec::new(),
            cluster: None,
            fragment_cluster: None,
            fragment_dedupe: true,
            dedupe: None,
            plain_prefixes: false,
            hints: None,
            time: None,
            mkfs_time: false,
            ignore_mtime: false,
            tar: false,
            index: false,
            data: false,
            aufs: false,
            strip_overlay: false,
            vmdk: None,
            block_list: None,
            offset: 0,
            align_blocks: 1,
            notes: Vec::new(),
            product_out: false,
            operands: Vec::new(),
        }
    }
}
