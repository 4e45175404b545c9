//! Images behind URLs under the kernel's EROFS: on the served file, and on the complete one.

use crate::common::{Place, code, stderr};
use crate::mount::can_mount;
use crate::push::{key, pushed, run, start};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tuff_testkit::http::{Answer, Server};
use tuff_testkit::tree::{Ignore, assert_same, host_tree, image_tree, open};
use tuff_testkit::{is_root, skipped};

/// Longest wait for something that must happen.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Waits until `f` returns a value.
pub(crate) fn wait_for<T>(what: &str, mut f: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = f() {
            return value;
        }
        assert!(start.elapsed() < TIME_LIMIT, "{what} does not happen");
        sleep(Duration::from_millis(10));
    }
}

/// Filesystem type and source of the mounts at a directory, the visible one last.
pub(crate) fn mounts_at(dir: &Path) -> Vec<(String, String)> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let lines = table
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    lines
        .filter(|words| Path::new(words[1]) == dir)
        .map(|words| (words[2].to_owned(), words[0].to_owned()))
        .collect()
}

/// Server in the foreground of a mount. Dropping it kills the process and unmounts `mnt`.
pub(crate) struct Daemon<'a> {
    place: &'a Place,
    pub(crate) child: Child,
}

impl<'a> Daemon<'a> {
    /// Mounts the image at `url` on `mnt`.
    pub(crate) fn start(place: &'a Place, url: &str, options: &[&str]) -> Self {
        fs::create_dir_all(place.path("mnt")).unwrap();
        let mut command = place.command(&["mount", "-f", "--log", "log", "--fetch-timeout", "2"]);
        command.args(options).args([url, "mnt"]);
        command.env("XDG_CACHE_HOME", place.path("cache"));
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut daemon = Self { place, child };
        wait_for("the mount", || {
            if let Some(status) = daemon.child.try_wait().unwrap() {
                panic!("{status}: {}", daemon.messages());
            }
            // The server knows its mount, which is visible before, when it has counters.
            (code(&place.run(&["stats", "mnt"])) == 0).then_some(())
        });
        daemon
    }

    pub(crate) fn dir(&self) -> PathBuf {
        fs::canonicalize(&self.place.0).unwrap().join("mnt")
    }

    fn messages(&mut self) -> String {
        let mut text = String::new();
        if let Some(pipe) = &mut self.child.stderr {
            pipe.read_to_string(&mut text).unwrap();
        }
        text
    }

    pub(crate) fn umount(&self) {
        self.place.unmount("mnt");
        assert_eq!(mounts_at(&self.dir()), []);
    }

    pub(crate) fn ends_well(&mut self) {
        let status = wait_for("the end of the server", || self.child.try_wait().unwrap());
        assert!(status.success(), "{status}: {}", self.messages());
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        while !mounts_at(&self.dir()).is_empty() {
            if !Command::new("umount")
                .arg("-l")
                .arg(self.dir())
                .status()
                .unwrap()
                .success()
            {
                break;
            }
        }
    }
}

/// Server of the image `i`, with a time before each answer.
fn serve(place: &Place, delay: Duration) -> Server {
    let bytes = fs::read(place.path("i")).unwrap();
    Server::start(move |request| match request.path.as_str() {
        "/i" => Answer {
            delay,
            ..Answer::object(request, &bytes, "\"v1\"")
        },
        _ => Answer::status(404),
    })
}

/// True if the kernel mounts EROFS from files here.
pub(crate) fn kernel_can_mount() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(probe)
}

fn probe() -> bool {
    if !can_mount() {
        return false;
    }
    if !is_root() {
        skipped("mounting by the kernel needs root");
        return false;
    }
    let place = Place::with_image("kernel-probe");
    let server = serve(&place, Duration::ZERO);
    fs::create_dir(place.path("mnt")).unwrap();
    let mut command = place.command(&["mount", "--kernel", &server.url("/i"), "mnt"]);
    let out = command
        .env("XDG_CACHE_HOME", place.path("cache"))
        .output()
        .unwrap();
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    place.unmount("mnt");
    let can = !stderr(&out).contains("not mounted by the kernel");
    if !can {
        skipped(stderr(&out).trim());
    }
    can
}

/// Directory `tree` of 12 MiB: files that do not compress, and small ones in directories.
pub(crate) fn tree(place: &Place) {
    let mut rng = tuff_testkit::Rng::new(7);
    for number in 0..4 {
        let dir = place.path(&format!("tree/{number}"));
        fs::create_dir_all(&dir).unwrap();
        let bytes: Vec<u8> = (0..3 << 20).map(|_| rng.draw() as u8 | 1).collect();
        fs::write(dir.join("large"), bytes).unwrap();
        for small in 0..20 {
            fs::write(dir.join(small.to_string()), format!("{number} {small}\n")).unwrap();
        }
    }
}

