//! Where each range of a store is: made from the directories of all segments, with memory that does not grow with the store.
//!
//! ```text
//! directories ──► tables in memory ──► runs: sorted files without names ──► index: one sorted file
//!
//! index:  entries │ segments that they are of │ trailer │ digest of all before
//! ```
//!
//! The file is a hint: without it, or where it is damaged or of other directories, the index is made anew.

use crate::digest::Digest;
use crate::files::{NEW, NewFile};
use crate::pages::Pages;
use crate::seen::FileState;
use crate::segment::Directory;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tuff_store::retry;

const MAGIC: [u8; 8] = *b"TUFFINDX";
/// Most ranges in tables: about 25 MiB.
const TABLES_MAX: usize = if cfg!(test) { 1 << 10 } else { 1 << 18 };
/// Fewest ranges that are worth a file, and fewest in tables that are worth a new one.
const SAVED_MIN: u64 = if cfg!(test) { 1 } else { 4096 };
/// Number of prefixes: the first two bytes of a digest.
const PREFIXES: usize = 1 << 16;
/// Number of pages of files that are kept: 16 MiB.
const PAGES: usize = 4096;
/// Entries that are compared one after the other.
const STEP: u64 = 64;
/// Length of buffers for files, whole entries. Unit: bytes.
const BUFFER: usize = ENTRY_LEN << 12;
const ENTRY_LEN: usize = 24;
const COVERED_LEN: usize = 84;
const TRAILER_LEN: usize = 40;
const DIGEST_LEN: usize = 32;

/// Entry of a directory: a range, or a member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Slot {
    /// Number of the segment.
    pub(crate) segment: u32,
    /// Number among the ranges or among the members of the directory.
    pub(crate) entry: u32,
}

/// First half of a digest. Directories state the whole.
pub(crate) type Key = [u8; 16];

/// Key, type, segment and entry, in big endian: the order of the bytes is that of a file.
type Entry = [u8; ENTRY_LEN];

/// Directory whose ranges are in an index.
#[derive(Clone, Copy, Debug)]
struct Covered {
    digest: Digest,
    /// State of its file when it was read as a whole.
    state: FileState,
    /// It was compared with the directory of the store.
    is_known: bool,
}

/// Index of a store's ranges.
#[derive(Debug)]
pub(crate) struct Index {
    store: [u8; 16],
    /// Directory for runs. `None` if they cannot be written: the tables grow instead.
    dir: Option<PathBuf>,
    /// Sorted files, each at least twice as long as the next one.
    runs: Vec<Run>,
    /// Ranges with clusters of their own that are in no run.
    ranges: HashMap<Key, Slot>,
    /// Ranges that are parts of groups and in no run.
    members: HashMap<Key, Slot>,
    segments: BTreeMap<u32, Covered>,
    /// A directory is not the one of which the index has the ranges.
    is_stale: bool,
    pages: Mutex<Cache>,
    /// Number of runs that were made.
    made: u32,
}

/// Pages of runs.
struct Cache(Pages);

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cache")
    }
}

impl Index {
    /// Makes an empty index. `dir`: directory for its runs.
    pub(crate) fn new(store: [u8; 16], dir: &Path) -> Self {
        Self {
            store,
            dir: Some(dir.to_owned()),
            runs: Vec::new(),
            ranges: HashMap::new(),
            members: HashMap::new(),
            segments: BTreeMap::new(),
            is_stale: false,
            pages: Mutex::new(Cache(Pages::new(PAGES))),
            made: 0,
        }
    }

    /// Opens the file of an index. It is empty without one, or if the file is damaged or of another store.
    pub(crate) fn open(path: &Path, store: [u8; 16], dir: &Path) -> Self {
        let mut index = Self::new(store, dir);
        if let Ok(Some((run, segments))) = open(path, &store) {
            index.runs.push(run);
            index.segments = segments;
        }
        index
    }

    /// True if the ranges of a segment are in the index, and the file of its directory is as it was.
    pub(crate) fn covers(&mut self, segment: u32, state: FileState) -> bool {
        let covered = self.segments.get_mut(&segment);
        let covered = covered.filter(|covered| state.is_some() && covered.state == state);
        covered.is_some_and(|covered| {
            covered.is_known = true;
            true
        })
    }

    /// Digest of the directory whose ranges are in the index.
    pub(crate) fn digest(&self, segment: u32) -> Option<Digest> {
        Some(self.segments.get(&segment)?.digest)
    }

