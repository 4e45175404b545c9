//! Encoding of directories into blocks.

use crate::Result;
use crate::layout::{Parts, Plan, dir_names};
use crate::tree::InodeId;
use tuff_format::dirent::{self, DirectorySize, Dirent};

/// Calls `each` with the bytes of each directory block, and true if another block follows.
pub(super) fn dir_blocks(
    parts: &Parts<'_>,
    plan: &Plan,
    dir: InodeId,
    each: &mut dyn FnMut(&[u8], bool) -> Result<()>,
) -> Result<()> {
    let bits = parts.options.block;
    let mut names: Vec<(&[u8], InodeId)> = Vec::new();
    let mut fill = DirectorySize::new(bits.size_usize());
    let mut result = Ok(());
    let mut out = Vec::with_capacity(bits.size_usize());
    let mut write = |names: &mut Vec<(&[u8], InodeId)>, more: bool| -> Result<()> {
        out.clear();
        let entries: Vec<Dirent<'_>> = names
            .iter()
            .map(|(name, inode)| Dirent {
                nid: plan.nid(*inode, bits),
                file_type: parts.tree.file_type(*inode).dirent_code(),
                name,
            })
            .collect();
        dirent::encode(&entries, &mut out);
        names.clear();
        each(&out, more)
    };
    dir_names(parts.tree, dir, &mut |name, inode| {
        if fill.add(name.len()) && !names.is_empty() && result.is_ok() {
            result = write(&mut names, true);
        }
        names.push((name, inode));
    });
    result?;
    write(&mut names, false)
}
