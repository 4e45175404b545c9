//! Measurement of one program in one cell.

use super::days::{self, Days};
use super::definition::{Cache, Definition, Kind, Server, Shape, Step, Way};
use super::program::{Backup, Call};
use crate::campaigns::serve::server::used_by;
use crate::measure::cgroup::{self, Group};
use crate::measure::process::{Place, unmount_all};
use crate::measure::{Usage, stop, workspace};
use crate::verify::tree::{Facet, Tree};
use crate::verify::{self, OTHERS};
use crate::{At, Error, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tuff_testkit::Rng;

/// Time limit of a mount until its first byte.
const MOUNT_LIMIT: Duration = Duration::from_secs(2 * 3600);
/// Time after which a file is there if the client that mounts has ended.
const CLIENT_LIMIT: Duration = Duration::from_secs(60);
/// Number of times that the memory of a control group is doubled.
const DOUBLINGS: u32 = 6;

/// Values of a sample, and notes about the way.
#[derive(Default)]
pub(super) struct Sampled {
    pub(super) values: BTreeMap<String, f64>,
    pub(super) notes: Vec<String>,
}

impl Sampled {
    fn put(&mut self, name: &str, value: f64) {
        self.values.insert(name.to_owned(), value);
    }

    /// Adds the resources of commands that ran one after the other.
    fn put_usage(&mut self, usages: &[Usage]) {
        let sum = |of: fn(&Usage) -> u64| usages.iter().map(of).sum::<u64>() as f64;
        self.put("wall_ms", sum(|u| u.wall_ns) / 1e6);
        self.put("cpu_ms", sum(|u| u.user_us + u.system_us) / 1e3);
        let peak = usages.iter().map(|u| u.max_rss_bytes).max();
        self.put("peak_bytes", peak.unwrap_or(0) as f64);
        let foreign = sum(|u| u.foreign_us) / 1e3;
        self.put("foreign_ms", foreign);
    }

    /// Measures commands of a program that run one after the other, and what they exchange with a bucket.
    fn measure(&mut self, backup: &Backup, calls: &[Call]) -> Result<()> {
        backup.take_traffic();
        self.put_usage(&measure(calls)?);
        if let Some(traffic) = backup.take_traffic() {
            let (sent, received) = (traffic.up_bytes as f64, traffic.down_bytes as f64);
            self.put("requests", traffic.requests as f64);
            self.put("sent_bytes", sent);
            self.put("received_bytes", received);
            self.put("traffic_bytes", sent + received);
        }
        Ok(())
    }

    fn put_size(&mut self, backup: &Backup) -> Result<()> {
        let (length, disk) = backup.size()?;
        self.put("store_bytes", length as f64);
        self.put("disk_bytes", disk as f64);
        Ok(())
    }
}

/// Context of all cells of a run.
pub(super) struct Bench<'a> {
    pub(super) definition: &'a Definition,
    pub(super) place: &'a Place,
    pub(super) tuff: &'a Path,
    pub(super) days: &'a Days,
    pub(super) day_count: u32,
    /// Folder of stores, and of the lists of trees.
    pub(super) state: PathBuf,
    /// Folder for copies and restored trees.
    pub(super) scratch: PathBuf,
    /// Folder of the trees of many files.
    pub(super) files: PathBuf,
}

