//! Damaged volumes: exit codes of check and repair; a second run finds nothing.

use crate::common::{Place, bad, good, json, tuff};
use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

fn flip(file: &Path, at: u64) {
    let mut file = fs::File::options()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    let mut byte = [0];
    file.seek(SeekFrom::Start(at)).unwrap();
    file.read_exact(&mut byte).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(&[byte[0] ^ 1]).unwrap();
}

/// Exit codes of a check, a repair, another check and another repair.
fn codes(dir: &Path, volume: &str) -> [Option<i32>; 4] {
    let verbs: [&[&str]; 4] = [&["-q"], &["--repair"], &["-q"], &["--repair"]];
    verbs.map(|args| {
        tuff(dir, &[&["check", volume], args].concat())
            .status
            .code()
    })
}

/// Regression: one flipped byte in `v/volume` made every verb fail with "is no volume in zone files".
#[test]
fn a_damaged_header_or_superblock_is_reported_and_repaired() {
    let place = Place::new("damage");
    let dir = &place.0;
    for volume in ["v", "f"] {
        good(dir, &["import", volume, "src"]);
    }
    let was = good(dir, &["export", "v", "-"]);
    let first = dir.join("v/zones/0000000000");
    let harm: [(&str, &dyn Fn()); 7] = [
        ("v", &|| flip(&dir.join("v/volume"), 7)),
        ("v", &|| flip(&dir.join("v/volume.copy"), 53)),
        ("v", &|| fs::remove_file(dir.join("v/volume")).unwrap()),
        ("v", &|| fs::write(dir.join("v/volume.copy"), "").unwrap()),
        ("v", &|| flip(&first, 100)),
        ("v", &|| flip(&first, 16 * 4096 + 100)),
        ("f", &|| flip(&dir.join("f"), 4096 + 100)),
    ];
    for (at, (volume, harm)) in harm.iter().enumerate() {
        harm();
        let stat = json(&good(dir, &["stat", volume, "--json"]));
        assert_eq!(stat["quota_bytes"], 64 << 20);
        let codes = codes(dir, volume);
        // The flipped seal may be of the older checkpoint, which no check looks at.
        let found = if at == 5 { codes[0] } else { Some(1) };
        assert_eq!(codes, [found, found, Some(0), Some(0)], "{at}");
    }
    assert!(good(dir, &["export", "v", "-"]) == was);
    // The zone file with both superblocks and both packs.
    fs::remove_file(&first).unwrap();
    let (code, message) = bad(dir, &["check", "v", "--repair"]);
    assert_eq!(
        (code, message.contains("--rebuild")),
        (3, true),
        "{message}"
    );
    assert_eq!(
        tuff(dir, &["check", "v", "--rebuild"]).status.code(),
        Some(1)
    );
    assert_eq!(codes(dir, "v"), [Some(0); 4]);
    assert!(good(dir, &["export", "v", "-"]) == was);
    for name in ["v/volume", "v/volume.copy"] {
        fs::write(dir.join(name), "x").unwrap();
    }
    let (code, message) = bad(dir, &["check", "v"]);
    assert_eq!(
        (code, message.contains("`volume.copy`")),
        (3, true),
        "{message}"
    );
}

/// Regression: repairs kept returning 1 for damage that only a snapshot used.
#[test]
fn damage_that_only_a_snapshot_has_is_reported_once() {
    let place = Place::new("snapshot-damage");
    let dir = &place.0;
    good(dir, &["import", "v", "src"]);
    good(dir, &["snapshot", "create", "v", "before"]);
    // The newest node 1 in the log of hot nodes is the root directory, as the snapshot has it.
    let nodes = dir.join("v/zones/0100000000");
    let bytes = fs::read(&nodes).unwrap();
    let is_root = |block: &[u8]| block[4056..4060] == 1u32.to_le_bytes();
    let root = bytes.chunks_exact(4096).rposition(is_root).unwrap() as u64;
    // After this the block belongs to the snapshot alone.
    good(dir, &["quota", "v", "--user", "7", "--space", "1M"]);
    flip(&nodes, root * 4096 + 100);
    let codes = codes(dir, "v");
    assert_eq!(codes, [Some(1), Some(1), Some(0), Some(0)]);
    let report = json(&good(dir, &["check", "v", "--json"]));
    assert_eq!(report["snapshots_lost_bytes"], 4096);
}
