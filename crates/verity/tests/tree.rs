//! Trees: equal to those of veritysetup, and reads verified by them.

mod common;

use common::{content, one, open};
use std::io;
use std::sync::Arc;
use tuff_store::{MemStore, Output, ReadAt, Target};
use tuff_verity::{Header, Root, Verified, make, stated_root, tree_end};

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
    for (blocks, block, salt, wanted) in [
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
        assert_eq!(hex(&root), wanted, "{blocks} blocks of {block}");
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
    let data: Arc<dyn ReadAt> = Arc::new(MemStore::new(data));
    let tree = Arc::new(MemStore::new(bytes));
    let verified = Verified::open(data, tree, at, root).unwrap();
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
            let wanted = hit.contains(&block).then_some(io::ErrorKind::InvalidData);
            assert_eq!(kind, wanted, "byte {byte}, block {block}");
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
    let told = |bytes: &[u8], at| match open(bytes, at, root) {
        Ok(verified) => verified.scan(1, &|_| Ok(())).map(|d| format!("{d:?}")),
        Err(e) => Ok(format!("{:?}: {e}", e.kind())),
    };
    assert!(told(&bytes, 0).unwrap().contains("no hash tree"));
    assert!(told(&bytes, 1 << 40).unwrap().contains("no hash tree"));
    assert!(told(&bytes[..8200], at).unwrap().contains("no hash tree"));
    // A header of 2^50 blocks over little data, and a truncated tree over all data.
    let mut long = bytes.clone();
    long[at as usize + 78] = 4;
    assert!(told(&long, at).unwrap().contains("shorter"));
    let cut = told(&bytes[..bytes.len() - 4096], at).unwrap();
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
