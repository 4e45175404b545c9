//! Order of file data, and keys of contents.

use crate::options::Options;
use crate::source::tally::AffectedPaths;
use crate::tree::{InodeId, Tree};

/// Number of a compression policy. Only files with the same policy can share data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyId(u32);

impl PolicyId {
    /// Default policy of the options.
    pub(crate) const DEFAULT: Self = Self(0);
    /// Faster decoding, chosen from a sample.
    pub(crate) const FAST: Self = Self(u32::MAX - 1);
    /// No compression, chosen from a sample.
    pub(crate) const STORED: Self = Self(u32::MAX - 2);
    /// Any policy, for the key of a content in a base.
    pub(crate) const ANY: Self = Self(u32::MAX);

    /// Policy of the rule with this index.
    pub(crate) fn rule(index: usize) -> Self {
        Self(index as u32 + 1)
    }

    fn to_le_bytes(self) -> [u8; 4] {
        self.0.to_le_bytes()
    }
}

/// Key of a file's content: a digest over its length, policy and bytes.
pub(crate) type ContentKey = [u8; 24];

/// Computes the key. Files with equal keys have the same content and are stored the same way.
pub(crate) fn content_key(size: u64, policy: PolicyId, hasher: &mut blake3::Hasher) -> ContentKey {
    hasher
        .update(&size.to_le_bytes())
        .update(&policy.to_le_bytes());
    let mut key = [0; 24];
    key.copy_from_slice(&hasher.finalize().as_bytes()[..24]);
    key
}

/// Regular files in the order of their data: first the paths of `options.order`, then the order of
/// the tree. Paths that are not in the tree are added to `absent`.
pub(crate) fn data_order(
    tree: &Tree,
    options: &Options,
    absent: &mut AffectedPaths,
) -> Vec<InodeId> {
    let mut order = Vec::new();
    let mut seen = vec![false; tree.len()];
    let mut push = |inode: InodeId| {
        if tree.size(inode) > 0 && !std::mem::replace(&mut seen[inode as usize], true) {
            order.push(inode);
        }
    };
    for path in &options.sources.order {
        match resolve(tree, path) {
            Some(inode) => push(inode),
            None => absent.add(|| path.clone()),
        }
    }
    tree.walk(|d| push(d.inode));
    order
}

/// Like [`Tree::resolve`], for a finished tree.
fn resolve(tree: &Tree, path: &[u8]) -> Option<InodeId> {
    let mut at = crate::tree::ROOT;
    for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
        at = resolve_name(tree, at, name)?;
    }
    Some(at)
}

/// Returns the inode with a name in a directory of a finished tree.
pub(crate) fn resolve_name(tree: &Tree, dir: InodeId, name: &[u8]) -> Option<InodeId> {
    let children = tree.children(dir);
    let i = children.binary_search_by(|d| tree.name(d).cmp(name)).ok()?;
    Some(children[i].inode)
}
