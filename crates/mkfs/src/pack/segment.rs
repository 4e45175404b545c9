//! Encoding of a segment into pieces and blocks.
//!
//! Invariants that the indexes rely on:
//!
//! * A compressed piece decodes to more bytes than its cluster takes, unless it is part of what the cluster decodes to.
//! * Every piece but the last of a file ends in a later block than it starts in, where clusters start at blocks.
//! * Every segment but the last of a file has a multiple of the block size.

use super::block_buffer::BlockBuffer;
use super::grain::Grain;
use super::piece::{SegmentShape, ShortPiece, TailPolicy};
use super::shared_clusters::{ClusterBoard, PartKey, PartPlan, PartStop, Posted, fits, usable};
use std::ops::Range;
use tuff_codec::{Encoder, Fit, TailFit, Trim};
use tuff_format::cluster::HeadKind;

/// Result for the tail of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// The tail is in clusters.
    Cluster,
    /// Bytes of the last piece, for the inline tail.
    Inline(Vec<u8>),
    /// Raw bytes of the last piece, for the packed inode.
    Fragment(Vec<u8>),
    /// Length in bytes of the last piece, which is added to the packed inode later.
    Later(usize),
    /// Length in bytes of the last piece, which stays where the patched image has it.
    Kept(usize),
}

/// Result of an empty encoding.
const NOTHING: Fit = Fit {
    consumed: 0,
    written: 0,
};

impl Segment {
    /// Returns true if another piece can start at byte `end`, which is the end of the segment.
    pub(crate) fn can_continue(&self, end: usize, shape: &SegmentShape) -> bool {
        let last = self.pieces.last().map_or(0, |p| p.len as usize);
        shape.unaligned() || last == 0 || end / shape.block > (end - last) / shape.block
    }
}

/// Encoder of any algorithm.
type DynEncoder = dyn Encoder;

/// Encoders of a segment.
pub(crate) struct Encoders<'a> {
    /// Encoder of the file's clusters.
    pub(crate) usual: &'a mut DynEncoder,
    /// Encoder with larger clusters, their size, and the ascending ranges in bytes that use it.
    pub(crate) large: Option<(&'a mut DynEncoder, usize, &'a [Range<usize>])>,
}

/// Encoded segment. Its blocks were appended to the output.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Extents in order of the file.
    pub(crate) pieces: Vec<ShortPiece>,
    /// Clusters of the shared pieces, in order.
    pub(crate) homes: Vec<(PartKey, u32)>,
    /// Tail of the segment.
    pub(crate) tail: Tail,
}

/// Encodes `input` and appends whole blocks to `out`. `last` is set for the end of a file. The plan lists shared
/// ranges, and the board has the clusters of earlier parts.
pub(crate) fn encode(
    input: &[u8],
    last: bool,
    encoders: Encoders<'_>,
    shape: &SegmentShape,
    (plan, board): (&PartPlan, &ClusterBoard),
    out: &mut BlockBuffer,
) -> Segment {
    debug_assert!(last || input.len().is_multiple_of(shape.block));
    let Encoders {
        usual: encoder,
        mut large,
    } = encoders;
    encoder.reset();
    if let Some((large, _, _)) = &mut large {
        large.reset();
    }
    let mut run = Encoding {
        input,
        last,
        encoder,
        large,
        shape,
        out,
        at: 0,
        pieces: Vec::with_capacity(input.len() / shape.cluster + 1),
        shared: Vec::new(),
        tail: Tail::Cluster,
    };
    for stop in &plan.stops {
        run.stop(stop, plan.post, board);
    }
    run.rest();
    // The pieces are kept until the metadata is written.
    run.pieces.shrink_to_fit();
    let segment = Segment {
        pieces: run.pieces,
        homes: run.shared.iter().map(|p| p.home).collect(),
        tail: run.tail,
    };
    if let Some(key) = plan.post {
        board.post(key, &posted(key, &segment.pieces, &run.shared));
    }
    segment
}

