//! Separation of the data of the image and of its bases in one file: nothing on one device may look adjacent to data on
//! another.
//!
//! Linux (6.18) reads adjacent data with one request and compares the positions on the devices, but not the devices: for
//! clusters if devices are files, for chunks if they are block devices. A cluster or chunk that ends where another starts
//! on another device is then read together with its own successor, in place of the other.
//!
//! Requests for clusters depend on the page cache, so no two clusters of a file may be such a pair. Requests for chunks
//! follow the order of the file, so no two consecutive ones may be. If there is a pair, the part that is in a base is
//! copied into the image.

use super::address::{DataBlock, GrainAddr, Location};
use super::data::{FileData, Run};
use super::packed::end_of;
use super::packer::Packer;
use super::piece::ShortPiece;
use super::sparse::ChunkRun;
use crate::Result;
use crate::base::Bases;
use crate::tree::InodeId;
use hashbrown::HashMap;
use tuff_format::DeviceId;

impl Packer<'_> {
    /// Separates the files that have clusters in several images.
    pub(super) fn separate_clusters(&mut self, base: &Bases) -> Result<()> {
        // Fits: at most 128 of 32 bytes.
        let per_block = (self.options.bits.size_usize() / self.options.grain.size()) as u32;
        for file in std::mem::take(&mut self.mixed) {
            let Some(data) = self.slot(file).more() else {
                continue;
            };
            let runs = std::mem::take(&mut data.runs);
            let (mut places, pieces): (Vec<GrainAddr>, Vec<ShortPiece>) =
                runs.iter().flat_map(Run::placed).unzip();
            drop(runs);
            let on_device = |cluster: GrainAddr| match cluster.location() {
                Location::Image(grain) => (DeviceId::PRIMARY, grain),
                Location::Base(grain) => base.on_device(grain, per_block),
            };
            separate_clusters(&mut places, &pieces, &on_device, &mut |grain, count| {
                let bytes = base.grains_from(grain, count, per_block)?;
                self.digest.update(&bytes);
                let at = self.options.grain.at(self.end)?;
                self.write(&bytes)?;
                Ok(at)
            })?;
            if let Some(data) = self.slot(file).more() {
                data.runs = Run::group(pieces, &places);
            }
        }
        Ok(())
    }

    /// Separates the chunks of files that have chunks on several devices. `sizes` has the sizes of files with chunks of
    /// several blocks.
    pub(super) fn separate_chunks(
        &mut self,
        base: &Bases,
        sizes: &HashMap<InodeId, u64>,
    ) -> Result<()> {
        let bits = self.options.bits;
        // Fits: at most 128 of 32 bytes.
        let per_block = (bits.size_usize() / self.options.grain.size()) as u32;
        // Fits: a file has a number of 32 bits.
        for file in 0..self.result.files.len() as InodeId {
            let FileData::Table(table) = self.slot(file) else {
                continue;
            };
            let runs = std::mem::take(&mut table.runs);
            let chunk = 1 << table.bits;
            let size = sizes.get(&file).copied();
            let blocks = size.map_or(table.count * u64::from(chunk), |size| bits.count(size));
            let on_device = |block: DataBlock| match block.location() {
                Location::Image(block) => (DeviceId::PRIMARY, block),
                Location::Base(block) => base.block_on_device(block),
            };
            let runs = separated(runs, chunk, &on_device, &mut |number, block, taken| {
                self.fill_block()?;
                while taken.contains(&end_of(0, bits.count(self.end))?) {
                    self.write(&vec![0; bits.size_usize()])?;
                }
                let at = end_of(0, bits.count(self.end))?;
                // The file may end within the chunk.
                let left = blocks.saturating_sub(number * u64::from(chunk));
                for block in block..block + left.min(chunk.into()) as u32 {
                    // Fits, see above.
                    let count = per_block as u16;
                    let bytes = base.grains_from(block * per_block, count, per_block)?;
                    self.digest.update(&bytes);
                    self.write(&bytes)?;
                }
                Ok(at)
            })?;
            if let FileData::Table(table) = self.slot(file) {
                table.runs = runs;
            }
        }
        Ok(())
    }
}

/// Consecutive chunks and their first block.
type Placed = (ChunkRun, DataBlock);

/// Copies a chunk, given by its number and its first block in the bases, into the image, and returns its first block there,
/// which is none of the given ones.
type CopyChunk<'a> = dyn FnMut(u64, u32, &[u32]) -> Result<u32> + 'a;

