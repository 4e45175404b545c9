//! Random file operations on a mounted filesystem, compared with the expected bytes in memory. Similar to
//! fsx.
//!
//! Operations: writes, reads, mappings, truncation, holes and preallocation, in a random order that depends
//! on a seed. Several files are used at once, so that bytes of one file in another are detected. Files stay
//! open and are rarely synced while holes are searched and other processes copy the files.

mod copies;
mod subject;

pub use subject::Tally;

use crate::{At, Result};
use copies::Copier;
use rustix::fs::{Advice, FallocateFlags, SeekFrom, fadvise, fallocate, seek};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use subject::{Subject, differs};
use tuff_testkit::Rng;
use vmap::{Flush, Map, MapMut};

/// Number of preceding operations that the report of a difference shows.
const OPERATIONS_SHOWN: usize = 24;

/// Number of files that are used at once.
const FILES: usize = 4;
/// Maximum size of a file. Unit: bytes.
const SIZE_MAX: u64 = 1 << 20;
/// Maximum length of an operation. Unit: bytes.
const LEN_MAX: u64 = 64 << 10;

/// Compare files on a mounted filesystem with a model: writes, mappings, holes, truncation, copies by other processes
///
/// On a wrong byte, prints the operations that led to it and exits with 1.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Folder on the filesystem under test
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Number of operations on the files
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    pub operations: u64,
    /// Seed of the sequence of operations
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Operations between copies of an open file by another process (cp, tar -S, rsync -S, ...), half of them while the file
    /// grows; 0 disables copies
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub copy_every: u64,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Read,
    Write,
    Append,
    MappedRead,
    MappedWrite,
    Truncate,
    Punch,
    Zero,
    Reserve,
    Sync,
    Reopen,
    Evict,
    Compare,
    Seek,
    Copy,
}

/// Operations to draw from, with their weights.
const MIX: [(What, usize); 14] = [
    (What::Read, 5),
    (What::Write, 6),
    (What::Append, 2),
    (What::MappedRead, 4),
    (What::MappedWrite, 4),
    (What::Truncate, 2),
    (What::Punch, 2),
    (What::Zero, 1),
    (What::Reserve, 1),
    (What::Sync, 1),
    (What::Reopen, 1),
    (What::Evict, 2),
    (What::Compare, 1),
    (What::Seek, 4),
];

/// Runs the operations on files in a folder. The files are removed at the end, or kept after a difference.
/// The inner error describes the difference.
pub fn run(options: &Options) -> Result<std::result::Result<Tally, String>> {
    let dir = &options.dir;
    let mut rng = Rng::new(options.seed);
    let mut subjects = Vec::new();
    for n in 0..FILES {
        let path = dir.join(format!("exercised {n}"));
        let file = open(&path, true).at("test files in", dir)?;
        subjects.push(Subject {
            path,
            file,
            want: Vec::new(),
            past: VecDeque::new(),
        });
    }
    let mut tally = Tally::default();
    let copiers = copies::available();
    let mix = MIX
        .into_iter()
        .flat_map(|(what, weight)| vec![what; weight]);
    let mix: Vec<What> = mix.collect();
    for number in 0..options.operations {
        let at = rng.below(subjects.len());
        let what = match rng.below(options.copy_every.max(1) as usize) {
            0 if options.copy_every > 0 => What::Copy,
            _ => mix[rng.below(mix.len())],
        };
        let wrong = step(
            &mut subjects[at],
            what,
            number,
            &copiers,
            &mut rng,
            &mut tally,
        )
        .at("test files in", dir)?;
        tally.operations += 1;
        if let Some(wrong) = wrong {
            let s = &subjects[at];
            let past: Vec<&str> = s.past.iter().map(String::as_str).collect();
            return Ok(Err(format!(
                "{}: operation {number}: {wrong}; preceding operations on this file:\n  {}",
                s.path.display(),
                past.join("\n  ")
            )));
        }
    }
    for mut s in subjects {
        if let Some(wrong) = compare(&mut s, &mut tally).at("test files in", dir)? {
            return Ok(Err(format!("{}: at the end: {wrong}", s.path.display())));
        }
        std::fs::remove_file(&s.path).at("test files in", dir)?;
    }
    Ok(Ok(tally))
}

