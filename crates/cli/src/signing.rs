//! Keys and certificates for signatures of root hashes.

use std::path::PathBuf;
use tuff_erofs::{Error, Result};
use tuff_open::certificate;
use tuff_signature::Signer;

/// Paths of a private key and of its certificate.
#[derive(Clone, Debug)]
pub(crate) struct KeyPair {
    key: PathBuf,
    certificate: PathBuf,
}

impl KeyPair {
    /// Parses the value `KEY,CERT` of an option.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(',') {
            Some((key, certificate)) if !key.is_empty() && !certificate.is_empty() => Ok(Self {
                key: key.into(),
                certificate: certificate.into(),
            }),
            _ => Err("write it as KEY.pem,CERT.pem".to_owned()),
        }
    }

    /// Reads both files into a signer.
    pub(crate) fn signer(&self) -> Result<Signer> {
        let key = std::fs::read(&self.key);
        let key = key.map_err(|e| Error::io(self.key.display(), "cannot read", e))?;
        let certificate = certificate(&self.certificate)?;
        let place = self.key.display().to_string();
        Signer::new(&key, certificate, &place).map_err(Error::usage)
    }
}
