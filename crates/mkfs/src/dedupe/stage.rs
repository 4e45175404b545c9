//! The dedupe stage: decides for each file of the tree where its data comes from.

use super::auto::Choice;
use super::scan::{DedupeCandidate, DedupeSettings, sums};
use super::{DedupePlan, find_duplicates};
use crate::base::{BaseData, BaseInode, Bases};
use crate::environment::Environment;
use crate::options::{Dedupe, Options};
use crate::pack::files::TreeFiles;
use crate::pack::memory_budget;
use crate::pack::piece::TailPolicy;
use crate::pack::segment_size;
use crate::patch::kept_clusters::{KeptClusters, keep_clusters};
use crate::patch::unchanged::Unchanged;
use crate::source::Content;
use crate::source::placed::PlacedTree;
use crate::tree::order::PolicyId;
use crate::tree::{InodeId, Tree};
use crate::{Place, Result};
use hashbrown::{HashMap, HashSet};
use std::num::NonZeroU8;
use std::sync::Arc;
use tuff_codec::Method;
use tuff_erofs::walk::shown;
use tuff_format::Nid;
use tuff_format::features::Feature;
use xxhash_rust::xxh3::xxh3_64;

/// Minimum length in bytes of a tail that goes into the packed inode because of its similarity.
const TAIL_LEN_MIN: u64 = 16 << 10;

/// Data that exists before the build.
pub(crate) struct StoredData<'a> {
    pub(crate) bases: Option<&'a Arc<Bases>>,
    /// For each source, the number of the base whose data it refers to in place.
    pub(crate) in_place: Vec<Option<u16>>,
    /// Inodes of a patched image that stay in place.
    pub(crate) unchanged: Option<&'a Unchanged>,
    /// The only source, if its data lies in the bases.
    pub(crate) placed: Option<&'a dyn PlacedTree>,
}

/// Decisions about the data of all files.
pub(crate) struct Decisions {
    /// Files to pack, in the order of their data.
    pub(crate) order: Vec<InodeId>,
    /// Files whose data the only source places in the bases. There may be millions, so that it says where only as they are packed.
    pub(crate) placed: Vec<InodeId>,
    /// Files that refer to their data in a base, with the checksum of their content.
    pub(crate) in_place: Vec<(InodeId, BaseData, Option<u64>)>,
    /// Edited files of a patched image that keep some of their clusters.
    pub(crate) kept: HashMap<InodeId, KeptClusters>,
    /// Sharing between the files, and with bases.
    pub(crate) plan: DedupePlan,
    /// Files that a start reads, at the end of the order.
    pub(crate) listed: HashSet<InodeId>,
}

impl StoredData<'_> {
    /// Returns the place that the only source states for the data of a file. `None` if it states none.
    pub(crate) fn placed(&self, tree: &Tree, inode: InodeId) -> Result<Option<BaseData>> {
        let (Some(bases), Some(placed)) = (self.bases, self.placed) else {
            return Ok(None);
        };
        let Content::Range { offset: key } = tree.content(inode) else {
            return Ok(None);
        };
        let data = bases.placed(tree.size(inode), &placed.data(key)?);
        let data = data.map_err(|e| {
            e.within(Place::path(shown(&tree.path(inode))))
                .within(Place::file(placed.name()))
        })?;
        Ok(Some(data))
    }
}

impl Decisions {
    /// Returns files and bytes for which the fast compression was chosen, and for which none was.
    pub(crate) fn chosen(&self, files: &TreeFiles<'_>) -> [(u64, u64); 2] {
        let mut chosen = [(0, 0); 2];
        for (inode, choice) in &self.plan.choices {
            let (count, bytes) = &mut chosen[usize::from(*choice == Choice::Stored)];
            (*count, *bytes) = (*count + 1, *bytes + files.tree.size(*inode));
        }
        chosen
    }
}

/// Decides where the data of the files in `order` comes from. Those in `listed` are at its end.
pub(crate) fn decide(
    files: &TreeFiles<'_>,
    mut order: Vec<InodeId>,
    listed: HashSet<InodeId>,
    stored: &StoredData<'_>,
    environment: &Environment<'_>,
) -> Result<Decisions> {
    environment.progress.stage("compare");
    let settings = settings(files.options, environment);
    let is_placed = |inode: &InodeId| {
        let states_places = stored.placed.is_some() && stored.bases.is_some();
        states_places && matches!(files.tree.content(*inode), Content::Range { .. })
    };
    let placed: Vec<InodeId> = order.iter().copied().filter(is_placed).collect();
    order.retain(|inode| !is_placed(inode));
    let in_place = leave_in_place(files, &order, stored, &settings)?;
    let done: HashSet<InodeId> = in_place.iter().map(|(inode, ..)| *inode).collect();
    order.retain(|inode| !done.contains(inode));
    let kept = match (stored.bases, stored.unchanged) {
        (Some(bases), Some(unchanged)) if settings.dedupe == Dedupe::Content => {
            keep_clusters(files, bases, unchanged, &order)?
        }
        _ => HashMap::new(),
    };
    let candidates: Vec<DedupeCandidate> = order
        .iter()
        .filter(|i| !files.is_sparse(**i) && !kept.contains_key(*i))
        .map(|i| DedupeCandidate {
            listed: listed.contains(i),
            ..candidate(files, *i)
        })
        .collect();
    let has_new_sources = stored.in_place.iter().any(Option::is_none);
    // An image that stays in place is identified by inode, so its contents need no index.
    let known = stored
        .bases
        .filter(|_| has_new_sources || !files.options.dedupe.bases.is_empty());
    let plan = find_duplicates(candidates, &settings, known, &|inode| {
        environment.progress.check()?;
        files.contents.readable(files.tree, inode)
    })?;
    Ok(Decisions {
        order,
        placed,
        in_place,
        kept,
        plan,
        listed,
    })
}

