//! Credentials of registries: auth files of docker and containers, challenges and tokens.

use super::credential_helper;
use super::digest::digest;
use crate::address::{Reference, shown};
use crate::client::json;
use crate::client::origin;
use crate::client::renewal::{Pass, Renewal};
use crate::client::{Client, Content, Denial, Redirects, Reply, Request, basic};
use crate::error::{Error, Kind, Result};
use crate::retry::Failure;
use crate::trace::Reason;
use base64::Engine;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Method, StatusCode, Url};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Longest answer of a token service. Unit: bytes.
const ANSWER_MAX: usize = 1 << 20;

/// Longest token. Servers take headers of 8 to 64 KiB. Unit: bytes.
const TOKEN_MAX: usize = 64 << 10;

/// Name of Docker Hub in auth files.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// Login of a user at a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Login {
    Password {
        user: String,
        password: String,
    },
    /// Token that a token service exchanges for an access token.
    Refresh(String),
}

impl Login {
    /// Name that other logins do not have, without a secret.
    fn name(&self) -> String {
        match self {
            Self::Password { user, .. } => format!("user {user}"),
            // The name of the user is not stated. A digest of a random token tells nothing about it.
            Self::Refresh(token) => format!("token {}", digest(token.as_bytes())),
        }
    }
}

/// Session at a registry: logins of this host, and the tokens that they are exchanged for.
pub(crate) struct Session {
    client: Arc<Client>,
    place: String,
    reference: Reference,
    /// URL of the repository.
    base: Url,
    /// Challenge of the registry. `None` until there is one.
    challenge: Mutex<Option<Challenge>>,
    /// True once the registry has answered, so that it is known whether it asks for credentials.
    has_answer: AtomicBool,
    /// Held by the only request before the first answer.
    first: Arc<tokio::sync::Mutex<()>>,
    login_name: tokio::sync::OnceCell<Option<String>>,
    /// Login that was read for its name.
    early_login: Mutex<Option<Option<Login>>>,
    /// Value of `Authorization`.
    renewal: Renewal<Option<Login>, String>,
}

/// Authentication that a registry asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

impl Session {
    /// Session for the repository of an image. Its login comes from the auth files, or from a helper that they name.
    pub(crate) fn open(client: Arc<Client>, reference: &Reference, place: &str) -> Result<Self> {
        Ok(Self {
            client,
            place: place.to_owned(),
            reference: reference.clone(),
            base: base(reference, place)?,
            challenge: Mutex::default(),
            has_answer: AtomicBool::new(false),
            first: Arc::default(),
            login_name: tokio::sync::OnceCell::new(),
            early_login: Mutex::default(),
            renewal: Renewal::new(),
        })
    }

    /// Client of all requests.
    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// URL of the repository, with a slash at its end.
    pub(crate) fn base(&self) -> &Url {
        &self.base
    }

    fn challenge(&self) -> std::sync::MutexGuard<'_, Option<Challenge>> {
        self.challenge
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Name of the login. Two logins of a registry have different names. `None` if the login cannot be read.
    pub(crate) async fn login_name(&self) -> Option<String> {
        let read = || async {
            let login = self.read_login().await.ok()?;
            let name = login
                .as_ref()
                .map_or_else(|| "anonymous".to_owned(), Login::name);
            *self.early_login() = Some(login);
            Some(name)
        };
        self.login_name.get_or_init(read).await.clone()
    }

    fn early_login(&self) -> std::sync::MutexGuard<'_, Option<Option<Login>>> {
        self.early_login
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Login for the next token. The first one may have been read for its name.
    async fn login(&self) -> Result<Option<Login>, Failure> {
        let early = self.early_login().take();
        match early {
            Some(login) => Ok(login),
            None => self.read_login().await,
        }
    }

    async fn read_login(&self) -> Result<Option<Login>, Failure> {
        let reference = self.reference.clone();
        match tokio::task::spawn_blocking(move || find_login(&reference)).await {
            Ok(Ok(login)) => Ok(login),
            Ok(Err(what)) => Err(self.denied(&what)),
            Err(e) => Err(self.denied(&e.to_string())),
        }
    }