    /// True if every segment of the index is in the store, with the directory of which the index has the ranges.
    pub(crate) fn is_sound(&self) -> bool {
        !self.is_stale && self.segments.values().all(|covered| covered.is_known)
    }

    /// True if the ranges of a segment are in the index, but not the state of its directory's file.
    pub(crate) fn lacks_state(&self, segment: u32) -> bool {
        let covered = self.segments.get(&segment);
        covered.is_some_and(|covered| covered.state.is_none())
    }

    /// Sets the state of a directory's file.
    pub(crate) fn set_state(&mut self, segment: u32, state: FileState) {
        if let Some(covered) = self.segments.get_mut(&segment) {
            covered.state = state;
        }
    }

    /// Adds a directory that was read or written, with its digest and the state of its file. The copy of a range in the first
    /// segment is used.
    pub(crate) fn add(&mut self, directory: &Directory, digest: Digest, state: FileState) {
        let covered = Covered {
            digest,
            state,
            is_known: true,
        };
        if let Some(old) = self.segments.insert(directory.number, covered) {
            self.is_stale |= old.digest != digest;
            return;
        }
        let ranges = (0..).zip(directory.ranges.iter().map(|range| range.digest));
        let members = (0..).zip(directory.members.iter().map(|member| member.digest));
        for (entry, digest) in ranges {
            self.put(digest, directory.number, entry, false);
        }
        for (entry, digest) in members {
            self.put(digest, directory.number, entry, true);
        }
    }

    fn put(&mut self, digest: Digest, segment: u32, entry: u32, is_member: bool) {
        let slot = Slot { segment, entry };
        let table = match is_member {
            true => &mut self.members,
            false => &mut self.ranges,
        };
        let found = table.entry(key(digest)).or_insert(slot);
        *found = slot.min(*found);
        if self.len_of_tables() > TABLES_MAX && self.dir.is_some() && self.spill().is_err() {
            self.dir = None;
        }
    }

    fn len_of_tables(&self) -> usize {
        self.ranges.len() + self.members.len()
    }

    /// Moves the tables to a run, and merges runs of similar length.
    fn spill(&mut self) -> io::Result<()> {
        let run = self.merge(self.runs.len(), true, self.temporary()?)?.0;
        self.clear_tables();
        self.runs.push(run);
        while let [.., longer, last] = &self.runs[..]
            && longer.entries < 2 * last.entries
        {
            let first = self.runs.len() - 2;
            let run = self.merge(first, false, self.temporary()?)?.0;
            self.runs.truncate(first);
            self.runs.push(run);
        }
        Ok(())
    }

    /// Makes a file without a name.
    fn temporary(&self) -> io::Result<File> {
        let beside = self.dir.as_deref().map(tuff_store::anonymous);
        match beside {
            Some(Ok(file)) => Ok(file),
            _ => tuff_store::anonymous(&std::env::temp_dir()),
        }
    }

    fn clear_tables(&mut self) {
        self.ranges = HashMap::new();
        self.members = HashMap::new();
    }

    /// Merges the runs from `first` on, and the tables if `with_tables`, into a file.
    fn merge<W: Write + AsFile>(
        &mut self,
        first: usize,
        with_tables: bool,
        file: W,
    ) -> io::Result<(Run, RunWriter<W>)> {
        let mut new: Vec<Entry> = Vec::new();
        if with_tables {
            new.reserve_exact(self.len_of_tables());
            for (table, is_member) in [(&self.ranges, false), (&self.members, true)] {
                new.extend(
                    table
                        .iter()
                        .map(|(key, slot)| encode(key, *slot, is_member)),
                );
            }
            new.sort_unstable();
        }
        let mut writer = RunWriter::new(file);
        let mut new = new.into_iter().peekable();
        let mut runs: Vec<RunReader<'_>> = self.runs[first..].iter().map(RunReader::new).collect();
        let mut heads = Vec::new();
        for run in &mut runs {
            heads.push(run.next()?);
        }
        loop {
            let least = (0..runs.len()).filter_map(|i| Some((heads[i]?, i))).min();
            let table = new.next_if(|entry| least.is_none_or(|(head, _)| *entry <= head));
            match (table, least) {
                (Some(entry), _) => writer.add(&entry)?,
                (None, Some((entry, i))) => {
                    writer.add(&entry)?;
                    heads[i] = runs[i].next()?;
                }
                (None, None) => break,
            }
        }
        writer.writer.flush()?;
        self.made += 1;
        let run = Run {
            number: self.made,
            file: Arc::new(writer.writer.get_ref().as_file().try_clone()?),
            entries: writer.entries,
            firsts: firsts(&writer.counts),
            has_name: false,
        };
        Ok((run, writer))
    }

