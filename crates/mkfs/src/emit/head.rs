//! Superblock, compression records, device slots, and the inodes that fit into block 0.

use crate::base::Bases;
use crate::layout::xattrs::PrefixTable;
use crate::layout::{Parts, Plan, SUPERBLOCK_END};
use crate::pack::{FileData, FileTail};
use crate::tree::{self, METABOX, PACKED};
use crate::{Error, Place, Result};
use std::io;
use std::os::unix::fs::FileExt;
use tuff_codec::{EncoderSpec, Method};
use tuff_format::cluster::HeadKind;
use tuff_format::config::{Configs, Lz4};
use tuff_format::device::{SLOT_LEN, Slot};
use tuff_format::features::{compat, incompat};
use tuff_format::inode::Layout;
use tuff_format::superblock::{self, Superblock};
use tuff_format::{BlockAddr, BlockBits};
use tuff_store::Output;
use xxhash_rust::xxh3::Xxh3;

/// Requirements of the data on readers: feature bits and compression records.
struct Used {
    incompat: u32,
    algorithms: u16,
    /// Largest cluster of each algorithm in blocks.
    largest: [u16; 4],
}

fn used(parts: &Parts<'_>, plan: &Plan) -> Used {
    let mut used = Used {
        incompat: 0,
        algorithms: 0,
        largest: [0; 4],
    };
    let (bits, grain) = (parts.options.block, parts.options.grain());
    let packed = (parts.packed.packed_size > 0).then_some(&parts.packed.packed);
    let metabox = parts.metabox.map(|metabox| &metabox.data);
    let files = (0..).zip(&parts.packed.files);
    let hidden = [(PACKED, packed), (METABOX, metabox)];
    let hidden = hidden
        .into_iter()
        .filter_map(|(id, data)| Some((id, data?)));
    for (id, data) in files.chain(hidden) {
        match data {
            FileData::None | FileData::Flat { .. } | FileData::Same(_) => {}
            FileData::Chunked(_) | FileData::OneChunk { .. } | FileData::Table(_) => {
                used.incompat |= incompat::CHUNKED_FILE;
            }
            FileData::WholeFragment { .. } => used.incompat |= incompat::LZ4_0PADDING,
            data => {
                let data = data.compressed().expect("all others were matched");
                used.incompat |= incompat::LZ4_0PADDING;
                if let FileTail::Inline(_) = data.tail {
                    used.incompat |= incompat::ZTAILPACKING;
                }
                // The bits of fragments and of shared clusters are the same. A COMPACT index that stays has the
                // clusters of the old file.
                let stays = parts.place(id).map(|place| place.inode.layout());
                if data.shares() && stays != Some(Layout::CompressedCompact) {
                    used.incompat |= incompat::FRAGMENTS;
                }
                used.algorithms |= 1 << data.algorithm_of(HeadKind::Head1);
                let blocks = |grains: u16| bits.count(grain.bytes(grains.into())) as u16;
                for (_, p) in data.pieces() {
                    // Fits: a cluster has at most 1 MiB. Stored clusters may be longer than the limit of compressed
                    // ones.
                    let most = match p.kind {
                        HeadKind::Plain => {
                            (parts.options.cluster_max(Method::Lz4) >> bits.get()) as u16
                        }
                        _ => u16::MAX,
                    };
                    let algorithm = data.algorithm_of(p.kind);
                    used.algorithms |= 1 << algorithm;
                    let largest = &mut used.largest[usize::from(algorithm & 3)];
                    *largest = (*largest).max(blocks(p.grains).min(most));
                }
                if parts.options.layout.unaligned {
                    used.incompat |= incompat::BIT48;
                }
            }
        }
    }
    if let Some(unchanged) = parts.unchanged {
        let (sb, configs) = (&unchanged.superblock, &unchanged.configs);
        used.incompat |= sb.incompat;
        used.algorithms |= sb.algorithms();
        let largest = configs
            .lz4
            .as_ref()
            .map_or(1, |lz4| lz4.max_pcluster_blocks);
        used.largest[0] = used.largest[0].max(largest);
    }
    let default = parts.options.compression.default.map(|c| c.method);
    if matches!(default, Some(Method::Lz4 | Method::Lz4hc)) {
        // As in images of mkfs.erofs: also if no content is compressible.
        used.incompat |= incompat::LZ4_0PADDING;
    }
    if packed.is_some() {
        used.incompat |= incompat::FRAGMENTS | incompat::LZ4_0PADDING;
    }
    if parts.base.is_some_and(|base| !base.in_image()) || parts.packed.external.is_some() {
        used.incompat |= incompat::DEVICE_TABLE;
    }
    if plan.has_delays || metabox.is_some() {
        used.incompat |= incompat::BIT48;
    }
    if metabox.is_some() {
        used.incompat |= incompat::METABOX;
    }
    if used.algorithms & !1 != 0 || used.largest.iter().any(|l| *l > 1) {
        used.incompat |= incompat::COMPR_CFGS;
    }
    used
}

