//! Compression context of the C library.

use std::ffi::c_int;
use std::ptr::NonNull;

use zstd_sys::{
    ZSTD_CCtx, ZSTD_CCtx_setParameter, ZSTD_cParameter, ZSTD_compress2, ZSTD_createCCtx,
    ZSTD_freeCCtx,
};

use super::library::ok;

/// Compression context of the C library.
pub(crate) struct Compressor(NonNull<ZSTD_CCtx>);

// SAFETY: a context is a plain heap object without ties to the thread that created it.
unsafe impl Send for Compressor {}

impl Drop for Compressor {
    fn drop(&mut self) {
        // SAFETY: created by ZSTD_createCCtx, freed once.
        unsafe { ZSTD_freeCCtx(self.0.as_ptr()) };
    }
}

impl Compressor {
    /// Creates a context for frames without content size, checksum and dictionary id.
    pub(crate) fn new(level: i32, window_log: u32) -> Option<Self> {
        // SAFETY: no preconditions.
        let this = Self(NonNull::new(unsafe { ZSTD_createCCtx() })?);
        this.set(ZSTD_cParameter::ZSTD_c_compressionLevel, level)?;
        this.set(
            ZSTD_cParameter::ZSTD_c_windowLog,
            c_int::try_from(window_log).ok()?,
        )?;
        this.set(ZSTD_cParameter::ZSTD_c_contentSizeFlag, 0)?;
        this.set(ZSTD_cParameter::ZSTD_c_checksumFlag, 0)?;
        this.set(ZSTD_cParameter::ZSTD_c_dictIDFlag, 0)?;
        Some(this)
    }

    pub(super) fn as_ptr(&mut self) -> *mut ZSTD_CCtx {
        self.0.as_ptr()
    }

    pub(crate) fn set(&self, parameter: ZSTD_cParameter, value: c_int) -> Option<()> {
        // SAFETY: the context is alive; the function checks the value.
        ok(unsafe { ZSTD_CCtx_setParameter(self.0.as_ptr(), parameter, value) }).map(|_| ())
    }

    /// Compresses all of `src`; `None` if the output does not fit.
    pub(crate) fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        // SAFETY: the context is alive and borrowed exclusively; `src` and `dst` are slices of the lengths passed.
        ok(unsafe {
            ZSTD_compress2(
                self.0.as_ptr(),
                dst.as_mut_ptr().cast(),
                dst.len(),
                src.as_ptr().cast(),
                src.len(),
            )
        })
    }
}
