//! `tuff build` as people and scripts meet it: arguments, exit codes, faults, and nothing left behind.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

fn tuff() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tuff"));
    command.env_remove("SOURCE_DATE_EPOCH");
    command
}

fn run(args: &[&str], dir: &Path) -> Output {
    tuff().current_dir(dir).args(args).output().unwrap()
}

/// Exit code, and what was said on standard error.
fn code(out: &Output) -> (i32, String) {
    (
        out.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&out.stderr).into_owned(),
    )
}

/// A directory with a small tree in `tree`.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let dir =
            std::env::temp_dir().join(format!("tuff-cli-build-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("tree/sub")).unwrap();
        std::fs::write(dir.join("tree/hello"), "hello, image\n".repeat(1000)).unwrap();
        std::fs::write(dir.join("tree/sub/same"), "hello, image\n".repeat(1000)).unwrap();
        std::fs::write(dir.join("tree/empty"), "").unwrap();
        Self(dir)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(&self.0)
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn wrong_arguments_are_one_sentence_and_code_2() {
    let place = Place::new("usage");
    for (args, says) in [
        (&["build"][..], "<SOURCE>... <IMAGE>"),
        (&["build", "tree"], "a source and an image"),
        (&["build", "-z", "lz5", "tree", "i"], "not an algorithm"),
        (&["build", "-z", "lz4hc:13", "tree", "i"], "no level"),
        (
            &["build", "-C", "5000", "tree", "i"],
            "multiple of the block size",
        ),
        (&["build", "-C", "2M", "tree", "i"], "up to 1048576"),
        (&["build", "-b", "3000", "tree", "i"], "power of two"),
        (
            &["build", "--kernel", "5.4", "-z", "zstd", "tree", "i"],
            "Zstandard needs Linux 6.10",
        ),
        (
            &["build", "--kernel", "5.4", "-C", "64K", "tree", "i"],
            "needs Linux 5.13",
        ),
        (&["build", "--kernel", "4.19", "tree", "i"], "5.4 and newer"),
        (
            &[
                "build",
                "--fragments",
                "on",
                "--kernel",
                "5.15",
                "tree",
                "i",
            ],
            "fragments needs Linux 6.1",
        ),
        (
            &["build", "--metadata", "short", "tree", "i"],
            "the short form of metadata needs Linux 6.15",
        ),
        (
            &["build", "--metadata", "compressed", "tree", "i"],
            "compressed metadata needs Linux 6.17",
        ),
        (
            &[
                "build",
                "--kernel=6.18",
                "--metadata=compressed",
                "-z",
                "none",
                "tree",
                "i",
            ],
            "compressed metadata needs an algorithm",
        ),
        (
            &[
                "build",
                "--kernel=6.18",
                "--metadata=compressed",
                "--base=tree",
                "tree",
                "i",
            ],
            "compressed metadata cannot refer to a base",
        ),
        (
            &["build", "--label", "sixteen bytes or more", "tree", "i"],
            "label",
        ),
        (&["build", "--uuid", "nonsense", "tree", "i"], "not a UUID"),
        (&["build", "--timestamp", "never", "tree", "i"], "invalid"),
        (&["build", "--exclude", "[", "tree", "i"], "pattern '['"),
        (&["build", "--rule", "x", "tree", "i"], "GLOB=ALG"),
        (&["build", "--threads", "0", "tree", "i"], "1..=256"),
        (
            &["build", "-z", "lz4", "--dict", "64K", "tree", "i"],
            "--dict: only LZMA and Zstandard have a dictionary",
        ),
        (
            &["build", "--sparse", "maybe", "tree", "i"],
            "invalid value",
        ),
    ] {
        let out = run(args, &place.0);
        let (code, said) = code(&out);
        assert_eq!(code, 2, "{args:?}: {said}");
        assert!(said.contains(says), "{args:?}: {said}");
        assert_eq!(place.names(), ["tree"], "{args:?}");
    }
}

/// The image is the last path wherever options stand.
#[test]
fn options_may_stand_before_between_and_behind_the_paths() {
    let place = Place::new("order");
    for args in [
        &["build", "-zlz4", "tree", "more", "i"][..],
        &["build", "tree", "-zlz4", "more", "i"],
        &["build", "tree", "more", "-z", "lz4", "i", "-q"],
    ] {
        std::fs::create_dir_all(place.0.join("more")).unwrap();
        let (code, said) = code(&run(args, &place.0));
        assert_eq!(code, 0, "{args:?}: {said}");
        assert_eq!(place.names(), ["i", "more", "tree"], "{args:?}");
        std::fs::remove_file(place.0.join("i")).unwrap();
    }
}

#[test]
fn missing_sources_name_themselves_with_code_5() {
    let place = Place::new("missing");
    let (code, said) = code(&run(&["build", "nowhere", "i"], &place.0));
    assert_eq!(code, 5);
    assert_eq!(
        said,
        "tuff: nowhere: cannot open the source: No such file or directory (os error 2)\n"
    );
    let out = run(&["build", "tree", "no/such/dir/i"], &place.0);
    assert_eq!(out.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&out.stderr).contains("no/such/dir/i"));
}

#[test]
fn a_damaged_tar_names_itself_with_code_3() {
    let place = Place::new("tar");
    let tar = Command::new("tar")
        .args(["-cf", "t.tar", "tree"])
        .current_dir(&place.0)
        .status();
    if !tar.is_ok_and(|s| s.success()) {
        eprintln!("SKIPPED: no tar on PATH");
        return;
    }
    let bytes = std::fs::read(place.0.join("t.tar")).unwrap();
    std::fs::write(place.0.join("t.tar"), &bytes[..bytes.len() / 3]).unwrap();
    let (code, said) = code(&run(&["build", "t.tar", "i"], &place.0));
    assert_eq!(code, 3, "{said}");
    assert!(
        said.contains("t.tar") && said.lines().count() == 1,
        "{said}"
    );
    assert_eq!(place.names(), ["t.tar", "tree"]);
}

#[test]
fn the_same_tree_gives_the_same_bytes_by_file_and_by_stdout() {
    let place = Place::new("stdout");
    assert_eq!(
        run(&["build", "tree", "a"], &place.0).status.code(),
        Some(0)
    );
    let out = run(&["build", "-q", "tree", "-"], &place.0);
    assert_eq!(out.status.code(), Some(0));
    assert_eq!(out.stdout, std::fs::read(place.0.join("a")).unwrap());
    assert!(out.stderr.is_empty());
    let out = run(&["build", "-q", "-j", "3", "tree", "b"], &place.0);
    assert!(out.stdout.is_empty() && out.stderr.is_empty());
    assert_eq!(
        std::fs::read(place.0.join("b")).unwrap(),
        std::fs::read(place.0.join("a")).unwrap()
    );
}

#[test]
fn json_is_one_object_with_the_counts() {
    let place = Place::new("json");
    let out = run(&["build", "--json", "tree", "a"], &place.0);
    let summary: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(summary["files"], 3);
    assert_eq!(summary["directories"], 2);
    assert_eq!(summary["dedupe_files"], 1);
    assert_eq!(summary["content_bytes"], 26_000);
}

/// A tar from standard input, too: its files are looked for in the base like any other's.
#[test]
fn an_image_over_a_base_needs_it_and_says_so() {
    let place = Place::new("base");
    let build = |args: &[&str]| {
        let out = run(&[&["build", "--json"][..], args].concat(), &place.0);
        assert_eq!(code(&out).0, 0, "{}", code(&out).1);
        serde_json::from_slice::<serde_json::Value>(&out.stdout).unwrap()
    };
    build(&["tree", "base"]);
    std::fs::write(
        place.0.join("tree/new"),
        "what the base has not\n".repeat(900),
    )
    .unwrap();
    let summary = build(&["--base", "base", "--verify", "tree", "image"]);
    assert_eq!(summary["base_files"], 1);
    assert_eq!(summary["base_bytes"], 13_000);
    let cat = |args: &[&str]| run(&[&["cat"][..], args].concat(), &place.0);
    for name in ["hello", "sub/same", "new"] {
        let out = cat(&["--device", "base", "image", name]);
        let wanted = std::fs::read(place.0.join("tree").join(name)).unwrap();
        assert!(code(&out).0 == 0 && out.stdout == wanted, "{name}");
    }
    let out = cat(&["--device", "image", "image", "hello"]);
    let (exit, said) = code(&out);
    assert!(
        exit == 2 && said.contains("expected the image with UUID"),
        "{said}"
    );
    let (exit, said) = code(&cat(&["image", "hello"]));
    assert_eq!(exit, 2, "not without the base: {said}");
    assert!(said.contains("device 1, the image with UUID") && said.contains("--device"));

    let tar = Command::new("tar")
        .args(["-C", "tree", "-cf", "-", "."])
        .current_dir(&place.0)
        .output();
    let Ok(tar) = tar else {
        eprintln!("SKIPPED: no tar on PATH");
        return;
    };
    std::fs::write(place.0.join("tar"), tar.stdout).unwrap();
    let stdin = std::fs::File::open(place.0.join("tar")).unwrap();
    let out = tuff()
        .args(["build", "--json", "--base", "base", "-", "tarred"])
        .current_dir(&place.0)
        .stdin(stdin)
        .output()
        .unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(summary["base_files"], 1, "{}", code(&out).1);
}

#[test]
fn source_date_epoch_is_an_upper_bound_and_an_option_wins() {
    let place = Place::new("epoch");
    let build = |name: &str, epoch: &str, args: &[&str]| {
        let mut command = tuff();
        command
            .current_dir(&place.0)
            .env("SOURCE_DATE_EPOCH", epoch)
            .args(["build", "-q"])
            .args(args);
        let out = command.args(["tree", name]).output().unwrap();
        (
            out.status.code(),
            std::fs::read(place.0.join(name)).unwrap_or_default(),
        )
    };
    // The superblock's epoch is the time that most inodes have.
    let epoch = |image: &[u8]| i64::from_le_bytes(image[1048..1056].try_into().unwrap());
    assert_eq!(epoch(&build("a", "1000", &[]).1), 1000);
    assert_eq!(epoch(&build("b", "1000", &["--timestamp", "77"]).1), 77);
    assert_eq!(epoch(&build("c", "1000", &["--timestamp", "-5"]).1), -5);
    assert_eq!(build("d", "soon", &[]).0, Some(2));
}

/// Letters of sixteen, in no order: half of it is gone by counting them, and next to nothing repeats.
fn sixteen_letters(len: usize) -> Vec<u8> {
    let mut seed = 1u64;
    (0..len)
        .map(|_| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 60) as u8 + b'a'
        })
        .collect()
}

