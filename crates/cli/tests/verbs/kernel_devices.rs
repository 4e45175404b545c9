//! Images of several objects under the kernel's EROFS: images with devices, and layers as one tree.

use crate::common::{Place, code, stderr};
use crate::kernel_remote::{Daemon, assert_is_replaced, kernel_can_mount, mounts_at, tree};
use crate::push::{good, pushed, run, start};
use std::fs;
use std::sync::Arc;
use tuff_testkit::http::Server;
use tuff_testkit::registry::Registry;
use tuff_testkit::tree::{Ignore, assert_same, host_tree, image_tree, open};

/// Images in a registry, and local ones of the same files.
struct Images {
    place: Place,
    registry: Arc<Registry>,
    server: Server,
    /// Image with a device. The local one is `plain`.
    with_device: String,
    /// Image with a device, and a layer above. The local one is `merged`.
    layers: String,
    /// Image whose data is in a file of chunks. The local one is `upper`.
    chunks: String,
    /// Digest of the blob of the device.
    device: String,
}

impl Images {
    /// `None`, with a note, if the kernel cannot mount them.
    fn new(name: &str) -> Option<Self> {
        if !kernel_can_mount() {
            return None;
        }
        let place = Place::with_image(name);
        tree(&place);
        fs::create_dir_all(place.path("top/0")).unwrap();
        fs::write(place.path("top/0/large"), "of the upper layer").unwrap();
        place.text(&["build", "-q", "--verity", "top", "upper"]);
        let build = |args: &[&str]| {
            // All kinds of entries but whiteouts, which layers have for each other.
            let kinds = ["build", "-q", "--verity", "--sparse", "keep"];
            place.text(&[&kinds[..], args].concat());
        };
        build(&["holes", "m/tree.mtree", "tree", "base"]);
        fs::create_dir(place.path("tree/more")).unwrap();
        let more = fs::read(place.path("tree/1/large")).unwrap();
        let more: Vec<u8> = more[..2 << 20].iter().map(|byte| !byte).collect();
        fs::write(place.path("tree/more/large"), more).unwrap();
        build(&["--base", "base", "holes", "m/tree.mtree", "tree", "delta"]);
        build(&["holes", "m/tree.mtree", "tree", "plain"]);
        build(&["holes", "m/tree.mtree", "tree", "top", "merged"]);
        let (registry, server, with_device) = start();
        let args = ["--device", "base", "delta"];
        let done = pushed(&place, &[], &[&args[..], &[&with_device]].concat());
        let device = done["layers"][0]["digest"].as_str().unwrap().to_owned();
        let layers = with_device.replace("v1", "v2");
        pushed(&place, &[], &[&args[..], &["upper", &layers]].concat());
        let blob = ["--chunk", "4K", "--blob", "blob", "-z", "none"];
        place.text(&[&["build", "-q"], &blob[..], &["top", "chunks"]].concat());
        let chunks = with_device.replace("v1", "v3");
        pushed(&place, &[], &["--device", "blob", "chunks", &chunks]);
        Some(Self {
            place,
            registry,
            server,
            with_device,
            layers,
            chunks,
            device,
        })
    }
}

#[test]
fn the_kernel_reads_several_objects_as_the_local_image() {
    let Some(images) = Images::new("kernel-devices") else {
        return;
    };
    let place = &images.place;
    let cases = [
        (&images.with_device, "plain"),
        (&images.layers, "merged"),
        (&images.chunks, "upper"),
    ];
    for (url, local) in cases {
        let expected = image_tree(&open(&place.path(local)));
        // A cache that is too small for the image keeps it from being complete.
        let mut daemon = Daemon::start(place, url, &["--kernel", "--cache-max", "1M"]);
        // A small image is complete, and replaced, at once.
        let mounts = mounts_at(&daemon.dir());
        let kinds: Vec<&str> = mounts.iter().map(|(kind, _)| kind.as_str()).collect();
        assert_eq!(kinds, ["erofs"]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let found = host_tree(&daemon.dir());
                    assert_same(local, &expected, &found, Ignore::default());
                });
            }
        });
        daemon.umount();
        daemon.ends_well();
    }
}