    /// Value of `Authorization` for the next request, from a token service if the registry named one. A login is read
    /// again after each refusal. There is no value for a registry that has asked for nothing, and no pass either once it has
    /// answered: only one request is sent before the first answer.
    pub(crate) async fn authorization(&self) -> Result<(Option<String>, Option<Pass>), Failure> {
        let mut first = None;
        if !self.has_answer.load(Ordering::Acquire) {
            first = Some(Arc::clone(&self.first).lock_owned().await);
            if self.has_answer.load(Ordering::Acquire) {
                first = None;
            }
        }
        let Some(challenge) = self.challenge().clone() else {
            return Ok((None, first.map(Pass::without_credentials)));
        };
        drop(first);
        let challenge = &challenge;
        let make = |login: Option<Login>| async move {
            let (realm, service, scope) = match (challenge, login.as_ref()) {
                (Challenge::Basic, Some(Login::Password { user, password })) => {
                    return Ok(basic(user, password));
                }
                (Challenge::Basic, _) => {
                    return Err(self.denied(
                        "access denied: the registry asks for a password, and no auth file has one",
                    ));
                }
                (
                    Challenge::Bearer {
                        realm,
                        service,
                        scope,
                    },
                    _,
                ) => (realm, service.as_deref(), scope.as_deref()),
            };
            let token = self.token(login.as_ref(), realm, service, scope).await?;
            Ok(format!("Bearer {token}"))
        };
        let (value, pass) = self.renewal.get(self.login(), make).await?;
        Ok((Some(value), Some(pass)))
    }

    /// Notes an answer of the registry.
    pub(crate) fn note_answer(&self, reply: &Reply, used: Option<&Pass>) {
        if !reply.is_authorized() {
            return;
        }
        self.has_answer.store(true, Ordering::Release);
        if let Some(used) = used {
            self.renewal.accepted(used);
        }
    }

    /// Notes that the registry refuses a request. Returns true if another one may have other credentials.
    pub(crate) fn renew(&self, denial: &Denial, used: Option<&Pass>) -> bool {
        let is_renewed = self.renew_challenge(denial, used.filter(|used| used.has_credentials()));
        self.has_answer.store(true, Ordering::Release);
        is_renewed
    }

    fn renew_challenge(&self, denial: &Denial, used: Option<&Pass>) -> bool {
        let strongest_challenge = strongest(&denial.challenges);
        match used {
            None if denial.status != StatusCode::UNAUTHORIZED || strongest_challenge.is_none() => {
                return false;
            }
            Some(_) if !denial.is_of_login() => return false,
            _ => {}
        }
        // A token for another scope says nothing about the login.
        let mut is_of_login = true;
        if strongest_challenge.is_some() {
            let before = std::mem::replace(&mut *self.challenge(), strongest_challenge.clone());
            is_of_login = before == strongest_challenge;
        }
        if let Some(used) = used {
            let refusal = is_of_login.then(|| denial.error.clone());
            self.renewal.refused(used, refusal);
        }
        true
    }

    fn denied(&self, what: &str) -> Failure {
        Error::new(Kind::Unavailable, &self.place, what).into()
    }

