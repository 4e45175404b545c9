//! Output of ls, cat, stat, info and dump.

use crate::common::{Place, code, skipped, stderr, text, tool};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

#[test]
fn ls_long_is_the_tree_line_by_line() {
    let place = Place::with_image("ls");
    let long = "n".repeat(200);
    let target = "t".repeat(300);
    let expected = format!(
        "\
drwxr-xr-x   5     0     0        384 2023-11-14T22:13:20.000000000Z /
brw-rw----   1     0     6     259, 7 2023-11-14T22:13:20.000000000Z blk
crw-rw-rw-   1     0     0  1, 300000 2023-11-14T22:13:20.000000000Z chr
drwxrwxrwt   2     0     0        102 2023-11-14T22:13:20.000000000Z dir
-rwsr-xr-x   2     0     0          6 2023-11-14T22:13:20.123456789Z dir/hello-again
-rw-r--r--   1 3000000 4000000          6 1969-12-31T23:59:58.500000000Z dir/new\\nline
-rw-r--r--   1     0     0          6 2023-11-14T22:13:20.000000000Z dir/odd\\xff
-rw-r--r--   1     0     0     468890 2023-11-14T22:13:20.000000000Z dir/text
-rw-r--r--   1     0     0          0 2023-11-14T22:13:20.000000000Z empty
prw-------   1     0     0          0 2023-11-14T22:13:20.000000000Z fifo
-rwsr-xr-x   2     0     0          6 2023-11-14T22:13:20.123456789Z hello
lrwxrwxrwx   1     0     0          8 2023-11-14T22:13:20.000000000Z link -> dir/text
drwxr-xr-x   2     0     0         43 2023-11-14T22:13:20.000000000Z many
-rw-r--r--   1     0     0     468890 2023-11-14T22:13:20.000000000Z many/copy
drwxr-xr-x   2     0     0        239 2023-11-14T22:13:20.000000000Z {long}
lrwxrwxrwx   1     0     0        300 2023-11-14T22:13:20.000000000Z {long}/{long} -> {target}
-rw-r--r--   1     0     0    5242880 2020-09-13T12:26:40.000000000Z sparse
"
    );
    let owner = place.text(&["ls", "-lR", "--full-time", "i"]);
    // The sparse file belongs to the user of the test.
    let shown: Vec<&str> = owner.lines().collect();
    let expected_lines: Vec<&str> = expected.lines().collect();
    assert_eq!(
        shown[..shown.len() - 1],
        expected_lines[..expected_lines.len() - 1]
    );
    assert!(shown[shown.len() - 1].ends_with("5242880 2020-09-13T12:26:40.000000000Z sparse"));
}

#[test]
fn ls_lists_directories_entries_and_patterns() {
    let place = Place::with_image("glob");
    assert_eq!(
        place.text(&["ls", "i", "/dir/"]),
        "hello-again\nnew\\nline\nodd\\xff\ntext\n"
    );
    assert_eq!(place.text(&["ls", "-d", "i", "dir"]), "dir\n");
    assert_eq!(place.text(&["ls", "i", "dir/text"]), "dir/text\n");
    assert_eq!(
        place.text(&["ls", "i", "hello*"]),
        "dir/hello-again\nhello\n"
    );
    assert_eq!(place.text(&["ls", "i", "/hello*"]), "hello\n");
    assert_eq!(
        place.text(&["ls", "i", "{dir,many}/[ct]*"]),
        "dir/text\nmany/copy\n"
    );
    assert_eq!(place.text(&["ls", "-R", "i", "man?"]), "many\nmany/copy\n");
    let raw = place.run(&["ls", "-0", "i", "dir"]).stdout;
    assert_eq!(raw, b"hello-again\0new\nline\0odd\xff\0text\0");
    let objects = place.json(&["ls", "--json", "i", "dir"]);
    assert_eq!(objects[1]["path"], "dir/new\nline");
    assert_eq!(objects[1]["uid"], 3_000_000);
    assert_eq!(objects[2]["path_hex"], "6469722f6f6464ff");
}

