//! Zstandard decoding with the C library.

use std::ffi::c_int;
use std::ptr::NonNull;

use zstd_sys::{
    ZSTD_DCtx, ZSTD_DCtx_reset, ZSTD_DCtx_setParameter, ZSTD_FrameHeader, ZSTD_FrameType_e,
    ZSTD_ResetDirective, ZSTD_createDCtx, ZSTD_dParameter, ZSTD_decompressBegin,
    ZSTD_decompressContinue, ZSTD_decompressDCtx, ZSTD_decompressStream,
    ZSTD_findFrameCompressedSize, ZSTD_freeDCtx, ZSTD_getFrameHeader, ZSTD_inBuffer,
    ZSTD_nextSrcSizeToDecompress, ZSTD_outBuffer,
};

use super::library::{BLOCK_CONTENT_MAX, ok};

/// Largest window of a frame that is not a single segment. Unit: bytes.
const WINDOW: u64 = 1 << 20;

/// Largest window for streaming decompression of single segments: more than any cluster decodes to. Unit: log2 of
/// bytes.
const WINDOW_LOG: c_int = 24;

const BROKEN: &str = "zstd frame is broken";
const SHORT: &str = "zstd frame ends before the expected length";

/// Bit of the frame header descriptor (byte 4 of the frame): the window is the content.
const SINGLE_SEGMENT: u8 = 0x20;

/// Decompression context of the C library, with a buffer for prefixes.
pub(crate) struct Decompressor {
    context: NonNull<ZSTD_DCtx>,
    buffer: Vec<u8>,
}

// SAFETY: a context is a plain heap object without ties to the thread that created it.
unsafe impl Send for Decompressor {}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: created by ZSTD_createDCtx, freed once.
        unsafe { ZSTD_freeDCtx(self.context.as_ptr()) };
    }
}

impl Decompressor {
    pub(crate) fn new() -> Option<Self> {
        // SAFETY: no preconditions.
        let context = NonNull::new(unsafe { ZSTD_createDCtx() })?;
        let this = Self {
            context,
            buffer: Vec::new(),
        };
        // SAFETY: the context is alive; the function checks the value.
        ok(unsafe {
            ZSTD_DCtx_setParameter(
                context.as_ptr(),
                ZSTD_dParameter::ZSTD_d_windowLogMax,
                WINDOW_LOG,
            )
        })?;
        Some(this)
    }

