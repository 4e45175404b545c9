//! DEFLATE with libdeflate.
//!
//! A stream that starts with a stored block that is not the last one begins with a zero byte: three header bits and
//! five bits of padding. Decoders skip the padding whatever it holds, so bit 3 is set in that case.

use std::ptr::{self, NonNull};

use libdeflate_sys::{
    libdeflate_alloc_compressor, libdeflate_alloc_decompressor, libdeflate_compressor,
    libdeflate_decompressor, libdeflate_deflate_compress, libdeflate_deflate_compress_bound,
    libdeflate_deflate_decompress_ex, libdeflate_free_compressor, libdeflate_free_decompressor,
    libdeflate_result_LIBDEFLATE_INSUFFICIENT_SPACE as INSUFFICIENT_SPACE,
    libdeflate_result_LIBDEFLATE_SHORT_OUTPUT as SHORT_OUTPUT,
    libdeflate_result_LIBDEFLATE_SUCCESS as SUCCESS,
};

mod cut;

use cut::{Code, cut};

use crate::lz4::piece;
use crate::probe::Probe;
use crate::{EncodeFit, EncoderSpec, Fit, FitEnd, Trim};

/// The first bit of the padding behind the header of a stored block.
const PADDING: u8 = 0x08;

/// What a byte of output is worth at first. Unit: bytes of LZ4.
const WORTH: f64 = 1.5;

/// After so many tries the output is taken as it is.
const TRIES: u32 = 8;

/// Added to every length, so that short ones grow. Unit: bytes.
const SLACK: usize = 32;

/// More than any single step of the decoder writes: a stored block. Unit: bytes.
const STEP: usize = 1 << 16;

/// A compressor of the C library.
struct Compressor(NonNull<libdeflate_compressor>);

// SAFETY: a compressor is a plain heap object; nothing in it belongs to the thread that made it.
unsafe impl Send for Compressor {}

impl Drop for Compressor {
    fn drop(&mut self) {
        // SAFETY: made by libdeflate_alloc_compressor, freed once.
        unsafe { libdeflate_free_compressor(self.0.as_ptr()) };
    }
}

/// How much more input is compressed than should fit.
const MARGIN: f64 = 1.05;

/// The encoder: compresses a little more than fits, once, and cuts the stream.
pub(crate) struct Deflate {
    compressor: Compressor,
    probe: Probe,
    stream: Vec<u8>,
    literals: Box<Code>,
    distances: Box<Code>,
    window: usize,
}

impl Deflate {
    pub(crate) fn new(spec: &EncoderSpec) -> Option<Self> {
        // SAFETY: no preconditions; an unknown level gives null.
        let compressor = NonNull::new(unsafe { libdeflate_alloc_compressor(spec.level) })?;
        Some(Self {
            compressor: Compressor(compressor),
            probe: Probe::new(WORTH),
            stream: Vec::new(),
            literals: Box::new(Code::new()),
            distances: Box::new(Code::new()),
            window: spec.window,
        })
    }

    /// Compresses all of `src` into `stream`. Returns the size.
    fn compress(&mut self, src: &[u8]) -> Option<usize> {
        let compressor = self.compressor.0.as_ptr();
        // SAFETY: the compressor is alive and `&mut self` makes it ours.
        let bound = unsafe { libdeflate_deflate_compress_bound(compressor, src.len()) };
        if self.stream.len() < bound {
            self.stream.resize(bound, 0);
        }
        let stream = &mut self.stream[..bound];
        // SAFETY: as above; both are slices of the lengths passed.
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
    fn hand_over(&self, consumed: usize, written: usize, dst: &mut [u8]) -> Fit {
        dst[..written].copy_from_slice(&self.stream[..written]);
        if dst[0] == 0 {
            dst[0] = PADDING;
        }
        Fit { consumed, written }
    }
}

impl EncodeFit for Deflate {
    fn reset(&mut self) {
        self.probe.reset();
    }

    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
        let src = piece(input, at, self.window);
        let room = dst.len();
        if src.is_empty() || room == 0 {
            return Fit::NOTHING;
        }
        // What is at most twice as long as the output mostly fits: it needs no guess, and teaches none.
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
            let Some(cut) = cut(stream, room, &mut self.literals, &mut self.distances) else {
                return Fit::NOTHING;
            };
            // Codes for much more than what is left of the stream are not the best for it.
            if tries <= TRIES
                && size > room + room / 4
                && len > cut.content + cut.content / 8 + SLACK
            {
                len = cut.content + cut.content / 32 + SLACK;
                continue;
            }
            break (cut.content, cut.size);
        };
        if guesses && written * 8 >= room * 7 {
            self.probe.learn(consumed);
        }
        self.hand_over(consumed, written, dst)
    }

    fn fit_end(&mut self, input: &[u8], at: usize, dst: &mut [u8], trim: &Trim) -> FitEnd {
        let fit = self.fit(input, at, dst);
        let room = trim
            .room(fit.written)
            .filter(|_| fit.consumed == input.len() - at);
        let cut = room.and_then(|room| {
            let stream = &mut self.stream[..fit.written];
            cut(stream, room, &mut self.literals, &mut self.distances)
        });
        match cut {
            Some(cut) => FitEnd {
                fit: self.hand_over(cut.content, cut.size, dst),
                trimmed: true,
            },
            None => fit.into(),
        }
    }

    fn window(&self) -> usize {
        self.window
    }
}

