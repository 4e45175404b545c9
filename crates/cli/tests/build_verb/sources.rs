//! Extreme trees, manifests and tars: links, attributes and depth.

use crate::common::{Place, code, manifests, run};
use std::process::Command;

#[test]
fn extreme_trees_can_be_built() {
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
fn a_manifest_creates_entries_that_need_root() {
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
    let (code, message) = code(&run(&["build", "bad.mtree", "b"], &place.0));
    assert_eq!(code, 5, "{message}");
    assert!(
        message.contains("bad.mtree") && message.contains("gone"),
        "{message}"
    );
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
    let (status, message) = code(&out);
    assert_eq!(status, 0, "{message}");
    assert!(
        message.starts_with("tuff: warning: \"gone\": no directory at first"),
        "{message}"
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
        let (status, message) = code(&run(&["build", &source, "x"], &place.0));
        assert_eq!(status, 3, "{message}");
        assert!(
            message.starts_with(&format!("tuff: {source}: {says}")),
            "{message}"
        );
    }
}

#[test]
fn dangling_hard_links_of_a_tar_are_reported_and_symlinked_parents_followed() {
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
        tuff_testkit::skipped("python3 is not installed");
        return;
    }
    let (status, message) = code(&run(&["build", "missing.tar", "x"], &place.0));
    assert_eq!(
        (status, message.as_str()),
        (
            3,
            "tuff: missing.tar: member \"h\": hard link to \"a\", which is not there\n"
        )
    );
    let out = run(&["build", "--json", "through.tar", "i"], &place.0);
    assert!(out.status.success());
    let summary: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(summary["warnings"], serde_json::json!([]));
    assert_eq!(listed(&place, "i"), "/\nd\nd/f\ns\n");
}

/// Attributes that do not fit inline are stored in the shared area. Attributes that fit nowhere are reported with their
/// path.
#[test]
fn oversized_attributes_are_reported_with_their_path() {
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
    let (status, message) = code(&run(&["build", "many.mtree", "x"], &place.0));
    assert_eq!(status, 4, "{message}");
    assert!(
        message.starts_with("tuff: limit reached: \"d/f\": attributes: "),
        "{message}"
    );
    let out = run(&["build", "--json", "odd.mtree", "i"], &place.0);
    let summary: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        summary["warnings"],
        serde_json::json!([
            "\"d\", \"d/f\": attribute \"com.apple.x\": left out, EROFS cannot hold its name or value"
        ])
    );
}

/// A tree that no reader accepts is not written.
#[test]
fn a_too_deep_tree_is_rejected_with_the_limit() {
    let place = Place::new("deep");
    let deep = |dirs: usize| format!("./{}f type=fifo", "d/".repeat(dirs));
    manifests(
        &place,
        &[("deep.mtree", &deep(65_535)), ("over.mtree", &deep(65_536))],
    );
    let out = run(&["build", "-q", "deep.mtree", "i"], &place.0);
    assert_eq!(code(&out), (0, String::new()));
    assert_eq!(code(&run(&["check", "i"], &place.0)), (0, String::new()));
    let (status, message) = code(&run(&["build", "over.mtree", "x"], &place.0));
    assert_eq!(status, 4, "{message}");
    assert!(
        message.starts_with("tuff: limit reached: \"d/d/d/"),
        "{message}"
    );
    assert!(
        message.ends_with(
            "... (131071 bytes): directories are nested deeper than the limit depth, 65536\n"
        ),
        "{message}"
    );
}

