//! Inodes and attributes, compressed: the data of the metabox inode.
//!
//! ```text
//!  plan ──► bytes, in a file without a name ──► packer ──► clusters behind all that was placed so far
//! ```

use super::budget;
use super::emit::write_inodes;
use super::layout::{Parts, Plan};
use super::options::Options;
use super::pack::input::Input;
use super::pack::segment::TailPolicy;
use super::pack::work::Policy;
use super::pack::{FileData, PACKED, PackOptions, Packer, With};
use super::progress::Progress;
use crate::{Error, Result};
use std::path::Path;
use std::sync::Arc;
use tuff_codec::EncoderSpec;
use tuff_store::Output;

/// What the metabox inode has, placed.
pub(crate) struct Metabox {
    /// Its clusters.
    pub(crate) data: FileData,
    /// What they decode to. Unit: bytes.
    pub(crate) size: u64,
    /// The first block behind them.
    pub(crate) end_block: u32,
    /// Digest over them.
    pub(crate) digest: u128,
}

/// What a metabox is made with.
pub(crate) struct Means<'a> {
    pub(crate) threads: usize,
    /// Where temporary data goes.
    pub(crate) temporary: &'a Path,
    /// The image.
    pub(crate) output: &'a Output,
    pub(crate) progress: &'a Progress,
}

/// How metadata is compressed, if it is.
pub(crate) fn encoder(options: &Options) -> Option<EncoderSpec> {
    let compression = options.compression?;
    Some(options.encoder(compression, options.metadata_cluster))
}

/// Makes and writes a metabox of `size` bytes, behind the blocks that `plan` has placed.
pub(crate) fn make(
    parts: &Parts<'_>,
    plan: &Plan,
    size: u64,
    area: &[u8],
    means: Means<'_>,
) -> Result<Metabox> {
    let Means {
        threads,
        temporary,
        output,
        progress,
    } = means;
    let failed = |e| Error::io(temporary.display(), "cannot write temporary data", e);
    let file = tuff_store::anonymous(temporary).map_err(failed)?;
    write_inodes(parts, plan, area, threads, &|bytes, at| {
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, at).map_err(failed)
    })?;
    let options = parts.options;
    let policy = Arc::new(Policy {
        spec: encoder(options),
        tail: TailPolicy::Cluster,
        whole_max: 0,
        inline_max: 0,
        min_saving: 0,
    });
    let pack = PackOptions {
        bits: options.block,
        threads,
        in_flight: budget::eighth(options),
        spill: 0,
        temporary: temporary.to_owned(),
        first_block: plan.end_block,
        packed: Arc::clone(&policy),
        alike: None,
        known_max: 0,
        sums: false,
        size_max: options.size_budget,
    };
    let mut packer = Packer::new(pack, output, progress)?;
    let input = Input::Range {
        file: Arc::new(file),
        name: temporary.display().to_string().into(),
        offset: 0,
    };
    // Under the packed inode's number: it is no file of the tree.
    packer.add_file(PACKED, size, input, &policy, &With::default())?;
    let packed = packer.finish(None)?;
    Ok(Metabox {
        data: packed.packed,
        size,
        end_block: packed.end_block,
        digest: packed.digest,
    })
}
