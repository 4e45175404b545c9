//! Bytes that an image claims of the store that it is in.

use crate::Nid;
use crate::device::{SLOT_LEN, Slot};
use crate::features::incompat;
use crate::superblock::{OFFSET, Superblock};

/// Length of an inode without what follows it. Unit: bytes.
const INODE_LEN: u64 = 32;

/// Bytes read of the superblock: what it can have with one extension slot. Unit: bytes.
const HEAD: usize = 144;

/// Number of slots of the device table that are read at once.
const SLOTS_PER_READ: usize = 32;

/// Bytes that an image claims, from the start of its store. Unit: bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// End of what the superblock refers to: its blocks, itself, the device table, and the inodes that it names.
    pub image: u64,
    /// The same with all devices of the device table, as if they followed the image in its store.
    pub with_devices: u64,
}

impl Claim {
    /// Reads the claim through `read`, which fills a buffer from a position of the store. `None` for a store without a
    /// superblock that this crate can decode.
    ///
    /// The claim is as trustworthy as what `read` returns.
    ///
    /// # Errors
    /// Errors of `read`.
    pub fn read<E>(
        read: &mut impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Option<Self>, E> {
        let mut head = [0; HEAD];
        read(OFFSET, &mut head)?;
        let Ok(sb) = Superblock::decode(&head) else {
            return Ok(None);
        };
        let table = u64::from(sb.devt_slotoff) * SLOT_LEN as u64;
        let slots = match sb.has(incompat::DEVICE_TABLE) {
            true => usize::from(sb.extra_devices),
            false => 0,
        };
        let table_end = table + (slots * SLOT_LEN) as u64;
        let mut with_devices = 0;
        let mut bytes = [0; SLOT_LEN * SLOTS_PER_READ];
        let mut at = table;
        while at < table_end {
            // Fits: at most the length of the buffer.
            let len = (table_end - at).min(bytes.len() as u64) as usize;
            let Some(bytes) = bytes.get_mut(..len) else {
                return Ok(None);
            };
            read(at, bytes)?;
            for slot in bytes.chunks_exact(SLOT_LEN) {
                let Ok(slot) = Slot::decode(slot, sb.has(incompat::BIT48)) else {
                    return Ok(None);
                };
                // A slot without an address is no part of this store.
                if slot.uniaddr.0 > 0 {
                    let blocks = slot.uniaddr.0.saturating_add(slot.blocks);
                    let end = blocks.saturating_mul(sb.block_bits.size());
                    with_devices = end.max(with_devices);
                }
            }
            at += len as u64;
        }
        let image = sb.claim().max(match slots {
            0 => 0,
            _ => table_end,
        });
        Ok(Some(Self {
            image,
            with_devices: with_devices.max(image),
        }))
    }

    /// Claim in a store whose data ends at `end`. Devices count if they can be there; otherwise they are elsewhere.
    pub fn up_to(self, end: u64) -> u64 {
        match self.with_devices <= end {
            true => self.with_devices,
            false => self.image,
        }
    }
}

impl Superblock {
    /// End of what the superblock refers to, without devices. Unit: bytes.
    pub fn claim(&self) -> u64 {
        let bytes = |blocks: u64| blocks.saturating_mul(self.block_bits.size());
        let meta = bytes(self.meta_blkaddr.0);
        let inode = |nid: Nid| match nid.in_metabox() {
            true => 0,
            false => meta
                .saturating_add(nid.0.saturating_mul(INODE_LEN))
                .saturating_add(INODE_LEN),
        };
        let inodes = [Some(self.root), self.packed, self.metabox];
        let inodes = inodes.into_iter().flatten().map(inode);
        let end = OFFSET + self.len() as u64;
        inodes.fold(bytes(self.blocks).max(end), u64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockAddr, BlockBits};
    use alloc::vec;
    use alloc::vec::Vec;

    fn image(sb: &Superblock, slots: &[Slot]) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        let encoded = sb.encode();
        let at = OFFSET as usize;
        bytes[at..at + encoded.len()].copy_from_slice(&encoded);
        for (slot, at) in slots.iter().zip((2048..).step_by(SLOT_LEN)) {
            bytes[at..at + SLOT_LEN].copy_from_slice(&slot.encode());
        }
        bytes
    }

    fn claim(bytes: &[u8]) -> Option<Claim> {
        let mut read = |at: u64, buf: &mut [u8]| {
            let found = bytes.get(at as usize..at as usize + buf.len()).ok_or(())?;
            buf.copy_from_slice(found);
            Ok::<_, ()>(())
        };
        Claim::read(&mut read).unwrap()
    }

    fn sample() -> Superblock {
        Superblock {
            blocks: 10,
            meta_blkaddr: BlockAddr(1),
            root: Nid(4),
            ..Superblock::empty(BlockBits::B4K)
        }
    }

    #[test]
    fn a_superblock_claims_its_blocks_and_the_inodes_that_it_names() {
        let all = |image| {
            Some(Claim {
                image,
                with_devices: image,
            })
        };
        assert_eq!(claim(&image(&sample(), &[])), all(40960));
        let wide = Superblock {
            incompat: incompat::BIT48,
            blocks: 1 << 40,
            ..sample()
        };
        assert_eq!(claim(&image(&wide, &[])), all(1 << 52));
        let meta = Superblock {
            meta_blkaddr: BlockAddr(50),
            ..sample()
        };
        assert_eq!(claim(&image(&meta, &[])), all(50 * 4096 + 5 * 32));
        let packed = Superblock {
            incompat: incompat::FRAGMENTS,
            packed: Some(Nid(1 << 20)),
            ..sample()
        };
        assert_eq!(claim(&image(&packed, &[])), all(4096 + 32 + (32 << 20)));
        let metabox = Superblock {
            incompat: incompat::METABOX,
            ext_slots: 1,
            metabox: Some(Nid(1 << 20)),
            ..sample()
        };
        assert_eq!(claim(&image(&metabox, &[])), all(4096 + 32 + (32 << 20)));
        let small = Superblock {
            blocks: 0,
            meta_blkaddr: BlockAddr(0),
            ..sample()
        };
        assert_eq!(claim(&image(&small, &[])), all(1024 + 128));
        let huge = Superblock {
            incompat: incompat::FRAGMENTS,
            packed: Some(Nid(u64::MAX >> 1)),
            ..sample()
        };
        assert_eq!(claim(&image(&huge, &[])), all(u64::MAX));
        assert_eq!(claim(&[0; 8192]), None);
    }

    #[test]
    fn devices_count_where_the_store_can_hold_them() {
        let slot = |uniaddr, blocks| Slot {
            tag: [0; 64],
            blocks,
            uniaddr: BlockAddr(uniaddr),
        };
        let sb = Superblock {
            incompat: incompat::DEVICE_TABLE,
            extra_devices: 3,
            devt_slotoff: 16,
            ..sample()
        };
        let slots = [slot(10, 5), slot(15, 6), slot(0, 1000)];
        let found = claim(&image(&sb, &slots)).unwrap();
        assert_eq!((found.image, found.with_devices), (40960, 21 * 4096));
        let without_table = Superblock { incompat: 0, ..sb };
        let alone = claim(&image(&without_table, &slots)).unwrap();
        assert_eq!((alone.image, alone.with_devices), (40960, 40960));
        assert_eq!(found.up_to(21 * 4096), 21 * 4096);
        assert_eq!(found.up_to(21 * 4096 - 1), 40960);
    }
}