/// Moves chunks of bases to the places that `copy` returns, until no run starts where the run before it ends on another
/// device. A chunk has `chunk` blocks. `on_device` returns the device of a block and its number there.
fn separated(
    mut runs: Vec<Placed>,
    chunk: u32,
    on_device: &dyn Fn(DataBlock) -> (DeviceId, u32),
    copy: &mut CopyChunk<'_>,
) -> Result<Vec<Placed>> {
    // Fits: a device has less than 2^31 blocks.
    let end_of = |(run, block): &Placed| {
        let (device, start) = on_device(*block);
        (device, start + run.count as u32 * chunk)
    };
    runs.reverse();
    let mut done: Vec<Placed> = Vec::with_capacity(runs.len());
    while let Some((run, block)) = runs.pop() {
        let (device, start) = on_device(block);
        let Some(before) = done
            .last()
            .copied()
            .filter(|before| matches!(end_of(before), (d, end) if d != device && end == start))
        else {
            done.push((run, block));
            continue;
        };
        if let Location::Base(first) = block.location() {
            let at = copy(run.first, first, &[start])?;
            let (one, rest) = (run.part(0, 1), run.part(1, run.count));
            if rest.count > 0 {
                runs.push((rest, block.plus(chunk)));
            }
            done.push((one, DataBlock::image(at)));
            continue;
        }
        let (run_before, block_before) = before;
        done.pop();
        let rest = run_before.part(0, run_before.count - 1);
        let last = block_before.plus(rest.count as u32 * chunk);
        if rest.count > 0 {
            done.push((rest, block_before));
        }
        let Location::Base(last) = last.location() else {
            unreachable!("all data of the image is on one device");
        };
        let taken = done.last().map(|before| end_of(before).1);
        let one = run_before.part(rest.count, run_before.count);
        let at = copy(one.first, last, taken.as_slice())?;
        done.push((one, DataBlock::image(at)));
        done.push((run, block));
    }
    Ok(done)
}

/// Moves clusters of bases to the places that `copy` returns, until none starts or ends where a cluster on another
/// device ends or starts. `places` has the first grain of each piece; `on_device` returns its device, the primary one
/// for the image.
fn separate_clusters(
    places: &mut [GrainAddr],
    pieces: &[ShortPiece],
    on_device: &dyn Fn(GrainAddr) -> (DeviceId, u32),
    copy: &mut dyn FnMut(u32, u16) -> Result<u32>,
) -> Result<()> {
    let (mut starts, mut ends) = (Edges::default(), Edges::default());
    for (place, piece) in places.iter().zip(pieces).filter(|(_, p)| p.grains > 0) {
        let (device, at) = on_device(*place);
        starts.add(device, at);
        ends.add(device, at + u32::from(piece.grains));
    }
    let mut copies: HashMap<u32, u32> = HashMap::new();
    // A copy is one more cluster of the image. Each round but the last copies at least one cluster for the first time.
    loop {
        let before = copies.len();
        for (place, piece) in places.iter_mut().zip(pieces) {
            let Location::Base(grain) = place.location() else {
                continue;
            };
            let (device, base_at) = on_device(*place);
            if !(copies.contains_key(&grain)
                || ends.has_other(device, base_at)
                || starts.has_other(device, base_at + u32::from(piece.grains)))
            {
                continue;
            }
            let at = match copies.get(&grain) {
                Some(at) => *at,
                None => copy(grain, piece.grains)?,
            };
            copies.insert(grain, at);
            let grains = u32::from(piece.grains);
            starts.remove(device, base_at);
            ends.remove(device, base_at + grains);
            starts.add(DeviceId::PRIMARY, at);
            ends.add(DeviceId::PRIMARY, at + grains);
            *place = GrainAddr::image(at);
        }
        if copies.len() == before {
            return Ok(());
        }
    }
}

/// Grains at which clusters start or end, with the device of each cluster.
#[derive(Default)]
struct Edges(HashMap<u32, Vec<DeviceId>>);

impl Edges {
    fn add(&mut self, device: DeviceId, at: u32) {
        self.0.entry(at).or_default().push(device);
    }

    fn remove(&mut self, device: DeviceId, at: u32) {
        if let Some(devices) = self.0.get_mut(&at)
            && let Some(i) = devices.iter().position(|d| *d == device)
        {
            devices.swap_remove(i);
        }
    }

