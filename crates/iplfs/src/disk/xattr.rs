//! Extended attributes, encoded as `{name_len 1, value_len 2, name, value}` one after the other.
//!
//! All attributes of an inode are inline if they fit, otherwise all of them are in one node.

use crate::error::{Error, Result};
use std::collections::BTreeMap;

/// Extended attributes by name.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Encodes attributes. The caller limits names to 255 bytes and values to 65535 bytes.
pub fn encode(xattrs: &Xattrs) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in xattrs {
        bytes.push(name.len() as u8);
        bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(value);
    }
    bytes
}

/// Decodes the extended attributes of an inode.
pub fn decode(mut bytes: &[u8]) -> Result<Xattrs> {
    let mut xattrs = Xattrs::new();
    while let [name_len, a, b, rest @ ..] = bytes {
        let name_len = usize::from(*name_len);
        let value_len = usize::from(u16::from_le_bytes([*a, *b]));
        if name_len == 0 || rest.len() < name_len + value_len {
            let what = format_args!(
                "name of {name_len} and value of {value_len} bytes in {}",
                rest.len()
            );
            return Err(Error::corrupt("extended attributes", what));
        }
        let (name, rest) = rest.split_at(name_len);
        let (value, rest) = rest.split_at(value_len);
        xattrs.insert(name.to_vec(), value.to_vec());
        bytes = rest;
    }
    if bytes.is_empty() {
        Ok(xattrs)
    } else {
        Err(Error::corrupt("extended attributes", "end inside an entry"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_every_truncation() {
        let xattrs: Xattrs = [
            (b"user.a".to_vec(), b"1".to_vec()),
            (b"user.b".to_vec(), Vec::new()),
        ]
        .into();
        let bytes = encode(&xattrs);
        assert_eq!(decode(&bytes).unwrap(), xattrs);
        for len in 1..bytes.len() {
            assert_ne!(decode(&bytes[..len]).ok(), Some(xattrs.clone()));
        }
    }
}
