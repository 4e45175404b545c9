//! Limits, one-line errors, volumes in use, and repair.

use crate::common::{Place, bad, good, json, tuff};
use std::fs;
use std::os::unix::fs::MetadataExt;

#[test]
fn limits_are_set_shown_and_removed() {
    let place = Place::new("quota");
    let dir = &place.0;
    assert!(good(dir, &["quota", "v"]).is_empty());
    let set = ["quota", "v", "--user", "1000", "--space", "1M"];
    assert!(good(dir, &set).is_empty());
    let shown = good(dir, &["quota", "v"]);
    assert_eq!(
        String::from_utf8_lossy(&shown),
        "user 1000: 0 B of 1.0 MiB, 0 inodes of no limit\n"
    );
    let shown = json(&good(dir, &["quota", "v", "--json"]));
    assert_eq!(shown["quotas"][0]["space_limit_bytes"], 1 << 20);
    for subject in ["--group", "--project"] {
        good(dir, &["quota", "v", subject, "100", "--inodes", "7"]);
    }
    let shown = good(dir, &["quota", "v"]);
    let want =
        "group 100: 0 B of no limit, 0 inodes of 7\nproject 100: 0 B of no limit, 0 inodes of 7\n";
    assert!(String::from_utf8_lossy(&shown).ends_with(want));
    let shown = json(&good(dir, &["quota", "v", "--json"]));
    assert_eq!(shown["quotas"][2]["project"], 100);
    let stat = json(&good(dir, &["stat", "v", "--json"]));
    assert_eq!(stat["limits"], 3);
    for subject in ["--group", "--project"] {
        good(dir, &["quota", "v", subject, "100"]);
    }
    good(dir, &["quota", "v", "--user", "1000"]);
    assert!(good(dir, &["quota", "v"]).is_empty());
    for args in [
        &["quota", "v", "--space", "1M"][..],
        &["quota", "v", "--user", "1", "--group", "1"],
    ] {
        assert_eq!(tuff(dir, args).status.code(), Some(2));
    }
    // Regression: "v: Quota (errno 122)" names no file and explains nothing.
    let owner = fs::metadata(dir.join("src/hello"))
        .unwrap()
        .uid()
        .to_string();
    good(dir, &["create", "small", "-s", "64M"]);
    fs::write(dir.join("src/large"), vec![1; 1 << 20]).unwrap();
    let user = ["quota", "small", "--user", &owner, "--space", "512K"];
    good(dir, &user);
    let (code, message) = bad(dir, &["import", "small", "src"]);
    assert_eq!(
        (code, message.contains("src/") && message.contains("limit")),
        (4, true),
        "{message}"
    );
}

#[test]
fn errors_are_one_line_with_the_documented_code() {
    let place = Place::new("errors");
    let dir = &place.0;
    for (args, code, says) in [
        (&["create", "v", "-s", "64M"][..], 5, "not empty"),
        (&["create", "f", "--file", "-s", "64M"], 5, "exists"),
        (&["create", "x", "-s", "1M"], 2, "too small"),
        (
            &["create", "x", "--file", "-s", "64M", "--area-bits", "58"],
            2,
            "do not fit",
        ),
        (
            &["create", "x", "-s", "64M", "--zone", "3M"],
            2,
            "power of two",
        ),
        (&["stat", "nothing"], 5, "nothing"),
        (&["stat", "/dev/null"], 5, "neither"),
        (&["check", "src"], 5, "src: is not a volume"),
        (&["mount", "src", "src"], 5, "src: is not a volume"),
        (&["import", "v", "src/hello"], 2, "not a directory"),
        (&["export", "v", "--snapshot", "x"], 2, "no snapshot"),
    ] {
        let (found, message) = bad(dir, args);
        assert_eq!(found, code, "{args:?}: {message}");
        assert!(message.to_lowercase().contains(says), "{args:?}: {message}");
    }
    assert!(!dir.join("x").exists());
    fs::write(dir.join("junk"), vec![7; 1 << 20]).unwrap();
    let (code, message) = bad(dir, &["stat", "junk"]);
    assert_eq!(
        (code, message.contains("superblock")),
        (3, true),
        "{message}"
    );
}

/// Regression: "src/hello: TooBig (errno 7)".
#[test]
fn oversized_attributes_are_reported_with_the_limit() {
    use rustix::fs::{XattrFlags, setxattr};
    let place = Place::new("import-attribute");
    let file = place.0.join("src/hello");
    let set = |name: &str, len| setxattr(&file, name, &vec![b'x'; len], XattrFlags::empty());
    // Not every filesystem accepts this much in one attribute; all of them together exceed the limit too.
    let len = [10_000, 4010]
        .into_iter()
        .find(|len| set("user.big", *len).is_ok());
    let (Some(len), Ok(())) = (len, set("user.small", 50)) else {
        tuff_testkit::skipped("the temporary directory takes no attributes so large");
        return;
    };
    let (code, message) = bad(&place.0, &["import", "v", "src"]);
    let what = format!(
        "attribute user.big has {len} bytes, where all of a file's names and values have at most 4054"
    );
    assert!(message.starts_with("tuff: src/"), "{message}");
    assert_eq!((code, message.contains(&what)), (4, true), "{message}");
}