#[test]
fn what_counting_letters_shrinks_is_compressed_though_nothing_repeats() {
    let place = Place::new("letters");
    let len = 9 << 20;
    std::fs::write(place.0.join("tree/letters"), sixteen_letters(len)).unwrap();
    for method in ["zstd", "deflate", "lzma:1"] {
        let out = tuff()
            .current_dir(&place.0)
            .args([
                "build", "-q", "-z", method, "--kernel", "6.18", "tree", "image",
            ])
            .output()
            .unwrap();
        assert_eq!(code(&out), (0, String::new()), "{method}");
        let size = std::fs::metadata(place.0.join("image")).unwrap().len();
        assert!(size < len as u64 * 6 / 10, "{method}: {size}");
    }
}

#[test]
fn a_stopped_build_leaves_nothing() {
    let place = Place::new("stop");
    // Long enough to be stopped in the middle: hard to compress, and the slowest method.
    let big = sixteen_letters(24 << 20);
    for i in 0..4 {
        std::fs::write(place.0.join(format!("tree/big{i}")), &big[i..]).unwrap();
    }
    let child = tuff()
        .current_dir(&place.0)
        .args([
            "build", "-z", "lzma:9", "--kernel", "6.18", "-j", "1", "tree", "image",
        ])
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(700));
    assert!(
        Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    let out = child.wait_with_output().unwrap();
    let (code, said) = code(&out);
    assert_eq!(code, 130, "{said}");
    assert!(said.contains("stopped"), "{said}");
    assert_eq!(place.names(), ["tree"]);
}

