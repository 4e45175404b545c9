//! Mounted volumes and their host: devices that are read-only, full or in use, options of mount(8), file handles.

use crate::common::{Mounted, Place, bad, good, run, tuff};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use tuff_testkit::program;

/// Loop device, detached when it is dropped.
pub(crate) struct Loop(PathBuf);

impl Loop {
    pub(crate) fn over(dir: &Path, options: &[&str], file: &str) -> Option<Self> {
        let args = [&["-f", "--show"], options, &[file]].concat();
        match run(dir, "losetup", &args) {
            (true, path) => Some(Self(path.into())),
            (false, why) => {
                tuff_testkit::skipped(format_args!("no loop device: {why}"));
                None
            }
        }
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).output();
    }
}

/// Creates a volume with one file on the file `medium`. Returns false if mounting is not possible.
fn volume_on_a_file(dir: &Path) -> bool {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        tuff_testkit::skipped("mounting needs root and /dev/fuse");
        return false;
    }
    let medium = fs::File::create_new(dir.join("medium")).unwrap();
    medium.set_len(48 << 20).unwrap();
    good(dir, &["create", "medium"]);
    good(dir, &["import", "medium", "src"]);
    fs::create_dir(dir.join("m")).unwrap();
    true
}

fn unmount(dir: &Path, name: &str) {
    let out = run(dir, "umount", &[name]);
    assert!(out.0, "{}", out.1);
}

#[test]
fn a_device_that_takes_no_writes_is_mounted_for_reading() {
    let place = Place::new("read-only-device");
    let dir = &place.0;
    if !volume_on_a_file(dir) {
        return;
    }
    let Some(device) = Loop::over(dir, &["-r"], "medium") else {
        return;
    };
    let out = tuff(dir, &["mount", device.path(), "m"]);
    let message = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{message}");
    assert!(message.contains("mounted for reading only"), "{message}");
    let hello = fs::read(dir.join("src/hello")).unwrap();
    assert_eq!(fs::read(dir.join("m/hello")).unwrap(), hello);
    let e = fs::write(dir.join("m/new"), "").unwrap_err();
    assert_eq!(e.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    unmount(dir, "m");
    // Other verbs say why.
    let (code, message) = bad(dir, &["trim", device.path()]);
    assert_eq!(
        (code, message.contains("read-only")),
        (5, true),
        "{message}"
    );
}

#[test]
fn a_device_on_a_full_host_is_mounted_for_reading() {
    let place = Place::new("full-host");
    let dir = &place.0;
    if !volume_on_a_file(dir) {
        return;
    }
    fs::create_dir(dir.join("host")).unwrap();
    let host = run(
        dir,
        "mount",
        &["-t", "tmpfs", "-o", "size=8M", "none", "host"],
    );
    assert!(host.0, "{}", host.1);
    // Holes of the medium need space of the host.
    let copied = run(dir, "cp", &["--sparse=always", "medium", "host/medium"]);
    let filled = fs::write(dir.join("host/fill"), vec![1; 9 << 20]);
    let device = Loop::over(dir, &[], "host/medium");
    let seen = device.as_ref().map(|device| {
        let out = tuff(dir, &["mount", device.path(), "m"]);
        let hello = fs::read(dir.join("m/hello")).ok();
        let unmounted = run(dir, "umount", &["m"]);
        (out, hello, unmounted)
    });
    drop(device);
    unmount(dir, "host");
    assert!(copied.0, "{}", copied.1);
    assert!(filled.is_err());
    let Some((out, hello, unmounted)) = seen else {
        return;
    };
    let message = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{message}");
    assert_eq!(hello, fs::read(dir.join("src/hello")).ok(), "{message}");
    assert!(unmounted.0, "{}", unmounted.1);
}

/// Regression: a file and its loop device, or two loop devices, have locks of their own.
#[test]
fn one_medium_is_not_mounted_twice_through_loop_devices() {
    let place = Place::new("two-ways");
    let dir = &place.0;
    if !volume_on_a_file(dir) {
        return;
    }
    let devices = (
        Loop::over(dir, &[], "medium"),
        Loop::over(dir, &[], "medium"),
    );
    let (Some(a), Some(b)) = devices else { return };
    for (first, second) in [
        (a.path(), b.path()),
        (a.path(), "medium"),
        ("medium", a.path()),
    ] {
        good(dir, &["mount", first, "m"]);
        let (code, message) = bad(dir, &["stat", second]);
        assert_eq!((code, message.contains("in use")), (5, true), "{message}");
        let (code, message) = bad(dir, &["check", "--repair", second]);
        assert_eq!((code, message.contains("in use")), (5, true), "{message}");
        let mut umount = Command::new(env!("CARGO_BIN_EXE_tuff"));
        let out = program::retry_busy(umount.current_dir(dir).args(["umount", "m"]));
        assert!(out.status.success());
    }
    good(dir, &["check", "--data", "medium"]);
}

#[test]
fn mount_8_mounts_volumes_with_its_options() {
    let place = Place::new("fstab");
    let dir = &place.0;
    if !volume_on_a_file(dir) {
        return;
    }
    let tuff = env!("CARGO_BIN_EXE_tuff");
    let options = "defaults,nofail,x-systemd.automount,nosuid,nodev,noexec,ro,commit=7";
    for source in ["v", "f", "medium"] {
        let args = ["mount.tuff", source, "m", "-v", "-o", options];
        let mounted = run(dir, tuff, &args);
        assert!(mounted.0, "{source}: {}", mounted.1);
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let at = dir.join("m");
        let line = mounts
            .lines()
            .find(|line| line.split(' ').nth(1) == at.to_str())
            .unwrap();
        for option in ["ro", "nosuid", "nodev", "noexec", "noatime"] {
            let mut shown = line.split([' ', ',']);
            assert!(shown.any(|shown| shown == option), "{option}: {line}");
        }
        unmount(dir, "m");
    }
    for (options, named) in [("commit=0", "3600"), ("data=journal", "not known")] {
        let (code, message) = bad(dir, &["mount", "v", "m", "-o", options]);
        assert_eq!((code, message.contains(named)), (2, true), "{message}");
    }
}

/// Regression: a look-up of "." was refused for files, so that their handles were stale once the kernel had forgotten them.
#[test]
fn handles_of_forgotten_files_stay_valid() {
    const OPEN: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("len", ctypes.c_uint), ("kind", ctypes.c_int), ("bytes", ctypes.c_ubyte * 128)]
def handle(path):
    handle, mount = Handle(128, 0), ctypes.c_int()
    if libc.name_to_handle_at(-100, path.encode(), ctypes.byref(handle), ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), path)
    return handle
