//! Full and failing hosts: small filesystems, created as root.

use crate::common::{Mounted, Place, bad, good, tuff};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tuff_testkit::program;

fn run(program: &str, args: &[&str]) -> Option<Output> {
    Command::new(program).args(args).output().ok()
}

/// Small filesystem, mounted on `h` of a place.
struct Host {
    dir: PathBuf,
    fillers: usize,
}

impl Host {
    fn new(place: &Path, kind: &str) -> Option<Self> {
        let (dir, image) = (place.join("h"), place.join("image"));
        let _ = fs::create_dir(&dir);
        let skip = |why: &str| {
            tuff_testkit::skipped(format_args!("a host of {kind}: {why}"));
            None
        };
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            return skip("needs root and /dev/fuse");
        }
        let (at, dir_name) = (image.display().to_string(), dir.display().to_string());
        let mounted = if kind == "tmpfs" {
            run("mount", &["-t", kind, "-o", "size=300M", "none", &dir_name])
        } else {
            File::create(&image).unwrap().set_len(320 << 20).unwrap();
            // Blocks of 1 KiB, the default of ext4 at this size, limit the length of a file too much.
            let blocks: &[&str] = if kind == "ext4" { &["-b", "4096"] } else { &[] };
            let args: Vec<&str> = ["-q"].iter().chain(blocks).copied().chain([&*at]).collect();
            match run(&format!("mkfs.{kind}"), &args) {
                Some(out) if out.status.success() => {}
                _ => return skip("no mkfs for it"),
            }
            run("mount", &["-o", "loop", &at, &dir_name])
        };
        match mounted {
            Some(out) if out.status.success() => Some(Self { dir, fillers: 0 }),
            _ => skip("cannot be mounted"),
        }
    }

    /// Allocates every block, including those reserved for root.
    fn fill(&mut self) {
        let mut len = 64 << 20;
        while len >= 1024 {
            self.fillers += 1;
            let name = self.dir.join(format!("filler{}", self.fillers));
            let filled = File::create(name).is_ok_and(|file| {
                let whole = fallocate(&file, FallocateFlags::empty(), 0, len).is_ok();
                whole && file.sync_all().is_ok()
            });
            if !filled {
                len /= 2;
            }
        }
    }

    fn empty(&self) {
        for n in 1..=self.fillers {
            let _ = fs::remove_file(self.dir.join(format!("filler{n}")));
        }
        let _ = run("sync", &["-f", &self.dir.display().to_string()]);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.dir).output();
    }
}

/// Volume mounted in the background on `m`, unmounted on drop.
struct Background(PathBuf);

impl Background {
    fn new(place: &Path) -> Self {
        let dir = place.join("m");
        let _ = fs::create_dir(&dir);
        good(place, &["mount", "h/v", "m", "--log", "log"]);
        Self(dir)
    }

    fn umount(&self) -> (Option<i32>, String) {
        let mut umount = Command::new(env!("CARGO_BIN_EXE_tuff"));
        let out = program::retry_busy(umount.arg("umount").arg(&self.0));
        let message = String::from_utf8_lossy(&out.stderr).into_owned();
        (out.status.code(), message)
    }

    fn end(self) {
        assert_eq!(self.umount(), (Some(0), String::new()));
    }

    fn put(&self, name: &str, len: usize) -> std::io::Result<()> {
        let path = self.0.join(name);
        fs::write(&path, vec![7; len])?;
        File::open(path)?.sync_all()
    }

    /// Deletes files and syncs their directory.
    fn delete(&self, files: std::ops::Range<usize>) {
        for n in files {
            fs::remove_file(self.0.join(format!("f{n}"))).unwrap();
        }
        File::open(&self.0).unwrap().sync_all().unwrap();
    }

