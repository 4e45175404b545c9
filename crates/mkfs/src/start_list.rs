//! Start list of an image: files that a start reads, and the ranges of their data once all data is placed.
//!
//! ```text
//! paths ──► inodes ──► order of data, order of inodes ──► [pack] ──► ranges ──► list
//! ```

use crate::base::Bases;
use crate::layout::Parts;
use crate::pack::address::{GrainAddr, Location};
use crate::pack::{FileData, FileTail};
use crate::start::StartFile;
use crate::tree::order::resolve_name;
use crate::tree::{InodeId, PACKED, ROOT, Tree};
use hashbrown::HashSet;
use std::collections::BTreeMap;
use std::ops::Range;
use tuff_format::start_list::{self, StartList};
use tuff_format::{BlockAddr, DeviceId};

/// Files of the tree that a start reads.
#[derive(Default)]
pub(crate) struct Listed {
    /// Regular files with data in the order in which they are wanted, each with the parts that come first. A file may come twice:
    /// with its first parts, and later with all of it. Unit: bytes.
    files: Vec<(InodeId, Vec<Range<u64>>)>,
    /// The same files without their parts, each once.
    order: Vec<InodeId>,
    /// The files, other inodes at listed paths, and the directories above them.
    inodes: HashSet<InodeId>,
    /// The data of the image lies in the order of the list.
    lays_out: bool,
}

impl Listed {
    /// Finds the files in a finished tree. `lays_out` places their data together.
    pub(crate) fn new(tree: &Tree, files: &[StartFile], lays_out: bool) -> Self {
        let mut this = Self {
            lays_out,
            ..Self::default()
        };
        let mut seen = HashSet::new();
        for file in files {
            let names = file.path.split(|byte| *byte == b'/');
            let mut inode = ROOT;
            let found = names
                .filter(|name| !name.is_empty() && *name != b".")
                .all(|name| {
                    this.inodes.insert(inode);
                    let child = resolve_name(tree, inode, name);
                    child.inspect(|child| inode = *child).is_some()
                });
            if !found {
                continue;
            }
            this.inodes.insert(inode);
            if tree.size(inode) > 0 {
                this.files.push((inode, file.first.clone()));
                if seen.insert(inode) {
                    this.order.push(inode);
                }
            }
        }
        if !files.is_empty() {
            this.inodes.insert(ROOT);
        }
        this
    }

    /// Returns true if the image has no list.
    pub(crate) fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    /// Moves the listed files to the end of the order of data, in the order of the list. Returns them.
    pub(crate) fn order_data(&self, order: &mut Vec<InodeId>) -> HashSet<InodeId> {
        if !self.lays_out {
            return HashSet::new();
        }
        let listed: HashSet<InodeId> = self.order.iter().copied().collect();
        order.retain(|inode| !listed.contains(inode));
        order.extend(&self.order);
        listed
    }

    /// Moves the inodes that a start needs to the front, after the root. Returns their number.
    pub(crate) fn order_inodes(&self, order: &mut Vec<InodeId>) -> usize {
        let (needed, others): (Vec<_>, Vec<_>) = std::mem::take(order)
            .into_iter()
            .partition(|inode| self.inodes.contains(inode));
        let count = needed.len();
        order.extend(needed);
        order.extend(others);
        count
    }

    /// Returns the list of an image whose data is placed. Metadata is added later. `None` without listed files.
    pub(crate) fn list(&self, parts: &Parts<'_>) -> Option<StartList> {
        if self.is_empty() {
            return None;
        }
        let mut ranges = Ranges::new(parts);
        for (inode, first) in &self.files {
            match first[..] {
                [] => ranges.add_file(*inode, 0..u64::MAX),
                _ => (first.iter()).for_each(|part| ranges.add_file(*inode, part.clone())),
            }
        }
        for (inode, _) in self.files.iter().filter(|(_, first)| !first.is_empty()) {
            ranges.add_file(*inode, 0..u64::MAX);
        }
        Some(StartList {
            // Fits: inodes are counted in 32 bits.
            files: self.order.len() as u32,
            meta: (BlockAddr(0), 0),
            ranges: ranges.list,
        })
    }
}

/// Collects ranges of blocks in the order in which they are wanted, each block once.
struct Ranges<'a> {
    parts: &'a Parts<'a>,
    /// Pieces of the packed inode: start in the inode, place and length in bytes.
    packed: Vec<(u64, DeviceId, Range<u64>)>,
    list: Vec<start_list::Range>,
    /// Listed blocks: device and first block, each with the end.
    listed: BTreeMap<(u16, u64), u64>,
}

impl<'a> Ranges<'a> {
    fn new(parts: &'a Parts<'a>) -> Self {
        let mut this = Self {
            parts,
            packed: Vec::new(),
            list: Vec::new(),
            listed: BTreeMap::new(),
        };
        let mut at = 0;
        if let Some(data) = parts.data(PACKED).compressed() {
            for (place, piece) in data.pieces() {
                let (device, bytes) = this.cluster(place, piece.grains);
                this.packed.push((at, device, bytes));
                at += u64::from(piece.len);
            }
        }
        this
    }

