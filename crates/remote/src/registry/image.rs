//! Image of a reference: the manifest for this machine, and its layer that is an EROFS image.

use super::media;
use super::repository::{Manifest, Registry};
use crate::address::{Stated, sha256_hex};
use crate::client::json;
use crate::error::{Kind, Result};
use serde_json::Value;
use std::fmt::Write as _;
use std::ops::Range;

/// Largest number of layers that are opened, devices included. Each takes up to four open files.
const LAYERS_MAX: usize = 200;

/// Longest configuration of an image. Unit: bytes.
const CONFIG_MAX: usize = 4 << 20;

/// Layer of a manifest that is an EROFS image.
pub(crate) struct Layer {
    pub(crate) digest: String,
    /// Size of the blob. Unit: bytes.
    pub(crate) size: u64,
    /// Root hash that the manifest states, in hexadecimal digits.
    pub(crate) root_hash: Option<String>,
    pub(crate) stated: Stated,
    /// Chunk index at the end of the blob.
    pub(crate) index: Option<IndexPlace>,
}

/// EROFS image of a manifest with its devices, in the order of its device table.
pub(crate) struct LayeredImage {
    pub(crate) image: Layer,
    pub(crate) devices: Vec<Layer>,
}

/// Position of a chunk index in its blob, and its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexPlace {
    /// Start of the index, which is the end of the image. Unit: bytes.
    pub(crate) start: u64,
    pub(crate) digest: String,
}

/// Reads the manifest of an image. An index is followed to the manifest of this machine.
pub(crate) async fn image(registry: &Registry, version: &str) -> Result<Manifest> {
    let manifest = registry.manifest(version).await?;
    let Some(children) = manifest.object["manifests"].as_array() else {
        return Ok(manifest);
    };
    let digest = child(children).ok_or_else(|| {
        let held = describe(children, &|child| platform(child));
        let here = this_platform();
        let what = format_args!("the index holds no manifest for {here}: {held}");
        registry.error(Kind::Unsupported, what)
    })?;
    registry.manifest(&digest).await
}

/// Manifest of an image that is in the cache, by its digest.
pub(crate) fn kept_image(registry: &Registry, digest: &str) -> Option<Manifest> {
    let manifest = registry.kept_manifest(digest)?;
    match manifest.object["manifests"].as_array() {
        None => Some(manifest),
        Some(children) => registry.kept_manifest(&child(children)?),
    }
}

/// Reads the manifest of a container image for a platform. `None`: this machine.
pub(crate) async fn container(
    registry: &Registry,
    version: &str,
    requested: Option<&str>,
) -> Result<Manifest> {
    let manifest = registry.manifest(version).await?;
    let Some(children) = manifest.object["manifests"].as_array() else {
        return Ok(manifest);
    };
    let requested = requested.map_or_else(this_platform, str::to_owned);
    let with_variant = |child: &Value| match child["platform"]["variant"].as_str() {
        Some(variant) => format!("{}/{variant}", platform(child)),
        None => platform(child),
    };
    let fits = |child: &&Value| with_variant(child) == requested || platform(child) == requested;
    // Images of tars come before those of other layers.
    let found = children.iter().find(fits);
    let digest = found.and_then(|child| child["digest"].as_str());
    let Some(digest) = digest.filter(|digest| sha256_hex(digest).is_some()) else {
        let held = describe(children, &|child| platform(child));
        let what = format_args!("the index holds no manifest for {requested}: {held}");
        return Err(registry.error(Kind::Unsupported, what));
    };
    registry.manifest(digest).await
}

/// Finds the EROFS images of a manifest, the lowest first, each with the layers that are its devices.
///
/// A layer with the role "device" belongs to the first EROFS image after it without that role, as the EROFS image
/// specification says. Layers of other media types are left out.
pub(crate) fn images(registry: &Registry, manifest: &Value) -> Result<Vec<LayeredImage>> {
    let unusable = |what: &str| registry.error(Kind::Unsupported, what);
    let layers = list(&manifest["layers"]);
    let (mut found, mut devices) = (Vec::new(), Vec::new());
    for layer in layers {
        let media = media_type(layer);
        match layer["annotations"][media::ROLE].as_str() {
            _ if media.starts_with(media::CHUNK_INDEX) => {}
            Some(media::DEVICE) => devices.push(described_layer(registry, layer)?),
            _ if !media::is_erofs(&media) => {}
            Some("overlay-data") => {
                let what = "the manifest holds a layer with the role 'overlay-data', whose files another layer names by their paths";
                return Err(unusable(what));
            }
            _ => found.push(LayeredImage {
                image: described_layer(registry, layer)?,
                devices: std::mem::take(&mut devices),
            }),
        }
    }
    if found.is_empty() {
        let held = describe(layers, &media_type);
        let what = format!("the manifest holds no EROFS image: {held}");
        return Err(unusable(&what));
    }
    let count = found.iter().map(|image| image.devices.len() + 1).sum();
    check_count(registry, count)?;
    match devices.is_empty() {
        true => Ok(found),
        false => Err(unusable(
            "the last layers of the manifest have the role 'device', and no image follows that has data there",
        )),
    }
}

