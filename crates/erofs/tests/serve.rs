//! A server returns the same bytes as the plain reader, for all strategies, budgets and numbers of
//! threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use tuff_erofs::read::{ClusterCoding, Extent, FileType, Image, Inode, Location, OpenOptions};
use tuff_erofs::serve::{Policy, PushRange, ServeOptions, Server, Session, Strategy};
use tuff_mkfs::{Compression, Fragments, KernelVersion, Method, Options, Progress, Source, build};
use tuff_store::fault::Faulty;
use tuff_store::{MemStore, ReadAt, Target};
use tuff_testkit::Rng;
use tuff_testkit::Scratch;
use tuff_testkit::content::mixed;
use tuff_testkit::content::noise;
use tuff_testkit::content::text;
use tuff_testkit::sample;
use tuff_testkit::tree::nasty_tree;
use tuff_testkit::tree::open;
use tuff_testkit::variants::mkfs;

const THREADS: u64 = 8;

fn server(image: Image, policy: Policy, budget: usize) -> Server {
    let mut options = ServeOptions::default();
    (options.policy, options.budget) = (policy, budget);
    Server::new(image, options)
}

/// Builds an image of a directory and returns its bytes.
fn built(source: &Path, change: impl FnOnce(&mut Options)) -> Vec<u8> {
    let mut options = Options::for_kernel(KernelVersion(6, 18));
    change(&mut options);
    let path = source.with_extension("image");
    let sources = [Source::Dir(source.to_owned())];
    let target = Target::Path(path.clone());
    build(&sources, &options, &target, &Progress::default()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    bytes
}

fn compress(method: Method, level: i32, cluster: usize) -> impl Fn(&mut Options) {
    move |o| {
        o.compression.default = Some(Compression {
            method,
            level,
            dict: None,
        });
        (o.compression.cluster, o.layout.fragment_cluster) = (cluster, cluster.min(32768));
        o.layout.fragments = Fragments::Off;
    }
}

/// All files of an image with their content, by the plain reader.
fn contents(image: &Image) -> Vec<(Inode, Vec<u8>)> {
    let mut out = Vec::new();
    let mut todo = vec![image.root().unwrap()];
    while let Some(dir) = todo.pop() {
        for entry in image.read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            if matches!(&entry.name[..], b"." | b"..") {
                continue;
            }
            let inode = image.inode(entry.nid).unwrap();
            match inode.file_type() {
                FileType::Dir => todo.push(inode),
                FileType::File => {
                    let mut bytes = vec![0; inode.size() as usize];
                    assert_eq!(image.read_at(&inode, &mut bytes, 0).unwrap(), bytes.len());
                    out.push((inode, bytes));
                }
                _ => {}
            }
        }
    }
    out
}

/// Reads a range in both ways and compares the bytes with the expectation.
#[track_caller]
fn compare(server: &Server, session: &mut Session, file: &(Inode, Vec<u8>), at: u64, len: usize) {
    let (inode, bytes) = file;
    let from = (at as usize).min(bytes.len());
    let expected = &bytes[from..(from + len).min(bytes.len())];
    let mut buf = vec![0xAA; len];
    let n = server.read(session, inode, at, &mut buf).unwrap();
    assert!(
        buf[..n] == *expected,
        "nid {}: {len} bytes at {at}",
        inode.nid()
    );
    buf.fill(0xAA);
    let answer = server
        .read_by_reference(session, inode, at, &mut buf)
        .unwrap();
    assert_eq!(answer.len(), expected.len());
    assert!(
        answer.parts().collect::<Vec<_>>().concat() == expected,
        "nid {}: {len} bytes at {at}, by reference",
        inode.nid()
    );
}

