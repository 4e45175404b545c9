//! The pack stage of a tar index: files refer to their data in the tar.

use super::contents::ContentProvider;
use super::files::TreeFiles;
use super::packer::{FileSharing, Packer};
use super::sparse::Sparse;
use super::stage::pack_file;
use crate::dedupe::auto::Choice;
use crate::source::Content;
use crate::source::error::{Quoted, SourceError};
use crate::tree::InodeId;
use crate::{Error, Result};
use tuff_format::inode::FileType;

/// Sets the position in the tar for every file. Files that cannot refer to the tar are packed.
pub(crate) fn refer_to_tar(files: &TreeFiles<'_>, packer: &mut Packer<'_>) -> Result<()> {
    let mut copied = Vec::new();
    let order = files.tree.inode_order();
    files.check_expansion(&order)?;
    for inode in order {
        let size = files.tree.size(inode);
        if files.tree.file_type(inode) != FileType::File || size == 0 {
            continue;
        }
        match files.tree.content(inode).parts() {
            (Content::Range { offset }, None) => {
                let block = tar_block(files, inode, *offset, size, packer)?;
                packer.add_external(inode, size, block);
            }
            (_, Some(runs)) => {
                let stored: u64 = runs.iter().map(|r| r.len).sum();
                let first = runs.first().map_or(0, |r| r.source_offset);
                match Sparse::exact(size, runs, files.options.block) {
                    Some(sparse) => {
                        let block = tar_block(files, inode, first, stored, packer)?;
                        packer.add_external_sparse(inode, size, size - stored, sparse, block);
                    }
                    None => copied.push((first, inode)),
                }
            }
            _ => {}
        }
    }
    // Those of a stream were packed while it was read.
    if let Some(ContentProvider::Archive { file: Some(_), .. }) = files.contents.layers.last() {
        // In the order of the stream.
        copied.sort_unstable();
        let sharing = FileSharing::default();
        for (_, inode) in copied {
            pack_file(files, inode, Choice::Default, &sharing, packer)?;
        }
    }
    Ok(())
}

/// Returns the first block of a file's data in the tar. Fails if a block is missing: the kernel reads nothing after the
/// last whole block.
fn tar_block(
    files: &TreeFiles<'_>,
    inode: InodeId,
    offset: u64,
    len: u64,
    packer: &Packer<'_>,
) -> Result<u32> {
    let bits = files.options.block;
    let (first, end) = (offset >> bits.get(), bits.count(offset + len));
    debug_assert!(offset.is_multiple_of(bits.size()), "data follows a header");
    if end > packer.external() {
        let path = files.tree.path(inode);
        return Err(Error::from(SourceError::unsupported(format!(
            "{}: the tar ends inside the last block of its data; append zeros up to a multiple of {} bytes to index it",
            Quoted(&path),
            bits.size()
        ))));
    }
    // Fits: a tar has less than 2^31 blocks.
    Ok(first as u32)
}