    /// Returns the place of a cluster.
    fn cluster(&self, place: GrainAddr, grains: u16) -> (DeviceId, Range<u64>) {
        let grain = self.parts.options.grain();
        // Fits: a block has at most 2048 grains.
        let per_block = (self.parts.bits().size() / grain.size() as u64) as u32;
        let (device, at) = match (place.location(), self.parts.base) {
            (Location::Base(at), Some(bases)) => bases.on_device(at, per_block),
            (Location::Base(at) | Location::Image(at), _) => (DeviceId::PRIMARY, at),
        };
        let start = grain.bytes(at);
        (device, start..start + grain.bytes(grains.into()))
    }

    /// Adds the data of a part of a file.
    fn add_file(&mut self, inode: InodeId, part: Range<u64>) {
        let size = self.parts.tree.size(inode);
        let part = part.start..part.end.min(size);
        if part.is_empty() {
            return;
        }
        let parts = self.parts;
        match parts.data(inode) {
            FileData::None | FileData::Same(_) => {}
            FileData::Flat { block, tail } => {
                let end = size - tail.map_or(0, |tail| tail.len() as u64);
                self.add_flat(block.location(), part.start..part.end.min(end));
            }
            FileData::WholeFragment { offset } => self.add_packed(offset.offset(), part),
            data => match (data.compressed(), data.chunks(size, parts.bits())) {
                (Some(data), _) => {
                    let mut next = 0;
                    for (place, piece) in data.pieces() {
                        let at = next;
                        next += u64::from(piece.len);
                        if next <= part.start || at >= part.end {
                            continue;
                        }
                        match data.tail {
                            FileTail::Fragment(offset) if piece.grains == 0 => {
                                let within = part.start.max(at) - at..part.end.min(next) - at;
                                self.add_packed(offset.offset(), within);
                            }
                            _ if piece.grains == 0 => {}
                            _ => {
                                let (device, bytes) = self.cluster(place, piece.grains);
                                self.add(device, bytes);
                            }
                        }
                    }
                }
                (None, Some(chunks)) => {
                    let external = DeviceId(chunks.external.into());
                    let block_bytes = parts.bits().size();
                    let len = block_bytes << chunks.bits;
                    for (run, block) in chunks.runs() {
                        let from = part.start.max(run.first.saturating_mul(len));
                        let to = part.end.min((run.first + run.count).saturating_mul(len));
                        if from >= to {
                            continue;
                        }
                        let (device, block) = match (block.location(), parts.base) {
                            (Location::Base(block), Some(bases)) => bases.block_on_device(block),
                            (Location::Base(block) | Location::Image(block), _) => {
                                (external, block)
                            }
                        };
                        let at = u64::from(block) * block_bytes;
                        let start = run.first * len;
                        self.add(device, at + (from - start)..at + (to - start));
                    }
                }
                (None, None) => {}
            },
        }
    }

    /// Adds bytes of data in consecutive blocks from `at` on.
    fn add_flat(&mut self, at: Location, bytes: Range<u64>) {
        if bytes.is_empty() {
            return;
        }
        let (device, block) = match (at, self.parts.base) {
            (Location::Base(block), Some(bases)) => Bases::block_on_device(bases, block),
            (Location::Base(block) | Location::Image(block), _) => (DeviceId::PRIMARY, block),
        };
        let start = u64::from(block) * self.parts.bits().size();
        self.add(device, start + bytes.start..start + bytes.end);
    }

    /// Adds the clusters of a range that starts at `offset` of the packed inode.
    fn add_packed(&mut self, offset: u64, part: Range<u64>) {
        let range = offset.saturating_add(part.start)..offset.saturating_add(part.end);
        if let FileData::Flat { block, .. } = self.parts.data(PACKED) {
            return self.add_flat(block.location(), range);
        }
        let first = self.packed.partition_point(|(at, ..)| *at <= range.start);
        for i in first.saturating_sub(1)..self.packed.len() {
            let (at, device, bytes) = self.packed[i].clone();
            if at >= range.end {
                break;
            }
            self.add(device, bytes);
        }
    }

    /// Adds the blocks of a range of bytes that are not listed yet.
    fn add(&mut self, device: DeviceId, bytes: Range<u64>) {
        let bits = self.parts.bits();
        let (mut at, end) = (bytes.start >> bits.get(), bits.count(bytes.end));
        while at < end {
            let before = self.listed.range(..=(device.0, at)).next_back();
            if let Some(((on, _), listed_end)) = before
                && *on == device.0
                && *listed_end > at
            {
                at = *listed_end;
                continue;
            }
            let after = self.listed.range((device.0, at)..).next();
            let next = match after {
                Some(((on, start), _)) if *on == device.0 => end.min(*start),
                _ => end,
            };
            self.listed.insert((device.0, at), next);
            self.push(device, at, next);
            at = next;
        }
    }

    fn push(&mut self, device: DeviceId, at: u64, end: u64) {
        // Fits: a device has less than 2^31 blocks.
        let blocks = (end - at) as u32;
        match self.list.last_mut() {
            Some(last) if last.device == device && last.start.0 + u64::from(last.blocks) == at => {
                last.blocks += blocks;
            }
            _ => self.list.push(start_list::Range {
                start: BlockAddr(at),
                blocks,
                device,
            }),
        }
    }
}
