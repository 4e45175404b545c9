//! GUID partition tables: encoding, decoding, and the choice between both copies.
//!
//! ```text
//!  protective MBR │ header │ entries │ ... partitions ... │ entries │ header
//!  sector 0       │ 1      │ 2 ...                                  │ last sector
//! ```

use crate::error::{Error, Result};
use crate::guid::Guid;
use std::ops::Range;
use tuff_store::ReadAt;

/// Sizes of sectors that disks have. Unit: bytes.
pub const SECTORS: [u32; 2] = [512, 4096];

/// Length of the header of a table. Unit: bytes.
const HEADER: usize = 92;

/// Number of entries of a table that is written.
const ENTRIES: usize = 128;

/// Length of an entry of a table that is written. Unit: bytes.
pub(crate) const ENTRY: usize = 128;

/// Longest array of entries that is read. Unit: bytes.
const ENTRIES_MAX: u64 = 1 << 20;

/// Length of a partition's name. Unit: UTF-16 code units.
const NAME: usize = 36;

/// First bytes of a header.
pub(crate) const SIGNATURE: &[u8; 8] = b"EFI PART";
const REVISION: u32 = 0x0001_0000;

/// Type of the MBR partition that covers the disk, so that tools without GPT leave it alone.
const PROTECTIVE: u8 = 0xee;

/// Attribute of partitions that must not be written.
pub(crate) const READ_ONLY: u64 = 1 << 60;

/// Partition table of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// GUID of the disk.
    pub disk: Guid,
    /// Size of a sector. Unit: bytes.
    pub sector: u32,
    /// Partitions in the order of their entries.
    pub partitions: Vec<Partition>,
}

/// Entry of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Number of the entry. The first is 1.
    pub number: u32,
    /// Type of the content.
    pub kind: Guid,
    /// GUID of the partition.
    pub id: Guid,
    /// Bytes on the disk.
    pub range: Range<u64>,
    /// Flags of the UEFI specification and of the type.
    pub attributes: u64,
    /// Label of the partition.
    pub name: String,
}

/// Table that was read, and what is wrong with it.
#[derive(Clone, Debug)]
pub struct TableOnDisk {
    /// The table of the copy that is usable.
    pub table: Table,
    /// Damage that leaves one copy of the table usable.
    pub damage: Vec<String>,
}

/// Fields of a header.
struct Header {
    own: u64,
    other: u64,
    usable: Range<u64>,
    disk: Guid,
    entries_at: u64,
    entries: u32,
    entry: u32,
    entries_crc: u32,
}

impl Table {
    /// Length of a disk on which the last partition ends at byte `end`. Unit: bytes.
    pub(crate) fn disk_len(sector: u32, end: u64) -> u64 {
        let backup = ENTRIES * ENTRY + sector as usize;
        // Disks of 4096-byte sectors, and most programs that copy disks, need whole blocks.
        (end + backup as u64).next_multiple_of(4096)
    }

    /// Encodes the start and the end of a disk of `len` bytes.
    pub(crate) fn encode(&self, len: u64) -> (Vec<u8>, Vec<u8>) {
        let sector = u64::from(self.sector);
        assert!(len.is_multiple_of(sector) && self.partitions.len() <= ENTRIES);
        let array_len = (ENTRIES * ENTRY) as u64 / sector;
        let last = len / sector - 1;
        let mut entries = vec![0; ENTRIES * ENTRY];
        for partition in &self.partitions {
            let at = (partition.number as usize - 1) * ENTRY;
            let sectors = partition.range.start / sector..partition.range.end / sector;
            let entry = &mut entries[at..at + ENTRY];
            entry[..16].copy_from_slice(&partition.kind.to_disk());
            entry[16..32].copy_from_slice(&partition.id.to_disk());
            entry[32..40].copy_from_slice(&sectors.start.to_le_bytes());
            entry[40..48].copy_from_slice(&(sectors.end - 1).to_le_bytes());
            entry[48..56].copy_from_slice(&partition.attributes.to_le_bytes());
            let units = partition.name.encode_utf16().take(NAME);
            for (unit, place) in units.zip(entry[56..].chunks_mut(2)) {
                place.copy_from_slice(&unit.to_le_bytes());
            }
        }
        let header = |own: u64, other: u64, entries_at: u64| {
            let header = Header {
                own,
                other,
                usable: 2 + array_len..last - array_len,
                disk: self.disk,
                entries_at,
                entries: ENTRIES as u32,
                entry: ENTRY as u32,
                entries_crc: crc32fast::hash(&entries),
            };
            let mut bytes = header.encode().to_vec();
            bytes.resize(self.sector as usize, 0);
            bytes
        };
        let mut mbr = protective_mbr(last);
        mbr.resize(self.sector as usize, 0);
        let first = [mbr, header(1, last, 2), entries.clone()].concat();
        let end = [entries.clone(), header(last, 1, last - array_len)].concat();
        (first, end)
    }

