//! A run: saves directories, and the trees of archives and images, as a snapshot.

use crate::archive::{Archives, OpenArchive};
use crate::cluster::BLOCK;
use crate::cut::DATA;
use crate::digest::Digest;
use crate::encode::RangeEncoder;
use crate::encoders::{Encoders, Job};
use crate::faults::{before_read, now};
use crate::files;
use crate::index::{Key, key};
use crate::pack::{PACK_MAX, Pack};
use crate::record::{RangeRef, Record, SMALL_MAX, are_alone, order};
use crate::seen::{self, FileState, SeenReader, SeenWriter};
use crate::segment::{DIRECTORY_FULL, Directory, NewRange, SEGMENT_MAX};
use crate::snapshot::Snapshot;
use crate::store::Store;
use crate::tree::{TreeCursor, TreeWriter};
use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use tuff_mkfs::source::{Kind, Meta};
use tuff_mkfs::{
    Error, Fill, LeftOut, Options, Place, Progress, Result, Scan, ScannedEntry, Source,
};
use tuff_store::retry;

/// Length from which a group is complete. Unit: bytes.
pub(crate) const GROUP_LEN: usize = 1 << 20;
/// Most files that could not be read and are listed. All are counted.
const LEFT_OUT_MAX: usize = 10_000;
/// Attempts to find a number for the snapshot that no other run has taken.
const NUMBERS_TRIED: u32 = 100;

/// Directories, archives and images that a run saves, and options of reading them.
#[derive(Clone)]
pub struct Request {
    /// Directories and files, in any order and form. One that lies below another is saved with it.
    pub sources: Vec<PathBuf>,
    /// Reader of each source that is a file: an archive or image that can be read twice. Its tree is saved at the path of the file,
    /// and is the root of the snapshot if it is the only source.
    pub archives: Vec<(PathBuf, Source)>,
    /// Series of the snapshot; see [`default_series`].
    pub series: String,
    /// Options of reading: exclusions, one file system, attributes.
    pub options: Options,
    /// Read every file, also those that are as they were.
    pub reads_all: bool,
    /// Nothing is written: the report says what would be.
    pub is_dry: bool,
}

/// Numbers and findings of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Number of the snapshot. `None` if nothing was to be written.
    pub number: Option<u32>,
    /// Snapshot with which the files were compared.
    pub parent: Option<u32>,
    /// Entries, without the directories above the sources.
    pub entries: u64,
    /// Regular files, each name once.
    pub files: u64,
    /// Files that were read.
    pub files_read: u64,
    /// Content of all files. Unit: bytes.
    pub bytes: u64,
    /// Bytes by which the packs grew.
    pub stored_bytes: u64,
    /// Files that could not be read, with the reason of each; at most 10,000.
    pub left_out: Vec<String>,
    /// Number of all files that could not be read.
    pub left_out_count: u64,
    /// Warnings about entries, and about the snapshot as a whole.
    pub warnings: Vec<String>,
    /// The snapshot has less than half of the files of the newest one of its series that is not in doubt.
    pub lost_most: bool,
}

/// Series of sources on a host, if none is named.
pub fn default_series(sources: &[PathBuf]) -> String {
    let host = host();
    let sources = canonical(sources, &|_| true).unwrap_or_else(|_| sources.to_vec());
    let paths: Vec<String> = sources.iter().map(|path| shown(path)).collect();
    format!("{host}:{}", paths.join(","))
}

/// Name of this host.
pub(crate) fn host() -> String {
    let host = rustix::system::uname();
    host.nodename().to_string_lossy().into_owned()
}

/// Escapes what is no printable text as `%XX`.
fn shown(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '%' | ',' => text.push_str(&format!("%{:02X}", c as u32)),
                c if c.is_control() => {
                    let mut utf8 = [0; 4];
                    c.encode_utf8(&mut utf8)
                        .bytes()
                        .for_each(|b| text.push_str(&format!("%{b:02X}")));
                }
                c => text.push(c),
            }
        }
        chunk
            .invalid()
            .iter()
            .for_each(|b| text.push_str(&format!("%{b:02X}")));
    }
    text
}

