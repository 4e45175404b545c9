//! Opening a map: table, journal, and verification of the last batch.

use super::allocator::Allocator;
use super::block_map::BlockMap;
use super::durable_map::{DurableMap, Repair, apply, split_at_pages};
use super::journal::{BatchHeader, Change, PendingChanges};
use super::layout::Layout;
use super::table::{PAGE_ENTRIES, Page};
use crate::device::BlockDevice;
use crate::disk::address::{BLOCK_SIZE, Block, BlockAddr};
use crate::finding::Finding;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Number of pages or data blocks that are read at once.
const READ_BLOCKS: u64 = 256;

/// State of a map that was just opened.
pub(super) struct LoadedMap {
    pub(super) durable: DurableMap,
    pub(super) map: BlockMap,
    pub(super) space: Allocator,
    /// Releases of blocks whose write the last batch recorded and a power loss undid.
    pub(super) pending: PendingChanges,
}

/// Copy of a page that is damaged or older than the other one.
struct WeakCopy {
    copy: u64,
    index: u64,
    is_damaged: bool,
    newest: Block,
}

struct Table {
    owners: Vec<u64>,
    /// Number of the last batch in each page.
    seqs: Vec<u64>,
    weak: Vec<WeakCopy>,
    findings: Vec<Finding>,
}

struct Replayed {
    position: u64,
    last_seq: u64,
    journaled: Vec<Change>,
    /// Pages that lack changes of the journal.
    dirty: BTreeSet<u64>,
    /// Last batch.
    last: Vec<(Change, Vec<u8>)>,
    /// Copies of batches that differ from the sound one: number and repair.
    weak: Vec<(u64, Repair)>,
}

