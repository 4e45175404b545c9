//! Errors of device commands.

use crate::nand::IllegalMove;
use crate::units::{Lba, Slot};
use std::fmt;

/// Reason for which a device command failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// The number of mapped blocks has reached the exported capacity; a discard makes room.
    Full {
        /// Exported capacity. Unit: blocks of 4 KiB.
        exported: u64,
    },
    /// The map cannot represent the address.
    OutOfRange {
        /// Address that the map rejected.
        lba: Lba,
        /// Reason given by the map.
        why: &'static str,
    },
    /// The flash page could not be read back.
    Uncorrectable {
        /// The block that was to be read.
        lba: Lba,
        /// Physical location of the block.
        slot: Slot,
    },
    /// Retired erase blocks leave too little spare space to clean.
    WornOut {
        /// Erase blocks retired so far.
        retired: u32,
    },
    /// The model violated a rule of flash memory: a bug in the translation layer.
    Illegal(IllegalMove),
}

/// Result of a device command.
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
            Error::Illegal(what) => write!(f, "invalid flash operation: {what}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<IllegalMove> for Error {
    fn from(what: IllegalMove) -> Self {
        Error::Illegal(what)
    }
}
