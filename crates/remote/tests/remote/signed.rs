//! Data that comes with an image: profiles and signatures, in registries with and without an API for referrers.

use crate::common::{Dir, image, options, verified_image};
use crate::push::{layer, push_options};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use tuff_remote::{Certificate, Kind, Location, PushOptions, Signer, profile, push, trusted};
use tuff_testkit::http::Server;
use tuff_testkit::registry::Registry;
use tuff_testkit::skipped;
use tuff_verity::Root;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn start(has_referrers: bool) -> (Arc<Registry>, Server, Location) {
    let registry = Arc::new(Registry::with_referrers(has_referrers));
    let answering = Arc::clone(&registry);
    let server = Server::start(move |request| answering.answer(request));
    let location = Location::parse(&format!("oci://{}/team/app:v1", server.host())).unwrap();
    (registry, server, location)
}

fn openssl(dir: &Path, args: &[&str]) -> Option<Output> {
    let mut openssl = Command::new("openssl");
    match openssl.args(args).current_dir(dir).output() {
        Ok(out) => Some(out),
        Err(e) => {
            skipped(format_args!("openssl: {e}"));
            None
        }
    }
}

/// Makes `NAME.key` and `NAME.pem`. `kind`: the key in the form of openssl.
fn make(dir: &Path, name: &str, kind: &[&str]) -> Option<()> {
    let (key, certificate) = (format!("{name}.key"), format!("{name}.pem"));
    let subject = format!("/O=Test/CN={name}");
    let args = [
        &[
            "req",
            "-x509",
            "-nodes",
            "-days",
            "2",
            "-subj",
            &subject,
            "-keyout",
            &key,
            "-out",
            &certificate,
        ],
        kind,
    ]
    .concat();
    let out = openssl(dir, &args)?;
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    Some(())
}

const RSA: &[&str] = &["-newkey", "rsa:2048"];
const P256: &[&str] = &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];

fn parsed(dir: &Path, name: &str) -> Certificate {
    let path = dir.join(format!("{name}.pem"));
    Certificate::parse(&fs::read(&path).unwrap(), &path.display().to_string()).unwrap()
}

fn signer(dir: &Path, name: &str) -> Signer {
    let key = fs::read(dir.join(format!("{name}.key"))).unwrap();
    Signer::new(&key, parsed(dir, name), name).unwrap()
}

/// Directory with keys, or `None` without openssl.
fn keys() -> Option<Dir> {
    let dir = Dir::new();
    fs::create_dir(&dir.0).unwrap();
    make(&dir.0, "rsa", RSA)?;
    make(&dir.0, "ec", P256)?;
    make(&dir.0, "other", P256)?;
    Some(dir)
}

