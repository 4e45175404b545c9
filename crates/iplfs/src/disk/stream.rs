//! Stream that carries a snapshot from one device to another.
//!
//! ```text
//!  block 0   magic 8 │ version 4 │ flags 4 (1: has a base) │ next_seq 8 │ next_generation 4 │ 28 zero 4 │ 32 snapshot 192 │ 224 base 192 │ zero … │ crc 4
//!  block 1   the superblock of the volume it comes from
//!  frames    kind 4 │ number 4 │ start 8 │ count 4 │ sum 4 │ payload
//!            1 blocks: payload is `count` blocks, for the addresses from `start` on
//!            2 dead:   payload is `count` runs {start 8, blocks 4} that the base refers to and the snapshot does not
//!            3 end:    `start` is the number of blocks sent, `count` that of dead runs; no payload
//! ```
//!
//! `sum` is the CRC32C of the previous sum, the other fields of the frame and the payload. The first frame continues
//! the CRC32C of block 0. A frame that is missing, changed or out of order is therefore detected at once. `number`
//! counts frames from 0. Blocks come in ascending order, then dead runs in ascending order.

use super::snapshot::{SNAPSHOT_LEN, Snapshot};
use super::superblock::Superblock;
use super::wire::{Get, Put, seal, sealed};
use crate::disk::address::{BLOCK_SIZE, Block, zero_block};
use crate::error::{Error, Result};

const MAGIC: [u8; 8] = *b"TUFFSEND";
const VERSION: u32 = 1;
const HAS_BASE: u32 = 1;
/// Length of a frame without its payload. Unit: bytes.
pub const FRAME_LEN: usize = 24;
/// Maximum number of blocks in a frame.
pub const FRAME_BLOCKS: u32 = 256;
/// Maximum number of dead runs in a frame.
pub const FRAME_RUNS: u32 = 4096;
/// Length of an encoded dead run. Unit: bytes.
pub const RUN_LEN: usize = 12;

/// Header of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Superblock of the volume that was sent.
    pub superblock: Superblock,
    /// Snapshot that the stream carries.
    pub snapshot: Snapshot,
    /// Snapshot that the receiver must already have; `None` for a full stream.
    pub base: Option<Snapshot>,
    /// Bound of all sequence numbers in the stream.
    pub next_seq: u64,
    /// Bound of all generations in the stream.
    pub next_generation: u32,
}

impl Header {
    /// Encodes the header as two blocks. Returns them with the sum that the first frame continues.
    pub fn encode(&self) -> (Vec<u8>, u32) {
        let mut block = zero_block();
        let mut put = Put::new(&mut block[..]);
        put.bytes(&MAGIC);
        put.u32(VERSION);
        put.u32(if self.base.is_some() { HAS_BASE } else { 0 });
        put.u64(self.next_seq);
        put.u32(self.next_generation);
        put.u32(0);
        put.bytes(&self.snapshot.encode());
        match &self.base {
            Some(base) => put.bytes(&base.encode()),
            None => put.bytes(&[0; SNAPSHOT_LEN]),
        }
        seal(&mut block);
        let sum = crc32c::crc32c(&block[..]);
        ([&block[..], &self.superblock.encode()[..]].concat(), sum)
    }

    /// Decodes the header from two blocks. Returns it with the sum that the first frame continues.
    pub fn decode(first: &Block, second: &Block) -> Result<(Self, u32)> {
        let mut get = Get::new(&first[..]);
        if get.array() != MAGIC {
            return Err(Error::corrupt("stream", "magic is not TUFFSEND"));
        }
        if !sealed(first) {
            return Err(Error::corrupt("stream header", "checksum does not match"));
        }
        let (version, flags) = (get.u32(), get.u32());
        if version != VERSION || flags & !HAS_BASE != 0 {
            return Err(Error::Unsupported(format!(
                "stream of version {version}, flags {flags:#x}"
            )));
        }
        let (next_seq, next_generation, _) = (get.u64(), get.u32(), get.u32());
        let snapshot = Snapshot::decode(&mut get)?;
        let base = if flags & HAS_BASE != 0 {
            Some(Snapshot::decode(&mut get)?)
        } else {
            None
        };
        let superblock = Superblock::decode(second)?;
        let header = Self {
            superblock,
            snapshot,
            base,
            next_seq,
            next_generation,
        };
        header.verify()?;
        Ok((header, crc32c::crc32c(&first[..])))
    }

