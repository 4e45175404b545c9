//! Figures of a filesystem: small root, large partition, fio and check.

use super::super::kind;
use super::super::report::{
    CHECK, KERNEL_BOOT, MOUNT, OVERHEAD, RANDOM_READ, RANDOM_WRITE, READ, ROOT_MOUNT, ROOT_START,
    SYNC_WRITE, THREADS_BUSY, THREADS_IDLE, WRITE,
};
use super::fault;
use super::job::{Answer, Fault, Reason, forget, size};
use crate::engines::filesystem::{Place, attach, detach};
use crate::guest::inside::{POINT, Port, disk};
use crate::measure::helper::{self, noise};
use crate::record::{Line, labels};
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
    pub(super) place: Place<'a>,
    pub(super) port: &'a mut Port,
}

impl Test<'_> {
    fn send(&mut self, line: Line) -> Reason<()> {
        let sent = self.port.send(&Answer::Line(line));
        sent.map_err(|e| e.to_string())
    }

    fn figure(&mut self, figure: &Figure, samples: &[u64]) -> Reason<()> {
        for (round, sample) in (1..).zip(samples) {
            let cell = labels([("filesystem", self.place.kind.name())]);
            // Microseconds and KiB/s are exact in this type.
            self.send(Line::sample(cell, round, [(figure.value, *sample as f64)]))?;
        }
        Ok(())
    }

    /// Sends the figure of a part, or the reason why there is none.
    fn part(&mut self, figure: &Figure, sample: Reason<u64>) -> Reason<()> {
        match sample {
            Ok(sample) => self.figure(figure, &[sample]),
            Err(reason) => self.without(figure.title, reason),
        }
    }

    /// Sends the reason why a part has no result.
    fn without(&mut self, part: &str, text: String) -> Reason<()> {
        let cell = labels([("filesystem", self.place.kind.name()), ("part", part)]);
        self.send(Line::failure(cell, text))
    }

    /// Measures everything that exists for the filesystem. The place is the large partition.
    pub(super) fn run(&mut self, root: &str, fill: u64, faults: &[Fault]) -> Reason<()> {
        self.figure(&KERNEL_BOOT, &[uptime()])?;
        let small = Place {
            device: root,
            ..self.place
        };
        if let Err(reason) = self.root(&small) {
            self.without("small root", reason)?;
        }
        if let Err(reason) = self.large(fill) {
            self.without("large partition", reason)?;
        }
        self.faults(faults)
    }

    /// Tests the filesystem with each of the faults.
    pub(super) fn faults(&mut self, faults: &[Fault]) -> Reason<()> {
        for &fault in faults {
            match fault::run(&self.place, fault) {
                Ok(seen) => self.send(seen.sample(self.place.kind.name(), fault))?,
                Err(reason) => self.without(fault.name(), reason)?,
            }
        }
        Ok(())
    }

    /// Measures the small root filesystem.
    fn root(&mut self, place: &Place<'_>) -> Reason<()> {
        if !place.kind.is_image() {
            place.make()?;
            place.mount("")?;
            fs::create_dir_all(SOURCE).map_err(|e| e.to_string())?;
            attach("erofs", &disk(0), SOURCE, "", true)?;
            let all = ["-dR", "/source/.", POINT];
            helper::output("cp", all).map_err(|e| e.to_string())?;
            detach(SOURCE)?;
            place.unmount()?;
        }
        let (mut mounts, mut starts) = (Vec::new(), Vec::new());
        for _ in 0..SAMPLES {
            forget()?;
            let begin = Instant::now();
            place.mount("")?;
            mounts.push(micros(begin));
            let begin = Instant::now();
            let list = [POINT, "/bin/sh", "-c", "ls -lR /usr /lib"];
            helper::output("chroot", list).map_err(|e| e.to_string())?;
            starts.push(micros(begin));
            place.unmount()?;
        }
        self.figure(&ROOT_MOUNT, &mounts)?;
        self.figure(&ROOT_START, &starts)
    }

    /// Measures the large partition. The error is the reason for which the rest is missing.
    fn large(&mut self, fill: u64) -> Reason<()> {
        let place = self.place;
        if !place.kind.is_image() {
            place.make()?;
            place.mount("")?;
            self.part(&OVERHEAD, unusable(place.device))?;
            let filled = fill_directory(Path::new(POINT), fill).map_err(|e| format!("fill: {e}"));
            place.unmount()?;
            filled?;
        }
        let mut mounts = Vec::new();
        for _ in 0..SAMPLES {
            forget()?;
            let begin = Instant::now();
            place.mount("")?;
            mounts.push(micros(begin));
            place.unmount()?;
        }
        self.figure(&MOUNT, &mounts)?;
        place.mount("")?;
        if let Err(reason) = kind::start_cleaner(place.kind, place.device) {
            self.without("cleaner", reason)?;
        }
        self.fio()?;
        kind::stop_cleaner();
        place.unmount()?;
        forget()?;
        let begin = Instant::now();
        match place.check() {
            None => Ok(()),
            Some(checked) => self.part(&CHECK, checked.map(|()| micros(begin))),
        }
    }

    /// Runs fio in the mounted partition.
    fn fio(&mut self) -> Reason<()> {
        let before = threads();
        let file = format!("{POINT}/{BIG}");
        for (figure, how) in [
            (READ, "--rw=read --bs=128k"),
            (RANDOM_READ, "--rw=randread --bs=4k"),
        ] {
            forget()?;
            self.part(&figure, fio(&file, &format!("--readonly {how}"), "read"))?;
        }
        if !self.place.kind.is_image() {
            let file = format!("{POINT}/written");
            for (figure, how) in [
                (WRITE, "--rw=write --bs=128k --fsync=0"),
                (RANDOM_WRITE, "--rw=randwrite --bs=4k --fsync=0"),
                (SYNC_WRITE, "--rw=randwrite --bs=4k --fsync=1"),
            ] {
                self.part(
                    &figure,
                    fio(&file, &format!("--end_fsync=1 {how}"), "write"),
                )?;
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
    let size = size(device)?;
    let free = rustix::fs::statfs(POINT).map_err(|e| e.to_string())?;
    // The types of the fields differ between architectures; neither is negative.
    let free = free.f_bavail as u64 * free.f_bsize as u64;
    Ok(size.saturating_sub(free) * 1_000_000 / size.max(1))
}

/// Writes incompressible files until they have `bytes` bytes together, the file for fio first.
pub(in super::super) fn fill_directory(top: &Path, bytes: u64) -> std::io::Result<()> {
    let mut rng = Rng::new(1);
    let mut big = File::create(top.join(BIG))?;
    big.write_all(&noise(&mut rng, BIG_LENGTH))?;
    let mut left = bytes.saturating_sub(BIG_LENGTH as u64);
    let mut number = 0;
    while left > 0 {
        let length =
            LENGTHS[number % LENGTHS.len()].min(usize::try_from(left).unwrap_or(usize::MAX));
        let directory = top.join(format!("directory{}", number / PER_DIRECTORY));
        if number % PER_DIRECTORY == 0 {
            fs::create_dir(&directory)?;
        }
        fs::write(
            directory.join(format!("file{number}")),
            noise(&mut rng, length),
        )?;
        number += 1;
        left -= length as u64;
    }
    Ok(())
}

/// Runs fio on a file and returns the speed in KiB/s.
fn fio(file: &str, how: &str, direction: &str) -> Reason<u64> {
    let words = format!(
        "--name=job --output-format=json --ioengine=psync --thread --runtime=5 --size={BIG_LENGTH} --randseed=1 {how}"
    );
    let file = format!("--filename={file}");
    let value = helper::json(Path::new("fio"), words.split(' ').chain([&*file]));
    let value = value.map_err(|e| e.to_string())?;
    value["jobs"][0][direction]["bw"]
        .as_u64()
        .ok_or_else(|| "fio reports no speed".to_owned())
}