#[test]
fn a_full_disk_is_named_and_leaves_nothing() {
    let place = Place::new("full");
    let small = place.0.join("small");
    std::fs::create_dir(&small).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "none"])
        .arg(&small)
        .output();
    if !mounted.is_ok_and(|o| o.status.success()) {
        eprintln!("SKIPPED: a small tmpfs needs root");
        return;
    }
    std::fs::write(place.0.join("tree/large"), vec![7u8; 4 << 20]).unwrap();
    let out = run(&["build", "-z", "none", "tree", "small/image"], &place.0);
    let left = std::fs::read_dir(&small).unwrap().count();
    let _ = Command::new("umount").arg(&small).status();
    let (code, said) = code(&out);
    assert_eq!(code, 5, "{said}");
    assert_eq!(
        said,
        "tuff: small/image: cannot write: No space left on device (os error 28)\n"
    );
    assert_eq!(left, 0);
}

#[test]
fn trees_at_the_edge_can_be_built() {
    let place = Place::new("edge");
    std::fs::create_dir(place.0.join("nothing")).unwrap();
    assert_eq!(
        run(&["build", "nothing", "a"], &place.0).status.code(),
        Some(0)
    );
    // Deeper than PATH_MAX.
    let script = "cd tree && for i in $(seq 40); do d=$(printf 'd%.0s' $(seq 200)); mkdir $d && cd -P $d || exit 1; done; echo bottom > file";
    let made = Command::new("bash")
        .args(["-c", script])
        .current_dir(&place.0)
        .status()
        .unwrap();
    assert!(made.success());
    let out = run(&["build", "tree", "deep"], &place.0);
    assert_eq!(code(&out), (0, String::new()));
    let _ = Command::new("rm")
        .args(["-rf", "tree"])
        .current_dir(&place.0)
        .status();
}

