//! Faults of a mounted volume: data acknowledged by fsync survives a crash, and errors reach the client.

use crate::import::{check, contents, copy_volume, good};
use crate::inject::{Census, Fault, Run, command, is_possible, kill_group, only, options};
use crate::sweep::{Dir, ENDS, faults, interruptions, is_full};
use crate::tree;
use rustix::fs::FlockOperation;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tuff_testkit::program;

/// Timeout of a run.
const HANG: Duration = Duration::from_secs(30);

/// Way in which a mount ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Unmount,
    Kill,
}

/// Results that the client of a mount received.
#[derive(Default)]
struct Client {
    /// Acknowledged files and their contents, by path.
    durable: Vec<(&'static str, Vec<u8>)>,
    errors: Vec<(&'static str, io::Error)>,
}

impl Client {
    /// Performs operations on a mount, and continues after errors.
    fn work(m: &Path) -> Self {
        let mut client = Self::default();
        let bytes = tree::bytes;
        client.put(m, "/new", bytes(200_000, 11));
        client.put(m, "/small", bytes(100, 12));
        client.attempt("append", || {
            let mut file = File::options().append(true).open(m.join("before/kept"))?;
            file.write_all(&bytes(50_000, 13))?;
            file.sync_all()
        });
        let named = client.attempt("mkdir", || {
            fs::create_dir(m.join("dir"))?;
            fs::rename(m.join("before/moves"), m.join("dir/moved"))?;
            fs::remove_file(m.join("before/goes"))?;
            File::open(m)?.sync_all()?;
            File::open(m.join("dir"))?.sync_all()
        });
        if named {
            client.durable.push(("/dir/moved", b"moves".to_vec()));
        }
        client.put(m, "/dir/late", bytes(100_000, 14));
        client.attempt("truncate", || {
            let file = File::options().write(true).open(m.join("before/cut"))?;
            file.set_len(10)?;
            file.sync_all()
        });
        client
    }

    /// Writes a file and syncs it.
    fn put(&mut self, m: &Path, path: &'static str, content: Vec<u8>) {
        let put = || {
            let mut file = File::create_new(m.join(&path[1..]))?;
            file.write_all(&content)?;
            file.sync_all()
        };
        if self.attempt(path, put) {
            self.durable.push((path, content));
        }
    }

    fn attempt(&mut self, what: &'static str, work: impl FnOnce() -> io::Result<()>) -> bool {
        let result = work();
        let is_done = result.is_ok();
        self.errors.extend(result.err().map(|e| (what, e)));
        is_done
    }

    /// Returns true if no operation failed.
    fn saw_no_error(&self) -> bool {
        self.errors.is_empty()
    }

    /// Checks that errors are those of a disk, not of a missing server.
    fn check_errors(&self) -> Result<(), String> {
        let is_known = |e: &io::Error| {
            // EIO, ENOMEM, EROFS, ENOSPC, and ENOENT for files that could not be created.
            matches!(e.raw_os_error(), Some(2 | 5 | 12 | 28 | 30))
        };
        match self.errors.iter().find(|(_, e)| !is_known(e)) {
            Some((what, e)) => Err(format!("{what}: {e}")),
            None => Ok(()),
        }
    }
}

/// Volume with some files, copied for each round.
struct Place {
    dir: Dir,
    /// Files of the volume before and after a round.
    files: BTreeSet<PathBuf>,
}

impl Place {
    /// Creates a volume and counts the calls on its files. Returns None, with a note, if that is not possible.
    fn new(name: &str) -> Option<(Self, Census)> {
        if !is_possible() {
            return None;
        }
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            tuff_testkit::skipped("mounting needs root and /dev/fuse");
            return None;
        }
        let dir = Dir::new(name);
        fs::create_dir_all(dir.path("tree/before")).unwrap();
        fs::create_dir(dir.path("m")).unwrap();
        let file = |name: &str, bytes: &[u8]| {
            fs::write(dir.path("tree/before").join(name), bytes).unwrap();
        };
        file("kept", &tree::bytes(100_000, 10));
        file("cut", &tree::bytes(20_000, 15));
        file("still", &tree::bytes(30_000, 16));
        file("moves", b"moves");
        file("goes", b"goes");
        good(&dir.0, &["create", "old", "-s", "64M", "--zone", "16M"]);
        good(&dir.0, &["import", "old", "tree"]);
        let files = BTreeSet::new();
        let mut place = Self { dir, files };
        copy_volume(&place.dir.0, "old");
        place.note_files();
        // The first round creates the files whose calls the second one counts.
        for _ in 0..2 {
            let (_, verdict) = place.round(None, End::Unmount);
            assert_eq!(verdict, Ok(()));
            place.note_files();
        }
        let census = Census::of_files(&place.dir.0);
        Some((place, census))
    }

    fn note_files(&mut self) {
        let v = self.dir.path("v");
        self.files.extend([v.join("volume"), v.join("zones")]);
        let zones = fs::read_dir(v.join("zones")).unwrap();
        self.files.extend(zones.map(|entry| entry.unwrap().path()));
    }

    /// Serves `v` on `m`, and logs only calls on the files of the volume.
    fn start(&self, options: &[String]) -> Child {
        let v = self.dir.path("v").display().to_string();
        let options = [only(&self.files), options.to_vec()].concat();
        let message = File::create(self.dir.path("said")).unwrap();
        let args = [
            "volume",
            "mount",
            "-f",
            "--threads",
            "1",
            "--transport",
            "dev",
            "--keep-awake",
            "off",
            "--log",
            "log",
            &v,
            "m",
        ];
        command(&self.dir.0, &options, &args)
            .stdout(Stdio::null())
            .stderr(message)
            .spawn()
            .unwrap()
    }

    fn is_mounted(&self) -> bool {
        let m = self.dir.path("m").display().to_string();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts
            .lines()
            .any(|line| line.split(' ').nth(4) == Some(&m))
    }

    /// Runs the client on a mount with a fault, ends the mount, and checks the volume.
    fn round(&self, fault: Option<&Fault>, end: End) -> (Option<Run>, Result<(), String>) {
        copy_volume(&self.dir.0, "old");
        let mut server = self.start(&fault.map_or_else(Vec::new, options));
        let client = self.served(&mut server);
        let had_end = server.try_wait().unwrap().is_some();
        let unmounted = match end {
            End::Unmount if client.is_ok() && !had_end => self.unmount(),
            _ => Ok(()),
        };
        let run = if end == End::Unmount && unmounted.is_ok() && client.is_ok() || had_end {
            Some(Run::after(&self.dir.0, server))
        } else {
            kill_group(&mut server);
            self.wait_until_free();
            None
        };
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.dir.path("m"))
            .stderr(Stdio::null())
            .status();
        // An interrupted call is retried.
        let may_fail = fault.is_some_and(|fault| fault.error != "EINTR");
        let verdict = client.and_then(|client| {
            unmounted?;
            // A server that ends early has no client.
            if let (true, Some(client)) = (had_end, &client) {
                return Err(format!(
                    "the server ended, of {} errors",
                    client.errors.len()
                ));
            }
            let client = client.unwrap_or_default();
            client.check_errors()?;
            if let Some(run) = &run {
                run.check_manners(&[5], false)?;
                let is_flawless = run.succeeded() && client.saw_no_error();
                if !(may_fail || is_flawless) {
                    return Err(format!("failed: {} {:?}", run.stderr, client.errors));
                }
            }
            self.check_content(&client)?;
            check(&self.dir.0)?;
            self.check_content(&client)
        });
        (run, verdict)
    }

