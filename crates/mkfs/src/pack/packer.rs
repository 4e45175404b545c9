//! Packer: submits jobs to the workers and takes their results in ticket order.

use super::address::{DataBlock, FragmentAddr, FragmentLocation, GrainAddr};
use super::adopted::AdoptedFragments;
use super::checksums::ContentSums;
use super::content::{FileContent, Item};
use super::data::{Chunked, FileData, Table};
use super::grain::Grain;
use super::packed::{Packed, end_of};
use super::pending::PendingBlocks;
use super::pool::Pool;
use super::probe::Probe;
use super::shared_clusters::{FilePlan, PartKey};
use super::sparse::{ChunkRun, Sparse};
use super::tail_fragments::TailFragments;
use super::worker::{Job, LargeClusters, Part, Policy};
use super::worker::{job_cost, segment_size};
use crate::base::{BaseTail, Bases};
use crate::dedupe::{Cuts, PackedFile, StoredParts};
use crate::pack::spill::{Spill, SpillRef};
use crate::progress::Progress;
use crate::source::error::SourceError;
use crate::stats::Stats;
use crate::tree::order::{ContentKey, PolicyId};
use crate::tree::{InodeId, PACKED};
use crate::{Error, Result};
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Arc;
use tuff_codec::EncoderSpec;
use tuff_format::BlockBits;
use tuff_store::Output;

/// Largest number of bytes of small files in a job.
const BATCH_BYTES: u64 = 256 << 10;
/// Largest number of small files in a job.
const BATCH_FILES: usize = 64;

/// Options of a packer.
pub(crate) struct PackOptions {
    /// Block size of the image.
    pub(crate) bits: BlockBits,
    /// Unit of cluster addresses.
    pub(crate) grain: Grain,
    /// Number of worker threads.
    pub(crate) threads: usize,
    /// Budget in bytes of jobs in flight.
    pub(crate) in_flight: u64,
    /// Budget in bytes of tails in memory.
    pub(crate) spill: usize,
    /// Directory of temporary files.
    pub(crate) temporary: std::path::PathBuf,
    /// First block for data.
    pub(crate) first_block: u32,
    /// Policy of the packed inode.
    pub(crate) packed: Arc<Policy>,
    /// Encoder with larger clusters for similar files in the packed inode.
    pub(crate) similar: Option<EncoderSpec>,
    /// Cuts between tails of files, and whole files of a stream.
    pub(crate) cuts: Cuts,
    /// Chunk size of stored files in bytes.
    pub(crate) chunk: Option<usize>,
    /// Data of bases stays in place, whatever its address.
    pub(crate) keeps_collisions: bool,
    /// Largest number of contents and of chunks that are remembered.
    pub(crate) known_max: usize,
    /// Take checksums of all contents.
    pub(crate) sums: bool,
    /// The build fails when its blocks exceed this number of bytes.
    pub(crate) size_max: Option<u64>,
    /// The packed inode is continued with [`Packed::append`].
    pub(crate) continued: bool,
}

/// Data that a file shares with other files.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FileSharing<'a> {
    /// Policy of the file, if an earlier file may have the same content. A file of one segment then shares its data.
    pub(crate) duplicate_key: Option<PolicyId>,
    /// Parts that it shares.
    pub(crate) plan: Option<&'a FilePlan>,
    /// Byte at which the tail starts that is added later with [`Packer::add_packed`]. The file then has one segment.
    pub(crate) end: Option<u32>,
    /// Byte at which the tail starts that was added with [`Packer::keep_tail`], in the last segment.
    pub(crate) kept_tail: Option<u64>,
}