#[test]
fn a_manifest_builds_what_only_root_could_make() {
    let place = Place::new("manifest");
    std::fs::write(
        place.0.join("tree.mtree"),
        "#mtree\n. type=dir mode=0755\n./dev type=dir\n./dev/null type=char device=native,1,3 mode=0666\n\
         ./hello type=file contents=tree/hello uid=100000 mode=04755\n./link type=link link=hello\n",
    )
    .unwrap();
    let out = run(&["build", "--json", "tree.mtree", "a"], &place.0);
    assert_eq!(code(&out).0, 0, "{}", code(&out).1);
    let summary: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (&summary["specials"], &summary["symlinks"]),
        (&1.into(), &1.into())
    );
    std::fs::write(
        place.0.join("bad.mtree"),
        "#mtree\n./x type=file contents=gone\n",
    )
    .unwrap();
    let (code, said) = code(&run(&["build", "bad.mtree", "b"], &place.0));
    assert_eq!(code, 5, "{said}");
    assert!(
        said.contains("bad.mtree") && said.contains("gone"),
        "{said}"
    );
}

/// Manifests in the place, by name and lines.
fn manifests(place: &Place, all: &[(&str, &str)]) {
    for (name, lines) in all {
        std::fs::write(place.0.join(name), format!("#mtree\n{lines}\n")).unwrap();
    }
}

/// What follows the highest id is root: an offset of 2^32 - 1 made 999 of 1000.
#[test]
fn offsets_that_lead_beyond_the_highest_owner_are_refused() {
    let place = Place::new("offsets");
    manifests(
        &place,
        &[(
            "t.mtree",
            "./d type=dir uid=5\n./d/f type=file size=0 uid=1000 gid=7",
        )],
    );
    for (option, offset, says) in [
        (
            "--uid-offset",
            "4294966296",
            "tuff: \"d/f\": uid 1000 and an offset of 4294966296 are more than 4294967295\n",
        ),
        (
            "--gid-offset",
            "4294967295",
            "tuff: \"d/f\": gid 7 and an offset of 4294967295 are more than 4294967295\n",
        ),
    ] {
        let (code, said) = code(&run(&["build", option, offset, "t.mtree", "i"], &place.0));
        assert_eq!((code, said.as_str()), (2, says));
        assert_eq!(place.names(), ["t.mtree", "tree"]);
    }
    let highest = ["build", "-q", "--uid-offset", "4294966295", "t.mtree", "i"];
    assert_eq!(code(&run(&highest, &place.0)).0, 0);
    let stat = run(&["stat", "--json", "i", "d/f"], &place.0);
    let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).unwrap();
    assert_eq!(stat["uid"], u32::MAX);
}

