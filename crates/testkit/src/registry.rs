//! Registry of container images in memory, by the OCI distribution specification: its answers, for a [`Server`] of a test.
//!
//! [`Server`]: crate::http::Server

use crate::http::{Answer, Request};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Registry in memory. Its methods may run at once.
#[derive(Default)]
pub struct Registry {
    state: Mutex<State>,
    /// Answers requests for referrers. Without, clients keep them under a tag.
    has_referrers: bool,
}

#[derive(Default)]
struct State {
    /// Blobs by repository and digest.
    blobs: BTreeMap<(String, String), Vec<u8>>,
    /// Media types and manifests by repository, and by tag or digest.
    manifests: BTreeMap<(String, String), (String, Vec<u8>)>,
    /// Beginnings of blobs, by the number of their upload.
    uploads: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

/// Digest of bytes: `sha256:` and 64 digits.
pub fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{hex}")
}

impl Registry {
    /// Registry that answers requests for referrers, if `has_referrers`.
    pub fn with_referrers(has_referrers: bool) -> Self {
        Self {
            has_referrers,
            ..Self::default()
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Manifest of a repository by tag or digest, as JSON.
    pub fn manifest(&self, name: &str, version: &str) -> Option<Value> {
        let state = self.state();
        let key = (name.to_owned(), version.to_owned());
        let (_, bytes) = state.manifests.get(&key)?;
        serde_json::from_slice(bytes).ok()
    }

    /// Blob of a repository.
    pub fn blob(&self, name: &str, digest: &str) -> Option<Vec<u8>> {
        let key = (name.to_owned(), digest.to_owned());
        self.state().blobs.get(&key).cloned()
    }

    /// Adds a blob to a repository.
    pub fn add_blob(&self, name: &str, blob: Vec<u8>) {
        let key = (name.to_owned(), digest(&blob));
        self.state().blobs.insert(key, blob);
    }

    /// Adds a manifest to a repository, under a tag and its digest.
    pub fn add_manifest(&self, name: &str, tag: &str, media: &str, bytes: &[u8]) {
        for version in [tag.to_owned(), digest(bytes)] {
            let key = (name.to_owned(), version);
            let entry = (media.to_owned(), bytes.to_vec());
            self.state().manifests.insert(key, entry);
        }
    }

    /// Changes a blob of a repository without changing its name.
    pub fn change_blob(&self, name: &str, digest: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let key = (name.to_owned(), digest.to_owned());
        if let Some(blob) = self.state().blobs.get_mut(&key) {
            change(blob);
        }
    }

    /// Forgets the beginnings of blobs, as a registry does after some time.
    pub fn forget_uploads(&self) {
        self.state().uploads.clear();
    }

    /// Answers a request as a registry does.
    pub fn answer(&self, request: &Request) -> Answer {
        let is_head = request.method == "HEAD";
        let mut answer = self.route(request).unwrap_or_else(|| Answer::status(404));
        answer.is_head = is_head;
        answer
    }

    fn route(&self, request: &Request) -> Option<Answer> {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let path = path.strip_prefix("/v2/")?;
        for (word, handle) in [
            ("/blobs/uploads/", Self::upload as Handle),
            ("/blobs/", Self::blobs),
            ("/manifests/", Self::manifests),
            ("/referrers/", Self::referrers),
        ] {
            if let Some((name, rest)) = path.split_once(word) {
                return handle(self, request, name, rest, query);
            }
        }
        None
    }

    fn blobs(&self, request: &Request, name: &str, digest: &str, _: &str) -> Option<Answer> {
        let blob = self.blob(name, digest)?;
        Some(Answer::object(request, &blob, ""))
    }

    fn upload(&self, request: &Request, name: &str, id: &str, query: &str) -> Option<Answer> {
        let mut state = self.state();
        if request.method == "POST" {
            let (mount, from) = (field(query, "mount"), field(query, "from"));
            if let Some((digest, from)) = mount.zip(from)
                && let Some(blob) = state.blobs.get(&(from, digest.clone())).cloned()
            {
                state.blobs.insert((name.to_owned(), digest), blob);
                return Some(Answer::status(201));
            }
            let id = state.next;
            state.next += 1;
            state.uploads.insert(id, Vec::new());
            return Some(progress(name, id, 0).with("OCI-Chunk-Min-Length", 1));
        }
        let id: u64 = id.parse().ok()?;
        let upload = state.uploads.get_mut(&id)?;
        match request.method.as_str() {
            "GET" => {
                let mut answer = progress(name, id, upload.len());
                answer.status = 204;
                return Some(answer);
            }
            "PATCH" | "PUT" => {}
            _ => return Some(Answer::status(405)),
        }
        let range = request.headers.get("content-range");
        let start = range.and_then(|range| range.split('-').next()?.parse::<usize>().ok());
        if start.is_some_and(|start| start != upload.len()) {
            return Some(Answer::status(416));
        }
        upload.extend_from_slice(&request.body);
        if request.method == "PATCH" {
            return Some(progress(name, id, upload.len()));
        }
        let expected = field(query, "digest").unwrap_or_default();
        let blob = state.uploads.remove(&id)?;
        if digest(&blob) != expected {
            let error =
                json!({"errors": [{"code": "DIGEST_INVALID", "message": "the digest differs"}]});
            return Some(document(400, &error));
        }
        state.blobs.insert((name.to_owned(), expected), blob);
        Some(Answer::status(201))
    }

    fn manifests(&self, request: &Request, name: &str, version: &str, _: &str) -> Option<Answer> {
        let mut state = self.state();
        if request.method != "PUT" {
            let key = (name.to_owned(), version.to_owned());
            let (media, bytes) = state.manifests.get(&key)?;
            let answer = Answer {
                status: 200,
                body: bytes.clone(),
                ..Answer::default()
            };
            return Some(answer.with("Content-Type", media));
        }
        let object: Value = serde_json::from_slice(&request.body).ok()?;
        for digest in needed(&object) {
            let key = (name.to_owned(), digest);
            if !state.blobs.contains_key(&key) && !state.manifests.contains_key(&key) {
                let error =
                    json!({"errors": [{"code": "MANIFEST_BLOB_UNKNOWN", "message": key.1}]});
                return Some(document(400, &error));
            }
        }
        let media = request.headers.get("content-type").cloned();
        let entry = (media.unwrap_or_default(), request.body.clone());
        for version in [version.to_owned(), digest(&request.body)] {
            let key = (name.to_owned(), version);
            state.manifests.insert(key, entry.clone());
        }
        let mut answer = Answer::status(201);
        if let Some(subject) = object["subject"]["digest"]
            .as_str()
            .filter(|_| self.has_referrers)
        {
            answer = answer.with("OCI-Subject", subject);
        }
        Some(answer)
    }

    fn referrers(&self, _: &Request, name: &str, subject: &str, query: &str) -> Option<Answer> {
        if !self.has_referrers {
            return None;
        }
        let state = self.state();
        let expected = field(query, "artifactType");
        let of_name = state.manifests.iter().filter(|((of, _), _)| of == name);
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        for (_, (media, bytes)) in of_name {
            let object: Value = serde_json::from_slice(bytes).unwrap_or_default();
            let kind = object["artifactType"].as_str().unwrap_or_default();
            let is_wanted = expected.as_deref().is_none_or(|expected| expected == kind);
            if object["subject"]["digest"] == subject && is_wanted && seen.insert(digest(bytes)) {
                found.push(json!({"mediaType": media, "digest": digest(bytes), "size": bytes.len(), "artifactType": kind, "annotations": object["annotations"]}));
            }
        }
        let index = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": found});
        Some(document(200, &index))
    }
}

/// Handler of requests: repository, rest of the path, query.
type Handle = fn(&Registry, &Request, &str, &str, &str) -> Option<Answer>;

/// Digests that a manifest or an index refers to. A subject may be absent.
fn needed(object: &Value) -> Vec<String> {
    let lists = ["layers", "manifests"].map(|name| object[name].as_array());
    let listed = lists.into_iter().flatten().flatten();
    let all = listed.chain([&object["config"]]);
    all.filter_map(|item| Some(item["digest"].as_str()?.to_owned()))
        .collect()
}

/// Value of a field of a query. Escapes of `:` and `/` are resolved.
fn field(query: &str, name: &str) -> Option<String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let mut found = pairs.filter(|(known, _)| *known == name);
    let value = found.next()?.1;
    Some(
        value
            .replace("%3A", ":")
            .replace("%2F", "/")
            .replace("%2B", "+"),
    )
}

fn progress(name: &str, id: u64, len: usize) -> Answer {
    let last = len.saturating_sub(1);
    Answer::status(202)
        .with(
            "Location",
            format!("/v2/{name}/blobs/uploads/{id}?state={len}"),
        )
        .with("Range", format!("0-{last}"))
}

fn document(status: u16, object: &Value) -> Answer {
    Answer {
        status,
        body: object.to_string().into_bytes(),
        ..Answer::default()
    }
}
