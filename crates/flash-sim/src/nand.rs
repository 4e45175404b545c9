//! NAND erase blocks: states, contents, wear and injected faults.
//!
//! ```text
//!            program page 0            program the last page, or close
//!  Erased ───────────────────► Open{next} ───────────────────────────► Full ──erase──► Erased
//!                              program page `next`: Open{next + 1}       └──retire, failed erase──► Retired
//! ```
//!
//! Any other transition is an [`IllegalMove`]: a bug in the translation layer, never in the host.

use crate::geometry::Geometry;
use crate::units::{EraseBlock, Lba, SLOT_BYTES, Slot};
use std::collections::BTreeSet;
use std::fmt;

/// Content of a slot, 4 KiB. A repeated eight-byte word, as most workloads write, takes eight bytes
/// of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payload {
    /// One word, little endian, repeated over the whole slot.
    Fill(u64),
    /// Arbitrary content of a whole slot.
    Bytes(Box<[u8; SLOT_BYTES]>),
}

impl Payload {
    /// Creates the payload from 4096 bytes. Panics if the length differs.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        assert_eq!(bytes.len(), SLOT_BYTES, "a payload is one slot");
        let (first, rest) = bytes.split_at(8);
        if bytes[..SLOT_BYTES - 8] == *rest {
            let mut word = [0; 8];
            word.copy_from_slice(first);
            return Payload::Fill(u64::from_le_bytes(word));
        }
        let mut copy = Box::new([0; SLOT_BYTES]);
        copy.copy_from_slice(bytes);
        Payload::Bytes(copy)
    }

    /// Copies the content into `out`. Panics unless `out` has 4096 bytes.
    pub fn copy_to(&self, out: &mut [u8]) {
        assert_eq!(out.len(), SLOT_BYTES, "a payload is one slot");
        match self {
            Payload::Fill(word) => {
                let word = word.to_le_bytes();
                out.chunks_exact_mut(8)
                    .for_each(|c| c.copy_from_slice(&word));
            }
            Payload::Bytes(bytes) => out.copy_from_slice(&bytes[..]),
        }
    }
}

/// State of an erase block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockState {
    /// No page is programmed.
    Erased,
    /// Pages below `next` are programmed.
    Open {
        /// The only page that may be programmed next.
        next: u32,
    },
    /// No further page may be programmed.
    Full,
    /// Permanently out of use after a failure.
    Retired,
}

/// An operation that violates the rules of flash memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IllegalMove {
    /// A page was programmed out of order. The pages of a block are programmed sequentially, each
    /// once.
    ProgramOutOfOrder {
        /// Erase block of the rejected operation.
        block: EraseBlock,
        /// The page in the request.
        page: u32,
        /// The page that has to be programmed next.
        next: u32,
    },
    /// The state of the erase block does not permit the operation.
    WrongState {
        /// Erase block of the rejected operation.
        block: EraseBlock,
        /// Name of the rejected operation.
        operation: &'static str,
        /// State of the block.
        state: BlockState,
    },
    /// A slot that was not programmed since the last erase was read.
    ReadErased(Slot),
}

impl fmt::Display for IllegalMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IllegalMove::ProgramOutOfOrder { block, page, next } => {
                write!(
                    f,
                    "program page {page} of block {}, next is {next}",
                    block.0
                )
            }
            IllegalMove::WrongState {
                block,
                operation,
                state,
            } => {
                write!(f, "{operation} block {}, which is {state:?}", block.0)
            }
            IllegalMove::ReadErased(slot) => write!(f, "read slot {}, which is erased", slot.0),
        }
    }
}

/// Injected faults: operations that fail, by their sequence number from 0.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Faults {
    /// Page programs: the block is retired and its content is written to another block.
    pub programs: BTreeSet<u64>,
    /// Erases: the block is retired.
    pub erases: BTreeSet<u64>,
    /// Reads by the host, which return [`Uncorrectable`](crate::Error::Uncorrectable).
    pub reads: BTreeSet<u64>,
}

/// Operation counts of the flash array.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Wear {
    /// Pages programmed, failed ones included.
    pub programs: u64,
    /// Blocks erased, failed ones included.
    pub erases: u64,
    /// Number of retired blocks.
    pub retired: u32,
}

/// Array of erase blocks, without translation and timing.
pub struct Nand {
    geometry: Geometry,
    states: Vec<BlockState>,
    erases: Vec<u32>,
    data: Vec<Payload>,
    /// Spare area: the block address stored with each slot, `u64::MAX` for padding.
    owner: Vec<u64>,
    faults: Faults,
    wear: Wear,
}