    /// Writes the file of the index, if enough is new.
    ///
    /// # Errors
    /// `Io` of the host.
    pub(crate) fn save(&mut self, path: &Path) -> io::Result<()> {
        let new = self.len_of_tables() as u64;
        let has_enough = match &self.runs[..] {
            [] => new >= SAVED_MIN,
            [run] if run.has_name => {
                new >= SAVED_MIN.max(run.entries / 16).min(TABLES_MAX as u64 / 4)
            }
            _ => true,
        };
        if !has_enough {
            return Ok(());
        }
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(NEW);
        let file = NewFile::create(temporary.into())?;
        let (mut run, mut writer) = self.merge(0, true, file)?;
        for (number, covered) in &self.segments {
            writer.put(&number.to_le_bytes())?;
            writer.put(&covered.digest.0)?;
            for field in covered.state.unwrap_or_default() {
                writer.put(&field.to_le_bytes())?;
            }
        }
        writer.put(&MAGIC)?;
        writer.put(&self.store)?;
        writer.put(&run.entries.to_le_bytes())?;
        writer.put(&(self.segments.len() as u64).to_le_bytes())?;
        let digest = *writer.hasher.finalize().as_bytes();
        writer.writer.write_all(&digest)?;
        let file = writer.writer.into_inner();
        file.map_err(io::IntoInnerError::into_error)?.finish(path)?;
        run.has_name = true;
        self.clear_tables();
        self.runs = vec![run];
        Ok(())
    }

    /// Finds a range: its slot, and whether that is one of a member. `alone`: with clusters of its own, as a range between others
    /// needs them.
    ///
    /// # Errors
    /// `Io` of the host.
    pub(crate) fn find(&self, digest: Digest, alone: bool) -> io::Result<Option<(Slot, bool)>> {
        let key = key(digest);
        let mut range = self.ranges.get(&key).copied();
        let mut member = self.members.get(&key).copied();
        if !self.runs.is_empty() {
            let mut pages = self.pages();
            for run in &self.runs {
                run.find(&key, &mut pages.0, &mut |slot, is_member| {
                    let found = match is_member {
                        true => &mut member,
                        false => &mut range,
                    };
                    *found = Some(found.map_or(slot, |found| found.min(slot)));
                })?;
            }
        }
        let member = member.filter(|_| !alone).map(|slot| (slot, true));
        Ok(member.or(range.map(|slot| (slot, false))))
    }

    fn pages(&self) -> MutexGuard<'_, Cache> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn key(digest: Digest) -> Key {
    let (first, _) = digest.0.split_at(16);
    first.try_into().expect("16 of 32 bytes")
}

fn prefix(key: &[u8]) -> usize {
    usize::from(key[0]) << 8 | usize::from(key[1])
}

/// Bit of an entry's segment that tells that it is a member.
const MEMBER: u32 = 1 << 31;

