//! Clusters of the image and of its base in one file: none of one may look like the neighbour of one of the other.
//!
//! Linux fetches clusters that lie behind each other with one request, and tells that they do by their places on their
//! devices. Where the devices are files, it does not look which of them it is (seen in 6.18): a cluster that ends where one
//! begins on the other device is read together with what follows it on its own, and the other cluster comes out as
//! something else. Which of a file's clusters are asked for together depends on what is in the page cache, so no two of
//! them may be such a pair. Where two are, the base's cluster is copied into the image.

use super::Packer;
use super::data::Run;
use super::segment::ShortPiece;
use crate::Result;
use crate::build::base::{Base, IN_BASE};
use hashbrown::{HashMap, HashSet};

impl Packer<'_> {
    /// Looks through the files that have clusters in both images.
    pub(super) fn keep_apart(&mut self, base: &Base) -> Result<()> {
        for file in std::mem::take(&mut self.mixed) {
            let Some(data) = self.slot(file).more() else {
                continue;
            };
            let runs = std::mem::take(&mut data.runs);
            let (mut places, pieces): (Vec<u32>, Vec<ShortPiece>) =
                runs.iter().flat_map(Run::placed).unzip();
            drop(runs);
            untangle(&mut places, &pieces, &mut |place, count| {
                let bytes = base.grains_from(place, count)?;
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

/// Gives clusters of the base other places, those where `copy` puts them, until none begins or ends where one of the
/// image ends or begins. `places` has the first grain of each piece.
fn untangle(
    places: &mut [u32],
    pieces: &[ShortPiece],
    copy: &mut dyn FnMut(u32, u16) -> Result<u32>,
) -> Result<()> {
    let (mut starts, mut ends): (HashSet<u32>, HashSet<u32>) = Default::default();
    for (place, piece) in places.iter().zip(pieces) {
        if place & IN_BASE == 0 && piece.grains > 0 {
            starts.insert(*place);
            ends.insert(place + u32::from(piece.grains));
        }
    }
    let mut copies: HashMap<u32, u32> = HashMap::new();
    // A copy is one more cluster of the image. Each round but the last makes at least one, of a cluster that had none.
    loop {
        let before = copies.len();
        for (place, piece) in places.iter_mut().zip(pieces) {
            let there = *place & !IN_BASE;
            if *place & IN_BASE == 0
                || !(copies.contains_key(place)
                    || ends.contains(&there)
                    || starts.contains(&(there + u32::from(piece.grains))))
            {
                continue;
            }
            let at = match copies.get(place) {
                Some(at) => *at,
                None => copy(*place, piece.grains)?,
            };
            copies.insert(*place, at);
            starts.insert(at);
            ends.insert(at + u32::from(piece.grains));
            *place = at;
        }
        if copies.len() == before {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tuff_format::cluster::HeadKind;

    /// Untangles clusters of two blocks, copies being made from block 900 on.
    fn untangled(blocks: &[u32]) -> Vec<u32> {
        let pieces = vec![ShortPiece::own(9000, 2, HeadKind::Head1); blocks.len()];
        let (mut blocks, mut end) = (blocks.to_vec(), 900);
        untangle(&mut blocks, &pieces, &mut |block, count| {
            assert!(block & IN_BASE != 0 && count == 2);
            end += 2;
            Ok(end - 2)
        })
        .unwrap();
        blocks
    }

    #[test]
    fn clusters_that_look_like_neighbours_are_copied_once() {
        let base = |block: u32| block | IN_BASE;
        // Far from each other; at the same place; neighbours within one image.
        let apart = [10, 40, base(20), base(22), base(10), base(15)];
        assert_eq!(untangled(&apart), apart);
        // Behind one of the image, in front of one, and once more.
        assert_eq!(
            untangled(&[10, base(30), base(12), base(8), base(12)]),
            [10, base(30), 900, 902, 900]
        );
        // A copy that has such a neighbour itself, before or behind it in the file.
        assert_eq!(
            untangled(&[base(902), 10, base(12), base(904)]),
            [902, 10, 900, 904]
        );
    }
}
