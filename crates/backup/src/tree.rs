//! The tree of a snapshot in a store: its records, cut into leaves that snapshots share.

use crate::cut::{CutSizes, Cuts};
use crate::digest::Digest;
use crate::read::RangeReader;
use crate::record::{PathOf, Record};
use crate::snapshot::Snapshot;
use crate::store::Store;
use tuff_mkfs::{Error, Place, Result};

/// Leaves of a tree.
const LEAF: CutSizes = CutSizes {
    min: 4 << 10,
    usual: 16 << 10,
    max: 64 << 10,
};

/// Parts of the list of leaves. Those of tests are short.
const LIST: CutSizes = CutSizes {
    min: LIST_UNIT,
    usual: 4 * LIST_UNIT,
    max: 16 * LIST_UNIT,
};

const LIST_UNIT: usize = if cfg!(test) { 64 } else { 16 << 10 };

/// Longest record: one of a file of 8 TiB. Unit: bytes.
const RECORD_MAX: usize = 1 << 30;

/// Cuts the records of a new tree into leaves.
pub(crate) struct TreeWriter {
    cuts: Cuts,
    bytes: Vec<u8>,
    /// Digests of all leaves.
    list: Vec<u8>,
}

impl TreeWriter {
    pub(crate) fn new(cuts: Cuts) -> Self {
        Self {
            cuts,
            bytes: Vec::new(),
            list: Vec::new(),
        }
    }

    /// Adds a record. `store` keeps a leaf.
    pub(crate) fn add(
        &mut self,
        record: &Record,
        store: &mut dyn FnMut(Vec<u8>) -> Result<Digest>,
    ) -> Result<()> {
        record.encode(&mut self.bytes);
        while self.bytes.len() >= LEAF.max {
            self.cut(store)?;
        }
        Ok(())
    }

    fn cut(&mut self, store: &mut dyn FnMut(Vec<u8>) -> Result<Digest>) -> Result<()> {
        let rest = self.bytes.split_off(self.cuts.first_len(&self.bytes, LEAF));
        let leaf = std::mem::replace(&mut self.bytes, rest);
        self.list.extend_from_slice(&store(leaf)?.0);
        Ok(())
    }

    /// Stores the rest and the list of leaves. Returns the ranges that hold the list.
    pub(crate) fn finish(
        mut self,
        store: &mut dyn FnMut(Vec<u8>) -> Result<Digest>,
    ) -> Result<Vec<Digest>> {
        while !self.bytes.is_empty() {
            self.cut(store)?;
        }
        let (mut list, mut ranges) = (&self.list[..], Vec::new());
        while !list.is_empty() {
            let (part, rest) = list.split_at(self.cuts.first_len(list, LIST));
            ranges.push(store(part.to_vec())?);
            list = rest;
        }
        Ok(ranges)
    }
}

/// Reads the tree of a snapshot, entry by entry.
pub(crate) struct TreeReader<'a> {
    store: &'a Store,
    cursor: TreeCursor,
}

impl<'a> TreeReader<'a> {
    pub(crate) fn new(store: &'a Store, snapshot: &Snapshot) -> Self {
        Self {
            store,
            cursor: TreeCursor::new(snapshot),
        }
    }

    /// Moves over records that another tree has as well, and calls `each` with them. Leaves that both trees share are read once.
    pub(crate) fn skip_shared(
        &mut self,
        other: &mut Self,
        each: &mut dyn FnMut(&[u8], &Record) -> Result<()>,
    ) -> Result<()> {
        self.cursor.skip_shared(self.store, &mut other.cursor, each)
    }

    /// Returns the next record with its path below the root.
    pub(crate) fn next(&mut self) -> Result<Option<(Vec<u8>, Record)>> {
        self.cursor.next(self.store)
    }
}

/// Position in the tree of a snapshot. The store may grow meanwhile.
pub(crate) struct TreeCursor {
    reader: RangeReader,
    lists: std::vec::IntoIter<Digest>,
    /// Digests of the leaves that come next.
    leaves: Vec<u8>,
    /// Leaves of `leaves` that were read. Unit: bytes.
    read: usize,
    bytes: Vec<u8>,
    /// Bytes of `bytes` that were taken.
    at: usize,
    path: PathOf,
    is_first: bool,
    /// Number of leaves that were read.
    filled: usize,
    /// Value of `filled` when the next leaves were last compared with those of another tree.
    compared: usize,
}

impl TreeCursor {
    pub(crate) fn new(snapshot: &Snapshot) -> Self {
        Self {
            reader: RangeReader::of_trees(),
            lists: snapshot.tree.clone().into_iter(),
            leaves: Vec::new(),
            read: 0,
            bytes: Vec::new(),
            at: 0,
            path: PathOf::default(),
            is_first: true,
            filled: 0,
            compared: usize::MAX,
        }
    }

    /// Reads the next part of the list if no digest is left. A digest may begin in one part and end in the next. Returns false
    /// behind the last one.
    fn list(&mut self, store: &Store) -> Result<bool> {
        while self.leaves.len() - self.read < 32 {
            self.leaves.drain(..self.read);
            self.read = 0;
            let Some(list) = self.lists.next() else {
                return match self.leaves.is_empty() {
                    true => Ok(false),
                    false => Err(broken(store)),
                };
            };
            let part = store.read(&mut self.reader, list, false)?;
            self.leaves.extend_from_slice(&part);
        }
        Ok(true)
    }

