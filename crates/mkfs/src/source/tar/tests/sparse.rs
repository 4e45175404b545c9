//! Sparse files in each of the four encodings.

use super::archive::{Archive, GNU, Head, sparse_entry};
use super::{ReadEntry, fails, one, read};
use crate::source::Kind;
use crate::source::error::SourceErrorKind;

const HOLES: [(u64, u64); 2] = [(512, 600), (1_000_000, 3)];
const HOLES_SIZE: u64 = 2_000_000;

fn holes_data() -> Vec<u8> {
    [vec![b'a'; 600], b"end".to_vec()].concat()
}

/// Asserts the content that all encodings describe.
fn assert_holes(got: &ReadEntry) {
    assert_eq!(got.path, "real/name");
    assert_eq!(got.kind, Kind::File { size: HOLES_SIZE });
    assert_eq!(got.runs.as_deref(), Some(&HOLES[..]));
    assert_eq!(got.bytes.len() as u64, HOLES_SIZE);
    assert_eq!(got.bytes[511..513], [0, b'a']);
    assert_eq!(got.bytes[1111..1113], [b'a', 0]);
    assert_eq!(&got.bytes[999_999..1_000_004], b"\0end\0");
}

#[test]
fn gnu_sparse_0_0_lists_runs_in_repeated_records() {
    let tar = Archive::new()
        .pax(&[
            ("GNU.sparse.size", b"2000000"),
            ("GNU.sparse.numblocks", b"2"),
            ("GNU.sparse.offset", b"512"),
            ("GNU.sparse.numbytes", b"600"),
            ("GNU.sparse.offset", b"1000000"),
            ("GNU.sparse.numbytes", b"3"),
        ])
        .file("real/name", &holes_data())
        .file("next", b"n")
        .end();
    let got = read(&tar);
    assert_holes(&got[0]);
    assert_eq!(got[1].bytes, b"n");
}

#[test]
fn gnu_sparse_0_1_lists_runs_in_one_record() {
    let tar = Archive::new()
        .pax(&[
            ("GNU.sparse.size", b"2000000"),
            ("GNU.sparse.numblocks", b"2"),
            ("GNU.sparse.name", b"real/name"),
            ("GNU.sparse.map", b"512,600,1000000,3"),
        ])
        .file("real/GNUSparseFile.1/name", &holes_data())
        .file("next", b"n")
        .end();
    let got = read(&tar);
    assert_holes(&got[0]);
    assert_eq!(got[1].bytes, b"n");
}

#[test]
fn gnu_sparse_1_0_lists_runs_in_front_of_the_data() {
    let mut data = b"2\n512\n600\n1000000\n3\n".to_vec();
    data.resize(512, 0);
    data.extend(holes_data());
    let tar = Archive::new()
        .pax(&[
            ("GNU.sparse.major", b"1"),
            ("GNU.sparse.minor", b"0"),
            ("GNU.sparse.name", b"real/name"),
            ("GNU.sparse.realsize", b"2000000"),
        ])
        .file("real/GNUSparseFile.1/name", &data)
        .file("next", b"n")
        .end();
    let got = read(&tar);
    assert_holes(&got[0]);
    assert_eq!(got[1].bytes, b"n");
}

#[test]
fn a_sparse_1_0_map_may_take_many_blocks() {
    let runs: Vec<(u64, u64)> = (0..1000).map(|i| (i * 4096, 1)).collect();
    let mut data = format!("{}\n", runs.len());
    for (offset, len) in &runs {
        data += &format!("{offset}\n{len}\n");
    }
    let mut data = data.into_bytes();
    data.resize(data.len().next_multiple_of(512), 0);
    data.extend([b'x'; 1000]);
    let tar = Archive::new()
        .pax(&[
            ("GNU.sparse.major", b"1"),
            ("GNU.sparse.minor", b"0"),
            ("GNU.sparse.realsize", b"4096000"),
        ])
        .file("name", &data)
        .end();
    assert_eq!(one(&tar).runs, Some(runs));
}

fn old_sparse(runs: &[(u64, u64)], stored: u64, real_size: u64) -> Archive {
    let entries: Vec<_> = runs.iter().map(|&(o, l)| sparse_entry(o, l)).collect();
    let (first, rest) = entries.split_at(entries.len().min(4));
    let head = Head::new(b'S', "real/name")
        .magic(GNU)
        .size(stored)
        .put(386..482, &first.concat())
        .put(482..483, &[u8::from(!rest.is_empty())])
        .put(483..495, format!("{real_size:011o}\0").as_bytes());
    let mut archive = Archive::new().head(head);
    let mut blocks = rest.chunks(21).peekable();
    while let Some(entries) = blocks.next() {
        let mut block = [0; 512];
        let entries = entries.concat();
        block[..entries.len()].copy_from_slice(&entries);
        block[504] = u8::from(blocks.peek().is_some());
        archive = archive.raw(&block);
    }
    archive
}