    /// Reads the table of a disk. `None` for a store without one.
    ///
    /// # Errors
    /// `Corrupt` if neither copy of the table is usable, and errors of reading.
    pub fn read(store: &dyn ReadAt) -> Result<Option<TableOnDisk>> {
        let Some(sector) = sector_size(store)? else {
            return Ok(None);
        };
        let last = store.size() / u64::from(sector) - 1;
        let first = Self::read_copy(store, sector, 1);
        let other = first.as_ref().map_or(last, |(_, other)| *other);
        let backup = match other {
            1 => Err(Error::Corrupt(
                "the first table states no backup".to_owned(),
            )),
            other => Self::read_copy(store, sector, other),
        };
        match (first, backup) {
            (Err(Error::Io(e)), _) | (_, Err(Error::Io(e))) => Err(e.into()),
            (Ok((table, _)), Ok((backup, _))) => {
                let differs = table != backup;
                let damage = differs.then(|| "the two partition tables differ".to_owned());
                Ok(Some(TableOnDisk {
                    table,
                    damage: damage.into_iter().collect(),
                }))
            }
            (Ok((table, _)), Err(e)) => Ok(Some(TableOnDisk {
                table,
                damage: vec![format!("backup at sector {other}: {e}")],
            })),
            (Err(e), Ok((table, _))) => Ok(Some(TableOnDisk {
                table,
                damage: vec![format!("first table: {e}")],
            })),
            (Err(e), Err(_)) => Err(e),
        }
    }

    /// Reads the table whose header is in sector `at`. Also returns the sector of the other header.
    fn read_copy(store: &dyn ReadAt, sector: u32, at: u64) -> Result<(Self, u64)> {
        let sector_len = u64::from(sector);
        let corrupt = |what: &str| Error::Corrupt(format!("GPT partition table: {what}"));
        let len = store.size();
        let position = at.checked_mul(sector_len);
        let position =
            position.filter(|at| at.checked_add(sector_len).is_some_and(|end| end <= len));
        let position = position.ok_or_else(|| corrupt("the header is outside of the disk"))?;
        let mut bytes = vec![0; sector as usize];
        store.read_exact_at(&mut bytes, position)?;
        let header = Header::decode(&bytes).map_err(corrupt)?;
        if header.own != at {
            return Err(corrupt("the header states another sector than its own"));
        }
        let array_len = u64::from(header.entries) * u64::from(header.entry);
        if header.entry < ENTRY as u32 || array_len > ENTRIES_MAX {
            return Err(corrupt("impossible number or size of entries"));
        }
        let array = header.entries_at.checked_mul(sector_len);
        let array = array.filter(|at| at.checked_add(array_len).is_some_and(|end| end <= len));
        let array = array.ok_or_else(|| corrupt("the entries are outside of the disk"))?;
        // Fits: at most `ENTRIES_MAX`.
        let mut bytes = vec![0; array_len as usize];
        store.read_exact_at(&mut bytes, array)?;
        if crc32fast::hash(&bytes) != header.entries_crc {
            return Err(corrupt("the checksum of the entries does not match"));
        }
        let mut partitions = Vec::new();
        for (number, entry) in (1..).zip(bytes.chunks_exact(header.entry as usize)) {
            let kind = Guid::from_disk(array_at(entry, 0));
            if kind.is_zero() {
                continue;
            }
            let (first, end) = (u64_at(entry, 32), u64_at(entry, 40).checked_add(1));
            let end = end.filter(|end| *end > first && header.usable.contains(&first));
            let end = end.filter(|end| *end <= header.usable.end);
            let end = end.and_then(|end| end.checked_mul(sector_len));
            let end = end.filter(|end| *end <= len).ok_or_else(|| {
                corrupt(&format!(
                    "partition {number} is outside of the disk, which may be truncated"
                ))
            })?;
            let units = entry[56..ENTRY].chunks_exact(2);
            let units = units.map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
            let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
            partitions.push(Partition {
                number,
                kind,
                id: Guid::from_disk(array_at(entry, 16)),
                // Fits: less than `end`.
                range: first * sector_len..end,
                attributes: u64_at(entry, 48),
                name: String::from_utf16_lossy(&units),
            });
        }
        let disk = header.disk;
        let table = Self {
            disk,
            sector,
            partitions,
        };
        Ok((table, header.other))
    }
}

