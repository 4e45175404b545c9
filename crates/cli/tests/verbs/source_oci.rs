//! Container images in OCI layouts as sources.

use crate::common::{Place, code, stderr, tool};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

/// OCI layout `l`, to which images and layers are added.
pub(crate) struct Layout(pub(crate) Place);

impl Layout {
    /// Returns `None`, with a note, if digests cannot be computed here.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let place = Place::new(name);
        fs::create_dir_all(place.path("l/blobs/sha256")).unwrap();
        fs::write(
            place.path("l/oci-layout"),
            r#"{"imageLayoutVersion":"1.0.0"}"#,
        )
        .unwrap();
        fs::write(
            place.path("l/index.json"),
            r#"{"schemaVersion":2,"manifests":[]}"#,
        )
        .unwrap();
        tool(&place.0, "sha256sum", &["l/oci-layout"])?;
        Some(Self(place))
    }

    /// Stores a blob and returns its descriptor.
    pub(crate) fn blob(&self, bytes: &[u8], media: &str) -> Value {
        fs::write(self.0.path("blob"), bytes).unwrap();
        let sum = tool(&self.0.0, "sha256sum", &["blob"]).unwrap();
        let hex = String::from_utf8(sum.stdout[..64].to_vec()).unwrap();
        fs::write(self.0.path("l/blobs/sha256").join(&hex), bytes).unwrap();
        json!({"mediaType": media, "digest": format!("sha256:{hex}"), "size": bytes.len()})
    }

    /// Adds a layer with these files: paths and contents. Those in `bin` are executable.
    pub(crate) fn layer(&self, files: &[(&str, &str)]) -> Value {
        let dir = self.0.path("tree");
        let _ = fs::remove_dir_all(&dir);
        for (path, text) in files {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            if path.parent().unwrap().ends_with("bin") {
                fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
            }
        }
        self.0
            .text(&["build", "-q", "--whiteouts", "keep", "tree", "t"]);
        let out = self.0.run(&["tar", "t"]);
        assert_eq!(code(&out), 0, "{}", stderr(&out));
        self.blob(&out.stdout, "application/vnd.oci.image.layer.v1.tar")
    }

    pub(crate) fn manifest(&self, layers: &[Value]) -> Value {
        self.manifest_with(&json!({}), layers)
    }

    fn manifest_with(&self, config: &Value, layers: &[Value]) -> Value {
        let media = "application/vnd.oci.image.config.v1+json";
        let mut config = config.clone();
        if config.get("rootfs").is_none() {
            let ids: Vec<Value> = layers.iter().map(|layer| self.diff_id(layer)).collect();
            config["rootfs"] = json!({"type": "layers", "diff_ids": ids});
        }
        let config = self.blob(config.to_string().as_bytes(), media);
        let text = json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string();
        self.blob(
            text.as_bytes(),
            "application/vnd.oci.image.manifest.v1+json",
        )
    }

    /// Digest of a layer as a plain tar.
    fn diff_id(&self, layer: &Value) -> Value {
        if !layer["mediaType"].as_str().unwrap().ends_with("gzip") {
            return layer["digest"].clone();
        }
        let hex = &layer["digest"].as_str().unwrap()["sha256:".len()..];
        let blob = fs::File::open(self.0.path("l/blobs/sha256").join(hex)).unwrap();
        let mut plain = Vec::new();
        let mut decoder = flate2::read::GzDecoder::new(blob);
        std::io::Read::read_to_end(&mut decoder, &mut plain).unwrap();
        self.blob(&plain, "")["digest"].clone()
    }

    pub(crate) fn index(&self, entries: &[Value]) {
        let text = json!({"schemaVersion": 2, "manifests": entries}).to_string();
        fs::write(self.0.path("l/index.json"), text).unwrap();
    }
}

pub(crate) fn named(mut entry: Value, name: &str) -> Value {
    entry["annotations"] = json!({"org.opencontainers.image.ref.name": name});
    entry
}

