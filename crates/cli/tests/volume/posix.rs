//! POSIX test suites on mounted volumes in zone files and on a block device: pjdfstest and fsx.

use crate::common::{Mounted, Place, good};
use crate::host::Loop;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Places of a volume, and ways of the kernel to its server.
const MOUNTS: [(Medium, &str); 3] = [
    (Medium::ZoneFiles, "dev"),
    (Medium::ZoneFiles, "auto"),
    (Medium::Device, "auto"),
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Medium {
    ZoneFiles,
    Device,
}

/// Operations of fsx, on one file.
const FSX_OPERATIONS: &str = "10000";

const FSX: &str = "
flen = 262144
[opsize]
max = 65536
[weights]
close_open = 1
invalidate = 1
truncate = 1
fsync = 1
fdatasync = 1
posix_fallocate = 1
punch_hole = 1
sendfile = 1
posix_fadvise = 1
copy_file_range = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
";

/// Timestamps have the granularity of the kernel's clock tick, at most 10 ms.
const PJDFSTEST: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
[settings]
naptime = 0.02
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// Path of a program built by `.ci/packages` or installed on the host.
fn program(name: &str) -> Option<PathBuf> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin");
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path)
        .chain([tools])
        .map(|dir| dir.join(name))
        .find(|file| file.exists());
    if found.is_none() {
        tuff_testkit::skipped(format_args!("no {name}; .ci/packages builds it"));
    }
    found
}

/// Runs `suite` in a directory with a volume mounted on `m`, of each kind. Returns the output of the last run.
fn on_volumes(name: &str, suite: &mut Command, config: &str) -> Option<String> {
    let mut printed = None;
    for (number, (medium, transport)) in MOUNTS.into_iter().enumerate() {
        // Short, because paths of sockets are.
        let place = Place::new(&format!("{name}-{number}"));
        let dir = &place.0;
        fs::write(dir.join("config"), config).unwrap();
        let device = match medium {
            Medium::ZoneFiles => None,
            Medium::Device => match device(dir) {
                None => continue,
                device => device,
            },
        };
        let source = device.as_ref().map_or("v", Loop::path);
        let mounted = Mounted::of_source(&place, source, &["--transport", transport])?;
        let out = suite.current_dir(dir).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(
            out.status.success(),
            "{medium:?}, {transport}: {text}{errors}"
        );
        mounted.end();
        good(dir, &["check", source]);
        printed = Some(text);
    }
    printed
}

/// Makes a volume on a block device.
fn device(dir: &Path) -> Option<Loop> {
    let medium = fs::File::create(dir.join("medium")).unwrap();
    medium.set_len(64 << 20).unwrap();
    let device = Loop::over(dir, &[], "medium")?;
    good(dir, &["create", device.path()]);
    Some(device)
}

#[test]
fn pjdfstest_passes() {
    let Some(pjdfstest) = program("pjdfstest") else {
        return;
    };
    let mut suite = Command::new(pjdfstest);
    suite.args(["-c", "config", "-s", ".", "-p", "m"]);
    if let Some(printed) = on_volumes("pjdfstest", &mut suite, PJDFSTEST) {
        let summary = printed.lines().last().unwrap_or_default();
        assert!(summary.contains(" 0 failed"), "{summary}");
        assert!(summary.contains(" 379 passed"), "{summary}");
    }
}

#[test]
fn fsx_finds_every_byte() {
    let Some(fsx) = program("fsx") else { return };
    let mut suite = Command::new(fsx);
    suite.args(["-q", "-f", "config", "-N", FSX_OPERATIONS, "-S", "1"]);
    suite.args(["-P", ".", "m/file"]);
    if let Some(printed) = on_volumes("fsx", &mut suite, FSX) {
        assert!(printed.contains("A-OK"), "{printed}");
    }
}
