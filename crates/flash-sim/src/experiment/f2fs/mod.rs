//! F2FS model: the baseline, a log-structured filesystem with cleaning.
//!
//! The model covers the structures that determine I/O:
//!
//! * separate logs for hot, warm and cold data and nodes;
//! * sections as the unit of allocation and cleaning;
//! * node blocks addressed through the node address table (NAT);
//! * the segment information table (SIT), with current and checkpointed valid maps;
//! * checkpoints, foreground cleaning, slack space recycling and discards.
//!
//! The content of a block is one word. Simplifications and their effect on the comparison:
//! docs/design/experiments.md.
//!
//! Invariants, asserted by [`F2fs::assert_sound`]:
//!
//! * A valid block has one owner, and the owner's map or the node address table points to it.
//! * A block of the last checkpoint is not overwritten before the next one.
//! * A free section holds no block that is valid or belongs to the last checkpoint.

mod checkpoint;
mod cleaning;

use crate::experiment::disk::Shared;
use crate::experiment::error::Result;
use crate::experiment::error::failed;
use crate::experiment::filesystem::{Cleaned, FileId, Fs, Shape};
use crate::{Nanos, Payload};
use std::collections::BTreeSet;
use std::ops::Range;

/// Block addresses in an inode and in a direct node, as in F2FS.
const INODE_ADDRS: u64 = 923;
const NODE_ADDRS: u64 = 1018;
/// Blocks of an F2FS segment: the number of entries of a summary block, and the blocks cleaned in a
/// round.
const SEGMENT: u64 = 512;
/// Entries of a SIT block and of a NAT block, and entries that fit in the journals instead.
const SIT_ENTRIES: u64 = 55;
const NAT_ENTRIES: u64 = 455;
const NAT_JOURNAL: usize = 38;
const SIT_JOURNAL: usize = 6;
/// Directory entries in a dentry block.
const DENTRIES: u32 = 214;
/// Blocks of a checkpoint pack: header, summaries, footer.
const PACK_BLOCKS: u64 = 6;
/// Number of batched cleaning rounds per checkpoint.
const BATCH: u64 = 8;

const NONE: u32 = u32::MAX;
const NODE: u64 = 1 << 63;
const NOBODY: u64 = u64::MAX;

/// Policy for the allocation of blocks in sections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Allocates only in free sections.
    Lfs,
    /// Also allocates holes of used sections if free sections run short (slack space recycling).
    Ssr,
}

/// I/O pattern of foreground cleaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cleaner {
    /// Single-block reads, one after the other, and a checkpoint after each round. Slower than
    /// F2FS, which reads ahead.
    Synchronous,
    /// The closest model of F2FS foreground cleaning: adjacent blocks share a read, and reads are
    /// issued one after the other. Each round waits for its writes and ends with a checkpoint.
    ReadAhead,
    /// Lower bound of the cost: all reads of a round in parallel, queued writes, a checkpoint every
    /// eight rounds. The remaining cost is bandwidth.
    Batched,
}

/// Settings of an F2FS model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Blocks of a section, a power of two.
    pub section_blocks: u64,
    /// Policy for the allocation of blocks in sections.
    pub mode: Mode,
    /// I/O pattern of foreground cleaning.
    pub cleaner: Cleaner,
    /// Sections are device zones: each log has its own stream. Freed sections are reset at once;
    /// smaller ranges are not discarded.
    pub zoned: bool,
}

/// Logs, in the order of the device streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Log {
    HotNode,
    WarmNode,
    HotData,
    WarmData,
    ColdData,
}

const LOGS: [Log; 5] = [
    Log::HotNode,
    Log::WarmNode,
    Log::HotData,
    Log::WarmData,
    Log::ColdData,
];

