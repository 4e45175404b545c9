//! Configuration, manifest and index of an image of EROFS layers. Equal layers make equal bytes.

use super::blob::Blob;
use super::options::{LayerMedia, PushOptions};
use crate::cache::CHUNK;
use crate::registry::{digest, media, this_platform};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

/// Documents of an image, as they are uploaded.
pub(crate) struct Documents {
    pub(crate) config: Vec<u8>,
    pub(crate) manifest: Vec<u8>,
    /// Index with the platform, if the media type has a feature that other hosts lack.
    pub(crate) index: Option<Vec<u8>>,
}

/// Writes the documents of an image of `layers`, from the lowest to the highest.
pub(crate) fn documents(layers: &[Blob], options: &PushOptions) -> Documents {
    let is_spec = options.media == LayerMedia::Erofs;
    let source = options.config.as_deref().unwrap_or_default();
    let source: Value = serde_json::from_slice(source).unwrap_or_default();
    let platform = platform(options, &source, is_spec);
    let mut config = platform.clone();
    // A raw layer is its own uncompressed form.
    let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.digest.as_str()).collect();
    config.insert(
        "rootfs".to_owned(),
        json!({"type": "layers", "diff_ids": diff_ids}),
    );
    config.insert("config".to_owned(), json!({}));
    // The history describes other layers.
    for name in ["author", "config", "created"] {
        if let Some(value) = source.get(name).filter(|value| !value.is_null()) {
            config.insert(name.to_owned(), value.clone());
        }
    }
    let config = Value::from(config).to_string().into_bytes();
    let top = layers.len().saturating_sub(1);
    let role = |number: usize, layer: &Blob| match layer.is_device {
        true => Some(media::DEVICE),
        false => (number < top).then_some(media::OVERLAY_LOWER),
    };
    let descriptors = layers.iter().enumerate();
    let mut descriptors: Vec<Value> = descriptors
        .map(|(number, layer)| descriptor(layer, options.media, role(number, layer)))
        .collect();
    let recording = options.profile.as_deref().and_then(recording);
    let room = media::START_MAX - recording.as_ref().map_or(0, String::len);
    for (number, text) in starts(layers, &options.start, room) {
        descriptors[number]["annotations"][media::START] = text.into();
    }
    let mut manifest = json!({
        "schemaVersion": 2,
        "mediaType": media::MANIFEST,
        "config": {"mediaType": media::CONFIG, "digest": digest(&config), "size": config.len()},
        "layers": descriptors,
    });
    if let Some(recording) = recording {
        manifest["annotations"] = json!({media::RECORDING: recording});
    }
    let manifest = manifest.to_string().into_bytes();
    let index = json!({
        "schemaVersion": 2,
        "mediaType": media::INDEX,
        "manifests": [{
            "mediaType": media::MANIFEST,
            "digest": digest(&manifest),
            "size": manifest.len(),
            "platform": platform,
        }],
    });
    Documents {
        config,
        manifest,
        index: is_spec.then(|| index.to_string().into_bytes()),
    }
}

/// Lines at the beginning of a profile that fit into an annotation, all if they do.
fn recording(profile: &[u8]) -> Option<String> {
    if profile.len() <= media::RECORDING_MAX {
        return std::str::from_utf8(profile).ok().map(str::to_owned);
    }
    let fitting = &profile[..media::RECORDING_MAX - media::RECORDING_CONTINUED.len()];
    let end = fitting.iter().rposition(|byte| *byte == b'\n')?;
    let lines = std::str::from_utf8(&fitting[..=end]).ok()?;
    Some(lines.to_owned() + media::RECORDING_CONTINUED)
}

/// Statements for layers about what a start reads of them: as much as fits into `room` bytes, what is wanted first before the rest.
fn starts(layers: &[Blob], start: &[(usize, Range<u64>)], room: usize) -> BTreeMap<usize, String> {
    let images = layers.iter().enumerate().filter(|(_, l)| !l.is_device);
    let images: Vec<usize> = images.map(|(number, _)| number).collect();
    // Readers fetch whole chunks.
    let mut known = HashSet::new();
    let mut chunks: Vec<(usize, Range<u64>)> = Vec::new();
    for (number, range) in start.iter().filter(|(_, range)| !range.is_empty()) {
        let Some(number) = images.get(*number).copied() else {
            continue;
        };
        for chunk in range.start / CHUNK..range.end.min(layers[number].size).div_ceil(CHUNK) {
            match chunks.last_mut() {
                _ if !known.insert((number, chunk)) => {}
                Some((last, chunks)) if (*last, chunks.end) == (number, chunk) => chunks.end += 1,
                _ => chunks.push((number, chunk..chunk + 1)),
            }
        }
    }
    let mut texts: BTreeMap<usize, String> = BTreeMap::new();
    let mut left = room;
    for (number, chunks) in chunks {
        let end = (chunks.end * CHUNK).min(layers[number].size);
        let range = format!("{}:{end}", chunks.start * CHUNK);
        let Some(rest) = left.checked_sub(range.len() + 1) else {
            break;
        };
        left = rest;
        let text = texts.entry(number).or_default();
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&range);
    }
    texts
}