/// Returns the clusters of a part for use by later parts.
fn posted(key: PartKey, pieces: &[ShortPiece], shared: &[Posted]) -> Vec<Posted> {
    let (mut at, mut shared) = (0, shared.iter());
    let pieces = pieces.iter().enumerate().map(|(i, piece)| {
        let start = at;
        at += u64::from(piece.len);
        let (full, home) = match piece.shared.then(|| shared.next()).flatten() {
            Some(p) => (p.full, p.home),
            // Fits: pieces of a part are counted in 32 bits.
            None => (piece.len, (key, i as u32)),
        };
        Posted {
            at: start,
            piece: *piece,
            full,
            home,
        }
    });
    pieces.collect()
}

/// State of encoding a segment.
struct Encoding<'a> {
    input: &'a [u8],
    last: bool,
    encoder: &'a mut DynEncoder,
    large: Option<(&'a mut DynEncoder, usize, &'a [Range<usize>])>,
    shape: &'a SegmentShape,
    out: &'a mut BlockBuffer,
    /// Everything before this byte is in pieces.
    at: usize,
    pieces: Vec<ShortPiece>,
    /// Shared pieces in order.
    shared: Vec<Posted>,
    tail: Tail,
}

impl Encoding<'_> {
    /// Starts a cluster at a stop, if possible, and takes over the shared clusters there.
    fn stop(&mut self, stop: &PartStop, own: Option<PartKey>, board: &ClusterBoard) {
        if stop.at < self.at {
            return;
        }
        let found = match stop.run {
            None => Vec::new(),
            Some((key, from, len)) => {
                let shape = self.shape;
                let found = if Some(key) == own {
                    let so_far = posted(key, &self.pieces, &self.shared);
                    usable(&so_far, from, len, stop.at, shape)
                } else {
                    usable(&board.get(key), from, len, stop.at, shape)
                };
                if found.is_empty() {
                    return;
                }
                found
            }
        };
        self.make_room(stop.at);
        if !self.until(stop.at) {
            return;
        }
        for p in found {
            self.at += p.piece.len as usize;
            self.pieces.push(p.piece);
            self.shared.push(p);
        }
    }

    /// A gap of less than a block between two shared ranges cannot be an extent, so the first range is shortened.
    fn make_room(&mut self, end: usize) {
        let block = self.shape.block;
        if self.shape.unaligned() {
            return;
        }
        while end > self.at
            && end - self.at < block
            && let Some(piece) = self.pieces.last_mut().filter(|p| p.shared)
        {
            let start = self.at - piece.len as usize;
            let mut cut = *piece;
            cut.len = cut.len.saturating_sub((block - (end - self.at)) as u32);
            cut.partial = true;
            if fits(&cut, start as u64, self.shape) {
                *piece = cut;
                self.at = start + cut.len as usize;
            } else {
                self.pieces.pop();
                self.shared.pop();
                self.at = start;
            }
        }
    }

    /// Encodes up to `end`. Returns false if no piece can end there; the encoded pieces stay.
    fn until(&mut self, end: usize) -> bool {
        let block = self.shape.block;
        let crosses = |from: usize| end / block > from / block || self.shape.unaligned();
        while self.at < end {
            let (at, left) = (self.at, end - self.at);
            let spare = self.out.spare(self.shape.cluster);
            let mut fit = self.encoder.fit(&self.input[..end], at, spare);
            let rest = left - fit.consumed;
            if fit.consumed > 0 && (1..block).contains(&rest) && !crosses(at + fit.consumed) {
                // The rest would be too short for a piece, so a block is left for it.
                if left < 2 * block {
                    return false;
                }
                self.encoder.reset();
                fit = self.encoder.fit(&self.input[..end - block], at, spare);
                self.encoder.reset();
            }
            if !self.commit(fit) && !self.store(fit, end) {
                return false;
            }
        }
        true
    }

    /// Encodes the rest of the segment.
    fn rest(&mut self) {
        while self.at < self.input.len() {
            let left = self.input.len() - self.at;
            if let TailPolicy::Fragment(max) = self.shape.tail
                && self.last
                && left <= max
            {
                self.pieces.push(ShortPiece::own(left, 0, HeadKind::Head1));
                self.tail = Tail::Fragment(self.input[self.at..].to_vec());
                return;
            }
            if self.shape.stores(left) {
                let stored = self.store(NOTHING, self.input.len());
                debug_assert!(stored, "the last piece may have any length");
                return;
            }
            let (encoder, cluster) = match &mut self.large {
                Some((large, cluster, of)) if contains(of, self.at) => (&mut **large, *cluster),
                _ => (&mut *self.encoder, self.shape.cluster),
            };
            let spare = self.out.spare(cluster);
            let fit = match self.shape.tail {
                TailPolicy::Inline(max) if self.last => {
                    let (fit, end) =
                        fit_tail(encoder, (self.input, self.at), spare, self.shape.block, max);
                    if let Some(end) = end {
                        if let Some(front) = end.front {
                            let committed = self.commit(front);
                            debug_assert!(committed, "it was seen to be worth decoding");
                        }
                        let left = self.input.len() - self.at;
                        self.pieces.push(ShortPiece::own(left, 0, end.kind));
                        self.tail = Tail::Inline(end.bytes);
                        return;
                    }
                    fit
                }
                _ => encoder.fit(self.input, self.at, spare),
            };
            debug_assert!(fit.consumed <= left && fit.written <= cluster);
            if !self.commit(fit) {
                let stored = self.store(fit, self.input.len());
                debug_assert!(stored, "the last piece may have any length");
            }
        }
    }

    /// Appends the output of the encoder, if it is worth decoding.
    fn commit(&mut self, fit: Fit) -> bool {
        let grains = self.shape.grain.count(fit.written);
        let room = grains * self.shape.grain.size();
        if !pays(fit.consumed, room) {
            return false;
        }
        // Right-aligned: less than a block of zeros precedes the data.
        let pad = room - fit.written;
        if pad > 0 {
            let spare = self.out.spare(room);
            spare.copy_within(..fit.written, pad);
            spare[..pad].fill(0);
        }
        self.out.commit(room);
        self.pieces
            .push(ShortPiece::own(fit.consumed, grains, HeadKind::Head1));
        self.at += fit.consumed;
        true
    }

    /// Stores the input of a cluster that did not shrink, block by block where clusters start at blocks. Returns false
    /// if it would have to end in the middle of a block at `end`.
    fn store(&mut self, fit: Fit, end: usize) -> bool {
        let block = self.shape.block;
        let left = end - self.at;
        let to = self.at + left.min((fit.consumed / block * block).max(block));
        if self.shape.unaligned() {
            let piece = stored(&self.input[self.at..to], self.shape.grain, self.out);
            self.pieces.push(piece);
            self.at = to;
            return true;
        }
        while self.at < to {
            let n = block.min(to - self.at);
            if n < block && end < self.input.len() && end / block == self.at / block {
                return false;
            }
            self.out
                .extend_padded(&self.input[self.at..self.at + n], block);
            self.pieces.push(ShortPiece::own(n, 1, HeadKind::Plain));
            self.at += n;
        }
        true
    }
}

