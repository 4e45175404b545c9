//! Command lines of callers of dump.erofs: output as scripts parse it, compared with the original tool where installed.

use crate::common::{Place, code, skipped, stderr};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

/// Runs the program as dump.erofs.
fn dump(place: &Place, line: &str) -> Output {
    let link = place.path("dump.erofs");
    if !link.is_symlink() {
        symlink(env!("CARGO_BIN_EXE_tuff"), &link).unwrap();
    }
    let words = line.split_whitespace();
    Command::new(link)
        .args(words)
        .current_dir(&place.0)
        .output()
        .unwrap()
}

/// Returns the output of a run that must succeed without messages.
fn lines(place: &Place, line: &str) -> String {
    let out = dump(place, line);
    assert_eq!((code(&out), stderr(&out).as_str()), (0, ""), "{line}");
    String::from_utf8(out.stdout).unwrap()
}

fn text() -> String {
    (0..4000)
        .map(|i| format!("line {i} of some text\n"))
        .collect()
}

/// Creates a file that is mostly holes.
fn holes(place: &Place) {
    let holes = File::create(place.path("src/holes")).unwrap();
    holes.set_len(300_000).unwrap();
    holes.write_all_at(b"data", 8192).unwrap();
}

/// Creates a tree in `src` that depends on nothing of the host but the owner, which images omit.
fn tree(place: &Place) {
    let src = place.path("src");
    fs::create_dir_all(src.join("dir")).unwrap();
    fs::write(src.join("dir/text"), text()).unwrap();
    fs::write(src.join("small.txt"), "small\n").unwrap();
    fs::hard_link(src.join("small.txt"), src.join("again.so")).unwrap();
    fs::write(src.join("empty"), "").unwrap();
    symlink("dir/text", src.join("link")).unwrap();
    for (name, mode) in [
        ("", 0o755),
        ("dir", 0o755),
        ("dir/text", 0o6755),
        ("small.txt", 0o644),
    ] {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(src.join(name), mode).unwrap();
    }
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_600_000_000, 5);
    File::open(src.join("dir/text"))
        .unwrap()
        .set_modified(time)
        .unwrap();
}

