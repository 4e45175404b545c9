//! Hash tree and parity of an object that is a file, in a file of its own, as [segments](crate::parity) have them.
//!
//! ```text
//! parity/00000001-1f0c….data:  front │ header of dm-verity │ hash tree │ parity │ front
//! ```

use crate::cluster::BLOCK;
use crate::files::{self, step};
use crate::pack::{is_sealed, seal};
use crate::parity::{Padded, roots, two_fronts};
use crate::segment::SEGMENT_MAX;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use tuff_store::{Output, Target, retry};
use tuff_verity::{Header, RepairedBlock, Root, TreePlace, Verified, make, tree_end};

const MAGIC: [u8; 8] = *b"TUFFPRTY";
/// Longest object. Unit: bytes.
const LEN_MAX: u64 = 2 * SEGMENT_MAX;

/// Front of the file, which is there twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Front {
    /// Length of the object. Unit: bytes.
    len: u64,
    roots: u32,
    root: Root,
}

fn invalid(e: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}

impl Front {
    fn encode(&self) -> [u8; BLOCK] {
        let mut bytes = [0; BLOCK];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.roots.to_le_bytes());
        bytes[24..56].copy_from_slice(&self.root);
        seal(&mut bytes);
        bytes
    }

    fn decode(bytes: &[u8; BLOCK]) -> Option<Self> {
        if bytes[..8] != MAGIC || !is_sealed(bytes) {
            return None;
        }
        let front = Self {
            len: u64::from_le_bytes(*bytes[8..].first_chunk()?),
            roots: u32::from_le_bytes(*bytes[16..].first_chunk()?),
            root: *bytes[24..].first_chunk()?,
        };
        let is_bounded = (1..=LEN_MAX).contains(&front.len);
        (is_bounded && front.end().is_ok()).then_some(front)
    }

    fn covered(&self) -> u64 {
        self.len.next_multiple_of(BLOCK as u64)
    }

    fn header(&self) -> io::Result<Header> {
        Header::new(self.covered(), BLOCK as u32, Vec::new(), [0; 16]).map_err(invalid)
    }

    /// End of tree and parity, where the second front is. Unit: bytes.
    fn end(&self) -> io::Result<u64> {
        tree_end(&self.header()?, Some(self.roots), BLOCK as u64).map_err(invalid)
    }

    /// Reads the front of a file, or the second one. The flag is false if one of them is damaged.
    fn read(file: &File) -> io::Result<Option<(Self, bool)>> {
        let fronts = two_fronts(file, retry(|| file.metadata())?.len(), &Self::decode)?;
        let is_whole = fronts[0] == fronts[1];
        Ok(fronts[0].or(fronts[1]).map(|front| (front, is_whole)))
    }
}

/// Writes tree and parity of an object, durably.
pub(crate) fn write(object: &Path, path: &Path, threads: usize) -> io::Result<()> {
    let file = files::open(object)?;
    let len = retry(|| file.metadata())?.len();
    if !(1..=LEN_MAX).contains(&len) {
        return Ok(());
    }
    let mut front = Front {
        len,
        roots: roots(len.div_ceil(BLOCK as u64)),
        root: Root::default(),
    };
    step()?;
    let output = Output::create(&Target::Path(path.to_owned()))?;
    let covered = Padded::new(file, front.covered());
    let (at, roots) = (BLOCK as u64, Some(front.roots));
    let built = make(
        &covered,
        &front.header()?,
        roots,
        &output,
        at,
        threads,
        &|_| Ok(()),
    )?;
    front.root = built.root;
    let bytes = front.encode();
    output.write_at(&bytes, 0)?;
    output.write_at(&bytes, built.end)?;
    output.finish(built.end + BLOCK as u64, true)
}

/// Result of a [`repair`] of one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Repair {
    /// Blocks that were corrected.
    pub(crate) blocks: u64,
    /// Blocks that the parity cannot correct.
    pub(crate) lost: u64,
    /// The parity was missing or damaged, and was written.
    pub(crate) is_renewed: bool,
}

