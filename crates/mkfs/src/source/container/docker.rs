//! Archives of `docker save` and compatible tools.
//!
//! ```text
//! manifest.json   [{Config, RepoTags, Layers}, ..]
//! Config        a document whose rootfs.diff_ids has the digests of the uncompressed layers
//! Layers        tars, or links to those of other images
//! ```
//!
//! Source: the Docker Image Specification v1.2, "Combined Image JSON + Filesystem Changeset
//! Format".

use super::blob::{Blob, is_for, platform_of, verify};
use super::document::{broken, digest, digits, parse};
use super::files::Files;
use crate::{Error, Result};
use serde_json::Value;

/// Layers of one image of the archive, lowest first, and its config.
pub(super) fn layers(
    files: &Files,
    name: Option<&str>,
    platform: Option<&str>,
) -> Result<(Vec<Blob>, Option<Vec<u8>>)> {
    let member = files.find("manifest.json")?;
    let place = &member.name;
    let manifest = parse(place, &member.document()?)?;
    let all = manifest.as_array();
    let all = all.ok_or_else(|| broken(place, "no list of images"))?;
    let named = |image: &&Value| name.is_none_or(|name| tags(image).any(|tag| is_named(tag, name)));
    let found: Vec<&Value> = all.iter().filter(named).collect();
    let image = match found[..] {
        [one] => one,
        [] if all.is_empty() => return Err(broken(place, "an archive without images")),
        _ => {
            let names: Vec<&str> = all.iter().flat_map(tags).collect();
            let names = names.join(", ");
            return Err(match name {
                Some(name) if found.is_empty() => Error::usage(format_args!(
                    "{place}: no image with the name '{name}'; there are: {names}"
                )),
                _ => Error::usage(format_args!(
                    "{place}: {} images fit; name one ({}:NAME): {names}",
                    found.len(),
                    files.written()
                )),
            });
        }
    };
    let config =
        text(image.get("Config")).ok_or_else(|| broken(place, "an image without config"))?;
    let member = files.find(config)?;
    // A config is named by its digest, with or without an extension.
    let stem = config.rsplit('/').next().unwrap_or(config);
    if let Some(digest) = digits(stem.strip_suffix(".json").unwrap_or(stem)) {
        let blob = Blob {
            member: member.clone(),
            digest: digest.to_owned(),
            size: None,
            unpacked: false,
            diff_id: None,
        };
        verify(&[blob], 1)?;
    }
    let config_bytes = member.document()?;
    let config = parse(&member.name, &config_bytes)?;
    let found = platform_of(&config);
    if let Some(requested) = platform
        && !found
            .as_deref()
            .is_some_and(|found| is_for(requested, found))
    {
        let found = found.as_deref().unwrap_or("one that states no platform");
        return Err(Error::usage(format_args!(
            "{place}: no image for {requested}; there are: {found}"
        )));
    }
    let ids = config.get("rootfs").and_then(|r| r.get("diff_ids"));
    let ids = ids.and_then(Value::as_array);
    let ids = ids.ok_or_else(|| broken(&member.name, "no digests of layers (rootfs.diff_ids)"))?;
    let layers = image.get("Layers").and_then(Value::as_array);
    let layers = layers.ok_or_else(|| broken(place, "an image without layers"))?;
    if ids.len() != layers.len() {
        let what = format!("{} layers, with {} digests", layers.len(), ids.len());
        return Err(broken(place, &what));
    }
    let blob = |(layer, id): (&Value, &Value)| {
        let path = text(Some(layer)).ok_or_else(|| broken(place, "a layer without a name"))?;
        Ok(Blob {
            member: files.find(path)?,
            digest: digest(&member.name, Some(id))?.to_owned(),
            size: None,
            unpacked: true,
            diff_id: None,
        })
    };
    let layers: Result<Vec<Blob>> = layers.iter().zip(ids).map(blob).collect();
    Ok((layers?, Some(config_bytes)))
}

fn text(value: Option<&Value>) -> Option<&str> {
    value.and_then(Value::as_str)
}

/// Names of an image, each with a tag.
fn tags(image: &Value) -> impl Iterator<Item = &str> {
    let tags = image.get("RepoTags").and_then(Value::as_array);
    tags.into_iter().flatten().filter_map(Value::as_str)
}

/// True if a tag matches a name. The registry host and the tag `latest` may be omitted.
fn is_named(tag: &str, name: &str) -> bool {
    let short = |text| str::strip_prefix(text, "docker.io/").unwrap_or(text);
    let short = |text| short(text).strip_prefix("library/").unwrap_or(short(text));
    let (tag, name) = (short(tag), short(name));
    tag == name || tag.strip_suffix(":latest") == Some(name)
}
