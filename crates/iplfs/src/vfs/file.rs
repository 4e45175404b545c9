//! File content: read, write, truncate, allocate, punch, find data and holes.

use crate::device::BlockDevice;
use crate::disk::address::{BLOCK_SIZE, Block, Log, Nid, zero_block};
use crate::disk::inode::{BlockMap, Content, INLINE_MAX, Time, mode};
use crate::disk::slot::Slot;
use crate::error::{Errno, Error, Result};
use crate::log::readers::ReaderGuard;
use crate::nodes::tree::BLOCKS_MAX;
use crate::volume::admission::Purpose;
use crate::volume::preallocation::PROMISED_LOG;
use crate::volume::state::{Volume, verify_data};
use std::ops::Range;
use std::sync::Arc;

const BS: u64 = BLOCK_SIZE as u64;
/// Maximum size of a file, limited by off_t and not by the tree. Unit: bytes.
pub const SIZE_MAX: u64 = {
    let tree = BLOCKS_MAX * BS;
    let signed = i64::MAX as u64;
    if tree < signed { tree } else { signed }
};
/// Longest target of a symbolic link: with its NUL, the longest path. Unit: bytes.
pub(crate) const TARGET_MAX: usize = BLOCK_SIZE - 1;
/// Part of a write that is admitted at once. Unit: bytes.
const WRITE_STEP: usize = 1 << 20;

/// Part of a reservation or hole that is processed at once. Unit: bytes.
const ALLOCATE_STEP: u64 = 1 << 28;

/// Operation of `fallocate` on a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocate {
    /// Reserve space. The file grows if the range ends past it.
    Reserve,
    /// Reserve space, also past the end, without growing the file.
    KeepSize,
    /// Release the range, which then reads as zeros.
    PunchHole,
    /// Make the range read as zeros and keep it reserved.
    ZeroRange {
        /// Do not grow the file.
        keep_size: bool,
    },
}

/// Resolved read, which does not need the volume. The blocks that it names stay on the device until it is dropped.
pub struct ReadPlan {
    dev: Arc<dyn BlockDevice>,
    ino: Nid,
    /// Source of each block, from the block that holds the first byte.
    pieces: Vec<BlockSource>,
    first: u64,
    skip: usize,
    len: usize,
    _guard: ReaderGuard,
}

enum BlockSource {
    Zero,
    Lost,
    Bytes(Box<Block>),
    Stored(Slot),
}

impl ReadPlan {
    /// Number of bytes that the read returns, which is less than requested at the end of the file.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the read is at or past the end of the file.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Performs the read, and returns its bytes.
    pub fn run(&self) -> Result<Vec<u8>> {
        let mut out = vec![0; self.pieces.len() * BLOCK_SIZE];
        self.fill(&mut out)?;
        out.drain(..self.skip);
        out.truncate(self.len);
        Ok(out)
    }

    /// Reads to the start of `out`, which has at least [`len`](Self::len) bytes. The rest of `out` may be
    /// overwritten.
    pub fn run_into(&self, out: &mut [u8]) -> Result<usize> {
        let whole = self.pieces.len() * BLOCK_SIZE;
        if self.skip == 0 && whole <= out.len() {
            self.fill(&mut out[..whole])?;
        } else {
            out[..self.len].copy_from_slice(&self.run()?);
        }
        Ok(self.len)
    }

    /// Reads all blocks, completely.
    fn fill(&self, out: &mut [u8]) -> Result<()> {
        let mut at = 0;
        while at < self.pieces.len() {
            let mut n = 1;
            match &self.pieces[at] {
                BlockSource::Zero => out[at * BLOCK_SIZE..][..BLOCK_SIZE].fill(0),
                BlockSource::Lost => return Err(lost(self.ino, self.first + at as u64)),
                BlockSource::Bytes(bytes) => {
                    out[at * BLOCK_SIZE..][..BLOCK_SIZE].copy_from_slice(&bytes[..])
                }
                BlockSource::Stored(first) => {
                    while let Some(BlockSource::Stored(slot)) = self.pieces.get(at + n)
                        && slot.addr.0 == first.addr.0 + n as u64
                    {
                        n += 1;
                    }
                    let buf = &mut out[at * BLOCK_SIZE..(at + n) * BLOCK_SIZE];
                    self.dev.read(first.addr, buf).map_err(|e| {
                        Error::io(
                            e,
                            format_args!(
                                "reading {n} blocks of inode {} at {}",
                                self.ino, first.addr
                            ),
                        )
                    })?;
                    for (i, bytes) in buf.chunks_exact(BLOCK_SIZE).enumerate() {
                        if let BlockSource::Stored(slot) = &self.pieces[at + i] {
                            verify_data(self.ino, self.first + (at + i) as u64, slot, bytes)?;
                        }
                    }
                }
            }
            at += n;
        }
        Ok(())
    }
}

