//! Content of regular files: blocks, holes, and ends in fragments.

use crate::blocks::StoredSize;
use crate::cursor::{Cursor, Position};
use crate::error::{Error, Result};
use crate::image::Image;
use crate::inode::FileLayout;
use crate::tables;
use std::ops::Range;

/// Blocks between two checkpoints.
const STEP: u64 = 1024;

/// Memory of a data run. Unit: bytes.
const RUN_COST: u64 = 32;

/// File that is open for reading at any position.
#[derive(Debug)]
pub struct FileContent {
    layout: FileLayout,
    /// Number of blocks, without an end in a fragment.
    blocks: u64,
    /// Each `STEP` blocks: the place of the stored size, and of the block.
    checkpoints: Vec<(Position, u64)>,
}

/// Reader of the stored sizes of consecutive blocks.
struct Sizes<'a> {
    image: &'a Image,
    cursor: Cursor<'a>,
    /// Byte in the image at which the next block begins.
    at: u64,
}

impl Sizes<'_> {
    /// Returns the place and stored size of the next block.
    fn next(&mut self) -> Result<(u64, StoredSize)> {
        let field = self.cursor.fields::<4>()?.u32(0);
        let size = self.image.reader.stored_size(self.cursor.place(), field)?;
        let at = self.at;
        let next = at.checked_add(size.len.into());
        self.at = next.ok_or_else(|| Error::corrupt(at, "a block outside of the image"))?;
        Ok((at, size))
    }
}

impl FileLayout {
    /// Number of blocks, without an end in a fragment.
    fn blocks(&self, block_size: u64) -> u64 {
        match self.fragment {
            Some(_) => self.size / block_size,
            None => self.size.div_ceil(block_size),
        }
    }
}

impl Image {
    /// Opens a file.
    ///
    /// # Errors
    /// `Corrupt`, `Limit` or `Io`.
    pub fn content(&self, layout: &FileLayout) -> Result<FileContent> {
        let blocks = layout.blocks(self.block_size());
        let mut content = FileContent {
            layout: *layout,
            blocks,
            checkpoints: vec![(layout.sizes, layout.data)],
        };
        if blocks > STEP {
            self.reader.block_budget.take(blocks)?;
            let mut sizes = self.sizes(layout.sizes, layout.data);
            for block in 1..blocks {
                sizes.next()?;
                if block.is_multiple_of(STEP) {
                    let checkpoint = (sizes.cursor.position(), sizes.at);
                    content.checkpoints.push(checkpoint);
                }
            }
        }
        Ok(content)
    }

    /// Returns the ascending ranges of a file that hold data, or `None` if it has no holes.
    ///
    /// # Errors
    /// `Corrupt`, `Limit` or `Io`.
    pub fn data_runs(&self, layout: &FileLayout) -> Result<Option<Vec<Range<u64>>>> {
        let block_size = self.block_size();
        let blocks = layout.blocks(block_size);
        self.reader.block_budget.take(blocks)?;
        let mut sizes = self.sizes(layout.sizes, layout.data);
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut has_holes = false;
        let mut add = |range: Range<u64>| match runs.last_mut() {
            Some(last) if last.end == range.start => {
                last.end = range.end;
                Ok(())
            }
            _ => {
                self.reader.metadata_budget.take(RUN_COST)?;
                runs.push(range);
                Ok(())
            }
        };
        for block in 0..blocks {
            let (_, size) = sizes.next()?;
            let start = block * block_size;
            match size.len {
                0 => has_holes = true,
                // The file ends within the range of its last block.
                _ => add(start..layout.size.min(start.saturating_add(block_size)))?,
            }
        }
        let tail = blocks.saturating_mul(block_size)..layout.size;
        if !tail.is_empty() {
            add(tail)?;
        }
        Ok(has_holes.then_some(runs))
    }

    /// Fills `buf` from byte `offset` of a file, which must have as many bytes.
    ///
    /// # Errors
    /// `Corrupt`, `Limit` or `Io`.
    pub fn read_exact(&self, file: &FileContent, mut buf: &mut [u8], offset: u64) -> Result<()> {
        let size = file.layout.size;
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > size) {
            return Err(Error::Corrupt(format!("a file ends after {size} bytes")));
        }
        let block_size = self.block_size();
        let mut at = offset;
        let mut sizes: Option<Sizes<'_>> = None;
        while !buf.is_empty() {
            let block = at / block_size;
            // Fits: a block is at most 1 MiB.
            let skip = (at % block_size) as usize;
            let len = block_size.min(size - block * block_size) as usize;
            let (now, later) = buf.split_at_mut((len - skip).min(buf.len()));
            if block < file.blocks {
                let sizes = match &mut sizes {
                    Some(sizes) => sizes,
                    None => sizes.insert(self.sizes_from(file, block)?),
                };
                let (place, stored) = sizes.next()?;
                self.read_block(place, stored, (skip, len), now)?;
            } else {
                self.read_fragment(&file.layout, skip, len, now)?;
            }
            at += now.len() as u64;
            buf = later;
        }
        Ok(())
    }

    /// Reads a part of a block, which must have `len` bytes.
    fn read_block(
        &self,
        place: u64,
        stored: StoredSize,
        (skip, len): (usize, usize),
        buf: &mut [u8],
    ) -> Result<()> {
        if stored.len == 0 {
            buf.fill(0);
            return Ok(());
        }
        let block = self.reader.data(place, stored)?;
        if block.len() != len {
            return Err(Error::corrupt(
                place,
                format_args!("a block of {} bytes, expected {len}", block.len()),
            ));
        }
        buf.copy_from_slice(&block[skip..][..buf.len()]);
        Ok(())
    }

    /// Reads a part of the end of a file, which has `len` bytes.
    fn read_fragment(
        &self,
        layout: &FileLayout,
        skip: usize,
        len: usize,
        buf: &mut [u8],
    ) -> Result<()> {
        let (index, start) = layout.fragment.unwrap_or_default();
        let (place, stored) = tables::fragment(&self.reader, self.superblock(), index)?;
        let block = self.reader.data(place, stored)?;
        // Fits: 32 bits.
        let end = block
            .get(start as usize..)
            .and_then(|rest| rest.get(..len))
            .ok_or_else(|| {
                let have = block.len();
                let what = format_args!("{len} bytes at {start} of a fragment of {have}");
                Error::corrupt(place, what.to_string())
            })?;
        buf.copy_from_slice(&end[skip..][..buf.len()]);
        Ok(())
    }

    fn sizes(&self, position: Position, at: u64) -> Sizes<'_> {
        Sizes {
            image: self,
            cursor: Cursor::new(&self.reader, position),
            at,
        }
    }

    /// Returns the stored sizes from a block on.
    fn sizes_from(&self, file: &FileContent, block: u64) -> Result<Sizes<'_>> {
        // Fits: each checkpoint has been stored.
        let (position, at) = file.checkpoints[(block / STEP) as usize];
        let mut sizes = self.sizes(position, at);
        for _ in 0..block % STEP {
            sizes.next()?;
        }
        Ok(sizes)
    }

    fn block_size(&self) -> u64 {
        self.reader.block_size().into()
    }
}
