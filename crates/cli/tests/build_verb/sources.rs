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
    let (code, said) = code(&run(&["build", "bad.mtree", "b"], &place.0));
    assert_eq!(code, 5, "{said}");
    assert!(
        said.contains("bad.mtree") && said.contains("gone"),
        "{said}"
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
fn dangling_hard_links_and_symlinked_parents_of_a_tar_are_reported() {
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
            "\"d\", \"d/f\": attribute com.apple.x: left out, EROFS cannot hold its name or value"
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
