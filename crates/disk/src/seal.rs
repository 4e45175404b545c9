//! Writes a sealed disk.

use crate::discoverable::{Architecture, Content, Purpose, Role};
use crate::gpt::{ENTRY, Partition, READ_ONLY, SECTORS, SIGNATURE, Table};
use crate::guid::Guid;
use crate::record::SignatureRecord;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use tuff_store::Output;
use tuff_verity::Root;

/// Alignment of partitions. Unit: bytes.
const ALIGNMENT: u64 = 1 << 20;

/// Number of bytes that are copied at once.
const STEP: u64 = 64 << 20;

/// Properties of a disk.
pub struct Seal {
    /// Architecture of the programs in the image.
    pub architecture: Architecture,
    /// Place of the image in the tree of an operating system.
    pub role: Role,
    /// Size of a sector: one of [`SECTORS`](crate::SECTORS). Unit: bytes.
    pub sector: u32,
    /// Root hash of the image.
    pub root: Root,
    /// Signature of the root hash.
    pub record: Option<SignatureRecord>,
}

/// Writes a disk with the image in the bytes `data` of `image`, and its hash tree in the bytes `tree`. Returns the partition
/// table and the length of the disk. `step` receives the number of bytes copied and stops the work by an error.
///
/// # Errors
/// Errors of reading, writing and `step`.
pub fn seal(
    seal: &Seal,
    image: &File,
    data: Range<u64>,
    tree: Range<u64>,
    output: &Output,
    step: &dyn Fn(u64) -> io::Result<()>,
) -> io::Result<(Table, u64)> {
    let record = seal.record.as_ref().map(SignatureRecord::encode);
    let table = seal.table(
        data.end - data.start,
        tree.end - tree.start,
        record.as_ref().map(|record| record.len() as u64),
    );
    let end = table.partitions.last().map_or(0, |last| last.range.end);
    let len = Table::disk_len(seal.sector, end);
    let (first, last) = table.encode(len);
    output.write_at(&first, 0)?;
    for (partition, from) in table.partitions.iter().zip([data, tree]) {
        copy(image, from, output, partition.range.start, step)?;
    }
    if let (Some(record), Some(partition)) = (record, table.partitions.get(2)) {
        output.write_at(&record, partition.range.start)?;
    }
    output.write_at(&last, len - last.len() as u64)?;
    Ok((table, len))
}

/// Returns true for the start of a disk that [`seal`] writes: the first partitions of the table are an image and its hash tree,
/// and a third one can only be the signature.
pub fn is_sealed(head: &[u8]) -> bool {
    SECTORS
        .into_iter()
        .any(|sector| is_sealed_with(head, sector as usize).unwrap_or(false))
}

fn is_sealed_with(head: &[u8], sector: usize) -> Option<bool> {
    let header = head.get(sector..)?.starts_with(SIGNATURE);
    let entries = head.get(2 * sector..2 * sector + 4 * ENTRY)?;
    let mut kinds = entries.chunks_exact(ENTRY).map(|entry| {
        let kind = entry.first_chunk().copied().map(Guid::from_disk)?;
        (!kind.is_zero()).then_some(kind)
    });
    let mut purpose = || kinds.next().map(|kind| kind.map(Purpose::from_type));
    let data = purpose()???;
    let like = |content| Some(Some(Purpose { content, ..data }));
    let is_tree = purpose()? == like(Content::HashTree);
    let third = purpose()?;
    let is_end = third.is_none() || third == like(Content::Signature);
    Some(header && data.content == Content::Data && is_tree && is_end && purpose()?.is_none())
}

impl Seal {
    /// Table for an image, a tree and a record of these lengths.
    fn table(&self, data: u64, tree: u64, record: Option<u64>) -> Table {
        let (mut first, mut second) = ([0; 16], [0; 16]);
        first.copy_from_slice(&self.root[..16]);
        second.copy_from_slice(&self.root[16..]);
        let expected = [
            Some((Content::Data, Guid(first), data)),
            Some((Content::HashTree, Guid(second), tree)),
            record.map(|len| {
                let id = Guid::derived(&self.root, "signature");
                (Content::Signature, id, len)
            }),
        ];
        let mut start = ALIGNMENT;
        let partitions = (1..).zip(expected.into_iter().flatten());
        let partitions = partitions.map(|(number, (content, id, len))| {
            let purpose = Purpose {
                architecture: self.architecture,
                role: self.role,
                content,
            };
            let end = start + len.next_multiple_of(self.sector.into());
            let range = start..end;
            start = end.next_multiple_of(ALIGNMENT);
            Partition {
                number,
                kind: purpose.guid(),
                id,
                range,
                attributes: READ_ONLY,
                name: purpose.name(),
            }
        });
        Table {
            partitions: partitions.collect(),
            disk: Guid::derived(&self.root, "disk"),
            sector: self.sector,
        }
    }
}

/// Copies a range of a file to byte `at` of the output. The kernel copies, or shares the blocks if the filesystem can.
///
/// # Errors
/// Errors of reading, writing and `step`, which receives the number of bytes copied.
pub fn copy(
    mut image: &File,
    range: Range<u64>,
    output: &Output,
    at: u64,
    step: &dyn Fn(u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut to = output.file();
    image.seek(SeekFrom::Start(range.start))?;
    to.seek(SeekFrom::Start(at))?;
    let mut left = range.end - range.start;
    while left > 0 {
        let len = left.min(STEP);
        if io::copy(&mut image.take(len), &mut to)? < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        step(len)?;
        left -= len;
    }
    Ok(())
}
