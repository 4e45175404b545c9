//! Compression policies by path.

use crate::dedupe::auto::Choice;
use crate::options::{Compression, Fragments, Options};
use crate::pack::piece::TailPolicy;
use crate::pack::worker::Policy;
use crate::tree::order::PolicyId;
use crate::tree::paths::Paths;
use std::sync::Arc;
use tuff_codec::EncoderSpec;

/// Policies of a build, created once from its options.
pub(crate) struct Policies {
    pub(crate) default: Arc<Policy>,
    rules: Vec<(Paths, Arc<Policy>)>,
    pub(crate) packed: Arc<Policy>,
    /// Compression of similar files in the packed inode, if it differs.
    similar: Option<EncoderSpec>,
    /// Policies chosen from samples: a compression that decodes faster, and no compression.
    fast: Arc<Policy>,
    pub(crate) stored: Arc<Policy>,
}

impl Policies {
    /// Creates the policies of these options.
    pub(crate) fn new(options: &Options) -> Self {
        let block = options.block.size_usize();
        // The inode and the inline data of a plain extended inode must share a block.
        let inline_max = block - 96;
        let policy = |compression: Option<Compression>, cluster: usize| {
            let tail = match options.layout.fragments {
                Fragments::Tails | Fragments::All => {
                    TailPolicy::Fragment(options.layout.fragment_end_max.unwrap_or(cluster))
                }
                _ if options.layout.tail_packing => TailPolicy::Inline(inline_max),
                _ => TailPolicy::Cluster,
            };
            let whole_max = match options.layout.fragments {
                Fragments::Off => 0,
                Fragments::Tails | Fragments::Small | Fragments::All => cluster as u64,
            };
            // If a tail goes into blocks and the next cluster is block-aligned, only whole blocks save space.
            let unit = if tail == TailPolicy::Cluster && !options.layout.unaligned {
                block
            } else {
                1
            };
            Arc::new(Policy {
                spec: compression.map(|c| EncoderSpec {
                    unit,
                    ..options.encoder(c, cluster)
                }),
                tail,
                whole_max,
                inline_max: if options.layout.inline_data {
                    inline_max
                } else {
                    0
                },
                min_saving: options.compression.min_saving,
                chunk: options.layout.chunk,
            })
        };
        let mut packed =
            (*policy(options.compression.default, options.layout.fragment_cluster)).clone();
        // All clusters of the packed inode are full, except for the last.
        packed.spec = (options.compression.default)
            .map(|c| options.encoder(c, options.layout.fragment_cluster));
        packed.tail = TailPolicy::Cluster;
        packed.whole_max = 0;
        packed.min_saving = 0;
        packed.chunk = None;
        let mut default =
            (*policy(options.compression.default, options.compression.cluster)).clone();
        if options.layout.fragments == Fragments::All {
            default.whole_max = u64::MAX;
        }
        let similar = options.similar_cluster();
        let larger = similar > options.layout.fragment_cluster;
        Self {
            similar: options
                .compression
                .default
                .filter(|_| larger)
                .map(|c| options.encoder(c, similar)),
            default: Arc::new(default),
            rules: options
                .compression
                .rules
                .iter()
                .map(|r| {
                    (
                        r.paths.clone(),
                        policy(
                            r.compression,
                            r.cluster.unwrap_or(options.compression.cluster),
                        ),
                    )
                })
                .collect(),
            packed: Arc::new(packed),
            fast: policy(
                options.compression.auto.and_then(|a| a.fast(options)),
                options.compression.cluster,
            ),
            stored: policy(None, options.compression.cluster),
        }
    }

    /// Policy of a choice other than the default.
    pub(crate) fn chosen(&self, choice: Choice) -> Option<&Arc<Policy>> {
        match choice {
            Choice::Default => None,
            Choice::Fast => Some(&self.fast),
            Choice::Stored => Some(&self.stored),
        }
    }

    /// Policy of a path, with its number.
    pub(crate) fn by_path(&self, path: impl FnOnce() -> Vec<u8>) -> (PolicyId, &Arc<Policy>) {
        if self.rules.is_empty() {
            return (PolicyId::DEFAULT, &self.default);
        }
        let path = path();
        let found = self
            .rules
            .iter()
            .enumerate()
            .find(|(_, (paths, _))| paths.is_match(&path));
        found.map_or((PolicyId::DEFAULT, &self.default), |(i, (_, policy))| {
            (PolicyId::rule(i), policy)
        })
    }

    /// Policy of the packed inode.
    pub(crate) fn packed(&self) -> Arc<Policy> {
        Arc::clone(&self.packed)
    }

    /// Compression of similar files in the packed inode, if it differs.
    pub(crate) fn similar(&self) -> Option<EncoderSpec> {
        self.similar
    }
}
