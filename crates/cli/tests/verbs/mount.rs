//! `mount`, `umount` and `stats`, from the command to the end of the server.

use crate::common::{Place, code, is_root, skipped, stderr, text};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use tuff_testkit::namespace::{self, MountCopy};
use tuff_testkit::program;

/// Error numbers of Linux.
const EIO: i32 = 5;
const ECONNABORTED: i32 = 103;
const ENOTCONN: i32 = 107;

/// Returns true if this user can mount through FUSE, with a note if not.
pub(crate) fn can_mount() -> bool {
    let helper = || Command::new("fusermount3").arg("-V").output().is_ok();
    let can = Path::new("/dev/fuse").exists() && (is_root() || helper());
    if !can {
        skipped("no /dev/fuse, or neither root nor fusermount3");
    }
    can
}

/// Image `i` and a mount point `mnt`, unmounted on drop.
struct Stage(Place);

impl Stage {
    /// Returns `None`, with a note, if nothing can be mounted here.
    fn new(name: &str) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let place = Place::with_image(&format!("mount-{name}"));
        fs::create_dir(place.path("mnt")).unwrap();
        Some(Self(place))
    }

    fn m(&self, below: &str) -> PathBuf {
        self.0.path("mnt").join(below)
    }

    fn mounted(&self) -> bool {
        self.kind().is_some()
    }

    /// Filesystem type of the mount, if there is one.
    fn kind(&self) -> Option<String> {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let dir = fs::canonicalize(&self.0.0).unwrap().join("mnt");
        let dir = dir.to_str().unwrap().to_owned();
        let line = table.lines().find(|l| l.split(' ').nth(1) == Some(&dir))?;
        line.split(' ').nth(2).map(str::to_owned)
    }

    /// Mounts in the foreground, and waits for the readiness message.
    fn foreground(&self, args: &[&str]) -> Child {
        let socket = self.0.path("ready");
        let _ = fs::remove_file(&socket);
        let ready = UnixDatagram::bind(&socket).unwrap();
        let child = self
            .0
            .command(&["mount", "-f", "--log", "log"])
            .args(args)
            .args(["i", "mnt"])
            .env("NOTIFY_SOCKET", &socket)
            .spawn()
            .unwrap();
        let mut message = [0; 100];
        let n = ready.recv(&mut message).unwrap();
        let message = std::str::from_utf8(&message[..n]).unwrap();
        assert_eq!(message, format!("READY=1\nMAINPID={}\n", child.id()));
        child
    }

    fn unmount(&self) {
        self.0.unmount("mnt");
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.path("log")).unwrap_or_default()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.mounted() {
            let _ = self.0.run(&["umount", "-l", "mnt"]);
        }
    }
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-s", name, &pid])
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn a_mount_is_ready_when_the_command_returns_and_gone_after_umount() {
    let Some(stage) = Stage::new("life") else {
        return;
    };
    assert_eq!(stage.0.text(&["mount", "i", "mnt"]), "");
    assert_eq!(stage.kind().as_deref(), Some("fuse.tuff"));
    assert_eq!(fs::read_to_string(stage.m("dir/text")).unwrap(), text());
    assert_eq!(fs::metadata(stage.m("hello")).unwrap().nlink(), 2);
    let stats = stage.0.text(&["stats", "mnt"]);
    assert!(
        stats.lines().any(|l| l.starts_with("read.requests ")),
        "{stats}"
    );
    let json = &stage.0.json(&["stats", "--json", "mnt"])[0];
    assert!(
        json["returned_bytes"].as_u64() >= Some(text().len() as u64),
        "{json}"
    );
    assert!(stats.contains("\nreads by size\n  up to "), "{stats}");
    let sizes = json.as_object().unwrap().iter();
    let sizes = sizes.filter(|(name, _)| name.starts_with("read.up_to_"));
    let reads: u64 = sizes.map(|(_, n)| n.as_u64().unwrap()).sum();
    assert_eq!(json["read.requests"], reads);
    stage.unmount();
    assert!(!stage.mounted());
    assert_eq!(fs::read_dir(stage.m("")).unwrap().count(), 0);
}

