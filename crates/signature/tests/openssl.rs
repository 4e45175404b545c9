//! Signatures that openssl verifies, and those that it makes.

use std::fs;
use tempfile::TempDir;
use tuff_signature::{Certificate, Signer};
use tuff_testkit::openssl::{self, openssl, parsed, signer};
use tuff_verity::Root;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Directory with keys, or `None` without openssl.
fn keys() -> Option<TempDir> {
    let dir = TempDir::new().unwrap();
    openssl::keys(dir.path())?;
    Some(dir)
}

#[test]
fn openssl_verifies_what_a_signer_writes() {
    let Some(dir) = keys() else {
        return;
    };
    let root: Root = [0xa5; 32];
    fs::write(dir.path().join("roothash"), hex(&root)).unwrap();
    for name in ["rsa", "ec"] {
        let signature = signer(dir.path(), name).sign(&root).unwrap();
        fs::write(dir.path().join("p7s"), &signature).unwrap();
        let certificate = format!("{name}.pem");
        for verb in ["cms", "smime"] {
            let args = [verb, "-verify", "-inform", "der", "-in", "p7s", "-binary"];
            let more = [
                "-content",
                "roothash",
                "-certfile",
                &certificate,
                "-noverify",
                "-out",
                "out",
            ];
            let out = openssl(dir.path(), &[&args[..], &more].concat()).unwrap();
            assert!(
                out.status.success(),
                "{name} {verb}: {}",
                String::from_utf8_lossy(&out.stderr)
            );
        }
    }
}

#[test]
fn signatures_of_openssl_are_verified() {
    let Some(dir) = keys() else {
        return;
    };
    let root: Root = [0x5a; 32];
    fs::write(dir.path().join("roothash"), hex(&root)).unwrap();
    // With and without signed attributes and certificates, and over other digests.
    let forms: [&[&str]; 4] = [
        &["smime", "-noattr", "-nocerts"],
        &["smime"],
        &["cms", "-noattr", "-md", "sha256"],
        &["cms", "-md", "sha384"],
    ];
    for name in ["rsa", "ec"] {
        let (key, certificate) = (format!("{name}.key"), format!("{name}.pem"));
        for form in forms {
            let (verb, options) = form.split_first().unwrap();
            let args = [
                *verb, "-sign", "-binary", "-outform", "der", "-in", "roothash", "-out", "p7s",
            ];
            let more = ["-signer", &certificate, "-inkey", &key];
            let out = openssl(dir.path(), &[&args[..], &more, options].concat()).unwrap();
            assert!(
                out.status.success(),
                "{}",
                String::from_utf8_lossy(&out.stderr)
            );
            let signature = fs::read(dir.path().join("p7s")).unwrap();
            assert!(
                parsed(dir.path(), name).has_signed(&root, &signature),
                "{name} {form:?}"
            );
            assert!(
                !parsed(dir.path(), "other").has_signed(&root, &signature),
                "{name} {form:?}"
            );
            assert!(
                !parsed(dir.path(), name).has_signed(&[0; 32], &signature),
                "{name} {form:?}"
            );
        }
    }
}

#[test]
fn damaged_signatures_are_refused() {
    let Some(dir) = keys() else {
        return;
    };
    let root: Root = [1; 32];
    let certificate = parsed(dir.path(), "ec");
    let signature = signer(dir.path(), "ec").sign(&root).unwrap();
    assert!(certificate.has_signed(&root, &signature));
    for len in 0..signature.len() {
        assert!(!certificate.has_signed(&root, &signature[..len]), "{len}");
    }
    // The last bytes are the signature itself.
    for at in signature.len() - 60..signature.len() {
        let mut damaged = signature.clone();
        damaged[at] ^= 1;
        assert!(!certificate.has_signed(&root, &damaged), "{at}");
    }
}

#[test]
fn keys_and_certificates_that_cannot_be_used_are_named() {
    let Some(dir) = keys() else {
        return;
    };
    let e = Certificate::parse(b"none", "c.pem").unwrap_err();
    assert!(
        e.to_string().starts_with("c.pem: is no X.509 certificate"),
        "{e}"
    );
    let key = fs::read(dir.path().join("ec.key")).unwrap();
    let e = Signer::new(&key, parsed(dir.path(), "rsa"), "k")
        .err()
        .unwrap();
    assert!(
        e.to_string().contains("does not belong to the certificate"),
        "{e}"
    );
    let e = Signer::new(b"none", parsed(dir.path(), "rsa"), "k")
        .err()
        .unwrap();
    assert!(e.to_string().contains("no private key"), "{e}");
}
