//! Requests when a file had to be fetched: the rest of it, and the other files of its directory.

use std::fs;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tuff_erofs::read::{Image, OpenOptions};
use tuff_erofs::serve::{ServeOptions, Server, StoreRange, file_ranges};
use tuff_fuse::Log;
use tuff_fuse::filesystem::{Filesystem, Node};
use tuff_fuse::protocol::ROOT;
use tuff_mkfs::Options;
use tuff_mount::neighbours::OnMiss;
use tuff_mount::{ImageFs, OwnerOverride};
use tuff_store::{MemStore, ReadAt};
use tuff_testkit::Rng;
use tuff_testkit::variants::build_dir;

/// Time that no test waits for, unless it fails.
const LONG: Duration = Duration::from_secs(60);

/// Store whose reads all miss.
struct Missing {
    bytes: MemStore,
    on_miss: Arc<OnceLock<OnMiss>>,
}

impl ReadAt for Missing {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if let Some(on_miss) = self.on_miss.get() {
            on_miss(0, offset);
        }
        self.bytes.read_at(buf, offset)
    }

    fn size(&self) -> u64 {
        self.bytes.size()
    }
}

type Requested = Receiver<(&'static str, Vec<StoreRange>)>;

/// Filesystem of two directories on a store whose reads miss, and what is requested.
fn filesystem(name: &str) -> (ImageFs, Requested) {
    let dir = tuff_testkit::unused_path(name);
    let source = dir.join("tree");
    let mut rng = Rng::new(7);
    for (path, len) in [
        ("lib/a", 200_000),
        ("lib/b", 30_000),
        ("lib/c", 9_000_000),
        ("lib/d", 30_000),
        ("other/e", 30_000),
    ] {
        let path = source.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let bytes: Vec<u8> = (0..len / 8)
            .flat_map(|_| rng.draw().to_le_bytes())
            .collect();
        fs::write(path, bytes).unwrap();
    }
    let path = dir.join("image");
    build_dir(&source, &path, &Options::default());
    let on_miss = Arc::new(OnceLock::new());
    let store = Missing {
        bytes: MemStore::new(fs::read(path).unwrap()),
        on_miss: Arc::clone(&on_miss),
    };
    fs::remove_dir_all(dir).unwrap();
    let image = Image::open(store, OpenOptions::default()).unwrap();
    let server = Server::new(image, ServeOptions::default());
    let fs = ImageFs::new(server, OwnerOverride::default(), Log::none()).unwrap();
    let (sender, requested) = channel();
    let ahead = sender.clone();
    let (fs, neighbours, callback) = fs.follow_misses(
        Box::new(move |ranges| ahead.send(("ahead", ranges.to_vec())).unwrap_or_default()),
        Box::new(move |ranges| sender.send(("near", ranges.to_vec())).unwrap_or_default()),
    );
    assert!(on_miss.set(callback).is_ok());
    std::thread::spawn(|| neighbours.run());
    (fs, requested)
}

fn find(fs: &ImageFs, path: &str) -> Node {
    path.split('/').fold(ROOT, |dir, name| {
        fs.lookup(dir, name.as_bytes()).unwrap().unwrap().node
    })
}

fn ranges(fs: &ImageFs, path: &str) -> Vec<StoreRange> {
    let image = fs.server().image();
    let inode = image.resolve(path.as_bytes()).unwrap();
    file_ranges(image, &inode, 0..inode.size())
}

/// True if ranges cover a file.
fn cover(ranges: &[StoreRange], file: &[StoreRange]) -> bool {
    let covers =
        |all: &Range<u64>, part: &Range<u64>| all.start <= part.start && part.end <= all.end;
    file.iter()
        .all(|part| ranges.iter().any(|all| covers(&all.range, &part.range)))
}

#[test]
fn a_miss_requests_the_rest_of_its_file_and_then_its_directory() {
    let (fs, requested) = filesystem("neighbours");
    let file = find(&fs, "lib/b");
    let mut reader = fs.reader();
    reader.read(file, 0, &mut [0; 4096], false).unwrap();
    let (what, rest) = requested.recv_timeout(LONG).unwrap();
    assert_eq!((what, &rest), ("ahead", &ranges(&fs, "/lib/b")));
    let (what, others) = requested.recv_timeout(LONG).unwrap();
    assert_eq!(what, "near");
    for (path, expected) in [
        ("/lib/a", true),
        ("/lib/d", true),
        // Too long, and of another directory.
        ("/lib/c", false),
        ("/other/e", false),
    ] {
        assert_eq!(cover(&others, &ranges(&fs, path)), expected, "{path}");
    }
    // The file after the one that was read comes first.
    assert_eq!(others.first(), ranges(&fs, "/lib/d").first());
    // Each directory is requested once.
    reader
        .read(find(&fs, "lib/a"), 0, &mut [0; 4096], false)
        .unwrap();
    reader
        .read(find(&fs, "other/e"), 0, &mut [0; 4096], false)
        .unwrap();
    let next: Vec<_> = (0..3)
        .map(|_| requested.recv_timeout(LONG).unwrap())
        .collect();
    let kinds: Vec<&str> = next.iter().map(|(what, _)| *what).collect();
    assert_eq!(kinds, ["ahead", "ahead", "near"]);
    assert!(next[2].1.is_empty());
}

#[test]
fn reads_that_do_not_miss_request_nothing() {
    let (fs, requested) = filesystem("neighbours-warm");
    let file = find(&fs, "lib/b");
    let mut reader = fs.reader();
    reader.read(file, 0, &mut [0; 4096], false).unwrap();
    for _ in 0..2 {
        requested.recv_timeout(LONG).unwrap();
    }
    // The cluster is in the cache of the server.
    reader.read(file, 0, &mut [0; 4096], false).unwrap();
    assert!(requested.recv_timeout(Duration::from_millis(20)).is_err());
}
