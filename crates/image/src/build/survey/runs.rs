//! Runs: stretches of a file that an earlier file has, too, and where clusters must begin so that they can be shared.
//!
//! ```text
//!  chunks, in the order of the files ──► raw runs ──► compared and widened ──► settled: plans
//!             serial                                  parallel, byte by byte       serial
//! ```
//!
//! A reference names a cluster and takes what it decodes to from its first byte on, so a cluster of the earlier file must
//! begin where the run does: a *stop*. A stop costs about half a block there, where the cluster before it ends early, and
//! the same in the later file. Runs that save less are left alone.

use super::chunk::Cutter;
use crate::Result;
use crate::build::pack::input::{Input, Reader};
use crate::build::pack::spans::{FilePlan, PlannedRun, Stop};
use crate::build::tree::InodeId;
use hashbrown::{HashMap, HashTable};

/// Chunks of one file, in order.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    /// What they hash to.
    pub(super) hashes: Vec<u64>,
    /// Where they end. Unit: bytes.
    pub(super) ends: Vec<u64>,
    /// How many bytes of the file one byte of a cluster may hold, as a sample says. Unit: sixteenths.
    pub(super) ratio: u32,
}

impl Chunks {
    /// Where chunk `i` starts. Unit: bytes.
    fn start(&self, i: usize) -> u64 {
        if i == 0 { 0 } else { self.ends[i - 1] }
    }
}

/// Memory for each chunk, with its place in the table. Unit: bytes.
pub(super) const CHUNK_COST: u64 = 32;

/// A stretch that `file` may share with an earlier place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Index of the file. Fits: inodes are counted in 32 bits.
    pub(super) file: u32,
    /// Position in it.
    pub(super) at: u64,
    /// Index of the file that has it.
    pub(super) owner: u32,
    /// Position there; in the same file an earlier one.
    pub(super) owner_at: u64,
    /// Unit: bytes.
    pub(super) len: u64,
}

/// Finds runs of equal hashes. `files` in the order of their data, those without chunks are `None`.
pub(super) fn find(files: &[Option<Chunks>]) -> Vec<Run> {
    let total: usize = files.iter().flatten().map(|c| c.hashes.len()).sum();
    // File and chunk of each first hash.
    let mut table: HashTable<(u32, u32)> = HashTable::with_capacity(total);
    let hash_of = |(file, chunk): &(u32, u32)| {
        files[*file as usize]
            .as_ref()
            .map_or(0, |c| c.hashes[*chunk as usize])
    };
    let mut runs: Vec<Run> = Vec::new();
    for (i, chunks) in files.iter().enumerate() {
        let Some(chunks) = chunks else { continue };
        let file = i as u32;
        // The owner's chunk that would continue the last run.
        let mut next: Option<(u32, u32)> = None;
        for (j, hash) in chunks.hashes.iter().enumerate() {
            let (at, len) = (chunks.start(j), chunks.ends[j] - chunks.start(j));
            let continues = next.filter(|n| {
                let owner = files[n.0 as usize].as_ref();
                owner.is_some_and(|c| c.hashes.get(n.1 as usize) == Some(hash))
                    && (n.0, n.1) < (file, j as u32)
            });
            let found = continues.or_else(|| table.find(*hash, |e| hash_of(e) == *hash).copied());
            match found {
                Some((owner, chunk)) => {
                    match runs.last_mut() {
                        Some(run) if continues.is_some() => run.len += len,
                        _ => {
                            let owner_at = files[owner as usize]
                                .as_ref()
                                .map_or(0, |c| c.start(chunk as usize));
                            runs.push(Run {
                                file,
                                at,
                                owner,
                                owner_at,
                                len,
                            });
                        }
                    }
                    next = Some((owner, chunk + 1));
                }
                None => {
                    table.insert_unique(*hash, (file, j as u32), hash_of);
                    next = None;
                }
            }
        }
    }
    runs
}

/// What is compared at a time. Unit: bytes.
const WINDOW: usize = 128 << 10;

