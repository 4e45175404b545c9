//! Neighbours of a part of a file that had to be fetched: the rest of a small file, the other files of its directory, and the
//! libraries that an ELF file needs.
//!
//! A read notes its file on its thread. The store that has to send a request for it calls back after it has sent the request,
//! and a thread of its own finds what belongs to the file. No read waits for that, and the thread waits for no request: metadata that
//! is not there yet is requested, and counts with the next miss. Where the kernel reads the image, only addresses are known, and a
//! map leads from them to files.

use crate::libraries::{Libraries, is_elf, part};
use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tuff_erofs::read::{FileType, Inode, Nid};
use tuff_erofs::serve::{Server, StoreRange, file_ranges};
use tuff_open::RemoteImage;

/// Longest file whose rest is requested. Unit: bytes.
const SMALL_FILE: u64 = 512 << 10;

/// Bytes of a directory that are requested. Unit: bytes.
const DIRECTORY_MAX: u64 = 8 << 20;

/// Bytes of a library that are requested. Unit: bytes.
const LIBRARY_MAX: u64 = 8 << 20;

/// Number of files whose libraries are looked for at once, and of misses with which they are looked for again.
const ELVES_MAX: usize = 8;
const LOOKS: u8 = 16;

/// Number of entries of a directory that are looked at.
const ENTRIES_MAX: usize = 4096;

/// Number of files whose directories are known, and of directories that were requested. They take some 32 bytes each.
const KNOWN_MAX: usize = 1 << 16;

/// Unit in which a store fetches. Unit: bytes.
const PART: u64 = 128 << 10;

/// Number of files in the map of addresses: 16 MiB.
pub(crate) const MAP_MAX: usize = (16 << 20) / size_of::<Mapped>();

/// Number of misses that wait for their turn. Others are dropped.
pub(crate) const QUEUE: usize = 64;

/// Number of no file: a thread that reads for requests in advance.
const OWN: Nid = Nid(u64::MAX);

/// Shortest time between two maps of addresses, the first of which had not all metadata.
const MAP_INTERVAL: Duration = Duration::from_secs(1);

thread_local! {
    /// File that this thread reads.
    static READ: Cell<Option<Nid>> = const { Cell::new(None) };
}

/// Place of bytes that had to be fetched.
pub(crate) enum Miss {
    File(Nid),
    /// Store number, and position in it.
    Address(u16, u64),
}

/// Callback after a request for bytes that a read waits for: the number of the store, and the position in it.
pub type OnMiss = Arc<dyn Fn(u16, u64) + Send + Sync>;

/// Callback that requests ranges.
pub type RequestRanges = Box<dyn Fn(&[StoreRange]) + Send + Sync>;

/// Directories of the files that programs have looked up.
pub(crate) struct Parents(Mutex<HashMap<Nid, Nid>>);

impl Parents {
    pub(crate) fn note(&self, dir: Nid, nid: Nid) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(nid, dir);
    }

    fn directory_of(&self, nid: Nid) -> Option<Nid> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&nid).copied()
    }
}

/// Notes the file that this thread reads, until it is dropped.
pub(crate) struct Reading;

impl Reading {
    pub(crate) fn start(nid: Nid) -> Self {
        READ.set(Some(nid));
        Self
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        READ.set(None);
    }
}

/// File at an address.
#[derive(Clone, Copy)]
struct Mapped {
    pos: u64,
    /// End of the file, were it stored as it is.
    end: u64,
    store: u16,
    nid: Nid,
    dir: Nid,
}

/// Files of an image by the addresses of their first bytes, as many as fit.
struct AddressMap {
    files: Vec<Mapped>,
    made: Instant,
    /// True if all metadata could be read.
    is_complete: bool,
}

