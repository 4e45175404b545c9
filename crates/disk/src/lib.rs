//! Sealed disks: an image, its dm-verity hash tree and the signature of its root hash, as partitions of one disk.
//!
//! ```text
//!  MBR, GPT │ data: an image │ hash tree │ signature │ backup of the GPT
//!  0        │ 1 MiB          │ each partition starts at a multiple of 1 MiB
//! ```
//!
//! * [`Table`]: GUID partition tables.
//! * [`discoverable`]: partition types by architecture, role and content.
//! * [`SignatureRecord`]: content of a signature partition.
//! * [`seal`]: writes a disk.
//! * [`Disk`]: finds the partitions of a disk.
//!
//! The image may be anything: this crate knows no filesystem. The same image gives the same disk, because all UUIDs are derived
//! from the root hash.
//!
//! Sources: the UEFI specification (chapter 5) and the Discoverable Partitions Specification of the UAPI group.

pub mod discoverable;
mod disk;
mod error;
mod gpt;
mod guid;
mod record;
mod seal;

pub use disk::Disk;
pub use error::{Error, Result};
pub use gpt::{Partition, SECTORS, Table, TableOnDisk};
pub use guid::Guid;
pub use record::SignatureRecord;
pub use seal::{Seal, copy, is_sealed, seal};