    async fn token(
        &self,
        login: Option<&Login>,
        realm: &str,
        service: Option<&str>,
        scope: Option<&str>,
    ) -> Result<String, Failure> {
        let mut url = origin::token_service(&self.base, realm).map_err(|what| self.denied(what))?;
        let mut fields = Vec::new();
        fields.extend(service.map(|value| ("service", value)));
        let mut content = Content::None;
        let mut authorization = None;
        if let Some(Login::Refresh(token)) = login {
            fields.extend(scope.map(|value| ("scope", value)));
            fields.extend([
                ("grant_type", "refresh_token"),
                ("client_id", "tuff"),
                ("refresh_token", token),
            ]);
            // The pairs of a query have the form of a form.
            let mut encoder = url.clone();
            encoder.query_pairs_mut().clear().extend_pairs(&fields);
            let form = encoder.query().unwrap_or_default().to_owned();
            content = Content::Bytes(form.into());
        } else {
            // A query has one field for each scope.
            let scopes = scope.into_iter().flat_map(|value| value.split(' '));
            fields.extend(scopes.map(|value| ("scope", value)));
            url.query_pairs_mut().extend_pairs(&fields);
        }
        if let Some(Login::Password { user, password }) = login {
            authorization = Some(basic(user, password));
        }
        let name = shown(&url);
        let mut headers = Vec::new();
        let mut method = Method::GET;
        if let Content::Bytes(_) = content {
            headers.push((CONTENT_TYPE, "application/x-www-form-urlencoded".to_owned()));
            method = Method::POST;
        }
        let request = Request {
            method,
            url,
            headers: &headers,
            authorization,
            content,
            redirects: Redirects::Refuse,
            object: None,
        };
        let place = format!("{} (token service {name})", self.place);
        let reply = self.client.send(request, &place);
        let reply = Reason::Login.scope(reply).await?;
        if !reply.status().is_success() {
            return Err(reply.refused(&place).await);
        }
        let body = reply.body(ANSWER_MAX, &place).await?;
        let object = json::parse(&body, &place, "answer of the token service").unwrap_or_default();
        // Some services fill one of the fields, some both, some leave one empty.
        let mut tokens = ["token", "access_token"]
            .iter()
            .filter_map(|name| object[*name].as_str());
        let is_usable =
            |token: &&str| token.len() <= TOKEN_MAX && HeaderValue::from_str(token).is_ok();
        let token = tokens.find(|token| !token.is_empty()).filter(is_usable);
        let token = token.ok_or_else(|| self.denied("the token service gives no usable token"))?;
        Ok(token.to_owned())
    }
}

/// URL of a repository. Registries on this machine have no certificates.
fn base(reference: &Reference, place: &str) -> Result<Url> {
    let host = match reference.registry.as_str() {
        "docker.io" => "registry-1.docker.io",
        registry => registry,
    };
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_local = matches!(name, "localhost" | "127.0.0.1" | "[::1]");
    let scheme = if is_local { "http" } else { "https" };
    let url = format!("{scheme}://{host}/v2/{}/", reference.name);
    Url::parse(&url).map_err(|e| Error::new(Kind::Usage, place, e))
}

/// Login for an image: that of the first auth file that has or names one.
fn find_login(reference: &Reference) -> Result<Option<Login>, String> {
    let files = registry_login_files().into_iter();
    let texts = files.filter_map(|path| std::fs::read(path).ok());
    let objects = texts.filter_map(|text| serde_json::from_slice::<Value>(&text).ok());
    for object in objects {
        let registry = match reference.registry.as_str() {
            "docker.io" => DOCKER_HUB,
            registry => registry,
        };
        if let Some(name) = credential_helper::name(&object, registry) {
            let found = credential_helper::get(name, registry)?;
            if let Some((user, secret)) = found {
                return Ok(Some(match user.as_str() {
                    "<token>" => Login::Refresh(secret),
                    _ => Login::Password {
                        user,
                        password: secret,
                    },
                }));
            }
        }
        if let Some(login) = login(&object, reference) {
            return Ok(Some(login));
        }
    }
    Ok(None)
}

