//! Faults of one round of the campaign, and the server that makes them.

use crate::common::{image, verified_image};
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tuff_testkit::Rng;
use tuff_testkit::http::{Answer, Request, Server};
use tuff_verity::Root;

/// Image, another version of it, and the root hash of the first one.
pub(crate) struct Version {
    pub(crate) bytes: Arc<Vec<u8>>,
    pub(crate) other: Arc<Vec<u8>>,
    pub(crate) root: Option<Root>,
    /// Header of the hash tree, which the root hash does not cover.
    pub(crate) unverified: Range<usize>,
}

impl Version {
    /// Image of about 6 MiB with its hash tree.
    pub(crate) fn verified() -> Self {
        let (bytes, root) = verified_image(1500, 60);
        let (other, _) = verified_image(1500, 61);
        Self {
            bytes: Arc::new(bytes),
            other: Arc::new(other),
            root: Some(root),
            unverified: 1500 * 4096..1501 * 4096,
        }
    }

    /// True if the bytes are those at `offset`, as far as they can be verified.
    pub(crate) fn has(&self, bytes: &[u8], offset: usize) -> bool {
        let at = |position: usize| position.clamp(offset, offset + bytes.len()) - offset;
        let (start, end) = (at(self.unverified.start), at(self.unverified.end));
        let right = &self.bytes[offset..offset + bytes.len()];
        bytes[..start] == right[..start] && bytes[end..] == right[end..]
    }

    /// The same without a hash tree.
    pub(crate) fn plain() -> Self {
        Self {
            bytes: Arc::new(image(1500, 62)),
            other: Arc::new(image(1500, 63)),
            root: None,
            unverified: 0..0,
        }
    }
}

/// Event in the middle of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    None,
    /// The server closes its connections and is gone.
    Killed,
    /// The server accepts connections and closes them, for a while.
    Outage,
    /// Another object takes the place of the image.
    Replaced,
    /// The server sends bytes of another object under the name and version of the image.
    Stale,
}

/// Choices of a round, which follow from its seed.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) is_verified: bool,
    pub(crate) is_registry: bool,
    /// Number of requests in 1000 that meet a fault.
    pub(crate) faults: u64,
    pub(crate) event: Event,
    pub(crate) cache_max: u64,
    pub(crate) fills: bool,
    pub(crate) prefetches: bool,
    /// Two stores share the cache.
    pub(crate) is_shared: bool,
    /// A process reads the image too, and is killed.
    pub(crate) has_victim: bool,
    pub(crate) has_full_disk: bool,
}

impl Plan {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let mut one_in = |n: usize| rng.below(n) == 0;
        let is_registry = one_in(4);
        let mut plan = Self {
            // A layer of a registry has its root hash in the manifest.
            is_verified: is_registry || !one_in(4),
            is_registry,
            faults: 0,
            event: Event::None,
            cache_max: if one_in(3) { 2 << 20 } else { 1 << 30 },
            fills: one_in(2),
            prefetches: one_in(3),
            is_shared: one_in(4),
            has_victim: one_in(8),
            has_full_disk: one_in(10),
        };
        plan.faults = [0, 50, 200, 500][rng.below(4)];
        let events = [
            Event::None,
            Event::Killed,
            Event::Outage,
            Event::Replaced,
            Event::Stale,
        ];
        plan.event = events[rng.below(events.len())];
        if plan.event == Event::Stale && !plan.is_verified {
            // Nothing tells such bytes from right ones.
            plan.event = Event::None;
        }
        plan
    }
}

/// State that the round changes while the server runs.
pub(crate) struct Control {
    /// Faults of 1000 requests.
    pub(crate) faults: AtomicU32,
    pub(crate) is_out: AtomicBool,
    pub(crate) is_replaced: AtomicBool,
    pub(crate) is_stale: AtomicBool,
}

