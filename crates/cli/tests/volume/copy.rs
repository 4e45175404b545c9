//! Import, export and snapshot streams: files survive a round trip.

use crate::common::{Place, bad, good, json};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

#[test]
fn imported_files_survive_a_round_trip_on_both_kinds_of_device() {
    let place = Place::new("export");
    let dir = &place.0;
    let mut tars = Vec::new();
    for volume in ["v", "f"] {
        let message = json(&good(dir, &["import", volume, "src", "--json"]));
        assert_eq!(message["objects"], 6);
        good(dir, &["check", "--data", volume]);
        tars.push(good(dir, &["export", volume]));
    }
    assert_eq!(tars[0], tars[1]);
    let out = dir.join("out");
    fs::create_dir(&out).unwrap();
    fs::write(dir.join("tar"), &tars[0]).unwrap();
    let tar = Command::new("tar")
        .current_dir(&out)
        .args(["-xf", "../tar"])
        .status();
    assert!(tar.unwrap().success());
    for name in ["hello", "again", "sub/sparse"] {
        let (was, is) = (dir.join("src").join(name), out.join(name));
        assert!(fs::read(&was).unwrap() == fs::read(&is).unwrap(), "{name}");
        let (was, is) = (fs::metadata(was).unwrap(), fs::metadata(is).unwrap());
        assert_eq!(
            (was.mode(), was.mtime(), was.mtime_nsec(), was.nlink()),
            (is.mode(), is.mtime(), is.mtime_nsec(), is.nlink()),
            "{name}"
        );
    }
    assert_eq!(fs::read_link(out.join("link")).unwrap(), Path::new("hello"));
    assert!(out.join("sub").join("n".repeat(200)).exists());
}

/// Regression: what is below a directory followed the siblings of that directory, which tar had closed by then.
#[test]
fn tar_programs_extract_an_export_as_a_user() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let place = Place::new("export-user");
    let dir = &place.0;
    let paths = ["closed", "closed/below", "closed/below/closed", "sub"];
    fs::create_dir_all(dir.join("src").join(paths[2])).unwrap();
    fs::write(dir.join("src/closed/below/file"), "content").unwrap();
    fs::write(dir.join("src/closed/below/closed/file"), "content").unwrap();
    let at = std::time::UNIX_EPOCH + Duration::new(1_234_567_890, 987_654_321);
    for path in paths.iter().rev() {
        let file = fs::File::open(dir.join("src").join(path)).unwrap();
        file.set_modified(at).unwrap();
        let mode = if path.ends_with("closed") {
            0o555
        } else {
            0o755
        };
        file.set_permissions(fs::Permissions::from_mode(mode))
            .unwrap();
    }
    good(dir, &["import", "v", "src"]);
    fs::write(dir.join("tar"), good(dir, &["export", "v"])).unwrap();
    for program in ["tar", "bsdtar"] {
        let out = dir.join(format!("by-{program}"));
        fs::create_dir(&out).unwrap();
        let mut command = Command::new(program);
        command.current_dir(&out).args(["-xpf", "../tar"]);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&out, Some(65534), Some(65534)).unwrap();
            command.uid(65534).gid(65534);
        }
        let ran = match command.output() {
            Ok(ran) => ran,
            Err(e) => {
                tuff_testkit::skipped(format_args!("{program}: {e}"));
                continue;
            }
        };
        let message = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{program}: {message}");
        assert!(out.join("closed/below/closed/file").exists(), "{program}");
        for path in paths {
            let state = |root: &Path| {
                let found = fs::metadata(root.join(path)).unwrap();
                (found.mode(), found.mtime(), found.mtime_nsec())
            };
            assert_eq!(state(&out), state(&dir.join("src")), "{program}: {path}");
        }
    }
    // Without privileges, directories of mode 555 cannot be emptied.
    let opened = Command::new("chmod")
        .current_dir(dir)
        .args(["-R", "u+w", "."])
        .status();
    assert!(opened.unwrap().success());
}

