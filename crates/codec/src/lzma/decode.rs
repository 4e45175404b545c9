//! MicroLZMA decoding with liblzma.

use std::ptr;

use liblzma_sys::{
    LZMA_FINISH, LZMA_OK, LZMA_STREAM_END, lzma_code, lzma_end, lzma_microlzma_decoder, lzma_stream,
};

/// Largest dictionary that a stream may use. Unit: bytes.
const DICT_MAX: usize = 8 << 20;

/// Stream object of the C library, which keeps its memory between uses.
struct Stream(lzma_stream);

// SAFETY: a stream is a plain object with heap memory, without ties to the thread that created it.
unsafe impl Send for Stream {}

impl Stream {
    fn new() -> Self {
        // SAFETY: LZMA_STREAM_INIT of the library is all zero bits: null pointers and zero counts. The two enums of
        // the structure are plain integers in the bindings.
        Self(unsafe { std::mem::zeroed() })
    }

    /// Runs the coder over all of `src` into `dst`. Returns whether it reached its end, the bytes read and the bytes
    /// written.
    fn run(&mut self, src: &[u8], dst: &mut [u8]) -> (bool, usize, usize) {
        self.0.next_in = src.as_ptr();
        self.0.avail_in = src.len();
        self.0.next_out = dst.as_mut_ptr();
        self.0.avail_out = dst.len();
        // SAFETY: the caller has initialised a coder; the pointers and lengths are those of live slices.
        let result = unsafe { lzma_code(&mut self.0, LZMA_FINISH) };
        let moved = (
            result == LZMA_STREAM_END,
            src.len() - self.0.avail_in,
            dst.len() - self.0.avail_out,
        );
        self.0.next_in = ptr::null();
        self.0.next_out = ptr::null_mut();
        moved
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is zeroed or was initialised by the library; it is not used again.
        unsafe { lzma_end(&mut self.0) };
    }
}

/// Decoder of the C library.
pub(crate) struct Decompressor {
    stream: Stream,
    /// Buffer for skipped bytes.
    front: Vec<u8>,
}

/// Size of the buffer for skipped bytes. Unit: bytes.
const FRONT: usize = 64 << 10;

const SHORT: &str = "lzma stream is broken or ends before the expected length";

impl Decompressor {
    pub(crate) fn new() -> Self {
        Self {
            stream: Stream::new(),
            front: Vec::new(),
        }
    }

    /// Decodes a whole stream to exactly `dst.len()` bytes.
    pub(crate) fn decode(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), &'static str> {
        self.run(src, dst, true)
    }

    /// Decodes the first `dst.len()` bytes of the content.
    pub(crate) fn decode_prefix(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), &'static str> {
        self.run(src, dst, false)
    }

    /// Decodes bytes `[skip, skip + dst.len())` of the content.
    pub(crate) fn decode_part(
        &mut self,
        src: &[u8],
        skip: usize,
        dst: &mut [u8],
    ) -> Result<(), &'static str> {
        self.start(src.len(), skip.saturating_add(dst.len()), false)?;
        if self.front.is_empty() {
            self.front.resize(FRONT, 0);
        }
        let (mut read, mut skipped) = (0, 0);
        while skipped < skip {
            let n = (skip - skipped).min(FRONT);
            let (_, r, w) = self.stream.run(&src[read..], &mut self.front[..n]);
            if w != n {
                return Err(SHORT);
            }
            read += r;
            skipped += n;
        }
        let (_, _, written) = self.stream.run(&src[read..], dst);
        if written != dst.len() {
            return Err(SHORT);
        }
        Ok(())
    }

    fn start(&mut self, src_len: usize, dst_len: usize, exact: bool) -> Result<(), &'static str> {
        // Matches reach back to the start of the output at most. Powers of two let the library keep its memory
        // between calls.
        let dict = dst_len.clamp(4096, DICT_MAX).next_power_of_two();
        // SAFETY: the stream is zeroed or was initialised by the library.
        let ready = unsafe {
            lzma_microlzma_decoder(
                &mut self.stream.0,
                src_len as u64,
                dst_len as u64,
                u8::from(exact),
                dict as u32,
            )
        };
        if ready != LZMA_OK {
            return Err("the lzma decoder cannot be set up");
        }
        Ok(())
    }

    fn run(&mut self, src: &[u8], dst: &mut [u8], exact: bool) -> Result<(), &'static str> {
        self.start(src.len(), dst.len(), exact)?;
        let (ended, read, written) = self.stream.run(src, dst);
        if written != dst.len() {
            return Err(SHORT);
        }
        if exact && !(ended && read == src.len()) {
            return Err("lzma stream does not end where the output does");
        }
        Ok(())
    }
}
