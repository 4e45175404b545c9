//! Content of a signature partition: a JSON object, padded with zeros.

use crate::error::{Error, Result};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tuff_verity::Root;

/// Alignment of the length of a signature partition. Unit: bytes.
const PADDED_TO: usize = 4096;

/// Longest signature partition that is read. Unit: bytes.
pub(crate) const RECORD_MAX: u64 = 4 << 20;

/// Signature of a root hash, with what it is over and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureRecord {
    /// Root hash that was signed.
    pub root: Root,
    /// Detached signature in DER of PKCS #7.
    pub signature: Vec<u8>,
    /// SHA-256 of the certificate in DER.
    pub fingerprint: Option<[u8; 32]>,
}

impl SignatureRecord {
    /// Encodes the content of the partition.
    pub fn encode(&self) -> Vec<u8> {
        let mut object = json!({
            "rootHash": hex::encode(self.root),
            "signature": BASE64_STANDARD.encode(&self.signature),
        });
        if let Some(fingerprint) = &self.fingerprint {
            object["certificateFingerprint"] = hex::encode(fingerprint).into();
        }
        let mut bytes = object.to_string().into_bytes();
        bytes.resize(bytes.len().next_multiple_of(PADDED_TO), 0);
        bytes
    }

    /// Decodes the content of a partition.
    ///
    /// # Errors
    /// `Corrupt` for other content than a record.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let wrong = |what: &str| Error::Corrupt(format!("signature partition: {what}"));
        let len = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        let object: Value = serde_json::from_slice(&bytes[..len])
            .map_err(|e| wrong(&format!("no JSON object: {e}")))?;
        let text = |key: &str| object.get(key).and_then(Value::as_str);
        let digest = |key: &str| text(key).map(|digits| hex::decode(digits).ok()?.try_into().ok());
        let root = digest("rootHash").flatten();
        let signature = text("signature").and_then(|text| BASE64_STANDARD.decode(text).ok());
        Ok(Self {
            root: root.ok_or_else(|| wrong("rootHash is not 64 hexadecimal digits"))?,
            signature: signature.ok_or_else(|| wrong("signature is not Base64"))?,
            fingerprint: match digest("certificateFingerprint") {
                Some(None) => {
                    return Err(wrong("certificateFingerprint is not 64 hexadecimal digits"));
                }
                fingerprint => fingerprint.flatten(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_a_round_trip() {
        for fingerprint in [None, Some([0xab; 32])] {
            let record = SignatureRecord {
                root: [0x1f; 32],
                signature: vec![0x30, 0x82, 0xff],
                fingerprint,
            };
            let bytes = record.encode();
            assert_eq!(bytes.len(), 4096);
            assert_eq!(SignatureRecord::decode(&bytes).unwrap(), record);
        }
    }

    #[test]
    fn other_content_is_refused_by_the_field_that_is_wrong() {
        let root = "ab".repeat(32);
        for (bytes, expected) in [
            (String::new(), "no JSON"),
            ("[1]".to_owned(), "rootHash"),
            (
                "{\"rootHash\":\"ab\",\"signature\":\"\"}".to_owned(),
                "rootHash",
            ),
            (
                format!("{{\"rootHash\":\"{root}\",\"signature\":\"*\"}}"),
                "signature is",
            ),
            (
                format!(
                    "{{\"rootHash\":\"{root}\",\"signature\":\"AA==\",\"certificateFingerprint\":\"\"}}"
                ),
                "certificateFingerprint",
            ),
        ] {
            let message = SignatureRecord::decode(bytes.as_bytes())
                .unwrap_err()
                .to_string();
            assert!(message.contains(expected), "{bytes}: {message}");
        }
    }
}
