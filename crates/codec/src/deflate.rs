//! DEFLATE with libdeflate.
//!
//! A stream that starts with a stored block that is not the last one begins with a zero byte: three header bits and
//! five bits of padding. Decoders skip the padding whatever it holds, so bit 3 is set in that case.

use std::ptr::{self, NonNull};

use libdeflate_sys::{
    libdeflate_alloc_compressor, libdeflate_alloc_decompressor, libdeflate_compressor,
    libdeflate_decompressor, libdeflate_deflate_compress, libdeflate_deflate_decompress_ex,
    libdeflate_free_compressor, libdeflate_free_decompressor,
    libdeflate_result_LIBDEFLATE_INSUFFICIENT_SPACE as INSUFFICIENT_SPACE,
    libdeflate_result_LIBDEFLATE_SHORT_OUTPUT as SHORT_OUTPUT,
    libdeflate_result_LIBDEFLATE_SUCCESS as SUCCESS,
};

use crate::lz4::piece;
use crate::search::Search;
use crate::{EncodeFit, EncoderSpec, Fit};

/// The first bit of the padding behind the header of a stored block.
const PADDING: u8 = 0x08;

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

/// The encoder.
pub(crate) struct Deflate {
    compressor: Compressor,
    search: Search,
    window: usize,
}

impl Deflate {
    pub(crate) fn new(spec: &EncoderSpec) -> Option<Self> {
        Some(Self {
            // SAFETY: no preconditions; an unknown level gives null.
            compressor: Compressor(NonNull::new(unsafe {
                libdeflate_alloc_compressor(spec.level)
            })?),
            search: Search::new(spec.cluster),
            window: spec.window,
        })
    }
}

impl EncodeFit for Deflate {
    fn reset(&mut self) {
        self.search.reset();
    }

    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
        let src = piece(input, at, self.window);
        let compressor = self.compressor.0.as_ptr();
        let fit = self.search.run(src.len(), dst, |len, out| {
            let src = &src[..len];
            // SAFETY: the compressor is alive and `&mut self` makes it ours; both are slices of the lengths passed.
            let n = unsafe {
                libdeflate_deflate_compress(
                    compressor,
                    src.as_ptr().cast(),
                    src.len(),
                    out.as_mut_ptr().cast(),
                    out.len(),
                )
            };
            (n > 0).then_some(n)
        });
        if fit.written > 0 && dst[0] == 0 {
            dst[0] = PADDING;
        }
        fit
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
