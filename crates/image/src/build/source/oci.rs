//! Layouts of OCI images: which tars their layers are.
//!
//! ```text
//!  index.json ──► manifest, or another index by platform ──► layers, lowest first
//!                 blobs/sha256/DIGEST                        blobs/sha256/DIGEST
//! ```
//!
//! Every blob is compared with its digest before anything is built from it.
//!
//! Source: the OCI Image Format Specification, `image-layout.md`, `image-index.md` and `manifest.md`.

use super::error::SourceError;
use crate::build::Source;
use crate::build::tree::{ROOT, Tree};
use crate::threads;
use crate::{Error, Result};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Indexes and manifests are not longer, as registries have it. Unit: bytes.
const DOCUMENT_MAX: u64 = 4 << 20;

/// Indexes within indexes.
const DEPTH_MAX: usize = 8;

/// Annotation with the name of an image in a layout.
const NAME: &str = "org.opencontainers.image.ref.name";

/// The layers of an image in the layout `dir`, lowest first: of the one with this name, if one is given, and for this platform
/// (`linux/arm64`, perhaps with a variant), by default Linux on this machine's processor.
///
/// # Errors
/// `Source` for what is no such layout, or a blob whose digest is another; `Usage` if there are several images and none is chosen;
/// `Io` for what cannot be read.
pub fn oci_layers(dir: &Path, name: Option<&str>, platform: Option<&str>) -> Result<Vec<Source>> {
    let layout = Layout {
        dir,
        name,
        platform: platform.map_or_else(this_platform, str::to_owned),
        any: platform.is_none(),
    };
    let tars = layout.layers()?;
    verify(&tars, super::super::available_threads())?;
    Ok(tars.into_iter().map(|tar| Source::Tar(tar.path)).collect())
}

/// What to tell somebody who builds an image of a layout instead of the image that it holds.
pub(crate) fn hint(tree: &Tree) -> Option<String> {
    let names = tree.children(ROOT).iter().map(|entry| tree.name(entry));
    let is_part = |name: &&[u8]| matches!(*name, b"oci-layout" | b"index.json" | b"blobs");
    let is_layout = names.filter(is_part).count() == 3;
    is_layout.then(|| {
        "the tree is a layout of OCI, with container images as blobs; an image of what they hold comes from its directory, as oci:DIR"
            .to_owned()
    })
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

struct Layout<'a> {
    dir: &'a Path,
    name: Option<&'a str>,
    platform: String,
    /// Nobody asked for a platform: if there is only one image, it is that.
    any: bool,
}

/// A file and what it should be.
struct Blob {
    path: PathBuf,
    digest: String,
    size: Option<u64>,
}