/// State of the packer.
pub(crate) struct Packer<'a> {
    pub(super) options: PackOptions,
    pub(super) output: &'a Output,
    pub(super) progress: &'a Progress,
    pub(super) pool: Pool,
    pub(super) next_ticket: u64,
    pub(super) next_collect: u64,
    pub(super) batch: Vec<Part>,
    pub(super) batch_bytes: u64,
    pub(super) result: Packed,
    /// Position of the next byte that is written.
    pub(super) end: u64,
    pub(super) digest: xxhash_rust::xxh3::Xxh3,
    /// Whole files that wait until a segment of the packed inode is full, and their length in bytes.
    pub(super) stream: (Vec<Item>, usize),
    /// Bytes of submitted whole files of the packed inode, with padding.
    pub(super) streamed: u64,
    /// Bytes of them that are placed.
    pub(super) stream_placed: u64,
    pub(super) ends: TailFragments,
    /// Fragments of bases that files refer to.
    pub(super) adopted: AdoptedFragments,
    /// Tails that stay where the patched image has them.
    pub(super) kept_tails: HashMap<InodeId, BaseTail>,
    /// Files with clusters of a base among their own.
    pub(super) mixed: BTreeSet<InodeId>,
    /// First file of each content that a later file may have.
    pub(super) known: HashMap<ContentKey, InodeId>,
    /// First grains of the pieces of parts whose clusters other parts use.
    pub(super) shared: HashMap<PartKey, Vec<GrainAddr>>,
    /// Memory in bytes of the tables of compressed and sparse files, and of known tails.
    pub(super) tables: u64,
    pub(super) probe: Probe,
    /// Output of chunks outside the image.
    pub(super) blob: Option<&'a Output>,
    /// First block of each chunk.
    pub(super) chunks: HashMap<[u8; 32], DataBlock>,
    /// Files with chunks in a base whose last chunk is a copied inline tail.
    pub(super) tail_chunks: Vec<(InodeId, SpillRef)>,
    /// Files with their sizes in bytes and the chunks that are in the base.
    pub(super) base_chunks: Vec<FileInBase>,
    /// Ticket of the first job of files that a start reads.
    listed_from: Option<u64>,
    /// Files and tails for the end of the packed inode, with the sizes of the files in bytes.
    listed: Vec<(PackedFile, u64, FileContent)>,
}

/// File, its size in bytes, and the runs of its chunks that are in a base.
type FileInBase = (InodeId, u64, Vec<(ChunkRun, DataBlock)>);

impl<'a> Packer<'a> {
    /// Starts the workers and an empty image.
    pub(crate) fn new(
        options: PackOptions,
        output: &'a Output,
        progress: &'a Progress,
    ) -> Result<Self> {
        let pool = Pool::start(
            options.threads,
            options.in_flight,
            (options.bits, options.grain),
            options.sums,
        )?;
        let spill = Spill::new(options.spill, options.temporary.clone());
        let pending = PendingBlocks::new(options.spill, options.temporary.clone());
        let result = Packed {
            files: Vec::new(),
            spill,
            packed: FileData::None,
            packed_size: 0,
            end_block: options.first_block,
            digest: 0,
            sums: ContentSums::default(),
            stats: Stats::default(),
            external: None,
        };
        Ok(Self {
            end: u64::from(options.first_block) * options.bits.size(),
            options,
            output,
            progress,
            pool,
            next_ticket: 0,
            next_collect: 0,
            batch: Vec::new(),
            batch_bytes: 0,
            result,
            digest: xxhash_rust::xxh3::Xxh3::new(),
            stream: (Vec::new(), 0),
            streamed: 0,
            stream_placed: 0,
            ends: TailFragments::new(pending),
            adopted: AdoptedFragments::default(),
            kept_tails: HashMap::new(),
            mixed: BTreeSet::new(),
            known: HashMap::new(),
            shared: HashMap::new(),
            tables: 0,
            probe: Probe::default(),
            blob: None,
            chunks: HashMap::new(),
            tail_chunks: Vec::new(),
            base_chunks: Vec::new(),
            listed_from: None,
            listed: Vec::new(),
        })
    }

    /// Sets the budget in bytes of jobs in flight. Half the memory of the tables is subtracted; the other half comes
    /// from the workers' buffers. The budget does not influence the image.
    pub(crate) fn set_in_flight(&mut self, bytes: u64) {
        self.pool.set_budget(bytes);
    }

    /// Puts bytes at the start of the packed inode, before any file.
    pub(crate) fn start_packed(&mut self, bytes: &[u8]) -> Result<()> {
        debug_assert!(self.streamed == 0 && self.stream.0.is_empty());
        let content = FileContent::Bytes(bytes.into());
        self.add_packed(PackedFile::whole(PACKED), bytes.len() as u64, content)
    }

