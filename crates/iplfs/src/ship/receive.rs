//! Receiving: blocks are written to their addresses, verified, and made valid by one checkpoint.
//!
//! ```text
//!  base, clean ──► receiving ×2 ──► blocks past the heads ──► flush, compare ──► the snapshot, clean ──► discards of what died
//! ```
//!
//! Until that checkpoint the device shows the base, after it the snapshot. The two checkpoints before the first block
//! move the bounds of both packs past everything that will be written. A mount after a crash therefore releases the
//! blocks and appends past them.

use super::delta::SnapshotDelta;
use crate::checkpoint::pack::{
    clear_fixed, damaged_superblocks, find_checkpoint, read_superblock, write_superblocks,
};
use crate::device::{BlockDevice, read_block};
use crate::disk::address::{BLOCK_SIZE, BlockAddr, Log, Nid, zero_block};
use crate::disk::branch::REGION_BITS;
use crate::disk::checkpoint::Phase;
use crate::disk::snapshot::Snapshot;
use crate::disk::stream::{FRAME_LEN, Frame, FrameKind, Header, RUN_LEN};
use crate::disk::superblock::{MAGIC, Superblock};
use crate::error::{Errno, Error, Result};
use crate::options::MountOptions;
use crate::volume::state::{Volume, WriteState};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of checkpoints after the valid one. Each moves dead blocks to their next state.
const DISCARD_ROUNDS: usize = 3;

/// Result of receiving a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Name of the snapshot that the device shows.
    pub snapshot: String,
    /// Number of blocks written.
    pub blocks: u64,
    /// Number of blocks released, or held by an older snapshot.
    pub dead_blocks: u64,
}

/// Stream whose header was read.
pub struct Stream<'r> {
    header: Header,
    sum: u32,
    number: u32,
    from: &'r mut dyn Read,
}

/// Content of the frames of a stream.
#[derive(Default)]
struct ReceivedFrames {
    /// Blocks written, ascending, with their checksums.
    blocks: Vec<(u64, u32)>,
    dead: Vec<Range<u64>>,
}

