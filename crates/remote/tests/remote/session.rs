//! One conversation with a registry: what belongs to an image is requested with one token.

use crate::common::{CHUNK, Dir, options, verified_image};
use crate::push::{layer, push_options};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tuff_remote::{Location, PushOptions, open_images, profile, push, trusted};
use tuff_store::ReadAt;
use tuff_testkit::http::{Answer, Server};
use tuff_testkit::openssl::{self, parsed, signer};
use tuff_testkit::registry::Registry;

/// Registry that asks for a token, and counts its refusals and the tokens that it gives out.
pub(crate) struct TokenRegistry {
    pub(crate) server: Server,
    pub(crate) refused: Arc<AtomicUsize>,
    pub(crate) issued: Arc<AtomicUsize>,
}

impl TokenRegistry {
    pub(crate) fn start(registry: Arc<Registry>) -> Self {
        let (refused, issued) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (count, tokens) = (Arc::clone(&refused), Arc::clone(&issued));
        let server = Server::start(move |request| {
            if request.path.starts_with("/token") {
                tokens.fetch_add(1, Ordering::SeqCst);
                return Answer {
                    status: 200,
                    body: br#"{"token":"t"}"#.to_vec(),
                    ..Answer::default()
                };
            }
            if request.headers.get("authorization").map(String::as_str) != Some("Bearer t") {
                count.fetch_add(1, Ordering::SeqCst);
                let host = &request.headers["host"];
                let challenge = format!("Bearer realm=\"http://{host}/token\"");
                return Answer::status(401).with("WWW-Authenticate", challenge);
            }
            registry.answer(request)
        });
        Self {
            server,
            refused,
            issued,
        }
    }

    /// Refusals and tokens since the last call.
    pub(crate) fn take_counts(&self) -> (usize, usize) {
        let take = |count: &AtomicUsize| count.swap(0, Ordering::SeqCst);
        (take(&self.refused), take(&self.issued))
    }
}

/// Pushes five layers with hash trees, signatures and a profile to a registry without tokens. Returns their bytes.
pub(crate) fn push_layers(registry: &Arc<Registry>, keys: Option<&Dir>) -> Vec<Vec<u8>> {
    let answering = Arc::clone(registry);
    let server = Server::start(move |request| answering.answer(request));
    let location = Location::parse(&format!("oci://{}/team/app:v1", server.host())).unwrap();
    let options = PushOptions {
        signer: keys.map(|dir| Arc::new(signer(&dir.0, "rsa")) as _),
        profile: Some(b"tuff profile 1\n".to_vec()),
        ..push_options()
    };
    let images: Vec<_> = (0..5).map(|n| verified_image(500, 300 + n)).collect();
    let layers: Vec<_> = images
        .iter()
        .map(|(bytes, root)| layer(bytes, 500, Some(*root)))
        .collect();
    push(&location, &layers, &options, &|_| true).unwrap();
    images.into_iter().map(|(bytes, _)| bytes).collect()
}

#[test]
fn a_registry_is_asked_for_a_token_once() {
    let keys = Dir::new();
    fs::create_dir(&keys.0).unwrap();
    if openssl::keys(&keys.0).is_none() {
        return;
    }
    for has_referrers in [true, false] {
        let registry = Arc::new(Registry::with_referrers(has_referrers));
        let bytes = push_layers(&registry, Some(&keys));
        let tokens = TokenRegistry::start(registry);
        let url = format!("oci://{}/team/app:v1", tokens.server.host());
        let location = Location::parse(&url).unwrap();
        let mut options = options(&Dir::new());
        options.connections = 8;
        let certificate = parsed(&keys.0, "rsa");
        let (pinned, _) = trusted(&location, &certificate, &options).unwrap();
        let images = open_images(&pinned, &options, false).unwrap();
        assert_eq!(images.len(), bytes.len());
        std::thread::scope(|scope| {
            for (image, bytes) in images.iter().zip(&bytes) {
                for at in (0..image.store.size() as usize).step_by(CHUNK) {
                    scope.spawn(move || {
                        let mut read = [0; 4096];
                        image.store.read_exact_at(&mut read, at as u64).unwrap();
                        assert!(read == bytes[at..at + 4096], "{at}");
                    });
                }
            }
        });
        let found = profile(&pinned, &options).unwrap();
        assert_eq!(found.as_deref(), Some(&b"tuff profile 1\n"[..]));
        assert_eq!(tokens.take_counts(), (1, 1));
        let requests = tokens.server.take_requests();
        let of_image = |version: &str| {
            let path = format!("/v2/team/app/manifests/{version}");
            let authorized = requests
                .iter()
                .filter(|request| request.headers.contains_key("authorization"));
            authorized.filter(|request| request.path == path).count()
        };
        // The tag names an index.
        let digest = pinned.to_string().split_once('@').unwrap().1.to_owned();
        assert_eq!((of_image("v1"), of_image(&digest)), (1, 1));
    }
}
