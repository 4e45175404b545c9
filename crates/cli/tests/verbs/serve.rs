//! Layers of remote images as files for container engines.

use crate::common::{Place, code, stderr};
use crate::kernel_remote::{kernel_can_mount, mounts_at, wait_for};
use crate::mount::can_mount;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use tuff_erofs::read::StartList;
use tuff_erofs::serve::file_ranges;
use tuff_testkit::http::{Answer, Server};
use tuff_testkit::tree::{Ignore, assert_same, host_tree, image_tree, open};

/// Layers `0` and `1` of an image in a registry, with their diffIDs.
struct Registry {
    server: Server,
    /// DiffIDs of the layers, 64 hexadecimal digits each.
    ids: Vec<String>,
    /// Status of all answers. 0 for those of the registry.
    status: Arc<AtomicU16>,
}

pub(crate) fn digest_of(place: &Place, name: &str) -> String {
    let out = Command::new("sha256sum")
        .arg(place.path(name))
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    text.split(' ').next().unwrap().to_owned()
}

/// Builds two layers and starts a registry that holds them as `oci://HOST/app`.
fn registry(place: &Place) -> Registry {
    registry_with(place, &[], |_| {}, |_, _| {})
}

/// The same, with options of the builds, another configuration, and other bytes of a layer than those that its digest was made of.
fn registry_with(
    place: &Place,
    options: &[&str],
    change_ids: impl Fn(&mut Vec<String>),
    change_layer: impl Fn(usize, &mut Vec<u8>),
) -> Registry {
    let mut rng = tuff_testkit::Rng::new(3);
    let mut blobs = HashMap::new();
    let (mut ids, mut layers) = (Vec::new(), Vec::new());
    for number in 0..2 {
        let tree = place.path(&format!("tree{number}"));
        fs::create_dir_all(tree.join("etc")).unwrap();
        let bytes: Vec<u8> = (0..2 << 20).map(|_| rng.draw() as u8 | 1).collect();
        let data = tree.join(format!("data{number}"));
        fs::write(&data, bytes).unwrap();
        fs::set_permissions(data, Permissions::from_mode(0o755)).unwrap();
        fs::write(tree.join(format!("etc/{number}")), "text\n".repeat(1000)).unwrap();
        let (name, tree) = (number.to_string(), format!("tree{number}"));
        let args = ["build", "-q", "--verity"];
        let out = place.run(&[&args, options, &[&tree, &name]].concat());
        assert_eq!(code(&out), 0, "{}", stderr(&out));
        let verity = &place.json(&["verity", "show", "--json", &name])[0];
        let digest = digest_of(place, &name);
        let mut bytes = fs::read(place.path(&name)).unwrap();
        change_layer(number, &mut bytes);
        layers.push(json!({
            "mediaType": "application/vnd.erofs.layer.v1",
            "digest": format!("sha256:{digest}"),
            "size": bytes.len(),
            "annotations": {
                "org.erofs.dmverity.root_digest": verity["root_hash"],
                "org.erofs.dmverity.hash_offset": verity["hash_offset"].to_string(),
            },
        }));
        blobs.insert(format!("sha256:{digest}"), bytes);
        ids.push(digest);
    }
    change_ids(&mut ids);
    let diff_ids: Vec<Value> = ids.iter().map(|id| json!(format!("sha256:{id}"))).collect();
    let config = json!({"rootfs": {"type": "layers", "diff_ids": diff_ids}}).to_string();
    place_blob(place, &mut blobs, "config", &config);
    let config = format!("sha256:{}", digest_of(place, "config"));
    let manifest = json!({"schemaVersion": 2, "config": {"digest": config}, "layers": layers});
    let manifest = manifest.to_string().into_bytes();
    let status = Arc::<AtomicU16>::default();
    let set = Arc::clone(&status);
    let server = Server::start(move |request| {
        match set.load(Ordering::SeqCst) {
            0 => {}
            status => return Answer::status(status),
        }
        let path = request.path.as_str();
        if path == "/v2/app/manifests/latest" {
            return Answer {
                status: 200,
                body: manifest.clone(),
                ..Answer::default()
            };
        }
        let blob = path
            .strip_prefix("/v2/app/blobs/")
            .and_then(|digest| blobs.get(digest));
        blob.map_or(Answer::status(404), |bytes| Answer {
            delay: Duration::from_millis(2),
            ..Answer::object(request, bytes, "")
        })
    });
    Registry {
        server,
        ids,
        status,
    }
}