/// Returns the absolute paths of sources without links, in the order of a tree, without those that lie below another. `is_archive`
/// tells whether a file is one of them.
fn canonical(sources: &[PathBuf], is_archive: &dyn Fn(&Path) -> bool) -> Result<Vec<PathBuf>> {
    let real = |path: &PathBuf| {
        let real = retry(|| fs::canonicalize(path));
        let failed = |e| Error::io(Place::file(path.display()), "cannot find", e);
        let real = real.map_err(failed)?;
        let is_dir = files::metadata(&real).map_err(failed)?.is_dir();
        match is_dir || is_archive(&real) {
            true => Ok(real),
            false => Err(Error::usage(format_args!(
                "{}: not a directory",
                path.display()
            ))),
        }
    };
    let mut paths: Vec<PathBuf> = sources.iter().map(real).collect::<Result<_>>()?;
    paths.sort_by(|a, b| order(a.as_os_str().as_bytes(), b.as_os_str().as_bytes()));
    let mut kept: Vec<PathBuf> = Vec::new();
    for path in paths {
        if kept.last().is_none_or(|last| !path.starts_with(last)) {
            kept.push(path);
        }
    }
    Ok(kept)
}

impl Store {
    /// Saves directories as a snapshot. The store must be open for writing.
    ///
    /// # Errors
    /// Errors of the store, after which there is no snapshot; errors of a source as a whole. A file that cannot be read is left
    /// out and reported.
    pub fn backup(&mut self, request: &Request, progress: &Progress) -> Result<Report> {
        let archives = Archives::new(&request.archives)?;
        let sources = canonical(&request.sources, &|path| archives.has(path))?;
        if sources.is_empty() {
            return Err(Error::usage("nothing to back up"));
        }
        let snapshots: Vec<Snapshot> = self.snapshots()?.into_iter().flatten().collect();
        let doubts = self.doubts(&snapshots)?;
        let series = snapshots.iter().rev();
        let mut series = series.filter(|snapshot| snapshot.series == request.series);
        let parent = series.clone().next().cloned();
        let sound = series.find(|snapshot| !doubts.contains_key(&snapshot.number));
        let left_out = LeftOut::with_max(LEFT_OUT_MAX);
        let mut options = request.options.clone();
        options.sources.keep_going = Some(left_out.clone());
        let before = self.stored_bytes();
        let threads = options
            .resources
            .threads
            .unwrap_or_else(tuff_mkfs::available_threads);
        let mut report = Report {
            parent: parent.as_ref().map(|parent| parent.number),
            ..Report::default()
        };
        let mut old = ParentFiles::open(self, parent.as_ref().filter(|_| !request.reads_all));
        let seen = SeenWriter::create((!request.is_dry).then_some(&self.path));
        let (tree, seen) = std::thread::scope(|scope| {
            let compression = self.compression;
            let cuts = self.cuts.clone();
            let encoders = Encoders::start(scope, threads, compression)?;
            let mut run = Run {
                store: self,
                encoders,
                encoder: RangeEncoder::new(&compression.spec())?,
                segment: None,
                threads,
                is_dry: request.is_dry,
                pending: HashSet::new(),
                groups: Default::default(),
                tree: TreeWriter::new(cuts),
                seen,
                report: &mut report,
                left_out: &left_out,
                progress,
                is_root: archives.are_root(&sources),
                archive: None,
                failed: None,
                added: 0,
            };
            run.directories_above(&sources)?;
            for (number, source) in sources.iter().enumerate() {
                let previous = number.checked_sub(1).map(|number| &*sources[number]);
                run.archive = archives.open(source, now())?;
                run.source(source, previous, &options, &mut old)?;
            }
            run.finish()
        })?;
        report.left_out = left_out.lines();
        report.left_out_count = left_out.count() as u64;
        report.lost_most = sound.is_some_and(|sound| report.files < sound.files / 2);
        if request.is_dry {
            return Ok(report);
        }
        report.stored_bytes = self.stored_bytes() - before;
        let mut snapshot = Snapshot {
            number: 0,
            series: request.series.clone(),
            time: seconds(now()),
            parent: report.parent,
            sources: sources.iter().map(|path| shown(path)).collect(),
            entries: report.entries,
            files: report.files,
            bytes: report.bytes,
            left_out: report.left_out_count,
            lost_most: report.lost_most,
            tree,
        };
        self.is_in_time()?;
        self.write_snapshot(&mut snapshot)?;
        if let Err(e) = seen.finish(&self.path, snapshot.number, snapshot.parent) {
            let why = format!("the next run will read every file: {e}");
            report.warnings.push(why);
        }
        if let Err(e) = self.save_index() {
            let why = format!("the next run will read every directory of the store: {e}");
            report.warnings.push(why);
        }
        report.number = Some(snapshot.number);
        Ok(report)
    }

