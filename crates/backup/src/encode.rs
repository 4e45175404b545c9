//! Encoding of ranges into clusters that any file may use in its middle.
//!
//! The index of a file has one entry for each block of content, where one cluster can start. Each cluster therefore holds a block
//! or more. A stored cluster holds at most one, so stored clusters at the end of a range hold whole blocks: a compressed cluster
//! before them is shortened until they do. A range without any such cluster must have whole blocks.

use crate::cluster::{BLOCK, Cluster};
use tuff_codec::{Algorithm, Decoder, Encoder, EncoderSpec};
use tuff_mkfs::{Error, Place, Result};

/// Encoder of ranges, with its buffers.
pub(crate) struct RangeEncoder {
    encoder: Box<dyn Encoder>,
    algorithm: Algorithm,
    cluster: usize,
    buffer: Vec<u8>,
    decoder: Decoder,
    decoded: Vec<u8>,
}

/// Part of a range in a cluster.
struct Part {
    start: usize,
    len: usize,
    /// Encoded bytes. `None` for a block that is stored.
    bytes: Option<Vec<u8>>,
}

impl Part {
    fn end(&self) -> usize {
        self.start + self.len
    }
}

/// Content and longest output of the cluster that shows that a range compresses. Unit: bytes.
const PROBE: (usize, usize) = (4 * BLOCK, 3 * BLOCK);
/// Most blocks that are stored without an attempt, as a power of two.
const SKIPPED_MAX: u32 = 5;
/// Number of places at which a range is tried.
const PROBES: usize = 8;

impl RangeEncoder {
    pub(crate) fn new(spec: &EncoderSpec) -> Result<Self> {
        let encoder = spec.build();
        Ok(Self {
            encoder: encoder.map_err(|e| Error::usage(e.to_string()))?,
            algorithm: spec.method.algorithm(),
            buffer: vec![0; spec.cluster.max(PROBE.1)],
            cluster: spec.cluster,
            decoder: Decoder::default(),
            decoded: Vec::new(),
        })
    }

    /// Finds a place at which a range without whole blocks compresses so far that its end can be moved. `None` if there is none:
    /// the range must be cut at a block.
    pub(crate) fn probe(&mut self, content: &[u8]) -> Option<usize> {
        let blocks = content.len() / BLOCK;
        let last = blocks.checked_sub(PROBE.0 / BLOCK)?;
        (0..PROBES)
            .map(|n| last * n / PROBES * BLOCK)
            .find(|start| self.probe_at(content, *start).is_some())
    }

    /// Encodes the content at a place so that whole blocks follow.
    fn probe_at(&mut self, content: &[u8], start: usize) -> Option<Part> {
        let end = start + PROBE.0;
        self.fit(content, start, end - misfit(content, end), PROBE.1)
    }

    /// Encodes a range, and compares what its clusters decode to. `probe` is the place that [`probe`](Self::probe) found, for a
    /// range without whole blocks. Returns the clusters and their bytes, whole blocks.
    pub(crate) fn encode(
        &mut self,
        content: &[u8],
        probe: Option<usize>,
    ) -> Result<(Vec<Cluster>, Vec<u8>)> {
        let (mut parts, mut at) = (Vec::new(), 0);
        // Blocks that are stored without an attempt: more of them after each one in a row that saved nothing.
        let (mut misses, mut skipped) = (0, 0);
        self.encoder.reset();
        while at < content.len() {
            let part = match skipped {
                0 => self.compress(content, at),
                _ => None,
            };
            (misses, skipped) = match (&part, skipped) {
                (Some(_), _) => (0, 0),
                (None, 0) => (misses + 1, (1 << misses.min(SKIPPED_MAX)) - 1),
                (None, _) => (misses, skipped - 1),
            };
            let part = part.unwrap_or_else(|| stored(content, at));
            at = part.end();
            parts.push(part);
        }
        if parts.last().is_some_and(|part| part.len < BLOCK) && parts.len() > 1 {
            let moved = self.move_end(content, &mut parts, probe);
            moved
                .ok_or_else(|| Error::limit(Place::image(), "a range that no clusters can hold"))?;
        }
        let (mut clusters, mut out) = (Vec::new(), Vec::new());
        for part in &parts {
            let bytes = part.bytes.as_deref();
            let blocks = bytes.map_or(1, |bytes| bytes.len().div_ceil(BLOCK));
            match bytes {
                Some(bytes) => pad(&mut out, bytes, blocks),
                None => {
                    out.extend_from_slice(&content[part.start..part.end()]);
                    out.resize(out.len().next_multiple_of(BLOCK), 0);
                }
            }
            // Fits: a cluster has at most 1 MiB and decodes to at most 12 MiB.
            clusters.push(Cluster {
                content: part.len as u32,
                blocks: blocks as u16,
                is_stored: bytes.is_none(),
            });
        }
        self.compare(content, &clusters, &out)?;
        Ok((clusters, out))
    }