fn configs(parts: &Parts<'_>, used: &Used) -> Configs {
    let o = parts.options;
    let rules = o
        .compression
        .rules
        .iter()
        .filter_map(|r| Some((r.compression?, r.cluster.unwrap_or(o.compression.cluster))));
    let default = o
        .compression
        .default
        .into_iter()
        .flat_map(|c| [(c, o.compression.cluster), (c, o.similar_cluster())]);
    let specs: Vec<EncoderSpec> = rules
        .chain(default)
        .map(|(c, cluster)| o.encoder(c, cluster))
        .chain(parts.metabox.and_then(|_| o.metadata_encoder()))
        .collect();
    let has = |id: u8| used.algorithms & 1 << id != 0;
    let largest = |id: u8| {
        let of = specs.iter().filter(|s| s.method.algorithm() as u8 == id);
        of.map(EncoderSpec::match_distance_max).max().unwrap_or(0) as u32
    };
    let bases = || parts.base.into_iter().flat_map(Bases::configs);
    let base_dict = bases().filter_map(|c| c.lzma_dict_size).max().unwrap_or(0);
    let base_window = bases().filter_map(|c| c.zstd_window_log).max().unwrap_or(0);
    Configs {
        lz4: has(0).then_some(Lz4 {
            max_distance: 65535,
            max_pcluster_blocks: used.largest[0].max(1),
        }),
        lzma_dict_size: has(1).then(|| largest(1).max(base_dict).clamp(4096, 8 << 20)),
        deflate_window_bits: has(2).then_some(15),
        zstd_window_log: has(3).then(|| {
            largest(3)
                .next_power_of_two()
                .trailing_zeros()
                .clamp(10, 20)
                .max(base_window.into()) as u8
        }),
    }
}

/// Changes of old bytes: positions and new bytes, each in one block.
#[derive(Default)]
pub(crate) struct Overwrites(Vec<(u64, Vec<u8>)>);

impl Overwrites {
    /// Adds the blocks in which `bytes` differ from those that the output has at `at`.
    pub(super) fn add(
        &mut self,
        bytes: &[u8],
        at: u64,
        bits: BlockBits,
        output: &Output,
    ) -> io::Result<()> {
        let mut old = vec![0; bytes.len()];
        output.file().read_exact_at(&mut old, at)?;
        let mut from = 0;
        while from < bytes.len() {
            let room = bits.size() - bits.within(at + from as u64);
            // Fits: at most a block.
            let to = bytes.len().min(from + room as usize);
            if bytes[from..to] != old[from..to] {
                self.0.push((at + from as u64, bytes[from..to].to_vec()));
            }
            from = to;
        }
        Ok(())
    }

    /// Returns true if nothing changes.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a digest of the changes.
    pub(super) fn digest(&self) -> u128 {
        let mut digest = Xxh3::new();
        for (at, bytes) in &self.0 {
            digest.update(&at.to_le_bytes());
            digest.update(bytes);
        }
        digest.digest128()
    }
}