#[test]
fn cat_prints_files_holes_and_link_targets() {
    let place = Place::with_image("cat");
    let out = place.run(&["cat", "i", "hello", "link", "dir/hello-again"]);
    assert_eq!(code(&out), 0);
    assert_eq!(out.stdout, format!("hello\n{}hello\n", text()).as_bytes());
    let mut sparse = vec![0; 5 << 20];
    sparse[1 << 20..][..8000].fill(b'd');
    assert!(place.run(&["cat", "i", "sparse"]).stdout == sparse);
    let out = place.run(&["cat", "i", "dir"]);
    assert_eq!(
        (code(&out), stderr(&out)),
        (
            2,
            "tuff: 'dir' is a directory, expected a file; list it with 'tuff ls', or copy it with 'tuff extract'\n".into()
        )
    );
}

#[test]
fn stat_prints_all_properties() {
    let place = Place::with_image("stat");
    let text = place.text(&["stat", "i", "hello"]);
    let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with("inode")).collect();
    assert_eq!(
        lines,
        [
            "path      hello",
            "type      file",
            "mode      4755 -rwsr-xr-x",
            "owner     0:0",
            "links     2",
            "size      6",
            "modified  2023-11-14T22:13:20.123456789Z",
            "stored    6 bytes, extents: 1",
            "xattr     user.comment=hi there",
        ]
    );
    let odd = &place.json(&["stat", "--json", "--extents", "i", "chr", "sparse"])[..];
    assert_eq!(
        (&odd[0]["major"], &odd[0]["minor"]),
        (&1.into(), &300_000.into())
    );
    assert_eq!(odd[1]["stored"]["bytes"], 8192);
    assert_eq!(odd[1]["stored"]["hole_bytes"], (5 << 20) - 8192);
    assert_eq!(odd[1]["extents"][0]["coding"], "hole");
    assert_eq!(odd[1]["extents"][1]["offset"], 1 << 20);
    let link = &place.json(&["stat", "--json", "i", "link"])[0];
    assert_eq!(
        (&link["type"], &link["target"]),
        (&"symlink".into(), &"dir/text".into())
    );
    let followed = &place.json(&["stat", "--json", "-L", "i", "link"])[0];
    assert_eq!(
        (&followed["type"], &followed["size"]),
        (&"file".into(), &468_890.into())
    );
}

#[test]
fn extents_cover_the_file_without_gaps() {
    let place = Place::with_image("extents");
    for path in ["dir/text", "sparse", "hello", "link"] {
        let mut at = 0;
        let extents = place.extents("i", path);
        for extent in &extents {
            assert_eq!(extent["offset"], at, "{path}");
            at += extent["length"].as_u64().unwrap();
        }
        let size = &place.json(&["stat", "--json", "i", path])[0]["size"];
        assert_eq!(*size, at, "{path}");
        assert!(
            extents.last().unwrap()["flags"]
                .as_array()
                .unwrap()
                .contains(&"last".into())
        );
    }
    // A name that is not UTF-8 is printed exactly, as in `ls`.
    let odd = OsStr::from_bytes(b"dir/odd\xff");
    let out = place.command(&["stat", "--json", "i"]).arg(odd).output();
    let stat: serde_json::Value = serde_json::from_slice(&out.unwrap().stdout).unwrap();
    assert_eq!(stat["path_hex"], "6469722f6f6464ff");
    // Identical files share their clusters.
    let physical = |path: &str| -> Vec<_> {
        let lines = place.extents("i", path);
        lines.iter().map(|l| l["physical"].clone()).collect()
    };
    assert!(physical("dir/text").len() > 1);
    assert_eq!(physical("dir/text"), physical("many/copy"));
}