impl Log {
    fn is_node(self) -> bool {
        matches!(self, Log::HotNode | Log::WarmNode)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Current,
    Used,
    /// No block is valid, but the last checkpoint still uses the section.
    Prefree,
}

#[derive(Clone, Copy)]
struct Section {
    valid: u32,
    log: Log,
    state: State,
    /// Blocks of the section were invalidated since the last checkpoint.
    died: bool,
}

#[derive(Clone, Copy)]
struct Current {
    section: u32,
    next: u32,
    ssr: bool,
}

struct File {
    addrs: Vec<u32>,
    /// Node numbers: the inode, followed by direct nodes.
    nodes: Vec<u32>,
    directory: bool,
}

#[derive(Clone, Copy)]
struct Node {
    file: FileId,
    addr: u32,
}

/// F2FS model on a simulated disk.
pub struct F2fs {
    disk: Shared,
    options: Options,
    shape: Shape,
    main_start: u64,
    meta_at: u64,
    user_blocks: u64,
    reserved: u64,
    sections: Vec<Section>,
    valid: Vec<u64>,
    checkpointed: Vec<u64>,
    owner: Vec<u64>,
    logs: [Current; LOGS.len()],
    free: BTreeSet<u32>,
    prefree: Vec<u32>,
    files: Vec<Option<File>>,
    nodes: Vec<Node>,
    dirty_data: BTreeSet<(FileId, u32)>,
    dirty_nodes: BTreeSet<u32>,
    changed_nids: BTreeSet<u32>,
    changed_sections: BTreeSet<u32>,
    live: u64,
    appended: u64,
    summaries: u64,
    /// Contiguous blocks not yet submitted: address, content and stream.
    batch: Option<(u64, Vec<Payload>, u32)>,
    next_checkpoint: Nanos,
    victims: u64,
    cleaning: bool,
    cleaned: Cleaned,
    word: u64,
}

fn get(bits: &[u64], at: u64) -> bool {
    bits[(at / 64) as usize] >> (at % 64) & 1 == 1
}

fn put(bits: &mut [u64], at: u64, value: bool) {
    let word = &mut bits[(at / 64) as usize];
    *word = *word & !(1 << (at % 64)) | u64::from(value) << (at % 64);
}

/// The directory that contains every file.
const ROOT: FileId = 0;

impl F2fs {
    /// Creates an empty filesystem. Panics unless a section is a power of two of blocks.
    pub fn new(disk: Shared, shape: Shape, options: Options) -> Result<Self> {
        assert!(options.section_blocks.is_power_of_two());
        let total = shape.partition_blocks;
        // Two checkpoint packs, two copies of the tables, and the summaries.
        let tables = 2 * (total / SEGMENT).div_ceil(SIT_ENTRIES) + 2 * total.div_ceil(NAT_ENTRIES);
        let meta = 4 + 4 * PACK_BLOCKS + tables + total / SEGMENT;
        let main_start = meta.next_multiple_of(options.section_blocks);
        let sections = (total - main_start) / options.section_blocks;
        // The over-provisioning ratio that maximises the user capacity, as in mkfs.f2fs.
        let (user_sections, reserved) = (1..=60)
            .map(|share| {
                let reserved = 2 * (100 / share + 1) + 6;
                let rest = sections.saturating_sub(reserved);
                (rest - rest * share / 100, reserved)
            })
            .max_by_key(|(user, _)| *user)
            .unwrap_or((0, 0));
        let blocks = sections * options.section_blocks;
        let words = blocks.div_ceil(64) as usize;
        let mut fs = Self {
            disk,
            options,
            shape,
            main_start,
            meta_at: 0,
            user_blocks: user_sections * options.section_blocks,
            reserved,
            sections: vec![
                Section {
                    valid: 0,
                    log: Log::WarmData,
                    state: State::Free,
                    died: false,
                };
                sections as usize
            ],
            valid: vec![0; words],
            checkpointed: vec![0; words],
            owner: vec![NOBODY; blocks as usize],
            logs: [Current {
                section: NONE,
                next: 0,
                ssr: false,
            }; LOGS.len()],
            free: (0..sections as u32).collect(),
            prefree: Vec::new(),
            files: Vec::new(),
            nodes: Vec::new(),
            dirty_data: BTreeSet::new(),
            dirty_nodes: BTreeSet::new(),
            changed_nids: BTreeSet::new(),
            changed_sections: BTreeSet::new(),
            live: 0,
            appended: 0,
            summaries: 0,
            batch: None,
            next_checkpoint: shape.checkpoint_every,
            victims: 0,
            cleaning: false,
            cleaned: Cleaned::default(),
            word: 0,
        };
        fs.new_file(true)?;
        fs.checkpoint()?;
        Ok(fs)
    }

