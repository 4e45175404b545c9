//! Data of a report as one JSON object.

use super::source::Source;
use super::tree::{self, Marks};
use crate::cmd::info;
use crate::comparison::Comparison;
use crate::text::escaped;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use tuff_erofs::diff::{Change, Difference};
use tuff_erofs::dump::{Area, NodeId, Purpose, SpaceMap, TreeUsage};
use tuff_erofs::read::FileType;
use tuff_erofs::serve::Profile;

/// Maximum number of cells in the map of an image.
const CELLS_MAX: u64 = 2048;
/// Number of files in each list of the largest.
const LARGEST: usize = 25;
/// Number of files that are named as sharing data with another.
const SHARERS: usize = 3;
/// Number of paths in the list of changes.
const CHANGES: usize = 200;

/// Images, profile and comparison that a report shows.
pub(super) struct Facts<'a> {
    pub(super) first: &'a Source,
    /// Newer image, with its differences from the first.
    pub(super) second: Option<(&'a Source, &'a Comparison)>,
    pub(super) profile: Option<&'a Profile>,
}

impl Facts<'_> {
    /// Returns the facts. The tree, map and lists are those of the newer image.
    pub(super) fn json(&self) -> Value {
        let main = self.second.map_or(self.first, |(second, _)| second);
        let mut marks = Marks::default();
        let mut out = Map::new();
        out.insert("image".into(), path(main));
        out.insert("info".into(), info_of(main));
        out.insert("savings".into(), savings(main));
        out.insert("largest".into(), largest(&main.usage));
        out.insert("sharing".into(), sharing(&main.usage));
        let maps = maps(main);
        out.insert(
            "maps".into(),
            maps.iter().map(|(n, map)| map_json(*n, map)).collect(),
        );
        if let Some(profile) = self.profile {
            let value = profile_json(profile, main, &maps, &mut marks);
            out.insert("profile".into(), value);
        }
        if let Some((second, comparison)) = self.second {
            out.insert("older_image".into(), path(self.first));
            out.insert("older_info".into(), info_of(self.first));
            out.insert("older_savings".into(), savings(self.first));
            let value = changes(&self.first.usage, &second.usage, comparison, &mut marks);
            out.insert("comparison".into(), value);
        }
        out.insert("tree".into(), tree::json(&main.usage, &marks));
        Value::Object(out)
    }
}

fn path(source: &Source) -> Value {
    use std::os::unix::ffi::OsStrExt;
    escaped(source.path.as_os_str().as_bytes()).into()
}

/// The object of `tuff info --files --json`, apart from in-place decoding, which requires reading the data.
fn info_of(source: &Source) -> Value {
    let mut out = info::superblock_json(&source.image);
    info::layout_json(&source.usage.stats, &mut out);
    Value::Object(out)
}

/// Bytes that each technique saves.
fn savings(source: &Source) -> Value {
    let stats = &source.usage.stats;
    let sum = |f: fn(&tuff_erofs::dump::AlgorithmStats) -> u64| -> u64 {
        stats.algorithms.iter().map(f).sum()
    };
    let (decoded, stored) = (sum(|a| a.decoded_bytes), sum(|a| a.stored_bytes));
    json!({
        "compression_bytes": decoded.saturating_sub(stored),
        "shared_bytes": stats.shared_saved_bytes,
        "fragment_bytes": stats.fragment_bytes.saturating_sub(stats.packed_bytes),
        "hole_bytes": stats.hole_bytes,
        "hard_link_bytes": source.usage.hard_link_bytes(),
        "packed_unused_bytes": source.usage.packed_unused_bytes,
    })
}

/// Regular files with the most stored bytes.
fn largest(usage: &TreeUsage) -> Value {
    let list = top(usage, |id| usage.sums(id).stored_bytes);
    let row = |id: NodeId| {
        let sums = usage.sums(id);
        json!({"path": shown(usage, id), "bytes": sums.bytes, "stored_bytes": sums.stored_bytes})
    };
    list.into_iter().map(row).collect()
}

/// Regular files with the most bytes at places that other files refer to as well.
fn sharing(usage: &TreeUsage) -> Value {
    let list = top(usage, |id| usage.sums(id).shared_bytes);
    let row = |id: NodeId| {
        let with = usage.sharers(id, SHARERS);
        let with: Vec<String> = with.into_iter().map(|id| shown(usage, id)).collect();
        json!({"path": shown(usage, id), "shared_bytes": usage.sums(id).shared_bytes, "with": with})
    };
    list.into_iter().map(row).collect()
}

fn top(usage: &TreeUsage, key: impl Fn(NodeId) -> u64) -> Vec<NodeId> {
    let is_file = |id: &NodeId| usage.inode(*id).file_type == FileType::File;
    let mut all: Vec<NodeId> = usage
        .all()
        .filter(|id| is_file(id) && !usage.is_hard_link(*id) && key(*id) > 0)
        .collect();
    all.sort_by_key(|id| (std::cmp::Reverse(key(*id)), *id));
    all.truncate(LARGEST);
    all
}

fn shown(usage: &TreeUsage, id: NodeId) -> String {
    format!("/{}", escaped(&usage.path(id)))
}

/// Maps of the image and its extra devices.
fn maps(source: &Source) -> Vec<(u16, SpaceMap)> {
    let tables = &source.usage.stats.space;
    let stores = tables.iter().filter_map(|table| match table.area {
        Area::Store(n) => Some(n),
        Area::Metabox => None,
    });
    let map = |n| {
        SpaceMap::collect(
            &source.image,
            &source.usage.regions,
            Area::Store(n),
            CELLS_MAX,
        )
    };
    stores.map(|n| (n, map(n))).collect()
}

