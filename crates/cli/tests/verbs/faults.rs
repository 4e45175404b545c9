//! Host failures while an image is read or copied: a one-line message, an exit code, and no partial output.

use crate::common::{Place, code, is_root, skipped, stderr};
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Small filesystem in memory, unmounted on drop.
pub(crate) struct Small(pub(crate) std::path::PathBuf);

impl Small {
    /// Returns `None`, with a note, without root.
    pub(crate) fn new(place: &Place, name: &str) -> Option<Self> {
        let dir = place.path(name);
        fs::create_dir(&dir).unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=256k", "none"])
            .arg(&dir)
            .output();
        match mounted {
            Ok(out) if out.status.success() => Some(Self(dir)),
            _ => {
                skipped("a small tmpfs needs root");
                None
            }
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

/// Lists regular files below a directory, as relative paths.
fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let (mut out, mut todo) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(&at).into_iter().flatten() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap() {
                t if t.is_dir() => todo.push(entry.path()),
                t if t.is_file() => out.push(entry.path().strip_prefix(dir).unwrap().to_owned()),
                _ => {}
            }
        }
    }
    out
}

#[test]
fn a_full_disk_leaves_no_partial_extracted_file() {
    let place = Place::with_image("full-extract");
    let whole = place.run(&["extract", "i", "whole"]);
    assert!(code(&whole) <= 1, "{}", stderr(&whole));
    let Some(small) = Small::new(&place, "small") else {
        return;
    };
    for threads in ["1", "3"] {
        let out = place.run(&["extract", "-j", threads, "i", "small/out"]);
        assert_eq!(code(&out), 5, "{}", stderr(&out));
        let message = stderr(&out);
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains("No space left on device"), "{message}");
        assert!(message.contains(": writing "), "{message}");
        let target = small.0.join("out");
        for file in files(&target) {
            let same = fs::read(target.join(&file)).unwrap()
                == fs::read(place.path("whole").join(&file)).unwrap();
            assert!(same, "{file:?} is there in part");
        }
        fs::remove_dir_all(&target).unwrap();
    }
}

#[test]
fn a_full_disk_leaves_no_partial_tar() {
    let place = Place::with_image("full-tar");
    let Some(small) = Small::new(&place, "small") else {
        return;
    };
    let out = place.run(&["tar", "i", "small/t.tar"]);
    assert_eq!(code(&out), 5, "{}", stderr(&out));
    assert_eq!(
        stderr(&out),
        "tuff: small/t.tar: tar: cannot write: No space left on device (os error 28)\n"
    );
    assert_eq!(fs::read_dir(&small.0).unwrap().count(), 0);
}

#[test]
fn a_full_disk_names_the_output_and_the_directory_of_temporary_files() {
    let place = Place::with_image("full-temporary");
    let Some(small) = Small::new(&place, "small") else {
        return;
    };
    let args = [
        "disk",
        "-q",
        "-z",
        "none",
        "holes",
        "m/tree.mtree",
        "small/d.raw",
    ];
    let out = place.run(&args);
    let message = stderr(&out);
    assert_eq!(code(&out), 5, "{message}");
    assert_eq!(
        message,
        "tuff: small/d.raw: temporary file in small (TMPDIR names another directory): cannot write: No space left on device (os error 28)\n"
    );
    assert_eq!(fs::read_dir(&small.0).unwrap().count(), 0);
}

/// Builds an image of many files, so that extraction takes a while.
fn many(place: &Place) -> usize {
    let count = 30_000;
    fs::write(place.path("content"), "complete\n".repeat(100)).unwrap();
    let lines: String = (0..count)
        .map(|i| format!("./d{}/f{i} type=file mode=0644 contents=content\n", i % 50))
        .collect();
    fs::write(place.path("many.mtree"), format!("#mtree\n{lines}")).unwrap();
    let out = place.run(&["build", "-q", "many.mtree", "i"]);
    assert!(out.status.success(), "{}", stderr(&out));
    count
}

