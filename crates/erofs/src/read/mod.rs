//! Reading of images. A request passes these stages:
//!
//! ```text
//!  read_at(inode, range)
//!    └► inode     32 * nid + base → a checked view                     inode.rs
//!         └► map       range → extents, whatever the layout            map.rs
//!              └► fetch     device and position → bytes                fetch.rs
//!                   └► decode    bytes → bytes, whole or a prefix      decode.rs
//!                        └► into the caller's buffer                   file.rs
//! ```
//!
//! An [`Extent`] is self-contained: fetching and decoding do not depend on inodes. Names and paths are byte
//! strings.
//!
//! ```
//! use std::io::Read;
//! use tuff_erofs::read::{Image, OpenOptions};
//! use tuff_store::FileStore;
//!
//! # use tuff_mkfs::{Options, Progress, Source, build};
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("image.erofs");
//! # std::fs::create_dir(dir.path().join("tree"))?;
//! # let lines: String = (1..=2500).map(|n| format!("{n}\n")).collect();
//! # std::fs::write(dir.path().join("tree/numbers"), lines)?;
//! # let (sources, target) = ([Source::Dir(dir.path().join("tree"))], tuff_store::Target::Path(path.clone()));
//! # build(&sources, &Options::default(), &target, &Progress::default())?;
//! let image = Image::open(FileStore::open(&path)?, OpenOptions::default())?;
//! for entry in image.read_dir(&image.root()?)? {
//!     let entry = entry?;
//!     let inode = image.inode(entry.nid)?;
//!     println!("{:o} {:>8} {}", inode.mode(), inode.size(), entry.name.escape_ascii());
//! }
//! let numbers = image.resolve(b"/numbers")?;
//! let mut text = String::new();
//! image.reader(&numbers)?.read_to_string(&mut text)?;
//! assert!(text.starts_with("1\n2\n3\n"));
//! let mut part = [0; 4];
//! image.read_at(&numbers, &mut part, 2)?;
//! assert_eq!(&part, b"2\n3\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Invariants:
//!
//! * [`Image`] is `Sync` and needs no external lock. Its caches are bounded by [`Limits`].
//! * A number from the image is compared with a limit, or with the available size, before it controls an
//!   allocation or a loop.
//! * An error names the inode, the byte position, the value found and the value expected.

pub(crate) mod cache;
pub(crate) mod decode;
pub mod devices;
pub(crate) mod dir;
pub(crate) mod extent;
pub(crate) mod fetch;
pub(crate) mod file;
mod image;
mod inode;
mod inodes;
pub(crate) mod limits;
pub(crate) mod map;
mod path;
pub(crate) mod start_list;
mod xattr;

pub use devices::device_tag;
pub use dir::{DirEntry, ReadDir};
pub use extent::{Cluster, ClusterCoding, Extent, Location};
pub use fetch::{Bytes, Space, StorePosition};
pub use file::FileReader;
pub use image::{Image, OpenOptions};
pub use inode::Inode;
pub use limits::{Limits, WorkBudget};
pub use map::{Extents, Run, Runs};
pub use start_list::{DeviceRange, StartList, first_reads};
pub use xattr::Xattr;

pub use tuff_format::inode::{FileType, Layout};
pub use tuff_format::{DeviceId, Nid};
