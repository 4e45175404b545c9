//! Erase blocks: their states, what they hold, and the faults that a test asks for.
//!
//! ```text
//!            program page 0            program the last page, or close
//!  Erased ───────────────────► Open{next} ───────────────────────────► Full ──erase──► Erased
//!                              program page `next`: Open{next + 1}       └──retire, failed erase──► Retired
//! ```
//!
//! Every other move is an [`IllegalMove`]: a mistake of the translation layer, never of the host.

use crate::geometry::Geometry;
use crate::units::{EraseBlock, Lba, SLOT_BYTES, Slot};
use std::collections::BTreeSet;
use std::fmt;

/// 4 KiB of content. Most of what a workload writes is one word over and over, and costs eight bytes here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payload {
    /// The same eight bytes, little endian, throughout.
    Fill(u64),
    /// Anything else.
    Bytes(Box<[u8; SLOT_BYTES]>),
}

impl Payload {
    /// The content of 4096 bytes. Panics if there are more or fewer.
    pub fn of(bytes: &[u8]) -> Self {
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

    /// Puts the content into 4096 bytes. Panics if there are more or fewer.
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

/// The life of an erase block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockState {
    /// Nothing programmed.
    Erased,
    /// Pages below `next` are programmed.
    Open {
        /// The only page that may be programmed now.
        next: u32,
    },
    /// No further page may be programmed.
    Full,
    /// Not to be used again.
    Retired,
}

/// A move that no flash allows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IllegalMove {
    /// Pages of a block are programmed in order, each once.
    ProgramOutOfOrder {
        /// Where.
        block: EraseBlock,
        /// The page asked for.
        page: u32,
        /// The page that is next.
        next: u32,
    },
    /// A block that is full, retired, or erased was asked for something else than its state allows.
    WrongState {
        /// Where.
        block: EraseBlock,
        /// What was asked for.
        asked: &'static str,
        /// How it is.
        state: BlockState,
    },
    /// A page that was not programmed since the last erase was read.
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
                asked,
                state,
            } => {
                write!(f, "{asked} block {}, which is {state:?}", block.0)
            }
            IllegalMove::ReadErased(slot) => write!(f, "read slot {}, which is erased", slot.0),
        }
    }
}

/// Operations that fail, by their number since the device was made, from 0.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Faults {
    /// Programs of a page: the block is retired, what was to be written goes elsewhere.
    pub programs: BTreeSet<u64>,
    /// Erases: the block is retired.
    pub erases: BTreeSet<u64>,
    /// Reads asked for by the host: uncorrectable.
    pub reads: BTreeSet<u64>,
}

/// How many operations there were.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Wear {
    /// Pages programmed, failed ones included.
    pub programs: u64,
    /// Blocks erased, failed ones included.
    pub erases: u64,
    /// Blocks retired.
    pub retired: u32,
}

/// The array of erase blocks. Knows no map, no time.
pub struct Nand {
    geometry: Geometry,
    states: Vec<BlockState>,
    erases: Vec<u32>,
    data: Vec<Payload>,
    /// Spare area: the block that a slot was written for, `u64::MAX` for padding.
    owner: Vec<u64>,
    faults: Faults,
    wear: Wear,
}

/// A slot on its way into a page: whose it is, and what it holds. `None` pads.
pub type Staged = Option<(Lba, Payload)>;

impl Nand {
    /// All blocks erased.
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

    /// How often a block was erased.
    pub fn erase_count(&self, block: EraseBlock) -> u32 {
        self.erases[block.0 as usize]
    }

    /// How many operations there were.
    pub fn wear(&self) -> Wear {
        self.wear
    }

    /// Programs a page. `Ok(false)` if the flash failed: then the block takes no further page, the ones before are still readable.
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
                    asked: "program",
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

    /// Content of a slot and the block it was written for.
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

    /// Erases a full block. `Ok(false)` if the flash failed: then the block is retired.
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

    /// Takes a full block out of use.
    pub fn retire(&mut self, block: EraseBlock) -> Result<(), IllegalMove> {
        self.must_be_full(block, "retire")?;
        self.forget(block);
        self.states[block.0 as usize] = BlockState::Retired;
        self.wear.retired += 1;
        Ok(())
    }

    /// True if the host's read with this number is to fail.
    pub fn read_fails(&self, number: u64) -> bool {
        self.faults.reads.contains(&number)
    }

    fn must_be_full(&self, block: EraseBlock, asked: &'static str) -> Result<(), IllegalMove> {
        match self.state(block) {
            BlockState::Full => Ok(()),
            state => Err(IllegalMove::WrongState {
                block,
                asked,
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
    fn every_illegal_move_is_named() {
        let mut n = nand(Faults::default());
        let wrong = |asked, state| IllegalMove::WrongState {
            block: BLOCK,
            asked,
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
    fn a_payload_of_one_word_and_any_other_come_back_as_they_were() {
        let mut bytes = [0xa5; SLOT_BYTES];
        assert_eq!(Payload::of(&bytes), Payload::Fill(0xa5a5_a5a5_a5a5_a5a5));
        for change in [0, 7, 8, 4095] {
            bytes[change] ^= 1;
            let mut out = [0; SLOT_BYTES];
            Payload::of(&bytes).copy_to(&mut out);
            assert_eq!(out, bytes);
            assert!(matches!(Payload::of(&bytes), Payload::Bytes(_)));
            bytes[change] ^= 1;
        }
    }
}
