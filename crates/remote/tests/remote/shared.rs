//! Images that share blocks with another image in the cache.

use crate::common::{CHUNK, Dir, assert_same, image, open, options, with_tree};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tuff_store::ReadAt;
use tuff_testkit::http::{Answer, Server};
use tuff_verity::Root;

/// Size of a block. Unit: bytes.
const BLOCK: usize = 4096;

/// Image, and another one with three more blocks after the 800th, which shifts what follows.
fn pair() -> [(Vec<u8>, Root); 2] {
    let old = image(3000, 70);
    let mut new = image(3003, 71);
    new[BLOCK..800 * BLOCK].copy_from_slice(&old[BLOCK..800 * BLOCK]);
    new[803 * BLOCK..].copy_from_slice(&old[800 * BLOCK..]);
    [with_tree(old), with_tree(new)]
}

fn serve(pair: &[(Vec<u8>, Root); 2]) -> Server {
    let [old, new] = pair.clone().map(|(bytes, _)| bytes);
    Server::start(move |request| {
        let bytes = if request.path == "/old" { &old } else { &new };
        Answer::object(request, bytes, "\"v1\"")
    })
}

/// Files of the cache with the bytes of images.
fn image_files(cache: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(cache).unwrap().map(|e| e.unwrap().path());
    let is_image = |path: &PathBuf| path.extension().is_some_and(|e| e == "image");
    files.filter(is_image).collect()
}

#[test]
fn equal_blocks_are_copied_and_only_new_ones_are_fetched() {
    let pair = pair();
    let server = serve(&pair);
    let dir = Dir::new();
    let mut options = options(&dir);
    options.root_hash = Some(pair[0].1);
    let old = open(&server.url("/old"), &options).unwrap();
    assert_same(&old, &pair[0].0);
    options.root_hash = Some(pair[1].1);
    let new = open(&server.url("/new"), &options).unwrap();
    assert_same(&new, &pair[1].0);
    let stats = new.stats();
    // The 32 KiB with the new blocks. The first chunk and the metadata came with the first two requests.
    assert_eq!(stats.fetched_bytes, CHUNK as u64 / 4, "{stats:?}");
    assert!(stats.shared_bytes > 70 * CHUNK as u64, "{stats:?}");
}

#[test]
fn blocks_that_another_image_has_lost_are_fetched() {
    let pair = pair();
    let server = serve(&pair);
    let dir = Dir::new();
    let mut options = options(&dir);
    options.root_hash = Some(pair[0].1);
    let old = open(&server.url("/old"), &options).unwrap();
    assert_same(&old, &pair[0].0);
    drop(old);
    for path in image_files(&dir.0) {
        let mut content = fs::read(&path).unwrap();
        content[400 * BLOCK..600 * BLOCK].fill(0);
        content[700 * BLOCK + 9] ^= 4;
        fs::write(path, content).unwrap();
    }
    options.root_hash = Some(pair[1].1);
    let new = open(&server.url("/new"), &options).unwrap();
    assert_same(&new, &pair[1].0);
    let stats = new.stats();
    assert!(stats.fetched_bytes > 200 * BLOCK as u64, "{stats:?}");
    assert!(stats.shared_bytes > 0, "{stats:?}");
}

#[test]
fn an_image_without_a_root_hash_shares_nothing() {
    let pair = pair();
    let server = serve(&pair);
    let dir = Dir::new();
    let mut options = options(&dir);
    options.root_hash = Some(pair[0].1);
    let old = open(&server.url("/old"), &options).unwrap();
    assert_same(&old, &pair[0].0);
    options.root_hash = None;
    let new = open(&server.url("/new"), &options).unwrap();
    assert_eq!(new.size(), pair[1].0.len() as u64);
    assert_same(&new, &pair[1].0);
    assert_eq!(new.stats().shared_bytes, 0);
}

/// Filesystem of 400 MiB in a file, whose files can share space. Unmounted on drop.
struct Disk(Dir);

impl Disk {
    /// `None`, with a note, if none can be made here.
    fn new() -> Option<Self> {
        let disk = Self(Dir::new());
        fs::create_dir_all(disk.path()).unwrap();
        let file = disk.0.0.join("disk");
        fs::File::create(&file).unwrap().set_len(400 << 20).unwrap();
        let run = |program: &str, args: &[&str]| {
            let mut command = Command::new(program);
            command
                .args(args)
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command.arg(&file);
            if program == "mount" {
                command.arg(disk.path());
            }
            command.status().is_ok_and(|status| status.success())
        };
        if run("mkfs.xfs", &["-q"]) && run("mount", &["-o", "loop"]) {
            return Some(disk);
        }
        tuff_testkit::skipped(
            "no filesystem with shared extents: needs root, loop devices and mkfs.xfs",
        );
        None
    }

    fn path(&self) -> PathBuf {
        self.0.0.join("mnt")
    }

    /// Bytes in use.
    fn used(&self) -> u64 {
        let sync = Command::new("sync").arg("-f").arg(self.path()).status();
        assert!(sync.unwrap().success());
        let found = rustix::fs::statvfs(self.path()).unwrap();
        (found.f_blocks - found.f_bfree) * found.f_frsize
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path()).status();
    }
}

#[test]
fn equal_chunks_share_space_where_the_filesystem_can() {
    let Some(disk) = Disk::new() else {
        return;
    };
    let pair = pair();
    let server = serve(&pair);
    let cache = Dir(disk.path().join("cache"));
    let mut options = options(&cache);
    options.root_hash = Some(pair[0].1);
    let old = open(&server.url("/old"), &options).unwrap();
    assert_same(&old, &pair[0].0);
    let before = disk.used();
    options.root_hash = Some(pair[1].1);
    let new = open(&server.url("/new"), &options).unwrap();
    assert_same(&new, &pair[1].0);
    let added = disk.used() - before;
    assert!(added < pair[1].0.len() as u64 / 3, "{added}");
    // Chunks that the old image loses stay in the new one.
    drop(old);
    for path in image_files(&options.cache) {
        if fs::read(&path).unwrap() == pair[0].0 {
            fs::File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_len(0)
                .unwrap();
        }
    }
    assert_same(&new, &pair[1].0);
    drop(new);
}
