//! Comparison of two snapshots by their trees. No content is read.

use crate::record::{self, RangeRef, Record};
use crate::snapshot::Snapshot;
use crate::store::Store;
use crate::tree::TreeReader;
use std::cmp::Ordering;
use std::collections::HashMap;
use tuff_erofs::diff::{Change, Difference, Totals};
use tuff_erofs::read::FileType;
use tuff_mkfs::source::Kind;
use tuff_mkfs::{Progress, Result};

/// Called with each path that differs.
type Tell<'a> = &'a mut dyn FnMut(&[u8], &Change) -> Result<()>;

impl Store {
    /// Compares two snapshots of the store. Calls `tell` with each path that differs, in the order of the trees. The position from
    /// which contents differ is that of a stored range.
    ///
    /// # Errors
    /// `Corrupt` and `Io` if a tree cannot be read, and errors of `tell`.
    pub fn diff(
        &self,
        a: &Snapshot,
        b: &Snapshot,
        progress: &Progress,
        tell: Tell<'_>,
    ) -> Result<Totals> {
        let mut totals = Totals::default();
        // Equal trees have equal lists of leaves.
        if a.tree == b.tree {
            return Ok(totals);
        }
        let (mut tree_a, mut tree_b) = (TreeReader::new(self, a), TreeReader::new(self, b));
        let mut changed = HashMap::new();
        let [mut in_a, mut in_b] = [None, None];
        loop {
            progress.check()?;
            if in_a.is_none() && in_b.is_none() {
                tree_a.skip_shared(&mut tree_b, &mut |path, record| {
                    compare(path, record, record, &mut changed, &mut totals, tell)
                })?;
            }
            for (entry, tree) in [(&mut in_a, &mut tree_a), (&mut in_b, &mut tree_b)] {
                if entry.is_none() {
                    *entry = tree.next()?;
                }
            }
            let order = match (&in_a, &in_b) {
                (None, None) => return Ok(totals),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((a, _)), Some((b, _))) => record::order(a, b),
            };
            let from_a = in_a.take_if(|_| order.is_le());
            let from_b = in_b.take_if(|_| order.is_ge());
            match (from_a, from_b) {
                (Some((path, a)), Some((_, b))) => {
                    compare(&path, &a, &b, &mut changed, &mut totals, tell)?;
                }
                (Some((path, a)), None) => {
                    totals.removed += 1;
                    tell(&path, &Change::Removed(file_type(&a.kind)))?;
                }
                (None, Some((path, b))) => {
                    totals.added += 1;
                    tell(&path, &Change::Added(file_type(&b.kind)))?;
                }
                (None, None) => {}
            }
        }
    }
}

/// Differences of files by their paths, for further names of the same files.
type ChangedFiles = HashMap<Vec<u8>, Vec<Difference>>;

/// Compares two records of one path, and tells what differs.
fn compare(
    path: &[u8],
    a: &Record,
    b: &Record,
    changed: &mut ChangedFiles,
    totals: &mut Totals,
    tell: Tell<'_>,
) -> Result<()> {
    totals.compared += 1;
    let found = differences(a, b, changed);
    if found.is_empty() {
        return Ok(());
    }
    totals.changed += 1;
    tell(path, &Change::Changed(found.clone()))?;
    if matches!(b.kind, Kind::File { .. }) {
        changed.insert(path.to_vec(), found);
    }
    Ok(())
}

/// Type of an entry. Further names of files that are no regular files are rare, and count as such.
fn file_type(kind: &Kind) -> FileType {
    match kind {
        Kind::File { .. } | Kind::Hardlink(_) => FileType::File,
        Kind::Dir => FileType::Dir,
        Kind::Symlink(_) => FileType::Symlink,
        Kind::Char(_) => FileType::Char,
        Kind::Block(_) => FileType::Block,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
    }
}

/// Differences of two records of one path. `changed` has those of files that come earlier.
fn differences(a: &Record, b: &Record, changed: &ChangedFiles) -> Vec<Difference> {
    let link = |record: &Record| match &record.kind {
        Kind::Hardlink(first) => Some(first.clone()),
        _ => None,
    };
    match (link(a), link(b)) {
        (None, None) => {}
        // Differences of a file are those of all its names.
        (Some(a), Some(b)) if a == b => return changed.get(&b).cloned().unwrap_or_default(),
        (a, b) => return vec![Difference::LinkTo(a, b)],
    }
    let types = (file_type(&a.kind), file_type(&b.kind));
    if types.0 != types.1 {
        return vec![Difference::Type(types.0, types.1)];
    }
    let mut found = Vec::new();
    let (old, new) = (&a.meta, &b.meta);
    if old.mode != new.mode {
        found.push(Difference::Mode(old.mode, new.mode));
    }
    if old.uid != new.uid {
        found.push(Difference::Uid(old.uid, new.uid));
    }
    if old.gid != new.gid {
        found.push(Difference::Gid(old.gid, new.gid));
    }
    let times = ((old.mtime, old.mtime_nsec), (new.mtime, new.mtime_nsec));
    if times.0 != times.1 {
        found.push(Difference::Mtime(times.0, times.1));
    }
    xattrs(&a.xattrs, &b.xattrs, &mut found);
    match (&a.kind, &b.kind) {
        (Kind::File { size: old }, Kind::File { size: new }) => {
            if old != new {
                found.push(Difference::Size(*old, *new));
            }
            if let Some(at) = content(&a.ranges, &b.ranges) {
                found.push(Difference::Content(at));
            }
        }
        (Kind::Symlink(old), Kind::Symlink(new)) if old != new => {
            found.push(Difference::Target(old.clone(), new.clone()));
        }
        (Kind::Char(old), Kind::Char(new)) | (Kind::Block(old), Kind::Block(new)) if old != new => {
            let number = |device: &tuff_mkfs::source::Device| (device.major, device.minor);
            found.push(Difference::Device(number(old), number(new)));
        }
        _ => {}
    }
    found
}

/// Start of the first range that differs. `None` if the content of the shorter file begins that of the other.
fn content(a: &[RangeRef], b: &[RangeRef]) -> Option<u64> {
    let mut at = 0;
    for (a, b) in a.iter().zip(b) {
        if a != b {
            return Some(at);
        }
        at += u64::from(a.len);
    }
    None
}

/// Both lists are sorted by name.
fn xattrs(a: &[(Vec<u8>, Vec<u8>)], b: &[(Vec<u8>, Vec<u8>)], found: &mut Vec<Difference>) {
    let value = |list: &[(Vec<u8>, Vec<u8>)], name: &[u8]| {
        let entry = list.iter().find(|(n, _)| n == name);
        entry.map(|(_, value)| value.clone())
    };
    let mut names: Vec<&Vec<u8>> = a.iter().chain(b).map(|(name, _)| name).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let (old, new) = (value(a, name), value(b, name));
        if old != new {
            found.push(Difference::Xattr(name.clone(), old, new));
        }
    }
}
