//! What a command may answer instead of data.

use crate::nand::IllegalMove;
use crate::units::{Lba, Slot};
use std::fmt;

/// Why a command failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// As many blocks are mapped as the device exports; discard some.
    Full {
        /// Blocks that the device exports.
        exported: u64,
    },
    /// The address is outside of what the map can hold.
    OutOfRange {
        /// The address.
        lba: Lba,
        /// What the map said.
        why: &'static str,
    },
    /// The flash page could not be read back.
    Uncorrectable {
        /// The block that was asked for.
        lba: Lba,
        /// Where it lies.
        slot: Slot,
    },
    /// So many erase blocks are retired that what is mapped does not leave room to clean.
    WornOut {
        /// Erase blocks retired so far.
        retired: u32,
    },
    /// The model broke its own rules.
    Illegal(IllegalMove),
}

/// Shorthand.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Full { exported } => write!(f, "device full: all {exported} blocks are mapped"),
            Error::OutOfRange { lba, why } => write!(f, "block {:#x}: {why}", lba.0),
            Error::Uncorrectable { lba, slot } => {
                write!(f, "block {:#x} (slot {}): uncorrectable", lba.0, slot.0)
            }
            Error::WornOut { retired } => {
                write!(f, "no erased block left, {retired} are retired")
            }
            Error::Illegal(what) => write!(f, "illegal move: {what}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<IllegalMove> for Error {
    fn from(what: IllegalMove) -> Self {
        Error::Illegal(what)
    }
}
