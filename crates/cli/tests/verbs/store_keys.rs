//! Encrypted backup stores: their keys, and stores that are replaced by others.

use crate::common::{Place, code, skipped, stderr};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use tuff_testkit::tree::{assert_same, from_source, host_tree};

/// Runs the binary with a home directory in the place.
fn run(place: &Place, args: &[&str]) -> Output {
    let mut command = place.command(args);
    command
        .env("HOME", place.path("home"))
        .env_remove("XDG_CACHE_HOME")
        .env_remove("XDG_CONFIG_HOME");
    command.output().unwrap()
}

fn text(place: &Place, args: &[&str]) -> String {
    let out = run(place, args);
    assert_eq!((code(&out), stderr(&out).as_str()), (0, ""), "{args:?}");
    String::from_utf8(out.stdout).unwrap()
}

fn refused(place: &Place, args: &[&str], why: &str) {
    let out = run(place, args);
    assert_eq!(code(&out), 2, "{args:?}: {}", stderr(&out));
    assert!(stderr(&out).contains(why), "{args:?}: {}", stderr(&out));
}

/// Files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
        .unwrap_or_default();
    names.sort();
    names
}

/// A place with a source.
fn place(name: &str) -> Place {
    let place = Place::new(name);
    fs::create_dir_all(place.path("source/below")).unwrap();
    fs::write(
        place.path("source/a-secret-name"),
        "a secret text\n".repeat(9000),
    )
    .unwrap();
    fs::write(place.path("source/below/file"), "text").unwrap();
    fs::write(place.path("password"), "correct\n").unwrap();
    fs::write(place.path("wrong"), "incorrect\n").unwrap();
    place
}

/// Compares what was restored with the source.
fn compare(place: &Place, target: &str) {
    let source = fs::canonicalize(place.path("source")).unwrap();
    let restored = place.path(target).join(source.strip_prefix("/").unwrap());
    let (source, restored) = (host_tree(&source), host_tree(&restored));
    assert_same(target, &source, &restored, from_source(&source));
}

#[test]
fn an_encrypted_store_does_what_others_do() {
    let place = place("keys-use");
    let made = run(&place, &["backup", "--encrypt", "source", "store"]);
    assert_eq!(code(&made), 0, "{}", stderr(&made));
    let keys = files(&place.path("home/.config/tuff/keys"));
    assert_eq!(keys.len(), 1);
    assert!(
        stderr(&made).contains(keys[0].to_str().unwrap()),
        "{}",
        stderr(&made)
    );
    fs::write(place.path("source/below/more"), "more").unwrap();
    text(&place, &["backup", "-q", "--encrypt", "source", "store"]);
    assert_eq!(text(&place, &["store", "list", "store"]).lines().count(), 2);
    text(&place, &["store", "restore", "-q", "store", "restored"]);
    compare(&place, "restored");
    let diff = run(&place, &["store", "diff", "store"]);
    assert_eq!(code(&diff), 1);
    assert!(String::from_utf8_lossy(&diff.stdout).contains("below/more"));
    text(
        &place,
        &["store", "check", "-q", "--read-data", "100%", "store"],
    );
    for store in ["store/packs", "store/seen"] {
        assert!(!place.path(store).exists(), "{store}");
    }
    // Copies in both directions, to stores with and without encryption.
    text(&place, &["store", "copy", "-q", "store", "plain"]);
    text(
        &place,
        &["store", "restore", "-q", "plain", "restored-plain"],
    );
    compare(&place, "restored-plain");
    let copied = run(
        &place,
        &["store", "copy", "-q", "--encrypt", "plain", "other"],
    );
    assert_eq!(code(&copied), 0, "{}", stderr(&copied));
    text(
        &place,
        &["store", "restore", "-q", "other", "restored-other"],
    );
    compare(&place, "restored-other");
    assert_eq!(files(&place.path("home/.config/tuff/keys")).len(), 2);
    text(&place, &["store", "forget", "store", "1"]);
    text(&place, &["store", "prune", "-q", "store"]);
    refused(
        &place,
        &["store", "mount", "--kernel", "store", "mnt"],
        "the kernel mounts no store in a bucket and no encrypted one",
    );
    refused(
        &place,
        &["store", "mount", "--print", "i", "store", "mnt"],
        "no encrypted one",
    );
    if !Path::new("/dev/fuse").exists() {
        skipped("no /dev/fuse");
        return;
    }
    fs::create_dir(place.path("mnt")).unwrap();
    text(&place, &["store", "mount", "store", "mnt"]);
    compare(&place, "mnt");
    place.unmount("mnt");
}