/// Content of one slot of a page to be programmed, with its logical block address. `None` is
/// padding.
pub type Staged = Option<(Lba, Payload)>;

impl Nand {
    /// Creates an array in which every block is erased.
    pub fn new(geometry: Geometry, faults: Faults) -> Self {
        let (blocks, slots) = (geometry.blocks() as usize, geometry.raw_slots() as usize);
        Self {
            geometry,
            states: vec![BlockState::Erased; blocks],
            erases: vec![0; blocks],
            data: vec![Payload::Fill(0); slots],
            owner: vec![u64::MAX; slots],
            faults,
            wear: Wear::default(),
        }
    }

    /// State of a block.
    pub fn state(&self, block: EraseBlock) -> BlockState {
        self.states[block.0 as usize]
    }

    /// Number of completed erases of a block.
    pub fn erase_count(&self, block: EraseBlock) -> u32 {
        self.erases[block.0 as usize]
    }

    /// Operation counts since the array was created.
    pub fn wear(&self) -> Wear {
        self.wear
    }

    /// Programs a page. Returns `Ok(false)` on a program failure: the block becomes full, and its
    /// earlier pages stay readable.
    pub fn program(
        &mut self,
        block: EraseBlock,
        page: u32,
        content: Vec<Staged>,
    ) -> Result<bool, IllegalMove> {
        let next = match self.state(block) {
            BlockState::Erased => 0,
            BlockState::Open { next } => next,
            state @ (BlockState::Full | BlockState::Retired) => {
                return Err(IllegalMove::WrongState {
                    block,
                    operation: "program",
                    state,
                });
            }
        };
        if page != next {
            return Err(IllegalMove::ProgramOutOfOrder { block, page, next });
        }
        let number = self.wear.programs;
        self.wear.programs += 1;
        if self.faults.programs.contains(&number) {
            self.states[block.0 as usize] = BlockState::Full;
            return Ok(false);
        }
        let start = self.geometry.page_start(block, page).0 as usize;
        for (i, staged) in content.into_iter().enumerate() {
            if let Some((lba, payload)) = staged {
                self.data[start + i] = payload;
                self.owner[start + i] = lba.0;
            }
        }
        self.states[block.0 as usize] = if next + 1 == self.geometry.pages_per_block {
            BlockState::Full
        } else {
            BlockState::Open { next: next + 1 }
        };
        Ok(true)
    }

    /// Returns the content of a slot and the logical block address stored with it.
    pub fn read(&self, slot: Slot) -> Result<(Lba, &Payload), IllegalMove> {
        let programmed = match self.state(self.geometry.block_of(slot)) {
            BlockState::Erased | BlockState::Retired => false,
            BlockState::Open { next } => self.geometry.page_of(slot) < next,
            BlockState::Full => true,
        };
        if !programmed || self.owner[slot.0 as usize] == u64::MAX {
            return Err(IllegalMove::ReadErased(slot));
        }
        Ok((
            Lba(self.owner[slot.0 as usize]),
            &self.data[slot.0 as usize],
        ))
    }

    /// Erases a full block. Returns `Ok(false)` on an erase failure, which retires the block.
    pub fn erase(&mut self, block: EraseBlock) -> Result<bool, IllegalMove> {
        self.must_be_full(block, "erase")?;
        let number = self.wear.erases;
        self.wear.erases += 1;
        self.forget(block);
        if self.faults.erases.contains(&number) {
            self.states[block.0 as usize] = BlockState::Retired;
            self.wear.retired += 1;
            return Ok(false);
        }
        self.states[block.0 as usize] = BlockState::Erased;
        self.erases[block.0 as usize] += 1;
        Ok(true)
    }

    /// Retires a full block permanently.
    pub fn retire(&mut self, block: EraseBlock) -> Result<(), IllegalMove> {
        self.must_be_full(block, "retire")?;
        self.forget(block);
        self.states[block.0 as usize] = BlockState::Retired;
        self.wear.retired += 1;
        Ok(())
    }

    /// True if the host read with this sequence number must fail.
    pub fn read_fails(&self, number: u64) -> bool {
        self.faults.reads.contains(&number)
    }

    fn must_be_full(&self, block: EraseBlock, operation: &'static str) -> Result<(), IllegalMove> {
        match self.state(block) {
            BlockState::Full => Ok(()),
            state => Err(IllegalMove::WrongState {
                block,
                operation,
                state,
            }),
        }
    }