/// Image `i` of that directory.
fn image(place: &Place) {
    tree(place);
    let out = place.run(&["build", "-q", "tree", "i"]);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
}

#[test]
fn the_kernel_reads_from_a_url_what_the_image_has() {
    if !kernel_can_mount() {
        return;
    }
    let place = Place::with_image("kernel-same");
    image(&place);
    // All kinds of entries, and content that one request does not cover.
    let args = ["build", "-q", "--whiteouts", "keep", "--sparse", "keep"];
    let out = place.run(&[&args[..], &["holes", "m/tree.mtree", "tree", "i"]].concat());
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    let server = serve(&place, Duration::from_millis(2));
    let expected = image_tree(&open(&place.path("i")));
    let url = format!("http://user:secret@{}/i", server.host());
    // A cache that is too small for the image keeps it from being complete.
    let options = ["--kernel", "--cache-max", "256K"];
    let mut daemon = Daemon::start(&place, &url, &options);
    let mounts = mounts_at(&daemon.dir());
    assert_eq!(mounts, [("erofs".to_owned(), server.url("/i"))]);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let found = host_tree(&daemon.dir());
                assert_same("kernel mount", &expected, &found, Ignore::default());
            });
        }
    });
    server.stop();
    daemon.umount();
    daemon.ends_well();
    assert!(!daemon.messages().contains("secret"));
}

#[test]
fn two_requests_precede_a_kernel_mount() {
    if !kernel_can_mount() {
        return;
    }
    let place = Place::new("kernel-requests");
    image(&place);
    let server = serve(&place, Duration::ZERO);
    let mut daemon = Daemon::start(&place, &server.url("/i"), &["--kernel"]);
    // A profile beside the image is looked for later.
    let requests = server.take_requests();
    assert_eq!(requests.iter().filter(|r| r.path == "/i").count(), 2);
    let counters = place.text(&["stats", "mnt"]);
    assert!(counters.contains("remote_size_bytes "), "{counters}");
    assert!(fs::read_dir(daemon.dir()).unwrap().count() == 4);
    daemon.umount();
    daemon.ends_well();
}

#[test]
fn the_kernel_mounts_an_image_that_a_trusted_certificate_signed_and_no_other() {
    if !kernel_can_mount() {
        return;
    }
    let place = Place::new("kernel-trust");
    image(&place);
    place.text(&["verity", "add", "-q", "i"]);
    if !["a", "b"].iter().all(|name| key(&place, name)) {
        return;
    }
    let (registry, _server, url) = start();
    pushed(&place, &[], &["--sign", "a.key,a.pem", "i", &url]);
    let mut daemon = Daemon::start(&place, &url, &["--kernel", "--trust", "a.pem"]);
    let mounts = mounts_at(&daemon.dir());
    assert_eq!(mounts, [("erofs".to_owned(), url.clone())]);
    let read = |number: u32| fs::read(daemon.dir().join(format!("{number}/large")));
    assert!(read(1).unwrap() == fs::read(place.path("tree/1/large")).unwrap());
    // Bytes that the signed root hash does not cover are an error of the kernel's mount.
    let index = registry.manifest("team/app", "v1").unwrap();
    let manifest = index["manifests"][0]["digest"].as_str().unwrap();
    let manifest = registry.manifest("team/app", manifest).unwrap();
    let blob = manifest["layers"][0]["digest"].as_str().unwrap();
    registry.change_blob("team/app", blob, |blob| {
        let middle = blob.len() / 4 * 3;
        blob[middle..].iter_mut().for_each(|byte| *byte ^= 1);
    });
    assert_eq!(read(3).unwrap_err().raw_os_error(), Some(5));
    daemon.umount();
    daemon.ends_well();
    let args = ["mount", "--kernel", "--trust", "b.pem", &url, "mnt"];
    let out = run(&place, &[], &args);
    assert_eq!(code(&out), 6, "{}", stderr(&out));
    assert_eq!(mounts_at(&daemon.dir()), []);
}