    /// Encodes as much as fits into a cluster. `None` if that would save nothing.
    fn compress(&mut self, content: &[u8], at: usize) -> Option<Part> {
        let left = content.len() - at;
        let buffer = &mut self.buffer[..self.cluster];
        let mut fit = self.encoder.fit(content, at, buffer);
        let rest = left - fit.consumed;
        if (1..BLOCK).contains(&rest) && left > BLOCK {
            // A block is left for the last cluster.
            self.encoder.reset();
            fit = self
                .encoder
                .fit(&content[..content.len() - BLOCK], at, buffer);
            self.encoder.reset();
        }
        let saves = fit.consumed > fit.written.next_multiple_of(BLOCK);
        saves.then(|| Part {
            start: at,
            len: fit.consumed,
            bytes: Some(self.buffer[..fit.written].to_vec()),
        })
    }

    /// Encodes exactly a part of a range into at most `max` bytes. `None` if it does not fit or saves nothing.
    fn fit(&mut self, content: &[u8], start: usize, end: usize, max: usize) -> Option<Part> {
        let len = end.checked_sub(start).filter(|len| *len > BLOCK)?;
        self.encoder.reset();
        let fit = self
            .encoder
            .fit(&content[..end], start, &mut self.buffer[..max]);
        self.encoder.reset();
        let saves = fit.consumed == len && len > fit.written.next_multiple_of(BLOCK);
        saves.then(|| Part {
            start,
            len,
            bytes: Some(self.buffer[..fit.written].to_vec()),
        })
    }

    /// Shortens a compressed cluster so that whole blocks follow it, which are stored.
    fn move_end(
        &mut self,
        content: &[u8],
        parts: &mut Vec<Part>,
        probe: Option<usize>,
    ) -> Option<()> {
        let mut moved = None;
        for i in (0..parts.len()).rev().filter(|i| parts[*i].bytes.is_some()) {
            let end = parts[i].end();
            let end = end.saturating_sub(misfit(content, end));
            moved = self.fit(content, parts[i].start, end, self.cluster);
            if moved.is_some() {
                parts.truncate(i);
                break;
            }
        }
        if moved.is_none() && content.len().is_multiple_of(BLOCK) {
            parts.clear();
            parts.extend(
                (0..content.len())
                    .step_by(BLOCK)
                    .map(|at| stored(content, at)),
            );
            return Some(());
        }
        if moved.is_none() {
            let start = probe?;
            moved = self.probe_at(content, start);
            parts.clear();
            parts.extend((0..start).step_by(BLOCK).map(|at| stored(content, at)));
        }
        let moved = moved?;
        let end = moved.end();
        parts.push(moved);
        parts.extend(
            (end..content.len())
                .step_by(BLOCK)
                .map(|at| stored(content, at)),
        );
        Some(())
    }

    /// Decodes all clusters, so that an error of an encoder is found before it is stored.
    fn compare(&mut self, content: &[u8], clusters: &[Cluster], bytes: &[u8]) -> Result<()> {
        let mut decoded = std::mem::take(&mut self.decoded);
        decoded.clear();
        let read = decode(
            &mut self.decoder,
            self.algorithm,
            clusters,
            bytes,
            &mut decoded,
        );
        let is_equal = decoded == content;
        self.decoded = decoded;
        read?;
        match is_equal {
            true => Ok(()),
            false => Err(Error::corrupt(
                Place::image(),
                "a cluster decodes to other bytes",
            )),
        }
    }
}

/// A block at `at` as it is, or what is left of the range.
fn stored(content: &[u8], at: usize) -> Part {
    Part {
        start: at,
        len: (content.len() - at).min(BLOCK),
        bytes: None,
    }
}

/// Number of bytes by which a cluster that ends at `end` is to end earlier so that whole blocks follow.
fn misfit(content: &[u8], end: usize) -> usize {
    (content.len() - end).next_multiple_of(BLOCK) - (content.len() - end)
}

/// Adds the bytes of a cluster, which end with its last block.
fn pad(out: &mut Vec<u8>, bytes: &[u8], blocks: usize) {
    out.resize(out.len() + blocks * BLOCK - bytes.len(), 0);
    out.extend_from_slice(bytes);
}

