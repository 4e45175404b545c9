//! The judge: what a snapshot shows, compared with a walk of its source, and what snapshots need of a store, by an own count.

use crate::cluster::BLOCK;
use crate::digest::Digest;
use crate::read::RangeReader;
use crate::record::{Record as TreeRecord, are_alone};
use crate::segment::Directory;
use crate::store::Store;
use crate::{Depth, Snapshot};
use rustix::fs::{SeekFrom, seek};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, File};
use std::path::Path;
use std::slice::from_ref;
use std::sync::Arc;
use tuff_mkfs::{Progress, Result};
use tuff_testkit::tree::{Ignore, Record, diff, from_source, host_tree, try_image_tree};

/// Tree of a source as a walk of the host finds it.
pub(super) fn walk(source: &Path) -> Vec<Record> {
    host_tree(source)
}

/// Expected content of a snapshot.
pub(super) struct Saved {
    pub(super) tree: Vec<Record>,
    /// The tree after a change that came while it was read.
    pub(super) later: Option<Vec<Record>>,
    /// Lines about files that were left out.
    pub(super) left_out: Vec<String>,
}

impl Saved {
    /// Paths that are shown otherwise, each with the difference.
    pub(super) fn differences(&self, shown: &[Record]) -> BTreeMap<Vec<u8>, String> {
        let by_path = |tree: &[Record]| -> BTreeMap<Vec<u8>, Record> {
            let all = tree.iter().cloned();
            all.map(|record| (record.path.clone(), record)).collect()
        };
        let ignore = from_source(&self.tree);
        let first = by_path(&self.tree);
        let later = self.later.as_ref().map(|tree| by_path(tree));
        let shown = by_path(shown);
        let mut found = BTreeMap::new();
        for (path, expected) in &first {
            let other = later.as_ref().and_then(|later| later.get(path));
            let Some(shown) = shown.get(path) else {
                let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
                let name = in_line(name);
                let is_named = self.left_out.iter().any(|line| line.contains(&name));
                if !(later.is_some() && is_named) {
                    found.insert(path.clone(), "is missing".to_owned());
                }
                continue;
            };
            let one = |record: &Record, ignore| diff(from_ref(record), from_ref(shown), ignore);
            let lines = one(expected, ignore);
            // The attributes are those of the file that was found first, also where another one has taken its name.
            let of_later = Ignore {
                xattrs: true,
                ..ignore
            };
            let is_later = other.is_some_and(|other| one(other, of_later).is_empty());
            if !lines.is_empty() && !is_later {
                found.insert(path.clone(), lines.join(", "));
            }
        }
        for path in shown.keys() {
            let is_later = later.as_ref().is_some_and(|tree| tree.contains_key(path));
            if !first.contains_key(path) && !is_later {
                found.insert(path.clone(), "is in no source".to_owned());
            }
        }
        found
    }
}

/// Tree of a snapshot below its source, read from its image.
pub(super) fn shown(
    store: &Path,
    snapshot: &Snapshot,
    source: &Path,
    image: &Path,
) -> Result<Vec<Record>> {
    let store = Arc::new(Store::open(store)?);
    let image = store.image(snapshot, image, &Progress::default())?;
    let tree = try_image_tree(&image.open()?)?;
    let source = fs::canonicalize(source).unwrap();
    let prefix = source.as_os_str().as_encoded_bytes()[1..].to_vec();
    let below = |path: &[u8]| {
        let rest = path.strip_prefix(&prefix[..])?;
        match rest {
            [] => Some(Vec::new()),
            [b'/', rest @ ..] => Some(rest.to_vec()),
            _ => None,
        }
    };
    let records = tree.into_iter().filter_map(|record| {
        let path = below(&record.path)?;
        let same_as = below(&record.same_as).unwrap_or(record.same_as);
        Some(Record {
            path,
            same_as,
            ..record
        })
    });
    Ok(records.collect())
}

/// Findings of a check of everything.
pub(super) fn findings(store: &Path) -> Vec<String> {
    let store = Store::open(store).unwrap();
    let checked = store.check(Depth::Data, 2, &Progress::default()).unwrap();
    checked.findings
}

/// Start of a name as it is in a line. Ends of long ones are not in it.
fn in_line(name: &[u8]) -> String {
    let name = tuff_erofs::walk::shown(name).to_string();
    name.trim_matches('"').chars().take(30).collect()
}

/// True if findings say that a path of a snapshot, or all of it, is lost.
pub(super) fn is_named(findings: &[String], number: u32, path: Option<&[u8]>) -> bool {
    let file = format!("{number:08}.json");
    let whole = [
        format!("the tree of snapshot {number}:"),
        format!("snapshot {number}: "),
    ];
    let name = path.map(|path| {
        let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
        in_line(name)
    });
    findings.iter().any(|what| {
        what.contains(&file)
            || what.contains(&whole[0])
            || (path.is_none() && what.contains(&whole[1]))
            || name
                .as_ref()
                .is_some_and(|name| what.starts_with("snapshot ") && what.contains(name))
    })
}

/// Blocks of a pack that are no holes.
fn allocated(path: &Path) -> BTreeSet<u32> {
    let file = File::open(path).unwrap();
    let len = file.metadata().unwrap().len();
    let (mut blocks, mut at) = (BTreeSet::new(), 0);
    while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
        let end = seek(&file, SeekFrom::Hole(start)).unwrap_or(len);
        let end_block = end.div_ceil(BLOCK as u64) as u32;
        blocks.extend((start / BLOCK as u64) as u32..end_block);
        at = end;
    }
    blocks
}

/// Range in a directory: segment, number among its ranges, and the number of its member.
type Place = (u32, usize, Option<usize>);

