//! Parity: equal to that of veritysetup, and able to repair damage.

mod common;

use common::{content, one, open, open_store};
use sha2::{Digest, Sha256};
use std::cell::RefCell;
use std::io;
use std::sync::{Arc, RwLock};
use tuff_store::{MemStore, Output, ReadAt, Target};
use tuff_verity::{Header, RepairedBlock, Root, make, tree_end};

/// Image with tree and parity: bytes, positions of tree and parity, root hash.
struct ImageWithParity {
    bytes: Vec<u8>,
    at: u64,
    parity: usize,
    root: Root,
}

fn image_with_parity(len: usize, block: u32, roots: u32, threads: usize) -> ImageWithParity {
    let data = content(len);
    let header = Header::new(len as u64, block, Vec::new(), [1; 16]).unwrap();
    let at = (len as u64).div_ceil(4096) * 4096;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let output = Output::create(&Target::Path(path.clone())).unwrap();
    output.write_at(&data, 0).unwrap();
    let store = MemStore::new(data);
    let made = make(&store, &header, Some(roots), &output, at, threads, &|_| {
        Ok(())
    })
    .unwrap();
    assert_eq!(made.end, tree_end(&header, Some(roots), at).unwrap());
    output.finish(made.end, false).unwrap();
    ImageWithParity {
        bytes: std::fs::read(path).unwrap(),
        at,
        parity: tree_end(&header, None, at).unwrap() as usize,
        root: made.root,
    }
}

#[test]
fn parity_equals_that_of_veritysetup() {
    // veritysetup 2.6.1: format --fec-device=F --fec-roots=N --salt=- --data-block-size=N --hash-block-size=N
    for (blocks, block, roots, expected) in [
        (
            300,
            4096,
            2,
            "bfaba4fe29e8bf57a8172d136cd56211eaa376243acac12327c21a92e4e00100",
        ),
        (
            1,
            4096,
            2,
            "eb618bf4661222cd04254ce3289c8e5c69b03e7a3fb88da999f0d91ca44280d2",
        ),
        (
            5,
            4096,
            9,
            "d06a45d54f3de58e6d57d19ca8070e2b2be556a05b60152d0cf8702091baed59",
        ),
        (
            700,
            512,
            24,
            "9eaecdf97b590ad804fc75ccc78087c69279d80b4606e3674f8028eb38ed3874",
        ),
        (
            2000,
            512,
            7,
            "8fb788aec7f524dfbcea22cf07efd76138a4274fff88c2b17a0c4a771e75f89e",
        ),
    ] {
        let made = image_with_parity(blocks * block as usize, block, roots, 1 + blocks % 3);
        let digest = Sha256::digest(&made.bytes[made.parity..]);
        let digest: String = digest.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            digest, expected,
            "{blocks} blocks of {block}, {roots} roots"
        );
        assert_eq!(
            open(&made.bytes, made.at, made.root).unwrap().roots(),
            Some(roots)
        );
    }
}

/// Store that can be repaired in place.
#[derive(Clone)]
struct Shared(Arc<RwLock<Vec<u8>>>);

impl ReadAt for Shared {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        MemStore::new(self.0.read().unwrap().clone()).read_at(buf, offset)
    }

    fn size(&self) -> u64 {
        self.0.read().unwrap().len() as u64
    }
}

