//! Digests of what the command writes: images, patches, delta images, disks, tar streams, and trees that went through a volume.
//!
//! Each line of `testdata/digests.txt` has the SHA-256 of the file `o`, and the commands that write it. The sources are made
//! here. With `TUFF_WRITE_DIGESTS` set, the test writes the digests anew: the changelog then says *other bytes*.

use crate::common::{Place, code, stderr};
use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use tuff_testkit::content::{noise, text};
use tuff_testkit::registry::digest;

/// Files and directories that commands read.
const SOURCES: [&str; 6] = ["src", "src2", "tree.mtree", "src.tar", "base", "stored"];

const MANIFEST: &str = r"#mtree
. type=dir mode=0755 time=5
./a type=file mode=0644 contents=src/noise xattr.user.comment=hi time=6
./b type=file mode=0644 contents=src/noise xattr.user.comment=hi xattr.trusted.x=y time=7
./dev type=char device=1,3 mode=0600 time=0
./fifo type=fifo mode=0600 uid=70000 time=8
";

fn list() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/digests.txt")
}

/// Writes a tree with text in several versions, noise, small files, a hole and links. `is_new`: a later state of it.
fn tree(root: &Path, is_new: bool) {
    fs::create_dir_all(root.join("dir/deep")).unwrap();
    let mut words = text(150_000, 4);
    for version in 0..3 {
        fs::write(root.join(format!("dir/v{version}.txt")), &words).unwrap();
        words.splice(5000..5000, *b"changed");
    }
    if is_new {
        fs::write(root.join("dir/new.txt"), &words[..9000]).unwrap();
        fs::write(root.join("dir/deep/3"), "changed\n").unwrap();
    }
    fs::write(root.join("noise"), noise(100_001, 5)).unwrap();
    for i in 0..40 {
        let words = &words[i * 50..i * 87];
        if !(is_new && i == 3) {
            fs::write(root.join(format!("dir/deep/{i}")), words).unwrap();
        }
    }
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.set_len(1 << 20).unwrap();
    sparse.write_all_at(&words[..9000], 300_000).unwrap();
    fs::hard_link(root.join("noise"), root.join("dir/again")).unwrap();
    symlink("dir/v0.txt", root.join("link")).unwrap();
    set_times(root);
}

/// Sets the times of a tree, its links too.
fn set_times(root: &Path) {
    let touch = Command::new("touch")
        .args(["-h", "-d", "@1600000000"])
        .arg(root.join("link"))
        .status();
    assert!(touch.unwrap().success());
    let times =
        FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000));
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                dirs.push(entry.path());
            } else if kind.is_file() {
                File::open(entry.path()).unwrap().set_times(times).unwrap();
            }
        }
        File::open(&dir).unwrap().set_times(times).unwrap();
    }
}

/// Runs the commands of a line in a directory of its own, and returns the digest of `o`.
fn written(place: &Place, line: &str, threads: &str, number: usize) -> Result<String, String> {
    let dir = place.path(&format!("{number}-{threads}"));
    fs::create_dir(&dir).unwrap();
    for command in line.split("; ") {
        let words = command
            .split(' ')
            .map(|word| match SOURCES.contains(&word) {
                true => place.path(word).display().to_string(),
                false => word.to_owned(),
            });
        let mut words: Vec<String> = words.collect();
        let more: &[&str] = match words[0].as_str() {
            "build" | "patch" | "disk" => &["-q", "-j", threads],
            "mkfs.erofs" => &["--quiet", "--workers", threads],
            _ => &[],
        };
        words.splice(1..1, more.iter().map(|word| (*word).to_owned()));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let out = place.command(&words).current_dir(&dir).output().unwrap();
        if code(&out) != 0 {
            return Err(format!("{command}: {}", stderr(&out)));
        }
    }
    let written = fs::read(dir.join("o")).map_err(|e| format!("{line}: no file o: {e}"))?;
    fs::remove_dir_all(&dir).unwrap();
    let digest = digest(&written);
    Ok(digest.trim_start_matches("sha256:").to_owned())
}

#[test]
fn bytes_are_those_of_the_recorded_digests_at_every_number_of_threads() {
    let place = Place::new("digests");
    tree(&place.path("src"), false);
    tree(&place.path("src2"), true);
    fs::write(place.path("tree.mtree"), MANIFEST).unwrap();
    place.text(&["build", "-q", "--all-root", "-z", "lz4", "src", "base"]);
    place.text(&["build", "-q", "--all-root", "-z", "none", "src", "stored"]);
    place.text(&["tar", "base", "src.tar"]);
    let recorded = fs::read_to_string(list()).unwrap();
    let (comments, lines): (Vec<&str>, Vec<&str>) =
        recorded.lines().partition(|line| line.starts_with('#'));
    let lines: Vec<(&str, &str)> = lines
        .iter()
        .map(|line| line.split_once("  ").unwrap())
        .collect();
    let found = Mutex::new(vec![Vec::new(); lines.len()]);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, |n| n.get().min(8)) {
            scope.spawn(|| {
                while let Some((_, line)) = lines.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let number = lines.iter().position(|(_, other)| other == line).unwrap();
                    let digests = ["1", "2", "7"].map(|n| written(&place, line, n, number));
                    found.lock().unwrap()[number] = digests.to_vec();
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    let mut wrong = Vec::new();
    let mut anew: Vec<String> = comments.iter().map(|line| (*line).to_owned()).collect();
    for ((expected, line), digests) in lines.iter().zip(&found) {
        let first = digests[0].clone().unwrap_or_else(|e| e);
        for (threads, digest) in [1, 2, 7].iter().zip(digests) {
            match digest {
                Ok(digest) if digest == expected => {}
                Ok(digest) => wrong.push(format!("{line}: {digest} with {threads} threads")),
                Err(e) => wrong.push(e.clone()),
            }
        }
        anew.push(format!("{first}  {line}"));
    }
    if std::env::var_os("TUFF_WRITE_DIGESTS").is_some() {
        fs::write(list(), anew.join("\n") + "\n").unwrap();
    }
    assert!(lines.len() >= 60, "{} lines", lines.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
