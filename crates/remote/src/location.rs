//! URLs of images, and how they are shown without credentials.

use crate::address::{Address, Blob, Reference, sha256_hex, shown};
use crate::connections::Connections;
use crate::error::{Error, Kind, Result};
use reqwest::Url;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Address of an image, parsed from a URL.
#[derive(Clone)]
pub struct Location {
    pub(crate) address: Address,
    shown: String,
    /// Shared with the locations that are derived from this one.
    connections: Arc<Connections>,
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.shown, f)
    }
}

impl Location {
    fn new(address: Address, shown: String) -> Self {
        Self {
            address,
            shown,
            connections: Arc::default(),
        }
    }

    /// Location that belongs to the same image.
    fn related(&self, address: Address, shown: String) -> Self {
        Self {
            address,
            shown,
            connections: Arc::clone(&self.connections),
        }
    }

    /// Client and sessions of the requests for the image.
    pub(crate) fn connections(&self) -> &Connections {
        &self.connections
    }

    /// Properties of the image that its user should know, such as that its server could not be reached when it was opened.
    pub fn warnings(&self) -> Vec<String> {
        self.connections.warnings()
    }

    /// Requests for the image since its location was parsed: lines of JSON, at most `max` bytes. The last line has the sums.
    pub fn requests(&self, max: usize) -> String {
        self.connections.client().trace().lines(max)
    }

    /// Shortest round trip to the server, and its bandwidth in bytes per second, as far as the requests for the image have measured
    /// them.
    pub fn measured(&self) -> (Option<Duration>, Option<u64>) {
        self.connections.client().link().measured()
    }

    /// Location of a blob of the image at `self`. Messages name the blob, unless it `is_only` one.
    pub(crate) fn blob(&self, blob: Blob, is_only: bool) -> Self {
        let shown = match is_only {
            true => self.shown.clone(),
            false => format!("{}: layer {}", self.shown, blob.digest),
        };
        self.related(Address::Blob(blob), shown)
    }

    /// Returns true if this names an image in a registry, which may have several layers.
    pub fn is_registry(&self) -> bool {
        matches!(self.address, Address::Oci(_))
    }

    /// Last component of the path of a URL. None for an image in a registry.
    pub fn file_name(&self) -> Option<&str> {
        let path = match &self.address {
            Address::Http(url) => url.path(),
            Address::S3 { key, .. } => key.as_str(),
            Address::File(path) => path.to_str()?,
            Address::Oci(_) | Address::Blob(_) => return None,
        };
        path.rsplit('/').next()
    }

