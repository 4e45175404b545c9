//! Comparison of presets on a sample of a tree: builds the sample with each
//! [preset](crate::presets) and reads the image.
//!
//! ```text
//! directory ──► sample: every n-th file, every n-th MiB of large files ──► images ──► size and cost of each
//! ```
//!
//! Sizes depend only on the content; times are measured on this machine. A sample misses equal
//! files that are far apart, so an image with deduplication may be smaller.

use crate::presets::{PRESETS, Preset};
use crate::source::DataRun;
use crate::source::dir::runs_of;
use crate::{Error, Result};
use crate::{KernelVersion, Options, Progress, Source, build};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tuff_erofs::read::{FileType, Image, OpenOptions};
use tuff_erofs::serve::{ServeOptions, Server};
use tuff_erofs::walk::Walk;
use tuff_store::{FileStore, Target, TemporaryDir};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Length of a sampled part of a large file. Unit: bytes.
const PIECE: u64 = 1 << 20;
/// Minimum cost of a file in the sample, since each file takes some work. Unit: bytes.
const FILE_COST_MIN: u64 = 4096;
/// Number of random reads.
const RANDOM_READS: u64 = 2000;
/// Limit of decoded bytes for the random reads. A read in a long range of zeros decodes megabytes.
/// Unit: bytes.
const DECODED_MAX: u64 = 256 << 20;
/// Length of a random read. Unit: bytes.
const RANDOM_READ_LEN: usize = 4096;

/// Tree to sample, and limits of the sample.
#[derive(Clone, Debug)]
pub struct Request {
    /// Directory with the tree.
    pub dir: PathBuf,
    /// Oldest kernel that must mount the image. Presets that need a newer one are skipped.
    pub kernel: KernelVersion,
    /// Approximate size of the sample. Unit: bytes.
    pub sample: u64,
    /// Directory for the sample and its images, which are deleted afterwards.
    pub temporary: PathBuf,
}

/// Size of a tree and of its sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sampled {
    /// Number of regular files in the tree.
    pub files: u64,
    /// Their content without holes. Unit: bytes.
    pub bytes: u64,
    /// Content in the sample. Unit: bytes.
    pub sample_bytes: u64,
}

/// Estimates for one preset.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    /// Preset that was measured.
    pub preset: Preset,
    /// Size of the image of the whole tree. Unit: bytes.
    pub image_bytes: u64,
    /// Time to build it. Unit: seconds.
    pub build_seconds: f64,
    /// Average number of bytes fetched for a random read of 4 KiB without a cache. Unit: bytes.
    pub fetched: u64,
    /// Average number of bytes decoded for the same read. Unit: bytes.
    pub decoded: u64,
    /// Throughput of one thread that reads content in order. Unit: bytes per second.
    pub sequential: f64,
}

/// Samples a tree and builds the sample with every preset. `each` is called before each step; it
/// gets `None` before the sampling.
///
/// # Errors
///
/// * `Io`: the tree cannot be read, the disk is full, or `progress` requested a stop (kind
///   `Interrupted`).
/// * `Usage`: the tree has no content.
pub fn suggest(
    request: &Request,
    progress: &Progress,
    mut each: impl FnMut(Option<&Preset>),
) -> Result<(Sampled, Vec<Estimate>)> {
    let work = TemporaryDir::create(&request.temporary);
    let work =
        work.map_err(|e| Error::io(request.temporary.display(), "cannot create a directory", e))?;
    each(None);
    let tree = work.path().join("tree");
    let mut want = request.sample.max(1);
    let mut sampled = sample(&request.dir, &tree, want, progress)?;
    // A small sample of a few files may select none of them.
    while sampled.sample_bytes == 0 && want < sampled.bytes + sampled.files * FILE_COST_MIN {
        want *= 2;
        sampled = sample(&request.dir, &tree, want, progress)?;
    }
    if sampled.sample_bytes == 0 {
        return Err(Error::usage(format_args!(
            "{}: no content to sample",
            request.dir.display()
        )));
    }
    let scale = sampled.bytes as f64 / sampled.sample_bytes as f64;
    let mut out = Vec::new();
    for preset in PRESETS {
        let mut options = Options::for_kernel(request.kernel);
        options.resources.temporary = Some(request.temporary.clone());
        if !preset.apply(&mut options) {
            continue;
        }
        each(Some(&preset));
        let image = work.path().join("image");
        let start = Instant::now();
        let (source, target) = (Source::Dir(tree.clone()), Target::Path(image.clone()));
        let summary = build(&[source], &options, &target, progress)?;
        let build_seconds = start.elapsed().as_secs_f64() * scale;
        let (fetched, decoded) = measure_random_reads(&image, progress)?;
        out.push(Estimate {
            preset,
            image_bytes: (summary.image_bytes as f64 * scale) as u64,
            build_seconds,
            fetched,
            decoded,
            sequential: sequential(&image, progress)?,
        });
    }
    Ok((sampled, out))
}