impl AddressMap {
    /// Map of at most `max` files. Of more files it has every second one, or fewer.
    fn new(server: &Server, max: usize) -> Self {
        let (mut files, mut step, mut count) = (Vec::new(), 1, 0usize);
        let mut is_complete = true;
        let image = server.image();
        let root = image.root().map(|root| root.nid());
        let mut seen: HashSet<Nid> = root.iter().copied().collect();
        let mut directories: Vec<Nid> = root.into_iter().collect();
        while let Some(dir) = directories.pop() {
            // Damage is reported to the program that reads the directory.
            let Ok(inode) = server.inode(dir) else {
                is_complete = false;
                continue;
            };
            let listed = server.list_inodes(&inode, 0, |entry, inode| {
                let Ok(inode) = inode else {
                    is_complete = false;
                    return true;
                };
                if inode.is_dir() && seen.len() < KNOWN_MAX && seen.insert(entry.nid) {
                    directories.push(entry.nid);
                }
                if inode.file_type() != FileType::File {
                    return true;
                }
                count += 1;
                if count.is_multiple_of(step)
                    && let Some(first) = file_ranges(image, &inode, 0..1).first()
                {
                    files.push(Mapped {
                        pos: first.range.start,
                        end: first.range.start.saturating_add(inode.size()),
                        store: first.store,
                        nid: entry.nid,
                        dir,
                    });
                }
                if files.len() >= max {
                    step *= 2;
                    let mut is_kept = false;
                    files.retain(|_| {
                        is_kept = !is_kept;
                        is_kept
                    });
                }
                true
            });
            is_complete &= listed.is_ok();
        }
        files.sort_unstable_by_key(|file| (file.store, file.pos));
        Self {
            files,
            made: Instant::now(),
            is_complete,
        }
    }

    /// True if another map may have more files.
    fn is_old(&self) -> bool {
        !self.is_complete && self.made.elapsed() >= MAP_INTERVAL
    }

    /// File in a part of a store that begins at an address: the one that starts before it, or the first one in it.
    fn find(&self, store: u16, pos: u64) -> Option<Mapped> {
        let after = self
            .files
            .partition_point(|file| (file.store, file.pos) <= (store, pos));
        let before = self.files[..after].last().filter(|file| pos < file.end);
        let in_part = |file: &&Mapped| file.pos < pos.saturating_add(PART);
        let file = before.or_else(|| self.files.get(after).filter(in_part));
        file.filter(|file| file.store == store).copied()
    }
}

/// Finder of what belongs to files that had to be fetched, and the places of these.
pub struct Neighbours {
    finder: Finder,
    missed: Receiver<Miss>,
}

/// Finder of what belongs to files that had to be fetched.
pub(crate) struct Finder {
    server: Arc<Server>,
    parents: Arc<Parents>,
    /// Requests the rest of a file that a program reads.
    ahead: RequestRanges,
    /// Requests other files.
    near: RequestRanges,
    /// Files and directories that were requested.
    files: HashSet<Nid>,
    directories: HashSet<Nid>,
    /// Files with their directories whose libraries are not all known, and the number of misses with which they are looked for.
    elves: VecDeque<(Inode, Nid, u8)>,
    libraries: Option<Libraries>,
    /// Files by their addresses, as soon as an address is looked for, and their largest number.
    map: Option<AddressMap>,
    map_max: usize,
}

/// Marks this thread as one that reads for requests in advance. Its misses are none of programs.
pub(crate) fn find_in_this_thread() {
    READ.set(Some(OWN));
}

/// True if this thread reads for requests in advance.
pub(crate) fn is_finder() -> bool {
    READ.get() == Some(OWN)
}

impl Neighbours {
    /// Finder for the files of `server`, and the callback of its store after a request that a read waits for.
    pub(crate) fn new(
        server: Arc<Server>,
        ahead: RequestRanges,
        near: RequestRanges,
    ) -> (Self, Arc<Parents>, OnMiss) {
        let (sender, missed) = sync_channel(QUEUE);
        let on_miss = on_miss(sender, |_, _| READ.get().map(Miss::File));
        let finder = Finder::new(server, [ahead, near], MAP_MAX);
        let parents = Arc::clone(&finder.parents);
        (Self { finder, missed }, parents, on_miss)
    }

