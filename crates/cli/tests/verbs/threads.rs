//! Determinism: the same input and options give the same bytes for any number of threads, in every mode with shared
//! work.

use crate::common::{Place, code, is_root, skipped, stderr, tool};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use tuff_testkit::program;

/// Creates files that share parts, are similar, equal, sparse, small or incompressible.
fn tree(place: &Place) {
    let src = place.path("src");
    for dir in ["a", "b", "small"] {
        fs::create_dir_all(src.join(dir)).unwrap();
    }
    let mut state = 7u64;
    let mut random = |n: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % n
    };
    let mut lines: Vec<String> = (0..30_000)
        .map(|i| format!("{i}: {} of {}\n", random(1000), random(50)))
        .collect();
    for version in 0..4 {
        fs::write(src.join(format!("a/version-{version}")), lines.concat()).unwrap();
        for _ in 0..20 {
            let at = random(lines.len() as u64) as usize;
            lines[at] = format!("changed in {version}\n");
        }
    }
    fs::copy(src.join("a/version-1"), src.join("b/twin")).unwrap();
    let noise: Vec<u8> = (0..300_000).map(|_| random(256) as u8).collect();
    fs::write(src.join("b/noise"), noise).unwrap();
    let sparse = File::create(src.join("b/sparse")).unwrap();
    sparse.set_len(3 << 20).unwrap();
    sparse
        .write_all_at(lines.concat().as_bytes(), 1 << 20)
        .unwrap();
    for i in 0..400 {
        let from = random(20_000) as usize;
        let text = lines[from..from + random(200) as usize].concat();
        fs::write(src.join(format!("small/{i}")), text).unwrap();
    }
}

/// Builds with several numbers of threads, once with little memory, and compares. Returns the image.
fn same(place: &Place, options: &[&str], source: &str) -> Vec<u8> {
    let mut first = None;
    for threads in ["1", "2", "7", "16"] {
        let memory = if threads == "7" { "2M" } else { "256M" };
        let fixed = ["build", "-q", "-j", threads, "--memory", memory];
        let mut command = place.command(&[&fixed, options, &[source, "i"]].concat());
        command.env("TMPDIR", &place.0);
        if source == "-" {
            command.stdin(Stdio::from(File::open(place.path("t.tar")).unwrap()));
        }
        let out = command.output().unwrap();
        assert_eq!(code(&out), 0, "{options:?} {source}: {}", stderr(&out));
        let bytes = fs::read(place.path("i")).unwrap();
        let first = first.get_or_insert_with(|| bytes.clone());
        assert!(*first == bytes, "{options:?} {source}: {threads} threads");
    }
    first.unwrap()
}

#[test]
fn bytes_do_not_depend_on_threads_in_any_mode() {
    let place = Place::new("threads");
    tree(&place);
    for options in [
        &["-z", "none", "--fragments", "off"][..],
        &[
            "-z",
            "lz4",
            "-C",
            "4K",
            "--fragments",
            "off",
            "--dedupe",
            "off",
        ],
        &["-z", "lz4", "-C", "64K"],
        &["-z", "lz4hc:9", "-C", "16K", "--dedupe", "files"],
        &["-z", "zstd:3", "-C", "64K", "--kernel", "6.12"],
        &["-z", "deflate:3", "-C", "32K", "--kernel", "6.12"],
        &["-z", "lzma:1", "-C", "64K"],
        &["-z", "lz4", "-C", "16K", "--fragments", "all"],
        &[
            "-z",
            "zstd:1",
            "-C",
            "64K",
            "--kernel",
            "6.12",
            "--fragments",
            "all",
            "--dedupe",
            "files",
        ],
        &[
            "-z",
            "lz4",
            "-C",
            "16K",
            "--fragments",
            "small",
            "--dedupe",
            "content",
        ],
        &["-z", "lz4", "-C", "16K", "--sparse", "keep"],
        &[
            "-z",
            "lz4",
            "--rule",
            "a/*=lzma:1,64K",
            "--rule",
            "small/*=none",
        ],
    ] {
        same(&place, options, "src");
    }
}

/// A tar as a file, compressed, and from a pipe. A tar packed as it arrives gives another image of the same tree.
#[test]
fn a_tar_gives_the_same_bytes_from_file_and_pipe() {
    let place = Place::new("threads-tar");
    tree(&place);
    let built = place.run(&["build", "-q", "-z", "none", "src", "i"]);
    assert_eq!(code(&built), 0, "{}", stderr(&built));
    let tar = place.run(&["tar", "i", "t.tar"]);
    assert_eq!(code(&tar), 0, "{}", stderr(&tar));
    let packed = tool(&place.0, "gzip", &["-k", "t.tar"]).is_some();
    for options in [
        &["-z", "lz4", "-C", "16K"][..],
        &["-z", "lz4", "-C", "16K", "--fragments", "all"],
    ] {
        let file = same(&place, options, "t.tar");
        assert!(same(&place, options, "-") == file, "{options:?}: stream");
        if packed {
            let gzip = same(&place, options, "t.tar.gz");
            assert!(gzip == file, "{options:?}: gzip");
        }
    }
    for dedupe in ["files", "off"] {
        let options = [
            "-z", "zstd:3", "-C", "64K", "--kernel", "6.12", "--dedupe", dedupe,
        ];
        let file = same(&place, &options, "t.tar");
        fs::write(place.path("of-file"), file).unwrap();
        same(&place, &options, "-");
        assert_eq!(place.text(&["diff", "of-file", "i"]), "", "{dedupe}");
    }
}

