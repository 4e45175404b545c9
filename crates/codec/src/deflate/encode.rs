//! DEFLATE encoding with libdeflate.
//!
//! A stream whose first block is stored, and not the last one, begins with a zero byte: three header bits and five
//! bits of padding. Decoders ignore the padding, so bit 3 is set in that case.

use std::ptr::NonNull;

use libdeflate_sys::{
    libdeflate_alloc_compressor, libdeflate_compressor, libdeflate_deflate_compress,
    libdeflate_deflate_compress_bound, libdeflate_free_compressor,
};

use super::truncate::{HuffmanTable, truncate};
use crate::encode::bounded_input;
use crate::input_estimate::InputEstimator;
use crate::{Encoder, EncoderSpec, Fit, TailFit, Trim};

/// First bit of the padding after the header of a stored block.
const PADDING: u8 = 0x08;

/// Initial factor of the estimator. Unit: bytes of LZ4 per byte of output.
const WORTH: f64 = 1.5;

/// Number of attempts after which the output is accepted.
const TRIES: u32 = 8;

/// Added to every length, so that short ones grow. Unit: bytes.
const SLACK: usize = 32;

/// Compressor of the C library.
struct Compressor(NonNull<libdeflate_compressor>);

// SAFETY: a compressor is a plain heap object without ties to the thread that created it.
unsafe impl Send for Compressor {}

impl Drop for Compressor {
    fn drop(&mut self) {
        // SAFETY: created by libdeflate_alloc_compressor, freed once.
        unsafe { libdeflate_free_compressor(self.0.as_ptr()) };
    }
}

/// Ratio of the input compressed to the input expected to fit.
const MARGIN: f64 = 1.05;

/// Encoder that compresses slightly more than fits, once, and truncates the stream.
pub(crate) struct DeflateEncoder {
    compressor: Compressor,
    probe: InputEstimator,
    stream: Vec<u8>,
    literals: Box<HuffmanTable>,
    distances: Box<HuffmanTable>,
    input_max: usize,
}

impl DeflateEncoder {
    pub(crate) fn new(spec: &EncoderSpec) -> Option<Self> {
        // SAFETY: no preconditions; an unknown level returns null.
        let compressor = NonNull::new(unsafe { libdeflate_alloc_compressor(spec.level) })?;
        Some(Self {
            compressor: Compressor(compressor),
            probe: InputEstimator::new(WORTH),
            stream: Vec::new(),
            literals: Box::new(HuffmanTable::new()),
            distances: Box::new(HuffmanTable::new()),
            input_max: spec.input_max,
        })
    }

    /// Compresses all of `src` into `stream`. Returns the size.
    fn compress(&mut self, src: &[u8]) -> Option<usize> {
        let compressor = self.compressor.0.as_ptr();
        // SAFETY: the compressor is alive and borrowed exclusively.
        let bound = unsafe { libdeflate_deflate_compress_bound(compressor, src.len()) };
        if self.stream.len() < bound {
            self.stream.resize(bound, 0);
        }
        let stream = &mut self.stream[..bound];
        // SAFETY: as above; both slices have the lengths passed.
        let n = unsafe {
            libdeflate_deflate_compress(
                compressor,
                src.as_ptr().cast(),
                src.len(),
                stream.as_mut_ptr().cast(),
                stream.len(),
            )
        };
        (n > 0).then_some(n)
    }

    /// Copies the stream to the output.
    fn copy_out(&self, consumed: usize, written: usize, dst: &mut [u8]) -> Fit {
        dst[..written].copy_from_slice(&self.stream[..written]);
        if dst[0] == 0 {
            dst[0] = PADDING;
        }
        Fit { consumed, written }
    }
}

