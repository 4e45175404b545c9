//! OCI image layouts.
//!
//! ```text
//! index.json ──► manifest, or another index by platform ──► layers, lowest first
//!                blobs/sha256/DIGEST                        blobs/sha256/DIGEST
//! ```
//!
//! Source: the OCI Image Format Specification, `image-layout.md`, `image-index.md` and
//! `manifest.md`.

use super::blob::{Blob, is_for, platform_of, this_platform, verify};
use super::document::{broken, digest, parse};
use super::files::{Files, Member};
use crate::source::error::SourceError;
use crate::{Error, Result};
use serde_json::Value;

/// Maximum depth of nested indexes.
const DEPTH_MAX: usize = 8;

/// Annotation with the name of an image in a layout.
const NAME: &str = "org.opencontainers.image.ref.name";

/// Layers of one image of the layout, lowest first, and its config.
pub(super) fn layers(
    files: &Files,
    name: Option<&str>,
    platform: Option<&str>,
) -> Result<(Vec<Blob>, Option<Vec<u8>>)> {
    let layout = OciLayout {
        files,
        name,
        platform: platform.map_or_else(this_platform, str::to_owned),
        any: platform.is_none(),
    };
    layout.layers()
}

struct OciLayout<'a> {
    files: &'a Files,
    name: Option<&'a str>,
    platform: String,
    /// No platform was given: a single image is taken whatever its platform.
    any: bool,
}

impl OciLayout<'_> {
    fn layers(&self) -> Result<(Vec<Blob>, Option<Vec<u8>>)> {
        let top = self.files.find("index.json")?;
        let index = document(&top)?;
        let (mut at, mut has_platform) = self.select_manifest(&top.name, &index, true)?;
        for _ in 0..DEPTH_MAX {
            verify(std::slice::from_ref(&at), 1)?;
            let place = &at.member.name;
            let document = document(&at.member)?;
            if document.get("manifests").is_some() {
                (at, has_platform) = self.select_manifest(place, &document, false)?;
                continue;
            }
            let layers = document.get("layers").and_then(Value::as_array);
            let layers = layers.ok_or_else(|| broken(place, "neither an index nor a manifest"))?;
            if !self.any && !has_platform {
                self.check_config(place, &document)?;
            }
            let layers = layers.iter().map(|layer| self.layer(place, layer));
            let mut layers = layers.collect::<Result<Vec<Blob>>>()?;
            let config = self.config(place, &document)?;
            if let Some(config) = &config {
                let media = document.get("config").and_then(|c| c.get("mediaType"));
                let is_image = media.and_then(Value::as_str).is_none_or(is_image_config);
                add_diff_ids(config, is_image, &mut layers)?;
            }
            let bytes = config.map(|config| config.document());
            return Ok((layers, bytes.transpose()?));
        }
        Err(broken(&top.name, "indexes within indexes"))
    }

    /// Fails unless the config of the manifest at `place` states the requested platform.
    fn check_config(&self, place: &str, manifest: &Value) -> Result<()> {
        let config = manifest.get("config");
        let config = config.ok_or_else(|| broken(place, "a manifest without config"))?;
        let config = self.blob(place, config)?;
        verify(std::slice::from_ref(&config), 1)?;
        let found = platform_of(&document(&config.member)?);
        match found {
            Some(found) if is_for(&self.platform, &found) => Ok(()),
            found => Err(Error::usage(format_args!(
                "{place}: no image for {}; there are: {}",
                self.platform,
                found.as_deref().unwrap_or("one that states no platform")
            ))),
        }
    }

    /// Selects the image of an index by name and platform. Also returns whether its entry states a
    /// platform.
    fn select_manifest(&self, place: &str, index: &Value, top: bool) -> Result<(Blob, bool)> {
        let all = index.get("manifests").and_then(Value::as_array);
        let all = all.ok_or_else(|| broken(place, "no list of manifests"))?;
        let name_of = |entry: &Value| {
            let annotation = entry.get("annotations").and_then(|a| a.get(NAME));
            annotation.and_then(Value::as_str).map(str::to_owned)
        };
        let requested = self.name.filter(|_| top);
        let named =
            |entry: &&Value| requested.is_none_or(|name| name_of(entry).as_deref() == Some(name));
        let found: Vec<&Value> = all.iter().filter(named).collect();
        // Attestations have a platform that matches nothing.
        let of_platform =
            |entry: &&&Value| platform(entry).is_none_or(|p| is_for(&self.platform, &p));
        let mut fitting: Vec<&Value> = found.iter().filter(of_platform).copied().collect();
        if fitting.is_empty() && self.any && found.len() == 1 {
            fitting.clone_from(&found);
        }
        match fitting[..] {
            [one] => Ok((self.blob(place, one)?, platform(one).is_some())),
            [] if found.is_empty() => {
                let name = requested.unwrap_or_default();
                let names: Vec<String> = all.iter().filter_map(name_of).collect();
                Err(Error::usage(format_args!(
                    "{place}: no image with the name '{name}'; there are: {}",
                    names.join(", ")
                )))
            }
            [] => {
                let platforms: Vec<String> = found.iter().filter_map(|e| platform(e)).collect();
                Err(Error::usage(format_args!(
                    "{place}: no image for {}; there are: {}",
                    self.platform,
                    platforms.join(", ")
                )))
            }
            _ => {
                let names: Vec<String> = fitting.iter().filter_map(|e| name_of(e)).collect();
                Err(Error::usage(format_args!(
                    "{place}: {} images fit; name one ({}:NAME): {}",
                    fitting.len(),
                    self.files.written(),
                    names.join(", ")
                )))
            }
        }
    }

    /// Verified config of a manifest, if it names one.
    fn config(&self, place: &str, manifest: &Value) -> Result<Option<Member>> {
        let Some(config) = manifest.get("config") else {
            return Ok(None);
        };
        let config = self.blob(place, config)?;
        verify(std::slice::from_ref(&config), 1)?;
        Ok(Some(config.member))
    }

    fn layer(&self, place: &str, layer: &Value) -> Result<Blob> {
        let media = layer.get("mediaType").and_then(Value::as_str);
        let media = media.unwrap_or_default();
        let is_tar = media.ends_with(".tar")
            || media.ends_with(".tar.gzip")
            || media.ends_with(".tar+gzip")
            || media.ends_with(".tar+zstd");
        if !is_tar {
            let what = format!("a layer of type '{media}', which is not a tar");
            let error = SourceError::unsupported(what).in_source(place);
            return Err(Error::from(error));
        }
        self.blob(place, layer)
    }

    /// Blob that a descriptor in the document at `place` names.
    fn blob(&self, place: &str, entry: &Value) -> Result<Blob> {
        let hex = digest(place, entry.get("digest"))?;
        let size = entry.get("size").and_then(Value::as_u64);
        let no_size = || broken(place, &format!("sha256:{hex} has no size in bytes"));
        Ok(Blob {
            member: self.files.find(&format!("blobs/sha256/{hex}"))?,
            digest: hex.to_owned(),
            size: Some(size.ok_or_else(no_size)?),
            unpacked: false,
            diff_id: None,
        })
    }
}

