//! Header of a hash tree: 512 bytes, little endian.
//!
//! | offset | bytes | field |
//! |--:|--:|---|
//! | 0 | 8 | `verity`, two zeros |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | hash type, 1: the salt comes first |
//! | 16 | 16 | UUID |
//! | 32 | 32 | name of the algorithm, `sha256`, zeros |
//! | 64 | 4 | size of a data block |
//! | 68 | 4 | size of a hash block |
//! | 72 | 8 | number of data blocks |
//! | 80 | 2 | length of the salt |
//! | 88 | 256 | salt |

use std::fmt;

/// Length of the header. Unit: bytes.
pub const HEADER_LEN: usize = 512;

/// Longest salt. Unit: bytes.
pub(crate) const SALT_MAX: usize = 256;

const SIGNATURE: &[u8; 8] = b"verity\0\0";
const ALGORITHM: &[u8; 7] = b"sha256\0";

/// Parameters of a hash tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// UUID of the tree, which has no effect on digests.
    pub uuid: [u8; 16],
    /// Size of the blocks that digests cover. Unit: bytes.
    pub data_block: u32,
    /// Size of the blocks that hold digests. Unit: bytes.
    pub hash_block: u32,
    /// Number of data blocks.
    pub data_blocks: u64,
    /// Salt, which precedes each block when it is hashed. At most 256 bytes.
    pub salt: Vec<u8>,
}

/// Reason why bytes are not a usable header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// The signature is missing.
    Missing,
    /// A field has an impossible value.
    Corrupt(&'static str),
    /// The header is valid, but of a format that this crate does not read.
    Unsupported(&'static str),
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("no hash tree of dm-verity"),
            Self::Corrupt(what) | Self::Unsupported(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for HeaderError {}

impl Header {
    /// Creates the header for `len` bytes of data in blocks of `block` bytes: a power of two from 512 to 64 KiB. A
    /// short last block is padded with zeros.
    pub fn new(len: u64, block: u32, salt: Vec<u8>, uuid: [u8; 16]) -> Result<Self, HeaderError> {
        let header = Self {
            uuid,
            data_block: block,
            hash_block: block,
            data_blocks: len.div_ceil(block.max(1).into()),
            salt,
        };
        header.check().map(|()| header)
    }

    /// Decodes a header from its bytes on disk.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, HeaderError> {
        let at = |at: usize| &bytes[at..];
        let u32_at = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        if !at(0).starts_with(SIGNATURE) {
            return Err(HeaderError::Missing);
        }
        if u32_at(8) != 1 {
            return Err(HeaderError::Unsupported(
                "dm-verity header of a version other than 1",
            ));
        }
        if u32_at(12) != 1 {
            return Err(HeaderError::Unsupported(
                "Chrome OS hash tree (hash type 0)",
            ));
        }
        if !at(32).starts_with(ALGORITHM) {
            return Err(HeaderError::Unsupported(
                "hash tree with another algorithm than SHA-256",
            ));
        }
        let salt_len = usize::from(u16::from_le_bytes([bytes[80], bytes[81]]));
        if salt_len > SALT_MAX {
            return Err(HeaderError::Corrupt("the salt is longer than 256 bytes"));
        }
        let header = Self {
            uuid: std::array::from_fn(|i| bytes[16 + i]),
            data_block: u32_at(64),
            hash_block: u32_at(68),
            data_blocks: u64::from(u32_at(72)) | u64::from(u32_at(76)) << 32,
            salt: bytes[88..88 + salt_len].to_vec(),
        };
        header.check().map(|()| header)
    }

    /// Encodes the header as its bytes on disk.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, SIGNATURE);
        put(8, &1u32.to_le_bytes());
        put(12, &1u32.to_le_bytes());
        put(16, &self.uuid);
        put(32, ALGORITHM);
        put(64, &self.data_block.to_le_bytes());
        put(68, &self.hash_block.to_le_bytes());
        put(72, &self.data_blocks.to_le_bytes());
        put(80, &(self.salt.len() as u16).to_le_bytes()); // fits: checked
        put(88, &self.salt);
        bytes
    }

    /// Length of the data in whole blocks. Unit: bytes.
    pub fn data_len(&self) -> u64 {
        self.data_blocks * u64::from(self.data_block)
    }

    fn check(&self) -> Result<(), HeaderError> {
        for size in [self.data_block, self.hash_block] {
            if !size.is_power_of_two() || !(512..=65536).contains(&size) {
                return Err(HeaderError::Corrupt(
                    "the block size of the hash tree is not a power of two from 512 to 64K",
                ));
            }
        }
        if self.salt.len() > SALT_MAX {
            return Err(HeaderError::Corrupt("the salt is longer than 256 bytes"));
        }
        if self.data_blocks == 0 {
            return Err(HeaderError::Corrupt("hash tree without data blocks"));
        }
        if self.data_blocks > i64::MAX as u64 / u64::from(self.data_block) {
            return Err(HeaderError::Corrupt("hash tree over more than 8 EiB"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_a_round_trip() {
        let header = Header::new(4097, 4096, vec![7; 256], [9; 16]).unwrap();
        assert_eq!(header.data_blocks, 2);
        assert_eq!(Header::decode(&header.encode()).unwrap(), header);
    }

    #[test]
    fn impossible_headers_are_rejected() {
        let good = Header::new(1, 512, Vec::new(), [0; 16]).unwrap().encode();
        for (at, byte, expected) in [
            (0, b'V', "no hash tree"),
            (8, 2, "version"),
            (12, 0, "Chrome OS"),
            (32, b'b', "another algorithm"),
            (38, b'0', "another algorithm"),
            (64, 1, "block size"),
            (65, 3, "block size"),
            (70, 2, "block size"),
            (72, 0, "without data"),
            (79, 0xff, "8 EiB"),
            (81, 2, "salt"),
        ] {
            let mut bytes = good;
            bytes[at] = byte;
            let message = Header::decode(&bytes).unwrap_err().to_string();
            assert!(message.contains(expected), "byte {at}: {message}");
        }
        assert!(Header::new(0, 4096, Vec::new(), [0; 16]).is_err());
        assert!(Header::new(1, 0, Vec::new(), [0; 16]).is_err());
        assert!(Header::new(1, 4096, vec![0; 257], [0; 16]).is_err());
    }
}