    /// Verifies the rules that hold for the fields together.
    fn verify(&self) -> Result<()> {
        let geometry = &self.superblock.geometry;
        let bad = |what: String| Err(Error::corrupt("stream header", what));
        for (log, head) in self.snapshot.heads.iter().enumerate() {
            let first = if log == 0 { geometry.fixed_end() } else { 0 };
            let least = self.base.as_ref().map_or(first, |base| base.heads[log]);
            if least < first || *head < least || *head > geometry.area_blocks() {
                return bad(format!(
                    "head {head:#x} of log {log}, expected {least:#x} to {:#x}",
                    geometry.area_blocks()
                ));
            }
        }
        match &self.base {
            Some(base) if base.version >= self.snapshot.version => bad(format!(
                "base '{}' is not older than '{}'",
                base.name, self.snapshot.name
            )),
            Some(base) if base.name == self.snapshot.name => {
                bad(format!("base and snapshot are both '{}'", base.name))
            }
            _ => Ok(()),
        }
    }
}

/// Kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameKind {
    /// Payload of whole blocks.
    Blocks,
    /// Payload of dead runs.
    Dead,
    /// End of the stream, without a payload.
    End,
}

/// Frame header, without the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Kind of the payload.
    pub kind: FrameKind,
    /// Index of the frame in the stream.
    pub number: u32,
    /// First address, or the number of blocks in the last frame.
    pub start: u64,
    /// Number of blocks or dead runs.
    pub count: u32,
    /// Sum of everything up to the end of this frame.
    pub sum: u32,
}

impl Frame {
    /// Encodes the frame header. Returns it with its sum, which continues `before`.
    pub fn encode(
        kind: FrameKind,
        number: u32,
        start: u64,
        count: u32,
        before: u32,
        payload: &[u8],
    ) -> ([u8; FRAME_LEN], u32) {
        let mut bytes = [0; FRAME_LEN];
        let mut put = Put::new(&mut bytes);
        put.u32(match kind {
            FrameKind::Blocks => 1,
            FrameKind::Dead => 2,
            FrameKind::End => 3,
        });
        put.u32(number);
        put.u64(start);
        put.u32(count);
        let sum = sum_of(before, &bytes, payload);
        bytes[FRAME_LEN - 4..].copy_from_slice(&sum.to_le_bytes());
        (bytes, sum)
    }

    /// Decodes the frame header and verifies that it can be frame `number`. The sum is verified once the payload is
    /// read.
    pub fn decode(bytes: &[u8; FRAME_LEN], number: u32) -> Result<Self> {
        let mut get = Get::new(bytes);
        let kind = get.u32();
        let frame = Self {
            kind: match kind {
                1 => FrameKind::Blocks,
                2 => FrameKind::Dead,
                3 => FrameKind::End,
                _ => {
                    let what = format_args!("kind {kind}, expected 1 to 3");
                    return Err(Error::corrupt(format_args!("stream frame {number}"), what));
                }
            },
            number: get.u32(),
            start: get.u64(),
            count: get.u32(),
            sum: get.u32(),
        };
        let fits = match frame.kind {
            FrameKind::Blocks => (1..=FRAME_BLOCKS).contains(&frame.count),
            FrameKind::Dead => (1..=FRAME_RUNS).contains(&frame.count),
            FrameKind::End => true,
        };
        if frame.number != number || !fits {
            return Err(Error::corrupt(
                format_args!("stream frame {number}"),
                format_args!("is number {} with {} parts", frame.number, frame.count),
            ));
        }
        Ok(frame)
    }

