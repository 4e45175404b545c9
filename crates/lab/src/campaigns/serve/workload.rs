//! Workloads: lists of reads fixed in advance, and checksums of the data returned.
//!
//! A script is derived from the source tree, so that every server receives the same requests. Offsets are
//! generated from a seed.

use crate::measure::root;
use crate::{At, Error, Result};
use rustix::fs::{Advice, fadvise};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Buffer size of sequential reads in bytes.
const BUFFER: usize = 128 << 10;
/// Size of random and strided reads in bytes.
const PAGE: usize = 4096;
/// Largest size in bytes of a file in [`Kind::Small`].
const SMALL: u64 = 64 << 10;

/// Kind of access and the files it concerns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Kind {
    /// Sequential read of a whole file.
    Sequential {
        /// Path below the tree.
        file: PathBuf,
    },
    /// Sequential reads of single pages of a file.
    Pages {
        /// Path below the tree.
        file: PathBuf,
    },
    /// Reads of single pages of a file at random offsets, with `POSIX_FADV_RANDOM`.
    Random {
        /// Path below the tree.
        file: PathBuf,
        /// Number of pages to read.
        count: u64,
    },
    /// Reads of the first page of each 128 KiB of a file, in ascending order.
    Stride {
        /// Path below the tree.
        file: PathBuf,
    },
    /// Names and attributes of all entries below a directory, without content.
    Walk {
        /// Path below the tree.
        folder: PathBuf,
    },
    /// Sequential reads of all files below a directory, in path order.
    Tree {
        /// Path below the tree.
        folder: PathBuf,
    },
    /// Whole reads of small files (up to 64 KiB), selected evenly from a directory. Each is opened, read and
    /// closed.
    Small {
        /// Path below the tree.
        folder: PathBuf,
        /// Maximum number of files.
        count: usize,
    },
    /// A thread for each file, which reads it sequentially.
    Parallel {
        /// Paths below the tree.
        files: Vec<PathBuf>,
    },
    /// A thread for each file, which reads single pages at random offsets.
    ParallelRandom {
        /// Paths below the tree.
        files: Vec<PathBuf>,
        /// Number of pages to read by all threads together.
        count: u64,
    },
}

/// Reads that can be performed below any copy of the tree.
#[derive(Clone, Debug)]
pub struct Script {
    threads: Vec<Vec<Job>>,
}

#[derive(Clone, Debug)]
enum Job {
    Walk(PathBuf),
    Whole(PathBuf),
    Pages {
        file: PathBuf,
        offsets: Vec<u64>,
        announced: bool,
    },
}

/// Result of a script: counts and checksum of the data returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Number of reads, or of entries in a walk.
    pub calls: u64,
    /// Number of content bytes.
    pub bytes: u64,
    /// Checksum of all content and attributes returned.
    pub sum: u64,
}

impl Script {
    /// Derives the reads of `kind` from the source tree.
    pub fn new(kind: &Kind, tree: &Path, seed: u64) -> Result<Script> {
        let pages = |file: &Path, offsets: Vec<u64>, announced| Job::Pages {
            file: file.to_owned(),
            offsets,
            announced,
        };
        let threads = match kind {
            Kind::Sequential { file } => vec![vec![Job::Whole(file.clone())]],
            Kind::Pages { file } => {
                let offsets = (0..size(tree, file)?).step_by(PAGE).collect();
                vec![vec![pages(file, offsets, false)]]
            }
            Kind::Random { file, count } => {
                let offsets = random_offsets(size(tree, file)?, *count, seed);
                vec![vec![pages(file, offsets, true)]]
            }
            Kind::Stride { file } => {
                let offsets = (0..size(tree, file)?).step_by(BUFFER).collect();
                vec![vec![pages(file, offsets, false)]]
            }
            Kind::Walk { folder } => vec![vec![Job::Walk(folder.clone())]],
            Kind::Tree { folder } => {
                let files = files_below(tree, folder)?;
                vec![files.into_iter().map(|(f, _)| Job::Whole(f)).collect()]
            }
            Kind::Small { folder, count } => {
                let mut files = files_below(tree, folder)?;
                files.retain(|(_, size)| *size > 0 && *size <= SMALL);
                let step = files.len().div_ceil((*count).max(1)).max(1);
                let spread = files.into_iter().step_by(step);
                vec![spread.map(|(f, _)| Job::Whole(f)).collect()]
            }
            Kind::Parallel { files } => files.iter().map(|f| vec![Job::Whole(f.clone())]).collect(),
            Kind::ParallelRandom { files, count } => {
                let each = count / (files.len() as u64).max(1);
                let job = |(i, file): (usize, &PathBuf)| {
                    let offsets = random_offsets(size(tree, file)?, each, seed + i as u64);
                    Ok(vec![pages(file, offsets, true)])
                };
                files.iter().enumerate().map(job).collect::<Result<_>>()?
            }
        };
        if threads.iter().all(Vec::is_empty) {
            return Err(Error::Usage(
                "a workload matches no file to read".to_owned(),
            ));
        }
        Ok(Script { threads })
    }