    /// Decodes one whole frame to exactly `dst.len()` bytes. The output is the library's window, so that it allocates
    /// nothing, whatever size the frame announces.
    pub(crate) fn decode(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), &'static str> {
        check_header(src)?;
        // SAFETY: `src` is a slice of the length passed.
        let frame = ok(unsafe { ZSTD_findFrameCompressedSize(src.as_ptr().cast(), src.len()) });
        match frame {
            None => return Err("zstd frame is cut short or has a broken block header"),
            Some(len) if len != src.len() => return Err("bytes follow the zstd frame"),
            Some(_) => {}
        }
        // SAFETY: the context is alive and borrowed exclusively; `src` and `dst` are slices of the lengths passed.
        let n = ok(unsafe {
            ZSTD_decompressDCtx(
                self.context.as_ptr(),
                dst.as_mut_ptr().cast(),
                dst.len(),
                src.as_ptr().cast(),
                src.len(),
            )
        });
        match n {
            None => Err("zstd frame is broken or decodes to more than expected"),
            Some(n) if n != dst.len() => Err("zstd frame decodes to less than expected"),
            Some(_) => Ok(()),
        }
    }

    /// Decodes bytes `[skip, skip + dst.len())` of the content. The library allocates the window that the frame
    /// announces: at most 1 MiB, or its content.
    pub(crate) fn decode_part(
        &mut self,
        src: &[u8],
        skip: usize,
        dst: &mut [u8],
    ) -> Result<(), &'static str> {
        check_header(src)?;
        if self.buffer.len() < BLOCK_CONTENT_MAX {
            self.buffer.resize(BLOCK_CONTENT_MAX, 0);
        }
        let context = self.context.as_ptr();
        // SAFETY: the context is alive and borrowed exclusively.
        ok(unsafe { ZSTD_DCtx_reset(context, ZSTD_ResetDirective::ZSTD_reset_session_only) })
            .ok_or(BROKEN)?;
        let mut input = ZSTD_inBuffer {
            src: src.as_ptr().cast(),
            size: src.len(),
            pos: 0,
        };
        let (mut skipped, mut written) = (0, 0);
        while written < dst.len() {
            let front = skipped < skip;
            let out = if front {
                &mut self.buffer[..BLOCK_CONTENT_MAX.min(skip - skipped)]
            } else {
                &mut dst[written..]
            };
            let mut output = ZSTD_outBuffer {
                dst: out.as_mut_ptr().cast(),
                size: out.len(),
                pos: 0,
            };
            let before = input.pos;
            // SAFETY: as above; `input` is `src`, `output` is `out`, both alive and of the lengths given.
            let left = unsafe { ZSTD_decompressStream(context, &mut output, &mut input) };
            let left = ok(left).ok_or(BROKEN)?;
            if output.pos == 0 && (left == 0 || input.pos == before) {
                return Err(SHORT);
            }
            if front {
                skipped += output.pos;
            } else {
                written += output.pos;
            }
            if left == 0 && written < dst.len() {
                return Err(SHORT); // the frame ended; what follows is none of ours
            }
        }
        Ok(())
    }

    /// Decodes block by block until `dst` is full.
    pub(crate) fn decode_prefix(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), &'static str> {
        check_header(src)?;
        // The last block may exceed `dst`, and each block must directly follow the previous ones.
        if self.buffer.len() < dst.len() + BLOCK_CONTENT_MAX {
            self.buffer.resize(dst.len() + BLOCK_CONTENT_MAX, 0);
        }
        let context = self.context.as_ptr();
        let (mut read, mut written) = (0, 0);
        // SAFETY: the context is alive and borrowed exclusively.
        ok(unsafe { ZSTD_decompressBegin(context) }).ok_or(BROKEN)?;
        while written < dst.len() {
            // SAFETY: as above.
            let want = unsafe { ZSTD_nextSrcSizeToDecompress(context) };
            if want == 0 {
                return Err(SHORT);
            }
            let part = src
                .get(read..)
                .and_then(|rest| rest.get(..want))
                .ok_or(SHORT)?;
            let out = &mut self.buffer[written..];
            // SAFETY: as above; `part` and `out` are slices of the lengths passed. The library reads the blocks
            // decoded before as history: they lie unchanged right before `out` in the same buffer, which is not
            // resized in this loop.
            let n = ok(unsafe {
                ZSTD_decompressContinue(
                    context,
                    out.as_mut_ptr().cast(),
                    out.len(),
                    part.as_ptr().cast(),
                    want,
                )
            });
            written += n.ok_or(BROKEN)?;
            read += want;
        }
        dst.copy_from_slice(&self.buffer[..dst.len()]);
        Ok(())
    }
}

/// Validates the frame header.
fn check_header(src: &[u8]) -> Result<(), &'static str> {
    let mut header = std::mem::MaybeUninit::<ZSTD_FrameHeader>::zeroed();
    // SAFETY: `header` is large enough, `src` is a slice of the length passed.
    let missing =
        ok(unsafe { ZSTD_getFrameHeader(header.as_mut_ptr(), src.as_ptr().cast(), src.len()) });
    match missing {
        None => return Err("no zstd frame header"),
        Some(0) => {}
        Some(_) => return Err("zstd frame header is cut short"),
    }
    // SAFETY: plain data, zeroed above; every value that the library writes is one of the type, and zero is one too.
    let header = unsafe { header.assume_init() };
    if header.frameType != ZSTD_FrameType_e::ZSTD_frame {
        return Err("a zstd skippable frame holds no data");
    }
    if header.dictID != 0 {
        return Err("zstd frame wants a dictionary");
    }
    // present: a header was found, and it has at least 6 bytes.
    let single = src[4] & SINGLE_SEGMENT != 0;
    if !single && header.windowSize > WINDOW {
        return Err("zstd window is larger than 1 MiB");
    }
    Ok(())
}