#[test]
fn old_gnu_sparse_headers_list_runs() {
    let tar = old_sparse(&[HOLES[0], HOLES[1], (HOLES_SIZE, 0)], 603, HOLES_SIZE)
        .raw(&holes_data())
        .pad()
        .file("next", b"n")
        .end();
    let got = read(&tar);
    assert_holes(&got[0]);
    assert_eq!(got[1].bytes, b"n");
}

#[test]
fn old_gnu_sparse_headers_extend_over_blocks() {
    for count in [4, 5, 25, 26, 100] {
        let runs: Vec<(u64, u64)> = (0..count).map(|i| (i * 1024, 2)).collect();
        let tar = old_sparse(&runs, count * 2, 1 << 20)
            .raw(&vec![b'x'; count as usize * 2])
            .pad()
            .file("next", b"n")
            .end();
        let got = read(&tar);
        assert_eq!(got[0].runs, Some(runs), "{count}");
        assert_eq!(got[1].bytes, b"n");
    }
}

#[test]
fn a_file_that_is_one_hole_has_no_runs() {
    let listed = Archive::new()
        .pax(&[
            ("GNU.sparse.size", b"5000000"),
            ("GNU.sparse.numblocks", b"0"),
            ("GNU.sparse.map", b""),
        ])
        .file("real/name", b"")
        .end();
    let old = old_sparse(&[(5_000_000, 0)], 0, 5_000_000).end();
    for tar in [listed, old] {
        let got = one(&tar);
        assert_eq!(got.kind, Kind::File { size: 5_000_000 });
        assert_eq!(got.runs, Some(vec![]));
        assert_eq!(got.bytes, vec![0; 5_000_000]);
    }
}

#[test]
fn inconsistent_sparse_maps_are_rejected() {
    let listed = |records: &[(&str, &[u8])]| {
        let tar = Archive::new().pax(records).file("f", b"123").end();
        fails(&tar).to_string()
    };
    let size = ("GNU.sparse.size", &b"100"[..]);
    assert!(listed(&[("GNU.sparse.map", b"0,3")]).contains("without GNU.sparse.realsize"));
    assert!(listed(&[size, ("GNU.sparse.map", b"0,4")]).contains("describes 4 bytes, but 3"));
    assert!(listed(&[size, ("GNU.sparse.map", b"99,3")]).contains("reach beyond"));
    assert!(listed(&[size, ("GNU.sparse.map", b"0,2,1,1")]).contains("expected at least 2"));
    assert!(listed(&[size, ("GNU.sparse.map", b"0")]).contains("ends after an offset"));
    assert!(listed(&[size, ("GNU.sparse.map", b"0,-3")]).contains("expected a decimal number"));
    assert!(
        listed(&[
            size,
            ("GNU.sparse.map", b"0,3"),
            ("GNU.sparse.numblocks", b"2")
        ])
        .contains("numblocks is 2")
    );
    assert!(listed(&[size, ("GNU.sparse.numbytes", b"3")]).contains("offset before"));
    assert!(
        listed(&[size, ("GNU.sparse.major", b"2")]).contains("GNU sparse format 2.0 is not known")
    );
    let in_data = [
        ("GNU.sparse.major", &b"1"[..]),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.realsize", b"100"),
    ];
    assert!(listed(&in_data).contains("does not end within the stored bytes"));

    let dir = Archive::new()
        .pax(&[size, ("GNU.sparse.map", b"0,0")])
        .head(Head::new(b'5', "d"))
        .end();
    assert!(fails(&dir).to_string().contains("not a regular file"));

    let huge = format!("{}\n", u32::MAX);
    let mut data = huge.into_bytes();
    data.resize(512, b'0');
    let tar = Archive::new().pax(&in_data).file("f", &data).end();
    assert_eq!(fails(&tar).kind(), SourceErrorKind::Limit);
}

#[test]
fn empty_entries_before_a_sparse_extension_are_rejected() {
    let head = Head::new(b'S', "f")
        .magic(GNU)
        .put(386..482, &sparse_entry(0, 0)[..12])
        .put(482..483, &[1]);
    let tar = Archive::new().head(head).raw(&[0; 512]).end();
    assert!(fails(&tar).to_string().contains("empty entry before"));
}
