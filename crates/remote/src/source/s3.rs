//! Objects in buckets: each request has a fresh signature in its URL.

use super::aws_profile;
use super::http::{Address, Target};
use super::object::Later;
use crate::client::Reply;
use crate::error::{Error, Kind, Result};
use crate::retry::Failure;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey as Key};
use object_store::path::Path;
use object_store::signer::Signer;
use object_store::{ClientOptions, RetryConfig};
use reqwest::{Method, Url};
use std::time::Duration;

/// Time for which a signature is valid. Each request has its own.
const SIGNATURE_LIFE: Duration = Duration::from_secs(15 * 60);

/// Time for the services that give credentials to instances and containers.
const CREDENTIALS_TIMEOUT: Duration = Duration::from_secs(5);

/// Object in a bucket.
pub(crate) struct Object {
    store: AmazonS3,
    key: Path,
    /// URL of the object, if requests are not signed.
    public: Option<Url>,
    place: String,
}

impl Object {
    /// Object `key` of a bucket. Endpoint, region and credentials come from the environment and the profile, as for
    /// the command `aws`.
    pub(crate) fn new(bucket: &str, key: &str, place: &str) -> Result<Self> {
        // Fails if the program has chosen a provider already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let failed = |e: &dyn std::fmt::Display| Error::new(Kind::Usage, place, e);
        let profile = aws_profile::read();
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
        let mut fill = |key: Key, name: &str| {
            let value = profile
                .get(name)
                .filter(|_| builder.get_config_value(&key).is_none());
            if let Some(value) = value {
                builder = std::mem::take(&mut builder).with_config(key, value);
            }
        };
        // Credentials of the environment are complete, and stronger than those of a profile.
        if !ENVIRONMENT_CREDENTIALS
            .iter()
            .any(|name| std::env::var_os(name).is_some())
        {
            fill(Key::AccessKeyId, "aws_access_key_id");
            fill(Key::SecretAccessKey, "aws_secret_access_key");
            fill(Key::Token, "aws_session_token");
        }
        fill(Key::Region, "region");
        fill(Key::Endpoint, "endpoint_url");
        let endpoint = builder
            .get_config_value(&Key::S3Endpoint)
            .or_else(|| builder.get_config_value(&Key::Endpoint));
        let options = ClientOptions::new()
            .with_connect_timeout(CREDENTIALS_TIMEOUT)
            .with_timeout(CREDENTIALS_TIMEOUT);
        let retry = RetryConfig {
            max_retries: 1,
            retry_timeout: CREDENTIALS_TIMEOUT,
            ..RetryConfig::default()
        };
        let skip = builder.get_config_value(&Key::SkipSignature);
        let region = builder.get_config_value(&Key::Region);
        let region = region
            .or_else(|| builder.get_config_value(&Key::DefaultRegion))
            .unwrap_or_else(|| "us-east-1".to_owned());
        // The whole key is one path: a URL is not decoded.
        let key = Path::parse(key).map_err(|e| failed(&e))?;
        let public = match skip.as_deref() {
            Some("true" | "1") => {
                let base = endpoint
                    .clone()
                    .unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
                let url = format!("{}/{bucket}/{key}", base.trim_end_matches('/'));
                Some(Url::parse(&url).map_err(|e| failed(&e))?)
            }
            _ => None,
        };
        let store = builder
            .with_client_options(options)
            .with_retry(retry)
            .with_allow_http(endpoint.is_some_and(|e| e.starts_with("http://")))
            .build()
            .map_err(|e| failed(&e))?;
        Ok(Self {
            store,
            key,
            public,
            place: place.to_owned(),
        })
    }
}

/// Variables that name credentials of their own.
const ENVIRONMENT_CREDENTIALS: [&str; 4] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

impl Address for Object {
    fn target(&self) -> Later<'_, Result<Target, Failure>> {
        Box::pin(async {
            let url = match &self.public {
                Some(url) => url.clone(),
                None => {
                    let signed = self
                        .store
                        .signed_url(Method::GET, &self.key, SIGNATURE_LIFE);
                    // The error may repeat a part of the answer of a credential service.
                    signed.await.map_err(|_| {
                        let what = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or AWS_SKIP_SIGNATURE=true for a public bucket";
                        Error::new(Kind::Unavailable, &self.place, what)
                    })?
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
