//! Separation of clusters of the image and of its bases in one file: no cluster on one device may look adjacent to a
//! cluster on another.
//!
//! Linux (6.18) reads adjacent clusters with one request and compares their positions on their devices. If devices are
//! files it does not compare the devices. A cluster that ends where a cluster on another device starts is then read
//! together with its own successor, and the other cluster is decoded from wrong bytes. The requests depend on the page
//! cache, so no two clusters of a file may be such a pair. If there is one, the cluster of the base is copied into the
//! image.

use super::address::{GrainAddr, Location};
use super::data::Run;
use super::packer::Packer;
use super::piece::ShortPiece;
use crate::Result;
use crate::base::Bases;
use hashbrown::HashMap;
use tuff_format::DeviceId;

impl Packer<'_> {
    /// Separates the files that have clusters in several images.
    pub(super) fn separate_devices(&mut self, base: &Bases) -> Result<()> {
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
            untangle(&mut places, &pieces, &on_device, &mut |grain, count| {
                let bytes = base.grains_from(grain, count, per_block)?;
                self.digest.update(&bytes);
                let at = self.options.grain.at(self.end)?;
                self.write(&bytes)?;
                Ok(at)
            })?;
            if let Some(data) = self.slot(file).more() {
                data.runs = Run::of(pieces, &places);
            }
        }
        Ok(())
    }
}

/// Moves clusters of bases to the places that `copy` returns, until none starts or ends where a cluster on another
/// device ends or starts. `places` has the first grain of each piece; `on_device` returns its device, the primary one
/// for the image.
fn untangle(
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
            let (device, there) = on_device(*place);
            if !(copies.contains_key(&grain)
                || ends.has_other(device, there)
                || starts.has_other(device, there + u32::from(piece.grains)))
            {
                continue;
            }
            let at = match copies.get(&grain) {
                Some(at) => *at,
                None => copy(grain, piece.grains)?,
            };
            copies.insert(grain, at);
            let grains = u32::from(piece.grains);
            starts.remove(device, there);
            ends.remove(device, there + grains);
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
    fn untangled(blocks: &[GrainAddr]) -> Vec<GrainAddr> {
        let pieces = vec![ShortPiece::own(9000, 2, HeadKind::Head1); blocks.len()];
        let (mut blocks, mut end) = (blocks.to_vec(), 900);
        // The second base starts at block 1000 of all bases.
        let on_device = |block: GrainAddr| match block.location() {
            Location::Image(block) => (DeviceId::PRIMARY, block),
            Location::Base(block @ 1000..) => (DeviceId(2), block - 1000),
            Location::Base(block) => (DeviceId(1), block),
        };
        untangle(&mut blocks, &pieces, &on_device, &mut |_, count| {
            assert_eq!(count, 2);
            end += 2;
            Ok(end - 2)
        })
        .unwrap();
        blocks
    }

    #[test]
    fn clusters_that_look_like_neighbours_are_copied_once() {
        let (image, base) = (GrainAddr::image, GrainAddr::base);
        // Distant clusters; equal positions; neighbours within one image.
        let apart = [image(10), image(40), base(20), base(22), base(10), base(15)];
        assert_eq!(untangled(&apart), apart);
        // After a cluster of the image, before one, and a repeated one.
        assert_eq!(
            untangled(&[image(10), base(30), base(12), base(8), base(12)]),
            [image(10), base(30), image(900), image(902), image(900)]
        );
        // Clusters of two bases.
        assert_eq!(
            untangled(&[base(30), base(1040), base(1032), base(20)]),
            [image(900), base(1040), base(1032), base(20)]
        );
        // A copy that is itself adjacent to a cluster on another device.
        assert_eq!(
            untangled(&[base(902), image(10), base(12), base(904)]),
            [image(902), image(10), image(900), image(904)]
        );
    }
}