fn open(path: &Path, new: bool) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(new)
        .truncate(new)
        .open(path)
}

/// Runs one operation. Returns a description of a difference.
fn step(
    s: &mut Subject,
    what: What,
    number: u64,
    copiers: &[Copier],
    rng: &mut Rng,
    tally: &mut Tally,
) -> io::Result<Option<String>> {
    let size = s.want.len() as u64;
    let below = |rng: &mut Rng, n: u64| rng.below(n.max(1) as usize) as u64;
    // A third of the offsets is at block boundaries, where faults are likely.
    let offset = |rng: &mut Rng, n: u64| {
        let at = below(rng, n);
        if rng.below(3) == 0 { at & !4095 } else { at }
    };
    let length = |rng: &mut Rng| {
        let most = if rng.below(4) == 0 { 16 } else { LEN_MAX };
        1 + below(rng, most)
    };
    let inside = |rng: &mut Rng| {
        let at = offset(rng, size);
        (at, length(rng).min(size - at))
    };
    let mut wrong = None;
    let recent = match what {
        What::Read if size > 0 => {
            let (at, len) = inside(rng);
            let mut buf = vec![0; len as usize];
            s.file.read_exact_at(&mut buf, at)?;
            wrong = differs(&s.want, at, &buf, tally);
            format!("read {len} at {at}")
        }
        What::Write | What::Append => {
            let most = SIZE_MAX - 1;
            let at = match what {
                What::Append => (size
                    + if rng.below(3) == 0 {
                        below(rng, 20_000)
                    } else {
                        0
                    })
                .min(most),
                _ => offset(rng, size + 1).min(most),
            };
            let len = length(rng).min(SIZE_MAX - at);
            let bytes = pattern(number, at, len);
            s.file.write_all_at(&bytes, at)?;
            put(&mut s.want, at, &bytes);
            format!("write {len} at {at}")
        }
        What::MappedRead if size > 0 => {
            let (at, len) = inside(rng);
            let map = Map::with_options()
                .offset(at as usize)
                .len(len as usize)
                .map(&s.file)
                .map_err(other)?;
            wrong = differs(&s.want, at, &map, tally);
            tally.mapped += 1;
            format!("mapped read {len} at {at}")
        }
        What::MappedWrite if size > 0 => {
            let (at, len) = inside(rng);
            let bytes = pattern(number, at, len);
            let mut map = MapMut::with_options()
                .offset(at as usize)
                .len(len as usize)
                .map(&s.file)
                .map_err(other)?;
            map.copy_from_slice(&bytes);
            if rng.below(2) == 0 {
                map.flush(&s.file, Flush::Sync).map_err(other)?;
            }
            put(&mut s.want, at, &bytes);
            tally.mapped += 1;
            format!("mapped write {len} at {at}")
        }
        What::Truncate => {
            let to = offset(rng, SIZE_MAX);
            s.file.set_len(to)?;
            s.want.resize(to as usize, 0);
            format!("truncate to {to}")
        }
        What::Punch | What::Zero if size > 0 => {
            let (at, len) = inside(rng);
            let len = NonZeroU64::new(len).map_or(1, NonZeroU64::get);
            let flags = match what {
                What::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                _ => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
            };
            match fallocate(&s.file, flags, at, len) {
                Ok(()) => {
                    let end = (at + len).min(size);
                    s.want[at as usize..end as usize].fill(0);
                }
                // Filesystems may not support these modes.
                Err(rustix::io::Errno::OPNOTSUPP) => {}
                Err(e) => return Err(e.into()),
            }
            format!("{what:?} {len} at {at}")
        }
        What::Reserve => {
            let at = offset(rng, SIZE_MAX);
            let len = length(rng).min(SIZE_MAX - at).max(1);
            match fallocate(&s.file, FallocateFlags::empty(), at, len) {
                Ok(()) => s.want.resize(s.want.len().max((at + len) as usize), 0),
                Err(rustix::io::Errno::OPNOTSUPP) => {}
                Err(e) => return Err(e.into()),
            }
            format!("reserve {len} at {at}")
        }
        What::Sync => {
            s.file.sync_all()?;
            "sync".to_owned()
        }
        What::Reopen => {
            s.file = open(&s.path, false)?;
            "close, open".to_owned()
        }
        What::Evict => {
            s.file.sync_data()?;
            fadvise(&s.file, 0, None, Advice::DontNeed)?;
            "sync, evict".to_owned()
        }
        What::Compare => {
            wrong = compare(s, tally)?;
            "compare".to_owned()
        }
        What::Seek => {
            wrong = search(s, tally)?;
            "find holes".to_owned()
        }
        What::Copy => {
            let copier = &copiers[rng.below(copiers.len())];
            let growth = match rng.below(2) {
                0 if copier.allows_growth() => {
                    pattern(number, size, length(rng).min(SIZE_MAX - size))
                }
                _ => Vec::new(),
            };
            let beside = rng.below(2) == 0;
            wrong = copies::check(s, copier, &growth, beside, tally)?;
            let name = copier.name();
            format!(
                "copy by {name}, {} bytes appended during the copy",
                growth.len()
            )
        }
        _ => return Ok(None),
    };
    s.past.push_back(format!("{number}: {recent}"));
    if s.past.len() > OPERATIONS_SHOWN {
        s.past.pop_front();
    }
    let found = s.file.metadata()?.size();
    if found != s.want.len() as u64 {
        wrong = wrong.or(Some(format!("size {found}, expected {}", s.want.len())));
    }
    Ok(wrong)
}