/// Builds an image `i` of the tree with these options.
fn image(place: &Place, options: &str) {
    let uuid = "-U11111111-2222-3333-4444-555555555555 --quiet --force-uid=7 --force-gid=8";
    let line = format!("mkfs.erofs {uuid} {options} i src");
    let out = place.run(&line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(code(&out), 0, "{options}: {}", stderr(&out));
}

/// Returns the inode number of a path.
fn nid(place: &Place, path: &str) -> u64 {
    place.json(&["stat", "--json", "i", path])[0]["nid"]
        .as_u64()
        .unwrap()
}

#[test]
fn the_superblock_is_shown_field_by_field() {
    let place = Place::new("dump-superblock");
    tree(&place);
    image(&place, "-T951782400 -b1024");
    let root = nid(&place, "/");
    let blocks = fs::metadata(place.path("i")).unwrap().len() / 1024;
    // Position in the superblock.
    let raw = fs::read(place.path("i")).unwrap();
    let word = |at: usize| u32::from_le_bytes(raw[at..at + 4].try_into().unwrap());
    let (meta, xattrs) = (word(1024 + 0x28), word(1024 + 0x2c));
    let expected = format!(
        "Filesystem magic number:                      0xE0F5E1E2
Filesystem blocksize:                         1024
Filesystem blocks:                            {blocks}
Filesystem inode metadata start block:        {meta}
Filesystem shared xattr metadata start block: {xattrs}
Filesystem root nid:                          {root}
Filesystem lz4_max_distance:                  0
Filesystem sb_size:                           128
Filesystem inode count:                       6
Filesystem created:                           Tue Feb 29 00:00:00 2000
Filesystem compatible features:               sb_csum mtime xattr_filter\x20
Filesystem incompatible features:            \x20
Filesystem UUID:                              11111111-2222-3333-4444-555555555555
Required upstream Linux kernel version:       6.4
"
    );
    for line in ["i", "-s i", "i -s"] {
        assert_eq!(lines(&place, line), expected, "{line}");
    }
    assert_eq!(place.text(&["dump.erofs", "i"]), expected);
    let udev = "ID_FS_UUID=11111111-2222-3333-4444-555555555555
ID_FS_UUID_ENC=11111111-2222-3333-4444-555555555555
ID_FS_TYPE=erofs
ID_FS_USAGE=filesystem
";
    assert_eq!(lines(&place, "--blkid-udev i"), udev);
}

#[test]
fn features_and_algorithms_have_the_names_of_that_tool() {
    let place = Place::new("dump-features");
    tree(&place);
    for (options, expected) in [
        ("-zlz4", "lz4_0padding \nlz4_max_distance 65535\nkernel 5.4"),
        (
            "-zzstd:lz4 -C65536 -Efragments,dedupe",
            "lz4_0padding compr_cfgs big_pcluster fragments dedupe \ncompr_algs zstd\nkernel 6.10",
        ),
        (
            "-zdeflate -m4096",
            "lz4_0padding compr_cfgs big_pcluster 48bit metabox \ncompr_algs deflate\nkernel 6.17",
        ),
        (
            "--chunksize=4096 --blobdev=blob",
            "chunked_file device_table \nlz4_max_distance 0\nkernel 5.16",
        ),
    ] {
        image(&place, options);
        let shown = lines(&place, "i");
        let value = |name: &str| {
            let line = shown.lines().find(|l| l.split(':').next() == Some(name));
            line.map(|l| l[46..].to_owned())
        };
        let mut found = value("Filesystem incompatible features").unwrap();
        for name in ["compr_algs", "lz4_max_distance"] {
            if let Some(value) = value(&format!("Filesystem {name}")) {
                found += &format!("\n{name} {value}");
            }
        }
        let kernel = value("Required upstream Linux kernel version").unwrap();
        assert_eq!(format!("{found}\nkernel {kernel}"), expected, "{options}");
        let root = value("Filesystem root nid").unwrap();
        match options.contains("-m") {
            true => assert!(root.parse::<u64>().unwrap() >= 1 << 63, "{root}"),
            false => assert_eq!(root, nid(&place, "/").to_string()),
        }
        // Sum over all devices.
        let len = |name: &str| fs::metadata(place.path(name)).map_or(0, |m| m.len());
        let blocks = (len("i") + len("blob")) / 4096;
        assert_eq!(
            value("Filesystem blocks"),
            Some(blocks.to_string()),
            "{options}"
        );
    }
}

#[test]
fn files_are_counted_by_name_size_and_extension() {
    let place = Place::new("dump-statistics");
    tree(&place);
    image(&place, "");
    let shown = lines(&place, "-S i");
    let bytes = text().len() as u64 + 2 * 6;
    let head = format!(
        "Filesystem total file count:\t\t7
Filesystem unknown type count:\t\t0
Filesystem regular file count:\t\t4
Filesystem directory count:\t\t2
Filesystem char dev count:\t\t0
Filesystem block dev count:\t\t0
Filesystem FIFO file count:\t\t0
Filesystem SOCK file count:\t\t0
Filesystem symlink file count:\t\t1
Filesystem compressed files:            0
Filesystem uncompressed files:          7
Filesystem total original file size:    {bytes} Bytes
"
    );
    assert!(shown.starts_with(&head), "{shown}");
    let bar = |n: usize| format!("|{:<50}|", "#".repeat(n));
    for expected in [
        format!(
            ">=(KB) .. <(KB)        count            ratio |{:<50}|",
            "distribution"
        ),
        format!("     0 .. 1     \t3              75.00% {}", bar(37)),
        format!("    64 .. 128   \t1              25.00% {}", bar(12)),
        format!(" 32768 ..       \t0               0.00% {}", bar(0)),
        format!(
            "type                   count            ratio |{:<50}|",
            "distribution"
        ),
        format!(".txt             \t1              25.00% {}", bar(12)),
        format!(".so              \t1              25.00% {}", bar(12)),
        format!("others           \t2              50.00% {}", bar(25)),
    ] {
        assert!(
            shown.contains(&format!("{expected}\n")),
            "{expected}\n{shown}"
        );
    }
    assert_eq!(shown.lines().count(), 67);
    // An empty tree has shares of 100 percent.
    fs::remove_dir_all(place.path("src")).unwrap();
    fs::create_dir(place.path("src")).unwrap();
    image(&place, "");
    let shown = lines(&place, "-S i");
    assert!(
        shown.contains("Filesystem compress rate:               100.00%\n"),
        "{shown}"
    );
}

#[test]
fn an_inode_is_shown_with_its_extents() {
    let place = Place::new("dump-inode");
    tree(&place);
    image(&place, "-Enoinline_data");
    let (root, dir, file) = (
        nid(&place, "/"),
        nid(&place, "/dir"),
        nid(&place, "/dir/text"),
    );
    let size = text().len();
    let head = format!(
        "Path : /dir/text
Size: {size}  On-disk size: {size}  regular file
NID: {file}   Links: 1   Layout: 0   Compression ratio: 100.00%
Inode size: 64   Xattr size: 0
Uid: 7   Gid: 8  Access: 6755/rwsr-sr-x
Timestamp: 2020-09-13 12:26:40.000000005
"
    );
    for line in [
        "--path=/dir/text i",
        "i --path dir//text",
        &format!("--nid={file:#x} i"),
    ] {
        assert_eq!(lines(&place, line), head, "{line}");
    }
    let listing = lines(&place, "--ls --path=/dir i");
    let expected = format!(
        "\n       NID TYPE  FILENAME\n{dir:>10}    2  .\n{root:>10}    2  ..\n{file:>10}    1  text\n"
    );
    assert!(listing.ends_with(&expected), "{listing}");
    assert_eq!(
        lines(&place, &format!("--nid={root} i")).lines().next(),
        Some("Path : /")
    );
    // Rounded up to whole blocks.
    let extent = &place.extents("i", "dir/text")[0];
    let pos = extent["physical"].as_u64().unwrap();
    let whole = size.next_multiple_of(4096) as u64;
    let end = pos + whole;
    let expected = format!(
        "{head}
 Ext:   logical offset   |  length :     physical offset    |  length
   0:        0..{whole:>8} | {whole:>7} : {pos:>10}..{end:>10} | {whole:>7}
/dir/text: 1 extents found
"
    );
    assert_eq!(lines(&place, "-e --path=/dir/text i"), expected);
}

/// Regression of dump.erofs 1.9.3: it shows holes as data at block 2^32-1, and counts them as stored.
#[test]
fn holes_have_no_address_and_no_size() {
    let place = Place::new("dump-holes");
    tree(&place);
    holes(&place);
    image(&place, "--chunksize=4096");
    let shown = lines(&place, "-e --path=/holes i");
    assert!(
        shown.contains("Size: 300000  On-disk size: 4096  regular file\n"),
        "{shown}"
    );
    assert!(shown.contains("Compression ratio: 1.37%\n"), "{shown}");
    for expected in [
        "   0:        0..    4096 |    4096 :          0..         0 |       0\n",
        "  73:   299008..  303104 |    4096 :          0..         0 |       0\n",
        "/holes: 74 extents found\n",
    ] {
        assert!(shown.contains(expected), "{expected}{shown}");
    }
}

#[test]
fn files_and_link_targets_are_printed_unchanged() {
    let place = Place::new("dump-cat");
    tree(&place);
    image(
        &place,
        "-zlz4hc -C65536 -Efragments --chunksize=4096 --blobdev=blob",
    );
    for options in [
        "-zlz4hc -C65536 -Efragments",
        "--chunksize=4096 --blobdev=blob",
    ] {
        image(&place, options);
        let device = if options.contains("blob") {
            "--device=blob"
        } else {
            ""
        };
        let cat = |of: &str| lines(&place, &format!("--cat {device} {of} i"));
        assert_eq!(cat("--path=/dir/text"), text());
        assert_eq!(cat("--path=/empty"), "");
        assert_eq!(cat("--path=/link"), "dir/text");
        assert_eq!(
            cat(&format!("--nid={}", nid(&place, "/small.txt"))),
            "small\n"
        );
    }
    let shown = lines(&place, "-e --path=/dir/text i");
    assert!(
        shown.lines().any(|l| l.ends_with("  # device 1")),
        "{shown}"
    );
    let out = dump(&place, "--cat --path=/dir/text i");
    assert!(
        stderr(&out).contains("data is on device 1"),
        "{}",
        stderr(&out)
    );
    assert_eq!((code(&out), out.stdout.len()), (1, 0));
}

#[test]
fn an_inode_without_a_name_is_shown_without_one() {
    let place = Place::new("dump-nameless");
    tree(&place);
    image(&place, "-zlz4 -Eall-fragments");
    let packed = &place.json(&["info", "--json", "--brief", "i"])[0]["packed_nid"];
    let shown = lines(&place, &format!("-e --nid={packed} i"));
    assert!(shown.starts_with("Path : (not found)\nSize: "), "{shown}");
    assert!(shown.contains("\n(not found): "), "{shown}");
    // Fragments have no blocks of their own.
    let size = text().len();
    let expected =
        format!("   0:        0..{size:>8} | {size:>7} :          0..         0 |       0\n");
    let shown = lines(&place, "-e --path=/dir/text i");
    assert!(shown.contains(&expected), "{shown}");
}

#[test]
fn invalid_requests_give_one_line() {
    let place = Place::with_image("dump-wrong");
    fs::write(
        place.path("padded"),
        [vec![0; 4096], fs::read(place.path("i")).unwrap()].concat(),
    )
    .unwrap();
    for offset in ["4096", "4K", "0x1000", "010000"] {
        let line = format!("--offset={offset} padded");
        assert_eq!(lines(&place, &line), lines(&place, "i"), "{line}");
    }
    for (line, says) in [
        ("", "IMAGE is missing"),
        ("i i", "i: one image at a time"),
        ("missing", "missing: cannot open"),
        ("padded", "padded: not an EROFS image"),
        ("--bogus i", "--bogus is not a known option"),
        ("--nid=x i", "--nid: 'x' is not a size"),
        ("--offset=0x i", "--offset: '0x' is not a number"),
        ("-e i", "-e: name a file"),
        ("--ls i", "--ls: name a file"),
        ("--cat i", "--cat: name a file"),
        ("--cat --ls --path=/dir i", "--cat: not with"),
        (
            "--cat --path=/dir i",
            "is a directory, expected a file or a symlink",
        ),
        // dump.erofs 1.9.3 prints this and exits with 0.
        ("--path=/missing i", "\"missing\" does not exist"),
        ("--ls --path=/missing i", "\"missing\" does not exist"),
        ("--nid=2 i", "nid 2"),
        ("--nid=0xffffffffffff i", "nid 281474976710655"),
        ("--device=i i", "0 extra devices, 1 were given"),
    ] {
        let out = dump(&place, line);
        let message = stderr(&out);
        assert_eq!(
            (code(&out), message.lines().count()),
            (1, 1),
            "{line}: {message}"
        );
        assert!(
            message.starts_with("dump.erofs: ") && message.contains(says),
            "{line}: {message}"
        );
        assert!(out.stdout.is_empty(), "{line}");
    }
}

#[test]
fn the_readable_part_of_a_damaged_image_is_shown() {
    let place = Place::with_image("dump-damaged");
    place.damage("bad", 1024 + 48, |b| b ^ 1);
    let out = dump(&place, "bad");
    assert_eq!(code(&out), 1);
    assert!(stderr(&out).contains("checksum"), "{}", stderr(&out));
    assert!(out.stdout.ends_with(b"\n") && out.stdout.starts_with(b"Filesystem magic number:"));
    // An inode with an invalid mode.
    let at = place.json(&["stat", "--json", "i", "dir"])[0]["position"]
        .as_u64()
        .unwrap();
    place.damage("bad", at as usize + 5, |_| 0xF0);
    let out = dump(&place, "-S bad");
    let shown = String::from_utf8(out.stdout.clone()).unwrap();
    assert_eq!(
        (code(&out), stderr(&out).lines().count()),
        (1, 1),
        "{}",
        stderr(&out)
    );
    assert!(stderr(&out).contains("/dir"), "{}", stderr(&out));
    assert_eq!(shown.lines().count(), 67, "{shown}");
    // The first error is not hidden by the last one.
    place.damage("bad", 1024 + 48, |b| b ^ 1);
    let message = stderr(&dump(&place, "--path=/missing bad"));
    assert!(
        message.contains("checksum") && message.contains("missing"),
        "{message}"
    );
    // No damaged metadata byte may cause worse than an error.
    let image = fs::read(place.path("i")).unwrap();
    for i in 0..60 {
        let at = 1024 + (i * 97) % (image.len().min(8192) - 1024);
        place.damage("bad", at, |b| b ^ 0x81);
        for line in ["-S bad", "-e --ls --path=/dir bad", "--nid=40 -e bad"] {
            let out = dump(&place, line);
            let code = code(&out);
            assert!(
                code == 0 || code == 1,
                "byte {at}: {line}: {code}: {}",
                stderr(&out)
            );
            assert_eq!(code == 0, stderr(&out).is_empty(), "byte {at}: {line}");
        }
    }
}

/// Regression: a loop over the chunks of a device whose size claims 2^49 of them.
#[test]
fn a_device_in_chunks_has_none() {
    let place = Place::new("dump-chunks");
    tree(&place);
    holes(&place);
    image(&place, "--chunksize=4096 -Eforce-inode-extended");
    let holes = &place.json(&["stat", "--json", "i", "holes"])[0];
    let at = holes["position"].as_u64().unwrap() as usize;
    let mut bytes = fs::read(place.path("i")).unwrap();
    // The type and the size.
    bytes[at + 5] = 0x20;
    bytes[at + 8..at + 16].copy_from_slice(&(1u64 << 61).to_le_bytes());
    fs::write(place.path("i"), bytes).unwrap();
    let out = dump(&place, "-e --path=/holes i");
    let shown = String::from_utf8(out.stdout.clone()).unwrap();
    assert!(shown.contains("On-disk size: 0  char dev\n"), "{shown}");
    assert!(shown.ends_with("/holes: 0 extents found\n"), "{shown}");
}

#[test]
fn feature_probes_of_callers_succeed() {
    let place = Place::new("dump-probes");
    let help = lines(&place, "--help");
    for option in [
        "-S",
        "-s",
        "-e",
        "--ls",
        "--cat",
        "--nid=#",
        "--path=X",
        "--device=X",
        "Tuff",
    ] {
        assert!(help.contains(option), "{option}");
    }
    assert_eq!(lines(&place, "-h"), help);
    let version = lines(&place, "-V");
    assert!(
        version.starts_with("dump.erofs (erofs-utils) 1.9.3\nthis is Tuff "),
        "{version}"
    );
    assert_eq!(lines(&place, "--version"), version);
}

/// Compares with the installed dump.erofs of any version: lines that both know must be equal.
#[test]
fn the_real_tool_shows_the_same() {
    let place = Place::new("dump-real");
    tree(&place);
    let real = |line: &str| {
        let words = line.split_whitespace();
        Command::new("/usr/bin/dump.erofs")
            .args(words)
            .current_dir(&place.0)
            .output()
    };
    if !Path::new("/usr/bin/dump.erofs").exists() {
        return skipped("what dump.erofs itself shows: it is not installed");
    }
    let images = [
        "",
        "-Enoinline_data",
        "-zlz4",
        "-zlz4hc -C65536 -Eztailpacking",
        "-zlz4 -Efragments",
        "-zlz4 -Elegacy-compress",
        "-zzstd -C65536",
        "-zlzma",
        "--chunksize=4096",
    ];
    let mut seen = 0;
    for options in images {
        image(&place, options);
        for line in [
            "-s i",
            "-S i",
            "--path=/ --ls -e i",
            "--path=/dir --ls -e i",
            "--path=/dir/text -e i",
            "--path=/link -e i",
        ] {
            let theirs = real(line).unwrap();
            // An old version rejects some features on standard error, and exits with 0.
            if !theirs.stderr.is_empty() {
                continue;
            }
            let theirs = String::from_utf8(theirs.stdout).unwrap();
            for ours in lines(&place, line).lines().filter(|l| comparable(l)) {
                seen += 1;
                assert!(
                    theirs.lines().any(|l| l == ours),
                    "{options}: {line}: {ours}\n{theirs}"
                );
            }
        }
    }
    assert!(seen > 300, "{seen} lines were compared");
}

/// Returns false for lines whose wording or value differs between versions.
fn comparable(line: &str) -> bool {
    let new = [
        "Filesystem blocksize:",
        "Filesystem compatible",
        "Filesystem incompatible",
        "Filesystem lz4_max",
        "Filesystem compr_algs",
        "Filesystem sb_size",
        "Required",
        "Path :",
        "Inode size:",
        "Uid:",
    ];
    !new.iter().any(|start| line.starts_with(start))
}