/// Files with logins of registries, in the order in which containers tools read them. They need not exist.
pub fn registry_login_files() -> Vec<PathBuf> {
    let dir = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    if let Some(file) = dir("REGISTRY_AUTH_FILE") {
        return vec![file];
    }
    let home = dir("HOME");
    let config = dir("XDG_CONFIG_HOME").or_else(|| Some(home.as_ref()?.join(".config")));
    let docker = dir("DOCKER_CONFIG").or_else(|| Some(home.as_ref()?.join(".docker")));
    [
        dir("XDG_RUNTIME_DIR").map(|d| d.join("containers/auth.json")),
        config.map(|d| d.join("containers/auth.json")),
        docker.map(|d| d.join("config.json")),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Login of an auth file for an image: the entry with the longest matching name.
fn login(file: &Value, reference: &Reference) -> Option<Login> {
    let auths = file["auths"].as_object()?;
    let whole = format!("{}/{}", reference.registry, reference.name);
    let mut names: Vec<&str> = whole
        .match_indices('/')
        .map(|(at, _)| &whole[..at])
        .collect();
    names.push(&whole);
    names.reverse();
    if reference.registry == "docker.io" {
        names.push(DOCKER_HUB);
    }
    let entry = names.iter().find_map(|name| {
        let with_scheme = format!("https://{name}");
        auths.get(*name).or_else(|| auths.get(&with_scheme))
    })?;
    if let Some(token) = entry["identitytoken"].as_str().filter(|t| !t.is_empty()) {
        return Some(Login::Refresh(token.to_owned()));
    }
    let stored = entry["auth"].as_str().filter(|a| !a.is_empty());
    let (user, password) = match stored {
        Some(stored) => {
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(stored.trim())
                .ok()?;
            let text = String::from_utf8(bytes).ok()?;
            let (user, password) = text.split_once(':')?;
            (user.to_owned(), password.trim_end_matches('\0').to_owned())
        }
        None => (
            entry["username"].as_str()?.to_owned(),
            entry["password"].as_str()?.to_owned(),
        ),
    };
    Some(Login::Password { user, password })
}

/// Challenge that is answered: the first that asks for a token, or else for a password. `values`: those of
/// `WWW-Authenticate`.
fn strongest(values: &[String]) -> Option<Challenge> {
    let mut found = None;
    for challenge in values.iter().flat_map(|value| challenges(value)) {
        match challenge {
            Challenge::Bearer { .. } => return Some(challenge),
            Challenge::Basic => found = Some(challenge),
        }
    }
    found
}

/// Challenges in a value of `WWW-Authenticate`: `SCHEME NAME=VALUE, NAME="VALUE", SCHEME ...`. Unknown schemes are left out.
fn challenges(value: &str) -> Vec<Challenge> {
    let mut found: Vec<(&str, Vec<(&str, String)>)> = Vec::new();
    for part in parts(value) {
        let (head, value) = match part.split_once('=') {
            Some((head, value)) => (head.trim(), Some(unquoted(value.trim()))),
            None => (part, None),
        };
        // A scheme stands alone, or before the first of its parameters.
        let (scheme, name) = match (head.split_once(char::is_whitespace), value.is_some()) {
            (Some((scheme, name)), _) => (Some(scheme), name.trim()),
            (None, true) => (None, head),
            (None, false) => (Some(head), ""),
        };
        if let Some(scheme) = scheme {
            found.push((scheme, Vec::new()));
        }
        if let (Some((_, parameters)), Some(value)) = (found.last_mut(), value) {
            parameters.push((name, value));
        }
    }
    let challenge = |(scheme, parameters): (&str, Vec<(&str, String)>)| {
        let field = |requested: &str| {
            let mut parameters = parameters.iter();
            parameters
                .find(|(name, _)| name.eq_ignore_ascii_case(requested))
                .map(|(_, value)| value.clone())
        };
        match () {
            () if scheme.eq_ignore_ascii_case("basic") => Some(Challenge::Basic),
            () if scheme.eq_ignore_ascii_case("bearer") => Some(Challenge::Bearer {
                realm: field("realm")?,
                service: field("service"),
                scope: field("scope"),
            }),
            () => None,
        }
    };
    found.into_iter().filter_map(challenge).collect()
}

/// Token services that a value of `WWW-Authenticate` names.
pub(crate) fn realms(value: &str) -> Vec<String> {
    let realm = |challenge| match challenge {
        Challenge::Bearer { realm, .. } => Some(realm),
        Challenge::Basic => None,
    };
    challenges(value).into_iter().filter_map(realm).collect()
}

/// Parts of a list that commas separate. Commas within quotes belong to the part.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let separates = move |c: char| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match c {
            '\\' if is_quoted && !was_escaped => is_escaped = true,
            '"' if !was_escaped => is_quoted = !is_quoted,
            _ => {}
        }
        c == ',' && !is_quoted
    };
    text.split(separates)
        .map(str::trim)
        .filter(|part| !part.is_empty())
}

