//! Figures of a filesystem: small root, large partition, fio and check.

use super::super::kind::Kind;
use super::super::report::{
    CHECK, KERNEL_BOOT, MOUNT, OVERHEAD, RANDOM_READ, RANDOM_WRITE, READ, ROOT_MOUNT, ROOT_START,
    SYNC_WRITE, THREADS_BUSY, THREADS_IDLE, WRITE,
};
use super::fault;
use super::job::{Answer, Fault, Reason, forget};
use crate::Result;
use crate::guest::inside::{self, POINT, Port, command, detach, disk};
use crate::record::{Line, Note, Sample, labels};
use crate::report::table::Figure;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tuff_testkit::Rng;

/// Mount point of the image with the files of the small root filesystem.
const SOURCE: &str = "/source";
/// Number of mounts of which each is a sample.
const SAMPLES: u32 = 5;
/// Time without writes over which the CPU time of kernel threads is taken.
const IDLE: Duration = Duration::from_secs(5);
/// Name of the file that fio reads.
const BIG: &str = "big";
/// Length of the file that fio reads, and of each file that fio writes. Unit: bytes.
const BIG_LENGTH: usize = 8 << 20;
/// Lengths of the other files, in turn. Unit: bytes.
const LENGTHS: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Number of files in a directory.
const PER_DIRECTORY: usize = 64;

/// Test of one filesystem.
pub(super) struct Test<'a> {
    pub(super) kind: Kind,
    pub(super) port: &'a mut Port,
}

