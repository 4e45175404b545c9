//! Servers of a campaign, the image that they serve, and the secrets of their clients.

use super::super::program::SealedImage;
use super::faults::{FAULTS, Fault, Kind, Place, Source, expand};
use super::reply::Reply;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use tuff_testkit::Rng;
use tuff_testkit::hostile::{Origin, Step};
use tuff_testkit::http::{Answer, Request};
use tuff_testkit::registry::digest;

/// Secrets of clients. They have letters and digits only, so that no form of a request changes them.
pub(super) const PASSWORD: &str = "pwPASSWORDpw7351";
pub(super) const REFRESH: &str = "rfREFRESHrf8862";
pub(super) const ACCESS: &str = "atACCESSat9913";
pub(super) const QUERY: &str = "qsQUERYqs4424";
pub(super) const URL_PASSWORD: &str = "upURLPASSWORDup5535";
pub(super) const KEY: &str = "akACCESSKEYak6646";
pub(super) const SECRET_KEY: &str = "skSECRETKEYsk7757";
pub(super) const SESSION: &str = "stSESSIONst8868";

/// Login of a client at a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Login {
    None,
    Password,
    Refresh,
}

/// Choices of a case.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) faults: Vec<&'static Fault>,
    pub(super) login: Login,
    /// Seed of the damage of answers.
    pub(super) damage: Option<u64>,
}

impl Plan {
    /// Case of one row of the table.
    pub(super) fn row(row: usize) -> Self {
        Self {
            faults: vec![&FAULTS[row]],
            login: [Login::Password, Login::Refresh][row % 2],
            damage: None,
        }
    }

    /// Case of one to three faults of one kind of URL, which may be damaged as well.
    pub(super) fn random(rng: &mut Rng) -> Self {
        let first = &FAULTS[rng.below(FAULTS.len())];
        let like: Vec<_> = FAULTS.iter().filter(|f| f.source == first.source).collect();
        let mut faults = vec![first];
        for _ in 0..rng.below(3) {
            faults.push(like[rng.below(like.len())]);
        }
        // Those that wait for a deadline are in the table.
        faults.retain(|fault| !fault.is_slow);
        if faults.is_empty() {
            faults.push(
                FAULTS
                    .iter()
                    .find(|f| f.source == first.source)
                    .unwrap_or(first),
            );
        }
        let logins = [Login::None, Login::Password, Login::Refresh];
        Self {
            faults,
            login: logins[rng.below(logins.len())],
            damage: (rng.below(2) == 0).then(|| rng.draw()),
        }
    }

    pub(super) fn source(&self) -> Source {
        self.faults[0].source
    }

    fn kinds(&self) -> impl Iterator<Item = &'static Kind> {
        self.faults.iter().map(|fault| &fault.kind)
    }

    /// True if a registry names the other port of its host for its token service.
    pub(super) fn has_service(&self) -> bool {
        self.kinds()
            .any(|kind| matches!(kind, Kind::Challenge(text) if text.contains("{C}")))
    }
}

/// Servers of one worker.
pub(super) struct World {
    pub(super) image: Arc<SealedImage>,
    /// Server that URLs name.
    pub(super) first: Origin,
    /// Server on another host.
    pub(super) other: Origin,
    /// Server on another port of the first host.
    pub(super) port: Origin,
}

/// Origin that a request came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    First,
    Other,
    Port,
}

impl World {
    pub(super) fn new(image: Arc<SealedImage>) -> Self {
        Self {
            image,
            first: Origin::start(Ipv4Addr::new(127, 0, 0, 1)),
            other: Origin::start(Ipv4Addr::new(127, 0, 0, 2)),
            port: Origin::start(Ipv4Addr::new(127, 0, 0, 1)),
        }
    }

    /// Answers by a plan.
    pub(super) fn play(&self, plan: &Plan) {
        for (role, origin) in [
            (Role::First, &self.first),
            (Role::Other, &self.other),
            (Role::Port, &self.port),
        ] {
            let part = Part {
                plan: plan.clone(),
                role,
                image: Arc::clone(&self.image),
                hosts: [&self.first, &self.other, &self.port].map(Origin::host),
                rng: Mutex::new(plan.damage.map(Rng::new)),
            };
            origin.answer(move |request| part.answer(request));
        }
    }

    /// URL of the image.
    pub(super) fn url(&self, source: Source) -> String {
        let host = self.first.host();
        match source {
            Source::Web => {
                format!("http://user:{URL_PASSWORD}@{host}/i.erofs?token={QUERY}")
            }
            Source::Registry | Source::Upload => format!("oci://{host}/app:v1"),
            Source::Bucket => "s3://bucket/i.erofs".to_owned(),
            Source::BucketUpload => "s3://bucket/new.erofs".to_owned(),
        }
    }
}