/// Text of a value that may be quoted.
fn unquoted(value: &str) -> String {
    let Some(quoted) = value.strip_prefix('"') else {
        return value.to_owned();
    };
    let (mut out, mut is_escaped) = (String::new(), false);
    for c in quoted.chars() {
        match c {
            _ if std::mem::take(&mut is_escaped) => out.push(c),
            '\\' => is_escaped = true,
            '"' => break,
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reference(registry: &str, name: &str) -> Reference {
        Reference {
            registry: registry.to_owned(),
            name: name.to_owned(),
            version: "latest".to_owned(),
        }
    }

    #[test]
    fn challenges_are_taken_apart() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| Challenge::Bearer {
            realm: realm.to_owned(),
            service: service.map(str::to_owned),
            scope: scope.map(str::to_owned),
        };
        for (value, requested) in [
            (
                r#"Bearer realm="https://a/t",service="r",scope="repository:a/b:pull,push""#,
                vec![bearer(
                    "https://a/t",
                    Some("r"),
                    Some("repository:a/b:pull,push"),
                )],
            ),
            (
                r#"bearer  Realm = https://a/t , service="my, \"r\"""#,
                vec![bearer("https://a/t", Some(r#"my, "r""#), None)],
            ),
            ("Basic realm=x", vec![Challenge::Basic]),
            ("BASIC", vec![Challenge::Basic]),
            (
                r#"Negotiate, Basic realm="b", Bearer realm="t",service=s"#,
                vec![Challenge::Basic, bearer("t", Some("s"), None)],
            ),
            // Parameters of one scheme are not those of another.
            (r#"Digest realm="d", Bearer service="s""#, vec![]),
            ("Negotiate", vec![]),
            ("Bearer service=r", vec![]),
            ("Bearer", vec![]),
            ("", vec![]),
            ("=\",\\", vec![]),
        ] {
            assert_eq!(challenges(value), requested, "{value}");
        }
    }

    #[test]
    fn a_token_is_asked_for_before_a_password() {
        let values = ["Negotiate", "Basic realm=x", "Bearer realm=y"].map(str::to_owned);
        assert!(matches!(strongest(&values), Some(Challenge::Bearer { .. })));
        assert_eq!(strongest(&values[..2]), Some(Challenge::Basic));
        assert_eq!(strongest(&values[..1]), None);
    }

    #[test]
    fn the_longest_name_of_an_auth_file_counts() {
        let auth =
            |text: &str| json!({"auth": base64::engine::general_purpose::STANDARD.encode(text)});
        let file = json!({"auths": {
            "r:5000": auth("all:1"),
            "r:5000/a/b": auth("one:2:3"),
            "https://index.docker.io/v1/": auth("hub:4"),
            "t": {"identitytoken": "x"},
        }});
        let password = |user: &str, password: &str| {
            Some(Login::Password {
                user: user.to_owned(),
                password: password.to_owned(),
            })
        };
        assert_eq!(
            login(&file, &reference("r:5000", "a/b")),
            password("one", "2:3")
        );
        assert_eq!(
            login(&file, &reference("r:5000", "a/c")),
            password("all", "1")
        );
        assert_eq!(
            login(&file, &reference("docker.io", "library/x")),
            password("hub", "4")
        );
        assert_eq!(
            login(&file, &reference("t", "x")),
            Some(Login::Refresh("x".to_owned()))
        );
        assert_eq!(login(&file, &reference("r", "a/b")), None);
    }
}