/// Appends what clusters hold to `out`.
pub(crate) fn decode(
    decoder: &mut Decoder,
    algorithm: Algorithm,
    clusters: &[Cluster],
    mut bytes: &[u8],
    out: &mut Vec<u8>,
) -> Result<()> {
    let broken = |what: &str| Error::corrupt(Place::image(), format_args!("a cluster {what}"));
    for cluster in clusters {
        let len = usize::from(cluster.blocks) * BLOCK;
        let (now, later) = bytes
            .split_at_checked(len)
            .ok_or_else(|| broken("ends too early"))?;
        bytes = later;
        let content = cluster.content as usize;
        if cluster.is_stored {
            out.extend_from_slice(now.get(..content).ok_or_else(|| broken("is too short"))?);
            continue;
        }
        let zeros = now
            .iter()
            .take(BLOCK)
            .take_while(|byte| **byte == 0)
            .count();
        let start = out.len();
        out.resize(start + content, 0);
        let (from, to) = (&now[zeros..], &mut out[start..]);
        let decoded = decoder.decode(algorithm, from, to);
        decoded.map_err(|e| broken(&format!("cannot be decoded: {e}")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tuff_codec::Method;
    use tuff_testkit::content::{mixed, noise, text};

    /// Every cluster of a range can be in the middle of a file at any position.
    #[test]
    fn clusters_hold_a_block_or_more() {
        let mut moved = 0;
        for method in [Method::Lz4, Method::Zstd] {
            let mut encoder = RangeEncoder::new(&EncoderSpec::new(method, 32 << 10)).unwrap();
            for seed in 0..40 {
                let len = 65_536 + 7_919 * seed as usize;
                // Text in front of, between and behind what does not compress.
                let mut between = noise(len, seed);
                let at = (seed as usize * 997) % (len - 20_000);
                between[at..at + 20_000].copy_from_slice(&text(20_000, seed));
                let contents = [text(len, seed), mixed(len, seed), noise(len, seed), between];
                for (kind, content) in contents.iter().enumerate() {
                    let probe = encoder.probe(content);
                    assert!(probe.is_some() || kind > 0, "text of {len} bytes");
                    let whole = content.len() / BLOCK * BLOCK;
                    let content = if probe.is_some() {
                        &content[..]
                    } else {
                        &content[..whole]
                    };
                    let (clusters, bytes) = encoder.encode(content, probe).unwrap();
                    let held: u64 = clusters.iter().map(|c| u64::from(c.content)).sum();
                    assert_eq!(held, content.len() as u64);
                    let blocks: usize = clusters.iter().map(|c| usize::from(c.blocks)).sum();
                    assert_eq!(blocks * BLOCK, bytes.len());
                    for cluster in &clusters {
                        let len = u32::from(cluster.blocks) * BLOCK as u32;
                        match cluster.is_stored {
                            true => assert_eq!(cluster.content, BLOCK as u32),
                            false => assert!(cluster.content > len, "{method}, {seed}, {kind}"),
                        }
                    }
                    moved +=
                        usize::from(content.len() > whole && clusters.last().unwrap().is_stored);
                }
            }
        }
        assert!(moved > 10, "{moved}");
    }

    /// Encoder that flips a bit of its output.
    struct Flips(Box<dyn Encoder>);

    impl Encoder for Flips {
        fn reset(&mut self) {
            self.0.reset();
        }

        fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> tuff_codec::Fit {
            let fit = self.0.fit(input, at, dst);
            dst[fit.written / 2] ^= 4;
            fit
        }

        fn input_max(&self) -> usize {
            self.0.input_max()
        }
    }

    /// B7: what an encoder writes is decoded and compared before it is stored.
    #[test]
    fn b7_an_encoder_that_flips_a_bit_is_found() {
        for method in [Method::Lz4, Method::Deflate, Method::Lzma, Method::Zstd] {
            let spec = EncoderSpec::new(method, 32 << 10);
            let mut encoder = RangeEncoder::new(&spec).unwrap();
            let content = text(300_000, 1);
            encoder.encode(&content, None).unwrap();
            encoder.encoder = Box::new(Flips(spec.build().unwrap()));
            let found = encoder.encode(&content, None);
            assert!(found.is_err(), "{method}");
        }
    }

    #[test]
    fn short_ranges_have_one_cluster() {
        let mut encoder = RangeEncoder::new(&EncoderSpec::new(Method::Zstd, 32 << 10)).unwrap();
        for len in [1, 100, BLOCK - 1, BLOCK] {
            let (clusters, bytes) = encoder.encode(&noise(len, 1), None).unwrap();
            assert_eq!((clusters.len(), bytes.len()), (1, BLOCK));
        }
    }
}
