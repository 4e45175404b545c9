//! Trees: equal to those of veritysetup, and reads verified by them.

mod common;

use common::{content, one, open};
use std::io;
use std::sync::Arc;
use tuff_store::{MemStore, Output, ReadAt, Target};
use tuff_verity::{Header, NotCovered, Root, TreePlace, Verified, make, stated_root, tree_end};

/// Returns data with its tree, the position of the header, and the root hash.
fn data_with_tree(data: &[u8], block: u32, salt: &[u8], threads: usize) -> (Vec<u8>, u64, Root) {
    let header = Header::new(data.len() as u64, block, salt.to_vec(), [1; 16]).unwrap();
    let at = (data.len() as u64).div_ceil(4096) * 4096;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let output = Output::create(&Target::Path(path.clone())).unwrap();
    output.write_at(data, 0).unwrap();
    let store = MemStore::new(data.to_vec());
    let made = make(&store, &header, None, &output, at, threads, &|_| Ok(())).unwrap();
    assert_eq!(made.end, tree_end(&header, None, at).unwrap());
    output.finish(made.end, false).unwrap();
    (std::fs::read(path).unwrap(), at, made.root)
}

fn hex(root: &Root) -> String {
    root.iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn root_hashes_equal_those_of_veritysetup() {
    // veritysetup 2.6.1: format --data-block-size=N --hash-block-size=N --salt=...
    for (blocks, block, salt, expected) in [
        (
            1,
            4096,
            &[][..],
            "db25f0eab80fc2df7b8d948c1a1315c831765625d7ae209746c9fc552f95cddb",
        ),
        (
            2,
            4096,
            &[],
            "686c2b57422c2800942d0d018db93be323011e8aa102261b9524b4f8ce030da1",
        ),
        (
            128,
            4096,
            &[0, 0xff, 0x10],
            "a9eb9e8ef04896c5475202be3ba8cc2bf9ffb876864392879c3f75b3f27501d2",
        ),
        (
            129,
            4096,
            &[0xab; 32],
            "c3aee2fc04be33213eb1dd8fe0510573b02a019c5c49509fe4a0216f1658bf5b",
        ),
        (
            300,
            512,
            &[],
            "5cda85e0c3b88bea738e4123c6a37a3a9474550d59bb3db547c85670eb6e1b8e",
        ),
        (
            1,
            512,
            &[1],
            "060242177b79f85b32abb81148e07d455dd5b01bd3011b0cdcff8abb7262c763",
        ),
        (
            16385,
            512,
            &[0xcd; 256],
            "3d68ea408371e387a19fae905f69d577c672da858ffcee295691bd5be1da90bc",
        ),
    ] {
        let data = content(blocks * block as usize);
        let (bytes, at, root) = data_with_tree(&data, block, salt, 1);
        assert_eq!(hex(&root), expected, "{blocks} blocks of {block}");
        let store = MemStore::new(bytes.clone());
        assert_eq!(stated_root(&store, &store, at).unwrap(), root);
        assert_eq!(data_with_tree(&data, block, salt, 3), (bytes, at, root));
    }
}

#[test]
fn verified_reads_return_the_data() {
    let data = content(150 * 4096 + 7);
    let (bytes, at, root) = data_with_tree(&data, 4096, b"salt", 2);
    let verified = open(&bytes, at, root).unwrap();
    assert_eq!(verified.size(), 151 * 4096);
    let mut padded = data.clone();
    padded.resize(151 * 4096, 0);
    for (from, len) in [
        (0, 151 * 4096),
        (0, 1),
        (4095, 2),
        (4096, 4096),
        (8192, 5000),
        (150 * 4096, 4096),
        (151 * 4096 - 1, 1),
        (77, 0),
    ] {
        let mut buf = vec![0xee; len];
        verified.read_exact_at(&mut buf, from as u64).unwrap();
        assert!(buf == padded[from..from + len], "{len} bytes at {from}");
    }
    let mut buf = [0; 10];
    assert_eq!(verified.read_at(&mut buf, 151 * 4096 - 4).unwrap(), 4);
    assert_eq!(verified.read_at(&mut buf, 151 * 4096).unwrap(), 0);
    assert!(verified.scan(2, &|_| Ok(())).unwrap().is_none());
}

#[test]
fn a_short_last_block_is_padded_with_zeros() {
    let data = content(3 * 4096 + 100);
    let (bytes, at, root) = data_with_tree(&data, 4096, &[], 1);
    let len = data.len() as u64;
    let data: Arc<dyn ReadAt> = Arc::new(MemStore::new(data));
    let tree = Arc::new(MemStore::new(bytes));
    let verified = Verified::open(data, TreePlace::separate(tree, at), root, |_| Ok(len)).unwrap();
    let mut buf = [1; 4096];
    verified.read_exact_at(&mut buf, 3 * 4096).unwrap();
    assert!(buf[100..].iter().all(|b| *b == 0));
    assert!(verified.scan(1, &|_| Ok(())).unwrap().is_none());
}

#[test]
fn exactly_the_damaged_blocks_are_found() {
    let data = content(300 * 512);
    let (bytes, at, root) = data_with_tree(&data, 512, &[], 1);
    let read = |verified: &Verified, block: u64| {
        let mut buf = [0; 512];
        verified.read_exact_at(&mut buf, block * 512)
    };
    // In the data; in the digests of blocks 16 to 31, 20 of them; in the level above; in the top.
    let base = at as usize + 512;
    let levels = [19, 2, 1]; // ceil(300 / 16), ...
    let (top, middle, low) = (base, base + 512, base + 512 * (1 + levels[1]));
    for (byte, hit, unknown) in [
        (5 * 512 + 3, 5..6, false),
        (299 * 512 + 511, 299..300, false),
        (low + 512 + 4 * 32, 16..32, true),
        (middle + 512 + 7, 256..300, true),
        (top + 511, 0..300, true),
    ] {
        let mut damaged = bytes.clone();
        damaged[byte] ^= 0x10;
        let verified = open(&damaged, at, root).unwrap();
        for block in 0..300 {
            let result = read(&verified, block);
            let kind = result.as_ref().err().map(io::Error::kind);
            let expected = hit.contains(&block).then_some(io::ErrorKind::InvalidData);
            assert_eq!(kind, expected, "byte {byte}, block {block}");
        }
        let found = verified.scan(2, &|_| Ok(())).unwrap();
        let ranges = one(hit.start * 512..hit.end * 512);
        let (in_data, in_unknown) = if unknown {
            (vec![], ranges)
        } else {
            (ranges, vec![])
        };
        assert_eq!((found.data, found.unknown), (in_data, in_unknown));
    }
    let mut wrong = root;
    wrong[31] ^= 1;
    let verified = open(&bytes, at, wrong).unwrap();
    assert!(!verified.is_top_sound().unwrap());
    assert!(open(&bytes, at, root).unwrap().is_top_sound().unwrap());
    assert!(read(&verified, 0).is_err());
    assert_eq!(
        verified.scan(1, &|_| Ok(())).unwrap().unknown,
        one(0..300 * 512)
    );
}

#[test]
fn swapped_blocks_are_found() {
    // Each block is valid in its own place.
    let data = content(20 * 4096);
    let (mut bytes, at, root) = data_with_tree(&data, 4096, &[], 1);
    let (a, b) = bytes.split_at_mut(4096);
    a.swap_with_slice(&mut b[..4096]);
    let verified = open(&bytes, at, root).unwrap();
    let found = verified.scan(1, &|_| Ok(())).unwrap();
    assert_eq!(found.data, one(0..2 * 4096));
}

#[test]
fn missing_and_impossible_trees_are_rejected() {
    let (bytes, at, root) = data_with_tree(&content(8192), 4096, &[], 1);
    let message = |bytes: &[u8], at| match open(bytes, at, root) {
        Ok(verified) => verified.scan(1, &|_| Ok(())).map(|d| format!("{d:?}")),
        Err(e) => Ok(format!("{:?}: {e}", e.kind())),
    };
    assert!(message(&bytes, 0).unwrap().contains("no hash tree"));
    assert!(message(&bytes, 1 << 40).unwrap().contains("no hash tree"));
    assert!(
        message(&bytes[..8200], at)
            .unwrap()
            .contains("no hash tree")
    );
    // A header of 2^50 blocks over little data, and a truncated tree over all data.
    let mut long = bytes.clone();
    long[at as usize + 78] = 4;
    assert!(message(&long, at).unwrap().contains("shorter"));
    let cut = message(&bytes[..bytes.len() - 4096], at).unwrap();
    assert_eq!(
        cut,
        "Damage { data: [], unknown: [0..8192], tree: [12288..16384], parity: [] }"
    );
}

#[test]
fn an_error_of_step_stops_the_scan() {
    let data = content(1 << 20);
    let stop = |_| Err(io::Error::from(io::ErrorKind::Interrupted));
    let (bytes, at, root) = data_with_tree(&data, 4096, &[], 1);
    let verified = open(&bytes, at, root).unwrap();
    let kind = |e: io::Error| e.kind();
    assert_eq!(
        verified.scan(2, &stop).map_err(kind),
        Err(io::ErrorKind::Interrupted)
    );
}

/// Reason why a tree does not cover a claim.
fn not_covered(e: io::Error) -> NotCovered {
    assert_eq!(e.kind(), io::ErrorKind::InvalidData);
    let inner = e.into_inner().and_then(|e| e.downcast::<NotCovered>().ok());
    *inner.expect("the error is about the coverage")
}

/// Changes the number of data blocks in the header at `at`, which no digest covers.
fn with_blocks(bytes: &[u8], at: u64, blocks: u64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let field = at as usize + 72;
    bytes[field..field + 8].copy_from_slice(&blocks.to_le_bytes());
    bytes
}

#[test]
fn a_tree_covers_what_the_data_claims_or_is_refused() {
    let data = content(7 * 4096);
    let (bytes, at, root) = data_with_tree(&data, 4096, &[], 1);
    let open = |bytes: &[u8], claim: u64, is_separate: bool| {
        let store = |bytes: &[u8]| Arc::new(MemStore::new(bytes.to_vec())) as Arc<dyn ReadAt>;
        let (of_data, tree) = match is_separate {
            true => {
                let (data, tree) = bytes.split_at(at as usize);
                (store(data), TreePlace::separate(store(tree), 0))
            }
            false => (store(bytes), TreePlace::appended(store(bytes), at)),
        };
        let opened = Verified::open(of_data, tree, root, |_| Ok(claim));
        opened.map(|verified| verified.covered_range())
    };
    let short = |covered, claim| NotCovered::Short { covered, claim };
    for is_separate in [false, true] {
        assert_eq!(open(&bytes, 7 * 4096, is_separate).unwrap(), 0..7 * 4096);
        assert_eq!(
            open(&bytes, 6 * 4096 + 1, is_separate).unwrap(),
            0..7 * 4096
        );
        let e = open(&bytes, 7 * 4096 + 1, is_separate).unwrap_err();
        assert_eq!(not_covered(e), short(7 * 4096, 7 * 4096 + 1));
        // As deep a tree has the same root hash for fewer blocks.
        for blocks in [2, 6] {
            let lowered = with_blocks(&bytes, at, blocks);
            let e = open(&lowered, 7 * 4096, is_separate).unwrap_err();
            assert_eq!(not_covered(e), short(blocks * 4096, 7 * 4096));
        }
    }
    let raised = with_blocks(&bytes, at, 8);
    let long = NotCovered::Long {
        covered: 8 * 4096,
        end: 7 * 4096,
    };
    assert_eq!(
        not_covered(open(&raised, 7 * 4096, false).unwrap_err()),
        long
    );
    let e = open(&raised, 7 * 4096, true).unwrap_err();
    assert!(e.to_string().contains("shorter than its hash tree"), "{e}");
}

#[test]
fn a_claim_is_read_verified_and_within_the_digests() {
    let data = content(7 * 4096);
    let (mut bytes, at, root) = data_with_tree(&data, 4096, &[], 1);
    bytes[5000] ^= 1;
    let bytes = with_blocks(&bytes, at, 6);
    let store: Arc<dyn ReadAt> = Arc::new(MemStore::new(bytes));
    let tree = TreePlace::appended(Arc::clone(&store), at);
    let opened = Verified::open(store, tree, root, |verified| {
        let mut buf = [0; 4096];
        let kind = |e: io::Error| e.kind();
        verified.read_exact_at(&mut buf, 0).unwrap();
        let damaged = verified.read_exact_at(&mut buf, 4096).map_err(kind);
        assert_eq!(damaged, Err(io::ErrorKind::InvalidData));
        let after = verified.read_exact_at(&mut buf, 6 * 4096).map_err(kind);
        assert_eq!(after, Err(io::ErrorKind::UnexpectedEof));
        Err(io::Error::other("no claim"))
    });
    assert_eq!(opened.err().unwrap().to_string(), "no claim");
}