/// Regression: without any thread, `extract` waited forever, `build` and `check` panicked, and `-j 20000` aborted.
/// Workers waited before their end was guaranteed, and threads were started by a function that panics.
#[test]
fn verbs_run_with_as_many_threads_as_can_be_started() {
    let place = Place::with_image("threads-few");
    let tool = |name| tool(&place.0, name, &["--version"]).is_some();
    if !is_root() || !tool("setpriv") || !tool("prlimit") || !tool("timeout") {
        return skipped("a user with few threads needs root, setpriv, prlimit and timeout");
    }
    program::copy(env!("CARGO_BIN_EXE_tuff"), place.path("tuff"));
    tree(&place);
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&place.0, all).unwrap();
    let whole = place.run(&["extract", "-q", "i", "whole"]);
    assert!(code(&whole) <= 1, "{}", stderr(&whole));
    // One process is `timeout`.
    for allowed in 2..=6 {
        let run = |args: &[&str]| {
            let mut command = std::process::Command::new("setpriv");
            // A user without other processes.
            command
                .args([
                    "--reuid=54322",
                    "--regid=54322",
                    "--clear-groups",
                    "prlimit",
                ])
                .arg(format!("--nproc={allowed}"))
                .args(["timeout", "-s", "KILL", "60", "./tuff"])
                .args(args);
            command.current_dir(&place.0).output().unwrap()
        };
        let target = format!("out-{allowed}");
        let out = run(&["extract", "-q", "--no-xattrs", "-j", "4", "i", &target]);
        assert_eq!(code(&out), 1, "{allowed}: {}", stderr(&out));
        for name in ["dir/text", "many/copy", "sparse", "hello"] {
            let (is, was) = (
                place.path(&target).join(name),
                place.path("whole").join(name),
            );
            assert!(
                fs::read(is).unwrap() == fs::read(was).unwrap(),
                "{allowed}: {name}"
            );
        }
        let out = run(&["check", "-j", "4", "i"]);
        assert_eq!(code(&out), 0, "{allowed}: {}", stderr(&out));
        assert!(String::from_utf8_lossy(&out.stdout).ends_with("clean\n"));
        let out = run(&["diff", "-j", "4", "i", "i"]);
        assert_eq!(code(&out), 0, "{allowed}: {}", stderr(&out));
        let image = format!("i-{allowed}");
        let out = run(&["build", "-q", "-j", "4", "--verify", "src", &image]);
        // One thread for signals, and at least one to encode.
        if allowed > 3 {
            assert_eq!(code(&out), 0, "{allowed}: {}", stderr(&out));
            let alone = place.run(&["build", "-q", "-j", "4", "src", "alone"]);
            assert_eq!(code(&alone), 0, "{}", stderr(&alone));
            let same =
                fs::read(place.path(&image)).unwrap() == fs::read(place.path("alone")).unwrap();
            assert!(same, "{allowed}");
        } else {
            let message = stderr(&out);
            assert_eq!(code(&out), 5, "{message}");
            assert_eq!(message.lines().count(), 1, "{message}");
            assert!(message.contains("cannot start a thread"), "{message}");
        }
    }
}

#[test]
fn too_many_threads_of_a_mount_are_a_usage_error() {
    let place = Place::with_image("threads-many");
    for verb in [
        &["build", "m", "made"][..],
        &["check", "i"],
        &["extract", "i", "made"],
    ] {
        for count in ["0", "257", "20000"] {
            let out = place.run(&[verb, &["-j", count]].concat());
            assert_eq!(code(&out), 2, "{verb:?} {count}");
            assert!(
                stderr(&out).contains("is not in 1..=256"),
                "{}",
                stderr(&out)
            );
        }
    }
    assert!(!place.path("made").exists());
}

/// Output of a comparison for any number of threads: exit code, lines and message.
fn compared(place: &Place, a: &str, b: &str) -> (i32, String, String) {
    let mut first = None;
    for threads in ["1", "2", "7", "16"] {
        let out = place.run(&["diff", "--json", "-j", threads, a, b]);
        let lines = String::from_utf8(out.stdout.clone()).unwrap();
        let found = (code(&out), lines, stderr(&out));
        let first = first.get_or_insert_with(|| found.clone());
        assert_eq!(*first, found, "{a} {b}: {threads} threads");
    }
    first.unwrap()
}