/// Starts the server of a round.
pub(crate) fn serve(plan: &Plan, version: &Version, seed: u64) -> (Server, Arc<Control>) {
    let control = Arc::new(Control {
        faults: AtomicU32::new(0),
        is_out: AtomicBool::new(false),
        is_replaced: AtomicBool::new(false),
        is_stale: AtomicBool::new(false),
    });
    let served = Served {
        bytes: Arc::clone(&version.bytes),
        other: Arc::clone(&version.other),
        manifest: manifest(version),
        is_verified: plan.is_verified,
        is_registry: plan.is_registry,
        rng: Mutex::new(Rng::new(seed)),
        token: AtomicU32::new(1),
        control: Arc::clone(&control),
    };
    (
        Server::start(move |request| served.answer(request)),
        control,
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

fn manifest(version: &Version) -> String {
    let root = version.root.map(|root| hex(&root)).unwrap_or_default();
    format!(
        r#"{{"schemaVersion":2,"layers":[{{"mediaType":"application/vnd.erofs","digest":"{}","size":{},"annotations":{{"org.erofs.dmverity.root_digest":"sha256:{root}"}}}}]}}"#,
        digest(&version.bytes),
        version.bytes.len()
    )
}

/// Objects and state of the server.
struct Served {
    bytes: Arc<Vec<u8>>,
    other: Arc<Vec<u8>>,
    manifest: String,
    is_verified: bool,
    is_registry: bool,
    rng: Mutex<Rng>,
    /// Number of the token that is good.
    token: AtomicU32,
    control: Arc<Control>,
}

impl Served {
    fn answer(&self, request: &Request) -> Answer {
        if self.control.is_out.load(Ordering::SeqCst) {
            return Answer::status(0);
        }
        let (is_hit, fault, amount) = {
            let mut rng = self.rng.lock().unwrap();
            let faults = self.control.faults.load(Ordering::SeqCst);
            (
                rng.below(1000) < faults as usize,
                rng.below(12),
                rng.draw() as usize,
            )
        };
        let fault = if is_hit { fault } else { usize::MAX };
        match self.is_registry {
            true => self.registry(request, fault, amount),
            false => self.object(request, fault, amount),
        }
    }

    /// Answers as a registry whose tokens expire at any time.
    fn registry(&self, request: &Request, fault: usize, amount: usize) -> Answer {
        let host = request.headers.get("host").cloned().unwrap_or_default();
        if request.path.starts_with("/token") {
            let token = self.token.load(Ordering::SeqCst);
            return Answer {
                status: 200,
                body: format!(r#"{{"token":"t{token}"}}"#).into_bytes(),
                ..Answer::default()
            };
        }
        let token = format!("Bearer t{}", self.token.load(Ordering::SeqCst));
        if request.headers.get("authorization") != Some(&token) {
            let realm = format!(r#"Bearer realm="http://{host}/token",service="reg""#);
            return Answer::status(401).with("WWW-Authenticate", realm);
        }
        if fault == 11 {
            self.token.fetch_add(1, Ordering::SeqCst);
        }
        match request.path.contains("/manifests/") {
            true => Answer {
                status: 200,
                body: self.manifest.clone().into_bytes(),
                ..Answer::default()
            },
            false => self.object(request, fault, amount),
        }
    }

    fn object(&self, request: &Request, fault: usize, amount: usize) -> Answer {
        if self.control.is_replaced.load(Ordering::SeqCst) {
            return match self.is_registry {
                true => Answer::status(404),
                false => Answer::object(request, &self.other, "\"v2\""),
            };
        }
        let bytes = match self.control.is_stale.load(Ordering::SeqCst) {
            true => &self.other,
            false => &self.bytes,
        };
        let right = Answer::object(request, bytes, "\"v1\"");
        self.spoil(request, right, fault, amount)
    }

    /// Spoils an answer in one of several ways.
    fn spoil(&self, request: &Request, mut right: Answer, fault: usize, amount: usize) -> Answer {
        let len = right.body.len().max(1);
        match fault {
            0 => Answer::status(503).with("Retry-After", 0),
            1 => Answer::status(429).with("Retry-After", 0),
            2 => Answer::status(500),
            3 => Answer::status(0),
            4 => Answer {
                cut: Some(amount % len),
                ..right
            },
            // Shorter than the range that it states.
            5 => {
                right.body.truncate(amount % len);
                right
            }
            // Longer.
            6 => {
                right.body.extend_from_slice(&[7; 5000]);
                right
            }
            7 => Answer {
                delay: Duration::from_millis(amount as u64 % 40),
                ..right
            },
            // Hostile bytes, which only a hash tree finds.
            8 if self.is_verified && !right.body.is_empty() => {
                right.body[amount % len] ^= 0x20;
                right
            }
            // Stale bytes of the same range.
            9 if self.is_verified => Answer::object(request, &self.other, "\"v1\""),
            // Another range.
            10 => {
                let mut request = request.clone();
                let range = "bytes=8192-12287".to_owned();
                request.headers.insert("range".to_owned(), range);
                Answer::object(&request, &self.bytes, "\"v1\"")
            }
            _ => right,
        }
    }
}