impl Encoder for DeflateEncoder {
    fn reset(&mut self) {
        self.probe.reset();
    }

    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
        let src = bounded_input(input, at, self.input_max);
        let room = dst.len();
        if src.is_empty() || room == 0 {
            return Fit::NOTHING;
        }
        // Input of at most twice the output's size usually fits: it needs no estimate, and the estimator learns
        // nothing from it.
        let guesses = src.len() > 2 * room;
        let mut len = if guesses {
            (self.probe.guess(src, room) as f64 * MARGIN) as usize + SLACK
        } else {
            src.len()
        };
        let mut tries = 0;
        let (consumed, written) = loop {
            tries += 1;
            if len + len / 16 >= src.len() {
                len = src.len();
            }
            let Some(size) = self.compress(&src[..len]) else {
                return Fit::NOTHING;
            };
            if size <= room {
                if len == src.len() || size >= room - room / 200 || tries > TRIES {
                    break (len, size);
                }
                len = (len as f64 * room as f64 / size as f64 * MARGIN) as usize + SLACK;
                continue;
            }
            let stream = &mut self.stream[..size];
            let Some(truncate) = truncate(stream, room, &mut self.literals, &mut self.distances)
            else {
                return Fit::NOTHING;
            };
            // Huffman codes for much more than the truncated stream are not the best ones for it.
            if tries <= TRIES
                && size > room + room / 4
                && len > truncate.content + truncate.content / 8 + SLACK
            {
                len = truncate.content + truncate.content / 32 + SLACK;
                continue;
            }
            break (truncate.content, truncate.size);
        };
        if guesses && written * 8 >= room * 7 {
            self.probe.learn(consumed);
        }
        self.copy_out(consumed, written, dst)
    }

    fn fit_tail(&mut self, input: &[u8], at: usize, dst: &mut [u8], trim: &Trim) -> TailFit {
        let fit = self.fit(input, at, dst);
        let room = trim
            .target(fit.written)
            .filter(|_| fit.consumed == input.len() - at);
        let truncate = room.and_then(|room| {
            let stream = &mut self.stream[..fit.written];
            truncate(stream, room, &mut self.literals, &mut self.distances)
        });
        match truncate {
            Some(truncate) => TailFit {
                fit: self.copy_out(truncate.content, truncate.size, dst),
                trimmed: true,
            },
            None => fit.into(),
        }
    }

    fn input_max(&self) -> usize {
        self.input_max
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode::Decompressor;
    use super::*;
    use crate::Method;

    /// Returns a stream with stored, fixed and dynamic blocks, and its content.
    fn mixed_stream() -> (Vec<u8>, Vec<u8>) {
        let mut seed = 3u32;
        let mut noise = move || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        };
        let mut input: Vec<u8> = (0..3000).map(|_| noise()).collect();
        for n in 0..4000u32 {
            input.extend_from_slice(format!("line {} of {}\n", n * n % 977, n % 7).as_bytes());
        }
        input.extend((0..70_000).map(|_| noise()));
        input.extend_from_slice(b"the end");
        let mut deflate = DeflateEncoder::new(&EncoderSpec::new(Method::Deflate, 1 << 20)).unwrap();
        let size = deflate.compress(&input).unwrap();
        (deflate.stream[..size].to_vec(), input)
    }

    #[test]
    fn a_truncated_stream_decodes_to_a_prefix_and_nearly_fills_the_output() {
        let (stream, input) = mixed_stream();
        let (mut literals, mut distances) = (HuffmanTable::new(), HuffmanTable::new());
        let mut decompressor = Decompressor::new().unwrap();
        let mut content_before = 0;
        for room in (1..300)
            .chain((300..stream.len()).step_by(97))
            .chain([stream.len()])
        {
            let mut copy = stream.clone();
            let Some(truncate) = truncate(&mut copy, room, &mut literals, &mut distances) else {
                assert!(room < 200, "nothing fits into {room}");
                continue;
            };
            assert!(
                truncate.size <= room && truncate.size + 200 >= room.min(stream.len()),
                "{truncate:?} of {room}"
            );
            assert!(
                truncate.content >= content_before,
                "more room, less content"
            );
            content_before = truncate.content;
            let mut back = vec![0; truncate.content];
            assert_eq!(
                decompressor.decode(&copy[..truncate.size], &mut back),
                Ok(()),
                "{truncate:?} of {room}"
            );
            assert!(back == input[..truncate.content]);
        }
        assert_eq!(content_before, input.len());
    }
}