/// Appends raw bytes as one cluster.
pub(crate) fn stored(bytes: &[u8], grain: Grain, out: &mut BlockBuffer) -> ShortPiece {
    out.extend_padded(bytes, grain.size());
    ShortPiece::own(bytes.len(), grain.count(bytes.len()), HeadKind::Plain)
}

/// Returns true if a position is in one of the ranges.
fn contains(stretches: &[Range<usize>], at: usize) -> bool {
    let i = stretches.partition_point(|s| s.end <= at);
    stretches.get(i).is_some_and(|s| s.start <= at)
}

/// Returns true if decoding `room` bytes of clusters is worth it for `consumed` bytes of the file.
fn pays(consumed: usize, room: usize) -> bool {
    consumed > room
}

/// Tail of a file with an inline part.
struct End {
    /// Cluster before the inline part, which fills its blocks.
    front: Option<Fit>,
    /// Bytes of the inline part.
    bytes: Vec<u8>,
    kind: HeadKind,
}

/// Largest part of a block, in eighths, that an encoded tail has in its last block to be moved inline. A larger limit
/// saves more, but each move encodes the tail once more.
const MOVED_MAX: usize = 3;

/// Encodes a cluster from `at` on. If the file ends with it and part of it may be inline, that part is returned as
/// well: all of it, or the rest after full blocks. Otherwise the cluster is encoded as usual.
fn fit_tail(
    encoder: &mut DynEncoder,
    (input, at): (&[u8], usize),
    spare: &mut [u8],
    block: usize,
    max: usize,
) -> (Fit, Option<End>) {
    let trim = Trim {
        untrimmed_max: max,
        block,
        excess_max: block / 8 * MOVED_MAX,
    };
    let TailFit { fit, trimmed } = encoder.fit_tail(input, at, spare, &trim);
    let to = at + fit.consumed;
    if to == input.len() {
        let whole = inline(&input[at..], &spare[..fit.written], max);
        let end = whole.map(|(bytes, kind)| End {
            front: None,
            bytes,
            kind,
        });
        return (fit, end);
    }
    if !trimmed {
        return (fit, None);
    }
    if pays(fit.consumed, fit.written.next_multiple_of(block)) {
        let mut room = vec![0; max];
        let rest = encoder.fit(input, to, &mut room);
        let written = match to + rest.consumed == input.len() {
            true => rest.written,
            false => 0,
        };
        if let Some((bytes, kind)) = inline(&input[to..], &room[..written], max) {
            let front = Some(fit);
            return (fit, Some(End { front, bytes, kind }));
        }
    }
    // On its own the rest takes too much.
    encoder.reset();
    (encoder.fit(input, at, spare), None)
}

