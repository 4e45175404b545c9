//! A hash tree covers what its data claims, or is refused; a header that decodes survives encoding.
//! Input: position of the header and claim, two little-endian numbers of 8 bytes each, then data with its tree.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use tuff_format::claim::Claim;
use tuff_store::{MemStore, ReadAt};
use tuff_verity::{Header, TreePlace, Verified, covered, stated_root};

fuzz_target!(|data: &[u8]| {
    let Some(([at, claim], data)) = tuff_fuzz::numbers(data) else {
        return;
    };
    if let Some(header) = data.first_chunk().and_then(|bytes| Header::decode(bytes).ok()) {
        assert_eq!(Header::decode(&header.encode()), Ok(header));
    }
    match covered(claim, at, claim) {
        Ok(range) => assert!(range.start == 0 && range.end >= at),
        Err(_) => assert!(claim < at),
    }
    let store: Arc<dyn ReadAt> = Arc::new(MemStore::new(data));
    let Ok(root) = stated_root(&store, &store, at) else {
        return;
    };
    for place in [
        TreePlace::appended(Arc::clone(&store), at),
        TreePlace::separate(Arc::clone(&store), at),
    ] {
        let end = place.data_len_max(store.size());
        let Ok(verified) = Verified::open(Arc::clone(&store), place, root, |verified| {
            let mut read = |at: u64, buf: &mut [u8]| verified.read_exact_at(buf, at);
            let image = Claim::read(&mut read)?;
            Ok(image.map_or(claim, |image| image.up_to(end)))
        }) else {
            continue;
        };
        let range = verified.covered_range();
        assert!(range.end <= end.next_multiple_of(verified.header().data_block.into()));
        assert_eq!(verified.size(), range.end);
        let mut buf = [0; 4096];
        assert_eq!(verified.read_at(&mut buf, range.end).ok(), Some(0));
        // Reads return the bytes of the data.
        for at in (0..range.end).step_by(buf.len()).take(64) {
            let n = verified.read_at(&mut buf, at).unwrap_or(0);
            let mut own = vec![0; n];
            let available = store.size().saturating_sub(at).min(n as u64) as usize;
            store.read_exact_at(&mut own[..available], at).expect("in memory");
            assert!(verified.roots().is_some() || own == buf[..n]);
        }
        let _ = verified.scan(1, &|_| Ok(()));
    }
});