/// Copies a sample of `dir` to `to`: about `want` bytes, of large and small files in proportion.
fn sample(dir: &Path, to: &Path, want: u64, progress: &Progress) -> Result<Sampled> {
    let mut files = Vec::new();
    list(dir, &mut files)?;
    let bytes = files.iter().map(SourceFile::data).sum();
    let mut sampled = Sampled {
        files: files.len() as u64,
        bytes,
        sample_bytes: 0,
    };
    let cost: u64 = files
        .iter()
        .map(|found| found.data().max(FILE_COST_MIN))
        .sum();
    let one_in = cost.div_ceil(want.max(1)).max(1);
    let make = |dir: &Path| {
        fs::create_dir_all(dir).map_err(|e| Error::io(dir.display(), "cannot create", e))
    };
    make(to)?;
    let mut buf = vec![0; PIECE as usize];
    for found in files {
        progress.check()?;
        let (path, data) = (&found.path, found.data());
        let name = path.strip_prefix(dir).unwrap_or(path);
        let name_bytes = name.as_os_str().as_bytes();
        let taken = |p: &u64| xxh3_64_with_seed(name_bytes, *p).is_multiple_of(one_in);
        let pieces: Vec<u64> = (0..data.div_ceil(PIECE)).filter(taken).collect();
        if pieces.is_empty() {
            continue;
        }
        let source = tuff_store::open_regular(path)
            .map_err(|e| Error::io(path.display(), "cannot open", e))?;
        let target = to.join(name);
        target.parent().map_or(Ok(()), make)?;
        let fail = |e| Error::io(target.display(), "cannot write", e);
        let mut file = File::create(&target).map_err(fail)?;
        for piece in pieces {
            // Fits: at most `PIECE`.
            let len = (data - piece * PIECE).min(PIECE) as usize;
            found
                .read(&source, piece * PIECE, &mut buf[..len])
                .map_err(|e| Error::io(path.display(), "cannot read", e))?;
            file.write_all(&buf[..len]).map_err(fail)?;
            sampled.sample_bytes += len as u64;
        }
    }
    Ok(sampled)
}

/// Regular file. Holes are not counted, since images do not store them.
struct SourceFile {
    path: PathBuf,
    runs: Vec<DataRun>,
}

impl SourceFile {
    fn new(path: PathBuf, meta: &fs::Metadata) -> Result<Self> {
        let size = meta.len();
        let fail = |what, e| Error::io(path.display(), what, e);
        let runs = if meta.blocks().saturating_mul(512) < size {
            let file = tuff_store::open_regular(&path).map_err(|e| fail("cannot open", e))?;
            runs_of(&file, size).map_err(|e| fail("cannot read", e.into()))?
        } else {
            vec![DataRun {
                file_offset: 0,
                source_offset: 0,
                len: size,
            }]
        };
        Ok(Self { path, runs })
    }

    /// Length of its data without holes. Unit: bytes.
    fn data(&self) -> u64 {
        self.runs.iter().map(|run| run.len).sum()
    }

