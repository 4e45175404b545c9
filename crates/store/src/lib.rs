//! Access to the files, devices and memory that hold images and volumes.
//!
//! * [`ReadAt`]: positional reads through a shared reference, without locks.
//! * [`FileStore`], [`MemStore`], [`Window`]: stores over a file or block device, over memory, and over a part of
//!   another store. [`RangeStore`]: bytes that the caller supplies on request, for programs that must not block.
//! * `open_regular`, `open_text`, `open_stream`: opening of files by type, without blocking. `retry`:
//!   system calls after a signal.
//! * `PrivateDir`: a directory that no other user can change, and its files.
//! * `Output`: a file that gets its final name only when it is complete.
//! * `TemporaryDir`: a directory for temporary files that only one user can enter.
//! * `MemoryPressure`: pressure stall information and limits of the control group.
//! * [`fault`]: stores that inject errors, for tests.
//!
//! Code that depends on the operating system is in this crate only, as far as reading needs it. Everything that is not
//! for reading (`host`, `Output`, `PrivateDir`, `MemoryPressure`) exists on Linux only.

mod file;
#[cfg(target_os = "linux")]
mod host;
mod host_path;
mod mem;
#[cfg(target_os = "linux")]
mod memory_pressure;
#[cfg(target_os = "linux")]
mod output;
#[cfg(target_os = "linux")]
mod path_opener;
#[cfg(target_os = "linux")]
mod private_dir;
mod ranges;
mod read_at;
#[cfg(target_os = "linux")]
mod temporary_dir;

pub mod fault;

pub use file::FileStore;
#[cfg(target_os = "linux")]
pub use host::{is_nonblocking, open_regular, open_stream, open_text, retry};
pub use host_path::host_path;
pub use mem::MemStore;
#[cfg(target_os = "linux")]
pub use memory_pressure::{MemoryPressure, memory_limit};
#[cfg(target_os = "linux")]
pub use output::{FileId, Output, Target, anonymous, file_id, is_same, takes_stream};
#[cfg(target_os = "linux")]
pub use path_opener::PathOpener;
#[cfg(target_os = "linux")]
pub use private_dir::PrivateDir;
pub use ranges::{MissingRange, RangeStore};
pub use read_at::{ReadAt, StoreError, Window};
#[cfg(target_os = "linux")]
pub use temporary_dir::TemporaryDir;