/// Makes sure that a run is one, byte by byte, and widens it by up to `widen` bytes at both ends. `None`: hashes were equal
/// and the bytes are not.
pub(super) fn confirm(
    run: Run,
    sizes: (u64, u64),
    (file, owner): (&Reader<'_>, &Reader<'_>),
    widen: u64,
    buffers: &mut [Vec<u8>; 2],
) -> Result<Option<Run>> {
    let load = |buffers: &mut [Vec<u8>; 2], at: u64, owner_at: u64, len: usize| -> Result<()> {
        let [ours, theirs] = buffers;
        ours.resize(len, 0);
        theirs.resize(len, 0);
        file.read_exact(ours, at)?;
        owner.read_exact(theirs, owner_at)
    };
    // Behind the run, too; a stretch of the same file ends before it is repeated.
    let room = (sizes.0 - run.at).min(sizes.1 - run.owner_at);
    let wanted = room.min(run.len + widen);
    let mut len = 0;
    while len < wanted {
        // Fits: the window does.
        let n = (wanted - len).min(WINDOW as u64) as usize;
        load(buffers, run.at + len, run.owner_at + len, n)?;
        let same = common(&buffers[0], &buffers[1]);
        len += same as u64;
        if same < n {
            break;
        }
    }
    if len < run.len {
        return Ok(None);
    }
    let before = run.at.min(run.owner_at).min(widen) as usize;
    load(
        buffers,
        run.at - before as u64,
        run.owner_at - before as u64,
        before,
    )?;
    let back = buffers[0]
        .iter()
        .rev()
        .zip(buffers[1].iter().rev())
        .take_while(|(a, b)| a == b)
        .count() as u64;
    Ok(Some(Run {
        at: run.at - back,
        owner_at: run.owner_at - back,
        len: len + back,
        ..run
    }))
}

/// Bytes that two slices begin with.
fn common(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = 64;
    let equal = a
        .chunks(STEP)
        .zip(b.chunks(STEP))
        .take_while(|(a, b)| a == b)
        .map(|(a, _)| a.len())
        .sum::<usize>();
    let rest = a[equal..].iter().zip(&b[equal..]);
    equal + rest.take_while(|(a, b)| a == b).count()
}

/// A file as plans see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Which.
    pub(super) file: InodeId,
    /// Unit: bytes.
    pub(super) size: u64,
    /// Length of what has clusters of its own; the end that follows lies in the packed inode. Unit: bytes.
    pub(super) own: u64,
    /// It is encoded in segments of so many bytes.
    pub(super) segment: u64,
    /// Only files with equal numbers share clusters.
    pub(super) policy: u32,
    /// Bytes of the file per sixteen bytes of a cluster.
    pub(super) ratio: u32,
}

/// A shared run costs so much in the file that shares: a cluster that ends early, and one that begins anew. Unit: bytes of
/// image.
const RUN_COST: u64 = 6 << 10;
/// A new stop costs so much in the earlier file. Unit: bytes of image.
const STOP_COST: u64 = 3 << 10;
/// An index that is not compact costs so much more for each block of the file. Unit: bytes.
const INDEX_COST: u64 = 6;

/// Decides which runs are used. `runs` in the order of [`find`], confirmed. Returns the plans of the files that take part.
pub(super) fn settle(
    runs: &[Run],
    shapes: &[Option<Shape>],
    block: u64,
) -> HashMap<InodeId, FilePlan> {
    // By file: its settled runs, ascending. By owner: where clusters must begin.
    let mut settled: HashMap<u32, Vec<Run>> = HashMap::new();
    let mut stops: HashMap<u32, Vec<u64>> = HashMap::new();
    for runs in runs.chunk_by(|a, b| a.file == b.file) {
        let file = runs[0].file;
        let Some(shape) = shapes[file as usize] else {
            continue;
        };
        let mut covered = 0;
        let mut saved = 0;
        let mut mine: Vec<Run> = Vec::new();
        let mut pieces = Vec::new();
        for run in runs {
            let Some(mut run) = of_own(*run, shapes) else {
                continue;
            };
            let skip = covered.max(run.at) - run.at;
            if run.len <= skip {
                continue;
            }
            (run.at, run.owner_at, run.len) = (run.at + skip, run.owner_at + skip, run.len - skip);
            pieces.clear();
            canonical(run, &settled, &mine, &mut pieces);
            let cut: Vec<Run> = pieces
                .drain(..)
                .flat_map(|r| by_segments(r, &shape, shapes))
                .collect();
            for run in cut {
                let Some(owner) = shapes[run.owner as usize] else {
                    continue;
                };
                if owner.policy != shape.policy {
                    continue;
                }
                let saving = run.len * 16 / u64::from(owner.ratio.max(16));
                let known = run.owner_at.is_multiple_of(owner.segment)
                    || stops
                        .get(&run.owner)
                        .is_some_and(|s| s.binary_search(&run.owner_at).is_ok());
                let cost = RUN_COST + if known { 0 } else { STOP_COST };
                if saving < cost || run.len < 3 * block {
                    continue;
                }
                saved += saving - cost;
                covered = run.at + run.len;
                mine.push(run);
            }
        }
        if mine.is_empty() || saved < INDEX_COST * shape.size.div_ceil(block) {
            continue;
        }
        for run in &mine {
            let stops = stops.entry(run.owner).or_default();
            if let Err(i) = stops.binary_search(&run.owner_at) {
                stops.insert(i, run.owner_at);
            }
        }
        settled.insert(file, mine);
    }
    plans(&settled, &stops, shapes)
}