/// Corrects an object in place. Parity that is missing or damaged is written anew.
pub(crate) fn repair(object: &Path, path: &Path, threads: usize) -> io::Result<Repair> {
    let mut done = Repair::default();
    let tree = match files::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        tree => Some(tree?),
    };
    let front = tree.as_ref().map(Front::read).transpose()?.flatten();
    let Some((tree, (front, is_whole))) = tree.zip(front) else {
        done.is_renewed = true;
        write(object, path, threads)?;
        return Ok(done);
    };
    let file = File::options().read(true).write(true).open(object)?;
    let data = Arc::new(Padded::new(file.try_clone()?, front.covered()));
    let header = front.header()?.encode();
    let tree = Padded::new(tree, front.end()?).with(BLOCK as u64, &header);
    let place = TreePlace::separate(Arc::new(tree), BLOCK as u64);
    let verified = Verified::open(data, place, front.root, |_| Ok(front.covered()))?;
    let verified = verified.with_parity(front.roots)?;
    let damage = verified.scan(threads, &|_| Ok(()))?;
    if damage.is_none() && is_whole && retry(|| file.metadata())?.len() == front.len {
        return Ok(done);
    }
    let left = verified.repair(threads, &|_| Ok(()), &mut |block| {
        // Tree and parity are written anew.
        if let RepairedBlock::Data(at, bytes) = block {
            step()?;
            done.blocks += 1;
            file.write_all_at(bytes, at)?;
        }
        Ok(())
    })?;
    file.set_len(front.len)?;
    file.sync_all()?;
    let ranges = left.data.iter().chain(&left.unknown);
    done.lost = ranges
        .map(|r| (r.end - r.start).div_ceil(BLOCK as u64))
        .sum();
    let is_sound = is_whole && damage.tree.is_empty() && damage.parity.is_empty();
    if !is_sound && done.lost == 0 {
        done.is_renewed = true;
        files::remove_file(path)?;
        write(object, path, threads)?;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tuff_testkit::content::noise;

    #[test]
    fn objects_are_corrected_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let (object, parity) = (dir.path().join("object"), dir.path().join("parity"));
        for len in [1, 4096, 9000, 900_001] {
            let content = noise(len, 1);
            fs::write(&object, &content).unwrap();
            let _ = fs::remove_file(&parity);
            // The first repair writes the parity.
            assert!(repair(&object, &parity, 1).unwrap().is_renewed);
            let written = fs::read(&parity).unwrap();
            let sound = Repair::default();
            assert_eq!(repair(&object, &parity, 1).unwrap(), sound);
            for at in [0, len / 2, len - 1] {
                let mut damaged = content.clone();
                damaged[at] ^= 1;
                fs::write(&object, &damaged).unwrap();
                let done = repair(&object, &parity, 1).unwrap();
                assert_eq!((done.blocks, done.lost), (1, 0), "{len}, {at}");
                assert!(fs::read(&object).unwrap() == content, "{len}, {at}");
            }
            // Shortened, and with a tail that is not its own.
            fs::write(&object, &content[..len - 1]).unwrap();
            repair(&object, &parity, 1).unwrap();
            assert!(fs::read(&object).unwrap() == content, "{len}");
            fs::write(&object, [&content[..], &[1; 9]].concat()).unwrap();
            repair(&object, &parity, 1).unwrap();
            assert!(fs::read(&object).unwrap() == content, "{len}");
            // Damage of the parity itself.
            for at in [0, written.len() / 2, written.len() - 1] {
                let mut damaged = written.clone();
                damaged[at] ^= 1;
                fs::write(&parity, &damaged).unwrap();
                repair(&object, &parity, 1).unwrap();
                assert!(fs::read(&object).unwrap() == content, "{len}, {at}");
            }
        }
        // More than it corrects is told.
        let content = noise(900_001, 1);
        fs::write(&object, vec![0; content.len()]).unwrap();
        assert!(repair(&object, &parity, 1).unwrap().lost > 0);
    }

    #[test]
    fn lengths_that_no_object_has_are_refused() {
        for len in [0, LEN_MAX + 1, u64::MAX] {
            let front = Front {
                len,
                roots: 2,
                root: Root::default(),
            };
            assert_eq!(Front::decode(&front.encode()), None);
        }
    }
}
