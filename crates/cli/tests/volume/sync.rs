//! `tuff volume sync`, and `sync`, umount(8) and claims of block devices, which the kernel passes on for those.

use crate::common::{Mounted, Place, bad, good, run, tuff};
use crate::host::Loop;
use crate::statx::kernel;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Writes 64 MiB to `m`, half of it through a mapping, without fsync. Then runs the rest of the arguments, or syncfs(2), and copies
/// the medium while both files are open.
const WRITE: &str = r#"
import ctypes, mmap, os, subprocess, sys
def content(seed):
    return (b"%08d" % seed + bytes(range(256))) * 130000
mapped = os.open("m/mapped", os.O_RDWR | os.O_CREAT)
os.ftruncate(mapped, len(content(1)))
mapping = mmap.mmap(mapped, len(content(1)))
mapping[:] = content(1)
written = os.open("m/written", os.O_RDWR | os.O_CREAT)
assert os.write(written, content(2)) == len(content(2))
medium, command = sys.argv[1], sys.argv[2:]
if command:
    subprocess.run(command, check=True)
else:
    libc = ctypes.CDLL(None, use_errno=True)
    root = os.open("m", os.O_RDONLY)
    if libc.syncfs(root):
        raise OSError(ctypes.get_errno(), "syncfs")
subprocess.run(["cp", "-r", "--sparse=always", medium, "copy"], check=True)
"#;

/// Compares the files of `m` with what was written.
const COMPARE: &str = r#"
def content(seed):
    return (b"%08d" % seed + bytes(range(256))) * 130000
for name, seed in ("mapped", 1), ("written", 2):
    assert open("m/" + name, "rb").read() == content(seed), name
"#;

/// Loop device over a new volume of 256 MiB in `medium`.
fn device(dir: &Path) -> Option<Loop> {
    let medium = fs::File::create(dir.join("medium")).unwrap();
    medium.set_len(256 << 20).unwrap();
    good(dir, &["create", "medium"]);
    Loop::over(dir, &[], "medium")
}

fn fstype(dir: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let at = dir.join("m");
    let line = mounts
        .lines()
        .find(|line| line.split(' ').nth(1) == at.to_str());
    line.unwrap().split(' ').nth(2).unwrap().to_owned()
}

fn has_fuseblk() -> bool {
    let types = fs::read_to_string("/proc/filesystems").unwrap();
    let has = types.lines().any(|line| line.trim() == "fuseblk");
    if !has {
        tuff_testkit::skipped("the kernel has no fuseblk");
    }
    has
}

/// Writes to a mounted volume, runs `command`, and compares the medium of that moment.
fn written_data_is_durable_after(place: &Place, (source, medium): (&str, &str), command: &[&str]) {
    let dir = &place.0;
    let written = run(dir, "python3", &[&["-c", WRITE, medium], command].concat());
    assert!(written.0, "{source}: {}", written.1);
    let umount = run(dir, "umount", &["m"]);
    assert!(umount.0, "{source}: {}", umount.1);
    let Some(mounted) = Mounted::of_source(place, "copy", &[]) else {
        return;
    };
    let compared = run(dir, "python3", &["-c", COMPARE]);
    assert!(compared.0, "{source}: {}", compared.1);
    mounted.end();
    good(dir, &["check", "--data", "copy"]);
    let removed = run(dir, "rm", &["-r", "copy"]);
    assert!(removed.0, "{}", removed.1);
}

#[test]
fn volume_sync_makes_written_and_mapped_data_durable() {
    if kernel() < (6, 16) {
        tuff_testkit::skipped("the kernel waits for pages of FUSE from Linux 6.16 on");
        return;
    }
    let place = Place::new("drain");
    let dir = &place.0;
    let Some(device) = device(dir) else { return };
    good(dir, &["create", "zones", "-s", "256M"]);
    good(dir, &["create", "file", "--file", "-s", "256M"]);
    let program = env!("CARGO_BIN_EXE_tuff");
    for (source, medium) in [
        ("zones", "zones"),
        ("file", "file"),
        (device.path(), "medium"),
    ] {
        // No checkpoint of the interval helps.
        let Some(_mounted) = Mounted::of_source(&place, source, &["--commit", "3600"]) else {
            return;
        };
        let command = [program, "volume", "sync", "m"];
        written_data_is_durable_after(&place, (source, medium), &command);
    }
    let (code, message) = bad(dir, &["sync", "m"]);
    assert_eq!(
        (code, message.contains("not a mount point")),
        (2, true),
        "{message}"
    );
}