impl Header {
    fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, SIGNATURE);
        put(8, &REVISION.to_le_bytes());
        put(12, &(HEADER as u32).to_le_bytes());
        put(24, &self.own.to_le_bytes());
        put(32, &self.other.to_le_bytes());
        put(40, &self.usable.start.to_le_bytes());
        put(48, &(self.usable.end - 1).to_le_bytes());
        put(56, &self.disk.to_disk());
        put(72, &self.entries_at.to_le_bytes());
        put(80, &self.entries.to_le_bytes());
        put(84, &self.entry.to_le_bytes());
        put(88, &self.entries_crc.to_le_bytes());
        let crc = crc32fast::hash(&bytes);
        bytes[16..20].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the header at the start of a sector.
    fn decode(sector: &[u8]) -> Result<Self, &'static str> {
        let bytes: [u8; HEADER] = array_at(sector, 0);
        if !bytes.starts_with(SIGNATURE) {
            return Err("the header is missing");
        }
        let covered = sector.get(..u32_at(&bytes, 12) as usize);
        let covered = covered.filter(|covered| covered.len() >= HEADER);
        let mut covered = covered.ok_or("impossible length of the header")?.to_vec();
        covered[16..20].fill(0);
        if crc32fast::hash(&covered) != u32_at(&bytes, 16) {
            return Err("the checksum of the header does not match");
        }
        Ok(Self {
            own: u64_at(&bytes, 24),
            other: u64_at(&bytes, 32),
            usable: u64_at(&bytes, 40)..u64_at(&bytes, 48).saturating_add(1),
            disk: Guid::from_disk(array_at(&bytes, 56)),
            entries_at: u64_at(&bytes, 72),
            entries: u32_at(&bytes, 80),
            entry: u32_at(&bytes, 84),
            entries_crc: u32_at(&bytes, 88),
        })
    }
}

/// Size of the sectors of a disk with a partition table. `None` without a table.
fn sector_size(store: &dyn ReadAt) -> Result<Option<u32>> {
    let has_header = |at: u64| -> Result<bool> {
        let mut bytes = [0; SIGNATURE.len()];
        if at
            .checked_add(bytes.len() as u64)
            .is_none_or(|end| end > store.size())
        {
            return Ok(false);
        }
        store.read_exact_at(&mut bytes, at)?;
        Ok(bytes == *SIGNATURE)
    };
    for sector in SECTORS {
        if has_header(sector.into())? {
            return Ok(Some(sector));
        }
    }
    let mut mbr = [0; 512];
    if store.size() < 2 * mbr.len() as u64 {
        return Ok(None);
    }
    store.read_exact_at(&mut mbr, 0)?;
    let mut kinds = mbr[446..510].chunks(16).map(|entry| entry[4]);
    if mbr[510..] != [0x55, 0xaa] || !kinds.any(|kind| kind == PROTECTIVE) {
        return Ok(None);
    }
    // The first header is damaged.
    for sector in SECTORS {
        let last = (store.size() / u64::from(sector)).checked_sub(1);
        if let Some(last) = last
            && has_header(last * u64::from(sector))?
        {
            return Ok(Some(sector));
        }
    }
    Ok(None)
}

/// MBR with one partition that covers the disk up to sector `last`.
fn protective_mbr(last: u64) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    let entry = &mut bytes[446..462];
    // Sector 1, as cylinder, head and sector.
    entry[1..4].copy_from_slice(&[0, 2, 0]);
    entry[4] = PROTECTIVE;
    entry[5..8].copy_from_slice(&[0xff, 0xff, 0xff]);
    entry[8..12].copy_from_slice(&1u32.to_le_bytes());
    let sectors = u32::try_from(last).unwrap_or(u32::MAX);
    entry[12..].copy_from_slice(&sectors.to_le_bytes());
    bytes[510..].copy_from_slice(&[0x55, 0xaa]);
    bytes
}

