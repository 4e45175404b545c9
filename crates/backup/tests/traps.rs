//! Mistakes of other backup programs, by their numbers: what a run reads, and what it stores.

use rustix::fs::{CWD, Timespec, Timestamps, utimensat};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tuff_backup::{Report, Request, Store, StoreCompression};
use tuff_erofs::diff::{Change, Difference};
use tuff_erofs::extract;
use tuff_mkfs::{Options, Progress, Source, build};
use tuff_store::Target;
use tuff_testkit::content::{noise, text};
use tuff_testkit::kernel::Mounted;
use tuff_testkit::{Rng, Scratch};

struct Place(Scratch);

impl Place {
    /// Makes an empty source and a store.
    fn new(name: &str) -> Self {
        let place = Self(Scratch::new(name));
        fs::create_dir(place.source()).unwrap();
        Store::create(&place.store(), StoreCompression::default()).unwrap();
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn source(&self) -> PathBuf {
        self.at("source")
    }

    fn store(&self) -> PathBuf {
        self.at("store")
    }

    fn backup(&self) -> Report {
        self.backup_with(&[self.source()], Options::default(), &Progress::default())
    }

    fn backup_with(&self, sources: &[PathBuf], options: Options, progress: &Progress) -> Report {
        let request = Request {
            archives: Vec::new(),
            sources: sources.to_vec(),
            series: "test".to_owned(),
            options,
            reads_all: false,
            is_dry: false,
        };
        let mut store = Store::open_to_write(&self.store()).unwrap();
        store.backup(&request, progress).unwrap()
    }

    /// Restores the newest snapshot. Returns where the source is.
    fn restore(&self, name: &str) -> PathBuf {
        let store = Arc::new(Store::open(&self.store()).unwrap());
        let snapshot = store.snapshots().unwrap().pop().unwrap().unwrap();
        let image = store.image(&snapshot, &self.at("image"), &Progress::default());
        let image = image.unwrap().open().unwrap();
        let target = self.at(name);
        let report = extract::extract(&image, &target, &extract::Options::default(), |_| ());
        assert_eq!(report.unwrap().problems, Vec::new());
        let source = fs::canonicalize(self.source()).unwrap();
        target.join(source.strip_prefix("/").unwrap())
    }
}

/// Waits until the times of files are trusted.
fn age() {
    std::thread::sleep(Duration::from_millis(2100));
}

fn run(program: &str, args: &[&OsStr]) -> bool {
    let run = Command::new(program).args(args).output();
    run.is_ok_and(|out| out.status.success())
}

/// Filesystem that is mounted until the value is dropped.
struct Disk(PathBuf);

impl Disk {
    /// Mounts a filesystem as root. `None` where that is not possible.
    fn new(dir: &Path, args: &[&str]) -> Option<Self> {
        fs::create_dir_all(dir).unwrap();
        let mut all: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        all.push(dir.as_os_str());
        let is_mounted = tuff_testkit::is_root() && run("mount", &all);
        if !is_mounted {
            tuff_testkit::skipped(format_args!("mount {args:?} needs root"));
        }
        is_mounted.then(|| Self(dir.to_owned()))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run("umount", &[self.0.as_os_str()]);
    }
}

/// B10: an edit that keeps size and time is found by the time of change, and a change of attributes stores no content.
#[test]
fn b10_touch_with_an_old_time_is_found() {
    let place = Place::new("b10");
    for n in 0..20 {
        fs::write(place.source().join(n.to_string()), noise(100_000, n)).unwrap();
    }
    age();
    place.backup();
    assert_eq!(place.backup().files_read, 0);
    let path = place.source().join("7");
    let time = path.metadata().unwrap().modified().unwrap();
    let edited = noise(100_000, 99);
    fs::write(&path, &edited).unwrap();
    File::open(&path).unwrap().set_modified(time).unwrap();
    // The time of change is one that would be trusted.
    age();
    let report = place.backup();
    assert_eq!(report.files_read, 1);
    assert_eq!(fs::read(place.restore("edited").join("7")).unwrap(), edited);

    for n in 0..20 {
        let path = place.source().join(n.to_string());
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let report = place.backup();
    assert!(report.stored_bytes < 64 << 10, "{}", report.stored_bytes);
    let restored = place.restore("chmod").join("3");
    assert_eq!(restored.metadata().unwrap().mode() & 0o777, 0o600);
}

/// B11: a file that changes after it was read, within one tick of a coarse clock, is read by the next run.
#[test]
fn b11_a_change_within_one_tick_is_found() {
    let place = Place::new("b11");
    let disk = place.at("disk.ext2");
    File::create(&disk).unwrap().set_len(8 << 20).unwrap();
    // Inodes of 128 bytes have times in seconds.
    let args = ["-q", "-F", "-t", "ext2", "-I", "128"].map(OsStr::new);
    if !run("mke2fs", &[&args[..], &[disk.as_os_str()]].concat()) {
        return tuff_testkit::skipped("a filesystem with a coarse clock needs mke2fs");
    }
    let args = ["-o", "loop", disk.to_str().unwrap()];
    let Some(_disk) = Disk::new(&place.source(), &args) else {
        return;
    };
    let path = place.source().join("file");
    let state = |metadata: Metadata| {
        assert_eq!((metadata.mtime_nsec(), metadata.ctime_nsec()), (0, 0));
        (metadata.ino(), metadata.mtime(), metadata.ctime())
    };
    for attempt in 0.. {
        assert!(attempt < 30, "no backup within a second");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        std::thread::sleep(Duration::from_nanos(
            1_010_000_000 - u64::from(now.subsec_nanos()),
        ));
        fs::write(&path, "first").unwrap();
        let before = state(path.metadata().unwrap());
        place.backup();
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"after", 0).unwrap();
        if state(path.metadata().unwrap()) == before {
            break;
        }
    }
    place.backup();
    assert_eq!(fs::read(place.restore("r").join("file")).unwrap(), b"after");
}

/// B12: order and spelling of the sources do not matter, and the report names the parent.
#[test]
fn b12_the_parent_does_not_depend_on_spelling() {
    let place = Place::new("b12");
    for name in ["source/a", "source/b"] {
        fs::create_dir(place.at(name)).unwrap();
        fs::write(place.at(name).join("file"), text(5000, 1)).unwrap();
    }
    std::os::unix::fs::symlink("source/a", place.at("link")).unwrap();
    age();
    let run = |sources: &[&str]| {
        let sources: Vec<PathBuf> = sources.iter().map(|name| place.at(name)).collect();
        place.backup_with(&sources, Options::default(), &Progress::default())
    };
    assert_eq!(run(&["source/a", "source/b"]).parent, None);
    for (n, sources) in [
        ["source/b", "source/a"],
        ["source/../source/./a", "source/b/"],
        ["link", "source/b"],
    ]
    .iter()
    .enumerate()
    {
        let report = run(sources);
        assert_eq!((report.files_read, report.stored_bytes), (0, 0));
        assert_eq!(report.parent, Some(n as u32 + 1));
    }
}

/// B13: a tree with other inodes, times of change and device numbers stores nothing but a manifest.
#[test]
fn b13_the_same_tree_on_another_mount_stores_nothing() {
    let place = Place::new("b13");
    let fill = |dir: &Path| {
        let (from, to) = (place.at("original/."), dir.as_os_str());
        assert!(run("cp", &["-a".as_ref(), from.as_os_str(), to]));
    };
    for n in 0..300 {
        let dir = place.at("original").join((n / 20).to_string());
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(n.to_string()), text(3000, n)).unwrap();
    }
    let source = place.source();
    let mut devices = Vec::new();
    for round in 0..2 {
        let disk = Disk::new(&source, &["-t", "tmpfs", "none"]);
        if disk.is_none() && round > 0 {
            // Without root: other inodes at least.
            fs::remove_dir_all(&source).unwrap();
            fs::create_dir(&source).unwrap();
        }
        fill(&source);
        devices.push(source.metadata().unwrap().dev());
        age();
        let report = place.backup();
        if round == 1 {
            assert_eq!(report.files_read, 300);
            assert!(report.stored_bytes < 4096, "{}", report.stored_bytes);
        }
        if disk.is_some() && round == 0 {
            // Another filesystem takes the number if this one is gone.
            std::mem::forget(disk);
        }
    }
    if tuff_testkit::is_root() {
        assert_ne!(devices[0], devices[1]);
        run("umount", &[source.as_os_str()]);
    }
}