    /// Finder for an image whose reads are known by their addresses only, and the callback of its store.
    pub fn by_address(
        server: Arc<Server>,
        ahead: RequestRanges,
        near: RequestRanges,
    ) -> (Self, OnMiss) {
        let (sender, missed) = sync_channel(QUEUE);
        // Lists are read in threads of their own, whose requests are no misses of programs.
        let address = move |store, pos| (!is_finder()).then_some(Miss::Address(store, pos));
        let on_miss = on_miss(sender, address);
        let finder = Finder::new(server, [ahead, near], MAP_MAX);
        (Self { finder, missed }, on_miss)
    }

    /// Requests what belongs to files, as they are missed.
    pub fn run(mut self) {
        RemoteImage::never_wait_in_this_thread();
        for miss in &self.missed {
            self.finder.request(&miss);
        }
    }
}

impl Finder {
    /// Finder for the files of `server`, with the requests for the rest of a file and for other files. It knows the addresses
    /// of at most `map_max` files.
    pub(crate) fn new(
        server: Arc<Server>,
        [ahead, near]: [RequestRanges; 2],
        map_max: usize,
    ) -> Self {
        Self {
            server,
            parents: Arc::new(Parents(Mutex::default())),
            ahead,
            near,
            files: HashSet::new(),
            directories: HashSet::new(),
            elves: VecDeque::new(),
            libraries: None,
            map: None,
            map_max,
        }
    }

    /// Requests what belongs to the file that was missed.
    pub(crate) fn request(&mut self, miss: &Miss) {
        let (nid, dir) = match *miss {
            Miss::File(OWN) => return,
            Miss::File(nid) => (nid, self.parents.directory_of(nid)),
            Miss::Address(store, pos) => {
                self.map.take_if(|map| map.is_old());
                let new = || AddressMap::new(&self.server, self.map_max);
                match self.map.get_or_insert_with(new).find(store, pos) {
                    Some(file) => (file.nid, Some(file.dir)),
                    None => return,
                }
            }
        };
        // Damage is reported to the program that reads the file.
        let Ok(inode) = self.server.inode(nid) else {
            return;
        };
        let is_new_file = is_new(&mut self.files, nid);
        if inode.size() <= SMALL_FILE && is_new_file {
            let rest = file_ranges(self.server.image(), &inode, 0..inode.size());
            (self.ahead)(&rest);
        }
        let Some(dir) = dir else {
            return;
        };
        if is_new(&mut self.directories, dir) {
            let (others, is_complete) = self.others(dir, nid);
            (self.near)(&others);
            if !is_complete {
                self.directories.remove(&dir);
            }
        }
        if is_new_file {
            self.elves.truncate(ELVES_MAX - 1);
            self.elves.push_front((inode, dir, LOOKS));
        }
        self.request_libraries();
    }

    /// Requests the libraries of ELF files, as far as the files are there.
    fn request_libraries(&mut self) {
        let image = self.server.image();
        for (inode, dir, looks) in std::mem::take(&mut self.elves) {
            let is_complete = match part(image, &inode, 0, 4) {
                Some(head) if !is_elf(&head) => true,
                Some(_) => {
                    self.libraries = self.libraries.take().or_else(|| Libraries::new(image));
                    let request = |found: &[Inode]| {
                        let ranges = |inode: &Inode| file_ranges(image, inode, 0..LIBRARY_MAX);
                        (self.near)(&found.iter().flat_map(ranges).collect::<Vec<_>>());
                    };
                    let libraries = self.libraries.as_ref();
                    libraries.is_some_and(|known| known.find(image, (inode, dir), &request))
                }
                None => false,
            };
            if !is_complete && looks > 1 {
                self.elves.push_back((inode, dir, looks - 1));
            }
        }
    }

