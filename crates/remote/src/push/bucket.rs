//! Upload to a bucket: the devices of an image and the image, each an object in parts, unless the bucket has it.

use super::blob::Blob;
use super::options::{PushOptions, Pushed};
use super::signatures::{sign, signatures};
use super::upload_record::UploadRecord;
use super::watch::Watch;
use crate::beside::{DEVICES, DEVICES_SIGNATURE, PROFILE, ROOT_HASH, ROOT_SIGNATURE};
use crate::error::{Error, Kind, Result};
use crate::open::device_list;
use crate::retry::Failure;
use crate::source::bucket::{BucketObject, Limits, NO_CREDENTIALS};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as Key;
use object_store::{
    Attribute, Attributes, GetOptions, ObjectStore, ObjectStoreExt, PutMultipartOptions,
    PutOptions, PutPayload,
};
use sha2::{Digest, Sha256};
use std::error::Error as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tuff_store::ReadAt;

/// Size of the parts of an object, if 10,000 of them are enough. Unit: bytes.
pub(crate) const PART: u64 = 8 << 20;

/// Largest number of parts, a little below what buckets accept.
const PARTS_MAX: u64 = 9_500;

/// Number of parts in flight, each of which is in memory.
pub(crate) const CONNECTIONS: usize = 4;

/// Time for the request of one part.
pub(crate) const PART_TIMEOUT: Duration = Duration::from_secs(120);

/// Longest name of an object. Unit: bytes.
const NAME_MAX: u64 = 1024;

/// Metadata of an object with its digest.
const DIGEST: &str = "tuff-digest";

/// Uploads an image as an object, after its devices. `blobs`: the devices, then the image.
pub(crate) async fn push(
    (bucket, key): (&str, &str),
    blobs: &[Blob],
    options: &PushOptions,
    watch: &Watch<'_>,
) -> Result<Pushed> {
    let limits = Limits {
        request: PART_TIMEOUT,
        retries: options.retry.deadline,
        retries_max: 10,
    };
    // Fails before anything is sent.
    let signature = signatures(blobs, options, watch)?.pop();
    let mut pushed = Vec::new();
    let mut last = None;
    for blob in blobs {
        let key = match blob.is_device {
            true => beside(key, &device_list::name(&blob.digest)),
            false => key.to_owned(),
        };
        let upload = Upload {
            object: BucketObject::new(bucket, &key, watch.place(), &limits)?,
            blob,
            watch,
        };
        let was_present = upload.is_present().await? || upload.copy_from_elsewhere().await;
        if !was_present {
            upload.send(options.records.as_deref()).await?;
        }
        if !blob.is_device {
            upload.note_content().await?;
        }
        pushed.push(blob.pushed(was_present));
        last = Some((upload, blob));
    }
    let Some((upload, blob)) = last else {
        return Err(watch.error(Kind::Usage, "there is no image to upload"));
    };
    let devices = blobs.iter().filter(|blob| blob.is_device);
    let devices = devices.map(|blob| (&*blob.digest, blob.tree.as_ref().map(|tree| &tree.root)));
    if blobs.len() > 1 {
        let root = blob.tree.as_ref().map(|tree| &tree.root);
        let list = device_list::encode(devices, root);
        let signer = options.signer.as_ref();
        let signature = signer.map(|signer| sign(signer, &device_list::digest(&list), watch));
        let signature = signature.transpose()?;
        upload.beside(DEVICES, list).await?;
        if let Some(signature) = signature {
            upload.beside(DEVICES_SIGNATURE, signature).await?;
        }
    }
    if let Some(tree) = &blob.tree {
        let digits = format!("{}\n", hex::encode(tree.root));
        upload.beside(ROOT_HASH, digits.into_bytes()).await?;
    }
    if let Some(signature) = signature {
        upload.beside(ROOT_SIGNATURE, signature).await?;
    }
    if let Some(profile) = &options.profile {
        upload.beside(PROFILE, profile.clone()).await?;
    }
    Ok(Pushed {
        digest: blob.digest.clone(),
        manifest: None,
        layers: pushed,
    })
}

