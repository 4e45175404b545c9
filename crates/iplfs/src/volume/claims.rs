//! Claims: the size of a volume limits all of its branches together, also those that other processes write.
//!
//! ```text
//!  own blocks of a branch + promised  ≤  its claim          sum of all claims  ≤  size − reserve, or size for deletes
//! ```
//!
//! Every block belongs to the branch that wrote it, so the sum of own blocks is the number of distinct blocks. A branch
//! raises its claim before it uses the space, by a piece of what is left, and the raise is durable first. It lowers the
//! claim when a checkpoint has released space. So the claim of a killed process covers all that it wrote, and the next
//! mount of that branch corrects it.

use crate::backend::ZoneDir;
use crate::backend::branch::{BranchSet, Entry, EntryState};
use crate::backend::space::{Slots, SpaceFile, claimed_by_others};
use crate::checkpoint::pack::{find_checkpoint, read_superblock};
use crate::device::{BlockDevice, is_full};
use crate::disk::checkpoint::Phase;
use crate::error::{Error, Result};
use crate::volume::claim_records::{Claims, OwnClaim};
use crate::volume::state::{Volume, WriteState};
use std::time::{Duration, Instant};

/// Part of the space that is left, by which a claim is raised.
const PIECES: u64 = 64;
/// Limits of such a piece: 256 KiB and 256 MiB. Unit: blocks.
const PIECE: std::ops::RangeInclusive<u64> = 64..=1 << 16;
/// End of the areas of the largest address space.
const AREAS_END: u64 = 7 << 58;
/// Time for which the claims of others are not read again while the own one suffices, or they were too much.
const REUSE_TIME: Duration = Duration::from_millis(500);

impl Volume {
    /// Blocks that belong to the branch or are promised.
    fn own_blocks(&self) -> u64 {
        let space = self.space();
        (space.used() + space.promised).saturating_sub(space.shared)
    }

    /// Blocks that other branches have claimed at this moment, beyond those that this one shares.
    pub(crate) fn claimed_by_others(&self) -> u64 {
        let own = self.claims.own.as_ref();
        let others = own.map_or(self.claims.others, |own| {
            claimed_by_others(&own.set, own.number)
        });
        others.saturating_sub(self.fork_points.shared_blocks)
    }

    /// Claims what the branch uses. A volume that was never forked claims nothing.
    pub(crate) fn join_claims(&mut self) -> Result<()> {
        let dev = self.dev.clone();
        let Some(branch) = dev.branch().filter(|branch| branch.layout().is_some()) else {
            return Ok(());
        };
        let (set, number) = (BranchSet::at(branch.directory()), branch.number());
        if self.state == WriteState::ReadOnly {
            self.claims.others = claimed_by_others(&set, number);
            return Ok(());
        }
        let (used, size) = (self.own_blocks(), self.sb.quota_blocks);
        let mut own = match self.claims.own.take() {
            Some(own) => own,
            None => OwnClaim {
                space: SpaceFile::open(&set)?,
                set,
                number,
                blocks: 0,
                piece: *PIECE.start(),
                ahead: 0,
                looked: None,
            },
        };
        {
            let mut slots = own.space.lock()?;
            if slots.is_empty() {
                claim_all(&own.set, &mut slots, number, size)?;
            } else if slots.claim_of(number).is_none() {
                slots.drop_absent(&own.set)?;
            }
            slots.set(number, used)?;
            self.claims.others = slots.others(number);
        }
        own.blocks = used;
        self.claims.own = Some(own);
        Ok(())
    }

    /// Claims `blocks` more than what is used, within `limit` for all branches. Returns false if others have claimed too
    /// much. With `exactly`, nothing is claimed ahead.
    pub(crate) fn claim(&mut self, blocks: u64, limit: u64, exactly: bool) -> Result<bool> {
        if self.claims.own.is_none() {
            self.join_claims()?;
        }
        // Pages that arrive later take more than their promise, until a checkpoint releases what they replace.
        let spare = if exactly { 0 } else { *PIECE.start() };
        let needed = self.own_blocks() + blocks + spare;
        let Claims {
            own: Some(own),
            others,
        } = &mut self.claims
        else {
            return Ok(true);
        };
        if needed <= own.blocks {
            return Ok(true);
        }
        let mut slots = own.space.lock()?;
        if slots.is_empty() {
            claim_all(&own.set, &mut slots, own.number, self.sb.quota_blocks)?;
        }
        if needed > limit.saturating_sub(slots.others(own.number)) {
            slots.drop_absent(&own.set)?;
        }
        *others = slots.others(own.number);
        let room = limit.saturating_sub(*others);
        if needed > room {
            return Ok(false);
        }
        own.piece = ((room - needed) / PIECES).clamp(*PIECE.start(), *PIECE.end());
        let more = if exactly { 0 } else { own.piece };
        let raised = (needed + more).min(room);
        match slots.set(own.number, raised) {
            Ok(()) => own.blocks = raised,
            // A full host still takes deletes, which need little.
            Err(Error::Io(e, _)) if exactly && is_full(&e) => {}
            Err(e) => return Err(e),
        }
        Ok(true)
    }

