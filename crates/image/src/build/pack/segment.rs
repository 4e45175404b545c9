//! From the bytes of one segment to pieces and blocks: the loop around the encoder.
//!
//! Invariants, which the index forms rely on:
//!
//! * A compressed piece decodes to more bytes than its blocks hold.
//! * Every piece but a file's last ends in a later block than it starts in.
//! * A segment but a file's last has a multiple of the block size.

use super::blocks::Blocks;
use tuff_codec::EncodeFit;
use tuff_format::cluster::HeadKind;

/// One extent of a file, before it has an address. Blocks of consecutive pieces are consecutive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShortPiece {
    /// Length in the file. Unit: bytes.
    pub(crate) len: u32,
    /// Blocks it takes; 0 for an inline or fragment tail.
    pub(crate) blocks: u16,
    /// Stored or compressed.
    pub(crate) kind: HeadKind,
}

/// What becomes of the end of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TailPolicy {
    /// It gets blocks like the rest.
    Cluster,
    /// Up to so many encoded bytes go behind the inode.
    Inline(usize),
    /// Up to so many raw bytes go into the packed inode.
    Fragment(usize),
}

/// What became of the end of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// Nothing special.
    Cluster,
    /// The last piece's bytes, to be put behind the index.
    Inline(Vec<u8>),
    /// The last piece's raw bytes, to be put into the packed inode.
    Fragment(Vec<u8>),
}

/// How to encode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Unit: bytes.
    pub(crate) block: usize,
    /// Largest cluster. Unit: bytes.
    pub(crate) cluster: usize,
    /// For the end of a file.
    pub(crate) tail: TailPolicy,
}

/// An encoded segment. Its blocks were appended to the output.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Extents in order.
    pub(crate) pieces: Vec<ShortPiece>,
    /// The end.
    pub(crate) tail: Tail,
}

/// Encodes `input`, appending whole blocks to `out`. `last`: the file ends with it.
pub(crate) fn encode(
    input: &[u8],
    last: bool,
    encoder: &mut dyn EncodeFit,
    shape: &Shape,
    out: &mut Blocks,
) -> Segment {
    let block = shape.block;
    debug_assert!(last || input.len().is_multiple_of(block));
    let mut pieces = Vec::with_capacity(input.len() / shape.cluster + 1);
    let mut tail = Tail::Cluster;
    let mut at = 0;
    encoder.reset();
    while at < input.len() {
        let left = input.len() - at;
        if let TailPolicy::Fragment(max) = shape.tail
            && last
            && left <= max
        {
            pieces.push(ShortPiece {
                len: left as u32,
                blocks: 0,
                kind: HeadKind::Head1,
            });
            tail = Tail::Fragment(input[at..].to_vec());
            break;
        }
        let spare = out.spare(shape.cluster);
        let fit = encoder.fit(input, at, spare);
        debug_assert!(fit.consumed <= left && fit.written <= shape.cluster);
        let ends = last && fit.consumed == left;
        if let TailPolicy::Inline(max) = shape.tail
            && ends
            && let Some((bytes, kind)) = inline(&input[at..], &spare[..fit.written], max)
        {
            pieces.push(ShortPiece {
                len: left as u32,
                blocks: 0,
                kind,
            });
            tail = Tail::Inline(bytes);
            break;
        }
        let blocks = fit.written.div_ceil(block);
        if pays(fit.consumed, blocks * block) {
            // Right-aligned: the zeros go in front, and there are fewer than a block of them.
            let pad = blocks * block - fit.written;
            if pad > 0 {
                spare.copy_within(..fit.written, pad);
                spare[..pad].fill(0);
            }
            out.commit(blocks * block);
            pieces.push(ShortPiece {
                len: fit.consumed as u32,
                blocks: blocks as u16,
                kind: HeadKind::Head1,
            });
            at += fit.consumed;
        } else {
            // What one cluster took did not shrink: store all of it, block by block, and try again behind it.
            let end = at + left.min((fit.consumed / block * block).max(block));
            while at < end {
                let n = block.min(end - at);
                out.extend_padded(&input[at..at + n], block);
                pieces.push(ShortPiece {
                    len: n as u32,
                    blocks: 1,
                    kind: HeadKind::Plain,
                });
                at += n;
            }
        }
    }
    Segment { pieces, tail }
}

/// True if decoding `room` bytes of clusters is worth it for `consumed` bytes of file.
fn pays(consumed: usize, room: usize) -> bool {
    consumed > room
}

/// The encoded end of a file, or the raw one if that is no longer, if it may go behind the inode.
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

    fn noise(n: usize) -> Vec<u8> {
        let mut seed = 7u64;
        (0..n)
            .map(|_| {
                seed = seed
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                (seed >> 56) as u8
            })
            .collect()
    }

    fn check(input: &[u8], shape: &Shape) {
        let spec = EncoderSpec::new(Method::Lz4, shape.cluster);
        let mut encoder = spec.build().unwrap();
        let mut out = Blocks::default();
        out.extend_padded(&[7; 4096], 4096);
        let segment = encode(input, true, encoder.as_mut(), shape, &mut out);
        let (mut at, mut block, mut decoder) = (0usize, 4096, Decoder::new());
        let count = segment.pieces.len();
        for (i, piece) in segment.pieces.iter().enumerate() {
            let len = piece.len as usize;
            let want = &input[at..at + len];
            let end = block + usize::from(piece.blocks) * shape.block;
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
                    .decode(tuff_codec::Algorithm::Lz4, &bytes[zeros..], &mut got)
                    .unwrap();
                assert_eq!(got, want);
                assert!(piece.blocks == 0 || len > usize::from(piece.blocks) * shape.block);
            }
            assert!(i + 1 == count || (at + len) / shape.block > at / shape.block);
            at += len;
            block = end;
        }
        assert_eq!((at, block), (input.len(), out.len()));
    }

    #[test]
    fn every_piece_decodes_to_its_part_of_the_input() {
        let mut mixed = text(200_000);
        mixed.extend(noise(70_000));
        mixed.extend(text(33_333));
        for cluster in [4096, 16384, 65536] {
            for tail in [
                TailPolicy::Cluster,
                TailPolicy::Inline(4000),
                TailPolicy::Fragment(cluster),
            ] {
                let shape = Shape {
                    block: 4096,
                    cluster,
                    tail,
                };
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
                    check(&mixed[..n], &shape);
                    check(&noise(n), &shape);
                }
            }
        }
    }
}