/// A decompressor of the C library, and a buffer for prefixes.
pub(crate) struct Decompressor {
    decompressor: NonNull<libdeflate_decompressor>,
    buffer: Vec<u8>,
}

// SAFETY: a decompressor is a plain heap object; nothing in it belongs to the thread that made it.
unsafe impl Send for Decompressor {}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: made by libdeflate_alloc_decompressor, freed once.
        unsafe { libdeflate_free_decompressor(self.decompressor.as_ptr()) };
    }
}

impl Decompressor {
    pub(crate) fn new() -> Option<Self> {
        // SAFETY: no preconditions.
        let decompressor = NonNull::new(unsafe { libdeflate_alloc_decompressor() })?;
        Some(Self {
            decompressor,
            buffer: Vec::new(),
        })
    }

    /// Decodes a whole stream to exactly `dst.len()` bytes.
    pub(crate) fn decode(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), &'static str> {
        let mut read = 0;
        // SAFETY: the decompressor is alive and `&mut self` makes it ours; both are slices of the lengths passed; a
        // null out-length asks for exactly `dst.len()` bytes.
        let result = unsafe {
            libdeflate_deflate_decompress_ex(
                self.decompressor.as_ptr(),
                src.as_ptr().cast(),
                src.len(),
                dst.as_mut_ptr().cast(),
                dst.len(),
                &mut read,
                ptr::null_mut(),
            )
        };
        match result {
            SUCCESS if read == src.len() => Ok(()),
            SUCCESS => Err("bytes follow the deflate stream"),
            SHORT_OUTPUT => Err("deflate stream decodes to less than expected"),
            INSUFFICIENT_SPACE => Err("deflate stream decodes to more than expected"),
            _ => Err("deflate stream is broken or cut short"),
        }
    }

    /// Decodes until there are `dst.len()` bytes.
    pub(crate) fn decode_prefix(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), &'static str> {
        let room = dst.len() + STEP;
        if self.buffer.len() < room {
            self.buffer.resize(room, 0);
        }
        let buffer = &mut self.buffer[..room];
        let (mut read, mut written) = (0, 0);
        // SAFETY: as in `decode`; `buffer` is a slice of the length passed.
        let result = unsafe {
            libdeflate_deflate_decompress_ex(
                self.decompressor.as_ptr(),
                src.as_ptr().cast(),
                src.len(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &mut read,
                &mut written,
            )
        };
        match result {
            SUCCESS if written < dst.len() => {
                return Err("deflate stream ends before the expected length");
            }
            // The library writes from front to back and stops at the first step that does not fit, and the buffer is
            // longer than `dst` by more than a step.
            SUCCESS | INSUFFICIENT_SPACE => {}
            _ => return Err("deflate stream is broken or cut short"),
        }
        dst.copy_from_slice(&buffer[..dst.len()]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Method;

    /// A stream with stored, fixed and dynamic blocks, and what it decodes to.
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
        let mut deflate = Deflate::new(&EncoderSpec::new(Method::Deflate, 1 << 20)).unwrap();
        let size = deflate.compress(&input).unwrap();
        (deflate.stream[..size].to_vec(), input)
    }

    #[test]
    fn a_cut_stream_decodes_to_a_prefix_and_is_nearly_full() {
        let (stream, input) = mixed_stream();
        let (mut literals, mut distances) = (Code::new(), Code::new());
        let mut decompressor = Decompressor::new().unwrap();
        let mut content_before = 0;
        for room in (1..300)
            .chain((300..stream.len()).step_by(97))
            .chain([stream.len()])
        {
            let mut copy = stream.clone();
            let Some(cut) = cut(&mut copy, room, &mut literals, &mut distances) else {
                assert!(room < 200, "nothing fits into {room}");
                continue;
            };
            assert!(
                cut.size <= room && cut.size + 200 >= room.min(stream.len()),
                "{cut:?} of {room}"
            );
            assert!(cut.content >= content_before, "more room, less content");
            content_before = cut.content;
            let mut back = vec![0; cut.content];
            assert_eq!(
                decompressor.decode(&copy[..cut.size], &mut back),
                Ok(()),
                "{cut:?} of {room}"
            );
            assert!(back == input[..cut.content]);
        }
        assert_eq!(content_before, input.len());
    }
}
