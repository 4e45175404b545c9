//! Uploads of several blobs: images with devices, and container images layer by layer.

use crate::common::{Place, code, stderr};
use crate::kernel_remote::{kernel_can_mount, wait_for};
use crate::mount::can_mount;
use crate::push::{Bucket, bucket_variables, good, key, pushed, run, start, without_tree};
use crate::serve::{Serving, covers};
use crate::source_oci::Layout;
use serde_json::Value;
use std::fs::{self, Permissions};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tuff_erofs::read::StartList;
use tuff_testkit::http::{Answer, Request, Server};
use tuff_testkit::openssl::{RSA, certificate};
use tuff_testkit::registry::{Registry, digest};
use tuff_testkit::tree::open;

/// Image `i` with a hash tree, and the image `delta` of other files, whose base it is.
fn with_delta(name: &str) -> Place {
    let place = Place::with_image(name);
    place.text(&["verity", "add", "-q", "i"]);
    fs::write(
        place.path("m/more.mtree"),
        "#mtree\n./more type=file mode=0644 uid=0 gid=0 time=1 contents=../hello\n",
    )
    .unwrap();
    let args = [
        "build",
        "-q",
        "--verity",
        "--whiteouts",
        "keep",
        "--sparse",
        "keep",
        "--base",
        "i",
    ];
    let sources = ["holes", "m/tree.mtree", "m/more.mtree", "delta"];
    place.text(&[&args[..], &sources].concat());
    place
}

/// Compares what verbs print for the URL of the delta image and for the local files.
fn assert_reads_same(place: &Place, variables: &[(&str, &str)], url: &str) {
    let cases: [(&[&str], &[&str]); 5] = [
        (&["info", "-b"], &[]),
        (&["ls", "-lR"], &[]),
        (&["cat"], &["dir/text", "many/copy", "sparse", "more"]),
        (&["tar"], &["-"]),
        (&["check", "-q"], &[]),
    ];
    for (verb, paths) in cases {
        let of = |image: &[&str]| {
            let output = good(place, variables, &[verb, image, paths].concat());
            without_tree(verb[0], output)
        };
        assert!(
            of(&[url]) == of(&["--device", "i", "delta"]),
            "{verb:?} of {url}"
        );
    }
}

fn assert_pulled(place: &Place, variables: &[(&str, &str)], url: &str) {
    good(place, variables, &["pull", "-q", "--force", url, "copy"]);
    for (copy, original) in [("copy", "delta"), ("copy.device1", "i")] {
        assert!(fs::read(place.path(copy)).unwrap() == fs::read(place.path(original)).unwrap());
    }
}

#[test]
fn an_image_is_read_with_the_devices_of_its_manifest() {
    let place = with_delta("push-device");
    let (registry, _server, url) = start();
    // The base alone, as an earlier version.
    let base = pushed(&place, &[], &["i", &url.replace("v1", "v0")]);
    let done = pushed(&place, &[], &["--device", "i", "delta", &url]);
    let layers = done["layers"].as_array().unwrap();
    let state = |layer: &Value| (layer["is_device"] == true, layer["was_present"] == true);
    assert_eq!(
        [state(&layers[0]), state(&layers[1])],
        [(true, true), (false, false)]
    );
    assert_eq!(layers[0]["digest"], base["layers"][0]["digest"]);
    let manifest = registry
        .manifest("team/app", done["manifest"].as_str().unwrap())
        .unwrap();
    assert_eq!(
        manifest["layers"][0]["annotations"]["org.erofs.role"],
        "device"
    );
    assert!(
        manifest["layers"][1]["annotations"]
            .get("org.erofs.role")
            .is_none()
    );
    assert_reads_same(&place, &[], &url);
    assert_pulled(&place, &[], &url);
    let out = run(&place, &[], &["pull", &url, "-"]);
    assert_eq!(code(&out), 2, "{}", stderr(&out));
    // Local devices take the place of those in the registry.
    good(&place, &[], &["check", "-q", "--device", "i", &url]);
    // The root hash of the image says nothing of its devices, the digest of the manifest does.
    let root = layers[1]["root_hash"].as_str().unwrap();
    let out = run(&place, &[], &["ls", "--root-hash", root, &url]);
    assert_eq!(code(&out), 2, "{}", stderr(&out));
    assert!(
        stderr(&out).contains("does not cover the devices"),
        "{}",
        stderr(&out)
    );
    let pinned = url.replace(":v1", &format!("@{}", done["digest"].as_str().unwrap()));
    good(&place, &[], &["check", "-q", "--root-hash", root, &pinned]);
    let device = layers[0]["digest"].as_str().unwrap();
    registry.change_blob("team/app", device, |blob| blob[4096 * 2 + 5] ^= 1);
    let out = run(&place, &[], &["tar", "--cache-dir", "fresh", &url, "-"]);
    assert_eq!(code(&out), 3, "{}", stderr(&out));
    let out = run(
        &place,
        &[],
        &[
            "push",
            "--media-type",
            "containerd",
            "--device",
            "i",
            "delta",
            &url,
        ],
    );
    assert_eq!(code(&out), 2, "{}", stderr(&out));
}