    /// Appends a file of `size` bytes, not empty, or the tail of one, to the packed inode. The bytes before the tail
    /// were added with [`add_file`](Self::add_file).
    pub(crate) fn add_packed(
        &mut self,
        packed: PackedFile,
        size: u64,
        content: FileContent,
    ) -> Result<()> {
        let PackedFile {
            file,
            from,
            similar,
            cut,
        } = packed;
        if cut {
            self.submit_stream()?;
        }
        let segment = segment_size(&self.options.packed);
        let from = u64::from(from);
        let mut offset = from;
        while offset < size {
            let room = segment - self.stream.1 as u64;
            // Fits: a segment is a few MiB.
            let len = room.min(size - offset) as usize;
            self.stream.0.push(Item {
                file,
                content: content.clone(),
                offset,
                len,
                first: offset == from,
                similar,
            });
            self.stream.1 += len;
            offset += len as u64;
            if self.stream.1 as u64 == segment {
                self.submit_stream()?;
            }
        }
        Ok(())
    }

    /// Starts the files that a start reads: their tails share no cluster and no content with those of earlier files.
    pub(crate) fn start_listed(&mut self) -> Result<()> {
        self.submit_batch()?;
        self.listed_from = Some(self.next_ticket);
        Ok(())
    }

    /// As [`add_packed`](Self::add_packed), for the end of the packed inode, behind the tails of all files.
    pub(crate) fn add_listed(&mut self, packed: PackedFile, size: u64, content: FileContent) {
        self.listed.push((packed, size, content));
    }

    /// Appends the files for the end of the packed inode. Everything else in it has its place.
    fn place_listed(&mut self) -> Result<()> {
        let listed = std::mem::take(&mut self.listed);
        self.streamed += std::mem::take(&mut self.ends.submitted);
        self.stream_placed = self.streamed;
        for (packed, size, content) in listed {
            self.add_packed(packed, size, content)?;
        }
        self.submit_stream()?;
        while self.next_collect < self.next_ticket {
            self.progress.check()?;
            self.collect(true)?;
        }
        Ok(())
    }

    /// Returns true if more pieces follow the tails of files in the packed inode.
    pub(super) fn continues_tails(&self) -> bool {
        self.options.continued || !self.adopted.is_empty() || !self.listed.is_empty()
    }

    pub(super) fn submit_stream(&mut self) -> Result<()> {
        let (items, len) = std::mem::take(&mut self.stream);
        if items.is_empty() {
            return Ok(());
        }
        self.submit_batch()?;
        let len = len.next_multiple_of(self.options.bits.size_usize());
        let large = self
            .options
            .similar
            .and_then(|spec| LargeClusters::new(spec, &items));
        let content = FileContent::Packed(items.into());
        let part = Part {
            first: self.streamed == 0,
            large: large.map(Box::new),
            ..Part::segment(PACKED, content, (0, len), &self.options.packed)
        };
        self.streamed += len as u64;
        self.submit(vec![part], len as u64)
    }

    /// Adds a file of `size` bytes, not empty. Its data follows that of earlier files.
    pub(crate) fn add_file(
        &mut self,
        file: InodeId,
        size: u64,
        content: FileContent,
        policy: &Arc<Policy>,
        with: &FileSharing<'_>,
    ) -> Result<()> {
        let FileSharing {
            duplicate_key,
            plan,
            end,
            kept_tail,
        } = *with;
        let segment = segment_size(policy);
        debug_assert!(end.is_none() || size <= segment);
        if size <= segment {
            let own = end.map_or(size, u64::from);
            // Fits: a segment is a few MiB.
            let part = Part {
                last: end.is_none(),
                duplicate_key,
                plan: plan.map(|p| Box::new(p.part(file, 0, own, segment))),
                end_len: (size - own) as usize,
                // Fits: inside the part.
                kept_tail: kept_tail.map(|at| at as usize),
                ..Part::segment(file, content, (0, own as usize), policy)
            };
            self.batch.push(part);
            self.batch_bytes += own;
            if self.batch_bytes >= BATCH_BYTES || self.batch.len() >= BATCH_FILES {
                self.submit_batch()?;
            }
            return Ok(());
        }
        self.submit_batch()?;
        let store = match policy.spec {
            Some(spec) => !self.probe.is_worth(&content, size, spec)?,
            None => false,
        };
        self.add_segments(file, size, &content, policy, store, with)
    }