    /// Returns true if a cluster on another device has this edge.
    fn has_other(&self, device: DeviceId, at: u32) -> bool {
        (self.0.get(&at)).is_some_and(|devices| devices.iter().any(|d| *d != device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tuff_format::cluster::HeadKind;

    /// Separates clusters of two blocks; copies start at block 900.
    fn separated_clusters(blocks: &[GrainAddr]) -> Vec<GrainAddr> {
        let pieces = vec![ShortPiece::own(9000, 2, HeadKind::Head1); blocks.len()];
        let (mut blocks, mut end) = (blocks.to_vec(), 900);
        // The second base starts at block 1000 of all bases.
        let on_device = |block: GrainAddr| match block.location() {
            Location::Image(block) => (DeviceId::PRIMARY, block),
            Location::Base(block @ 1000..) => (DeviceId(2), block - 1000),
            Location::Base(block) => (DeviceId(1), block),
        };
        separate_clusters(&mut blocks, &pieces, &on_device, &mut |_, count| {
            assert_eq!(count, 2);
            end += 2;
            Ok(end - 2)
        })
        .unwrap();
        blocks
    }

    #[test]
    fn chunks_that_look_like_successors_are_copied() {
        let (image, base) = (DataBlock::image, DataBlock::base);
        let on_device = |block: DataBlock| match block.location() {
            Location::Image(block) => (DeviceId::PRIMARY, block),
            Location::Base(block @ 1000..) => (DeviceId(2), block - 1000),
            Location::Base(block) => (DeviceId(1), block),
        };
        let after = |runs: &[(u64, u64, DataBlock)], end: u32| {
            let of =
                |&(first, count, block): &(u64, u64, DataBlock)| (ChunkRun { first, count }, block);
            let (mut end, mut copied) = (end, Vec::new());
            let done = separated(
                runs.iter().map(of).collect(),
                2,
                &on_device,
                &mut |_, b, taken| {
                    while taken.contains(&end) {
                        end += 1;
                    }
                    copied.push(b);
                    end += 2;
                    Ok(end - 2)
                },
            );
            let done = done.unwrap();
            for (a, b) in done.iter().zip(&done[1..]) {
                let ((a_device, a_start), b_start) = (on_device(a.1), on_device(b.1));
                let a_end = (a_device, a_start + a.0.count as u32 * 2);
                assert!(a_end.0 == b_start.0 || a_end.1 != b_start.1, "{done:?}");
                assert!(a.0.first + a.0.count <= b.0.first);
            }
            let done = done
                .iter()
                .map(|(run, block)| (run.first, run.count, *block));
            (done.collect::<Vec<_>>(), copied)
        };
        // Neighbours on one device, distant runs, equal starts.
        let unchanged = [
            (0, 3, base(10)),
            (3, 1, base(16)),
            (4, 1, image(16)),
            (5, 2, base(16)),
        ];
        assert_eq!(after(&unchanged, 900), (unchanged.to_vec(), vec![]));
        // The end of a run of a base is copied before data of the image, also after a hole.
        let expected = vec![(0, 2, base(10)), (2, 1, image(900)), (4, 1, image(16))];
        assert_eq!(
            after(&[(0, 3, base(10)), (4, 1, image(16))], 900),
            (expected, vec![14])
        );
        // The start of a run of a base is copied after data of another device.
        let expected = vec![(0, 1, image(10)), (1, 1, image(900)), (2, 1, base(14))];
        assert_eq!(
            after(&[(0, 1, image(10)), (1, 2, base(12))], 900),
            (expected, vec![12])
        );
        let expected = vec![(0, 3, base(1010)), (3, 1, image(900))];
        assert_eq!(
            after(&[(0, 3, base(1010)), (3, 1, base(16))], 900),
            (expected, vec![16])
        );
        // Copies that would be such successors themselves.
        let (done, _) = after(&[(0, 2, base(896)), (2, 1, image(900))], 898);
        assert_eq!(
            done,
            [(0, 1, base(896)), (1, 1, image(899)), (2, 1, image(900))]
        );
        let (done, _) = after(&[(0, 1, base(1898)), (1, 2, base(900))], 900);
        assert_eq!(
            done,
            [(0, 1, base(1898)), (1, 1, image(901)), (2, 1, base(902))]
        );
        // One chunk after another.
        let (done, copied) = after(
            &[(0, 1, base(10)), (1, 1, base(1012)), (2, 1, image(14))],
            14,
        );
        assert_eq!(copied, [1012], "{done:?}");
    }

    #[test]
    fn clusters_that_look_like_neighbours_are_copied_once() {
        let (image, base) = (GrainAddr::image, GrainAddr::base);
        // Distant clusters; equal positions; neighbours within one image.
        let unchanged = [image(10), image(40), base(20), base(22), base(10), base(15)];
        assert_eq!(separated_clusters(&unchanged), unchanged);
        // After a cluster of the image, before one, and a repeated one.
        assert_eq!(
            separated_clusters(&[image(10), base(30), base(12), base(8), base(12)]),
            [image(10), base(30), image(900), image(902), image(900)]
        );
        // Clusters of two bases.
        assert_eq!(
            separated_clusters(&[base(30), base(1040), base(1032), base(20)]),
            [image(900), base(1040), base(1032), base(20)]
        );
        // A copy that is itself adjacent to a cluster on another device.
        assert_eq!(
            separated_clusters(&[base(902), image(10), base(12), base(904)]),
            [image(902), image(10), image(900), image(904)]
        );
    }
}