/// Tar with these members: name, type flag, link target, content.
fn write_tar(place: &Place, name: &str, members: &[(&str, u8, &str, &str)]) {
    let mut tar = Vec::new();
    for (path, flag, target, content) in members {
        let mut block = vec![0; 512];
        block[..path.len()].copy_from_slice(path.as_bytes());
        block[100..107].copy_from_slice(b"0000644");
        block[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        block[156] = *flag;
        block[157..157 + target.len()].copy_from_slice(target.as_bytes());
        block[257..263].copy_from_slice(b"ustar\0");
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        tar.extend(block);
        tar.extend_from_slice(content.as_bytes());
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
    tar.resize(tar.len() + 1024, 0);
    std::fs::write(place.0.join(name), tar).unwrap();
}

fn listed(place: &Place, image: &str) -> String {
    let out = run(&["ls", "-R", image], &place.0);
    assert_eq!(code(&out), (0, String::new()));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn a_subtree_of_an_archive_or_image_is_the_root() {
    let place = Place::new("subtree");
    let members = [
        ("out/data", b'0', "", "text"),
        ("usr/share/a", b'0', "", "1"),
        ("usr/share/link", b'1', "out/data", ""),
        ("usr/bin", b'0', "", "2"),
    ];
    write_tar(&place, "t", &members);
    let tar = std::fs::File::open(place.0.join("t")).unwrap();
    let mut command = crate::common::tuff();
    command.args([
        "build",
        "-q",
        "--dedupe=off",
        "--subtree=usr/share",
        "-",
        "piped",
    ]);
    let out = command.current_dir(&place.0).stdin(tar).output().unwrap();
    assert_eq!(code(&out), (0, String::new()));
    let out = run(
        &["build", "-q", "--subtree", "/usr/share/", "t", "i"],
        &place.0,
    );
    assert_eq!(code(&out), (0, String::new()));
    let out = run(&["build", "-q", "t", "all"], &place.0);
    assert_eq!(code(&out), (0, String::new()));
    let out = run(
        &["build", "-q", "--subtree", "usr/share", "all", "again"],
        &place.0,
    );
    assert_eq!(code(&out), (0, String::new()));
    for image in ["i", "piped", "again"] {
        assert_eq!(listed(&place, image), "/\na\nlink\n");
        let out = run(&["cat", image, "link"], &place.0);
        assert_eq!(out.stdout, b"text");
        let out = run(&["check", "-q", image], &place.0);
        assert_eq!(code(&out), (0, String::new()));
    }
    let (exit, message) = code(&run(&["build", "--subtree", "none", "t", "o"], &place.0));
    assert!(
        exit == 2 && message.contains("no such directory"),
        "{message}"
    );
    let (exit, message) = code(&run(&["build", "--subtree", "sub", "tree", "o"], &place.0));
    assert!(
        exit == 2 && message.contains("tree: a subtree is one of archives"),
        "{message}"
    );
    assert!(!place.0.join("o").exists());
}

/// Root reads everything, so that the command runs as another user, or without capabilities.
#[test]
fn what_cannot_be_read_is_left_out_and_listed_if_asked() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new("keep-going");
    let lock = |name: &str| {
        let mode = std::fs::Permissions::from_mode(0o0);
        std::fs::set_permissions(place.0.join("tree").join(name), mode).unwrap();
    };
    std::fs::create_dir(place.0.join("tree/locked")).unwrap();
    std::fs::write(place.0.join("tree/locked/x"), "1").unwrap();
    std::fs::write(place.0.join("tree/secret"), "secret").unwrap();
    std::fs::set_permissions(&place.0, std::fs::Permissions::from_mode(0o777)).unwrap();
    lock("locked");
    lock("secret");
    let tuff = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args([
            "--bounding-set=-all",
            "--inh-caps=-all",
            "--reuid=65534",
            "--clear-groups",
        ]);
        command.arg(env!("CARGO_BIN_EXE_tuff"));
        command.args(args).current_dir(&place.0).output()
    };
    match tuff(&["--version"]) {
        Ok(out) if out.status.success() => {}
        _ => {
            return tuff_testkit::skipped(
                "no setpriv, or the program cannot be run as another user",
            );
        }
    }
    let (exit, message) = code(&tuff(&["build", "-q", "tree", "i"]).unwrap());
    assert!(
        exit == 5 && message.contains("Permission denied"),
        "{exit} {message}"
    );
    for arguments in [
        &["build", "-q", "--keep-going"][..],
        &["build", "-qk", "--dedupe=off"],
    ] {
        let out = tuff(&[arguments, &["tree", "i"]].concat()).unwrap();
        let (exit, message) = code(&out);
        assert_eq!(exit, 1, "{message}");
        assert_eq!(
            message,
            "tuff: left out: \"tree/locked\": cannot open directory: Permission denied (os error 13)\n\
             tuff: left out: \"tree/secret\": cannot open: Permission denied (os error 13)\n"
        );
        assert_eq!(
            listed(&place, "i"),
            "/\nempty\nhello\nlocked\nsub\nsub/same\n"
        );
        std::fs::remove_file(place.0.join("i")).unwrap();
    }
    let out = tuff(&["build", "--json", "-k", "tree", "i"]).unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(summary["left_out"].as_array().unwrap().len(), 2);
    let out = tuff(&["patch", "-q", "-k", "tree", "i"]).unwrap();
    assert_eq!(code(&out).0, 1, "{}", code(&out).1);
}

#[test]
fn members_of_an_archive_that_a_file_replaces_are_reported() {
    let place = Place::new("replaced");
    let members = [("d/x", b'0', "", "1"), ("d", b'2', "e", "")];
    write_tar(&place, "t", &members);
    let (exit, message) = code(&run(&["build", "-q", "t", "i"], &place.0));
    assert_eq!(exit, 0);
    assert!(
        message.contains("\"d\": a directory at first, with entries of the same source"),
        "{message}"
    );
}