    /// Adds a file of `size` bytes, which are read from `reader` at once.
    pub(crate) fn add_stream(
        &mut self,
        file: InodeId,
        size: u64,
        reader: &mut dyn Read,
        policy: &Arc<Policy>,
    ) -> Result<()> {
        self.submit_batch()?;
        let segment = segment_size(policy);
        let (mut at, mut store) = (0, false);
        while at < size {
            let len = segment.min(size - at) as usize;
            let mut bytes = vec![0; len];
            reader
                .read_exact(&mut bytes)
                .map_err(|e| Error::from(SourceError::from(e)))?;
            let content = FileContent::Bytes(bytes.into());
            if let (0, Some(spec)) = (at, policy.spec) {
                store = !self.probe.is_worth(&content, len as u64, spec)?;
            }
            let part = Part {
                first: at == 0,
                last: at + len as u64 == size,
                store,
                ..Part::segment(file, content, (0, len), policy)
            };
            self.submit(vec![part], len as u64)?;
            at += len as u64;
        }
        Ok(())
    }

    /// Adds a file with holes. `sparse` lists the chunks that hold data.
    pub(crate) fn add_sparse(
        &mut self,
        file: InodeId,
        size: u64,
        content: FileContent,
        sparse: Sparse,
        policy: &Arc<Policy>,
    ) -> Result<()> {
        let data = self.add_chunks(file, size, content, sparse, policy)?;
        self.result.stats.sparse_files += 1;
        self.result.stats.hole_bytes += size - data;
        Ok(())
    }

    /// Adds a file in chunks, of which the base has some.
    pub(crate) fn add_stored_parts(
        &mut self,
        file: InodeId,
        size: u64,
        content: FileContent,
        parts: StoredParts,
        policy: &Arc<Policy>,
    ) -> Result<()> {
        let shared = parts.shared_bytes(size, self.options.bits);
        self.result.stats.base_part_bytes += shared;
        self.add_chunks(file, size, content, parts.new, policy)?;
        self.base_chunks.push((file, size, parts.shared));
        Ok(())
    }

    /// Adds the chunks in `sparse` of a file of `size` bytes. Returns their length in bytes.
    fn add_chunks(
        &mut self,
        file: InodeId,
        size: u64,
        content: FileContent,
        sparse: Sparse,
        policy: &Arc<Policy>,
    ) -> Result<u64> {
        let chunk_size = self.options.bits.size() << sparse.bits;
        let data: u64 = sparse
            .runs
            .iter()
            .map(|r| (r.count * chunk_size).min(size - r.first * chunk_size))
            .sum();
        self.submit_batch()?;
        let runs = Arc::clone(&sparse.runs);
        let chunked = match policy.chunk {
            Some(_) => FileData::Table(Box::new(Table {
                bits: sparse.bits,
                external: self.blob.is_some(),
                read: Some((sparse.runs, sparse.bits)),
                count: size.div_ceil(chunk_size),
                next: (0, 0),
                runs: Vec::new(),
            })),
            None => FileData::Chunked(Box::new(Chunked {
                bits: sparse.bits,
                external: false,
                runs: sparse.runs,
                block: DataBlock::NONE,
            })),
        };
        self.tables += chunked.footprint();
        self.set(file, chunked);
        if data > 0 {
            let whole = Box::new(content);
            let content = FileContent::Chunks {
                whole,
                chunks: runs,
                chunk_size,
                size,
            };
            // The last, partial block is part of a chunk.
            let policy = Arc::new(Policy {
                spec: None,
                inline_max: 0,
                ..(**policy).clone()
            });
            let with = FileSharing::default();
            self.add_segments(file, data, &content, &policy, true, &with)?;
        }
        Ok(data)
    }

    /// Lets `file` share the data of `first`, which was added before.
    pub(crate) fn add_same(&mut self, file: InodeId, first: InodeId, size: u64) {
        self.result.stats.dedupe_files += 1;
        self.result.stats.dedupe_bytes += size;
        self.set(file, FileData::Same(first));
    }

    fn add_segments(
        &mut self,
        file: InodeId,
        size: u64,
        content: &FileContent,
        policy: &Arc<Policy>,
        store: bool,
        with: &FileSharing<'_>,
    ) -> Result<()> {
        let segment = segment_size(policy);
        let mut offset = 0;
        while offset < size {
            let len = segment.min(size - offset);
            let last = offset + len == size;
            let part = Part {
                last,
                store,
                plan: (with.plan).map(|p| Box::new(p.part(file, offset, len, segment))),
                end_len: 0,
                // Fits: inside the part.
                kept_tail: (with.kept_tail.filter(|_| last)).map(|at| (at - offset) as usize),
                ..Part::segment(file, content.clone(), (offset, len as usize), policy)
            };
            self.submit(vec![part], len)?;
            offset += len;
        }
        Ok(())
    }

