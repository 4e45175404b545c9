//! Objects below a prefix of a bucket, for stores that write many.

use crate::error::{Error, Kind, Result};
use crate::push::bucket::{CONNECTIONS, PART, PART_TIMEOUT, read, reason};
use crate::runtime::runtime;
use crate::source::bucket::{BucketObject, Limits};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::task::JoinSet;
use tuff_store::ReadAt;

/// Object below a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    /// Name below the prefix.
    pub name: String,
    /// Unit: bytes.
    pub len: u64,
    /// ETag.
    pub tag: String,
    /// Time of the bucket at which it was written.
    pub modified: SystemTime,
}

/// Prefix of a bucket: `s3://BUCKET/PREFIX`. Endpoint, region and credentials are those of images in buckets.
///
/// Errors have the kind `NotFound` for an object that is not there, and `AlreadyExists` for a condition that does not hold.
pub struct BucketPrefix {
    bucket: String,
    prefix: String,
    /// Client of a process: that of a parent has connections that a child cannot use.
    client: Mutex<Option<(u32, Arc<BucketObject>)>>,
}

impl fmt::Debug for BucketPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url())
    }
}

impl BucketPrefix {
    /// Parses a URL. Nothing is asked.
    ///
    /// # Errors
    /// `Usage` for a URL without bucket or prefix, or settings that make no sense.
    pub fn parse(url: &str) -> Result<Self> {
        let rest = url
            .strip_prefix("s3://")
            .unwrap_or(url)
            .trim_end_matches('/');
        let parts = rest.split_once('/');
        let parts = parts.filter(|(bucket, prefix)| {
            !bucket.is_empty() && !bucket.contains('@') && !prefix.is_empty()
        });
        let wrong = || {
            Error::new(
                Kind::Usage,
                url.escape_debug(),
                "expected s3://BUCKET/PREFIX",
            )
        };
        let (bucket, prefix) = parts.ok_or_else(wrong)?;
        let place = Self {
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            client: Mutex::default(),
        };
        place.client()?;
        Ok(place)
    }

    /// URL of the prefix.
    pub fn url(&self) -> String {
        format!("s3://{}/{}", self.bucket, self.prefix)
    }

