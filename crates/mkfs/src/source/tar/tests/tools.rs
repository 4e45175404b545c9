//! Tars of the installed tools. A missing tool is reported as skipped.

use super::{ReadEntry, read};
use crate::source::{Device, Kind};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

const XATTR: &[u8] = b"\0binary\n=\xff";
const SPARSE_SIZE: u64 = 4 << 20;

/// True if a tool can be run.
fn have(tool: &str) -> bool {
    let found = Command::new(tool)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !found {
        tuff_testkit::skipped(format_args!("{tool} is not installed"));
    }
    found
}

fn run(command: &mut Command) {
    let output = command.output().expect("the tool was found before");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Features of the test tree beyond plain files, directories and links.
#[derive(Clone, Copy, PartialEq)]
struct TreeFeatures {
    /// Names and targets longer than any header field.
    long_names: bool,
    /// Named pipes and, for root, devices and large IDs.
    special: bool,
    /// Modification times before 1970.
    old: bool,
    xattrs: bool,
}

fn long_name() -> String {
    "n".repeat(200)
}

fn long_target() -> String {
    "t/".repeat(150)
}

/// Creates the tree. Returns `false` if the file system does not support it.
fn make_tree(root: &Path, holds: TreeFeatures) -> bool {
    fs::create_dir(root.join("dir")).unwrap();
    fs::write(root.join("dir/file"), "hello\n").unwrap();
    fs::write(root.join("empty"), "").unwrap();
    fs::hard_link(root.join("dir/file"), root.join("hard")).unwrap();
    std::os::unix::fs::symlink("dir/file", root.join("sym")).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"data", 1 << 20).unwrap();
    sparse.set_len(SPARSE_SIZE).unwrap();
    if holds.long_names {
        fs::write(root.join(long_name()), "long").unwrap();
        std::os::unix::fs::symlink(long_target(), root.join("long-sym")).unwrap();
    }
    if holds.special {
        run(Command::new("mkfifo").arg(root.join("fifo")));
    }
    fs::set_permissions(root.join("dir"), fs::Permissions::from_mode(0o1750)).unwrap();
    fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o4711)).unwrap();
    touch(&root.join("empty"), "@1700000000.123456789");
    if holds.old {
        fs::write(root.join("old"), "").unwrap();
        touch(&root.join("old"), "@-1000.25");
    }
    if holds.xattrs {
        let file = root.join("dir/file");
        let set = |name, value| {
            rustix::fs::lsetxattr(&file, name, value, rustix::fs::XattrFlags::empty()).is_ok()
        };
        if !(set("user.binary", XATTR) && set("user.empty", b"")) {
            tuff_testkit::skipped(format_args!("no user xattrs in {}", root.display()));
            return false;
        }
    }
    true
}

fn touch(path: &Path, time: &str) {
    run(Command::new("touch").args(["-d", time]).arg(path));
}

/// Compares entries with the tree, and the tree with the intention of [`make_tree`].
fn assert_is_tree(
    got: &[ReadEntry],
    root: &Path,
    holds: TreeFeatures,
    nanoseconds: bool,
    holes: bool,
) {
    let find = |path: &str| {
        got.iter()
            .find(|got| got.path == path)
            .unwrap_or_else(|| panic!("{path} is missing"))
    };
    let mut paths: Vec<_> = got.iter().map(|got| got.path.clone()).collect();
    paths.sort();
    let (long_name, long_target) = (long_name(), long_target());
    let mut expected = vec!["", "dir", "dir/file", "empty", "hard", "sparse", "sym"];
    if holds.long_names {
        expected.extend([long_name.as_str(), "long-sym"]);
    }
    if holds.special {
        expected.push("fifo");
    }
    if holds.old {
        expected.push("old");
    }
    expected.sort_unstable();
    assert_eq!(paths, expected);

    for got in got {
        let meta = fs::symlink_metadata(root.join(&got.path)).unwrap();
        if matches!(got.kind, Kind::Hardlink(_)) {
            continue;
        }
        assert_eq!(
            u32::from(got.meta.mode),
            meta.mode() & 0o7777,
            "{}",
            got.path
        );
        assert_eq!((got.meta.uid, got.meta.gid), (meta.uid(), meta.gid()));
        if nanoseconds {
            let time = (got.meta.mtime, i64::from(got.meta.mtime_nsec));
            assert_eq!(time, (meta.mtime(), meta.mtime_nsec()), "{}", got.path);
        } else {
            assert_eq!(got.meta.mtime, meta.mtime(), "{}", got.path);
        }
    }
    assert_eq!(find("").kind, Kind::Dir);
    assert_eq!(find("dir").meta.mode, 0o1750);
    assert_eq!(find("empty").meta.mode, 0o4711);
    assert_eq!(find("empty").meta.mtime, 1_700_000_000);
    assert_eq!(find("sym").kind, Kind::Symlink(b"dir/file".to_vec()));

    // The data is at the name that comes first.
    let (file, link) = match &find("hard").kind {
        Kind::Hardlink(_) => (find("dir/file"), find("hard")),
        _ => (find("hard"), find("dir/file")),
    };
    assert_eq!(file.bytes, b"hello\n");
    assert_eq!(link.kind, Kind::Hardlink(file.path.clone().into_bytes()));
    if holds.xattrs {
        let user: Vec<_> = file
            .xattrs
            .iter()
            .filter(|(name, _)| name.starts_with("user."))
            .cloned()
            .collect();
        assert_eq!(
            user,
            [
                ("user.binary".to_owned(), XATTR.to_vec()),
                ("user.empty".to_owned(), vec![])
            ]
        );
    }

    let sparse = find("sparse");
    assert_eq!(sparse.kind, Kind::File { size: SPARSE_SIZE });
    let mut bytes = vec![0; SPARSE_SIZE as usize];
    bytes[1 << 20..][..4].copy_from_slice(b"data");
    assert!(sparse.bytes == bytes);
    if holes {
        let stored: u64 = sparse.runs.as_ref().unwrap().iter().map(|run| run.1).sum();
        assert!((4..=1 << 20).contains(&stored), "{stored} bytes are stored");
    }
    if holds.long_names {
        assert_eq!(find(&long_name).bytes, b"long");
        assert_eq!(
            find("long-sym").kind,
            Kind::Symlink(long_target.into_bytes())
        );
    }
    if holds.special {
        assert_eq!(find("fifo").kind, Kind::Fifo);
    }
    if holds.old {
        assert_eq!(find("old").meta.mtime, -1001);
    }
}

