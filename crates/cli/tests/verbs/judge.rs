//! check, diff, exit codes, and readers that close standard output early.

use crate::common::{Place, code, stderr};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn a_valid_image_is_clean() {
    let place = Place::with_image("clean");
    let text = place.text(&["check", "i"]);
    assert!(text.ends_with("\nclean\n"), "{text}");
    let report = &place.json(&["check", "--json", "i"])[0];
    assert_eq!(
        (&report["clean"], &report["inodes"]),
        (&true.into(), &16.into())
    );
    assert_eq!(place.text(&["check", "-q", "i"]), "");
}

#[test]
fn damaged_data_is_reported_with_its_place() {
    let place = Place::with_image("damaged");
    let extents = place.extents("i", "dir/text");
    let at = extents[1]["physical"].as_u64().unwrap() as usize;
    let mut bytes = fs::read(place.path("i")).unwrap();
    bytes[at..at + 4096].fill(0);
    fs::write(place.path("z"), bytes).unwrap();
    let out = place.run(&["check", "-q", "z"]);
    let message = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(code(&out), 1, "{message}");
    assert!(message.starts_with("error[cluster]: "), "{message}");
    assert!(message.contains(&format!("{at:#x}")), "{message}");
    assert_eq!(code(&place.run(&["check", "-q", "--metadata", "z"])), 0);
    for verb in [
        &["cat", "z", "dir/text"][..],
        &["tar", "z", "t.tar"],
        &["extract", "z", "out"],
    ] {
        let out = place.run(verb);
        assert_eq!(code(&out), 3, "{verb:?}: {}", stderr(&out));
        assert_eq!(stderr(&out).lines().count(), 1, "{}", stderr(&out));
        assert!(stderr(&out).contains("dir/text"), "{}", stderr(&out));
    }
    assert!(!place.path("t.tar").exists(), "half a tar has no name");
}

#[test]
fn the_directory_of_temporary_files_is_reported() {
    let place = Place::with_image("no-tmpdir");
    let mut build = place.command(&["build", "-q", ".", "-"]);
    let out = build.env("TMPDIR", "nowhere").output().unwrap();
    assert_eq!(code(&out), 5);
    let message = stderr(&out);
    assert!(message.contains("a temporary file in nowhere"), "{message}");
}

#[test]
fn exit_codes_follow_the_kind_of_error() {
    let place = Place::with_image("codes");
    place.damage("magic", 1024, |b| b ^ 1);
    place.damage("checksum", 1024 + 48, |b| b ^ 1); // UUID
    place.damage("feature", 1024 + 0x51, |b| b | 0x80);
    for (args, expected, says) in [
        (&["ls", "i", "nothing"][..], 2, "\"nothing\" does not exist"),
        (&["ls", "i", "hello/x"], 2, "is not a directory"),
        (&["ls", "i", "*.nothing"], 2, "nothing in the image matches"),
        (&["cat", "i", "nothing"], 2, "\"nothing\" does not exist"),
        (
            &["stat", "i", "dir/nothing"],
            2,
            "\"nothing\" does not exist",
        ),
        (
            &["tar", "i", "t.tar", "nothing"],
            2,
            "\"nothing\" does not exist",
        ),
        (
            &["extract", "i", "out", "nothing"],
            2,
            "\"nothing\" does not exist",
        ),
        (&["ls", "i", "["], 2, "pattern '['"),
        (&["ls", "--offset", "1G", "i"], 2, "past its end"),
        (&["ls", "--device", "i", "i"], 2, "0 extra devices"),
        (&["ls", "magic"], 3, "magic: not an EROFS image"),
        (&["ls", "checksum"], 3, "checksum"),
        (
            &["ls", "feature"],
            4,
            "unsupported image: feature: superblock",
        ),
        (&["ls", "nowhere"], 5, "nowhere: cannot open"),
        (&["info", "checksum"], 3, "checksum"),
        (&["check", "magic"], 3, "magic number"),
        (&["diff", "i", "nowhere"], 5, "nowhere: cannot open"),
    ] {
        let out = place.run(args);
        assert_eq!(code(&out), expected, "{args:?}: {}", stderr(&out));
        assert!(stderr(&out).contains(says), "{args:?}: {}", stderr(&out));
        assert_eq!(
            stderr(&out).lines().count(),
            1,
            "{args:?}: {}",
            stderr(&out)
        );
    }
    let out = place.run(&["check", "-q", "checksum"]);
    assert_eq!(code(&out), 1);
    assert!(out.stdout.starts_with(b"error[checksum]: "));
    assert_eq!(code(&place.run(&["ls", "--no-checksum", "checksum"])), 0);
    assert!(!place.path("out").exists() && !place.path("t.tar").exists());
}

