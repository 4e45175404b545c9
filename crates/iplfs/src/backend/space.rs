//! Space that the branches of a volume have claimed, in the file `branches/space`.
//!
//! ```text
//!  slot    0 number + 1: 8 │ 8 blocks 8 │ 16 zero 12 │ 28 crc 4      all zero: free
//! ```
//!
//! A slot never crosses a sector, so a power loss leaves its old or its new bytes. The file holds a `flock` while it is
//! read and changed. It is derived: a missing or damaged one is made anew.

use super::branch::{BranchSet, EntryState};
use super::durable::sync;
use super::host::{retry, unlock, write_in_place};
use crate::error::{Error, Result};
use rustix::fs::{FlockOperation, flock, ftruncate};
use rustix::io::retry_on_intr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Length of a slot. Unit: bytes.
const SLOT_LEN: usize = 32;
/// Length of a file with a slot for each of two million branches. A longer one is damaged. Unit: bytes.
const LEN_MAX: u64 = 1 << 26;

/// Number of a branch and the blocks that it has claimed. `None` in a free slot.
type Slot = Option<(u64, u64)>;

/// Claims of all branches.
pub(crate) struct SpaceFile {
    path: PathBuf,
    file: File,
}

/// Claims while no other process changes them.
pub(crate) struct Slots<'f> {
    space: &'f SpaceFile,
    slots: Vec<Slot>,
}

impl SpaceFile {
    /// Opens the file, or creates an empty one.
    pub(crate) fn open(set: &BranchSet) -> Result<Self> {
        let path = set.space_path();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = retry(|| options.open(&path)).map_err(|e| Error::io(e, path.display()))?;
        write_in_place(&file);
        Ok(Self { path, file })
    }

    fn io(&self, e: io::Error) -> Error {
        Error::io(e, self.path.display())
    }

    /// Waits for the lock and reads the claims. A damaged file is emptied, so that they are made anew.
    pub(crate) fn lock(&self) -> Result<Slots<'_>> {
        retry_on_intr(|| flock(&self.file, FlockOperation::LockExclusive))
            .map_err(|e| self.io(e.into()))?;
        let mut slots = Slots {
            space: self,
            slots: Vec::new(),
        };
        match read_slots(&self.file).map_err(|e| self.io(e))? {
            Some(found) => slots.slots = found,
            None => retry_on_intr(|| ftruncate(&self.file, 0)).map_err(|e| self.io(e.into()))?,
        }
        Ok(slots)
    }
}

impl Slots<'_> {
    /// Returns whether there are no claims, so that they have to be made anew.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the claim of a branch.
    pub(crate) fn claim_of(&self, number: u64) -> Option<u64> {
        let mut claims = self.slots.iter().flatten();
        claims.find(|(of, _)| *of == number).map(|(_, n)| *n)
    }

    /// Returns the sum of the claims of all other branches.
    pub(crate) fn others(&self, number: u64) -> u64 {
        let claims = self.slots.iter().flatten();
        let others = claims.filter(|(of, _)| *of != number);
        others.fold(0, |sum, (_, blocks)| sum.saturating_add(*blocks))
    }

    /// Sets the claim of a branch. A larger one is durable before the space is used.
    pub(crate) fn set(&mut self, number: u64, blocks: u64) -> Result<()> {
        let old = self.claim_of(number);
        if old == Some(blocks) {
            return Ok(());
        }
        let own = |slot: &Slot| slot.is_some_and(|(of, _)| of == number);
        let at = self.slots.iter().position(own);
        let at = at.or_else(|| self.slots.iter().position(Option::is_none));
        let at = at.unwrap_or(self.slots.len());
        self.write(at, Some((number, blocks)))?;
        match old.is_some_and(|old| blocks < old) {
            true => Ok(()),
            false => sync(&self.space.file).map_err(|e| self.space.io(e)),
        }
    }

    fn write(&mut self, at: usize, slot: Slot) -> Result<()> {
        let place = (at * SLOT_LEN) as u64;
        let written = self.space.file.write_all_at(&encode(slot), place);
        written.map_err(|e| self.space.io(e))?;
        self.slots.resize(self.slots.len().max(at + 1), None);
        self.slots[at] = slot;
        Ok(())
    }

    /// Frees the slots of branches that are gone.
    pub(crate) fn drop_absent(&mut self, set: &BranchSet) -> Result<()> {
        let entries = set.list()?;
        for at in 0..self.slots.len() {
            let lives = |number: u64| {
                let mut found = entries.iter();
                found.any(|e| e.number == number && e.state != EntryState::Dead)
            };
            if self.slots[at].is_some_and(|(number, _)| !lives(number)) {
                self.write(at, None)?;
            }
        }
        Ok(())
    }
}