    /// Number of sections in the main area, and the user capacity in blocks.
    pub fn sizes(&self) -> (usize, u64) {
        (self.sections.len(), self.user_blocks)
    }

    fn section_of(&self, addr: u32) -> usize {
        (u64::from(addr) / self.options.section_blocks) as usize
    }

    // ---- blocks ----

    /// Assigns the next block of a log to an owner and returns its address.
    fn allocate(&mut self, log: Log, owner: u64) -> Result<u32> {
        let size = self.options.section_blocks as u32;
        let current = loop {
            let c = &mut self.logs[log as usize];
            if c.section != NONE {
                if c.ssr {
                    // Skip blocks that are valid or belong to the last checkpoint.
                    let start = u64::from(c.section) * self.options.section_blocks;
                    while c.next < size {
                        let at = start + u64::from(c.next);
                        if !get(&self.valid, at) && !get(&self.checkpointed, at) {
                            break;
                        }
                        c.next += 1;
                    }
                }
                if c.next < size {
                    break *c;
                }
            }
            self.new_section(log)?;
        };
        self.logs[log as usize].next += 1;
        let addr = current.section * size + current.next;
        put(&mut self.valid, addr.into(), true);
        self.owner[addr as usize] = owner;
        self.sections[current.section as usize].valid += 1;
        self.changed_sections.insert(current.section);
        self.appended += 1;
        if self.appended.is_multiple_of(SEGMENT) {
            self.summaries += 1;
        }
        Ok(addr)
    }

    fn new_section(&mut self, log: Log) -> Result<()> {
        let old = self.logs[log as usize].section;
        if old != NONE {
            self.sections[old as usize].state = State::Used;
            self.logs[log as usize].section = NONE;
            self.retire_if_empty(old);
        }
        if self.options.mode == Mode::Ssr && self.short_of(2 * self.reserved) {
            // Prefer the section of the same log with most holes, then one of any log of the same
            // type.
            let holes = |s: &u32| self.holes(*s);
            let used = || {
                (0..self.sections.len() as u32)
                    .filter(|s| self.sections[*s as usize].state == State::Used)
            };
            let pick = used()
                .filter(|s| self.sections[*s as usize].log == log)
                .max_by_key(holes)
                .filter(|s| self.holes(*s) > 0)
                .or_else(|| {
                    used()
                        .filter(|s| self.sections[*s as usize].log.is_node() == log.is_node())
                        .max_by_key(holes)
                        .filter(|s| self.holes(*s) > 0)
                });
            if let Some(section) = pick {
                self.take(log, section, true);
                return Ok(());
            }
        }
        // The next free section after the previous one of the log, as in F2FS.
        let from = if old == NONE { 0 } else { old };
        let section = self
            .free
            .range(from..)
            .next()
            .or(self.free.first())
            .copied();
        let Some(section) = section else {
            return Err(failed("allocate", &"no free section"));
        };
        self.free.remove(&section);
        self.take(log, section, false);
        Ok(())
    }

    fn take(&mut self, log: Log, section: u32, ssr: bool) {
        let s = &mut self.sections[section as usize];
        (s.state, s.log) = (State::Current, log);
        self.logs[log as usize] = Current {
            section,
            next: 0,
            ssr,
        };
    }

    /// Number of blocks of a section that may be overwritten.
    fn holes(&self, section: u32) -> u64 {
        let size = self.options.section_blocks;
        let start = u64::from(section) * size;
        let mask = if size < 64 { (1 << size) - 1 } else { u64::MAX };
        let words = (start / 64) as usize..((start + size).div_ceil(64)) as usize;
        let taken = words.map(|w| {
            let taken = self.valid[w] | self.checkpointed[w];
            u64::from((taken >> (start % 64) & mask).count_ones())
        });
        size - taken.sum::<u64>()
    }

    fn invalidate(&mut self, addr: u32) {
        if addr == NONE {
            return;
        }
        put(&mut self.valid, addr.into(), false);
        self.owner[addr as usize] = NOBODY;
        let section = self.section_of(addr) as u32;
        let s = &mut self.sections[section as usize];
        s.valid -= 1;
        s.died = true;
        self.changed_sections.insert(section);
        self.retire_if_empty(section);
    }