impl Test<'_> {
    fn figure(&mut self, figure: &Figure, samples: &[u64]) -> Result<()> {
        for (round, sample) in (1..).zip(samples) {
            let line = Line::Sample(Sample {
                cell: labels([("filesystem", self.kind.name())]),
                round,
                // Microseconds and KiB/s are exact in this type.
                values: [(figure.value.to_owned(), *sample as f64)].into(),
            });
            self.port.send(&Answer::Line(line))?;
        }
        Ok(())
    }

    /// Sends the figure of a part, or the reason why there is none.
    fn part(&mut self, figure: &Figure, sample: Reason<u64>) -> Result<()> {
        match sample {
            Ok(sample) => self.figure(figure, &[sample]),
            Err(reason) => self.without(figure.title, reason),
        }
    }

    /// Sends the reason why a part has no result.
    fn without(&mut self, part: &str, text: String) -> Result<()> {
        let cell = labels([("filesystem", self.kind.name()), ("part", part)]);
        let line = Line::Failure(Note { cell, text });
        self.port.send(&Answer::Line(line))
    }

    /// Measures everything that exists for the filesystem.
    pub(super) fn run(&mut self, fill: u64, tuff: &str, faults: &[Fault]) -> Result<()> {
        let kind = self.kind;
        self.figure(&KERNEL_BOOT, &[uptime()])?;
        let (root, large) = match kind.is_flash() {
            true => ("0".to_owned(), "1".to_owned()),
            false => (disk(1), disk(2)),
        };
        if let Err(reason) = self.root(&root) {
            self.without("small root", reason)?;
        }
        if let Err(reason) = self.large(&large, fill, tuff)? {
            self.without("large partition", reason)?;
        }
        self.faults(&large, faults)
    }

    /// Tests the filesystem with each of the faults.
    pub(super) fn faults(&mut self, device: &str, faults: &[Fault]) -> Result<()> {
        let kind = self.kind;
        for &fault in faults {
            match fault::run(kind, device, fault) {
                Ok(seen) => {
                    let line = Line::Sample(seen.sample(kind, fault));
                    self.port.send(&Answer::Line(line))?;
                }
                Err(reason) => self.without(fault.name(), reason)?,
            }
        }
        Ok(())
    }

    /// Measures the small root filesystem.
    fn root(&mut self, device: &str) -> Reason<()> {
        let kind = self.kind;
        if !kind.is_image() {
            kind.format(device)?;
            kind.mount(device, POINT)?;
            fs::create_dir_all(SOURCE).map_err(|e| e.to_string())?;
            inside::attach("erofs", &disk(0), SOURCE, "", true)?;
            copy(Path::new(SOURCE), Path::new(POINT)).map_err(|e| format!("copy the root: {e}"))?;
            detach(SOURCE)?;
            kind.unmount(device, POINT)?;
        }
        let (mut mounts, mut starts) = (Vec::new(), Vec::new());
        for _ in 0..SAMPLES {
            forget()?;
            let begin = Instant::now();
            kind.mount(device, POINT)?;
            mounts.push(micros(begin));
            let begin = Instant::now();
            command(0, &["chroot", POINT, "/bin/sh", "-c", "ls -lR /usr /lib"])?;
            starts.push(micros(begin));
            kind.unmount(device, POINT)?;
        }
        let sent = self.figure(&ROOT_MOUNT, &mounts);
        sent.and_then(|()| self.figure(&ROOT_START, &starts))
            .map_err(|e| e.to_string())
    }

    /// Measures the large partition. The inner error is the reason for which the rest is missing.
    fn large(&mut self, device: &str, fill: u64, tuff: &str) -> Result<Reason<()>> {
        let kind = self.kind;
        if !kind.is_image() {
            let overhead = kind.format(device).and_then(|()| {
                kind.mount(device, POINT)?;
                let share = unusable(device)?;
                let filled =
                    fill_directory(Path::new(POINT), fill).map_err(|e| format!("fill: {e}"));
                let unmounted = kind.unmount(device, POINT);
                filled.and(unmounted).map(|()| share)
            });
            let is_filled = overhead.is_ok();
            self.part(&OVERHEAD, overhead)?;
            if !is_filled {
                return Ok(Err("the partition could not be filled".to_owned()));
            }
        }
        let mut mounts = Vec::new();
        for _ in 0..SAMPLES {
            let mounted = forget().and_then(|()| {
                let begin = Instant::now();
                kind.mount(device, POINT)?;
                mounts.push(micros(begin));
                kind.unmount(device, POINT)
            });
            if mounted.is_err() {
                return Ok(mounted);
            }
        }
        self.figure(&MOUNT, &mounts)?;
        if let Err(reason) = kind.mount(device, POINT) {
            return Ok(Err(reason));
        }
        if let Err(reason) = kind.start_cleaner(device) {
            self.without("cleaner", reason)?;
        }
        self.fio()?;
        kind.stop_cleaner();
        if let Err(reason) = kind.unmount(device, POINT) {
            return Ok(Err(reason));
        }
        let begin = Instant::now();
        match forget().and_then(|()| kind.check(device, tuff).transpose()) {
            Ok(None) => {}
            Ok(Some(())) => self.figure(&CHECK, &[micros(begin)])?,
            Err(reason) => self.part(&CHECK, Err(reason))?,
        }
        Ok(Ok(()))
    }

    /// Runs fio in the mounted partition.
    fn fio(&mut self) -> Result<()> {
        let before = threads();
        let file = format!("{POINT}/{BIG}");
        for (figure, how, block) in [(READ, "read", "128k"), (RANDOM_READ, "randread", "4k")] {
            let speed = forget().and_then(|()| {
                fio(
                    &[
                        "--readonly",
                        "--filename",
                        &file,
                        "--rw",
                        how,
                        "--bs",
                        block,
                    ],
                    "read",
                )
            });
            self.part(&figure, speed)?;
        }
        if !self.kind.is_image() {
            let file = format!("{POINT}/written");
            for (figure, how, block, sync) in [
                (WRITE, "write", "128k", "0"),
                (RANDOM_WRITE, "randwrite", "4k", "0"),
                (SYNC_WRITE, "randwrite", "4k", "1"),
            ] {
                let speed = fio(
                    &[
                        "--end_fsync",
                        "1",
                        "--fsync",
                        sync,
                        "--filename",
                        &file,
                        "--rw",
                        how,
                        "--bs",
                        block,
                    ],
                    "write",
                );
                self.part(&figure, speed)?;
            }
        }
        let busy = threads();
        self.figure(&THREADS_BUSY, &[busy.saturating_sub(before)])?;
        std::thread::sleep(IDLE);
        self.figure(&THREADS_IDLE, &[threads().saturating_sub(busy)])
    }
}