    /// Reads data from position `at`, holes left out.
    fn read(&self, file: &File, mut at: u64, mut buf: &mut [u8]) -> io::Result<()> {
        for run in &self.runs {
            if at >= run.len {
                at -= run.len;
                continue;
            }
            let len = usize::try_from(run.len - at).unwrap_or(usize::MAX);
            let (now, rest) = buf.split_at_mut(len.min(buf.len()));
            file.read_exact_at(now, run.source_offset + at)?;
            (buf, at) = (rest, 0);
            if buf.is_empty() {
                break;
            }
        }
        Ok(())
    }
}

/// Lists the regular files below `dir`, sorted by path.
fn list(dir: &Path, out: &mut Vec<SourceFile>) -> Result<()> {
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        let fail = |e: io::Error| Error::io(dir.display(), "cannot list", e);
        let entries: io::Result<Vec<fs::DirEntry>> =
            tuff_store::retry(|| fs::read_dir(&dir)?.collect());
        for entry in entries.map_err(fail)? {
            let meta = entry.metadata().map_err(fail)?;
            if meta.is_dir() {
                pending.push(entry.path());
            } else if meta.is_file() && meta.len() > 0 {
                out.push(SourceFile::new(entry.path(), &meta)?);
            }
        }
    }
    out.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(())
}

fn open(image: &Path) -> Result<Image> {
    let store = FileStore::open(image).map_err(|e| Error::io(image.display(), "cannot open", e))?;
    Image::open(store, OpenOptions::default())
}

/// Regular files of an image, with their sizes.
fn files(image: &Image) -> Result<Vec<(tuff_erofs::read::Inode, u64)>> {
    let mut out = Vec::new();
    for entry in Walk::new(image, Vec::new(), image.root()?) {
        let inode = entry?.inode;
        if inode.file_type() == FileType::File && inode.size() > 0 {
            let size = inode.size();
            out.push((inode, size));
        }
    }
    Ok(out)
}

/// Average number of bytes fetched and decoded for a random read. Nothing is cached between reads.
fn measure_random_reads(image: &Path, progress: &Progress) -> Result<(u64, u64)> {
    let options = ServeOptions {
        budget: 0,
        read_ahead: false,
        ..ServeOptions::default()
    };
    let server = Server::new(open(image)?, options);
    let files = files(server.image())?;
    let total: u64 = files.iter().map(|(_, size)| size).sum();
    let (mut session, mut buf) = (server.session(), vec![0; RANDOM_READ_LEN]);
    let before = server.counters();
    let mut reads = 0;
    for n in 0..RANDOM_READS {
        if server.counters().decoded_bytes - before.decoded_bytes > DECODED_MAX {
            break;
        }
        progress.check()?;
        reads += 1;
        let mut at = xxh3_64_with_seed(b"read", n) % total;
        let found = files.iter().find(|(_, size)| {
            let here = at < *size;
            at -= if here { 0 } else { *size };
            here
        });
        let Some((inode, _)) = found else { continue };
        server.read(
            &mut session,
            inode,
            at / RANDOM_READ_LEN as u64 * RANDOM_READ_LEN as u64,
            &mut buf,
        )?;
    }
    let after = server.counters();
    Ok((
        (after.fetched_bytes - before.fetched_bytes) / reads,
        (after.decoded_bytes - before.decoded_bytes) / reads,
    ))
}