#[test]
fn a_stopped_extraction_leaves_complete_files() {
    let place = Place::new("stop-extract");
    let count = many(&place);
    let mut command = place.command(&["extract", "-j", "1", "i", "out"]);
    let child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    // A new target has a temporary name.
    let has_files = || files(&place.0).iter().any(|f| f.components().count() > 2);
    while !has_files() && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let kill = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    let out = child.wait_with_output().unwrap();
    assert_eq!(code(&out), 130, "{}", stderr(&out));
    let message = stderr(&out);
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.starts_with("tuff: out: stopped: "), "{message}");
    let made = files(&place.path("out"));
    assert!(
        message.contains(&format!(" {} files are complete", made.len())),
        "{message}"
    );
    assert!(!made.is_empty() && made.len() < count, "{}", made.len());
    let requested = fs::read(place.path("content")).unwrap();
    for file in &made {
        assert!(fs::read(place.path("out").join(file)).unwrap() == requested);
    }
    // Existing files do not prevent the continuation.
    let again = place.run(&["extract", "-q", "--overwrite", "i", "out"]);
    assert_eq!(code(&again), 0, "{}", stderr(&again));
    assert_eq!(files(&place.path("out")).len(), count);
}

/// Counts the regular files below `dir` with their final name; all must have this content.
fn whole_files(dir: &Path, requested: &[u8]) -> usize {
    let is_temporary = |file: &Path| {
        let mut parts = file.components().map(|c| c.as_os_str().as_encoded_bytes());
        parts.any(|name| name.starts_with(b".tuff-extract-"))
    };
    let made: Vec<_> = files(dir)
        .into_iter()
        .filter(|f| !is_temporary(f))
        .collect();
    for file in &made {
        let found = fs::read(dir.join(file)).unwrap();
        assert!(
            found == requested,
            "{}: {} bytes",
            file.display(),
            found.len()
        );
    }
    made.len()
}

/// Regression: 33 of 50 killed extractions left partial files under their final names.
#[test]
fn a_killed_extraction_leaves_no_partial_file_under_its_final_name() {
    let place = Place::new("kill-extract");
    let requested = "complete\n".repeat(120_000).into_bytes();
    fs::write(place.path("content"), &requested).unwrap();
    let count = 21;
    // In a directory of the image, and directly in the target.
    let lines: String = (0..count)
        .map(|i| {
            let dir = ["", "d/", "d/e/"][i % 3];
            format!("./{dir}f{i} type=file mode=0644 contents=content\n")
        })
        .collect();
    fs::write(place.path("tree.mtree"), format!("#mtree\n{lines}")).unwrap();
    place.text(&[
        "build",
        "-q",
        "-z",
        "lz4",
        "--dedupe",
        "off",
        "tree.mtree",
        "i",
    ]);
    fs::create_dir(place.path("in")).unwrap();
    let out = place.path("in/out");
    let mut partial_trees = 0;
    // A new target, an existing one, and one whose files are replaced.
    for state in 0..3 {
        for delay in 0..12 {
            let _ = fs::remove_dir_all(&out);
            if state > 0 {
                fs::create_dir(&out).unwrap();
            }
            if state == 2 {
                let whole = place.run(&["extract", "-q", "i", "in/out"]);
                assert_eq!(code(&whole), 0, "{}", stderr(&whole));
            }
            let mut child = place
                .command(&["extract", "-q", "--overwrite", "i", "in/out"])
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(2 * delay + 1));
            child.kill().unwrap();
            let ended = child.wait().unwrap();
            let existing = whole_files(&out, &requested);
            assert!(existing <= count);
            partial_trees += usize::from(ended.code().is_none());
            // The next extraction reuses what was left, and leaves no temporary file.
            let how = if delay % 2 == 0 {
                "--update"
            } else {
                "--overwrite"
            };
            let again = place.run(&["extract", "-q", how, "i", "in/out"]);
            assert_eq!(code(&again), 0, "{}", stderr(&again));
            assert_eq!(files(&place.path("in")).len(), count, "{state} {delay}");
            assert_eq!(whole_files(&out, &requested), count, "{state} {delay}");
            assert_eq!(fs::read_dir(place.path("in")).unwrap().count(), 1);
        }
    }
    assert!(partial_trees > 0, "nothing was killed");
}

