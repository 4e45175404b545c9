//! Files of a volume with branches: the counter of regions, and the record of a branch.
//!
//! ```text
//!  counter  0 magic 8 │ 8 version 4 │ 12 area_bits 1 │ zero 3 │ 16 fixed_blocks 8 │ 24 first 8 │ 32 next 8 │ 40 crc 4
//!  record   0 magic 8 │ 8 version 4 │ 12 flags 4 │ 16 number 8 │ 24 parent 8 │ 32 area_bits 1 │ zero 7 │ 40 fixed_blocks 8
//!           48 first 8 │ 56 regions 4 │ journal 4 │ orphans 4 │ zero 4 │ 72 snapshot 192
//!           264 next_seq 8 │ next_generation 4 │ zero 4 │ 280 regions 8 each │ journal 16 each │ orphans 4 each │ crc 4
//!  renames  0 magic 8 │ 8 version 4 │ {number 8 │ length 1 │ name} … │ crc 4
//! ```
//!
//! The offset space of every area is divided into regions. The number of a branch is that of its first region.

use super::wire::{Get, Put};
use crate::disk::address::{AREA_BITS, BlockAddr, Geometry, Nid};
use crate::disk::checkpoint::Seal;
use crate::disk::inode::Time;
use crate::disk::nat::{NatEntry, NatPointer};
use crate::disk::snapshot::{SNAPSHOT_LEN, Snapshot};
use crate::error::{Error, Result};

/// Bits of the offset inside a region. A region has 2^28 blocks, 1 TiB, in each area.
pub const REGION_BITS: u8 = 28;
/// Number of the branch that a volume without forks consists of.
pub const FIRST_BRANCH: u64 = 0;
/// Maximum length of a record. Unit: bytes.
pub(crate) const RECORD_LEN_MAX: u64 = 16 << 20;

const COUNTER_MAGIC: [u8; 8] = *b"TUFF-BRC";
const RECORD_MAGIC: [u8; 8] = *b"TUFF-BRN";
const RENAMES_MAGIC: [u8; 8] = *b"TUFF-BRR";
const VERSION: u32 = 1;
/// Length of the counter. Unit: bytes.
const COUNTER_LEN: usize = 44;
/// Length of the fixed part of a record. Unit: bytes.
const RECORD_HEAD: usize = 280;
/// Record flag: the fork point is a snapshot that a user made, with its name.
const OF_SNAPSHOT: u32 = 1;
/// Name in the record of a fork point that is no snapshot of a user.
const NO_NAME: &str = ".";

/// Division of the address space that all branches of a volume share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Bits of the offset inside an area.
    pub area_bits: u8,
    /// First block of the metadata log in region 0.
    pub fixed_blocks: u64,
    /// Regions below this number belong to branch 0.
    pub first: u64,
}

impl Layout {
    /// Region of an address. `None` in area 7 and beyond.
    pub(crate) fn region(&self, addr: u64) -> Option<u64> {
        let offset = addr & ((1 << self.area_bits) - 1);
        (addr >> self.area_bits < 7).then_some(offset >> REGION_BITS)
    }

    /// Number of regions of the volume.
    pub(crate) fn regions(&self) -> u64 {
        regions(self.area_bits)
    }

    fn verify(&self, what: &str) -> Result<()> {
        let sound = AREA_BITS.contains(&self.area_bits)
            && (1..=self.regions()).contains(&self.first)
            && self.fixed_blocks < 1 << 20;
        match sound {
            true => Ok(()),
            false => Err(Error::corrupt(what, format_args!("division {self:?}"))),
        }
    }
}

/// Number of regions of a volume.
pub(crate) fn regions(area_bits: u8) -> u64 {
    1 << area_bits.saturating_sub(REGION_BITS)
}

impl Geometry {
    /// Number of regions of the address space. A fork takes one, and so does a log that reaches the end of its region.
    pub fn regions(&self) -> u64 {
        regions(self.area_bits)
    }
}