#[test]
fn info_counts_every_byte_once() {
    let place = Place::with_image("info");
    let info = &place.json(&["info", "--json", "--files", "i"])[0];
    assert_eq!(info["types"]["file"], 7);
    assert_eq!(info["types"]["directory"], 4);
    assert_eq!(info["types"]["symlink"], 2);
    assert_eq!(info["hard_links"], 1);
    assert_eq!(info["inodes"], 16);
    assert_eq!(info["file_bytes"], (5 << 20) + 2 * 468_890 + 3 * 6);
    assert_eq!(info["holes"]["bytes"], (5 << 20) - 8192);
    let lz4 = &info["algorithms"]["lz4"];
    assert_eq!(lz4["decoded_bytes"], 468_890, "two files share them");
    assert_eq!(info["shared"]["saved_bytes"], lz4["stored_bytes"]);
    assert_eq!(info["in_place"]["clusters"], lz4["clusters"]);
    assert_eq!(info["checksum"], "right");
    // Chunks for the sparse file.
    assert_eq!(info["lowest_kernel"], "5.15");
    let table = &info["space"][0];
    let rows = table["rows"].as_array().unwrap();
    let sum: u64 = rows.iter().map(|r| r["bytes"].as_u64().unwrap()).sum();
    assert_eq!(table["bytes"], sum);
    let text = place.text(&["info", "i"]);
    assert!(
        text.contains("\nkernel        5.15 or newer (chunked_file)\n"),
        "{text}"
    );
    assert!(text.contains(
        "\ntree          7 files, 4 directories, 2 symlinks, 2 devices, 1 fifo, 1 hard link\n"
    ));
    assert!(!place.text(&["info", "--brief", "i"]).contains("space"));
}

#[test]
fn info_divides_clusters_by_the_bytes_of_each_file() {
    let place = Place::new("shares");
    let source = place.path("s");
    std::fs::create_dir(&source).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(source.join(name), bytes).unwrap();
    // One cluster of 4096 bytes holds the fragments of 10,000 and 2 * 15,000 bytes.
    write("a.log", &b"a line of a log\n".repeat(625));
    write("b.txt", &b"one line of text\n\0\0\0".repeat(750));
    write("c.TXT", &b"a second line of it\n".repeat(750));
    // Two files without a smaller form share 32 blocks.
    let noise: Vec<u8> = (0..131_072u32)
        .map(|i| (i.wrapping_mul(i).wrapping_mul(0x9E37_79B1) >> 24) as u8)
        .collect();
    write("d.bin", &noise);
    write("e.dat", &noise);
    place.text(&[
        "build",
        "-q",
        "-zlz4",
        "-C64K",
        "--fragments=small",
        "--fragment-cluster=64K",
        "-o",
        "i",
        "s",
    ]);
    let info = &place.json(&["info", "--json", "--files", "i"])[0];
    let group = |by: &str, name: &str| {
        let group = &info[by][name];
        ["inodes", "bytes", "stored_bytes"].map(|key| group[key].as_u64().unwrap())
    };
    assert_eq!(group("by_extension", "log"), [1, 10_000, 1024]);
    assert_eq!(group("by_extension", "txt"), [2, 30_000, 3072]);
    assert_eq!(group("by_extension", "bin"), [1, 131_072, 65_536]);
    assert_eq!(group("by_extension", "dat"), [1, 131_072, 65_536]);
    assert_eq!(group("by_type", "file"), [5, 302_144, 135_168]);
}

/// Sum of the rows of the table of space that count data.
fn data_bytes(info: &serde_json::Value) -> u64 {
    let rows = info["space"].as_array().unwrap().iter();
    rows.flat_map(|table| table["rows"].as_array().unwrap())
        .filter(|row| {
            let name = row["name"].as_str().unwrap();
            ["data", "packed", "inline", "directories"]
                .iter()
                .any(|start| name.starts_with(start))
        })
        .map(|row| row["bytes"].as_u64().unwrap())
        .sum()
}

