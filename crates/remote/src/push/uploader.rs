//! Uploads to a repository: blobs in parts that continue where a connection broke, and manifests.

use super::blob::Blob;
use super::watch::Watch;
use crate::client::feed::Feed;
use crate::client::origin;
use crate::client::{Content, Reply};
use crate::error::{Kind, Result};
use crate::registry::{Call, Registry};
use crate::retry::Failure;
use reqwest::header::{CONTENT_RANGE, CONTENT_TYPE, LOCATION, RANGE};
use reqwest::{Method, StatusCode, Url};
use std::sync::Arc;
use std::time::Instant;

/// Smallest part of a blob that is tried if a server refuses larger ones. Unit: bytes.
const PART_MIN: u64 = 1 << 20;

/// Largest part of a blob after a server has refused a larger one. Unit: bytes.
const PART_MAX: u64 = 64 << 20;

/// Upload of a blob that the registry has begun to take.
struct Upload {
    /// URL of the next request.
    url: Url,
    /// Number of bytes that the registry has.
    offset: u64,
}

/// Uploads to one repository.
pub(crate) struct Uploader<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) watch: &'a Watch<'a>,
    /// Repository of the same registry that may have blobs already.
    pub(crate) mount_from: Option<&'a str>,
}

/// Answer to the request for an upload.
enum UploadAnswer {
    Upload(Upload),
    /// The blob was mounted from another repository.
    Mounted,
}