#[test]
fn a_killed_server_is_an_error_and_never_zeros() {
    if !kernel_can_mount() {
        return;
    }
    let place = Place::new("kernel-killed");
    image(&place);
    let server = serve(&place, Duration::ZERO);
    let mut daemon = Daemon::start(&place, &server.url("/i"), &["--kernel"]);
    let file = File::open(daemon.dir().join("0/large")).unwrap();
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    let mut failed = 0;
    for number in 0..4 {
        let expected = fs::read(place.path(&format!("tree/{number}/large"))).unwrap();
        match fs::read(daemon.dir().join(format!("{number}/large"))) {
            Ok(found) => assert!(found == expected, "{number}"),
            Err(_) => failed += 1,
        }
    }
    assert!(failed >= 3, "{failed}");
    assert!((&file).read_to_end(&mut Vec::new()).is_err());
    drop(file);
    daemon.umount();
}

#[test]
fn a_part_that_cannot_be_fetched_is_an_io_error_of_the_kernel_mount() {
    if !kernel_can_mount() {
        return;
    }
    let place = Place::new("kernel-gone");
    image(&place);
    let server = serve(&place, Duration::ZERO);
    let mut daemon = Daemon::start(&place, &server.url("/i"), &["--kernel"]);
    server.stop();
    let e = fs::read(daemon.dir().join("2/large")).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(5));
    daemon.umount();
    daemon.ends_well();
    let log = fs::read_to_string(place.path("log")).unwrap();
    assert!(log.contains("/i: bytes "), "{log}");
}

#[test]
fn a_read_that_waits_does_not_delay_others() {
    if !kernel_can_mount() {
        return;
    }
    let place = Place::new("kernel-gate");
    image(&place);
    let bytes = fs::read(place.path("i")).unwrap();
    let is_closed = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&is_closed);
    let server = Server::start(move |request| {
        let size = bytes.len() as u64;
        let is_early = request
            .range(size)
            .is_some_and(|range| range.start < size / 4);
        while is_early && gate.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(5));
        }
        Answer::object(request, &bytes, "\"v1\"")
    });
    let daemon = Daemon::start(&place, &server.url("/i"), &["--kernel"]);
    is_closed.store(true, Ordering::Relaxed);
    let early = daemon.dir().join("0/large");
    let waiting = std::thread::spawn(move || fs::read(early));
    sleep(Duration::from_millis(50));
    let late = fs::read(daemon.dir().join("3/large")).unwrap();
    assert!(late == fs::read(place.path("tree/3/large")).unwrap());
    assert!(!waiting.is_finished());
    is_closed.store(false, Ordering::Relaxed);
    let early = waiting.join().unwrap().unwrap();
    assert!(early == fs::read(place.path("tree/0/large")).unwrap());
    daemon.umount();
}

/// Inode number, mode, size and content of every path.
type Walk = BTreeMap<PathBuf, (u64, u32, u64, Vec<u8>)>;

fn walk(root: &Path) -> Walk {
    let mut found = Walk::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(path) = todo.pop() {
        let full = root.join(&path);
        let meta = fs::symlink_metadata(&full).unwrap();
        let mut content = Vec::new();
        if meta.is_dir() {
            for entry in fs::read_dir(&full).unwrap() {
                todo.push(path.join(entry.unwrap().file_name()));
            }
        } else if meta.is_symlink() {
            content = fs::read_link(&full).unwrap().into_os_string().into_vec();
        } else if meta.is_file() {
            content = fs::read(&full).unwrap();
        }
        found.insert(path, (meta.ino(), meta.mode(), meta.len(), content));
    }
    found
}

/// Mounts an image that becomes complete while a program walks it.
fn is_replaced_when_complete(name: &str, options: &[&str]) {
    if !kernel_can_mount() {
        return;
    }
    let place = Place::new(name);
    image(&place);
    let server = serve(&place, Duration::from_millis(20));
    let limit = [options, &["--fill", "--fill-rate", "8M"]].concat();
    let daemon = Daemon::start(&place, &server.url("/i"), &limit);
    assert_is_replaced(daemon, Some(server));
}