#[test]
fn a_mount_reads_devices_and_layers_of_a_manifest() {
    if !can_mount() {
        return;
    }
    let place = with_delta("push-device-mount");
    fs::create_dir(place.path("top")).unwrap();
    fs::write(place.path("top/hello"), "another").unwrap();
    place.text(&["build", "-q", "top", "top.erofs"]);
    let (_, _server, url) = start();
    pushed(&place, &[], &["--device", "i", "delta", &url]);
    let layered = url.replace("v1", "v2");
    pushed(
        &place,
        &[],
        &["--device", "i", "delta", "top.erofs", &layered],
    );
    fs::create_dir(place.path("mnt")).unwrap();
    for (url, hello) in [(&url, "hello\n"), (&layered, "another")] {
        for kernel in [&[][..], &["--kernel"]] {
            let args = [&["mount", "--fill"], kernel, &[url, "mnt"]].concat();
            let out = run(&place, &[], &args);
            assert_eq!(code(&out), 0, "{}", stderr(&out));
            if kernel.is_empty() || kernel_can_mount() {
                assert_eq!(stderr(&out), "");
            }
            let read = |name: &str| fs::read_to_string(place.path("mnt").join(name)).unwrap();
            assert_eq!([read("hello"), read("more")], [hello, "hello\n"]);
            assert_eq!(read("dir/text"), crate::common::text());
            wait_for("the end of the fill", || {
                let counters = place.text(&["stats", "mnt"]);
                let of = |name: &str| {
                    let line = counters.lines().find(|line| line.starts_with(name))?;
                    line.split_whitespace().last()?.parse::<u64>().ok()
                };
                (of("remote_present_bytes ")? >= of("remote_size_bytes ")?).then_some(())
            });
            place.unmount("mnt");
        }
    }
}

#[test]
fn every_device_needs_a_signature() {
    let place = with_delta("push-device-trust");
    if !key(&place, "a") {
        return;
    }
    let (registry, _server, url) = start();
    let sign = ["push", "-q", "--sign", "a.key,a.pem"];
    good(
        &place,
        &[],
        &[&sign[..], &["--device", "i", "delta", &url]].concat(),
    );
    good(&place, &[], &["check", "-q", "--trust", "a.pem", &url]);
    // The same images, of which the upper alone is signed.
    let other = url.replace("app", "other");
    good(
        &place,
        &[],
        &["push", "-q", "--device", "i", "delta", &other],
    );
    let out = run(&place, &[], &["check", "-q", "--trust", "a.pem", &other]);
    assert_eq!(code(&out), 6, "{}", stderr(&out));
    let listed = |name: &str| {
        let index = registry.manifest(name, "v1").unwrap();
        index["manifests"][0]["digest"].as_str().unwrap().to_owned()
    };
    let tag = listed("team/app").replace(':', "-");
    let signatures = registry.manifest("team/app", &tag).unwrap();
    assert_eq!(signatures["manifests"].as_array().unwrap().len(), 3);
    // Another manifest of signed parts, with copies of all signatures.
    let mut manifest = registry.manifest("team/app", &listed("team/app")).unwrap();
    let kind = manifest["mediaType"].as_str().unwrap().to_owned();
    manifest["annotations"]["org.example"] = "changed".into();
    let bytes = manifest.to_string().into_bytes();
    registry.add_manifest("team/app", "mixed", &kind, &bytes);
    let tag = digest(&bytes).replace(':', "-");
    let copies = signatures.to_string();
    let kind = signatures["mediaType"].as_str().unwrap();
    registry.add_manifest("team/app", &tag, kind, copies.as_bytes());
    let mixed = url.replace("v1", "mixed");
    good(&place, &[], &["check", "-q", &mixed]);
    let out = run(&place, &[], &["check", "-q", "--trust", "a.pem", &mixed]);
    assert_eq!(code(&out), 6, "{}", stderr(&out));
    assert!(
        stderr(&out).contains("the manifest, which combines layers and devices"),
        "{}",
        stderr(&out)
    );
    // Layers are signed one by one, too.
    let layered = url.replace("v1", "v2");
    good(
        &place,
        &[],
        &[&sign[..], &["--device", "i", "delta", "i", &layered]].concat(),
    );
    good(&place, &[], &["ls", "--trust", "a.pem", &layered]);
    place.text(&["build", "-q", "holes", "bare"]);
    let out = run(&place, &[], &[&sign[..], &["i", "bare", &layered]].concat());
    assert_eq!(code(&out), 2, "{}", stderr(&out));
}