impl Bench<'_> {
    /// Returns the program of a way, with its store of all days.
    pub(super) fn program(&self, way: &Way) -> Option<Backup> {
        let stores = match way.is_in_bucket {
            true => "buckets",
            false => "stores",
        };
        let home = self.state.join(stores).join(&way.name);
        Backup::new(way, self.place, self.tuff, home, self.days.tree())
    }

    fn needed(&self, way: &Way) -> Result<Backup> {
        self.program(way)
            .ok_or_else(|| Error::Usage("benchmarks/store could not get the program".to_owned()))
    }

    /// Returns the program of a way, whose store exists and is served if it is in a bucket.
    fn opened(&self, way: &Way) -> Result<Backup> {
        let mut backup = self.needed(way)?;
        if way.is_in_bucket {
            backup.open()?;
        }
        Ok(backup)
    }

    /// Measures the first backup into a new store.
    pub(super) fn level(&self, way: &Way) -> Result<Sampled> {
        let home = self.scratch.join("level");
        let tree = self.days.tree();
        let mut backup = Backup::new(way, self.place, self.tuff, home, tree)
            .ok_or_else(|| Error::Usage("benchmarks/store could not get the program".to_owned()))?;
        backup.create()?;
        let mut sampled = Sampled::default();
        warm(&self.days.tree())?;
        sampled.put_usage(&measure(&backup.backup(0))?);
        sampled.put_size(&backup)?;
        workspace::remove(backup.home())?;
        Ok(sampled)
    }

    /// Measures the backup of a day, and compares it with the tree if the day is one of those that are verified.
    pub(super) fn day(&self, way: &Way, day: u32) -> Result<Sampled> {
        let mut backup = self.needed(way)?;
        let generation = backup.home().join("generation");
        if day == 0 {
            backup.create()?;
            let number = self.days.generation().to_string();
            std::fs::write(&generation, number).at("write", &generation)?;
        } else {
            backup = self.opened(way)?;
        }
        self.is_same_tree(&backup)?;
        warm(&self.days.tree())?;
        let mut sampled = Sampled::default();
        sampled.measure(&backup, &backup.backup(day))?;
        sampled.put_size(&backup)?;
        if self.is_verified(way, day) {
            let source = self.source(day)?;
            let target = self.target()?;
            let kept = self.restored_from(backup)?;
            kept.restore(&kept.newest()?, &target, None).run()?;
            let what = format!("day {day}");
            sampled.notes = compared(way, &what, &source, &kept.below(&target))?;
            workspace::remove(&target)?;
            workspace::remove(&self.copy())?;
        }
        Ok(sampled)
    }

    /// Fails if the tree was made anew since the store has backups of it: inodes and times of all files are others.
    fn is_same_tree(&self, backup: &Backup) -> Result<()> {
        let path = backup.home().join("generation");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        match text == self.days.generation().to_string() {
            true => Ok(()),
            false => Err(Error::Usage(format!(
                "the tree was made anew since the first backup; remove {} to begin again",
                self.state.display()
            ))),
        }
    }

    fn is_verified(&self, way: &Way, day: u32) -> bool {
        day == way.last_day(self.day_count) || self.definition.verified.contains(&day)
    }

    /// Returns the list of the tree of a day, which is kept once it was read.
    fn source(&self, day: u32) -> Result<Tree> {
        let path = self.state.join(format!("source-{day:02}.json"));
        if let Ok(file) = File::open(&path) {
            let tree = serde_json::from_reader(std::io::BufReader::new(file));
            return tree.map_err(|e| Error::Corrupt(format!("{}: {e}", path.display())));
        }
        if self.days.day() != Some(day) {
            return Err(Error::Usage(format!(
                "the tree differs from that of day {day}"
            )));
        }
        let tree = Tree::read(&self.days.tree())?;
        let new = path.with_extension("new");
        let file = File::create(&new).at("create", &new)?;
        serde_json::to_writer(std::io::BufWriter::new(file), &tree)
            .map_err(|e| Error::io("write", &new, e.into()))?;
        std::fs::rename(&new, &path).at("rename", &new)?;
        Ok(tree)
    }

    /// Returns an empty folder.
    fn target(&self) -> Result<PathBuf> {
        let target = self.scratch.join("restored");
        workspace::remove(&target)?;
        std::fs::create_dir_all(&target).at("create", &target)?;
        Ok(target)
    }

    /// Returns the folder for the copy of a store.
    fn copy(&self) -> PathBuf {
        self.scratch.join("copy")
    }

    fn copied(&self, way: &Way) -> Result<Backup> {
        self.opened(way)?.copied(&self.copy())
    }

    /// Returns the program from which a snapshot is restored: with a copy of a store in a bucket, because restored content stays in caches.
    fn restored_from(&self, backup: Backup) -> Result<Backup> {
        match backup.take_traffic() {
            Some(_) => backup.copied(&self.copy()),
            None => Ok(backup),
        }
    }

    /// Measures a backup of the tree that the newest snapshot has.
    pub(super) fn unchanged(&self, way: &Way, cache: Cache, round: u32) -> Result<Sampled> {
        self.is_same_tree(&self.needed(way)?)?;
        let backup = self.copied(way)?;
        if way.is_in_bucket {
            // The first one after a copy reads what the copied cache has lost.
            for call in backup.backup(2 * self.day_count + round) {
                call.run()?;
            }
        }
        let (_, before) = backup.size()?;
        match cache {
            Cache::Warm => warm(&self.days.tree())?,
            Cache::Cold => workspace::forget_caches(backup.program())?,
        }
        let mut sampled = Sampled::default();
        sampled.measure(&backup, &backup.backup(self.day_count + round))?;
        let (_, after) = backup.size()?;
        sampled.put("added_bytes", after as f64 - before as f64);
        workspace::remove(backup.home())?;
        Ok(sampled)
    }

    /// Measures the restore of the newest snapshot or of a file of it, from a cold cache, and compares the result.
    pub(super) fn restore(&self, way: &Way, file: Option<&Path>) -> Result<Sampled> {
        let backup = self.restored_from(self.opened(way)?)?;
        let day = way.last_day(self.day_count);
        let source = self.source(day)?;
        let newest = backup.newest()?;
        let target = self.target()?;
        if let (Some(file), Kind::Kopia) = (file, way.kind) {
            // It creates no parents.
            let parent = target.join(file.parent().unwrap_or(file));
            std::fs::create_dir_all(&parent).at("create", &parent)?;
        }
        let call = backup.restore(&newest, &target, file);
        workspace::forget_caches(backup.program())?;
        let mut sampled = Sampled::default();
        sampled.measure(&backup, &[call])?;
        let root = backup.below(&target);
        match file {
            Some(file) => is_equal(&source, file, &root)?,
            None => sampled.notes = compared(way, "restore", &source, &root)?,
        }
        workspace::remove(&target)?;
        workspace::remove(&self.copy())?;
        Ok(sampled)
    }

    /// Measures the time from the start of a mount to the first byte of a file, from a cold cache.
    pub(super) fn mount(&self, way: &Way, server: Server) -> Result<Sampled> {
        let backup = self.needed(way)?;
        let source = self.source(way.last_day(self.day_count))?;
        let point = self.scratch.join("mount");
        let newest = backup.newest()?;
        let call = match server {
            Server::Fuse => backup.mount(&newest, &point),
            Server::Kernel => backup.mount_by_kernel(&point).ok_or_else(|| {
                Error::Command("the program has no mount by the kernel".to_owned())
            })?,
        };
        workspace::forget_caches(backup.program())?;
        let root = backup.mounted(&point);
        let mut mounted = Mounted::start(&call, &point, &root.join(days::FILE))?;
        is_equal(&source, Path::new(days::FILE), &root)?;
        Ok(mounted.sampled())
    }

    /// Measures a check that reads all content.
    pub(super) fn check(&self, way: &Way) -> Result<Sampled> {
        let backup = self.needed(way)?;
        backup.forget_content()?;
        workspace::forget_caches(backup.program())?;
        let mut sampled = Sampled::default();
        sampled.put_usage(&measure(&[backup.check()])?);
        sampled.put_size(&backup)?;
        Ok(sampled)
    }

    /// Damages the longest file of a store. Measures the check that has to find it, and the repair, and counts the files of the newest
    /// snapshot that are not restored thereafter.
    pub(super) fn repair(&self, way: &Way) -> Result<Sampled> {
        let backup = self.copied(way)?;
        let source = self.source(way.last_day(self.day_count))?;
        let newest = backup.newest()?;
        let longest = backup.longest()?;
        let damaged = self.scratch.join("damaged");
        verify::damage(&longest, &damaged).at("damage", &longest)?;
        // The file keeps its inode.
        std::fs::copy(&damaged, &longest).at("write", &longest)?;
        workspace::remove(&damaged)?;
        backup.forget_content()?;
        let found = backup.check().sample()?;
        if found.usage.exit == Some(0) {
            return Err(Error::Command(
                "the check does not find the damage".to_owned(),
            ));
        }
        let mut sampled = Sampled::default();
        sampled.put("found_ms", found.usage.wall_ns as f64 / 1e6);
        let newest = match backup.repair(&longest) {
            Some(calls) => {
                sampled.put_usage(&measure(&calls)?);
                // A snapshot that was repaired has another name.
                backup.newest()?
            }
            None => {
                sampled.notes.push("has no repair".to_owned());
                newest
            }
        };
        let target = self.target()?;
        // Its exit code tells that something is lost.
        let restored = backup.salvage(&newest, &target).sample()?;
        let lost = match backup.below(&target) {
            root if root.exists() => {
                let root = Tree::read(&root)?;
                let lost = source.differences(&root).into_iter();
                let lost = lost.filter(|d| matches!(d.facet, Facet::Names | Facet::Bytes));
                lost.map(|d| d.count).sum()
            }
            _ => source.size.entries,
        };
        sampled.put("lost_files", lost as f64);
        if lost > 0 && restored.usage.exit == Some(0) {
            sampled
                .notes
                .push("restores without an error what is incomplete".to_owned());
        }
        workspace::remove(&target)?;
        workspace::remove(backup.home())?;
        Ok(sampled)
    }

    /// Measures the removal of two thirds of the snapshots. The newest one has to be restored thereafter.
    pub(super) fn prune(&self, way: &Way, round: u32) -> Result<Sampled> {
        let backup = self.copied(way)?;
        let count = way.last_day(self.day_count) + 1;
        let calls = backup.prune((count / 3).max(1));
        let calls =
            calls.ok_or_else(|| Error::Command("the program removes no snapshots".to_owned()))?;
        let (_, before) = backup.size()?;
        let mut sampled = Sampled::default();
        sampled.measure(&backup, &calls)?;
        sampled.put_size(&backup)?;
        let (_, after) = backup.size()?;
        sampled.put("freed_bytes", before as f64 - after as f64);
        if round == 1 {
            let source = self.source(way.last_day(self.day_count))?;
            let target = self.target()?;
            backup.restore(&backup.newest()?, &target, None).run()?;
            sampled.notes = compared(way, "restore after prune", &source, &backup.below(&target))?;
            workspace::remove(&target)?;
        }
        workspace::remove(backup.home())?;
        Ok(sampled)
    }

    /// Measures a step with a tree of many files in a control group, whose memory is doubled until the program gets by.
    pub(super) fn files(&self, way: &Way, shape: Shape, step: Step, count: u32) -> Result<Sampled> {
        let tree = many_files(&self.files, shape, count)?;
        let name = match shape {
            Shape::Spread => "spread",
            Shape::One => "one",
        };
        let home = self
            .state
            .join(format!("files-{name}-{count}"))
            .join(&way.name);
        let mut kept = Backup::new(way, self.place, self.tuff, home, tree.clone())
            .ok_or_else(|| Error::Usage("benchmarks/store could not get the program".to_owned()))?;
        if step != Step::Backup && !kept.home().exists() {
            return Err(Error::Usage(format!(
                "cell files-{name}-backup comes first"
            )));
        }
        let mut limit = self.definition.memory_mib << 20;
        for _ in 0..=DOUBLINGS {
            stop::check()?;
            let parent = cgroup::parent()
                .ok_or_else(|| Error::Usage("this machine limits no memory".to_owned()))?;
            let group = Group::create(&parent, Some(limit))?;
            match self.files_within(&mut kept, step, &group, &tree) {
                Ok(mut sampled) => {
                    sampled.put("limit_bytes", limit as f64);
                    return Ok(sampled);
                }
                Err(Error::Command(_)) if group.kills() > 0 => limit *= 2,
                Err(e) => return Err(e),
            }
        }
        Err(Error::Command(format!("killed within {} MiB", limit >> 21)))
    }

    fn files_within(
        &self,
        kept: &mut Backup,
        step: Step,
        group: &Group,
        tree: &Path,
    ) -> Result<Sampled> {
        let inside = |call: &Call| call.inside(&group.path().join("cgroup.procs"));
        let inside = |calls: &[Call]| calls.iter().map(inside).collect::<Vec<_>>();
        let mut sampled = Sampled::default();
        match step {
            Step::Backup => {
                kept.create()?;
                let usages = measure(&inside(&kept.backup(0))).inspect_err(|_| {
                    let _ = workspace::remove(kept.home());
                })?;
                sampled.put_usage(&usages);
                sampled.put_size(kept)?;
                // A second snapshot, of which `prune` leaves one.
                for call in kept.backup(1) {
                    call.run()?;
                }
            }
            Step::Check => {
                kept.unlock()?;
                sampled.put_usage(&measure(&inside(&[kept.check()]))?);
            }
            Step::Mount => {
                kept.unlock()?;
                let point = self.scratch.join("mount");
                let newest = kept.newest()?;
                let call = inside(&[kept.mount(&newest, &point)]).remove(0);
                let file = first_file(tree)?;
                let mut mounted = Mounted::start(&call, &point, &kept.mounted(&point).join(file))?;
                sampled = mounted.sampled();
            }
            Step::Prune => {
                let copy = kept.copied(&self.scratch.join("copy"))?;
                copy.unlock()?;
                let calls = copy
                    .prune(1)
                    .ok_or_else(|| Error::Command("the program removes no snapshots".to_owned()))?;
                sampled.put_usage(&measure(&inside(&calls))?);
                workspace::remove(copy.home())?;
            }
        }
        Ok(sampled)
    }
}