/// Block 0. It is written last and makes the image valid.
pub(crate) struct Head {
    /// Bytes from [`superblock::OFFSET`] on.
    bytes: Vec<u8>,
    /// Changes of old inodes and directories.
    overwrites: Overwrites,
    pub(crate) uuid: [u8; 16],
}

impl Head {
    /// Returns the position of the bytes, and the bytes.
    pub(crate) fn bytes(&self) -> (u64, &[u8]) {
        (superblock::OFFSET, &self.bytes)
    }

    /// Sets changes of old bytes that are written after block 0 and make the new tree visible.
    pub(super) fn set_overwrites(&mut self, overwrites: Overwrites) {
        self.overwrites = overwrites;
    }

    /// Writes block 0 after everything before it is on stable storage.
    pub(crate) fn write(&self, output: &Output) -> Result<()> {
        let fail = |e| Error::io(Place::image(), "cannot write", e);
        output.settle().map_err(fail)?;
        output
            .write_at(&self.bytes, superblock::OFFSET)
            .map_err(fail)?;
        if !self.overwrites.0.is_empty() {
            output.settle().map_err(fail)?;
        }
        for (at, bytes) in &self.overwrites.0 {
            output.overwrite(bytes, *at).map_err(fail)?;
        }
        Ok(())
    }
}