    fn retire_if_empty(&mut self, section: u32) {
        let s = &mut self.sections[section as usize];
        if s.valid == 0 && s.state == State::Used {
            s.state = State::Prefree;
            self.prefree.push(section);
        }
    }

    /// Queues a block for submission; contiguous blocks share a command.
    fn put_out(&mut self, addr: u32, log: Log) -> Result<()> {
        self.word += 1;
        let (lba, payload) = (self.main_start + u64::from(addr), Payload::Fill(self.word));
        let stream = if self.options.zoned {
            1 + log as u32
        } else {
            0
        };
        if let Some((start, blocks, s)) = &mut self.batch
            && *start + blocks.len() as u64 == lba
            && *s == stream
            && blocks.len() < 128
        {
            blocks.push(payload);
            return Ok(());
        }
        self.submit()?;
        self.batch = Some((lba, vec![payload], stream));
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        match self.batch.take() {
            Some((lba, blocks, stream)) => self.disk.lock().write(lba, blocks, stream),
            None => Ok(()),
        }
    }

    // ---- files and nodes ----

    fn new_file(&mut self, directory: bool) -> Result<FileId> {
        let id = self.files.len() as FileId;
        let inode = self.new_node(id);
        self.files.push(Some(File {
            addrs: Vec::new(),
            nodes: vec![inode],
            directory,
        }));
        Ok(id)
    }

    fn new_node(&mut self, file: FileId) -> u32 {
        self.nodes.push(Node { file, addr: NONE });
        let nid = self.nodes.len() as u32 - 1;
        self.dirty_nodes.insert(nid);
        self.live += 1;
        nid
    }

    fn file(&mut self, file: FileId) -> Result<&mut File> {
        let file = self.files.get_mut(file as usize).and_then(Option::as_mut);
        file.ok_or_else(|| failed("look up", &"no such file"))
    }

    /// Returns the node that holds the address of a block; missing nodes are created.
    fn node_of(&mut self, file: FileId, index: u64) -> Result<u32> {
        let ordinal = if index < INODE_ADDRS {
            0
        } else {
            1 + (index - INODE_ADDRS) / NODE_ADDRS
        };
        while self.file(file)?.nodes.len() as u64 <= ordinal {
            let nid = self.new_node(file);
            self.file(file)?.nodes.push(nid);
        }
        Ok(self.file(file)?.nodes[ordinal as usize])
    }

    fn node_log(&self, nid: u32) -> Log {
        let file = self.files[self.nodes[nid as usize].file as usize].as_ref();
        if file.is_some_and(|f| f.directory) {
            Log::HotNode
        } else {
            Log::WarmNode
        }
    }

    fn mark(&mut self, file: FileId, index: u64) -> Result<()> {
        let f = self.file(file)?;
        if f.addrs.len() as u64 <= index {
            f.addrs.resize(index as usize + 1, NONE);
        }
        let fresh = f.addrs[index as usize] == NONE;
        if self.dirty_data.insert((file, index as u32)) && fresh {
            self.live += 1;
        }
        Ok(())
    }

    /// Marks the dentry block of a file and the inode of its directory as dirty.
    fn touch_directory(&mut self, file: FileId) -> Result<()> {
        let blocks = (self.files.len() as u64).div_ceil(DENTRIES.into()).max(1);
        let index = crate::experiment::random::Rng::new(file.into()).below(blocks);
        self.mark(ROOT, index)?;
        let inode = self.node_of(ROOT, 0)?;
        self.dirty_nodes.insert(inode);
        Ok(())
    }

    fn write_data(&mut self, file: FileId, index: u32, log: Log) -> Result<()> {
        let addr = self.allocate(log, u64::from(file) << 32 | u64::from(index))?;
        let nid = self.node_of(file, index.into())?;
        let old = std::mem::replace(&mut self.file(file)?.addrs[index as usize], addr);
        self.invalidate(old);
        self.dirty_nodes.insert(nid);
        self.put_out(addr, log)
    }

