//! Access to the files, devices and memory that hold images and volumes.
//!
//! * [`ReadAt`]: positional reads through a shared reference, without locks.
//! * [`FileStore`], [`MemStore`], [`Window`]: stores over a file or block device, over memory, and over a part of
//!   another store.
//! * [`open_regular`], [`open_text`], [`open_stream`]: opening of files by type, without blocking. [`retry`]:
//!   system calls after a signal.
//! * [`Output`]: a file that gets its final name only when it is complete.
//! * [`fault`]: stores that inject errors, for tests.

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
