//! Caches and stores that 0.2.0 filled with wrong bytes: testdata/released/0.2.0-poisoned.

use crate::common::{Place, code, stderr};
use crate::mount::can_mount;
use crate::serve::{Serving, digest_of, wait_for_log};
use serde_json::json;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tuff_testkit::http::{Answer, Server};

/// Copies a directory, for this user alone.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    fs::set_permissions(to, Permissions::from_mode(0o700)).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &to);
            continue;
        }
        fs::copy(&path, &to).unwrap();
        fs::set_permissions(&to, Permissions::from_mode(0o600)).unwrap();
    }
}

/// Directory with the files of the fixture in `f`.
fn stage(name: &str) -> Place {
    let place = Place::new(name);
    let from = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../testdata/released/0.2.0-poisoned"
    );
    copy(Path::new(from), &place.path("f"));
    place
}

#[test]
fn a_cache_of_0_2_0_gives_no_wrong_bytes() {
    let place = stage("poisoned-cache");
    let right = fs::read(place.path("f/right.erofs")).unwrap();
    let digest = format!("sha256:{}", digest_of(&place, "f/right.erofs"));
    let layer =
        json!({"mediaType": "application/vnd.erofs", "digest": digest, "size": right.len()});
    let manifest = json!({"schemaVersion": 2, "layers": [layer]}).to_string();
    let blob = right.clone();
    let server = Server::start(move |request| match request.path.contains("/manifests/") {
        true => Answer {
            status: 200,
            body: manifest.as_bytes().to_vec(),
            ..Answer::default()
        },
        false => Answer::object(request, &blob, ""),
    });
    let url = format!("oci://{}/team/app:v1", server.host());
    let old = |suffix: &str| {
        let all = fs::read_dir(place.path("f/cache")).unwrap();
        let names = all.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut old = names.filter(|name| name.starts_with("a962f2ff") && name.ends_with(suffix));
        old.next()
    };
    assert!(old(".image").is_some());
    let cached = ["--cache-dir", "f/cache", &url];
    let text = place.text(&[&["cat"], &cached[..], &["text"]].concat());
    assert_eq!(text, "right\n");
    assert_eq!(old(""), None);
    let out = place.run(&[&["pull", "-q"], &cached[..], &["pulled"]].concat());
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    assert!(fs::read(place.path("pulled")).unwrap() == right);
}

#[test]
fn a_store_of_0_2_0_keeps_only_layers_with_their_names() {
    if !can_mount() {
        return;
    }
    let place = stage("poisoned-store");
    fs::rename(place.path("f/store"), place.path("store")).unwrap();
    let right = fs::read(place.path("f/right.erofs")).unwrap();
    let [right_id, wrong_id] =
        ["f/right.erofs", "f/wrong.erofs"].map(|name| digest_of(&place, name));
    let served = right.clone();
    let server = Server::start(move |request| Answer::object(request, &served, "\"v1\""));
    let url = server.url(&format!("/{right_id}.erofs"));
    let serving = Serving::start(&place, &[&url], &["--fill-rate", "0"]);
    wait_for_log(&place, &format!("{right_id}.erofs: removed"));
    assert!(!serving.is_complete(&right_id));
    // The wrong image has the name of its content.
    assert!(serving.is_complete(&wrong_id));
    assert!(fs::read(serving.path("into", &right_id)).unwrap() == right);
    serving.end();
}
