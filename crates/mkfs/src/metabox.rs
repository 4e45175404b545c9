//! Metadata, compressed: directories in the packed inode, inodes and attributes as the data of the metabox inode.
//!
//! ```text
//!  plan ──► bytes, in a file without a name ──► packer ──► clusters behind all that was placed so far
//! ```

use super::dedupe::PackedFile;
use super::emit::{emit_blocks, write_inodes};
use super::layout::{Metabox, Parts, Plan, Wanted, aligned};
use super::memory_budget;
use super::options::Options;
use super::pack::input::Input;
use super::pack::piece::TailPolicy;
use super::pack::worker::Policy;
use super::pack::{FileSharing, PackOptions, Packed, Packer};
use super::progress::Progress;
use super::tree::PACKED;
use crate::{Error, Result};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use tuff_store::Output;

/// What a metabox is made with.
pub(crate) struct Means<'a> {
    pub(crate) threads: usize,
    /// Where temporary data goes.
    pub(crate) temporary: &'a Path,
    /// The image.
    pub(crate) output: &'a Output,
    pub(crate) progress: &'a Progress,
}

/// Packs the directories that are to lie in the packed inode behind what it has. `None`: there are none.
pub(crate) fn pack_directories(
    parts: &Parts<'_>,
    plan: &Plan,
    means: &Means<'_>,
) -> Result<Option<Packed>> {
    if plan.packed_dirs.is_empty() {
        return Ok(None);
    }
    let file = means.temporary_file()?;
    let mut packer = means.packer(parts.options, parts.packed.end_block)?;
    let (mut len, mut names) = (0, Vec::new());
    for (dir, _) in &plan.packed_dirs {
        names.clear();
        emit_blocks(parts, plan, *dir, &mut names)?;
        means.write(&file, &names, len)?;
        len += names.len() as u64;
    }
    // Under the packed inode's number: where each directory lies was planned.
    let all = PackedFile {
        file: PACKED,
        from: 0,
        similar: false,
    };
    packer.add_packed(all, len, means.input(&Arc::new(file), 0))?;
    packer.finish(None).map(Some)
}

/// Places whole blocks, a metabox of `size` bytes and what lies behind it, and writes the metabox.
///
/// Its inodes say where bases begin. That is right behind the image, whose length depends on what they are compressed to: they are
/// made with a guess, and again with a better one, until the image ends before it. What is left is padding.
pub(crate) fn place(
    wanted: &Wanted<'_>,
    packed: &Packed,
    plan: &mut Plan,
    size: u64,
    area: &[u8],
    means: &Means<'_>,
) -> Result<Metabox> {
    let parts = wanted.with(packed, None);
    plan.place_blocks(&parts)?;
    let begin = plan.end_block;
    let external = parts.base.is_some_and(|base| !base.in_image());
    let (mut guess, mut written) = (0, begin);
    if external {
        guess = aligned(&parts, u64::from(begin) + parts.bits().count(size))?;
    }
    // What is added to what it takes, as negative powers of two: other addresses change little.
    for slack in [6, 5, 4, 3, 2, 1] {
        let mut placed = plan.clone();
        placed.base_block = guess;
        let made = make(&parts, &placed, size, area, means)?;
        placed.place_metabox(&wanted.with(packed, Some(&made)), &made)?;
        written = written.max(made.end_block);
        // The first guess is far too large.
        if !external || slack < 6 && placed.base_block == guess {
            let blocks = made.end_block..written;
            means.clear(&parts, blocks)?;
            *plan = placed;
            return Ok(made);
        }
        let (end, took) = (placed.end_block, placed.end_block - begin);
        guess = aligned(&parts, u64::from(end) + u64::from(took >> slack) + 1)?;
    }
    Err(Error::limit(
        "metadata",
        "compressed otherwise with each address of its bases",
    ))
}

/// Makes and writes a metabox of `size` bytes, behind the blocks that `plan` has placed.
fn make(
    parts: &Parts<'_>,
    plan: &Plan,
    size: u64,
    area: &[u8],
    means: &Means<'_>,
) -> Result<Metabox> {
    let file = means.temporary_file()?;
    write_inodes(parts, plan, area, means.threads, &|bytes, at| {
        means.write(&file, bytes, at)
    })?;
    let mut packer = means.packer(parts.options, plan.end_block)?;
    let input = means.input(&Arc::new(file), 0);
    // Under the packed inode's number: it is no file of the tree.
    packer.add_file(
        PACKED,
        size,
        input,
        &policy(parts.options),
        &FileSharing::default(),
    )?;
    let packed = packer.finish(None)?;
    Ok(Metabox {
        data: packed.packed,
        size,
        end_block: packed.end_block,
        digest: packed.digest,
    })
}

/// How metadata is packed.
fn policy(options: &Options) -> Arc<Policy> {
    Arc::new(Policy {
        spec: options.metadata_encoder(),
        tail: TailPolicy::Cluster,
        whole_max: 0,
        inline_max: 0,
        min_saving: 0,
        chunk: None,
    })
}

impl Means<'_> {
    fn failed(&self, e: std::io::Error) -> Error {
        Error::io(self.temporary.display(), "cannot write temporary data", e)
    }

    fn temporary_file(&self) -> Result<File> {
        tuff_store::anonymous(self.temporary).map_err(|e| self.failed(e))
    }

    fn write(&self, file: &File, bytes: &[u8], at: u64) -> Result<()> {
        file.write_all_at(bytes, at).map_err(|e| self.failed(e))
    }

    /// Makes blocks of the image zeros again.
    fn clear(&self, parts: &Parts<'_>, blocks: Range<u32>) -> Result<()> {
        let zeros = vec![0; parts.bits().size_usize()];
        for block in blocks {
            let at = u64::from(block) * parts.bits().size();
            let written = self.output.write_at(&zeros, at);
            written.map_err(|e| Error::io("image", "cannot write", e))?;
        }
        Ok(())
    }

    /// What a temporary file has from a position on.
    fn input(&self, file: &Arc<File>, offset: u64) -> Input {
        Input::Range {
            file: Arc::clone(file),
            name: self.temporary.display().to_string().into(),
            offset,
        }
    }

    /// A packer of metadata, for blocks from `first_block` on.
    fn packer(&self, options: &Options, first_block: u32) -> Result<Packer<'_>> {
        let pack = PackOptions {
            bits: options.block,
            grain: options.grain(),
            threads: self.threads,
            in_flight: memory_budget::eighth(options),
            spill: 0,
            temporary: self.temporary.to_owned(),
            first_block,
            packed: policy(options),
            similar: None,
            chunk: None,
            known_max: 0,
            sums: false,
            size_max: options.output.size_budget,
            continued: false,
        };
        Packer::new(pack, self.output, self.progress)
    }
}