/// A cell is the number of its purpose, or pairs of purpose and bytes if it has several.
fn map_json(device: u16, map: &SpaceMap) -> Value {
    let cell = |cell: &[u64; Purpose::ALL.len()]| -> Value {
        let used: Vec<(usize, u64)> = cell
            .iter()
            .copied()
            .enumerate()
            .filter(|c| c.1 > 0)
            .collect();
        match used[..] {
            [(only, _)] => only.into(),
            _ => used.iter().flat_map(|c| [c.0 as u64, c.1]).collect(),
        }
    };
    let purposes = Purpose::ALL.map(Purpose::name);
    let cells: Vec<Value> = map.cells.iter().map(cell).collect();
    json!({
        "device": device.to_string(), "bytes": map.size, "cell_bytes": map.cell_len, "purposes": purposes, "cells": cells,
    })
}

/// Parts of the image that a profile names.
fn profile_json(
    profile: &Profile,
    main: &Source,
    maps: &[(u16, SpaceMap)],
    marks: &mut Marks,
) -> Value {
    let mut files: HashMap<NodeId, u64> = HashMap::new();
    let mut missing = std::collections::HashSet::new();
    for part in &profile.uses {
        match main.usage.find(&part.path) {
            Some(id) => {
                let size = main.usage.inode(id).sums.bytes;
                let end = part.offset.saturating_add(part.len).min(size);
                let read = files.entry(id).or_default();
                *read = read.saturating_add(end.saturating_sub(part.offset));
            }
            None => _ = missing.insert(&part.path),
        }
    }
    let mut bytes = 0u64;
    for (id, used) in &files {
        // Parts may overlap.
        let used = (*used).min(main.usage.inode(*id).sums.bytes);
        bytes = bytes.saturating_add(used);
        Marks::add(&mut marks.profile, &main.usage, *id, used);
    }
    let ranges = profile.physical_ranges(&main.image).into_iter();
    let ranges = ranges.filter(|range| range.store == 0);
    let ranges: Vec<_> = ranges.map(|range| range.range).collect();
    let cells = maps
        .first()
        .map(|(_, map)| map.overlay(&ranges))
        .unwrap_or_default();
    json!({
        "uses": profile.uses.len(), "files": files.len(), "missing_files": missing.len(), "bytes": bytes,
        "stored_bytes": cells.iter().sum::<u64>(), "last_use_us": profile.uses.last().map_or(0, |u| u.when_us), "cells": cells,
    })
}

/// Path that differs between the images, with its sizes in both.
struct Changed<'a> {
    path: &'a [u8],
    change: &'static str,
    older_bytes: u64,
    bytes: u64,
}

/// True for a difference of content or type. Times, owners, modes and attributes are metadata.
fn is_content(difference: &Difference) -> bool {
    !matches!(
        difference,
        Difference::Mode(..)
            | Difference::Uid(..)
            | Difference::Gid(..)
            | Difference::Mtime(..)
            | Difference::Nlink(..)
            | Difference::LinkTo(..)
            | Difference::Xattr(..)
    )
}

/// Totals of a comparison, and its largest changes of content.
fn changes(a: &TreeUsage, b: &TreeUsage, comparison: &Comparison, marks: &mut Marks) -> Value {
    // Directories count by the files in them.
    let own = |usage: &TreeUsage, id: Option<NodeId>| {
        let file = id.filter(|id| !usage.is_dir(*id));
        file.map_or(0, |id| usage.inode(id).sums.bytes)
    };
    let mut rows = Vec::with_capacity(comparison.changes.len());
    let mut sums: HashMap<&str, u64> = HashMap::new();
    let mut metadata_only = 0u64;
    for (path, change) in &comparison.changes {
        let (change, in_a, in_b) = match change {
            Change::Added(_) => ("added", false, true),
            Change::Removed(_) => ("removed", true, false),
            Change::Changed(differences) if !differences.iter().any(is_content) => {
                metadata_only += 1;
                continue;
            }
            Change::Changed(_) => ("changed", true, true),
        };
        let after = in_b.then(|| b.find(path)).flatten();
        let row = Changed {
            path,
            change,
            older_bytes: own(a, in_a.then(|| a.find(path)).flatten()),
            bytes: own(b, after),
        };
        let weight = row.older_bytes.max(row.bytes);
        let sum = sums.entry(change).or_default();
        *sum = sum.saturating_add(weight);
        if let Some(id) = after.filter(|_| weight > 0) {
            Marks::add(&mut marks.changed, b, id, weight);
        }
        rows.push(row);
    }
    rows.sort_by_key(|row| (std::cmp::Reverse(row.older_bytes.max(row.bytes)), row.path));
    rows.truncate(CHANGES);
    let row = |row: Changed<'_>| {
        let path = format!("/{}", escaped(row.path));
        json!({"path": path, "change": row.change, "older_bytes": row.older_bytes, "bytes": row.bytes})
    };
    let rows: Vec<Value> = rows.into_iter().map(row).collect();
    let t = &comparison.totals;
    let sum = |change: &str| sums.get(change).copied().unwrap_or(0);
    json!({
        "same": t.same(), "compared": t.compared, "added": t.added, "removed": t.removed, "changed": t.changed,
        "metadata_only": metadata_only,
        "added_bytes": sum("added"), "removed_bytes": sum("removed"), "changed_bytes": sum("changed"), "changes": rows,
    })
}
