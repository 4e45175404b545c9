//! In which order file data lies, and what stands for a content.

use super::options::Options;
use super::tally::Tally;
use super::tree::{InodeId, Tree};

/// Number of the way in which a file is stored: only files with the same number can share data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyId(u32);

impl PolicyId {
    /// As the options state.
    pub(crate) const DEFAULT: Self = Self(0);
    /// With the compression that decodes faster, chosen by a sample.
    pub(crate) const FAST: Self = Self(u32::MAX - 1);
    /// Uncompressed, chosen by a sample.
    pub(crate) const STORED: Self = Self(u32::MAX - 2);
    /// In any way: the key of a content in a base.
    pub(crate) const ANY: Self = Self(u32::MAX);

    /// As the rule of this index states.
    pub(crate) fn rule(index: usize) -> Self {
        Self(index as u32 + 1)
    }

    fn to_le_bytes(self) -> [u8; 4] {
        self.0.to_le_bytes()
    }
}

/// What stands for a file's content: a digest over its length, the number of its policy, and its bytes.
pub(crate) type ContentKey = [u8; 24];

/// Files with this key have the same content and are stored the same way.
pub(crate) fn content_key(size: u64, policy: PolicyId, hasher: &mut blake3::Hasher) -> ContentKey {
    hasher
        .update(&size.to_le_bytes())
        .update(&policy.to_le_bytes());
    let mut key = [0; 24];
    key.copy_from_slice(&hasher.finalize().as_bytes()[..24]);
    key
}

/// Regular files in the order of their data: first the paths of `--order`, then the order of the tree. `absent` gets those
/// of `--order` that the tree does not have.
pub(crate) fn data_order(tree: &Tree, options: &Options, absent: &mut Tally) -> Vec<InodeId> {
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
    let mut at = super::tree::ROOT;
    for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
        let children = tree.children(at);
        let i = children.binary_search_by(|d| tree.name(d).cmp(name)).ok()?;
        at = children[i].inode;
    }
    Some(at)
}
