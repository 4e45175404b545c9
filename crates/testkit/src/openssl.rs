//! Keys and certificates, made by openssl.

use crate::skipped;
#[cfg(feature = "signature")]
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
#[cfg(feature = "signature")]
use tuff_signature::{Certificate, Signer};

/// Key of RSA, as arguments of [`certificate`].
pub const RSA: &[&str] = &["-newkey", "rsa:2048"];

/// Key on the curve P-256.
pub const P256: &[&str] = &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];

/// Runs openssl in a directory. `None`, after a note, if the host has no openssl.
pub fn openssl(dir: &Path, args: &[&str]) -> Option<Output> {
    let mut openssl = Command::new("openssl");
    match openssl.args(args).current_dir(dir).output() {
        Ok(out) => Some(out),
        Err(e) => {
            skipped(format_args!("openssl: {e}"));
            None
        }
    }
}

/// Makes the files `NAME.key` and `NAME.pem`: a key of a kind such as [`RSA`], and its certificate.
///
/// # Panics
/// If openssl fails.
pub fn certificate(dir: &Path, name: &str, kind: &[&str]) -> Option<()> {
    let (key, certificate) = (format!("{name}.key"), format!("{name}.pem"));
    let subject = format!("/O=Test/CN={name}");
    let files = ["-keyout", &key, "-out", &certificate];
    let form = ["req", "-x509", "-nodes", "-days", "2", "-subj", &subject];
    let out = openssl(dir, &[&form[..], &files, kind].concat())?;
    let message = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{message}");
    Some(())
}

/// Makes three keys with certificates: `rsa`, `ec` and `other`. `None` without openssl.
///
/// # Panics
/// If openssl fails.
#[cfg(feature = "signature")]
pub fn keys(dir: &Path) -> Option<()> {
    certificate(dir, "rsa", RSA)?;
    certificate(dir, "ec", P256)?;
    certificate(dir, "other", P256)
}

/// Parses the certificate `NAME.pem`.
///
/// # Panics
/// If it cannot be read or used.
#[cfg(feature = "signature")]
pub fn parsed(dir: &Path, name: &str) -> Certificate {
    let path = dir.join(format!("{name}.pem"));
    Certificate::parse(&fs::read(&path).unwrap(), &path.display().to_string()).unwrap()
}

/// Returns a signer with the key `NAME.key` and its certificate.
///
/// # Panics
/// If they cannot be read or used.
#[cfg(feature = "signature")]
pub fn signer(dir: &Path, name: &str) -> Signer {
    let key = fs::read(dir.join(format!("{name}.key"))).unwrap();
    Signer::new(&key, parsed(dir, name), name).unwrap()
}