/// Part of one server in a case.
struct Part {
    plan: Plan,
    role: Role,
    image: Arc<SealedImage>,
    /// Hosts of the first server, the other one, and the other port.
    hosts: [String; 3],
    rng: Mutex<Option<Rng>>,
}

impl Part {
    fn filled(&self, template: &str, request: &Request) -> String {
        let [a, b, c] = &self.hosts;
        let login = self.plan.login;
        let named = digest(&self.image.bytes);
        let size = self.image.bytes.len().to_string();
        let layer = format!(
            r#"{{"mediaType":"application/vnd.erofs","digest":"{named}","size":{size},"annotations":{{"org.erofs.dmverity.root_digest":"sha256:{}"}}}}"#,
            self.image.root
        );
        let other = digest(b"another blob");
        let names = [
            ("{A}", a.as_str()),
            ("{B}", b.as_str()),
            ("{C}", c.as_str()),
            ("{LAYER}", layer.as_str()),
            ("{DIGEST}", named.as_str()),
            ("{SIZE}", size.as_str()),
            ("{ROOT}", self.image.root.as_str()),
            ("{OTHER}", other.as_str()),
            ("{ACCESS}", ACCESS),
            // A server knows only what it was sent.
            (
                "{PASSWORD}",
                if login == Login::Password {
                    PASSWORD
                } else {
                    ""
                },
            ),
            (
                "{REFRESH}",
                if login == Login::Refresh { REFRESH } else { "" },
            ),
            ("{SESSION}", SESSION),
            ("{QUERY}", QUERY),
            ("{PATH}", request.path.as_str()),
        ];
        let text = expand(template);
        names
            .iter()
            .fold(text, |text, (name, value)| text.replace(*name, value))
    }

    fn answer(&self, request: &Request) -> Vec<Step> {
        let mut reply = self.reply(request);
        if reply.status == 0 {
            reply = Reply::new(404, "");
        }
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        // Half of the answers of a case with damage are whole.
        let is_damaged = rng.as_mut().is_some_and(|rng| rng.below(2) == 0);
        let damage = rng.as_mut().filter(|_| is_damaged);
        reply.steps(request.method == "HEAD", damage)
    }