#[test]
fn brief_info_shows_the_size_with_all_devices() {
    let place = Place::new("devices-info");
    let source = place.path("s");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("data"), vec![b'd'; 3 * 4096]).unwrap();
    place.text(&[
        "build",
        "-q",
        "-z",
        "none",
        "--chunk=4K",
        "--blob=b",
        "s",
        "c",
    ]);
    let blob = std::fs::metadata(place.path("b")).unwrap().len();
    let info = &place.json(&["info", "--json", "--brief", "c"])[0];
    let all = info["blocks"].as_u64().unwrap() * 4096 + blob;
    let text = place.text(&["info", "--brief", "c"]);
    assert!(text.contains("with devices  "), "{text}");
    assert!(text.contains(&format!("({all} bytes)")), "{text}");
}

#[test]
fn info_counts_algorithms_for_the_kernel() {
    let place = Place::new("kernels");
    for (method, kernel) in [("lzma", "5.16"), ("deflate", "6.6"), ("zstd", "6.10")] {
        place.image(method, &["-z", method, "--kernel", "6.18"]);
        let info = &place.json(&["info", "--json", "--brief", method])[0];
        let needs = info["needs"].as_array().unwrap();
        let need = needs.iter().find(|n| n["feature"] == method).unwrap();
        assert_eq!(need["kernel"], kernel);
    }
}

#[test]
fn dump_accounts_for_every_byte() {
    let place = Place::with_image("dump");
    for (i, options) in [
        &["-z", "lz4", "-C", "16K"][..],
        &[
            "-z",
            "none",
            "--inline-data",
            "off",
            "--set",
            "inodes=extended",
        ],
        &[
            "-z",
            "lz4hc",
            "--set",
            "index=full",
            "--tail-packing",
            "on",
            "--sparse",
            "fill",
        ],
        &[
            "-z",
            "zstd",
            "-C",
            "64K",
            "--fragments",
            "on",
            "--xattr-prefix",
            "user.com",
            "--set",
            "xattr-share=0",
        ],
        &[
            "-z",
            "lzma",
            "-b",
            "1024",
            "-C",
            "8K",
            "--no-checksum",
            "--dedupe",
            "off",
        ],
    ]
    .into_iter()
    .enumerate()
    {
        let image = i.to_string();
        place.image(&image, &[&["--kernel", "6.18"], options].concat());
        let size = std::fs::metadata(place.path(&image)).unwrap().len();
        let items = place.json(&["dump", "--json", &image]);
        let (table, items) = items.split_last().unwrap();
        let mut at = 0;
        for item in items {
            assert_eq!(item["start"], at, "{options:?}: {item}");
            at = item["end"].as_u64().unwrap();
            assert!(item.get("error").is_none(), "{options:?}: {item}");
            // Images of this builder need no raw bytes in the dump.
            assert!(item.get("raw_hex").is_none(), "{options:?}: {item}");
        }
        assert_eq!(at, size);
        assert_eq!(
            (&table["structure"], &table["bytes"]),
            (&"space".into(), &size.into())
        );
    }
    let text = place.text(&["dump", "i"]);
    assert!(text.starts_with("0x0..0x400 boot area content=zero\n0x400..0x480 superblock "));
    assert!(text.contains("type=file name=\"hello-again\"\n"));
    assert!(text.contains("name=\"user.a=b%c\" value=\"\\xff\\x00\"\n"));
    // The summary is the same table.
    assert!(text.ends_with(&place.text(&["dump", "--summary", "i"])));
}