#[test]
fn diff_lists_differences() {
    let place = Place::new("diff");
    let tree =
        |lines: &str| format!("#mtree\n/set type=file uid=0 gid=0 time=1\n. type=dir\n{lines}");
    for (name, bytes) in [("one", "abcdef"), ("two", "abcXef"), ("longer", "abcdefg")] {
        fs::write(place.path(name), bytes).unwrap();
    }
    let before = "\
./bytes contents=one
./dev type=char device=1,2
./gone contents=one
./kind contents=one
./len contents=one
./linked contents=one
./linked2 hardlink=linked
./meta contents=one mode=0600 xattr.user.a=1 xattr.user.b=2
./same contents=one
./sub type=dir
./sub/inside contents=one
./target type=link link=a
";
    let after = "\
./bytes contents=two
./dev type=char device=1,3
./kind type=dir
./kind/below contents=one
./len contents=longer
./linked contents=one
./linked2 contents=one
./meta contents=one mode=0644 uid=5 gid=6 time=2.000000003 xattr.user.b=3 xattr.user.c=4
./new contents=one
./same contents=one
./target type=link link=b
";
    fs::write(place.path("a.mtree"), tree(before)).unwrap();
    fs::write(place.path("b.mtree"), tree(after)).unwrap();
    place.text(&["build", "-q", "a.mtree", "a"]);
    place.text(&["build", "-q", "-z", "none", "b.mtree", "b"]);
    let out = place.run(&["diff", "a", "b"]);
    assert_eq!((code(&out), stderr(&out).as_str()), (1, ""));
    let expected = "\
~ bytes: content from byte 3
~ dev: device 1,2 -> 1,3
- gone (file)
~ kind: type file -> directory
+ kind/below (file)
~ len: size 6 -> 7
~ linked: links 2 -> 1
~ linked2: links 2 -> 1, hard link to \"linked\" -> none
~ meta: mode 0600 -> 0644, owner 0 -> 5, group 0 -> 6, time 1970-01-01T00:00:01.000000000Z -> \
1970-01-01T00:00:02.000000003Z, xattr user.a \"1\" -> none, xattr user.b \"2\" -> \"3\", xattr user.c none -> \"4\"
+ new (file)
- sub (directory)
- sub/inside (file)
~ target: target \"a\" -> \"b\"
2 added, 3 removed, 8 changed, 10 compared
";
    assert_eq!(String::from_utf8(out.stdout).unwrap(), expected);
    let out = place.run(&["diff", "--content-only", "--json", "a", "b"]);
    let lines = String::from_utf8(out.stdout).unwrap();
    let last: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["changed"], &last["added"], &last["removed"]),
        (&5.into(), &2.into(), &3.into())
    );
    assert_eq!(place.text(&["diff", "a", "a"]), "");
    let out = place.run(&["diff", "-q", "a", "b"]);
    assert_eq!((code(&out), out.stdout.len()), (1, 0));
}

