//! Images, directories and comparisons that the tests share.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tuff_format::superblock::{OFFSET, Superblock};
use tuff_format::{BlockAddr, BlockBits};
use tuff_remote::{Error, Location, Options, RemoteStore, RetryPolicy};
use tuff_store::{MemStore, Output, ReadAt, Target};
use tuff_testkit::Rng;
use tuff_verity::{Header, Root};

/// Unit of the cache. Unit: bytes.
pub(crate) const CHUNK: usize = 128 << 10;

/// Temporary directory, removed on drop.
pub(crate) struct Dir(pub(crate) PathBuf);

impl Dir {
    pub(crate) fn new() -> Self {
        Self(tuff_testkit::unused_path("remote"))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Bytes with the superblock of an image, metadata in the last eighth, and random content.
pub(crate) fn image(blocks: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes: Vec<u8> = (0..blocks * 4096 / 8)
        .flat_map(|_| rng.draw().to_le_bytes())
        .collect();
    let mut sb = Superblock::empty(BlockBits::B4K);
    sb.blocks = blocks as u64;
    sb.meta_blkaddr = BlockAddr(blocks as u64 * 7 / 8);
    let encoded = sb.encode();
    let at = OFFSET as usize;
    bytes[at..at + encoded.len()].copy_from_slice(&encoded);
    bytes
}

/// Image with its hash tree, and the root hash.
pub(crate) fn verified_image(blocks: usize, seed: u64) -> (Vec<u8>, Root) {
    with_tree(image(blocks, seed))
}

/// Appends the hash tree of an image.
pub(crate) fn with_tree(bytes: Vec<u8>) -> (Vec<u8>, Root) {
    let dir = Dir::new();
    fs::create_dir(&dir.0).unwrap();
    let path = dir.0.join("image");
    let output = Output::create(&Target::Path(path.clone())).unwrap();
    output.write_at(&bytes, 0).unwrap();
    let header = Header::new(bytes.len() as u64, 4096, vec![7; 32], [1; 16]).unwrap();
    let at = bytes.len() as u64;
    let store = MemStore::new(bytes);
    let made = tuff_verity::make(&store, &header, None, &output, at, 1, &|_| Ok(())).unwrap();
    output.finish(made.end, false).unwrap();
    (fs::read(path).unwrap(), made.root)
}

/// Options with a cache in `dir`, and with pauses that suit tests.
pub(crate) fn options(dir: &Dir) -> Options {
    let mut options = Options::new(dir.0.clone());
    options.retry = RetryPolicy {
        deadline: Duration::from_secs(20),
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(5),
    };
    options
}

pub(crate) fn open(url: &str, options: &Options) -> Result<Arc<RemoteStore>, Error> {
    tuff_remote::open(&Location::parse(url)?, options)
}

/// Process that reads or pushes: `tests/bin/child.rs`. Its environment has neither credentials nor certificates.
pub(crate) fn child(args: &[&str]) -> Command {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tuff-remote-child"));
    child
        .args(args)
        .env("HOME", "/nonexistent")
        .env_remove("SSL_CERT_FILE");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        child.env_remove(name);
    }
    child
}

/// Image with the hash tree that follows it.
pub(crate) struct WithTree<'a>(pub(crate) &'a RemoteStore);

impl ReadAt for WithTree<'_> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        self.0.read_with_tree_at(buf, offset)
    }

    fn size(&self) -> u64 {
        self.0.stats().size
    }
}

/// Compares all bytes, read by several threads in different orders, with those of the local image and its tree.
pub(crate) fn assert_same(store: &RemoteStore, bytes: &[u8]) {
    let store = &WithTree(store);
    assert_eq!(store.size(), bytes.len() as u64);
    std::thread::scope(|scope| {
        for seed in 0..8 {
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                let mut buf = vec![0; 3 * CHUNK];
                for _ in 0..40 {
                    let at = rng.draw() as usize % bytes.len();
                    let len = (rng.draw() as usize % buf.len()).min(bytes.len() - at);
                    store.read_exact_at(&mut buf[..len], at as u64).unwrap();
                    assert!(buf[..len] == bytes[at..at + len], "{len} bytes at {at}");
                }
            });
        }
    });
    let mut whole = vec![0; bytes.len()];
    store.read_exact_at(&mut whole, 0).unwrap();
    assert!(whole == bytes);
    assert_eq!(store.read_at(&mut [0; 10], bytes.len() as u64).unwrap(), 0);
}

/// Message of the first read that fails.
pub(crate) fn read_error(store: &RemoteStore, offset: usize) -> String {
    let e = WithTree(store).read_exact_at(&mut [0; 4096], offset as u64);
    e.expect_err("the read fails").to_string()
}
