//! The end of mounts whose filesystem lives on: copies of the mount in other mount namespaces.

use crate::common::{Mounted, Place, good, run};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tuff_testkit::namespace::MountCopy;
use tuff_testkit::program;

pub(crate) fn signal(pid: u32, name: &str) {
    let out = run(Path::new("/"), "kill", &["-s", name, &pid.to_string()]);
    assert!(out.0, "{}", out.1);
}

fn is_mounted(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let dir = fs::canonicalize(dir).unwrap();
    mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == dir.to_str())
}

/// Regression: the command waited forever.
#[test]
fn umount_names_the_process_that_has_a_copy_of_the_mount() {
    let place = Place::new("holder");
    let dir = &place.0;
    let Some(mut mounted) = Mounted::new(&place) else {
        return;
    };
    let Some(holder) = MountCopy::new(&mounted.0) else {
        return;
    };
    fs::write(mounted.0.join("before"), "here").unwrap();
    let mut umount = Command::new(env!("CARGO_BIN_EXE_tuff"));
    let out = program::retry_busy(umount.current_dir(dir).args(["umount", "m"]));
    let message = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(5), "{message}");
    let named = format!("process {} (sleep)", holder.pid());
    assert!(message.contains(&named), "{message}");
    assert!(message.contains("nsenter"), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(!is_mounted(&mounted.0));
    drop(holder);
    assert!(mounted.wait().success());
    good(dir, &["check", "--data", "v"]);
}

/// Regression: two signals did not end the server.
#[test]
fn a_second_signal_closes_a_volume_that_is_held() {
    for (first, second) in [("TERM", "TERM"), ("INT", "HUP")] {
        let place = Place::new("signals");
        let Some(mut mounted) = Mounted::new(&place) else {
            return;
        };
        let Some(_holder) = MountCopy::new(&mounted.0) else {
            return;
        };
        fs::write(mounted.0.join("written"), "here").unwrap();
        signal(mounted.server(), first);
        while is_mounted(&mounted.0) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(
            mounted.is_served(),
            "the first signal leaves its users the mount"
        );
        signal(mounted.server(), second);
        assert!(mounted.wait().success());
        good(&place.0, &["check", "--data", "v"]);
        let Some(mounted) = Mounted::new(&place) else {
            return;
        };
        assert_eq!(fs::read(mounted.0.join("written")).unwrap(), b"here");
        mounted.end();
    }
}