impl<'r> Stream<'r> {
    /// Reads the header of the next stream. `None` at the end of the input: several streams may follow each other.
    pub fn open(from: &'r mut dyn Read) -> Result<Option<Self>> {
        let mut blocks = [zero_block(), zero_block()];
        // The first byte distinguishes the end of the input from a truncated stream.
        let n = loop {
            match from.read(&mut blocks[0][..1]) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                other => break other.map_err(|e| Error::io(e, "reading the stream"))?,
            }
        };
        if n == 0 {
            return Ok(None);
        }
        fill(from, &mut blocks[0][1..])?;
        fill(from, &mut blocks[1][..])?;
        let (header, sum) = Header::decode(&blocks[0], &blocks[1])?;
        Ok(Some(Self {
            header,
            sum,
            number: 0,
            from,
        }))
    }

    /// Superblock of the volume that was sent.
    pub fn superblock(&self) -> &Superblock {
        &self.header.superblock
    }

    /// Snapshot that the stream carries.
    pub fn snapshot(&self) -> &Snapshot {
        &self.header.snapshot
    }

    /// Snapshot that the receiver must have; `None` for a full stream, which creates a volume.
    pub fn base(&self) -> Option<&Snapshot> {
        self.header.base.as_ref()
    }

    /// Applies the stream to a device. A full stream requires a device without a volume, an incremental one a device
    /// that shows the base. With `keep` the base stays as a snapshot.
    ///
    /// After an error the device shows its previous state. A stream that does not match is rejected before anything
    /// is written. Memory use is 16 bytes per received block.
    pub fn receive(mut self, dev: Arc<dyn BlockDevice>, keep: bool) -> Result<Received> {
        let mut target = match &self.header.base {
            Some(base) => at_base(&dev, &self.header, base)?,
            None => self.fresh(&dev)?,
        };
        let whole = self.header.base.is_none();
        target.open_receive(&self.header.snapshot, whole)?;
        let looked_at = self.frames(&*dev, &mut target).and_then(|received| {
            target.flush()?;
            let tail = self.compare(&dev, &target, &received)?;
            let base = self.header.base.as_ref().filter(|_| !keep);
            Ok((received, tail, target.lock_base(base)?))
        });
        let (received, tail, _held) = match looked_at {
            Ok(done) => done,
            Err(e) => {
                // The base remains valid, whether or not this succeeds.
                if !whole && !target.is_broken() {
                    let _ = target.close_receive();
                }
                return Err(e);
            }
        };
        // If this fails, either of the two states may be valid. Both are complete.
        target.take(&self.header, &tail, keep)?;
        if whole {
            let sb = &self.header.superblock;
            write_superblocks(&*dev, sb, &damaged_superblocks(&*dev, sb)?)?;
        }
        target.settle()?;
        Ok(Received {
            snapshot: self.header.snapshot.name.clone(),
            blocks: received.blocks.len() as u64,
            dead_blocks: received.dead.iter().map(|run| run.end - run.start).sum(),
        })
    }

    /// Prepares a device without a volume.
    fn fresh(&self, dev: &Arc<dyn BlockDevice>) -> Result<Volume> {
        for addr in [BlockAddr(0), BlockAddr(1)] {
            if read_block(&**dev, addr)?.starts_with(&MAGIC) {
                return Err(Error::Usage(
                    "there is a volume already, and a stream without a base creates a new one"
                        .to_owned(),
                ));
            }
        }
        let g = self.header.superblock.geometry;
        clear_fixed(&**dev, &g)?;
        let mut volume = Volume::empty(dev.clone(), self.header.superblock.clone(), options());
        for log in Log::ALL {
            let head = if log == Log::Meta { g.fixed_end() } else { 0 };
            let m = &mut volume.logs.marks[log.index()];
            (m.scan, m.head, m.limit, m.far) = (head, head, head, head);
        }
        volume.checkpoint.pack = 1;
        Ok(volume)
    }

    /// Reads all frames and writes their blocks.
    fn frames(&mut self, dev: &dyn BlockDevice, target: &mut Volume) -> Result<ReceivedFrames> {
        let mut received = ReceivedFrames::default();
        let geometry = target.sb.geometry;
        let (from, to) = (target.logs.heads(), self.header.snapshot.heads);
        let mut dead_runs = 0u32;
        loop {
            let mut bytes = [0; FRAME_LEN];
            fill(self.from, &mut bytes)?;
            let frame = Frame::decode(&bytes, self.number)?;
            let mut payload = vec![0; frame.payload_len()];
            fill(self.from, &mut payload)?;
            frame.verify(&bytes, self.sum, &payload)?;
            self.sum = frame.sum;
            self.number += 1;
            let wrong =
                |what: String| Error::corrupt(format_args!("stream frame {}", frame.number), what);
            match frame.kind {
                FrameKind::Blocks => {
                    let last = received.blocks.last().map_or(0, |(addr, _)| *addr);
                    let fits =
                        geometry
                            .place(BlockAddr(frame.start))
                            .is_some_and(|(log, offset)| {
                                let log = log.index();
                                offset >= from[log]
                                    && offset.saturating_add(frame.count.into()) <= to[log]
                            });
                    if !fits || frame.start <= last || !received.dead.is_empty() {
                        return Err(wrong(format!(
                            "{} blocks at {:#x} do not belong there",
                            frame.count, frame.start
                        )));
                    }
                    let blocks = received.blocks.len() as u64 + u64::from(frame.count);
                    let limit = (target.sb.quota_blocks).saturating_sub(target.sb.reserve_blocks);
                    if !target.claim(blocks, limit, false)? {
                        return Err(Errno::NoSpace.into());
                    }
                    dev.write(BlockAddr(frame.start), &payload).map_err(|e| {
                        Error::io(
                            e,
                            format_args!("writing {} blocks at {:#x}", frame.count, frame.start),
                        )
                    })?;
                    let sums = payload.chunks_exact(BLOCK_SIZE).map(crc32c::crc32c);
                    received.blocks.extend((frame.start..).zip(sums));
                }
                FrameKind::Dead => {
                    for run in payload.chunks_exact(RUN_LEN) {
                        let (start, blocks) = run.split_at(8);
                        // Fits: runs have twelve bytes, eight and four.
                        let start = u64::from_le_bytes(start.try_into().unwrap_or_default());
                        let blocks = u32::from_le_bytes(blocks.try_into().unwrap_or_default());
                        let run = start..start.saturating_add(blocks.into());
                        let last = received.dead.last().map_or(0, |run| run.end);
                        if run.is_empty() || start < last {
                            return Err(wrong(format!(
                                "dead run {start:#x} of {blocks} blocks is out of order"
                            )));
                        }
                        received.dead.push(run);
                    }
                    dead_runs = dead_runs.saturating_add(frame.count);
                }
                FrameKind::End => {
                    if frame.start != received.blocks.len() as u64 || frame.count != dead_runs {
                        return Err(wrong(format!(
                            "{} blocks and {dead_runs} dead runs were received, {} and {} were sent",
                            received.blocks.len(),
                            frame.start,
                            frame.count
                        )));
                    }
                    return Ok(received);
                }
            }
        }
    }

    /// Verifies that the received blocks are those that the nodes of the snapshot refer to.
    fn compare(
        &self,
        dev: &Arc<dyn BlockDevice>,
        target: &Volume,
        received: &ReceivedFrames,
    ) -> Result<SnapshotDelta> {
        let sb = &target.sb;
        let mut snapshot = Volume::of_snapshot(dev.clone(), sb.clone(), &self.header.snapshot);
        let mut base = self
            .header
            .base
            .as_ref()
            .map(|base| Volume::of_snapshot(dev.clone(), sb.clone(), base));
        let tail = SnapshotDelta::between(&mut snapshot, base.as_mut())?;
        let same = tail.new.len() == received.blocks.len()
            && tail
                .new
                .iter()
                .zip(&received.blocks)
                .all(|((want, crc), (addr, found))| {
                    want == addr && crc.is_none_or(|crc| crc == *found)
                });
        if !same {
            return Err(Error::corrupt(
                "stream",
                format_args!(
                    "{} blocks were received, and the snapshot refers to {} new blocks",
                    received.blocks.len(),
                    tail.new.len()
                ),
            ));
        }
        let runs: Vec<Range<u64>> = joined(&received.dead);
        if runs != tail.dead {
            return Err(Error::corrupt(
                "stream",
                "lists other dead blocks than those of the base",
            ));
        }
        Ok(tail)
    }
}

