//! Registry of the images: processes that serve a folder, and reads from them.

use crate::measure::process::{Daemon, Place, free_address};
use crate::{At, Error, Result};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use tuff_testkit::registry::digest;

/// Types of manifests and of indexes, as clients name them.
const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
                         application/vnd.docker.distribution.manifest.v2+json, \
                         application/vnd.docker.distribution.manifest.list.v2+json";
/// Folder of a registry with its blobs and repositories.
const STORE: &str = "registry/docker/registry/v2";

/// A registry process that ends with this value.
pub(super) struct Registry {
    pub(super) address: SocketAddr,
    log: PathBuf,
    _daemon: Daemon,
}

impl Registry {
    /// Serves the images of a place, with TLS and a login if `is_encrypted`.
    pub(super) fn start(place: &Place, work: &Path, is_encrypted: bool) -> Result<Registry> {
        let name = if is_encrypted {
            "registry-tls"
        } else {
            "registry"
        };
        let address = free_address(name)?;
        let (store, tls) = (place.dir.join("registry"), place.dir.join("tls"));
        let mut text = format!(
            "version: 0.1\nlog: {{level: error, accesslog: {{disabled: {}}}}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp:\n  addr: {address}\n",
            !is_encrypted,
            store.display()
        );
        if is_encrypted {
            let tls = tls.display();
            text += &format!(
                "  tls: {{certificate: {tls}/cert.pem, key: {tls}/key.pem}}\n\
                 auth: {{htpasswd: {{realm: lab, path: {tls}/htpasswd}}}}\n"
            );
        }
        let config = work.join(format!("{name}.yml"));
        std::fs::write(&config, text).at("write", &config)?;
        let log = work.join(format!("{name}.log"));
        let mut command = place.command("registry");
        command.arg("serve").arg(&config);
        let is_up = || TcpStream::connect(address).is_ok();
        let daemon = Daemon::start(command, &log, is_up)?;
        Ok(Registry {
            address,
            log,
            _daemon: daemon,
        })
    }

    /// Returns the number of requests that were answered since the start.
    pub(super) fn request_count(&self) -> u64 {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        log.lines().filter(|line| line.contains(" HTTP/")).count() as u64
    }

    /// Returns a reader of a repository.
    pub(super) fn repository(&self, name: &str) -> Result<Repository> {
        Repository::open(self.address, name)
    }

    /// Returns true if a repository has a tag.
    pub(super) fn has(&self, repository: &str, tag: &str) -> bool {
        let manifest = self
            .repository(repository)
            .and_then(|mut r| r.manifest(tag));
        manifest.is_ok()
    }
}

/// Reads the blobs of a repository, so that the server has them in memory.
pub(super) fn warm(place: &Place, repository: &str) -> Result<()> {
    let store = place.dir.join(STORE);
    let layers = store.join(format!("repositories/{repository}/_layers/sha256"));
    for entry in std::fs::read_dir(&layers).at("list", &layers)? {
        let name = entry.at("list", &layers)?.file_name();
        let name = name.to_string_lossy();
        let path = store.join(format!("blobs/sha256/{}/{name}/data", &name[..2]));
        if let Ok(mut file) = File::open(path) {
            std::io::copy(&mut file, &mut std::io::sink()).at("read", &layers)?;
        }
    }
    Ok(())
}

/// Connection to a registry, for one repository.
pub(super) struct Repository {
    name: String,
    host: String,
    stream: BufReader<TcpStream>,
}

impl Repository {
    /// Connects to a registry.
    pub(super) fn open(address: SocketAddr, name: &str) -> Result<Repository> {
        let stream = TcpStream::connect(address).at("connect to", Path::new("the registry"))?;
        stream
            .set_nodelay(true)
            .at("connect to", Path::new("the registry"))?;
        Ok(Repository {
            name: name.to_owned(),
            host: address.to_string(),
            stream: BufReader::new(stream),
        })
    }

    /// Returns the manifest of a tag, of the first platform if there are several.
    pub(super) fn manifest(&mut self, tag: &str) -> Result<Value> {
        let manifest = self.json(&format!("manifests/{tag}"))?;
        match manifest["manifests"][0]["digest"].as_str() {
            Some(digest) => self.json(&format!("manifests/{digest}")),
            None => Ok(manifest),
        }
    }

    /// Returns the identifier of the topmost layer of a tag: the chain ID of the OCI image specification.
    pub(super) fn chain(&mut self, tag: &str) -> Result<String> {
        let manifest = self.manifest(tag)?;
        let config = text(&manifest["config"]["digest"])?;
        let config = self.json(&format!("blobs/{config}"))?;
        let layers = config["rootfs"]["diff_ids"].as_array();
        let mut chain = String::new();
        for layer in layers.into_iter().flatten().filter_map(Value::as_str) {
            chain = match chain.as_str() {
                "" => layer.to_owned(),
                below => digest(format!("{below} {layer}").as_bytes()),
            };
        }
        Ok(chain)
    }

    fn json(&mut self, path: &str) -> Result<Value> {
        let bytes = self.get(path)?;
        serde_json::from_slice(&bytes)
            .map_err(|e| Error::Command(format!("the registry sends no JSON: {e}")))
    }

    /// Returns what a path below the repository leads to.
    pub(super) fn get(&mut self, path: &str) -> Result<Vec<u8>> {
        let (host, name) = (&self.host, &self.name);
        let request = format!(
            "GET /v2/{name}/{path} HTTP/1.1\r\nHost: {host}\r\nAccept: {MANIFESTS}, */*\r\n\r\n"
        );
        let (status, body) =
            exchange(&mut self.stream, &request).at("read from", Path::new("the registry"))?;
        match status.as_str() {
            "200" => Ok(body),
            _ => Err(Error::Command(format!(
                "the registry answers {status} to {name}/{path}"
            ))),
        }
    }
}

/// Sends a request, and returns the status and the body of the answer, which states its length.
pub(super) fn exchange(
    stream: &mut BufReader<TcpStream>,
    request: &str,
) -> std::io::Result<(String, Vec<u8>)> {
    stream.get_mut().write_all(request.as_bytes())?;
    let (mut status, mut length) = (String::new(), None);
    stream.read_line(&mut status)?;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok();
        }
    }
    let status = status.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut body = Vec::new();
    match length {
        Some(length) => {
            body.resize(length, 0);
            stream.read_exact(&mut body)?;
        }
        // The server of a program may end the answer by closing the connection.
        None => _ = stream.read_to_end(&mut body)?,
    }
    Ok((status, body))
}

/// Returns a string of a manifest.
pub(super) fn text(value: &Value) -> Result<&str> {
    let missing =
        || Error::Command("the manifest has a form that the lab does not know".to_owned());
    value.as_str().ok_or_else(missing)
}