impl Volume {
    /// Reads up to `len` bytes at `offset`, fewer at the end of the file. Timestamps do not change.
    pub fn read(&mut self, ino: Nid, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.plan_read(ino, offset, len)?.run()
    }

    /// Resolves a read without reading data blocks. Other operations may run between this and [`ReadPlan::run`].
    pub fn plan_read(&mut self, ino: Nid, offset: u64, len: usize) -> Result<ReadPlan> {
        let inode = self.inode(ino)?;
        if inode.is_dir() {
            return Err(Errno::IsDirectory.into());
        }
        let size = inode.size;
        let len = (len as u64).min(size.saturating_sub(offset)) as usize;
        let first = offset / BS;
        let skip = (offset % BS) as usize;
        let inline = match &inode.content {
            Content::Inline(bytes) if len > 0 => Some(bytes.clone()),
            _ => None,
        };
        let mut plan = ReadPlan {
            dev: self.dev.clone(),
            ino,
            pieces: Vec::new(),
            first,
            skip: if len == 0 { 0 } else { skip },
            len,
            _guard: self.register_reader(),
        };
        if len == 0 {
            return Ok(plan);
        }
        for index in first..(offset + len as u64).div_ceil(BS) {
            let piece = if let Some(bytes) = &inline {
                let mut block = zero_block();
                if index == 0 {
                    block[..bytes.len()].copy_from_slice(bytes);
                }
                BlockSource::Bytes(block)
            } else if let Some(page) = self.pages.get(ino, index) {
                BlockSource::Bytes(Box::new(*page))
            } else {
                let slot = self.slot(ino, index)?;
                if slot.addr.is_mapped() {
                    BlockSource::Stored(slot)
                } else if slot == Slot::LOST {
                    BlockSource::Lost
                } else {
                    BlockSource::Zero
                }
            };
            plan.pieces.push(piece);
        }
        Ok(plan)
    }

    /// Writes bytes at `offset`. A large write is admitted in steps of 1 MiB. If space runs out after the first step,
    /// the count is short.
    pub fn write(&mut self, ino: Nid, offset: u64, data: &[u8], now: Time) -> Result<usize> {
        self.write_as(ino, (offset, data), now, false)
    }