/// Counter of regions. It only grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Counter {
    pub(crate) layout: Layout,
    /// Lowest region that was never given to a branch.
    pub(crate) next: u64,
}

impl Counter {
    /// Length. Unit: bytes.
    pub(crate) const LEN: usize = COUNTER_LEN;

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; COUNTER_LEN];
        let mut put = Put::new(&mut bytes);
        put.bytes(&COUNTER_MAGIC);
        put.u32(VERSION);
        put.u32(u32::from(self.layout.area_bits));
        put.u64(self.layout.fixed_blocks);
        put.u64(self.layout.first);
        put.u64(self.next);
        finish(bytes)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let what = "counter of regions";
        let bytes = start(bytes, COUNTER_LEN, what)?;
        let mut get = Get::new(bytes);
        head(&mut get, COUNTER_MAGIC, what)?;
        let layout = Layout {
            area_bits: u8::try_from(get.u32()).unwrap_or(u8::MAX),
            fixed_blocks: get.u64(),
            first: get.u64(),
        };
        let next = get.u64();
        layout.verify(what)?;
        if !(layout.first..=layout.regions()).contains(&next) {
            return Err(Error::corrupt(what, format_args!("next region {next}")));
        }
        Ok(Self { layout, next })
    }
}

/// State from which a branch was forked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForkPoint {
    /// Roots, counts and heads. The name is that of the snapshot, if `of_snapshot` is set.
    pub state: Snapshot,
    /// Set if the state is a snapshot that a user made.
    pub of_snapshot: bool,
    /// Entries of the node address table that differ from its tree.
    pub journal: Vec<(Nid, NatEntry)>,
    /// Inodes without a name.
    pub orphans: Vec<Nid>,
    /// Sequence number of the first node that the branch writes.
    pub next_seq: u64,
    /// Generation of the first inode that the branch creates.
    pub next_generation: u32,
}

impl ForkPoint {
    /// Returns the state that a checkpoint describes.
    pub(crate) fn of_seal(
        seal: &Seal,
        journal: Vec<(Nid, NatEntry)>,
        orphans: Vec<Nid>,
        time: Time,
    ) -> Self {
        let state = Snapshot {
            name: NO_NAME.to_owned(),
            time,
            version: seal.version,
            next_nid: seal.next_nid,
            nat_root: NatPointer {
                addr: seal.nat_root,
                crc: seal.nat_root_crc,
            },
            nat_height: seal.nat_height,
            nat_blocks: seal.nat_blocks,
            live_blocks: seal.live_blocks,
            inodes: seal.inodes,
            heads: seal.logs.map(|marks| marks.head),
            lost_nodes: 0,
            lost_data: 0,
        };
        Self {
            state,
            of_snapshot: false,
            journal,
            orphans,
            next_seq: seal.next_seq,
            next_generation: seal.next_generation,
        }
    }
}

/// Record of a branch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BranchRecord {
    pub(crate) number: u64,
    /// Branch from which it was forked; for branch 0 itself.
    pub(crate) parent: u64,
    pub(crate) layout: Layout,
    /// Regions that it took after its first one, ascending.
    pub(crate) regions: Vec<u64>,
    /// `None` for branch 0.
    pub(crate) origin: Option<ForkPoint>,
}