    fn write_node(&mut self, nid: u32) -> Result<()> {
        self.dirty_nodes.remove(&nid);
        let log = self.node_log(nid);
        let addr = self.allocate(log, NODE | u64::from(nid))?;
        let old = std::mem::replace(&mut self.nodes[nid as usize].addr, addr);
        self.invalidate(old);
        self.changed_nids.insert(nid);
        self.put_out(addr, log)
    }

    /// Writes the dirty blocks of one file or of all files, cleaning before each block if
    /// necessary.
    fn write_back(&mut self, only: Option<FileId>) -> Result<()> {
        let list: Vec<(FileId, u32)> = match only {
            Some(file) => self
                .dirty_data
                .range((file, 0)..=(file, NONE))
                .copied()
                .collect(),
            None => self.dirty_data.iter().copied().collect(),
        };
        for (file, index) in list {
            self.balance()?;
            // Cleaning may have written the block already.
            if self.dirty_data.remove(&(file, index)) {
                let log = if self.file(file)?.directory {
                    Log::HotData
                } else {
                    Log::WarmData
                };
                self.write_data(file, index, log)?;
            }
        }
        self.submit()
    }

    /// Panics if the state of the filesystem is inconsistent. For tests.
    pub fn assert_sound(&self) {
        let mut valid = vec![0; self.sections.len()];
        for (addr, owner) in self.owner.iter().enumerate() {
            assert_eq!(
                get(&self.valid, addr as u64),
                *owner != NOBODY,
                "block {addr}"
            );
            if *owner == NOBODY {
                continue;
            }
            valid[self.section_of(addr as u32)] += 1;
            let place = if owner & NODE != 0 {
                self.nodes[(*owner & !NODE) as usize].addr
            } else {
                let file = self.files[(owner >> 32) as usize].as_ref();
                file.map_or(NONE, |f| f.addrs[*owner as u32 as usize])
            };
            assert_eq!(place, addr as u32, "owner of block {addr}");
        }
        for (i, s) in self.sections.iter().enumerate() {
            assert_eq!(s.valid, valid[i], "valid blocks of section {i}");
            assert_eq!(
                s.state == State::Free,
                self.free.contains(&(i as u32)),
                "section {i}"
            );
            if s.state == State::Free {
                assert_eq!(
                    self.holes(i as u32),
                    self.options.section_blocks,
                    "free section {i}"
                );
            }
        }
    }
}

impl Fs for F2fs {
    fn create(&mut self) -> Result<FileId> {
        let id = self.new_file(false)?;
        self.touch_directory(id)?;
        Ok(id)
    }

    fn write(&mut self, file: FileId, index: u64, count: u64) -> Result<()> {
        if self.live + count > self.user_blocks {
            return Err(failed("write", &"no space"));
        }
        for i in index..index + count {
            self.mark(file, i)?;
        }
        if self.dirty_data.len() as u64 > self.shape.dirty_max {
            self.write_back(None)?;
        }
        Ok(())
    }

    fn read(&mut self, file: FileId, index: u64, count: u64) -> Result<()> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for i in index..index + count {
            let addr = self.file(file)?.addrs.get(i as usize).copied();
            let Some(addr) = addr.filter(|a| *a != NONE) else {
                continue;
            };
            if self.dirty_data.contains(&(file, i as u32)) {
                continue;
            }
            let lba = self.main_start + u64::from(addr);
            match runs.last_mut() {
                Some(run) if run.end == lba => run.end += 1,
                _ => runs.push(lba..lba + 1),
            }
        }
        for run in runs {
            self.disk.lock().read(run.start, run.end - run.start)?;
        }
        Ok(())
    }

    fn fsync(&mut self, file: FileId) -> Result<()> {
        self.write_back(Some(file))?;
        let nodes: Vec<u32> = self.file(file)?.nodes.clone();
        for nid in nodes {
            if self.dirty_nodes.contains(&nid) {
                self.write_node(nid)?;
            }
        }
        self.submit()?;
        self.disk.lock().flush()
    }