/// Measures commands one after the other.
fn measure(calls: &[Call]) -> Result<Vec<Usage>> {
    stop::check()?;
    calls.iter().map(Call::measure).collect()
}

/// Brings the metadata of a tree into the page cache, and writes back what is dirty.
fn warm(root: &Path) -> Result<()> {
    rustix::fs::sync();
    let mut stack = vec![root.to_owned()];
    while let Some(folder) = stack.pop() {
        for entry in std::fs::read_dir(&folder).at("list", &folder)? {
            let entry = entry.at("list", &folder)?;
            if entry.metadata().at("stat", &folder)?.is_dir() {
                stack.push(entry.path());
            }
        }
    }
    Ok(())
}

/// Compares a tree with its source. Returns what else differs than what a program of its kind has to keep.
fn compared(way: &Way, what: &str, source: &Tree, root: &Path) -> Result<Vec<String>> {
    let differ = source.differences(&Tree::read(root)?);
    let must: &[Facet] = match way.kind {
        Kind::Tuff => &verify::tree::FACETS,
        _ => &OTHERS,
    };
    if let Some(fatal) = differ.iter().find(|d| must.contains(&d.facet)) {
        return Err(Error::Command(format!("{what}: {fatal}")));
    }
    let facets = differ.iter().map(|d| format!("{} differ", d.facet));
    Ok(facets.collect())
}

