//! Deterministic flash device model: NAND blocks, a translation layer, garbage collection and a
//! virtual clock.
//!
//! ```text
//!  commands ──► device ──► map      which slot holds a block: a flat page map, or trees of intervals
//!                 │  └───► nand     erase blocks and their states, contents, injected faults
//!                 └──────► clock    when each die, channel, the link and the firmware are free again
//! ```
//!
//! The device handles blocks of 4 KiB, streams and discards, and is independent of any filesystem.
//! Design, timing rule, presets and simplifications: docs/design/flash-model.md.
//!
//! Invariants, asserted by [`Flash::assert_sound`]:
//!
//! * A mapped block is stored in exactly one slot, and that slot's spare area records the block's
//!   address.
//! * The valid count of an erase block is the number of its slots that the map points to.
//! * Free blocks are erased; blocks change their state only by the transitions of [`nand`].
//! * No result depends on a real clock: the same commands at the same virtual times give the same answers.
//!
//! ```
//! use tuff_flash_sim::{Flash, Lba, Nanos, Payload, Preset};
//!
//! let mut flash = Flash::new(Preset::Nvme.config(1024));
//! let done = flash.write(Nanos(0), Lba(7), vec![Payload::Fill(42)], 0)?;
//! let (_, data) = flash.read(done, Lba(7), 1)?;
//! assert_eq!(data, [Some(Payload::Fill(42))]);
//! # Ok::<(), tuff_flash_sim::Error>(())
//! ```
#![forbid(unsafe_code)]

mod clock;
mod device;
mod error;
pub mod experiment;
mod geometry;
mod hist;
pub mod map;
pub mod nand;
mod preset;
mod units;

pub use clock::{Nanos, Timing};
pub use device::{Cleaning, Config, Counters, Flash, Striping};
pub use error::{Error, Result};
pub use geometry::Geometry;
pub use hist::Histogram;
pub use nand::{Faults, Payload};
pub use preset::Preset;
pub use units::{EraseBlock, Lba, SLOT_BYTES, Slot};
