//! Runs: ranges of a file that repeat an earlier file, and the positions where clusters must begin
//! to be shared.
//!
//! ```text
//! chunks, in the order of the files ──► raw runs ──► compared and extended ──► selected: plans
//!                                       serial       parallel, byte by byte    serial
//! ```
//!
//! An extent refers to a whole cluster and uses its decoded data from the first byte. A cluster of
//! the earlier file must therefore begin where the run does, at a *stop*. A stop costs about half a
//! block, because the cluster before it ends early, and the same again in the later file. Runs that
//! save less are not used.
//!
//! Files of the base come first. Their clusters exist already, so a run can begin only at one of
//! their boundaries.

use super::chunking::Chunker;
use crate::Result;
use crate::base::BaseClusters;
use crate::pack::content::{FileContent, OpenContent};
use crate::pack::shared_clusters::{FilePlan, Owner, PlannedRun, Stop};
use crate::tree::InodeId;
use crate::tree::order::PolicyId;
use hashbrown::{HashMap, HashTable};

/// Chunks of one file, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Chunks {
    /// Hash of each chunk.
    pub(super) hashes: Vec<u64>,
    /// End position of each chunk. Unit: bytes.
    pub(super) ends: Vec<u64>,
    /// Estimated compression ratio, from a sample, in sixteenths.
    pub(super) ratio: u32,
}

impl Chunks {
    /// Salts the hashes, so that chunks match only in files with the same algorithm.
    pub(super) fn salt_with_algorithm(&mut self, algorithm: Option<u8>) {
        let salt = algorithm.map_or(0, |a| u64::from(a) + 1) << 61;
        for hash in &mut self.hashes {
            *hash ^= salt;
        }
    }

    /// Start position of chunk `i`. Unit: bytes.
    fn start(&self, i: usize) -> u64 {
        if i == 0 { 0 } else { self.ends[i - 1] }
    }
}

/// Memory per chunk, including its entry in the hash table. Unit: bytes.
pub(super) const CHUNK_COST: u64 = 32;

/// Range of `file` that may repeat an earlier range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkRun {
    /// Index of the file. Fits: inodes are counted in 32 bits.
    pub(super) file: u32,
    /// Start of the range in the file. Unit: bytes.
    pub(super) at: u64,
    /// Index of the file that owns the data.
    pub(super) owner: u32,
    /// Start in the owner; within one file an earlier position. Unit: bytes.
    pub(super) owner_at: u64,
    /// Length of the range. Unit: bytes.
    pub(super) len: u64,
}

