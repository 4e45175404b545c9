//! Settings of the allocator for processes that serve for long.

/// Lets all threads share one heap of glibc. With one for each thread, parts of 1 MiB that one thread has freed would stay
/// beside those that another allocates.
#[allow(unsafe_code)]
pub(crate) fn share_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt changes a parameter of the allocator under its lock.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
