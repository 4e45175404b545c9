//! Rules of the superblock, mostly compared with the results of the walk.

use super::finding::{Rule, Severity};
use super::shared::Shared;
use super::walk::Marks;
use crate::read::{Image, Space};
use std::sync::atomic::Ordering::Relaxed;
use tuff_format::features::{Feature, flags_of, incompat};
use tuff_format::superblock::OFFSET;

const PLACE: &str = "superblock (byte 0x400)";
/// Largest LZ4 cluster in blocks that Linux accepts in the compression record.
const LZ4_BLOCKS_MAX: u16 = 256;

pub(super) fn check(image: &Image, shared: &Shared, marks: &Marks) {
    let sb = image.superblock();
    if image.checksum_ok() == Some(false) {
        shared.error(
            Rule::Checksum,
            PLACE,
            format_args!("checksum {:#010x} does not match", sb.checksum),
        );
    }
    for range in [0x6A..0x6Cusize, 0x78..0x80] {
        let len = range.len();
        let bytes = image.bytes(Space::Image, OFFSET + range.start as u64, len);
        if bytes.is_ok_and(|b| b.iter().any(|b| *b != 0)) {
            let what = format_args!("bytes {range:?} are not zero");
            shared.add(Severity::Note, Rule::Reserved, PLACE, what);
        }
    }
    let size = sb
        .block_bits
        .len_of(sb.blocks)
        .map_or(u64::MAX, |len| len.0);
    if size > image.store_size() {
        shared.error(
            Rule::ImageSize,
            PLACE,
            format_args!(
                "{} blocks are {size} bytes, but the image has only {} bytes",
                sb.blocks,
                image.store_size()
            ),
        );
    }
    let inodes = shared.totals.inodes.load(Relaxed);
    if sb.inodes != inodes {
        shared.warning(
            Rule::InodeCount,
            PLACE,
            format_args!("states {} inodes, found {inodes}", sb.inodes),
        );
    }
    if !sb.label.contains(&0) {
        let kernel = Feature::FULL_LABEL.min_kernel;
        let what = format_args!(
            "the label has no terminating NUL: kernels before {kernel} refuse the image"
        );
        shared.add(Severity::Note, Rule::Reserved, PLACE, what);
    }
    features(image, shared, marks);
    configs(image, shared, marks);
}

/// Checks that each used feature has its bit. An unused bit is a note, and so is a missing bit that readers do not need:
/// Linux (6.18) and fsck.erofs (1.9.3) read these features by the inode alone, and composefs leaves a bit out.
fn features(image: &Image, shared: &Shared, marks: &Marks) {
    let (sb, used) = (image.superblock(), &marks.used);
    let uses = [
        (
            incompat::LZ4_0PADDING,
            used.compressed && image.form().right_aligned,
        ),
        (
            incompat::COMPR_CFGS,
            used.big_cluster || sb.has(incompat::COMPR_CFGS) && used.compressed,
        ),
        (incompat::CHUNKED_FILE, used.chunks),
        (incompat::DEVICE_TABLE, used.device || used.head2),
        (incompat::ZTAILPACKING, used.inline_cluster),
        (
            incompat::FRAGMENTS,
            used.fragment || used.partial || used.interlaced,
        ),
        (incompat::XATTR_PREFIXES, used.long_prefix),
        (
            incompat::BIT48,
            used.bit48 || sb.root.0 > u16::MAX.into() || sb.blocks > u32::MAX.into(),
        ),
        (incompat::METABOX, used.metabox),
    ];
    let mut by_inode = incompat::CHUNKED_FILE
        | incompat::ZTAILPACKING
        | incompat::XATTR_PREFIXES
        | incompat::BIT48;
    if !used.fragment {
        // Shared clusters have the bit of fragments.
        by_inode |= incompat::FRAGMENTS;
    }
    for (bit, is_used) in uses {
        let name = flags_of(0, bit).next().map_or("", |f| f.name);
        match (is_used, sb.has(bit)) {
            (true, false) => {
                let severity = match by_inode & bit {
                    0 => Severity::Error,
                    _ => Severity::Note,
                };
                let what = format_args!("feature {name} is used, but its bit {bit:#x} is not set");
                shared.add(severity, Rule::Features, PLACE, what);
            }
            // Builders set it for an algorithm that then compresses nothing.
            (false, true) if bit == incompat::LZ4_0PADDING => {}
            (false, true) => shared.add(
                Severity::Note,
                Rule::Features,
                PLACE,
                format_args!("bit {bit:#x} is set, but feature {name} is not used"),
            ),
            _ => {}
        }
    }
}

fn configs(image: &Image, shared: &Shared, marks: &Marks) {
    let (sb, configs) = (image.superblock(), image.configs());
    if let Some(lz4) = configs.lz4 {
        let blocks = lz4.max_pcluster_blocks.max(1);
        let most = u64::from(blocks) << sb.block_bits.get();
        if blocks > LZ4_BLOCKS_MAX {
            shared.error(
                Rule::Config,
                PLACE,
                format_args!(
                    "LZ4 clusters of up to {blocks} blocks, expected at most {LZ4_BLOCKS_MAX}"
                ),
            );
        }
        if marks.used.lz4_len > most {
            shared.error(
                Rule::Config,
                PLACE,
                format_args!(
                    "LZ4 cluster of {} bytes, but the image states at most {most}",
                    marks.used.lz4_len
                ),
            );
        }
    }
}