#[test]
fn a_volume_in_use_is_rejected() {
    let place = Place::new("lock");
    let dir = &place.0;
    for volume in ["v", "f"] {
        let held = tuff_iplfs::backend::open(&dir.join(volume), false).unwrap();
        let (code, message) = bad(dir, &["stat", volume]);
        assert_eq!((code, message.contains("in use")), (5, true), "{message}");
        drop(held);
        // A concurrent test's child may hold a copy of the descriptor until it executes a command.
        let free = (0..500).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            tuff(dir, &["stat", volume]).status.success()
        });
        assert!(free, "{volume}");
    }
}

#[test]
fn a_volume_without_packs_is_repaired_from_its_logs() {
    let place = Place::new("rebuild");
    let dir = &place.0;
    good(dir, &["import", "f", "src"]);
    let was = good(dir, &["export", "f"]);
    let (code, message) = bad(dir, &["check", "--rebuild", "f"]);
    assert_eq!(
        (code, message.contains("nothing to rebuild")),
        (2, true),
        "{message}"
    );
    // Blocks 16 to 527 are the packs.
    let file = fs::File::options().write(true).open(dir.join("f")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0; 512 << 12], 16 << 12).unwrap();
    drop(file);
    let (code, message) = bad(dir, &["check", "--repair", "f"]);
    assert_eq!(
        (code, message.contains("no sound seal")),
        (3, true),
        "{message}"
    );
    let out = tuff(dir, &["check", "--rebuild", "f", "--json"]);
    assert_eq!(
        out.status.code(),
        Some(1),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert_eq!(json(&out.stdout)["clean"], true);
    good(dir, &["check", "--data", "f"]);
    good(dir, &["check", "--repair", "f"]);
    assert!(good(dir, &["export", "f"]) == was);
}

#[test]
fn a_repair_that_falls_back_reports_the_checkpoint() {
    use std::os::unix::fs::FileExt;
    let place = Place::new("went-back");
    let dir = &place.0;
    good(dir, &["import", "f", "src"]);
    let newest = json(&good(dir, &["check", "f", "--json"]))["checkpoint"].clone();
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(dir.join("f"))
        .unwrap();
    // Each pack begins with two copies of the seal.
    for pack in [16, 16 + 256] {
        let mut seals = vec![0; 8192];
        file.read_exact_at(&mut seals, pack * 4096).unwrap();
        file.write_all_at(&[7; 8192], pack * 4096).unwrap();
        let used = json(&good(dir, &["check", "f", "--json"]))["checkpoint"].clone();
        if used != newest {
            break;
        }
        file.write_all_at(&seals, pack * 4096).unwrap();
    }
    let copy = dir.join("g");
    let copied = std::process::Command::new("cp")
        .args(["--sparse=always", "f"])
        .arg(&copy)
        .current_dir(dir)
        .status();
    assert!(copied.unwrap().success());
    let out = tuff(dir, &["check", "--repair", "--json", "f"]);
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(json(&out.stdout)["fallback"]["lost_checkpoint"], newest);
    let out = tuff(dir, &["check", "--repair", "g"]);
    let message = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(1));
    let what = format!("changes in checkpoint {newest} are lost");
    assert!(
        message.contains("fell back to checkpoint") && message.contains(&what),
        "{message}"
    );
    for volume in ["f", "g"] {
        let again = json(&good(dir, &["check", "--repair", "--json", volume]));
        assert!(again["fallback"].is_null());
    }
}

/// Regression: a failed create removed the existing directory.
#[test]
fn an_existing_directory_stays_if_create_fails() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new("stays");
    let dir = place.0.join("mine");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    let label = "l".repeat(65);
    let create = ["create", "mine", "-s", "64M", "--label", &label];
    let (code, message) = bad(&place.0, &create);
    assert_eq!((code, message.contains("label")), (2, true), "{message}");
    assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    good(&place.0, &["create", "mine", "-s", "64M"]);
    // A path that did not exist does not exist afterwards.
    for more in [&["new"][..], &["new", "--file"]] {
        let args = [&["create", "-s", "64M", "--label", &label], more].concat();
        assert_eq!(bad(&place.0, &args).0, 2);
        assert!(!place.0.join("new").exists());
    }
    good(&place.0, &["snapshot", "create", "v", "one"]);
    good(&place.0, &["send", "v", "-o", "stream"]);
    let receive = ["receive", "new", "-i", "stream", "--zone", "3M"];
    let (code, message) = bad(&place.0, &receive);
    assert_eq!(
        (code, message.contains("power of two")),
        (2, true),
        "{message}"
    );
}

