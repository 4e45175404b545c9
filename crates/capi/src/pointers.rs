//! Conversion of pointers from C.

use crate::error::Failure;
use std::ffi::{CStr, c_char, c_void};

/// Returns the object of a handle.
///
/// # Safety
/// `handle` is NULL or a handle that is open and that no other thread changes.
pub(crate) unsafe fn object<'a, T>(handle: *const T) -> Result<&'a T, Failure> {
    // SAFETY: promised by the caller.
    unsafe { handle.as_ref() }.ok_or_else(|| Failure::usage("a handle is NULL"))
}

/// Returns the object of a handle for changes.
///
/// # Safety
/// `handle` is NULL or a handle that is open and that no other thread uses.
pub(crate) unsafe fn object_mut<'a, T>(handle: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: promised by the caller.
    unsafe { handle.as_mut() }.ok_or_else(|| Failure::usage("a handle is NULL"))
}

/// Releases the object of a handle.
///
/// # Safety
/// `handle` is NULL or a handle of [`give`] that is not used again.
pub(crate) unsafe fn drop_object<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: `give` made the pointer from a box, and this is its only release.
        crate::error::release(|| drop(unsafe { Box::from_raw(handle) }));
    }
}

/// Stores a value at `place`.
///
/// # Safety
/// `place` is NULL or may be written.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::usage("the address of a result is NULL"));
    }
    // SAFETY: promised by the caller. The old value, which may be uninitialised, is not dropped.
    unsafe { place.write(value) };
    Ok(())
}

/// Stores a new handle at `place`.
///
/// # Safety
/// As for [`put`].
pub(crate) unsafe fn give<T>(place: *mut *mut T, value: T) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::usage("the address of a handle is NULL"));
    }
    // SAFETY: promised by the caller.
    unsafe { put(place, Box::into_raw(Box::new(value))) }
}

/// Returns the bytes of a string without its NUL.
///
/// # Safety
/// `text` is NULL or ends with a NUL, and does not change during `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a [u8], Failure> {
    if text.is_null() {
        return Err(Failure::usage(format!("{what} is NULL")));
    }
    // SAFETY: promised by the caller.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// Returns a path of the host.
///
/// # Safety
/// As for [`text`].
#[cfg(feature = "full")]
pub(crate) unsafe fn host_path<'a>(path: *const c_char) -> Result<&'a std::path::Path, Failure> {
    // SAFETY: promised by the caller.
    let bytes = unsafe { text(path, "a path") }?;
    tuff_store::host_path(bytes).map_err(|e| tuff_erofs::Error::io("", "path", e).into())
}

/// Returns the bytes of a buffer. NULL is an empty one.
///
/// # Safety
/// `bytes` is NULL or has `len` initialised bytes that do not change during `'a`.
pub(crate) unsafe fn bytes<'a>(bytes: *const c_void, len: usize) -> Result<&'a [u8], Failure> {
    match (bytes.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::usage("a buffer is NULL, but its length is not 0")),
        // SAFETY: promised by the caller.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(bytes.cast(), len) }),
    }
}

/// Copies `value` to a buffer of `size` bytes as far as it fits, and stores its whole length at `len`.
///
/// # Safety
/// `buf` is NULL or has `size` bytes that may be written. `len` is NULL or may be written.
pub(crate) unsafe fn copy_out(
    value: &[u8],
    buf: *mut c_void,
    size: usize,
    len: *mut usize,
) -> Result<(), Failure> {
    if !buf.is_null() {
        let n = value.len().min(size);
        // SAFETY: the source has at least `n` bytes, the target has `size`, and they cannot overlap: the value is ours.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), buf.cast::<u8>(), n) };
    }
    // SAFETY: promised by the caller.
    unsafe { put(len, value.len()) }
}
