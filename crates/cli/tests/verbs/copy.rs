//! tar and extract: the tree survives a round trip.

use crate::common::{Place, code, is_root, skipped, stderr, tool};
use std::fs;
use std::os::unix::fs::MetadataExt;
use tuff_testkit::program;

/// Compares an image with a directory; without root only what every user can create.
fn assert_same(place: &Place, image: &str, dir: &str) {
    let mut args = vec!["diff", image, dir];
    if !is_root() {
        skipped("owners, devices, trusted attributes: they need root");
        args.push("--content-only");
    }
    assert_eq!(place.text(&args), "");
}

#[test]
fn tar_depends_on_the_tree_alone() {
    let place = Place::with_image("tar-stable");
    place.image("stored", &["-z", "none", "--set", "inodes=extended"]);
    place.image(
        "zstd",
        &["-z", "zstd", "--kernel", "6.18", "--fragments", "on"],
    );
    let first = place.run(&["tar", "i"]);
    assert_eq!((code(&first), stderr(&first).as_str()), (0, ""));
    assert_eq!(first.stdout.len() % 10_240, 0);
    for image in ["i", "stored", "zstd"] {
        assert!(place.run(&["tar", image]).stdout == first.stdout, "{image}");
        place.text(&["tar", image, "out.tar"]);
        assert!(
            fs::read(place.path("out.tar")).unwrap() == first.stdout,
            "{image} to a file"
        );
    }
}

#[test]
fn gnu_tar_makes_the_same_tree() {
    let place = Place::with_image("tar-gnu");
    for (i, options) in [&[][..], &["--no-sparse"]].into_iter().enumerate() {
        let (tar, dir) = (format!("{i}.tar"), format!("out{i}"));
        place.text(&[&["tar", "i", &tar][..], options].concat());
        fs::create_dir(place.path(&dir)).unwrap();
        let mut args = vec!["-xpf", &tar, "-C", &dir, "--xattrs", "--xattrs-include=*"];
        if !is_root() {
            args.extend(["--exclude=blk", "--exclude=chr", "--no-xattrs"]);
        }
        args.push("--warning=no-timestamp");
        let Some(out) = tool(&place.0, "tar", &args) else {
            return;
        };
        assert!(out.status.success(), "{}", stderr(&out));
        if is_root() {
            assert_same(&place, "i", &dir);
        } else {
            skipped("devices: they need root");
            let out = place.run(&["diff", "--content-only", "i", &dir]);
            let message = String::from_utf8_lossy(&out.stdout).into_owned();
            assert_eq!(message, "- blk (block device)\n- chr (char device)\n");
        }
    }
    // Holes stay holes.
    use std::os::unix::fs::MetadataExt;
    let blocks = |dir: &str| {
        fs::metadata(place.path(dir).join("sparse"))
            .unwrap()
            .blocks()
    };
    assert!(
        blocks("out0") < blocks("out1"),
        "{} {}",
        blocks("out0"),
        blocks("out1")
    );
}

#[test]
fn an_image_of_the_tar_is_the_same_tree() {
    let place = Place::with_image("tar-build");
    place.text(&["tar", "i", "t.tar"]);
    place.text(&["build", "-q", "--sparse", "keep", "t.tar", "again"]);
    assert_eq!(place.text(&["diff", "i", "again"]), "");
}

#[test]
fn parts_of_a_tree_keep_their_paths() {
    let place = Place::with_image("tar-parts");
    place.text(&["tar", "i", "t.tar", "/dir/h*", "many", "hello"]);
    let Some(out) = tool(&place.0, "tar", &["-tf", "t.tar"]) else {
        return;
    };
    // The second path of an inode is a link to the first one present.
    assert_eq!(
        String::from_utf8_lossy(&out.stdout),
        "dir/hello-again\nhello\nmany/\nmany/copy\n"
    );
    let Some(out) = tool(&place.0, "tar", &["-tvf", "t.tar", "hello"]) else {
        return;
    };
    assert!(String::from_utf8_lossy(&out.stdout).contains("hello link to dir/hello-again"));
}

#[test]
fn sockets_are_listed() {
    let place = Place::new("tar-socket");
    fs::write(
        place.path("s.mtree"),
        "#mtree\n. type=dir\n./sock type=socket\n",
    )
    .unwrap();
    place.text(&["build", "-q", "s.mtree", "i"]);
    let out = place.run(&["tar", "i", "t.tar"]);
    assert_eq!(code(&out), 0);
    assert_eq!(
        stderr(&out),
        "tuff: warning: sock: sockets have no place in a tar\n"
    );
}