fn platform(mut entry: Value, os: &str, architecture: &str) -> Value {
    entry["platform"] = json!({"os": os, "architecture": architecture});
    entry
}

/// The configuration of a container image names the command whose start is listed.
#[test]
fn the_command_of_a_container_image_is_looked_for() {
    let Some(layout) = Layout::new("oci-command") else {
        return;
    };
    let place = &layout.0;
    let layer = layout.layer(&[("app/run", "#!/bin/none\n"), ("etc/hosts", "x")]);
    place.text(&["build", "-q", "--start-with", "none", "tree", "base"]);
    let warning = |cmd: Value, more: &[&str]| {
        let config = json!({"config": {"Cmd": cmd, "WorkingDir": "/app"}});
        layout.index(&[layout.manifest_with(&config, std::slice::from_ref(&layer))]);
        let out = place.run(&[&["build", "-q"][..], more, &["oci:l", "i"]].concat());
        assert_eq!(code(&out), 0, "{}", stderr(&out));
        stderr(&out)
    };
    let is_absent =
        |message: &str| message.contains("the command of the image, but no program in the tree");
    assert!(is_absent(&warning(json!(["gone"]), &[])));
    // The files are not executable in this layer, so this command is not found either.
    assert!(is_absent(&warning(json!(["./run"]), &[])));
    for more in [&["--start-with", "none"][..], &["--base", "base"]] {
        assert_eq!(warning(json!(["gone"]), more), "", "{more:?}");
    }
    assert_eq!(warning(json!(null), &[]), "");
}

#[test]
fn layers_are_merged_in_order() {
    let Some(layout) = Layout::new("oci-layers") else {
        return;
    };
    let place = &layout.0;
    let below = layout.layer(&[("a", "1"), ("b", "1"), ("sub/c", "1"), ("gone/d", "1")]);
    let above = layout.layer(&[
        ("b", "2"),
        (".wh.a", ""),
        ("sub/e", "2"),
        ("gone/.wh..wh..opq", ""),
    ]);
    layout.index(&[layout.manifest(&[below, above])]);
    place.text(&["build", "-q", "oci:l", "i"]);
    assert_eq!(
        place.text(&["ls", "-R", "i"]),
        "/\nb\ngone\nsub\nsub/c\nsub/e\n"
    );
    assert_eq!(place.text(&["cat", "i", "b"]), "2");
    let out = place.run(&["build", "-q", "l", "blobs"]);
    assert_eq!(code(&out), 0);
    assert!(stderr(&out).contains("as oci:DIR"), "{}", stderr(&out));
    // A directory on top.
    fs::create_dir(place.path("top")).unwrap();
    fs::write(place.path("top/b"), "3").unwrap();
    place.text(&["build", "-q", "oci:l", "top", "j"]);
    assert_eq!(place.text(&["cat", "j", "b"]), "3");
}

#[test]
fn a_platform_that_only_the_config_states_must_match() {
    let Some(layout) = Layout::new("oci-platform") else {
        return;
    };
    let place = &layout.0;
    let layers = [layout.layer(&[("a", "1")])];
    let stated = json!({"os": "linux", "architecture": "s390x"});
    layout.index(&[layout.manifest_with(&stated, &layers)]);
    let bogus = place.run(&["build", "-q", "--platform=bogus", "oci:l", "i"]);
    let message = stderr(&bogus);
    assert_eq!((code(&bogus), message.lines().count()), (2, 1), "{message}");
    assert!(
        message.contains("no image for bogus") && message.contains("linux/s390x"),
        "{message}"
    );
    assert!(!place.path("i").exists());
    place.text(&["build", "-q", "--platform=linux/s390x", "oci:l", "i"]);
    // Without --platform the only image is used.
    place.text(&["build", "-q", "oci:l", "i"]);
    layout.index(&[layout.manifest(&layers)]);
    let silent = place.run(&["build", "-q", "--platform=linux/s390x", "oci:l", "i"]);
    assert_eq!(code(&silent), 2, "{}", stderr(&silent));
    assert!(stderr(&silent).contains("states no platform"));
}