#[test]
fn hard_links_of_manifests_come_in_any_order() {
    let place = Place::new("links");
    let file = "type=file contents=tree/hello";
    manifests(
        &place,
        &[
            (
                "any.mtree",
                &format!(
                    "./c hardlink=b\n./b hardlink=a\n./gone hardlink=nothing\n./gone/f hardlink=a\n\
                     ./over hardlink=nothing\n./over type=fifo\n./a {file}"
                ),
            ),
            ("missing.mtree", &format!("./a {file}\n./d/b hardlink=c")),
            (
                "circle.mtree",
                &format!("./a {file}\n./b hardlink=c\n./c hardlink=b"),
            ),
            (
                "long.mtree",
                &format!("./a {file}\n./l type=link link={}", "t".repeat(4096)),
            ),
            (
                "name.mtree",
                &format!("./a {file}\n./{} type=fifo", "n".repeat(256)),
            ),
        ],
    );
    let out = run(&["build", "-q", "any.mtree", "i"], &place.0);
    let (status, said) = code(&out);
    assert_eq!(status, 0, "{said}");
    assert!(
        said.starts_with("tuff: warning: \"gone\": no directory at first"),
        "{said}"
    );
    let nid = |path: &str| {
        let stat = run(&["stat", "--json", "i", path], &place.0);
        let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).unwrap();
        (stat["nid"].clone(), stat["nlink"].clone())
    };
    assert_eq!(nid("a").1, 4);
    for path in ["b", "c", "gone/f"] {
        assert_eq!(nid(path), nid("a"), "{path}");
    }
    for (source, says) in [
        (
            "missing",
            "line 3: member \"d/b\": hard link to \"c\", which is not there",
        ),
        (
            "circle",
            "line 4: member \"c\": hard link to \"b\", which is not there",
        ),
        (
            "long",
            "line 3: member \"l\": symbolic link target of 4096 bytes",
        ),
        ("name", "line 3: member \"nnn"),
    ] {
        let source = format!("{source}.mtree");
        let (status, said) = code(&run(&["build", &source, "x"], &place.0));
        assert_eq!(status, 3, "{said}");
        assert!(
            said.starts_with(&format!("tuff: {source}: {says}")),
            "{said}"
        );
    }
}

#[test]
fn links_of_a_tar_to_nothing_name_the_tar_and_what_is_led_through_is_told() {
    let place = Place::new("tar-links");
    let script = "import tarfile
def make(name, members):
    with tarfile.open(name, 'w') as tar:
        for path, kind, link in members:
            info = tarfile.TarInfo(path)
            info.type, info.linkname = kind, link
            tar.addfile(info)
make('missing.tar', [('h', tarfile.LNKTYPE, 'a'), ('a', tarfile.REGTYPE, '')])
make('through.tar', [('s', tarfile.SYMTYPE, 'd'), ('s/f', tarfile.REGTYPE, '')])
";
    let made = Command::new("python3")
        .args(["-c", script])
        .current_dir(&place.0)
        .status();
    if !made.is_ok_and(|s| s.success()) {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "SKIPPED: python3 is not installed");
        return;
    }
    let (status, said) = code(&run(&["build", "missing.tar", "x"], &place.0));
    assert_eq!(
        (status, said.as_str()),
        (
            3,
            "tuff: missing.tar: member \"h\": hard link to \"a\", which is not there\n"
        )
    );
    let out = run(&["build", "--json", "through.tar", "i"], &place.0);
    assert!(out.status.success());
    let summary: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let warning = summary["warnings"][0].as_str().unwrap();
    assert!(
        warning.starts_with("\"s\": no directory at first"),
        "{warning}"
    );
}

/// More than fits behind an inode lies where shared attributes are; what fits nowhere names its path.
#[test]
fn attributes_that_are_too_many_or_have_no_place_name_their_path() {
    let place = Place::new("attributes");
    let large = |n: usize| -> String {
        let value = "v".repeat(60_000);
        (0..n).map(|i| format!(" xattr.user.{i}={value}")).collect()
    };
    let small: String = (0..300)
        .map(|i| format!(" xattr.user.s{i}={}", "v".repeat(1000)))
        .collect();
    let many: String = (0..600)
        .map(|i| format!(" xattr.user.s{i}={}", "v".repeat(1000)))
        .collect();
    manifests(
        &place,
        &[
            (
                "large.mtree",
                &format!("./d type=dir\n./d/f type=fifo{}", large(6)),
            ),
            (
                "small.mtree",
                &format!(
                    "./d type=dir\n./d/f type=fifo{small} xattr.user.z={}",
                    "z".repeat(60_000)
                ),
            ),
            (
                "many.mtree",
                &format!("./d type=dir\n./d/f type=fifo{many}"),
            ),
            (
                "odd.mtree",
                "./d type=dir xattr.com.apple.x=1\n./d/f type=fifo xattr.com.apple.x=2",
            ),
        ],
    );
    for (source, count) in [("large", 6), ("small", 301)] {
        let source = format!("{source}.mtree");
        let out = run(&["build", "-q", "--verify", &source, "i"], &place.0);
        assert_eq!(code(&out), (0, String::new()), "{source}");
        assert_eq!(code(&run(&["check", "i"], &place.0)).0, 0);
        let stat = run(&["stat", "--json", "i", "d/f"], &place.0);
        let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).unwrap();
        let found = stat["xattrs"].as_array().map(Vec::len);
        let found = found.or_else(|| stat["xattrs"].as_object().map(serde_json::Map::len));
        assert_eq!(found, Some(count), "{source}");
    }
    let (status, said) = code(&run(&["build", "many.mtree", "x"], &place.0));
    assert_eq!(status, 4, "{said}");
    assert!(
        said.starts_with("tuff: limit reached: \"d/f\": attributes: "),
        "{said}"
    );
    let out = run(&["build", "--json", "odd.mtree", "i"], &place.0);
    let summary: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        summary["warnings"],
        serde_json::json!([
            "\"d\", \"d/f\": attribute com.apple.x: left out, EROFS has no place for its name or value"
        ])
    );
}

