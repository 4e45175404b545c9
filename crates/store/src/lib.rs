//! The only door to files, devices and memory that hold images and volumes.
//!
//! * [`ReadAt`]: positional reads through a shared reference. Many threads read one image without a lock, and tests use byte strings.
//! * [`FileStore`], [`MemStore`], [`Window`]: a file or block device, bytes in memory, a part of another store.
//! * [`open_regular`], [`open_text`], [`open_stream`]: files by kind, without waiting. [`retry`]: system calls past a signal.
//! * [`Output`]: a file that appears under its final name only when it is complete.
//! * [`fault`]: the same doors with errors put in on purpose.

mod file;
mod host;
mod mem;
mod output;
mod read_at;

pub mod fault;

pub use file::FileStore;
pub use host::{is_nonblocking, open_regular, open_stream, open_text, retry};
pub use mem::MemStore;
pub use output::{FileId, Output, Target, anonymous, file_id, is_same, takes_stream};
pub use read_at::{ReadAt, Window};