/// Key of an object in the same directory.
fn beside(key: &str, name: &str) -> String {
    match key.rsplit_once('/') {
        Some((dir, _)) => format!("{dir}/{name}"),
        None => name.to_owned(),
    }
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
        self.has_content(&self.object.key).await
    }

    /// Returns true if the object under a key has the size of the image, and states its digest.
    async fn has_content(&self, key: &Key) -> Result<bool> {
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let object = &self.object;
        match object.store.get_opts(key, options).await {
            Ok(found) => {
                let digest = found.attributes.get(&Attribute::Metadata(DIGEST.into()));
                let is_same = digest.is_some_and(|value| value.as_ref() == self.blob.digest);
                Ok(is_same && found.meta.size == self.blob.size)
            }
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(e) => Err(self.failed(e)),
        }
    }

    /// Key of an object in the same directory.
    fn key_beside(&self, name: &str) -> Key {
        Key::from(beside(self.object.key.as_ref(), name))
    }

    /// Copies the image within the bucket if it is there under another key: that of a device, or the one that an earlier upload
    /// has noted. Returns false if it is not, or if the copy fails.
    ///
    /// The object must state the digest, and have the hash tree of the image. One without a hash tree is not copied.
    async fn copy_from_elsewhere(&self) -> bool {
        let object = &self.object;
        let device = self.key_beside(&device_list::name(&self.blob.digest));
        for from in [Some(device), self.noted_key().await].into_iter().flatten() {
            let is_same = from != object.key
                && self.has_content(&from).await.unwrap_or(false)
                && self.has_tree(&from).await.unwrap_or(false);
            if is_same && object.store.copy(&from, &object.key).await.is_ok() {
                // The copy states what the object stated when it was copied.
                return self.is_present().await.unwrap_or(false);
            }
        }
        false
    }

    /// Key of the object that an earlier upload of the same content has noted.
    async fn noted_key(&self) -> Option<Key> {
        let note = self.key_beside(&device_list::note_name(&self.blob.digest));
        let store = &self.object.store;
        let name = store.get_range(&note, 0..NAME_MAX).await.ok()?;
        let name = std::str::from_utf8(&name).ok()?.trim();
        let is_name = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
        is_name.then(|| self.key_beside(name))
    }

    /// Notes the name of the image under its digest, for uploads of the same content under another key.
    async fn note_content(&self) -> Result<()> {
        let object = &self.object;
        let name = object.key.filename().unwrap_or_default();
        let note = self.key_beside(&device_list::note_name(&self.blob.digest));
        let put = object
            .store
            .put(&note, format!("{name}\n").into_bytes().into())
            .await;
        put.map(drop).map_err(|e| self.failed(e))
    }

    /// Returns true if the object under a key has the same hash tree. A reader compares all else with it.
    async fn has_tree(&self, key: &Key) -> Result<bool> {
        let Some(tree) = &self.blob.tree else {
            return Ok(false);
        };
        let mut at = tree.offset;
        while at < self.blob.size {
            let len = PART.min(self.blob.size - at);
            let here = read(Arc::clone(&self.blob.store), at, len).await;
            let here = here.map_err(|what| self.watch.error(Kind::Unavailable, what))?;
            let existing = self.object.store.get_range(key, at..at + len).await;
            if bytes::Bytes::from(here) != existing.map_err(|e| self.failed(e))? {
                return Ok(false);
            }
            at += len;
        }
        Ok(true)
    }

    /// Stores a small object whose key is that of the image with a suffix.
    async fn beside(&self, suffix: &str, bytes: Vec<u8>) -> Result<()> {
        let object = &self.object;
        let key = Key::from(format!("{}{suffix}", object.key));
        let put = object.store.put(&key, bytes.into()).await;
        put.map(drop).map_err(|e| self.failed(e))
    }

    /// Sends the object. `records`: directory of the records of unfinished uploads.
    async fn send(&self, records: Option<&Path>) -> Result<()> {
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
        let mut record = records.map_or_else(UploadRecord::default, |dir| {
            UploadRecord::open(dir, &self.record_name())
        });
        if record.upload.is_some() {
            match self.send_parts(&mut record).await {
                // The bucket has removed the upload of an earlier process.
                Err(Sending::Gone(_)) => {}
                sent => return self.finish(record, sent).await,
            }
        }
        let options = PutMultipartOptions {
            attributes: self.attributes(),
            ..PutMultipartOptions::default()
        };
        let started = object.store.create_multipart_opts(&object.key, options);
        record.begin(&started.await.map_err(|e| self.failed(e))?);
        let sent = self.send_parts(&mut record).await;
        self.finish(record, sent).await
    }

    async fn finish(&self, record: UploadRecord, sent: Result<(), Sending>) -> Result<()> {
        let failed = match sent {
            Ok(()) => {
                record.remove();
                return Ok(());
            }
            Err(Sending::Failed(e) | Sending::Gone(e)) => e,
        };
        if let Some(id) = record.upload.as_ref().filter(|_| !record.is_kept()) {
            // No process can continue with these parts, which cost money. The first error is the one to report.
            let abort = self.object.store.abort_multipart(&self.object.key, id);
            let _ = tokio::time::timeout(PART_TIMEOUT, abort).await;
        }
        Err(failed)
    }

    /// Name of the record: that of the object, of its content and of the parts.
    fn record_name(&self) -> String {
        let object = &self.object;
        let part = self.part_len().to_string();
        let names = [
            &object.endpoint,
            object.key.as_ref(),
            &self.blob.digest,
            &part,
        ];
        let mut hash = Sha256::new();
        for name in names {
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name);
        }
        hex::encode(hash.finalize())
    }

    /// Length of each part but the last. Unit: bytes.
    fn part_len(&self) -> u64 {
        let least = self.blob.size.div_ceil(PARTS_MAX);
        PART.max(least.next_multiple_of(1 << 20))
    }

    /// Sends the parts that the bucket lacks, and completes the object.
    async fn send_parts(&self, record: &mut UploadRecord) -> Result<(), Sending> {
        let object = &self.object;
        let id = record.upload.clone().unwrap_or_default();
        let (size, part) = (self.blob.size, self.part_len());
        let count = size.div_ceil(part);
        let len = |number: u64| part.min(size - number * part);
        record.parts.retain(|number, _| *number < count);
        let missing = (0..count).filter(|number| !record.parts.contains_key(number));
        let missing: Vec<u64> = missing.collect();
        let mut missing = missing.into_iter().peekable();
        let mut done: u64 = record.parts.keys().map(|number| len(*number)).sum();
        let mut in_flight = JoinSet::new();
        let mut failure = None;
        while (failure.is_none() && missing.peek().is_some()) || !in_flight.is_empty() {
            while failure.is_none()
                && in_flight.len() < CONNECTIONS
                && let Some(number) = missing.next()
            {
                let payload = read(Arc::clone(&self.blob.store), number * part, len(number)).await;
                let payload = payload.map_err(|what| self.watch.error(Kind::Unavailable, what))?;
                let (store, key, id) = (object.store.clone(), object.key.clone(), id.clone());
                in_flight.spawn(async move {
                    // Fits: at most `PARTS_MAX`.
                    let put = store.put_part(&key, &id, number as usize, payload).await;
                    put.map(|part| (number, part.content_id))
                });
            }
            let next = async { Ok::<_, Failure>(in_flight.join_next().await) };
            let nothing = Default::default();
            // The library bounds the time of each request and its repetitions.
            let next = self
                .watch
                .sending((done, size, size), &nothing, PART_TIMEOUT * 100, next);
            let next = next.await.map_err(|failure| match failure {
                Failure::Final(e) => e,
                Failure::Transient { what, .. } | Failure::Wrong(what) => {
                    self.watch.error(Kind::Unavailable, what)
                }
            })?;
            match next {
                Some(Ok(Ok((number, part)))) => {
                    done += len(number);
                    record.add(number, &part);
                }
                // The others may succeed, and are recorded then.
                Some(Ok(Err(e))) => failure = Some(self.refused(e)),
                Some(Err(e)) => return Err(self.watch.error(Kind::Unavailable, e).into()),
                None => {}
            }
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        let parts = record.parts.values().map(|id| PartId {
            content_id: id.clone(),
        });
        let complete = object
            .store
            .complete_multipart(&object.key, &id, parts.collect());
        complete.await.map(drop).map_err(|e| self.refused(e))
    }

    fn refused(&self, e: object_store::Error) -> Sending {
        let mut cause: Option<&dyn std::error::Error> = Some(&e);
        let mut is_gone = matches!(e, object_store::Error::NotFound { .. });
        while let Some(e) = cause {
            // The bucket lacks the upload, or a part that the record names.
            let text = e.to_string();
            is_gone |= text.contains("NoSuchUpload") || text.contains("InvalidPart");
            cause = e.source();
        }
        match is_gone {
            true => Sending::Gone(self.failed(e)),
            false => Sending::Failed(self.failed(e)),
        }
    }
}

/// Failure of an upload in parts.
enum Sending {
    Failed(Error),
    /// The bucket has no such upload, or lacks a part.
    Gone(Error),
}

impl From<Error> for Sending {
    fn from(e: Error) -> Self {
        Self::Failed(e)
    }
}

/// Reads a part of the image. The error is one sentence.
pub(crate) async fn read(store: Arc<dyn ReadAt>, at: u64, len: u64) -> Result<PutPayload, String> {
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
pub(crate) fn reason(e: &object_store::Error) -> String {
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
                false => {
                    let first = last.lines().next().unwrap_or_default();
                    let first: String = first.escape_debug().take(200).collect();
                    format!("the upload failed: {first}")
                }
            }
        }
    }
}