#[test]
fn syncfs_of_a_block_device_is_durable() {
    if kernel() < (6, 18) {
        tuff_testkit::skipped("the kernel sends SYNCFS for block devices from Linux 6.18 on");
        return;
    }
    let place = Place::new("syncfs");
    let dir = &place.0;
    if !has_fuseblk() {
        return;
    }
    let Some(device) = device(dir) else { return };
    let Some(_mounted) = Mounted::of_source(&place, device.path(), &["--commit", "3600"]) else {
        return;
    };
    assert_eq!(fstype(dir), "fuseblk.tuff");
    written_data_is_durable_after(&place, (device.path(), "medium"), &[]);
}

/// The kernel waits for DESTROY, which is answered after the unmount of the volume.
#[test]
fn umount_8_of_a_block_device_returns_when_the_volume_is_closed() {
    let place = Place::new("destroy");
    let dir = &place.0;
    if !has_fuseblk() {
        return;
    }
    let Some(device) = device(dir) else { return };
    for round in 0..5 {
        let Some(mut mounted) = Mounted::of_source(&place, device.path(), &[]) else {
            return;
        };
        fs::write(mounted.0.join(round.to_string()), vec![round; 20 << 20]).unwrap();
        let umount = run(dir, "umount", &["m"]);
        assert!(umount.0, "{}", umount.1);
        good(dir, &["check", device.path()]);
        assert!(mounted.wait().success());
    }
    good(dir, &["check", "--data", device.path()]);
}

#[test]
fn a_block_device_is_claimed_by_one_program() {
    const CLAIM: &str = r#"
import os, sys
os.open(sys.argv[1], os.O_RDONLY | os.O_EXCL)
print("claimed")
sys.exit(os.system(sys.argv[2]) and 1 if len(sys.argv) > 2 else 0)
"#;
    let place = Place::new("claim");
    let dir = &place.0;
    if !rustix::process::geteuid().is_root() {
        tuff_testkit::skipped("mounting needs root");
        return;
    }
    let Some(device) = device(dir) else { return };
    let mount = format!(
        "{} volume mount -f {} src",
        env!("CARGO_BIN_EXE_tuff"),
        device.path()
    );
    let claim = |args: &[&str]| {
        // The error is the expected one, so it is not tried again.
        let mut python = Command::new("python3");
        let out = python.current_dir(dir).args(["-c", CLAIM, device.path()]);
        let out = out.args(args).output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        (out.status.success(), text)
    };
    let claimed = claim(&[&mount]);
    assert!(claimed.1.contains("unmount it with"), "{}", claimed.1);
    assert!(!claimed.0);
    let Some(mounted) = Mounted::of_source(&place, device.path(), &[]) else {
        return;
    };
    let claimed = claim(&[]);
    assert!(claimed.1.contains("Errno 16"), "{}", claimed.1);
    // Names and numbers of both kinds of mounts are found.
    let (code, message) = bad(dir, &["mount", device.path(), "src"]);
    assert_eq!(
        (code, message.contains("unmount it with")),
        (5, true),
        "{message}"
    );
    mounted.end();
}

#[test]
fn only_root_and_the_owner_of_a_mount_drain_it() {
    let place = Place::new("drain-rights");
    let Some(mounted) = Mounted::new(&place) else {
        return;
    };
    good(&place.0, &["sync", "m"]);
    const READ: &str = "import os; print(os.getxattr('.', 'system.tuff.sync'))";
    let mut other = Command::new("python3");
    other.current_dir(&mounted.0).args(["-c", READ]).uid(65534);
    let out = other.output().unwrap();
    let message = String::from_utf8_lossy(&out.stderr);
    assert!(message.contains("PermissionError: [Errno 1]"), "{message}");
    let names = run(
        &mounted.0,
        "python3",
        &["-c", "import os; print(os.listxattr('.'))"],
    );
    assert_eq!(names, (true, "[]".to_owned()));
    mounted.end();
    let out = tuff(&place.0, &["sync", "src"]);
    assert_eq!(out.status.code(), Some(2));
}