fn other(e: vmap::Error) -> io::Error {
    io::Error::other(e.to_string())
}

fn compare(s: &mut Subject, tally: &mut Tally) -> io::Result<Option<String>> {
    let mut all = vec![0; s.want.len()];
    s.file.read_exact_at(&mut all, 0)?;
    Ok(differs(&s.want, 0, &all, tally))
}

/// Checks the holes that another process would find. Each must contain only zeros, and the last one must
/// start at the end of the file.
fn search(s: &Subject, tally: &mut Tally) -> io::Result<Option<String>> {
    let file = File::open(&s.path)?;
    let size = s.want.len() as u64;
    tally.seeks += 1;
    let mut at = 0;
    while at < size {
        let data = match seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => size,
            Err(e) => return Err(e.into()),
        };
        if let Some(first) = s.want[at as usize..data as usize]
            .iter()
            .position(|b| *b != 0)
        {
            let first = at + first as u64;
            return Ok(Some(format!(
                "byte {first} is in a hole from {at} to {data}"
            )));
        }
        if data == size {
            break;
        }
        at = seek(&file, SeekFrom::Hole(data))?;
        if at <= data || at > size {
            return Ok(Some(format!(
                "the hole after {data} starts at {at}, size {size}"
            )));
        }
    }
    Ok(None)
}

/// Returns nonzero bytes that depend on the operation and the offset.
fn pattern(number: u64, at: u64, len: u64) -> Vec<u8> {
    (at..at + len)
        .map(|at| (number.wrapping_mul(31) + at * 7 + at / 256) as u8 | 1)
        .collect()
}

fn put(want: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let (at, end) = (at as usize, at as usize + bytes.len());
    if want.len() < end {
        want.resize(end, 0);
    }
    want[at..end].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intact_filesystem_passes_and_a_wrong_byte_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            dir: dir.path().to_owned(),
            seed: 5,
            operations: 3000,
            copy_every: 100,
        };
        let tally = run(&options).unwrap().unwrap();
        assert!(
            tally.mapped > 300 && tally.compared_bytes > 1 << 20,
            "{tally:?}"
        );
        assert!(tally.seeks > 200 && tally.copies > 15, "{tally:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let mut tally = Tally::default();
        assert_eq!(differs(b"abcd", 1, b"bcd", &mut tally), None);
        assert!(
            differs(b"abcd", 1, b"bxd", &mut tally)
                .unwrap()
                .contains("first at 2")
        );
    }
}