#[test]
fn devices_of_an_image_in_a_bucket_are_objects_beside_it() {
    let place = with_delta("push-device-bucket");
    let bucket = Arc::new(Mutex::new(Bucket::default()));
    let answering = Arc::clone(&bucket);
    let server = Server::start(move |request| answering.lock().unwrap().answer(request));
    let endpoint = server.url("");
    let variables = bucket_variables(&endpoint);
    let url = "s3://bucket/dir/delta";
    let done = pushed(&place, &variables, &["--device", "i", "delta", url]);
    let digest = done["layers"][0]["digest"].as_str().unwrap();
    let name = format!("/bucket/dir/{}.erofs", digest.replace(':', "-"));
    assert!(bucket.lock().unwrap().objects.contains_key(&name));
    assert_reads_same(&place, &variables, url);
    assert_pulled(&place, &variables, url);
    // The device is shared with the next version.
    let next = pushed(
        &place,
        &variables,
        &["--device", "i", "delta", "s3://bucket/dir/next"],
    );
    assert_eq!(next["layers"][0]["was_present"], true);
    // A device that changed is not what its root hash covers.
    bucket.lock().unwrap().objects.get_mut(&name).unwrap().0[4096 * 2 + 5] ^= 1;
    let out = run(
        &place,
        &variables,
        &["tar", "--cache-dir", "fresh", url, "-"],
    );
    assert_eq!(code(&out), 3, "{}", stderr(&out));
}

#[test]
fn content_that_a_bucket_has_under_another_key_is_not_sent() {
    let place = with_delta("push-bucket-content");
    let bucket = Arc::new(Mutex::new(Bucket::default()));
    let answering = Arc::clone(&bucket);
    let server = Server::start(move |request| answering.lock().unwrap().answer(request));
    let endpoint = server.url("");
    let variables = bucket_variables(&endpoint);
    let size = fs::metadata(place.path("i")).unwrap().len() as usize;
    let largest = || {
        let requests = server.take_requests();
        requests.iter().map(|request| request.body.len()).max()
    };
    // The base is there as an image, and becomes a device.
    pushed(&place, &variables, &["i", "s3://bucket/dir/day0"]);
    assert_eq!(largest(), Some(size));
    let url = "s3://bucket/dir/day1";
    let done = pushed(&place, &variables, &["--device", "i", "delta", url]);
    assert_eq!(done["layers"][0]["was_present"], true);
    assert!(largest().unwrap() < size);
    assert_reads_same(&place, &variables, url);
    // The device is there, and becomes an image.
    let done = pushed(&place, &variables, &["i", "s3://bucket/dir/again"]);
    assert_eq!(done["layers"][0]["was_present"], true);
    assert!(largest().unwrap() < size);
    // An object that states the digest and has another hash tree is not taken.
    let digest = done["layers"][0]["digest"].as_str().unwrap();
    let name = format!("/bucket/dir/{}.erofs", digest.replace(':', "-"));
    {
        let objects = &mut bucket.lock().unwrap().objects;
        objects.remove(&name).unwrap();
        for key in ["/bucket/dir/day0", "/bucket/dir/again"] {
            *objects.get_mut(key).unwrap().0.last_mut().unwrap() ^= 1;
        }
    }
    let done = pushed(&place, &variables, &["--device", "i", "delta", url]);
    assert_eq!(done["layers"][0]["was_present"], false);
    let sent = bucket.lock().unwrap().objects[&name].0.clone();
    assert!(sent == fs::read(place.path("i")).unwrap());
}