/// What no reader would take is not written.
#[test]
fn a_tree_that_is_too_deep_is_refused_with_its_limit() {
    let place = Place::new("deep");
    let deep = |dirs: usize| format!("./{}f type=fifo", "d/".repeat(dirs));
    manifests(
        &place,
        &[("deep.mtree", &deep(65_535)), ("over.mtree", &deep(65_536))],
    );
    let out = run(&["build", "-q", "deep.mtree", "i"], &place.0);
    assert_eq!(code(&out), (0, String::new()));
    assert_eq!(code(&run(&["check", "i"], &place.0)), (0, String::new()));
    let (status, said) = code(&run(&["build", "over.mtree", "x"], &place.0));
    assert_eq!(status, 4, "{said}");
    assert!(said.starts_with("tuff: limit reached: \"d/d/d/"), "{said}");
    assert!(
        said.ends_with(
            "... (131071 bytes): directories are nested deeper than the limit depth, 65536\n"
        ),
        "{said}"
    );
}

#[test]
fn names_of_an_order_that_are_not_there_are_told() {
    let place = Place::new("order");
    std::fs::write(place.0.join("order"), "sub/same\ngone\n./gone/too\n").unwrap();
    let out = run(
        &["build", "--json", "--order", "order", "tree", "i"],
        &place.0,
    );
    let summary: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        summary["warnings"],
        serde_json::json!([
            "\"gone\", \"gone/too\": in the order that was asked for, but not in the tree"
        ])
    );
}

#[test]
fn a_layer_that_needs_another_names_what_it_is() {
    let place = Place::new("metacopy");
    manifests(
        &place,
        &[
            (
                "lower.mtree",
                "./d type=dir\n./d/f type=file contents=tree/hello",
            ),
            (
                "upper.mtree",
                "./d type=dir\n./d/f type=file contents=tree/hello xattr.trusted.overlay.metacopy=",
            ),
            (
                "white.mtree",
                "./d type=dir xattr.user.overlay.opaque=x\n./d/f type=file size=0 xattr.user.overlay.whiteout=",
            ),
        ],
    );
    for options in [&["-q"][..], &["-q", "--no-xattrs"]] {
        let args = |upper, image| [&["build"], options, &["lower.mtree", upper, image]].concat();
        let out = run(&args("upper.mtree", "i"), &place.0);
        let (code, said) = code(&out);
        assert_eq!(code, 3, "{said}");
        assert!(
            said.starts_with("tuff: upper.mtree: line 3: member \"d/f\": overlay.metacopy: "),
            "{said}"
        );
        let out = run(&args("white.mtree", "w"), &place.0);
        assert!(out.status.success());
        let listed = run(&["ls", "w", "d"], &place.0);
        assert_eq!(String::from_utf8_lossy(&listed.stdout), "");
    }
    // A source alone is kept as it is.
    let out = run(&["build", "-q", "upper.mtree", "i"], &place.0);
    assert!(out.status.success(), "{}", code(&out).1);
}