    fn forget(&mut self, block: EraseBlock) {
        let start = self.geometry.page_start(block, 0).0 as usize;
        let end = start + self.geometry.slots_per_block() as usize;
        self.data[start..end].fill(Payload::Fill(0));
        self.owner[start..end].fill(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: EraseBlock = EraseBlock(3);

    fn nand(faults: Faults) -> Nand {
        let geometry = Geometry {
            channels: 1,
            luns_per_channel: 1,
            blocks_per_lun: 8,
            pages_per_block: 2,
            slots_per_page: 2,
            exported_slots: 16,
        };
        Nand::new(geometry, faults)
    }

    fn page(lba: u64) -> Vec<Staged> {
        vec![Some((Lba(lba), Payload::Fill(lba))), None]
    }

    #[test]
    fn a_block_is_programmed_in_order_and_erased_when_full() {
        let mut n = nand(Faults::default());
        assert_eq!(n.state(BLOCK), BlockState::Erased);
        assert_eq!(n.program(BLOCK, 0, page(1)), Ok(true));
        assert_eq!(n.state(BLOCK), BlockState::Open { next: 1 });
        assert_eq!(n.program(BLOCK, 1, page(2)), Ok(true));
        assert_eq!(n.state(BLOCK), BlockState::Full);
        assert_eq!(n.read(Slot(14)), Ok((Lba(2), &Payload::Fill(2))));
        assert_eq!(n.erase(BLOCK), Ok(true));
        assert_eq!(
            (n.state(BLOCK), n.erase_count(BLOCK)),
            (BlockState::Erased, 1)
        );
    }

    #[test]
    fn every_invalid_operation_is_reported() {
        let mut n = nand(Faults::default());
        let wrong = |operation, state| IllegalMove::WrongState {
            block: BLOCK,
            operation,
            state,
        };
        let (erased, full) = (BlockState::Erased, BlockState::Full);
        assert_eq!(n.erase(BLOCK), Err(wrong("erase", erased)));
        assert_eq!(n.retire(BLOCK), Err(wrong("retire", erased)));
        assert_eq!(n.read(Slot(12)), Err(IllegalMove::ReadErased(Slot(12))));
        let skipped = IllegalMove::ProgramOutOfOrder {
            block: BLOCK,
            page: 1,
            next: 0,
        };
        assert_eq!(n.program(BLOCK, 1, page(1)), Err(skipped));
        n.program(BLOCK, 0, page(1)).unwrap();
        let again = IllegalMove::ProgramOutOfOrder {
            block: BLOCK,
            page: 0,
            next: 1,
        };
        assert_eq!(n.program(BLOCK, 0, page(1)), Err(again));
        assert_eq!(
            n.erase(BLOCK),
            Err(wrong("erase", BlockState::Open { next: 1 }))
        );
        assert_eq!(
            n.read(Slot(13)),
            Err(IllegalMove::ReadErased(Slot(13))),
            "padding"
        );
        n.program(BLOCK, 1, page(2)).unwrap();
        assert_eq!(n.program(BLOCK, 2, page(3)), Err(wrong("program", full)));
        n.retire(BLOCK).unwrap();
        let retired = BlockState::Retired;
        assert_eq!(n.program(BLOCK, 0, page(1)), Err(wrong("program", retired)));
        assert_eq!(n.erase(BLOCK), Err(wrong("erase", retired)));
        assert_eq!(n.retire(BLOCK), Err(wrong("retire", retired)));
        assert_eq!(n.read(Slot(12)), Err(IllegalMove::ReadErased(Slot(12))));
    }

    #[test]
    fn a_failed_program_closes_the_block_and_a_failed_erase_retires_it() {
        let mut n = nand(Faults {
            programs: [1].into(),
            erases: [0].into(),
            ..Faults::default()
        });
        assert_eq!(n.program(BLOCK, 0, page(1)), Ok(true));
        assert_eq!(n.program(BLOCK, 1, page(2)), Ok(false));
        assert_eq!(n.state(BLOCK), BlockState::Full);
        assert_eq!(n.read(Slot(12)), Ok((Lba(1), &Payload::Fill(1))));
        assert_eq!(n.erase(BLOCK), Ok(false));
        assert_eq!((n.state(BLOCK), n.wear().retired), (BlockState::Retired, 1));
    }

    #[test]
    fn payloads_round_trip_through_bytes() {
        let mut bytes = [0xa5; SLOT_BYTES];
        assert_eq!(
            Payload::from_bytes(&bytes),
            Payload::Fill(0xa5a5_a5a5_a5a5_a5a5)
        );
        for change in [0, 7, 8, 4095] {
            bytes[change] ^= 1;
            let mut out = [0; SLOT_BYTES];
            Payload::from_bytes(&bytes).copy_to(&mut out);
            assert_eq!(out, bytes);
            assert!(matches!(Payload::from_bytes(&bytes), Payload::Bytes(_)));
            bytes[change] ^= 1;
        }
    }
}