/// Ranges that snapshots name in the directories of a store.
struct Needs {
    directories: BTreeMap<u32, Directory>,
    own: HashMap<Digest, Place>,
    members: HashMap<Digest, Place>,
    named: HashSet<Place>,
}

impl Needs {
    fn read(store: &Path) -> Self {
        let open = Store::open(store).unwrap();
        let mut needs = Self {
            directories: BTreeMap::new(),
            own: HashMap::new(),
            members: HashMap::new(),
            named: HashSet::new(),
        };
        for entry in fs::read_dir(store.join("segments")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "dir") {
                let directory = Directory::decode(&fs::read(&path).unwrap(), &open.id).unwrap();
                needs.directories.insert(directory.number, directory);
            }
        }
        // The first segment with a range is the one in use.
        for (number, directory) in &needs.directories {
            for (i, range) in directory.ranges.iter().enumerate() {
                let place = (*number, i, None);
                needs.own.entry(range.digest).or_insert(place);
            }
            for (i, member) in directory.members.iter().enumerate() {
                let place = (*number, member.group as usize, Some(i));
                needs.members.entry(member.digest).or_insert(place);
            }
        }
        for entry in fs::read_dir(store.join("snapshots")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|end| end != "json") {
                continue;
            }
            let text = fs::read(path).unwrap();
            let manifest: serde_json::Value = serde_json::from_slice(&text).unwrap();
            let mut bytes = Vec::new();
            let mut reader = RangeReader::default();
            for list in manifest["snapshot"]["tree"].as_array().unwrap() {
                let list = Digest::from_hex(list.as_str().unwrap()).unwrap();
                needs.name(list, false);
                for leaf in open.read(&mut reader, list, false).unwrap().chunks(32) {
                    let leaf = Digest(leaf.try_into().unwrap());
                    needs.name(leaf, false);
                    bytes.extend(open.read(&mut reader, leaf, false).unwrap());
                }
            }
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let record = TreeRecord::decode(&mut rest).unwrap();
                for (range, alone) in are_alone(&record.ranges) {
                    needs.name(range.digest, alone);
                }
            }
        }
        needs
    }

    fn name(&mut self, digest: Digest, alone: bool) {
        let member = self.members.get(&digest).filter(|_| !alone);
        let place = member.or_else(|| self.own.get(&digest));
        self.named
            .insert(*place.expect("a range of a snapshot is in a directory"));
    }
}

/// Says what a store has that no snapshot names, beyond the bound: 5 % of each segment, and 1 MiB of groups that are less than half
/// in use.
pub(super) fn waste(store: &Path) -> Vec<String> {
    let needs = Needs::read(store);
    let mut found = Vec::new();
    let mut packs: BTreeMap<u16, BTreeSet<u32>> = BTreeMap::new();
    let mut objects = BTreeSet::new();
    for dir in ["packs", "segments", "snapshots", "seen", "pins"] {
        for entry in fs::read_dir(store.join(dir)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if let Some(number) = name.strip_suffix(".pack") {
                packs.insert(number.parse().unwrap(), allocated(&path));
            }
            objects.insert(format!("{dir}/{name}"));
        }
    }
    for object in &objects {
        let (dir, name) = object.split_once('/').unwrap();
        let (number, end) = name.split_once('.').unwrap_or((name, ""));
        let has = |name: String| objects.contains(&name);
        let is_right = match (dir, end) {
            ("packs", "pack") => true,
            ("segments", "dir") => has(format!("segments/{number}.tree")),
            ("segments", "tree") => has(format!("segments/{number}.dir")),
            ("snapshots", "json") => true,
            ("snapshots", "confirmed") | ("seen", "") => has(format!("snapshots/{number}.json")),
            _ => false,
        };
        if !is_right {
            found.push(format!("{object} is of no snapshot"));
        }
    }
    let mut sparse = 0;
    for (number, directory) in &needs.directories {
        let blocks = packs.get_mut(&directory.pack).unwrap();
        let in_use = |range: usize| {
            let of = needs.named.iter();
            of.filter(move |place| (place.0, place.1) == (*number, range))
        };
        let mut dead = 0;
        let mut live: BTreeSet<u32> = BTreeSet::new();
        for (i, range) in directory.ranges.iter().enumerate() {
            let parts: Vec<usize> = in_use(i).filter_map(|place| place.2).collect();
            if in_use(i).count() == 0 {
                continue;
            }
            live.extend(directory.blocks_of(range).unwrap());
            let clusters = directory.clusters_of(range).unwrap();
            let content: u64 = clusters.iter().map(|c| u64::from(c.content)).sum();
            let used = parts.iter().map(|i| u64::from(directory.members[*i].len));
            if !parts.is_empty() && 2 * used.sum::<u64>() < content {
                let blocks: u64 = clusters.iter().map(|c| u64::from(c.blocks)).sum();
                sparse += blocks * BLOCK as u64 / 2;
            }
        }
        for block in directory.start..directory.start + directory.blocks {
            if blocks.remove(&block) && !live.contains(&block) {
                dead += 1;
            }
        }
        if live.is_empty() || dead > directory.blocks / 20 {
            let (live, all) = (live.len(), directory.blocks);
            found.push(format!(
                "segment {number}: {dead} of {all} blocks are dead, {live} are live"
            ));
        }
    }
    if sparse >= 1 << 20 {
        found.push(format!("{sparse} bytes of groups would be saved"));
    }
    for (pack, mut blocks) in packs {
        blocks.remove(&0);
        if !blocks.is_empty() {
            let (first, count) = (blocks.first(), blocks.len());
            found.push(format!(
                "pack {pack}: {count} blocks from {first:?} on are of no segment"
            ));
        }
    }
    found
}
