//! Verification of blobs in container images, and platform names.

use super::digest::OTHER_DIFF_ID;
use super::document::broken;
use super::files::Member;
use crate::source::compressed::{self, Compression, MAGIC_LEN};
use crate::source::error::SourceError;
use crate::{Error, Result};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tuff_erofs::threads;

/// File with its expected digest.
pub(super) struct Blob {
    pub(super) member: Member,
    pub(super) digest: String,
    pub(super) size: Option<u64>,
    /// The digest is of the uncompressed data.
    pub(super) unpacked: bool,
    /// Digest of a layer as a plain tar.
    pub(super) diff_id: Option<String>,
}

/// Verifies the digests of blobs on several threads. Of several errors, returns that of the first
/// blob.
pub(super) fn verify(blobs: &[Blob], threads: usize) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<(usize, Error)>> = Mutex::default();
    let work = || {
        while let Some((n, blob)) = {
            let n = next.fetch_add(1, Ordering::Relaxed);
            blobs.get(n).map(|blob| (n, blob))
        } {
            if let Err(e) = verify_blob(blob) {
                let mut failed = failed.lock().unwrap_or_else(|e| e.into_inner());
                if failed.as_ref().is_none_or(|(first, _)| n < *first) {
                    *failed = Some((n, e));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let helpers = threads.min(blobs.len()).saturating_sub(1);
        threads::start(scope, "digest", helpers, work);
        work();
    });
    let failed = failed.into_inner().unwrap_or_else(|e| e.into_inner());
    failed.map_or(Ok(()), |(_, e)| Err(e))
}

pub(super) fn verify_blob(blob: &Blob) -> Result<()> {
    let name = &blob.member.name;
    let mut reader: Box<dyn Read> = Box::new(blob.member.open()?);
    if blob.unpacked {
        let (_, unpacked) = compressed::open(name, blob.member.open()?).map_err(Error::from)?;
        reader = unpacked;
    }
    let (mut hash, mut len) = (Sha256::new(), 0);
    let mut magic = Vec::new();
    let mut buf = vec![0; 256 << 10];
    loop {
        let n = match reader.read(&mut buf) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            // The error has the position in the source.
            Err(e) => return Err(Error::from(SourceError::from(e).in_source(name))),
        };
        hash.update(&buf[..n]);
        len += n as u64;
        let missing = MAGIC_LEN - magic.len();
        magic.extend_from_slice(&buf[..n.min(missing)]);
    }
    let found = hex::encode(hash.finalize());
    if blob.size.is_some_and(|size| size != len) {
        return Err(broken(name, "its length differs from the descriptor"));
    }
    if found != blob.digest {
        let what = match blob.unpacked {
            false => "its digest differs from its name",
            true => "its digest differs from that in the config",
        };
        return Err(broken(name, what));
    }
    // A compressed layer is compared when it is decompressed.
    let is_plain = Compression::detect(&magic).is_ok_and(|c| c == Compression::Plain);
    match &blob.diff_id {
        Some(id) if is_plain && *id != found => Err(broken(name, OTHER_DIFF_ID)),
        _ => Ok(()),
    }
}

/// Linux on the current processor, by the architecture names of Go.
pub(super) fn this_platform() -> String {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        arch => arch,
    };
    format!("linux/{arch}")
}

/// Platform of an index entry or a config, such as `linux/arm64/v8`.
pub(super) fn platform_of(platform: &Value) -> Option<String> {
    let part = |name| platform.get(name).and_then(Value::as_str);
    let mut text = format!("{}/{}", part("os")?, part("architecture")?);
    if let Some(variant) = part("variant") {
        text.push('/');
        text.push_str(variant);
    }
    Some(text)
}

/// True if `platform` satisfies the requested one. A variant counts only if it was requested.
pub(super) fn is_for(requested: &str, platform: &str) -> bool {
    let rest = platform.strip_prefix(requested);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