/// Returns the only EROFS image of a manifest.
pub(crate) fn only_image(registry: &Registry, manifest: &Value) -> Result<LayeredImage> {
    let mut images = images(registry, manifest)?;
    match (images.pop(), images.len()) {
        (Some(image), 0) => Ok(image),
        _ => {
            let held = describe(list(&manifest["layers"]), &media_type);
            let what = format_args!(
                "the manifest holds several EROFS images, and only one can be opened: {held}"
            );
            Err(registry.error(Kind::Unsupported, what))
        }
    }
}

/// Finds all layers of a manifest that are EROFS images. Each has the SHA-256 of its content before compression, from the
/// configuration, in hexadecimal digits.
pub(crate) async fn layers(registry: &Registry, manifest: &Value) -> Result<Vec<(String, Layer)>> {
    let unusable = |what: &str| registry.error(Kind::Unsupported, what);
    let config = manifest["config"]["digest"].as_str();
    let config = config.filter(|digest| sha256_hex(digest).is_some());
    let no_config = || unusable("the manifest names no configuration by its SHA-256 digest");
    let config = registry
        .blob(config.ok_or_else(no_config)?, CONFIG_MAX)
        .await?;
    let config = json::parse(&config, &registry.place, "configuration of the image")?;
    let diff_ids = list(&config["rootfs"]["diff_ids"]);
    let layers = list(&manifest["layers"]);
    let mut found = Vec::new();
    for (at, layer) in layers.iter().enumerate() {
        if !media::is_erofs(&media_type(layer)) {
            continue;
        }
        let diff_id = diff_ids.get(at).and_then(Value::as_str);
        let no_id = || unusable("the configuration has no diffID for a layer");
        let diff_id = diff_id.and_then(sha256_hex).ok_or_else(no_id)?;
        let layer = described_layer(registry, layer)?;
        // A layer that is not compressed is its own uncompressed form.
        if sha256_hex(&layer.digest) != Some(diff_id) {
            let what = format_args!(
                "the configuration names a layer sha256:{diff_id}, which is {} in the manifest",
                layer.digest
            );
            return Err(registry.error(Kind::Corrupt, what));
        }
        found.push((diff_id.to_owned(), layer));
    }
    if found.is_empty() {
        let held = describe(layers, &media_type);
        return Err(unusable(&format!(
            "the manifest holds no EROFS image: {held}"
        )));
    }
    check_count(registry, found.len())?;
    Ok(found)
}