/// Returns the encoded tail, or the raw one if that is not longer, if it may be inline.
fn inline(raw: &[u8], encoded: &[u8], max: usize) -> Option<(Vec<u8>, HeadKind)> {
    if !encoded.is_empty() && encoded.len() <= max && encoded.len() < raw.len() {
        Some((encoded.to_vec(), HeadKind::Head1))
    } else if raw.len() <= max {
        Some((raw.to_vec(), HeadKind::Plain))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tuff_codec::{Decoder, EncoderSpec, Method};
    use tuff_format::BlockBits;
    use tuff_testkit::content::noise;

    /// Replaces every eighth byte by a random one.
    fn sprinkle(input: &mut [u8]) {
        let mut state = 7u64;
        for (at, byte) in input.iter_mut().enumerate() {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            if at.is_multiple_of(8) {
                *byte = (state >> 56) as u8;
            }
        }
    }

    fn text(n: usize) -> Vec<u8> {
        let mut seed = 1u32;
        (0..n)
            .map(|i| {
                seed = seed.wrapping_mul(1664525).wrapping_add(1013904223);
                if i % 7 == 0 {
                    (seed >> 28) as u8 + b'a'
                } else {
                    b"the log-structured image "[i % 25]
                }
            })
            .collect()
    }

    fn check(input: &[u8], shape: &SegmentShape) -> Segment {
        check_as(Method::Lz4, input, shape)
    }

    fn check_as(method: Method, input: &[u8], shape: &SegmentShape) -> Segment {
        let blocks_count = shape.tail == TailPolicy::Cluster && !shape.unaligned();
        let spec = EncoderSpec {
            unit: if blocks_count { shape.block } else { 1 },
            ..EncoderSpec::new(method, shape.cluster)
        };
        let mut encoder = spec.build().unwrap();
        let mut out = BlockBuffer::default();
        out.extend_padded(&[7; 4096], 4096);
        let plan = (&PartPlan::default(), &ClusterBoard::default());
        let encoders = Encoders {
            usual: encoder.as_mut(),
            large: None,
        };
        let segment = encode(input, true, encoders, shape, plan, &mut out);
        let (mut at, mut block, mut decoder) = (0usize, 4096, Decoder::new());
        let count = segment.pieces.len();
        for (i, piece) in segment.pieces.iter().enumerate() {
            let len = piece.len as usize;
            let want = &input[at..at + len];
            let room = usize::from(piece.grains) * shape.grain.size();
            let end = block + room;
            let bytes = match &segment.tail {
                Tail::Fragment(raw) if i + 1 == count => {
                    assert_eq!(raw, want);
                    at += len;
                    continue;
                }
                Tail::Inline(bytes) if i + 1 == count => &bytes[..],
                _ => &out.bytes()[block..end],
            };
            if piece.kind == HeadKind::Plain {
                assert_eq!(&bytes[..len], want);
            } else {
                let zeros = bytes.iter().take_while(|b| **b == 0).count();
                assert!(zeros < shape.block);
                let mut got = vec![0; len];
                decoder
                    .decode(method.algorithm(), &bytes[zeros..], &mut got)
                    .unwrap();
                assert_eq!(got, want);
                assert!(piece.grains == 0 || len > room);
            }
            assert!(
                i + 1 == count || shape.unaligned() || (at + len) / shape.block > at / shape.block
            );
            at += len;
            block = end;
        }
        assert_eq!((at, block), (input.len(), out.len()));
        segment
    }

    /// A tail that filled little of its last block was padded with zeros.
    #[test]
    fn what_an_end_has_in_its_last_block_goes_behind_the_inode_if_it_is_little() {
        for method in Method::ALL {
            for block in [BlockBits::new(9).unwrap(), BlockBits::B4K] {
                let size = block.size_usize();
                let shape = |tail| SegmentShape {
                    block: size,
                    grain: Grain::new(block, false),
                    cluster: 65536,
                    tail,
                };
                let (mut cut, mut ends) = (0, 0);
                for n in 20..60 {
                    let mut input = text(n * 700);
                    sprinkle(&mut input);
                    let whole = check_as(method, &input, &shape(TailPolicy::Cluster));
                    let ended = check_as(method, &input, &shape(TailPolicy::Inline(size - 96)));
                    let blocks = |s: &Segment| s.pieces.iter().map(|p| p.grains).sum::<u16>();
                    let tail = match &ended.tail {
                        Tail::Inline(bytes) => bytes.len(),
                        _ => 0,
                    };
                    assert!(tail <= size - 96);
                    if tail > 0 && ended.pieces.len() == 2 {
                        assert_eq!(blocks(&ended) + 1, blocks(&whole), "{method} {n}");
                        cut += 1;
                    }
                    ends += usize::from(whole.pieces.len() == 1 && blocks(&whole) > 1);
                }
                // Three of eight tails exceed their blocks by little.
                assert!(
                    cut * 8 > ends,
                    "{method}, blocks of {size}: {cut} of {ends}"
                );
            }
        }
    }

    #[test]
    fn every_piece_decodes_to_its_part_of_the_input() {
        let mut mixed = text(200_000);
        mixed.extend(noise(70_000, 7));
        mixed.extend(text(33_333));
        for cluster in [4096, 16384, 65536] {
            for tail in [
                TailPolicy::Cluster,
                TailPolicy::Inline(4000),
                TailPolicy::Fragment(cluster),
            ] {
                let inline = matches!(tail, TailPolicy::Inline(_));
                let shapes = [false, !inline].map(|unaligned| SegmentShape {
                    block: 4096,
                    grain: Grain::new(BlockBits::B4K, unaligned),
                    cluster,
                    tail,
                });
                for n in [
                    1,
                    100,
                    4095,
                    4096,
                    4097,
                    8192,
                    12345,
                    65536,
                    200_000,
                    270_001,
                    mixed.len(),
                ] {
                    for shape in &shapes {
                        let _ = check(&mixed[..n], shape);
                        let _ = check(&noise(n, 7), shape);
                    }
                }
            }
        }
    }
}