/// The run without what has no clusters of its own in one of the two files.
fn of_own(run: Run, shapes: &[Option<Shape>]) -> Option<Run> {
    let own = |i: u32| shapes[i as usize].map(|s| s.own);
    let len = run
        .len
        .min(own(run.file)?.saturating_sub(run.at))
        .min(own(run.owner)?.saturating_sub(run.owner_at));
    (len > 0).then_some(Run { len, ..run })
}

/// The run in terms of the first place that has each of its bytes, as far as its start matters: what an owner shares itself
/// has no clusters there.
fn canonical(run: Run, settled: &HashMap<u32, Vec<Run>>, mine: &[Run], out: &mut Vec<Run>) {
    let mut rest = run;
    // Each round takes at least a byte, and as many rounds as the owner has runs at most.
    while rest.len > 0 {
        let of_owner = if rest.owner == rest.file {
            mine
        } else {
            settled.get(&rest.owner).map_or(&[][..], |r| &r[..])
        };
        let i = of_owner.partition_point(|r| r.at + r.len <= rest.owner_at);
        match of_owner.get(i) {
            Some(r) if r.at <= rest.owner_at => {
                let skip = rest.owner_at - r.at;
                let len = (r.len - skip).min(rest.len);
                out.push(Run {
                    owner: r.owner,
                    owner_at: r.owner_at + skip,
                    len,
                    ..rest
                });
                rest = Run {
                    at: rest.at + len,
                    owner_at: rest.owner_at + len,
                    len: rest.len - len,
                    ..rest
                };
            }
            _ => {
                out.push(rest);
                return;
            }
        }
    }
}

/// Cuts a run where a segment of either file ends.
fn by_segments(run: Run, shape: &Shape, shapes: &[Option<Shape>]) -> Vec<Run> {
    let Some(owner) = shapes[run.owner as usize] else {
        return Vec::new();
    };
    let (mut rest, mut out) = (run, Vec::new());
    while rest.len > 0 {
        let room = |at: u64, segment: u64| segment - at % segment;
        let len = rest
            .len
            .min(room(rest.at, shape.segment))
            .min(room(rest.owner_at, owner.segment));
        out.push(Run { len, ..rest });
        rest = Run {
            at: rest.at + len,
            owner_at: rest.owner_at + len,
            len: rest.len - len,
            ..rest
        };
    }
    out
}

fn plans(
    settled: &HashMap<u32, Vec<Run>>,
    stops: &HashMap<u32, Vec<u64>>,
    shapes: &[Option<Shape>],
) -> HashMap<InodeId, FilePlan> {
    let mut plans: HashMap<InodeId, FilePlan> = HashMap::new();
    let shape = |i: u32| shapes[i as usize].expect("only files with chunks are settled");
    for (owner, positions) in stops {
        let plan = plans.entry(shape(*owner).file).or_default();
        plan.owner = true;
        plan.stops
            .extend(positions.iter().map(|at| Stop { at: *at, run: None }));
    }
    for (file, runs) in settled {
        let plan = plans.entry(shape(*file).file).or_default();
        plan.stops.extend(runs.iter().map(|run| Stop {
            at: run.at,
            run: Some(PlannedRun {
                owner: shape(run.owner).file,
                at: run.owner_at,
                len: run.len,
            }),
        }));
    }
    for plan in plans.values_mut() {
        // A stop at a run of its own is not needed.
        plan.stops.sort_by_key(|s| (s.at, s.run.is_none()));
        plan.stops.dedup_by_key(|s| s.at);
    }
    plans
}