fn settings<'a>(options: &Options, environment: &Environment<'a>) -> DedupeSettings<'a> {
    let default = options.compression.default;
    DedupeSettings {
        dedupe: options.dedupe.mode,
        tail_len: tail_len(options),
        fragment_cut: options.layout.fragment_cut,
        fragment_cluster: options.layout.fragment_cluster,
        memory: memory_budget::memory(options) / 16,
        base_memory: memory_budget::eighth(options),
        block: options.block.size(),
        threads: environment.threads,
        shares_stored: options.layout.blob.is_none()
            && options.kernel.supports(Feature::CHUNKED_FILE),
        chunk: options.layout.chunk,
        sums: options.output.verify,
        progress: environment.progress,
        entropy_coding: default.is_some_and(|c| !matches!(c.method, Method::Lz4 | Method::Lz4hc)),
        dense_and_fast: options.compression.auto.and_then(|auto| {
            let dense_and_fast = [default?, auto.fast(options)?];
            Some(dense_and_fast.map(|c| options.encoder(c, options.compression.cluster)))
        }),
    }
}

/// Finds the files of base sources, and of a patched image, whose data can stay in place.
fn leave_in_place(
    files: &TreeFiles<'_>,
    order: &[InodeId],
    stored: &StoredData<'_>,
    settings: &DedupeSettings<'_>,
) -> Result<Vec<(InodeId, BaseData, Option<u64>)>> {
    let Some(bases) = stored.bases else {
        return Ok(Vec::new());
    };
    let base_inode = |inode: &InodeId| {
        let base = stored.in_place.get(usize::from(files.tree.layer(*inode)));
        match (base, files.tree.content(*inode).parts().0) {
            (Some(Some(base)), Content::Range { offset: nid }) => {
                let (base, nid) = (*base, Nid(*nid));
                Some((*inode, BaseInode { base, nid }))
            }
            _ => {
                let same = stored.unchanged?.same_content(*inode)?;
                (files.tree.size(*inode) > 0).then_some((*inode, same))
            }
        }
    };
    let candidates: Vec<(InodeId, BaseInode)> = order.iter().filter_map(base_inode).collect();
    let contents: Vec<(InodeId, u64)> = match settings.sums {
        true => candidates
            .iter()
            .map(|(i, _)| (*i, files.tree.size(*i)))
            .collect(),
        false => Vec::new(),
    };
    let sums = sums(&contents, settings, &|inode| {
        files.contents.readable(files.tree, inode)
    })?;
    let mut found = Vec::new();
    for (i, (inode, old)) in candidates.into_iter().enumerate() {
        settings.progress.check()?;
        let data = match stored.unchanged {
            Some(_) => bases.patched_data(old)?,
            None => bases.data(old, false)?,
        };
        if let Some(data) = data {
            settings.progress.add_bytes(files.tree.size(inode));
            found.push((inode, data, sums.get(i).copied()));
        }
    }
    Ok(found)
}

/// Returns the length in bytes of tails that may go into the packed inode because of their similarity.
///
/// Each must lie in the LZ4 window of the tail before it, and at least one and a half must fit into a cluster.
fn tail_len(options: &Options) -> u64 {
    let cluster = options
        .compression
        .cluster
        .min(2 * options.similar_cluster());
    cluster.min(64 << 10) as u64 / 8 * 7
}

/// Returns the properties of a file that the analysis uses.
fn candidate(files: &TreeFiles<'_>, inode: InodeId) -> DedupeCandidate {
    let (options, tree) = (files.options, files.tree);
    let (number, policy) = files.policy(inode);
    let size = tree.size(inode);
    let packed = policy.packs_whole(size);
    let cut = !packed && policy.spec.is_some_and(|s| size > s.cluster as u64);
    let tail_len = tail_len(options);
    DedupeCandidate {
        file: inode,
        size,
        policy: number,
        packed,
        tail: cut
            && options.dedupe.mode == Dedupe::Content
            && matches!(policy.tail, TailPolicy::Fragment(_))
            && files.policies.packed.spec.is_some()
            && tail_len >= TAIL_LEN_MIN
            && (tail_len + options.block.size()..=segment_size(policy)).contains(&size),
        // The low bits of the hash are enough.
        name: xxh3_64(tree.last_name(inode)) as u16,
        // Fits: a segment is a power of two, a few MiB.
        segment_bits: cut
            .then(|| NonZeroU8::new(segment_size(policy).ilog2() as u8))
            .flatten(),
        algorithm: policy.spec.map(|s| s.method.algorithm()),
        auto: options.compression.auto.is_some()
            && number == PolicyId::DEFAULT
            && policy.spec.is_some(),
        listed: false,
    }
}
