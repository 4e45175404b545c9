//! A comparison ends. An image equals itself, and the differences of two images are symmetric.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tuff_erofs::diff::{Options, Side, diff};
use tuff_erofs::read::Image;

/// Returns the paths that differ; `None` if an image cannot be read.
fn differ(a: &Image, b: &Image) -> Option<Vec<Vec<u8>>> {
    let mut paths = Vec::new();
    let (mut a, mut b) = (
        Side::Image(a, "a".to_owned()),
        Side::Image(b, "b".to_owned()),
    );
    diff(&mut a, &mut b, &Options::default(), &mut |path, _| {
        paths.push(path.to_vec());
        Ok(())
    })
    .ok()?;
    Some(paths)
}

fuzz_target!(|data: &[u8]| {
    let Some(image) = tuff_fuzz::open(data) else {
        return;
    };
    assert_eq!(
        differ(&image, &image).unwrap_or_default(),
        Vec::<Vec<u8>>::new()
    );
    // The second half, from a block on: another image, as in the seeds, or a variant of the first.
    let half = (data.len() / 2).next_multiple_of(512).min(data.len());
    let Some(other) = tuff_fuzz::open(&data[half..]) else {
        return;
    };
    if let (Some(forward), Some(back)) = (differ(&image, &other), differ(&other, &image)) {
        assert_eq!(forward, back);
    }
});