impl Layout<'_> {
    fn layers(&self) -> Result<Vec<Blob>> {
        let path = self.dir.join("index.json");
        let index = read(&path)?;
        let index = parse(&path, &index)?;
        let mut at = self.chosen(&path, &index, true)?;
        for _ in 0..DEPTH_MAX {
            verify(std::slice::from_ref(&at), 1)?;
            let document = parse(&at.path, &read(&at.path)?)?;
            if document.get("manifests").is_some() {
                at = self.chosen(&at.path, &document, false)?;
                continue;
            }
            let layers = document.get("layers").and_then(Value::as_array);
            let layers =
                layers.ok_or_else(|| broken(&at.path, "neither an index nor a manifest"))?;
            return layers
                .iter()
                .map(|layer| self.layer(&at.path, layer))
                .collect();
        }
        Err(broken(&path, "indexes within indexes"))
    }

    /// The image that an index has for the name and platform.
    fn chosen(&self, path: &Path, index: &Value, top: bool) -> Result<Blob> {
        let all = index.get("manifests").and_then(Value::as_array);
        let all = all.ok_or_else(|| broken(path, "no list of manifests"))?;
        let name_of = |entry: &Value| {
            let annotation = entry.get("annotations").and_then(|a| a.get(NAME));
            annotation.and_then(Value::as_str).map(str::to_owned)
        };
        let wanted = self.name.filter(|_| top);
        let named =
            |entry: &&Value| wanted.is_none_or(|name| name_of(entry).as_deref() == Some(name));
        let found: Vec<&Value> = all.iter().filter(named).collect();
        // Attestations say that they are for no platform.
        let of_platform = |entry: &&&Value| platform(entry).is_none_or(|p| self.is_for(&p));
        let mut fitting: Vec<&Value> = found.iter().filter(of_platform).copied().collect();
        if fitting.is_empty() && self.any && found.len() == 1 {
            fitting.clone_from(&found);
        }
        match fitting[..] {
            [one] => self.blob(path, one),
            [] if found.is_empty() => {
                let name = wanted.unwrap_or_default();
                let names: Vec<String> = all.iter().filter_map(name_of).collect();
                Err(Error::usage(format_args!(
                    "{}: no image with the name '{name}'; there are: {}",
                    path.display(),
                    names.join(", ")
                )))
            }
            [] => {
                let platforms: Vec<String> = found.iter().filter_map(|e| platform(e)).collect();
                Err(Error::usage(format_args!(
                    "{}: no image for {}; there are: {}",
                    path.display(),
                    self.platform,
                    platforms.join(", ")
                )))
            }
            _ => {
                let names: Vec<String> = fitting.iter().filter_map(|e| name_of(e)).collect();
                Err(Error::usage(format_args!(
                    "{}: {} images fit; name one (oci:DIR:NAME): {}",
                    path.display(),
                    fitting.len(),
                    names.join(", ")
                )))
            }
        }
    }

    /// Whether something for `platform` is wanted: a variant counts only if one was asked for.
    fn is_for(&self, platform: &str) -> bool {
        let rest = platform.strip_prefix(&self.platform);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    fn layer(&self, path: &Path, layer: &Value) -> Result<Blob> {
        let media = layer.get("mediaType").and_then(Value::as_str);
        let media = media.unwrap_or_default();
        let is_tar = media.ends_with(".tar")
            || media.ends_with(".tar.gzip")
            || media.ends_with(".tar+gzip")
            || media.ends_with(".tar+zstd");
        if !is_tar {
            let what = format!("a layer of type '{media}', which is no tar");
            let error = SourceError::unsupported(what).in_source(&path.display().to_string());
            return Err(Error::source(error));
        }
        self.blob(path, layer)
    }

    /// The blob that an entry of the document at `path` names.
    fn blob(&self, path: &Path, entry: &Value) -> Result<Blob> {
        let digest = entry.get("digest").and_then(Value::as_str);
        let hex = digest.and_then(|digest| digest.strip_prefix("sha256:"));
        let is_hex = |hex: &&str| {
            hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        let hex = hex.filter(is_hex).ok_or_else(|| {
            let what = format!("'{}' is no digest of SHA-256", digest.unwrap_or_default());
            broken(path, &what)
        })?;
        Ok(Blob {
            path: self.dir.join("blobs/sha256").join(hex),
            digest: hex.to_owned(),
            size: entry.get("size").and_then(Value::as_u64),
        })
    }
}

/// Platform of an entry: `linux/arm64/v8`.
fn platform(entry: &Value) -> Option<String> {
    let platform = entry.get("platform")?;
    let part = |name| platform.get(name).and_then(Value::as_str);
    let mut text = format!("{}/{}", part("os")?, part("architecture")?);
    if let Some(variant) = part("variant") {
        text.push('/');
        text.push_str(variant);
    }
    Some(text)
}

fn broken(path: &Path, what: &str) -> Error {
    let error = SourceError::corrupt(what);
    Error::source(error.in_source(&path.display().to_string()))
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|e| Error::io(path.display(), "cannot open the source", e))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let read = open(path)?.take(DOCUMENT_MAX + 1).read_to_end(&mut text);
    read.map_err(|e| Error::io(path.display(), "cannot read", e))?;
    if text.len() as u64 > DOCUMENT_MAX {
        return Err(Error::limit(path.display(), "longer than 4 MiB"));
    }
    Ok(text)
}

fn parse(path: &Path, text: &[u8]) -> Result<Value> {
    serde_json::from_slice(text).map_err(|e| broken(path, &e.to_string()))
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
    let mut file = open(&blob.path)?;
    let (mut hash, mut len) = (Sha256::new(), 0);
    let mut buf = vec![0; 256 << 10];
    loop {
        let n = file.read(&mut buf);
        let n = n.map_err(|e| Error::io(blob.path.display(), "cannot read", e))?;
        if n == 0 {
            break;
        }
        hash.update(&buf[..n]);
        len += n as u64;
    }
    let found: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    if blob.size.is_some_and(|size| size != len) {
        return Err(broken(
            &blob.path,
            "its length is not the one that it should have",
        ));
    }
    if found != blob.digest {
        return Err(broken(&blob.path, "its digest is another than its name"));
    }
    Ok(())
}
