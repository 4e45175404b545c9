//! Compressed metadata: directories in the packed inode, inodes and attributes as data of the metabox inode.
//!
//! ```text
//! plan ──► bytes in an unnamed file ──► packer ──► clusters after everything placed so far
//! ```

use crate::dedupe::{Cuts, PackedFile};
use crate::emit::{emit_blocks, write_inodes};
use crate::environment::Environment;
use crate::layout::{LayoutInput, Metabox, Parts, Plan, aligned};
use crate::options::Options;
use crate::pack::content::FileContent;
use crate::pack::memory_budget;
use crate::pack::piece::TailPolicy;
use crate::pack::worker::Policy;
use crate::pack::{FileSharing, PackOptions, Packed, Packer};
use crate::source::file::SourceFile;
use crate::tree::PACKED;
use crate::{Error, Place, Result};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Packs the directories that belong into the packed inode, after its other data. `None` if there are none.
pub(crate) fn pack_directories(
    parts: &Parts<'_>,
    plan: &Plan,
    environment: &Environment<'_>,
) -> Result<Option<Packed>> {
    if plan.packed_dirs.is_empty() {
        return Ok(None);
    }
    let file = environment.temporary_file()?;
    let mut packer = environment.packer(parts.options, parts.packed.end_block)?;
    let (mut len, mut names) = (0, Vec::new());
    for (dir, _) in &plan.packed_dirs {
        names.clear();
        emit_blocks(parts, plan, *dir, &mut names)?;
        environment.write(&file, &names, len)?;
        len += names.len() as u64;
    }
    // The packed inode stands for all directories: the position of each was planned.
    packer.add_packed(PackedFile::whole(PACKED), len, environment.content(file))?;
    packer.finish(None).map(Some)
}

/// Places whole blocks, a metabox of `size` bytes and what follows it, and writes the metabox.
///
/// Inodes in the metabox contain the first block of the bases. The bases follow the image, and the length of the image
/// depends on the compressed size of these inodes. So the metabox is written with an estimate of the first block, and
/// again with a larger one, until the image ends before it. The rest is padding.
pub(crate) fn place(
    input: &LayoutInput<'_>,
    packed: &Packed,
    plan: &mut Plan,
    size: u64,
    environment: &Environment<'_>,
) -> Result<Metabox> {
    let parts = input.with(packed, None);
    plan.place_blocks(&parts)?;
    let begin = plan.end_block;
    let external = parts.base.is_some_and(|base| !base.in_image());
    let (mut guess, mut written) = (0, begin);
    if external {
        guess = aligned(&parts, u64::from(begin) + parts.bits().count(size))?;
    }
    // Margin over the compressed size, as negative powers of two. Other addresses change the size little.
    for slack in [6, 5, 4, 3, 2, 1] {
        let mut placed = plan.clone();
        placed.base_block = guess;
        let made = make(&parts, &placed, size, environment)?;
        placed.place_metabox(&input.with(packed, Some(&made)), &made)?;
        written = written.max(made.end_block);
        // The first estimate is far too large.
        if !external || slack < 6 && placed.base_block == guess {
            let blocks = made.end_block..written;
            environment.clear(&parts, blocks)?;
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

/// Compresses and writes a metabox of `size` bytes after the blocks that `plan` has placed.
fn make(
    parts: &Parts<'_>,
    plan: &Plan,
    size: u64,
    environment: &Environment<'_>,
) -> Result<Metabox> {
    let file = environment.temporary_file()?;
    write_inodes(parts, plan, environment, &|bytes, at| {
        environment.write(&file, bytes, at)
    })?;
    let mut packer = environment.packer(parts.options, plan.end_block)?;
    let content = environment.content(file);
    // The packed inode stands for it: the metabox is no file of the tree.
    packer.add_file(
        PACKED,
        size,
        content,
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

/// Returns the policy that metadata is packed with.
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

impl Environment<'_> {
    fn failed(&self, e: std::io::Error) -> Error {
        Error::io(self.temporary.display(), "cannot write temporary data", e)
    }

    fn temporary_file(&self) -> Result<File> {
        tuff_store::anonymous(&self.temporary).map_err(|e| self.failed(e))
    }

    fn write(&self, file: &File, bytes: &[u8], at: u64) -> Result<()> {
        file.write_all_at(bytes, at).map_err(|e| self.failed(e))
    }

    /// Overwrites blocks of the image with zeros.
    fn clear(&self, parts: &Parts<'_>, blocks: Range<u32>) -> Result<()> {
        let zeros = vec![0; parts.bits().size_usize()];
        for block in blocks {
            let at = u64::from(block) * parts.bits().size();
            let written = self.targets.image.write_at(&zeros, at);
            written.map_err(|e| Error::io(Place::image(), "cannot write", e))?;
        }
        Ok(())
    }

    /// Returns the content of a temporary file.
    fn content(&self, file: File) -> FileContent {
        let name = self.temporary.display().to_string();
        FileContent::Range {
            file: Arc::new(SourceFile::new(file, name)),
            offset: 0,
        }
    }

    /// Returns a packer of metadata whose blocks start at `first_block`.
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
            cuts: Cuts::of_stream(options.layout.fragment_cut, options.layout.fragment_cluster),
            chunk: None,
            keeps_collisions: false,
            known_max: 0,
            sums: false,
            size_max: options.output.size_budget,
            continued: false,
        };
        Packer::new(pack, self.targets.image, self.progress)
    }
}
