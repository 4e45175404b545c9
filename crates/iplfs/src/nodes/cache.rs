//! Cache of nodes in memory.

use crate::disk::address::Nid;
use crate::disk::node::NodeBody;
use foldhash::fast::RandomState;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Index;

/// Node with its owner and position.
pub(crate) struct Node {
    pub(crate) ino: Nid,
    pub(crate) ordinal: u32,
    pub(crate) body: NodeBody,
}

/// Cache of nodes by number. Dirty nodes stay until they are written.
#[derive(Default)]
pub(crate) struct NodeCache {
    nodes: HashMap<Nid, Node, RandomState>,
    /// Dirty nodes, by the inode that owns them.
    dirty: BTreeMap<Nid, BTreeSet<Nid>>,
    dirty_count: u64,
}

impl NodeCache {
    pub(crate) fn contains(&self, nid: Nid) -> bool {
        self.nodes.contains_key(&nid)
    }

    pub(crate) fn get(&self, nid: Nid) -> Option<&Node> {
        self.nodes.get(&nid)
    }

    pub(crate) fn get_mut(&mut self, nid: Nid) -> Option<&mut Node> {
        self.nodes.get_mut(&nid)
    }

    pub(crate) fn insert(&mut self, nid: Nid, node: Node) {
        self.nodes.insert(nid, node);
    }

    pub(crate) fn remove(&mut self, nid: Nid) {
        self.nodes.remove(&nid);
    }

    pub(crate) fn mark_dirty(&mut self, ino: Nid, nid: Nid) {
        if self.dirty.entry(ino).or_default().insert(nid) {
            self.dirty_count += 1;
        }
    }

    pub(crate) fn mark_clean(&mut self, ino: Nid, nid: Nid) {
        if let Some(nids) = self.dirty.get_mut(&ino) {
            if nids.remove(&nid) {
                self.dirty_count -= 1;
            }
            if nids.is_empty() {
                self.dirty.remove(&ino);
            }
        }
    }

    pub(crate) fn is_dirty(&self, ino: Nid, nid: Nid) -> bool {
        self.dirty.get(&ino).is_some_and(|nids| nids.contains(&nid))
    }

    /// Number of dirty nodes.
    pub(crate) fn dirty_count(&self) -> u64 {
        self.dirty_count
    }

    /// Returns all dirty nodes, those of one inode together.
    pub(crate) fn dirty(&self) -> Vec<Nid> {
        self.dirty.values().flatten().copied().collect()
    }

    /// Dirty nodes of an inode, ascending.
    pub(crate) fn dirty_of(&self, ino: Nid) -> impl Iterator<Item = Nid> {
        self.dirty.get(&ino).into_iter().flatten().copied()
    }

    /// Returns whether an inode has dirty nodes.
    pub(crate) fn has_dirty(&self, ino: Nid) -> bool {
        self.dirty.contains_key(&ino)
    }

    /// Drops all clean nodes if more than `max` nodes are cached.
    pub(crate) fn shrink(&mut self, max: usize) {
        if self.nodes.len() > max {
            let dirty = &self.dirty;
            self.nodes
                .retain(|nid, node| dirty.get(&node.ino).is_some_and(|nids| nids.contains(nid)));
        }
    }
}

impl Index<Nid> for NodeCache {
    type Output = Node;

    /// Returns a node that is cached.
    fn index(&self, nid: Nid) -> &Node {
        &self.nodes[&nid]
    }
}