fn place_blob(place: &Place, blobs: &mut HashMap<String, Vec<u8>>, name: &str, text: &str) {
    fs::write(place.path(name), text).unwrap();
    let digest = format!("sha256:{}", digest_of(place, name));
    blobs.insert(digest, text.as_bytes().to_vec());
}

/// Running `tuff serve`. Dropping it ends the process.
pub(crate) struct Serving<'a> {
    place: &'a Place,
    child: Child,
}

impl<'a> Serving<'a> {
    pub(crate) fn start(place: &'a Place, urls: &[&str], options: &[&str]) -> Self {
        fs::create_dir_all(place.path("into")).unwrap();
        let mut command = place.command(&["serve", "-f", "--into", "into", "--store", "store"]);
        command
            .args(["--log", "log", "--fetch-timeout", "2"])
            .args(options)
            .args(urls);
        command
            .env("XDG_CACHE_HOME", place.path("cache"))
            .env("REGISTRY_AUTH_FILE", place.path("auth.json"));
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        wait_for("the mount", || {
            assert!(child.try_wait().unwrap().is_none(), "{}", place.0.display());
            let into = fs::canonicalize(place.path("into")).ok()?;
            (!mounts_at(&into).is_empty()).then_some(())
        });
        Self { place, child }
    }

    pub(crate) fn path(&self, dir: &str, id: &str) -> PathBuf {
        let place = fs::canonicalize(&self.place.0).unwrap();
        place.join(format!("{dir}/sha256/{}/{id}.erofs", &id[..2]))
    }

    pub(crate) fn is_complete(&self, id: &str) -> bool {
        fs::symlink_metadata(self.path("store", id)).is_ok_and(|meta| meta.is_file())
    }

    pub(crate) fn end(mut self) {
        self.place.unmount("into");
        let status = wait_for("the end of the server", || self.child.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.place.path("into"))
            .output();
    }
}

/// Mounts a layer by the kernel and compares it with the local image.
fn assert_kernel_reads(place: &Place, layer: &Path, image: &str) {
    let dir = place.path("layer");
    fs::create_dir_all(&dir).unwrap();
    let flags = rustix::mount::MountFlags::RDONLY;
    rustix::mount::mount(layer, &dir, "erofs", flags, None).unwrap();
    let expected = image_tree(&open(&place.path(image)));
    let found = host_tree(&dir);
    rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_same(
        &layer.display().to_string(),
        &expected,
        &found,
        Ignore::default(),
    );
}

#[test]
fn layers_are_served_and_then_stored_as_files() {
    if !can_mount() {
        return;
    }
    let by_kernel = kernel_can_mount();
    let place = Place::new("serve");
    let registry = registry(&place);
    let url = format!("oci://{}/app", registry.server.host());
    let serving = Serving::start(&place, &[&url], &["--fill-rate", "0"]);
    for (number, id) in registry.ids.iter().enumerate() {
        let file = serving.path("into", id);
        let image = fs::read(place.path(&number.to_string())).unwrap();
        assert!(!serving.is_complete(id));
        assert_eq!(fs::metadata(&file).unwrap().len(), image.len() as u64);
        let verity = fs::read_to_string(format!("{}.dmverity", file.display())).unwrap();
        let verity: Value = serde_json::from_str(&verity).unwrap();
        let shown = &place.json(&["verity", "show", "--json", &number.to_string()])[0];
        assert_eq!(verity["roothash"], shown["root_hash"]);
        assert_eq!(verity["hashoffset"], shown["hash_offset"]);
        if by_kernel {
            assert_kernel_reads(&place, &file, &number.to_string());
        }
        assert!(fs::read(&file).unwrap() == image);
    }
    // A layer that was read as a whole is complete.
    for (number, id) in registry.ids.iter().enumerate() {
        wait_for("completion", || serving.is_complete(id).then_some(()));
        let file = serving.path("store", id);
        assert!(fs::read(&file).unwrap() == fs::read(place.path(&number.to_string())).unwrap());
        assert!(Path::new(&format!("{}.dmverity", file.display())).exists());
        if by_kernel {
            assert_kernel_reads(&place, &file, &number.to_string());
        }
    }
    serving.end();
    // Without the registry's blobs, another run serves what is complete.
    registry.server.take_requests();
    let serving = Serving::start(&place, &[&url], &[]);
    let image = fs::read(place.path("1")).unwrap();
    assert!(fs::read(serving.path("into", &registry.ids[1])).unwrap() == image);
    let requested: Vec<String> = registry
        .server
        .take_requests()
        .into_iter()
        .map(|r| r.path)
        .collect();
    assert!(
        requested
            .iter()
            .all(|path| !path.contains(&registry.ids[1])),
        "{requested:?}"
    );
    serving.end();
}