    /// Waits for the end of a killed server, which is a child of `strace`.
    fn wait_until_free(&self) {
        let file = File::open(self.dir.path("v/volume")).unwrap();
        let start = Instant::now();
        while rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            assert!(start.elapsed() < HANG, "a killed server does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        // A child that another test starts meanwhile has the open file until it runs its program.
        rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
    }

    /// Runs the client once the mount is ready. Returns None if the server ends first.
    fn served(&self, server: &mut Child) -> Result<Option<Client>, String> {
        let start = Instant::now();
        while !self.is_mounted() {
            if server.try_wait().unwrap().is_some() {
                return Ok(None);
            }
            if start.elapsed() > HANG {
                return Err("neither mounts nor ends".to_owned());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let (done, is_done) = mpsc::channel();
        let m = self.dir.path("m");
        std::thread::spawn(move || done.send(Client::work(&m)));
        let client = is_done.recv_timeout(HANG);
        client.map(Some).map_err(|_| "the client hangs".to_owned())
    }

    fn unmount(&self) -> Result<(), String> {
        let out = program::retry_busy(Command::new("umount").arg(self.dir.path("m")));
        match out.status.success() {
            true => Ok(()),
            false => Err(format!("umount: {}", String::from_utf8_lossy(&out.stderr))),
        }
    }

    /// Compares acknowledged and unchanged data with the volume.
    fn check_content(&self, client: &Client) -> Result<(), String> {
        let found = contents(&self.dir.0)?;
        let content = |path: &str| found.get(path).map(|entry| &entry.content[..]);
        for (path, expected) in &client.durable {
            match content(path) {
                Some(found) if found == expected => {}
                Some(_) => return Err(format!("{path} was durable and has other content")),
                None => return Err(format!("{path} was durable and is gone")),
            }
        }
        if content("/before/still") != Some(&tree::bytes(30_000, 16)) {
            return Err("/before/still changed".to_owned());
        }
        let kept = tree::bytes(100_000, 10);
        if !content("/before/kept").is_some_and(|found| found.starts_with(&kept)) {
            return Err("/before/kept lost what it had".to_owned());
        }
        let cut = tree::bytes(20_000, 15);
        let is_cut = |found: &[u8]| found == cut || found == &cut[..10];
        if !content("/before/cut").is_some_and(is_cut) {
            return Err("/before/cut is neither as before nor as asked for".to_owned());
        }
        let moved = ["/before/moves", "/dir/moved"].map(|path| content(path) == Some(b"moves"));
        match moved.contains(&true) {
            true => Ok(()),
            false => Err("what was moved has no name".to_owned()),
        }
    }
}

#[test]
fn a_mounted_volume_keeps_acknowledged_data() {
    if let Some((place, census)) = Place::new("mounted") {
        run_all(&place, &faults(&census, (ENDS, 4)));
    }
}

#[test]
fn a_mounted_volume_retries_interrupted_calls() {
    if let Some((place, census)) = Place::new("interrupted") {
        run_all(&place, &interruptions(&census, (ENDS, 4)));
    }
}

fn run_all(place: &Place, faults: &[Fault]) {
    let start = Instant::now();
    let (mut wrong, mut rounds) = (Vec::new(), 0);
    for (i, fault) in faults.iter().enumerate() {
        let ends: &[End] = match (is_full(), i % 2) {
            (true, _) => &[End::Unmount, End::Kill],
            (false, 0) => &[End::Unmount],
            (false, _) => &[End::Kill],
        };
        for end in ends {
            rounds += 1;
            let (run, verdict) = place.round(Some(fault), *end);
            if let Err(what) = verdict {
                let calls = run.map_or_else(Vec::new, |run| run.injected);
                wrong.push(format!(
                    "{fault}, {end:?}: {what}\n    {}",
                    calls.join("\n    ")
                ));
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let summary = format!("{rounds} rounds, {} wrong, in {seconds:.1} s", wrong.len());
    println!("mounted volume: {summary}");
    assert!(wrong.is_empty(), "{summary}\n{}", wrong.join("\n"));
}
