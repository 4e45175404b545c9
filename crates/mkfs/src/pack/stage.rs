//! The pack stage: hands the contents of all files to the packer, as the deduplication decided.

use super::files::{TreeFiles, sparse_chunks};
use super::packer::{FileSharing, Packer};
use crate::Result;
use crate::dedupe::auto::Choice;
use crate::dedupe::{Decisions, PackedFile, StoredData};
use crate::progress::Progress;
use crate::tree::InodeId;

/// Hands every file's content to the packer, in the order of the data.
pub(crate) fn pack_files(
    files: &TreeFiles<'_>,
    decisions: Decisions,
    stored: &StoredData<'_>,
    packer: &mut Packer<'_>,
    progress: &Progress,
) -> Result<()> {
    let Decisions {
        order,
        placed,
        in_place,
        mut kept,
        mut plan,
        listed,
    } = decisions;
    for inode in placed {
        progress.check()?;
        let data = stored.placed(files.tree, inode)?;
        let data = data.expect("only such files were decided to be placed");
        packer.add_base_file(inode, files.tree.size(inode), data, None)?;
    }
    let base = stored.bases;
    for (inode, data, sum) in in_place {
        packer.add_base_file(inode, files.tree.size(inode), data, sum)?;
    }
    for (number, clusters) in plan.clusters.drain() {
        packer.add_clusters(number, clusters);
    }
    progress.stage("pack");
    let mut first_listed = order.iter().position(|inode| listed.contains(inode));
    for (i, inode) in order.into_iter().enumerate() {
        if first_listed.take_if(|first| *first == i).is_some() {
            packer.start_listed()?;
        }
        let size = files.tree.size(inode);
        let choice = plan.choices.get(&inode).copied().unwrap_or_default();
        if let Some(first) = plan.duplicates.get(&inode) {
            progress.add_bytes(size);
            packer.add_same(inode, *first, size);
        } else if let (Some(base), Some((same, sum))) = (base, plan.in_base.get(&inode)) {
            let data = base.data(*same, is_stored(files, inode, choice))?;
            let data = data.expect("the plan contains only data that the base has");
            progress.add_bytes(size);
            packer.add_base_file(inode, size, data, *sum)?;
        } else if let Some(parts) = plan.stored_parts.remove(&inode)
            && let Some(content) = files.content(inode)?
        {
            progress.add_bytes(parts.shared_bytes(size, files.options.block));
            let policy = &files.policies.stored;
            packer.add_stored_parts(inode, size, content, parts, policy)?;
        } else if let Some(kept) = kept.remove(&inode) {
            let kept_tail = kept.tail.as_ref().map(|(at, _)| *at);
            packer.add_clusters(kept.number, kept.clusters);
            if let Some((_, tail)) = kept.tail {
                packer.keep_tail(inode, tail);
            }
            let sharing = FileSharing {
                plan: Some(&kept.plan),
                kept_tail,
                ..FileSharing::default()
            };
            pack_file(files, inode, Choice::Default, &sharing, packer)?;
        } else {
            // Files of the packed inode follow at the end, in the order of the plan.
            let sharing = FileSharing {
                plan: plan.plans.get(&inode),
                end: plan.tail_starts.get(&inode).copied(),
                ..FileSharing::default()
            };
            pack_file(files, inode, choice, &sharing, packer)?;
        }
    }
    pack_fragments(files, plan.packed.into_iter(), packer)?;
    for packed in plan.packed_listed {
        if let Some(content) = files.content(packed.file)? {
            packer.add_listed(packed, files.tree.size(packed.file), content);
        }
    }
    Ok(())
}

/// Hands a file's content to the packer. Returns false without doing so if the whole file goes into the packed inode.
pub(crate) fn pack_file(
    files: &TreeFiles<'_>,
    inode: InodeId,
    choice: Choice,
    sharing: &FileSharing<'_>,
    packer: &mut Packer<'_>,
) -> Result<bool> {
    let chosen = files.policies.chosen(choice);
    let policy = chosen.unwrap_or_else(|| files.policy(inode).1);
    let size = files.tree.size(inode);
    let sparse = files.sparse_runs(inode);
    if sparse.is_none() && size > 0 && policy.packs_whole(size) {
        return Ok(false);
    }
    let Some(content) = files.content(inode)? else {
        return Ok(true);
    };
    match sparse {
        Some(runs) => {
            let sparse = sparse_chunks(files.options, size, &runs);
            packer.add_sparse(inode, size, content, sparse, policy)?;
        }
        None => packer.add_file(inode, size, content, policy, sharing)?,
    }
    Ok(true)
}

/// Hands files and tails for the packed inode to the packer.
pub(crate) fn pack_fragments(
    files: &TreeFiles<'_>,
    fragments: impl Iterator<Item = PackedFile>,
    packer: &mut Packer<'_>,
) -> Result<()> {
    for packed in fragments {
        if let Some(content) = files.content(packed.file)? {
            packer.add_packed(packed, files.tree.size(packed.file), content)?;
        }
    }
    Ok(())
}

/// Returns true if a file is stored uncompressed.
fn is_stored(files: &TreeFiles<'_>, inode: InodeId, choice: Choice) -> bool {
    let chosen = files.policies.chosen(choice);
    chosen
        .unwrap_or_else(|| files.policy(inode).1)
        .spec
        .is_none()
}