    /// Counts the files, each of which must have its content.
    fn files(&self) -> usize {
        let files = (0..FILES).filter(|n| match fs::read(self.0.join(format!("f{n}"))) {
            Ok(bytes) => {
                assert!(bytes == vec![7; FILE_LEN], "f{n}");
                true
            }
            Err(_) => false,
        });
        files.count()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

const FILES: usize = 40;
const FILE_LEN: usize = 500_000;

fn a_full_host(kind: &str) {
    for form in [&[][..], &["--file"]] {
        let place = Place::new(&format!("full-{kind}-{}", form.len()));
        let dir = &place.0;
        let Some(mut host) = Host::new(dir, kind) else {
            return;
        };
        let create = ["create", "h/v", "-s", "200M"];
        good(dir, &[&create, form].concat());
        let m = Background::new(dir);
        for n in 0..FILES {
            m.put(&format!("f{n}"), FILE_LEN).unwrap();
        }
        host.fill();
        // Some filesystems reserve space for growing files.
        let full = (0..100).find_map(|n| m.put(&format!("more{n}"), FILE_LEN).err());
        assert_eq!(full.and_then(|e| e.raw_os_error()), Some(28));
        host.fill();
        m.delete(0..5);
        assert_eq!(m.files(), FILES - 5);
        host.fill();
        m.delete(5..10);
        m.end();
        // Full while it is not mounted.
        host.fill();
        for verb in ["check", "stat", "export"] {
            good(dir, &[verb, "h/v"]);
        }
        let m = Background::new(dir);
        assert_eq!(m.files(), FILES - 10);
        host.fill();
        m.delete(10..15);
        m.end();
        host.fill();
        let m = Background::new(dir);
        assert_eq!(m.files(), FILES - 15);
        m.end();
        host.empty();
        let m = Background::new(dir);
        m.put("again", 1 << 20).unwrap();
        m.end();
        good(dir, &["check", "--data", "h/v"]);
    }
}

/// Regressions: a volume on a full host could not be mounted, because a file was written to test hole punching. Deletes
/// were lost, because other files took the space released for them. `tuff umount` exited with 0. Space is preallocated
/// ahead of the log heads to prevent this.
#[test]
fn a_volume_lives_on_a_full_tmpfs() {
    a_full_host("tmpfs");
}

#[test]
fn a_volume_lives_on_a_full_ext4() {
    a_full_host("ext4");
}

#[test]
fn a_volume_lives_on_a_full_xfs() {
    a_full_host("xfs");
}

/// Btrfs needs new space to overwrite data: packs could not be written until their files were set to no copy-on-write.
#[test]
fn a_volume_lives_on_a_full_btrfs() {
    a_full_host("btrfs");
}

/// Regression: the end of the space was reported, but what was accepted before could not be written.
#[test]
fn what_write_accepted_is_kept_when_other_programs_fill_the_host() {
    for kind in ["tmpfs", "ext4"] {
        let place = Place::new(&format!("full-others-{kind}"));
        let dir = &place.0;
        let Some(mut host) = Host::new(dir, kind) else {
            continue;
        };
        good(dir, &["create", "h/v", "-s", "1G"]);
        for n in 0..3 {
            let m = Background::new(dir);
            let mut file = File::create(m.0.join("file")).unwrap();
            file.write_all(&pattern(n, 10 << 20)).unwrap();
            host.fill();
            file.sync_all().unwrap();
            drop(file);
            m.end();
            let m = Background::new(dir);
            assert!(fs::read(m.0.join("file")).unwrap() == pattern(n, 10 << 20));
            m.end();
            host.empty();
        }
        good(dir, &["check", "--data", "h/v"]);
    }
}

/// User of a limited file.
const OWNER: u32 = 1234;

/// Content of a file at a position.
fn pattern(start: usize, len: usize) -> Vec<u8> {
    (start..start + len)
        .map(|i| (i / 512 * 7 + i % 251) as u8)
        .collect()
}

/// Writes a file of a user until `write` fails, and syncs it. Returns the number of bytes accepted and the error.
fn fill_file(path: &Path) -> (usize, Option<i32>) {
    let mut file = File::create(path).unwrap();
    chown(path, Some(OWNER), None).unwrap();
    let mut accepted = 0;
    loop {
        match file.write(&pattern(accepted, 64 << 10)) {
            Ok(n) => accepted += n,
            Err(e) => {
                let synced = file.sync_all();
                assert!(
                    synced.is_ok(),
                    "{}: {accepted} bytes: {synced:?}",
                    path.display()
                );
                return (accepted, e.raw_os_error());
            }
        }
    }
}

/// Regression: the remedy that the documents name for mappings, and the promise of `fallocate`. A full volume refused data for
/// blocks that were reserved.
#[test]
fn reserved_space_can_be_written_on_a_full_volume() {
    for more in [&[][..], &["--file"]] {
        let place = Place::new(&format!("full-reserved-{}", more.len()));
        let dir = &place.0;
        good(dir, &[&["create", "r", "-s", "96M"], more].concat());
        let Some(m) = Mounted::of_source(&place, "r", &[]) else {
            return;
        };
        let len = 12 << 20;
        let reserve = |name: &str| {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            let file = options.open(m.0.join(name)).unwrap();
            fallocate(&file, FallocateFlags::empty(), 0, len as u64).map(|()| file)
        };
        for name in ["written", "mapped", "late"] {
            reserve(name).unwrap();
        }
        let (accepted, found) = fill_file(&m.0.join("filler"));
        assert_eq!(found, Some(28), "{accepted} bytes");
        // A reserved range can be reserved again, and no more.
        reserve("written").unwrap();
        reserve("more").unwrap_err();
        let mut file = reserve("written").unwrap();
        for at in (0..len).step_by(64 << 10) {
            file.write_all(&pattern(at, 64 << 10)).unwrap();
        }
        file.sync_all().unwrap();
        // One call is longer than what is promised at once.
        let mut late = reserve("late").unwrap();
        late.write_all(&pattern(7, len)).unwrap();
        late.sync_all().unwrap();
        let python = "import mmap, os, sys\nf = os.open(sys.argv[1], os.O_RDWR)\nm = mmap.mmap(f, 0)\n\
                      d = open(sys.argv[2], 'rb').read()\nm[:] = d\nm.flush()\nos.fsync(f)\n";
        fs::write(dir.join("content"), pattern(3, len)).unwrap();
        let (mapped, content) = (m.0.join("mapped"), dir.join("content"));
        let mut words = vec!["-c", python];
        words.extend([mapped.to_str().unwrap(), content.to_str().unwrap()]);
        let has_python = match run("python3", &words) {
            Some(out) => {
                assert!(out.status.success(), "{out:?}");
                true
            }
            None => {
                tuff_testkit::skipped("a mapping needs python3");
                false
            }
        };
        drop((file, late));
        m.end();
        good(dir, &["check", "--data", "r"]);
        let m = Mounted::of_source(&place, "r", &[]).unwrap();
        let read = |name: &str| fs::read(m.0.join(name)).unwrap();
        assert!(read("written") == pattern(0, len));
        assert!(read("late") == pattern(7, len));
        assert!(!has_python || read("mapped") == pattern(3, len));
        assert!(read("filler") == pattern(0, accepted));
        fs::remove_file(m.0.join("filler")).unwrap();
        m.end();
    }
}

/// Regression: a check found a wrong count of shared blocks in a fork, and both branches used the space of one.
#[test]
fn t3_13_what_the_parent_reserved_is_not_reserved_in_a_fork() {
    let place = Place::new("full-reserved-fork");
    let dir = &place.0;
    good(dir, &["create", "r", "-s", "96M"]);
    let Some(main) = Mounted::of_source(&place, "r", &[]) else {
        return;
    };
    let len = 12 << 20;
    let file = File::create(main.0.join("file")).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, len as u64).unwrap();
    drop(file);
    good(dir, &["fork", "m", "a"]);
    good(dir, &["check", "--branch", "a", "r"]);
    let fork = Mounted::on(&place, "r", "m-a", &["--branch", "a"]).unwrap();
    let (_, found) = fill_file(&fork.0.join("filler"));
    assert_eq!(found, Some(28));
    let write = |m: &Mounted| {
        let mut file = File::options().write(true).open(m.0.join("file")).unwrap();
        let written = file.write_all(&pattern(5, len));
        file.sync_all().unwrap();
        written.map_err(|e| e.raw_os_error())
    };
    assert_eq!(write(&main), Ok(()));
    assert_eq!(write(&fork), Err(Some(28)));
    // Deletes have their reserve.
    fs::remove_file(fork.0.join("filler")).unwrap();
    assert_eq!(write(&fork), Ok(()));
    for mounted in [main, fork] {
        assert!(fs::read(mounted.0.join("file")).unwrap() == pattern(5, len));
        mounted.end();
    }
    for branch in ["main", "a"] {
        good(dir, &["check", "--data", "--branch", branch, "r"]);
    }
}

/// Three branches of one volume fill it, its host, or a quota at the same time, each by a process of its own.
#[test]
fn t3_13_three_branches_keep_what_write_accepted_and_can_delete() {
    let branches = ["main", "a", "b"];
    for (what, size, error) in [
        ("volume", "96M", 28),
        ("host", "2G", 28),
        ("quota", "2G", 122),
    ] {
        let place = Place::new(&format!("full-branches-{what}"));
        let dir = &place.0;
        let Some(_host) = Host::new(dir, "tmpfs") else {
            return;
        };
        good(dir, &["create", "h/v", "-s", size]);
        let first = Mounted::of_source(&place, "h/v", &[]).unwrap();
        fs::write(first.0.join("base"), pattern(0, 8 << 20)).unwrap();
        first.end();
        if what == "quota" {
            good(dir, &["quota", "h/v", "--user", "1234", "--space", "20M"]);
        }
        for name in &branches[1..] {
            good(dir, &["fork", "h/v", name]);
        }
        let mounts = branches.map(|branch| {
            let on = format!("m-{branch}");
            Mounted::on(&place, "h/v", &on, &["--branch", branch]).unwrap()
        });
        let filled: Vec<(usize, Option<i32>)> = std::thread::scope(|scope| {
            let writers = mounts
                .each_ref()
                .map(|m| scope.spawn(|| fill_file(&m.0.join("file"))));
            writers.map(|writer| writer.join().unwrap()).into()
        });
        for (mount, (accepted, found)) in mounts.iter().zip(&filled) {
            assert_eq!(*found, Some(error), "{what}: {accepted} bytes");
            assert!(fs::read(mount.0.join("base")).unwrap() == pattern(0, 8 << 20));
        }
        let all: usize = filled.iter().map(|(accepted, _)| accepted).sum();
        assert!(all > 40 << 20, "{what}: {filled:?}");
        // Deletes need no space that others have taken.
        for mount in &mounts {
            let file = File::options()
                .write(true)
                .open(mount.0.join("base"))
                .unwrap();
            file.set_len(1000).unwrap();
            fs::remove_file(mount.0.join("base")).unwrap();
            File::open(&mount.0).unwrap().sync_all().unwrap();
        }
        for mount in mounts {
            mount.end();
        }
        for (branch, (accepted, _)) in branches.iter().zip(&filled) {
            good(dir, &["check", "--data", "--branch", branch, "h/v"]);
            let mount = Mounted::on(&place, "h/v", "m", &["--branch", branch]).unwrap();
            let stored = fs::read(mount.0.join("file")).unwrap();
            assert!(stored == pattern(0, *accepted), "{what}: {branch}");
            mount.end();
        }
        good(dir, &["branch", "delete", "h/v", "a"]);
        let mount = Mounted::of_source(&place, "h/v", &[]).unwrap();
        fs::write(mount.0.join("again"), pattern(0, 4 << 20)).unwrap();
        mount.end();
        good(dir, &["check", "--data", "h/v"]);
    }
}

#[test]
fn a_read_only_host_gets_a_read_only_mount() {
    let place = Place::new("read-only-host");
    let dir = &place.0;
    let Some(host) = Host::new(dir, "tmpfs") else {
        return;
    };
    good(dir, &["create", "h/v", "-s", "64M"]);
    good(dir, &["import", "h/v", "src"]);
    let at = host.dir.display().to_string();
    let remount = run("mount", &["-o", "remount,ro", &at]);
    assert!(remount.is_some_and(|out| out.status.success()));
    fs::create_dir(dir.join("m")).unwrap();
    let out = tuff(dir, &["mount", "h/v", "m", "--log", "log"]);
    let message = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!((out.status.code(), message.lines().count()), (Some(0), 1));
    assert!(message.contains("mounted for reading only"), "{message}");
    let m = Background(dir.join("m"));
    let want = fs::read(dir.join("src/hello")).unwrap();
    assert!(fs::read(m.0.join("hello")).unwrap() == want);
    let e = fs::write(m.0.join("new"), "x").unwrap_err();
    assert_eq!(e.raw_os_error(), Some(30));
    File::open(m.0.join("hello")).unwrap().sync_all().unwrap();
    m.end();
    for verb in ["check", "stat", "export"] {
        good(dir, &[verb, "h/v"]);
    }
    assert_eq!(bad(dir, &["trim", "h/v"]).0, 5);
    // The same with `--read-only`.
    let rw = run("mount", &["-o", "remount,rw", &at]);
    assert!(rw.is_some_and(|out| out.status.success()));
    good(dir, &["mount", "--read-only", "h/v", "m"]);
    let m = Background(dir.join("m"));
    assert!(fs::write(m.0.join("new"), "x").is_err());
    m.end();
}

/// Regression: exit code 0 from an unmount whose last checkpoint failed.
#[test]
fn an_unmount_reports_a_failed_last_checkpoint() {
    let place = Place::new("umount-fails");
    let Some(m) = Mounted::new(&place) else {
        return;
    };
    // After this the server can write to no file.
    let limited = run("prlimit", &["--fsize=0", "--pid", &m.server().to_string()]);
    if !limited.is_some_and(|out| out.status.success()) {
        tuff_testkit::skipped("no prlimit");
        return;
    }
    let served = Background(m.0.clone());
    let (code, message) = served.umount();
    assert_eq!((code, message.lines().count()), (Some(5), 1), "{message}");
    assert!(message.contains("the last changes are lost"), "{message}");
    good(&place.0, &["check", "v"]);
}
