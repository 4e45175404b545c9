//! Buckets: endpoint, region and credentials, as the command `aws` finds them.

use crate::client;
use crate::error::{Error, Kind, Result};
use crate::source::aws_profile;
use http_body_util::{BodyExt, Limited};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey as Key};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::path::Path;
use object_store::{ClientOptions, RetryConfig};
use reqwest::Url;
use std::pin::Pin;
use std::time::Duration;

/// Message about requests that cannot be signed.
pub(crate) const NO_CREDENTIALS: &str = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or AWS_SKIP_SIGNATURE=true for a public bucket";

/// Object of a bucket, by its key.
pub(crate) struct BucketObject {
    pub(crate) store: AmazonS3,
    pub(crate) key: Path,
    /// Endpoint or region, and the bucket.
    pub(crate) endpoint: String,
    /// URL of the object, if requests are not signed.
    pub(crate) public: Option<Url>,
}

/// Time limits of requests to a bucket.
pub(crate) struct Limits {
    /// Time for one request.
    pub(crate) request: Duration,
    /// Time for all repetitions of a request.
    pub(crate) retries: Duration,
    /// Number of repetitions of a request.
    pub(crate) retries_max: usize,
}

/// Time to connect, and for the services that give credentials to instances and containers.
pub(crate) const CREDENTIALS_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest answer to a request that goes through `object_store`: a part of a hash tree; data of images is fetched apart. Memory
/// is allocated for the length that a server claims. Unit: bytes.
const ANSWER_MAX: usize = 16 << 20;

/// Makes clients that follow no redirects, which would carry session tokens to other hosts, and that bound answers.
#[derive(Debug)]
struct Connector {
    /// Time for one request.
    request: Duration,
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let builder = client::builder()
            .connect_timeout(CREDENTIALS_TIMEOUT)
            .timeout(self.request);
        let client = builder.build();
        client
            .map(|client| HttpClient::new(Bounded(HttpClient::new(client))))
            .map_err(|e| object_store::Error::Generic {
                store: "S3",
                source: Box::new(e),
            })
    }
}

/// Client whose answers end with an error after [`ANSWER_MAX`] bytes.
#[derive(Debug)]
struct Bounded(HttpClient);

impl HttpService for Bounded {
    fn call<'client, 'answer>(
        &'client self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'answer>>
    where
        'client: 'answer,
        Self: 'answer,
    {
        Box::pin(async move {
            let answer = self.0.execute(request).await?;
            Ok(answer.map(|body| {
                let body = Limited::new(body, ANSWER_MAX);
                HttpResponseBody::new(body.map_err(|e| match e.downcast() {
                    Ok(e) => *e,
                    Err(_) => HttpError::new(
                        HttpErrorKind::Decode,
                        std::io::Error::other("its answer is longer than 16 MiB"),
                    ),
                }))
            }))
        })
    }
}

impl BucketObject {
    /// Object `key` of a bucket. Endpoint, region and credentials come from the environment and the profile.
    pub(crate) fn new(bucket: &str, key: &str, place: &str, limits: &Limits) -> Result<Self> {
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
        let connector = Connector {
            request: limits.request,
        };
        let retry = RetryConfig {
            max_retries: limits.retries_max,
            retry_timeout: limits.retries,
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
        let name = format!("{} {bucket}", endpoint.as_deref().unwrap_or(&region));
        let store = builder
            .with_client_options(ClientOptions::new())
            .with_http_connector(connector)
            .with_retry(retry)
            .with_allow_http(endpoint.is_some_and(|e| e.starts_with("http://")))
            .build()
            .map_err(|e| failed(&e))?;
        Ok(Self {
            store,
            key,
            endpoint: name,
            public,
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

/// Description of the login for buckets that the environment or a file gives. The file is not opened.
pub fn bucket_login() -> Option<String> {
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let names = ENVIRONMENT_CREDENTIALS
        .iter()
        .chain(&["AWS_SKIP_SIGNATURE"]);
    let variable = names.copied().find(|name| is_set(name));
    match variable {
        Some(name) => Some(format!("{name} is set")),
        None => {
            let file = aws_profile::credentials_file().filter(|path| path.is_file())?;
            Some(format!("{} exists", file.display()))
        }
    }
}
