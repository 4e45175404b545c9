//! Full index: 8 bytes per lcluster.
//!
//! ```text
//! u16 advise | u16 clusterofs | u32 block          HEAD, PLAIN
//! u16 advise | u16 clusterofs | u16 back u16 ahead NONHEAD
//! ```

use super::{CBLKCNT, HeadKind, Lcluster, check_head};
use crate::wire::{u16_at, u32_at};
use crate::{Error, Result};
use alloc::vec::Vec;

/// Distance from the start of the map header to the first entry. Unit: bytes.
pub const START: u64 = 16;
/// Length of an entry. Unit: bytes.
pub const ENTRY_LEN: u64 = 8;

const PARTIAL_REF: u16 = 1 << 15;
const NONHEAD: u16 = 2;

/// Decodes the index entry of lcluster `n`.
pub fn entry(index: &[u8], n: u64, lcluster_bits: u8) -> Result<Lcluster> {
    let at = usize::try_from(n * ENTRY_LEN).map_err(|_| Error::corrupt("index entry number"))?;
    let what = "compression index";
    let advise = u16_at(index, at, what)?;
    match HeadKind::from_bits(advise) {
        Some(kind) => {
            let ofs = u16_at(index, at + 2, what)?;
            check_head(ofs, lcluster_bits)?;
            let block = u32_at(index, at + 4, what)?;
            Ok(Lcluster::Head {
                kind,
                ofs,
                block,
                partial: advise & PARTIAL_REF != 0,
            })
        }
        None => {
            let back = u16_at(index, at + 4, what)?;
            let ahead = u16_at(index, at + 6, what)?;
            if back & CBLKCNT != 0 {
                return Ok(Lcluster::Nonhead {
                    back: 1,
                    ahead,
                    blocks: Some(back & !CBLKCNT),
                });
            }
            if back == 0 {
                return Err(Error::bad(
                    "index entry: distance back to its head",
                    0,
                    "at least 1",
                ));
            }
            Ok(Lcluster::Nonhead {
                back,
                ahead,
                blocks: None,
            })
        }
    }
}

/// Appends the entries of an index to the output.
pub fn encode(entries: &[Lcluster], out: &mut Vec<u8>) {
    // Readers ignore the cluster offset of a NONHEAD entry.
    for entry in entries {
        match *entry {
            Lcluster::Head {
                kind,
                ofs,
                block,
                partial,
            } => {
                let advise = kind as u16 | if partial { PARTIAL_REF } else { 0 };
                out.extend_from_slice(&advise.to_le_bytes());
                out.extend_from_slice(&ofs.to_le_bytes());
                out.extend_from_slice(&block.to_le_bytes());
            }
            Lcluster::Nonhead {
                back,
                ahead,
                blocks,
            } => {
                debug_assert!(blocks.is_none_or(|b| b < CBLKCNT));
                out.extend_from_slice(&NONHEAD.to_le_bytes());
                out.extend_from_slice(&[0, 0]);
                out.extend_from_slice(&blocks.map_or(back, |b| b | CBLKCNT).to_le_bytes());
                out.extend_from_slice(&ahead.to_le_bytes());
            }
        }
    }
}