    /// Returns the same reads, shared by a number of threads.
    pub fn shared_by(self, threads: usize) -> Script {
        let mut shared = vec![Vec::new(); threads.max(1)];
        for (i, job) in self.threads.into_iter().flatten().enumerate() {
            shared[i % threads.max(1)].push(job);
        }
        shared.retain(|jobs| !jobs.is_empty());
        Script { threads: shared }
    }

    /// Returns the paths of the files to read, relative to the tree.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.threads.iter().flatten().filter_map(|job| match job {
            Job::Walk(_) => None,
            Job::Whole(file) | Job::Pages { file, .. } => Some(file.as_path()),
        })
    }

    /// Performs the reads below `root`. Returns the answer and the time from the first call to the last.
    pub fn run(&self, root: &Path) -> Result<(Answer, Took)> {
        let (start, own) = (Instant::now(), own_time());
        let answer = match self.threads.as_slice() {
            [jobs] => run_jobs(jobs, root)?,
            threads => std::thread::scope(|scope| {
                let running: Vec<_> = threads
                    .iter()
                    .map(|jobs| scope.spawn(|| run_jobs(jobs, root)))
                    .collect();
                running
                    .into_iter()
                    .map(|t| t.join().expect("a reader does not panic"))
                    .try_fold(Answer::default(), |sum, one| Ok::<_, Error>(sum.and(one?)))
            })?,
        };
        let took = Took {
            wall: start.elapsed(),
            client: own_time().saturating_sub(own),
        };
        Ok((answer, took))
    }
}

/// Time spent in a script.
#[derive(Clone, Copy, Debug, Default)]
pub struct Took {
    /// Elapsed time from the first call to the last.
    pub wall: Duration,
    /// Processor time of the client, including its time in the kernel, which no server can shorten. The
    /// kernel's own filesystems may decode in it.
    pub client: Duration,
}

/// Returns the processor time of this process.
fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // fits: not negative, and below a second
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Answer {
    /// Combines two answers. The order has no influence, so threads may finish in any order.
    fn and(self, other: Answer) -> Answer {
        Answer {
            calls: self.calls + other.calls,
            bytes: self.bytes + other.bytes,
            sum: self.sum.wrapping_add(other.sum),
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.calls += 1;
        self.bytes += bytes.len() as u64;
        self.sum = self.sum.rotate_left(7).wrapping_add(checksum(bytes));
    }
}

fn run_jobs(jobs: &[Job], root: &Path) -> Result<Answer> {
    let mut answer = Answer::default();
    let mut buffer = vec![0; BUFFER];
    for job in jobs {
        match job {
            Job::Walk(folder) => walk(&root.join(folder), &mut answer)?,
            Job::Whole(file) => {
                let path = root.join(file);
                let file = File::open(&path).at("read", &path)?;
                let mut offset = 0;
                loop {
                    let n = file.read_at(&mut buffer, offset).at("read", &path)?;
                    if n == 0 {
                        break;
                    }
                    answer.add(&buffer[..n]);
                    offset += n as u64;
                }
            }
            Job::Pages {
                file,
                offsets,
                announced,
            } => {
                let path = root.join(file);
                let file = File::open(&path).at("read", &path)?;
                if *announced {
                    fadvise(&file, 0, None, Advice::Random).at("read", &path)?;
                }
                for offset in offsets {
                    let n = file
                        .read_at(&mut buffer[..PAGE], *offset)
                        .at("read", &path)?;
                    answer.add(&buffer[..n]);
                }
            }
        }
    }
    Ok(answer)
}

/// Adds up checksums of the entries, so that the order of a directory has no influence.
fn walk(folder: &Path, answer: &mut Answer) -> Result<()> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).at("list", &folder)? {
            let entry = entry.at("list", &folder)?;
            let attributes = entry.metadata().at("list", &folder)?;
            let size = if attributes.is_dir() {
                0
            } else {
                attributes.len()
            };
            let mut sum = checksum(entry.file_name().as_bytes());
            for value in [
                u64::from(attributes.mode()),
                size,
                attributes.mtime().cast_unsigned(),
            ] {
                sum = mix(sum, value);
            }
            answer.calls += 1;
            answer.sum = answer.sum.wrapping_add(sum);
            if attributes.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(())
}

const PRIME: u64 = 0x9E37_79B9_7F4A_7C15;

