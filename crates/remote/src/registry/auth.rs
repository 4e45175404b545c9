//! Credentials of registries: auth files of docker and containers, challenges and tokens.

use super::credential_helper;
use crate::client::{Client, Content, Reply, Request, basic};
use crate::error::{Error, Kind};
use crate::location::{Reference, shown};
use crate::retry::Failure;
use base64::Engine;
use reqwest::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use reqwest::{Method, Url};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OnceCell;

/// Longest answer of a token service. Unit: bytes.
const TOKEN_MAX: usize = 1 << 20;

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

/// Session at a registry: a login, and the token that it was exchanged for.
pub(crate) struct Session {
    client: Arc<Client>,
    place: String,
    reference: Reference,
    /// Login for the registry, once it asks for one.
    login: OnceCell<Option<Login>>,
    state: Mutex<State>,
    /// Held while a token is fetched, so that readers share it.
    fetching: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    challenge: Option<Challenge>,
    /// Value of `Authorization`, until the registry refuses it.
    authorization: Option<String>,
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
    /// Session for an image. Its login comes from the auth files, or from a helper that they name.
    pub(crate) fn new(client: Arc<Client>, reference: &Reference, place: &str) -> Self {
        Self {
            client,
            place: place.to_owned(),
            reference: reference.clone(),
            login: OnceCell::new(),
            state: Mutex::default(),
            fetching: tokio::sync::Mutex::default(),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn login(&self) -> Result<Option<&Login>, Failure> {
        let find = || async {
            let reference = self.reference.clone();
            let found = tokio::task::spawn_blocking(move || find_login(&reference)).await;
            match found {
                Ok(Ok(login)) => Ok(login),
                Ok(Err(what)) => Err(self.denied(&what)),
                Err(e) => Err(self.denied(&e.to_string())),
            }
        };
        Ok(self.login.get_or_try_init(find).await?.as_ref())
    }

    /// Value of `Authorization` for the next request, from a token service if the registry named one.
    pub(crate) async fn authorization(&self) -> Result<Option<String>, Failure> {
        let _guard = self.fetching.lock().await;
        let (known, challenge) = {
            let state = self.state();
            (state.authorization.clone(), state.challenge.clone())
        };
        let (None, Some(challenge)) = (&known, challenge) else {
            return Ok(known);
        };
        let value = match challenge {
            Challenge::Basic => match self.login().await? {
                Some(Login::Password { user, password }) => basic(user, password),
                _ => {
                    return Err(
                        self.denied("the registry asks for a password, and no auth file has one")
                    );
                }
            },
            Challenge::Bearer {
                realm,
                service,
                scope,
            } => {
                let token = self
                    .token(&realm, service.as_deref(), scope.as_deref())
                    .await?;
                format!("Bearer {token}")
            }
        };
        self.state().authorization = Some(value.clone());
        Ok(Some(value))
    }

    /// Notes what the registry asks for, and discards the token `used`, which it refused. Returns false if it asks for
    /// nothing.
    pub(crate) fn renew(&self, reply: &Reply, used: Option<&str>) -> bool {
        let mut challenges = reply.headers(WWW_AUTHENTICATE).filter_map(challenge);
        let Some(challenge) = challenges.next() else {
            return false;
        };
        let mut state = self.state();
        // Another reader may have a new token already.
        if state.authorization.as_deref() == used {
            state.authorization = None;
        }
        state.challenge = Some(challenge);
        true
    }

    fn denied(&self, what: &str) -> Failure {
        Error::new(Kind::Unavailable, &self.place, what).into()
    }

    async fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        scope: Option<&str>,
    ) -> Result<String, Failure> {
        let realm = Url::parse(realm)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"));
        let mut url =
            realm.ok_or_else(|| self.denied("the registry names no usable token service"))?;
        let mut fields = Vec::new();
        fields.extend(service.map(|value| ("service", value)));
        let mut content = Content::None;
        let mut authorization = None;
        let login = self.login().await?;
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
        };
        let place = format!("{} (token service {name})", self.place);
        let reply = self.client.send(request, &place).await?;
        if !reply.status().is_success() {
            return Err(reply.refused(&place));
        }
        let body = reply.body(TOKEN_MAX, &place).await?;
        let object: Value = serde_json::from_slice(&body).unwrap_or_default();
        let token = object["token"].as_str().or(object["access_token"].as_str());
        let token = token.ok_or_else(|| self.denied("the token service gives no token"))?;
        Ok(token.to_owned())
    }
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

/// Parses the value of `WWW-Authenticate`.
fn challenge(value: &str) -> Option<Challenge> {
    let (scheme, rest) = value.trim().split_once(' ').unwrap_or((value.trim(), ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let field = |name: &str| parameter(rest, name);
    Some(Challenge::Bearer {
        realm: field("realm")?,
        service: field("service"),
        scope: field("scope"),
    })
}

/// Value of a parameter in `name="value",name=value`. Commas within quotes belong to the value.
fn parameter(text: &str, wanted: &str) -> Option<String> {
    let mut rest = text.trim_start();
    while let Some((name, after)) = rest.split_once('=') {
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => {
                let (value, next) = quoted.split_once('"')?;
                (value, next.trim_start().trim_start_matches(','))
            }
            None => after.split_once(',').unwrap_or((after, "")),
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value.to_owned());
        }
        rest = next.trim_start();
    }
    None
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
        let value = r#"Bearer realm="https://a/t",service="r",scope="repository:a/b:pull,push""#;
        let wanted = Challenge::Bearer {
            realm: "https://a/t".to_owned(),
            service: Some("r".to_owned()),
            scope: Some("repository:a/b:pull,push".to_owned()),
        };
        assert_eq!(challenge(value), Some(wanted));
        assert_eq!(challenge("Basic realm=x"), Some(Challenge::Basic));
        assert_eq!(challenge("Negotiate"), None);
        assert_eq!(challenge("Bearer service=r"), None);
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
