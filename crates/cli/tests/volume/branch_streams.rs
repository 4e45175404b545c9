//! Branches that are sent to copies, and repaired.

use crate::branches::content;
use crate::common::{Place, bad, good, tuff};
use std::fs;
use std::os::unix::fs::FileExt;

#[test]
fn changes_of_a_branch_are_sent_to_a_copy_and_a_branch_is_repaired_alone() {
    let place = Place::new("branch-streams");
    let dir = &place.0;
    good(dir, &["import", "v", "src"]);
    good(dir, &["snapshot", "create", "v", "base"]);
    good(dir, &["send", "v", "base", "-o", "base.stream"]);
    good(dir, &["receive", "copy", "-i", "base.stream"]);
    let of_x = ["--branch", "x"];
    for volume in ["v", "copy"] {
        good(dir, &["fork", volume, "x", "--snapshot", "base"]);
    }
    fs::create_dir(dir.join("more")).unwrap();
    fs::write(dir.join("more/new"), "of x ".repeat(4000)).unwrap();
    good(dir, &[&["import", "v", "more"], &of_x[..]].concat());
    good(
        dir,
        &[&["snapshot", "create", "v", "done"], &of_x[..]].concat(),
    );
    let send = ["send", "v", "done", "-o"];
    let from = ["x.stream", "--from", "base"];
    good(dir, &[&send[..], &from, &of_x].concat());
    good(dir, &[&send[..], &["whole.stream"], &of_x].concat());
    // A stream that is cut leaves the branch as it was.
    let stream = fs::read(dir.join("x.stream")).unwrap();
    fs::write(dir.join("cut.stream"), &stream[..stream.len() - 30]).unwrap();
    let receive = ["receive", "copy", "-i"];
    let (code, message) = bad(dir, &[&receive[..], &["cut.stream"], &of_x].concat());
    assert!(code != 0 && message.contains("truncated"), "{message}");
    good(dir, &["check", "--data", "copy", "--branch", "x"]);
    good(dir, &[&receive[..], &["x.stream"], &of_x].concat());
    good(dir, &["receive", "whole", "-i", "whole.stream"]);
    let (code, message) = bad(dir, &[&receive[..], &["whole.stream"], &of_x].concat());
    assert!(
        code == 2 && message.contains("leave out --branch"),
        "{message}"
    );
    for (volume, branch) in [("copy", "x"), ("whole", "main")] {
        let args = ["check", "--data", volume, "--branch", branch];
        good(dir, &args);
        let tar = [volume, branch].join(".tar");
        let export = ["export", volume, tar.as_str(), "--branch", branch];
        good(dir, &export);
        let bytes = fs::read(dir.join(&tar)).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("of x of x") && text.contains("hello, volume"));
    }
    // Damage in blocks of the fork.
    let region = fs::read_dir(dir.join("v/regions")).unwrap().next();
    let main = content(dir, "main", "hello");
    for zone in fs::read_dir(region.unwrap().unwrap().path()).unwrap() {
        let file = fs::File::options()
            .write(true)
            .open(zone.unwrap().path())
            .unwrap();
        file.write_all_at(&[0x55; 64], 1000).unwrap();
    }
    let repair = [&["check", "--repair", "--data", "v"], &of_x[..]].concat();
    assert_eq!(tuff(dir, &repair).status.code(), Some(1));
    assert_eq!(tuff(dir, &repair).status.code(), Some(0));
    good(dir, &["check", "--data", "v"]);
    assert!(main.is_some() && content(dir, "main", "hello") == main);
    let (code, message) = bad(dir, &["check", "--rebuild", "v"]);
    assert!(code != 0 && message.contains("not rebuilt"), "{message}");
    good(dir, &["branch", "delete", "v", "x"]);
    good(dir, &["check", "--data", "v"]);
}
