//! Constants and helpers shared by the users of the C library.

use zstd_sys::ZSTD_isError;

/// Largest content of one block, as the format defines it. Unit: bytes.
pub(super) const BLOCK_CONTENT_MAX: usize = 128 << 10;

/// Returns `n`, or `None` if it is an error code of the library.
pub(super) fn ok(n: usize) -> Option<usize> {
    // SAFETY: no preconditions.
    (unsafe { ZSTD_isError(n) } == 0).then_some(n)
}