#[test]
fn auto_stores_what_does_not_shrink_and_makes_the_same_image_on_any_number_of_threads() {
    let place = Place::new("auto");
    let mut seed = 5u64;
    let noise: Vec<u8> = (0..300_000)
        .map(|_| {
            seed = (seed.wrapping_mul(6364136223846793005)).wrapping_add(1442695040888963407);
            (seed >> 56) as u8
        })
        .collect();
    let letters: Vec<u8> = noise.iter().map(|b| b"acgt"[usize::from(b & 3)]).collect();
    for (name, bytes) in [
        ("noise", &noise[..]),
        ("noise-again", &noise[..]),
        ("letters", &letters[..]),
        ("repeated", &noise[..20_000].repeat(15)[..]),
    ] {
        std::fs::write(place.0.join("tree").join(name), bytes).unwrap();
    }
    for aim in ["size", "balanced", "speed"] {
        let mut images = Vec::new();
        for threads in ["1", "2", "7"] {
            let image = format!("{aim}-{threads}");
            let args = [
                "build", "--json", "--verify", "--kernel", "6.12", "--auto", aim,
            ];
            let out = run(
                &[&args[..], &["-j", threads, "tree", &image]].concat(),
                &place.0,
            );
            assert_eq!(code(&out).0, 0, "{}", code(&out).1);
            let done: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
            assert_eq!(done["auto"]["stored"]["files"], 2, "{done}");
            let fast = u64::from(aim == "balanced");
            assert_eq!(done["auto"]["fast"]["files"], fast, "{done}");
            images.push(std::fs::read(place.0.join(&image)).unwrap());
        }
        assert!(images[0] == images[1] && images[0] == images[2], "{aim}");
        let out = run(&["diff", &format!("{aim}-1"), "tree"], &place.0);
        assert_eq!(code(&out).0, 0, "{}", String::from_utf8_lossy(&out.stdout));
    }
}

/// A tree whose image shrinks from setting to setting.
fn letters(place: &Place) {
    let mut seed = 5u64;
    let letters: Vec<u8> = (0..600_000)
        .map(|_| {
            seed = (seed.wrapping_mul(6364136223846793005)).wrapping_add(1442695040888963407);
            b"acgt"[(seed >> 62) as usize]
        })
        .collect();
    std::fs::write(place.0.join("tree/letters"), letters).unwrap();
}

#[test]
fn a_size_budget_is_kept_by_the_first_settings_that_can() {
    let place = Place::new("size-budget");
    letters(&place);
    let build = |budget: &str| {
        let args = [
            "build",
            "--json",
            "--kernel",
            "6.12",
            "--size-budget",
            budget,
        ];
        run(&[&args[..], &["tree", "i"]].concat(), &place.0)
    };
    let settings = |budget: &str, most: u64| {
        let out = build(budget);
        assert_eq!(code(&out).0, 0, "{}", code(&out).1);
        let done: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        let image = std::fs::metadata(place.0.join("i")).unwrap().len();
        assert!(image <= most, "{image}");
        done["settings"].as_str().unwrap().to_owned()
    };
    assert_eq!(settings("64M", 64 << 20), "-z lz4 -C 64K");
    // Two bits for a letter: LZ4 cannot.
    assert_eq!(settings("220K", 220 << 10), "--auto balanced");
    std::fs::remove_file(place.0.join("i")).unwrap();
    let (exit, says) = code(&build("20K"));
    assert_eq!(exit, 4, "{says}");
    assert!(says.contains("as small as 20480 bytes"), "{says}");
    assert_eq!(place.names(), ["tree"], "nothing is left");
    let out = run(&["build", "--size-budget", "1M", "-", "i"], &place.0);
    assert!(code(&out).1.contains("standard input"), "{}", code(&out).1);
}

#[test]
fn suggestions_can_be_run_as_they_stand() {
    let place = Place::new("suggest");
    letters(&place);
    let out = run(&["suggest", "--json", "--sample", "300K", "tree"], &place.0);
    assert_eq!(code(&out).0, 0, "{}", code(&out).1);
    let said: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(said["estimates"].as_array().unwrap().len() >= 8, "{said}");
    let smallest = said["recommended"]["smallest"].as_str().unwrap();
    let args: Vec<&str> = smallest
        .split(' ')
        .skip(1)
        .map(|a| if a == "IMAGE" { "i" } else { a })
        .collect();
    assert_eq!(code(&run(&args, &place.0)).0, 0, "{smallest}");
    let text = run(
        &["suggest", "--quiet", "--sample", "300K", "tree"],
        &place.0,
    );
    assert!(String::from_utf8_lossy(&text.stdout).contains("-z lz4hc -C 64K"));
    let (exit, says) = code(&run(&["suggest", "missing"], &place.0));
    assert_eq!(exit, 5, "{says}");
    assert!(says.contains("missing"), "{says}");
}