    /// Ranges of the other files of a directory, from the one after `nid` on. Returns false with them if metadata is missing.
    fn others(&self, dir: Nid, nid: Nid) -> (Vec<StoreRange>, bool) {
        let mut files: Vec<Inode> = Vec::new();
        let mut after = 0;
        let mut entries = 0;
        let mut is_complete = true;
        let Ok(dir) = self.server.inode(dir) else {
            return (Vec::new(), false);
        };
        // Damage is reported to the program that reads the directory.
        let listed = self.server.list_inodes(&dir, 0, |entry, inode| {
            is_complete &= inode.is_ok();
            if entry.nid == nid {
                after = files.len();
            } else if let Ok(inode) = inode
                && inode.file_type() == FileType::File
                && (1..=DIRECTORY_MAX).contains(&inode.size())
            {
                files.push(inode);
            }
            entries += 1;
            entries < ENTRIES_MAX
        });
        is_complete &= listed.is_ok();
        files.rotate_left(after);
        let mut left = DIRECTORY_MAX;
        let mut ranges = Vec::new();
        for inode in files {
            let of_file = file_ranges(self.server.image(), &inode, 0..inode.size());
            let bytes = of_file.iter().map(|of| of.range.end - of.range.start).sum();
            if let Some(rest) = left.checked_sub(bytes) {
                left = rest;
                ranges.extend(of_file);
            }
        }
        (ranges, is_complete)
    }
}

/// Callback that passes on misses. What finds no place is not requested in advance.
fn on_miss(
    misses: SyncSender<Miss>,
    miss: impl Fn(u16, u64) -> Option<Miss> + Send + Sync + 'static,
) -> OnMiss {
    Arc::new(move |store, pos| {
        if let Some(miss) = miss(store, pos) {
            let _ = misses.try_send(miss);
        }
    })
}

/// Adds a number to those that were dealt with. Returns false if it is one of them.
fn is_new(done: &mut HashSet<Nid>, nid: Nid) -> bool {
    if done.len() >= KNOWN_MAX {
        done.clear();
    }
    done.insert(nid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tuff_erofs::serve::ServeOptions;
    use tuff_testkit::sample;

    #[test]
    fn an_address_leads_to_its_file_and_a_full_map_is_coarser() {
        let server = Server::new(sample::image("lz4"), ServeOptions::default());
        let map = AddressMap::new(&server, MAP_MAX);
        assert!(map.files.len() >= 4);
        for file in &map.files {
            let found = map.find(file.store, file.pos).unwrap();
            assert_eq!(found.pos, file.pos);
            let inode = server.inode(found.nid).unwrap();
            assert_eq!(inode.file_type(), FileType::File);
        }
        let last = map.files.iter().map(|file| file.end).max().unwrap();
        assert!(map.find(0, last).is_none() && map.find(7, 0).is_none());
        let coarse = AddressMap::new(&server, 3);
        assert!(coarse.files.len() < 3 && !coarse.files.is_empty());
    }

    #[test]
    fn a_miss_of_a_program_requests_its_libraries() {
        let image = crate::libraries::tests::image("neighbours-libraries");
        let app = image.resolve(b"/bin/app").unwrap().nid();
        let bin = image.resolve(b"/bin").unwrap().nid();
        let libc = image
            .resolve(b"/usr/lib/x86_64-linux-gnu/libc.so.6")
            .unwrap();
        let of_libc = file_ranges(&image, &libc, 0..libc.size());
        assert!(!of_libc.is_empty());
        let server = Arc::new(Server::new(image, ServeOptions::default()));
        let (sender, requested) = std::sync::mpsc::channel();
        let near = move |ranges: &[StoreRange]| sender.send(ranges.to_vec()).unwrap_or_default();
        let (neighbours, parents, on_miss) =
            Neighbours::new(server, Box::new(|_| ()), Box::new(near));
        parents.note(bin, app);
        std::thread::spawn(|| neighbours.run());
        let _reading = Reading::start(app);
        on_miss(0, 0);
        let wait = std::time::Duration::from_secs(60);
        loop {
            // Other files of its directory come before.
            let ranges = requested.recv_timeout(wait).unwrap();
            if of_libc.iter().all(|range| ranges.contains(range)) {
                break;
            }
        }
    }
}