/// Finds runs of equal hashes in `files`, which are in the order of their data. The first `base`
/// files are those of the base, which share nothing themselves.
pub(super) fn find(files: &[Chunks], base: usize) -> Vec<ChunkRun> {
    let total: usize = files.iter().map(|c| c.hashes.len()).sum();
    // File and chunk of the first occurrence of each hash.
    let mut table: HashTable<(u32, u32)> = HashTable::with_capacity(total);
    let hash_of = |(file, chunk): &(u32, u32)| files[*file as usize].hashes[*chunk as usize];
    let mut runs: Vec<ChunkRun> = Vec::new();
    for (i, chunks) in files.iter().enumerate() {
        let file = i as u32;
        // Chunk of the owner that would continue the last run.
        let mut next: Option<(u32, u32)> = None;
        for (j, hash) in chunks.hashes.iter().enumerate() {
            let (at, len) = (chunks.start(j), chunks.ends[j] - chunks.start(j));
            let continues = next.filter(|n| {
                files[n.0 as usize].hashes.get(n.1 as usize) == Some(hash)
                    && (n.0, n.1) < (file, j as u32)
            });
            let found = continues.or_else(|| table.find(*hash, |e| hash_of(e) == *hash).copied());
            match found {
                Some(_) if i < base => {}
                Some((owner, chunk)) => {
                    match runs.last_mut() {
                        Some(run) if continues.is_some() => run.len += len,
                        _ => {
                            runs.push(ChunkRun {
                                file,
                                at,
                                owner,
                                owner_at: files[owner as usize].start(chunk as usize),
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

/// Bytes compared at a time.
const WINDOW: usize = 128 << 10;

/// Compares a run byte by byte and extends it by up to `widen` bytes at both ends. Returns `None`
/// if the hashes collided.
pub(super) fn confirm(
    run: ChunkRun,
    sizes: (u64, u64),
    (file, owner): (&OpenContent<'_>, &OpenContent<'_>),
    widen: u64,
    buffers: &mut [Vec<u8>; 2],
) -> Result<Option<ChunkRun>> {
    let load = |buffers: &mut [Vec<u8>; 2], at: u64, owner_at: u64, len: usize| -> Result<()> {
        let [ours, theirs] = buffers;
        ours.resize(len, 0);
        theirs.resize(len, 0);
        file.read_exact(ours, at)?;
        owner.read_exact(theirs, owner_at)
    };
    // Extend past the end of the run, too. Within one file, the source ends before its repetition.
    let remaining = (sizes.0 - run.at).min(sizes.1 - run.owner_at);
    let limit = remaining.min(run.len + widen);
    let mut len = 0;
    while len < limit {
        // Fits: bounded by the window.
        let n = (limit - len).min(WINDOW as u64) as usize;
        load(buffers, run.at + len, run.owner_at + len, n)?;
        let same = common_prefix(&buffers[0], &buffers[1]);
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
    Ok(Some(ChunkRun {
        at: run.at - back,
        owner_at: run.owner_at - back,
        len: len + back,
        ..run
    }))
}

/// Length of the common prefix of two slices.
fn common_prefix(a: &[u8], b: &[u8]) -> usize {
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

/// Size, segments and compression of a file, for planning.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentShape {
    /// File or base file that owns the data.
    pub(super) owner: Owner,
    /// File size. Unit: bytes.
    pub(super) size: u64,
    /// Length of the part with clusters of its own; the tail after it is in the packed inode. Unit:
    /// bytes.
    pub(super) own: u64,
    /// Segment size: the unit of encoding. Unit: bytes.
    pub(super) segment: u64,
    /// Compression policy. Only files with the same policy share clusters, except with the base.
    pub(super) policy: PolicyId,
    /// Algorithm number; `None` stores the file uncompressed. Only files with the same algorithm
    /// share clusters.
    pub(super) algorithm: Option<u8>,
    /// Estimated compression ratio in sixteenths.
    pub(super) ratio: u32,
}

/// Cost of a shared run in the sharing file: one cluster ends early and one starts anew. Unit:
/// bytes of image.
const RUN_COST: u64 = 6 << 10;
/// Cost of a new stop in the earlier file. Unit: bytes of image.
const STOP_COST: u64 = 3 << 10;
/// Additional cost per block of the file if its index is not compact. Unit: bytes.
const INDEX_COST: u64 = 6;

impl SegmentShape {
    /// True if a file of this shape may use clusters of `owner`.
    fn takes(&self, owner: &Self) -> bool {
        match owner.owner {
            Owner::File(_) => self.policy == owner.policy,
            Owner::Base(_) => self.algorithm == owner.algorithm,
        }
    }
}

/// Selects the runs that save space. `runs` are confirmed and in the order of [`find`]; `base`
/// holds the clusters of the base files that they name. Returns the plans of the files that take
/// part.
pub(super) fn select_runs(
    runs: &[ChunkRun],
    shapes: &[Option<SegmentShape>],
    base: &HashMap<u32, BaseClusters>,
    block: u64,
) -> HashMap<InodeId, FilePlan> {
    // `selected` holds ascending runs by file; `stops` holds required cluster starts by owner.
    let mut selected: HashMap<u32, Vec<ChunkRun>> = HashMap::new();
    let mut stops: HashMap<u32, Vec<u64>> = HashMap::new();
    for runs in runs.chunk_by(|a, b| a.file == b.file) {
        let file = runs[0].file;
        let Some(shape) = shapes[file as usize] else {
            continue;
        };
        let mut covered = 0;
        let mut saved = 0;
        let mut file_runs: Vec<ChunkRun> = Vec::new();
        let mut pieces = Vec::new();
        for run in runs {
            let Some(mut run) = clip_to_own_clusters(*run, shapes) else {
                continue;
            };
            let skip = covered.max(run.at) - run.at;
            if run.len <= skip {
                continue;
            }
            (run.at, run.owner_at, run.len) = (run.at + skip, run.owner_at + skip, run.len - skip);
            pieces.clear();
            resolve_owner(run, &selected, &file_runs, &mut pieces);
            let cut: Vec<ChunkRun> = pieces
                .drain(..)
                .filter_map(|r| align_to_base_cluster(r, base))
                .flat_map(|r| split_at_segments(r, &shape, shapes))
                .filter_map(|r| align_to_base_cluster(r, base))
                .collect();
            for run in cut {
                let Some(owner) = shapes[run.owner as usize] else {
                    continue;
                };
                if !shape.takes(&owner) {
                    continue;
                }
                let saving = run.len * 16 / u64::from(owner.ratio.max(16));
                let known = run.owner_at.is_multiple_of(owner.segment)
                    || matches!(owner.owner, Owner::Base(_))
                    || stops
                        .get(&run.owner)
                        .is_some_and(|s| s.binary_search(&run.owner_at).is_ok());
                let cost = RUN_COST + if known { 0 } else { STOP_COST };
                if saving < cost || run.len < 3 * block {
                    continue;
                }
                saved += saving - cost;
                covered = run.at + run.len;
                file_runs.push(run);
            }
        }
        if file_runs.is_empty() || saved < INDEX_COST * shape.size.div_ceil(block) {
            continue;
        }
        let of_image = |r: &&ChunkRun| !base.contains_key(&r.owner);
        for run in file_runs.iter().filter(of_image) {
            let stops = stops.entry(run.owner).or_default();
            if let Err(i) = stops.binary_search(&run.owner_at) {
                stops.insert(i, run.owner_at);
            }
        }
        selected.insert(file, file_runs);
    }
    plans(&selected, &stops, shapes)
}

/// Clips a run to the parts of both files that have clusters of their own.
fn clip_to_own_clusters(run: ChunkRun, shapes: &[Option<SegmentShape>]) -> Option<ChunkRun> {
    let own = |i: u32| shapes[i as usize].map(|s| s.own);
    let len = run
        .len
        .min(own(run.file)?.saturating_sub(run.at))
        .min(own(run.owner)?.saturating_sub(run.owner_at));
    (len > 0).then_some(ChunkRun { len, ..run })
}

/// Rewrites the start of a run to refer to the file that stores the data: a range that an owner
/// shares itself has no clusters there.
fn resolve_owner(
    run: ChunkRun,
    selected: &HashMap<u32, Vec<ChunkRun>>,
    file_runs: &[ChunkRun],
    out: &mut Vec<ChunkRun>,
) {
    let mut rest = run;
    // Each round consumes at least a byte, and there are at most as many rounds as the owner has
    // runs.
    while rest.len > 0 {
        let of_owner = if rest.owner == rest.file {
            file_runs
        } else {
            selected.get(&rest.owner).map_or(&[][..], |r| &r[..])
        };
        let i = of_owner.partition_point(|r| r.at + r.len <= rest.owner_at);
        match of_owner.get(i) {
            Some(r) if r.at <= rest.owner_at => {
                let skip = rest.owner_at - r.at;
                let len = (r.len - skip).min(rest.len);
                out.push(ChunkRun {
                    owner: r.owner,
                    owner_at: r.owner_at + skip,
                    len,
                    ..rest
                });
                rest = ChunkRun {
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

/// Advances a run in the base to the next cluster boundary.
fn align_to_base_cluster(run: ChunkRun, base: &HashMap<u32, BaseClusters>) -> Option<ChunkRun> {
    let Some(clusters) = base.get(&run.owner) else {
        return Some(run);
    };
    let skip = clusters.begin(run.owner_at)? - run.owner_at;
    (skip < run.len).then(|| ChunkRun {
        at: run.at + skip,
        owner_at: run.owner_at + skip,
        len: run.len - skip,
        ..run
    })
}

/// Splits a run at the segment boundaries of both files.
fn split_at_segments(
    run: ChunkRun,
    shape: &SegmentShape,
    shapes: &[Option<SegmentShape>],
) -> Vec<ChunkRun> {
    let Some(owner) = shapes[run.owner as usize] else {
        return Vec::new();
    };
    let (mut rest, mut out) = (run, Vec::new());
    while rest.len > 0 {
        let remaining = |at: u64, segment: u64| segment - at % segment;
        let len = rest
            .len
            .min(remaining(rest.at, shape.segment))
            .min(remaining(rest.owner_at, owner.segment));
        out.push(ChunkRun { len, ..rest });
        rest = ChunkRun {
            at: rest.at + len,
            owner_at: rest.owner_at + len,
            len: rest.len - len,
            ..rest
        };
    }
    out
}

fn plans(
    selected: &HashMap<u32, Vec<ChunkRun>>,
    stops: &HashMap<u32, Vec<u64>>,
    shapes: &[Option<SegmentShape>],
) -> HashMap<InodeId, FilePlan> {
    let mut plans: HashMap<InodeId, FilePlan> = HashMap::new();
    let owner_of = |i: u32| {
        let shape = shapes[i as usize].as_ref();
        shape.expect("only files with chunks are selected").owner
    };
    let file_of = |i: u32| match owner_of(i) {
        Owner::File(file) => file,
        Owner::Base(_) => unreachable!("the base's files share nothing and have no stops"),
    };
    for (owner, positions) in stops {
        let plan = plans.entry(file_of(*owner)).or_default();
        plan.owner = true;
        plan.stops
            .extend(positions.iter().map(|at| Stop { at: *at, run: None }));
    }
    for (file, runs) in selected {
        let plan = plans.entry(file_of(*file)).or_default();
        plan.stops.extend(runs.iter().map(|run| Stop {
            at: run.at,
            run: Some(PlannedRun {
                owner: owner_of(run.owner),
                at: run.owner_at,
                len: run.len,
            }),
        }));
    }
    for plan in plans.values_mut() {
        // A stop is redundant where a run starts.
        plan.stops.sort_by_key(|s| (s.at, s.run.is_none()));
        plan.stops.dedup_by_key(|s| s.at);
    }
    plans
}

/// Splits a content into chunks. `ratio` is called once, with bytes from the middle.
pub(super) fn chunks(
    content: &FileContent,
    size: u64,
    chunker: Chunker,
    buf: &mut Vec<u8>,
    seen: &mut dyn FnMut(&[u8]) -> Result<()>,
    ratio: &mut dyn FnMut(&[u8]) -> u32,
) -> Result<Chunks> {
    const READ: usize = 1 << 20;
    let reader = content.open()?;
    let mut found = Chunks {
        ratio: 16,
        ..Chunks::default()
    };
    buf.resize(READ.max(2 * chunker.max()), 0);
    // Number of valid bytes in the buffer, and their position in the content.
    let (mut filled, mut start, mut sampled) = (0usize, 0u64, false);
    loop {
        let n = (buf.len() - filled)
            .min(usize::try_from(size - start - filled as u64).unwrap_or(usize::MAX));
        let from = start + filled as u64;
        reader.read_exact(&mut buf[filled..filled + n], from)?;
        seen(&buf[filled..filled + n])?;
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
        while at < filled && (end || filled - at > chunker.max()) {
            let len = chunker.cut(&buf[at..filled]);
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
    use crate::pack::address::GrainAddr;
    use crate::pack::piece::ShortPiece;
    use crate::pack::shared_clusters::{PartKey, Posted};
    use tuff_format::cluster::HeadKind;

    fn chunks(list: &[(u64, u64)]) -> Chunks {
        let mut at = 0;
        let ends = list.iter().map(|(_, len)| {
            at += len;
            at
        });
        Chunks {
            ends: ends.collect(),
            hashes: list.iter().map(|(hash, _)| *hash).collect(),
            ratio: 32,
        }
    }

    fn run(file: u32, at: u64, owner: u32, owner_at: u64, len: u64) -> ChunkRun {
        ChunkRun {
            file,
            at,
            owner,
            owner_at,
            len,
        }
    }

    fn shape(file: InodeId, size: u64) -> Option<SegmentShape> {
        Some(SegmentShape {
            owner: Owner::File(file),
            size,
            own: size,
            segment: 1 << 20,
            policy: PolicyId::DEFAULT,
            algorithm: Some(0),
            ratio: 32,
        })
    }

    #[test]
    fn neighbouring_chunks_with_neighbouring_owners_are_one_run() {
        let files = [
            chunks(&[(1, 10), (2, 20), (3, 30), (4, 40)]),
            chunks(&[]),
            chunks(&[(9, 5), (2, 20), (3, 30), (8, 1), (4, 40)]),
            chunks(&[(8, 1), (4, 40), (8, 1)]),
        ];
        let expected = [
            run(2, 5, 0, 10, 50),
            run(2, 56, 0, 60, 40),
            run(3, 0, 2, 55, 41),
            run(3, 41, 2, 55, 1),
        ];
        assert_eq!(find(&files, 0), expected);
        // The last run is found in the file before it, which belongs to the base.
        assert_eq!(find(&files, 3), expected[2..]);
    }

    #[test]
    fn a_file_may_repeat_itself() {
        let files = [chunks(&[(1, 10), (2, 20), (1, 10), (2, 20)])];
        assert_eq!(find(&files, 0), [run(0, 30, 0, 0, 30)]);
        assert_eq!(find(&files, 1), []);
    }

    #[test]
    fn runs_are_compared_and_widened() {
        let ours = FileContent::Bytes([&b"xx--"[..], &[7; 300_000], b"++A"].concat().into());
        let theirs = FileContent::Bytes([&b"-y--"[..], &[7; 300_000], b"++B"].concat().into());
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
    fn a_run_in_a_shared_range_names_the_first_file() {
        let shapes = [shape(10, 500_000), shape(11, 500_000), shape(12, 500_000)];
        let runs = [
            run(1, 100_000, 0, 200_000, 100_000),
            run(2, 0, 1, 150_000, 150_000),
            // Saves less than it costs.
            run(2, 300_000, 0, 0, 5_000),
        ];
        let plans = select_runs(&runs, &shapes, &HashMap::new(), 4096);
        let first = PlannedRun {
            owner: Owner::File(10),
            at: 250_000,
            len: 50_000,
        };
        let rest = PlannedRun {
            owner: Owner::File(11),
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
    fn a_run_in_the_base_begins_at_a_cluster() {
        let cluster = |i: u32, blocks: u16| Posted {
            at: u64::from(i) * 50_000,
            piece: ShortPiece::own(50_000, blocks.into(), HeadKind::Head1),
            full: 50_000,
            home: (PartKey::Base(0), i),
        };
        let clusters = BaseClusters {
            algorithm: Some(0),
            // The third cluster has no blocks and cannot be used.
            posted: vec![cluster(0, 4), cluster(1, 4), cluster(2, 0), cluster(3, 4)],
            places: [7, 11, 0, 15].map(GrainAddr::image).to_vec(),
        };
        let old = shape(0, clusters.len()).map(|s| SegmentShape {
            owner: Owner::Base(0),
            segment: 1 << 63,
            ..s
        });
        let base = HashMap::from([(0, clusters)]);
        let shapes = [old, shape(11, 500_000)];
        let stops = |runs: &[ChunkRun]| {
            let plans = select_runs(runs, &shapes, &base, 4096);
            let stops = plans.get(&11).map_or(&[][..], |plan| &plan.stops);
            let of = |s: &Stop| s.run.map(|r| (s.at, r.owner, r.at, r.len));
            stops.iter().filter_map(of).collect::<Vec<_>>()
        };
        let owner = Owner::Base(0);
        assert_eq!(
            stops(&[
                run(1, 1_000, 0, 0, 60_000),
                run(1, 200_000, 0, 20_000, 90_000)
            ]),
            [(1_000, owner, 0, 60_000), (230_000, owner, 50_000, 60_000)]
        );
        assert_eq!(
            stops(&[run(1, 9, 0, 90_000, 110_000)]),
            [(60_009, owner, 150_000, 50_000)]
        );
        // No cluster begins in this run, and clusters of another algorithm do not match.
        assert_eq!(stops(&[run(1, 9, 0, 51_000, 60_000)]), []);
        let mut other = shapes;
        other[1].as_mut().unwrap().algorithm = Some(3);
        assert!(select_runs(&[run(1, 0, 0, 0, 100_000)], &other, &base, 4096).is_empty());
    }

    #[test]
    fn runs_end_at_segment_boundaries() {
        let shapes = [shape(10, 3 << 20), shape(11, 3 << 20)];
        let runs = [run(1, 0, 0, 1 << 19, 2 << 20)];
        let plans = select_runs(&runs, &shapes, &HashMap::new(), 4096);
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
