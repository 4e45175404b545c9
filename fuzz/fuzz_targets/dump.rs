//! The items of a dump leave no byte of an area out.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tuff_erofs::dump::{Items, Regions};

fuzz_target!(|data: &[u8]| {
    let Some(image) = tuff_fuzz::open(data) else {
        return;
    };
    let regions = Regions::collect(&image);
    let mut at = None;
    for item in Items::all(&image, &regions).take(10_000) {
        assert!(item.start <= item.end);
        match at {
            Some((area, end)) if area == item.area => {
                // An item past the end of the image carries an error, and there are no gaps.
                assert!(item.start <= end || item.error.is_some());
                at = Some((area, item.end.max(end)));
            }
            _ => {
                assert_eq!(item.start, 0);
                at = Some((item.area, item.end));
            }
        }
    }
});