    fn client(&self) -> Result<Arc<BucketObject>> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if let Some((owner, client)) = &*client
            && *owner == process
        {
            return Ok(Arc::clone(client));
        }
        let limits = Limits {
            request: PART_TIMEOUT,
            retries: Duration::from_secs(180),
            retries_max: 10,
        };
        let made = BucketObject::new(&self.bucket, &self.prefix, &self.url(), &limits)?;
        let made = Arc::new(made);
        *client = Some((process, Arc::clone(&made)));
        Ok(made)
    }

    fn key(&self, name: &str) -> io::Result<Path> {
        let key = Path::parse(format!("{}/{name}", self.prefix));
        key.map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))
    }

    fn run<T>(
        &self,
        work: impl AsyncFnOnce(Arc<BucketObject>) -> Result<T, object_store::Error>,
    ) -> io::Result<T> {
        let client = self.client().map_err(io::Error::other)?;
        let runtime = runtime().map_err(io::Error::other)?;
        runtime.block_on(work(client)).map_err(|e| {
            let kind = match &e {
                object_store::Error::NotFound { .. } => io::ErrorKind::NotFound,
                object_store::Error::AlreadyExists { .. }
                | object_store::Error::Precondition { .. } => io::ErrorKind::AlreadyExists,
                object_store::Error::PermissionDenied { .. }
                | object_store::Error::Unauthenticated { .. } => io::ErrorKind::PermissionDenied,
                _ => io::ErrorKind::Other,
            };
            let what = match kind {
                io::ErrorKind::NotFound => "not found".to_owned(),
                io::ErrorKind::PermissionDenied => "access denied".to_owned(),
                _ => reason(&e),
            };
            io::Error::new(kind, what.trim_start_matches("the upload failed: "))
        })
    }

    /// Lists all objects, in directories of up to one level.
    ///
    /// # Errors
    /// Those of the requests.
    pub fn list(&self) -> io::Result<Vec<ListedObject>> {
        let prefix = Path::parse(&self.prefix);
        let prefix = prefix.map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let found = self.run(async |client| {
            let root = client.store.list_with_delimiter(Some(&prefix)).await?;
            let mut objects = root.objects;
            for dir in root.common_prefixes {
                let listed = client.store.list_with_delimiter(Some(&dir)).await?;
                objects.extend(listed.objects);
            }
            Ok(objects)
        })?;
        let objects = found.into_iter().filter_map(|object| {
            let name = object.location.as_ref().strip_prefix(&self.prefix)?;
            let name = name.strip_prefix('/')?.to_owned();
            let modified = u64::try_from(object.last_modified.timestamp()).ok()?;
            Some(ListedObject {
                name,
                len: object.size,
                tag: object.e_tag.unwrap_or_default(),
                modified: SystemTime::UNIX_EPOCH + Duration::from_secs(modified),
            })
        });
        let mut objects: Vec<ListedObject> = objects.collect();
        objects.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(objects)
    }

    /// Reads a range of an object, or what the object has of it. At most 16 MiB.
    ///
    /// # Errors
    /// Those of the request.
    pub fn read(&self, name: &str, range: Range<u64>) -> io::Result<Vec<u8>> {
        let key = self.key(name)?;
        let bytes = self.run(async |client| client.store.get_range(&key, range).await)?;
        Ok(bytes.into())
    }

    /// Writes an object that must not exist. Returns its tag.
    ///
    /// # Errors
    /// Those of the request.
    pub fn create(&self, name: &str, bytes: &[u8]) -> io::Result<String> {
        let put = self.put(name, bytes, PutMode::Create);
        match put {
            // A repeated request finds what the first one has written, although its answer was lost.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && !bytes.is_empty() => {
                let key = self.key(name)?;
                let found = self.run(async |client| {
                    let found = client.store.head(&key).await?;
                    if found.size != bytes.len() as u64 {
                        return Ok(None);
                    }
                    let read = client.store.get_range(&key, 0..found.size).await?;
                    Ok((read == bytes).then(|| found.e_tag.unwrap_or_default()))
                });
                found?.ok_or(e)
            }
            put => put,
        }
    }

    /// Replaces an object that must have this tag. Returns the new one.
    ///
    /// # Errors
    /// Those of the request.
    pub fn replace(&self, name: &str, bytes: &[u8], tag: &str) -> io::Result<String> {
        let version = UpdateVersion {
            e_tag: Some(tag.to_owned()),
            version: None,
        };
        self.put(name, bytes, PutMode::Update(version))
    }

    fn put(&self, name: &str, bytes: &[u8], mode: PutMode) -> io::Result<String> {
        let key = self.key(name)?;
        let payload = bytes.to_vec().into();
        let options = PutOptions::from(mode);
        let put = self.run(async |client| client.store.put_opts(&key, payload, options).await)?;
        Ok(put.e_tag.unwrap_or_default())
    }

    /// Writes an object of any length, in parts.
    ///
    /// # Errors
    /// Those of the requests and of the content.
    pub fn upload(&self, name: &str, content: &Arc<dyn ReadAt>) -> io::Result<()> {
        let key = self.key(name)?;
        let size = content.size();
        let failed = |what: String| object_store::Error::Generic {
            store: "S3",
            source: what.into(),
        };
        self.run(async |client| {
            if size <= PART {
                let payload = read(Arc::clone(content), 0, size).await.map_err(failed)?;
                return client.store.put(&key, payload).await.map(drop);
            }
            let id = client.store.create_multipart(&key).await?;
            let sent = async {
                let mut parts: Vec<Option<PartId>> = vec![None; size.div_ceil(PART) as usize];
                let (mut next, mut in_flight) = (0, JoinSet::new());
                while next < parts.len() || !in_flight.is_empty() {
                    while next < parts.len() && in_flight.len() < CONNECTIONS {
                        let at = next as u64 * PART;
                        let payload = read(Arc::clone(content), at, PART.min(size - at)).await;
                        let payload = payload.map_err(failed)?;
                        let (client, key, id, number) =
                            (Arc::clone(&client), key.clone(), id.clone(), next);
                        in_flight.spawn(async move {
                            let put = client.store.put_part(&key, &id, number, payload).await;
                            put.map(|part| (number, part))
                        });
                        next += 1;
                    }
                    if let Some(done) = in_flight.join_next().await {
                        let (number, part) = done.map_err(|e| failed(e.to_string()))??;
                        parts[number] = Some(part);
                    }
                }
                let parts = parts.into_iter().flatten().collect();
                client.store.complete_multipart(&key, &id, parts).await
            };
            let sent = sent.await;
            if sent.is_err() {
                // Parts that nobody completes cost money. The first error is the one to report.
                let abort = client.store.abort_multipart(&key, &id);
                let _ = tokio::time::timeout(PART_TIMEOUT, abort).await;
            }
            sent.map(drop)
        })
    }

    /// Removes an object. One that is not there is no error.
    ///
    /// # Errors
    /// Those of the request.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let key = self.key(name)?;
        match self.run(async |client| client.store.delete(&key).await) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}
