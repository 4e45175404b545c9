//! Names that a terminal would obey, through every output of every verb.

use crate::common::{Place, code, stderr};
use std::collections::BTreeSet;
use std::fs;
use std::process::{Output, Stdio};

/// Characters of every kind that a terminal or a browser obeys or hides, and a line that a line feed would begin.
const HOSTILE: &str = "e\x01\x1b[31m\x7f\u{80}\u{9b}1m\u{61c}\u{200b}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}\u{feff}\
     \nINJECTED";

/// The name in a manifest, for a directory, a file, a symlink, its target, an attribute and its value.
fn manifest() -> String {
    let name: String = HOSTILE.bytes().map(|b| format!("\\{b:03o}")).collect();
    format!(
        "#mtree\n/set uid=0 gid=0 mode=0644 time=1\n. type=dir mode=0755\n./{name} type=dir mode=0755\n\
         ./{name}/file\\377{name} type=file contents=data xattr.user.{name}={name}\n\
         ./{name}/link type=link link={name} mode=0777\n./plain type=file contents=data\n\
         ./{name}/long type=file contents=data xattr.user.{name}{}={name}\n",
        "x".repeat(250)
    )
}

/// Files with the name and images of the manifest, whole, damaged and cut, a volume, and others.
fn stage(name: &str) -> Place {
    let place = Place::new(name);
    fs::create_dir(place.path("tree")).unwrap();
    fs::write(place.path("data"), "data\n".repeat(2000)).unwrap();
    fs::create_dir(place.path("m")).unwrap();
    fs::write(place.path("m/data"), "data\n".repeat(2000)).unwrap();
    fs::write(place.path("m/tree.mtree"), manifest()).unwrap();
    let out = place.run(&["build", "-q", "-z", "lz4", "m/tree.mtree", "i"]);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    assert!(stderr(&out).contains("attribute"), "{}", stderr(&out));
    let hostile = |end: &str| place.path(&format!("{HOSTILE}{end}"));
    let image = fs::read(place.path("i")).unwrap();
    fs::write(hostile(""), &image).unwrap();
    fs::write(hostile(".cut"), &image[..image.len() / 2]).unwrap();
    let mut damaged = image.clone();
    let middle = image.len() / 2;
    damaged[middle..middle + 64].fill(0xff);
    damaged.truncate(image.len() - 512);
    fs::write(hostile(".damaged"), damaged).unwrap();
    fs::write(hostile(".text"), HOSTILE).unwrap();
    fs::write(hostile(".tar"), {
        let mut head = vec![0; 1536];
        head[..HOSTILE.len()].copy_from_slice(HOSTILE.as_bytes());
        head[257..265].copy_from_slice(b"ustar\x0000");
        head
    })
    .unwrap();
    let tree = hostile(".dir");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join(HOSTILE), "data\n").unwrap();
    std::os::unix::fs::symlink(HOSTILE, tree.join("link")).unwrap();
    std::os::unix::net::UnixListener::bind(place.path("tree/socket")).unwrap();
    let out = place.run(&["volume", "create", "v", "--size", "64M", "--label", "v"]);
    assert!(code(&out) <= 2, "{}", stderr(&out));
    place
}

/// Verbs and verbs of groups, as the manual pages of the program name them.
fn verbs(place: &Place) -> Vec<Vec<String>> {
    place.text(&["man", "pages"]);
    let pages = fs::read_dir(place.path("pages")).unwrap();
    let mut verbs: Vec<Vec<String>> = pages
        .filter_map(|page| {
            let name = page.unwrap().file_name().into_string().unwrap();
            let verb = name.strip_prefix("tuff-")?.strip_suffix(".1")?;
            Some(verb.split('-').map(str::to_owned).collect())
        })
        .collect();
    verbs.sort();
    verbs
}

fn is_hidden(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
        || "\u{61c}\u{200b}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}\u{feff}"
            .contains(c)
}

/// Fails if a terminal would obey a part of an output.
fn assert_clean(what: &str, args: &[String], bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for line in text.lines() {
        assert!(!line.chars().any(is_hidden), "{what} of {args:?}: {line:?}");
        assert!(
            !line.starts_with("INJECTED"),
            "{what} of {args:?}: {text:?}"
        );
    }
}

fn run(place: &Place, args: &[String]) -> Output {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let tuff = place.command(&words);
    // The explorer, mounts and servers wait for their end.
    let mut command = std::process::Command::new("timeout");
    command.args(["-s", "KILL", "20"]).arg(tuff.get_program());
    let out = command
        .args(tuff.get_args())
        .current_dir(&place.0)
        .env("XDG_CACHE_HOME", place.path("cache"))
        .stdin(Stdio::null())
        .output();
    out.unwrap()
}