fn damaged(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads table and journal.
pub(super) fn load(medium: Arc<dyn BlockDevice>, layout: Layout) -> io::Result<LoadedMap> {
    let mut table = read_table(&*medium, &layout)?;
    let mut replayed = replay(&*medium, &layout, &mut table)?;
    let table_seq = table.seqs.iter().copied().max().unwrap_or(0);
    let may_be_interrupted = replayed.last_seq == table_seq;
    let (mut findings, mut repairs) = (table.findings, Vec::new());
    for weak in table.weak {
        let copy = weak.copy + 1;
        // A crash while the table is written damages pages that the journal still describes.
        let is_expected = replayed.dirty.contains(&weak.index)
            || may_be_interrupted && table.seqs[weak.index as usize] == table_seq;
        if weak.is_damaged && !is_expected {
            let place = format!("copy {copy} of page {} of the block map", weak.index);
            findings.push(Finding::new(place, "is damaged"));
        }
        repairs.push(Repair {
            physical: layout.table(weak.copy) + weak.index,
            bytes: weak.newest.to_vec(),
        });
    }
    if replayed.dirty.is_empty() {
        // The table contains the whole journal.
        (replayed.position, replayed.journaled) = (0, Vec::new());
        replayed.last.clear();
    } else if replayed.last_seq < table_seq {
        return Err(damaged(format!(
            "the journal of the block map ends with batch {}, the table contains batch {table_seq}",
            replayed.last_seq
        )));
    } else {
        for (seq, repair) in replayed.weak {
            // A crash may leave one copy of the last batch.
            if seq != replayed.last_seq {
                let place = format!("copy of batch {seq} in the journal of the block map");
                findings.push(Finding::new(place, "is damaged"));
            }
            repairs.push(repair);
        }
    }
    let (mut map, space) = build(&layout, &table.owners)?;
    let mut pending = PendingChanges::default();
    verify_last(&*medium, &replayed.last, &mut map, &mut pending)?;
    // The table may be written before these changes are in the journal.
    replayed.journaled.extend(&pending.changes);
    let durable = DurableMap {
        medium,
        layout,
        position: replayed.position,
        next_seq: replayed.last_seq.max(table_seq) + 1,
        journaled: replayed.journaled,
        repairs,
        findings,
        failed: false,
    };
    Ok(LoadedMap {
        durable,
        map,
        space,
        pending,
    })
}

fn read_table(medium: &dyn BlockDevice, layout: &Layout) -> io::Result<Table> {
    let data = layout.data();
    let mut table = Table {
        owners: Vec::with_capacity((data.end - data.start) as usize),
        seqs: Vec::new(),
        weak: Vec::new(),
        findings: Vec::new(),
    };
    let mut start = 0;
    while start < layout.table_blocks() {
        let indices = start..(start + READ_BLOCKS).min(layout.table_blocks());
        let first = read_pages(medium, layout.table(0), indices.clone());
        let second = read_pages(medium, layout.table(1), indices.clone());
        for ((index, first), second) in indices.clone().zip(first).zip(second) {
            let page = choose(index, first, second, &mut table)?;
            table.owners.extend(&page.owners);
            table.seqs.push(page.seq);
        }
        start = indices.end;
    }
    table.owners.truncate((data.end - data.start) as usize);
    Ok(table)
}

/// Returns the newest copy of a page, and notes the other one if it differs.
fn choose(
    index: u64,
    first: io::Result<Option<Page>>,
    second: io::Result<Option<Page>>,
    table: &mut Table,
) -> io::Result<Page> {
    let mut note = |copy, is_damaged, newest: &Page| {
        table.weak.push(WeakCopy {
            copy,
            index,
            is_damaged,
            newest: newest.encode(index),
        });
    };
    Ok(match (first, second) {
        (Ok(Some(first)), Ok(Some(second))) if first.seq == second.seq => first,
        (Ok(Some(first)), Ok(Some(second))) if first.seq < second.seq => {
            note(0, false, &second);
            second
        }
        (Ok(Some(first)), second) => {
            note(1, !matches!(second, Ok(Some(_))), &first);
            first
        }
        (_, Ok(Some(second))) => {
            note(0, true, &second);
            second
        }
        // The blocks of this page are lost. Without an error, reading again would not help.
        (Ok(None), Ok(None)) => {
            let page = Page::empty();
            note(0, false, &page);
            note(1, false, &page);
            let place = format!("page {index} of the block map");
            let what = format!("both copies are damaged: {PAGE_ENTRIES} blocks are lost");
            table.findings.push(Finding::new(place, what));
            page
        }
        (Err(e), _) | (_, Err(e)) => return Err(e),
    })
}

fn read_pages(
    medium: &dyn BlockDevice,
    table: u64,
    indices: Range<u64>,
) -> Vec<io::Result<Option<Page>>> {
    let decode = |index, bytes: &[u8]| {
        let mut block = [0; BLOCK_SIZE];
        block.copy_from_slice(bytes);
        Page::decode(&block, index)
    };
    let mut bytes = vec![0; (indices.end - indices.start) as usize * BLOCK_SIZE];
    let start = BlockAddr(table + indices.start);
    if medium.read(start, &mut bytes).is_ok() {
        let blocks = indices.zip(bytes.chunks_exact(BLOCK_SIZE));
        return blocks
            .map(|(index, bytes)| Ok(decode(index, bytes)))
            .collect();
    }
    // Finds the pages that can be read.
    let read = |index| {
        let mut block = [0; BLOCK_SIZE];
        medium.read(BlockAddr(table + index), &mut block)?;
        Ok(decode(index, &block))
    };
    indices.map(read).collect()
}

/// Batch that was read completely and is sound.
struct Batch {
    header: BatchHeader,
    bytes: Vec<u8>,
}

fn read_batch(
    medium: &dyn BlockDevice,
    layout: &Layout,
    copy: u64,
    position: u64,
) -> io::Result<Option<Batch>> {
    if position >= layout.journal_blocks() {
        return Ok(None);
    }
    let start = layout.journal(copy) + position;
    let mut bytes = vec![0; BLOCK_SIZE];
    medium.read(BlockAddr(start), &mut bytes)?;
    let Some(header) = BatchHeader::decode(&bytes, layout.id()) else {
        return Ok(None);
    };
    if position + header.blocks > layout.journal_blocks() {
        return Ok(None);
    }
    if header.blocks > 1 {
        bytes.resize(header.blocks as usize * BLOCK_SIZE, 0);
        medium.read(BlockAddr(start + 1), &mut bytes[BLOCK_SIZE..])?;
    }
    Ok(header
        .changes(&bytes)
        .is_some()
        .then_some(Batch { header, bytes }))
}

/// Applies the batches of the journal to the owners, as far as their pages lack them.
fn replay(medium: &dyn BlockDevice, layout: &Layout, table: &mut Table) -> io::Result<Replayed> {
    let data = layout.data();
    let mut replayed = Replayed {
        position: 0,
        last_seq: 0,
        journaled: Vec::new(),
        dirty: BTreeSet::new(),
        last: Vec::new(),
        weak: Vec::new(),
    };
    loop {
        let position = replayed.position;
        let copies = [0, 1].map(|copy| read_batch(medium, layout, copy, position));
        let fits = |batch: &&Batch| position == 0 || batch.header.seq == replayed.last_seq + 1;
        let sound = copies
            .iter()
            .filter_map(|copy| copy.as_ref().ok()?.as_ref());
        let Some(batch) = sound.filter(fits).max_by_key(|batch| batch.header.seq) else {
            // Without an error, the journal ends here.
            for copy in copies {
                copy?;
            }
            return Ok(replayed);
        };
        let seq = batch.header.seq;
        for (number, copy) in (0..).zip(&copies) {
            let equal =
                |copy: &Option<Batch>| copy.as_ref().is_some_and(|b| b.bytes == batch.bytes);
            if !copy.as_ref().is_ok_and(equal) {
                let repair = Repair {
                    physical: layout.journal(number) + position,
                    bytes: batch.bytes.clone(),
                };
                replayed.weak.push((seq, repair));
            }
        }
        replayed.last.clear();
        for (change, sums) in batch.header.changes(&batch.bytes).unwrap_or_default() {
            let end = change.physical.checked_add(change.blocks);
            if change.physical < data.start || end.is_none_or(|end| end > data.end) {
                let what = format!("batch {seq} of the block map changes blocks outside the data");
                return Err(damaged(what));
            }
            for (page, _, part) in split_at_pages(change, data.start) {
                if seq > table.seqs[page as usize] {
                    let first = (part.physical - data.start) as usize;
                    apply(part, &mut table.owners[first..]);
                    replayed.dirty.insert(page);
                }
            }
            replayed.journaled.push(change);
            if change.addr != 0 {
                replayed.last.push((change, sums.to_vec()));
            }
        }
        replayed.last_seq = seq;
        replayed.position += batch.header.blocks;
    }
}

/// Builds the map and the free space from the owners of the data blocks.
fn build(layout: &Layout, owners: &[u64]) -> io::Result<(BlockMap, Allocator)> {
    let mut space = Allocator::new(layout.data());
    let mut runs: Vec<Change> = Vec::new();
    for (physical, &addr) in (layout.data().start..).zip(owners) {
        if addr == 0 {
            continue;
        }
        space.take(physical);
        match runs.last_mut() {
            Some(run) if run.physical + run.blocks == physical && run.addr + run.blocks == addr => {
                run.blocks += 1;
            }
            _ => runs.push(Change {
                physical,
                blocks: 1,
                addr,
            }),
        }
    }
    runs.sort_unstable_by_key(|run| run.addr);
    let mut map = BlockMap::default();
    let mut end = 0;
    for run in runs {
        if run.addr < end || layout.fixed_place(run.addr).is_some() {
            let what = format!("the block map has two blocks for address {:#x}", run.addr);
            return Err(damaged(what));
        }
        end = run.addr.saturating_add(run.blocks);
        map.insert(run.addr, run.physical, run.blocks);
    }
    Ok((map, space))
}

/// Removes the blocks of the last batch whose data did not survive. Every earlier batch was durable with its data when
/// the next one was written.
fn verify_last(
    medium: &dyn BlockDevice,
    last: &[(Change, Vec<u8>)],
    map: &mut BlockMap,
    pending: &mut PendingChanges,
) -> io::Result<()> {
    let mut bytes = vec![0; READ_BLOCKS as usize * BLOCK_SIZE];
    for (change, sums) in last {
        let mut at = 0;
        while at < change.blocks {
            let blocks = (change.blocks - at).min(READ_BLOCKS);
            let bytes = &mut bytes[..blocks as usize * BLOCK_SIZE];
            medium.read(BlockAddr(change.physical + at), bytes)?;
            let sums = sums[at as usize * 4..].chunks_exact(4);
            let found = (at..).zip(bytes.chunks_exact(BLOCK_SIZE)).zip(sums);
            for ((offset, block), sum) in found {
                let (addr, physical) = (change.addr + offset, change.physical + offset);
                // A later change of the batch may have released the block.
                let is_current = map.resolve(addr..addr + 1)[0].physical == Some(physical);
                if is_current && crc32c::crc32c(block).to_le_bytes() != sum {
                    for run in map.remove(addr..addr + 1) {
                        pending.free(run);
                    }
                }
            }
            at += blocks;
        }
    }
    Ok(())
}
