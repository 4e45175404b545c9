//! Images that share blocks with another image in the cache.

use crate::common::{CHUNK, Dir, assert_same, image, open, options, with_tree};
use std::fs;
use std::path::PathBuf;
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
fn image_files(dir: &Dir) -> Vec<PathBuf> {
    let files = fs::read_dir(&dir.0).unwrap().map(|e| e.unwrap().path());
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
    assert_same(&*old, &pair[0].0);
    options.root_hash = Some(pair[1].1);
    let new = open(&server.url("/new"), &options).unwrap();
    assert_same(&*new, &pair[1].0);
    let stats = new.stats();
    // The chunk with the new blocks. The first chunk and the metadata came with the first two requests.
    assert_eq!(stats.fetched_bytes, CHUNK as u64, "{stats:?}");
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
    assert_same(&*old, &pair[0].0);
    drop(old);
    for path in image_files(&dir) {
        let mut content = fs::read(&path).unwrap();
        content[400 * BLOCK..600 * BLOCK].fill(0);
        content[700 * BLOCK + 9] ^= 4;
        fs::write(path, content).unwrap();
    }
    options.root_hash = Some(pair[1].1);
    let new = open(&server.url("/new"), &options).unwrap();
    assert_same(&*new, &pair[1].0);
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
    assert_same(&*old, &pair[0].0);
    options.root_hash = None;
    let new = open(&server.url("/new"), &options).unwrap();
    assert_eq!(new.size(), pair[1].0.len() as u64);
    assert_same(&*new, &pair[1].0);
    assert_eq!(new.stats().shared_bytes, 0);
}
