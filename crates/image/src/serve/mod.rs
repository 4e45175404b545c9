//! Serving an open image for a long time, to many threads, within a fixed amount of memory: what a mount stands on.
//!
//! [`Image`](crate::read::Image) answers one request as well as it can; a [`Server`] sees them all. Each thread that asks
//! brings a [`Session`], which holds its codec contexts and buffers.
//!
//! ```
//! use tuff_image::read::{Image, OpenOptions};
//! use tuff_image::serve::{ServeOptions, Server};
//! use tuff_store::FileStore;
//!
//! # use tuff_image::build::{Options, Progress, Source, build};
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

mod answer;
mod counters;
mod policy;
mod server;
mod session;

pub use answer::Answer;
pub use counters::Counters;
pub use policy::Strategy;
pub use server::{Listed, ServeOptions, Server};
pub use session::Session;
