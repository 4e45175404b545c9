//! Images whose bytes the caller supplies, for programs that must not block.

use crate::error::{guard, tuff_error, tuff_status};
use crate::pointers::{bytes, drop_object, give, object, put};
use std::ffi::c_void;
use std::sync::Arc;
use tuff_store::RangeStore;

/// Byte ranges of an image that the caller supplies.
///
/// A function that needs another range returns TUFF_AGAIN. `tuff_ranges_missing` says which; supply it with
/// `tuff_ranges_put`, and call the function again.
pub struct tuff_ranges(pub(crate) Arc<RangeStore>);

/// Creates a store for an image of `size` bytes. It keeps at most `capacity` bytes, and at least 4 MiB; the oldest
/// ranges are dropped first. Read files in parts that are smaller than the capacity.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_ranges_new(
    size: u64,
    capacity: usize,
    ranges: *mut *mut tuff_ranges,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        let store = RangeStore::new(size, capacity);
        // SAFETY: promised by the caller.
        unsafe { give(ranges, tuff_ranges(Arc::new(store))) }
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Copies `len` bytes at `offset` of the image to the store.
///
/// # Safety
/// `data` has `len` bytes. The other pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_ranges_put(
    ranges: *const tuff_ranges,
    offset: u64,
    data: *const c_void,
    len: usize,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        let (ranges, data) = unsafe { (object(ranges)?, bytes(data, len)?) };
        ranges.0.put(offset, data.to_vec());
        Ok(tuff_status::TUFF_OK)
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Stores the range that the last TUFF_AGAIN was about at `offset` and `len`. Returns TUFF_END if there is none.
///
/// # Safety
/// Pointers are valid as described at the start of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_ranges_missing(
    ranges: *const tuff_ranges,
    offset: *mut u64,
    len: *mut u64,
    error: *mut tuff_error,
) -> tuff_status {
    let body = || {
        // SAFETY: promised by the caller.
        let Some(missing) = unsafe { object(ranges) }?.0.missing() else {
            return Ok(tuff_status::TUFF_END);
        };
        // SAFETY: promised by the caller.
        let stored = unsafe { put(offset, missing.offset).and_then(|()| put(len, missing.len)) };
        stored.map(|()| tuff_status::TUFF_OK)
    };
    // SAFETY: promised by the caller.
    unsafe { guard(error, body) }
}

/// Releases a store. Images that were opened from it stay open.
///
/// # Safety
/// `ranges` is NULL or open, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_ranges_free(ranges: *mut tuff_ranges) {
    // SAFETY: promised by the caller.
    unsafe { drop_object(ranges) };
}
