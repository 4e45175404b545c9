//! DEFLATE decoding with libdeflate.

use std::ptr::{self, NonNull};

use libdeflate_sys::{
    libdeflate_alloc_decompressor, libdeflate_decompressor, libdeflate_deflate_decompress_ex,
    libdeflate_free_decompressor,
    libdeflate_result_LIBDEFLATE_INSUFFICIENT_SPACE as INSUFFICIENT_SPACE,
    libdeflate_result_LIBDEFLATE_SHORT_OUTPUT as SHORT_OUTPUT,
    libdeflate_result_LIBDEFLATE_SUCCESS as SUCCESS,
};

/// Largest number of bytes that a single step of the decoder writes, a stored block. Unit: bytes.
const STEP: usize = 1 << 16;

/// Decompressor of the C library, with a buffer for prefixes.
pub(crate) struct Decompressor {
    decompressor: NonNull<libdeflate_decompressor>,
    buffer: Vec<u8>,
    /// Content before and including the part that the caller requested.
    front: Vec<u8>,
}

// SAFETY: a decompressor is a plain heap object without ties to the thread that created it.
unsafe impl Send for Decompressor {}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: created by libdeflate_alloc_decompressor, freed once.
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
            front: Vec::new(),
        })
    }

    /// Decodes a whole stream to exactly `dst.len()` bytes.
    pub(crate) fn decode(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), &'static str> {
        let mut read = 0;
        // SAFETY: the decompressor is alive and borrowed exclusively; both slices have the lengths passed; a null
        // out-length requests exactly `dst.len()` bytes.
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

    /// Decodes the first `dst.len()` bytes of the content.
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
            // The library writes from front to back and stops at the first step that does not fit. The buffer exceeds
            // `dst` by more than a step.
            SUCCESS | INSUFFICIENT_SPACE => {}
            _ => return Err("deflate stream is broken or cut short"),
        }
        dst.copy_from_slice(&buffer[..dst.len()]);
        Ok(())
    }

    /// Decodes bytes `[skip, skip + dst.len())` of the content, by way of a buffer for all bytes before them.
    pub(crate) fn decode_part(
        &mut self,
        src: &[u8],
        skip: usize,
        dst: &mut [u8],
    ) -> Result<(), &'static str> {
        let end = skip + dst.len();
        let mut front = std::mem::take(&mut self.front);
        if front.len() < end {
            front.resize(end, 0);
        }
        let result = self.decode_prefix(src, &mut front[..end]);
        dst.copy_from_slice(&front[skip..end]);
        self.front = front;
        result
    }
}
