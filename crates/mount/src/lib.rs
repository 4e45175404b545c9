//! Adapters that FUSE serves: an EROFS image, an export of image files and an IPLFS volume; and mounts of the kernel's EROFS.
//!
//! | module | filesystem |
//! |---|---|
//! | [`image`] | an EROFS image, read-only; [`errno`] maps its errors, [`memory_pressure`] shrinks its caches |
//! | [`export`] | image files from stores, for mounts of the kernel's EROFS, which [`kernel_erofs`] makes |
//! | [`volume`] | an IPLFS volume, writable |
//!
//! | module | what a program needs beside them |
//! |---|---|
//! | [`lifetime`] | signals that end a mount, threads beside it |
//! | [`exported`] | a mount of the kernel's EROFS on an image behind a URL |
//! | [`swap`] | its replacement by one of plain files when the image is complete |
//! | [`prefetch`] | requests for what programs are expected to read of an image behind a URL |
//! | [`counters_socket`] | counters of a mount that the kernel serves |
//! | `layers` | layers for container engines, with the feature `remote` |
//!
//! Protocol, sessions and transports are in `tuff-fuse`.
//!
//! Mounts an image, and unmounts it at SIGTERM:
//!
//! ```no_run
//! use std::sync::Arc;
//! use tuff_erofs::read::{Image, OpenOptions};
//! use tuff_erofs::serve::{ServeOptions, Server};
//! use tuff_fuse::mountpoint::{self, Detach, MountOptions};
//! use tuff_fuse::{Handler, Log, Session, SessionOptions};
//! use tuff_mount::lifetime::{Lifetime, Signals};
//! use tuff_mount::{ImageFs, OwnerOverride};
//! use tuff_store::FileStore;
//!
//! let signals = Signals::of_end()?;
//! let log = Log::new(|line| eprintln!("{line}"));
//! let store = FileStore::new(std::fs::File::open("image.erofs")?)?;
//! let server = Server::new(Image::open(store, OpenOptions::default())?, ServeOptions::default());
//! let fs = ImageFs::new(server, OwnerOverride::default(), log.clone())?;
//! let options = SessionOptions::default();
//! let handler = Arc::new(Handler::new(Arc::new(fs), options.threads, log.clone()));
//! let mountpoint = mountpoint::attach("/mnt".as_ref(), &MountOptions::default())?;
//! let session = Session::start(handler, mountpoint, options)?;
//! let dir = session.dir().to_owned();
//! let life = Lifetime::start(signals, session, dir.clone(), log, || std::process::exit(1))?;
//! assert!(dir.join("etc").is_dir());
//! mountpoint::detach(&dir, Detach::Lazily)?;
//! life.wait();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod counters_socket;
pub mod errno;
pub mod export;
pub mod exported;
pub mod image;
pub mod kernel_erofs;
#[cfg(feature = "remote")]
pub mod layers;
mod libraries;
pub mod lifetime;
pub mod memory_pressure;
pub mod neighbours;
pub mod prefetch;
pub mod swap;
pub mod volume;

pub use export::ExportFs;
pub use image::{ImageFs, OwnerOverride, StoreCounters, StoreRequests};
