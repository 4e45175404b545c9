//! One sample: a first start out of nothing, then all files, a second start, and one without the registry.

use super::definition::{Cell, Image};
use super::origin::Mounter;
use super::registry::{Registry, exchange};
use crate::campaigns::serve::server::used_by;
use crate::campaigns::start::rooted::Rooted;
use crate::measure::link::{Link, Traffic};
use crate::measure::stop;
use crate::{At, Error, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of a start.
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// Smallest rate for which all files are read, in Mbit/s.
const READ_ALL_MBIT: u32 = 100;

/// Values of a sample.
pub(super) type Values = BTreeMap<String, f64>;

/// Mounters of a way, one for each mount at once, and what they are measured with.
pub(super) struct Bench<'a> {
    pub(super) cell: &'a Cell,
    pub(super) registry: &'a Registry,
    pub(super) mounters: Vec<Box<dyn Mounter>>,
    /// Folder of the mounters' folders.
    pub(super) folder: &'a Path,
}

/// Values of a sample, the digest of all files if they were read, and the reason why the image did not start without the registry.
pub(super) struct Sampled {
    pub(super) values: Values,
    pub(super) content: Option<String>,
    pub(super) offline: Option<String>,
}

impl Bench<'_> {
    /// Takes a sample. `is_whole` adds everything after the first start.
    pub(super) fn sample(mut self, link: Link, is_whole: bool) -> Result<Sampled> {
        for mounter in &mut self.mounters {
            mounter.prepare()?;
        }
        let before = self.used();
        let count_before = self.registry.request_count();
        link.take();
        let begin = Instant::now();
        let mut starts = self.start_all(begin)?;
        let mut values = Values::new();
        let mut put = |name: &str, value: f64| _ = values.insert(name.to_owned(), value);
        starts.sort_by_key(|start| start.answer_time);
        let last = starts
            .last()
            .ok_or_else(|| Error::Usage("a cell has at least one mount".to_owned()))?;
        put("start_ms", millis(last.answer_time));
        put("mount_ms", millis(last.mounted));
        if starts.len() > 1 {
            put("median_ms", millis(starts[starts.len() / 2].answer_time));
        }
        let passed = link.traffic();
        put("sent_bytes", passed.down_bytes as f64);
        put("connections", passed.connections as f64);
        put("requests", self.requests(&passed, count_before));
        if self.cell.requests_per_second.is_some() {
            put("refused", passed.refused as f64);
        }
        self.put_used(&before, &mut values);
        let mut sampled = Sampled {
            values,
            content: None,
            offline: None,
        };
        if is_whole && self.mounters.len() == 1 {
            self.rest(link, &starts[0].root, &before, &mut sampled)?;
        }
        Ok(sampled)
    }

    /// Starts the program out of all mounts at once.
    fn start_all(&mut self, begin: Instant) -> Result<Vec<Start>> {
        let (image, folder) = (&self.cell.image, self.folder);
        if let [mounter] = &mut self.mounters[..] {
            return Ok(vec![start(&mut **mounter, image, folder, begin)?]);
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .mounters
                .iter_mut()
                .enumerate()
                .map(|(number, mounter)| {
                    let folder = folder.join(format!("root{number}"));
                    scope.spawn(move || start(&mut **mounter, image, &folder, begin))
                })
                .collect();
            let ended = |thread: std::thread::ScopedJoinHandle<'_, Result<Start>>| {
                let failed = || Error::Command("a start failed".to_owned());
                thread.join().map_err(|_| failed())?
            };
            threads.into_iter().map(ended).collect()
        })
    }

    /// Reads all files, starts a second time, and then without the registry.
    fn rest(
        &mut self,
        link: Link,
        root: &Path,
        before: &Values,
        sampled: &mut Sampled,
    ) -> Result<()> {
        let values = &mut sampled.values;
        let mut put = |name: &str, value: f64| _ = values.insert(name.to_owned(), value);
        if self.cell.mbit >= READ_ALL_MBIT {
            stop::check()?;
            let begin = Instant::now();
            sampled.content = Some(read_all(root)?);
            put("all_ms", millis(begin.elapsed()));
            put("all_bytes", link.traffic().down_bytes as f64);
            let used = self.used();
            let cpu = |values: &Values| values.get("daemon_cpu_us").copied().unwrap_or(0.0);
            put("all_cpu_us", cpu(&used) - cpu(before));
        }
        stop::check()?;
        let (image, folder) = (&self.cell.image, self.folder);
        let mounter = &mut *self.mounters[0];
        mounter.unmount();
        drop_caches()?;
        link.take();
        let count_before = self.registry.request_count();
        let second = again(mounter, image, folder)?;
        put("second_ms", millis(second));
        let passed = link.traffic();
        put(
            "second_requests",
            requests(self.cell, self.registry, &passed, count_before),
        );
        mounter.unmount();
        drop_caches()?;
        drop(link);
        match again(mounter, image, folder) {
            Ok(time) => put("offline_ms", millis(time)),
            Err(Error::Command(reason)) => sampled.offline = Some(reason),
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Returns the CPU time of all daemons, and the peak memory of those that serve.
    fn used(&self) -> Values {
        let mut sum = Values::new();
        for mounter in &self.mounters {
            let processes = mounter.processes();
            let used: Vec<Values> = processes.iter().map(|id| used_by(*id)).collect();
            for (number, values) in used.iter().enumerate() {
                for (name, value) in values {
                    if name == "daemon_cpu_us" || number + 1 == used.len() {
                        *sum.entry(name.clone()).or_default() += value;
                    }
                }
            }
        }
        sum
    }

    fn put_used(&self, before: &Values, values: &mut Values) {
        for (name, value) in self.used() {
            let earlier = before.get(&name).filter(|_| name == "daemon_cpu_us");
            values.insert(name, value - earlier.unwrap_or(&0.0));
        }
    }

    fn requests(&self, passed: &Traffic, count_before: u64) -> f64 {
        requests(self.cell, self.registry, passed, count_before)
    }
}

/// Returns the number of requests: those of the link, or with TLS those that the registry answered.
fn requests(cell: &Cell, registry: &Registry, passed: &Traffic, count_before: u64) -> f64 {
    match cell.tls {
        true => (registry.request_count() - count_before) as f64,
        false => passed.requests as f64,
    }
}

/// Times of a start, from its beginning.
struct Start {
    root: PathBuf,
    mounted: Duration,
    answer_time: Duration,
}

/// Mounts an image, and runs its program.
fn start(mounter: &mut dyn Mounter, image: &Image, folder: &Path, begin: Instant) -> Result<Start> {
    let root = mounter.start()?;
    let mounted = begin.elapsed();
    let answer_time = run(image, &root, folder)?.duration_since(begin);
    Ok(Start {
        root,
        mounted,
        answer_time,
    })
}

/// Mounts an image again, and runs its program. Returns the time of both.
fn again(mounter: &mut dyn Mounter, image: &Image, folder: &Path) -> Result<Duration> {
    let begin = Instant::now();
    let root = mounter.again()?;
    Ok(run(image, &root, folder)?.duration_since(begin))
}

/// Runs the program of an image out of a mounted tree. Returns the time of its answer: the end of a program that prints 1, or the
/// first answer of a server.
fn run(image: &Image, root: &Path, folder: &Path) -> Result<Instant> {
    let rooted = Rooted::to_prepare(root, &folder.join("root"))?;
    let mut command = Command::new("chroot");
    command.arg(rooted.point()).args(&image.command);
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let Some(port) = image.port else {
        let output = crate::measure::helper::finish(&mut command, TIME_LIMIT, |_| None, |_| ());
        let output = output.at("run", Path::new("chroot"))?;
        let answer_time = Instant::now();
        return match output.is_success() && output.output == b"1\n" {
            true => Ok(answer_time),
            false => Err(Error::Command(format!(
                "the program fails: {}",
                output.message()
            ))),
        };
    };
    let child = command.stdout(Stdio::null()).spawn();
    let mut child = child.at("run", Path::new("chroot"))?;
    let answer_time = first_answer(port, || {
        child.try_wait().is_ok_and(|status| status.is_none())
    });
    let _ = child.kill();
    let _ = child.wait();
    answer_time
}

/// Waits for the first answer of a server that lives.
fn first_answer(port: u16, mut is_alive: impl FnMut() -> bool) -> Result<Instant> {
    let end = Instant::now() + TIME_LIMIT;
    while is_alive() && Instant::now() < end {
        stop::check()?;
        if let Ok(stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            let request = "GET / HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n";
            let (status, _) = exchange(&mut BufReader::new(stream), request)
                .map_err(|e| Error::Command(format!("the server does not answer: {e}")))?;
            return match status.as_str() {
                "200" => Ok(Instant::now()),
                _ => Err(Error::Command(format!("the server answers with {status}"))),
            };
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Err(Error::Command(
        "the server ended before it answered".to_owned(),
    ))
}

/// Reads all files of a tree in the order of their paths. Returns a digest of their content.
fn read_all(root: &Path) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut paths = vec![root.to_owned()];
    while let Some(path) = paths.pop() {
        let kind = std::fs::symlink_metadata(&path)
            .at("stat", &path)?
            .file_type();
        if kind.is_dir() {
            let listing = std::fs::read_dir(&path).at("list", &path)?;
            let listing: std::io::Result<Vec<_>> = listing.collect();
            let mut listing = listing.at("list", &path)?;
            listing.sort_by_key(std::fs::DirEntry::file_name);
            paths.extend(listing.iter().rev().map(std::fs::DirEntry::path));
        } else if kind.is_file() {
            let file = File::open(&path).at("open", &path)?;
            hasher.update_reader(file).at("read", &path)?;
        }
    }
    Ok(hasher.finalize().to_hex()[..16].to_owned())
}

/// Drops the kernel's caches.
pub(super) fn drop_caches() -> Result<()> {
    const DROP: &str = "/proc/sys/vm/drop_caches";
    rustix::fs::sync();
    std::fs::write(DROP, "3\n").at("write", Path::new(DROP))
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
