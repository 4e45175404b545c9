//! The examples, run on an image.

use std::path::Path;
use tuff_mkfs::{MemoryTree, Options, Progress, Source};

macro_rules! example {
    ($name:ident, $path:literal) => {
        #[path = $path]
        #[allow(dead_code, reason = "its main function is for the command line")]
        mod $name;
    };
}
example!(async_ranges, "../examples/async_ranges.rs");
example!(check, "../examples/check.rs");
example!(extract_path, "../examples/extract_path.rs");
example!(read_range, "../examples/read_range.rs");
example!(serve_threads, "../examples/serve_threads.rs");
example!(walk, "../examples/walk.rs");

/// Numbers from 1 on, a line each.
fn numbers() -> String {
    (1..=50_000).map(|n| format!("{n}\n")).collect()
}

fn image(dir: &Path) -> String {
    let mut tree = MemoryTree::new();
    tree.add_file("data/numbers", numbers()).unwrap();
    tree.add_file("data/more/file", "text").unwrap();
    tree.add_symlink("link", "data").unwrap();
    let path = dir.join("image.erofs");
    let target = tuff_store::Target::Path(path.clone());
    let options = Options::from_settings([("compress", "zstd")]).unwrap();
    tuff_mkfs::build(
        &[Source::Memory(tree)],
        &options,
        &target,
        &Progress::default(),
    )
    .unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn every_example_reads_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path());
    walk::list(image.as_ref()).unwrap();
    let part = read_range::read_range(&image, "data/numbers", 2..8).unwrap();
    assert_eq!(part, b"2\n3\n4\n");
    let target = dir.path().join("out");
    let files = extract_path::extract_path(&image, "data/more", target.to_str().unwrap());
    assert_eq!(files.unwrap(), 1);
    assert_eq!(
        std::fs::read(target.join("data/more/file")).unwrap(),
        b"text"
    );
    assert!(check::check_image(&image).unwrap().is_clean());
    let read = serve_threads::read_by_threads(&image, "data/numbers", 4);
    assert_eq!(read.unwrap(), numbers().len() as u64);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let both = runtime.block_on(async_ranges::read_both_ways(&image, "data/numbers"));
    let (first, second) = both.unwrap();
    assert_eq!(first, numbers().as_bytes());
    assert_eq!(first, second);
}
