//! GUIDs of disks, partitions and partition types.

use sha2::{Digest, Sha256};
use std::fmt;
use tuff_verity::Root;

/// GUID, in the order of its text form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Guid(pub [u8; 16]);

impl Guid {
    /// Parses the text form: 32 hexadecimal digits, with or without hyphens.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        let mut digits = text.chars().filter(|c| *c != '-');
        for byte in &mut bytes {
            let (high, low) = (digits.next()?.to_digit(16)?, digits.next()?.to_digit(16)?);
            *byte = (high << 4 | low) as u8; // fits: two digits
        }
        digits.next().is_none().then_some(Self(bytes))
    }

    /// Decodes the form on disk, of which the first three fields are little-endian.
    pub fn from_disk(bytes: [u8; 16]) -> Self {
        Self(swapped(bytes))
    }

    /// Encodes the form on disk.
    pub fn to_disk(self) -> [u8; 16] {
        swapped(self.0)
    }

    /// Returns true for the GUID of unused entries.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// GUID of `what`, derived from a root hash.
    pub(crate) fn derived(root: &Root, what: &str) -> Self {
        let digest = Sha256::new_with_prefix(b"tuff disk ")
            .chain_update(what)
            .chain_update(root)
            .finalize();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        // Version 8 of RFC 9562: of a form that the writer defines.
        bytes[6] = bytes[6] & 0x0f | 0x80;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Self(bytes)
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, byte) in self.0.iter().enumerate() {
            if matches!(place, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

fn swapped(mut bytes: [u8; 16]) -> [u8; 16] {
    bytes[..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_disk_have_different_orders() {
        let text = "4f68bce3-e8cd-4db1-96e7-fbcaf984b709";
        let guid = Guid::parse(text).unwrap();
        assert_eq!(guid.to_string(), text);
        assert_eq!(
            guid.to_disk()[..9],
            [0xe3, 0xbc, 0x68, 0x4f, 0xcd, 0xe8, 0xb1, 0x4d, 0x96]
        );
        assert_eq!(Guid::from_disk(guid.to_disk()), guid);
    }

    #[test]
    fn other_texts_are_no_guids() {
        for text in [
            "",
            "4f68bce3",
            "4f68bce3-e8cd-4db1-96e7-fbcaf984b70g",
            "4f68bce3-e8cd-4db1-96e7-fbcaf984b7090",
        ] {
            assert_eq!(Guid::parse(text), None, "{text}");
        }
    }
}
