//! View of one tree: the visible rows, the cursor, the order and the selection.

use super::details::Details;
use crate::text::escaped;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use tuff_erofs::dump::{NodeId, TreeUsage};
use tuff_erofs::read::Image;

/// Order of the entries of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Stored,
    Size,
    Name,
    Ratio,
    Shared,
}

impl Order {
    /// Returns the order that the next press of the key selects.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Stored => Self::Size,
            Self::Size => Self::Ratio,
            Self::Ratio => Self::Shared,
            Self::Shared => Self::Name,
            Self::Name => Self::Stored,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Size => "size",
            Self::Name => "name",
            Self::Ratio => "ratio",
            Self::Shared => "shared",
        }
    }
}

/// Difference of a name between the images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Added,
    Removed,
    Changed,
    /// Directory with one of the above below it.
    Below,
}

/// Visible row of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) id: NodeId,
    pub(super) depth: usize,
}

/// Tree of an image with the state of its view.
pub(super) struct Pane {
    pub(super) title: String,
    pub(super) image: Arc<Image>,
    pub(super) usage: TreeUsage,
    pub(super) rows: Vec<Row>,
    pub(super) cursor: usize,
    /// First row on the screen.
    pub(super) top: usize,
    /// First cell of the names on the screen.
    pub(super) left: usize,
    pub(super) order: Order,
    pub(super) expanded: HashSet<NodeId>,
    pub(super) selected: BTreeSet<NodeId>,
    pub(super) marks: HashMap<NodeId, Mark>,
    /// Details of the node at the cursor, once they were shown.
    pub(super) details: Option<Details>,
}

impl Pane {
    /// Returns the view of an image with its root expanded.
    pub(super) fn new(title: &str, image: &Arc<Image>, usage: TreeUsage) -> Self {
        let mut pane = Self {
            title: crate::text::escaped_line(title),
            image: Arc::clone(image),
            usage,
            rows: Vec::new(),
            cursor: 0,
            top: 0,
            left: 0,
            order: Order::Stored,
            expanded: HashSet::from([NodeId::ROOT]),
            selected: BTreeSet::new(),
            marks: HashMap::new(),
            details: None,
        };
        pane.refresh(NodeId::ROOT);
        pane
    }

    /// Returns the node at the cursor.
    pub(super) fn current(&self) -> NodeId {
        self.rows
            .get(self.cursor)
            .map_or(NodeId::ROOT, |row| row.id)
    }

    /// Name of a node as one line without control characters.
    pub(super) fn name(&self, id: NodeId) -> String {
        match id {
            NodeId::ROOT => "/".to_owned(),
            id => escaped(self.usage.name(id)),
        }
    }

    /// Builds the visible rows, and puts the cursor on `id` or on the nearest visible directory above it.
    pub(super) fn refresh(&mut self, id: NodeId) {
        self.rows.clear();
        // Rows that are to be visited, the next one last.
        let mut stack = vec![Row {
            id: NodeId::ROOT,
            depth: 0,
        }];
        while let Some(row) = stack.pop() {
            self.rows.push(row);
            if self.expanded.contains(&row.id) {
                let mut entries: Vec<NodeId> = self.usage.children(row.id).collect();
                self.sort(&mut entries);
                let depth = row.depth + 1;
                stack.extend(entries.into_iter().rev().map(|id| Row { id, depth }));
            }
        }
        let mut at = Some(id);
        while let Some(id) = at {
            if let Some(row) = self.rows.iter().position(|row| row.id == id) {
                self.cursor = row;
                return;
            }
            at = self.usage.parent(id);
        }
        self.cursor = 0;
    }

    /// Sorts entries, which are in the order of their names.
    fn sort(&self, entries: &mut [NodeId]) {
        let sums = |id: &NodeId| self.usage.sums(*id);
        match self.order {
            Order::Name => {}
            Order::Stored => entries.sort_by_key(|id| Reverse(sums(id).stored_bytes)),
            Order::Size => entries.sort_by_key(|id| Reverse(sums(id).bytes)),
            Order::Shared => entries.sort_by_key(|id| Reverse(sums(id).shared_bytes)),
            Order::Ratio => entries.sort_by_key(|id| {
                let sums = sums(id);
                let ratio = u128::from(sums.stored_bytes) << 32;
                Reverse(ratio.checked_div(u128::from(sums.bytes)).unwrap_or(0))
            }),
        }
    }

    /// Moves the cursor by a number of rows.
    pub(super) fn step(&mut self, by: isize) {
        let last = self.rows.len().saturating_sub(1);
        self.cursor = self.cursor.saturating_add_signed(by).min(last);
    }

    /// Expands the directory at the cursor. Returns false for a file, and for one that is expanded.
    pub(super) fn expand(&mut self) -> bool {
        let id = self.current();
        let expands = self.usage.is_dir(id) && self.expanded.insert(id);
        if expands {
            self.refresh(id);
        }
        expands
    }

    /// Collapses the directory at the cursor, or goes to the directory above.
    pub(super) fn collapse(&mut self) {
        let id = self.current();
        if self.expanded.remove(&id) {
            self.refresh(id);
        } else if let Some(parent) = self.usage.parent(id) {
            self.refresh(parent);
        }
    }

    /// Expands the directory at the cursor, or collapses it.
    pub(super) fn toggle(&mut self) {
        if !self.expand() {
            self.collapse();
        }
    }

    /// Shows a node: expands the directories above it.
    pub(super) fn reveal(&mut self, id: NodeId) {
        let mut at = self.usage.parent(id);
        while let Some(dir) = at {
            self.expanded.insert(dir);
            at = self.usage.parent(dir);
        }
        self.refresh(id);
    }

    /// Selects the node at the cursor for extraction, or removes it from the selection.
    pub(super) fn select(&mut self) {
        let id = self.current();
        if !self.selected.remove(&id) {
            self.selected.insert(id);
        }
        self.step(1);
    }

    /// Finds the next node in tree order that `accepts` returns true for, from the cursor on and around the end.
    pub(super) fn find(&self, forward: bool, accepts: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let all: Vec<NodeId> = self.usage.all().collect();
        let at = self.current().index();
        let (before, after) = all.split_at(at);
        let after = after.get(1..).unwrap_or_default();
        let mut order: Box<dyn Iterator<Item = &NodeId>> = match forward {
            true => Box::new(after.iter().chain(before)),
            false => Box::new(before.iter().rev().chain(after.iter().rev())),
        };
        order.find(|id| accepts(**id)).copied()
    }

    /// Paths to extract: the selection without what lies below a part of it, or the node at the cursor.
    pub(super) fn paths(&self) -> Vec<Vec<u8>> {
        if self.selected.is_empty() {
            return vec![self.usage.path(self.current())];
        }
        let is_covered = |id: NodeId| {
            std::iter::successors(self.usage.parent(id), |id| self.usage.parent(*id))
                .any(|id| self.selected.contains(&id))
        };
        let whole = self.selected.iter().filter(|id| !is_covered(**id));
        whole.map(|id| self.usage.path(*id)).collect()
    }

    /// Marks a path and the directories above it.
    pub(super) fn mark(&mut self, path: &[u8], mark: Mark) {
        let Some(id) = self.usage.find(path) else {
            return;
        };
        self.marks.insert(id, mark);
        let mut at = self.usage.parent(id);
        while let Some(dir) = at {
            if self.marks.contains_key(&dir) {
                break;
            }
            self.marks.insert(dir, Mark::Below);
            at = self.usage.parent(dir);
        }
    }
}