const PLAIN: TreeFeatures = TreeFeatures {
    long_names: false,
    special: false,
    old: false,
    xattrs: false,
};

const USTAR: TreeFeatures = TreeFeatures {
    special: true,
    ..PLAIN
};

const GNU: TreeFeatures = TreeFeatures {
    long_names: true,
    old: true,
    ..USTAR
};

const PAX: TreeFeatures = TreeFeatures {
    xattrs: true,
    ..GNU
};

#[test]
fn gnu_tar_in_every_format() {
    if !have("tar") {
        return;
    }
    let xattrs = ["--xattrs", "--xattrs-include=user.*"];
    let pax = |version| [&["--sparse", version][..], &xattrs].concat();
    for (format, holds, options) in [
        ("v7", PLAIN, vec![]),
        ("ustar", USTAR, vec![]),
        ("oldgnu", GNU, vec!["--sparse"]),
        ("gnu", GNU, vec![]),
        ("gnu", GNU, vec!["--sparse"]),
        ("pax", PAX, xattrs.to_vec()),
        ("pax", PAX, pax("--sparse-version=0.0")),
        ("pax", PAX, pax("--sparse-version=0.1")),
        ("pax", PAX, pax("--sparse-version=1.0")),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("tree");
        fs::create_dir(&root).unwrap();
        if !make_tree(&root, holds) {
            continue;
        }
        let tar = dir.path().join("out.tar");
        run(Command::new("tar")
            .arg(format!("--format={format}"))
            .args(["--numeric-owner", "--sort=name"])
            .args(&options)
            .arg("-C")
            .arg(&root)
            .arg("-cf")
            .arg(&tar)
            .arg("."));
        let holes = options.contains(&"--sparse");
        let got = read(&fs::read(&tar).unwrap());
        assert_is_tree(&got, &root, holds, format == "pax", holes);
    }
}

/// GNU tar's text ACLs match the kernel's attributes, and the mode is the one that it shows.
#[test]
fn gnu_tar_acls_are_those_of_the_tree() {
    if !have("tar") || !have("setfacl") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    fs::create_dir_all(root.join("dir")).unwrap();
    fs::write(root.join("file"), "").unwrap();
    fs::write(root.join("plain"), "").unwrap();
    fs::set_permissions(root.join("file"), fs::Permissions::from_mode(0o4644)).unwrap();
    for (acl, path) in [
        ("u:4077:rw-,g:4078:-wx", "file"),
        ("u:4077:r-x", "dir"),
        ("d:u:4077:rwx,d:g::r-x", "dir"),
    ] {
        let mut set = Command::new("setfacl");
        if !set
            .args(["-m", acl])
            .arg(root.join(path))
            .status()
            .is_ok_and(|s| s.success())
        {
            tuff_testkit::skipped(format_args!("no ACLs in {}", root.display()));
            return;
        }
    }
    // With and without the attributes, which take precedence over text.
    for options in [&["--acls"][..], &["--acls", "--xattrs"]] {
        let tar = dir.path().join("out.tar");
        run(Command::new("tar")
            .args(["--format=pax", "--numeric-owner"])
            .args(options)
            .arg("-C")
            .arg(&root)
            .arg("-cf")
            .arg(&tar)
            .args(["file", "plain", "dir"]));
        for got in read(&fs::read(&tar).unwrap()) {
            let path = root.join(&got.path);
            let mode = fs::symlink_metadata(&path).unwrap().mode() & 0o7777;
            assert_eq!(u32::from(got.meta.mode), mode, "{}", got.path);
            let mut expected = Vec::new();
            for name in ["system.posix_acl_access", "system.posix_acl_default"] {
                let mut value = vec![0; 1000];
                if let Ok(n) = rustix::fs::lgetxattr(&path, name, &mut value[..]) {
                    expected.push((name.to_owned(), value[..n].to_vec()));
                }
            }
            assert_eq!(
                expected.len(),
                usize::from(got.path == "file") + 2 * usize::from(got.path == "dir")
            );
            assert_eq!(got.xattrs, expected, "{} {options:?}", got.path);
        }
    }
}