impl BranchRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let none = (Vec::new(), Vec::new());
        let (journal, orphans) = match &self.origin {
            Some(point) => (&point.journal, &point.orphans),
            None => (&none.0, &none.1),
        };
        let variable = self.regions.len() * 8 + journal.len() * 16 + orphans.len() * 4;
        let mut bytes = vec![0; RECORD_HEAD + variable + 4];
        let mut put = Put::new(&mut bytes);
        put.bytes(&RECORD_MAGIC);
        put.u32(VERSION);
        let of_snapshot = self.origin.as_ref().is_some_and(|point| point.of_snapshot);
        put.u32(if of_snapshot { OF_SNAPSHOT } else { 0 });
        put.u64(self.number);
        put.u64(self.parent);
        put.u64(u64::from(self.layout.area_bits));
        put.u64(self.layout.fixed_blocks);
        put.u64(self.layout.first);
        // Fits: a record has at most RECORD_LEN_MAX bytes.
        for n in [self.regions.len(), journal.len(), orphans.len(), 0] {
            put.u32(n as u32);
        }
        match &self.origin {
            Some(point) => {
                put.bytes(&point.state.encode());
                put.u64(point.next_seq);
                put.u32(point.next_generation);
                put.u32(0);
            }
            None => put.bytes(&[0; SNAPSHOT_LEN + 16]),
        }
        for region in &self.regions {
            put.u64(*region);
        }
        for (nid, entry) in journal {
            put.u32(nid.0);
            put.u32(entry.ino.0);
            put.u64(entry.addr.0);
        }
        for orphan in orphans {
            put.u32(orphan.0);
        }
        finish(bytes)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let what = "record of a branch";
        let bytes = start(bytes, RECORD_HEAD + 4, what)?;
        let mut get = Get::new(bytes);
        head(&mut get, RECORD_MAGIC, what)?;
        let flags = get.u32();
        let (number, parent) = (get.u64(), get.u64());
        let layout = Layout {
            area_bits: u8::try_from(get.u64()).unwrap_or(u8::MAX),
            fixed_blocks: get.u64(),
            first: get.u64(),
        };
        layout.verify(what)?;
        let [regions, journal, orphans, _] = std::array::from_fn(|_| get.u32() as usize);
        if bytes.len() != RECORD_HEAD + regions * 8 + journal * 16 + orphans * 4 + 4 {
            return Err(Error::corrupt(what, "its length does not fit its counts"));
        }
        let state = match number {
            FIRST_BRANCH => {
                get.bytes(SNAPSHOT_LEN);
                None
            }
            _ => Some(Snapshot::decode(&mut get)?),
        };
        let (next_seq, next_generation, _) = (get.u64(), get.u32(), get.u32());
        let regions: Vec<u64> = (0..regions).map(|_| get.u64()).collect();
        let journal = (0..journal)
            .map(|_| {
                let (nid, ino) = (Nid(get.u32()), Nid(get.u32()));
                let addr = BlockAddr(get.u64());
                (nid, NatEntry { addr, ino })
            })
            .collect();
        let orphans = (0..orphans).map(|_| Nid(get.u32())).collect();
        let granted = |region: &u64| (layout.first..layout.regions()).contains(region);
        if !(number == FIRST_BRANCH || granted(&number)) || !regions.iter().all(granted) {
            return Err(Error::corrupt(what, "a region is outside the volume"));
        }
        Ok(Self {
            number,
            parent,
            layout,
            regions,
            origin: state.map(|state| ForkPoint {
                state,
                of_snapshot: flags & OF_SNAPSHOT != 0,
                journal,
                orphans,
                next_seq,
                next_generation,
            }),
        })
    }
}

