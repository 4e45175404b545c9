//! Sequential reading of metadata, over the ends of its blocks.

use crate::blocks::{BlockReader, MetadataBlock};
use crate::bytes::Fields;
use crate::error::{Error, Result};
use std::sync::Arc;

/// Position in a table of metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// Byte in the image at which the block begins.
    pub(crate) block: u64,
    /// Byte in the content of the block.
    pub(crate) offset: usize,
}

impl Position {
    /// Returns the position that a reference in a table of metadata at byte `table` has: 48 bits for the block, 16 for the byte in it.
    pub(crate) fn of_reference(table: u64, reference: u64) -> Result<Self> {
        let block = table.checked_add(reference >> 16);
        let block =
            block.ok_or_else(|| Error::corrupt(table, "a reference outside of the image"))?;
        Ok(Self {
            block,
            // Fits: 16 bits.
            offset: (reference & 0xffff) as usize,
        })
    }
}

/// Reader of metadata from a position on.
pub(crate) struct Cursor<'a> {
    reader: &'a BlockReader,
    position: Position,
    block: Option<Arc<MetadataBlock>>,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(reader: &'a BlockReader, position: Position) -> Self {
        Self {
            reader,
            position,
            block: None,
        }
    }

    pub(crate) fn position(&self) -> Position {
        self.position
    }

    /// Byte in the image at which the current block begins, for messages.
    pub(crate) fn place(&self) -> u64 {
        self.position.block
    }

    pub(crate) fn read(&mut self, mut buf: &mut [u8]) -> Result<()> {
        while !buf.is_empty() {
            let part = self.part()?;
            let n = part.len().min(buf.len());
            let (now, later) = buf.split_at_mut(n);
            now.copy_from_slice(&part[..n]);
            buf = later;
            self.position.offset += n;
        }
        Ok(())
    }

    pub(crate) fn fields<const N: usize>(&mut self) -> Result<Fields<N>> {
        let mut fields = Fields([0; N]);
        self.read(&mut fields.0)?;
        Ok(fields)
    }

    /// Reads `len` bytes, of which the caller has bounded the number.
    pub(crate) fn bytes(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns the rest of the current block, or the next one. Never empty.
    fn part(&mut self) -> Result<&[u8]> {
        loop {
            let block = match &self.block {
                Some(block) => block,
                None => self
                    .block
                    .insert(self.reader.metadata(self.position.block)?),
            };
            let (len, next) = (block.bytes.len(), block.next);
            if self.position.offset < len {
                break;
            }
            if self.position.offset > len {
                return Err(Error::corrupt(
                    self.position.block,
                    format_args!(
                        "byte {} of a block of metadata with {len}",
                        self.position.offset
                    ),
                ));
            }
            self.position = Position {
                block: next,
                offset: 0,
            };
            self.block = None;
        }
        let block = self.block.as_ref().expect("the loop has read it");
        Ok(&block.bytes[self.position.offset..])
    }
}
