//! Images of two versions of a tree: what the second one has in common with the first.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use tuff_mkfs::Options;
use tuff_testkit::variants::build_dir;
use tuff_testkit::{Rng, Scratch};

const BLOCK: usize = 4096;

/// Blocks of the image of a directory.
fn blocks(tree: &Path, image: &Path, cut: u64) -> HashSet<Vec<u8>> {
    let mut options = Options::default();
    options.layout.fragment_cut = Some(cut);
    build_dir(tree, image, &options);
    let image = fs::read(image).unwrap();
    image.chunks(BLOCK).map(<[u8]>::to_vec).collect()
}

/// Returns lines that no other seed has, but for some words.
fn lines(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Rng::new(seed);
    let mut out = String::new();
    while out.len() < len {
        out += &format!("value {:08x} of the table\n", random.draw() as u32);
    }
    out.truncate(len);
    out.into_bytes()
}

/// Creates `count` files of a length in bytes, builds an image, changes the length of the first files, and returns which
/// part of the second image's blocks the first does not have. Unit: percent.
fn new_percent(name: &str, cut: u64, count: usize, len: impl Fn(usize) -> usize) -> usize {
    let scratch = Scratch::new(name);
    let tree = scratch.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for i in 0..count {
        let file = tree.join(format!("file{i:04}"));
        fs::write(file, lines(len(i), i as u64)).unwrap();
    }
    let old = blocks(&tree, &scratch.path().join("old"), cut);
    for i in 0..4 {
        fs::write(
            tree.join(format!("file{i:04}")),
            lines(len(i) + 100, i as u64),
        )
        .unwrap();
    }
    let new = blocks(&tree, &scratch.path().join("new"), cut);
    new.difference(&old).count() * 100 / new.len()
}

/// Compares images with cuts with images without any.
fn compare(name: &str, count: usize, len: impl Fn(usize) -> usize + Copy) {
    let with = new_percent(name, 128 << 10, count, len);
    let without = new_percent(name, 1 << 30, count, len);
    assert!(
        with * 3 <= without * 2,
        "{with} % and {without} % of the blocks are new"
    );
}

#[test]
fn a_changed_small_file_changes_clusters_up_to_the_next_cut() {
    compare("small", 600, |i| 2000 + i * 7919 % 16_000);
}

#[test]
fn a_changed_tail_changes_clusters_up_to_the_next_cut() {
    compare("tails", 100, |i| 130_000 + i * 7919 % 40_000);
}