    fn reply(&self, request: &Request) -> Reply {
        let path = request.path.split('?').next().unwrap_or_default();
        match path {
            "/token" => self.token(request),
            "/cdn/i" => self.object(request),
            "/denied" | "/v2/denied" => {
                let [_, b, _] = &self.hosts;
                let mut reply = Reply::new(401, "{}");
                let challenge = format!(r#"Bearer realm="http://{b}/token",service="evil""#);
                reply.set("WWW-Authenticate", &challenge);
                reply
            }
            "/i.erofs" | "/bucket/i.erofs" => self.web(request),
            _ if path.starts_with("/bucket/") => self.stored(request),
            _ if path.contains("/blobs/uploads/") => self.upload(request),
            _ if path.starts_with("/v2/") => self.registry(request, path),
            _ => Reply::new(404, ""),
        }
    }

    fn redirect(&self, place: Place, request: &Request) -> Option<Reply> {
        let found = self.plan.kinds().find_map(|kind| match kind {
            Kind::Redirect(at, status, to) if *at == place => Some((*status, to.as_str())),
            _ => None,
        });
        let (status, to) = found.filter(|_| self.role == Role::First)?;
        let mut reply = Reply::new(status, "");
        if !to.is_empty() {
            reply.set("Location", &self.filled(to, request));
        }
        Some(reply)
    }

    fn refusal(&self, request: &Request) -> Option<Reply> {
        let found = self.plan.kinds().find_map(|kind| match kind {
            Kind::Refusal(status, body) => Some((*status, body.as_str())),
            _ => None,
        });
        let (status, body) = found.filter(|_| self.role == Role::First)?;
        let mut reply = Reply::new(status, self.filled(body, request));
        if status == 401 {
            reply.set("WWW-Authenticate", "Basic realm=x");
        }
        Some(reply)
    }

    fn web(&self, request: &Request) -> Reply {
        let refusal = || self.refusal(request);
        let redirect = self.redirect(Place::Object, request);
        redirect
            .or_else(refusal)
            .unwrap_or_else(|| self.object(request))
    }

    /// Answer of a bucket to an upload.
    fn stored(&self, request: &Request) -> Reply {
        if let Some(reply) = self.refusal(request) {
            return reply;
        }
        let mut reply = match request.method.as_str() {
            "PUT" => Reply::new(200, ""),
            _ => Reply::new(404, ""),
        };
        reply.set("ETag", "\"v1\"");
        if request.method == "PUT" {
            self.change_object(&mut reply);
        }
        reply
    }

    /// Bytes of the image.
    fn object(&self, request: &Request) -> Reply {
        let mut reply = Reply::from(Answer::object(request, &self.image.bytes, "\"v1\""));
        self.change_object(&mut reply);
        reply
    }

    fn change_object(&self, reply: &mut Reply) {
        for kind in self.plan.kinds() {
            if let Kind::Object(changes) = kind {
                changes.iter().for_each(|change| change.apply(reply));
            }
        }
    }

    fn token(&self, request: &Request) -> Reply {
        if let Some(reply) = self.redirect(Place::Token, request) {
            return reply;
        }
        let mut reply = Reply::new(200, format!(r#"{{"token":"{ACCESS}","expires_in":60}}"#));
        for kind in self.plan.kinds() {
            match kind {
                Kind::Token(status, body) => {
                    reply = Reply::new(*status, self.filled(body, request));
                }
                Kind::TokenChange(changes) => {
                    changes.iter().for_each(|change| change.apply(&mut reply));
                }
                _ => {}
            }
        }
        reply
    }

    /// Challenge of the registry. Without one in the plan, tokens are asked for if the plan is about tokens.
    fn challenge(&self) -> Option<&'static str> {
        let honest = r#"Bearer realm="http://{A}/token",service="s""#;
        self.plan.kinds().find_map(|kind| match kind {
            Kind::Challenge(text) => Some(text.as_str()),
            Kind::Token(..) | Kind::TokenChange(_) | Kind::Redirect(..) | Kind::Upload(..) => {
                Some(honest)
            }
            _ => None,
        })
    }

    /// Refusal of a request without the token, by a registry that asks for one.
    fn denied(&self, request: &Request) -> Option<Reply> {
        let challenge = self.challenge().filter(|_| self.role == Role::First)?;
        let token = request.headers.get("authorization").map(String::as_str);
        if token == Some(&format!("Bearer {ACCESS}")) {
            return None;
        }
        let mut reply = Reply::new(401, r#"{"errors":[{"code":"UNAUTHORIZED"}]}"#);
        reply.set("WWW-Authenticate", &self.filled(challenge, request));
        Some(reply)
    }

    fn registry(&self, request: &Request, path: &str) -> Reply {
        let refused = self.denied(request).or_else(|| self.refusal(request));
        if let Some(reply) = refused {
            return reply;
        }
        if request.method == "PUT" {
            return Reply::new(201, "");
        }
        if path.contains("/manifests/") {
            if let Some(reply) = self.redirect(Place::Manifest, request) {
                return reply;
            }
            let mut reply = Reply::new(200, self.manifest(request));
            for kind in self.plan.kinds() {
                if let Kind::Document(changes) = kind {
                    changes.iter().for_each(|change| change.apply(&mut reply));
                }
            }
            return reply;
        }
        let is_layer = path.ends_with(&digest(&self.image.bytes));
        if request.method == "HEAD" && self.plan.source() == Source::Upload {
            return Reply::new(404, "");
        }
        match is_layer {
            true => {
                let redirect = self.redirect(Place::Object, request);
                redirect.unwrap_or_else(|| self.object(request))
            }
            false => Reply::new(404, ""),
        }
    }

    fn manifest(&self, request: &Request) -> Vec<u8> {
        let found = self.plan.kinds().find_map(|kind| match kind {
            Kind::Manifest(text) => Some(text.as_str()),
            _ => None,
        });
        let text = self.filled(found.unwrap_or(r#"{"layers":[{LAYER}]}"#), request);
        // The sign of a substitute stands for bytes that are not UTF-8.
        match text.split_once('␦') {
            Some((head, tail)) => [head.as_bytes(), b"\xff\xfe", tail.as_bytes()].concat(),
            None => text.into_bytes(),
        }
    }

    fn upload(&self, request: &Request) -> Reply {
        let refused = self.denied(request).or_else(|| self.refusal(request));
        if let Some(reply) = refused {
            return reply;
        }
        if request.method != "POST"
            && let Some(reply) = self.redirect(Place::Upload, request)
        {
            return reply;
        }
        if request.method == "PUT" {
            return Reply::new(201, "");
        }
        let named = self.plan.kinds().find_map(|kind| match kind {
            Kind::Upload(status, to) => Some((*status, to.as_str())),
            _ => None,
        });
        let (status, to) = named
            .filter(|_| self.role == Role::First)
            .unwrap_or((202, "/v2/app/blobs/uploads/1"));
        let mut reply = Reply::new(status, "");
        reply.set("Location", &self.filled(to, request));
        reply
    }
}