    /// Parses a URL.
    ///
    /// # Errors
    /// `Usage` for a URL that names no object.
    pub fn parse(text: &str) -> Result<Self> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let parsed = match scheme {
            "http" | "https" => http(text),
            "s3" => s3(rest),
            "oci" | "docker" => oci(rest),
            "file" => file(rest),
            _ => Err("expected https://, http://, s3://, oci:// or file://".to_owned()),
        };
        parsed.map_err(|what| {
            // Text that cannot be parsed may hold a password or a signature.
            let is_plain = !text.replace("@sha256:", "").contains(['@', '?']);
            let place = if is_plain {
                text
            } else {
                "the URL of the image"
            };
            Error::new(Kind::Usage, place.escape_debug(), what)
        })
    }

    /// Location of an object whose name is that of this one and a suffix. `None` in a registry.
    pub(crate) fn with_suffix(&self, suffix: &str) -> Option<Self> {
        match &self.address {
            Address::Http(url) => {
                let mut url = url.clone();
                url.set_path(&format!("{}{suffix}", url.path()));
                let shown = shown(&url);
                Some(self.related(Address::Http(url), shown))
            }
            Address::S3 { bucket, key } => self.in_bucket(&format!("{bucket}/{key}{suffix}")),
            Address::File(path) => {
                let mut path = path.clone().into_os_string();
                path.push(suffix);
                let path = PathBuf::from(path);
                let shown = format!("file://{}", path.display());
                Some(Self::new(Address::File(path), shown))
            }
            Address::Oci(_) | Address::Blob(_) => None,
        }
    }

    /// Location of an object in the same directory. `None` in a registry, or for a text that is no name.
    pub(crate) fn with_name(&self, name: &str) -> Option<Self> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.starts_with('.') || !name.chars().all(is_name) {
            return None;
        }
        let beside = |path: &str| match path.rsplit_once('/') {
            Some((dir, _)) => format!("{dir}/{name}"),
            None => name.to_owned(),
        };
        match &self.address {
            Address::Http(url) => {
                let mut url = url.clone();
                url.set_path(&beside(url.path()));
                let shown = shown(&url);
                Some(self.related(Address::Http(url), shown))
            }
            Address::S3 { bucket, key } => self.in_bucket(&format!("{bucket}/{}", beside(key))),
            Address::File(path) => Some(Self::of_file(&path.with_file_name(name))),
            Address::Oci(_) | Address::Blob(_) => None,
        }
    }

    /// Location of a local file.
    pub fn of_file(path: &std::path::Path) -> Self {
        Self::new(Address::File(path.to_owned()), path.display().to_string())
    }

    /// Location of an object in a bucket, which belongs to the same image.
    fn in_bucket(&self, rest: &str) -> Option<Self> {
        let found = s3(rest).ok()?;
        Some(self.related(found.address, found.shown))
    }

    /// Location of the same image in a registry by the digest of its manifest.
    pub(crate) fn by_digest(&self, reference: &Reference, digest: String) -> Self {
        let image = Self::of_image(Reference {
            version: digest,
            ..reference.clone()
        });
        self.related(image.address, image.shown)
    }

    /// Location of an image in a registry.
    fn of_image(reference: Reference) -> Self {
        let sign = if reference.version.contains(':') {
            '@'
        } else {
            ':'
        };
        let (registry, name, version) = (&reference.registry, &reference.name, &reference.version);
        let shown = format!("oci://{registry}/{name}{sign}{version}");
        Self::new(Address::Oci(reference), shown)
    }

    /// Path of a `file://` URL.
    pub fn local_path(&self) -> Option<&std::path::Path> {
        match &self.address {
            Address::File(path) => Some(path),
            _ => None,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

fn http(text: &str) -> Result<Location, String> {
    let url = Url::parse(text).map_err(|e| e.to_string())?;
    if url.host_str().is_none_or(str::is_empty) {
        return Err("the URL names no host".to_owned());
    }
    let shown = shown(&url);
    Ok(Location::new(Address::Http(url), shown))
}

fn s3(rest: &str) -> Result<Location, String> {
    let shown = format!("s3://{rest}");
    match rest.split_once('/') {
        Some((bucket, key)) if !bucket.is_empty() && !key.is_empty() && !bucket.contains('@') => {
            let address = Address::S3 {
                bucket: bucket.to_owned(),
                key: key.to_owned(),
            };
            Ok(Location::new(address, shown))
        }
        _ => Err("expected s3://BUCKET/KEY".to_owned()),
    }
}

fn oci(rest: &str) -> Result<Location, String> {
    let wrong = |what: &str| {
        let form = "expected oci://REGISTRY/NAME[:TAG|@DIGEST]";
        format!("{form}: {what}")
    };
    let (registry, path) = rest.split_once('/').ok_or_else(|| wrong("no name"))?;
    if registry.is_empty() || registry.contains('@') {
        return Err(wrong("no registry"));
    }
    let (name, version) = match path.split_once('@') {
        Some((name, digest)) => {
            // A tag before a digest has no effect.
            let name = name.split_once(':').map_or(name, |(name, _)| name);
            if sha256_hex(digest).is_none() {
                return Err(wrong("a digest is sha256: and 64 hexadecimal digits"));
            }
            (name, digest)
        }
        None => path.split_once(':').unwrap_or((path, "latest")),
    };
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-/".contains(c);
    if name.is_empty()
        || !name.chars().all(is_name)
        || name.split('/').any(|p| p.is_empty() || p == "..")
    {
        return Err(wrong(
            "a name has lower-case letters, digits, '.', '_', '-' and '/'",
        ));
    }
    let is_tag = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if version.is_empty() || !(version.chars().all(is_tag) || version.contains(':')) {
        return Err(wrong("a tag has letters, digits, '.', '_' and '-'"));
    }
    let library = registry == "docker.io" && !name.contains('/');
    Ok(Location::of_image(Reference {
        registry: registry.to_owned(),
        name: if library {
            format!("library/{name}")
        } else {
            name.to_owned()
        },
        version: version.to_owned(),
    }))
}

fn file(rest: &str) -> Result<Location, String> {
    let url = Url::parse(&format!("file://{rest}"));
    let path = url.ok().and_then(|url| url.to_file_path().ok());
    let path = path.ok_or("expected file:///PATH")?;
    let shown = format!("file://{}", path.display());
    Ok(Location::new(Address::File(path), shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_shown() {
        for (url, shown) in [
            ("https://u:secret@h/i", "https://h/i"),
            ("https://h/i?X-Amz-Signature=secret#f", "https://h/i?..."),
            ("s3://b/k/l", "s3://b/k/l"),
            ("oci://r:5000/a/b", "oci://r:5000/a/b:latest"),
            ("file:///a%20b", "file:///a b"),
        ] {
            assert_eq!(Location::parse(url).unwrap().to_string(), shown);
        }
        for url in [
            "https://u:secret@",
            "s3://u:secret@b/k",
            "oci://u:secret@r/n",
        ] {
            let e = Location::parse(url).unwrap_err();
            assert_eq!(e.kind(), Kind::Usage);
            assert!(!e.to_string().contains("secret"), "{e}");
        }
    }

    #[test]
    fn registry_names_are_taken_apart() {
        let hex = "0123456789abcdef".repeat(4);
        let oci = |text: &str| match Location::parse(text).unwrap().address {
            Address::Oci(r) => (r.registry, r.name, r.version),
            other => panic!("{other:?}"),
        };
        let parts = |r: &str, n: &str, v: &str| (r.to_owned(), n.to_owned(), v.to_owned());
        assert_eq!(oci("oci://r/n"), parts("r", "n", "latest"));
        assert_eq!(oci("oci://r:5/a/b:v1"), parts("r:5", "a/b", "v1"));
        let digest = format!("sha256:{hex}");
        assert_eq!(
            oci(&format!("oci://r/n:t@{digest}")),
            parts("r", "n", &digest)
        );
        assert_eq!(oci("oci://docker.io/n").1, "library/n");
        for bad in [
            "oci://r",
            "oci:///n",
            "oci://r/",
            "oci://r/N",
            "oci://r/n:",
            "oci://r/n@sha256:00",
            "oci://r/../n",
            "oci://r/n:a b",
        ] {
            assert!(Location::parse(bad).is_err(), "{bad}");
        }
    }
}