#[test]
fn one_of_several_is_chosen() {
    let Some(layout) = Layout::new("oci-chosen") else {
        return;
    };
    let place = &layout.0;
    let image = |text| layout.manifest(&[layout.layer(&[("which", text)])]);
    let [arm, amd, nothing] = ["arm", "amd", "nothing"].map(image);
    let both = json!({"schemaVersion": 2, "manifests": [
        platform(arm.clone(), "linux", "arm64"),
        platform(amd, "linux", "amd64"),
        platform(nothing, "unknown", "unknown"),
    ]});
    let media = "application/vnd.oci.image.index.v1+json";
    let both = layout.blob(both.to_string().as_bytes(), media);
    layout.index(&[named(both, "all:1"), named(image("other"), "other")]);
    for (source, platform, expected) in [
        ("oci:l:other", None, "other"),
        ("oci:l:all:1", Some("linux/arm64"), "arm"),
        ("oci:l:all:1", Some("linux/amd64"), "amd"),
    ] {
        let mut args = vec!["build", "-q"];
        args.extend(platform.iter().flat_map(|p| ["--platform", p]));
        args.extend([source, "i"]);
        place.text(&args);
        assert_eq!(place.text(&["cat", "i", "which"]), expected, "{source}");
    }
    for (args, expected) in [
        (&["oci:l"][..], "all:1, other"),
        (&["oci:l:none"], "no image with the name 'none'"),
        (
            &["--platform", "linux/s390x", "oci:l:all:1"],
            "linux/arm64, linux/amd64",
        ),
        (&["--platform", "linux/arm64", "l"], "oci:DIR"),
    ] {
        let out = place.run(&[&["build", "-q"], args, &["o"]].concat());
        assert_eq!(code(&out), 2, "{args:?}: {}", stderr(&out));
        assert!(
            stderr(&out).contains(expected),
            "{args:?}: {}",
            stderr(&out)
        );
    }
    // The only image, for another architecture.
    layout.index(&[platform(arm, "linux", "somewhere")]);
    place.text(&["build", "-q", "oci:l", "i"]);
    assert_eq!(place.text(&["cat", "i", "which"]), "arm");
}

#[test]
fn an_invalid_layout_is_reported_and_nothing_is_written() {
    let Some(layout) = Layout::new("oci-broken") else {
        return;
    };
    let place = &layout.0;
    let layer = layout.layer(&[("a", "1")]);
    let manifest = layout.manifest(std::slice::from_ref(&layer));
    let fails = |expected: &str, exit: i32| {
        let out = place.run(&["build", "-q", "oci:l", "o"]);
        assert_eq!(code(&out), exit, "{expected}: {}", stderr(&out));
        assert!(
            stderr(&out).contains(expected),
            "{expected}: {}",
            stderr(&out)
        );
        assert!(!place.path("o").exists());
    };
    let with = |key: &str, value: Value| {
        let mut entry = manifest.clone();
        entry[key] = value;
        layout.index(&[entry]);
    };
    with("digest", json!("sha256:../../../../etc/passwd"));
    fails("is not a SHA-256 digest", 3);
    with("digest", json!("sha512:00"));
    fails("is not a SHA-256 digest", 3);
    with("digest", json!(format!("sha256:{}", "0".repeat(64))));
    fails("cannot open", 5);
    with("size", json!(7));
    fails("its length", 3);
    let mut odd = layer.clone();
    odd["mediaType"] = json!("application/vnd.oci.image.layer.v1.tar+encrypted");
    layout.index(&[layout.manifest(&[odd])]);
    fails("which is not a tar", 3);
    let text = layout.blob(b"{\"schemaVersion\": 2}", "");
    layout.index(&[text]);
    fails("neither an index nor a manifest", 3);
    layout.index(&[layout.blob(b"{", "")]);
    fails("EOF while parsing", 3);
    fs::write(place.path("l/index.json"), "[]").unwrap();
    fails("no list of manifests", 3);
    // A layer that does not match its digest, of the same length.
    layout.index(std::slice::from_ref(&manifest));
    let hex = layer["digest"]
        .as_str()
        .unwrap()
        .strip_prefix("sha256:")
        .unwrap();
    let path = place.path("l/blobs/sha256").join(hex);
    let mut bytes = fs::read(&path).unwrap();
    bytes[600] ^= 1;
    fs::write(&path, bytes).unwrap();
    fails("its digest differs", 3);
    fs::remove_file(place.path("l/index.json")).unwrap();
    fails("cannot open", 5);
}

