//! Tree of a report: directories and files that are large enough to see, and the sum of the others in each directory.

use crate::text::escaped;
use serde_json::{Map, Value};
use std::collections::{BinaryHeap, HashMap, HashSet};
use tuff_erofs::dump::{NodeId, Sums, TreeUsage};

/// Maximum number of nodes that are shown one by one.
const NODES_MAX: usize = 3000;
/// A node smaller than the tree divided by this is added to the others of its directory.
const SMALLEST: u64 = 4000;
/// Maximum depth of the tree. Deeper directories are shown without their entries.
const DEPTH_MAX: usize = 24;

/// Sizes beside those of [`Sums`], by node.
#[derive(Default)]
pub(super) struct Marks {
    /// Bytes that the profile names.
    pub(super) profile: HashMap<NodeId, u64>,
    /// Bytes of files that differ from the older image.
    pub(super) changed: HashMap<NodeId, u64>,
}

impl Marks {
    /// Adds `bytes` at a node and the directories above it.
    pub(super) fn add(to: &mut HashMap<NodeId, u64>, usage: &TreeUsage, id: NodeId, bytes: u64) {
        let mut at = Some(id);
        while let Some(id) = at {
            let sum = to.entry(id).or_default();
            *sum = sum.saturating_add(bytes);
            at = usage.parent(id);
        }
    }
}

/// Returns the tree below the root as nested JSON objects.
pub(super) fn json(usage: &TreeUsage, marks: &Marks) -> Value {
    let shown = largest(usage);
    node(usage, marks, &shown, NodeId::ROOT)
}

/// Selects the nodes that are shown: the largest ones, each with the directories above it.
fn largest(usage: &TreeUsage) -> HashSet<NodeId> {
    let weight = |id: NodeId| {
        let sums = usage.sums(id);
        (sums.stored_bytes, sums.bytes)
    };
    let (stored, bytes) = weight(NodeId::ROOT);
    let mut shown = HashSet::new();
    let mut queue = BinaryHeap::from([((stored, bytes), std::cmp::Reverse(NodeId::ROOT), 0)]);
    while let Some((_, std::cmp::Reverse(id), depth)) = queue.pop() {
        if shown.len() >= NODES_MAX {
            break;
        }
        shown.insert(id);
        if depth >= DEPTH_MAX {
            continue;
        }
        for child in usage.children(id).filter(|id| !usage.is_hard_link(*id)) {
            let weight = weight(child);
            let is_large = weight.0 > stored / SMALLEST || weight.1 > bytes / SMALLEST;
            if is_large || depth == 0 && usage.is_dir(child) {
                queue.push((weight, std::cmp::Reverse(child), depth + 1));
            }
        }
    }
    shown
}

fn node(usage: &TreeUsage, marks: &Marks, shown: &HashSet<NodeId>, id: NodeId) -> Value {
    let sums = usage.sums(id);
    let mut out = Map::new();
    out.insert("name".into(), escaped(usage.name(id)).into());
    put(&mut out, &sums);
    for (key, of) in [
        ("profile_bytes", &marks.profile),
        ("changed_bytes", &marks.changed),
    ] {
        if let Some(bytes) = of.get(&id).filter(|bytes| **bytes > 0) {
            out.insert(key.into(), (*bytes).into());
        }
    }
    if !usage.is_dir(id) {
        out.insert("type".into(), usage.inode(id).file_type.name().into());
        return Value::Object(out);
    }
    let mut rest = sums;
    subtract(&mut rest, &usage.inode(id).sums);
    let (mut children, mut others) = (Vec::new(), 0u64);
    for child in usage.children(id) {
        if shown.contains(&child) {
            subtract(&mut rest, &usage.sums(child));
            children.push(child);
        } else {
            others += 1;
        }
    }
    children.sort_by_key(|id| {
        let sums = usage.sums(*id);
        std::cmp::Reverse((sums.stored_bytes, sums.bytes))
    });
    let mut list: Vec<Value> = children
        .into_iter()
        .map(|child| node(usage, marks, shown, child))
        .collect();
    if others > 0 {
        let mut one = Map::new();
        one.insert("others".into(), others.into());
        put(&mut one, &rest);
        list.push(Value::Object(one));
    }
    out.insert("children".into(), list.into());
    Value::Object(out)
}

fn put(out: &mut Map<String, Value>, sums: &Sums) {
    for (key, value) in [
        ("inodes", sums.inodes),
        ("bytes", sums.bytes),
        ("stored_bytes", sums.stored_bytes),
        ("shared_bytes", sums.shared_bytes),
        ("fragment_bytes", sums.fragment_bytes),
        ("hole_bytes", sums.hole_bytes),
    ] {
        if value > 0 {
            out.insert(key.into(), value.into());
        }
    }
}

fn subtract(from: &mut Sums, part: &Sums) {
    for (all, part) in [
        (&mut from.inodes, part.inodes),
        (&mut from.bytes, part.bytes),
        (&mut from.stored_bytes, part.stored_bytes),
        (&mut from.shared_bytes, part.shared_bytes),
        (&mut from.fragment_bytes, part.fragment_bytes),
        (&mut from.hole_bytes, part.hole_bytes),
    ] {
        *all = all.saturating_sub(part);
    }
}