    /// Gives a snapshot the next number that is free.
    fn write_snapshot(&self, snapshot: &mut Snapshot) -> Result<()> {
        let mut numbers = self.numbers("snapshots", ".json")?;
        // A list without a manifest tells of a loss, and is not replaced.
        numbers.extend(self.missing_manifests()?);
        let last = numbers.into_iter().max().unwrap_or(0);
        self.write_snapshot_as(snapshot, last.saturating_add(1))
    }

    /// Gives a snapshot a number, or the next one that is free.
    pub(crate) fn write_snapshot_as(&self, snapshot: &mut Snapshot, first: u32) -> Result<()> {
        let mut number = first;
        loop {
            snapshot.number = number;
            let name = format!("snapshots/{number:08}.json");
            match self.create_new(&name, snapshot.text().as_bytes())? {
                true => return self.note_newest(),
                false if number < first + NUMBERS_TRIED => number += 1,
                false => return Err(self.exists(&name)),
            }
        }
    }
}

pub(crate) fn seconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_secs()).map_or(i64::MIN, |s| -s),
    }
}

/// File of the parent: its path, its state on the host, and its ranges.
type KnownFile = (Vec<u8>, FileState, Vec<RangeRef>);

/// Files of the parent in the order of its tree, which is the order of a run.
struct ParentFiles {
    /// `None` without a parent, and behind its last file.
    lists: Option<(TreeCursor, SeenReader)>,
    /// File that comes next.
    next: Option<KnownFile>,
}

impl ParentFiles {
    fn open(store: &Store, parent: Option<&Snapshot>) -> Self {
        let lists = parent.and_then(|parent| {
            let seen = SeenReader::open(&store.path, parent.number)?;
            Some((TreeCursor::new(parent), seen))
        });
        Self { lists, next: None }
    }

    /// Moves on to the next file.
    fn fill(&mut self, store: &Store) -> Result<()> {
        let Some((mut tree, mut seen)) = self.lists.take() else {
            return Ok(());
        };
        while let Some((path, record)) = tree.next(store)? {
            if matches!(record.kind, Kind::File { .. }) {
                self.next = Some((path, seen.next(), record.ranges));
                self.lists = Some((tree, seen));
                break;
            }
        }
        Ok(())
    }

    /// Ranges of a file that is as it was. `None` for one that comes before the file of an earlier call.
    ///
    /// # Errors
    /// Errors of the parent's tree, after which nothing more is found.
    fn take(
        &mut self,
        store: &Store,
        path: &[u8],
        state: FileState,
    ) -> Result<Option<Vec<RangeRef>>> {
        loop {
            if self.next.is_none() {
                self.fill(store)?;
            }
            let Some((next, ..)) = &self.next else {
                return Ok(None);
            };
            match order(next, path) {
                Ordering::Less => self.next = None,
                Ordering::Equal => break,
                Ordering::Greater => return Ok(None),
            }
        }
        let known = self.next.take();
        let known = known.filter(|(_, old, _)| state.is_some() && *old == state);
        // A range may be lost, or repaired by reading the file again.
        let Some((_, _, ranges)) = known else {
            return Ok(None);
        };
        for (range, alone) in are_alone(&ranges) {
            if !store.has(range.digest, alone)? {
                return Ok(None);
            }
        }
        Ok(Some(ranges))
    }
}

/// First names of files that have others, and how many of these are to come, by inode.
type Links = HashMap<u32, (Vec<u8>, u32)>;

/// Group that is being filled.
#[derive(Default)]
struct Group {
    content: Vec<u8>,
    members: Vec<(Digest, u32, u32)>,
}

/// Result of reading a file.
enum FileRead {
    /// The record has its content. Metadata of a file of the host, as it was read.
    Whole(Option<Metadata>),
    /// It cannot be read, and is in the list of such files.
    LeftOut,
}

/// Failure of a source, and the error of the host. Without one, the file has changed.
type SourceFailure = (String, Option<io::Error>);