fn mix(sum: u64, value: u64) -> u64 {
    (sum ^ value).wrapping_mul(PRIME).rotate_left(29)
}

/// Computes a checksum in eight independent lanes, which keep the multiplier busy. It is much faster than any
/// server and can therefore run in the timed section, while the buffer is in the CPU's cache.
fn checksum(bytes: &[u8]) -> u64 {
    const LANES: usize = 8;
    let mut lanes = [PRIME; LANES];
    let mut blocks = bytes.chunks_exact(8 * LANES);
    for block in &mut blocks {
        for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(8)) {
            let word = u64::from_le_bytes(word.try_into().expect("chunks of 8 bytes"));
            *lane = (*lane ^ word).wrapping_mul(PRIME);
        }
    }
    let mut sum = lanes.into_iter().fold(bytes.len() as u64, mix);
    for byte in blocks.remainder() {
        sum = mix(sum, u64::from(*byte));
    }
    sum
}

fn size(tree: &Path, file: &Path) -> Result<u64> {
    let path = tree.join(file);
    let attributes = path.metadata().at("stat", &path)?;
    Ok(attributes.len())
}

fn random_offsets(size: u64, count: u64, seed: u64) -> Vec<u64> {
    let pages = (size / PAGE as u64).max(1);
    let mut state = seed;
    let draw = |_| {
        state = state.wrapping_add(PRIME);
        (mix(mix(state, 1), 2) % pages) * PAGE as u64
    };
    (0..count).map(draw).collect()
}

/// Returns the regular files below `folder` with their sizes in bytes, sorted by path. Paths are relative to
/// `tree`.
fn files_below(tree: &Path, folder: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    root::list(&tree.join(folder), &mut files)?;
    for (path, _) in &mut files {
        *path = path.strip_prefix(tree).unwrap_or(path).to_owned();
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir(tree.path().join("d")).unwrap();
        let text: Vec<u8> = (0..500_000u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(tree.path().join("text"), &text).unwrap();
        for i in 0..10 {
            std::fs::write(tree.path().join(format!("d/{i}")), &text[..i * 1000]).unwrap();
        }
        tree
    }

    fn answer(kind: &Kind, tree: &Path) -> Answer {
        Script::new(kind, tree, 1).unwrap().run(tree).unwrap().0
    }

    fn kinds() -> Vec<Kind> {
        let text = "kinds = [
            { kind = 'sequential', file = 'text' },
            { kind = 'pages', file = 'text' },
            { kind = 'random', file = 'text', count = 50 },
            { kind = 'stride', file = 'text' },
            { kind = 'walk', folder = '' },
            { kind = 'tree', folder = '' },
            { kind = 'small', folder = 'd', count = 5 },
            { kind = 'parallel', files = ['text', 'd/9'] },
            { kind = 'parallel-random', files = ['text', 'text'], count = 20 },
        ]";
        let mut all: std::collections::HashMap<String, Vec<Kind>> = toml::from_str(text).unwrap();
        all.remove("kinds").unwrap()
    }

    #[test]
    fn a_script_reads_what_it_says() {
        let tree = tree();
        let counts: Vec<(u64, u64)> = kinds()
            .iter()
            .map(|k| answer(k, tree.path()))
            .map(|a| (a.calls, a.bytes))
            .collect();
        let expected = [
            (16, 2_000_000),
            (489, 2_000_000),
            (50, 50 * 4096),
            (16, 16 * 4096),
            (12, 0),
            (16 + 9, 2_045_000),
            (5, 25_000),
            (16 + 1, 2_009_000),
            (20, 20 * 4096),
        ];
        assert_eq!(counts, expected);
    }

    #[test]
    fn one_wrong_byte_or_attribute_is_another_answer() {
        let tree = tree();
        let root = tree.path();
        let answers = || kinds().into_iter().map(|kind| answer(&kind, root));
        let good: Vec<Answer> = answers().collect();
        assert!(answers().eq(good.iter().copied()));
        let mut text = std::fs::read(root.join("text")).unwrap();
        for at in (0..text.len()).step_by(4096) {
            text[at] ^= 1;
        }
        for i in 1..10 {
            std::fs::write(root.join(format!("d/{i}")), &text[..i * 1000]).unwrap();
        }
        std::fs::write(root.join("text"), text).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(root.join("text"), mode).unwrap();
        let differ = answers().zip(good).map(|(now, good)| now != good);
        assert_eq!(differ.collect::<Vec<_>>(), [true; 9]);
    }

    #[test]
    fn a_workload_without_reads_is_refused() {
        let empty = tempfile::tempdir().unwrap();
        let kind = Kind::Tree { folder: "".into() };
        assert!(Script::new(&kind, empty.path(), 1).is_err());
    }
}
