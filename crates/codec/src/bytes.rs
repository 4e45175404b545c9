//! Operations of all match finders on their input: unaligned loads and match lengths.
//!
//! Release builds do not check the bounds of loads. Each caller names the comparison that keeps them within the data.

/// Loads the byte at `at`. The caller has compared `at` with the end of `data`.
#[inline(always)]
pub(crate) fn byte(data: &[u8], at: usize) -> u8 {
    debug_assert!(at < data.len());
    // SAFETY: every caller names the comparison that keeps `at` within `data`.
    unsafe { *data.get_unchecked(at) }
}

/// Loads two bytes at `at`. The caller has compared their end with the end of `data`.
#[inline(always)]
pub(crate) fn load2(data: &[u8], at: usize) -> u16 {
    debug_assert!(at + 2 <= data.len());
    // SAFETY: every caller names the comparison that keeps `at + 2` within `data`; the load is unaligned.
    unsafe { data.as_ptr().add(at).cast::<u16>().read_unaligned() }.to_le()
}

/// Loads four bytes at `at`. The caller has compared their end with the end of `data`.
#[inline(always)]
pub(crate) fn load4(data: &[u8], at: usize) -> u32 {
    debug_assert!(at + 4 <= data.len());
    // SAFETY: every caller names the comparison that keeps `at + 4` within `data`; the load is unaligned.
    unsafe { data.as_ptr().add(at).cast::<u32>().read_unaligned() }.to_le()
}

/// Loads eight bytes at `at`. The caller has compared their end with the end of `data`.
#[inline(always)]
pub(crate) fn load8(data: &[u8], at: usize) -> u64 {
    debug_assert!(at + 8 <= data.len());
    // SAFETY: every caller names the comparison that keeps `at + 8` within `data`; the load is unaligned.
    unsafe { data.as_ptr().add(at).cast::<u64>().read_unaligned() }.to_le()
}

/// Loads sixteen bytes at `at`. The caller has compared their end with the end of `data`.
#[inline(always)]
pub(crate) fn load16(data: &[u8], at: usize) -> u128 {
    debug_assert!(at + 16 <= data.len());
    // SAFETY: every caller names the comparison that keeps `at + 16` within `data`; the load is unaligned.
    unsafe { data.as_ptr().add(at).cast::<u128>().read_unaligned() }.to_le()
}

/// Returns the number of equal bytes from `a` and from `b < a` on, up to `end`, which is within `data`.
#[inline(always)]
pub(crate) fn match_len(data: &[u8], mut a: usize, mut b: usize, end: usize) -> usize {
    let from = a;
    while a + 8 <= end {
        let differ = load8(data, a) ^ load8(data, b);
        if differ != 0 {
            return a - from + differ.trailing_zeros() as usize / 8;
        }
        a += 8;
        b += 8;
    }
    while a < end && data[a] == data[b] {
        a += 1;
        b += 1;
    }
    a - from
}

/// Returns the number of equal bytes right before `a` and `b < a`, at most `most`, which is at most `b`.
#[inline(always)]
pub(crate) fn match_len_backward(data: &[u8], a: usize, b: usize, most: usize) -> usize {
    let mut n = 0;
    while n + 8 <= most {
        let differ = load8(data, a - n - 8) ^ load8(data, b - n - 8);
        if differ != 0 {
            return n + differ.leading_zeros() as usize / 8;
        }
        n += 8;
    }
    while n < most && data[a - n - 1] == data[b - n - 1] {
        n += 1;
    }
    n
}

/// Prefetches a value into the processor's cache.
#[inline(always)]
pub(crate) fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch accepts any address; SSE is part of every x86-64 processor.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast()) };
    }
    let _ = place;
}

/// Allocates a table of default values on the heap.
pub(crate) fn zeroed<T: Copy + Default, const N: usize>() -> Box<[T; N]> {
    match vec![T::default(); N].into_boxed_slice().try_into() {
        Ok(table) => table,
        Err(_) => unreachable!("the slice has N elements"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn match_length_ends_at_the_first_difference_or_the_limit() {
        for len in 0..40 {
            for limit in 0..60 {
                let mut data = vec![b'x'; 140];
                data[70 + len] = b'y';
                let end = (70 + limit).min(data.len());
                assert_eq!(match_len(&data, 70, 3, end), len.min(limit));
                data[70 + len] = b'x';
                data[59 - len] = b'y';
                assert_eq!(match_len_backward(&data, 130, 60, limit), len.min(limit));
                data[59 - len] = b'x';
            }
        }
    }
}