/// State of a run.
struct Run<'a> {
    store: &'a mut Store,
    encoders: Encoders,
    /// Finds out whether ranges compress.
    encoder: RangeEncoder,
    segment: Option<Directory>,
    threads: usize,
    is_dry: bool,
    /// Ranges of this run that the index does not have yet: with clusters of their own, and as members of groups.
    pending: HashSet<(Key, bool)>,
    /// Groups of files and of leaves.
    groups: [Group; 2],
    tree: TreeWriter,
    seen: SeenWriter,
    report: &'a mut Report,
    left_out: &'a LeftOut,
    progress: &'a Progress,
    /// The tree of the only source, an archive, is the root of the snapshot.
    is_root: bool,
    /// Archive or image that is being read.
    archive: Option<OpenArchive>,
    /// Error of the store while a file was read.
    failed: Option<Error>,
    /// Bytes of new clusters.
    added: u64,
}

/// Index of the groups of files.
const FILES: usize = 0;
/// Index of the groups of leaves, which are not part of an image.
const LEAVES: usize = 1;

impl Run<'_> {
    /// Adds the directories above the first source. Those above another one come before it.
    fn directories_above(&mut self, sources: &[PathBuf]) -> Result<()> {
        if sources[0] != Path::new("/") && !self.is_root {
            let root = directory(Path::new("/"))?;
            self.record(&root)?;
        }
        Ok(())
    }

    /// Saves a source. `previous`: the one before it.
    fn source(
        &mut self,
        source: &Path,
        previous: Option<&Path>,
        options: &Options,
        old: &mut ParentFiles,
    ) -> Result<()> {
        let now = now();
        let file = source;
        let source = if self.is_root { Path::new("/") } else { source };
        let above = source
            .ancestors()
            .skip(1)
            .filter(|dir| *dir != Path::new("/"));
        let mut above: Vec<&Path> = above.collect();
        above.reverse();
        for dir in above {
            if previous.is_none_or(|previous| !previous.starts_with(dir)) {
                self.record(&directory(dir)?)?;
            }
        }
        let archive = self.archive.as_ref();
        let sources = [archive.map_or_else(|| Source::Dir(file.to_owned()), |a| a.source.clone())];
        self.progress.set_total(0);
        let scan = Scan::new(&sources, options, self.progress)?;
        self.progress.stage("read");
        self.progress.set_total(scan.bytes());
        self.report.warnings.extend(scan.warnings.iter().cloned());
        let prefix = source
            .strip_prefix("/")
            .unwrap_or(source)
            .as_os_str()
            .as_bytes();
        let prefix_depth = source.components().count() - 1;
        let mut links = Links::new();
        let own = retry(|| fs::canonicalize(&self.store.path));
        let own = own.unwrap_or_else(|_| self.store.path.clone());
        let own = own.strip_prefix("/").unwrap_or(&own).as_os_str().as_bytes();
        scan.each(&mut |entry| {
            self.progress.check()?;
            let path = [prefix, entry.path]
                .into_iter()
                .filter(|part| !part.is_empty());
            let path = path.collect::<Vec<_>>().join(&b'/');
            // Nothing that is in the store itself.
            let below = path.strip_prefix(own).filter(|_| self.archive.is_none());
            if below.is_some_and(|rest| rest.first() == Some(&b'/')) {
                return Ok(());
            }
            self.entry(&scan, &entry, (path, prefix_depth), now, &mut links, old)
        })?;
        self.archive
            .as_ref()
            .map_or(Ok(()), OpenArchive::is_unchanged)
    }

    fn entry(
        &mut self,
        scan: &Scan,
        entry: &ScannedEntry<'_>,
        (path, prefix_depth): (Vec<u8>, usize),
        now: SystemTime,
        links: &mut Links,
        old: &mut ParentFiles,
    ) -> Result<()> {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let mut record = Record {
            // Fits: a path of the host is shorter.
            depth: (entry.depth + prefix_depth) as u32,
            name: name.to_vec(),
            kind: entry.kind.clone(),
            meta: entry.meta,
            xattrs: (entry.xattrs.iter())
                .map(|(name, value)| (name.to_vec(), value.to_vec()))
                .collect(),
            ranges: Vec::new(),
        };
        self.report.entries += 1;
        self.progress.add_entry();
        if entry.nlink > 1 && !matches!(entry.kind, Kind::Dir) {
            if let Entry::Occupied(mut link) = links.entry(entry.inode) {
                let (first, names) = link.get_mut();
                *names -= 1;
                record.kind = Kind::Hardlink(first.clone());
                if *names == 0 {
                    link.remove();
                }
                record.xattrs.clear();
                return self.record(&record);
            }
            links.insert(entry.inode, (path.clone(), entry.nlink - 1));
        }
        if let Kind::File { size } = entry.kind {
            let host = PathBuf::from("/").join(OsStr::from_bytes(&path));
            let metadata = retry(|| fs::symlink_metadata(&host)).ok();
            let metadata = metadata.filter(|metadata| {
                let mtime = (metadata.mtime(), metadata.mtime_nsec());
                let same = mtime == (entry.meta.mtime, entry.meta.mtime_nsec.into());
                metadata.is_file() && metadata.size() == size && same
            });
            let state = metadata.and_then(|metadata| seen::state(&metadata, now));
            let state = self.archive.as_ref().map_or(state, |archive| archive.state);
            let known = old.take(self.store, &path, state);
            // Damage of a snapshot must not prevent the next one.
            let known = known.unwrap_or_else(|e| {
                self.report.warnings.push(format!(
                    "every file is read from {} on, because of the snapshot before: {e}",
                    host.display()
                ));
                None
            });
            let state = match known {
                Some(ranges) => {
                    record.ranges = ranges;
                    self.progress.add_bytes(size);
                    state
                }
                None => match self.file(scan, entry.inode, &host, &mut record)? {
                    FileRead::Whole(Some(metadata)) => seen::state(&metadata, now),
                    FileRead::Whole(None) => state,
                    FileRead::LeftOut => {
                        links.remove(&entry.inode);
                        self.report.entries -= 1;
                        return Ok(());
                    }
                },
            };
            self.report.files += 1;
            if let Kind::File { size } = record.kind {
                self.report.bytes += size;
            }
            self.seen.add(state);
        }
        self.record(&record)
    }

    /// Reads a file and stores what is new of it. One that fails or changes meanwhile is read once more.
    fn file(
        &mut self,
        scan: &Scan,
        inode: u32,
        host: &Path,
        record: &mut Record,
    ) -> Result<FileRead> {
        self.report.files_read += 1;
        let mut is_again = false;
        while let Some(file) = scan.open_host(inode)? {
            match self.host_file(file, record)? {
                Ok(metadata) => return Ok(FileRead::Whole(Some(metadata))),
                Err(_) if !is_again => is_again = true,
                Err((what, None)) => {
                    self.left_out.add(host.as_os_str().as_bytes(), what);
                    return Ok(FileRead::LeftOut);
                }
                Err((what, Some(e))) => {
                    return match self.left_out.take(host.as_os_str().as_bytes(), &what, &e) {
                        true => Ok(FileRead::LeftOut),
                        false => Err(Error::io(Place::file(host.display()), what, e)),
                    };
                }
            }
        }
        let Kind::File { size } = record.kind else {
            return Ok(FileRead::Whole(None));
        };
        let opened = scan.open(inode);
        let read = opened.and_then(|file| match file {
            Some(file) => file.read(&mut |fill| self.content(size, fill, &mut record.ranges)),
            None => Ok(()),
        });
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        match read {
            // A damaged file of an archive is left out like one that cannot be read.
            Err(e @ (Error::Source(_) | Error::Corrupt(_))) if self.archive.is_some() => {
                self.left_out.add(host.as_os_str().as_bytes(), e);
                Ok(FileRead::LeftOut)
            }
            read => read.map(|()| FileRead::Whole(None)),
        }
    }

    /// Reads a file of the host, which may differ from what the tree has of it. Returns its metadata, or the failure of the source.
    fn host_file(
        &mut self,
        file: io::Result<File>,
        record: &mut Record,
    ) -> Result<std::result::Result<Metadata, SourceFailure>> {
        let failed = |what: &str, e| Ok(Err((what.to_owned(), Some(e))));
        let changed = |how: &str| {
            Ok(Err((
                format!("the file changed while it was read: {how}"),
                None,
            )))
        };
        let file = match file {
            Ok(file) => file,
            Err(e) => return failed("cannot open", e),
        };
        let before = match retry(|| file.metadata()) {
            Ok(before) => before,
            Err(e) => return failed("cannot examine", e),
        };
        if !before.is_file() {
            return changed("it is no regular file any more");
        }
        let failure = RefCell::new(None);
        let read = self.content(
            before.size(),
            &|buffer, at| {
                before_read();
                file.read_exact_at(buffer, at).map_err(|e| {
                    failure.replace(Some((e, at)));
                    Error::limit(Place::image(), "the source failed")
                })
            },
            &mut record.ranges,
        );
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        match failure.into_inner() {
            Some((e, _)) if e.kind() == io::ErrorKind::UnexpectedEof => {
                return changed("it became shorter");
            }
            Some((e, at)) => return failed(&format!("cannot read from byte {at} on"), e),
            None => read?,
        }
        let after = match retry(|| file.metadata()) {
            Ok(after) => after,
            Err(e) => return failed("cannot examine", e),
        };
        if before.size() != after.size() {
            return changed(&format!(
                "its size was {} bytes and is {}",
                before.size(),
                after.size()
            ));
        }
        let times = |metadata: &Metadata| {
            let modified = (metadata.mtime(), metadata.mtime_nsec());
            (modified, metadata.ctime(), metadata.ctime_nsec())
        };
        if times(&before) != times(&after) {
            return changed("its time is another");
        }
        record.kind = Kind::File {
            size: before.size(),
        };
        record.meta = meta(&before);
        Ok(Ok(before))
    }

    /// Reads content and stores what is new of it. An error of the store is left in `failed`.
    fn content(&mut self, size: u64, fill: Fill<'_>, ranges: &mut Vec<RangeRef>) -> Result<()> {
        // A first attempt may have failed.
        ranges.clear();
        let (mut buffer, mut at) = (Vec::new(), 0);
        while at < size || !buffer.is_empty() {
            self.progress.check()?;
            let filled = (DATA.max as u64).min(size - at + buffer.len() as u64) as usize;
            let have = buffer.len();
            if filled > have {
                buffer.resize(filled, 0);
                fill(&mut buffer[have..], at)?;
                at += (filled - have) as u64;
            }
            // The end of a file may be a part of a group.
            let is_part = size <= SMALL_MAX || (at == size && buffer.len() < BLOCK);
            let mut len = if is_part {
                buffer.len()
            } else {
                self.store.cuts.first_len(&buffer, DATA)
            };
            let mut probe = None;
            if !is_part && !len.is_multiple_of(BLOCK) {
                probe = self.encoder.probe(&buffer[..len]);
                if probe.is_none() {
                    len -= len % BLOCK;
                }
            }
            let rest = buffer.split_off(len);
            let content = std::mem::replace(&mut buffer, rest);
            self.progress.add_bytes(content.len() as u64);
            let stored = match is_part {
                true => self.member(content, FILES),
                false => self.range(content, probe),
            };
            match stored {
                Ok(digest) => ranges.push(RangeRef {
                    digest,
                    len: len as u32,
                }),
                Err(e) => {
                    self.failed = Some(e);
                    return Err(Error::limit(Place::image(), "the store failed"));
                }
            }
        }
        Ok(())
    }

    /// Stores a range with clusters of its own.
    fn range(&mut self, content: Vec<u8>, probe: Option<usize>) -> Result<Digest> {
        let digest = Digest::of_bytes(&content);
        if !self.store.has(digest, true)? && self.pending.insert((key(digest), true)) {
            self.encode(Job {
                digest,
                content,
                members: Vec::new(),
                is_group: false,
                probe,
            })?;
        }
        Ok(digest)
    }

    /// Stores a range as a part of a group.
    fn member(&mut self, content: Vec<u8>, kind: usize) -> Result<Digest> {
        let digest = Digest::of_bytes(&content);
        if self.store.has(digest, false)? || !self.pending.insert((key(digest), false)) {
            return Ok(digest);
        }
        let group = &mut self.groups[kind];
        // Fits: a group is a few MiB.
        group
            .members
            .push((digest, group.content.len() as u32, content.len() as u32));
        group.content.extend_from_slice(&content);
        if group.content.len() >= GROUP_LEN {
            self.end_group(kind)?;
        }
        Ok(digest)
    }

    fn end_group(&mut self, kind: usize) -> Result<()> {
        let Group {
            mut content,
            members,
        } = std::mem::take(&mut self.groups[kind]);
        if content.is_empty() {
            return Ok(());
        }
        content.resize(content.len().next_multiple_of(BLOCK), 0);
        self.encode(Job {
            digest: Digest::of_bytes(&content),
            content,
            members,
            is_group: true,
            probe: None,
        })
    }

    fn encode(&mut self, job: Job) -> Result<()> {
        let Self {
            encoders,
            store,
            segment,
            threads,
            is_dry,
            added,
            pending,
            ..
        } = self;
        encoders.add(job, &mut |new| {
            *added += new.bytes.len() as u64;
            if *is_dry {
                return Ok(());
            }
            if let Some(committed) = append(store, segment, *threads, &new)? {
                for range in &committed.ranges {
                    pending.remove(&(key(range.digest), true));
                }
                for member in &committed.members {
                    pending.remove(&(key(member.digest), false));
                }
            }
            Ok(())
        })
    }

    /// Adds an entry to the tree.
    fn record(&mut self, record: &Record) -> Result<()> {
        let mut tree = std::mem::replace(&mut self.tree, TreeWriter::new(self.store.cuts.clone()));
        tree.add(record, &mut |leaf| self.member(leaf, LEAVES))?;
        self.tree = tree;
        Ok(())
    }

    /// Stores all that waits. Returns the tree, and the states of its files.
    fn finish(mut self) -> Result<(Vec<Digest>, SeenWriter)> {
        let tree = std::mem::replace(&mut self.tree, TreeWriter::new(self.store.cuts.clone()));
        let tree = tree.finish(&mut |leaf| self.member(leaf, LEAVES))?;
        self.end_group(FILES)?;
        self.end_group(LEAVES)?;
        let Self {
            mut encoders,
            store,
            mut segment,
            threads,
            is_dry,
            mut added,
            report,
            ..
        } = self;
        encoders.finish(&mut |new| {
            added += new.bytes.len() as u64;
            match is_dry {
                true => Ok(()),
                false => append(store, &mut segment, threads, &new).map(|_| ()),
            }
        })?;
        if let Some(segment) = segment {
            store.commit(&segment, threads)?;
        }
        // Without the directories of segments, which a run that writes counts as well.
        report.stored_bytes = added;
        Ok((tree, self.seen))
    }
}