#[test]
fn devices_in_a_bucket_are_trusted_if_their_list_is_signed() {
    let place = with_delta("push-bucket-trust");
    if !["a", "b"].iter().all(|name| key(&place, name)) {
        return;
    }
    let bucket = Arc::new(Mutex::new(Bucket::default()));
    let answering = Arc::clone(&bucket);
    let server = Server::start(move |request| answering.lock().unwrap().answer(request));
    let endpoint = server.url("");
    let variables = bucket_variables(&endpoint);
    let (url, other) = ("s3://bucket/delta", "s3://bucket/other");
    // Other images by the same signer, with the same device.
    let build = [
        "build",
        "-q",
        "--verity",
        "--whiteouts",
        "keep",
        "--base",
        "i",
    ];
    place.text(&[&build[..], &["m/tree.mtree", "second"]].concat());
    let sign = ["--sign", "a.key,a.pem", "--device", "i"];
    let done = pushed(&place, &variables, &[&sign[..], &["delta", url]].concat());
    pushed(
        &place,
        &variables,
        &[&sign[..], &["second", other]].concat(),
    );
    let check = |cert: &str| {
        let args = ["tar", "--cache-dir", "fresh", "--trust", cert, url, "-"];
        let _ = fs::remove_dir_all(place.path("fresh"));
        run(&place, &variables, &args)
    };
    let out = check("a.pem");
    assert_eq!(stderr(&out), "");
    assert!(out.stdout == good(&place, &[], &["tar", "--device", "i", "delta", "-"]));
    assert_eq!(code(&check("b.pem")), 6);
    let root = done["layers"][1]["root_hash"].as_str().unwrap();
    let args = ["ls", "--root-hash", root, url];
    let out = run(&place, &variables, &args);
    assert_eq!(code(&out), 2, "{}", stderr(&out));
    let get = |name: &str| bucket.lock().unwrap().objects[&format!("/bucket/{name}")].clone();
    let put = |name: &str, object: (Vec<u8>, String)| {
        let name = format!("/bucket/{name}");
        bucket.lock().unwrap().objects.insert(name, object);
    };
    let refused = |words: &str| {
        let out = check("a.pem");
        let message = stderr(&out);
        assert_eq!(code(&out), 6, "{message}");
        assert!(
            message.contains(words) && message.contains("not trusted by a.pem"),
            "{message}"
        );
        assert!(out.stdout.is_empty());
    };
    let (list, signature) = (get("delta.devices"), get("delta.devices.p7s"));
    // The list of another image, with its signature.
    put("delta.devices", get("other.devices"));
    put("delta.devices.p7s", get("other.devices.p7s"));
    refused("is that of another image");
    let mut changed = list.clone();
    changed.0.push(b' ');
    put("delta.devices", changed);
    put("delta.devices.p7s", signature.clone());
    refused("has no signature by the certificate");
    put("delta.devices", list);
    bucket
        .lock()
        .unwrap()
        .objects
        .remove("/bucket/delta.devices.p7s");
    refused("has no signature (KEY.devices.p7s)");
    put("delta.devices.p7s", signature);
    assert_eq!(code(&check("a.pem")), 0);
    // Without the list, no device is read.
    let list = bucket
        .lock()
        .unwrap()
        .objects
        .remove("/bucket/delta.devices");
    assert_eq!(code(&check("a.pem")), 2);
    put("delta.devices", list.unwrap());
    // Bytes of the device that its root hash does not cover.
    let name = format!(
        "{}.erofs",
        done["layers"][0]["digest"]
            .as_str()
            .unwrap()
            .replace(':', "-")
    );
    let mut device = get(&name);
    device.0[4096 * 2 + 5] ^= 1;
    put(&name, device);
    assert_eq!(code(&check("a.pem")), 3);
}

/// Lower layer of a container image.
fn lower_layer(layout: &Layout) -> Value {
    let text = "0123456789abcdef".repeat(4000);
    layout.layer(&[("a", "1"), ("b", "1"), ("sub/c", "1"), ("large", &text)])
}

/// Pushes a container image with a second layer and returns its URL. `files` are names and texts of files of that layer.
fn push_tars(
    layout: &Layout,
    registry: &Registry,
    host: &str,
    (below, files): (&Value, &[(&str, &str)]),
) -> String {
    let above = layout.layer(&[files, &[(".wh.a", ""), ("sub/.wh..wh..opq", "")]].concat());
    let manifest = layout.manifest(&[below.clone(), above.clone()]);
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap();
        fs::read(layout.0.path("l/blobs/sha256").join(&digest[7..])).unwrap()
    };
    let bytes = blob(&manifest);
    let parsed: Value = serde_json::from_slice(&bytes).unwrap();
    for descriptor in [below, &above, &parsed["config"]] {
        registry.add_blob("team/tars", blob(descriptor));
    }
    let media = "application/vnd.oci.image.manifest.v1+json";
    registry.add_manifest("team/tars", "v1", media, &bytes);
    format!("docker://{host}/team/tars:v1")
}