/// `N` bytes from `at`, which the caller knows to exist.
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tuff_store::MemStore;

    fn table(sector: u32) -> Table {
        let partition = |number: u32, range: Range<u64>| Partition {
            number,
            kind: Guid([number as u8; 16]),
            id: Guid([0x80 | number as u8; 16]),
            range,
            attributes: READ_ONLY,
            name: format!("name {number}"),
        };
        Table {
            disk: Guid([7; 16]),
            sector,
            partitions: vec![
                partition(1, 1 << 20..(1 << 20) + 8192),
                partition(2, 2 << 20..(2 << 20) + 4096),
            ],
        }
    }

    /// Disk with a table and nothing else.
    fn disk(table: &Table) -> Vec<u8> {
        let end = table.partitions.last().unwrap().range.end;
        let len = Table::disk_len(table.sector, end);
        let (first, last) = table.encode(len);
        let mut bytes = vec![0; len as usize];
        bytes[..first.len()].copy_from_slice(&first);
        let at = bytes.len() - last.len();
        bytes[at..].copy_from_slice(&last);
        bytes
    }

    fn read(bytes: Vec<u8>) -> Result<Option<TableOnDisk>> {
        Table::read(&MemStore::new(bytes))
    }

    #[test]
    fn tables_survive_a_round_trip() {
        for sector in SECTORS {
            let table = table(sector);
            let found = read(disk(&table)).unwrap().unwrap();
            assert_eq!(found.table, table);
            assert_eq!(found.damage, [""; 0]);
        }
    }

    #[test]
    fn one_of_both_tables_is_enough() {
        for sector in SECTORS {
            let table = table(sector);
            let good = disk(&table);
            let step = sector as usize;
            let last = good.len() - step;
            for (at, expected) in [
                (
                    step,
                    "first table: GPT partition table: the header is missing",
                ),
                (
                    step + 60,
                    "first table: GPT partition table: the checksum of the header",
                ),
                (
                    2 * step + 3,
                    "first table: GPT partition table: the checksum of the entries",
                ),
                (last, "backup at sector"),
                (last - 16384 + 20, "the checksum of the entries"),
            ] {
                let mut bytes = good.clone();
                bytes[at] ^= 1;
                let found = read(bytes).unwrap().unwrap();
                assert_eq!(found.table, table, "byte {at}");
                assert!(
                    found.damage[0].contains(expected),
                    "byte {at}: {:?}",
                    found.damage
                );
            }
        }
    }

    #[test]
    fn damage_of_both_tables_is_corrupt() {
        let mut bytes = disk(&table(512));
        let last = bytes.len() - 512;
        bytes[512 + 56] ^= 1;
        bytes[last + 56] ^= 1;
        assert!(matches!(read(bytes), Err(Error::Corrupt(_))));
    }

    #[test]
    fn tables_that_differ_are_reported() {
        let mut other = table(512);
        other.disk = Guid([9; 16]);
        let (mut bytes, other) = (disk(&table(512)), disk(&other));
        let last = bytes.len() - 512;
        bytes[last..].copy_from_slice(&other[last..]);
        let found = read(bytes).unwrap().unwrap();
        assert_eq!(found.damage, ["the two partition tables differ"]);
    }

    #[test]
    fn partitions_outside_of_the_disk_are_corrupt() {
        let mut table = table(512);
        let good = disk(&table);
        for range in [
            0..512,
            512..1024,
            1 << 20..1 << 40,
            1 << 20..good.len() as u64,
        ] {
            table.partitions[0].range = range.clone();
            let (first, last) = table.encode(good.len() as u64);
            let mut bytes = good.clone();
            bytes[..first.len()].copy_from_slice(&first);
            let at = bytes.len() - last.len();
            bytes[at..].copy_from_slice(&last);
            let message = read(bytes).unwrap_err().to_string();
            assert!(
                message.contains("partition 1 is outside"),
                "{range:?}: {message}"
            );
        }
    }

    #[test]
    fn other_stores_have_no_table() {
        for bytes in [Vec::new(), vec![0; 600], vec![0xff; 1 << 20]] {
            assert!(read(bytes).unwrap().is_none());
        }
        let mut bytes = vec![0; 1 << 20];
        bytes[..512].copy_from_slice(&protective_mbr(2047));
        assert!(read(bytes).unwrap().is_none());
    }

    #[test]
    fn fields_of_any_value_under_valid_checksums_are_errors_without_panics() {
        let good = disk(&table(512));
        for at in (512 + 24..512 + 92).chain(1024..1024 + 256) {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = value;
                let entries = crc32fast::hash(&bytes[1024..1024 + 16384]);
                if at >= 1024 {
                    bytes[512 + 88..512 + 92].copy_from_slice(&entries.to_le_bytes());
                }
                bytes[512 + 16..512 + 20].fill(0);
                let header = crc32fast::hash(&bytes[512..512 + HEADER]);
                bytes[512 + 16..512 + 20].copy_from_slice(&header.to_le_bytes());
                // The backup is usable, whatever the first table has become.
                let found = read(bytes).unwrap().unwrap();
                assert!(found.table.partitions.len() <= 3, "byte {at}: {value}");
            }
        }
    }

    #[test]
    fn cut_disks_have_no_table_or_the_first_one_with_damage_or_are_errors() {
        let table = table(512);
        let good = disk(&table);
        let ends = table.partitions.iter().map(|p| p.range.end);
        let end = ends.max().unwrap() as usize;
        let lens = (0..40_000).step_by(509);
        for len in lens.chain([good.len() - 512, good.len() - 1]) {
            match read(good[..len].to_vec()) {
                Ok(None) => assert!(len < 1024, "{len}"),
                Err(e) => assert!(matches!(e, Error::Corrupt(_)) && len < end, "{len}: {e}"),
                // With all partitions, but without the end of the disk, the first table is still usable.
                Ok(Some(found)) => {
                    assert_eq!(found.table, table, "{len}");
                    assert_eq!(found.damage.len(), 1, "{len}");
                }
            }
        }
    }
}