    pub(super) fn submit_batch(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let parts = std::mem::take(&mut self.batch);
        let bytes = std::mem::take(&mut self.batch_bytes);
        self.submit(parts, bytes)
    }

    pub(super) fn submit(&mut self, parts: Vec<Part>, bytes: u64) -> Result<()> {
        self.progress.check()?;
        let cost = job_cost(bytes);
        while self.next_collect < self.next_ticket && !self.pool.has_room(cost, self.tables / 2) {
            // Each wait wakes this thread. The other half of the jobs keeps the workers busy meanwhile.
            let some = (self.next_ticket - self.next_collect) / 2;
            let some = some.min(self.pool.buffers() as u64 - 1);
            self.pool.wait(self.next_collect + some);
            self.collect(true)?;
            while self.next_collect < self.next_ticket && self.collect(false)? {}
        }
        self.pool.submit(
            Job {
                id: self.next_ticket,
                cost,
                parts,
                advised: false,
            },
            false,
        );
        self.next_ticket += 1;
        while self.next_collect < self.next_ticket && self.collect(false)? {}
        Ok(())
    }

    /// Takes the next result. Returns false if it is not ready and `wait` is not set.
    pub(super) fn collect(&mut self, wait: bool) -> Result<bool> {
        let ticket = self.next_collect;
        let out = if wait {
            self.pool.take(ticket)?
        } else {
            match self.pool.try_take(ticket) {
                Some(out) => out?,
                None => return Ok(false),
            }
        };
        if self.listed_from == Some(ticket) {
            self.cut_tails();
            self.ends.known.clear();
        }
        self.next_collect += 1;
        self.place(out)?;
        self.submit_fragments(false);
        self.store_fragments(false)?;
        Ok(true)
    }

    /// Waits for all jobs and returns the places of the data.
    pub(crate) fn finish(mut self, base: Option<&Bases>) -> Result<Packed> {
        self.submit_batch()?;
        self.submit_stream()?;
        while self.next_collect < self.next_ticket {
            self.progress.check()?;
            self.collect(true)?;
        }
        self.submit_fragments(true);
        self.store_fragments(true)?;
        while let Some((bytes, (digest, parts))) = self.ends.encoded.next()? {
            self.digest.update(&digest.to_le_bytes());
            if parts.iter().any(|part| part.body.begins_at_block()) {
                self.fill_block()?;
            }
            let mut position = self.end;
            self.write(&bytes)?;
            for part in parts {
                let len = part.body.len(self.options.bits, self.options.grain);
                self.place_part(part, position)?;
                position += len as u64;
            }
        }
        let tails_at = self.streamed;
        self.place_listed()?;
        self.store_tail_chunks()?;
        let mut sizes = HashMap::new();
        for (file, size, shared) in std::mem::take(&mut self.base_chunks) {
            sizes.insert(file, size);
            let bits = self.options.bits;
            let data = std::mem::take(self.slot(file));
            self.set(file, data.with_base_chunks(size, bits, shared));
        }
        let base = base.filter(|base| !base.in_image() && !self.options.keeps_collisions);
        if let Some(base) = base {
            self.separate_chunks(base, &sizes)?;
        }
        for file in &mut self.result.files {
            if let FileData::Table(table) = file {
                let table = std::mem::replace(&mut **table, Table::empty());
                *file = table.shortest();
            }
        }
        let files = self.result.files.iter_mut();
        for offset in files.filter_map(FileData::fragment) {
            if let FragmentLocation::Tails(tail) = offset.location() {
                *offset = FragmentAddr::new(FragmentLocation::Start(tails_at + tail));
            }
        }
        self.result.packed_size = self.streamed;
        let second = base.and_then(Bases::second_algorithm).unwrap_or(0);
        let algorithms = self.packed_algorithm() | second << 4;
        if !self.adopted.is_empty() {
            self.mixed.insert(PACKED);
        }
        std::mem::take(&mut self.adopted).append(&mut self.result, algorithms);
        if let Some(base) = base {
            self.separate_clusters(base)?;
        }
        self.fill_block()?;
        self.result.end_block = end_of(0, self.options.bits.count(self.end))?;
        self.result.digest = self.digest.digest128();
        Ok(self.result)
    }
}
