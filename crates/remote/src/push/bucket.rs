//! Upload to a bucket: one object in parts, unless the bucket has it.

use super::blob::Blob;
use super::options::{PushOptions, Pushed, PushedLayer};
use super::signatures::signatures;
use super::watch::Watch;
use crate::beside::{PROFILE, ROOT_HASH, ROOT_SIGNATURE};
use crate::bucket::{BucketObject, Limits, NO_CREDENTIALS};
use crate::error::{Error, Kind, Result};
use crate::registry::hex;
use crate::retry::Failure;
use object_store::{
    Attribute, Attributes, GetOptions, MultipartUpload, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload,
};
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tuff_store::ReadAt;

/// Size of the parts of an object, if 10,000 of them are enough. Unit: bytes.
const PART: u64 = 8 << 20;

/// Largest number of parts, a little below what buckets accept.
const PARTS_MAX: u64 = 9_500;

/// Number of parts in flight, each of which is in memory.
const CONNECTIONS: usize = 4;

/// Time for the request of one part.
const PART_TIMEOUT: Duration = Duration::from_secs(120);

/// Metadata of an object with its digest.
const DIGEST: &str = "tuff-digest";

/// Uploads an image as an object.
pub(crate) async fn push(
    (bucket, key): (&str, &str),
    blob: &Blob,
    options: &PushOptions,
    watch: &Watch<'_>,
) -> Result<Pushed> {
    let limits = Limits {
        request: PART_TIMEOUT,
        retries: options.retry.deadline,
        retries_max: 10,
    };
    let object = BucketObject::new(bucket, key, watch.place(), &limits)?;
    let upload = Upload {
        object,
        blob,
        watch,
    };
    let was_present = upload.is_present().await?;
    if !was_present {
        upload.send().await?;
    }
    if let Some(tree) = &blob.tree {
        let digits = format!("{}\n", hex(&tree.root));
        upload.beside(ROOT_HASH, digits.into_bytes()).await?;
    }
    for signature in signatures(std::slice::from_ref(blob), options, watch)? {
        upload.beside(ROOT_SIGNATURE, signature).await?;
    }
    if let Some(profile) = &options.profile {
        upload.beside(PROFILE, profile.clone()).await?;
    }
    Ok(Pushed {
        digest: blob.digest.clone(),
        manifest: None,
        layers: vec![PushedLayer {
            digest: blob.digest.clone(),
            size: blob.size,
            root_hash: blob.tree.as_ref().map(|tree| tree.root),
            was_present,
        }],
    })
}

struct Upload<'a> {
    object: BucketObject,
    blob: &'a Blob,
    watch: &'a Watch<'a>,
}