/// Extracts an image. Without root, owners and attributes that cannot be restored are only reported.
fn extract(place: &Place, args: &[&str]) {
    let out = place.run(&[&["extract", "-q"], args].concat());
    if is_root() {
        assert_eq!((code(&out), stderr(&out).as_str()), (0, ""), "{args:?}");
    } else {
        assert!(code(&out) <= 1, "{args:?}: {}", stderr(&out));
        skipped(format_args!(
            "owners and attributes need root: {}",
            stderr(&out).trim_end()
        ));
    }
}

#[test]
fn extract_gives_the_tree_back() {
    let place = Place::with_image("extract");
    let mut args = vec!["i", "out"];
    if !is_root() {
        args.extend(["--exclude", "/blk", "--exclude", "/chr"]);
    }
    let compare = || {
        if is_root() {
            return assert_same(&place, "i", "out");
        }
        skipped("devices need root");
        let out = place.run(&["diff", "--content-only", "i", "out"]);
        let message = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!(message, "- blk (block device)\n- chr (char device)\n");
    };
    extract(&place, &args);
    compare();
    let again = place.run(&[&["extract"], &args[..]].concat());
    assert_eq!(code(&again), 2);
    let message = stderr(&again);
    let named = message.strip_prefix("tuff: ").unwrap();
    let named = named.split(": already exists").next().unwrap();
    let out = place.path("out");
    assert!(out.join(named).symlink_metadata().is_ok(), "{message}");
    args.push("--overwrite");
    extract(&place, &args);
    compare();
}

#[test]
fn extract_takes_paths_patterns_and_strips() {
    let place = Place::with_image("extract-parts");
    let names = |dir: &str| {
        let mut names: Vec<String> = fs::read_dir(place.path(dir))
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    extract(&place, &["i", "a", "hello*"]);
    assert_eq!(names("a"), ["dir", "hello"]);
    assert_eq!(names("a/dir"), ["hello-again"]);
    extract(&place, &["--strip", "1", "i", "b", "many", "/dir/t*"]);
    assert_eq!(names("b"), ["copy", "text"]);
    let summary = &place.json(&["extract", "--no-xattrs", "--json", "i", "c", "dir/text"])[0];
    assert_eq!(
        (&summary["files"], &summary["bytes"]),
        (&1.into(), &468_890.into())
    );
    let out = place.run(&["extract", "--max-bytes", "1K", "i", "d", "dir/text"]);
    assert_eq!(code(&out), 4, "{}", stderr(&out));
}

#[test]
fn acls_come_back_as_acls_and_as_attributes() {
    if !is_root() {
        skipped("ACLs of others: they need root");
        return;
    }
    let place = Place::new("tar-acl");
    // user::rw-,user:1000:rwx,group::r--,mask::rwx,other::r--
    let entries = "0100 0600 ffffffff 0200 0700 e8030000 0400 0400 ffffffff 1000 0700 ffffffff 2000 0400 ffffffff";
    let acl = format!("0x02000000{}", entries.replace(' ', ""));
    let line = "type=dir mode=0755\n./f type=file size=0 mode=0674 xattr.system.posix_acl_access=";
    fs::write(
        place.path("a.mtree"),
        format!("#mtree\n/set uid=0 gid=0 time=1\n. {line}{acl}\n"),
    )
    .unwrap();
    place.text(&["build", "-q", "a.mtree", "i"]);
    place.text(&["tar", "i", "t.tar"]);
    for (dir, option) in [("acls", "--acls"), ("xattrs", "--no-acls")] {
        fs::create_dir(place.path(dir)).unwrap();
        let args = [
            "-xpf",
            "t.tar",
            "-C",
            dir,
            "--xattrs",
            "--xattrs-include=*",
            option,
        ];
        let Some(out) = tool(&place.0, "tar", &args) else {
            return;
        };
        if stderr(&out).contains("not supported") {
            skipped(stderr(&out).trim_end());
            continue;
        }
        assert!(out.status.success(), "{}", stderr(&out));
        assert_eq!(place.text(&["diff", "i", dir]), "", "{option}");
    }
}

/// Regression: without root, read-only files and directories lost their attributes, because the mode was set first.
#[test]
fn attributes_of_read_only_files_are_restored_without_root() {
    let place = Place::new("extract-read-only");
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&place.0, all).unwrap();
    let lines = "#mtree\n/set uid=54322 gid=54322 time=1\n. type=dir mode=0555 xattr.user.of=root\n\
        ./f type=file size=0 mode=0444 xattr.user.of=f\n./d type=dir mode=0555 xattr.user.of=d\n\
        ./d/g type=file size=0 mode=0 xattr.user.of=g\n";
    fs::write(place.path("a.mtree"), lines).unwrap();
    place.text(&["build", "-q", "a.mtree", "i"]);
    let out = if is_root() {
        program::copy(env!("CARGO_BIN_EXE_tuff"), place.path("tuff"));
        let as_other = ["--reuid=54322", "--regid=54322", "--clear-groups", "./tuff"];
        let args = [&as_other[..], &["extract", "-q", "i", "out"]].concat();
        match tool(&place.0, "setpriv", &args) {
            Some(out) => out,
            None => return,
        }
    } else {
        place.run(&["extract", "-q", "i", "out"])
    };
    assert_eq!((code(&out), stderr(&out).as_str()), (0, ""));
    if is_root() {
        assert_eq!(place.text(&["diff", "i", "out"]), "");
    } else {
        skipped("a file that nobody may read, and the owner: they need root");
    }
}