root = os.open("m", os.O_RDONLY)
inodes = [os.stat(path).st_ino for path in sys.argv[1:]]
handles = [handle(path) for path in sys.argv[1:]]
with open("/proc/sys/vm/drop_caches", "w") as drop:
    drop.write("3")
for path, inode, handle in zip(sys.argv[1:], inodes, handles):
    file = libc.open_by_handle_at(root, ctypes.byref(handle), os.O_RDONLY)
    if file < 0:
        raise OSError(ctypes.get_errno(), path)
    assert os.fstat(file).st_ino == inode
"#;
    let place = Place::new("handles");
    let dir = &place.0;
    good(dir, &["import", "v", "src"]);
    let Some(mounted) = Mounted::new(&place) else {
        return;
    };
    let paths = ["m/hello", "m/sub", "m/sub/sparse"];
    let opened = run(dir, "python3", &[&["-c", OPEN], &paths[..]].concat());
    assert!(opened.0, "{}", opened.1);
    mounted.end();
}

#[test]
fn a_url_is_no_place_of_a_volume() {
    let place = Place::new("url");
    let dir = &place.0;
    let file = format!("file://{}/new", dir.display());
    for url in ["s3://bucket/volume", "https://host/v", &file] {
        for args in [
            &["create", url, "-s", "64M"][..],
            &["create", url, "--file", "-s", "64M"],
            &["stat", url],
            &["mount", url, "src"],
            &["import", url, "src"],
        ] {
            let (code, message) = bad(dir, args);
            assert_eq!(
                (code, message.contains("not a URL")),
                (2, true),
                "{message}"
            );
        }
    }
    let names = fs::read_dir(dir).unwrap();
    assert!(
        names
            .map(|n| n.unwrap().file_name())
            .all(|n| !n.to_string_lossy().contains(':'))
    );
    assert!(!dir.join("new").exists());
}

#[test]
fn a_mount_is_changed_while_programs_use_it() {
    let place = Place::new("remount");
    let dir = &place.0;
    let Some(mounted) = Mounted::new(&place) else {
        return;
    };
    let tuff = env!("CARGO_BIN_EXE_tuff");
    let remount = |options: &str| {
        let args = ["mount.fuse.tuff", "v", "m", "-o", options];
        run(dir, tuff, &args)
    };
    let (file, other) = (dir.join("m/file"), dir.join("m/other"));
    let mut writer = fs::File::create(&file).unwrap();
    writer.write_all(b"kept").unwrap();
    let (done, message) = remount("ro,noatime,remount,user_id=0,allow_other");
    if message.contains("only root") {
        tuff_testkit::skipped("only root changes mounts");
        return;
    }
    assert!(!done && message.contains("open for writing"), "{message}");
    drop(writer);
    assert!(remount("ro,noatime,remount,user_id=0,allow_other").0);
    assert_eq!(fs::write(&other, "x").unwrap_err().raw_os_error(), Some(30));
    assert_eq!(fs::read(&file).unwrap(), b"kept");
    let (done, message) = remount("rw,remount");
    assert!(done, "{message}");
    fs::write(&other, "x").unwrap();
    mounted.end();
    // A server that reads only is not asked by the kernel.
    good(dir, &["mount", "--read-only", "v", "m"]);
    let (done, message) = remount("rw,remount");
    unmount(dir, "m");
    assert!(!done && message.contains("for reading only"), "{message}");
    let (done, message) = remount("ro,remount");
    assert!(!done && message.contains("not a mount point"), "{message}");
}
