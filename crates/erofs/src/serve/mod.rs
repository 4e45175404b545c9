//! Long-running server for one open image: many threads, a fixed amount of cache memory. A mount is
//! built on it.
//!
//! [`Image`](crate::read::Image) handles each request independently. A [`Server`] adds shared
//! caches and detects access patterns across requests. Each thread has its own [`Session`] with
//! codec contexts and buffers.
//!
//! ```text
//!  read(session, inode, range)
//!    └► stream          sequential or strided? send readahead hints            stream.rs
//!    └► extent index    range → extents, 16 bytes each, in pages of 1 MiB      index.rs
//!         └► cluster cache    hit, in flight, or to be decoded here            cluster_cache.rs
//!              └► policy           one of four decoding strategies             policy.rs
//!                   └► fetch, decode   into the caller's buffer or the cache   request.rs, buffer_pool.rs
//!                        └► reply           copied, or by reference            reply.rs
//! ```
//!
//! Invariants:
//!
//! * The thread that serves a request also decodes. It holds no lock while decoding, and at most
//!   one thread decodes a cluster at a time.
//! * A thread never waits for another thread while it decodes, so there is no deadlock.
//! * Cached data stays within [`ServeOptions::budget`]. The additional memory of a request does not
//!   depend on the compression ratio: a cluster that is too long for the cache is decoded through a
//!   window.
//! * A request that is served from the cache allocates no memory.
//!
//! ```
//! use tuff_erofs::read::{Image, OpenOptions};
//! use tuff_erofs::serve::{ServeOptions, Server};
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
//! let server = Server::new(image, ServeOptions::default());
//! let mut session = server.session();
//! let root = server.image().root()?;
//! let nid = server.lookup(&root, b"numbers")?.expect("the file exists");
//! let inode = server.inode(nid)?;
//!
//! let mut buf = vec![0; 4096];
//! let n = server.read(&mut session, &inode, 2, &mut buf)?;
//! assert!(buf[..n].starts_with(b"2\n3\n"));
//!
//! // Cached bytes need not be copied: the parts of a reply can be passed to one `writev`.
//! let reply = server.read_by_reference(&mut session, &inode, 0, &mut buf)?;
//! assert_eq!(reply.parts().flatten().take(4).collect::<Vec<_>>(), b"1\n2\n".iter().collect::<Vec<_>>());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod buffer_pool;
mod cluster_cache;
mod compressed;
mod counters;
mod index;
mod out;
mod physical;
mod pinned;
mod policy;
pub mod profile;
mod record;
mod reply;
mod request;
mod server;
mod session;
mod stream;

pub use counters::{Counters, Latency};
pub use physical::{StoreRange, file_ranges};
pub use pinned::PinStatistics;
pub use policy::{Policy, Strategy};
pub use profile::Profile;
pub use record::RecordedUse;
pub use reply::{PushRange, Reply};
pub use server::{ListedEntry, ServeOptions, Server};
pub use session::Session;