/// Builds block 0 from the plan. The UUID is derived from the digest of the metadata, unless there is an old one.
pub(super) fn make_head(
    parts: &Parts<'_>,
    plan: &Plan,
    prefixes: &PrefixTable,
    (old_uuid, meta_digest): (Option<[u8; 16]>, u128),
    front: &[u8],
    output: &Output,
) -> Result<Head> {
    let o = parts.options;
    let bits = o.block;
    let used = used(parts, plan);
    let configs = configs(parts, &used);
    let mut label = [0; 16];
    label[..o.metadata.label.len()].copy_from_slice(&o.metadata.label);
    let mut sb = Superblock {
        compat: compat::MTIME
            | if o.metadata.checksum {
                compat::SB_CHKSUM
            } else {
                0
            }
            | if o.metadata.xattr_filter {
                compat::XATTR_FILTER
            } else {
                0
            }
            | match parts.metabox {
                Some(_) if !parts.area.is_empty() => compat::SHARED_EA_IN_METABOX,
                _ => 0,
            }
            | match prefixes.fingerprints {
                Some(_) => compat::ISHARE_XATTRS,
                None => 0,
            },
        incompat: used.incompat,
        checksum: 0,
        block_bits: bits,
        ext_slots: parts.metabox.is_some().into(),
        root: plan.nid(tree::ROOT, bits),
        inodes: plan.inodes,
        epoch: plan.epoch.seconds,
        fixed_nsec: plan.epoch.nanos,
        blocks: plan.len_blocks.into(),
        meta_blkaddr: plan.meta_blkaddr().into(),
        // The area may be empty.
        xattr_blkaddr: match parts.area.len() {
            0 if plan.zone_block == 0 => BlockAddr(0),
            _ => plan.xattr_block.into(),
        },
        uuid: [0; 16],
        label,
        algs_or_distance: 0,
        extra_devices: 0,
        devt_slotoff: 0,
        xattr_prefix_count: 0,
        xattr_prefix_start: 0,
        packed: plan.packed_nid(bits),
        xattr_filter_reserved: 0,
        ishare_prefix: prefixes.fingerprints.unwrap_or(0),
        build_time: 0,
        metabox: plan.metabox_nid(bits),
    };
    let mut records = Vec::new();
    if sb.has(incompat::COMPR_CFGS) {
        sb.algs_or_distance = configs.algorithms();
        records = configs.encode();
    } else if sb.has(incompat::LZ4_0PADDING) {
        sb.algs_or_distance = 65535;
    }
    if !prefixes.prefixes.is_empty() {
        sb.incompat |= incompat::XATTR_PREFIXES;
        // Fits: at most 128.
        sb.xattr_prefix_count = prefixes.prefixes.len() as u8;
        let area = u64::from(plan.xattr_block) * bits.size();
        let at = match prefixes.in_packed {
            true => 0,
            false => area + parts.xattrs.shared.len() as u64,
        };
        let start = u32::try_from(at / 4)
            .map_err(|_| Error::limit("attribute prefixes", "beyond 16 GiB"))?;
        sb.xattr_prefix_start = start;
    }
    let end = BlockAddr::from(plan.len_blocks);
    let slots = match parts.packed.external {
        Some(blocks) => vec![Slot {
            tag: [0; 64],
            blocks: blocks.into(),
            uniaddr: end,
        }],
        None => parts
            .base
            .map_or_else(Vec::new, |base| base.slots(plan.base_block.into())),
    };
    if !slots.is_empty() {
        sb.extra_devices = u16::try_from(slots.len())
            .map_err(|_| Error::limit("device table", "more than 65,535 devices"))?;
        let end = superblock::OFFSET as usize + sb.len() + records.len();
        let at = end.next_multiple_of(SLOT_LEN);
        sb.devt_slotoff = (at / SLOT_LEN) as u16; // fits: in the first blocks
        records.resize(records.len() + at - end, 0);
        slots
            .iter()
            .for_each(|slot| records.extend_from_slice(&slot.encode()));
    }
    sb.uuid = o
        .metadata
        .uuid
        .or(old_uuid)
        .unwrap_or_else(|| derived_uuid(&sb, &records, parts.packed.digest, meta_digest));
    let summed = superblock::checksum_len(bits);
    let mut covered = sb.encode();
    covered.extend_from_slice(&records);
    let before = u64::from(first_data_block(bits, slots.len())) * bits.size();
    assert!(
        superblock::OFFSET + covered.len() as u64 <= before,
        "superblock, records and slots lie in front of the data"
    );
    // Many slots extend past the range of the checksum.
    let len = summed.max(covered.len());
    if !front.is_empty() {
        // Fits: the start of a block.
        let at = (SUPERBLOCK_END - superblock::OFFSET) as usize;
        assert!(covered.len() <= at, "superblock and records end there");
        covered.resize(at, 0);
        covered.extend_from_slice(front);
    }
    let fail = |e| Error::io(Place::image(), "cannot write", e);
    let known = covered.len();
    covered.resize(len, 0);
    if parts.base.is_some_and(Bases::in_image) {
        // The rest stays as it is, so that all changes are in one sector.
        let at = superblock::OFFSET + known as u64;
        let rest = output.file().read_exact_at(&mut covered[known..], at);
        rest.map_err(|e| Error::io(Place::image(), "cannot read", e))?;
    } else {
        output
            .write_at(&[0; superblock::OFFSET as usize], 0)
            .map_err(fail)?;
    }
    if o.metadata.checksum {
        superblock::seal(&mut covered[..summed]);
    }
    Ok(Head {
        bytes: covered,
        overwrites: Overwrites::default(),
        uuid: sb.uuid,
    })
}

/// Derives a UUID from the content: equal images have equal UUIDs.
fn derived_uuid(sb: &Superblock, records: &[u8], data: u128, meta: u128) -> [u8; 16] {
    let mut h = Xxh3::new();
    h.update(&sb.encode());
    h.update(records);
    h.update(&data.to_le_bytes());
    h.update(&meta.to_le_bytes());
    let mut uuid = h.digest128().to_be_bytes();
    // Version 8 is for private schemes.
    uuid[6] = uuid[6] & 0x0F | 0x80;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    uuid
}

/// Returns the number of blocks before the data: superblock and device table. With small blocks or many slots it is
/// more than one.
pub(crate) fn first_data_block(bits: BlockBits, slots: usize) -> u32 {
    let more = slots.saturating_sub(1) * SLOT_LEN;
    // Fits: at most 65,536 slots.
    bits.count(SUPERBLOCK_END + more as u64) as u32
}
