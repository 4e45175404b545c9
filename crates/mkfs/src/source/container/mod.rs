//! Container images: which tars their layers are, in a layout of OCI or an archive.
//!
//! ```text
//!  oci      index.json ──► manifest, or another index by platform ──► layers, lowest first
//!  docker   manifest.json ──► config, which has the digests of layers as they are unpacked
//!  files    a directory, or members of a tar, which stay where they are
//! ```
//!
//! Everything is compared with its digest before anything is built from it, but for the digest (`diff_id`) that the config of an OCI
//! image has for a compressed layer as it is unpacked: that is compared while it is read.

mod docker;
mod files;
mod oci;

use super::compressed::{Compression, MAGIC_LEN};
use super::error::SourceError;
use crate::available_threads;
use crate::source::spec::Source;
use crate::tree::{ROOT, Tree};
use crate::{Error, Result};
use files::{Files, Member};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};
use tuff_erofs::threads;

/// How a container image is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// A layout of OCI in a directory, as skopeo and buildah write it.
    Oci,
    /// A tar of one.
    OciArchive,
    /// What `docker save` writes.
    DockerArchive,
}

/// The layers of the container image at `path`, lowest first: of the one with this name, if one is given, and for this platform
/// (`linux/arm64`, perhaps with a variant), by default Linux on this machine's processor. An archive of Docker is asked for its
/// platform only if one is given.
///
/// # Errors
/// `Source` for what is no such image, or what has another digest; `Usage` if there are several images and none is chosen; `Limit`
/// for an archive of too many members; `Io` for what cannot be read.
pub fn container_layers(
    kind: Container,
    path: &Path,
    name: Option<&str>,
    platform: Option<&str>,
) -> Result<Vec<Source>> {
    let files = match kind {
        Container::Oci => Files::Dir(path.to_owned()),
        Container::OciArchive | Container::DockerArchive => Files::archive(path)?,
    };
    let layers = match kind {
        Container::Oci | Container::OciArchive => oci::layers(&files, name, platform)?,
        Container::DockerArchive => docker::layers(&files, name, platform)?,
    };
    verify(&layers, available_threads())?;
    let source = |layer: Blob| {
        let diff_id = layer.diff_id.as_deref().and_then(bytes);
        layer.member.source(diff_id)
    };
    layers.into_iter().map(source).collect()
}

/// What to tell somebody who builds an image of a container image's files instead of what it holds.
pub(crate) fn hint(tree: &Tree) -> Option<String> {
    let has = |wanted: &[u8]| {
        let mut names = tree.children(ROOT).iter().map(|entry| tree.name(entry));
        names.any(|name| name == wanted)
    };
    let what = if has(b"oci-layout") && has(b"index.json") && has(b"blobs") {
        "a layout of OCI, with container images as blobs; an image of what they hold comes from its directory, as oci:DIR, or a tar of it, as oci-archive:FILE"
    } else if has(b"manifest.json") && has(b"repositories") {
        "an archive of docker save; an image of what it holds comes from its tar, as docker-archive:FILE"
    } else {
        return None;
    };
    Some(format!("the tree is {what}"))
}

/// A file and what it should be.
struct Blob {
    member: Member,
    digest: String,
    size: Option<u64>,
    /// The digest is of what it is when unpacked.
    unpacked: bool,
    /// The digest of a layer as a plain tar.
    diff_id: Option<String>,
}

/// 64 digits of a digest of SHA-256.
fn hex(text: &str) -> Option<&str> {
    let is_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    (text.len() == 64 && text.bytes().all(is_hex)).then_some(text)
}

/// Bytes of a digest of 64 hexadecimal digits.
fn bytes(hex: &str) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    for (n, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * n..2 * n + 2)?, 16).ok()?;
    }
    Some(out)
}

/// A plain tar while it is read: another SHA-256 than the one it should have is an error at its end.
pub(crate) struct Digested<R> {
    inner: R,
    /// `None` once it was compared.
    hash: Option<Hash>,
    wanted: [u8; 32],
}

impl<R: Read> Digested<R> {
    /// Computes the digest in a thread of its own if there may be several.
    pub(crate) fn new(inner: R, wanted: [u8; 32], threads: usize) -> Self {
        let hash = (threads > 1).then(Hash::in_thread).flatten();
        Self {
            inner,
            hash: Some(hash.unwrap_or_else(|| Hash::Here(Sha256::new()))),
            wanted,
        }
    }
}

impl<R: Read> Read for Digested<R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = self.inner.read(buf)?;
        if n > 0 {
            if let Some(hash) = &mut self.hash {
                hash.update(&buf[..n]);
            }
        } else if !buf.is_empty()
            && let Some(hash) = self.hash.take()
            && hash.finish()? != self.wanted
        {
            return Err(SourceError::corrupt(OTHER_DIFF_ID).into());
        }
        Ok(n)
    }
}

/// Bytes that are handed to the thread at once.
const PIECE: usize = 256 << 10;
/// Full pieces that may wait for the thread.
const PIECES_AHEAD: usize = 4;

/// SHA-256 of bytes that come in parts.
enum Hash {
    Here(Sha256),
    Thread {
        piece: Vec<u8>,
        full: SyncSender<Vec<u8>>,
        /// Pieces to be filled again.
        empty: Receiver<Vec<u8>>,
        thread: JoinHandle<[u8; 32]>,
    },
}