#[test]
fn failed_mounts_are_reported_and_leave_nothing() {
    let Some(stage) = Stage::new("refused") else {
        return;
    };
    fs::write(stage.0.path("noise"), vec![7; 10_000]).unwrap();
    for (args, expected, says) in [
        (&["mount", "noise", "mnt"][..], 3, "magic number"),
        (&["mount", "nothing", "mnt"], 5, "nothing: cannot open"),
        (&["mount", "i", "missing"], 5, "missing"),
        (&["mount", "i", "i"], 5, "not a directory"),
        (
            &["mount", "-o", "compress", "i", "mnt"],
            2,
            "'compress': not known",
        ),
        (
            &["mount", "--metrics", "0.0.0.0:0", "i", "mnt"],
            2,
            "loopback",
        ),
        (&["umount", "mnt"], 2, "not a mount point"),
        (&["umount", "/proc"], 2, "of type proc"),
        (&["stats", "mnt"], 2, "not a mount point"),
    ] {
        let out = stage.0.run(args);
        assert_eq!(code(&out), expected, "{args:?}: {}", stderr(&out));
        assert!(stderr(&out).contains(says), "{args:?}: {}", stderr(&out));
        assert!(!stage.mounted(), "{args:?}");
    }
}

#[test]
fn options_of_fstab_are_accepted() {
    let Some(stage) = Stage::new("options") else {
        return;
    };
    let mut shifted = vec![0xAA; 8192];
    shifted.extend(fs::read(stage.0.path("i")).unwrap());
    fs::write(stage.0.path("shifted"), shifted).unwrap();
    let options = "defaults,nofail,uid=5,gid=6,offset=8192,fsname=a name,x-systemd.automount";
    assert_eq!(
        stage.0.text(&["mount", "-o", options, "shifted", "mnt"]),
        ""
    );
    let hello = fs::metadata(stage.m("hello")).unwrap();
    assert_eq!((hello.uid(), hello.gid()), (5, 6));
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table
        .lines()
        .find(|l| l.starts_with("a\\040name "))
        .unwrap();
    assert!(
        line.contains("ro,") && line.contains("nosuid,nodev"),
        "{line}"
    );
    let out = File::create(stage.m("new")).unwrap_err();
    assert_eq!(out.raw_os_error(), Some(30), "read-only: {out}");
}

#[test]
fn reads_are_recorded_and_pinned_by_the_next_mount() {
    let Some(stage) = Stage::new("record") else {
        return;
    };
    let mut child = stage.foreground(&["--record", "profile"]);
    assert_eq!(fs::read_to_string(stage.m("dir/text")).unwrap(), text());
    stage.unmount();
    assert!(child.wait().unwrap().success());
    let shown = stage.0.text(&["profile", "show", "profile"]);
    assert!(shown.contains("  /dir/text\n"), "{shown}");
    assert!(!shown.contains("hello"), "{shown}");

    let pinned = |arg: &str| {
        assert_eq!(stage.0.text(&["mount", "--pin", arg, "i", "mnt"]), "");
        let stats = &stage.0.json(&["stats", "--json", "mnt"])[0];
        let pinned = stats["pinned_bytes"].as_u64().unwrap();
        assert_eq!(fs::read_to_string(stage.m("dir/text")).unwrap(), text());
        stage.unmount();
        pinned
    };
    assert!(pinned("profile") >= text().len() as u64 / 2);
    assert_eq!(pinned("profile,1K"), 0, "nothing fits");

    // Invalid requests are reported before the mount.
    for args in [["--record", "none/profile"], ["--pin", "none"]] {
        let out = stage.0.run(&["mount", "-f", args[0], args[1], "i", "mnt"]);
        assert_eq!(code(&out), 5, "{}", stderr(&out));
        assert!(stderr(&out).contains("none"), "{}", stderr(&out));
        assert!(!stage.mounted());
    }
}

#[test]
fn a_signal_ends_a_mount_and_a_busy_one_when_its_last_user_is_done() {
    let Some(stage) = Stage::new("signals") else {
        return;
    };
    for name in ["TERM", "INT"] {
        let mut child = stage.foreground(&[]);
        assert!(stage.mounted());
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(!stage.mounted());
    }
    let mut child = stage.foreground(&[]);
    let mut file = File::open(stage.m("dir/text")).unwrap();
    signal(&child, "TERM");
    while stage.mounted() {
        std::thread::yield_now();
    }
    let mut all = String::new();
    file.read_to_string(&mut all).unwrap();
    assert_eq!(all, text(), "who has it open reads on");
    drop(file);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(stage.log().contains("its last user"), "{}", stage.log());
}