/// Large file of zeros that takes a while to read.
fn large(place: &Place) -> File {
    let file = File::create(place.source().join("large")).unwrap();
    file.set_len(64 << 20).unwrap();
    file
}

/// Backs up while `change` is called again and again, from when the large file is being read.
fn while_reading(place: &Place, change: &(dyn Fn() + Sync), is_once: bool) -> Report {
    let (progress, is_done) = (Progress::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                if progress.snapshot().bytes > 1 << 20 {
                    change();
                    if is_once {
                        return;
                    }
                }
                std::thread::yield_now();
            }
        });
        let report = place.backup_with(&[place.source()], Options::default(), &progress);
        is_done.store(true, Ordering::Relaxed);
        report
    })
}

/// B15: a file that changes once while it is read is read again, and saved as it is then.
#[test]
fn b15_a_file_that_changes_once_is_read_again() {
    let place = Place::new("b15-once");
    let file = large(&place);
    let report = while_reading(&place, &|| file.write_all_at(b"new", 0).unwrap(), true);
    assert_eq!(report.left_out, Vec::<String>::new());
    let mut start = [0; 3];
    let restored = File::open(place.restore("r").join("large")).unwrap();
    restored.read_exact_at(&mut start, 0).unwrap();
    assert_eq!(&start, b"new");
}

