//! Client, session and manifests that all requests for one image share.

use crate::address::{Address, Reference};
use crate::cache::Documents;
use crate::client::Client;
use crate::error::Result;
use crate::registry::{Manifest, Registry, Session};
use crate::retry::RetryPolicy;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Client, session and manifests that all requests for one image share, so that a registry asks for credentials once.
#[derive(Default)]
pub(crate) struct Connections {
    state: Mutex<State>,
}

struct State {
    /// Process that the client belongs to: the child of a fork has no connections.
    process: u32,
    client: Arc<Client>,
    /// Sessions by registry and repository.
    sessions: HashMap<(String, String), Arc<Session>>,
    /// Manifests of this machine, by tag or digest.
    manifests: HashMap<String, Arc<Manifest>>,
    /// Identities of objects that are no blobs, by their addresses: parts of the scope of their documents.
    objects: HashMap<Address, [String; 3]>,
    /// Documents that are kept once the image is open, by their names.
    unopened: Vec<(Arc<Documents>, String, Vec<u8>)>,
    /// Properties of the image that its user should know.
    warnings: Vec<String>,
    is_offline: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            process: std::process::id(),
            client: Arc::default(),
            sessions: HashMap::new(),
            manifests: HashMap::new(),
            objects: HashMap::new(),
            unopened: Vec::new(),
            warnings: Vec::new(),
            is_offline: false,
        }
    }
}

impl Connections {
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.process != std::process::id() {
            // Whatever the parent had belongs to its runtime.
            std::mem::forget(std::mem::take(&mut *state));
        }
        state
    }

    /// Client of all requests.
    pub(crate) fn client(&self) -> Arc<Client> {
        Arc::clone(&self.state().client)
    }

    /// Repository of a reference, with the session of all requests to it. Errors name `place`.
    pub(crate) fn registry(
        &self,
        reference: &Reference,
        place: &str,
        retry: RetryPolicy,
    ) -> Result<Registry> {
        let mut state = self.state();
        let name = (reference.registry.clone(), reference.name.clone());
        let session = match state.sessions.get(&name) {
            Some(session) => Arc::clone(session),
            None => {
                let session = Session::open(Arc::clone(&state.client), reference, place)?;
                let session = Arc::new(session);
                state.sessions.insert(name, Arc::clone(&session));
                session
            }
        };
        Ok(Registry::of_session(session, place, retry))
    }

    /// Manifest of this machine that was read by a tag or digest.
    pub(crate) fn manifest(&self, version: &str) -> Option<Arc<Manifest>> {
        self.state().manifests.get(version).cloned()
    }

    /// Forgets the manifest that a tag named.
    pub(crate) fn forget_manifest(&self, version: &str) {
        self.state().manifests.remove(version);
    }

    /// Keeps a manifest that was read by a tag or digest.
    pub(crate) fn keep_manifest(&self, version: &str, manifest: &Arc<Manifest>) {
        let mut state = self.state();
        for name in [version, &manifest.digest] {
            state
                .manifests
                .insert(name.to_owned(), Arc::clone(manifest));
        }
    }

    /// Identity that an object was opened with, as parts of the scope of its documents.
    pub(crate) fn object(&self, address: &Address) -> Option<[String; 3]> {
        self.state().objects.get(address).cloned()
    }

    /// Keeps the identity of an object.
    pub(crate) fn keep_object(&self, address: &Address, identity: [String; 3]) {
        self.state().objects.insert(address.clone(), identity);
    }

    /// Keeps a document in the cache once the image is open, so that it is about what was opened last.
    pub(crate) fn keep_after_opening(&self, scope: Arc<Documents>, name: String, bytes: Vec<u8>) {
        self.state().unopened.push((scope, name, bytes));
    }

    /// Notes that the image is open.
    pub(crate) fn opened(&self) {
        let unopened = std::mem::take(&mut self.state().unopened);
        for (scope, name, bytes) in unopened {
            scope.put(&name, &bytes);
        }
    }

    /// Notes that the server cannot be reached, so that what it named last is opened.
    pub(crate) fn go_offline(&self, warning: String) {
        let mut state = self.state();
        state.is_offline = true;
        state.warnings.push(warning);
    }

    /// True if the server could not be reached.
    pub(crate) fn is_offline(&self) -> bool {
        self.state().is_offline
    }

    /// Properties of the image that its user should know.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.state().warnings.clone()
    }
}