/// Ranges of a layer that were requested since the last call, with those before it.
fn add_requested(registry: &Registry, id: &str, requested: &mut Vec<Range<u64>>) {
    let path = format!("/v2/app/blobs/sha256:{id}");
    let new = registry.server.take_requests().into_iter();
    let new = new.filter(|request| request.path == path);
    requested.extend(new.filter_map(|request| request.range(u64::MAX)));
}

/// True if ranges cover another one.
pub(crate) fn covers(requested: &[Range<u64>], range: &Range<u64>) -> bool {
    let mut at = range.start;
    while at < range.end {
        let holding = requested.iter().filter(|r| r.contains(&at));
        match holding.map(|r| r.end).max() {
            Some(end) => at = end,
            None => return false,
        }
    }
    true
}

/// Adds files to layer 0, so that its metadata is too long to lie beside the superblock.
fn add_metadata(place: &Place) {
    for number in 0..300 {
        let path = place.path(&format!("tree0/more/{number}"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
}

/// Registry whose layer 0 lists the start of `data0`, beside a file that is not listed. Returns the listed ranges, too.
fn registry_with_list(place: &Place) -> (Registry, Vec<Range<u64>>) {
    add_metadata(place);
    let mut rng = tuff_testkit::Rng::new(4);
    let bytes: Vec<u8> = (0..12 << 20).map(|_| rng.draw() as u8).collect();
    fs::write(place.path("tree0/more/large"), bytes).unwrap();
    let registry = registry_with(place, &["--start-with", "data0"], |_| {}, |_, _| {});
    let list = StartList::read(&open(&place.path("0"))).unwrap().unwrap();
    let listed: Vec<_> = list.ranges().iter().map(|r| r.bytes.clone()).collect();
    assert!(list.bytes() >= 2 << 20);
    (registry, listed)
}

#[test]
fn a_layer_requests_what_its_list_names_without_a_reader() {
    if !can_mount() {
        return;
    }
    let place = Place::new("serve-list");
    let (registry, listed) = registry_with_list(&place);
    let url = format!("oci://{}/app", registry.server.host());
    // At this rate the fill takes months.
    let serving = Serving::start(&place, &[&url], &["--fill-rate", "1"]);
    let mut requested = Vec::new();
    wait_for("a request for each listed range", || {
        add_requested(&registry, &registry.ids[0], &mut requested);
        let all = listed.iter().all(|range| covers(&requested, range));
        all.then_some(())
    });
    let bytes: u64 = requested.iter().map(|r| r.end - r.start).sum();
    assert!(bytes < 8 << 20, "{requested:?}");
    let file = serving.path("into", &registry.ids[0]);
    assert!(fs::read(file).unwrap() == fs::read(place.path("0")).unwrap());
    serving.end();
}

#[test]
fn a_layer_without_background_requests_only_what_is_read() {
    if !can_mount() {
        return;
    }
    let place = Place::new("serve-no-list");
    let (registry, listed) = registry_with_list(&place);
    let url = format!("oci://{}/app", registry.server.host());
    let serving = Serving::start(&place, &[&url], &["--fill-rate", "0"]);
    let file = fs::File::open(serving.path("into", &registry.ids[0])).unwrap();
    let mut requested = Vec::new();
    for mib in 2..8 {
        let mut bytes = vec![0; 4096];
        file.read_exact_at(&mut bytes, mib << 20).unwrap();
        add_requested(&registry, &registry.ids[0], &mut requested);
    }
    let found: Vec<_> = listed.iter().filter(|r| covers(&requested, r)).collect();
    assert!(found.is_empty(), "{found:?} {requested:?}");
    drop(file);
    serving.end();
}

#[test]
fn a_miss_in_a_served_layer_requests_the_files_beside_it() {
    if !can_mount() {
        return;
    }
    let place = Place::new("serve-neighbours");
    let (tree, mut rng) = (place.path("tree0/dir"), tuff_testkit::Rng::new(5));
    fs::create_dir_all(&tree).unwrap();
    for n in 0..40 {
        let bytes: Vec<u8> = (0..200_000).map(|_| rng.draw() as u8).collect();
        fs::write(tree.join(format!("file{n:02}")), bytes).unwrap();
    }
    let registry = registry(&place);
    let image = open(&place.path("0"));
    let url = format!("oci://{}/app", registry.server.host());
    let serving = Serving::start(&place, &[&url], &["--fill-rate", "1"]);
    let ranges = |n: usize| {
        let inode = image.resolve(format!("/dir/file{n:02}").as_bytes());
        file_ranges(&image, &inode.unwrap(), 0..200_000)
    };
    let file = fs::File::open(serving.path("into", &registry.ids[0])).unwrap();
    let pos = ranges(20)[0].range.start;
    file.read_exact_at(&mut [0; 4096], pos).unwrap();
    let mut requested = Vec::new();
    wait_for("requests for the other files", || {
        add_requested(&registry, &registry.ids[0], &mut requested);
        let all = (0..40)
            .flat_map(ranges)
            .all(|r| covers(&requested, &r.range));
        all.then_some(())
    });
    drop(file);
    serving.end();
}

#[test]
fn layers_complete_in_the_background() {
    if !can_mount() {
        return;
    }
    let place = Place::new("serve-fill");
    let registry = registry(&place);
    let url = format!("oci://{}/app", registry.server.host());
    let serving = Serving::start(&place, &[&url], &[]);
    for id in &registry.ids {
        wait_for("completion", || serving.is_complete(id).then_some(()));
    }
    serving.end();
}

#[test]
fn a_full_store_keeps_paths_of_removed_layers_valid() {
    if !can_mount() {
        return;
    }
    let place = Place::new("serve-bound");
    let registry = registry(&place);
    let url = format!("oci://{}/app", registry.server.host());
    // Room for one layer of 2 MiB.
    let serving = Serving::start(&place, &[&url], &["--store-max", "3M"]);
    let (first, second) = (&registry.ids[0], &registry.ids[1]);
    wait_for("completion", || serving.is_complete(first).then_some(()));
    let stored = serving.path("store", first);
    let image = fs::read(place.path("1")).unwrap();
    assert!(fs::read(serving.path("into", second)).unwrap() == image);
    wait_for("room", || serving.is_complete(second).then_some(()));
    let meta = fs::symlink_metadata(&stored).unwrap();
    assert!(meta.file_type().is_symlink());
    let image = fs::read(place.path("0")).unwrap();
    assert!(fs::read(&stored).unwrap() == image);
    serving.end();
}

#[test]
fn objects_are_layers_by_their_names() {
    if !can_mount() {
        return;
    }
    let place = Place::with_image("serve-object");
    let bytes = fs::read(place.path("i")).unwrap();
    let served = bytes.clone();
    let server = Server::start(move |request| Answer::object(request, &served, "\"v1\""));
    let id = digest_of(&place, "i");
    let url = server.url(&format!("/layers/{id}.erofs"));
    // Nothing verifies parts of such a layer, so it is read as a whole.
    let serving = Serving::start(&place, &[&url], &["--fill-rate", "0"]);
    assert!(fs::read(serving.path("into", &id)).unwrap() == bytes);
    wait_for("completion", || serving.is_complete(&id).then_some(()));
    serving.end();
    let out = place.run(&[
        "serve",
        "--into",
        "into",
        "--store",
        "store",
        &server.url("/i"),
    ]);
    assert_eq!(code(&out), 2);
    assert!(stderr(&out).contains("diffID"), "{}", stderr(&out));
}

#[test]
fn a_server_of_layers_starts_without_servers_of_images() {
    if !can_mount() {
        return;
    }
    let (place, other) = (
        Place::new("serve-offline"),
        Place::new("serve-offline-other"),
    );
    let (known, unknown) = (registry(&place), registry(&other));
    let urls = [&known, &unknown].map(|registry| format!("oci://{}/app", registry.server.host()));
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    // Layers of one registry are complete.
    let serving = Serving::start(&place, &urls[..1], &[]);
    for id in &known.ids {
        wait_for("completion", || serving.is_complete(id).then_some(()));
    }
    serving.end();
    for status in [503, 404] {
        known.status.store(503, Ordering::SeqCst);
        unknown.status.store(status, Ordering::SeqCst);
        let serving = Serving::start(&place, &urls, &["--fill-rate", "0"]);
        for (number, id) in known.ids.iter().enumerate() {
            let image = fs::read(place.path(&number.to_string())).unwrap();
            assert!(fs::read(serving.path("into", id)).unwrap() == image);
        }
        let absent = serving.path("into", &unknown.ids[0]);
        let e = fs::metadata(&absent).unwrap_err();
        assert_eq!(e.kind(), std::io::ErrorKind::NotFound, "{status}");
        // The registry is asked again, and its layers are served.
        unknown.status.store(0, Ordering::SeqCst);
        let words = format!("{}:latest: served", urls[1]);
        wait_for_log(&place, &words);
        let image = fs::read(other.path("0")).unwrap();
        assert!(fs::read(&absent).unwrap() == image);
        serving.end();
        fs::remove_file(place.path("log")).unwrap();
    }
    // Both are known, and no registry is there.
    known.server.stop();
    unknown.server.stop();
    let serving = Serving::start(&place, &urls, &["--fill-rate", "0"]);
    let image = fs::read(other.path("0")).unwrap();
    assert!(fs::read(serving.path("into", &unknown.ids[0])).unwrap() == image);
    // A layer that is not complete fails when it is read.
    assert!(fs::read(serving.path("into", &unknown.ids[1])).is_err());
    serving.end();
}

/// Waits until the log has a line with these words.
pub(crate) fn wait_for_log(place: &Place, words: &str) {
    wait_for(words, || {
        let log = fs::read_to_string(place.path("log")).ok()?;
        log.contains(words).then_some(())
    });
}

#[test]
fn content_whose_digest_is_not_its_name_never_gets_the_name() {
    if !can_mount() {
        return;
    }
    let place = Place::with_image("serve-wrong-object");
    let bytes = fs::read(place.path("i")).unwrap();
    let server = Server::start(move |request| Answer::object(request, &bytes, "\"v1\""));
    let id = "dd".repeat(32);
    let url = server.url(&format!("/layers/{id}.erofs"));
    for rate in ["0", "1G"] {
        let serving = Serving::start(&place, &[&url], &["--fill-rate", rate]);
        assert!(fs::read(serving.path("into", &id)).is_err());
        wait_for_log(&place, &format!("not served as {id}"));
        assert!(fs::read(serving.path("into", &id)).is_err());
        assert!(fs::symlink_metadata(serving.path("store", &id)).is_err());
        serving.end();
        fs::remove_file(place.path("log")).unwrap();
    }
}

#[test]
fn a_configuration_with_other_digests_than_the_manifest_is_refused() {
    let place = Place::new("serve-wrong-config");
    let registry = registry_with(&place, &[], |ids| ids[1] = "dd".repeat(32), |_, _| {});
    let url = format!("oci://{}/app", registry.server.host());
    let out = place.run(&["serve", "--into", "into", "--store", "store", &url]);
    assert_eq!(code(&out), 3, "{}", stderr(&out));
    assert!(stderr(&out).contains(&"dd".repeat(32)), "{}", stderr(&out));
}

#[test]
fn a_blob_with_wrong_bytes_beside_its_hash_tree_is_not_kept() {
    if !can_mount() {
        return;
    }
    let place = Place::new("serve-wrong-blob");
    // The bytes behind the header of the hash tree are in no block that the tree covers.
    let change = |number: usize, bytes: &mut Vec<u8>| {
        let offset =
            place.json(&["verity", "show", "--json", &number.to_string()])[0]["hash_offset"]
                .as_u64()
                .unwrap();
        bytes[offset as usize + 2000] ^= 1;
    };
    let registry = registry_with(&place, &[], |_| {}, change);
    let url = format!("oci://{}/app", registry.server.host());
    let serving = Serving::start(&place, &[&url], &[]);
    for id in &registry.ids {
        wait_for_log(&place, "not in the store");
        assert!(fs::symlink_metadata(serving.path("store", id)).is_err());
        assert!(fs::read(serving.path("into", id)).is_err());
    }
    serving.end();
}

#[test]
fn one_changed_bit_of_the_metadata_of_a_layer_is_neither_served_nor_kept() {
    if !can_mount() {
        return;
    }
    let place = Place::new("serve-wrong-metadata");
    add_metadata(&place);
    let metadata = |number: usize| {
        let image = open(&place.path(&number.to_string()));
        let sb = image.superblock();
        (sb.meta_blkaddr.0 * sb.block_bits.size()) as usize
    };
    let change = |number: usize, bytes: &mut Vec<u8>| {
        if number == 0 {
            bytes[metadata(number) + 20] ^= 1;
        }
    };
    let registry = registry_with(&place, &["--start-with", "data0"], |_| {}, change);
    let url = format!("oci://{}/app", registry.server.host());
    let serving = Serving::start(&place, &[&url], &[]);
    let file = fs::File::open(serving.path("into", &registry.ids[0])).unwrap();
    let at = metadata(0) as u64;
    assert!(file.read_exact_at(&mut [0; 4096], at).is_err());
    // The other layer is complete meanwhile.
    wait_for("completion", || {
        serving.is_complete(&registry.ids[1]).then_some(())
    });
    assert!(file.read_exact_at(&mut [0; 4096], at).is_err());
    drop(file);
    serving.end();
    let mut wrong = fs::read(place.path("0")).unwrap();
    wrong[at as usize + 20] ^= 1;
    let wrong = &wrong[at as usize..at as usize + 64];
    let mut left = vec![place.path("cache"), place.path("store")];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).unwrap();
            left.extend(entries.map(|entry| entry.unwrap().path()));
        } else if path.is_file() {
            let bytes = fs::read(&path).unwrap();
            let found = bytes.chunks(4096).any(|block| block.starts_with(wrong));
            assert!(!found, "{}", path.display());
        }
    }
}

