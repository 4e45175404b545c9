//! Partitions of a table are inside of the disk; a disk that opens has a data partition; any record is a result.
//! Input: a disk. Its checksums are set right, because nearly every mutation would fail them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use tuff_disk::{Disk, SECTORS, SignatureRecord, Table, is_sealed};
use tuff_store::{MemStore, ReadAt};

/// Sets the checksums of the table at byte `at` right.
fn seal(disk: &mut [u8], at: usize, sector: usize) -> Option<()> {
    let header = disk.get(at..at + 92)?;
    if !header.starts_with(b"EFI PART") {
        return None;
    }
    let number = |at: usize, len: usize| {
        let bytes = header.get(at..at + len)?.iter().rev();
        usize::try_from(bytes.fold(0, |n, b| n << 8 | u64::from(*b))).ok()
    };
    let (len, entries) = (number(12, 4)?, number(72, 8)?.checked_mul(sector)?);
    let array = number(80, 4)?.checked_mul(number(84, 4)?)?;
    let sum = crc32fast::hash(disk.get(entries..entries.checked_add(array)?)?);
    disk[at + 88..at + 92].copy_from_slice(&sum.to_le_bytes());
    disk[at + 16..at + 20].fill(0);
    let sum = crc32fast::hash(disk.get(at..at.checked_add(len)?)?);
    disk[at + 16..at + 20].copy_from_slice(&sum.to_le_bytes());
    Some(())
}

fuzz_target!(|data: &[u8]| {
    let _ = is_sealed(data);
    let _ = SignatureRecord::decode(data);
    let mut disk = data.to_vec();
    for sector in SECTORS.map(|sector| sector as usize) {
        seal(&mut disk, sector, sector);
        let last = (disk.len() / sector).saturating_sub(1) * sector;
        seal(&mut disk, last, sector);
    }
    let store: Arc<dyn ReadAt> = Arc::new(MemStore::new(disk));
    if let Ok(Some(found)) = Table::read(&*store) {
        for partition in &found.table.partitions {
            assert!(partition.range.start < partition.range.end);
            assert!(partition.range.end <= store.size());
        }
    }
    if let Ok(Some(disk)) = Disk::open(Arc::clone(&store)) {
        assert!(disk.data_store().size() <= store.size());
        assert_eq!(disk.root().is_some(), disk.tree_store().is_some());
        let _ = disk.record();
    }
});