#[test]
fn the_output_of_a_comparison_does_not_depend_on_threads() {
    let place = Place::new("threads-diff");
    tree(&place);
    let big = place.path("src/a/zz-big");
    // Compared in three parts; the second and third differ.
    let mut bytes: Vec<u8> = (0..20u32 << 20).map(|i| (i >> 7) as u8).collect();
    fs::write(&big, &bytes).unwrap();
    place.text(&["build", "-q", "-z", "lz4", "-C", "64K", "src", "one"]);
    bytes[9 << 20] ^= 1;
    bytes[17 << 20] ^= 1;
    fs::write(&big, &bytes).unwrap();
    for i in (0..400).step_by(3) {
        let path = place.path(&format!("src/small/{i}"));
        let mut text = fs::read(&path).unwrap();
        text.push(b'x');
        fs::write(&path, text).unwrap();
    }
    fs::remove_file(place.path("src/b/noise")).unwrap();
    fs::write(place.path("src/small/new"), "new").unwrap();
    place.text(&["build", "-q", "-z", "lz4", "-C", "64K", "src", "two"]);
    for (a, b) in [("one", "two"), ("one", "src"), ("two", "one")] {
        let (code, lines, message) = compared(&place, a, b);
        assert_eq!((code, message.as_str()), (1, ""));
        let found: Vec<serde_json::Value> = lines
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        let (total, found) = found.split_last().unwrap();
        let paths: Vec<&str> = found.iter().filter_map(|f| f["path"].as_str()).collect();
        let mut sorted = paths.clone();
        sorted.sort_by_key(|path| path.split('/').collect::<Vec<_>>());
        assert_eq!(paths, sorted);
        let of_big = found.iter().find(|f| f["path"] == "a/zz-big").unwrap();
        let differences = of_big["differences"].as_array().unwrap();
        let content = differences
            .iter()
            .find(|d| d["field"] == "content")
            .unwrap();
        assert_eq!(content["at"], 9 << 20);
        assert!(total["content_bytes"].as_u64().unwrap() < 20 << 20);
    }
    let (code, lines, message) = compared(&place, "two", "src");
    assert_eq!((code, message.as_str()), (0, ""));
    let total: serde_json::Value = serde_json::from_str(lines.trim_end()).unwrap();
    assert!(total["content_bytes"].as_u64().unwrap() > 20 << 20);
    // Damage ends the comparison at the same place, after the same lines.
    for path in ["a/zz-big", "a/version-2"] {
        let extents = place.extents("one", path);
        let extent = &extents[extents.len() * 3 / 4];
        let at = extent["physical"].as_u64().unwrap() as usize;
        let mut image = fs::read(place.path("one")).unwrap();
        // A run of literals that is longer than the cluster.
        let len = extent["plength"].as_u64().unwrap() as usize;
        image[at..at + len].fill(0xFF);
        fs::write(place.path("bad"), image).unwrap();
        let (code, _, message) = compared(&place, "bad", "two");
        // Damage after the first difference does not matter.
        assert_eq!(code, if path == "a/zz-big" { 1 } else { 3 }, "{message}");
        assert!(code == 1 || message.contains(path), "{message}");
    }
}

/// Comparing threads keep host files open until their turn, but no more than a process may have.
#[test]
fn a_diff_respects_the_limit_of_open_files() {
    let place = Place::new("diff-open");
    fs::create_dir(place.path("src")).unwrap();
    for i in 0..300 {
        fs::write(place.path(&format!("src/{i}")), format!("file {i}")).unwrap();
    }
    place.text(&["build", "-q", "src", "i"]);
    let out = std::process::Command::new("sh")
        .args(["-c", "ulimit -n 20; exec \"$0\" diff -j 7 i src"])
        .arg(env!("CARGO_BIN_EXE_tuff"))
        .current_dir(&place.0)
        .output()
        .unwrap();
    assert_eq!((code(&out), stderr(&out)), (0, String::new()));
}

/// Regression: the comparison of a 2^60 byte hole, cut into parts of 8 MiB, did not end. Holes are skipped before files
/// are cut.
#[test]
fn holes_take_no_time_to_compare() {
    let place = Place::new("threads-holes");
    place.image("i", &[]);
    let sparse = &place.json(&["stat", "--json", "i", "sparse"])[0];
    let at = sparse["position"].as_u64().unwrap() as usize;
    let mut image = fs::read(place.path("i")).unwrap();
    // Flat, without a first block: a hole as long as the size says.
    image[at] = 1;
    image[at + 1] = 0;
    image[at + 6..at + 8].fill(0xFF);
    image[at + 8..at + 16].copy_from_slice(&(1u64 << 60).to_le_bytes());
    image[at + 16..at + 20].fill(0xFF);
    fs::write(place.path("long"), image).unwrap();
    let sparse = &place.json(&["stat", "--json", "long", "sparse"])[0];
    assert_eq!(
        (&sparse["size"], &sparse["stored"]["hole_bytes"]),
        (&(1u64 << 60).into(), &(1u64 << 60).into())
    );
    let (code, lines, message) = compared(&place, "long", "long");
    assert_eq!((code, message.as_str()), (0, ""), "{lines}");
}