fn encode(key: &Key, slot: Slot, is_member: bool) -> Entry {
    let mut bytes = [0; ENTRY_LEN];
    bytes[..16].copy_from_slice(key);
    let bit = if is_member { MEMBER } else { 0 };
    bytes[16..20].copy_from_slice(&(bit | slot.segment).to_be_bytes());
    bytes[20..].copy_from_slice(&slot.entry.to_be_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> (Slot, bool) {
    let field = |at: usize| {
        let field = bytes[at..].first_chunk();
        u32::from_be_bytes(*field.expect("an entry is longer"))
    };
    let slot = Slot {
        segment: field(16) & !MEMBER,
        entry: field(20),
    };
    (slot, field(16) & MEMBER != 0)
}

/// First entry of each prefix, and the number of entries.
fn firsts(counts: &[u64]) -> Vec<u64> {
    let mut first = 0;
    let next = counts.iter().map(|count| {
        first += count;
        first
    });
    std::iter::once(0).chain(next).collect()
}

/// Output whose file can be read.
trait AsFile {
    fn as_file(&self) -> &File;
}

impl AsFile for File {
    fn as_file(&self) -> &File {
        self
    }
}

impl AsFile for NewFile {
    fn as_file(&self) -> &File {
        self.file()
    }
}

/// Writes entries in order.
struct RunWriter<W: Write> {
    writer: BufWriter<W>,
    hasher: blake3::Hasher,
    entries: u64,
    /// Number of entries of each prefix.
    counts: Vec<u64>,
    last: Entry,
}

impl<W: Write> RunWriter<W> {
    fn new(file: W) -> Self {
        Self {
            writer: BufWriter::with_capacity(BUFFER, file),
            hasher: blake3::Hasher::new(),
            entries: 0,
            counts: vec![0; PREFIXES],
            last: [0; ENTRY_LEN],
        }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.writer.write_all(bytes)
    }

    /// Adds the next entry. Later copies of a range are left out.
    fn add(&mut self, entry: &Entry) -> io::Result<()> {
        let is_copy = self.entries > 0
            && entry[..16] == self.last[..16]
            && (entry[16] ^ self.last[16]) & 0x80 == 0;
        if is_copy {
            return Ok(());
        }
        self.last = *entry;
        self.entries += 1;
        self.counts[prefix(entry)] += 1;
        self.put(entry)
    }
}

/// Sorted file of entries.
struct Run {
    /// Number among the runs of the index.
    number: u32,
    file: Arc<File>,
    entries: u64,
    firsts: Vec<u64>,
    /// False for one that vanishes with the process.
    has_name: bool,
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("entries", &self.entries)
            .finish_non_exhaustive()
    }
}

impl Run {
    /// Calls `take` with the entries of a key: those of a range and of a member.
    fn find(
        &self,
        key: &Key,
        pages: &mut Pages,
        take: &mut dyn FnMut(Slot, bool),
    ) -> io::Result<()> {
        let len = self.entries * ENTRY_LEN as u64;
        let mut read = |from: u64, to: u64| {
            let at = from * ENTRY_LEN as u64..to * ENTRY_LEN as u64;
            pages.read((self.number, len), at, &mut || Ok(Arc::clone(&self.file)))
        };
        let prefix = prefix(key);
        let (mut low, mut high) = (self.firsts[prefix], self.firsts[prefix + 1]);
        let end = high;
        while high - low > STEP {
            let middle = low + (high - low) / 2;
            match read(middle, middle + 1)?[..16] < key[..] {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        // The entries of the key may begin at the end.
        let bytes = read(low, end.min(high + 2))?;
        for entry in bytes.chunks_exact(ENTRY_LEN) {
            if entry[..16] == key[..] {
                let (slot, is_member) = decode(entry);
                take(slot, is_member);
            }
        }
        Ok(())
    }
}

/// Reads a run in order.
struct RunReader<'a> {
    run: &'a Run,
    /// Entries of the run that were read.
    read: u64,
    bytes: Vec<u8>,
    at: usize,
}

impl<'a> RunReader<'a> {
    fn new(run: &'a Run) -> Self {
        Self {
            run,
            read: 0,
            bytes: Vec::new(),
            at: 0,
        }
    }

    fn next(&mut self) -> io::Result<Option<Entry>> {
        if self.at == self.bytes.len() {
            let left = (self.run.entries - self.read) * ENTRY_LEN as u64;
            // Fits: at most the buffer.
            let len = left.min(BUFFER as u64) as usize;
            self.bytes.resize(len, 0);
            let start = self.read * ENTRY_LEN as u64;
            self.run.file.read_exact_at(&mut self.bytes, start)?;
            self.read += (len / ENTRY_LEN) as u64;
            self.at = 0;
        }
        let entry = self.bytes[self.at..].first_chunk::<ENTRY_LEN>().copied();
        self.at += if entry.is_some() { ENTRY_LEN } else { 0 };
        Ok(entry)
    }
}

/// Opens the file of an index. `None` if it is damaged or of another store.
fn open(path: &Path, store: &[u8; 16]) -> io::Result<Option<(Run, BTreeMap<u32, Covered>)>> {
    let mut file = crate::files::open(path)?;
    let len = retry(|| file.metadata())?.len();
    let ends = (TRAILER_LEN + DIGEST_LEN) as u64;
    let Some(at) = len.checked_sub(ends) else {
        return Ok(None);
    };
    let mut end = [0; TRAILER_LEN + DIGEST_LEN];
    file.read_exact_at(&mut end, at)?;
    let (trailer, digest) = end.split_at(TRAILER_LEN);
    let field = |at: usize| {
        let field = trailer[at..].first_chunk();
        u64::from_le_bytes(*field.expect("a trailer is longer"))
    };
    let (entries, segments) = (field(24), field(32));
    let parts = [(entries, ENTRY_LEN), (segments, COVERED_LEN)]
        .map(|(count, len)| count.checked_mul(len as u64));
    let [Some(entries_len), Some(segments_len)] = parts else {
        return Ok(None);
    };
    if trailer[..8] != MAGIC
        || trailer[8..24] != *store
        || entries_len.checked_add(segments_len) != Some(at)
    {
        return Ok(None);
    }
    let mut hasher = blake3::Hasher::new();
    let mut counts = vec![0; PREFIXES];
    let mut buffer = vec![0; BUFFER];
    let mut left = entries_len;
    while left > 0 {
        // Fits: at most the buffer, which has whole entries.
        let bytes = &mut buffer[..left.min(BUFFER as u64) as usize];
        file.read_exact(bytes)?;
        hasher.update(bytes);
        for entry in bytes.chunks_exact(ENTRY_LEN) {
            counts[prefix(entry)] += 1;
        }
        left -= bytes.len() as u64;
    }
    let mut covered = BTreeMap::new();
    let mut bytes = [0; COVERED_LEN];
    for _ in 0..segments {
        file.read_exact(&mut bytes)?;
        hasher.update(&bytes);
        let number = u32::from_le_bytes(*bytes.first_chunk().expect("it is longer"));
        let digest = bytes[4..].first_chunk().expect("it is longer");
        let mut state = [0; 6];
        for (field, bytes) in state.iter_mut().zip(bytes[36..].as_chunks().0) {
            *field = u64::from_le_bytes(*bytes);
        }
        let directory = Covered {
            digest: Digest(*digest),
            state: (state != [0; 6]).then_some(state),
            is_known: false,
        };
        covered.insert(number, directory);
    }
    hasher.update(trailer);
    if digest != hasher.finalize().as_bytes() {
        return Ok(None);
    }
    let run = Run {
        number: 0,
        file: Arc::new(file),
        entries,
        firsts: firsts(&counts),
        has_name: true,
    };
    Ok(Some((run, covered)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{MemberEntry, RangeEntry};
    use tuff_testkit::Scratch;

    const STORE: [u8; 16] = [7; 16];
    const STATE: FileState = Some([1, 2, 3, 4, 5, 6]);

    fn digest(n: u32) -> Digest {
        Digest::of_bytes(&n.to_le_bytes())
    }

    /// A directory with ranges and members; some are in others, too.
    fn directory(number: u32, count: u32) -> Directory {
        let all = || number * count / 2..number * count / 2 + count;
        let ranges = all().map(|n| RangeEntry {
            digest: digest(n),
            block: 1,
            first: 0,
            count: 0,
        });
        let members = all().map(|n| MemberEntry {
            digest: digest(3 * n),
            group: 0,
            offset: 0,
            len: 0,
        });
        Directory {
            number,
            ranges: ranges.collect(),
            members: members.collect(),
            ..Directory::default()
        }
    }

    fn identity(number: u32) -> Digest {
        digest(1_000_000 + number)
    }

    fn open_for(path: &Path, store: [u8; 16], dir: &Path, segments: u32) -> Index {
        let mut index = Index::open(path, store, dir);
        for number in 0..segments {
            index.covers(number, STATE);
        }
        index
    }

    /// The file equals one that is made anew, whatever the order and the times at which it was written, and finds what a table of
    /// all ranges finds.
    #[test]
    fn b25_an_index_is_bounded_in_memory_and_equals_one_that_is_made_anew() {
        let scratch = Scratch::new("backup-index");
        let path = |name: &str| scratch.path().join(name);
        let directories: Vec<Directory> = (0..6).map(|number| directory(number, 3000)).collect();
        let mut at_once = Index::new(STORE, scratch.path());
        let mut all: BTreeMap<(Key, bool), Slot> = BTreeMap::new();
        for directory in directories.iter().rev() {
            at_once.add(directory, identity(directory.number), STATE);
            assert!(at_once.len_of_tables() <= TABLES_MAX);
            assert!(at_once.runs.len() <= 8, "{}", at_once.runs.len());
            let ranges = directory.ranges.iter().map(|range| (range.digest, false));
            let ranges = (0..).zip(ranges);
            let members = directory.members.iter().map(|member| (member.digest, true));
            for (entry, (digest, is_member)) in ranges.chain((0..).zip(members)) {
                let segment = directory.number;
                let slot = Slot { segment, entry };
                let found = all.entry((key(digest), is_member)).or_insert(slot);
                *found = slot.min(*found);
            }
        }
        let found_in = |index: &Index| {
            let mut found = 0;
            for n in 0..40_000 {
                let (digest, key) = (digest(n), key(digest(n)));
                let range = all.get(&(key, false)).map(|slot| (*slot, false));
                let member = all.get(&(key, true)).map(|slot| (*slot, true));
                assert_eq!(index.find(digest, true).unwrap(), range, "{n}");
                assert_eq!(index.find(digest, false).unwrap(), member.or(range), "{n}");
                found += u32::from(range.is_some());
            }
            assert_eq!(found, 10_500);
        };
        found_in(&at_once);
        at_once.save(&path("at-once")).unwrap();
        found_in(&at_once);
        for (step, part) in directories.chunks(2).enumerate() {
            let mut index = open_for(&path("parts"), STORE, scratch.path(), 2 * step as u32);
            assert!(index.is_sound());
            for directory in part {
                assert!(!index.covers(directory.number, STATE));
                index.add(directory, identity(directory.number), STATE);
            }
            index.save(&path("parts")).unwrap();
        }
        let bytes = std::fs::read(path("parts")).unwrap();
        assert!(bytes == std::fs::read(path("at-once")).unwrap());
        found_in(&open_for(&path("parts"), STORE, scratch.path(), 6));
    }

    #[test]
    fn a_file_that_is_damaged_or_of_other_directories_is_not_used() {
        let scratch = Scratch::new("backup-index-damaged");
        let path = |name: &str| scratch.path().join(name);
        let mut index = Index::new(STORE, scratch.path());
        index.add(&directory(0, 100), identity(0), STATE);
        index.add(&directory(1, 100), identity(1), STATE);
        index.save(&path("index")).unwrap();
        let open = |store| Index::open(&path("index"), store, scratch.path());
        assert!(open_for(&path("index"), STORE, scratch.path(), 2).is_sound());
        // A segment is gone.
        assert!(!open_for(&path("index"), STORE, scratch.path(), 1).is_sound());
        // A directory was replaced, and one was touched.
        let mut index = open(STORE);
        assert!(index.covers(1, STATE) && !index.covers(0, None));
        index.add(&directory(0, 99), identity(9), STATE);
        assert!(!index.is_sound());
        let mut index = open(STORE);
        assert!(index.covers(1, STATE) && !index.covers(0, Some([0; 6])));
        index.add(&directory(0, 100), identity(0), STATE);
        assert!(index.is_sound());
        assert!(open([8; 16]).runs.is_empty());
        let bytes = std::fs::read(path("index")).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            std::fs::write(path("damaged"), &damaged).unwrap();
            let index = Index::open(&path("damaged"), STORE, scratch.path());
            assert!(index.runs.is_empty(), "{at}");
        }
        std::fs::write(path("damaged"), &bytes[..bytes.len() - 1]).unwrap();
        assert!(
            Index::open(&path("damaged"), STORE, scratch.path())
                .runs
                .is_empty()
        );
    }

    #[test]
    fn runs_of_a_store_that_cannot_be_written_are_elsewhere() {
        let scratch = Scratch::new("backup-index-elsewhere");
        let mut index = Index::new(STORE, &scratch.path().join("absent"));
        index.add(&directory(0, 3000), identity(0), STATE);
        assert!(!index.runs.is_empty() && index.len_of_tables() <= TABLES_MAX);
        assert!(index.save(&scratch.path().join("absent/index")).is_err());
        let slot = Slot {
            segment: 0,
            entry: 2999,
        };
        let found = index.find(digest(2999), true).unwrap();
        assert_eq!(found, Some((slot, false)));
    }

    #[test]
    fn without_room_for_files_the_tables_grow() {
        let scratch = Scratch::new("backup-index-memory");
        let mut index = Index::new(STORE, scratch.path());
        index.dir = None;
        index.add(&directory(0, 3000), identity(0), STATE);
        assert!(index.runs.is_empty() && index.len_of_tables() == 6000);
    }
}
