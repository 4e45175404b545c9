//! Pages of files that are kept in memory, a fixed number of them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

const PAGE: usize = 4096;

/// Name of a file and number of a page, and its bytes.
type Page = ((u32, u64), Box<[u8]>);

/// Pages, each at the place that its number gives.
pub(crate) struct Pages {
    pages: Vec<Option<Page>>,
}

impl Pages {
    /// Keeps up to `count` pages of 4 KiB.
    pub(crate) fn new(count: usize) -> Self {
        let mut pages = Vec::new();
        pages.resize_with(count, || None);
        Self { pages }
    }

    /// Reads bytes of a file, which has `len` bytes and a number among the files. `open` returns it.
    pub(crate) fn read(
        &mut self,
        (file, len): (u32, u64),
        mut at: Range<u64>,
        open: &mut dyn FnMut() -> io::Result<std::sync::Arc<File>>,
    ) -> io::Result<Vec<u8>> {
        if at.start > at.end || at.end > len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // Fits: it is in memory.
        let mut found = Vec::with_capacity((at.end - at.start) as usize);
        while at.start < at.end {
            let number = at.start / PAGE as u64;
            // Pages of a file do not collide with their neighbours.
            let place = (u64::from(file) * 977 + number) as usize % self.pages.len();
            let slot = &mut self.pages[place];
            let page = match slot {
                Some((key, bytes)) if *key == (file, number) => bytes,
                _ => {
                    let start = number * PAGE as u64;
                    let mut bytes = vec![0; (PAGE as u64).min(len - start) as usize];
                    open()?.read_exact_at(&mut bytes, start)?;
                    &slot.insert(((file, number), bytes.into())).1
                }
            };
            let from = (at.start % PAGE as u64) as usize;
            let n = (PAGE - from).min((at.end - at.start) as usize);
            found.extend_from_slice(&page[from..from + n]);
            at.start += n as u64;
        }
        Ok(found)
    }
}