/// Merges adjacent runs of blocks.
fn joined(runs: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut out: Vec<Range<u64>> = Vec::new();
    for run in runs {
        match out.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => out.push(run.clone()),
        }
    }
    out
}

fn fill(from: &mut dyn Read, buf: &mut [u8]) -> Result<()> {
    from.read_exact(buf).map_err(|e| match e.kind() {
        ErrorKind::UnexpectedEof => Error::corrupt("stream", "is truncated"),
        _ => Error::io(e, "reading the stream"),
    })
}

fn options() -> MountOptions {
    MountOptions {
        // Nothing may be appended: the next stream continues at these heads.
        overflow_blocks_max: 0,
        ..MountOptions::default()
    }
}

/// Opens a device that shows exactly the base of a stream.
fn at_base(dev: &Arc<dyn BlockDevice>, header: &Header, base: &Snapshot) -> Result<Volume> {
    let refuse = |what: String| Err(Error::Usage(what));
    let sb = read_superblock(&**dev)?;
    let theirs = &header.superblock;
    if (sb.uuid, sb.hash_key, sb.geometry) != (theirs.uuid, theirs.hash_key, theirs.geometry) {
        return refuse("holds another volume than that of the stream".to_owned());
    }
    let found = find_checkpoint(&**dev, &sb, false)?;
    let phase = found.seal.phase;
    let mut volume = Volume::at(dev.clone(), sb, options(), found);
    volume.load_fork_points()?;
    let (newest, heads) = volume.newest_received();
    if newest.as_ref() != Some(base) {
        return refuse(format!(
            "the stream continues snapshot '{}', and the newest here is {}",
            base.name,
            newest.map_or("none".to_owned(), |s| format!("'{}'", s.name))
        ));
    }
    let unchanged = matches!(phase, Phase::Clean | Phase::Receiving)
        && volume.logs.heads() == heads
        && volume.nat.root == base.nat_root
        && volume.nat.journal().is_empty();
    if !unchanged {
        return refuse(format!("was changed since it received '{}'", base.name));
    }
    if volume
        .snapshots
        .records
        .iter()
        .any(|s| s.name == header.snapshot.name)
    {
        return refuse(format!("has a snapshot '{}' already", header.snapshot.name));
    }
    volume.take_regions_of(&header.snapshot)?;
    // A truncated stream may have left blocks, which must be released before others are written there. A mount may have
    // reserved some, which nothing would release once the heads have passed them.
    volume.state = WriteState::Writable;
    volume.drop_received()?;
    Ok(volume)
}