    /// Writes bytes at an offset. If they were `promised`, quotas were checked, and the reserve of deletes may be used.
    pub(crate) fn write_as(
        &mut self,
        ino: Nid,
        (offset, data): (u64, &[u8]),
        now: Time,
        promised: bool,
    ) -> Result<usize> {
        self.writable()?;
        let inode = self.inode(ino)?;
        if inode.is_dir() {
            return Err(Errno::IsDirectory.into());
        }
        if !inode.is_file() && !inode.is_link() {
            return Err(Errno::Invalid.into());
        }
        if offset
            .checked_add(data.len() as u64)
            .is_none_or(|end| end > SIZE_MAX)
        {
            return Err(Errno::FileTooBig.into());
        }
        let mut done = 0;
        while done < data.len() {
            let step = &data[done..data.len().min(done + WRITE_STEP)];
            match self.write_step(ino, (offset + done as u64, step), now, promised) {
                Ok(()) => {
                    done += step.len();
                    self.write_behind();
                }
                Err(Error::Posix(Errno::NoSpace | Errno::HostFull)) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Appends dirty pages if there are many. Pages that could not be written stay dirty, and a later fsync reports
    /// the error.
    fn write_behind(&mut self) {
        if self.pages.dirty() < self.options.write_behind_pages {
            return;
        }
        for ino in self.pages.dirty_inos() {
            if self.write_pages(ino).is_err() {
                return;
            }
        }
    }

    fn write_step(
        &mut self,
        ino: Nid,
        (offset, data): (u64, &[u8]),
        now: Time,
        promised: bool,
    ) -> Result<()> {
        let end = offset + data.len() as u64;
        let pages = end.div_ceil(BS) - offset / BS;
        if end > INLINE_MAX as u64 && !promised {
            self.check_quota_to_fill(ino, offset / BS, end.div_ceil(BS))?;
        }
        self.admit_data(ino, offset / BS, pages, promised)?;
        // Load partially covered blocks, so that the change itself cannot fail on a read.
        let inline = matches!(self.inode(ino)?.content, Content::Inline(_));
        if !inline {
            for (index, from, to) in parts(offset, end) {
                if to - from < BLOCK_SIZE {
                    self.load_page(ino, index)?;
                }
            }
        }
        self.mutate(|v| {
            if inline {
                if end <= INLINE_MAX as u64 {
                    if let Content::Inline(bytes) = &mut v.inode_mut(ino)?.content {
                        if bytes.len() < end as usize {
                            bytes.resize(end as usize, 0);
                        }
                        bytes[offset as usize..end as usize].copy_from_slice(data);
                    }
                    return v.update_after_write(ino, end, now);
                }
                v.convert_inline_data(ino)?;
            }
            for (index, from, to) in parts(offset, end) {
                let bytes = &data[(index * BS + from as u64 - offset) as usize..][..to - from];
                v.reserve_block(ino, index)?;
                if to - from < BLOCK_SIZE {
                    v.load_page(ino, index)?;
                } else if v.pages.get(ino, index).is_none() {
                    v.pages.insert(ino, index, zero_block(), true);
                }
                if let Some(page) = v.pages.get_mut(ino, index) {
                    page[from..to].copy_from_slice(bytes);
                }
            }
            v.update_after_write(ino, end, now)
        })
    }

    fn update_after_write(&mut self, ino: Nid, end: u64, now: Time) -> Result<()> {
        let inode = self.inode_mut(ino)?;
        inode.size = inode.size.max(end);
        inode.mtime = now;
        inode.ctime = now;
        Ok(())
    }

    /// Moves inline content to a page.
    fn convert_inline_data(&mut self, ino: Nid) -> Result<()> {
        let inode = self.inode_mut(ino)?;
        let Content::Inline(bytes) = &mut inode.content else {
            return Ok(());
        };
        let bytes = std::mem::take(bytes);
        inode.content = Content::Map(BlockMap::empty());
        if !bytes.is_empty() {
            let mut page = zero_block();
            page[..bytes.len()].copy_from_slice(&bytes);
            self.reserve_block(ino, 0)?;
            self.pages.insert(ino, 0, page, true);
        }
        Ok(())
    }

    /// Loads a page of a file with a block map.
    fn load_page(&mut self, ino: Nid, index: u64) -> Result<()> {
        if self.pages.get(ino, index).is_some() {
            return Ok(());
        }
        let slot = self.slot(ino, index)?;
        if slot == Slot::LOST {
            return Err(lost(ino, index));
        }
        let mut page = zero_block();
        if slot.addr.is_mapped() {
            self.read_data(ino, index, &[slot], &mut page[..])?;
        }
        self.pages.insert(ino, index, page, false);
        Ok(())
    }

    /// Returns the log that the data of an inode goes to.
    pub(crate) fn data_log(&mut self, ino: Nid) -> Result<Log> {
        let inode = self.inode(ino)?;
        Ok(match (inode.is_dir(), inode.heat) {
            (true, _) => Log::HotData,
            (false, 0) => Log::WarmData,
            _ if self.preallocated_promises() > 0 => PROMISED_LOG,
            _ => Log::ColdData,
        })
    }

    /// Writes the dirty pages of an inode to the log of their temperature.
    pub(crate) fn write_pages(&mut self, ino: Nid) -> Result<()> {
        let log = self.data_log(ino)?;
        let dirty = self.pages.dirty_of(ino);
        for chunk in dirty.chunks(256) {
            let mut bytes = Vec::with_capacity(chunk.len() * BLOCK_SIZE);
            for index in chunk {
                if let Some(page) = self.pages.get(ino, *index) {
                    bytes.extend_from_slice(&page[..]);
                }
            }
            let start = self.append(log, &bytes)?;
            for (i, (index, block)) in chunk.iter().zip(bytes.chunks_exact(BLOCK_SIZE)).enumerate()
            {
                let slot = Slot {
                    addr: crate::disk::address::BlockAddr(start.0 + i as u64),
                    crc: crc32c::crc32c(block),
                };
                self.set_slot(ino, *index, slot)?;
                self.pages.written(ino, *index, log == Log::HotData);
            }
        }
        Ok(())
    }

    /// Sets the length of a file. Content past the end is lost, and a new part reads as zeros.
    pub(crate) fn set_size(&mut self, ino: Nid, size: u64) -> Result<()> {
        let old = self.inode(ino)?.size;
        if let Content::Inline(bytes) = &mut self.inode_mut(ino)?.content {
            bytes.truncate(usize::try_from(size).unwrap_or(usize::MAX));
        } else {
            let keep = size.div_ceil(BS);
            self.pages.truncate(ino, keep);
            self.truncate_blocks(ino, keep)?;
            if size < old && !size.is_multiple_of(BS) {
                self.zero_within_block(ino, size / BS, (size % BS) as usize, BLOCK_SIZE)?;
            }
        }
        self.inode_mut(ino)?.size = size;
        Ok(())
    }

    /// Zeroes part of a block, unless it is a hole or reserved.
    fn zero_within_block(&mut self, ino: Nid, index: u64, from: usize, to: usize) -> Result<()> {
        let stored = self.slot(ino, index)?.addr.is_mapped();
        if !stored && self.pages.get(ino, index).is_none() {
            return Ok(());
        }
        self.load_page(ino, index)?;
        self.reserve_block(ino, index)?;
        if let Some(page) = self.pages.get_mut(ino, index) {
            page[from..to].fill(0);
        }
        Ok(())
    }

    /// Reserves, punches or zeroes a range of a regular file.
    pub fn fallocate(
        &mut self,
        ino: Nid,
        how: Allocate,
        offset: u64,
        len: u64,
        now: Time,
    ) -> Result<()> {
        self.writable()?;
        let inode = self.inode(ino)?;
        if inode.is_dir() {
            return Err(Errno::IsDirectory.into());
        }
        if !inode.is_file() {
            return Err(Errno::NotSupported.into());
        }
        let Some(end) = offset.checked_add(len).filter(|_| len > 0) else {
            return Err(Errno::Invalid.into());
        };
        if end > SIZE_MAX {
            return Err(Errno::FileTooBig.into());
        }
        let punch = how == Allocate::PunchHole;
        if !punch {
            self.check_quota_to_fill(ino, offset / BS, end.div_ceil(BS))?;
        }
        // Admission of the whole range comes first, so that a reservation that cannot succeed has no effect. Steps
        // keep a single change from dirtying more nodes than a checkpoint can write.
        let (new, purpose) = match punch {
            true => (0, Purpose::Privileged),
            false => match self.new_blocks(ino, offset / BS, end.div_ceil(BS))? {
                0 => (0, Purpose::Reserved),
                new => (new, Purpose::Ordinary),
            },
        };
        self.admit_as(new.saturating_add(new / 300 + 16), purpose)?;
        let mut at = offset;
        while at < end {
            if punch && at > offset {
                match self.next_allocated(ino, at / BS)? {
                    Some(index) => at = at.max(index * BS),
                    None => break,
                }
                if at >= end {
                    break;
                }
            }
            let stop = end.min((at / ALLOCATE_STEP + 1) * ALLOCATE_STEP);
            self.fallocate_step(ino, (how, purpose), at..stop, now)?;
            at = stop;
        }
        Ok(())
    }

    /// Returns how many blocks of a range take space that they have not. While that is ample, all count.
    fn new_blocks(&mut self, ino: Nid, first: u64, end: u64) -> Result<u64> {
        let (blocks, available) = (end - first, self.space().available());
        let has = self.inode(ino)?.blocks;
        if blocks <= available || blocks.saturating_sub(has) > available {
            return Ok(blocks);
        }
        Ok(blocks - self.blocks_with_space(ino, first..end)?)
    }

    fn fallocate_step(
        &mut self,
        ino: Nid,
        (how, purpose): (Allocate, Purpose),
        Range { start: offset, end }: Range<u64>,
        now: Time,
    ) -> Result<()> {
        self.admit_as((end - offset) / BS / 300 + 16, purpose)?;
        let inline = matches!(self.inode(ino)?.content, Content::Inline(_));
        if !inline {
            // Read both ends before anything changes.
            for index in [offset / BS, (end - 1) / BS] {
                if self.slot(ino, index)?.addr.is_mapped() {
                    self.load_page(ino, index)?;
                }
            }
        }
        self.mutate(|v| {
            let zero = matches!(how, Allocate::PunchHole | Allocate::ZeroRange { .. });
            if inline && how == Allocate::PunchHole {
                if let Content::Inline(bytes) = &mut v.inode_mut(ino)?.content {
                    let len = bytes.len() as u64;
                    bytes[offset.min(len) as usize..end.min(len) as usize].fill(0);
                }
            } else {
                v.convert_inline_data(ino)?;
                if zero {
                    v.punch(ino, offset, end)?;
                }
            }
            if how != Allocate::PunchHole {
                for index in offset / BS..end.div_ceil(BS) {
                    v.reserve_block(ino, index)?;
                }
            }
            let grow = matches!(
                how,
                Allocate::Reserve | Allocate::ZeroRange { keep_size: false }
            );
            let inode = v.inode_mut(ino)?;
            if grow {
                inode.size = inode.size.max(end);
            }
            if zero {
                inode.mtime = now;
            }
            inode.ctime = now;
            Ok(())
        })
    }

    fn punch(&mut self, ino: Nid, offset: u64, end: u64) -> Result<()> {
        let first_whole = offset.div_ceil(BS);
        let end_whole = end / BS;
        for (index, from, to) in parts(offset, end) {
            // Only the two ends can be partial. Do not walk the blocks in between.
            if index >= first_whole && index < end_whole {
                break;
            }
            self.zero_within_block(ino, index, from, to)?;
        }
        if !end.is_multiple_of(BS) && end_whole > offset / BS {
            self.zero_within_block(ino, end_whole, 0, (end % BS) as usize)?;
        }
        let mut at = first_whole;
        while let Some(index) = self
            .next_allocated(ino, at)?
            .filter(|index| *index < end_whole)
        {
            self.pages.remove(ino, index);
            self.set_slot(ino, index, Slot::HOLE)?;
            at = index + 1;
        }
        Ok(())
    }

    /// Returns the first offset of data at or after `offset`.
    pub fn seek_data(&mut self, ino: Nid, offset: u64) -> Result<u64> {
        let size = self.inode(ino)?.size;
        if offset >= size {
            return Err(Errno::NoSuchOffset.into());
        }
        if let Content::Inline(bytes) = &self.inode(ino)?.content {
            return if offset < bytes.len() as u64 {
                Ok(offset)
            } else {
                Err(Errno::NoSuchOffset.into())
            };
        }
        let mut at = offset / BS;
        while let Some(index) = self.next_allocated(ino, at)? {
            if index * BS >= size {
                break;
            }
            if self.holds_data(ino, index)? {
                return Ok((index * BS).max(offset));
            }
            at = index + 1;
        }
        Err(Errno::NoSuchOffset.into())
    }

    /// Returns the first offset of a hole at or after `offset`. The end of the file is a hole.
    pub fn seek_hole(&mut self, ino: Nid, offset: u64) -> Result<u64> {
        let size = self.inode(ino)?.size;
        if offset >= size {
            return Err(Errno::NoSuchOffset.into());
        }
        if let Content::Inline(bytes) = &self.inode(ino)?.content {
            return Ok(offset.max(bytes.len() as u64).min(size));
        }
        let mut index = offset / BS;
        while index * BS < size && self.holds_data(ino, index)? {
            index += 1;
        }
        Ok((index * BS).max(offset).min(size))
    }

    fn holds_data(&mut self, ino: Nid, index: u64) -> Result<bool> {
        let slot = self.slot(ino, index)?;
        Ok(self.pages.get(ino, index).is_some() || slot.addr.is_mapped() || slot == Slot::LOST)
    }

    /// Returns the target of a symbolic link.
    pub fn read_link(&mut self, ino: Nid) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        if inode.mode & mode::TYPE != mode::LINK {
            return Err(Errno::Invalid.into());
        }
        let size = inode.size.min(TARGET_MAX as u64) as usize;
        self.read(ino, 0, size)
    }

    /// Stores a link target that does not fit inline in a block.
    pub(crate) fn store_link_target(&mut self, ino: Nid, target: &[u8]) -> Result<()> {
        self.inode_mut(ino)?.content = Content::Map(BlockMap::empty());
        let mut page = zero_block();
        page[..target.len()].copy_from_slice(target);
        self.reserve_block(ino, 0)?;
        self.pages.insert(ino, 0, page, true);
        Ok(())
    }
}

fn lost(ino: Nid, index: u64) -> Error {
    Error::corrupt(
        format_args!("block {index} of inode {ino}"),
        "was lost to damage",
    )
}

/// Splits a byte range at block boundaries: block index, start and end inside the block.
fn parts(offset: u64, end: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    (offset / BS..end.div_ceil(BS)).map(move |index| {
        let from = offset.saturating_sub(index * BS).min(BS);
        let to = (end - index * BS).min(BS);
        (index, from as usize, to as usize)
    })
}
