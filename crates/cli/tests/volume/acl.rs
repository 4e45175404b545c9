//! Access control lists of files in a volume.

use crate::common::{Mounted, Place, good};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// Encodes an access control list for the kernel: tag, permissions, id.
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
    // The requested mode limits the inherited list, and the umask does not.
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
    // The kernel applies the list: user 1234 may read what others may not.
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

/// Regression: a private file became readable by the users of its directory's default list, because imported files
/// inherit it as on a mount.
#[test]
fn imported_files_have_the_access_control_lists_of_their_source() {
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
        tuff_testkit::skipped(format_args!(
            "the temporary directory takes no access lists: {e}"
        ));
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
