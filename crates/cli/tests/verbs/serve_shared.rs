//! Layers that two images have in common, each with a login of its own: T-S19 for `tuff serve`.

use crate::common::Place;
use crate::mount::can_mount;
use crate::remote_login::base64;
use crate::serve::Serving;
use serde_json::json;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tuff_testkit::Rng;
use tuff_testkit::http::{Answer, Request, Server};
use tuff_testkit::registry::digest;

/// Layer, and the documents of an image that has it alone.
struct Image {
    layer: Vec<u8>,
    config: Vec<u8>,
    manifest: Vec<u8>,
}

impl Image {
    fn new(place: &Place) -> Self {
        let mut rng = Rng::new(6);
        // The rest of a block is behind the inode, so the metadata lies at the end.
        let content: Vec<u8> = (0..(12 << 20) + 100).map(|_| rng.draw() as u8).collect();
        fs::create_dir(place.path("tree")).unwrap();
        fs::write(place.path("tree/data"), &content).unwrap();
        place.text(&["build", "-q", "--verity", "tree", "layer"]);
        let verity = &place.json(&["verity", "show", "--json", "layer"])[0];
        let layer = fs::read(place.path("layer")).unwrap();
        let config = json!({"rootfs": {"diff_ids": [digest(&layer)]}}).to_string();
        let manifest = json!({
            "config": {"digest": digest(config.as_bytes())},
            "layers": [{
                "mediaType": "application/vnd.erofs.layer.v1",
                "digest": digest(&layer),
                "size": layer.len(),
                "annotations": {
                    "org.erofs.dmverity.root_digest": verity["root_hash"],
                    "org.erofs.dmverity.hash_offset": verity["hash_offset"].to_string(),
                },
            }],
        });
        Self {
            layer,
            config: config.into_bytes(),
            manifest: manifest.to_string().into_bytes(),
        }
    }

    fn answer(&self, request: &Request) -> Answer {
        let document = |body: &[u8]| Answer {
            body: body.to_vec(),
            ..Answer::status(200)
        };
        let path = request.path.strip_prefix("/v2/app/").unwrap_or_default();
        match path.split_once('/') {
            Some(("manifests", _)) => document(&self.manifest),
            Some(("blobs", name)) if name == digest(&self.config) => document(&self.config),
            Some(("blobs", name)) if name == digest(&self.layer) => {
                Answer::object(request, &self.layer, "")
            }
            _ => Answer::status(404),
        }
    }
}

/// Registry with a login that may expire.
struct Registry {
    server: Server,
    has_expired: Arc<AtomicBool>,
    authorization: String,
}

impl Registry {
    fn start(image: &Arc<Image>, user: &str) -> Self {
        let authorization = format!("Basic {}", base64(&format!("{user}:password")));
        let has_expired = Arc::<AtomicBool>::default();
        let (image, expected, expired) = (
            Arc::clone(image),
            authorization.clone(),
            Arc::clone(&has_expired),
        );
        let server = Server::start(move |request| {
            let is_right = request.headers.get("authorization") == Some(&expected);
            match is_right && !expired.load(Ordering::SeqCst) {
                true => image.answer(request),
                false => Answer::status(401).with("WWW-Authenticate", "Basic realm=\"registry\""),
            }
        });
        Self {
            server,
            has_expired,
            authorization,
        }
    }

    fn url(&self) -> String {
        format!("oci://{}/app", self.server.host())
    }
}

#[test]
fn a_layer_of_two_images_is_read_with_the_login_that_is_good() {
    if !can_mount() {
        return;
    }
    // Whether the login expires after the layer was opened, or before.
    for is_open in [true, false] {
        let place = Place::new("serve-shared");
        let image = Arc::new(Image::new(&place));
        let registries = ["a", "b"].map(|user| Registry::start(&image, user));
        let logins: serde_json::Map<_, _> = ["a", "b"]
            .iter()
            .zip(&registries)
            .map(|(user, registry)| {
                let auth = base64(&format!("{user}:password"));
                (registry.server.host(), json!({"auth": auth}))
            })
            .collect();
        fs::write(
            place.path("auth.json"),
            json!({"auths": logins}).to_string(),
        )
        .unwrap();
        let urls = registries.each_ref().map(Registry::url);
        let serving = Serving::start(&place, &[&urls[0], &urls[1]], &["--fill-rate", "0"]);
        let id = digest(&image.layer);
        let file = File::open(serving.path("into", &id[7..])).unwrap();
        let read = |mib: u64| {
            let mut bytes = vec![0; 4096];
            file.read_exact_at(&mut bytes, mib << 20).unwrap();
            let at = (mib << 20) as usize;
            assert!(bytes == image.layer[at..at + 4096], "{mib}");
        };
        let [a, b] = &registries;
        if is_open {
            read(10);
            let blobs = |registry: &Registry| {
                let requests = registry.server.take_requests();
                let path = format!("/blobs/{id}");
                requests.iter().filter(|r| r.path.ends_with(&path)).count()
            };
            assert!(blobs(a) > 0);
            assert_eq!(blobs(b), 0);
        }
        a.has_expired.store(true, Ordering::SeqCst);
        a.server.take_requests();
        b.server.take_requests();
        for mib in [8, 6, 4, 2] {
            read(mib);
        }
        // Neither login is sent to the other registry, and the refused one is not tried with each read.
        let sent = registries.each_ref().map(|r| r.server.take_requests());
        assert!(sent[0].len() <= 8, "{:?}", sent[0]);
        assert!(!sent[1].is_empty(), "{is_open}: {:?}", sent[0]);
        for (registry, other) in [(0, b), (1, a)] {
            let has_other =
                |r: &Request| r.headers.get("authorization") == Some(&other.authorization);
            assert!(!sent[registry].iter().any(has_other));
        }
        drop(file);
        serving.end();
    }
}