/// Regression: a layer with another `diff_id` was accepted.
#[test]
fn a_layer_with_another_diff_id_is_rejected() {
    let Some(layout) = Layout::new("oci-diff-id") else {
        return;
    };
    let place = &layout.0;
    let plain = layout.layer(&[("a", "1")]);
    let id = plain["digest"].as_str().unwrap();
    let blob = place.path("l/blobs/sha256").join(&id["sha256:".len()..]);
    let mut layers = vec![plain.clone()];
    fs::copy(&blob, place.path("layer")).unwrap();
    for (program, media) in [("gzip", "tar+gzip"), ("zstd", "tar+zstd")] {
        if let Some(out) = tool(&place.0, program, &["-c", "layer"]) {
            let media = format!("application/vnd.oci.image.layer.v1.{media}");
            layers.push(layout.blob(&out.stdout, &media));
        }
    }
    let config = |ids: Value| json!({"rootfs": {"type": "layers", "diff_ids": ids}});
    let other = format!("sha256:{}", "0".repeat(64));
    for layer in layers {
        for dedupe in ["content", "files"] {
            let build = |ids: Value| {
                layout.index(&[layout.manifest_with(&config(ids), std::slice::from_ref(&layer))]);
                let out = place.run(&["build", "-q", "--dedupe", dedupe, "oci:l", "o"]);
                (code(&out), stderr(&out))
            };
            let (exit, message) = build(json!([other]));
            assert_eq!(exit, 3, "{message}");
            assert!(message.contains("rootfs.diff_ids"), "{message}");
            assert!(!place.path("o").exists());
            let (exit, message) = build(json!([id, id]));
            assert_eq!(exit, 3, "{message}");
            assert!(message.contains("1 layers, with 2 digests"), "{message}");
            let (exit, message) = build(json!([id]));
            assert_eq!(exit, 0, "{message}");
            assert_eq!(place.text(&["cat", "o", "a"]), "1");
            fs::remove_file(place.path("o")).unwrap();
        }
    }
}

#[test]
fn a_layout_states_the_size_and_the_diff_id_of_each_layer() {
    let Some(layout) = Layout::new("oci-unstated") else {
        return;
    };
    let place = &layout.0;
    let layer = layout.layer(&[("a", "1")]);
    let fails = |layer: &Value, config: &Value, expected: &str| {
        layout.index(&[layout.manifest_with(config, std::slice::from_ref(layer))]);
        let out = place.run(&["build", "-q", "oci:l", "o"]);
        assert_eq!(code(&out), 3, "{config}: {}", stderr(&out));
        assert!(
            stderr(&out).contains(expected),
            "{config}: {}",
            stderr(&out)
        );
        assert!(!place.path("o").exists());
    };
    for size in [json!(-1), json!("10"), json!(1.5), Value::Null] {
        let mut odd = layer.clone();
        odd["size"] = size;
        fails(&odd, &json!({}), "has no size in bytes");
    }
    for rootfs in [
        Value::Null,
        json!({}),
        json!({"diff_ids": null}),
        json!({"diff_ids": "sha256:"}),
        json!({"diff_ids": {}}),
    ] {
        fails(&layer, &json!({"rootfs": rootfs}), "rootfs.diff_ids");
    }
    let none = json!({"rootfs": {"diff_ids": []}});
    fails(&layer, &none, "1 layers, with 0 digests");
    let odd = json!({"rootfs": {"diff_ids": [""]}});
    fails(&layer, &odd, "is not a SHA-256 digest");
}

