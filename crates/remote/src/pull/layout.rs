//! Copies of container images: the manifest for a platform and its blobs become an OCI layout in a directory.

use crate::address::{Address, sha256_hex};
use crate::error::{Error, Kind, Result};
use crate::location::Location;
use crate::push::Step;
use crate::registry::{self, Registry};
use crate::retry::RetryPolicy;
use crate::runtime::runtime;
use crate::source::{self, Object};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Bytes of one request for a blob. Unit: bytes.
const PART: u64 = 4 << 20;

/// Copies the container image of a platform to an OCI layout in a directory, which exists and is empty.
///
/// `report` learns of each step, and stops the copy if it returns false.
///
/// # Errors
/// Kinds of [`Error`], each with one sentence that names the location.
pub fn copy_layout(
    location: &Location,
    platform: Option<&str>,
    dir: &Path,
    retry: RetryPolicy,
    report: &dyn Fn(&Step) -> bool,
) -> Result<()> {
    let place = location.to_string();
    let Address::Oci(reference) = &location.address else {
        let what = "a container image is docker://REGISTRY/NAME[:TAG]";
        return Err(Error::new(Kind::Usage, place, what));
    };
    let registry = location.connections().registry(reference, &place, retry)?;
    let copy = Copy {
        registry: &registry,
        dir,
        report,
    };
    runtime()?.block_on(copy.run(&reference.version, platform))
}

struct Copy<'a> {
    registry: &'a Registry,
    dir: &'a Path,
    report: &'a dyn Fn(&Step) -> bool,
}

impl Copy<'_> {
    fn cannot_write(&self, e: io::Error) -> Error {
        Error::new(Kind::Unavailable, self.dir.display(), e)
    }

    async fn run(&self, version: &str, platform: Option<&str>) -> Result<()> {
        let manifest = registry::container(self.registry, version, platform).await?;
        let write = |name: &str, bytes: &[u8]| {
            fs::write(self.dir.join(name), bytes).map_err(|e| self.cannot_write(e))
        };
        fs::create_dir_all(self.dir.join("blobs/sha256")).map_err(|e| self.cannot_write(e))?;
        write("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        let object = &manifest.object;
        let layers = object["layers"].as_array().map_or(&[][..], Vec::as_slice);
        for blob in layers.iter().chain([&object["config"]]) {
            self.blob(blob).await?;
        }
        let digest = &manifest.digest;
        let name = format!("blobs/sha256/{}", digest.trim_start_matches("sha256:"));
        write(&name, &manifest.bytes)?;
        let media = object["mediaType"]
            .as_str()
            .unwrap_or(registry::media::MANIFEST);
        let size = manifest.bytes.len();
        let entry = json!({"mediaType": media, "digest": digest, "size": size});
        let index = json!({"schemaVersion": 2, "manifests": [entry]});
        write("index.json", index.to_string().as_bytes())
    }

    /// Copies a blob and compares its digest.
    async fn blob(&self, descriptor: &Value) -> Result<()> {
        let digest = descriptor["digest"].as_str();
        let digits = digest.and_then(|digest| Some((digest, sha256_hex(digest)?)));
        let (Some((digest, digits)), Some(size)) = (digits, descriptor["size"].as_u64()) else {
            let what = "the manifest names a blob without a SHA-256 digest or a size";
            return Err(self.registry.error(Kind::Unsupported, what));
        };
        let blob = source::blob(self.registry, digest, size)?;
        let path = self.dir.join("blobs/sha256").join(digits);
        let mut file = File::create(path).map_err(|e| self.cannot_write(e))?;
        let mut hash = Sha256::new();
        let mut at = 0;
        while at < size {
            let step = Step {
                stage: "fetch",
                bytes: at,
                total_bytes: size,
            };
            if !(self.report)(&step) {
                return Err(self.registry.error(Kind::Unavailable, "stopped"));
            }
            let part = blob.read(at..(at + PART).min(size)).await?;
            hash.update(&part);
            file.write_all(&part).map_err(|e| self.cannot_write(e))?;
            at += part.len() as u64;
        }
        match hex::encode(hash.finalize()) == digits {
            true => Ok(()),
            false => Err(self.registry.error(
                Kind::Corrupt,
                format_args!("the blob {digest} does not match its digest"),
            )),
        }
    }
}
