//! Serving an open image for a long time, to many threads, within a fixed amount of memory: what a mount stands on.
//!
//! [`Image`](crate::read::Image) answers one request as well as it can; a [`Server`] sees them all. Each thread that asks
//! brings a [`Session`], which holds its codec contexts and buffers.
//!
//! ```text
//!  read(session, inode, range)
//!    └► stream    does it go on where it ended? tell the device what comes         stream.rs
//!    └► index     range → extents, 16 bytes each, by pages                         index.rs
//!         └► cohort    held decoded? busy? or ours to decode                       decoded.rs
//!              └► policy    one of four strategies                                 policy.rs
//!                   └► fetch and decode    into the caller's buffer, or to hold    request.rs
//!                        └► the answer: copied, or lent                            answer.rs
//! ```
//!
//! Invariants:
//!
//! * The thread that asks decodes; no lock is held meanwhile, and at most one thread decodes a cluster at a time.
//! * A thread never waits for another while it decodes, so nobody waits in a circle.
//! * What is cached stays within [`ServeOptions::budget`]; what a request needs beyond it does not grow with the ratio
//!   of a cluster: one that is too long to be held is decoded through a window.
//! * A request that is served from what is held allocates nothing.
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
//! let nid = server.lookup(&root, b"numbers")?.expect("is there");
//! let inode = server.inode(nid)?;
//!
//! let mut buf = vec![0; 4096];
//! let n = server.read(&mut session, &inode, 2, &mut buf)?;
//! assert!(buf[..n].starts_with(b"2\n3\n"));
//!
//! // Bytes that the server holds anyway need not be copied: the parts of an answer go into one `writev`.
//! let answer = server.read_lent(&mut session, &inode, 0, &mut buf)?;
//! assert_eq!(answer.parts().flatten().take(4).collect::<Vec<_>>(), b"1\n2\n".iter().collect::<Vec<_>>());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod buffer_pool;
mod cluster_cache;
mod counters;
mod index;
mod memory_pressure;
mod out;
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
pub use memory_pressure::{Pressure, memory_limit};
pub use pinned::Pinned;
pub use policy::Strategy;
pub use profile::Profile;
pub use record::Use;
pub use reply::{Reply, Rest};
pub use server::{Listed, ServeOptions, Server};
pub use session::Session;