/// Fails for a manifest with more layers than can be open at once.
fn check_count(registry: &Registry, count: usize) -> Result<()> {
    if count <= LAYERS_MAX {
        return Ok(());
    }
    let what = format_args!(
        "the manifest holds {count} EROFS layers, and at most {LAYERS_MAX} can be opened"
    );
    Err(registry.error(Kind::Limit, what))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn media_type(layer: &Value) -> String {
    let media = layer["mediaType"].as_str();
    media.unwrap_or("no media type").to_owned()
}

/// Layer that an entry of a manifest describes.
fn described_layer(registry: &Registry, layer: &Value) -> Result<Layer> {
    let unusable = |what: &str| registry.error(Kind::Unsupported, what);
    let media = media_type(layer);
    if ["zstd", "gzip"]
        .iter()
        .any(|suffix| media.ends_with(suffix))
    {
        let what =
            format!("the layer is compressed as a whole ({media}), which ranges cannot read");
        return Err(unusable(&what));
    }
    let digest = layer["digest"]
        .as_str()
        .filter(|digest| sha256_hex(digest).is_some());
    let (Some(digest), Some(size)) = (digest, layer["size"].as_u64()) else {
        return Err(unusable("the layer has no SHA-256 digest or no size"));
    };
    let note = |name: &str| layer["annotations"][name].as_str();
    let root = note(media::ROOT_DIGEST);
    let start = note(media::CHUNK_INDEX_RANGE).and_then(|range| index_start(range, size));
    let index_digest = note(media::CHUNK_INDEX_DIGEST).filter(|d| sha256_hex(d).is_some());
    Ok(Layer {
        index: start.zip(index_digest).map(|(start, digest)| IndexPlace {
            start,
            digest: digest.to_owned(),
        }),
        digest: digest.to_owned(),
        size,
        stated: Stated {
            metadata: note(media::METADATA).and_then(range),
            hash_offset: note(media::HASH_OFFSET).and_then(|offset| offset.parse().ok()),
            start: note(media::START).map_or_else(Vec::new, ranges),
        },
        root_hash: root.map(|root| root.strip_prefix("sha256:").unwrap_or(root).to_owned()),
    })
}

/// Start of the range `START[:END]` that ends with a blob of `size` bytes.
fn index_start(range: &str, size: u64) -> Option<u64> {
    let (start, end) = range
        .split_once(':')
        .map_or((range, None), |(start, end)| (start, Some(end)));
    let start: u64 = start.parse().ok()?;
    let end = end.map_or(Some(size), |end| end.parse().ok())?;
    (start < end && end == size).then_some(start)
}

/// Range `START:END` of an annotation.
fn range(text: &str) -> Option<Range<u64>> {
    let (start, end) = text.split_once(':')?;
    Some(start.parse().ok()?..end.parse().ok()?)
}

/// Ranges of an annotation, one after another. What is no range is left out, and all of a text that is too long.
fn ranges(text: &str) -> Vec<Range<u64>> {
    let parts = text.split(',').filter(|_| text.len() <= media::START_MAX);
    parts.filter_map(range).collect()
}

/// Digest of the manifest for this machine. One with `os.features` of EROFS is preferred.
fn child(children: &[Value]) -> Option<String> {
    let here = this_platform();
    let fits = |child: &&Value| platform(child) == here;
    let has_erofs = |child: &&Value| {
        let features = child["platform"]["os.features"].as_array();
        features.is_some_and(|list| list.iter().any(|feature| feature == media::FEATURE))
    };
    let found = children.iter().filter(fits).find(has_erofs);
    let found = found
        .or_else(|| children.iter().find(fits))
        .or(match children {
            [only] => Some(only),
            _ => None,
        });
    let digest = found?["digest"].as_str()?;
    sha256_hex(digest).map(|_| digest.to_owned())
}

fn platform(child: &Value) -> String {
    let part = |name: &str| {
        child["platform"][name]
            .as_str()
            .unwrap_or("unknown")
            .to_owned()
    };
    format!("{}/{}", part("os"), part("architecture"))
}

/// Platform of this machine, by the names of Go.
pub(crate) fn this_platform() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    };
    format!("linux/{architecture}")
}

/// Names of what a list holds, each with its number: `application/x (2), application/y`.
fn describe(list: &[Value], name: &dyn Fn(&Value) -> String) -> String {
    /// Number of names in a message.
    const SHOWN: usize = 5;
    let mut names: Vec<(String, usize)> = Vec::new();
    for item in list {
        let name: String = name(item).escape_debug().take(100).collect();
        match names.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => names.push((name, 1)),
        }
    }
    let mut out = String::new();
    for (name, count) in names.iter().take(SHOWN) {
        let comma = if out.is_empty() { "" } else { ", " };
        let _ = match count {
            1 => write!(out, "{comma}{name}"),
            _ => write!(out, "{comma}{name} ({count})"),
        };
    }
    match names.len() {
        0 => "nothing".to_owned(),
        n if n > SHOWN => format!("{out} and {} more", n - SHOWN),
        _ => out,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_manifest_of_this_machine_is_chosen() {
        let digest = |c: char| format!("sha256:{}", c.to_string().repeat(64));
        let here = this_platform();
        let arch = here.strip_prefix("linux/").unwrap();
        let entry = |c, arch: &str, features: &[&str]| json!({"digest": digest(c), "platform": {"os": "linux", "architecture": arch, "os.features": features}});
        let (tar, erofs) = (entry('a', arch, &[]), entry('b', arch, &["erofs"]));
        let other = entry('c', "other", &["erofs"]);
        let of = |list: &[&Value]| child(&list.iter().map(|v| (*v).clone()).collect::<Vec<_>>());
        assert_eq!(of(&[&other, &tar, &erofs]), Some(digest('b')));
        assert_eq!(of(&[&other, &tar]), Some(digest('a')));
        assert_eq!(of(&[&other]), Some(digest('c')));
        assert_eq!(of(&[&other, &other]), None);
    }

    #[test]
    fn a_chunk_index_is_the_end_of_its_blob() {
        assert_eq!(index_start("10:20", 20), Some(10));
        assert_eq!(index_start("10", 20), Some(10));
        for bad in ["10:19", "20:20", "21", "-1", "", "a:20"] {
            assert_eq!(index_start(bad, 20), None, "{bad}");
        }
    }

    #[test]
    fn a_manifest_without_an_image_is_described() {
        let list = [json!({"m": "a\n"}), json!({"m": "b"}), json!({"m": "b"})];
        let name = |item: &Value| item["m"].as_str().unwrap().to_owned();
        assert_eq!(describe(&list, &name), "a\\n, b (2)");
        assert_eq!(describe(&[], &name), "nothing");
    }
}