#[test]
fn a_damaged_device_and_a_killed_server_are_errors_of_the_kernel_mount() {
    let Some(images) = Images::new("kernel-device-gone") else {
        return;
    };
    let place = &images.place;
    let mut daemon = Daemon::start(place, &images.with_device, &["--kernel"]);
    let dir = daemon.dir();
    let read = |name: &str| fs::read(dir.join(name));
    let local = |name: &str| fs::read(place.path("tree").join(name)).unwrap();
    assert!(read("0/large").unwrap() == local("0/large"));
    images
        .registry
        .change_blob("team/app", &images.device, |blob| {
            blob.iter_mut().for_each(|byte| *byte ^= 1);
        });
    assert_eq!(read("3/large").unwrap_err().raw_os_error(), Some(5));
    assert!(read("more/large").unwrap() == local("more/large"));
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    assert!(read("1/large").is_err());
    daemon.umount();
}

#[test]
fn a_mount_of_several_objects_is_replaced_when_all_are_complete() {
    let Some(images) = Images::new("kernel-devices-swap") else {
        return;
    };
    let Images { place, server, .. } = images;
    let limit = ["--fill", "--fill-rate", "16M", "--cache-dir"];
    for (dir, options) in [("first", &["--kernel"][..]), ("second", &[])] {
        let options = [options, &limit, &[dir]].concat();
        let daemon = Daemon::start(&place, &images.with_device, &options);
        assert_is_replaced(daemon, None);
    }
    let options = [&["--kernel"], &limit[..], &["third"]].concat();
    let daemon = Daemon::start(&place, &images.layers, &options);
    // The index of the layers has no name.
    assert_is_replaced(daemon, Some(server));
}

#[test]
fn an_image_whose_devices_are_not_known_shows_its_metadata_through_fuse() {
    let Some(images) = Images::new("kernel-device-unknown") else {
        return;
    };
    let place = &images.place;
    let bytes = fs::read(place.path("delta")).unwrap();
    let server = Server::start(move |request| match request.path.as_str() {
        "/i" => tuff_testkit::http::Answer::object(request, &bytes, "\"v1\""),
        _ => tuff_testkit::http::Answer::status(404),
    });
    fs::create_dir(place.path("mnt")).unwrap();
    let out = run(place, &[], &["mount", "--kernel", &server.url("/i"), "mnt"]);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    let reason = "not mounted by the kernel: data is on device 1";
    assert!(stderr(&out).contains(reason), "{}", stderr(&out));
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let dir = fs::canonicalize(place.path("mnt")).unwrap();
    let of_dir = table
        .lines()
        .find(|line| line.contains(dir.to_str().unwrap()));
    assert!(
        of_dir.is_some_and(|line| line.contains("fuse.tuff")),
        "{table}"
    );
    assert!(fs::read_dir(place.path("mnt")).unwrap().count() > 0);
    place.unmount("mnt");
}

#[test]
fn layers_are_copied_as_an_index_and_its_devices() {
    let place = Place::with_image("pull-layers");
    fs::create_dir(place.path("top")).unwrap();
    fs::write(place.path("top/hello"), "of the upper layer").unwrap();
    place.text(&["build", "-q", "--verity", "top", "upper"]);
    let (_, _server, url) = start();
    pushed(&place, &[], &["i", "upper", &url]);
    let message = good(&place, &[], &["pull", "--json", &url, "copy"]);
    let message: serde_json::Value = serde_json::from_slice(&message).unwrap();
    let devices = ["copy.device1", "copy.device2"];
    assert_eq!(message["devices"], serde_json::json!(devices));
    assert_eq!(
        [&message["digest"], &message["root_hash"]],
        [&serde_json::Value::Null; 2]
    );
    assert_eq!(
        message["image_bytes"],
        fs::metadata(place.path("copy")).unwrap().len()
    );
    for (copy, original) in devices.iter().zip(["i", "upper"]) {
        assert!(fs::read(place.path(copy)).unwrap() == fs::read(place.path(original)).unwrap());
    }
    let copy = ["--device", devices[0], "--device", devices[1], "copy"];
    for (verb, paths) in [("tar", &["-"][..]), ("check", &["-q"]), ("ls", &["-lR"])] {
        let of = |image: &[&str]| good(&place, &[], &[&[verb], image, paths].concat());
        assert!(of(&copy) == of(&[&url]), "{verb}");
    }
    assert_eq!(
        good(&place, &[], &[&["cat"], &copy[..], &["hello"]].concat()),
        b"of the upper layer"
    );
    let out = run(&place, &[], &["pull", &url, "-"]);
    assert_eq!(code(&out), 2, "{}", stderr(&out));
}