/// Appends a range to the open segment. One that is full is committed before, and returned.
pub(crate) fn append(
    store: &mut Store,
    segment: &mut Option<Directory>,
    threads: usize,
    new: &NewRange,
) -> Result<Option<Directory>> {
    let len = new.bytes.len() as u64;
    let is_full = |segment: &mut Directory| {
        u64::from(segment.blocks) * BLOCK as u64 + len > SEGMENT_MAX
            || segment.header().len() > DIRECTORY_FULL
    };
    let full = segment.take_if(is_full);
    if let Some(full) = &full {
        store.commit(full, threads)?;
    }
    let open = match segment {
        Some(open) => open,
        None => {
            let has_room = |pack: &Pack| !pack.is_missing() && pack.len() + SEGMENT_MAX <= PACK_MAX;
            if !store.packs.last().is_some_and(has_room) {
                store.add_pack()?;
            }
            // Fits: at most 63.
            let pack = (store.packs.len() - 1) as u16;
            segment.insert(Directory {
                number: store.next_segment(),
                pack,
                start: store.packs[usize::from(pack)].end,
                ..Directory::default()
            })
        }
    };
    let pack = &store.packs[usize::from(open.pack)];
    pack.write(&new.bytes, open.start + open.blocks)?;
    open.add(new);
    Ok(full)
}

fn meta(metadata: &Metadata) -> Meta {
    Meta {
        // Fits: 12 bits.
        mode: (metadata.mode() & 0o7777) as u16,
        uid: metadata.uid(),
        gid: metadata.gid(),
        mtime: metadata.mtime(),
        // Fits: below 10^9.
        mtime_nsec: metadata.mtime_nsec() as u32,
    }
}

/// Directory above a source: its attributes without its time, which other things change.
fn directory(path: &Path) -> Result<Record> {
    let metadata = retry(|| fs::symlink_metadata(path));
    let metadata =
        metadata.map_err(|e| Error::io(Place::file(path.display()), "cannot examine", e))?;
    Ok(Record {
        // Fits: a path of the host is shorter.
        depth: (path.components().count() - 1) as u32,
        name: path.file_name().unwrap_or_default().as_bytes().to_vec(),
        kind: Kind::Dir,
        meta: Meta {
            mtime: 0,
            mtime_nsec: 0,
            ..meta(&metadata)
        },
        xattrs: Vec::new(),
        ranges: Vec::new(),
    })
}
