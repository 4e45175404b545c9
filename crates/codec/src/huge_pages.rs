//! Tables in huge pages, where the kernel provides them. Match finders access them at random: with pages of 4 KiB,
//! nearly every step in a tree of 64 MiB misses the TLB.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use rustix::mm::{Advice, madvise};

/// Size of a huge page on most machines. On others the advice has less effect. Unit: bytes.
pub(crate) const HUGE: usize = 2 << 20;

/// Types for which all bytes zero is a valid value.
///
/// # Safety
/// All bytes of a value may be zero, and dropping it does nothing.
pub(crate) unsafe trait Zeroable {}

// SAFETY: a number.
unsafe impl Zeroable for u32 {}

/// Heap table of values, initially zero.
pub(crate) struct HugeTable<T: Zeroable = u32> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: a table owns its memory, like a vector.
unsafe impl<T: Zeroable + Send> Send for HugeTable<T> {}

impl<T: Zeroable> HugeTable<T> {
    /// Allocates `len` zeros. `None` if memory is short. Pages that are never touched take no memory.
    pub(crate) fn zeros(len: usize) -> Option<Self> {
        let layout = Self::layout(len)?;
        // SAFETY: the size of the layout is not 0.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        if layout.size() >= HUGE {
            // A kernel without huge pages returns an error, which changes nothing.
            // SAFETY: the range is owned and page-aligned; the advice does not change its bytes.
            let _ = unsafe { madvise(start.as_ptr().cast(), layout.size(), Advice::LinuxHugepage) };
        }
        Some(Self {
            start: start.cast(),
            len,
        })
    }

    fn layout(len: usize) -> Option<Layout> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= 64) };
        let size = len.max(1).checked_mul(size_of::<T>())?;
        let align = if size >= HUGE { HUGE } else { 64 };
        Layout::from_size_align(size, align).ok()
    }
}

impl<T: Zeroable> Drop for HugeTable<T> {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.len) {
            // SAFETY: allocated with the same layout, which depends on the length alone.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

impl<T: Zeroable> Deref for HugeTable<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` initialised values from `start` on are owned by the table.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Zeroable> DerefMut for HugeTable<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// A value in huge pages of its own, initially zero: the adjacent tables of one match finder.
pub(crate) struct HugeBox<T: Zeroable> {
    table: HugeTable,
    what: PhantomData<T>,
}

impl<T: Zeroable> HugeBox<T> {
    /// Allocates a zeroed value. `None` if memory is short.
    pub(crate) fn new() -> Option<Self> {
        const { assert!(align_of::<T>() <= 64) };
        Some(Self {
            table: HugeTable::zeros(size_of::<T>().next_multiple_of(HUGE) / size_of::<u32>())?,
            what: PhantomData,
        })
    }
}

impl<T: Zeroable> Deref for HugeBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the table has the size and alignment of the type and was initialised with zeros, which are a valid
        // value.
        unsafe { self.table.start.cast().as_ref() }
    }
}

impl<T: Zeroable> DerefMut for HugeBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; `&mut self` is exclusive.
        unsafe { self.table.start.cast().as_mut() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_zeroed_and_keeps_written_values() {
        for len in [0, 1, 1000, HUGE / 4 - 1, HUGE / 4, HUGE + 5] {
            let mut table = HugeTable::<u32>::zeros(len).unwrap();
            assert_eq!(table.len(), len);
            assert!(table.iter().all(|n| *n == 0));
            table.fill(7);
            assert!(table.iter().all(|n| *n == 7));
        }
        assert!(HugeTable::<u32>::zeros(usize::MAX / 2).is_none());
    }

    #[test]
    fn fields_are_zeroed_and_independent() {
        struct Both([u16; 1000], [u32; 1000]);
        // SAFETY: arrays of numbers.
        unsafe impl Zeroable for Both {}
        let mut both = HugeBox::<Both>::new().unwrap();
        assert!(both.0.iter().all(|n| *n == 0) && both.1.iter().all(|n| *n == 0));
        both.0.fill(1);
        both.1[999] = 2;
        assert_eq!((both.0[999], both.1[998], both.1[999]), (1, 0, 2));
    }
}
