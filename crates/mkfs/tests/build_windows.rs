//! Sizes of images for every window: a small window costs some compression, never all of it.

use std::fs;
use tuff_mkfs::{Dedupe, Fragments, KernelVersion, Method, Options};
use tuff_testkit::Scratch;
use tuff_testkit::content::text;
use tuff_testkit::variants::{build_dir, compression};

/// Size of the image relative to the file's size, in percent.
fn image_percent(scratch: &Scratch, size: usize, options: &Options) -> u64 {
    let (tree, image) = (scratch.path().join("tree"), scratch.path().join("image"));
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join("file"), text(size, 1)).unwrap();
    build_dir(&tree, &image, options);
    fs::metadata(image).unwrap().len() * 100 / size as u64
}

#[test]
fn files_shrink_with_every_window() {
    let scratch = Scratch::new("windows");
    let methods = [
        Method::Lz4,
        Method::Lz4hc,
        Method::Deflate,
        Method::Zstd,
        Method::Lzma,
    ];
    for (method, kib) in methods
        .into_iter()
        .flat_map(|m| [12, 32, 63, 64, 1024].map(|kib| (m, kib)))
    {
        let mut options = Options::for_kernel(KernelVersion(6, 18));
        options.compression.default = compression(method, method.default_level());
        options.compression.cluster = 4 << 10;
        options.compression.window = kib << 10;
        options.layout.fragments = Fragments::Off;
        options.dedupe.mode = Dedupe::Off;
        options.output.verify = true;
        // Files of the last size are sampled before they are compressed.
        for size in [64 << 10, 300_001, 9 << 20] {
            let percent = image_percent(&scratch, size, &options);
            assert!(
                percent <= 75,
                "{method}, window of {kib} KiB, file of {size} bytes: the image has {percent} %"
            );
        }
    }
}
