//! Memory for callers that cannot allocate in the library's address space, such as hosts of WebAssembly.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;

/// Alignment of allocations, enough for every structure of the interface.
const ALIGN: usize = 16;

/// Returns `len` bytes of memory, all zero, or NULL. Callers in C do not need it.
#[unsafe(no_mangle)]
pub extern "C" fn tuff_alloc(len: usize) -> *mut c_void {
    match Layout::from_size_align(len.max(1), ALIGN) {
        // SAFETY: the layout is not empty.
        Ok(layout) => unsafe { alloc_zeroed(layout) }.cast(),
        Err(_) => std::ptr::null_mut(),
    }
}

/// Releases memory of `tuff_alloc`.
///
/// # Safety
/// `memory` is NULL or comes from `tuff_alloc` with the same `len`, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tuff_free(memory: *mut c_void, len: usize) {
    if let (false, Ok(layout)) = (memory.is_null(), Layout::from_size_align(len.max(1), ALIGN)) {
        // SAFETY: the caller promises that the layout is the one of the allocation.
        unsafe { dealloc(memory.cast(), layout) };
    }
}