fn descriptor(layer: &Blob, media: LayerMedia, role: Option<&str>) -> Value {
    let mut annotations = Map::new();
    let mut annotate = |name: &str, value: String| {
        annotations.insert(name.to_owned(), value.into());
    };
    if let Some(role) = role {
        annotate(media::ROLE, role.to_owned());
    }
    if let Some(index) = &layer.index {
        let range = format!("{}:{}", index.start, layer.size);
        annotate(media::CHUNK_INDEX_RANGE, range);
        annotate(media::CHUNK_INDEX_DIGEST, index.digest.clone());
    }
    if let Some(tree) = &layer.tree {
        annotate(media::HASH_OFFSET, tree.offset.to_string());
        let root = format!("sha256:{}", hex::encode(tree.root));
        annotate(media::ROOT_DIGEST, root);
        annotate(media::HASH_BLOCK, tree.block.to_string());
    }
    if let Some(metadata) = &layer.metadata {
        let range = format!("{}:{}", metadata.start, metadata.end);
        annotate(media::METADATA, range);
    }
    let media = match media {
        _ if !layer.is_image => media::BYTES,
        LayerMedia::Erofs => media::EROFS,
        LayerMedia::Containerd => media::EROFS_CONTAINERD,
    };
    json!({
        "mediaType": media,
        "digest": layer.digest,
        "size": layer.size,
        "annotations": annotations,
    })
}

