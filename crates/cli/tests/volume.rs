//! `tuff volume` as people and scripts meet it: what goes in comes out, exit codes, and one sentence on errors.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::Duration;

fn tuff(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tuff"))
        .current_dir(dir)
        .arg("volume")
        .args(args)
        .output()
        .unwrap()
}

/// Runs a verb that must succeed; what it printed.
fn good(dir: &Path, args: &[&str]) -> Vec<u8> {
    let out = tuff(dir, args);
    assert!(
        out.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    out.stdout
}

/// Runs a verb that must fail: its exit code and the one line it said.
fn bad(dir: &Path, args: &[&str]) -> (i32, String) {
    let out = tuff(dir, args);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    (out.status.code().unwrap_or(-1), said)
}

fn json(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes).unwrap()
}

struct Place(PathBuf);

impl Place {
    /// A directory with a small tree in `src`, a volume in zone files `v` and one in a file `f`.
    fn new(name: &str) -> Self {
        let dir =
            std::env::temp_dir().join(format!("tuff-cli-volume-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("src/sub")).unwrap();
        fs::write(dir.join("src/hello"), "hello, volume\n".repeat(1000)).unwrap();
        fs::hard_link(dir.join("src/hello"), dir.join("src/again")).unwrap();
        std::os::unix::fs::symlink("hello", dir.join("src/link")).unwrap();
        let sparse = fs::File::create(dir.join("src/sub/sparse")).unwrap();
        sparse.set_len(5 << 20).unwrap();
        fs::write(dir.join("src/sub").join("n".repeat(200)), "long").unwrap();
        good(&dir, &["create", "v", "-s", "64M"]);
        good(&dir, &["create", "f", "--file", "-s", "64M"]);
        Self(dir)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_is_imported_comes_out_as_it_was_from_both_kinds_of_device() {
    let place = Place::new("export");
    let dir = &place.0;
    let mut tars = Vec::new();
    for volume in ["v", "f"] {
        let said = json(&good(dir, &["import", volume, "src", "--json"]));
        assert_eq!(said["objects"], 6);
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

/// Seen: holes were read, 1.4 s a GiB.
#[test]
fn holes_are_not_read_and_stay_holes() {
    use std::os::unix::fs::FileExt;
    let place = Place::new("holes");
    let dir = &place.0;
    fs::create_dir(dir.join("large")).unwrap();
    let large = fs::File::create(dir.join("large/file")).unwrap();
    if let Err(e) = large.set_len(1 << 40) {
        eprintln!("SKIPPED: no sparse file of 1 TiB in the temporary directory: {e}");
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
    let said = json(&good(dir, &["import", "f", "large", "--json"]));
    assert!(start.elapsed() < Duration::from_secs(60));
    assert_eq!(said["content_bytes"], 1u64 << 40);
    let stat = json(&good(dir, &["stat", "f", "--json"]));
    assert!(stat["live_bytes"].as_u64().unwrap() < 1 << 20, "{stat}");
    good(dir, &["check", "--data", "f"]);
}

#[test]
fn a_snapshot_keeps_what_the_present_loses() {
    let place = Place::new("snapshot");
    let dir = &place.0;
    let empty = good(dir, &["export", "v"]);
    good(dir, &["snapshot", "create", "v", "empty"]);
    good(dir, &["import", "v", "src"]);
    assert_ne!(good(dir, &["export", "v"]), empty);
    assert_eq!(good(dir, &["export", "v", "--snapshot", "empty"]), empty);
    let list = json(&good(dir, &["snapshot", "list", "v", "--json"]));
    assert_eq!(list["snapshots"][0]["name"], "empty");
    let (code, said) = bad(dir, &["snapshot", "create", "v", "empty"]);
    assert_eq!((code, said.contains("already")), (2, true), "{said}");
    let (code, said) = bad(dir, &["snapshot", "delete", "v", "none"]);
    assert_eq!((code, said.contains("no snapshot")), (2, true), "{said}");
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
fn a_snapshot_sent_is_received_whole_and_in_steps() {
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
        // What does not fit is one sentence, and changes nothing.
        fs::write(
            dir.join("cut"),
            &fs::read(dir.join("two")).unwrap()[..1 << 20],
        )
        .unwrap();
        let (code, said) = bad(dir, &["receive", "copy", "-i", "cut"]);
        assert_eq!(
            (code, said.contains("ends in the middle")),
            (3, true),
            "{said}"
        );
        let (code, said) = bad(dir, &["receive", "copy", "-i", "one"]);
        assert_eq!((code, said.contains("volume already")), (2, true), "{said}");
        let (code, said) = bad(dir, &["receive", "v", "-i", "two"]);
        assert_eq!((code, said.contains("another volume")), (2, true), "{said}");
        assert!(good(dir, &["export", "copy"]) == was);
        take("copy", "two");
        good(dir, &["check", "--data", "copy"]);
        assert!(good(dir, &["export", "copy"]) == good(dir, &["export", "f"]));
        let (code, said) = bad(dir, &["receive", "copy", "-i", "two"]);
        assert_eq!((code, said.contains("continues")), (2, true), "{said}");
    }
    // Seen: whatever file had the name was written over, zeros and blocks of the volume. Cause: only block devices were asked about.
    let theirs = vec![b'x'; 100_000];
    fs::write(dir.join("theirs"), &theirs).unwrap();
    for file in [&["--file"][..], &[]] {
        let receive = ["receive", "theirs", "-i", "one"];
        let (code, said) = bad(dir, &[&receive, file].concat());
        assert_eq!((code, said.contains("no volume")), (2, true), "{said}");
        assert!(fs::read(dir.join("theirs")).unwrap() == theirs);
    }
    good(dir, &["receive", "theirs", "-i", "one", "--force"]);
    good(dir, &["check", "--data", "theirs"]);
    let (code, said) = bad(dir, &["receive", "new", "-i", "cut"]);
    assert_ne!(code, 0, "{said}");
    assert!(!dir.join("new").exists());
    let (code, said) = bad(dir, &["send", "v", "-o", "x"]);
    assert_eq!((code, said.contains("no snapshot")), (2, true), "{said}");
    let (code, said) = bad(dir, &["send", "f", "one", "--from", "two", "-o", "x"]);
    assert_eq!((code, said.contains("not older")), (2, true), "{said}");
    assert!(!dir.join("x").exists());
}

/// A tar or a stream that a full disk cuts off leaves what had the name before; a pipe gets it as it comes.
#[test]
fn a_stream_has_its_name_when_it_is_complete() {
    let place = Place::new("whole-streams");
    let dir = &place.0;
    good(dir, &["snapshot", "create", "v", "one"]);
    for verb in [&["export", "v", "out"][..], &["send", "v", "-o", "out"]] {
        fs::write(dir.join("out"), "before").unwrap();
        good(dir, verb);
        let whole = fs::read(dir.join("out")).unwrap();
        assert!(whole.len() > 4096);
        fs::write(dir.join("out"), "before").unwrap();
        let limited = format!("ulimit -f 2; exec \"$0\" volume {}", verb.join(" "));
        let out = Command::new("sh")
            .args(["-c", &limited, env!("CARGO_BIN_EXE_tuff")])
            .current_dir(dir)
            .output()
            .unwrap();
        assert!(!out.status.success());
        assert_eq!(fs::read(dir.join("out")).unwrap(), b"before");
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

#[test]
fn limits_are_set_shown_and_taken_away() {
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
    // Seen: `v: Quota (errno 122)`, which names no file and says it in no words.
    let owner = fs::metadata(dir.join("src/hello"))
        .unwrap()
        .uid()
        .to_string();
    good(dir, &["create", "small", "-s", "64M"]);
    fs::write(dir.join("src/large"), vec![1; 1 << 20]).unwrap();
    let user = ["quota", "small", "--user", &owner, "--space", "512K"];
    good(dir, &user);
    let (code, said) = bad(dir, &["import", "small", "src"]);
    assert_eq!(
        (code, said.contains("src/") && said.contains("limit")),
        (4, true),
        "{said}"
    );
}

#[test]
fn errors_are_one_sentence_with_the_documented_code() {
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
        (&["check", "src"], 5, "src: is no volume"),
        (&["mount", "src", "src"], 5, "src: is no volume"),
        (&["import", "v", "src/hello"], 2, "no directory"),
        (&["export", "v", "--snapshot", "x"], 2, "no snapshot"),
    ] {
        let (found, said) = bad(dir, args);
        assert_eq!(found, code, "{args:?}: {said}");
        assert!(said.to_lowercase().contains(says), "{args:?}: {said}");
    }
    assert!(!dir.join("x").exists());
    fs::write(dir.join("junk"), vec![7; 1 << 20]).unwrap();
    let (code, said) = bad(dir, &["stat", "junk"]);
    assert_eq!((code, said.contains("superblock")), (3, true), "{said}");
}

/// Seen: `src/hello: TooBig (errno 7)`.
#[test]
fn attributes_that_do_not_fit_are_named_with_the_limit() {
    use rustix::fs::{XattrFlags, setxattr};
    let place = Place::new("import-attribute");
    let file = place.0.join("src/hello");
    let set = |name: &str, len| setxattr(&file, name, &vec![b'x'; len], XattrFlags::empty());
    // Not every filesystem takes as much in one; all of them together are too much, too.
    let len = [10_000, 4010]
        .into_iter()
        .find(|len| set("user.big", *len).is_ok());
    let (Some(len), Ok(())) = (len, set("user.small", 50)) else {
        eprintln!("SKIPPED: the temporary directory takes no attributes so large");
        return;
    };
    let (code, said) = bad(&place.0, &["import", "v", "src"]);
    let what = format!(
        "attribute user.big has {len} bytes, where all of a file's names and values have at most 4054"
    );
    assert!(said.starts_with("tuff: src/"), "{said}");
    assert_eq!((code, said.contains(&what)), (4, true), "{said}");
}

#[test]
fn a_volume_that_is_in_use_is_refused() {
    let place = Place::new("lock");
    let dir = &place.0;
    for volume in ["v", "f"] {
        let held = tuff_iplfs::backend::open(&dir.join(volume), false).unwrap();
        let (code, said) = bad(dir, &["stat", volume]);
        assert_eq!((code, said.contains("in use")), (5, true), "{said}");
        drop(held);
        // Another test's child may still hold a copy of the descriptor, until it becomes another program.
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
    let (code, said) = bad(dir, &["check", "--rebuild", "f"]);
    assert_eq!(
        (code, said.contains("nothing to rebuild")),
        (2, true),
        "{said}"
    );
    // Blocks 16 to 527 are the packs.
    let file = fs::File::options().write(true).open(dir.join("f")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0; 512 << 12], 16 << 12).unwrap();
    drop(file);
    let (code, said) = bad(dir, &["check", "--repair", "f"]);
    assert_eq!((code, said.contains("no sound seal")), (3, true), "{said}");
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

/// A volume that is mounted. Dropping it kills the server, as a crash would, and takes the mount away.
struct Mounted(PathBuf, Child);

impl Mounted {
    /// Mounts `v` of a place on `m`. `None` where that is not possible.
    fn new(place: &Place) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            eprintln!("SKIPPED: mounting needs root and /dev/fuse");
            return None;
        }
        let dir = place.0.join("m");
        let _ = fs::create_dir(&dir);
        let mut child = Command::new(env!("CARGO_BIN_EXE_tuff"))
            .current_dir(&place.0)
            .args(["volume", "mount", "-f", "v", "m"])
            .spawn()
            .unwrap();
        let outside = fs::metadata(&place.0).unwrap().dev();
        while fs::metadata(&dir).is_ok_and(|m| m.dev() == outside) {
            assert!(child.try_wait().unwrap().is_none(), "the server ended");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(Self(dir, child))
    }

    /// Unmounts in an orderly way; the server must end well. While another test starts a command, that has our files until
    /// it is one.
    fn end(mut self) {
        let umount = || Command::new("umount").arg(&self.0).output().unwrap();
        let mut out = umount();
        for _ in 0..1000 {
            if !String::from_utf8_lossy(&out.stderr).contains("busy") {
                break;
            }
            std::thread::yield_now();
            out = umount();
        }
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        assert!(self.1.wait().unwrap().success());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.1.kill();
        let _ = self.1.wait();
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn a_mounted_volume_behaves_as_a_filesystem_and_gives_its_space_back() {
    use rustix::fs::{
        AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, XattrFlags, fallocate,
        getxattr, linkat, open, renameat_with, seek, setxattr,
    };
    use std::os::unix::fs::FileExt;
    let place = Place::new("mount");
    let Some(mounted) = Mounted::new(&place) else {
        return;
    };
    let m = mounted.0.clone();
    fs::create_dir(m.join("d")).unwrap();
    for n in 0..500 {
        fs::write(m.join(format!("d/{n}")), n.to_string()).unwrap();
    }
    assert_eq!(fs::read_dir(m.join("d")).unwrap().count(), 500);
    // A file without a name lives while it is open.
    let file = fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(m.join("gone"))
        .unwrap();
    fs::remove_file(m.join("gone")).unwrap();
    file.write_all_at(b"still here", 100_000).unwrap();
    let mut buf = [0; 10];
    file.read_exact_at(&mut buf, 100_000).unwrap();
    assert_eq!((&buf, file.metadata().unwrap().nlink()), (b"still here", 0));
    drop(file);
    // One that never had a name gets one.
    let temporary = open(&m, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR | Mode::WUSR).unwrap();
    rustix::io::write(&temporary, b"temporary").unwrap();
    let link = format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&temporary)
    );
    linkat(CWD, link, CWD, m.join("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    drop(temporary);
    assert_eq!(fs::read(m.join("named")).unwrap(), b"temporary");
    // The flags of rename.
    let (a, b) = (m.join("d/1"), m.join("d/2"));
    let rename = |flags| renameat_with(CWD, &a, CWD, &b, flags);
    assert_eq!(
        rename(RenameFlags::NOREPLACE),
        Err(rustix::io::Errno::EXIST)
    );
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(&a).unwrap(), b"2");
    rename(RenameFlags::WHITEOUT).unwrap();
    assert_eq!(
        (fs::read(&b).unwrap(), fs::metadata(&a).unwrap().rdev()),
        (b"2".to_vec(), 0)
    );
    // Attributes, also those that overlay filesystems need.
    setxattr(
        m.join("d"),
        "trusted.overlay.opaque",
        b"y",
        XattrFlags::CREATE,
    )
    .unwrap();
    let mut value = [0; 9];
    assert_eq!(
        getxattr(m.join("d"), "trusted.overlay.opaque", &mut value),
        Ok(1)
    );
    // Holes, reservations, and the space they take.
    let file = fs::File::create_new(m.join("sparse")).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    file.write_all_at(&[7; 8192], 512 << 10).unwrap();
    file.sync_all().unwrap();
    fallocate(
        &file,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        0,
        512 << 10,
    )
    .unwrap();
    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(512 << 10));
    assert_eq!(seek(&file, SeekFrom::Hole(512 << 10)), Ok(520 << 10));
    let blocks = file.metadata().unwrap().blocks();
    assert!((1024..1100).contains(&blocks), "{blocks}");
    drop(file);
    for name in fs::read_dir(&m).unwrap() {
        let path = name.unwrap().path();
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }
    mounted.end();
    good(&place.0, &["check", "--data", "v"]);
    let stat = json(&good(&place.0, &["stat", "v", "--json"]));
    assert_eq!(
        (&stat["inodes"], &stat["dead_bytes"]),
        (&1.into(), &0.into())
    );
    assert!(
        stat["allocated_bytes"].as_u64().unwrap() < 4 << 20,
        "{stat}"
    );
}

#[test]
fn a_mount_in_the_background_answers_at_once_and_is_closed_after_its_unmount() {
    let place = Place::new("background");
    let dir = &place.0;
    if Mounted::new(&place).is_none() {
        return;
    }
    for round in 0..5 {
        good(dir, &["mount", "v", "m"]);
        assert_eq!(fs::read_dir(dir.join("m")).unwrap().count(), round);
        fs::write(dir.join("m").join(round.to_string()), "here").unwrap();
        let out = Command::new(env!("CARGO_BIN_EXE_tuff"))
            .current_dir(dir)
            .args(["umount", "m"])
            .output()
            .unwrap();
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        good(dir, &["check", "--data", "v"]);
    }
    let (code, said) = bad(dir, &["mount", "nothing", "m"]);
    assert_eq!((code, said.contains("nothing")), (5, true), "{said}");
}

/// An access control list as the kernel takes it: tag, permissions, id.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

#[test]
fn access_control_lists_decide_and_are_inherited() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    const NONE: u32 = u32::MAX;
    const ACCESS: &str = "system.posix_acl_access";
    const DEFAULT: &str = "system.posix_acl_default";
    let place = Place::new("acl");
    let Some(mounted) = Mounted::new(&place) else {
        return;
    };
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    let list = |path: &Path, name: &str| {
        let mut value = vec![0; 256];
        let n = getxattr(path, name, &mut value)?;
        value.truncate(n);
        Ok::<_, rustix::io::Errno>(value)
    };
    let d = mounted.0.join("d");
    fs::create_dir(&d).unwrap();
    let default = acl(&[
        (1, 7, NONE),
        (2, 5, 1234),
        (4, 5, NONE),
        (16, 7, NONE),
        (32, 0, NONE),
    ]);
    setxattr(&d, DEFAULT, &default, XattrFlags::empty()).unwrap();
    // The mode that is asked for limits what is inherited, and the umask does not.
    let file = d.join("file");
    fs::write(&file, "secret").unwrap();
    assert_eq!(mode(&file), 0o660);
    let want = acl(&[
        (1, 6, NONE),
        (2, 5, 1234),
        (4, 5, NONE),
        (16, 6, NONE),
        (32, 0, NONE),
    ]);
    assert_eq!(list(&file, ACCESS), Ok(want));
    fs::create_dir(d.join("sub")).unwrap();
    assert_eq!(list(&d.join("sub"), DEFAULT), Ok(default));
    // chmod changes the mask, a list changes the mode.
    std::process::Command::new("chmod")
        .arg("640")
        .arg(&file)
        .status()
        .unwrap();
    let want = acl(&[
        (1, 6, NONE),
        (2, 5, 1234),
        (4, 5, NONE),
        (16, 4, NONE),
        (32, 0, NONE),
    ]);
    assert_eq!(list(&file, ACCESS), Ok(want));
    let plain = acl(&[(1, 6, NONE), (4, 4, NONE), (32, 4, NONE)]);
    setxattr(&file, ACCESS, &plain, XattrFlags::empty()).unwrap();
    assert_eq!(
        (mode(&file), list(&file, ACCESS)),
        (0o644, Err(rustix::io::Errno::NODATA))
    );
    assert!(setxattr(&file, ACCESS, &plain[..9], XattrFlags::empty()).is_err());
    // The kernel asks the list: user 1234 may read what others may not.
    let shared = acl(&[
        (1, 6, NONE),
        (2, 4, 1234),
        (4, 0, NONE),
        (16, 4, NONE),
        (32, 0, NONE),
    ]);
    setxattr(&file, ACCESS, &shared, XattrFlags::empty()).unwrap();
    let reach = acl(&[
        (1, 7, NONE),
        (2, 5, 1234),
        (4, 5, NONE),
        (16, 5, NONE),
        (32, 0, NONE),
    ]);
    setxattr(&d, ACCESS, &reach, XattrFlags::empty()).unwrap();
    let reads = |user: u32| {
        use std::os::unix::process::CommandExt;
        let mut cat = Command::new("cat");
        cat.current_dir(&d)
            .arg("file")
            .uid(user)
            .gid(user)
            .output()
            .map(|out| out.stdout)
    };
    assert_eq!(reads(1234).unwrap(), b"secret");
    assert_eq!(reads(4321).unwrap_or_default(), b"");
    mounted.end();
    good(&place.0, &["check", "--data", "v"]);
}

/// Seen: a file that nobody else could read was given to whom its directory's default list names. Cause: what is made in
/// such a directory inherits, as from a mount.
#[test]
fn what_is_imported_has_the_access_control_lists_of_its_source() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    use std::os::unix::fs::PermissionsExt;
    const NONE: u32 = u32::MAX;
    const ACCESS: &str = "system.posix_acl_access";
    const DEFAULT: &str = "system.posix_acl_default";
    let place = Place::new("import-acl");
    let dir = &place.0;
    let list = acl(&[
        (1, 7, NONE),
        (2, 7, 65534),
        (4, 5, NONE),
        (16, 7, NONE),
        (32, 0, NONE),
    ]);
    fs::create_dir_all(dir.join("s/d/sub")).unwrap();
    for (name, mode) in [("f", 0o640), ("g", 0o600)] {
        let path = dir.join("s/d").join(name);
        fs::write(&path, "secret").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let set = |name: &str, which: &str| {
        setxattr(
            dir.join("s/d").join(name),
            which,
            &list,
            XattrFlags::empty(),
        )
    };
    if let Err(e) = set("", DEFAULT).and_then(|()| set("g", ACCESS)) {
        eprintln!("SKIPPED: the temporary directory takes no access lists: {e}");
        return;
    }
    good(dir, &["import", "v", "s"]);
    let Some(mounted) = Mounted::new(&place) else {
        return;
    };
    let has = |name: &str, which: &str| {
        let mut value = vec![0; 256];
        let path = mounted.0.join("d").join(name);
        getxattr(path, which, &mut value).map(|n| value[..n].to_vec())
    };
    let absent = Err(rustix::io::Errno::NODATA);
    assert_eq!(has("", DEFAULT), Ok(list.clone()));
    assert_eq!(has("g", ACCESS), Ok(list.clone()));
    for (name, which) in [
        ("", ACCESS),
        ("f", ACCESS),
        ("sub", ACCESS),
        ("sub", DEFAULT),
    ] {
        assert_eq!(has(name, which), absent, "{name} {which}");
    }
    for name in ["f", "g", "sub"] {
        let mode = |root: &Path| fs::metadata(root.join("d").join(name)).unwrap().mode();
        assert_eq!(mode(&mounted.0), mode(&dir.join("s")), "{name}");
    }
    mounted.end();
    good(dir, &["check", "--data", "v"]);
}

#[test]
fn what_was_synced_survives_the_death_of_the_server() {
    let place = Place::new("kill");
    for round in 0..8 {
        let Some(mounted) = Mounted::new(&place) else {
            return;
        };
        for before in 0..round {
            let read = fs::read(mounted.0.join(format!("file {before}"))).unwrap();
            assert!(
                read == vec![before as u8; 200_000],
                "round {round}: file {before}"
            );
        }
        let path = mounted.0.join(format!("file {round}"));
        fs::write(&path, vec![round as u8; 200_000]).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        fs::write(mounted.0.join(format!("unsynced {round}")), "perhaps").unwrap();
        drop(mounted);
        good(&place.0, &["check", "v"]);
    }
}

/// The kernel writes its page cache back and says no more, so this holds some seconds after `sync`, as the help says.
#[test]
fn what_sync_wrote_back_is_durable_seconds_later() {
    use std::os::unix::fs::FileExt;
    let place = Place::new("sync");
    let Some(mounted) = Mounted::new(&place) else {
        return;
    };
    let write = |name: &str| {
        let file = fs::File::create(mounted.0.join(name)).unwrap();
        file.write_all_at(&[7; 200_000], 0).unwrap();
        file
    };
    // Closing them would have them written back.
    let files = [write("synced"), write("too")];
    rustix::fs::syncfs(&files[0]).unwrap();
    std::thread::sleep(Duration::from_secs(8));
    drop(mounted);
    let Some(mounted) = Mounted::new(&place) else {
        return;
    };
    for name in ["synced", "too"] {
        assert!(
            fs::read(mounted.0.join(name)).unwrap() == [7; 200_000],
            "{name}"
        );
    }
}

#[test]
fn a_volume_is_the_upper_layer_over_an_image() {
    let place = Place::new("overlay");
    let dir = &place.0;
    let Some(mounted) = Mounted::new(&place) else {
        return;
    };
    let tuff = env!("CARGO_BIN_EXE_tuff");
    let run = |program: &str, args: &[&str]| {
        let out = Command::new(program)
            .current_dir(dir)
            .args(args)
            .output()
            .unwrap();
        (
            out.status.success(),
            String::from_utf8_lossy(&out.stderr).into_owned(),
        )
    };
    assert!(run(tuff, &["build", "src", "image"]).0);
    for name in ["lower", "all", "m/upper", "m/work"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    let (lower, said) = run("mount", &["-t", "erofs", "-o", "loop,ro", "image", "lower"]);
    if !lower {
        eprintln!("SKIPPED: the host mounts no EROFS: {said}");
        return;
    }
    let layers = "lowerdir=lower,upperdir=m/upper,workdir=m/work";
    let over = run("mount", &["-t", "overlay", "overlay", "-o", layers, "all"]);
    let all = dir.join("all");
    let work = || -> std::io::Result<Vec<u8>> {
        fs::remove_file(all.join("link"))?;
        fs::remove_dir_all(all.join("sub"))?;
        fs::create_dir(all.join("sub"))?;
        fs::write(all.join("sub/new"), "new")?;
        fs::rename(all.join("hello"), all.join("moved"))?;
        fs::read(all.join("moved"))
    };
    let result = over.0.then(work);
    let seen: Option<Vec<_>> = result.is_some().then(|| {
        let names = fs::read_dir(all.join("sub")).unwrap();
        names.map(|e| e.unwrap().file_name()).collect()
    });
    let unmounted = run("umount", &["all"]).0 & run("umount", &["lower"]).0;
    assert!(over.0, "{}", over.1);
    assert_eq!(
        result.unwrap().unwrap(),
        fs::read(dir.join("src/hello")).unwrap()
    );
    assert_eq!(seen.unwrap(), ["new"]);
    assert!(unmounted);
    mounted.end();
    good(dir, &["check", "--data", "v"]);
}