#[test]
fn keys_of_a_store_are_listed_added_and_removed() {
    let place = place("keys-verbs");
    let key = ["--password-file", "password"];
    let with = |args: &[&'static str]| [args, &key].concat();
    text(
        &place,
        &with(&["backup", "-q", "--encrypt", "source", "store"]),
    );
    assert!(!place.path("home/.config").exists());
    refused(
        &place,
        &["store", "list", "--password-file", "wrong", "store"],
        "the password is wrong",
    );
    refused(
        &place,
        &["store", "list", "store"],
        "name its key with --key-file",
    );
    let added = with(&["store", "key", "add", "--new-key-file", "k", "store"]);
    let name = text(&place, &added);
    let name = name.split_whitespace().last().unwrap().to_owned();
    refused_key_file(&place, &added);
    text(&place, &["store", "list", "--key-file", "k", "store"]);
    let listed = text(&place, &["store", "key", "list", "--json", "store"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["keys"].as_array().unwrap().len(), 2);
    text(&place, &["store", "key", "remove", "store", &name]);
    refused(
        &place,
        &["store", "list", "--key-file", "k", "store"],
        "the key file opens nothing",
    );
    let last = listed["keys"].as_array().unwrap().iter();
    let last = last
        .map(|key| key["key"].as_str().unwrap())
        .find(|key| *key != name);
    refused(
        &place,
        &["store", "key", "remove", "store", last.unwrap()],
        "is the last key",
    );
    text(&place, &with(&["store", "list", "store"]));
    refused(
        &place,
        &["store", "key", "list", "source"],
        "no encrypted backup store",
    );
}

/// A file that exists is not replaced by a key.
fn refused_key_file(place: &Place, added: &[&str]) {
    let before = fs::read(place.path("k")).unwrap();
    let out = run(place, added);
    assert_eq!(code(&out), 5, "{}", stderr(&out));
    assert_eq!(fs::read(place.path("k")).unwrap(), before);
}

/// B24: a store that is made anew in the same place leaves the old key alone, also after the old store was deleted.
#[test]
fn b24_an_old_key_stays_when_a_store_is_made_anew() {
    let place = place("keys-b24");
    let make = ["backup", "-q", "--encrypt", "source", "store"];
    assert_eq!(code(&run(&place, &make)), 0);
    let keys = files(&place.path("home/.config/tuff/keys"));
    let old = fs::read(&keys[0]).unwrap();
    fs::rename(place.path("store"), place.path("moved")).unwrap();
    assert_eq!(code(&run(&place, &make)), 0);
    let now = files(&place.path("home/.config/tuff/keys"));
    assert_eq!((keys.len(), now.len()), (1, 2));
    assert_eq!(fs::read(&keys[0]).unwrap(), old);
    // Each key opens its store.
    for (store, target) in [("moved", "restored"), ("store", "restored-new")] {
        text(&place, &["store", "restore", "-q", store, target]);
        compare(&place, target);
    }
}

/// Whoever can write to the disk puts a store in the place that others can read.
#[test]
fn a_plain_store_in_place_of_an_encrypted_one_is_refused() {
    let place = place("keys-replaced");
    text(&place, &["backup", "-q", "source", "plain"]);
    let make = ["backup", "-q", "--encrypt", "source", "store"];
    assert_eq!(code(&run(&place, &make)), 0);
    fs::remove_dir_all(place.path("store")).unwrap();
    // Also where none is: it would be made.
    for _ in 0..2 {
        refused(
            &place,
            &["backup", "source", "store"],
            "it may have been replaced",
        );
        fs::create_dir(place.path("store")).ok();
    }
    fs::remove_dir(place.path("store")).unwrap();
    fs::rename(place.path("plain"), place.path("store")).unwrap();
    refused(
        &place,
        &["backup", "source", "store"],
        "it may have been replaced",
    );
    refused(
        &place,
        &["store", "list", "store"],
        "it may have been replaced",
    );
    refused(&place, &make, "the store is not encrypted, and cannot be");
    fs::rename(place.path("home"), place.path("elsewhere")).unwrap();
    refused(
        &place,
        &["backup", "--password-file", "password", "source", "store"],
        "not an encrypted store",
    );
    refused(&place, &make, "the store is not encrypted, and cannot be");
    text(&place, &["backup", "-q", "source", "store"]);
}