impl Hash {
    /// `None` where the system allows no more threads. The thread ends with what it is sent.
    fn in_thread() -> Option<Self> {
        let (full, receive_full) = sync_channel::<Vec<u8>>(PIECES_AHEAD);
        let (send_empty, empty) = channel();
        let work = move || {
            let mut hash = Sha256::new();
            for mut piece in receive_full {
                hash.update(&piece);
                piece.clear();
                // The sender may be done.
                let _ = send_empty.send(piece);
            }
            hash.finalize().into()
        };
        let thread = Builder::new().name("digest".to_owned()).spawn(work);
        Some(Self::Thread {
            piece: Vec::with_capacity(PIECE),
            full,
            empty,
            thread: thread.ok()?,
        })
    }

    fn update(&mut self, mut bytes: &[u8]) {
        match self {
            Self::Here(hash) => hash.update(bytes),
            Self::Thread {
                piece, full, empty, ..
            } => {
                while !bytes.is_empty() {
                    let (now, rest) = bytes.split_at(bytes.len().min(PIECE - piece.len()));
                    piece.extend_from_slice(now);
                    bytes = rest;
                    if piece.len() == PIECE {
                        let next = empty.try_recv();
                        let next = next.unwrap_or_else(|_| Vec::with_capacity(PIECE));
                        // A thread that is gone is noticed when its result is taken.
                        let _ = full.send(std::mem::replace(piece, next));
                    }
                }
            }
        }
    }

    fn finish(self) -> std::io::Result<[u8; 32]> {
        match self {
            Self::Here(hash) => Ok(hash.finalize().into()),
            Self::Thread {
                piece,
                full,
                thread,
                ..
            } => {
                let _ = full.send(piece);
                drop(full);
                let gone = |_| std::io::Error::other("the digest thread is gone");
                thread.join().map_err(gone)
            }
        }
    }
}

const OTHER_DIFF_ID: &str =
    "unpacked, its digest is another than the one that the image has for it (rootfs.diff_ids)";

/// The same behind `sha256:`, as documents have it. `place` is the document.
fn digest<'a>(place: &str, digest: Option<&'a Value>) -> Result<&'a str> {
    let digest = digest.and_then(Value::as_str).unwrap_or_default();
    digest.strip_prefix("sha256:").and_then(hex).ok_or_else(|| {
        let what = format!("'{digest}' is no digest of SHA-256");
        broken(place, &what)
    })
}

fn broken(place: &str, what: &str) -> Error {
    Error::from(SourceError::corrupt(what).in_source(place))
}

fn parse(place: &str, text: &[u8]) -> Result<Value> {
    serde_json::from_slice(text).map_err(|e| broken(place, &e.to_string()))
}

/// Compares blobs with their digests, several at a time. Of several errors that of the first blob counts.
fn verify(blobs: &[Blob], threads: usize) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<(usize, Error)>> = Mutex::default();
    let work = || {
        while let Some((n, blob)) = {
            let n = next.fetch_add(1, Ordering::Relaxed);
            blobs.get(n).map(|blob| (n, blob))
        } {
            if let Err(e) = is_whole(blob) {
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

fn is_whole(blob: &Blob) -> Result<()> {
    let name = &blob.member.name;
    let mut reader: Box<dyn Read> = Box::new(blob.member.open()?);
    if blob.unpacked {
        let (_, unpacked) =
            super::compressed::open(name, blob.member.open()?).map_err(Error::from)?;
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
            // A decoder's error says where; one of the host comes from a file that was opened.
            Err(e) => return Err(Error::from(SourceError::from(e).in_source(name))),
        };
        hash.update(&buf[..n]);
        len += n as u64;
        let missing = MAGIC_LEN - magic.len();
        magic.extend_from_slice(&buf[..n.min(missing)]);
    }
    let found: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    if blob.size.is_some_and(|size| size != len) {
        return Err(broken(
            name,
            "its length is not the one that it should have",
        ));
    }
    if found != blob.digest {
        let what = match blob.unpacked {
            false => "its digest is another than its name",
            true => "its digest is another than the one that the image has for it",
        };
        return Err(broken(name, what));
    }
    // One that is compressed is compared when it is unpacked.
    let is_plain = Compression::detect(&magic).is_ok_and(|c| c == Compression::Plain);
    match &blob.diff_id {
        Some(id) if is_plain && *id != found => Err(broken(name, OTHER_DIFF_ID)),
        _ => Ok(()),
    }
}

/// Linux on this processor, by the names that Go has for them.
fn this_platform() -> String {
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

/// Platform of an entry or a config: `linux/arm64/v8`.
fn platform_of(platform: &Value) -> Option<String> {
    let part = |name| platform.get(name).and_then(Value::as_str);
    let mut text = format!("{}/{}", part("os")?, part("architecture")?);
    if let Some(variant) = part("variant") {
        text.push('/');
        text.push_str(variant);
    }
    Some(text)
}

/// Whether something for `platform` is wanted: a variant counts only if one was asked for.
fn is_for(wanted: &str, platform: &str) -> bool {
    let rest = platform.strip_prefix(wanted);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_same_in_a_thread_and_without() {
        for len in [0, 1, PIECE - 1, PIECE, 3 * PIECE + 7, 20 * PIECE] {
            let bytes: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
            let wanted: [u8; 32] = Sha256::digest(&bytes).into();
            for threads in [1, 2] {
                let mut read = Vec::new();
                let mut reader = Digested::new(&bytes[..], wanted, threads);
                reader.read_to_end(&mut read).unwrap();
                assert!(read == bytes, "{len} bytes, {threads} threads");
                let mut other = Digested::new(&bytes[..], [7; 32], threads);
                let e = other.read_to_end(&mut read).unwrap_err();
                assert!(SourceError::from(e).to_string().contains("diff_ids"));
            }
        }
    }
}