#[test]
#[allow(clippy::single_range_in_vec_init)] // ranges of data blocks, some lists with one
fn damaged_blocks_are_corrected_by_reads_and_repair() {
    const BLOCK: usize = 512;
    let made = image_with_parity(600 * BLOCK - 100, BLOCK as u32, 3, 2);
    let good = &made.bytes;
    let tree = made.at as usize + BLOCK;
    let levels = 1 + 3 + 38; // ceil(600 / 16) = 38
    let rounds = (600usize + levels).div_ceil(252);
    let top_round = 600 % rounds;
    for (n, damage) in [
        // A byte; the longest correctable burst; one block of the tree, the top, and one of each kind.
        vec![5 * BLOCK..5 * BLOCK + 1],
        vec![100 * BLOCK..(100 + 3 * rounds) * BLOCK],
        vec![made.parity - 1..made.parity],
        vec![tree..tree + BLOCK],
        vec![
            77..78,
            tree + BLOCK + 3..tree + BLOCK + 4,
            made.parity - 700..made.parity - 650,
        ],
        vec![599 * BLOCK..600 * BLOCK - 100],
        // The top, and a block of the same round that only the top verifies.
        vec![tree + 7..tree + 8, top_round * BLOCK..top_round * BLOCK + 9],
    ]
    .into_iter()
    .enumerate()
    {
        let mut bytes = good.clone();
        for range in &damage {
            for byte in &mut bytes[range.clone()] {
                *byte ^= 0xa5;
            }
        }
        let verified = open(&bytes, made.at, made.root).unwrap();
        assert!(!verified.scan(2, &|_| Ok(())).unwrap().is_none(), "{n}");
        let mut read = vec![0; 600 * BLOCK];
        verified.read_exact_at(&mut read, 0).unwrap();
        assert!(
            read[..600 * BLOCK - 100] == good[..600 * BLOCK - 100],
            "{n}"
        );
        assert!(verified.corrected_blocks() > 0, "{n}");

        let shared = Shared(Arc::new(RwLock::new(bytes)));
        let store: Arc<dyn ReadAt> = Arc::new(shared.clone());
        let verified = open_store(store, made.at, made.root).unwrap();
        let left = verified.repair(2, &|_| Ok(()), &mut |mended| {
            let (RepairedBlock::Data(at, bytes)
            | RepairedBlock::Tree(at, bytes)
            | RepairedBlock::Parity(at, bytes)) = mended;
            let at = at as usize;
            shared.0.write().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
            Ok(())
        });
        assert!(left.unwrap().is_none(), "{n}");
        assert!(*shared.0.read().unwrap() == *good, "{n}: all is as it was");
    }
}

#[test]
fn uncorrectable_damage_stays_an_error_and_other_rounds_are_repaired() {
    const BLOCK: usize = 512;
    let made = image_with_parity(600 * BLOCK, BLOCK as u32, 2, 1);
    let mut bytes = made.bytes.clone();
    let rounds = (600usize + 42).div_ceil(253);
    // Three blocks of one round and one of another.
    for block in [10, 10 + rounds, 10 + 7 * rounds, 11] {
        bytes[block * BLOCK] ^= 1;
    }
    let written = RefCell::new(Vec::new());
    let verified = open(&bytes, made.at, made.root).unwrap();
    // Writes are discarded. The repair must still end.
    let left = verified.repair(1, &|_| Ok(()), &mut |mended| {
        let RepairedBlock::Data(at, bytes) = mended else {
            panic!("the tree is sound");
        };
        written.borrow_mut().push((at as usize, bytes.to_vec()));
        Ok(())
    });
    assert_eq!(left.unwrap().data.len(), 3);
    let block = made.bytes[11 * BLOCK..12 * BLOCK].to_vec();
    assert_eq!(written.into_inner(), [(11 * BLOCK, block)]);
    let mut buf = [0; BLOCK];
    let e = verified
        .read_exact_at(&mut buf, 10 * BLOCK as u64)
        .unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::InvalidData);
    verified.read_exact_at(&mut buf, 11 * BLOCK as u64).unwrap();
    assert!(buf[..] == made.bytes[11 * BLOCK..12 * BLOCK]);
}