/// The chunks of some content. `ratio` is asked once, for bytes from the middle.
pub(super) fn chunks(
    input: &Input,
    size: u64,
    cutter: Cutter,
    buf: &mut Vec<u8>,
    seen: &mut dyn FnMut(&[u8]),
    ratio: &mut dyn FnMut(&[u8]) -> u32,
) -> Result<Chunks> {
    const READ: usize = 1 << 20;
    let reader = input.open()?;
    let mut found = Chunks {
        ratio: 16,
        ..Chunks::default()
    };
    buf.resize(READ.max(2 * cutter.max()), 0);
    // Valid bytes of the buffer, and where they start in the content.
    let (mut filled, mut start, mut sampled) = (0usize, 0u64, false);
    loop {
        let n = (buf.len() - filled)
            .min(usize::try_from(size - start - filled as u64).unwrap_or(usize::MAX));
        let from = start + filled as u64;
        reader.read_exact(&mut buf[filled..filled + n], from)?;
        seen(&buf[filled..filled + n]);
        filled += n;
        let end = start + filled as u64 == size;
        if !sampled && (end || start + filled as u64 > size / 2) {
            sampled = true;
            let middle = usize::try_from((size / 2).saturating_sub(start))
                .unwrap_or(0)
                .min(filled);
            found.ratio = ratio(&buf[middle..filled]);
        }
        let mut at = 0;
        while at < filled && (end || filled - at > cutter.max()) {
            let len = cutter.cut(&buf[at..filled]);
            found
                .hashes
                .push(xxhash_rust::xxh3::xxh3_64(&buf[at..at + len]));
            at += len;
            found.ends.push(start + at as u64);
        }
        buf.copy_within(at..filled, 0);
        filled -= at;
        start += at as u64;
        if end {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(list: &[(u64, u64)]) -> Option<Chunks> {
        let mut at = 0;
        let ends = list.iter().map(|(_, len)| {
            at += len;
            at
        });
        Some(Chunks {
            ends: ends.collect(),
            hashes: list.iter().map(|(hash, _)| *hash).collect(),
            ratio: 32,
        })
    }

    fn run(file: u32, at: u64, owner: u32, owner_at: u64, len: u64) -> Run {
        Run {
            file,
            at,
            owner,
            owner_at,
            len,
        }
    }

    fn shape(file: InodeId, size: u64) -> Option<Shape> {
        Some(Shape {
            file,
            size,
            own: size,
            segment: 1 << 20,
            policy: 0,
            ratio: 32,
        })
    }

    #[test]
    fn neighbouring_chunks_with_neighbouring_owners_are_one_run() {
        let files = [
            chunks(&[(1, 10), (2, 20), (3, 30), (4, 40)]),
            None,
            chunks(&[(9, 5), (2, 20), (3, 30), (8, 1), (4, 40)]),
            chunks(&[(8, 1), (4, 40), (8, 1)]),
        ];
        let expected = [
            run(2, 5, 0, 10, 50),
            run(2, 56, 0, 60, 40),
            run(3, 0, 2, 55, 41),
            run(3, 41, 2, 55, 1),
        ];
        assert_eq!(find(&files), expected);
    }

    #[test]
    fn a_file_may_repeat_itself() {
        let files = [chunks(&[(1, 10), (2, 20), (1, 10), (2, 20)])];
        assert_eq!(find(&files), [run(0, 30, 0, 0, 30)]);
    }

    #[test]
    fn runs_are_compared_and_widened() {
        let ours = Input::Bytes([&b"xx--"[..], &[7; 300_000], b"++A"].concat().into());
        let theirs = Input::Bytes([&b"-y--"[..], &[7; 300_000], b"++B"].concat().into());
        let readers = (&ours.open().unwrap(), &theirs.open().unwrap());
        let sizes = (300_007, 300_007);
        let mut buffers = Default::default();
        let found = confirm(
            run(1, 10, 0, 10, 200_000),
            sizes,
            readers,
            150_000,
            &mut buffers,
        );
        assert_eq!(found.unwrap(), Some(run(1, 2, 0, 2, 300_004)));
        let found = confirm(run(1, 0, 0, 0, 200_000), sizes, readers, 0, &mut buffers);
        assert_eq!(found.unwrap(), None);
    }

    #[test]
    fn a_run_in_a_shared_stretch_names_the_first_file() {
        let shapes = [shape(10, 500_000), shape(11, 500_000), shape(12, 500_000)];
        let runs = [
            run(1, 100_000, 0, 200_000, 100_000),
            run(2, 0, 1, 150_000, 150_000),
            // Saves too little.
            run(2, 300_000, 0, 0, 5_000),
        ];
        let plans = settle(&runs, &shapes, 4096);
        let first = PlannedRun {
            owner: 10,
            at: 250_000,
            len: 50_000,
        };
        let rest = PlannedRun {
            owner: 11,
            at: 200_000,
            len: 100_000,
        };
        let stops = [
            Stop {
                at: 0,
                run: Some(first),
            },
            Stop {
                at: 50_000,
                run: Some(rest),
            },
        ];
        assert_eq!(plans[&12].stops, stops);
        assert!(!plans[&12].owner && plans[&11].owner && plans[&10].owner);
        let at = |i: InodeId| plans[&i].stops.iter().map(|s| s.at).collect::<Vec<_>>();
        assert_eq!(at(10), [200_000, 250_000]);
        assert_eq!(at(11), [100_000, 200_000]);
    }

    #[test]
    fn runs_end_where_segments_do() {
        let shapes = [shape(10, 3 << 20), shape(11, 3 << 20)];
        let runs = [run(1, 0, 0, 1 << 19, 2 << 20)];
        let plans = settle(&runs, &shapes, 4096);
        let stops: Vec<_> = plans[&11]
            .stops
            .iter()
            .map(|s| (s.at, s.run.unwrap().len))
            .collect();
        let half = 1 << 19;
        assert_eq!(
            stops,
            [(0, half), (half, half), (2 * half, half), (3 * half, half)]
        );
    }
}