const FORMS: &[&[&str]] = &[
    &["-z", "none", "--sparse", "keep"],
    &["-z", "lz4", "-C", "4K"],
    &["-z", "lz4", "-C", "64K"],
    &["-z", "lzma", "-C", "16K"],
    &["--kernel", "6.18", "-z", "deflate", "-C", "16K"],
    &["--kernel", "6.18", "-z", "zstd", "-C", "64K"],
    &[
        "--kernel",
        "6.18",
        "-z",
        "zstd",
        "-C",
        "64K",
        "--rule",
        "hello*=lz4",
    ],
];

/// Builds one tree in all forms.
#[test]
fn images_of_all_forms_are_clean_and_fully_accounted() {
    let place = Place::with_image("forms");
    for (i, options) in FORMS.iter().enumerate() {
        let image = &format!("form-{i}")[..];
        place.image(image, options);
        place.text(&["check", "-q", "--errors-only", image]);
        let mut at = (serde_json::Value::Null, 0);
        for item in place.json(&["dump", "--json", image]) {
            if item["structure"] == "space" {
                let rows = item["rows"].as_array().unwrap();
                let sum: u64 = rows.iter().map(|r| r["bytes"].as_u64().unwrap()).sum();
                assert_eq!(item["bytes"], sum, "{image}");
                continue;
            }
            if item["device"] != at.0 {
                at = (item["device"].clone(), 0);
            }
            // Data shared in parts may appear twice, but nothing is omitted.
            assert!(item["start"].as_u64().unwrap() <= at.1, "{image}: {item}");
            assert!(item.get("error").is_none(), "{image}: {item}");
            at.1 = at.1.max(item["end"].as_u64().unwrap());
        }
        let info = &place.json(&["info", "--json", "--files", image])[0];
        let sum = |by: &str| -> u64 {
            let groups = info[by].as_object().unwrap().values();
            groups.map(|g| g["stored_bytes"].as_u64().unwrap()).sum()
        };
        assert_eq!(sum("by_type"), data_bytes(info), "{image}");
        let files = &info["by_type"]["file"]["stored_bytes"];
        assert_eq!(*files, sum("by_extension"), "{image}");
        place.text(&["ls", "-lR", image]);
        // Its tar contains the same tree.
        place.text(&["tar", image, "t.tar"]);
        place.text(&[
            "build", "-q", "--kernel", "6.18", "--sparse", "keep", "t.tar", "again",
        ]);
        assert_eq!(place.text(&["diff", image, "again"]), "", "{image}");
    }
}

#[test]
fn extra_devices_are_read_and_accounted_for() {
    let place = Place::new("devices");
    std::fs::create_dir(place.path("src")).unwrap();
    std::fs::write(place.path("src/file"), text()).unwrap();
    let args = ["--blobdev=blob", "--chunksize=4096", "-T0", "i", "src"];
    let Some(out) = tool(&place.0, "mkfs.erofs", &args) else {
        return;
    };
    if !out.status.success() {
        return skipped(format_args!(
            "mkfs.erofs --blobdev: {}",
            stderr(&out).trim_end()
        ));
    }
    let out = place.run(&["cat", "--device", "blob", "i", "file"]);
    assert!(out.stdout == text().as_bytes(), "{}", stderr(&out));
    let stat = &place.json(&["stat", "--json", "-e", "--device", "blob", "i", "file"])[0];
    assert!(
        stat["extents"][0]["flags"]
            .as_array()
            .unwrap()
            .contains(&"device=1".into()),
        "{stat:?}"
    );
    let dump = place.text(&["dump", "--device", "blob", "i"]);
    assert!(
        dump.contains("\ndevice 1, 0x0..") && dump.contains("\ndevice 1, space:\n"),
        "{dump}"
    );
    let info = place.text(&["info", "--device", "blob", "i"]);
    assert!(
        info.contains("\ndevices\n  1 ") && info.contains("\nspace on device 1\n"),
        "{info}"
    );
    place.text(&["check", "-q", "--device", "blob", "i"]);
}

