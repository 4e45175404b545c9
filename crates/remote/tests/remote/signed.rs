//! Data that comes with an image: profiles and signatures, in registries with and without an API for referrers.

use crate::common::{Dir, image, options, verified_image};
use crate::push::{layer, push_options};
use std::fs;
use std::sync::Arc;
use tuff_remote::{Kind, Location, PushOptions, profile, push, trusted};
use tuff_testkit::http::Server;
use tuff_testkit::openssl::{self, parsed, signer};
use tuff_testkit::registry::Registry;

fn start(has_referrers: bool) -> (Arc<Registry>, Server, Location) {
    let registry = Arc::new(Registry::with_referrers(has_referrers));
    let answering = Arc::clone(&registry);
    let server = Server::start(move |request| answering.answer(request));
    let location = Location::parse(&format!("oci://{}/team/app:v1", server.host())).unwrap();
    (registry, server, location)
}

/// Directory with keys, or `None` without openssl.
fn keys() -> Option<Dir> {
    let dir = Dir::new();
    fs::create_dir(&dir.0).unwrap();
    openssl::keys(&dir.0)?;
    Some(dir)
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
        let opening = crate::common::options(&Dir::new());
        // Twice: nothing is listed twice, and the digest stays.
        let first = push(&location, &layers, &options, &|_| true).unwrap();
        assert_eq!(
            push(&location, &layers, &options, &|_| true)
                .unwrap()
                .digest,
            first.digest
        );
        let (pinned, found) = trusted(&location, &parsed(&dir.0, "rsa"), &opening).unwrap();
        assert_eq!(found, Some(root));
        let manifest = first.manifest.unwrap();
        assert!(
            pinned.to_string().ends_with(&format!("@{manifest}")),
            "{pinned}"
        );
        let e = trusted(&location, &parsed(&dir.0, "other"), &opening).unwrap_err();
        assert_eq!(e.kind(), Kind::Untrusted);
        assert!(e.what().contains("not trusted by"), "{e}");
        // A second signer adds a signature.
        let options = PushOptions {
            signer: Some(Arc::new(signer(&dir.0, "other"))),
            ..push_options()
        };
        push(&location, &layers, &options, &|_| true).unwrap();
        for name in ["rsa", "other"] {
            trusted(&location, &parsed(&dir.0, name), &opening).unwrap();
        }
    }
}

#[test]
fn an_image_without_a_tree_or_a_signature_is_not_trusted() {
    let Some(dir) = keys() else {
        return;
    };
    let (_, _server, location) = start(true);
    let opening = options(&Dir::new());
    let bytes = image(500, 91);
    push(
        &location,
        &[layer(&bytes, 500, None)],
        &push_options(),
        &|_| true,
    )
    .unwrap();
    let e = trusted(&location, &parsed(&dir.0, "rsa"), &opening).unwrap_err();
    assert!(e.what().contains("without a root hash"), "{e}");
    let (bytes, root) = verified_image(500, 92);
    let layers = [layer(&bytes, 500, Some(root))];
    push(&location, &layers, &push_options(), &|_| true).unwrap();
    let e = trusted(&location, &parsed(&dir.0, "rsa"), &opening).unwrap_err();
    assert!(e.what().contains("without a signature"), "{e}");
}

#[test]
fn a_signature_of_another_root_hash_is_not_trusted() {
    let Some(dir) = keys() else {
        return;
    };
    // A registry shows the signature of one image as that of another one.
    let opening = options(&Dir::new());
    let (registry, server, location) = start(false);
    let signed = PushOptions {
        signer: Some(Arc::new(signer(&dir.0, "rsa"))),
        ..push_options()
    };
    let (bytes, root) = verified_image(500, 94);
    let first = push(
        &location,
        &[layer(&bytes, 500, Some(root))],
        &signed,
        &|_| true,
    )
    .unwrap();
    let (bytes, root) = verified_image(500, 95);
    let other = Location::parse(&format!("oci://{}/team/app:v2", server.host())).unwrap();
    let second = push(
        &other,
        &[layer(&bytes, 500, Some(root))],
        &push_options(),
        &|_| true,
    );
    let tag = |digest: Option<String>| digest.unwrap().replace(':', "-");
    let list = registry.manifest("team/app", &tag(first.manifest)).unwrap();
    let list = serde_json::to_vec(&list).unwrap();
    let media = "application/vnd.oci.image.index.v1+json";
    registry.add_manifest("team/app", &tag(second.unwrap().manifest), media, &list);
    let e = trusted(&other, &parsed(&dir.0, "rsa"), &opening).unwrap_err();
    assert_eq!(e.kind(), Kind::Untrusted);
    assert!(e.what().contains("no signature of the root hash"), "{e}");
    trusted(&location, &parsed(&dir.0, "rsa"), &opening).unwrap();
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