#[test]
fn a_directory_inside_itself_ends_every_walk() {
    let place = Place::new("loop");
    fs::write(
        place.path("m.mtree"),
        "#mtree\n. type=dir\n./a/b type=dir\n./a/z type=dir\n",
    )
    .unwrap();
    place.text(&["build", "-q", "--no-checksum", "m.mtree", "i"]);
    let nid = place.json(&["stat", "--json", "i", "a"])[0]["nid"]
        .as_u64()
        .unwrap();
    let items = place.json(&["dump", "--json", "--inode", &nid.to_string(), "i"]);
    let block = items.iter().find(|i| i["rows"][2]["name"] == "b").unwrap();
    // The third entry of "a" is "b"; it is changed to "a" itself.
    let at = block["start"].as_u64().unwrap() as usize + 2 * 12;
    let mut bytes = fs::read(place.path("i")).unwrap();
    bytes[at..at + 8].copy_from_slice(&nid.to_le_bytes());
    fs::write(place.path("i"), bytes).unwrap();
    for (args, expected) in [
        (&["ls", "-R", "i"][..], 3),
        (&["tar", "i", "t.tar"], 3),
        (&["diff", "i", "i"], 3),
        (&["info", "i"], 3),
        (&["dump", "i"], 3),
        (&["extract", "i", "out"], 3),
        (&["check", "i"], 1),
    ] {
        let out = place.run(args);
        assert_eq!(code(&out), expected, "{args:?}: {}", stderr(&out));
    }
    // Undamaged entries are listed all the same.
    let out = place.run(&["ls", "-R", "i"]);
    assert_eq!(String::from_utf8_lossy(&out.stdout), "/\na\na/b\na/z\n");
    assert!(stderr(&out).contains("/a/b"), "{}", stderr(&out));
}

#[test]
fn an_image_may_lie_at_an_offset() {
    let place = Place::with_image("offset");
    let mut bytes = vec![0xAA; 8192];
    bytes.extend(fs::read(place.path("i")).unwrap());
    fs::write(place.path("o"), bytes).unwrap();
    assert_eq!(
        place.text(&["ls", "--offset", "8K", "o"]),
        place.text(&["ls", "i"])
    );
    assert_eq!(code(&place.run(&["ls", "o"])), 3);
}

#[test]
fn a_reader_may_close_standard_output_early() {
    let place = Place::new("pipe");
    let names: String = (0..5000)
        .map(|i| format!("./{i:0200} type=dir\n"))
        .collect();
    fs::write(
        place.path("m.mtree"),
        format!("#mtree\n. type=dir\n{names}"),
    )
    .unwrap();
    place.text(&["build", "-q", "m.mtree", "i"]);
    for args in [&["ls", "i"][..], &["dump", "i"], &["tar", "i"]] {
        let mut child = place
            .command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = Vec::new();
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        reader.read_until(b'0', &mut first).unwrap();
        drop(reader);
        let out = child.wait_with_output().unwrap();
        assert_eq!((code(&out), stderr(&out).as_str()), (0, ""), "{args:?}");
    }
}

#[test]
fn pages_and_completions_name_every_verb() {
    let place = Place::new("pages");
    place.text(&["man", "pages"]);
    let help = place.text(&["--help"]);
    let verbs = help
        .lines()
        .skip_while(|l| !l.ends_with(':'))
        .take_while(|l| *l != "Examples:");
    let verbs: Vec<&str> = verbs
        .filter_map(|l| l.strip_prefix("  ")?.split_whitespace().next())
        .collect();
    assert!(verbs.len() > 10, "{verbs:?}");
    let bash = place.text(&["completions", "bash"]);
    for verb in verbs {
        let page = fs::read_to_string(place.path(&format!("pages/tuff-{verb}.1"))).unwrap();
        for section in [
            "SYNOPSIS",
            "EXAMPLES",
            "\"EXIT STATUS\"",
            "ENVIRONMENT",
            "\"SEE ALSO\"",
        ] {
            assert!(
                page.contains(&format!(".SH {section}\n")),
                "{verb}: {section}"
            );
        }
        assert!(bash.contains(verb), "{verb}");
    }
    // Options that the short help hides are explained in the page.
    let page = fs::read_to_string(place.path("pages/tuff-build.1")).unwrap();
    assert!(page.contains("Omit extended attributes and ACLs"), "{page}");
}