/// Regression: files of owner 4294967295 silently became root's, because chown takes that number as "unchanged".
#[test]
fn an_owner_that_chown_cannot_set_is_reported() {
    if !is_root() {
        skipped("owners: they need root");
        return;
    }
    let place = Place::new("extract-no-owner");
    let lines = "#mtree\n/set uid=0 gid=0 time=1\n. type=dir mode=0755\n\
        ./f type=file size=0 mode=4755 uid=4294967295 gid=7\n./l type=link link=f mode=0777 gid=4294967295\n";
    fs::write(place.path("a.mtree"), lines).unwrap();
    place.text(&["build", "-q", "a.mtree", "i"]);
    let out = place.run(&["extract", "-q", "i", "out"]);
    assert_eq!(code(&out), 1);
    let what = "owner not restored: no user or group can be 4294967295";
    assert_eq!(stderr(&out), format!("tuff: f: {what}\ntuff: l: {what}\n"));
    use std::os::unix::fs::MetadataExt;
    let f = fs::metadata(place.path("out/f")).unwrap();
    assert_eq!((f.uid(), f.gid(), f.mode() & 0o7777), (0, 7, 0o755));
}

#[test]
fn hard_links_are_copies_where_the_filesystem_refuses_links() {
    let place = Place::new("link-copies");
    fs::create_dir(place.path("tree")).unwrap();
    let content = "content\n".repeat(300_000);
    fs::write(place.path("tree/a"), &content).unwrap();
    for name in ["b", "c"] {
        fs::hard_link(place.path("tree/a"), place.path("tree").join(name)).unwrap();
    }
    place.text(&["build", "-q", "tree", "i"]);
    for error in ["EPERM", "EMLINK", "EOPNOTSUPP"] {
        let inject = format!("inject=linkat:error={error}");
        let tuff = env!("CARGO_BIN_EXE_tuff");
        let args = [
            "-f",
            "-o",
            "trace",
            "-e",
            "trace=linkat",
            "-e",
            &inject,
            tuff,
            "extract",
            "-q",
            "i",
            error,
        ];
        let Some(out) = tool(&place.0, "strace", &args) else {
            return;
        };
        let message = stderr(&out);
        if message.contains("ptrace") {
            return skipped(message.trim());
        }
        assert_eq!(code(&out), 1, "{message}");
        assert_eq!(
            message.matches("a copy instead of a hard link").count(),
            2,
            "{message}"
        );
        for name in ["a", "b", "c"] {
            let path = place.path(error).join(name);
            assert!(
                fs::read(&path).unwrap() == content.as_bytes(),
                "{error} {name}"
            );
            let (meta, expected) = (
                fs::metadata(&path).unwrap(),
                fs::metadata(place.path("tree/a")).unwrap(),
            );
            assert_eq!((meta.nlink(), meta.mode()), (1, expected.mode()));
            assert_eq!(
                (meta.mtime(), meta.mtime_nsec()),
                (expected.mtime(), expected.mtime_nsec())
            );
        }
    }
    // Other errors stay errors.
    let tuff = env!("CARGO_BIN_EXE_tuff");
    let args = [
        "-f",
        "-o",
        "trace",
        "-e",
        "trace=linkat",
        "-e",
        "inject=linkat:error=EIO",
        tuff,
        "extract",
        "-q",
        "i",
        "EIO",
    ];
    assert_eq!(
        tool(&place.0, "strace", &args).map(|out| code(&out)),
        Some(5)
    );
}
