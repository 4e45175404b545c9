//! Origins of URLs: where a server may send its clients, and which parts of a URL are credentials.

use hex::FromHex;
use reqwest::Url;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Shortest value of a query that counts as a credential whatever its name. Unit: bytes.
const SECRET_MIN: usize = 16;

/// Parts of the names of query fields that hold credentials.
const SECRET_NAMES: [&str; 9] = [
    "token",
    "sig",
    "secret",
    "password",
    "passwd",
    "auth",
    "credential",
    "key",
    "pwd",
];

/// Names of query fields of registries that hold names and digests.
const PUBLIC_NAMES: [&str; 4] = ["artifacttype", "digest", "from", "mount"];

/// Address of the metadata service of AWS over IPv6.
const METADATA: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

/// Reach of a host: who can be behind its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// This machine.
    Loopback,
    /// The network segment, where metadata services of clouds answer.
    LinkLocal,
    Other,
}

fn reach(url: &Url) -> Reach {
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => reach_v4(address),
        Ok(IpAddr::V6(address)) => match address.to_ipv4() {
            // `::` and `::1` have the form of IPv4 addresses.
            _ if address.is_loopback() || address.is_unspecified() => Reach::Loopback,
            Some(address) => reach_v4(address),
            None if address.is_unicast_link_local() || address == METADATA => Reach::LinkLocal,
            None => Reach::Other,
        },
        Err(_) => {
            let name = host.trim_end_matches('.').to_ascii_lowercase();
            match name == "localhost" || name.ends_with(".localhost") {
                true => Reach::Loopback,
                false => Reach::Other,
            }
        }
    }
}

fn reach_v4(address: Ipv4Addr) -> Reach {
    match () {
        () if address.is_loopback() || address.is_unspecified() => Reach::Loopback,
        () if address.is_link_local() => Reach::LinkLocal,
        () => Reach::Other,
    }
}

/// True if a host is this machine, to which no proxy leads.
pub(crate) fn is_loopback(url: &Url) -> bool {
    reach(url) == Reach::Loopback
}

/// URL that the server at `from` names for the next request.
///
/// # Errors
/// The end of a sentence that begins with "the server redirects".
pub(crate) fn next(from: &Url, location: Option<&str>) -> Result<Url, &'static str> {
    let to = location.and_then(|location| from.join(location).ok());
    let to = to.filter(|to| to.host_str().is_some_and(|host| !host.is_empty()));
    let to = to.ok_or("to nowhere")?;
    if !matches!(to.scheme(), "http" | "https") {
        return Err("to a URL that is neither http nor https");
    }
    if from.scheme() == "https" && to.scheme() != "https" {
        return Err("from https to http");
    }
    if !to.username().is_empty() || to.password().is_some() {
        return Err("to a URL with a user name or password");
    }
    if to.origin() == from.origin() {
        return Ok(to);
    }
    match (reach(&to), reach(from)) {
        (Reach::Loopback, Reach::LinkLocal | Reach::Other) => {
            return Err("to an address of this machine");
        }
        (Reach::LinkLocal, Reach::Loopback | Reach::Other) => {
            return Err("to a link-local address");
        }
        _ => {}
    }
    let target = decoded(to.as_str());
    match secrets(from).iter().any(|secret| target.contains(secret)) {
        true => Err("to another host, with a credential of its own URL"),
        false => Ok(to),
    }
}

/// URL of the token service that a registry names. A password goes there, so that it is as safe as the registry itself:
/// TLS, or the same machine.
///
/// # Errors
/// One sentence about a place that no credential is sent to.
pub(crate) fn token_service(registry: &Url, realm: &str) -> Result<Url, &'static str> {
    let realm = Url::parse(realm)
        .ok()
        .filter(|realm| realm.host_str().is_some_and(|host| !host.is_empty()));
    let realm = realm.ok_or("the registry names no usable token service")?;
    let is_same_host =
        registry.host_str() == realm.host_str() || is_local_name(registry) && is_local_name(&realm);
    match realm.scheme() {
        "https" => {}
        "http" if registry.scheme() == "http" && is_same_host => {}
        "http" => return Err("the registry names a token service without TLS"),
        _ => return Err("the registry names no usable token service"),
    }
    if !realm.username().is_empty() || realm.password().is_some() {
        return Err("the registry names a token service with a user name or password");
    }
    match (reach(&realm), reach(registry)) {
        (Reach::LinkLocal, _) => Err("the registry names a token service at a link-local address"),
        (Reach::Loopback, Reach::LinkLocal | Reach::Other) => {
            Err("the registry names a token service on this machine")
        }
        _ => Ok(realm),
    }
}

/// True for the names of this machine whose registries have no certificates.
pub(crate) fn is_local_name(url: &Url) -> bool {
    matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"))
}

/// URL without user name, password, query and fragment, for the header `Referer`.
pub(crate) fn referer(url: &Url) -> String {
    let mut plain = url.clone();
    // Fails only for URLs without a host.
    let _ = plain.set_username("");
    let _ = plain.set_password(None);
    plain.set_query(None);
    plain.set_fragment(None);
    plain.into()
}