#[test]
fn no_verb_prints_a_name_that_a_terminal_obeys() {
    let place = stage("hostile-names");
    let file = |end: &str| format!("{HOSTILE}{end}");
    let inside = format!("/{HOSTILE}");
    let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    let mut operands = Vec::new();
    for input in ["", ".cut", ".damaged", ".text", ".tar", ".dir", ".absent"] {
        let input = file(input);
        operands.extend([
            words(&[&input]),
            words(&[&input, &file(".new")]),
            words(&["--json", &input, &inside]),
        ]);
    }
    operands.extend([
        words(&[&format!("--{HOSTILE}")]),
        words(&[&format!("-{HOSTILE}")]),
        words(&["v", HOSTILE]),
        words(&["tree", &file(".new")]),
        words(&["m/tree.mtree", &file(".new")]),
        words(&[
            "m/tree.mtree",
            "new",
            "--force",
            &format!("--label={HOSTILE}"),
        ]),
        words(&["-o", HOSTILE, HOSTILE]),
    ]);
    let special = [
        words(&["ls", "-l", "-R", HOSTILE]),
        words(&["ls", "-l", "-R", "--json", HOSTILE]),
        words(&["stat", "--json", HOSTILE, &inside]),
        words(&["stat", HOSTILE, &format!("{inside}/link")]),
        words(&["info", "--files", "--space", HOSTILE]),
        words(&["diff", HOSTILE, &file(".dir"), "--metadata"]),
        words(&["diff", "--json", HOSTILE, &file(".dir")]),
        words(&["fsck.erofs", "--extract=out", HOSTILE]),
        words(&["fsck.erofs", "--extract=out", &file(".damaged")]),
        words(&["dump.erofs", "--ls", "--path=/", HOSTILE]),
        words(&["dump.erofs", "-s", "-S", HOSTILE]),
        words(&["mkfs.erofs", "new3", &file(".dir")]),
        words(&["mkfs.erofs", "--exclude-path", HOSTILE, "new3", HOSTILE]),
        words(&["extract", "-k", &file(".damaged"), "out2"]),
        words(&["mount", &file(".text"), "tree"]),
        words(&["extract", HOSTILE, "out3"]),
        words(&["extract", "--json", HOSTILE, "out4"]),
        words(&["serve", HOSTILE, "tree"]),
        words(&["build", "--json", "m/tree.mtree", "new4"]),
        words(&["profile", "show", &file(".text"), HOSTILE]),
        words(&["verity", "add", &file(".damaged"), "--json"]),
    ];
    let mut unseen: BTreeSet<String> = BTreeSet::new();
    let mut runs: Vec<Vec<String>> = special.to_vec();
    for verb in verbs(&place) {
        unseen.insert(verb[0].clone());
        for operand in &operands {
            // These would serve a mount, and show a terminal.
            let lasts = matches!(verb[0].as_str(), "mount" | "serve" | "explore")
                || verb[..] == ["volume", "mount"];
            if lasts && operand.len() > 1 && !operand[0].ends_with(".absent") {
                continue;
            }
            runs.push([&verb[..], operand].concat());
        }
    }
    assert!(unseen.len() > 25, "{unseen:?}");
    for args in runs {
        let out = run(&place, &args);
        // A panic, and the end of the time.
        let failed = matches!(out.status.code(), None | Some(101 | 124 | 137));
        assert!(!failed, "{args:?}: {} {}", out.status, stderr(&out));
        assert_clean("stderr", &args, &out.stderr);
        // Content and archives are what they are.
        if !matches!(args[0].as_str(), "cat" | "tar") {
            assert_clean("stdout", &args, &out.stdout);
        }
        if out.status.success() {
            unseen.remove(&args[0]);
        }
    }
    for verb in ["build", "check", "ls", "info", "stat", "extract", "dump"] {
        assert!(!unseen.contains(verb), "no run of {verb} succeeds");
    }
}

#[test]
fn json_escapes_what_a_terminal_obeys_and_keeps_the_name() {
    let place = stage("hostile-json");
    let out = place.text(&["ls", "-R", "--json", "i"]);
    assert!(out.is_ascii() || !out.chars().any(is_hidden), "{out:?}");
    let names: Vec<String> = out
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|entry| entry["path"].as_str().unwrap().to_owned())
        .collect();
    assert!(names.iter().any(|name| name.contains(HOSTILE)), "{names:?}");
}