/// Regression: a build waited for a pipe, and read a device without end.
#[test]
fn blobs_that_are_not_files_are_rejected() {
    let Some(layout) = Layout::new("oci-odd-files") else {
        return;
    };
    let place = &layout.0;
    let layer = layout.layer(&[("a", "1")]);
    let manifest = layout.manifest(std::slice::from_ref(&layer));
    layout.index(std::slice::from_ref(&manifest));
    place.text(&["build", "-q", "oci:l", "o"]);
    let made = tool(&place.0, "mkfifo", &["pipe"]);
    assert!(made.is_some());
    let blob = |entry: &Value| {
        let digest = entry["digest"].as_str().unwrap();
        place
            .path("l/blobs/sha256")
            .join(&digest["sha256:".len()..])
    };
    for path in [blob(&layer), blob(&manifest), place.path("l/index.json")] {
        let was = fs::read(&path).unwrap();
        for (target, what) in [
            (place.path("pipe"), "a pipe"),
            ("/dev/zero".into(), "a character device"),
        ] {
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink(target, &path).unwrap();
            let out = std::process::Command::new("timeout")
                .args(["-s", "KILL", "60", env!("CARGO_BIN_EXE_tuff")])
                .args(["build", "-q", "oci:l", "p"])
                .current_dir(&place.0)
                .output()
                .unwrap();
            assert_eq!(code(&out), 5, "{}", stderr(&out));
            assert!(stderr(&out).contains(what), "{}", stderr(&out));
        }
        fs::remove_file(&path).unwrap();
        fs::write(&path, was).unwrap();
    }
}

#[test]
fn an_opaque_root_is_reported_where_a_layer_cannot_express_it() {
    let place = Place::new("oci-opaque-root");
    for (path, text) in [
        ("below/a", ""),
        ("above/.wh..wh..opq", ""),
        ("above/d/b", ""),
    ] {
        let path = place.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let out = place.run(&[
        "build",
        "-q",
        "--whiteouts",
        "convert",
        "below",
        "above",
        "i",
    ]);
    assert_eq!(code(&out), 0);
    let message = stderr(&out);
    assert!(message.contains("above: its root is opaque"), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert_eq!(place.text(&["ls", "-R", "i"]), "/\na\nd\nd/b\n");
    let stat = place.text(&["stat", "i", "d"]);
    assert!(stat.contains("trusted.overlay.opaque"), "{stat}");
}

/// Regression: an image of one layer kept the markers as files.
#[test]
fn a_container_image_of_one_layer_has_no_whiteout_files() {
    let Some(layout) = Layout::new("oci-one-layer") else {
        return;
    };
    let place = &layout.0;
    let layer = layout.layer(&[
        ("a", "1"),
        (".wh.gone", ""),
        ("d/.wh..wh..opq", ""),
        ("d/x", "1"),
    ]);
    layout.index(&[layout.manifest(&[layer])]);
    let tree = |args: &[&str]| {
        place.text(&[&["build", "-q"], args, &["i"]].concat());
        place.text(&["ls", "-R", "i"])
    };
    assert_eq!(tree(&["oci:l"]), "/\na\nd\nd/x\n");
    // A directory below stays as it is, and what is asked for applies.
    assert_eq!(
        tree(&["--whiteouts", "keep", "oci:l"]),
        "/\n.wh.gone\na\nd\nd/.wh..wh..opq\nd/x\n"
    );
    assert!(tool(&place.0, "tar", &["-cf", "l.tar", "-C", "l", "."]).is_some());
    assert_eq!(tree(&["oci-archive:l.tar"]), "/\na\nd\nd/x\n");
}