#[test]
fn openssl_verifies_what_a_signer_writes() {
    let Some(dir) = keys() else {
        return;
    };
    let root: Root = [0xa5; 32];
    fs::write(dir.0.join("roothash"), hex(&root)).unwrap();
    for name in ["rsa", "ec"] {
        let signature = signer(&dir.0, name).sign(&root).unwrap();
        fs::write(dir.0.join("p7s"), &signature).unwrap();
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
            let out = openssl(&dir.0, &[&args[..], &more].concat()).unwrap();
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
    fs::write(dir.0.join("roothash"), hex(&root)).unwrap();
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
            let out = openssl(&dir.0, &[&args[..], &more, options].concat()).unwrap();
            assert!(
                out.status.success(),
                "{}",
                String::from_utf8_lossy(&out.stderr)
            );
            let signature = fs::read(dir.0.join("p7s")).unwrap();
            assert!(
                parsed(&dir.0, name).has_signed(&root, &signature),
                "{name} {form:?}"
            );
            assert!(
                !parsed(&dir.0, "other").has_signed(&root, &signature),
                "{name} {form:?}"
            );
            assert!(
                !parsed(&dir.0, name).has_signed(&[0; 32], &signature),
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
    let certificate = parsed(&dir.0, "ec");
    let signature = signer(&dir.0, "ec").sign(&root).unwrap();
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
    assert_eq!((e.kind(), e.place()), (Kind::Usage, "c.pem"));
    let key = fs::read(dir.0.join("ec.key")).unwrap();
    let e = Signer::new(&key, parsed(&dir.0, "rsa"), "k").err().unwrap();
    assert!(
        e.what().contains("does not belong to the certificate"),
        "{e}"
    );
    let e = Signer::new(b"none", parsed(&dir.0, "rsa"), "k")
        .err()
        .unwrap();
    assert!(e.what().contains("no private key"), "{e}");
}

#[test]
fn a_signed_image_is_trusted_by_its_certificate_only() {
    let Some(dir) = keys() else {
        return;
    };
    let (bytes, root) = verified_image(500, 90);
    for has_referrers in [true, false] {
        let (_, _server, location) = start(has_referrers);
        let options = PushOptions {
            signer: Some(Arc::new(signer(&dir.0, "rsa"))),
            ..push_options()
        };
        let layers = [layer(&bytes, 500, Some(root))];
        let retry = options.retry;
        // Twice: nothing is listed twice, and the digest stays.
        let first = push(&location, &layers, &options, &|_| true).unwrap();
        assert_eq!(
            push(&location, &layers, &options, &|_| true)
                .unwrap()
                .digest,
            first.digest
        );
        let (pinned, found) = trusted(&location, &parsed(&dir.0, "rsa"), retry).unwrap();
        assert_eq!(found, root);
        let manifest = first.manifest.unwrap();
        assert!(
            pinned.to_string().ends_with(&format!("@{manifest}")),
            "{pinned}"
        );
        let e = trusted(&location, &parsed(&dir.0, "other"), retry).unwrap_err();
        assert_eq!(e.kind(), Kind::Corrupt);
        assert!(e.what().contains("not trusted by"), "{e}");
        // A second signer adds a signature.
        let options = PushOptions {
            signer: Some(Arc::new(signer(&dir.0, "other"))),
            ..push_options()
        };
        push(&location, &layers, &options, &|_| true).unwrap();
        for name in ["rsa", "other"] {
            trusted(&location, &parsed(&dir.0, name), retry).unwrap();
        }
    }
}

#[test]
fn an_image_without_a_tree_or_a_signature_is_not_trusted() {
    let Some(dir) = keys() else {
        return;
    };
    let (_, _server, location) = start(true);
    let retry = push_options().retry;
    let bytes = image(500, 91);
    push(
        &location,
        &[layer(&bytes, 500, None)],
        &push_options(),
        &|_| true,
    )
    .unwrap();
    let e = trusted(&location, &parsed(&dir.0, "rsa"), retry).unwrap_err();
    assert!(e.what().contains("without a root hash"), "{e}");
    let (bytes, root) = verified_image(500, 92);
    let layers = [layer(&bytes, 500, Some(root))];
    push(&location, &layers, &push_options(), &|_| true).unwrap();
    let e = trusted(&location, &parsed(&dir.0, "rsa"), retry).unwrap_err();
    assert!(e.what().contains("without a signature"), "{e}");
}

#[test]
fn the_newest_profile_comes_with_an_image() {
    for has_referrers in [true, false] {
        let (_, _server, location) = start(has_referrers);
        let bytes = image(500, 93);
        let layers = [layer(&bytes, 500, None)];
        push(&location, &layers, &push_options(), &|_| true).unwrap();
        assert_eq!(profile(&location, &options(&Dir::new())).unwrap(), None);
        let with_profile = PushOptions {
            profile: Some(b"tuff profile 1\n".to_vec()),
            ..push_options()
        };
        push(&location, &layers, &with_profile, &|_| true).unwrap();
        let found = profile(&location, &options(&Dir::new())).unwrap();
        assert_eq!(found.as_deref(), Some(&b"tuff profile 1\n"[..]));
    }
}