/// Measures the throughput of reading everything in order with one thread. Unit: bytes per second.
fn sequential(image: &Path, progress: &Progress) -> Result<f64> {
    let server = Server::new(open(image)?, ServeOptions::default());
    let files = files(server.image())?;
    let (mut session, mut buf) = (server.session(), vec![0; 1 << 20]);
    let (mut bytes, start) = (0, Instant::now());
    for (inode, size) in &files {
        let mut at = 0;
        while at < *size {
            progress.check()?;
            let n = server.read(&mut session, inode, at, &mut buf)? as u64;
            if n == 0 {
                break;
            }
            at += n;
        }
        bytes += at;
    }
    Ok(bytes as f64 / start.elapsed().as_secs_f64().max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_a_stable_share_of_large_and_small_files() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("sub")).unwrap();
        for n in 0..200 {
            fs::write(tree.join(format!("sub/{n}")), vec![n as u8; 10_000]).unwrap();
        }
        fs::write(tree.join("large"), vec![1; 40 << 20]).unwrap();
        let go = &Progress::default();
        let once = sample(&tree, &dir.path().join("a"), 8 << 20, go).unwrap();
        let again = sample(&tree, &dir.path().join("b"), 8 << 20, go).unwrap();
        assert_eq!(once, again);
        assert_eq!((once.files, once.bytes), (201, (40 << 20) + 2_000_000));
        let share = once.sample_bytes as f64 / once.bytes as f64;
        assert!((0.05..0.4).contains(&share), "{share}");
        let whole = sample(&tree, &dir.path().join("c"), u64::MAX, go).unwrap();
        assert_eq!(whole.sample_bytes, whole.bytes);
    }

    /// Regression: small files were never skipped, so a sample of 100,000 files of 11 bytes held
    /// all of them.
    #[test]
    fn a_sample_of_tiny_files_skips_most_of_them() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(&tree).unwrap();
        for n in 0..2000 {
            fs::write(tree.join(n.to_string()), "x").unwrap();
        }
        let go = &Progress::default();
        let some = sample(&tree, &dir.path().join("some"), 1 << 20, go).unwrap();
        assert!((100..600).contains(&some.sample_bytes), "{some:?}");
    }

    #[test]
    fn a_stop_request_removes_temporary_files() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, temporary) = (dir.path().join("tree"), dir.path().join("temporary"));
        for made in [&tree, &temporary] {
            fs::create_dir_all(made).unwrap();
        }
        fs::write(tree.join("file"), "some content").unwrap();
        let request = Request {
            dir: tree,
            kernel: KernelVersion(6, 12),
            sample: u64::MAX,
            temporary: temporary.clone(),
        };
        for step in [None, Some(PRESETS[0])] {
            let progress = Progress::default();
            let stop = |preset: Option<&Preset>| {
                if preset == step.as_ref() {
                    progress.stop();
                }
            };
            let error = suggest(&request, &progress, stop).unwrap_err();
            assert!(
                matches!(&error, Error::Io(_, e) if e.kind() == io::ErrorKind::Interrupted),
                "{error}"
            );
            assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_sample_of_the_whole_tree_predicts_the_exact_size() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(&tree).unwrap();
        let text: String = (0..60_000).map(|n| format!("line {n}\n")).collect();
        fs::write(tree.join("text"), &text).unwrap();
        let request = Request {
            dir: tree.clone(),
            kernel: KernelVersion(5, 15),
            sample: u64::MAX,
            temporary: dir.path().to_owned(),
        };
        let (_, estimates) = suggest(&request, &Progress::default(), |_| ()).unwrap();
        let presets: Vec<_> = estimates.iter().map(|e| e.preset).collect();
        assert_eq!(presets.len(), 4, "presets for Linux 5.15: {presets:?}");
        let image = dir.path().join("image");
        let mut options = Options::for_kernel(KernelVersion(5, 15));
        assert!(estimates[0].preset.apply(&mut options));
        let target = Target::Path(image.clone());
        build(
            &[Source::Dir(tree)],
            &options,
            &target,
            &Progress::default(),
        )
        .unwrap();
        assert_eq!(
            estimates[0].image_bytes,
            fs::metadata(&image).unwrap().len()
        );
        assert!(
            estimates
                .iter()
                .all(|e| e.decoded > 0 && e.fetched > 0 && e.sequential > 0.0)
        );
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(left.len(), 2, "the tree and the image: {left:?}");
        let small = Request {
            sample: 1,
            ..request
        };
        assert!(
            suggest(&small, &Progress::default(), |_| ())
                .unwrap()
                .0
                .sample_bytes
                > 0
        );
    }
}