/// Regression: `tuff volume export f f` replaced the volume.
#[test]
fn an_export_cannot_replace_its_volume() {
    let place = Place::new("itself");
    let dir = &place.0;
    for volume in ["v", "f"] {
        good(dir, &["import", volume, "src"]);
        good(dir, &["snapshot", "create", volume, "one"]);
    }
    std::os::unix::fs::symlink("f", dir.join("link")).unwrap();
    for args in [
        &["export", "f", "f"][..],
        &["export", "f", "link"],
        &["export", "v", "v/zones/0"],
        &["export", "v", "v/tar"],
        &["send", "f", "-o", "f"],
        &["send", "v", "-o", "v/volume"],
    ] {
        let (code, message) = bad(dir, args);
        let says = message.contains("cannot replace a file that is read");
        assert_eq!((code, says), (2, true), "{args:?}: {message}");
    }
    for volume in ["v", "f"] {
        good(dir, &["check", "--data", volume]);
    }
    assert!(!dir.join("v/tar").exists());
}

/// Regression: zones were copied while they grew by the copied data, up to 8 TiB.
#[test]
fn a_volume_is_not_copied_into_itself() {
    let place = Place::new("within");
    for volume in ["v", "f"] {
        let (code, message) = bad(&place.0, &["import", volume, "."]);
        assert_eq!(
            (code, message.contains("into itself")),
            (2, true),
            "{message}"
        );
    }
    let (code, message) = bad(&place.0, &["import", "v", "v/zones"]);
    assert_eq!(
        (code, message.contains("into itself")),
        (2, true),
        "{message}"
    );
}

#[test]
fn exports_and_streams_replace_only_their_own_format_without_force() {
    let place = Place::new("outputs");
    let dir = &place.0;
    good(dir, &["snapshot", "create", "v", "s"]);
    for args in [&["export", "v", "notes"][..], &["send", "v", "-o", "notes"]] {
        fs::write(dir.join("notes"), "Do not lose this.\n").unwrap();
        let (code, message) = bad(dir, args);
        assert_eq!(code, 2, "{message}");
        assert!(
            message.contains("notes: is a text file") && message.contains("--force"),
            "{message}"
        );
        assert_eq!(fs::read(dir.join("notes")).unwrap(), b"Do not lose this.\n");
        good(dir, &[args, &["--force"]].concat());
        // A file of the same format needs no `--force`.
        good(dir, args);
    }
}

#[test]
fn an_existing_file_of_ordinary_size_becomes_a_volume() {
    let place = Place::new("medium");
    let dir = &place.0;
    let file = |name: &str, len: u64| fs::File::create(dir.join(name)).unwrap().set_len(len);
    file("disk", 64 << 20).unwrap();
    let created = json(&good(dir, &["create", "disk", "--json"]));
    let quota = created["quota_bytes"].as_u64().unwrap();
    assert!((60 << 20..64 << 20).contains(&quota), "{quota}");
    assert_eq!(created["area_bits"], 48);
    good(dir, &["import", "disk", "src"]);
    good(dir, &["export", "disk", "disk.tar"]);
    good(dir, &["snapshot", "create", "disk", "now"]);
    let report = json(&good(dir, &["check", "--data", "--json", "disk"]));
    assert_eq!(report["leaked_bytes"], 0);
    let stat = json(&good(dir, &["stat", "disk", "--json"]));
    assert!(stat["allocated_bytes"].is_u64());
    assert_eq!(dir.join("disk").metadata().unwrap().len(), 64 << 20);
    // An error leaves the file as it is.
    let (code, message) = bad(dir, &["create", "disk"]);
    assert_eq!((code, message.contains("--force")), (2, true), "{message}");
    file("small", 8 << 20).unwrap();
    let (code, message) = bad(dir, &["create", "small"]);
    assert_eq!((code, message.contains("20.0 MiB")), (2, true), "{message}");
    let (code, message) = bad(dir, &["create", "--size", "65M", "--force", "disk"]);
    assert_eq!(
        (code, message.contains("space for")),
        (2, true),
        "{message}"
    );
    good(dir, &["check", "disk"]);
    good(dir, &["create", "--force", "--size", "32M", "disk"]);
    let (code, message) = bad(dir, &["create", "new"]);
    assert_eq!((code, message.contains("--size")), (2, true), "{message}");
    let sections = ["create", "new", "-s", "64M", "--section"];
    let (code, message) = bad(dir, &[&sections[..], &["3M"]].concat());
    assert_eq!(
        (code, message.contains("power of two")),
        (2, true),
        "{message}"
    );
    good(dir, &[&sections[..], &["4M"]].concat());
}
