//! Fingerprints: an extended attribute with the content digest of each file. From version 7.0 on,
//! kernels share the page cache of files with equal fingerprints across mounts (`-o
//! inode_share,domain_id=`).
//!
//! The value is `sha256:` and the 32 bytes of the digest, as written by mkfs.erofs. All images that
//! share must use the same form.

use crate::dedupe::readable;
use crate::load::Loader;
use crate::progress::Progress;
use crate::tree::{InodeId, Tree};
use crate::{Error, Result};
use hashbrown::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use tuff_erofs::fingerprint::{PREFIX, digest_of};
use tuff_erofs::read::FileType;
use tuff_erofs::threads;

/// Sets the attribute `name` of every file that is not empty, with `threads` readers.
pub(crate) fn set_fingerprints(
    tree: &mut Tree,
    name: &[u8],
    loader: &Loader<'_>,
    threads: usize,
    progress: &Progress,
) -> Result<()> {
    progress.stage("fingerprints");
    let files: Vec<InodeId> = tree
        .inode_order()
        .into_iter()
        .filter(|inode| tree.file_type(*inode) == FileType::File && tree.size(*inode) > 0)
        .collect();
    progress.set_total(files.iter().map(|inode| tree.size(*inode)).sum());
    let found = Mutex::new((HashMap::with_capacity(files.len()), Ok(())));
    let next = AtomicUsize::new(0);
    let whole = &*tree;
    let work = || {
        while let Some(inode) = files.get(next.fetch_add(1, Relaxed)) {
            let read = digest(whole, *inode, loader, progress);
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            match read {
                Ok(digest) => _ = found.0.insert(*inode, digest),
                Err(e) => {
                    // Report the error of the first file in the order, independent of timing.
                    let at = |(at, _): &(InodeId, Error)| *at;
                    let earlier = found.1.as_ref().err().map(at);
                    if earlier.is_none_or(|earlier| *inode < earlier) {
                        found.1 = Err((*inode, e));
                    }
                    next.store(files.len(), Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        threads::start(scope, "fingerprint", threads.saturating_sub(1), work);
        work();
    });
    let (digests, failed) = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.map_err(|(_, e): (InodeId, Error)| e)?;
    tree.describe_all(|inode, _, _, _, xattrs| {
        if let Some(digest) = digests.get(&inode) {
            xattrs.retain(|(known, _)| known != name);
            xattrs.push((name.to_vec(), [PREFIX, digest].concat()));
        }
    })
}

fn digest(
    tree: &Tree,
    inode: InodeId,
    loader: &Loader<'_>,
    progress: &Progress,
) -> Result<[u8; 32]> {
    let content = readable(loader.file_content(tree, inode)?)?;
    let reader = content.open()?;
    digest_of(tree.size(inode), |buf, offset| {
        progress.check()?;
        reader.read_exact(buf, offset)?;
        progress.add_bytes(buf.len() as u64);
        Ok(())
    })
}
