//! In which order file data lies, and which files have the same data.

use super::load::Loader;
use super::options::Options;
use super::tree::{InodeId, NodeKind, Tree};
use crate::{Error, Result};
use hashbrown::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// A file's content: length, policy and digest.
pub(crate) type ContentKey = (u64, u32, [u8; 32]);

/// Regular files in the order of their data: first the paths of `--order`, then the order of the tree.
pub(crate) fn data_order(tree: &Tree, options: &Options) -> Vec<InodeId> {
    let mut order = Vec::new();
    let mut seen = HashSet::new();
    let mut push = |inode: InodeId| {
        let is_file = matches!(tree.nodes[inode as usize].kind, NodeKind::File { size, .. } if size > 0);
        if is_file && seen.insert(inode) {
            order.push(inode);
        }
    };
    for path in &options.order {
        if let Some(inode) = resolve(tree, path) {
            push(inode);
        }
    }
    tree.walk(|_, _, inode| push(inode));
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

/// Digests of the files whose size another file has, too; others have no twin and are not read.
pub(crate) fn twins(
    tree: &Tree,
    order: &[InodeId],
    loader: &Loader<'_>,
    threads: usize,
) -> Result<HashMap<InodeId, ContentKey>> {
    let size_of = |inode: InodeId| match tree.nodes[inode as usize].kind {
        NodeKind::File { size, .. } => size,
        _ => 0,
    };
    let mut sizes: HashMap<u64, u32> = HashMap::new();
    for inode in order {
        *sizes.entry(size_of(*inode)).or_default() += 1;
    }
    let candidates: Vec<InodeId> = order.iter().copied().filter(|i| sizes[&size_of(*i)] > 1).collect();
    let next = AtomicUsize::new(0);
    let found: Mutex<Result<HashMap<InodeId, ContentKey>>> = Mutex::new(Ok(HashMap::with_capacity(candidates.len())));
    let work = || {
        let mut buf = vec![0; 1 << 20];
        let mut mine = Vec::new();
        let outcome = loop {
            // A few at a time: neighbours in the tree are neighbours on the disk.
            let from = next.fetch_add(16, Ordering::Relaxed);
            if from >= candidates.len() {
                break Ok(());
            }
            let run = &candidates[from..candidates.len().min(from + 16)];
            let hashed: Result<Vec<_>> =
                run.iter().map(|i| Ok((*i, digest(tree, *i, size_of(*i), loader, &mut buf)?))).collect();
            match hashed {
                Ok(hashed) => mine.extend(hashed),
                Err(e) => break Err(e),
            }
        };
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        match (outcome, found.as_mut()) {
            (Ok(()), Ok(all)) => all.extend(mine),
            (Err(e), Ok(_)) => *found = Err(e),
            (_, Err(_)) => {}
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            scope.spawn(work);
        }
        work();
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn digest(tree: &Tree, inode: InodeId, size: u64, loader: &Loader<'_>, buf: &mut [u8]) -> Result<ContentKey> {
    let (input, policy) = loader.input(tree, inode)?.ok_or_else(|| Error::usage("content that cannot be read twice"))?;
    let reader = input.open()?;
    let mut hasher = blake3::Hasher::new();
    let mut at = 0;
    while at < size {
        let n = buf.len().min(usize::try_from(size - at).unwrap_or(usize::MAX));
        reader.read_exact(&mut buf[..n], at)?;
        hasher.update(&buf[..n]);
        at += n as u64;
    }
    Ok((size, policy, *hasher.finalize().as_bytes()))
}
