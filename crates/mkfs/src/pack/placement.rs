//! Placement of results in ticket order, by the collecting thread.

use super::address::{DataBlock, FragmentAddr, FragmentLocation, GrainAddr};
use super::content::Item;
use super::data::{FileData, FileTail, Run};
use super::packed::end_of;
use super::packer::Packer;
use super::piece::ShortPiece;
use super::segment::Tail;
use super::shared_clusters::PartKey;
use super::worker::{Body, JobOut, PartOut};
use crate::tree::order::ContentKey;
use crate::tree::{InodeId, PACKED};
use crate::{Error, Place, Result};

impl Packer<'_> {
    /// Writes the blocks of a result and records their places. Duplicates of earlier files leave no blocks.
    pub(super) fn place(&mut self, out: JobOut) -> Result<()> {
        let (bits, grain) = (self.options.bits, self.options.grain);
        self.digest.update(&out.digest.to_le_bytes());
        // Within the job's data: the start of what is not yet written, and the start of the next part.
        let (mut start, mut at) = (0, 0);
        for part in out.parts {
            match &part.items {
                Some(items) => self.place_items(items, part.len, &part.sums),
                None if part.file != PACKED => {
                    self.progress.add_bytes(part.len as u64);
                    if let [sum] = part.sums[..] {
                        let sums = &mut self.result.sums;
                        sums.add(part.file, part.first, part.len, sum);
                    }
                }
                None => {}
            }
            let end = at + part.body.len(bits, grain);
            if let Some(first) = part.key.and_then(|key| self.duplicate_of(part.file, key)) {
                self.write(&out.data.bytes()[start..at])?;
                start = end;
                self.add_same(part.file, first, part.len as u64);
            } else if let Body::Chunks(chunks) = &part.body {
                self.write(&out.data.bytes()[start..at])?;
                self.fill_block()?;
                start = end;
                self.place_chunks(&part, chunks, &out.data.bytes()[at..end])?;
            } else {
                if part.body.begins_at_block() && bits.within(self.end + (at - start) as u64) > 0 {
                    self.write(&out.data.bytes()[start..at])?;
                    self.fill_block()?;
                    start = at;
                }
                self.place_part(part, self.end + (at - start) as u64)?;
            }
            at = end;
        }
        self.write(&out.data.bytes()[start..at])?;
        self.pool.recycle(out.data);
        Ok(())
    }

    /// Records places and checksums of the files in a segment of the packed inode, which has `len` bytes.
    fn place_items(&mut self, items: &[Item], len: usize, sums: &[u64]) {
        let mut offset = self.stream_placed;
        self.stream_placed += len as u64;
        for (i, item) in items.iter().enumerate() {
            if item.file != PACKED {
                if let Some(sum) = sums.get(i) {
                    let first = item.offset == 0;
                    self.result.sums.add(item.file, first, item.len, *sum);
                }
                if item.first {
                    self.result.stats.fragments += 1;
                    self.set_fragment(item, offset);
                }
                self.result.stats.fragment_bytes += item.len as u64;
                self.progress.add_bytes(item.len as u64);
            }
            offset += item.len as u64;
        }
    }

    /// Records the position of a file, or of its tail, in the packed inode.
    fn set_fragment(&mut self, item: &Item, offset: u64) {
        let offset = FragmentAddr::new(FragmentLocation::Start(offset));
        if item.offset == 0 {
            self.set(item.file, FileData::WholeFragment { offset });
            return;
        }
        let place = self.slot(item.file).fragment();
        *place.expect("the rest of the file was placed before") = offset;
        self.result.stats.similar_tails += 1;
    }

    /// Returns the earlier file with this key, or remembers `file` if there is none.
    fn duplicate_of(&mut self, file: InodeId, key: ContentKey) -> Option<InodeId> {
        if let Some(first) = self.known.get(&key) {
            return Some(*first);
        }
        // Beyond the limit later duplicates are missed, deterministically.
        if self.known.len() < self.options.known_max {
            self.known.insert(key, file);
        }
        None
    }

    /// Appends bytes to the image.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let end = self.end + bytes.len() as u64;
        end_of(0, self.options.bits.count(end))?;
        if self.options.size_max.is_some_and(|max| end > max) {
            return Err(super::grain::over_budget());
        }
        self.output
            .write_at(bytes, self.end)
            .map_err(|e| Error::io(Place::image(), "cannot write", e))?;
        self.end = end;
        Ok(())
    }

    /// Pads the last block, so that the next data starts a block.
    pub(super) fn fill_block(&mut self) -> Result<()> {
        let bits = self.options.bits;
        match bits.within(self.end) {
            0 => Ok(()),
            used => self.write(&vec![0; (bits.size() - used) as usize]),
        }
    }

    /// Records the places of a part whose data starts at byte `position`.
    pub(super) fn place_part(&mut self, part: PartOut, position: u64) -> Result<()> {
        let grain = self.options.grain;
        let end = position + part.body.len(self.options.bits, grain) as u64;
        let PartOut {
            file,
            first,
            len,
            body,
            post,
            key: _,
            items: _,
            sums: _,
        } = part;
        match body {
            Body::Chunks(_) => unreachable!("they have places of their own"),
            Body::Flat { blocks, tail } => {
                self.result
                    .stats
                    .add_flat(len as u64, blocks, tail.as_ref().map_or(0, Vec::len));
                let tail = tail.map(|t| self.result.spill.put(&t)).transpose()?;
                let block = match blocks {
                    0 => DataBlock::NONE,
                    _ => DataBlock::image(end_of(0, position / self.options.bits.size())?),
                };
                match self.slot(file) {
                    FileData::Chunked(chunked) if first => chunked.block = block,
                    FileData::Flat { tail: slot, .. } if !first => *slot = tail,
                    FileData::Chunked(_) => {}
                    slot => *slot = FileData::Flat { block, tail },
                }
            }
            Body::Encoded {
                algorithm,
                pieces,
                homes,
                tail,
                in_place,
            } => {
                let counted = (self.options.bits, grain);
                self.result
                    .stats
                    .add_encoded(algorithm, &pieces, &homes, &tail, in_place, counted);
                let tail = match tail {
                    Tail::Cluster => FileTail::Cluster,
                    Tail::Inline(bytes) => FileTail::Inline(self.result.spill.put(&bytes)?),
                    // The position is known later.
                    Tail::Later(_) => {
                        FileTail::Fragment(FragmentAddr::new(FragmentLocation::Start(0)))
                    }
                    Tail::Kept(_) => {
                        let tail = self.kept_tails.remove(&file);
                        self.base_tail(tail.expect("it was added before the file"))?
                    }
                    Tail::Fragment(bytes) => {
                        FileTail::Fragment(self.add_fragment(&bytes, first && pieces.len() == 1))
                    }
                };
                if let (FileTail::Fragment(offset), 1, true) = (tail, pieces.len(), first) {
                    *self.slot(file) = FileData::WholeFragment { offset };
                    return Ok(());
                }
                let start = GrainAddr::image(grain.at(position)?);
                grain.at(end)?;
                let places = self.places_of(&pieces, &homes, post, start);
                if homes.iter().any(|(key, _)| matches!(key, PartKey::Base(_))) {
                    self.mixed.insert(file);
                }
                let runs = Run::split(pieces, &places);
                if let Some(key) = post {
                    self.shared.insert(key, places);
                }
                let slot = self.slot(file);
                let before = slot.footprint();
                match slot.more() {
                    Some(data) => {
                        data.runs.extend(runs);
                        data.tail = tail;
                    }
                    None => *slot = FileData::encoded(runs, tail, algorithm),
                }
                let after = slot.footprint();
                self.tables += after - before;
            }
        }
        Ok(())
    }

    /// Returns the first grain of each piece of the part `own`: its next grains, which begin at `start`, or the place
    /// of a shared cluster.
    fn places_of(
        &self,
        pieces: &[ShortPiece],
        homes: &[(PartKey, u32)],
        own: Option<PartKey>,
        start: GrainAddr,
    ) -> Vec<GrainAddr> {
        let (mut next, mut homes) = (start, homes.iter());
        let mut places: Vec<GrainAddr> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let at = if piece.shared {
                let (key, i) = homes.next().expect("every shared piece has a home");
                let home = if Some(*key) == own {
                    &places
                } else {
                    &self.shared[key]
                };
                home[*i as usize]
            } else {
                let at = next;
                next = next.plus(piece.grains.into());
                at
            };
            places.push(at);
        }
        places
    }

    pub(super) fn slot(&mut self, file: InodeId) -> &mut FileData {
        if file == PACKED {
            return &mut self.result.packed;
        }
        let i = file as usize;
        if i >= self.result.files.len() {
            self.result.files.resize_with(i + 1, FileData::default);
        }
        &mut self.result.files[i]
    }

    pub(super) fn set(&mut self, file: InodeId, data: FileData) {
        *self.slot(file) = data;
    }
}