#[test]
fn damaged_parity_never_yields_wrong_data() {
    const BLOCK: usize = 4096;
    let made = image_with_parity(300 * BLOCK, BLOCK as u32, 2, 1);
    let mut bytes = made.bytes.clone();
    bytes[50 * BLOCK + 9] ^= 1;
    for (n, byte) in bytes[made.parity..].iter_mut().enumerate() {
        *byte ^= n as u8;
    }
    let verified = open(&bytes, made.at, made.root).unwrap();
    let mut buf = vec![0; BLOCK];
    assert!(verified.read_exact_at(&mut buf, 50 * BLOCK as u64).is_err());
    let left = verified.repair(1, &|_| Ok(()), &mut |mended| {
        // Only the parity of sound blocks can be computed.
        assert!(matches!(mended, RepairedBlock::Parity(..)));
        Ok(())
    });
    assert_eq!(
        left.unwrap().data,
        one(50 * BLOCK as u64..51 * BLOCK as u64)
    );
}

#[test]
fn damaged_parity_is_found_and_repaired() {
    const BLOCK: usize = 512;
    let made = image_with_parity(600 * BLOCK - 100, BLOCK as u32, 3, 2);
    let good = &made.bytes;
    let rounds = (600usize + 42).div_ceil(252);
    assert_eq!(rounds, 3);
    let parity = |block: usize| made.parity + block * BLOCK..made.parity + (block + 1) * BLOCK;
    for (n, damage) in [
        // Bytes of parity blocks, three for each round; then also of data, a tree block and the top of another
        // round.
        vec![parity(0).start + 5],
        vec![parity(2).start, parity(3).start, parity(8).end - 1],
        vec![parity(4).start, 3 * BLOCK],
        vec![parity(7).start, made.at as usize + BLOCK],
    ]
    .into_iter()
    .enumerate()
    {
        let mut bytes = good.clone();
        for at in &damage {
            bytes[*at] ^= 0x11;
        }
        let expected: Vec<u64> = damage
            .iter()
            .filter(|at| **at >= made.parity)
            .map(|at| (at / BLOCK * BLOCK) as u64)
            .collect();
        for threads in [1, 7] {
            let verified = open(&bytes, made.at, made.root).unwrap();
            let found = verified.scan(threads, &|_| Ok(())).unwrap();
            let starts = found
                .parity
                .iter()
                .flat_map(|r| r.clone().step_by(BLOCK))
                .collect::<Vec<u64>>();
            assert_eq!(starts, expected, "{n}");
            assert_eq!(
                found.is_content_sound(),
                expected.len() == damage.len(),
                "{n}"
            );
        }
        let shared = Shared(Arc::new(RwLock::new(bytes)));
        let store: Arc<dyn ReadAt> = Arc::new(shared.clone());
        let verified = open_store(store, made.at, made.root).unwrap();
        let left = verified.repair(2, &|_| Ok(()), &mut |mended| {
            let (RepairedBlock::Data(at, bytes)
            | RepairedBlock::Tree(at, bytes)
            | RepairedBlock::Parity(at, bytes)) = mended;
            let at = at as usize;
            shared.0.write().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
            Ok(())
        });
        assert!(left.unwrap().is_none(), "{n}");
        assert!(*shared.0.read().unwrap() == *good, "{n}: all is as it was");
    }
}

#[test]
fn unsupported_numbers_of_roots_are_rejected() {
    let header = Header::new(4096, 4096, Vec::new(), [0; 16]).unwrap();
    for roots in [0, 1, 25, 255, u32::MAX] {
        assert!(tree_end(&header, Some(roots), 4096).is_err(), "{roots}");
    }
    let made = image_with_parity(8192, 4096, 2, 1);
    // Without the last byte, parity is found only if the number of roots is given.
    let cut = &made.bytes[..made.bytes.len() - 1];
    assert_eq!(open(cut, made.at, made.root).unwrap().roots(), None);
    let message = open(cut, made.at, made.root).unwrap().with_parity(2);
    assert_eq!(message.unwrap().roots(), Some(2));
    assert!(
        open(cut, made.at, made.root)
            .unwrap()
            .with_parity(1)
            .is_err()
    );
}
