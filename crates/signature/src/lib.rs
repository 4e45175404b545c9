//! Signatures of root hashes: detached PKCS #7 over the hexadecimal digits, as the kernel and systemd take them.
//!
//! * [`Signer`]: private key with its certificate, which signs.
//! * [`Certificate`]: verifies signatures.
//!
//! A certificate is trusted as it is given: its issuer and validity period are not checked, as for the keys of the kernel.

mod der;
mod key;

use der::{Reader, tag, value};
use key::{Key, KeyKind};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, SignatureVerificationAlgorithm};
use sha2::{Digest, Sha256, Sha384, Sha512};
use std::fmt;
use tuff_verity::Root;
use webpki::{EndEntityCert, ring};

/// Result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Key or certificate that cannot be used: its path, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    place: String,
    what: String,
}

impl Error {
    fn new(place: &str, what: impl fmt::Display) -> Self {
        let (place, what) = (place.to_owned(), what.to_string());
        Self { place, what }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

impl std::error::Error for Error {}

/// Object identifiers, in their encoded form without tag and length.
mod oid {
    pub(crate) const SIGNED_DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 7, 2];
    pub(crate) const DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 7, 1];
    pub(crate) const MESSAGE_DIGEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 4];
    pub(crate) const SHA256: &[u8] = &[0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 1];
    pub(crate) const SHA384: &[u8] = &[0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 2];
    pub(crate) const SHA512: &[u8] = &[0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 3];
    pub(crate) const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
    pub(crate) const ECDSA_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
}

/// Certificate with a public key.
#[derive(Clone, Debug)]
pub struct Certificate {
    der: CertificateDer<'static>,
    place: String,
}

/// Private key with its certificate.
pub struct Signer {
    key: Key,
    certificate: Certificate,
}

impl Certificate {
    /// Parses the first certificate of a PEM file, or a certificate in DER. Errors name `place`.
    ///
    /// # Errors
    /// Fails for bytes that are no certificate, or for one with another key than RSA or ECDSA.
    pub fn parse(bytes: &[u8], place: &str) -> Result<Self> {
        let pem = CertificateDer::from_pem_slice(bytes).ok();
        let der = pem.unwrap_or_else(|| CertificateDer::from(bytes.to_vec()));
        if let Err(e) = EndEntityCert::try_from(&der) {
            let what = format_args!("is no X.509 certificate in PEM or DER that can be used: {e}");
            return Err(Error::new(place, what));
        }
        Ok(Self {
            der,
            place: place.to_owned(),
        })
    }

    /// Path of the certificate, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// SHA-256 of the certificate in DER.
    pub fn fingerprint(&self) -> [u8; 32] {
        Sha256::digest(&self.der).into()
    }

    /// Returns true if one of the signatures in `signature` is of this root hash and by this certificate.
    pub fn has_signed(&self, root: &Root, signature: &[u8]) -> bool {
        let content = hex::encode(root);
        let Ok(certificate) = EndEntityCert::try_from(&self.der) else {
            return false;
        };
        let infos = signer_infos(signature).unwrap_or_default();
        infos.iter().any(|info| {
            let message = info.message(content.as_bytes());
            message.is_some_and(|message| {
                let algorithms = info
                    .digest
                    .map_or_else(Vec::new, DigestAlgorithm::signatures);
                algorithms.iter().any(|algorithm| {
                    let verified =
                        certificate.verify_signature(*algorithm, &message, info.signature);
                    verified.is_ok()
                })
            })
        })
    }
}

impl Signer {
    /// Combines a private key in PEM, which is not encrypted, and its certificate. Errors name `place`.
    ///
    /// # Errors
    /// Fails for a key that cannot be used, or that belongs to another certificate.
    pub fn new(key: &[u8], certificate: Certificate, place: &str) -> Result<Self> {
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
            let what = "is no private key in PEM, or an encrypted one; openssl pkey -in KEY -out PLAIN decrypts it";
            Error::new(place, what)
        })?;
        let unusable = || Error::new(place, "only keys of RSA and of ECDSA on P-256 can sign");
        let key = Key::parse(&key).ok_or_else(unusable)?;
        let signer = Self { key, certificate };
        let root = Root::default();
        let signature = signer.sign(&root).ok_or_else(unusable)?;
        if !signer.certificate.has_signed(&root, &signature) {
            let what = format_args!(
                "does not belong to the certificate {}",
                signer.certificate.place
            );
            return Err(Error::new(place, what));
        }
        Ok(signer)
    }

    /// Certificate of the key.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// Signs a root hash. The signature is PKCS #7 in DER, without certificates and attributes. Signatures by an RSA key are
    /// always the same; those by an ECDSA key contain a random number. Returns `None` if the host has no random numbers.
    pub fn sign(&self, root: &Root) -> Option<Vec<u8>> {
        let signature = self.key.sign(hex::encode(root).as_bytes())?;
        let certificate = EndEntityCert::try_from(&self.certificate.der).ok()?;
        let null = value(tag::NULL, &[]);
        let object = |oid: &[u8]| value(tag::OID, &[oid]);
        let digest = value(tag::SEQUENCE, &[&object(oid::SHA256), &null]);
        let algorithm = match self.key.kind() {
            KeyKind::Rsa => value(tag::SEQUENCE, &[&object(oid::RSA), &null]),
            KeyKind::EcdsaP256 => value(tag::SEQUENCE, &[&object(oid::ECDSA_SHA256)]),
        };
        let version = value(tag::INTEGER, &[&[1]]);
        let issuer = value(tag::SEQUENCE, &[certificate.issuer()]);
        let serial = value(tag::INTEGER, &[certificate.serial()]);
        let info = value(
            tag::SEQUENCE,
            &[
                &version,
                &value(tag::SEQUENCE, &[&issuer, &serial]),
                &digest,
                &algorithm,
                &value(tag::OCTETS, &[&signature]),
            ],
        );
        let signed = value(
            tag::SEQUENCE,
            &[
                &version,
                &value(tag::SET, &[&digest]),
                &value(tag::SEQUENCE, &[&object(oid::DATA)]),
                &value(tag::SET, &[&info]),
            ],
        );
        let signed = value(tag::CONTEXT_0, &[&signed]);
        Some(value(tag::SEQUENCE, &[&object(oid::SIGNED_DATA), &signed]))
    }
}

