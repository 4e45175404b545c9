//! Fingerprints: an extended attribute with the content digest of each file. From version 7.0 on,
//! kernels share the page cache of files with equal fingerprints across mounts (`-o
//! inode_share,domain_id=`).
//!
//! The value is `sha256:` and the 32 bytes of the digest, as written by mkfs.erofs. All images that
//! share must use the same form.

use crate::Result;
use crate::environment::{Environment, parallel};
use crate::pack::contents::Contents;
use crate::tree::{InodeId, Tree};
use hashbrown::HashMap;
use tuff_erofs::fingerprint::{PREFIX, digest_of};
use tuff_erofs::read::FileType;

/// Sets the attribute `name` of every file that is not empty.
pub(crate) fn set_fingerprints(
    tree: &mut Tree,
    name: &[u8],
    contents: &Contents,
    environment: &Environment<'_>,
) -> Result<()> {
    let progress = environment.progress;
    progress.stage("fingerprints");
    let files: Vec<InodeId> = tree
        .inode_order()
        .into_iter()
        .filter(|inode| tree.file_type(*inode) == FileType::File && tree.size(*inode) > 0)
        .collect();
    progress.set_total(files.iter().map(|inode| tree.size(*inode)).sum());
    let shared = &*tree;
    let digest = |i: usize, (): &mut (), digests: &mut Vec<_>| {
        let content = contents.readable(shared, files[i])?;
        let reader = content.open()?;
        let digest = digest_of(shared.size(files[i]), |buf, offset| {
            progress.check()?;
            reader.read_exact(buf, offset)?;
            progress.add_bytes(buf.len() as u64);
            Ok(())
        })?;
        digests.push((files[i], digest));
        Ok(())
    };
    let digests = parallel(files.len(), environment.threads, progress, &digest)?;
    let digests: HashMap<InodeId, [u8; 32]> = digests.into_iter().flatten().collect();
    tree.describe_all(|inode, _, _, _, xattrs| {
        if let Some(digest) = digests.get(&inode) {
            xattrs.retain(|(known, _)| known != name);
            xattrs.push((name.to_vec(), [PREFIX, digest].concat()));
        }
    })
}