/// B15: a file that shrinks while it is read is no short file of the snapshot: it is read again, as it is then.
#[test]
fn b15_a_file_that_shrinks_is_read_again() {
    let place = Place::new("b15-shrinks");
    let file = large(&place);
    let report = while_reading(&place, &|| file.set_len(5000).unwrap(), true);
    assert_eq!(report.left_out, Vec::<String>::new());
    assert_eq!(report.bytes, 5000);
    assert_eq!(
        place.restore("r").join("large").metadata().unwrap().len(),
        5000
    );
}

/// B15: a file that changes all the time is left out and named, and counts as changed in the next run.
#[test]
fn b15_a_file_that_keeps_changing_is_left_out_and_named() {
    let place = Place::new("b15-twice");
    fs::write(place.source().join("other"), "text").unwrap();
    let file = large(&place);
    age();
    let report = while_reading(&place, &|| file.write_all_at(b"new", 0).unwrap(), false);
    assert_eq!((report.files, report.left_out.len()), (1, 1));
    let line = &report.left_out[0];
    assert!(
        line.contains("/large\": the file changed while it was read: "),
        "{line}"
    );
    assert!(!place.restore("r").join("large").exists());
    let report = place.backup();
    assert_eq!((report.files, report.files_read), (2, 1));
    assert_eq!(report.left_out, Vec::<String>::new());
}