/// Labels and owners as Android has them, by tables: no host has the labels of another system.
#[test]
fn labels_and_owners_come_from_tables() {
    let place = Place::new("tables");
    manifests(
        &place,
        &[(
            "t.mtree",
            ". type=dir\n./bin type=dir xattr.security.selinux=host\n./bin/run type=file size=0 uid=1000\n./none type=file size=0",
        )],
    );
    let write = |name: &str, text: &str| std::fs::write(place.0.join(name), text).unwrap();
    write(
        "contexts",
        "/system(/.*)? u:object_r:system_file:s0\n/system/bin/run -- u:object_r:run_exec:s0\n/system/none <<none>>\n",
    );
    write(
        "owners",
        "system 0 0 0755\nsystem/bin 0 2000 0751\nsystem/bin/run 0 2000 0750 capabilities=0x40\nsystem/none 1 2 0600\n",
    );
    let build = |more: &[&str]| {
        let mut args = vec!["build", "-q", "--file-contexts", "contexts", "t.mtree", "a"];
        args.extend_from_slice(more);
        code(&run(&args, &place.0))
    };
    let tables = ["--fs-config", "owners", "--mount-point", "/system/"];
    assert_eq!(
        build(&tables),
        (
            0,
            "tuff: warning: \"none\": no label: no line of --file-contexts gives one\n".to_owned()
        )
    );
    let out = run(
        &["stat", "--json", "a", "/", "bin", "bin/run", "none"],
        &place.0,
    );
    let found: Vec<String> = String::from_utf8(out.stdout)
        .unwrap()
        .lines()
        .map(|line| {
            let stat: serde_json::Value = serde_json::from_str(line).unwrap();
            let names = stat["xattrs"].as_array().unwrap().iter();
            let names: Vec<String> = names.map(|x| x["name"].to_string()).collect();
            format!(
                "{} {} {} {}",
                stat["mode"],
                stat["uid"],
                stat["gid"],
                names.join(" ")
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            "\"0755\" 0 0 \"security.selinux\"",
            "\"0751\" 0 2000 \"security.selinux\"",
            "\"0750\" 0 2000 \"security.capability\" \"security.selinux\"",
            "\"0600\" 1 2 "
        ]
    );
    assert_eq!(
        code(&run(&["check", "-q", "a"], &place.0)),
        (0, String::new())
    );
    // A path without an owner is an error, as it is to the tools of Android.
    write("owners", "system 0 0 0755\nsystem/bin 0 2000 0751\n");
    assert_eq!(
        build(&tables),
        (
            3,
            "tuff: \"none\", \"bin/run\": not in the table of owners (--fs-config)\n".to_owned()
        )
    );
    write("contexts", "/a\n");
    let (code, said) = build(&[]);
    assert_eq!(code, 3);
    assert!(said.contains("contexts: line 1: expected"), "{said}");
}

/// Layers of OCI without an option, and one as a layer of an overlay.
#[test]
fn layers_of_oci_delete_and_become_layers_of_an_overlay() {
    let place = Place::new("oci");
    for (dir, files) in [
        ("l1", &["a", "d/x"][..]),
        ("l2", &[".wh.a", "d/.wh..wh..opq", "d/y"]),
    ] {
        for file in files {
            let path = place.0.join(dir).join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let tar = Command::new("tar")
            .args(["-C", dir, "-cf", &format!("{dir}.tar"), "."])
            .current_dir(&place.0)
            .status();
        assert!(tar.unwrap().success());
    }
    let list = |image: &str| {
        let out = run(&["ls", "-R", image], &place.0);
        String::from_utf8(out.stdout).unwrap()
    };
    let built = run(&["build", "-q", "l1.tar", "l2.tar", "both"], &place.0);
    assert_eq!(code(&built), (0, String::new()));
    assert_eq!(list("both"), "/\nd\nd/y\n");
    let convert = ["build", "-q", "--whiteouts", "convert", "l2.tar", "layer"];
    assert_eq!(code(&run(&convert, &place.0)), (0, String::new()));
    let out = run(&["ls", "-lR", "layer"], &place.0);
    let long = String::from_utf8(out.stdout).unwrap();
    let null = long.lines().find(|l| l.ends_with(" a")).unwrap();
    assert!(
        null.starts_with("c---------") && null.contains("0, 0"),
        "{long}"
    );
    let out = run(&["stat", "layer", "d"], &place.0);
    let stat = String::from_utf8(out.stdout).unwrap();
    assert!(stat.contains("trusted.overlay.opaque=y"), "{stat}");
    let (code, said) = code(&run(&[&convert[..], &["--no-xattrs"]].concat(), &place.0));
    assert_eq!(code, 2, "{said}");
}