/// Values of the query of a URL that may be credentials, without escapes.
pub(crate) fn secrets(url: &Url) -> Vec<String> {
    let is_secret = |name: &str, value: &str| {
        let name = name.to_ascii_lowercase();
        let is_named = SECRET_NAMES.iter().any(|part| name.contains(part));
        let is_public = PUBLIC_NAMES.contains(&name.as_str());
        value.len() >= SECRET_MIN && !is_public || value.len() >= 4 && is_named
    };
    let mut found = Vec::new();
    for (name, value) in url.query_pairs() {
        match value.is_empty() {
            // A query without fields is one value.
            true if name.len() >= SECRET_MIN => found.push(name.into_owned()),
            false if is_secret(&name, &value) => found.push(value.into_owned()),
            _ => {}
        }
    }
    found
}

/// Replaces the escapes `%XX` of a part of a URL.
pub(crate) fn decoded(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = (first == b'%').then(|| after.get(..2)).flatten();
        let byte = digits.and_then(|digits| <[u8; 1]>::from_hex(digits).ok());
        rest = if byte.is_some() { &after[2..] } else { after };
        out.push(byte.map_or(first, |[byte]| byte));
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn redirects_lead_to_web_servers_that_are_as_safe_and_learn_no_credential() {
        let next = |from: &str, to: &str| next(&url(from), Some(to)).map(|url| url.to_string());
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(next("https://a/x/y", "../z?q=1"), ok("https://a/z?q=1"));
        assert_eq!(next("https://a/x", "//b/z"), ok("https://b/z"));
        assert_eq!(
            next("http://127.0.0.1:1/", "http://127.0.0.2:2/"),
            ok("http://127.0.0.2:2/")
        );
        assert_eq!(
            next("https://a/?v=1", "https://b/?v=1"),
            ok("https://b/?v=1")
        );
        assert_eq!(
            next("https://a/?token=abcd", "/y?token=abcd"),
            ok("https://a/y?token=abcd")
        );
        for (from, to, why) in [
            ("https://a/", "http://a/", "from https to http"),
            ("http://a/", "file:///etc/passwd", "to nowhere"),
            (
                "http://a/",
                "ftp://b/",
                "to a URL that is neither http nor https",
            ),
            (
                "http://a/",
                "http://u:p@b/",
                "to a URL with a user name or password",
            ),
            ("http://a/", "http://", "to nowhere"),
            (
                "http://a/",
                "http://127.1/",
                "to an address of this machine",
            ),
            (
                "http://a/",
                "http://0x7f000001/",
                "to an address of this machine",
            ),
            (
                "http://a/",
                "http://[::ffff:127.0.0.1]/",
                "to an address of this machine",
            ),
            (
                "http://a/",
                "http://localhost./",
                "to an address of this machine",
            ),
            (
                "http://127.0.0.1/",
                "http://169.254.169.254/latest",
                "to a link-local address",
            ),
            ("http://a/", "http://[fe80::1]/", "to a link-local address"),
            (
                "http://a/",
                "http://[::ffff:169.254.169.254]/",
                "to a link-local address",
            ),
        ] {
            assert_eq!(next(from, to), Err(why), "{from} {to}");
        }
        let why = Err("to another host, with a credential of its own URL");
        for (from, to) in [
            ("https://a/?token=abcd", "https://b/?t=abcd"),
            ("https://a/?X-Amz-Signature=0a1b2c", "https://b/0a1b2c"),
            (
                "https://a/?x=0123%2B456789abcdef",
                "https://b/?x=0123%2b456789abcdef",
            ),
            ("https://a/?0123456789abcdef", "https://b/?0123456789abcdef"),
        ] {
            assert_eq!(next(from, to), why, "{from} {to}");
        }
    }

    #[test]
    fn passwords_go_to_token_services_with_tls_or_on_the_machine_of_the_registry() {
        let service = |registry: &str, realm: &str| {
            token_service(&url(registry), realm).map(|url| url.to_string())
        };
        for (registry, realm) in [
            ("https://r/", "https://auth.r/token?x=1"),
            ("http://127.0.0.1:1/", "http://127.0.0.1:2/token"),
            ("http://localhost:1/", "http://127.0.0.1:1/token"),
            ("https://127.0.0.2:1/", "https://127.0.0.2:2/token"),
        ] {
            assert_eq!(service(registry, realm), Ok(realm.to_owned()));
        }
        for (registry, realm) in [
            ("https://r/", "http://r/token"),
            ("https://r/", "http://127.0.0.2:1/t"),
            ("https://r/", "https://127.0.0.2:1/t"),
            ("https://r/", "https://localhost/t"),
            ("https://r/", "https://169.254.169.254/t"),
            ("https://r/", "https://[fe80::1]/t"),
            ("https://r/", "https://u:p@auth.r/t"),
            ("https://r/", "https://u@auth.r/t"),
            ("http://127.0.0.1:1/", "http://127.0.0.2:1/t"),
            ("http://localhost:1/", "http://r/t"),
            ("http://localhost:1/", "http://169.254.169.254/t"),
            ("https://r/", "file:///t"),
            ("https://r/", "/token"),
            ("https://r/", ""),
        ] {
            assert!(service(registry, realm).is_err(), "{registry} {realm}");
        }
    }
}