/// Walks a mount until the kernel's mount of the descriptor of a file has taken over, and after that. The image has the directory
/// [`tree`].
pub(crate) fn assert_is_replaced(mut daemon: Daemon<'_>, server: Option<Server>) {
    let dir = daemon.dir();
    let mut held = File::open(dir.join("3/large")).unwrap();
    let expected = walk(&dir);
    let done = Arc::new(AtomicBool::new(false));
    let rounds = Arc::new(AtomicU64::new(0));
    let walker = {
        let (dir, expected) = (dir.clone(), expected.clone());
        let (done, rounds) = (Arc::clone(&done), Arc::clone(&rounds));
        std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                assert!(walk(&dir) == expected);
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    wait_for("the replacement", || {
        let mounts = mounts_at(&dir);
        let is_file = |(kind, source): &(String, String)| {
            kind == "erofs" && source.starts_with("/proc/self/fd/")
        };
        (mounts.len() == 1 && mounts.iter().all(is_file)).then_some(())
    });
    let before = rounds.load(Ordering::Relaxed);
    wait_for("another walk", || {
        (walker.is_finished() || rounds.load(Ordering::Relaxed) > before + 1).then_some(())
    });
    done.store(true, Ordering::Relaxed);
    walker.join().expect("the walker sees no difference");
    let mut content = Vec::new();
    held.read_to_end(&mut content).unwrap();
    assert!(content == expected[Path::new("3/large")].3);
    drop(held);
    // The files are complete: the server of the image is not needed.
    drop(server);
    assert!(walk(&dir) == expected);
    assert!(daemon.child.try_wait().unwrap().is_none());
    daemon.umount();
    daemon.ends_well();
}

#[test]
fn a_kernel_mount_is_replaced_when_the_image_is_complete() {
    is_replaced_when_complete("swap-kernel", &["--kernel"]);
}

#[test]
fn a_fuse_mount_is_replaced_when_the_image_is_complete() {
    is_replaced_when_complete("swap-fuse", &[]);
}

/// Device number of the visible mount at a directory, as the table of mounts has it.
fn device_at(dir: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let lines = table
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let found = lines.rev().find(|words| Path::new(words[4]) == dir);
    found.unwrap()[2].to_owned()
}

/// A mounted tmpfs, which holds a device number.
struct Tmpfs(Place);

impl Tmpfs {
    fn mount() -> Tmpfs {
        let place = Place::new("counters-number");
        fs::create_dir(place.path("mnt")).unwrap();
        let held = Command::new("mount")
            .args(["-t", "tmpfs", "number"])
            .arg(place.path("mnt"))
            .status();
        assert!(held.unwrap().success());
        Tmpfs(place)
    }

    fn device(&self) -> String {
        device_at(&self.0.path("mnt"))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path("mnt")).status();
    }
}

/// Leaves this device number and the smallest one as the next two that the kernel gives, if no other process mounts anything.
///
/// The numbers between them stay held until the result is dropped.
fn free_only_a_smaller_number_and(number: &str) -> Vec<Tmpfs> {
    let minor = |device: &str| device.split_once(':').unwrap().1.parse::<u64>().unwrap();
    let mut held = vec![Tmpfs::mount()];
    while minor(&held[held.len() - 1].device()) < minor(number) {
        held.push(Tmpfs::mount());
    }
    held.pop();
    held.drain(..1.min(held.len()));
    held
}

#[test]
fn counters_are_those_of_the_mount_also_after_its_device_number_was_that_of_another() {
    if !kernel_can_mount() {
        return;
    }
    let (first, second) = (Place::new("counters-first"), Place::new("counters-second"));
    image(&first);
    fs::create_dir(second.path("tree")).unwrap();
    fs::write(second.path("tree/small"), "small").unwrap();
    second.text(&["build", "-q", "tree", "i"]);
    let sizes = [&first, &second].map(|place| fs::metadata(place.path("i")).unwrap().len());
    assert_ne!(sizes[0], sizes[1]);
    let size_of = |place: &Place| {
        let text = place.text(&["stats", "mnt"]);
        let line = text
            .lines()
            .find(|line| line.starts_with("remote_size_bytes "));
        line.unwrap()
            .split(' ')
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    // The kernel gives the smallest free number. One that is smaller than that of the first mount is kept for the export of the
    // second image, which is mounted before the image.
    let small = Tmpfs::mount();
    let server = serve(&first, Duration::from_millis(5));
    let replaced = Daemon::start(&first, &server.url("/i"), &["--kernel", "--fill"]);
    let before = device_at(&replaced.dir());
    // The kernel's mount of the complete image frees the number of the mount that it replaces.
    wait_for("the replacement", || {
        (device_at(&replaced.dir()) != before).then_some(())
    });
    drop(small);
    let other = serve(&second, Duration::ZERO);
    let options = ["--kernel", "--cache-max", "4K"];
    let mount = wait_for("a mount with the number of the replaced one", || {
        let _held = free_only_a_smaller_number_and(&before);
        let mount = Daemon::start(&second, &other.url("/i"), &options);
        if device_at(&mount.dir()) == before {
            return Some(mount);
        }
        // Another process took or freed a number meanwhile.
        mount.umount();
        None
    });
    for _ in 0..20 {
        assert_eq!(size_of(&second), sizes[1]);
        assert_eq!(size_of(&first), sizes[0]);
    }
    mount.umount();
    replaced.umount();
}
