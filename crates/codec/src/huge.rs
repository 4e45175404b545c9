//! Memory for tables of a C library that are looked into at random: in huge pages, where the kernel gives them to those who
//! ask. A tree of 64 MiB in pages of 4 KiB is missed by what remembers where pages are at nearly every step.
//!
//! ```text
//!  aligned to a huge page, if it is as long as one
//!  │ size, HEADER bytes │ what was asked for ...
//! ```

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;
use std::ptr;

use liblzma_sys::lzma_allocator;
use rustix::mm::{Advice, madvise};

/// What a huge page holds on most machines; elsewhere the advice is worth less. Unit: bytes.
const HUGE: usize = 2 << 20;

/// In front of what is handed out; keeps it aligned to a line of the cache. Unit: bytes.
const HEADER: usize = 64;

/// For [`liblzma_sys::lzma_stream::allocator`].
pub(crate) static ALLOCATOR: Allocator = Allocator(lzma_allocator {
    alloc: Some(take),
    free: Some(give),
    opaque: ptr::null_mut(),
});

/// Two functions.
pub(crate) struct Allocator(lzma_allocator);

// SAFETY: its functions keep no state, and its pointer is null.
unsafe impl Sync for Allocator {}

impl Allocator {
    /// Lives as long as the program.
    pub(crate) fn as_ptr(&'static self) -> *const lzma_allocator {
        &self.0
    }
}

/// The layout of an allocation of so many bytes, header included.
fn layout(size: usize) -> Option<Layout> {
    let align = if size >= HUGE { HUGE } else { HEADER };
    Layout::from_size_align(size, align).ok()
}

unsafe extern "C" fn take(_: *mut c_void, count: usize, size: usize) -> *mut c_void {
    let wanted = count
        .checked_mul(size)
        .and_then(|n| n.checked_add(HEADER))
        .and_then(|size| Some((size, layout(size)?)));
    let Some((size, layout)) = wanted else {
        return ptr::null_mut();
    };
    // SAFETY: the layout has at least the header's length.
    let start = unsafe { alloc(layout) };
    if start.is_null() {
        return ptr::null_mut();
    }
    if size >= HUGE {
        // A kernel that has none says no, and all is as it was.
        // SAFETY: the range is ours, its start a page's; the advice changes no byte of it.
        let _ = unsafe { madvise(start.cast(), size, Advice::LinuxHugepage) };
    }
    // SAFETY: the header is in front of the rest, and aligned for a number.
    unsafe {
        start.cast::<usize>().write(size);
        start.add(HEADER).cast()
    }
}

unsafe extern "C" fn give(_: *mut c_void, at: *mut c_void) {
    if at.is_null() {
        return;
    }
    // SAFETY: `at` is what `take` returned, so the size is in front of it, and makes the layout that it had.
    unsafe {
        let start = at.cast::<u8>().sub(HEADER);
        if let Some(layout) = layout(start.cast::<usize>().read()) {
            dealloc(start, layout);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_can_be_written_and_given_back() {
        let odd = HUGE / 2 + 1;
        for (count, size) in [
            (1, 0),
            (1, 1),
            (3, 1000),
            (1, HUGE - HEADER),
            (2, HUGE),
            (5, odd),
        ] {
            // SAFETY: what is written was asked for, and given back once.
            unsafe {
                let at = take(ptr::null_mut(), count, size);
                assert!(!at.is_null() && (at as usize).is_multiple_of(HEADER));
                ptr::write_bytes(at.cast::<u8>(), 0xA5, count * size);
                give(ptr::null_mut(), at);
            }
        }
        // SAFETY: nothing is written; null may be given back.
        unsafe {
            assert!(take(ptr::null_mut(), usize::MAX, 2).is_null());
            assert!(take(ptr::null_mut(), 1, usize::MAX - 8).is_null());
            give(ptr::null_mut(), ptr::null_mut());
        }
    }
}