/// Excludes times before 1970: libarchive writes the fraction of a negative time as if it counted
/// upwards, so that -1000.25 becomes -1001.75.
#[test]
fn bsdtar_in_every_format() {
    if !have("bsdtar") {
        return;
    }
    for (format, holds) in [
        ("v7", PLAIN),
        ("ustar", USTAR),
        ("gnutar", TreeFeatures { old: false, ..GNU }),
        ("pax", TreeFeatures { old: false, ..PAX }),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("tree");
        fs::create_dir(&root).unwrap();
        if !make_tree(&root, holds) {
            continue;
        }
        let tar = dir.path().join("out.tar");
        run(Command::new("bsdtar")
            .arg(format!("--format={format}"))
            .arg("--numeric-owner")
            .arg("-C")
            .arg(&root)
            .arg("-cf")
            .arg(&tar)
            .arg("."));
        let pax = format == "pax";
        let got = read(&fs::read(&tar).unwrap());
        assert_is_tree(&got, &root, holds, pax, pax);
    }
}

/// Names and numbers that the file system does not support.
#[test]
fn python_tarfile_in_every_format() {
    if !have("python3") {
        return;
    }
    const SCRIPT: &str = r#"
import sys, tarfile, io
form = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}[sys.argv[1]]
extras = {"pax_headers": {"comment": "global"}} if sys.argv[1] == "pax" else {}
tar = tarfile.open(sys.argv[2], "w", format=form, **extras)
def add(name, type=tarfile.REGTYPE, data=b"", **fields):
    info = tarfile.TarInfo(name)
    info.type, info.size = type, len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    tar.addfile(info, io.BytesIO(data))
add("d" * 90 + "/" + "f" * 90, data=b"x" * 1000, mode=0o7777)
add("caf\u00e9\udcff", data=b"1")
add("dev", tarfile.BLKTYPE, devmajor=8, devminor=17)
add("link", tarfile.SYMTYPE, linkname="dev")
if sys.argv[1] != "ustar":
    add("far", uid=4294967294, gid=2097152, mtime=-5)
    add("x/" * 400 + "y", data=b"deep")
if sys.argv[1] == "pax":
    add("times", mtime=1.5, pax_headers={"SCHILY.xattr.user.k": "v", "LIBARCHIVE.xattr.user.l": "AA"})
tar.close()
"#;
    for format in ["ustar", "gnu", "pax"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.tar");
        run(Command::new("python3")
            .args(["-c", SCRIPT, format])
            .arg(&path));
        let tar = fs::read(&path).unwrap();
        let got = read(&tar);
        assert_eq!(got[0].path, "d".repeat(90) + "/" + &"f".repeat(90));
        assert_eq!((got[0].bytes.len(), got[0].meta.mode), (1000, 0o7777));
        assert_eq!(got[1].path, "caf\u{e9}\u{fffd}", "bytes that are not text");
        let device = Device {
            major: 8,
            minor: 17,
        };
        assert_eq!(got[2].kind, Kind::Block(device));
        assert_eq!(got[3].kind, Kind::Symlink(b"dev".to_vec()));
        if format == "ustar" {
            continue;
        }
        let far = got[4].meta;
        assert_eq!(
            (far.uid, far.gid, far.mtime),
            (4_294_967_294, 2_097_152, -5)
        );
        assert_eq!(got[5].path, "x/".repeat(400) + "y");
        assert_eq!(got[5].bytes, b"deep");
        if format == "gnu" {
            continue;
        }
        assert_eq!(
            (got[6].meta.mtime, got[6].meta.mtime_nsec),
            (1, 500_000_000)
        );
        assert_eq!(
            got[6].xattrs,
            [
                ("user.k".to_owned(), b"v".to_vec()),
                ("user.l".to_owned(), b"\0".to_vec())
            ]
        );
    }
}
