//! Start lists of images behind URLs: what is requested for them, and what needs no server after them.

use crate::common::{Place, code, stderr};
use crate::kernel_remote::wait_for;
use crate::mount::can_mount;
use crate::push::{good, pushed, run, start};
use crate::remote::{Mounted, serve};
use crate::serve::covers;
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tuff_erofs::read::StartList;
use tuff_mkfs::{Options, Start, StartFile};
use tuff_testkit::Rng;
use tuff_testkit::http::{Answer, Server};
use tuff_testkit::tree::open;
use tuff_testkit::variants::build_dir;

/// Unit of the cache. Unit: bytes.
const CHUNK: u64 = 128 << 10;

/// Number of layers that are mounted together.
const LAYERS: usize = 18;

/// Time before each answer. So much of the lists is in flight as the link carries in a round trip.
const ROUND_TRIP: Duration = Duration::from_millis(200);

/// Longest wait of the server for the lists of all layers.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Bytes that do not compress.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.draw() as u8).collect()
}

fn write(path: &Path, bytes: &[u8], mode: u32) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Ranges that the start list of an image names.
fn listed(place: &Place, image: &str) -> Vec<Range<u64>> {
    let list = StartList::read(&open(&place.path(image))).unwrap().unwrap();
    list.ranges().iter().map(|r| r.bytes.clone()).collect()
}

/// Chunks that ranges have parts of.
fn chunks(ranges: &[Range<u64>]) -> BTreeSet<u64> {
    let of_range = |range: &Range<u64>| range.start / CHUNK..range.end.div_ceil(CHUNK);
    ranges.iter().flat_map(of_range).collect()
}

fn counter(place: &Place, name: &str) -> u64 {
    let text = place.text(&["stats", "mnt"]);
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("{name} ")));
    let value = line.and_then(|line| line.split_whitespace().last());
    value
        .unwrap_or_else(|| panic!("{name}: {text}"))
        .parse()
        .unwrap()
}

/// Layers whose lists were requested.
#[derive(Default)]
struct Arrivals {
    layers: Mutex<BTreeSet<usize>>,
    changed: Condvar,
    has_failed: AtomicBool,
}

impl Arrivals {
    /// Waits until the lists of all layers are requested.
    fn wait(&self, layer: usize) {
        let mut layers = self.layers.lock().unwrap();
        layers.insert(layer);
        self.changed.notify_all();
        let is_left = |layers: &mut BTreeSet<usize>| layers.len() < LAYERS;
        let waited = self.changed.wait_timeout_while(layers, TIME_LIMIT, is_left);
        if waited.unwrap().1.timed_out() {
            self.has_failed.store(true, Ordering::SeqCst);
        }
    }
}

#[test]
fn lists_of_18_layers_do_not_wait_for_one_another() {
    if !can_mount() {
        return;
    }
    let place = Place::new("start-layers");
    let (registry, _server, url) = start();
    let names: Vec<String> = (0..LAYERS).map(|number| number.to_string()).collect();
    for (number, name) in (0..).zip(&names) {
        let tree = place.path(&format!("tree{name}"));
        write(
            &tree.join(format!("run{name}")),
            &noise(number, 200_000),
            0o755,
        );
        let large = noise(100 + number, 900_000);
        write(&tree.join(format!("large{name}")), &large, 0o644);
        let (program, tree) = (format!("run{name}"), format!("tree{name}"));
        let args = [
            "build",
            "-q",
            "--verity",
            "--start-with",
            &program,
            &tree,
            name,
        ];
        place.text(&args);
    }
    let images: Vec<&str> = names.iter().map(String::as_str).collect();
    let done = pushed(&place, &[], &[&images[..], &[&url]].concat());
    // A byte of each layer that only its list names.
    let layers = done["layers"].as_array().unwrap();
    let listed: Vec<(String, u64)> = names
        .iter()
        .zip(layers)
        .map(|(name, layer)| {
            let metadata = open(&place.path(name)).superblock().meta_blkaddr.0 * 4096;
            let first = listed(&place, name)[0].start;
            let chunk = first / CHUNK;
            assert!(0 < chunk && chunk < metadata / CHUNK, "{chunk}: {metadata}");
            (
                format!("/blobs/{}", layer["digest"].as_str().unwrap()),
                first,
            )
        })
        .collect();
    let arrivals = Arc::<Arrivals>::default();
    let waiting = Arc::clone(&arrivals);
    let slow = Server::start(move |request| {
        let range = request.range(u64::MAX);
        let is_list = |(path, first): &(String, u64)| {
            let asks = |range: &Range<u64>| range.contains(first);
            request.path.ends_with(path) && range.as_ref().is_some_and(asks)
        };
        if let Some(layer) = listed.iter().position(is_list) {
            waiting.wait(layer);
        }
        Answer {
            delay: ROUND_TRIP,
            ..registry.answer(request)
        }
    });
    fs::create_dir(place.path("mnt")).unwrap();
    let url = format!("oci://{}/team/app:v1", slow.host());
    good(&place, &[], &["mount", &url, "mnt"]);
    let mounted = Mounted(&place);
    wait_for("requests for all lists", || {
        let count = arrivals.layers.lock().unwrap().len();
        let has_failed = arrivals.has_failed.load(Ordering::SeqCst);
        assert!(!has_failed, "only {count} lists are requested");
        (count == LAYERS).then_some(())
    });
    for (number, name) in (0..).zip(&names) {
        let read = fs::read(place.path(&format!("mnt/run{name}"))).unwrap();
        assert!(read == noise(number, 200_000), "{name}");
    }
    place.unmount("mnt");
    drop(mounted);
}