#[test]
fn wrong_files_of_a_store_are_removed_at_the_start() {
    if !can_mount() {
        return;
    }
    let place = Place::new("serve-poisoned");
    let registry = registry(&place);
    let url = format!("oci://{}/app", registry.server.host());
    let serving = Serving::start(&place, &[&url], &[]);
    for id in &registry.ids {
        wait_for("completion", || serving.is_complete(id).then_some(()));
    }
    let (first, second) = (
        serving.path("store", &registry.ids[0]),
        serving.path("store", &registry.ids[1]),
    );
    let store = fs::canonicalize(place.path("store")).unwrap();
    serving.end();
    // As an earlier version left them: a layer of another image, one that is served, and the description of another hash tree.
    let other = store.join(format!("sha256/dd/{}.erofs", "dd".repeat(32)));
    fs::create_dir_all(other.parent().unwrap()).unwrap();
    fs::copy(&first, &other).unwrap();
    let mut bytes = fs::read(&second).unwrap();
    bytes[5000] ^= 1;
    let times = fs::metadata(&second).unwrap();
    let times = (times.accessed().unwrap(), times.modified().unwrap());
    fs::write(&second, &bytes).unwrap();
    let file = fs::File::options().write(true).open(&second).unwrap();
    let times = fs::FileTimes::new()
        .set_accessed(times.0)
        .set_modified(times.1);
    file.set_times(times).unwrap();
    drop(file);
    let description = format!("{}.dmverity", first.display());
    let lie = json!({"roothash": "00".repeat(32), "hashoffset": 4096}).to_string();
    fs::write(&description, lie).unwrap();
    // Only the files in this list are known to be right.
    let list = fs::read_to_string(store.join("verified")).unwrap();
    let kept = list
        .lines()
        .filter(|line| line.starts_with(&registry.ids[1]));
    let kept: Vec<&str> = kept.collect();
    assert_eq!((list.lines().count(), kept.len()), (2, 1));
    fs::write(store.join("verified"), kept.concat() + "\n").unwrap();
    fs::write(store.join("sha256/dd/half.new"), "left by a killed process").unwrap();
    let serving = Serving::start(&place, &[&url], &["--fill-rate", "0"]);
    for (id, path) in [
        ("dd".repeat(32), &other),
        (registry.ids[1].clone(), &second),
    ] {
        wait_for_log(&place, &format!("{id}.erofs: removed"));
        let found = fs::symlink_metadata(path);
        assert!(found.is_err() || found.unwrap().is_symlink());
    }
    assert!(fs::symlink_metadata(&first).unwrap().is_file());
    assert!(!Path::new(&description).exists());
    assert!(!store.join("sha256/dd/half.new").exists());
    let expected = fs::read(place.path("1")).unwrap();
    assert!(fs::read(serving.path("into", &registry.ids[1])).unwrap() == expected);
    serving.end();
}

#[test]
fn a_store_that_others_can_change_is_refused() {
    let place = Place::new("serve-open");
    let registry = registry(&place);
    let url = format!("oci://{}/app", registry.server.host());
    fs::create_dir(place.path("store")).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(place.path("store"), open).unwrap();
    let out = place.run(&["serve", "--into", "into", "--store", "store", &url]);
    assert_eq!(code(&out), 5, "{}", stderr(&out));
    let message = stderr(&out);
    assert!(
        message.contains("can be written by others") && message.contains("store"),
        "{message}"
    );
}