#[test]
fn a_stopped_tar_leaves_nothing() {
    let place = Place::new("stop-tar");
    many(&place);
    fs::create_dir(place.path("to")).unwrap();
    let child = place
        .command(&["tar", "i", "to/t.tar"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_file_in(&child, &place.path("to"));
    signal(&child, "-TERM");
    let out = child.wait_with_output().unwrap();
    assert_eq!(code(&out), 130, "{}", stderr(&out));
    assert!(
        stderr(&out).starts_with("tuff: to/t.tar: stopped"),
        "{}",
        stderr(&out)
    );
    assert!(files(&place.path("to")).is_empty());
}

/// A signal to a process and its group arrives twice and counts as one. An incomplete output has no name, whatever ends
/// the process.
#[test]
fn no_output_remains_after_two_signals_or_a_kill() {
    for signals in [&["-INT", "-INT"][..], &["-TERM", "-INT"], &["-KILL"]] {
        let place = Place::new("signals");
        many(&place);
        fs::create_dir(place.path("to")).unwrap();
        let child = place
            .command(&["tar", "i", "to/t.tar"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for_file_in(&child, &place.path("to"));
        let named = !files(&place.path("to")).is_empty();
        for how in signals {
            signal(&child, how);
        }
        let out = child.wait_with_output().unwrap();
        if named && signals == ["-KILL"] {
            return skipped("this filesystem knows no files without a name");
        }
        if signals == ["-KILL"] {
            assert_eq!(out.status.code(), None);
        } else {
            assert_eq!(code(&out), 130, "{}", stderr(&out));
            let message = stderr(&out);
            assert!(message.starts_with("tuff: to/t.tar: stopped"), "{message}");
        }
        assert!(files(&place.path("to")).is_empty());
    }
}

/// Waits until a process has a file open in `dir`, named or not.
fn wait_for_file_in(child: &Child, dir: &Path) {
    let descriptors = format!("/proc/{}/fd", child.id());
    let start = Instant::now();
    let open = || {
        let all = fs::read_dir(&descriptors).into_iter().flatten().flatten();
        all.filter_map(|d| fs::read_link(d.path()).ok())
            .any(|to| to.parent() == Some(dir))
    };
    while !open() && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn signal(child: &Child, how: &str) {
    let kill = std::process::Command::new("kill")
        .args([how, &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
}

/// Files that are not images, cannot be read, or end too early are reported by name.
#[test]
fn an_unreadable_image_is_reported_by_name() {
    let place = Place::with_image("unreadable");
    let bytes = fs::read(place.path("i")).unwrap();
    fs::write(place.path("short"), &bytes[..bytes.len() / 2]).unwrap();
    fs::write(place.path("empty"), "").unwrap();
    fs::create_dir(place.path("directory")).unwrap();
    fs::write(place.path("secret"), &bytes).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o000);
    fs::set_permissions(place.path("secret"), mode).unwrap();
    let mut cases = vec![
        ("short", 3, "past the end"),
        ("empty", 3, "empty"),
        ("directory", 2, "is a directory"),
    ];
    if is_root() {
        tuff_testkit::note("root may read everything: no file that cannot be read");
    } else {
        cases.push(("secret", 5, "secret"));
    }
    for (image, expected, says) in cases {
        for verb in [
            &["check", image][..],
            &["extract", image, "out"],
            &["tar", image, "t.tar"],
            &["cat", image, "dir/text"],
            &["dump", image],
            &["diff", "i", image],
        ] {
            if verb == ["check", "short"] {
                // Findings, on standard output.
                assert_eq!(code(&place.run(verb)), 1);
                continue;
            }
            if verb == ["diff", "i", "directory"] {
                continue; // That is a tree to compare with.
            }
            let out = place.run(verb);
            let message = stderr(&out);
            assert_eq!(code(&out), expected, "{verb:?}: {message}");
            assert_eq!(message.lines().count(), 1, "{verb:?}: {message}");
            assert!(message.contains(says), "{verb:?}: {message}");
            assert!(!place.path("t.tar").exists());
        }
    }
}

/// Regression: `tuff tar i i`, `tuff verity add i --into i` and a mount's record replaced the image.
#[test]
fn an_output_cannot_replace_its_input() {
    let place = Place::with_image("itself");
    let bytes = fs::read(place.path("i")).unwrap();
    std::os::unix::fs::symlink("i", place.path("link")).unwrap();
    fs::write(place.path("tree"), "").unwrap();
    fs::create_dir(place.path("on")).unwrap();
    let root = "0".repeat(64);
    for (args, says) in [
        (&["tar", "i", "i"][..], "tuff: i: "),
        (&["tar", "link", "./i", "hello"], "tuff: ./i: "),
        (&["tar", "i", "link"], "tuff: link: "),
        (&["verity", "add", "i", "--into", "link"], "tuff: link: "),
        (&["mount", "-f", "i", "on", "--record", "i"], "tuff: i: "),
    ] {
        let out = place.run(args);
        let message = stderr(&out);
        assert_eq!(
            (code(&out), message.lines().count()),
            (2, 1),
            "{args:?}: {message}"
        );
        assert!(message.starts_with(says), "{args:?}: {message}");
        assert!(
            message.contains("cannot replace a file that is read"),
            "{args:?}: {message}"
        );
        assert!(fs::read(place.path("i")).unwrap() == bytes, "{args:?}");
    }
    let made = place.run(&["verity", "add", "i", "--into", "tree", "--json"]);
    let made: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    let root = made["root_hash"].as_str().unwrap_or(&root);
    let over = [
        "tar",
        "--verity",
        root,
        "--verity-tree",
        "tree",
        "i",
        "tree",
    ];
    assert_eq!(code(&place.run(&over)), 2);
    assert!(
        place
            .text(&["verity", "check", "i", root, "--tree", "tree"])
            .contains("verified: ")
    );
}

/// Regression: every verb waited for a writer of the pipe, some of them past ^C.
#[test]
fn a_pipe_is_rejected_as_image_without_waiting() {
    let place = Place::with_image("pipe");
    let made = std::process::Command::new("mkfifo")
        .arg(place.path("pipe"))
        .status();
    assert!(made.unwrap().success());
    fs::create_dir(place.path("dir")).unwrap();
    fs::create_dir(place.path("layout")).unwrap();
    std::os::unix::fs::symlink("../pipe", place.path("layout/index.json")).unwrap();
    for args in [
        &["info", "pipe"][..],
        &["check", "pipe"],
        &["diff", "i", "pipe"],
        &["tar", "--device", "pipe", "i", "t.tar"],
        &["patch", "dir", "pipe"],
        &["build", "--base", "pipe", "dir", "o"],
        &["build", "--source-type", "image", "pipe", "o"],
        &["verity", "show", "pipe"],
        &["build", "--exclude-from", "pipe", "dir", "o"],
        &["build", "--order", "pipe", "dir", "o"],
        &["build", "--fs-config", "pipe", "dir", "o"],
        &["build", "--source-type", "manifest", "pipe", "o"],
        &["build", "oci:layout", "o"],
        &["volume", "receive", "v", "-i", "pipe"],
        &["volume", "check", "pipe"],
        &["volume", "mount", "-f", "pipe", "dir"],
        &["volume", "trim", "pipe"],
    ] {
        // The timeout is reached only if the verb blocks.
        let out = std::process::Command::new("timeout")
            .args(["-s", "KILL", "60", env!("CARGO_BIN_EXE_tuff")])
            .args(args)
            .current_dir(&place.0)
            .output()
            .unwrap();
        let message = stderr(&out);
        assert_eq!(
            (code(&out), message.lines().count()),
            (5, 1),
            "{args:?}: {message}"
        );
        assert!(
            message.contains("neither a regular file nor a block device"),
            "{args:?}: {message}"
        );
    }
}

/// Regression: SIGXFSZ killed the process without a message, and left half a volume.
#[test]
fn the_file_size_limit_is_an_error_of_the_write() {
    let place = Place::with_image("limited");
    fs::create_dir(place.path("to")).unwrap();
    for args in [
        &["tar", "i", "to/t"][..],
        &["build", "-q", "-z", "none", "m/tree.mtree", "to/i"],
        &["volume", "create", "to/v", "-s", "64M"],
    ] {
        let out = std::process::Command::new("sh")
            .args(["-c", "ulimit -f 8; exec \"$@\"", "sh"])
            .arg(env!("CARGO_BIN_EXE_tuff"))
            .args(args)
            .current_dir(&place.0)
            .output()
            .unwrap();
        let message = stderr(&out);
        assert_eq!(
            (code(&out), message.lines().count()),
            (5, 1),
            "{args:?}: {message}"
        );
        assert!(
            message.contains("to/") && message.contains("File too large"),
            "{args:?}: {message}"
        );
        assert_eq!(
            fs::read_dir(place.path("to")).unwrap().count(),
            0,
            "{args:?}"
        );
    }
}