impl Upload<'_> {
    fn failed(&self, e: object_store::Error) -> Error {
        self.watch.error(Kind::Unavailable, reason(&e))
    }

    fn attributes(&self) -> Attributes {
        let digest = Attribute::Metadata(DIGEST.into());
        Attributes::from_iter([(digest, self.blob.digest.clone())])
    }

    /// Returns true if the bucket has the same image under the key.
    async fn is_present(&self) -> Result<bool> {
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let object = &self.object;
        match object.store.get_opts(&object.key, options).await {
            Ok(found) => {
                let digest = found.attributes.get(&Attribute::Metadata(DIGEST.into()));
                let is_same = digest.is_some_and(|value| value.as_ref() == self.blob.digest);
                Ok(is_same && found.meta.size == self.blob.size)
            }
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(e) => Err(self.failed(e)),
        }
    }

    /// Stores a small object whose key is that of the image with a suffix.
    async fn beside(&self, suffix: &str, bytes: Vec<u8>) -> Result<()> {
        let object = &self.object;
        let key = object_store::path::Path::from(format!("{}{suffix}", object.key));
        let put = object.store.put(&key, bytes.into()).await;
        put.map(drop).map_err(|e| self.failed(e))
    }

    async fn send(&self) -> Result<()> {
        let object = &self.object;
        let size = self.blob.size;
        self.watch.step("upload", 0, size)?;
        if size <= PART {
            let payload = read(Arc::clone(&self.blob.store), 0, size).await;
            let payload = payload.map_err(|what| self.watch.error(Kind::Unavailable, what))?;
            let options = PutOptions {
                attributes: self.attributes(),
                ..PutOptions::default()
            };
            let put = object.store.put_opts(&object.key, payload, options).await;
            return put.map(drop).map_err(|e| self.failed(e));
        }
        let options = PutMultipartOptions {
            attributes: self.attributes(),
            ..PutMultipartOptions::default()
        };
        let begun = object.store.put_multipart_opts(&object.key, options).await;
        let mut upload = begun.map_err(|e| self.failed(e))?;
        let sent = match self.send_parts(&mut *upload).await {
            Ok(()) => upload.complete().await.map_err(|e| self.failed(e)),
            Err(e) => Err(e),
        };
        if sent.is_err() {
            // Parts without an object cost money. The first error is the one to report.
            let _ = tokio::time::timeout(PART_TIMEOUT, upload.abort()).await;
        }
        sent.map(drop)
    }

    async fn send_parts(&self, upload: &mut dyn MultipartUpload) -> Result<()> {
        let size = self.blob.size;
        let part = PART.max(size.div_ceil(PARTS_MAX).next_multiple_of(1 << 20));
        let mut in_flight = JoinSet::new();
        let (mut at, mut done) = (0, 0);
        while at < size || !in_flight.is_empty() {
            while at < size && in_flight.len() < CONNECTIONS {
                let len = part.min(size - at);
                let payload = read(Arc::clone(&self.blob.store), at, len).await;
                let payload = payload.map_err(|what| self.watch.error(Kind::Unavailable, what))?;
                let put = upload.put_part(payload);
                in_flight.spawn(async move { put.await.map(|()| len) });
                at += len;
            }
            let next = async { Ok::<_, Failure>(in_flight.join_next().await) };
            let nothing = Default::default();
            // The library bounds the time of each request and its repetitions.
            let next = self
                .watch
                .sending((done, size, size), &nothing, PART_TIMEOUT * 100, next);
            let next = next.await.map_err(|failure| match failure {
                Failure::Final(e) => e,
                Failure::Transient { what, .. } => self.watch.error(Kind::Unavailable, what),
            })?;
            match next {
                Some(Ok(Ok(len))) => done += len,
                Some(Ok(Err(e))) => return Err(self.failed(e)),
                Some(Err(e)) => return Err(self.watch.error(Kind::Unavailable, e)),
                None => {}
            }
        }
        Ok(())
    }
}

/// Reads a part of the image. The error is one sentence.
async fn read(store: Arc<dyn ReadAt>, at: u64, len: u64) -> Result<PutPayload, String> {
    let work = move || {
        let mut bytes = vec![0; len as usize]; // fits: a part
        store.read_exact_at(&mut bytes, at).map(|()| bytes)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(bytes)) => Ok(bytes.into()),
        Ok(Err(e)) => Err(format!("cannot read the image: {e}")),
        Err(e) => Err(e.to_string()),
    }
}

/// One sentence about a failed request.
fn reason(e: &object_store::Error) -> String {
    match e {
        object_store::Error::NotFound { .. } => "not found: there is no such bucket".to_owned(),
        object_store::Error::PermissionDenied { .. }
        | object_store::Error::Unauthenticated { .. } => {
            "access denied: the credentials give no right to write here".to_owned()
        }
        e => {
            let mut cause = e.source();
            let mut last = e.to_string();
            while let Some(e) = cause {
                last = e.to_string();
                cause = e.source();
            }
            match last.contains("credential") {
                // The message may repeat a part of the answer of a credential service.
                true => NO_CREDENTIALS.to_owned(),
                false => format!(
                    "the upload failed: {}",
                    last.lines().next().unwrap_or_default()
                ),
            }
        }
    }
}
