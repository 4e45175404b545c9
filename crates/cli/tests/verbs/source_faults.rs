//! Sources that fail or change during a build: a one-line message with the path, an exit code, and neither an image nor
//! a temporary file.
//!
//! A filesystem of this test, mounted through FUSE, answers the requests of the build, and changes files next to it on
//! a request.
//!
//! With one thread, the entries of a directory are examined in the order of their names before the first file is read.
//! So a change during the read of `a` happens between the examination of `b` and its read.

use crate::common::{Place, code, is_root, skipped, stderr};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use tuff_fuse::filesystem::{Entry, Filesystem, LookupResult, Node, Parts, Reader, Result, Seek};
use tuff_fuse::mountpoint::{self, Detach, MountOptions};
use tuff_fuse::protocol::{Attr, ROOT, StatfsOut};
use tuff_fuse::transport::Transport;
use tuff_fuse::{Handler, Log, Session, SessionOptions};
use tuff_testkit::program;

/// Length of the files of the filesystem below; the kernel reads at most a megabyte at a time. Unit: bytes.
const LEN: u64 = 3_000_000;

/// Length of the files on the host. Unit: bytes.
const BESIDE: usize = 300_000;

/// Request of the kernel, with the name (empty for the root).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Examine,
    List,
    Read(u64),
    Link,
    Attributes,
}

/// Answer to a request: an error, fewer bytes than expected, or none.
type Answer = dyn Fn(Ask, &str) -> Result<Option<usize>> + Send + Sync;

/// Filesystem with a fixed list of names and an answer for each request.
struct Odd {
    names: Vec<(&'static str, u32)>,
    answer: Box<Answer>,
}

const FILE: u32 = 0o100644;
const DIR: u32 = 0o040755;
const LINK: u32 = 0o120777;

impl Odd {
    fn name(&self, node: Node) -> (&'static str, u32) {
        match node {
            ROOT => ("", DIR),
            _ => self.names[node as usize - 2],
        }
    }

    fn ask(&self, ask: Ask, node: Node) -> Result<Option<usize>> {
        (self.answer)(ask, self.name(node).0)
    }
}

struct OddFs(Arc<Odd>);

impl Filesystem for OddFs {
    fn lookup(&self, _: Node, name: &[u8]) -> Result<Option<LookupResult>> {
        let at = self.0.names.iter().position(|(n, _)| n.as_bytes() == name);
        let Some(at) = at else { return Ok(None) };
        let node = at as u64 + 2;
        let attr = self.attr(node)?;
        Ok(Some(LookupResult { node, attr }))
    }

    fn attr(&self, node: Node) -> Result<Attr> {
        self.0.ask(Ask::Examine, node)?;
        let (_, mode) = self.0.name(node);
        Ok(Attr {
            ino: node,
            size: LEN,
            blocks: LEN.div_ceil(512),
            mode,
            nlink: 1,
            blksize: 4096,
            ..Attr::default()
        })
    }

    fn readlink(&self, node: Node) -> Result<Vec<u8>> {
        self.0.ask(Ask::Link, node)?;
        Ok(b"target".to_vec())
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(OddReader(self.0.clone()))
    }

    fn readdir(
        &self,
        dir: Node,
        offset: u64,
        each: &mut dyn FnMut(&Entry<'_>) -> bool,
    ) -> Result<()> {
        self.0.ask(Ask::List, dir)?;
        let names = if dir == ROOT { &self.0.names[..] } else { &[] };
        for (i, (name, mode)) in names.iter().enumerate().skip(offset as usize) {
            let (node, next) = (i as u64 + 2, i as u64 + 1);
            let entry = Entry {
                name: name.as_bytes(),
                node,
                ino: node,
                kind: mode >> 12,
                next,
            };
            if !each(&entry) {
                break;
            }
        }
        Ok(())
    }

    fn getxattr(&self, _: Node, _: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::NODATA)
    }

    fn listxattr(&self, node: Node, _: bool) -> Result<Vec<u8>> {
        self.0.ask(Ask::Attributes, node)?;
        Ok(Vec::new())
    }

    fn statfs(&self) -> Result<StatfsOut> {
        Ok(StatfsOut::default())
    }

