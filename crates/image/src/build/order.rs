//! In which order file data lies, and which files have the same data.

use super::load::Loader;
use super::options::Options;
use super::pack::SEGMENT_MIN;
use super::tree::{InodeId, Tree};
use crate::{Error, Result};
use hashbrown::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// What stands for a file's content: a digest over its length, the number of its policy, and its bytes.
pub(crate) type ContentKey = [u8; 24];

/// Files with this key have the same content and are stored the same way.
pub(crate) fn content_key(size: u64, policy: u32, hasher: &mut blake3::Hasher) -> ContentKey {
    hasher
        .update(&size.to_le_bytes())
        .update(&policy.to_le_bytes());
    let mut key = [0; 24];
    key.copy_from_slice(&hasher.finalize().as_bytes()[..24]);
    key
}

/// Regular files in the order of their data: first the paths of `--order`, then the order of the tree.
pub(crate) fn data_order(tree: &Tree, options: &Options) -> Vec<InodeId> {
    let mut order = Vec::new();
    let mut seen = vec![false; tree.len()];
    let mut push = |inode: InodeId| {
        if tree.size(inode) > 0 && !std::mem::replace(&mut seen[inode as usize], true) {
            order.push(inode);
        }
    };
    for path in &options.order {
        if let Some(inode) = resolve(tree, path) {
            push(inode);
        }
    }
    tree.walk(|d| push(d.inode));
    order
}

/// Like [`Tree::resolve`], for a finished tree.
fn resolve(tree: &Tree, path: &[u8]) -> Option<InodeId> {
    let mut at = super::tree::ROOT;
    for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
        let children = tree.children(at);
        let i = children.binary_search_by(|d| tree.name(d).cmp(name)).ok()?;
        at = children[i].inode;
    }
    Some(at)
}

/// Files with the content of an earlier one, and which that is, among large ones and those for the packed inode. Only those
/// whose size another file has, too, are read; all others are compared while they are packed.
pub(crate) fn twins(
    tree: &Tree,
    order: &[InodeId],
    sizes: &HashMap<u64, u32>,
    loader: &Loader<'_>,
    threads: usize,
) -> Result<HashMap<InodeId, InodeId>> {
    let size_of = |inode: InodeId| tree.size(inode);
    let candidates: Vec<InodeId> = order
        .iter()
        .copied()
        .filter(|i| {
            let size = size_of(*i);
            sizes[&size] > 1
                && (size > SEGMENT_MIN || loader.packs_whole(tree, *i, size))
                && !loader.is_sparse(tree, *i)
        })
        .collect();
    let next = AtomicUsize::new(0);
    // Digest, and position among the candidates: sorted, the first of equal files comes first.
    let found: Mutex<Result<Vec<(ContentKey, u32)>>> =
        Mutex::new(Ok(Vec::with_capacity(candidates.len())));
    let work = || {
        let mut buf = vec![0; 1 << 20];
        let mut mine = Vec::new();
        loop {
            let from = next.fetch_add(1, Ordering::Relaxed);
            let run = candidates
                .get(from..candidates.len().min(from + 1))
                .unwrap_or(&[]);
            let hashed = run.iter().enumerate().try_for_each(|(i, inode)| {
                // Fits: inodes are counted in 32 bits.
                mine.push((
                    digest(tree, *inode, size_of(*inode), loader, &mut buf)?,
                    (from + i) as u32,
                ));
                Ok(())
            });
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            match (hashed, found.as_mut()) {
                (Ok(()), Ok(all)) => all.append(&mut mine),
                (Err(e), Ok(_)) => *found = Err(e),
                (_, Err(_)) => {}
            }
            if run.is_empty() || found.is_err() {
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            scope.spawn(work);
        }
        work();
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner)?;
    found.sort_unstable();
    let twins = found.chunk_by(|a, b| a.0 == b.0).flat_map(|same| {
        let first = candidates[same[0].1 as usize];
        same[1..].iter().map(move |(_, i)| (*i, first))
    });
    Ok(twins
        .map(|(i, first)| (candidates[i as usize], first))
        .collect())
}

fn digest(
    tree: &Tree,
    inode: InodeId,
    size: u64,
    loader: &Loader<'_>,
    buf: &mut [u8],
) -> Result<ContentKey> {
    let (input, policy) = loader
        .input(tree, inode)?
        .ok_or_else(|| Error::usage("content that cannot be read twice"))?;
    let reader = input.open()?;
    let mut hasher = blake3::Hasher::new();
    let mut at = 0;
    while at < size {
        let n = buf
            .len()
            .min(usize::try_from(size - at).unwrap_or(usize::MAX));
        reader.read_exact(&mut buf[..n], at)?;
        hasher.update(&buf[..n]);
        at += n as u64;
    }
    Ok(content_key(size, policy, &mut hasher))
}