/// B15, B16: files with errors of the disk are named, each by its own bytes, and read again by the next run.
#[test]
fn b15_read_errors_are_named_and_never_unchanged() {
    let place = Place::new("b15-eio");
    let tree = place.at("tree");
    fs::create_dir(&tree).unwrap();
    for (n, name) in [&b"bad\xfe"[..], b"bad\xff"].iter().enumerate() {
        fs::write(tree.join(OsStr::from_bytes(name)), text(3 << 20, n as u64)).unwrap();
    }
    fs::write(tree.join("good"), "text").unwrap();
    let image = place.at("source.erofs");
    let options = Options::from_settings([("compress", "lz4")]).unwrap();
    let target = Target::Path(image.clone());
    build(
        &[Source::Dir(tree)],
        &options,
        &target,
        &Progress::default(),
    )
    .unwrap();
    // The data of both files are in the middle.
    let len = image.metadata().unwrap().len();
    let damaged = File::options().write(true).open(&image).unwrap();
    damaged
        .write_all_at(&vec![0xff; len as usize / 2], len / 4)
        .unwrap();
    drop(damaged);
    let Some(mount) = Mounted::new(&image, &place.source(), "") else {
        return;
    };
    for name in [b"bad\xfe", b"bad\xff"] {
        let path = mount.path().join(OsStr::from_bytes(name));
        assert_eq!(path.metadata().unwrap().len(), 3 << 20);
        assert!(fs::read(path).is_err());
    }
    for number in 1..3 {
        let report = place.backup();
        assert_eq!((report.number, report.files), (Some(number), 1));
        assert!(report.files_read >= 2, "{}", report.files_read);
        let lines = &report.left_out;
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains(r#"/bad\xfe": cannot read"#), "{lines:?}");
        assert!(lines[1].contains(r#"/bad\xff": cannot read"#), "{lines:?}");
    }
}

/// B17: times that other formats cannot express are kept.
#[test]
fn b17_times_outside_of_calendars_are_kept() {
    let place = Place::new("b17");
    let Some(_disk) = Disk::new(&place.source(), &["-t", "tmpfs", "none"]) else {
        return;
    };
    let times = [
        (-1, 999_999_999),
        (1 << 31, 1),
        (1 << 32, 2),
        (1 << 34, 3),
        (910_692_730_085, 4),
        (i64::MAX, 0),
        (i64::MIN, 0),
    ];
    for (n, (tv_sec, tv_nsec)) in times.into_iter().enumerate() {
        let path = place.source().join(n.to_string());
        fs::write(&path, text(100, n as u64)).unwrap();
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        utimensat(CWD, &path, &times, rustix::fs::AtFlags::empty()).unwrap();
    }
    let report = place.backup();
    assert_eq!(
        (report.files, &report.left_out[..], &report.warnings[..]),
        (7, &[][..], &[][..])
    );
    let time = |path: &Path| {
        let metadata = path.metadata().unwrap();
        (metadata.mtime(), metadata.mtime_nsec())
    };
    // The target is on the same kind of filesystem.
    let Some(_target) = Disk::new(&place.at("r"), &["-t", "tmpfs", "none"]) else {
        return;
    };
    let store = Arc::new(Store::open(&place.store()).unwrap());
    let snapshot = store.snapshot(1).unwrap();
    let image = store.image(&snapshot, &place.at("image"), &Progress::default());
    let options = extract::Options {
        overwrite: true,
        ..extract::Options::default()
    };
    let target = place.at("r");
    extract::extract(&image.unwrap().open().unwrap(), &target, &options, |_| ()).unwrap();
    let source = fs::canonicalize(place.source()).unwrap();
    let restored = target.join(source.strip_prefix("/").unwrap());
    for (n, expected) in times.into_iter().enumerate() {
        let of_source = time(&place.source().join(n.to_string()));
        assert_eq!(of_source, expected, "{n}: the source");
        assert_eq!(time(&restored.join(n.to_string())), expected, "{n}");
    }
}

/// Differences of large trees, most of which both share, are those that were made.
#[test]
fn differences_of_snapshots_are_those_of_their_sources() {
    let place = Place::new("diff");
    for n in 0..4000 {
        let dir = place.source().join((n / 100).to_string());
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(n.to_string()), n.to_string()).unwrap();
    }
    // By a name of a file whose record is far from that of its first name.
    fs::hard_link(place.source().join("0/7"), place.source().join("99")).unwrap();
    let mut random = Rng::new(5);
    place.backup();
    for round in 1..6 {
        let mut expected = std::collections::BTreeMap::new();
        for _ in 0..random.below(8) {
            let n = 100 + random.below(3900);
            let name = format!("{}/{n}", n / 100);
            fs::write(place.source().join(&name), format!("{round}")).unwrap();
            expected.insert(name, '~');
            let name = format!("{}/new-{n}-{round}", n / 100);
            fs::write(place.source().join(&name), "new").unwrap();
            expected.insert(name, '+');
        }
        if round == 3 {
            fs::write(place.source().join("0/7"), "both").unwrap();
            expected.extend(["0/7", "99"].map(|name| (name.to_owned(), '~')));
        }
        place.backup();
        let store = Store::open(&place.store()).unwrap();
        let prefix = fs::canonicalize(place.source()).unwrap();
        let prefix = format!("{}/", prefix.strip_prefix("/").unwrap().display());
        let diff = |a, b| {
            let mut found = std::collections::BTreeMap::new();
            let (a, b) = (store.snapshot(a).unwrap(), store.snapshot(b).unwrap());
            let totals = store.diff(&a, &b, &Progress::default(), &mut |path, change| {
                let path = std::str::from_utf8(path).unwrap();
                let sign = match change {
                    Change::Added(_) => '+',
                    Change::Removed(_) => '-',
                    // Directories in which a file was made.
                    Change::Changed(list) if matches!(list[..], [Difference::Mtime(..)]) => {
                        return Ok(());
                    }
                    Change::Changed(_) => '~',
                };
                found.insert(path.strip_prefix(&prefix).unwrap().to_owned(), sign);
                Ok(())
            });
            let compared = totals.unwrap().compared;
            assert!(expected.is_empty() || compared > 4000, "{compared}");
            found
        };
        assert_eq!(diff(round, round + 1), expected);
        let back = expected.iter().map(|(name, sign)| match sign {
            '+' => (name.clone(), '-'),
            sign => (name.clone(), *sign),
        });
        assert_eq!(diff(round + 1, round), back.collect());
    }
}

/// Caches are left out by their tags, which must be valid, and those of the sources themselves are ignored.
#[test]
fn caches_are_left_out_by_valid_tags() {
    let place = Place::new("caches");
    let signature = "Signature: 8a477f597d28d172789f06886806bc55";
    for (dir, tag) in [
        (".", signature),
        ("cache", &format!("{signature}\n# comment")),
        ("empty", ""),
        ("wrong", "Signature: 8a477f597d28d172789f06886806bc54"),
        ("late", &format!(" {signature}")),
    ] {
        let dir = place.source().join(dir);
        fs::create_dir_all(dir.join("below")).unwrap();
        fs::write(dir.join("CACHEDIR.TAG"), tag).unwrap();
        fs::write(dir.join("below/file"), "text").unwrap();
        fs::write(dir.join("file"), "text").unwrap();
    }
    fs::write(place.at("target"), signature).unwrap();
    fs::create_dir(place.source().join("link")).unwrap();
    std::os::unix::fs::symlink("../../target", place.source().join("link/CACHEDIR.TAG")).unwrap();
    fs::write(place.source().join("link/file"), "text").unwrap();
    let mut options = Options::default();
    options.sources.exclude_caches = true;
    place.backup_with(&[place.source()], options, &Progress::default());
    let restored = place.restore("r");
    for dir in [".", "empty", "wrong", "late"] {
        for file in ["CACHEDIR.TAG", "file", "below/file"] {
            assert!(restored.join(dir).join(file).is_file(), "{dir}/{file}");
        }
    }
    assert!(restored.join("link/file").is_file());
    let names = fs::read_dir(restored.join("cache")).unwrap();
    let names: Vec<_> = names.map(|name| name.unwrap().file_name()).collect();
    assert_eq!(names, ["CACHEDIR.TAG"]);
}