/// Regression: holes were read, at 1.4 s per GiB.
#[test]
fn holes_are_not_read_and_stay_holes() {
    use std::os::unix::fs::FileExt;
    let place = Place::new("holes");
    let dir = &place.0;
    fs::create_dir(dir.join("large")).unwrap();
    let large = fs::File::create(dir.join("large/file")).unwrap();
    if let Err(e) = large.set_len(1 << 40) {
        tuff_testkit::skipped(format_args!(
            "no sparse file of 1 TiB in the temporary directory: {e}"
        ));
        return;
    }
    large.write_all_at(b"far away", (1 << 39) + 5).unwrap();
    let source = fs::File::create(dir.join("src/sub/sparse")).unwrap();
    source.set_len(9 << 20).unwrap();
    source.write_all_at(&[7; 200_000], (1 << 20) + 77).unwrap();
    source.write_all_at(b"end", 8 << 20).unwrap();
    good(dir, &["import", "v", "src"]);
    fs::write(dir.join("tar"), good(dir, &["export", "v"])).unwrap();
    fs::create_dir(dir.join("out")).unwrap();
    let tar = Command::new("tar")
        .current_dir(dir)
        .args(["-xf", "tar", "-C", "out"])
        .status();
    assert!(tar.unwrap().success());
    let read = |root: &str| fs::read(dir.join(root).join("sub/sparse")).unwrap();
    assert!(read("src") == read("out"));
    let start = std::time::Instant::now();
    let message = json(&good(dir, &["import", "f", "large", "--json"]));
    assert!(start.elapsed() < Duration::from_secs(60));
    assert_eq!(message["content_bytes"], 1u64 << 40);
    let stat = json(&good(dir, &["stat", "f", "--json"]));
    assert!(stat["live_bytes"].as_u64().unwrap() < 1 << 20, "{stat}");
    good(dir, &["check", "--data", "f"]);
}

#[test]
fn a_snapshot_keeps_deleted_files() {
    let place = Place::new("snapshot");
    let dir = &place.0;
    let empty = good(dir, &["export", "v"]);
    good(dir, &["snapshot", "create", "v", "empty"]);
    good(dir, &["import", "v", "src"]);
    assert_ne!(good(dir, &["export", "v"]), empty);
    assert_eq!(good(dir, &["export", "v", "--snapshot", "empty"]), empty);
    let list = json(&good(dir, &["snapshot", "list", "v", "--json"]));
    assert_eq!(list["snapshots"][0]["name"], "empty");
    let (code, message) = bad(dir, &["snapshot", "create", "v", "empty"]);
    assert_eq!((code, message.contains("already")), (2, true), "{message}");
    let (code, message) = bad(dir, &["snapshot", "delete", "v", "none"]);
    assert_eq!(
        (code, message.contains("no snapshot")),
        (2, true),
        "{message}"
    );
    good(dir, &["snapshot", "delete", "v", "empty"]);
    good(dir, &["trim", "v"]);
    let stat = json(&good(dir, &["stat", "v", "--json"]));
    assert_eq!(
        (&stat["snapshots"], &stat["held_bytes"]),
        (&0.into(), &0.into())
    );
    good(dir, &["check", "v"]);
}

