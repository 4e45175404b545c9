//! Private keys that sign: RSA, and ECDSA on P-256, with SHA-256.

use crate::der::{tag, value};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use rustls_pki_types::PrivateKeyDer;

/// Object identifier of keys on elliptic curves, in its encoded form without tag and length.
const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];

/// Object identifier of the curve P-256.
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];

/// Private key that can sign.
pub(crate) enum Key {
    Rsa(Box<RsaKeyPair>),
    EcdsaP256(Box<EcdsaKeyPair>),
}

/// Algorithm of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyKind {
    Rsa,
    EcdsaP256,
}

impl Key {
    /// Parses a key. `None` for a kind of key that cannot sign.
    pub(crate) fn parse(key: &PrivateKeyDer<'_>) -> Option<Self> {
        let rsa = match key {
            PrivateKeyDer::Pkcs1(key) => RsaKeyPair::from_der(key.secret_pkcs1_der()).ok(),
            PrivateKeyDer::Pkcs8(key) => RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).ok(),
            _ => None,
        };
        if let Some(key) = rsa {
            return Some(Self::Rsa(Box::new(key)));
        }
        let ecdsa = |pkcs8: &[u8]| {
            let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
            EcdsaKeyPair::from_pkcs8(algorithm, pkcs8, &SystemRandom::new()).ok()
        };
        let key = match key {
            PrivateKeyDer::Pkcs8(key) => ecdsa(key.secret_pkcs8_der()),
            PrivateKeyDer::Sec1(key) => ecdsa(&wrapped(key.secret_sec1_der())),
            _ => None,
        };
        key.map(|key| Self::EcdsaP256(Box::new(key)))
    }

    pub(crate) fn kind(&self) -> KeyKind {
        match self {
            Self::Rsa(_) => KeyKind::Rsa,
            Self::EcdsaP256(_) => KeyKind::EcdsaP256,
        }
    }

    /// Signs a message. `None` if the host has no random numbers.
    pub(crate) fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match self {
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)
                    .ok()?;
                Some(signature)
            }
            Self::EcdsaP256(key) => {
                let signature = key.sign(&random, message).ok()?;
                Some(signature.as_ref().to_vec())
            }
        }
    }
}

/// PKCS #8 of a key on P-256 in the form of SEC 1, which `openssl ecparam -genkey` writes.
fn wrapped(sec1: &[u8]) -> Vec<u8> {
    let version = value(tag::INTEGER, &[&[0]]);
    let algorithm = [EC_PUBLIC_KEY, P256].map(|oid| value(tag::OID, &[oid]));
    let algorithm = value(tag::SEQUENCE, &[&algorithm[0], &algorithm[1]]);
    let key = value(tag::OCTETS, &[sec1]);
    value(tag::SEQUENCE, &[&version, &algorithm, &key])
}