/// Platform of an image, by the names of OCI: the given one, that of the source, or this machine.
fn platform(options: &PushOptions, source: &Value, has_feature: bool) -> Map<String, Value> {
    let names = ["os", "architecture", "variant"];
    let stated: Vec<&str> = names
        .iter()
        .filter_map(|name| source[name].as_str())
        .collect();
    let text = match &options.platform {
        Some(platform) => platform.clone(),
        None if stated.len() >= 2 => stated.join("/"),
        None => this_platform(),
    };
    let mut out: Map<String, Value> = names
        .iter()
        .zip(text.split('/'))
        .map(|(name, value)| ((*name).to_owned(), value.into()))
        .collect();
    if has_feature {
        out.insert("os.features".to_owned(), json!([media::FEATURE]));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::options::LayerTree;

    fn blob(bytes: &[u8], tree: Option<LayerTree>) -> Blob {
        Blob {
            tree,
            ..Blob::small(bytes.to_vec())
        }
    }

    fn parsed(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).unwrap()
    }

    #[test]
    fn documents_follow_the_specification() {
        let tree = LayerTree {
            offset: 8192,
            root: [0xab; 32],
            block: 4096,
        };
        let layers = [blob(b"below", None), blob(b"top", Some(tree))];
        let options = PushOptions {
            platform: Some("linux/arm64/v8".to_owned()),
            ..PushOptions::default()
        };
        let made = documents(&layers, &options);
        let platform = json!({"os": "linux", "architecture": "arm64", "variant": "v8", "os.features": ["erofs"]});
        let config = parsed(&made.config);
        for (name, value) in platform.as_object().unwrap() {
            assert_eq!(&config[name], value);
        }
        let digests = [digest(b"below"), digest(b"top")];
        assert_eq!(config["rootfs"]["diff_ids"], json!(digests));
        let manifest = parsed(&made.manifest);
        assert_eq!(manifest["config"]["digest"], digest(&made.config));
        let layer = &manifest["layers"][0];
        assert_eq!(layer["mediaType"], "application/vnd.erofs");
        assert_eq!(
            layer["annotations"],
            json!({"org.erofs.role": "overlay-lower"})
        );
        let root = format!("sha256:{}", "ab".repeat(32));
        assert_eq!(
            manifest["layers"][1]["annotations"],
            json!({
                "org.erofs.dmverity.hash_offset": "8192",
                "org.erofs.dmverity.root_digest": root,
                "org.erofs.dmverity.block_size": "4096",
            })
        );
        let index = parsed(&made.index.unwrap());
        assert_eq!(index["manifests"][0]["digest"], digest(&made.manifest));
        assert_eq!(index["manifests"][0]["platform"], platform);
    }

    #[test]
    fn a_manifest_has_the_lines_of_a_profile_that_fit() {
        let annotation = |profile: &[u8]| {
            let options = PushOptions {
                profile: Some(profile.to_vec()),
                ..PushOptions::default()
            };
            let manifest = parsed(&documents(&[blob(b"x", None)], &options).manifest);
            let text = manifest["annotations"]["vnd.tuff.profile"].as_str();
            text.map(str::to_owned)
        };
        let line = "1204 1 0 131072 /usr/bin/python3\n";
        let short = format!("tuff profile 1\n{line}");
        assert_eq!(annotation(short.as_bytes()).unwrap(), short);
        let long = format!("tuff profile 1\n{}", line.repeat(3000));
        let cut = annotation(long.as_bytes()).unwrap();
        assert!(cut.len() <= 65_536 && cut.len() > 65_000);
        let lines = cut.strip_suffix("# continued\n").unwrap();
        assert!(lines.ends_with(line) && long.starts_with(lines));
        assert_eq!(annotation(b"tuff profile 1\n1 1 0 1 /\xff\n"), None);
    }

    #[test]
    fn a_manifest_states_what_a_start_wants_first_of_each_layer() {
        let layers = [blob(&[0; 900_000], None), blob(&[1; 900_000], None)];
        let stated = |start: Vec<(usize, Range<u64>)>, profile: Option<Vec<u8>>| {
            let options = PushOptions {
                start,
                profile,
                ..PushOptions::default()
            };
            let manifest = parsed(&documents(&layers, &options).manifest);
            [0, 1].map(|number| {
                let text = manifest["layers"][number]["annotations"]["vnd.tuff.start"].as_str();
                text.map(str::to_owned)
            })
        };
        let text = |text: &str| Some(text.to_owned());
        let start = vec![
            (1, 5..9),
            (0, 900_000 - 1..u64::MAX),
            (1, 131_071..131_073),
            (1, 6..7),
            (7, 0..1),
        ];
        assert_eq!(
            stated(start, None),
            [text("884736:900000"), text("0:32768,98304:163840")]
        );
        assert_eq!(stated(vec![(0, 9..9)], None), [None, None]);
        // Every other chunk is a range of its own, so that not all fit.
        let profile = format!("tuff profile 1\n{}", "#\n".repeat(32_740)).into_bytes();
        let start: Vec<_> = [6, 4, 2, 0]
            .map(|chunk| (0, chunk * CHUNK..(chunk + 1) * CHUNK))
            .into();
        assert_eq!(
            stated(start.clone(), Some(profile)),
            [text("196608:229376,131072:163840,65536:98304"), None]
        );
        assert_eq!(stated(start, Some(vec![b'#'; 65_536])), [None, None]);
    }

    #[test]
    fn devices_come_before_their_image() {
        let device = |bytes: &[u8]| Blob {
            is_device: true,
            ..blob(bytes, None)
        };
        let layers = [
            device(b"base"),
            blob(b"below", None),
            device(b"base"),
            blob(b"top", None),
        ];
        let made = documents(&layers, &PushOptions::default());
        let manifest = parsed(&made.manifest);
        let roles = manifest["layers"].as_array().unwrap().iter();
        let roles: Vec<_> = roles
            .map(|layer| layer["annotations"]["org.erofs.role"].as_str())
            .collect();
        assert_eq!(
            roles,
            [Some("device"), Some("overlay-lower"), Some("device"), None]
        );
    }

    #[test]
    fn settings_of_a_container_image_are_kept() {
        let source = json!({"os": "linux", "architecture": "riscv64", "config": {"Cmd": ["sh"]}, "history": [{}], "rootfs": {"diff_ids": ["x"]}});
        let options = PushOptions {
            config: Some(source.to_string().into_bytes()),
            ..PushOptions::default()
        };
        let config = parsed(&documents(&[blob(b"x", None)], &options).config);
        assert_eq!(config["config"], source["config"]);
        assert_eq!(config["architecture"], "riscv64");
        assert_eq!(config["rootfs"]["diff_ids"], json!([digest(b"x")]));
        assert!(config.get("history").is_none());
    }

    #[test]
    fn images_for_containerd_have_its_media_type_and_no_feature() {
        let options = PushOptions {
            media: LayerMedia::Containerd,
            ..PushOptions::default()
        };
        let made = documents(&[blob(b"x", None)], &options);
        assert!(made.index.is_none());
        assert!(parsed(&made.config).get("os.features").is_none());
        let media = &parsed(&made.manifest)["layers"][0]["mediaType"];
        assert_eq!(media, "application/vnd.erofs.layer.v1");
    }
}