/// Compares one file with its source.
fn is_equal(source: &Tree, file: &Path, root: &Path) -> Result<()> {
    let found = root.join(file);
    let content = std::fs::read(&found).at("read", &found)?;
    let entry = source
        .entries
        .iter()
        .find(|e| verify::tree::path_of(e) == file);
    match entry.is_some_and(|e| e.digests[1] == verify::tree::digest(&content)) {
        true => Ok(()),
        false => Err(Error::Command(format!(
            "{} differs from its source",
            file.display()
        ))),
    }
}

/// Snapshot that is mounted by a process. Dropping it unmounts and ends the process.
struct Mounted {
    child: Child,
    point: PathBuf,
    first_byte: Duration,
}

impl Mounted {
    /// Mounts at a folder, and reads the first byte of a file.
    fn start(call: &Call, point: &Path, file: &Path) -> Result<Mounted> {
        std::fs::create_dir_all(point).at("create", point)?;
        let mut command = call.command();
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let begin = Instant::now();
        let child = command
            .spawn()
            .at("run", Path::new(command.get_program()))?;
        let mut mounted = Mounted {
            child,
            point: point.to_owned(),
            first_byte: Duration::ZERO,
        };
        loop {
            let read = File::open(file).and_then(|mut file| file.read(&mut [0]));
            if read.is_ok_and(|length| length == 1) {
                mounted.first_byte = begin.elapsed();
                return Ok(mounted);
            }
            let ended = mounted.child.try_wait().at("wait for", point)?;
            // A client ends once its server is in the background.
            if ended.is_some() && begin.elapsed() > CLIENT_LIMIT {
                return Err(Error::Command("the mount has no file".to_owned()));
            }
            if let Some(status) = ended.filter(|status| !status.success()) {
                return Err(Error::Command(format!("the mount fails: {status}")));
            }
            stop::check()?;
            if begin.elapsed() > MOUNT_LIMIT {
                return Err(Error::Command(
                    "the mount did not appear in time".to_owned(),
                ));
            }
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    /// Returns the time to the first byte, and what all processes used whose command line has the mount point.
    fn sampled(&mut self) -> Sampled {
        let mut sampled = Sampled::default();
        sampled.put("first_byte_ms", self.first_byte.as_secs_f64() * 1e3);
        let used = processes_of(&self.point).into_iter().map(used_by);
        for values in used.collect::<Vec<_>>() {
            let peak = values.get("daemon_peak_bytes").copied().unwrap_or(0.0);
            let known = sampled.values.get("peak_bytes").copied().unwrap_or(0.0);
            if peak > known {
                sampled.put("peak_bytes", peak);
            }
        }
        sampled
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = verify::mount::unmounted(&self.point);
        unmount_all(&self.point);
        let end = Instant::now() + Duration::from_secs(20);
        while self.child.try_wait().is_ok_and(|status| status.is_none()) {
            if Instant::now() > end {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // Servers in the background end after their mount.
        while Instant::now() < end && !processes_of(&self.point).is_empty() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Returns the processes with an argument that names a folder.
fn processes_of(folder: &Path) -> Vec<u32> {
    let name = folder.as_os_str().as_encoded_bytes();
    let has_folder = |process: &u32| {
        let arguments = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        arguments
            .split(|byte| *byte == 0)
            .any(|argument| argument == name)
    };
    let listing = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = listing.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(has_folder).collect()
}

/// Makes a tree of small files, unless it exists.
fn many_files(folder: &Path, shape: Shape, count: u32) -> Result<PathBuf> {
    let name = match shape {
        Shape::Spread => "spread",
        Shape::One => "one",
    };
    let tree = folder.join(format!("{name}-{count}"));
    if tree.exists() {
        return Ok(tree);
    }
    eprintln!("{name}: {count} files");
    let part = folder.join(format!("{name}.part"));
    workspace::remove(&part)?;
    let words = text(1 << 20);
    for number in 0..count as usize {
        let parent = match shape {
            Shape::Spread => part.join(format!("d{:06}", number / 1000)),
            Shape::One => part.clone(),
        };
        if number % 1000 == 0 {
            stop::check()?;
            std::fs::create_dir_all(&parent).at("create", &parent)?;
        }
        // Every file has another content: its number, and words from another place.
        let (at, length) = (number * 37 % (words.len() - 2048), number * 7919 % 1000);
        let content = [format!("{number}\n").as_bytes(), &words[at..at + length]].concat();
        let path = parent.join(format!("f{number:07}"));
        std::fs::write(&path, content).at("write", &path)?;
    }
    rustix::fs::sync();
    std::fs::rename(&part, &tree).at("rename", &part)?;
    Ok(tree)
}

/// Returns words in random order.
fn text(length: usize) -> Vec<u8> {
    const WORDS: &str =
        "image block inode cluster extent offset length write read mount tree path name time owner";
    let words: Vec<&str> = WORDS.split(' ').collect();
    let mut random = Rng::new(1);
    let mut out = Vec::with_capacity(length + 16);
    while out.len() < length {
        out.extend_from_slice(words[random.below(words.len())].as_bytes());
        out.push(b' ');
    }
    out.truncate(length);
    out
}

/// Returns the relative path of the first file that [`many_files`] made.
fn first_file(tree: &Path) -> Result<PathBuf> {
    let name = Path::new("f0000000");
    let spread = Path::new("d000000").join(name);
    match tree.join(&spread).exists() {
        true => Ok(spread),
        false => Ok(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_shapes_have_all_files_and_the_same_content() {
        let folder = tempfile::tempdir().unwrap();
        for (shape, last) in [
            (Shape::Spread, "d000001/f0001001"),
            (Shape::One, "f0001001"),
        ] {
            let tree = many_files(folder.path(), shape, 1002).unwrap();
            let list = Tree::read(&tree).unwrap();
            assert_eq!(list.size.files, 1002);
            let last = std::fs::read_to_string(tree.join(last)).unwrap();
            assert!(last.starts_with("1001\n"), "{last}");
            assert!(tree.join(first_file(&tree).unwrap()).exists());
        }
    }

    #[test]
    fn a_restored_file_with_other_bytes_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        for (root, text) in [(&one, "same"), (&two, "diff")] {
            std::fs::create_dir(root).unwrap();
            std::fs::write(root.join("a"), text).unwrap();
        }
        let source = Tree::read(&one).unwrap();
        assert!(is_equal(&source, Path::new("a"), &one).is_ok());
        assert!(is_equal(&source, Path::new("a"), &two).is_err());
    }
}
