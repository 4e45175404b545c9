//! Mounts of a volume with mapped owners.

use crate::common::{Mounted, Place, run};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use tuff_testkit::namespace::mount_mapped;

/// Second mount of a volume. Dropping it removes the mount.
struct Second<'a>(&'a Path);

impl Drop for Second<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).output();
    }
}

/// Runs a script as a user who is in the group of the same number alone.
fn script_as(user: u32, dir: &Path, script: &str) -> (bool, String) {
    let ids = [format!("--reuid={user}"), format!("--regid={user}")];
    let args = [&ids[0], &ids[1], "--clear-groups", "sh", "-c", script];
    run(dir, "setpriv", &args)
}

#[test]
fn owners_of_a_mapped_mount_are_stored_unmapped() {
    let place = Place::new("mapped");
    let Some(mounted) = Mounted::new(&place) else {
        return;
    };
    let open_to_all = |path: &Path, bits| {
        fs::set_permissions(path, Permissions::from_mode(bits)).unwrap();
    };
    open_to_all(&place.0, 0o755);
    let plain = mounted.0.join("top");
    fs::create_dir(&plain).unwrap();
    open_to_all(&plain, 0o777);
    if !mount_mapped(&place.0, "m", "mapped") {
        return;
    }
    let second = place.0.join("mapped");
    let _second = Second(&second);
    let mapped = second.join("top");

    let make = "echo x > file && mkdir dir && ln -s file link && mkfifo fifo && ln file again && mv dir moved";
    assert_eq!(script_as(100_005, &mapped, make), (true, String::new()));
    for name in ["file", "moved", "link", "fifo", "again"] {
        let stored = fs::symlink_metadata(plain.join(name)).unwrap();
        let shown = fs::symlink_metadata(mapped.join(name)).unwrap();
        assert_eq!((stored.uid(), stored.gid()), (5, 5), "{name}");
        assert_eq!((shown.uid(), shown.gid()), (100_005, 100_005), "{name}");
    }
    let (made, says) = script_as(5, &mapped, "echo x > none");
    assert!(!made && says.contains("Value too large"), "{says}");
    let made = script_as(6, &plain, "echo x > unmapped");
    assert_eq!(made, (true, String::new()));
    assert_eq!(fs::metadata(plain.join("unmapped")).unwrap().uid(), 6);
    chown(mapped.join("file"), Some(100_007), Some(100_008)).unwrap();
    let stored = fs::metadata(plain.join("file")).unwrap();
    assert_eq!((stored.uid(), stored.gid()), (7, 8));

    // A file keeps its privileges if its writer may, also where requests do not say who sent them.
    let privileged = plain.join("privileged");
    let write = "echo y >> privileged";
    let allocate = "fallocate -l 100000 privileged";
    for (user, dir, what, left) in [
        (100_005, &mapped, write, 0o777),
        (100_005, &mapped, allocate, 0o777),
        (6, &plain, allocate, 0o777),
        (0, &plain, write, 0o6777),
        (0, &plain, allocate, 0o6777),
    ] {
        fs::write(&privileged, "x").unwrap();
        open_to_all(&privileged, 0o6777);
        let done = script_as(user, dir, what);
        assert_eq!(done, (true, String::new()), "{user} {what}");
        let stored = fs::metadata(&privileged).unwrap().mode() & 0o7777;
        assert_eq!(stored, left, "{user} {what}: {stored:o}");
    }
}
