//! Objects in buckets: each request has a fresh signature in its URL.

use super::http::{Address, Target};
use super::object::Later;
use crate::client::renewal::{Pass, Renewal};
use crate::client::{Denial, Reply};
use crate::error::{Error, Kind, Result};
use crate::retry::Failure;
use crate::source::bucket::{BucketObject, CREDENTIALS_TIMEOUT, Limits, NO_CREDENTIALS};
use object_store::signer::Signer;
use reqwest::{Method, StatusCode, Url};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time for which a signature is valid. Each request has its own.
const SIGNATURE_LIFE: Duration = Duration::from_secs(15 * 60);

/// Object in a bucket.
pub(crate) struct Object {
    bucket: String,
    key: String,
    place: String,
    /// Identity of the object: its endpoint, bucket and key.
    origin: String,
    /// URL of the object, if requests are not signed.
    public: Option<Url>,
    /// Settings of the first use, which were read with the URL.
    first: Mutex<Option<BucketObject>>,
    /// Keys, and the bucket with them. Files of the host are read again after a refusal.
    renewal: Renewal<Login, Arc<BucketObject>>,
}

/// Keys of an account: name, secret and session token.
type Keys = (String, String, Option<String>);

/// Keys with the bucket that was set up by the same settings.
#[derive(Clone)]
struct Login {
    keys: Keys,
    object: Arc<BucketObject>,
}

impl PartialEq for Login {
    fn eq(&self, other: &Self) -> bool {
        self.keys == other.keys
    }
}

impl Object {
    /// Object `key` of a bucket.
    pub(crate) fn new(bucket: &str, key: &str, place: &str) -> Result<Self> {
        let first = read(bucket, key, place)?;
        Ok(Self {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            place: place.to_owned(),
            origin: format!("s3 {} {}", first.endpoint, first.key),
            public: first.public.clone(),
            first: Mutex::new(Some(first)),
            renewal: Renewal::new(),
        })
    }

    async fn signed(&self) -> Result<Target, Failure> {
        // Errors may repeat a part of the answer of a credential service.
        let no_credentials = || Error::new(Kind::Unavailable, &self.place, NO_CREDENTIALS);
        let read = async {
            let first = {
                let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
                first.take()
            };
            let object = match first {
                Some(first) => first,
                None => read(&self.bucket, &self.key, &self.place)?,
            };
            let keys = object.store.credentials().get_credential().await;
            let keys = keys.map_err(|_| no_credentials())?;
            Ok::<_, Failure>(Login {
                keys: (
                    keys.key_id.clone(),
                    keys.secret_key.clone(),
                    keys.token.clone(),
                ),
                object: Arc::new(object),
            })
        };
        let make = |login: Login| async { Ok(login.object) };
        let (object, pass) = self.renewal.get(read, make).await?;
        let signed = object
            .store
            .signed_url(Method::GET, &object.key, SIGNATURE_LIFE);
        Ok(Target {
            url: signed.await.map_err(|_| no_credentials())?,
            authorization: None,
            pass: Some(pass),
        })
    }
}

/// Reads the settings of the environment and of the profile.
fn read(bucket: &str, key: &str, place: &str) -> Result<BucketObject> {
    // Only services for credentials are asked through the library.
    let limits = Limits {
        request: CREDENTIALS_TIMEOUT,
        retries: CREDENTIALS_TIMEOUT,
        retries_max: 1,
    };
    BucketObject::new(bucket, key, place, &limits)
}

impl Address for Object {
    fn origin(&self) -> String {
        self.origin.clone()
    }

    fn target(&self) -> Later<'_, Result<Target, Failure>> {
        Box::pin(async {
            match &self.public {
                Some(url) => Ok(Target {
                    url: url.clone(),
                    authorization: None,
                    pass: None,
                }),
                None => self.signed().await,
            }
        })
    }

    fn note_answer(&self, reply: &Reply, used: Option<&Pass>) {
        if let Some(used) = used.filter(|_| reply.is_authorized()) {
            self.renewal.accepted(used);
        }
    }

    fn renew(&self, denial: &Denial, used: Option<&Pass>) -> bool {
        let Some(used) = used.filter(|_| denial.is_of_login()) else {
            return false;
        };
        self.renewal.refused(used, Some(denial.error.clone()));
        true
    }

    fn connects_with_first_request(&self) -> bool {
        true
    }

    /// Buckets refuse session tokens that have expired with this status.
    fn denies_with(&self) -> Option<StatusCode> {
        Some(StatusCode::BAD_REQUEST)
    }
}
