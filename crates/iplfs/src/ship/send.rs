//! Sending: new blocks of the logs, then dead runs.

use super::delta::SnapshotDelta;
use crate::disk::address::{BLOCK_SIZE, BlockAddr};
use crate::disk::snapshot::Snapshot;
use crate::disk::stream::{FRAME_BLOCKS, FRAME_RUNS, Frame, FrameKind, Header, RUN_LEN};
use crate::disk::superblock::{BRANCHES, Superblock};
use crate::error::{Errno, Error, Result};
use crate::volume::state::Volume;
use std::io::Write;

/// Result of sending a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Number of blocks sent.
    pub blocks: u64,
    /// Number of blocks declared dead.
    pub dead_blocks: u64,
    /// Length of the stream. Unit: bytes.
    pub bytes: u64,
}

struct Writer<'w> {
    to: &'w mut dyn Write,
    number: u32,
    sum: u32,
    bytes: u64,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        self.to
            .write_all(bytes)
            .map_err(|e| Error::io(e, "writing the stream"))
    }

    fn frame(&mut self, kind: FrameKind, start: u64, count: u32, payload: &[u8]) -> Result<()> {
        let (head, sum) = Frame::encode(kind, self.number, start, count, self.sum, payload);
        self.sum = sum;
        self.number = self
            .number
            .checked_add(1)
            .ok_or_else(|| Error::Limit("a stream has at most 2^32 frames".to_owned()))?;
        self.put(&head)?;
        self.put(payload)
    }
}

impl Volume {
    /// Writes a snapshot as a stream: all of it, or its changes against `base`, an older snapshot, or the one from which
    /// the branch was forked. The checksum of every block is verified. Memory use is 16 bytes per sent block.
    pub fn send(&mut self, snapshot: &str, base: Option<&str>, to: &mut dyn Write) -> Result<Sent> {
        let none = |name: &str| Error::Usage(format!("there is no snapshot '{name}'"));
        let at = self.snapshots.position(snapshot);
        let at = at.ok_or_else(|| none(snapshot))?;
        let base = match base {
            None => None,
            Some(name) => Some(self.base_of(name, at)?.ok_or_else(|| none(name))?),
        };
        if self.is_broken() {
            return Err(Errno::Stale.into());
        }
        for snapshot in [Some(&self.snapshots.records[at]), base.as_ref()]
            .into_iter()
            .flatten()
        {
            if self.has_repaired_table(snapshot) {
                return Err(Error::Unsupported(format!(
                    "snapshot '{}' was repaired, and its table lies past its heads: send a newer snapshot",
                    snapshot.name
                )));
            }
        }
        let header = Header {
            // The receiver has one branch.
            superblock: Superblock {
                incompat: self.sb.incompat & !BRANCHES,
                ..self.sb.clone()
            },
            snapshot: self.snapshots.records[at].clone(),
            base: base.clone(),
            next_seq: self.roll_forward.next_seq,
            next_generation: self.next_generation,
        };
        let mut state = self.at_snapshot(at);
        let (dev, sb) = (&self.dev, &self.sb);
        let mut before = base.map(|base| Self::of_snapshot(dev.clone(), sb.clone(), &base));
        let tail = SnapshotDelta::between(&mut state, before.as_mut())?;
        let (bytes, sum) = header.encode();
        let mut out = Writer {
            to,
            number: 0,
            sum,
            bytes: 0,
        };
        out.put(&bytes)?;
        let mut buf = vec![0; FRAME_BLOCKS as usize * BLOCK_SIZE];
        let mut rest = &tail.new[..];
        while let Some((start, _)) = rest.first().copied() {
            let run = rest
                .iter()
                .zip(start..)
                .take(FRAME_BLOCKS as usize)
                .take_while(|((addr, _), want)| addr == want)
                .count();
            let (now, later) = rest.split_at(run);
            let payload = &mut buf[..run * BLOCK_SIZE];
            self.dev
                .read(BlockAddr(start), payload)
                .map_err(|e| Error::io(e, format_args!("reading {run} blocks at {start:#x}")))?;
            for ((addr, crc), block) in now.iter().zip(payload.chunks_exact(BLOCK_SIZE)) {
                let found = crc32c::crc32c(block);
                if let Some(crc) = crc.filter(|crc| *crc != found) {
                    return Err(Error::corrupt(
                        format_args!("block {addr:#x}"),
                        format_args!("checksum {found:#010x}, expected {crc:#010x}"),
                    ));
                }
            }
            // Fits: at most FRAME_BLOCKS.
            out.frame(FrameKind::Blocks, start, run as u32, payload)?;
            rest = later;
        }
        let runs: Vec<_> = tail
            .dead
            .iter()
            .cloned()
            .flat_map(crate::log::discard_log::to_entries)
            .collect();
        for runs in runs.chunks(FRAME_RUNS as usize) {
            let mut payload = Vec::with_capacity(runs.len() * RUN_LEN);
            for run in runs {
                payload.extend_from_slice(&run.start.0.to_le_bytes());
                payload.extend_from_slice(&run.blocks.to_le_bytes());
            }
            out.frame(FrameKind::Dead, 0, runs.len() as u32, &payload)?;
        }
        let blocks = tail.new.len() as u64;
        let count =
            u32::try_from(runs.len()).map_err(|_| Error::Limit("too many dead runs".to_owned()))?;
        out.frame(FrameKind::End, blocks, count, &[])?;
        let bytes = out.bytes;
        to.flush().map_err(|e| Error::io(e, "writing the stream"))?;
        Ok(Sent {
            blocks,
            dead_blocks: tail.dead.iter().map(|run| run.end - run.start).sum(),
            bytes,
        })
    }

    /// Finds the base of a stream of the snapshot at an index.
    fn base_of(&self, name: &str, at: usize) -> Result<Option<Snapshot>> {
        match self.snapshots.position(name) {
            Some(base) if base < at => return Ok(Some(self.snapshots.records[base].clone())),
            Some(_) => {
                return Err(Error::Usage(format!(
                    "snapshot '{name}' is not older than '{}'",
                    self.snapshots.records[at].name
                )));
            }
            None => {}
        }
        let origin = self.dev.branch().and_then(|branch| branch.origin());
        let origin = origin.filter(|origin| origin.of_snapshot && origin.state.name == name);
        Ok(origin.map(|origin| origin.state.clone()))
    }
}