    fn seek(&self, _: Node, _: u64, _: Seek) -> Result<u64> {
        Err(Errno::INVAL)
    }
}

struct OddReader(Arc<Odd>);

impl Reader for OddReader {
    fn read<'a>(
        &'a mut self,
        node: Node,
        offset: u64,
        buf: &'a mut [u8],
        _: bool,
    ) -> Result<Parts<'a>> {
        let most = self.0.ask(Ask::Read(offset), node)?.unwrap_or(usize::MAX);
        let n = buf.len().min(LEN.saturating_sub(offset) as usize).min(most);
        for (i, byte) in buf[..n].iter_mut().enumerate() {
            *byte = (((offset as usize + i) * 31) >> 3) as u8;
        }
        Ok(Parts::One(&buf[..n]))
    }
}

/// Mount of the filesystem, ended on drop.
struct Served {
    mount: Option<Session<Handler>>,
    bound: Vec<PathBuf>,
}

impl Served {
    /// Serves at `dir`. Returns `None`, with a note, if nothing can be mounted.
    fn new(
        dir: &Path,
        names: &[(&'static str, u32)],
        answer: impl Fn(Ask, &str) -> Result<Option<usize>> + Send + Sync + 'static,
    ) -> Option<Self> {
        fs::create_dir_all(dir).unwrap();
        let odd = Odd {
            names: names.to_vec(),
            answer: Box::new(answer),
        };
        let threads = 2;
        let log = Log::new(|_| ());
        let handler = Arc::new(Handler::new(Arc::new(OddFs(Arc::new(odd))), threads, log));
        let options = MountOptions {
            source: "odd".into(),
            allow_other: false,
            flags: rustix::mount::MountFlags::empty(),
            ..MountOptions::default()
        };
        match mountpoint::attach(dir, &options) {
            Ok(at) => Some(Self {
                mount: Some(
                    Session::start(
                        handler,
                        at,
                        SessionOptions {
                            threads,
                            transport: Transport::Dev,
                            ..SessionOptions::default()
                        },
                    )
                    .unwrap(),
                ),
                bound: Vec::new(),
            }),
            Err(e) => {
                skipped(format_args!("a filesystem through FUSE: {e}"));
                None
            }
        }
    }

    /// Bind-mounts one of its names at `to`. Returns `None`, with a note, without root.
    fn bind(&mut self, name: &str, to: &Path) -> Option<()> {
        let from = self.mount.as_ref().unwrap().dir().join(name);
        let done = Command::new("mount")
            .arg("--bind")
            .args([&from, to])
            .output();
        if !done.is_ok_and(|o| o.status.success()) {
            skipped("mount --bind needs root");
            return None;
        }
        self.bound.push(to.to_owned());
        Some(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        for to in &self.bound {
            let _ = Command::new("umount").arg("-l").arg(to).output();
        }
        if let Some(mount) = self.mount.take() {
            let _ = mountpoint::detach(mount.dir(), Detach::Lazily);
            // Blocks if a thread does not end.
            mount.wait();
        }
    }
}

/// Lists the names in `out`, the directory of images.
fn left_over(place: &Place) -> Vec<String> {
    let entries = fs::read_dir(place.path("out")).unwrap();
    entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Options under which files are packed in the order of their names, on one thread.
const WAYS: &[&[&str]] = &[
    &["-j", "1", "--fragments", "off", "--dedupe", "off"],
    &[
        "-j",
        "1",
        "-z",
        "none",
        "--fragments",
        "off",
        "--dedupe",
        "off",
    ],
    &[
        "-j",
        "1",
        "--fragments",
        "tails",
        "--dedupe",
        "off",
        "-C",
        "64K",
    ],
];

/// Builds an image of `src`, which must fail with this message and leave nothing.
fn fails(place: &Place, options: &[&str], sentence: &str) {
    let args = [&["build"], options, &["src", "out/i"]].concat();
    let out = place.run(&args);
    let message = stderr(&out);
    assert_eq!(
        (code(&out), message.as_str()),
        (5, format!("tuff: {sentence}\n").as_str()),
        "{options:?}"
    );
    assert_eq!(left_over(place), Vec::<String>::new(), "{options:?}");
}

fn place(name: &str) -> Place {
    let place = Place::new(name);
    fs::create_dir(place.path("out")).unwrap();
    place
}

#[test]
fn errors_of_a_source_name_the_path() {
    let cases: &[(&str, u32, Ask, Errno, &str)] = &[
        (
            "gone",
            FILE,
            Ask::Examine,
            Errno::NOENT,
            "src/gone: vanished or cannot be examined: No such file or directory (os error 2)",
        ),
        (
            "kept",
            FILE,
            Ask::Examine,
            Errno::ACCESS,
            "src/kept: vanished or cannot be examined: Permission denied (os error 13)",
        ),
        (
            "dir",
            DIR,
            Ask::List,
            Errno::NOENT,
            "src/dir: cannot list directory: No such file or directory (os error 2)",
        ),
        (
            "dir",
            DIR,
            Ask::List,
            Errno::IO,
            "src/dir: cannot list directory: Input/output error (os error 5)",
        ),
        (
            "link",
            LINK,
            Ask::Link,
            Errno::IO,
            "src/link: cannot read symbolic link: Input/output error (os error 5)",
        ),
        (
            "file",
            FILE,
            Ask::Attributes,
            Errno::IO,
            "src/file: cannot read attributes: Input/output error (os error 5)",
        ),
    ];
    for (i, (name, mode, ask, errno, sentence)) in cases.iter().enumerate() {
        let place = place(&format!("answers-{i}"));
        let (expected, requested, errno) = (*name, *ask, *errno);
        let answer = move |ask: Ask, name: &str| match ask == requested && name == expected {
            true => Err(errno),
            false => Ok(None),
        };
        let Some(_served) = Served::new(&place.path("src"), &[(name, *mode)], answer) else {
            return;
        };
        for threads in ["1", "3"] {
            fails(&place, &["-j", threads], sentence);
        }
    }
}

/// Regression: a call that returned EINTR ended the build with exit code 130, as after a signal.
#[test]
fn interrupted_calls_are_retried() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    let names = [("dir", DIR), ("file", FILE), ("link", LINK)];
    for (i, (expected, requested)) in [
        ("file", Ask::Examine),
        ("dir", Ask::List),
        ("link", Ask::Link),
        ("file", Ask::Attributes),
    ]
    .into_iter()
    .enumerate()
    {
        let place = place(&format!("interrupted-{i}"));
        let left = Arc::new(AtomicUsize::new(0));
        let count = left.clone();
        let answer = move |ask: Ask, name: &str| {
            let is_it = ask == requested && name == expected;
            match is_it
                && count
                    .fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1))
                    .is_ok()
            {
                true => Err(Errno::INTR),
                false => Ok(None),
            }
        };
        for args in [
            &["build", "-q", "-j", "1", "src", "out/i"][..],
            &["build", "-q", "-j", "3", "src", "out/i"],
            &["diff", "out/i", "src"],
        ] {
            let Some(_served) = Served::new(&place.path("src"), &names, answer.clone()) else {
                return;
            };
            left.store(2, SeqCst);
            let out = place.run(args);
            assert_eq!(code(&out), 0, "{args:?}: {}", stderr(&out));
            assert_eq!(left.load(SeqCst), 0, "{requested:?} is not asked: {args:?}");
        }
    }
}

/// A file with an unreadable end, and one that ends before its size.
#[test]
fn a_failing_or_short_read_names_file_and_offset() {
    let place = place("reads");
    let broken = |ask: Ask, name: &str| match (ask, name) {
        (Ask::Read(at), "bad") if at >= 2 << 20 => Err(Errno::IO),
        _ => Ok(None),
    };
    if let Some(_served) = Served::new(&place.path("src"), &[("bad", FILE), ("good", FILE)], broken)
    {
        for options in WAYS
            .iter()
            .chain(&[&["-j", "3"][..], &["-z", "zstd", "--kernel", "6.12"]])
        {
            let out = place.run(&[&["build"], *options, &["src", "out/i"]].concat());
            let message = stderr(&out);
            assert_eq!((code(&out), message.lines().count()), (5, 1), "{message}");
            assert!(
                message.starts_with("tuff: src/bad: cannot read at byte "),
                "{message}"
            );
            assert!(
                message.ends_with(": Input/output error (os error 5)\n"),
                "{message}"
            );
            assert!(left_over(&place).is_empty());
        }
    } else {
        return;
    }
    let short = |ask: Ask, name: &str| match (ask, name) {
        (Ask::Read(at), "bad") => Ok(Some(100_000usize.saturating_sub(at as usize))),
        _ => Ok(None),
    };
    let names = [("bad", FILE), ("good", FILE)];
    // The kernel caches the size, so each way needs a new mount.
    for options in WAYS {
        let Some(_served) = Served::new(&place.path("src"), &names, short) else {
            return;
        };
        let sentence =
            "src/bad: cannot read: the file changed while the image was built: it became shorter";
        fails(&place, options, sentence);
    }
}

/// Creates `src/a`, which is read first, and `src/b`, which `change` modifies meanwhile.
fn meanwhile(name: &str, change: impl Fn(&Path) + Send + Sync + Copy + 'static, sentence: &str) {
    let place = place(name);
    for options in WAYS {
        let src = place.path("src");
        let _ = fs::remove_dir_all(&src);
        fs::create_dir(&src).unwrap();
        fs::write(src.join("a"), "").unwrap();
        fs::write(src.join("b"), vec![b'b'; BESIDE]).unwrap();
        let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
        let file = fs::File::options().write(true).open(src.join("b")).unwrap();
        file.set_times(times).unwrap();
        let done = Arc::new(Mutex::new(false));
        let (b, mark) = (src.join("b"), done.clone());
        let answer = move |ask: Ask, name: &str| {
            let mut done = mark.lock().unwrap();
            if let (Ask::Read(_), "a", false) = (ask, name, *done) {
                change(&b);
                *done = true;
            }
            Ok(None)
        };
        let Some(mut served) = Served::new(&place.path("served"), &[("a", FILE)], answer) else {
            return;
        };
        let Some(()) = served.bind("a", &src.join("a")) else {
            return;
        };
        fails(&place, options, sentence);
        assert!(*done.lock().unwrap(), "{options:?}");
    }
}

#[test]
fn a_file_that_shrinks_after_it_was_examined_is_named() {
    meanwhile(
        "shrinks",
        |b| {
            fs::File::options()
                .write(true)
                .open(b)
                .unwrap()
                .set_len(1000)
                .unwrap()
        },
        "src/b: cannot read: the file changed while the image was built: its size was 300000 bytes and is 1000",
    );
}

#[test]
fn a_file_that_grows_after_it_was_examined_is_named() {
    meanwhile(
        "grows",
        |b| fs::write(b, vec![b'b'; BESIDE + 1]).unwrap(),
        "src/b: cannot read: the file changed while the image was built: its size was 300000 bytes and is 300001",
    );
}

#[test]
fn a_file_that_is_replaced_by_one_of_its_size_is_named() {
    meanwhile(
        "replaced",
        |b| {
            let new = b.with_file_name("new");
            fs::write(&new, vec![b'n'; BESIDE]).unwrap();
            // With the time of the old file to the second.
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(1);
            let times = fs::FileTimes::new().set_modified(time);
            let file = fs::File::options().write(true).open(&new).unwrap();
            file.set_times(times).unwrap();
            fs::rename(new, b).unwrap();
        },
        "src/b: cannot read: the file changed while the image was built: its modification time is another",
    );
}

#[test]
fn a_file_that_vanishes_after_it_was_examined_is_named() {
    meanwhile(
        "vanishes",
        |b| fs::remove_file(b).unwrap(),
        "src/b: cannot open: No such file or directory (os error 2)",
    );
}

/// Opening the FIFO must not wait for a writer.
#[test]
fn a_file_that_becomes_a_fifo_is_named() {
    meanwhile(
        "fifo",
        |b| {
            fs::remove_file(b).unwrap();
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mkfifoat(rustix::fs::CWD, b, mode).unwrap();
        },
        "src/b: cannot read: the file changed while the image was built: it is no regular file any more",
    );
}

/// The target of the link was never in the tree.
#[test]
fn a_file_that_becomes_a_link_is_not_followed() {
    meanwhile(
        "link",
        |b| {
            fs::rename(b, b.with_file_name("../elsewhere")).unwrap();
            std::os::unix::fs::symlink("../elsewhere", b).unwrap();
        },
        "src/b: cannot open: Too many levels of symbolic links (os error 40)",
    );
}

/// `a` is listed before `b`, and when it is, `b` goes.
#[test]
fn a_directory_that_vanishes_after_it_was_examined_is_named() {
    let place = place("directory");
    fs::create_dir_all(place.path("src/b")).unwrap();
    let b = place.path("src/b");
    let answer = move |ask: Ask, _: &str| {
        if ask == Ask::List {
            let _ = fs::remove_dir(&b);
        }
        Ok(None)
    };
    let Some(_served) = Served::new(&place.path("src/a"), &[], answer) else {
        return;
    };
    fails(
        &place,
        &["-j", "1"],
        "src/b: cannot open directory: No such file or directory (os error 2)",
    );
}

/// A manifest's file that changes is named by its own path.
#[test]
fn a_manifests_file_that_changes_is_named() {
    let place = place("manifest");
    let answer = |_: Ask, _: &str| Ok(None);
    fs::write(place.path("b"), vec![b'b'; BESIDE]).unwrap();
    let b = place.path("b");
    let cut = move |ask: Ask, name: &str| {
        if let (Ask::Read(_), "a") = (ask, name) {
            fs::File::options()
                .write(true)
                .open(&b)
                .unwrap()
                .set_len(10)
                .unwrap();
        }
        answer(ask, name)
    };
    let Some(_served) = Served::new(&place.path("served"), &[("a", FILE)], cut) else {
        return;
    };
    fs::write(
        place.path("src.mtree"),
        "#mtree\n./a type=file mode=0644 contents=served/a\n./b type=file mode=0644 contents=b\n",
    )
    .unwrap();
    let out = place.run(&[&["build"], WAYS[0], &["src.mtree", "out/i"]].concat());
    let message = stderr(&out);
    assert_eq!((code(&out), message.lines().count()), (5, 1), "{message}");
    let expected = "/b: cannot read: the file changed while the image was built: its size was 300000 bytes and is 10\n";
    assert!(message.ends_with(expected), "{message}");
    assert!(left_over(&place).is_empty());
}

/// As a user without permission, since root may read everything.
#[test]
fn unreadable_files_are_named() {
    let place = place("unreadable-source");
    fs::create_dir_all(place.path("src/dir")).unwrap();
    fs::write(place.path("src/dir/in"), "in").unwrap();
    fs::write(place.path("src/secret"), "secret").unwrap();
    let mut tuff = PathBuf::from(env!("CARGO_BIN_EXE_tuff"));
    if is_root() {
        // Other users may be unable to enter the build directory.
        let copy = place.path("tuff");
        program::copy(&tuff, &copy);
        tuff = copy;
        for path in ["out", "src", "src/dir", "src/dir/in", "src/secret"] {
            std::os::unix::fs::chown(place.path(path), Some(65534), Some(65534)).unwrap();
        }
    }
    let run = |args: &[&str]| -> Output {
        let mut command = Command::new(&tuff);
        command.current_dir(&place.0).args(args);
        if is_root() {
            std::os::unix::process::CommandExt::uid(&mut command, 65534);
            std::os::unix::process::CommandExt::gid(&mut command, 65534);
        }
        command.output().unwrap()
    };
    let whole = run(&["build", "-q", "src", "out/i"]);
    assert_eq!((code(&whole), stderr(&whole).as_str()), (0, ""));
    fs::remove_file(place.path("out/i")).unwrap();
    let denied = "Permission denied (os error 13)";
    for (path, mode, what) in [
        ("src/secret", 0o644, "cannot open"),
        ("src/dir", 0o755, "cannot open directory"),
        ("src", 0o755, "cannot open the source directory"),
    ] {
        fs::set_permissions(place.path(path), fs::Permissions::from_mode(0o000)).unwrap();
        for threads in ["1", "3"] {
            let out = run(&["build", "-j", threads, "src", "out/i"]);
            let sentence = format!("tuff: {path}: {what}: {denied}\n");
            assert_eq!((code(&out), stderr(&out)), (5, sentence), "{path}");
            assert!(left_over(&place).is_empty());
        }
        fs::set_permissions(place.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// ^C while directories are listed, attributes and links are read, and files are read: nothing is left, with many
/// threads too.
#[test]
fn a_stopped_build_leaves_nothing() {
    let names = [
        ("a", FILE),
        ("b", FILE),
        ("dir", DIR),
        ("link", LINK),
        ("z", FILE),
    ];
    let moments = [
        (Ask::List, ""),
        (Ask::Examine, "b"),
        (Ask::Attributes, "a"),
        (Ask::Link, "link"),
        (Ask::List, "dir"),
        (Ask::Read(0), "a"),
        (Ask::Read(0), "z"),
    ];
    for (i, moment) in moments.into_iter().enumerate() {
        for threads in ["1", "3"] {
            let place = place(&format!("stopped-{i}-{threads}"));
            let tuff = Arc::new(Mutex::new(None::<u32>));
            let known = tuff.clone();
            let answer = move |ask: Ask, name: &str| {
                // Only once: a second signal ends the process at once.
                if (ask, name) == moment
                    && let Some(pid) = known.lock().unwrap().take()
                {
                    // The pid is taken when the request is answered.
                    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
                    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
                }
                Ok(None)
            };
            let Some(_served) = Served::new(&place.path("src"), &names, answer) else {
                return;
            };
            // The lock delays answers until the pid is known.
            let mut pid = tuff.lock().unwrap();
            let child = place
                .command(&["build", "-j", threads, "src", "out/i"])
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            *pid = Some(child.id());
            drop(pid);
            let out = child.wait_with_output().unwrap();
            let message = stderr(&out);
            assert_eq!(code(&out), 130, "{moment:?}: {message}");
            assert_eq!(message.lines().count(), 1, "{moment:?}: {message}");
            assert!(
                message.starts_with("tuff: out/i: stopped"),
                "{moment:?}: {message}"
            );
            assert!(left_over(&place).is_empty(), "{moment:?}");
        }
    }
}

/// A disk too small for the image: a regular file, a temporary file, and a block device.
#[test]
fn a_full_disk_ends_a_build_without_a_file() {
    let place = place("full");
    fs::create_dir(place.path("src")).unwrap();
    let bytes: Vec<u8> = (0..2_000_000u64)
        .map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
        .collect();
    fs::write(place.path("src/noise"), bytes).unwrap();
    let Some(small) = crate::faults::Small::new(&place, "small") else {
        return;
    };
    let full = "No space left on device (os error 28)";
    for threads in ["1", "3"] {
        let out = place.run(&["build", "-j", threads, "-z", "none", "src", "small/i"]);
        let message = stderr(&out);
        assert_eq!((code(&out), message.lines().count()), (5, 1), "{message}");
        assert!(message.starts_with("tuff: small/i: "), "{message}");
        assert!(message.trim_end().ends_with(full), "{message}");
        assert_eq!(fs::read_dir(&small.0).unwrap().count(), 0);
    }
    // Standard output is filled from a temporary file.
    let mut command = place.command(&["build", "-z", "none", "src", "-"]);
    let out = command.env("TMPDIR", &small.0).output().unwrap();
    let message = stderr(&out);
    assert_eq!((code(&out), message.lines().count()), (5, 1), "{message}");
    assert!(
        message.contains("standard output") && message.trim_end().ends_with(full),
        "{message}"
    );
    assert!(out.stdout.is_empty());
    assert_eq!(fs::read_dir(&small.0).unwrap().count(), 0);
    drop(small);

    let Some(device) = LoopDevice::new(&place, 256 << 10) else {
        return;
    };
    for threads in ["1", "3"] {
        // A build that failed leaves no image.
        let args = [
            "build", "--force", "-j", threads, "-z", "none", "src", &device.0,
        ];
        let out = place.run(&args);
        let message = stderr(&out);
        assert_eq!((code(&out), message.lines().count()), (5, 1), "{message}");
        assert!(
            message.starts_with(&format!("tuff: {}: ", device.0)),
            "{message}"
        );
        assert!(message.trim_end().ends_with(full), "{message}");
    }
    assert!(
        fs::metadata(&device.0)
            .unwrap()
            .file_type()
            .is_block_device()
    );
    // An image that fits is written.
    fs::write(place.path("src/noise"), "little").unwrap();
    let out = place.run(&["build", "-q", "--force", "src", &device.0]);
    assert_eq!((code(&out), stderr(&out).as_str()), (0, ""));
    assert_eq!(place.text(&["cat", &device.0, "noise"]), "little");
    assert!(fs::metadata(place.path("disk")).unwrap().size() == 256 << 10);

    // Not while it is mounted.
    fs::create_dir(place.path("mnt")).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "erofs", "-o", "ro", &device.0])
        .arg(place.path("mnt"))
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        return skipped("no mount of an image by the kernel");
    }
    let out = place.run(&["build", "-q", "src", &device.0]);
    let _ = Command::new("umount").arg(place.path("mnt")).status();
    let message = stderr(&out);
    assert_eq!((code(&out), message.lines().count()), (5, 1), "{message}");
    assert!(message.contains("busy"), "{message}");
}

/// Loop device over a file, detached on drop.
struct LoopDevice(String);

impl LoopDevice {
    /// Returns `None`, with a note, if there is no loop device.
    fn new(place: &Place, len: u64) -> Option<Self> {
        let file = fs::File::create(place.path("disk")).unwrap();
        file.set_len(len).unwrap();
        let out = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(place.path("disk"))
            .output();
        match out {
            Ok(out) if out.status.success() => {
                Some(Self(String::from_utf8_lossy(&out.stdout).trim().to_owned()))
            }
            _ => {
                skipped("a loop device needs root");
                None
            }
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}