/// Digest of signed bytes.
#[derive(Clone, Copy)]
enum DigestAlgorithm {
    Sha256,
    Sha384,
    Sha512,
}

impl DigestAlgorithm {
    fn from_oid(oid: &[u8]) -> Option<Self> {
        match oid {
            oid::SHA256 => Some(Self::Sha256),
            oid::SHA384 => Some(Self::Sha384),
            oid::SHA512 => Some(Self::Sha512),
            _ => None,
        }
    }

    fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::digest(bytes).to_vec(),
            Self::Sha384 => Sha384::digest(bytes).to_vec(),
            Self::Sha512 => Sha512::digest(bytes).to_vec(),
        }
    }

    /// Signatures over this digest. The key of a certificate selects one of them.
    fn signatures(self) -> Vec<&'static dyn SignatureVerificationAlgorithm> {
        match self {
            Self::Sha256 => vec![
                ring::RSA_PKCS1_2048_8192_SHA256,
                ring::ECDSA_P256_SHA256,
                ring::ECDSA_P384_SHA256,
            ],
            Self::Sha384 => vec![
                ring::RSA_PKCS1_2048_8192_SHA384,
                ring::ECDSA_P256_SHA384,
                ring::ECDSA_P384_SHA384,
            ],
            Self::Sha512 => vec![ring::RSA_PKCS1_2048_8192_SHA512],
        }
    }
}

/// Signature of one signer.
struct SignerInfo<'a> {
    digest: Option<DigestAlgorithm>,
    /// Content of the signed attributes.
    attributes: Option<&'a [u8]>,
    signature: &'a [u8],
}

impl SignerInfo<'_> {
    /// Bytes that the signature is over: the content, or attributes with its digest.
    fn message(&self, content: &[u8]) -> Option<Vec<u8>> {
        let Some(attributes) = self.attributes else {
            return Some(content.to_vec());
        };
        let digest = self.digest?.digest(content);
        let mut list = Reader(attributes);
        while let Some(attribute) = list.take(tag::SEQUENCE) {
            let mut attribute = Reader(attribute);
            if attribute.take(tag::OID)? == oid::MESSAGE_DIGEST {
                let mut values = Reader(attribute.take(tag::SET)?);
                let is_same = values.take(tag::OCTETS)? == digest;
                return is_same.then(|| value(tag::SET, &[attributes]));
            }
        }
        None
    }
}

/// Signatures of detached signed data. `None` if it is malformed.
fn signer_infos(bytes: &[u8]) -> Option<Vec<SignerInfo<'_>>> {
    let mut outer = Reader(Reader(bytes).take(tag::SEQUENCE)?);
    if outer.take(tag::OID)? != oid::SIGNED_DATA {
        return None;
    }
    let mut data = Reader(Reader(outer.take(tag::CONTEXT_0)?).take(tag::SEQUENCE)?);
    data.take(tag::INTEGER)?;
    data.take(tag::SET)?;
    data.take(tag::SEQUENCE)?;
    // Certificates and revocation lists are not used.
    data.take(tag::CONTEXT_0);
    data.take(tag::CONTEXT_1);
    let mut infos = Reader(data.take(tag::SET)?);
    let mut out = Vec::new();
    while let Some(info) = infos.take(tag::SEQUENCE) {
        let mut info = Reader(info);
        info.take(tag::INTEGER)?;
        // Issuer and serial number, or an identifier of the key: the key itself decides.
        info.next()?;
        let digest = Reader(info.take(tag::SEQUENCE)?).take(tag::OID)?;
        let attributes = info.take(tag::CONTEXT_0);
        info.take(tag::SEQUENCE)?;
        out.push(SignerInfo {
            digest: DigestAlgorithm::from_oid(digest),
            attributes,
            signature: info.take(tag::OCTETS)?,
        });
    }
    Some(out)
}