impl Drop for Slots<'_> {
    fn drop(&mut self) {
        unlock(&self.space.file);
    }
}

/// Returns the space that all other branches have claimed, 0 if that is unknown. Needs no right to write.
pub(crate) fn claimed_by_others(set: &BranchSet, number: u64) -> u64 {
    let found = File::open(set.space_path()).and_then(|file| read_slots(&file));
    let slots = found.ok().flatten().unwrap_or_default();
    let others = slots.iter().flatten().filter(|(of, _)| *of != number);
    others.fold(0, |sum, (_, blocks)| sum.saturating_add(*blocks))
}

/// Frees the slot of a branch whose blocks are gone.
pub(crate) fn forget(set: &BranchSet, number: u64) -> Result<()> {
    if !set.space_path().exists() {
        return Ok(());
    }
    let space = SpaceFile::open(set)?;
    let mut slots = space.lock()?;
    let own = |slot: &Slot| slot.is_some_and(|(of, _)| of == number);
    match slots.slots.iter().position(own) {
        Some(at) => slots.write(at, None),
        None => Ok(()),
    }
}

/// Reads all slots. `None` if the file is damaged.
fn read_slots(file: &File) -> io::Result<Option<Vec<Slot>>> {
    let len = file.metadata()?.len();
    if len > LEN_MAX {
        return Ok(None);
    }
    let mut bytes = vec![0; len as usize]; // fits: checked above
    file.read_exact_at(&mut bytes, 0)?;
    Ok(decode_all(&bytes))
}

fn encode(slot: Slot) -> [u8; SLOT_LEN] {
    let mut bytes = [0; SLOT_LEN];
    if let Some((number, blocks)) = slot {
        bytes[..8].copy_from_slice(&(number + 1).to_le_bytes());
        bytes[8..16].copy_from_slice(&blocks.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..28]);
        bytes[28..].copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}

/// Decodes all slots. `None` if one is damaged.
fn decode_all(bytes: &[u8]) -> Option<Vec<Slot>> {
    let (slots, rest) = bytes.as_chunks::<SLOT_LEN>();
    let decoded = slots.iter().map(|slot| {
        if *slot == [0; SLOT_LEN] {
            return Some(None);
        }
        let word = |at: usize| Some(u64::from_le_bytes(slot.get(at..at + 8)?.try_into().ok()?));
        let (number, blocks) = (word(0)?.checked_sub(1)?, word(8)?);
        (encode(Some((number, blocks))) == *slot).then_some(Some((number, blocks)))
    });
    if !rest.is_empty() {
        return None;
    }
    decoded.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_round_trip_and_damage_is_found() {
        let slots = [Some((0, 7)), None, Some((9, u64::MAX))];
        let bytes: Vec<u8> = slots.iter().flat_map(|slot| encode(*slot)).collect();
        assert_eq!(decode_all(&bytes).unwrap(), slots);
        assert_eq!(decode_all(&bytes[..40]), None);
        for at in (0..32).chain(64..96) {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert_eq!(decode_all(&bad), None, "{at}");
        }
    }

    #[test]
    fn a_damaged_file_is_emptied_and_takes_claims_again() {
        let path = tuff_testkit::unused_path("space-of-branches");
        let options = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .to_owned();
        let space = SpaceFile {
            file: options.open(&path).unwrap(),
            path,
        };
        let mut bad = [encode(Some((0, 7))), encode(Some((1, 8)))].concat();
        bad[40] ^= 1;
        for len in [bad.len() as u64, LEN_MAX + 32] {
            space.file.write_all_at(&bad, 0).unwrap();
            space.file.set_len(len).unwrap();
            let mut slots = space.lock().unwrap();
            assert!(slots.is_empty(), "{len}");
            slots.set(3, 9).unwrap();
            drop(slots);
            let slots = space.lock().unwrap();
            assert_eq!((slots.claim_of(3), slots.others(3)), (Some(9), 0), "{len}");
        }
        std::fs::remove_file(&space.path).unwrap();
    }
}
