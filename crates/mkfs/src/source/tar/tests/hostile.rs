//! Damaged and malicious archives: an error or an end, never a panic, never a hang.

use super::archive::{Archive, GNU, Head, seal, sparse_entry};
use super::{ReadEntry, by_position, by_stream, read};

/// Small archive that uses every feature.
fn rich() -> Archive {
    let mut map = b"2\n0\n5\n8192\n3\n".to_vec();
    map.resize(512, 0);
    map.extend(b"dataend!");
    let old_sparse = Head::new(b'S', "old")
        .magic(GNU)
        .size(10)
        .put(
            386..482,
            &[0u64, 1, 2, 3].map(|i| sparse_entry(i * 4096, 2)).concat(),
        )
        .put(482..483, &[1])
        .put(483..495, b"00000200000\0");
    let mut extension = [0; 512];
    extension[..24].copy_from_slice(&sparse_entry(40_000, 2));
    Archive::new()
        .global(&[("comment", b"c"), ("gid", b"12")])
        .head(Head::new(b'5', "./").mode(0o755))
        .pax(&[
            ("path", b"caf\xc3\xa9"),
            ("mtime", b"-1.25"),
            ("SCHILY.xattr.user.a", b"\0\n="),
            ("LIBARCHIVE.xattr.user.b", b"AAEC"),
        ])
        .file("cafe", b"hello")
        .long(b'K', b"a/long/target")
        .long(b'L', b"a/long/name")
        .head(Head::new(b'2', "cut").magic(GNU))
        .head(Head::new(b'1', "hard").link("cafe").size(5))
        .member(Head::new(b'1', "hard2").link("cafe"), b"hello")
        .head(Head::new(b'3', "null").device(1, 3))
        .head(old_sparse)
        .raw(&extension)
        .raw(b"0123456789")
        .pad()
        .pax(&[
            ("GNU.sparse.major", b"1"),
            ("GNU.sparse.minor", b"0"),
            ("GNU.sparse.name", b"new"),
            ("GNU.sparse.realsize", b"9000"),
        ])
        .file("GNUSparseFile.0/new", &map)
        .pax(&[
            ("GNU.sparse.size", b"100"),
            ("GNU.sparse.map", b"10,2,50,1"),
        ])
        .file("listed", b"abc")
        .head(Head::new(b'6', "fifo"))
}

/// Reads both ways, which must end with the same result.
fn survive(tar: &[u8]) -> (Vec<ReadEntry>, bool) {
    let (stream, stream_error) = by_stream(tar);
    let (position, position_error) = by_position(tar);
    assert_eq!(stream_error.is_some(), position_error.is_some());
    // Truncation of unread data, such as that of a hard link, is detected one member later in a
    // stream.
    let late = stream.len() - position.len();
    assert!(late == 0 || late == 1 && stream_error.is_some());
    assert_eq!(stream[..position.len()], position);
    (stream, stream_error.is_some())
}

#[test]
fn every_truncation_gives_a_prefix_of_the_entries() {
    let tar = rich().end();
    let whole = read(&tar);
    assert_eq!(whole.len(), 10);
    for len in 0..tar.len() {
        let (got, failed) = survive(&tar[..len]);
        assert_eq!(got, whole[..got.len()], "{len} bytes");
        assert!(failed || len < tar.len() || got == whole);
    }
}

#[test]
fn every_flipped_bit_ends_in_entries_or_an_error() {
    let archive = rich();
    let headers = archive.headers.clone();
    let mut tar = archive.end();
    let whole = read(&tar);
    for byte in 0..tar.len() {
        let in_header = headers
            .iter()
            .any(|&header| (header..header + 512).contains(&byte));
        for bit in 0..8 {
            tar[byte] ^= 1 << bit;
            let (got, failed) = survive(&tar);
            assert!(
                failed || !in_header || got == whole,
                "bit {bit} of byte {byte}: a header's checksum lets no change through"
            );
            tar[byte] ^= 1 << bit;
        }
    }
}

/// Next number of xorshift64*, which is reproducible.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

#[test]
fn random_changes_with_valid_checksums_end_in_entries_or_an_error() {
    let archive = rich();
    let headers = archive.headers.clone();
    let original = archive.end();
    let interesting = *b"\0\n =,0179-\xff\x80S1xgLK/.";
    for seed in 1..=30_000u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut tar = original.clone();
        for _ in 0..=random.below(6) {
            // Most bytes are padding, so half of the changes go to header fields.
            let at = match random.below(2) {
                0 => headers[random.below(headers.len())] + random.below(500),
                _ => random.below(tar.len()),
            };
            tar[at] = match random.below(2) {
                0 => interesting[random.below(interesting.len())],
                _ => random.next() as u8,
            };
        }
        for &header in &headers {
            let (blocks, _) = tar[header..].as_chunks_mut::<512>();
            seal(&mut blocks[0]);
        }
        if random.below(4) == 0 {
            let len = random.below(tar.len());
            tar.truncate(len);
        }
        survive(&tar);
    }
}