    /// Appends the next leaf. Returns false behind the last one.
    fn fill(&mut self, store: &Store) -> Result<bool> {
        if !self.list(store)? {
            return Ok(false);
        }
        let leaf = self.leaves.get(self.read..self.read + 32);
        let leaf: [u8; 32] = leaf
            .and_then(|leaf| leaf.try_into().ok())
            .ok_or_else(|| broken(store))?;
        self.read += 32;
        self.filled += 1;
        self.bytes.drain(..self.at);
        self.at = 0;
        let leaf = store.read(&mut self.reader, Digest(leaf), false)?;
        self.bytes.extend_from_slice(&leaf);
        Ok(true)
    }

    /// Moves over records that another tree has as well, and calls `each` with them. Leaves that both trees share are read once.
    fn skip_shared(
        &mut self,
        store: &Store,
        other: &mut Self,
        each: &mut dyn FnMut(&[u8], &Record) -> Result<()>,
    ) -> Result<()> {
        let is_known = self.filled == self.compared;
        self.compared = self.filled;
        if is_known
            || self.bytes[self.at..] != other.bytes[other.at..]
            || self.path != other.path
            || self.is_first != other.is_first
            || !self.list(store)?
            || !other.list(store)?
        {
            return Ok(());
        }
        let (of_self, of_other) = (&self.leaves[self.read..], &other.leaves[other.read..]);
        let both = of_self
            .as_chunks::<32>()
            .0
            .iter()
            .zip(of_other.as_chunks().0);
        let shared = both.take_while(|(a, b)| a == b).count();
        let end = self.filled + shared;
        while let Some((path, record)) = self.next_until(store, end)? {
            each(&path, &record)?;
        }
        // A record that begins in the last of these leaves is still to come in both.
        let taken = shared - (end - self.filled);
        other.read += 32 * taken;
        other.filled += taken;
        other.bytes.clear();
        other.bytes.extend_from_slice(&self.bytes[self.at..]);
        other.at = 0;
        other.path = self.path.clone();
        other.is_first = self.is_first;
        Ok(())
    }

    /// Returns the next record with its path below the root.
    pub(crate) fn next(&mut self, store: &Store) -> Result<Option<(Vec<u8>, Record)>> {
        self.next_until(store, usize::MAX)
    }

    /// Returns the next record, if it ends in the first `end` leaves.
    fn next_until(&mut self, store: &Store, end: usize) -> Result<Option<(Vec<u8>, Record)>> {
        // A record may be in several leaves: as many more are read as there are, so that the work does not grow with its square.
        let mut needed = 1;
        loop {
            while self.bytes.len() - self.at < needed && self.filled < end && self.fill(store)? {}
            let mut rest = &self.bytes[self.at..];
            if rest.is_empty() {
                return Ok(None);
            }
            if let Some(record) = Record::decode(&mut rest) {
                self.at = self.bytes.len() - rest.len();
                let is_root = std::mem::take(&mut self.is_first);
                if is_root != (record.depth == 0) {
                    return Err(broken(store));
                }
                let path = self.path.next(record.depth, &record.name);
                return Ok(Some((path.ok_or_else(|| broken(store))?, record)));
            }
            if self.filled >= end {
                return Ok(None);
            }
            let before = self.bytes.len() - self.at;
            if before > RECORD_MAX || !self.fill(store)? {
                return Err(broken(store));
            }
            needed = 2 * before;
        }
    }
}

fn broken(store: &Store) -> Error {
    let place = Place::file(store.path.display());
    Error::corrupt(place, "the tree of a snapshot cannot be read")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreCompression;
    use crate::{Depth, Request};
    use std::os::unix::fs::symlink;
    use tuff_mkfs::{Options, Progress};
    use tuff_testkit::Scratch;

    /// Parts of a list end anywhere, also within a digest.
    #[test]
    fn b25_lists_of_leaves_in_several_parts_are_read() {
        let scratch = Scratch::new("backup-lists");
        let source = scratch.path().join("source");
        std::fs::create_dir(&source).unwrap();
        for number in 0..9000 {
            let digest = Digest::of_bytes(&u32::to_le_bytes(number));
            let target = digest.to_string().repeat(6);
            symlink(target, source.join(format!("{number:04}"))).unwrap();
        }
        let path = scratch.path().join("store");
        Store::create(&path, StoreCompression::default()).unwrap();
        let mut store = Store::open_to_write(&path).unwrap();
        let request = Request {
            sources: vec![source],
            archives: Vec::new(),
            series: "test".to_owned(),
            options: Options::default(),
            reads_all: false,
            is_dry: false,
        };
        let progress = Progress::default();
        let report = store.backup(&request, &progress).unwrap();
        let snapshot = store.snapshot(report.number.unwrap()).unwrap();
        assert!(snapshot.tree.len() > 4, "{}", snapshot.tree.len());
        let mut reader = RangeReader::default();
        let mut is_split = |part: &Digest| {
            let part = store.read(&mut reader, *part, false).unwrap();
            !part.len().is_multiple_of(32)
        };
        assert!(snapshot.tree.iter().any(&mut is_split));
        let mut tree = TreeReader::new(&store, &snapshot);
        let mut count = 0;
        while tree.next().unwrap().is_some() {
            count += 1;
        }
        // The directories above the links are entries of the tree.
        assert!(count > 9000, "{count}");
        let checked = store.check(Depth::Trees, 1, &progress).unwrap();
        assert_eq!(checked.findings, Vec::<String>::new());
        store.prune(1, &progress).unwrap();
    }
}