/// Names of entries in a directory.
fn count(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

#[test]
fn layers_of_a_container_image_in_a_registry_become_images() {
    let Some(layout) = Layout::new("push-docker") else {
        return;
    };
    let place = &layout.0;
    let (registry, server, url) = start();
    let tars = push_tars(
        &layout,
        &registry,
        &server.host(),
        (&lower_layer(&layout), &[("b", "2")]),
    );
    fs::create_dir(place.path("tmp")).unwrap();
    let tmp = place.path("tmp");
    let variables = [("TMPDIR", tmp.to_str().unwrap())];
    // As one image, in the registry and in a file.
    let merged = b"/\nb\nlarge\nsub\n";
    good(place, &variables, &["push", "-q", &tars, &url]);
    assert_eq!(good(place, &[], &["ls", "-R", &url]), merged);
    good(
        place,
        &variables,
        &["build", "-q", "--verity", &tars, "file"],
    );
    good(place, &[], &["pull", "-q", &url, "copy"]);
    assert!(fs::read(place.path("copy")).unwrap() == fs::read(place.path("file")).unwrap());
    // Tars in the place of a signed image are not read.
    if certificate(&place.0, "rsa", RSA).is_some() {
        let out = run(
            place,
            &variables,
            &["build", "--trust", "rsa.pem", &tars, "new"],
        );
        assert_ne!(code(&out), 0);
        assert!(!place.path("new").exists(), "{}", stderr(&out));
    }
    // Layer by layer, with whiteouts for overlayfs in the upper one.
    let done = pushed(place, &variables, &["--layers", &tars, &url]);
    let layers = done["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 2);
    for (name, layer) in ["below", "above"].iter().zip(layers) {
        let digest = layer["digest"].as_str().unwrap();
        fs::write(place.path(name), registry.blob("team/app", digest).unwrap()).unwrap();
    }
    assert_eq!(
        place.text(&["ls", "-R", "below"]),
        "/\na\nb\nlarge\nsub\nsub/c\n"
    );
    let stat = place.text(&["stat", "--json", "above", "a"]);
    assert!(stat.contains("char"), "{stat}");
    let stat = place.text(&["stat", "--json", "above", "sub"]);
    assert!(stat.contains("trusted.overlay.opaque"), "{stat}");
    // They are read as one tree.
    assert_eq!(good(place, &[], &["ls", "-R", &url]), merged);
    assert_eq!(good(place, &[], &["cat", &url, "b"]), b"2");
    good(place, &[], &["check", "-q", &url]);
    good(place, &[], &["extract", "-q", &url, "out"]);
    good(place, &[], &["extract", "-q", "file", "wanted"]);
    for name in ["b", "large"] {
        let read = |dir: &str| fs::read(place.path(dir).join(name)).unwrap();
        assert!(read("out") == read("wanted"));
    }
    assert_eq!(count(&place.path("out/sub")), 0);
    assert_eq!(count(&tmp), 0);
    assert!(
        !fs::read_dir(place.path("cache/tuff")).unwrap().any(|e| e
            .unwrap()
            .file_name()
            .to_string_lossy()
            .contains("layers-"))
    );
}

#[test]
fn an_update_of_a_chain_sends_the_changed_layer_alone() {
    let Some(layout) = Layout::new("push-chain") else {
        return;
    };
    let place = &layout.0;
    let (registry, server, url) = start();
    let below = lower_layer(&layout);
    let mut devices = Vec::new();
    for (number, b) in ["2", "3"].iter().enumerate() {
        let tars = push_tars(&layout, &registry, &server.host(), (&below, &[("b", b)]));
        let done = pushed(place, &[], &["--layers=delta", &tars, &url]);
        let layers = done["layers"].as_array().unwrap();
        assert_eq!(layers.len(), 2);
        assert_eq!(
            [&layers[0]["is_device"], &layers[1]["is_device"]],
            [true, false]
        );
        assert_eq!(layers[0]["was_present"], number == 1);
        devices.push(layers[0]["digest"].clone());
        assert_eq!(good(place, &[], &["ls", "-R", &url]), b"/\nb\nlarge\nsub\n");
        assert_eq!(good(place, &[], &["cat", &url, "b"]), b.as_bytes());
        assert_eq!(good(place, &[], &["cat", &url, "large"]).len(), 64_000);
        good(place, &[], &["check", "-q", &url]);
    }
    assert_eq!(devices[0], devices[1]);
}

/// Text of a length in bytes that compresses little.
fn noise(seed: u64, len: usize) -> String {
    let mut rng = tuff_testkit::Rng::new(seed);
    (0..len)
        .map(|_| char::from(b' ' + (rng.draw() % 95) as u8))
        .collect()
}

/// Container image of two layers with the program `bin/run` in the lower one, in a registry.
fn with_program(layout: &Layout, registry: &Registry, host: &str) -> String {
    let program = format!("#!/bin/none\n{}", noise(1, 700_000));
    let below = layout.layer(&[("bin/run", &program), ("large", &noise(2, 3_000_000))]);
    push_tars(
        layout,
        registry,
        host,
        (&below, &[("b", &noise(3, 2_000_000))]),
    )
}

#[test]
fn layers_of_an_image_with_a_command_keep_their_bytes_except_the_topmost_delta() {
    let Some(layout) = Layout::new("push-layers-start") else {
        return;
    };
    let place = &layout.0;
    let (registry, server, url) = start();
    let tars = with_program(&layout, &registry, &server.host());
    let digests = |options: &[&str]| {
        let done = pushed(place, &[], &[options, &[&tars, &url]].concat());
        let layers = done["layers"].as_array().unwrap().iter();
        let digests: Vec<_> = layers.map(|layer| layer["digest"].clone()).collect();
        let [below, top] = digests.try_into().unwrap();
        (below, top)
    };
    let none = digests(&["--layers=delta", "--start-with", "none"]);
    let run = digests(&["--layers=delta", "--start-with", "bin/run"]);
    assert_eq!(run.0, none.0);
    assert_ne!(run.1, none.1);
    let none = digests(&["--layers", "--start-with", "none"]);
    let run = digests(&["--layers", "--start-with", "bin/run"]);
    assert_eq!(run, none);
    let args = ["push", "--layers", "--start-with", "bin/run", &tars];
    let out = self::run(place, &[], &[&args[..], &["s3://bucket/x"]].concat());
    assert_eq!(code(&out), 2, "{}", stderr(&out));
    assert!(
        stderr(&out).contains("a bucket has no manifest"),
        "{}",
        stderr(&out)
    );
}

/// Annotation of each layer of an image with what a start reads.
fn stated_starts(registry: &Registry, done: &Value) -> Vec<Option<String>> {
    let digest = done["manifest"].as_str().unwrap();
    let manifest = registry.manifest("team/app", digest).unwrap();
    let layers = manifest["layers"].as_array().unwrap().iter();
    let text = |layer: &Value| {
        layer["annotations"]["vnd.tuff.start"]
            .as_str()
            .map(Into::into)
    };
    layers.map(text).collect()
}

/// Pushes layers for overlayfs: the script `bin/run` in the upper one, whose interpreter is in the lower one. Returns the result, and what
/// the manifest states about each layer.
fn push_script(
    layout: &Layout,
    (registry, host): (&Registry, &str),
    url: &str,
) -> (Value, Vec<Vec<Range<u64>>>) {
    let below = [
        ("bin/tool", &noise(1, 700_000)),
        ("large", &noise(2, 3_000_000)),
    ];
    let below = layout.layer(&below.map(|(name, text)| (name, &text[..])));
    let script = format!("#!/bin/tool\n{}", noise(3, 700_000));
    let above = [("bin/run", &script[..]), ("b", &noise(4, 2_000_000))];
    let tars = push_tars(layout, registry, host, (&below, &above));
    let place = &layout.0;
    let options = ["--layers", "--start-with", "none"];
    let none = pushed(place, &[], &[&options[..], &[&tars, url]].concat());
    assert_eq!(stated_starts(registry, &none), [None, None]);
    let options = ["--layers", "--start-with", "bin/run"];
    let done = pushed(place, &[], &[&options[..], &[&tars, url]].concat());
    let digests = |done: &Value| [0, 1].map(|number| done["layers"][number]["digest"].clone());
    assert_eq!(digests(&done), digests(&none));
    let range = |text: &str| {
        let (start, end) = text.split_once(':').unwrap();
        start.parse().unwrap()..end.parse().unwrap()
    };
    let stated: Vec<Vec<Range<u64>>> = stated_starts(registry, &done)
        .into_iter()
        .map(|text| text.unwrap().split(',').map(range).collect())
        .collect();
    for ranges in &stated {
        let bytes: u64 = ranges.iter().map(|r| r.end - r.start).sum();
        assert!((400_000..1_500_000).contains(&bytes), "{ranges:?}");
    }
    (done, stated)
}

/// Waits for requests of what the manifest states, and for no others of large files.
fn assert_start_is_fetched(server: &Server, done: &Value, stated: &[Vec<Range<u64>>]) {
    let mut requests = Vec::new();
    for (layer, stated) in done["layers"].as_array().unwrap().iter().zip(stated) {
        let path = format!("/blobs/{}", layer["digest"].as_str().unwrap());
        let mut of_layer = Vec::new();
        wait_for("requests for the start of a layer", || {
            requests.extend(server.take_requests());
            let new = requests.extract_if(.., |r: &mut Request| r.path.ends_with(&path));
            of_layer.extend(new.filter_map(|r| r.range(u64::MAX)));
            stated.iter().all(|r| covers(&of_layer, r)).then_some(())
        });
        let bytes: u64 = of_layer.iter().map(|r| r.end - r.start).sum();
        assert!(bytes < 2_500_000, "{of_layer:?}");
    }
}

#[test]
fn the_start_of_layers_for_overlayfs_is_fetched_from_each_of_their_blobs() {
    let Some(layout) = Layout::new("push-overlay-start") else {
        return;
    };
    if !can_mount() {
        return;
    }
    let place = &layout.0;
    let (registry, server, url) = start();
    let (done, stated) = push_script(&layout, (&registry, &server.host()), &url);
    let found = place.text(&["doctor", &url]);
    assert!(found.contains("in the manifest"), "{found}");
    fs::create_dir(place.path("mnt")).unwrap();
    server.take_requests();
    good(place, &[], &["mount", &url, "mnt"]);
    assert_start_is_fetched(&server, &done, &stated);
    place.unmount("mnt");
    // At this rate the fill takes months.
    let options = ["--fill-rate", "1", "--cache-dir", "serving"];
    let serving = Serving::start(place, &[&url], &options);
    assert_start_is_fetched(&server, &done, &stated);
    serving.end();
}

#[test]
fn wrong_statements_about_the_start_of_layers_change_no_byte() {
    let Some(layout) = Layout::new("push-overlay-wrong") else {
        return;
    };
    if !can_mount() {
        return;
    }
    let place = &layout.0;
    let (registry, server, url) = start();
    let (done, _) = push_script(&layout, (&registry, &server.host()), &url);
    let digest = done["manifest"].as_str().unwrap();
    let mut manifest = registry.manifest("team/app", digest).unwrap();
    let kind = manifest["mediaType"].as_str().unwrap().to_owned();
    fs::create_dir(place.path("mnt")).unwrap();
    let long = "0:1,".repeat(20_000);
    for (number, wrong) in [
        "18446744073709551614:18446744073709551615,9:3,0:18446744073709551615",
        "x,1,-1:5,,:,4096:8192",
        &long,
    ]
    .iter()
    .enumerate()
    {
        manifest["layers"][0]["annotations"]["vnd.tuff.start"] = (*wrong).into();
        let tag = format!("wrong{number}");
        registry.add_manifest("team/app", &tag, &kind, manifest.to_string().as_bytes());
        let url = url.replace("v1", &tag);
        good(place, &[], &["mount", "--cache-dir", &tag, &url, "mnt"]);
        let read = |name: &str| fs::read_to_string(place.path("mnt").join(name)).unwrap();
        assert!(read("bin/tool") == noise(1, 700_000));
        assert!(read("large") == noise(2, 3_000_000));
        place.unmount("mnt");
    }
}

#[test]
fn a_list_of_a_delta_image_is_fetched_from_the_blobs_of_its_layers() {
    let Some(layout) = Layout::new("push-delta-start") else {
        return;
    };
    if !can_mount() {
        return;
    }
    let place = &layout.0;
    let (registry, server, url) = start();
    let tars = with_program(&layout, &registry, &server.host());
    let options = ["--layers=delta", "--start-with", "bin/run", &tars, &url];
    let done = pushed(place, &[], &options);
    let layers = done["layers"].as_array().unwrap();
    for (name, layer) in ["below", "top"].iter().zip(layers) {
        let digest = layer["digest"].as_str().unwrap();
        fs::write(place.path(name), registry.blob("team/app", digest).unwrap()).unwrap();
    }
    let list = StartList::read(&open(&place.path("top"))).unwrap().unwrap();
    let of_device = |number| list.ranges().iter().filter(move |r| r.device.0 == number);
    let below: Vec<_> = of_device(1).map(|r| r.bytes.clone()).collect();
    let bytes: u64 = below.iter().map(|r| r.end - r.start).sum();
    assert!(bytes > 500_000, "{list:?}");
    fs::create_dir(place.path("mnt")).unwrap();
    server.take_requests();
    good(place, &[], &["mount", &url, "mnt"]);
    let path = format!("/blobs/{}", layers[0]["digest"].as_str().unwrap());
    let mut requested = Vec::new();
    wait_for("requests for the program", || {
        let new = server.take_requests().into_iter();
        let new = new.filter(|request| request.path.ends_with(&path));
        requested.extend(new.filter_map(|request| request.range(u64::MAX)));
        below.iter().all(|r| covers(&requested, r)).then_some(())
    });
    let bytes: u64 = requested.iter().map(|r| r.end - r.start).sum();
    assert!(bytes < 2_500_000, "{requested:?}");
    place.unmount("mnt");
}

#[test]
fn lists_of_layers_that_are_mounted_as_one_are_fetched_from_their_blobs() {
    if !can_mount() {
        return;
    }
    let place = Place::new("push-lists");
    let (registry, server, url) = start();
    for number in 0..2 {
        let tree = place.path(&format!("tree{number}"));
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join(format!("large{number}")), noise(4, 3_000_000)).unwrap();
        fs::write(tree.join("run"), noise(5 + number, 700_000)).unwrap();
        let executable = Permissions::from_mode(0o755);
        fs::set_permissions(tree.join("run"), executable).unwrap();
        let (tree, image) = (format!("tree{number}"), number.to_string());
        let args = ["build", "-q", "--verity", "--start-with", "run"];
        place.text(&[&args[..], &[&tree, &image]].concat());
    }
    let done = pushed(&place, &[], &["0", "1", &url]);
    fs::create_dir(place.path("mnt")).unwrap();
    server.take_requests();
    good(&place, &[], &["mount", &url, "mnt"]);
    let mut requests = Vec::new();
    for (number, layer) in done["layers"].as_array().unwrap().iter().enumerate() {
        let path = format!("/blobs/{}", layer["digest"].as_str().unwrap());
        let image = open(&place.path(&number.to_string()));
        let list = StartList::read(&image).unwrap().unwrap();
        assert!(list.bytes() > 500_000);
        wait_for("requests for the listed files", || {
            requests.extend(server.take_requests());
            let of_layer = requests
                .iter()
                .filter(|r: &&Request| r.path.ends_with(&path));
            let ranges: Vec<_> = of_layer.filter_map(|r| r.range(u64::MAX)).collect();
            let all = list.ranges().iter().all(|r| covers(&ranges, &r.bytes));
            all.then_some(())
        });
    }
    assert!(registry.manifest("team/app", "v1").is_some());
    place.unmount("mnt");
}

#[test]
fn blobs_of_another_repository_are_mounted() {
    let place = with_delta("push-mount-from");
    let (_, server, url) = start();
    pushed(&place, &[], &["i", &url]);
    let other = url.replace("app", "other");
    server.take_requests();
    let args = ["--mount-from", "team/app", "--device", "i", "delta", &other];
    let done = pushed(&place, &[], &args);
    assert_eq!(done["layers"][0]["was_present"], true);
    assert_eq!(done["layers"][1]["was_present"], false);
    let requests = server.take_requests();
    let sent = requests
        .iter()
        .filter(|r| r.method == "PATCH")
        .map(|r| r.body.len());
    let base = fs::metadata(place.path("i")).unwrap().len() as usize;
    let delta = fs::metadata(place.path("delta")).unwrap().len() as usize;
    let sent: usize = sent.sum();
    assert!(sent < delta + base / 2, "{sent}");
    good(&place, &[], &["check", "-q", &other]);
}

#[test]
fn an_interrupted_upload_to_a_bucket_continues() {
    let place = Place::new("push-resume");
    let mut rng = tuff_testkit::Rng::new(2);
    let noise: Vec<u8> = (0..30 << 20).map(|_| rng.draw() as u8).collect();
    fs::create_dir(place.path("large")).unwrap();
    fs::write(place.path("large/noise"), &noise).unwrap();
    place.text(&["build", "-q", "large", "i"]);
    let bucket = Mutex::new(Bucket::default());
    let (sent, limit) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(2)));
    let (counter, most) = (Arc::clone(&sent), Arc::clone(&limit));
    let server = Server::start(move |request| {
        let is_part = request.method == "PUT" && request.path.contains("partNumber=");
        if is_part && counter.fetch_add(1, Ordering::SeqCst) >= most.load(Ordering::SeqCst) {
            return Answer::status(403);
        }
        bucket.lock().unwrap().answer(request)
    });
    let endpoint = server.url("");
    let variables = bucket_variables(&endpoint);
    let out = run(
        &place,
        &variables,
        &["push", "-q", "i", "s3://bucket/large"],
    );
    assert_eq!(code(&out), 5, "{}", stderr(&out));
    assert_eq!(count(&place.path("cache/tuff/uploads")), 1);
    sent.store(0, Ordering::SeqCst);
    limit.store(usize::MAX, Ordering::SeqCst);
    good(
        &place,
        &variables,
        &["push", "-q", "i", "s3://bucket/large"],
    );
    // Four parts, of which the first process has sent two.
    assert_eq!(sent.load(Ordering::SeqCst), 2);
    assert_eq!(count(&place.path("cache/tuff/uploads")), 0);
    assert!(good(&place, &variables, &["cat", "s3://bucket/large", "noise"]) == noise);
}