    /// Length of the payload. Unit: bytes.
    pub fn payload_len(&self) -> usize {
        match self.kind {
            FrameKind::Blocks => self.count as usize * BLOCK_SIZE,
            FrameKind::Dead => self.count as usize * RUN_LEN,
            FrameKind::End => 0,
        }
    }

    /// Verifies the sum, which continues `before`.
    pub fn verify(&self, bytes: &[u8; FRAME_LEN], before: u32, payload: &[u8]) -> Result<()> {
        let found = sum_of(before, bytes, payload);
        if found == self.sum {
            return Ok(());
        }
        Err(Error::corrupt(
            format_args!("stream frame {}", self.number),
            format_args!("checksum {found:#010x}, expected {:#010x}", self.sum),
        ))
    }
}

fn sum_of(before: u32, frame: &[u8; FRAME_LEN], payload: &[u8]) -> u32 {
    let sum = crc32c::crc32c(&before.to_le_bytes());
    let sum = crc32c::crc32c_append(sum, &frame[..FRAME_LEN - 4]);
    crc32c::crc32c_append(sum, payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::address::Geometry;
    use crate::disk::inode::Time;
    use crate::disk::nat::NatPointer;

    fn snapshot(name: &str, version: u64, head: u64) -> Snapshot {
        Snapshot {
            name: name.to_owned(),
            time: Time::default(),
            version,
            next_nid: 5,
            nat_root: NatPointer::default(),
            nat_height: 1,
            nat_blocks: 1,
            live_blocks: 1,
            inodes: 1,
            heads: [head; 7],
            lost_nodes: 0,
            lost_data: 0,
        }
    }

    fn header() -> Header {
        Header {
            superblock: Superblock {
                incompat: 0,
                uuid: [7; 16],
                hash_key: [9; 16],
                geometry: Geometry {
                    area_bits: 29,
                    section_bits: 8,
                    zone_bits: 4,
                    pack_blocks: 4,
                },
                quota_blocks: 8192,
                reserve_blocks: 256,
                generation: 1,
                label: [0; 64],
            },
            snapshot: snapshot("new", 9, 200),
            base: Some(snapshot("old", 8, 100)),
            next_seq: 3,
            next_generation: 4,
        }
    }

    fn decode(bytes: &[u8]) -> Result<Header> {
        let (first, second) = bytes.split_at(BLOCK_SIZE);
        Header::decode(first.try_into().unwrap(), second.try_into().unwrap()).map(|(h, _)| h)
    }

    #[test]
    fn headers_round_trip_and_every_flipped_byte_is_detected() {
        let (good, _) = header().encode();
        assert_eq!(decode(&good).unwrap(), header());
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(decode(&bad).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_base_that_is_not_older_is_rejected_despite_a_correct_checksum() {
        for base in [
            snapshot("old", 9, 100),
            snapshot("new", 8, 100),
            snapshot("old", 8, 201),
            snapshot("old", 8, 3),
        ] {
            let bad = Header {
                base: Some(base),
                ..header()
            };
            assert!(decode(&bad.encode().0).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_frame_is_accepted_only_at_its_position() {
        let payload = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        let (bytes, sum) = Frame::encode(FrameKind::Dead, 3, 0, 1, 77, &payload);
        let frame = Frame::decode(&bytes, 3).unwrap();
        assert_eq!(
            (frame.kind, frame.count, frame.sum),
            (FrameKind::Dead, 1, sum)
        );
        frame.verify(&bytes, 77, &payload).unwrap();
        assert!(frame.verify(&bytes, 78, &payload).is_err());
        assert!(Frame::decode(&bytes, 4).is_err());
        for bit in 0..FRAME_LEN * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            let noticed = Frame::decode(&bad, 3).and_then(|f| {
                if f.payload_len() == payload.len() {
                    f.verify(&bad, 77, &payload)
                } else {
                    Err(Error::corrupt("", ""))
                }
            });
            assert!(noticed.is_err(), "bit {bit}");
        }
    }
}