impl Volume {
    /// Returns the snapshot that can be the base of the next stream, and the heads that the logs have then. A fork of a
    /// snapshot begins with it.
    fn newest_received(&self) -> (Option<Snapshot>, [u64; 7]) {
        if let Some(newest) = self.snapshots.records.last() {
            return (Some(newest.clone()), newest.heads);
        }
        let branch = self.dev.branch();
        let origin = branch.and_then(|branch| Some((branch.number(), branch.origin()?)));
        match origin.filter(|(_, origin)| origin.of_snapshot) {
            Some((number, origin)) => (Some(origin.state.clone()), [number << REGION_BITS; 7]),
            None => (None, self.logs.heads()),
        }
    }

    /// Gives the branch the regions in which the logs of a snapshot end: addresses are those of the source.
    fn take_regions_of(&self, snapshot: &Snapshot) -> Result<()> {
        let Some(branch) = self.dev.branch() else {
            return Ok(());
        };
        let regions = snapshot.heads.map(|head| head >> REGION_BITS);
        branch.own_regions(regions.into())
    }

    /// Keeps other processes from mounting the base, which is about to be dropped.
    fn lock_base(&self, base: Option<&Snapshot>) -> Result<Option<File>> {
        let (Some(base), Some(branch)) = (base, self.dev.branch()) else {
            return Ok(None);
        };
        if self.snapshots.position(&base.name).is_none() {
            return Ok(None);
        }
        let busy = || {
            Error::Usage(format!(
                "snapshot '{}' is mounted: unmount it, or keep it with `--keep`",
                base.name
            ))
        };
        branch
            .lock_snapshot(base.version)?
            .ok_or_else(busy)
            .map(Some)
    }

    /// Marks both packs as receiving, up to the heads of `snapshot`. Later versions are above every tag in the
    /// stream, so that no recovery takes its nodes for those of an fsync.
    fn open_receive(&mut self, snapshot: &Snapshot, whole: bool) -> Result<()> {
        self.checkpoint.version = self.checkpoint.version.max(snapshot.version);
        let window = self.options.window_blocks;
        let area = self.sb.geometry.area_blocks();
        for (m, head) in self.logs.marks.iter_mut().zip(snapshot.heads) {
            m.limit = m.limit.max(head);
            m.far = m.far.max(head + window).min(area);
        }
        if whole {
            // Without a superblock nothing can be mounted.
            return self.drop_received();
        }
        self.commit_unchanged(Phase::Receiving)?;
        self.commit_unchanged(Phase::Receiving)
    }