/// Returns true for the media type of the config of an image, which states the digests of its layers. Artifacts have
/// configs of other types.
fn is_image_config(media: &str) -> bool {
    matches!(
        media,
        "application/vnd.oci.image.config.v1+json"
            | "application/vnd.docker.container.image.v1+json"
    )
}

/// Adds to layers the digests of their plain tars from the config. That of an image must have them.
fn add_diff_ids(config: &Member, is_image: bool, layers: &mut [Blob]) -> Result<()> {
    let name = &config.name;
    let text = config.document()?;
    let config = match parse(name, &text) {
        Err(_) if !is_image => return Ok(()),
        config => config?,
    };
    let ids = config.get("rootfs").and_then(|r| r.get("diff_ids"));
    let ids = match ids {
        None if !is_image => return Ok(()),
        ids => ids.and_then(Value::as_array),
    };
    let ids = ids.ok_or_else(|| broken(name, "no digests of layers (rootfs.diff_ids)"))?;
    if ids.len() != layers.len() {
        let what = format!("{} layers, with {} digests", layers.len(), ids.len());
        return Err(broken(name, &what));
    }
    for (layer, id) in layers.iter_mut().zip(ids) {
        layer.diff_id = Some(digest(name, Some(id))?.to_owned());
    }
    Ok(())
}

fn platform(entry: &Value) -> Option<String> {
    platform_of(entry.get("platform")?)
}

fn document(member: &Member) -> Result<Value> {
    parse(&member.name, &member.document()?)
}