/// Reads with many threads, in random and sequential order, and compares.
fn hammer(server: &Server, files: &[(Inode, Vec<u8>)], requests: u64, seed: u64) {
    if files.is_empty() {
        return;
    }
    let work = |thread: u64| {
        let mut session = server.session();
        let mut random = Rng::new(seed * 1000 + thread);
        let (mut next, mut current) = (0, 0);
        for i in 0..requests {
            // Prefer large files: they have more clusters.
            let pick = [
                random.below_u64(files.len() as u64),
                random.below_u64(files.len() as u64),
            ];
            let file = *pick
                .iter()
                .max_by_key(|i| files[**i as usize].1.len())
                .unwrap() as usize;
            let size = files[file].1.len() as u64;
            let len = [1, 511, 4096, 4096, 20_000, 131_072, 700_000][random.below_u64(7) as usize];
            match i % 3 {
                // Sequential, with the length of a kernel readahead request.
                0 => {
                    if next >= files[current].1.len() as u64 {
                        (current, next) = (file, 0);
                    }
                    compare(server, &mut session, &files[current], next, 131_072);
                    next += 131_072;
                }
                1 => compare(
                    server,
                    &mut session,
                    &files[file],
                    random.below_u64(size / 4096 + 2) * 4096,
                    len,
                ),
                _ => compare(
                    server,
                    &mut session,
                    &files[file],
                    random.below_u64(size + 2),
                    len,
                ),
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || work(thread));
        }
    });
}

fn try_all(name: &str, bytes: &[u8], requests: u64) {
    let files = contents(&sample::open(bytes));
    for (i, policy) in Policy::ALL.into_iter().enumerate() {
        for budget in [48 << 20, 4 << 20, 1 << 20] {
            eprintln!("{name}: {policy} with {} KiB", budget >> 10);
            let server = server(sample::open(bytes), policy, budget);
            hammer(&server, &files, requests, i as u64 + budget as u64);
            let counters = server.counters();
            assert!(counters.reads > 0 && counters.errors == 0, "{counters:?}");
            if let Policy::Only(strategy) = policy {
                let i = Strategy::ALL.iter().position(|s| *s == strategy).unwrap();
                let all: u64 = counters.decodes.iter().sum();
                // Samples with inline data decode few clusters.
                let used = counters.decodes[i] > 0 || strategy == Strategy::InPlace;
                assert!(all < 100 || used, "{counters:?}");
            }
            assert!(
                counters.held_bytes + counters.index_bytes <= 2 * budget as u64,
                "buffers of running requests exceed the budget by more than its size: {counters:?}"
            );
        }
    }
}

#[test]
fn samples_of_every_layout_are_served_correctly() {
    for (name, bytes) in sample::all() {
        try_all(name, bytes, 12);
    }
}

#[test]
fn every_codec_and_cluster_size_is_served_correctly() {
    let scratch = Scratch::new("serve-codecs");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("text"), text(3_000_000, 1)).unwrap();
    std::fs::write(source.join("mixed"), mixed(2_000_000, 2)).unwrap();
    std::fs::write(source.join("noise"), noise(300_000, 3)).unwrap();
    std::fs::write(source.join("zeros"), vec![0; 3_000_000]).unwrap();
    for i in 0..60 {
        std::fs::write(source.join(format!("small{i}")), mixed(i * 217, i as u64)).unwrap();
    }
    for (method, level, cluster) in [
        (Method::Lz4, 1, 4096),
        (Method::Lz4hc, 9, 65536),
        (Method::Zstd, 3, 65536),
        (Method::Lzma, 1, 1 << 20),
        (Method::Deflate, 5, 16384),
    ] {
        let bytes = built(&source, compress(method, level, cluster));
        try_all(&format!("{method:?} {cluster}"), &bytes, 24);
    }
    let bytes = built(&source, |o| o.layout.fragments = Fragments::Tails);
    try_all("fragments", &bytes, 24);
}

#[test]
fn images_of_mkfs_erofs_are_served_correctly() {
    let scratch = Scratch::new("serve-mkfs");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    nasty_tree(&source);
    for options in [
        &["-zlz4hc,9", "-C65536", "-Ededupe,fragments,ztailpacking"][..],
        &["-zlz4", "-Elegacy-compress"],
        &["-zlzma", "-C65536", "-Eall-fragments,dedupe"],
        &["--chunksize=4096"],
    ] {
        let file = scratch.path().join("image");
        if mkfs(&file, &source, options).is_some() {
            // Opens the image once, so that a broken one fails here.
            drop(open(&file));
            try_all(&format!("{options:?}"), &std::fs::read(&file).unwrap(), 12);
        }
    }
}