impl Uploader<'_> {
    /// Uploads a manifest or an index.
    pub(crate) async fn document(
        &self,
        version: &str,
        media: &str,
        bytes: Vec<u8>,
    ) -> Result<Reply> {
        let headers = [(CONTENT_TYPE, media.to_owned())];
        let call = Call {
            headers: &headers,
            content: Content::Bytes(bytes.into()),
            ..Call::plain(
                Method::PUT,
                self.registry.url(&format!("manifests/{version}"))?,
            )
        };
        self.registry.send(&call, &[]).await
    }

    /// Uploads a blob, unless the repository or the one to mount from has it. Returns true if nothing was sent.
    pub(crate) async fn blob(&self, blob: &Blob) -> Result<bool> {
        let retry = self.registry.retry;
        let mut upload = None;
        let mut part = u64::MAX;
        // Moved by every byte that the registry keeps.
        let (mut reached, mut since) = (0, Instant::now());
        let mut pause = retry.first_pause;
        let mut is_first = true;
        loop {
            // An upload whose last answer was lost may be complete.
            if self.has(&blob.digest).await? {
                return Ok(is_first);
            }
            is_first = false;
            let (what, requested) = match self.attempt(blob, &mut upload, &mut part).await {
                Ok(was_mounted) => return Ok(was_mounted),
                Err(Failure::Final(e)) => return Err(e),
                Err(Failure::Transient { what, pause, .. }) => (what, pause),
                Err(Failure::Wrong(what)) => (what, None),
            };
            if let Some(known) = upload.take() {
                upload = self.status(known).await?;
            }
            let offset = upload.as_ref().map_or(0, |upload: &Upload| upload.offset);
            if offset > reached {
                (reached, since) = (offset, Instant::now());
                pause = retry.first_pause;
            }
            let next = requested.unwrap_or(pause);
            if since.elapsed() + next >= retry.deadline {
                let seconds = retry.deadline.as_secs_f32();
                let what = format_args!("{what}; given up after {seconds} s");
                return Err(self.watch.error(Kind::Unavailable, what));
            }
            self.watch.pause(next, offset, blob.size).await?;
            pause = (pause * 2).min(retry.longest_pause);
        }
    }

    /// Returns true if the repository has a blob.
    async fn has(&self, digest: &str) -> Result<bool> {
        let url = self.registry.url(&format!("blobs/{digest}"))?;
        let call = Call::plain(Method::HEAD, url);
        let reply = self.registry.send(&call, &[StatusCode::NOT_FOUND]).await?;
        Ok(reply.status().is_success())
    }

    /// Begins or continues an upload, and completes it. Returns true if the blob was mounted instead.
    async fn attempt(
        &self,
        blob: &Blob,
        upload: &mut Option<Upload>,
        part: &mut u64,
    ) -> Result<bool, Failure> {
        let upload = match upload {
            Some(upload) => upload,
            None => match self.begin(blob).await? {
                UploadAnswer::Upload(started) => upload.insert(started),
                UploadAnswer::Mounted => return Ok(true),
            },
        };
        while upload.offset < blob.size {
            let end = upload.offset.saturating_add(*part).min(blob.size);
            let reply = self.send_part(blob, upload, end).await?;
            match reply.status() {
                StatusCode::PAYLOAD_TOO_LARGE if end - upload.offset > PART_MIN => {
                    // A proxy bounds requests.
                    *part = ((end - upload.offset) / 2).clamp(PART_MIN, PART_MAX);
                    return Err(Failure::transient("the server refuses parts of this size"));
                }
                StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::NOT_FOUND => {
                    return Err(Failure::transient(
                        "the registry has lost a part of the upload",
                    ));
                }
                status if status.is_success() => {
                    upload.offset = end;
                    upload.url = self.next_url(&reply, &upload.url)?;
                }
                _ => return Err(reply.refused(self.watch.place()).await),
            }
        }
        self.complete(blob, upload).await?;
        Ok(false)
    }

    /// Begins an upload. A registry that cannot mount the blob begins one too.
    async fn begin(&self, blob: &Blob) -> Result<UploadAnswer, Failure> {
        let mut url = self.registry.url("blobs/uploads/")?;
        if let Some(from) = self.mount_from {
            let mut query = url.query_pairs_mut();
            query
                .append_pair("mount", &blob.digest)
                .append_pair("from", from);
        }
        let call = Call {
            content: Content::Bytes(Default::default()),
            ..Call::plain(Method::POST, url.clone())
        };
        let answer = self.registry.attempt(&call, &mut 0).await?;
        let reply = answer.expect(&[], self.watch.place()).await?;
        if reply.status() == StatusCode::CREATED {
            return Ok(UploadAnswer::Mounted);
        }
        Ok(UploadAnswer::Upload(Upload {
            url: self.next_url(&reply, &url)?,
            offset: 0,
        }))
    }

    /// Sends bytes from the offset of the upload to `end`.
    async fn send_part(&self, blob: &Blob, upload: &Upload, end: u64) -> Result<Reply, Failure> {
        let start = upload.offset;
        let feed = Feed::new(Arc::clone(&blob.store), start..end);
        let sent = feed.sent();
        let mut headers = vec![(CONTENT_TYPE, "application/octet-stream".to_owned())];
        if (start, end) != (0, blob.size) {
            headers.push((CONTENT_RANGE, format!("{start}-{}", end - 1)));
        }
        let call = Call {
            headers: &headers,
            content: Content::Range(feed),
            ..Call::plain(Method::PATCH, upload.url.clone())
        };
        let idle = self.registry.retry.deadline;
        let mut renewals = 0;
        let request = self.registry.attempt(&call, &mut renewals);
        let place = (start, end, blob.size);
        let answer = self.watch.sending(place, &sent, idle, request).await?;
        // Answers that the caller deals with, besides refusals.
        let known = [
            StatusCode::PAYLOAD_TOO_LARGE,
            StatusCode::RANGE_NOT_SATISFIABLE,
            StatusCode::NOT_FOUND,
        ];
        answer.expect(&known, self.watch.place()).await
    }

    async fn complete(&self, blob: &Blob, upload: &Upload) -> Result<(), Failure> {
        let mut url = upload.url.clone();
        url.query_pairs_mut().append_pair("digest", &blob.digest);
        let call = Call {
            content: Content::Bytes(Default::default()),
            ..Call::plain(Method::PUT, url)
        };
        let nothing = Default::default();
        let mut renewals = 0;
        let request = self.registry.attempt(&call, &mut renewals);
        let place = (blob.size, blob.size, blob.size);
        let idle = self.registry.retry.deadline;
        let answer = self.watch.sending(place, &nothing, idle, request).await?;
        let known = [StatusCode::NOT_FOUND];
        let reply = answer.expect(&known, self.watch.place()).await?;
        match reply.status() {
            StatusCode::NOT_FOUND => Err(Failure::transient("the registry has lost the upload")),
            _ => Ok(()),
        }
    }

    /// Asks how much of an upload the registry has. `None` if it knows nothing of it.
    async fn status(&self, upload: Upload) -> Result<Option<Upload>> {
        let call = Call::plain(Method::GET, upload.url.clone());
        let known = [StatusCode::NOT_FOUND, StatusCode::BAD_REQUEST];
        let reply = self.registry.send(&call, &known).await?;
        if !reply.status().is_success() {
            return Ok(None);
        }
        let stored = reply.header(RANGE).and_then(stored);
        let url = self.next_url(&reply, &upload.url);
        Ok(stored
            .zip(url.ok())
            .map(|(offset, url)| Upload { url, offset }))
    }

    /// URL that the registry names for the next request of an upload.
    fn next_url(&self, reply: &Reply, base: &Url) -> Result<Url, Failure> {
        let next = origin::next(base, reply.header(LOCATION));
        next.map_err(|why| {
            let what = format_args!("the registry continues the upload {why}");
            self.watch.error(Kind::Unavailable, what).into()
        })
    }
}

/// Number of bytes that a registry has, from its header `Range: 0-LAST`.
fn stored(value: &str) -> Option<u64> {
    let (start, last) = value
        .strip_prefix("bytes=")
        .unwrap_or(value)
        .split_once('-')?;
    let last: u64 = last.trim().parse().ok()?;
    // Registries say 0-0 for nothing. A single byte, which is the other meaning, is sent again.
    (start.trim() == "0").then(|| if last == 0 { 0 } else { last + 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_registries_are_numbers_of_bytes() {
        assert_eq!(stored("0-1023"), Some(1024));
        assert_eq!(stored("bytes=0-9"), Some(10));
        assert_eq!(stored("0-0"), Some(0));
        for bad in ["1-2", "0", "", "0-x"] {
            assert_eq!(stored(bad), None, "{bad}");
        }
    }
}
