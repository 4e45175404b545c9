//! Compression configurations: a record per algorithm after the superblock, with `COMPR_CFGS`.
//!
//! ```text
//! [align 4] u16 length | payload      ascending by algorithm: LZ4, LZMA, DEFLATE, Zstandard
//! ```
//! Source: `docs/reference/format/superblock.md`.

use crate::units::round_up;
use crate::wire::{bytes, u16_at, u32_at};
use crate::{Error, Result};
use alloc::vec::Vec;

/// Compression configurations of an image, by algorithm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configs {
    /// Limits of LZ4 data.
    pub lz4: Option<Lz4>,
    /// Size of the largest LZMA dictionary. Unit: bytes, 4096 to 8 MiB.
    pub lzma_dict_size: Option<u32>,
    /// log2 of the DEFLATE window, at most 15.
    pub deflate_window_bits: Option<u8>,
    /// log2 of the largest Zstandard window, at most 20.
    pub zstd_window_log: Option<u8>,
}

/// Compression configuration of LZ4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lz4 {
    /// Largest match distance. 0 means 65535.
    pub max_distance: u16,
    /// Size of the largest pcluster. Unit: blocks; 0 means 1.
    pub max_pcluster_blocks: u16,
}

impl Configs {
    /// Bit set of the algorithms that have a record.
    pub fn algorithms(&self) -> u16 {
        u16::from(self.lz4.is_some())
            | u16::from(self.lzma_dict_size.is_some()) << 1
            | u16::from(self.deflate_window_bits.is_some()) << 2
            | u16::from(self.zstd_window_log.is_some()) << 3
    }

    /// Decodes the records for `algorithms` from `src`, which starts right after the superblock. `base` is the
    /// position of `src` in the image, for alignment. Also returns the number of bytes used.
    pub fn decode(src: &[u8], base: u64, algorithms: u16) -> Result<(Self, usize)> {
        if algorithms & !0xF != 0 {
            return Err(Error::unsupported(
                "algorithm bit",
                (algorithms & !0xF).into(),
            ));
        }
        let mut out = Self::default();
        let mut at = 0usize;
        for id in 0..4u16 {
            if algorithms & 1 << id == 0 {
                continue;
            }
            at += (round_up(base + at as u64, 4) - base) as usize - at;
            let len = usize::from(u16_at(src, at, "compression record")?);
            let body = bytes(src, at + 2, len, "compression record")?;
            match id {
                0 => {
                    let lz4 = Lz4 {
                        max_distance: u16_at(body, 0, "LZ4 record")?,
                        max_pcluster_blocks: u16_at(body, 2, "LZ4 record")?,
                    };
                    bytes(body, 0, 14, "LZ4 record")?;
                    out.lz4 = Some(lz4);
                }
                1 => {
                    let dict = u32_at(body, 0, "LZMA record")?;
                    let format = u16_at(body, 4, "LZMA record")?;
                    bytes(body, 0, 14, "LZMA record")?;
                    if format != 0 {
                        return Err(Error::bad("LZMA record format", format.into(), "0"));
                    }
                    if !(4096..=8 << 20).contains(&dict) {
                        return Err(Error::bad(
                            "LZMA dictionary size",
                            dict.into(),
                            "4096 to 8388608",
                        ));
                    }
                    out.lzma_dict_size = Some(dict);
                }
                2 => match *bytes(body, 0, 6, "DEFLATE record")? {
                    [bits, ..] if bits <= 15 => out.deflate_window_bits = Some(bits),
                    [bits, ..] => {
                        return Err(Error::unsupported("DEFLATE window bits", bits.into()));
                    }
                    _ => return Err(Error::corrupt("DEFLATE record")),
                },
                _ => match *bytes(body, 0, 6, "Zstandard record")? {
                    [0, log, ..] if log <= 10 => out.zstd_window_log = Some(log + 10),
                    [0, log, ..] => {
                        return Err(Error::bad("Zstandard window log", log.into(), "at most 10"));
                    }
                    [format, ..] => {
                        return Err(Error::bad("Zstandard record format", format.into(), "0"));
                    }
                    _ => return Err(Error::corrupt("Zstandard record")),
                },
            }
            at += 2 + len;
        }
        Ok((out, at))
    }

    /// Encodes the records, for a superblock whose end is 4-byte aligned.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut record = |payload: &[u8], len: u16| {
            out.resize(round_up(out.len() as u64, 4) as usize, 0);
            out.extend_from_slice(&len.to_le_bytes());
            let end = out.len() + usize::from(len);
            out.extend_from_slice(payload);
            out.resize(end, 0);
        };
        if let Some(lz4) = self.lz4 {
            let [a, b] = lz4.max_distance.to_le_bytes();
            let [c, d] = lz4.max_pcluster_blocks.to_le_bytes();
            record(&[a, b, c, d], 14);
        }
        if let Some(dict) = self.lzma_dict_size {
            record(&dict.to_le_bytes(), 14);
        }
        if let Some(bits) = self.deflate_window_bits {
            record(&[bits], 6);
        }
        if let Some(log) = self.zstd_window_log {
            record(&[0, log.saturating_sub(10)], 6);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lz4_and_zstd_records_are_as_in_the_example() {
        let configs = Configs {
            lz4: Some(Lz4 {
                max_distance: 65535,
                max_pcluster_blocks: 4,
            }),
            zstd_window_log: Some(17),
            ..Configs::default()
        };
        let expected = [
            14, 0, 255, 255, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 7, 0, 0, 0, 0,
        ];
        assert_eq!(configs.encode(), expected);
        assert_eq!(
            Configs::decode(&expected, 1152, 0b1001).unwrap(),
            (configs, expected.len())
        );
    }

    #[test]
    fn short_records_are_rejected_at_every_length() {
        let all = Configs {
            lz4: Some(Lz4 {
                max_distance: 1,
                max_pcluster_blocks: 2,
            }),
            lzma_dict_size: Some(65536),
            deflate_window_bits: Some(15),
            zstd_window_log: Some(20),
        };
        let bytes = all.encode();
        for n in 0..bytes.len() {
            assert!(Configs::decode(&bytes[..n], 1152, 0xF).is_err());
        }
        assert_eq!(Configs::decode(&bytes, 1152, 0xF).unwrap().0, all);
    }
}