/// Regression: nothing named the process, and the second signal was not seen.
#[test]
fn a_copied_mount_is_named_by_umount_and_ended_by_a_second_signal() {
    let Some(stage) = Stage::new("copied") else {
        return;
    };
    let mut child = stage.foreground(&[]);
    let Some(copy) = MountCopy::new(&stage.m(".")) else {
        stage.unmount();
        child.wait().unwrap();
        return;
    };
    let out = program::retry_busy(&mut stage.0.command(&["umount", "mnt"]));
    let message = stderr(&out);
    assert_eq!(code(&out), 0, "{message}");
    let named = format!("process {} (sleep)", copy.pid());
    assert!(message.contains(&named), "{message}");
    assert!(!stage.mounted());
    signal(&child, "TERM");
    while !stage.log().contains("unmounting") {
        std::thread::yield_now();
    }
    signal(&child, "HUP");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(copy);

    let mut child = stage.foreground(&[]);
    let Some(copy) = MountCopy::new(&stage.m(".")) else {
        stage.unmount();
        child.wait().unwrap();
        return;
    };
    signal(&child, "TERM");
    while stage.mounted() {
        std::thread::yield_now();
    }
    signal(&child, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(copy);
}

#[test]
fn a_killed_server_is_an_error_and_umount_cleans_up() {
    let Some(stage) = Stage::new("killed") else {
        return;
    };
    let mut child = stage.foreground(&[]);
    let file = File::open(stage.m("dir/text")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let mut buf = [0; 100];
    let first = file.read_at(&mut buf, 300_000).unwrap_err();
    // The kernel may still be releasing the rings.
    let aborted = matches!(first.raw_os_error(), Some(ECONNABORTED | ENOTCONN));
    assert!(aborted, "{first}");
    assert_eq!(
        fs::metadata(stage.m("hello")).unwrap_err().raw_os_error(),
        Some(ENOTCONN)
    );
    drop(file);
    stage.unmount();
    assert!(!stage.mounted());
}

/// Reads a file page by page, and returns the result of each page.
fn pages(path: &Path) -> Vec<Result<Vec<u8>, i32>> {
    let file = File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    (0..size.div_ceil(4096))
        .map(|n| {
            let mut page = vec![0; 4096];
            match file.read_at(&mut page, n * 4096) {
                Ok(n) => {
                    page.truncate(n);
                    Ok(page)
                }
                Err(e) => Err(e.raw_os_error().unwrap()),
            }
        })
        .collect()
}

#[test]
fn damage_is_an_error_of_its_range_only_and_is_logged_with_its_place() {
    let Some(stage) = Stage::new("damage") else {
        return;
    };
    let extents = stage.0.extents("i", "dir/text");
    let hit = &extents[extents.len() / 2];
    let number = |field: &str| hit[field].as_u64().unwrap();
    let (from, to) = (number("offset"), number("offset") + number("length"));
    let (pos, len) = (number("physical"), number("plength"));
    let image = fs::OpenOptions::new()
        .write(true)
        .open(stage.0.path("i"))
        .unwrap();
    image.write_all_at(&vec![0xFF; len as usize], pos).unwrap();
    let mut child = stage.foreground(&[]);
    let expected = text().into_bytes();
    for (n, page) in pages(&stage.m("dir/text")).into_iter().enumerate() {
        let at = n * 4096;
        let end = expected.len().min(at + 4096);
        if (at as u64) < to && end as u64 > from {
            assert_eq!(page, Err(EIO), "page {n}");
        } else {
            assert!(
                page.as_deref() == Ok(&expected[at..end]),
                "page {n}: {page:?}"
            );
        }
    }
    assert_eq!(fs::read(stage.m("hello")).unwrap(), b"hello\n");
    let log = stage.log();
    let place = format!("cluster at byte {pos:#x}");
    assert!(log.contains("nid ") && log.contains(&place), "{log}");
    assert!(log.lines().count() < 10, "each place is said once: {log}");
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn an_image_truncated_while_mounted_gives_errors() {
    let Some(stage) = Stage::new("cut") else {
        return;
    };
    let mut child = stage.foreground(&[]);
    assert!(fs::metadata(stage.m("dir/text")).unwrap().len() > 0);
    let image = fs::OpenOptions::new()
        .write(true)
        .open(stage.0.path("i"))
        .unwrap();
    image.set_len(0).unwrap();
    let failed = pages(&stage.m("dir/text"));
    assert!(failed.iter().all(|page| *page == Err(EIO)), "{failed:?}");
    assert!(child.try_wait().unwrap().is_none(), "it goes on serving");
    assert!(stage.0.text(&["stats", "mnt"]).contains("read.errors "));
    stage.unmount();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn counters_are_logged_at_a_signal_and_served_to_prometheus() {
    let Some(stage) = Stage::new("counters") else {
        return;
    };
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut child = stage.foreground(&["--metrics", &port.to_string()]);
    fs::read(stage.m("dir/text")).unwrap();
    signal(&child, "USR1");
    while !stage.log().contains("read.requests ") {
        std::thread::yield_now();
    }
    let get = |path: &str| {
        let mut client = std::net::TcpStream::connect(port).unwrap();
        client
            .write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
            .unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = get("/metrics");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let line = answer
        .lines()
        .find(|l| l.starts_with("tuff_returned_bytes_total{op=\"read\"} "));
    let bytes: u64 = line.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(bytes >= text().len() as u64);
    assert!(get("/").starts_with("HTTP/1.1 404 "));
    // Regression: each silent connection blocked all others for two seconds.
    let connect = || std::net::TcpStream::connect(port).unwrap();
    let idle: Vec<_> = (0..200).map(|_| connect()).collect();
    let mut client = connect();
    let timeout = Some(std::time::Duration::from_secs(30));
    client.set_read_timeout(timeout).unwrap();
    client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("tuff_uptime_seconds"), "{answer}");
    drop(idle);
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_kernel_mounts_or_the_reason_is_printed() {
    let Some(stage) = Stage::new("kernel") else {
        return;
    };
    if !is_root() {
        skipped("mounting with the kernel's EROFS needs root");
        return;
    }
    let out = stage.0.run(&["mount", "--kernel", "-v", "i", "mnt"]);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    if stage.kind().as_deref() == Some("erofs") {
        assert!(
            stderr(&out).contains("mounted by the kernel, "),
            "{}",
            stderr(&out)
        );
        assert_eq!(fs::read_to_string(stage.m("dir/text")).unwrap(), text());
        assert_eq!(code(&stage.0.run(&["stats", "mnt"])), 2, "no counters");
    } else {
        skipped(format_args!(
            "this kernel mounts no EROFS: {}",
            stderr(&out)
        ));
    }
    stage.unmount();
    let out = stage
        .0
        .run(&["mount", "--kernel", "-o", "uid=5", "i", "mnt"]);
    assert_eq!(code(&out), 0);
    assert!(
        stderr(&out).contains("not mounted by the kernel: "),
        "{}",
        stderr(&out)
    );
    assert_eq!(stage.kind().as_deref(), Some("fuse.tuff"));
    assert_eq!(fs::metadata(stage.m("hello")).unwrap().uid(), 5);
}

#[test]
fn the_kernel_mounts_no_image_without_its_devices() {
    let Some(stage) = Stage::new("kernel-devices") else {
        return;
    };
    if !is_root() {
        skipped("mounting with the kernel's EROFS needs root");
        return;
    }
    stage
        .0
        .image("delta", &["-z", "lz4", "-C", "16K", "--base", "i"]);
    fs::create_dir(stage.0.path("away")).unwrap();
    fs::rename(stage.0.path("delta"), stage.0.path("away/delta")).unwrap();
    let out = stage.0.run(&["mount", "--kernel", "away/delta", "mnt"]);
    let message = stderr(&out);
    // Names and attributes are readable without them, but the kernel would read other data instead of an error.
    assert_eq!(code(&out), 0, "{message}");
    assert!(
        message.contains("not mounted by the kernel: data is on device 1"),
        "{message}"
    );
    assert_eq!(stage.kind().as_deref(), Some("fuse.tuff"));
    assert_eq!(
        fs::metadata(stage.m("dir/text")).unwrap().len(),
        text().len() as u64
    );
    let error = fs::read(stage.m("dir/text")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5));
    stage.0.unmount("mnt");
    let options = ["mount", "--kernel", "--device", "i", "away/delta", "mnt"];
    let out = stage.0.run(&options);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    assert_eq!(fs::read_to_string(stage.m("dir/text")).unwrap(), text());
}

#[test]
fn users_without_rights_mount_through_the_helper() {
    let Some(stage) = Stage::new("user") else {
        return;
    };
    if Command::new("fusermount3").arg("-V").output().is_err() {
        skipped("no fusermount3 on PATH");
        return;
    }
    // fusermount3 opens the device as the user. If udev did not allow that, this test does.
    let device = fs::metadata("/dev/fuse").unwrap().mode();
    if is_root() && device & 0o006 != 0o006 {
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        fs::set_permissions("/dev/fuse", all).unwrap();
    }
    // The binary may lie in a directory that other users cannot enter.
    let binary = stage.0.path("tuff");
    program::copy(env!("CARGO_BIN_EXE_tuff"), &binary);
    let nobody = if is_root() { Some(65534) } else { None };
    std::os::unix::fs::chown(stage.m(""), nobody, nobody).unwrap();
    let command = |args: &[&str]| {
        let mut command = Command::new(&binary);
        command.args(args).current_dir(&stage.0.0);
        if let Some(id) = nobody {
            command.gid(id).uid(id);
        }
        command
    };
    let run = |args: &[&str]| command(args).output().unwrap();
    let out = run(&["mount", "i", "mnt"]);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    assert_eq!(stage.kind().as_deref(), Some("fuse.tuff"));
    let out = run(&["stats", "mnt"]);
    assert!(String::from_utf8_lossy(&out.stdout).contains("getattr.requests "));
    if nobody.is_some() {
        let refused = fs::metadata(stage.m("hello")).unwrap_err();
        assert_eq!(
            refused.raw_os_error(),
            Some(13),
            "only the one who mounted it may look"
        );
    }
    // The helper of the environment unmounts, and mounts.
    let helper = stage.0.path("helper");
    fs::write(
        &helper,
        "#!/bin/sh\necho used >> helped\nexec fusermount3 \"$@\"\n",
    )
    .unwrap();
    permit(&helper, 0o755);
    std::os::unix::fs::chown(&stage.0.0, nobody, nobody).unwrap();
    let out = program::retry_busy(command(&["umount", "mnt"]).env("FUSERMOUNT_PROG", &helper));
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    assert!(!stage.mounted());
    let helped = || {
        fs::read_to_string(stage.0.path("helped"))
            .unwrap_or_default()
            .lines()
            .count()
    };
    let before = helped();
    assert!(before >= 1);
    let out = command(&["mount", "i", "mnt"])
        .env("FUSERMOUNT_PROG", &helper)
        .output()
        .unwrap();
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    assert_eq!(helped(), before + 1);
    let out = program::retry_busy(&mut command(&["umount", "mnt"]));
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    let out = command(&["mount", "i", "mnt"])
        .env("FUSERMOUNT_PROG", "/no/helper")
        .output()
        .unwrap();
    assert_eq!(code(&out), 5);
    assert!(
        stderr(&out).contains("/no/helper, of FUSERMOUNT_PROG: "),
        "{}",
        stderr(&out)
    );
}

#[test]
fn an_attribute_of_the_image_does_not_pass_for_the_counters() {
    let Some(stage) = Stage::new("fake-counters") else {
        return;
    };
    let manifest = "#mtree\n. type=dir mode=0755 xattr.user.tuff.stats=read.requests\\04077777\n";
    fs::create_dir(stage.0.path("fake")).unwrap();
    fs::write(stage.0.path("fake/f.mtree"), manifest).unwrap();
    stage.0.text(&["build", "-q", "fake/f.mtree", "f"]);
    let out = stage.0.run(&["mount", "f", "mnt"]);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    let message = stage.0.text(&["stats", "mnt"]);
    assert!(
        message.contains("getattr.requests ") && !message.contains("77777"),
        "{message}"
    );
    stage.unmount();
    // Nor where the kernel mounts the image.
    let out = stage.0.run(&["mount", "--kernel", "f", "mnt"]);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    if stage.kind().as_deref() == Some("erofs") {
        let out = stage.0.run(&["stats", "mnt"]);
        assert_eq!(code(&out), 2, "{}", stderr(&out));
        assert!(out.stdout.is_empty());
    }
}

#[test]
fn a_missing_mount_point_is_named_with_the_command_that_creates_it() {
    let Some(stage) = Stage::new("missing") else {
        return;
    };
    for options in [&[][..], &["--kernel"]] {
        let args = [&["mount"], options, &["i", "no where"]].concat();
        let out = stage.0.run(&args);
        let expected =
            "tuff: no where: cannot mount: no such directory; create it first: mkdir 'no where'\n";
        assert_eq!((code(&out), stderr(&out).as_str()), (5, expected));
    }
}

/// Directory with the helper of mount(8) in `bin`, and `tuff` as a script in `home/.cargo/bin` that prints its arguments.
fn helper(name: &str) -> Place {
    let place = Place::new(name);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/mount.tuff");
    for dir in ["bin", "home/.cargo/bin"] {
        fs::create_dir_all(place.path(dir)).unwrap();
    }
    fs::copy(source, place.path("bin/mount.tuff")).unwrap();
    let script = place.path("home/.cargo/bin/tuff");
    fs::write(&script, "#!/bin/sh\necho \"$@\"\n").unwrap();
    permit(&script, 0o755);
    place
}

fn permit(path: &Path, mode: u32) {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
}

fn run_helper(place: &Place, path: &str) -> (i32, String) {
    let out = Command::new("sh")
        .arg(place.path("bin/mount.tuff"))
        .args(["i", "d", "-o", "ro"])
        .env("PATH", format!("{path}:/usr/bin:/bin"))
        .env("HOME", place.path("home"))
        .current_dir(&place.0)
        .output()
        .unwrap();
    (code(&out), String::from_utf8(out.stdout).unwrap())
}

#[test]
fn mount_tuff_finds_the_program_beside_itself_and_of_cargo() {
    let place = helper("helper-found");
    let ran = (0, "mount.tuff i d -o ro\n".to_owned());
    let system = ["/usr/local/bin/tuff", "/usr/bin/tuff", "/bin/tuff"];
    if system.iter().any(|path| Path::new(path).exists()) {
        return skipped("the program is installed");
    }
    assert_eq!(run_helper(&place, "/nowhere"), ran);
    fs::rename(place.path("home/.cargo/bin/tuff"), place.path("bin/tuff")).unwrap();
    assert_eq!(run_helper(&place, "/nowhere"), ran);
}

#[test]
fn mount_tuff_runs_no_program_that_others_can_replace() {
    let place = helper("helper-unsafe");
    let system = ["/usr/local/bin/tuff", "/usr/bin/tuff", "/bin/tuff"];
    if system.iter().any(|path| Path::new(path).exists()) {
        return skipped("the program is installed");
    }
    let program = place.path("home/.cargo/bin/tuff");
    let path = place.path("home/.cargo/bin");
    let path = path.to_str().unwrap();
    for unsafe_place in [
        &program,
        &place.path("home/.cargo/bin"),
        &place.path("home"),
    ] {
        let mode = fs::metadata(unsafe_place).unwrap().mode();
        permit(unsafe_place, mode | 0o002);
        assert_eq!(
            run_helper(&place, path),
            (2, String::new()),
            "{unsafe_place:?}"
        );
        permit(unsafe_place, mode);
    }
    assert_eq!(run_helper(&place, path).0, 0);
    // A relative entry of PATH depends on the directory, which anyone may have chosen.
    fs::rename(&program, place.path("home/tuff")).unwrap();
    assert_eq!(run_helper(&place, "home").0, 2);
    if is_root() {
        fs::rename(place.path("home/tuff"), &program).unwrap();
        std::os::unix::fs::chown(&program, Some(65534), None).unwrap();
        assert_eq!(run_helper(&place, path).0, 2);
    }
}

#[test]
fn a_mounted_image_can_be_mounted_again_with_mapped_owners() {
    let Some(stage) = Stage::new("idmap") else {
        return;
    };
    if !is_root() {
        return skipped("mapping owners needs root");
    }
    let out = stage.0.run(&["mount", "i", "mnt"]);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    if !namespace::mount_mapped(&stage.0.0, "mnt", "mapped") {
        return;
    }
    let owner = |dir: &str| fs::metadata(stage.0.path(dir).join("hello")).unwrap().uid();
    assert_eq!((owner("mnt"), owner("mapped")), (0, 100_000));
    let read = fs::read(stage.0.path("mapped/hello"));
    Command::new("umount")
        .arg(stage.0.path("mapped"))
        .status()
        .unwrap();
    assert_eq!(read.unwrap(), b"hello\n");
}