/// Encodes names that branches get, by their numbers.
pub(crate) fn encode_renames(names: &[(u64, String)]) -> Vec<u8> {
    let mut bytes = Vec::from(RENAMES_MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    for (number, name) in names {
        bytes.extend_from_slice(&number.to_le_bytes());
        // Fits: a name has at most 64 bytes.
        bytes.push(name.len() as u8);
        bytes.extend_from_slice(name.as_bytes());
    }
    bytes.extend_from_slice(&[0; 4]);
    finish(bytes)
}

/// Decodes what [`encode_renames`] encoded.
pub(crate) fn decode_renames(bytes: &[u8]) -> Result<Vec<(u64, String)>> {
    let what = "names that branches get";
    let bytes = start(bytes, 16, what)?;
    head(&mut Get::new(bytes), RENAMES_MAGIC, what)?;
    let mut rest = &bytes[12..bytes.len() - 4];
    let mut names = Vec::new();
    while !rest.is_empty() {
        let damaged = || Error::corrupt(what, "are not names");
        let (fixed, tail) = rest.split_at_checked(9).ok_or_else(damaged)?;
        let mut get = Get::new(fixed);
        let (number, len) = (get.u64(), get.u8());
        let (name, tail) = tail.split_at_checked(len.into()).ok_or_else(damaged)?;
        let name = std::str::from_utf8(name).map_err(|_| damaged())?;
        names.push((number, name.to_owned()));
        rest = tail;
    }
    Ok(names)
}

/// Writes the checksum into the last four bytes.
fn finish(mut bytes: Vec<u8>) -> Vec<u8> {
    let at = bytes.len() - 4;
    let crc = crc32c::crc32c(&bytes[..at]);
    bytes[at..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Verifies the length and the checksum.
fn start<'b>(bytes: &'b [u8], len_min: usize, what: &str) -> Result<&'b [u8]> {
    let sound = bytes.len() >= len_min && {
        let (body, crc) = bytes.split_at(bytes.len() - 4);
        crc32c::crc32c(body).to_le_bytes() == crc
    };
    match sound {
        true => Ok(bytes),
        false => Err(Error::corrupt(what, "checksum does not match")),
    }
}

fn head(get: &mut Get<'_>, magic: [u8; 8], what: &str) -> Result<()> {
    if get.array() != magic {
        return Err(Error::corrupt(what, "has another magic"));
    }
    match get.u32() {
        VERSION => Ok(()),
        other => Err(Error::Unsupported(format!("{what} of version {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout {
        area_bits: 48,
        fixed_blocks: 528,
        first: 2,
    };

    fn record() -> BranchRecord {
        let state = Snapshot {
            name: NO_NAME.to_owned(),
            time: Time { sec: 4, nsec: 5 },
            version: 77,
            next_nid: 12,
            nat_root: NatPointer::default(),
            nat_height: 0,
            nat_blocks: 0,
            live_blocks: 4,
            inodes: 5,
            heads: [1, 2, 3, 4, 5, 6, 7],
            lost_nodes: 0,
            lost_data: 0,
        };
        let entry = NatEntry {
            addr: BlockAddr(1 << 50),
            ino: Nid(4),
        };
        BranchRecord {
            number: 9,
            parent: 3,
            layout: LAYOUT,
            regions: vec![11, 40],
            origin: Some(ForkPoint {
                state,
                of_snapshot: false,
                journal: vec![(Nid(4), entry)],
                orphans: vec![Nid(5)],
                next_seq: 8,
                next_generation: 3,
            }),
        }
    }

    #[test]
    fn records_and_counters_round_trip() {
        let record = record();
        assert_eq!(BranchRecord::decode(&record.encode()).unwrap(), record);
        let main = BranchRecord {
            number: 0,
            parent: 0,
            origin: None,
            ..record
        };
        assert_eq!(BranchRecord::decode(&main.encode()).unwrap(), main);
        let names = vec![(3, "a".to_owned()), (1 << 20, "é".to_owned())];
        assert_eq!(decode_renames(&encode_renames(&names)).unwrap(), names);
        let counter = Counter {
            layout: LAYOUT,
            next: 10,
        };
        assert_eq!(Counter::decode(&counter.encode()).unwrap(), counter);
    }

    #[test]
    fn every_flipped_byte_and_every_truncation_is_detected() {
        let counter = Counter {
            layout: LAYOUT,
            next: 10,
        };
        for good in [record().encode(), counter.encode()] {
            let rejected = |bytes: &[u8]| {
                BranchRecord::decode(bytes).is_err() && Counter::decode(bytes).is_err()
            };
            for at in 0..good.len() {
                let mut bad = good.clone();
                bad[at] ^= 0x10;
                assert!(rejected(&bad), "byte {at}");
                assert!(rejected(&good[..at]), "length {at}");
            }
        }
    }

    #[test]
    fn a_million_forks_fit_the_default_address_space() {
        assert!(LAYOUT.regions() - LAYOUT.first >= 1_000_000);
        let last = LAYOUT.region((6 << 48) + (1 << 48) - 1);
        assert_eq!(last, Some(LAYOUT.regions() - 1));
        assert_eq!(LAYOUT.region(7 << 48), None);
    }
}