fn micros(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Returns the time since the start of the kernel in microseconds.
fn uptime() -> u64 {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds: f64 = text
        .split(' ')
        .next()
        .and_then(|t| t.parse().ok())
        .unwrap_or(0.0);
    // Positive and far below the limit of the type.
    (seconds * 1e6) as u64
}

/// Returns the CPU time of all kernel threads in microseconds.
fn threads() -> u64 {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let time = |path: PathBuf| {
        // Only kernel threads have an empty command line.
        if !fs::read(path.join("cmdline")).ok()?.is_empty() {
            return None;
        }
        let text = fs::read_to_string(path.join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    entries.filter_map(|entry| time(entry.path())).sum::<u64>() / 1000
}

/// Returns the share of a device that files cannot use, in millionths.
fn unusable(device: &str) -> Reason<u64> {
    let (file, unit) = match device.strip_prefix("/dev/") {
        Some(name) => (format!("/sys/block/{name}/size"), 512),
        None => (format!("/sys/class/mtd/mtd{device}/size"), 1),
    };
    let text = fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))?;
    let size = unit
        * text
            .trim()
            .parse::<u64>()
            .map_err(|e| format!("{file}: {e}"))?;
    let free = rustix::fs::statfs(POINT).map_err(|e| e.to_string())?;
    // The types of the fields differ between architectures; neither is negative.
    let free = free.f_bavail as u64 * free.f_bsize as u64;
    Ok(size.saturating_sub(free) * 1_000_000 / size.max(1))
}

/// Copies a tree of directories, files and symbolic links.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            fs::create_dir(&target)?;
            copy(&entry.path(), &target)?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path())?, &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

/// Writes incompressible files until they have `bytes` bytes together, the file for fio first.
pub(in super::super) fn fill_directory(top: &Path, bytes: u64) -> std::io::Result<()> {
    let mut rng = Rng::new(1);
    let mut content = |length: usize| -> Vec<u8> {
        let words = (0..length.div_ceil(8)).flat_map(|_| rng.draw().to_le_bytes());
        words.take(length).collect()
    };
    let mut big = File::create(top.join(BIG))?;
    big.write_all(&content(BIG_LENGTH))?;
    let mut left = bytes.saturating_sub(BIG_LENGTH as u64);
    let mut number = 0;
    while left > 0 {
        let length =
            LENGTHS[number % LENGTHS.len()].min(usize::try_from(left).unwrap_or(usize::MAX));
        let directory = top.join(format!("directory{}", number / PER_DIRECTORY));
        if number % PER_DIRECTORY == 0 {
            fs::create_dir(&directory)?;
        }
        fs::write(directory.join(format!("file{number}")), content(length))?;
        number += 1;
        left -= length as u64;
    }
    Ok(())
}

/// Runs fio and returns the speed in KiB/s.
fn fio(arguments: &[&str], direction: &str) -> Reason<u64> {
    let size = BIG_LENGTH.to_string();
    let mut words = vec![
        "fio",
        "--name",
        "job",
        "--output-format",
        "json",
        "--ioengine",
        "psync",
        "--thread",
    ];
    words.extend(["--runtime", "5", "--size", &size, "--randseed", "1"]);
    words.extend(arguments);
    let text = command(0, &words)?;
    let from = text.find('{').unwrap_or(0);
    let value: serde_json::Value =
        serde_json::from_str(&text[from..]).map_err(|e| format!("fio: {e}"))?;
    value["jobs"][0][direction]["bw"]
        .as_u64()
        .ok_or_else(|| "fio reports no speed".to_owned())
}