/// Builds an image of one file of 3 MB in large clusters. Returns it with its compressed extents.
fn one_file(method: Method, level: i32) -> (Vec<u8>, Vec<Extent>) {
    let scratch = Scratch::new("serve-one");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("file"), mixed(3_000_000, 8)).unwrap();
    let bytes = built(&source, compress(method, level, 65536));
    let image = sample::open(&bytes);
    let inode = image.resolve(b"file").unwrap();
    let extents: Vec<Extent> = image
        .extents(&inode, 0..u64::MAX)
        .unwrap()
        .map(Result::unwrap)
        .filter(|e| matches!(e.location, Location::Cluster(c) if matches!(c.coding, ClusterCoding::Compressed(_))))
        .collect();
    assert!(extents.len() > 5);
    (bytes, extents)
}

fn cluster_of(extent: &Extent) -> (u64, u64) {
    match extent.location {
        Location::Cluster(c) => (c.pos, c.len.into()),
        _ => unreachable!("clusters only"),
    }
}

#[test]
fn damage_fails_only_requests_for_its_range() {
    for (method, level) in [(Method::Lz4hc, 9), (Method::Zstd, 3), (Method::Lzma, 1)] {
        let (mut bytes, extents) = one_file(method, level);
        let good = contents(&sample::open(&bytes)).remove(0);
        let bad = extents[3];
        let (pos, len) = cluster_of(&bad);
        bytes[pos as usize..(pos + len) as usize].fill(0xFF);
        for policy in Policy::ALL {
            let server = server(sample::open(&bytes), policy, 4 << 20);
            let mut session = server.session();
            let mut failed = 0;
            for _ in 0..2 {
                let mut at = 0;
                while at < good.0.size() {
                    let hit = at < bad.end() && at + 10_000 > bad.offset;
                    let mut buf = vec![0; 10_000];
                    if hit {
                        let e = server
                            .read(&mut session, &good.0, at, &mut buf)
                            .unwrap_err();
                        let message = e.to_string();
                        assert!(
                            message.contains(&format!("nid {}", good.0.nid())),
                            "{message}"
                        );
                        assert!(
                            message.contains(&format!("cluster at byte {pos:#x}")),
                            "{message}"
                        );
                        failed += 1;
                    } else {
                        compare(&server, &mut session, &good, at, 10_000);
                    }
                    at += 10_000;
                }
            }
            assert!(failed > 0);
            assert_eq!(server.counters().errors, failed, "{policy}");
        }
    }
}

#[test]
fn a_bad_range_of_the_store_fails_only_requests_for_it() {
    let (bytes, extents) = one_file(Method::Lz4hc, 9);
    let good = contents(&sample::open(&bytes)).remove(0);
    // Data precedes metadata in the image, so only reads of these clusters fail.
    let image = Image::open(
        Faulty::bad_range(
            MemStore::new(bytes),
            cluster_of(&extents[4]).0..cluster_of(&extents[5]).0,
        ),
        OpenOptions::default(),
    )
    .unwrap();
    let server = server(image, Policy::Adaptive, 4 << 20);
    let mut session = server.session();
    for _ in 0..3 {
        compare(&server, &mut session, &good, 0, 4096);
        let mut buf = [0; 4096];
        let e = server
            .read(&mut session, &good.0, extents[4].offset, &mut buf)
            .unwrap_err();
        assert!(matches!(e, tuff_erofs::Error::Io(..)), "{e}");
        compare(&server, &mut session, &good, extents[6].offset, 4096);
    }
}

