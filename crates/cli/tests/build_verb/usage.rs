//! Arguments and output of a build: exit codes, summary, and identical bytes for every kind of target.

use crate::common::{Place, code, manifests, run, tuff};

#[test]
fn wrong_arguments_give_one_line_and_code_2() {
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
            &["build", "--metadata=short", "--kernel=6.1", "tree", "i"],
            "the short form of metadata needs Linux 6.15",
        ),
        (
            &[
                "build",
                "--metadata=compressed",
                "--kernel=6.1",
                "tree",
                "i",
            ],
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
        // Only a rule compresses.
        (
            &[
                "build",
                "-z",
                "none",
                "--rule=*.so=lz4",
                "--unaligned",
                "--tail-packing=on",
                "tree",
                "i",
            ],
            "only where clusters begin at blocks",
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
        (
            &["build", "--all-root", "--uid", "1", "tree", "i"],
            "--all-root: cannot be used with --uid",
        ),
        (
            &["build", "--blob", "b", "tree", "i"],
            "--blob: you need --chunk as well",
        ),
        (
            &["build", "--set", "colour=blue", "tree", "i"],
            "colour is not an option",
        ),
        (
            &["build", "--set", "inodes=tiny", "tree", "i"],
            "'tiny' is none of auto, extended",
        ),
        // Flags and a verb of earlier releases name their successors.
        (
            &["build", "--index=full", "tree", "i"],
            "'--set index=VALUE'",
        ),
        (
            &["build", "--inodes", "extended", "tree", "i"],
            "'--set inodes=VALUE'",
        ),
        (
            &["build", "--xattr-share=1", "tree", "i"],
            "'--set xattr-share=VALUE'",
        ),
        (
            &["build", "--no-xattr-filter", "tree", "i"],
            "'--set no-xattr-filter'",
        ),
        (
            &["disk", "--min-saving=5", "tree", "i"],
            "'--set min-saving=VALUE'",
        ),
        (
            &["patch", "--fragment-cut=1M", "tree", "i"],
            "'--set fragment-cut=VALUE'",
        ),
        (
            &["build", "--metadata-cluster=4K", "tree", "i"],
            "'--set metadata-cluster=VALUE'",
        ),
        (&["extents", "i", "tree"], "'stat --extents'"),
    ] {
        let out = run(args, &place.0);
        let (code, message) = code(&out);
        assert_eq!(code, 2, "{args:?}: {message}");
        assert!(message.contains(says), "{args:?}: {message}");
        assert_eq!(place.names(), ["tree"], "{args:?}");
    }
}

/// The last path is the image, wherever options stand.
#[test]
fn options_may_stand_before_between_and_after_the_paths() {
    let place = Place::new("order");
    for args in [
        &["build", "-zlz4", "tree", "more", "i"][..],
        &["build", "tree", "-zlz4", "more", "i"],
        &["build", "tree", "more", "-z", "lz4", "i", "-q"],
    ] {
        std::fs::create_dir_all(place.0.join("more")).unwrap();
        let (code, message) = code(&run(args, &place.0));
        assert_eq!(code, 0, "{args:?}: {message}");
        assert_eq!(place.names(), ["i", "more", "tree"], "{args:?}");
        std::fs::remove_file(place.0.join("i")).unwrap();
    }
}

#[test]
fn missing_sources_are_reported_with_code_5() {
    let place = Place::new("missing");
    let (code, message) = code(&run(&["build", "nowhere", "i"], &place.0));
    assert_eq!(code, 5);
    assert_eq!(
        message,
        "tuff: nowhere: cannot open the source: No such file or directory (os error 2)\n"
    );
    let out = run(&["build", "tree", "no/such/dir/i"], &place.0);
    assert_eq!(out.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&out.stderr).contains("no/such/dir/i"));
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

/// Without `--kernel`, options that need a newer kernel raise it.
#[test]
fn the_image_is_for_the_oldest_kernel_with_the_requested_features() {
    let place = Place::new("kernel");
    for (args, kernel) in [
        (&[][..], "6.1"),
        (&["-z", "lzma"], "6.1"),
        (&["-z", "deflate"], "6.6"),
        (&["-z", "zstd:3", "-C", "64K"], "6.10"),
        (&["--rule", "*.txt=zstd"], "6.10"),
        (&["-b", "512"], "6.8"),
        (&["--unaligned"], "6.15"),
        (&["--metadata", "compressed"], "6.17"),
        (&["--metadata", "compressed", "--kernel", "6.18"], "6.18"),
    ] {
        let args = [&["build", "--json", "tree", "i"], args].concat();
        let out = run(&args, &place.0);
        let summary: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(summary["kernel"], kernel, "{args:?}");
    }
    let out = run(&["patch", "--json", "-z", "zstd", "tree", "i"], &place.0);
    let summary: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(summary["kernel"], "6.17");
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
    let clamped = build("e", "1000", &["--set", "clamp-mtime=900"]);
    assert_eq!(epoch(&clamped.1), 900);
}

/// Regression: an offset of 2^32 - 1 turned owner 1000 into 999.
#[test]
fn offsets_beyond_the_highest_owner_are_rejected() {
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
        let (code, message) = code(&run(&["build", option, offset, "t.mtree", "i"], &place.0));
        assert_eq!((code, message.as_str()), (2, says));
        assert_eq!(place.names(), ["t.mtree", "tree"]);
    }
    let highest = ["build", "-q", "--uid-offset", "4294966295", "t.mtree", "i"];
    assert_eq!(code(&run(&highest, &place.0)).0, 0);
    let stat = run(&["stat", "--json", "i", "d/f"], &place.0);
    let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).unwrap();
    assert_eq!(stat["uid"], u32::MAX);
}
