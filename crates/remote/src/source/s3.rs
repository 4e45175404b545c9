//! Objects in buckets: each request has a fresh signature in its URL.

use super::http::{Address, Target};
use super::object::Later;
use crate::bucket::{BucketObject, CREDENTIALS_TIMEOUT, Limits, NO_CREDENTIALS};
use crate::client::Reply;
use crate::error::{Error, Kind, Result};
use crate::retry::Failure;
use object_store::signer::Signer;
use reqwest::Method;
use std::time::Duration;

/// Time for which a signature is valid. Each request has its own.
const SIGNATURE_LIFE: Duration = Duration::from_secs(15 * 60);

/// Object in a bucket.
pub(crate) struct Object {
    object: BucketObject,
    place: String,
}

impl Object {
    /// Object `key` of a bucket.
    pub(crate) fn new(bucket: &str, key: &str, place: &str) -> Result<Self> {
        // Only services for credentials are asked through the library.
        let limits = Limits {
            request: CREDENTIALS_TIMEOUT,
            retries: CREDENTIALS_TIMEOUT,
            retries_max: 1,
        };
        Ok(Self {
            object: BucketObject::new(bucket, key, place, &limits)?,
            place: place.to_owned(),
        })
    }
}

impl Address for Object {
    fn target(&self) -> Later<'_, Result<Target, Failure>> {
        Box::pin(async {
            let url = match &self.object.public {
                Some(url) => url.clone(),
                None => {
                    let object = &self.object;
                    let signed = object
                        .store
                        .signed_url(Method::GET, &object.key, SIGNATURE_LIFE);
                    // The error may repeat a part of the answer of a credential service.
                    signed
                        .await
                        .map_err(|_| Error::new(Kind::Unavailable, &self.place, NO_CREDENTIALS))?
                }
            };
            Ok(Target {
                url,
                authorization: None,
            })
        })
    }

    fn renew(&self, _: &Reply, _: Option<&str>) -> bool {
        // Each request is signed anew, with credentials that object_store renews before they expire.
        false
    }
}