#[test]
fn concurrent_requests_decode_a_cluster_once() {
    let (bytes, extents) = one_file(Method::Zstd, 3);
    let files = contents(&sample::open(&bytes));
    for round in 0..20 {
        let server = server(
            sample::open(&bytes),
            Policy::Only(Strategy::Gathered),
            4 << 20,
        );
        let barrier = Barrier::new(THREADS as usize);
        let (server, barrier) = (&server, &barrier);
        let extent = &extents[round % extents.len()];
        let file = &files[0];
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let mut session = server.session();
                    let mut buf = [0; 100];
                    let at = extent.offset + 1 + thread * 50;
                    barrier.wait();
                    let n = server.read(&mut session, &file.0, at, &mut buf).unwrap();
                    assert_eq!(buf[..n], file.1[at as usize..][..n]);
                });
            }
        });
        let counters = server.counters();
        assert_eq!(counters.decodes, [1, 0, 0, 0]);
        assert_eq!(counters.hits, THREADS - 1);
    }
}

/// Store that panics once when it is armed.
struct Panics<S> {
    inner: S,
    armed: AtomicBool,
}

impl<S: ReadAt> ReadAt for Panics<S> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        // Long reads are reads of data.
        if buf.len() >= 65536 && self.armed.swap(false, Ordering::Relaxed) {
            std::panic::resume_unwind(Box::new("injected"));
        }
        self.inner.read_at(buf, offset)
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }
}