    fn delete(&mut self, file: FileId) -> Result<()> {
        self.touch_directory(file)?;
        let Some(gone) = self.files[file as usize].take() else {
            return Err(failed("delete", &"no such file"));
        };
        for (index, addr) in gone.addrs.iter().enumerate() {
            let dirty = self.dirty_data.remove(&(file, index as u32));
            self.live -= u64::from(*addr != NONE || dirty);
            self.invalidate(*addr);
        }
        for nid in gone.nodes {
            self.dirty_nodes.remove(&nid);
            let addr = std::mem::replace(&mut self.nodes[nid as usize].addr, NONE);
            self.invalidate(addr);
            self.changed_nids.insert(nid);
            self.live -= 1;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.write_back(None)?;
        self.balance()?;
        self.checkpoint()
    }

    fn tick(&mut self) -> Result<()> {
        let now = self.disk.lock().now();
        if now >= self.next_checkpoint {
            self.balance()?;
            self.checkpoint()?;
        }
        Ok(())
    }

    fn capacity(&self) -> u64 {
        self.user_blocks
    }

    fn cleaned(&self) -> Cleaned {
        self.cleaned
    }

    fn disk(&self) -> &Shared {
        &self.disk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Preset;
    use crate::experiment::disk::{Discards, Disk};
    use crate::experiment::random::Rng;

    fn fs(mode: Mode, cleaner: Cleaner, zoned: bool) -> F2fs {
        let mut config = Preset::Nvme.config(1024);
        config.streams = if zoned { 6 } else { 1 };
        if zoned {
            config.striping = crate::Striping::InTurn;
        }
        let disk = Shared::new(Disk::new(config, Discards::Eager), 48);
        let shape = Shape {
            partition_blocks: 20_000,
            dirty_max: 256,
            checkpoint_every: Nanos::millis(500),
        };
        let options = Options {
            section_blocks: 32,
            mode,
            cleaner,
            zoned,
        };
        F2fs::new(disk, shape, options).unwrap()
    }

    #[test]
    fn cleaning_preserves_the_files_in_every_mode() {
        for mode in [Mode::Lfs, Mode::Ssr] {
            for cleaner in [Cleaner::Synchronous, Cleaner::ReadAhead, Cleaner::Batched] {
                let mut fs = fs(mode, cleaner, false);
                let mut rng = Rng::new(5);
                let big = fs.create().unwrap();
                let blocks = fs.capacity() * 8 / 10;
                let mut small = Vec::new();
                for step in 0..40_000 {
                    fs.write(big, rng.below(blocks), 1).unwrap();
                    if step % 50 == 0 {
                        let file = fs.create().unwrap();
                        fs.write(file, 0, 3).unwrap();
                        small.push(file);
                        if small.len() > 100 {
                            let gone = small.swap_remove(rng.below(100) as usize);
                            fs.delete(gone).unwrap();
                        }
                    }
                    if step % 700 == 0 {
                        fs.fsync(big).unwrap();
                    }
                    fs.tick().unwrap();
                }
                fs.sync().unwrap();
                fs.assert_sound();
                assert!(
                    fs.cleaned().moved_blocks > 0 || mode == Mode::Ssr,
                    "{mode:?}, {cleaner:?}"
                );
                let (mapped, live) = (fs.disk.lock().flash.mapped(), fs.live);
                assert!(mapped >= live, "{mapped} mapped, {live} live");
                fs.disk.lock().flash.assert_sound();
            }
        }
    }

    #[test]
    fn a_filesystem_on_zones_cleans_and_stays_consistent() {
        let mut fs = fs(Mode::Lfs, Cleaner::Batched, true);
        let file = fs.create().unwrap();
        let (blocks, mut rng) = (fs.capacity() / 2, Rng::new(1));
        for _ in 0..60_000 {
            fs.write(file, rng.below(blocks), 1).unwrap();
        }
        fs.assert_sound();
        assert!(fs.cleaned().rounds > 0);
    }

    #[test]
    fn a_full_filesystem_rejects_writes() {
        let mut fs = fs(Mode::Lfs, Cleaner::Batched, false);
        let file = fs.create().unwrap();
        let limit = fs.capacity();
        let wrote = (0..limit + 1)
            .take_while(|i| fs.write(file, *i, 1).is_ok())
            .count() as u64;
        assert!(
            wrote > limit * 98 / 100 && wrote < limit,
            "{wrote} of {limit}"
        );
        fs.delete(file).unwrap();
        fs.sync().unwrap();
        fs.assert_sound();
    }
}