/// Builds the image `i` of `count` programs, each beside a longer file that no start reads. If `has_list`, its list names the
/// programs. Returns their paths.
fn programs(place: &Place, count: usize, has_list: bool) -> Vec<String> {
    let tree = place.path("tree");
    let mut options = Options::default();
    let paths: Vec<String> = (0..count)
        .map(|n| format!("usr/bin/program{n:02}"))
        .collect();
    for (seed, path) in (0..).zip(&paths) {
        write(&tree.join(path), &noise(seed, 15_000), 0o755);
        write(
            &tree.join(format!("{path}.data")),
            &noise(100 + seed, 300_000),
            0o644,
        );
    }
    let file = |path: &String| StartFile {
        path: path.as_bytes().to_vec(),
        first: Vec::new(),
    };
    if has_list {
        options.sources.start = Start::Files(paths.iter().map(file).collect());
    }
    let _ = fs::remove_file(place.path("i"));
    build_dir(&tree, &place.path("i"), &options);
    paths
}

#[test]
fn after_the_list_is_fetched_the_files_of_a_start_need_no_server() {
    if !can_mount() {
        return;
    }
    let place = Place::new("start-offline");
    for number in 0..3000 {
        let path = place.path(&format!("tree/share/{:02}/file-{number}", number % 50));
        write(&path, b"", 0o644);
    }
    let files = programs(&place, 20, true);
    let server = serve(&place);
    fs::create_dir(place.path("mnt")).unwrap();
    let args = ["mount", "--fetch-timeout", "1", &server.url("/i"), "mnt"];
    let out = run(&place, &[], &args);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    let mounted = Mounted(&place);
    let (ranges, mut requested) = (listed(&place, "i"), Vec::new());
    wait_for("requests for the list", || {
        let new = server.take_requests().into_iter();
        requested.extend(new.filter_map(|request| request.range(u64::MAX)));
        ranges.iter().all(|r| covers(&requested, r)).then_some(())
    });
    wait_for("the end of the requests", || {
        (counter(&place, "remote_pending_bytes") == 0).then_some(())
    });
    assert!(counter(&place, "remote_present_bytes") < counter(&place, "remote_size_bytes") / 2);
    server.stop();
    for path in &files {
        for path in Path::new(path).ancestors() {
            let meta = fs::symlink_metadata(place.path("mnt").join(path)).unwrap();
            let expected = fs::symlink_metadata(place.path("tree").join(path)).unwrap();
            assert_eq!(meta.mode(), expected.mode(), "{path:?}");
        }
        let read = fs::read(place.path("mnt").join(path)).unwrap();
        assert!(
            read == fs::read(place.path("tree").join(path)).unwrap(),
            "{path}"
        );
    }
    // The rest is not there, and the server is gone.
    let beside: Vec<_> = (0..20)
        .map(|number| fs::read(place.path(&format!("mnt/usr/bin/program{number:02}.data"))))
        .collect();
    assert!(beside.iter().any(Result::is_err));
    place.unmount("mnt");
    drop(mounted);
}

#[test]
fn a_start_with_a_list_takes_at_most_14_requests_for_a_mebibyte_of_many_files() {
    if !can_mount() {
        return;
    }
    let place = Place::new("start-requests");
    let mut counts = Vec::new();
    for has_list in [true, false] {
        let files = programs(&place, 40, has_list);
        let server = serve(&place);
        fs::create_dir_all(place.path("mnt")).unwrap();
        let cache = format!("cache-{}", counts.len());
        let url = server.url("/i");
        good(&place, &[], &["mount", "--cache-dir", &cache, &url, "mnt"]);
        let mounted = Mounted(&place);
        let mut requested = Vec::new();
        if has_list {
            let ranges = listed(&place, "i");
            assert!(chunks(&ranges).len() <= 8, "{ranges:?}");
            wait_for("requests for the list", || {
                requested.extend(server.take_requests());
                let of = requested.iter().filter_map(|r| r.range(u64::MAX));
                let of: Vec<_> = of.collect();
                ranges.iter().all(|r| covers(&of, r)).then_some(())
            });
        }
        for path in &files {
            let read = fs::read(place.path("mnt").join(path)).unwrap();
            assert!(
                read == fs::read(place.path("tree").join(path)).unwrap(),
                "{path}"
            );
        }
        requested.extend(server.take_requests());
        counts.push(requested.len());
        place.unmount("mnt");
        drop(mounted);
    }
    // The first bytes, metadata, hash blocks, a profile that is not there, and each listed chunk once at most.
    assert!(counts[0] <= 14, "{counts:?}");
    assert!(counts[1] > counts[0], "{counts:?}");
}