#[test]
fn a_panic_while_decoding_does_not_block_other_threads() {
    let (bytes, extents) = one_file(Method::Lz4hc, 9);
    let files = contents(&sample::open(&bytes));
    let extent = extents[2];
    for policy in Policy::ALL {
        let store = Panics {
            inner: MemStore::new(bytes.clone()),
            armed: AtomicBool::new(true),
        };
        let image = Image::open(store, OpenOptions::default()).unwrap();
        let server = server(image, policy, 4 << 20);
        let (server, files) = (&server, &files);
        let died: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    scope.spawn(move || {
                        let at = extent.offset + thread;
                        let ask = || {
                            let mut session = server.session();
                            compare(server, &mut session, &files[0], at, 5000);
                        };
                        let died = catch_unwind(AssertUnwindSafe(ask)).is_err();
                        ask();
                        usize::from(died)
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(died, 1, "{policy}");
    }
}

#[test]
fn memory_stays_within_the_budget_and_can_be_released() {
    let (bytes, _) = one_file(Method::Zstd, 3);
    let files = contents(&sample::open(&bytes));
    let budget = 2 << 20;
    let server = server(sample::open(&bytes), Policy::Adaptive, budget);
    let mut session = server.session();
    let mut random = Rng::new(4);
    for _ in 0..2000 {
        let at = random.below_u64(files[0].1.len() as u64 / 4096) * 4096;
        compare(&server, &mut session, &files[0], at, 4096);
        session.release();
        let counters = server.counters();
        let all = counters.held_bytes + counters.index_bytes;
        assert!(all <= budget as u64, "{all}");
    }
    let before = server.counters();
    assert!(before.dropped > 0, "more was requested than fits");
    assert!(before.hits > 0, "and a part of it repeatedly");
    server.shrink(256 << 10);
    let counters = server.counters();
    assert!(
        counters.held_bytes + counters.index_bytes <= 256 << 10,
        "{counters:?}"
    );
    compare(&server, &mut session, &files[0], 0, 100_000);
}

#[test]
fn a_page_takes_one_read_of_at_most_two_clusters() {
    let scratch = Scratch::new("serve-page");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    let line = |n: u64| format!("{:016x} of a page\n", n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let text: String = (0..8000).map(line).collect();
    std::fs::write(source.join("file"), text).unwrap();
    let bytes = built(&source, compress(Method::Lz4, 1, 4096));
    let file = contents(&sample::open(&bytes)).remove(0);
    let mut both = 0;
    for at in (0..file.0.size() - 4096).step_by(4096) {
        let server = server(sample::open(&bytes), Policy::Adaptive, 4 << 20);
        compare(&server, &mut server.session(), &file, at, 4096);
        let counters = server.counters();
        assert_eq!(counters.fetches, 1, "page at {at}");
        assert!(counters.fetched_bytes <= 8192, "page at {at}");
        both += u32::from(counters.fetched_bytes == 8192);
    }
    assert!(both > 10, "{both} pages are in two clusters");
}

#[test]
fn a_sequential_reader_decodes_each_cluster_once() {
    for (method, level) in [(Method::Lz4hc, 9), (Method::Zstd, 3)] {
        let (bytes, extents) = one_file(method, level);
        let decoded: u64 = extents.iter().map(|e| e.len).sum();
        let file = contents(&sample::open(&bytes)).remove(0);
        for step in [4096, 50_000, 131_072] {
            let server = server(sample::open(&bytes), Policy::Adaptive, 4 << 20);
            let mut session = server.session();
            let mut at = 0;
            while at < file.0.size() {
                let mut buf = vec![0; step];
                server.read(&mut session, &file.0, at, &mut buf).unwrap();
                at += step as u64;
            }
            let counters = server.counters();
            assert_eq!(
                counters.decoded_bytes, decoded,
                "{method:?}, {step} at a time"
            );
            assert!(counters.fetched_bytes <= bytes.len() as u64);
            assert!(counters.ahead_bytes > 0, "readahead hints were sent");
        }
    }
}

#[test]
fn clusters_that_a_random_reader_returns_to_are_pushed_page_aligned() {
    let scratch = Scratch::new("serve-rest");
    let source = scratch.path().join("source");
    std::fs::create_dir_all(&source).unwrap();
    let whole = text(3_000_000, 5);
    std::fs::write(source.join("file"), &whole).unwrap();
    let bytes = built(&source, compress(Method::Lz4, 1, 16384));
    let options = ServeOptions {
        push: true,
        ..ServeOptions::default()
    };
    let server = Server::new(sample::open(&bytes), options);
    let inode = server.image().resolve(b"file").unwrap();
    let (mut session, mut other) = (server.session(), server.session());
    let (mut page, mut buf) = (vec![0; 4096], Vec::new());
    let (mut random, mut handed) = (Rng::new(3), 0);
    for _ in 0..2000 {
        let at = random.below_u64(whole.len() as u64 / 4096) * 4096;
        let n = server.read(&mut session, &inode, at, &mut page).unwrap();
        assert_eq!(page[..n], whole[at as usize..][..n]);
        let Some(rest) = server.take_push(&mut session) else {
            continue;
        };
        let (from, pages) = server
            .read_pushed(&mut other, &inode, &rest, &mut buf)
            .unwrap();
        let to = from + pages.len() as u64;
        assert!(from.is_multiple_of(4096));
        assert!(to.is_multiple_of(4096) || to == whole.len() as u64);
        assert_eq!(buf[pages.clone()], whole[from as usize..][..pages.len()]);
        handed += pages.len() as u64;
    }
    // Each pushed byte is counted once.
    assert!(handed > 0 && server.counters().pushed_bytes == handed);
    // Ranges that are not inside the file are empty.
    for (offset, len) in [(2_999_000, 4096), (u64::MAX, 2), (0, usize::MAX)] {
        let step = None;
        let rest = PushRange { offset, len, step };
        let read = server.read_pushed(&mut other, &inode, &rest, &mut buf);
        assert!(read.unwrap().1.is_empty());
    }
}

/// Regression: a random reader of a file larger than the cache decoded a cluster for nearly every page, if clusters decode to
/// more than 1 MiB or are those of fragments.
#[test]
fn long_clusters_and_long_fragments_are_pushed_after_few_decodes() {
    const PIECE: u64 = 1 << 20;
    let scratch = Scratch::new("serve-long");
    let source = scratch.path().join("source");
    std::fs::create_dir_all(&source).unwrap();
    // Moves the other file in the packed inode.
    std::fs::write(source.join("before"), text(300_001, 6)).unwrap();
    let whole = text(12_000_000, 5);
    std::fs::write(source.join("file"), &whole).unwrap();
    for fragments in [Fragments::Off, Fragments::All] {
        let bytes = built(&source, |o| {
            compress(Method::Zstd, 1, 256 << 10)(o);
            (o.layout.fragments, o.layout.fragment_cluster) = (fragments, 256 << 10);
        });
        let options = ServeOptions {
            push: true,
            budget: 5 << 20,
            ..ServeOptions::default()
        };
        let server = Server::new(sample::open(&bytes), options);
        let inode = server.image().resolve(b"file").unwrap();
        let (mut session, mut other) = (server.session(), server.session());
        let (mut page, mut buf) = (vec![0; 4096], Vec::new());
        let (mut random, mut longest) = (Rng::new(3), 0);
        let mut cached = vec![false; whole.len().div_ceil(4096)];
        for _ in 0..3000 {
            let number = random.below(cached.len());
            if std::mem::replace(&mut cached[number], true) {
                continue;
            }
            let at = number as u64 * 4096;
            let n = server.read(&mut session, &inode, at, &mut page).unwrap();
            assert_eq!(page[..n], whole[at as usize..][..n]);
            let Some(range) = server.take_push(&mut session) else {
                continue;
            };
            longest = longest.max(range.len);
            let (mut offset, end) = (range.offset, range.offset + range.len as u64);
            while offset < end {
                let len = (end - offset).min(PIECE - offset % PIECE) as usize;
                let piece = PushRange {
                    offset,
                    len,
                    step: None,
                };
                let read = server.read_pushed(&mut other, &inode, &piece, &mut buf);
                let (from, pages) = read.unwrap();
                assert_eq!(buf[pages.clone()], whole[from as usize..][..pages.len()]);
                let first = from as usize / 4096;
                cached[first..first + pages.len().div_ceil(4096)].fill(true);
                offset += len as u64;
            }
        }
        assert!(longest > PIECE as usize, "{fragments:?}: {longest}");
        let decodes: u64 = server.counters().decodes.iter().sum();
        assert!(decodes < 100, "{fragments:?}: {decodes}");
    }
}

#[test]
fn new_clusters_are_decoded_completely_after_frequent_reuse() {
    let scratch = Scratch::new("serve-once");
    let source = scratch.path().join("source");
    std::fs::create_dir_all(&source).unwrap();
    let whole = text(6_000_000, 5);
    std::fs::write(source.join("file"), &whole).unwrap();
    for (method, level, once) in [(Method::Zstd, 3, true), (Method::Lz4, 1, false)] {
        let bytes = built(&source, compress(method, level, 16384));
        let options = ServeOptions {
            push: true,
            ..ServeOptions::default()
        };
        let server = Server::new(sample::open(&bytes), options);
        let inode = server.image().resolve(b"file").unwrap();
        let mut session = server.session();
        let mut page = vec![0; 4096];
        let mut random = Rng::new(3);
        let mut read = |at: u64| {
            let n = server.read(&mut session, &inode, at, &mut page).unwrap();
            assert_eq!(page[..n], whole[at as usize..][..n]);
            server.take_push(&mut session)
        };
        // Read the first half repeatedly, until its clusters are cached.
        for _ in 0..3000 {
            read(random.below_u64(700) * 4096);
        }
        // The clusters after it are read for the first time.
        let (before, mut offered) = (server.counters().decodes, 0);
        for _ in 0..40 {
            offered += u32::from(read((710 + random.below_u64(750)) * 4096).is_some());
        }
        let parts = Strategy::ALL.iter().position(|s| *s == Strategy::Buffer);
        let parts = parts.unwrap();
        let more = server.counters().decodes[parts] - before[parts];
        assert_eq!(more == 0, once, "{method:?}: {more} parts");
        assert!(!once || offered > 0, "the rest of the clusters is pushed");
    }
}

#[test]
fn costly_steps_of_a_strided_reader_are_offered_for_a_push() {
    let scratch = Scratch::new("serve-steps");
    let source = scratch.path().join("source");
    std::fs::create_dir_all(&source).unwrap();
    let whole = text(6_000_000, 5);
    std::fs::write(source.join("file"), &whole).unwrap();
    const STEP: u64 = 128 << 10;
    for (method, level) in [(Method::Lz4, 1), (Method::Zstd, 3)] {
        let bytes = built(&source, compress(method, level, 65536));
        for push in [true, false] {
            let options = ServeOptions {
                push,
                ..ServeOptions::default()
            };
            let server = Server::new(sample::open(&bytes), options);
            let inode = server.image().resolve(b"file").unwrap();
            let (mut session, mut other) = (server.session(), server.session());
            let (mut page, mut buf) = (vec![0; 4096], Vec::new());
            let (mut at, mut offered) = (4096, 0);
            while at < whole.len() as u64 {
                let n = server.read(&mut session, &inode, at, &mut page).unwrap();
                assert_eq!(page[..n], whole[at as usize..][..n], "{method:?}: {at}");
                let rest = server.take_push(&mut session);
                at += STEP;
                let Some(mut rest) = rest else { continue };
                assert_eq!(
                    (rest.offset + STEP, rest.len, rest.step),
                    (at, n, Some(STEP))
                );
                offered += 1;
                // Push every other step. A step after the end of the file is empty.
                rest.offset = at;
                let (from, pages) = server
                    .read_pushed(&mut other, &inode, &rest, &mut buf)
                    .unwrap();
                let present = at + 4096 <= whole.len() as u64;
                assert_eq!((from, pages.len()), (at, if present { 4096 } else { 0 }));
                assert_eq!(buf[pages.clone()], whole[at as usize..][..pages.len()]);
                at += STEP;
            }
            assert_eq!(offered > 0, push, "{method:?}: {offered}");
        }
    }
}

#[test]
fn a_recorded_profile_is_pinned_by_another_server() {
    let scratch = Scratch::new("serve-profile");
    let source = scratch.path().join("source");
    std::fs::create_dir_all(source.join("dir")).unwrap();
    for name in ["dir/large", "other"] {
        std::fs::write(source.join(name), text(2_000_000, name.len() as u64)).unwrap();
    }
    std::fs::write(source.join("small"), text(3000, 3)).unwrap();
    let bytes = built(&source, |o| {
        compress(Method::Zstd, 3, 16384)(o);
        o.layout.fragments = Fragments::Tails;
    });
    let image = || sample::open(&bytes);
    let options = ServeOptions {
        record: true,
        ..ServeOptions::default()
    };
    let first = Server::new(image(), options);
    let mut session = first.session();
    let mut buf = vec![0; 100_000];
    for (path, at) in [
        ("dir/large", 1_000_000),
        ("small", 0),
        ("dir/large", 0),
        ("small", 0),
    ] {
        let inode = first.image().resolve(path.as_bytes()).unwrap();
        first.read(&mut session, &inode, at, &mut buf).unwrap();
    }
    let profile = first.profile().unwrap();
    let seen: Vec<_> = profile
        .uses
        .iter()
        .map(|u| {
            (
                String::from_utf8_lossy(&u.path).into_owned(),
                u.offset,
                u.len,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("/dir/large".to_owned(), 999_424, 102_400),
            ("/small".to_owned(), 0, 4096),
            ("/dir/large".to_owned(), 0, 102_400),
        ]
    );
    // A second server pins everything.
    let second = server(image(), Policy::Adaptive, 48 << 20);
    let mut session = second.session();
    let pinned = second.pin(&mut session, &profile, 8 << 20);
    assert!(pinned.clusters > 0 && pinned.missing == 0 && pinned.left_out == 0);
    assert_eq!(second.counters().pinned_bytes, pinned.bytes);
    second.shrink(0);
    for (path, at) in [("dir/large", 1_000_000), ("small", 0)] {
        let inode = second.image().resolve(path.as_bytes()).unwrap();
        second.read(&mut session, &inode, at, &mut buf).unwrap();
    }
    let counters = second.counters();
    assert_eq!(counters.decodes, [0; 4]);
    assert!(counters.hits > 0);
    // The small file is stored uncompressed and is not pinned.
    assert!(counters.fetched_bytes <= 4096, "{counters:?}");
    // A small budget pins what fits. A missing path is counted.
    let third = server(image(), Policy::Adaptive, 48 << 20);
    let mut other = profile.clone();
    other.uses[0].path = b"/gone".to_vec();
    let budget = pinned.bytes / 3;
    let pinned = third.pin(&mut third.session(), &other, budget as usize);
    assert_eq!(pinned.missing, 1);
    assert!(pinned.left_out > 0);
    assert!(third.counters().pinned_bytes <= budget);
}