    /// Claims `blocks` beyond what is used, if all branches could do the same: others must not find the volume full
    /// because of it. Returns false otherwise, and gives up what was claimed so.
    pub(crate) fn claim_ahead(&mut self, blocks: u64) -> bool {
        let needed = self.own_blocks() + blocks;
        let limit = self.sb.quota_blocks.saturating_sub(self.sb.reserve_blocks);
        let Some(own) = &mut self.claims.own else {
            return true;
        };
        let is_known = own.looked.is_some_and(|at| at.elapsed() < REUSE_TIME);
        if is_known && (own.ahead == 0 || own.ahead >= blocks && needed <= own.blocks) {
            return own.ahead > 0;
        }
        own.looked = Some(Instant::now());
        let others = match own.space.lock() {
            Ok(slots) => slots.others(own.number),
            Err(_) => u64::MAX,
        };
        own.ahead = 0;
        let is_ample = others.saturating_add(needed + 3 * blocks) <= limit;
        if is_ample && matches!(self.claim(blocks, limit, false), Ok(true)) {
            if let Some(own) = &mut self.claims.own {
                own.ahead = blocks;
            }
            return true;
        }
        false
    }

    /// Gives up what is claimed and not used, after a checkpoint.
    pub(crate) fn lower_claim(&mut self, phase: Phase) {
        let used = self.own_blocks();
        let Some(own) = &mut self.claims.own else {
            return;
        };
        let keep = match phase {
            Phase::Clean => used,
            _ => used + own.ahead + own.piece,
        };
        if own.blocks <= keep || phase != Phase::Clean && own.blocks <= keep + own.piece {
            return;
        }
        // If it fails, the claim stays as it is.
        if let Ok(mut slots) = own.space.lock()
            && slots.set(own.number, keep).is_ok()
        {
            own.blocks = keep;
        }
    }
}

/// Claims for all branches, where there are no claims yet: what their newest checkpoints use. Mounted branches get all
/// until they claim themselves.
fn claim_all(set: &BranchSet, slots: &mut Slots<'_>, own: u64, size: u64) -> Result<()> {
    for entry in set.list()? {
        if entry.number == own || matches!(entry.state, EntryState::Dead | EntryState::New) {
            continue;
        }
        let blocks = match set.try_lock(&entry, true)? {
            None => size,
            Some(_) => blocks_of(set, &entry)?,
        };
        slots.set(entry.number, blocks)?;
    }
    Ok(())
}

/// Number of blocks that an unmounted branch holds.
fn blocks_of(set: &BranchSet, entry: &Entry) -> Result<u64> {
    let io = |e| Error::io(e, set.path().display());
    let dev = ZoneDir::open_entry(set.path(), Some(entry), Some(true)).map_err(io)?;
    let found = read_superblock(&dev).and_then(|sb| find_checkpoint(&dev, &sb, false));
    let found = match found {
        Ok(found) => found,
        // A damaged branch must not keep others from being mounted.
        Err(Error::Corrupt(_)) => {
            let runs = dev.allocated(0..AREAS_END).map_err(io)?;
            return Ok(runs.iter().map(|run| run.end - run.start).sum());
        }
        Err(e) => return Err(e),
    };
    let seal = found.seal;
    let discards = found.body.discards.iter();
    let dead: u64 = discards.map(|entry| u64::from(entry.blocks)).sum();
    let used = seal.live_blocks + seal.nat_blocks + seal.held_blocks + dead;
    Ok(used.saturating_sub(seal.shared_blocks) + u64::from(seal.overflow_blocks))
}