#[test]
fn a_snapshot_is_received_in_full_and_incrementally() {
    let place = Place::new("send");
    let dir = &place.0;
    good(dir, &["import", "f", "src"]);
    good(dir, &["snapshot", "create", "f", "one"]);
    let one = good(dir, &["send", "f"]);
    fs::write(dir.join("one"), &one).unwrap();
    fs::write(dir.join("src/more"), vec![9; 3 << 20]).unwrap();
    good(dir, &["snapshot", "create", "f", "between"]);
    fs::create_dir(dir.join("more")).unwrap();
    fs::write(dir.join("more/file"), vec![9; 3 << 20]).unwrap();
    good(dir, &["import", "f", "more"]);
    good(dir, &["snapshot", "create", "f", "two"]);
    good(dir, &["send", "f", "two", "--from", "one", "-o", "two"]);
    let len = fs::metadata(dir.join("two")).unwrap().len();
    assert!((3 << 20..(3 << 20) + (160 << 10)).contains(&len), "{len}");
    for file in [&["--file"][..], &[]] {
        let take = |path, stream| good(dir, &[&["receive", path, "-i", stream], file].concat());
        let _ = fs::remove_dir_all(dir.join("copy")).or_else(|_| fs::remove_file(dir.join("copy")));
        take("copy", "one");
        good(dir, &["check", "--data", "copy"]);
        let was = good(dir, &["export", "copy"]);
        assert!(was == good(dir, &["export", "f", "--snapshot", "one"]));
        // A stream that does not apply gives a one-line message and changes nothing.
        fs::write(
            dir.join("cut"),
            &fs::read(dir.join("two")).unwrap()[..1 << 20],
        )
        .unwrap();
        let (code, message) = bad(dir, &["receive", "copy", "-i", "cut"]);
        assert_eq!(
            (code, message.contains("is truncated")),
            (3, true),
            "{message}"
        );
        let (code, message) = bad(dir, &["receive", "copy", "-i", "one"]);
        assert_eq!(
            (code, message.contains("volume already")),
            (2, true),
            "{message}"
        );
        let (code, message) = bad(dir, &["receive", "v", "-i", "two"]);
        assert_eq!(
            (code, message.contains("another volume")),
            (2, true),
            "{message}"
        );
        assert!(good(dir, &["export", "copy"]) == was);
        take("copy", "two");
        good(dir, &["check", "--data", "copy"]);
        assert!(good(dir, &["export", "copy"]) == good(dir, &["export", "f"]));
        let (code, message) = bad(dir, &["receive", "copy", "-i", "two"]);
        assert_eq!(
            (code, message.contains("continues")),
            (2, true),
            "{message}"
        );
    }
    // Regression: any file of that name was overwritten, because only block devices were checked.
    let theirs = vec![b'x'; 100_000];
    fs::write(dir.join("theirs"), &theirs).unwrap();
    for file in [&["--file"][..], &[]] {
        let receive = ["receive", "theirs", "-i", "one"];
        let (code, message) = bad(dir, &[&receive, file].concat());
        assert_eq!(
            (code, message.contains("not a volume")),
            (2, true),
            "{message}"
        );
        assert!(fs::read(dir.join("theirs")).unwrap() == theirs);
    }
    good(dir, &["receive", "theirs", "-i", "one", "--force"]);
    good(dir, &["check", "--data", "theirs"]);
    let (code, message) = bad(dir, &["receive", "new", "-i", "cut"]);
    assert_ne!(code, 0, "{message}");
    assert!(!dir.join("new").exists());
    let (code, message) = bad(dir, &["send", "v", "-o", "x"]);
    assert_eq!(
        (code, message.contains("no snapshot")),
        (2, true),
        "{message}"
    );
    let (code, message) = bad(dir, &["send", "f", "one", "--from", "two", "-o", "x"]);
    assert_eq!(
        (code, message.contains("not older")),
        (2, true),
        "{message}"
    );
    assert!(!dir.join("x").exists());
}

/// A tar or stream cut off by a full disk keeps the old file of that name; a pipe receives it as it is written.
#[test]
fn a_stream_has_its_name_when_it_is_complete() {
    let place = Place::new("whole-streams");
    let dir = &place.0;
    good(dir, &["snapshot", "create", "v", "one"]);
    for verb in [&["export", "v", "out"][..], &["send", "v", "-o", "out"]] {
        good(dir, verb);
        let whole = fs::read(dir.join("out")).unwrap();
        assert!(whole.len() > 4096);
        let limited = format!("ulimit -f 2; exec \"$0\" volume {}", verb.join(" "));
        let out = Command::new("sh")
            .args(["-c", &limited, env!("CARGO_BIN_EXE_tuff")])
            .current_dir(dir)
            .output()
            .unwrap();
        assert!(!out.status.success());
        assert!(fs::read(dir.join("out")).unwrap() == whole);
        fs::remove_file(dir.join("out")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.join("out"),
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        let pipe = dir.join("out");
        let reader = std::thread::spawn(move || fs::read(pipe).unwrap());
        good(dir, verb);
        assert!(reader.join().unwrap() == whole);
        fs::remove_file(dir.join("out")).unwrap();
    }
}