#[test]
fn dump_of_an_inode_is_a_part_of_the_whole() {
    let place = Place::with_image("dump-inode");
    let nid = place.json(&["stat", "--json", "i", "dir"])[0]["nid"].to_string();
    let part = place.text(&["dump", "--inode", &nid, "i"]);
    assert!(
        part.contains("name=\"trusted.overlay.opaque\" value=\"y\""),
        "{part}"
    );
    let whole = place.text(&["dump", "i"]);
    let whole: HashSet<&str> = whole.lines().collect();
    for line in part.lines() {
        assert!(whole.contains(line), "{line}");
    }
    let out = place.run(&["dump", "--inode", "99999999", "i"]);
    assert_eq!(code(&out), 2);
}

#[test]
fn any_changed_byte_changes_the_dump() {
    let place = Place::with_image("injective");
    let before = place.run(&["dump", "i"]).stdout;
    let size = std::fs::metadata(place.path("i")).unwrap().len() as usize;
    // Mostly metadata: the first block and the last ones.
    let metadata = (0..60)
        .map(|i| 1024 + i * 7)
        .chain((0..120).map(|i| size - 1 - i * 137));
    for at in metadata.chain((0..size).step_by(size / 60)) {
        place.damage("d", at, |b| b ^ 0x11);
        let out = place.run(&["dump", "d"]);
        assert!(out.stdout != before, "byte {at:#x}");
        assert!((0..=5).contains(&code(&out)), "byte {at:#x}");
    }
}

#[test]
fn profiles_are_shown_merged_and_order_a_build() {
    let place = Place::with_image("profile");
    let write = |name: &str, text: &str| std::fs::write(place.0.join(name), text).unwrap();
    write(
        "a",
        "tuff profile 1\n7 1 0 4096 /many/copy\n1500 1 0 8192 /hello\n",
    );
    write("b", "tuff profile 1\n3 1 4096 4096 /hello\n");
    assert_eq!(
        place.text(&["profile", "merge", "a", "b"]),
        "tuff profile 1\n# when_us runs offset length path\n\
         3 2 4096 4096 /hello\n7 1 0 4096 /many/copy\n1500 1 0 4096 /hello\n"
    );
    place.text(&["profile", "merge", "a", "b", "-o", "c"]);
    assert_eq!(
        place.text(&["profile", "show", "c"]),
        "   when_ms  runs        bytes  path\n     0.003     2         8192  /hello\n     \
         0.007     1         4096  /many/copy\n"
    );
    assert_eq!(
        place.text(&["profile", "show", "--parts", "b"]),
        "   when_ms  runs        bytes  path\n     0.003     1    4096+4096  /hello\n"
    );
    write("bad", "tuff profile 1\n3 1 4096 4096 hello\n");
    let out = place.run(&["profile", "show", "bad"]);
    assert_eq!(code(&out), 2);
    assert!(
        stderr(&out).contains("bad: profile, line 2"),
        "{}",
        stderr(&out)
    );
    // A profile of a later version is rejected, and a file of any length is not read to its end.
    write("later", "tuff profile 2\n3 1 4096 4096 /hello\n");
    let long = std::fs::File::create(place.0.join("long")).unwrap();
    long.set_len((1 << 28) + 1).unwrap();
    for (file, says) in [
        ("later", "later: not a profile: the first line is not"),
        ("long", "long: is longer than 268435456 bytes"),
    ] {
        let order = ["build", "--order", file, "m", "ordered"];
        for args in [&order[..], &["profile", "show", file]] {
            let out = place.run(args);
            assert_eq!(code(&out), 2);
            assert!(stderr(&out).contains(says), "{}", stderr(&out));
        }
    }
    // The same order as a list of the paths.
    write("list", "hello\nmany/copy\n");
    for order in ["c", "list"] {
        place.image(&format!("by-{order}"), &["--order", order]);
    }
    let image = |name: &str| std::fs::read(place.0.join(name)).unwrap();
    assert!(image("by-c") == image("by-list"));
}