    /// Releases the blocks past the heads.
    fn drop_received(&mut self) -> Result<()> {
        let io = |e| Error::io(e, "releasing the blocks of a truncated stream");
        for log in Log::ALL {
            let m = self.logs.marks[log.index()];
            let range = self.sb.geometry.range(log, m.head..m.far);
            if range.is_empty() {
                continue;
            }
            for run in self.dev.allocated(range).map_err(io)? {
                self.dev.discard(run).map_err(io)?;
            }
        }
        self.flush()
    }

    /// Restores the state before the stream.
    fn close_receive(&mut self) -> Result<()> {
        self.drop_received()?;
        self.commit_unchanged(Phase::Clean)
    }

    /// Makes the received snapshot the current state.
    fn take(&mut self, header: &Header, tail: &SnapshotDelta, keep: bool) -> Result<()> {
        let s = &header.snapshot;
        let (dev, options) = (self.dev.clone(), self.options.clone());
        let mut next = Volume::empty(dev, self.sb.clone(), options);
        next.logs.marks = self.logs.marks;
        for (m, head) in next.logs.marks.iter_mut().zip(s.heads) {
            (m.scan, m.head) = (head, head);
        }
        next.checkpoint.version = self.checkpoint.version;
        next.checkpoint.pack = self.checkpoint.pack;
        next.roll_forward.tag = self.roll_forward.tag;
        next.roll_forward.next_seq = self.roll_forward.next_seq.max(header.next_seq);
        next.roll_forward.base_seq = next.roll_forward.next_seq;
        next.next_generation = self.next_generation.max(header.next_generation);
        next.nat.height = s.nat_height;
        next.nat.root = s.nat_root;
        next.nat.blocks = s.nat_blocks;
        next.nat.next_nid = s.next_nid;
        next.live = s.live_blocks;
        next.inodes = s.inodes;
        next.needs_trim = self.needs_trim;
        next.checkpoint.overflow = self.checkpoint.overflow.clone();
        next.snapshots.records = self.snapshots.records.clone();
        if !keep {
            next.snapshots.records.pop();
        }
        next.snapshots.held_blocks = self.snapshots.held_blocks;
        for run in self.dead.runs() {
            next.dead.insert_range(run);
        }
        if self.fork_points.origin.is_some() {
            for (node, blocks) in SnapshotDelta::between(&mut next, Some(self))?.without_block {
                if self.is_shared(node) {
                    let shared = &mut self.fork_points.shared_blocks;
                    *shared = shared.saturating_sub(blocks);
                }
            }
        }
        next.fork_points = std::mem::take(&mut self.fork_points);
        next.claims = std::mem::take(&mut self.claims);
        for addr in tail.dead.iter().cloned().flatten() {
            next.free_block(BlockAddr(addr));
        }
        next.snapshots.records.push(s.clone());
        next.orphans = self.orphans.clone();
        for (ino, named) in &tail.inodes {
            if *named {
                next.orphans.remove(ino);
            } else {
                next.orphans.insert(*ino);
            }
        }
        let orphans: Vec<Nid> = next.orphans.iter().copied().collect();
        for ino in orphans {
            if !next.nat.get(&*self.dev, ino)?.addr.is_mapped() {
                next.orphans.remove(&ino);
            }
        }
        std::mem::swap(&mut next.discard_log, &mut self.discard_log);
        *self = next;
        self.commit(Phase::Clean)
    }

    /// Releases dead blocks without appending.
    fn settle(&mut self) -> Result<()> {
        for _ in 0..DISCARD_ROUNDS {
            if self.discard_log.blocks() == 0 {
                break;
            }
            self.commit(Phase::Clean)?;
            self.issue_discards()?;
            self.flush()?;
            self.discard_log.forget_issued();
        }
        self.commit(Phase::Clean)
    }
}
