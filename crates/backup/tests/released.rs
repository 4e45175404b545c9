//! Stores of every format that was released, which later versions read.
//!
//! `TUFF_WRITE_STORES=1 cargo test -p tuff-backup --test released` adds those of this version to `testdata/stores`, where there are none.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tuff_backup::{
    Bucket, Depth, Folder, KeyFile, Request, Secret, Store, StoreCompression, StoreKey,
};
use tuff_codec::Method;
use tuff_erofs::extract;
use tuff_mkfs::{Options, Progress};
use tuff_testkit::Scratch;

/// Names of the stores: their format and compression.
const STORES: [(&str, Method); 4] = [
    ("format-1-zstd", Method::Zstd),
    ("format-1-lz4", Method::Lz4),
    ("format-1-lzma", Method::Lzma),
    ("format-2-zstd", Method::Zstd),
];

fn request(source: &Path) -> Request {
    Request {
        sources: vec![source.to_owned()],
        archives: Vec::new(),
        series: "test".to_owned(),
        options: Options::default(),
        reads_all: true,
        is_dry: false,
    }
}

fn stores() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/stores")
}

/// Content of the files of a snapshot.
fn files(snapshot: u32) -> Vec<(&'static str, Vec<u8>)> {
    let lines = |from: u32, to: u32| -> Vec<u8> {
        (from..to)
            .flat_map(|n| format!("line {n}\n").into_bytes())
            .collect()
    };
    let mut state = 1_u32;
    let noise = (0..5000).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    let mut files = vec![
        ("dir/long", lines(0, 20_000)),
        ("dir/noise", noise.collect()),
        ("empty", Vec::new()),
        ("short", b"text".to_vec()),
    ];
    if snapshot == 2 {
        files[0].1.extend(lines(0, 10));
        files.push(("added", lines(5, 6)));
    }
    files
}

fn write_source(dir: &Path, snapshot: u32) {
    for (name, content) in files(snapshot) {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

fn is_encrypted(name: &str) -> bool {
    name.starts_with("format-2")
}

fn open(path: &Path, scratch: &Path, writes: bool) -> Store {
    let folder: Arc<dyn Bucket> = Arc::new(Folder::new(path));
    match StoreKey::is_needed(&*folder).unwrap() {
        Some(id) => {
            let file = KeyFile::read(&stores().join("format-2.key")).unwrap();
            let key = StoreKey::open(&*folder, id, &Secret::File(file)).unwrap();
            Store::open_encrypted(folder, &key, &scratch.join("copies"), writes).unwrap()
        }
        None if writes => Store::open_to_write(path).unwrap(),
        None => Store::open(path).unwrap(),
    }
}

/// Makes the stores that are missing.
fn write_stores() {
    for (name, method) in STORES {
        let path = stores().join(name);
        if path.exists() {
            continue;
        }
        let scratch = Scratch::new(name);
        let compression = StoreCompression {
            method,
            level: *method.levels().start(),
            cluster: 32 << 10,
        };
        match is_encrypted(name) {
            true => {
                let folder = Folder::new(&path);
                let key = stores().join("format-2.key");
                Store::create_encrypted(&folder, compression, None, &mut |file| {
                    file.write(&key, "testdata")
                })
                .unwrap();
            }
            false => Store::create(&path, compression).unwrap(),
        }
        let source = scratch.path().join("source");
        for snapshot in [1, 2] {
            write_source(&source, snapshot);
            let mut store = open(&path, scratch.path(), true);
            store
                .backup(&request(&source), &Progress::default())
                .unwrap();
        }
    }
}

#[test]
fn stores_of_all_formats_are_read() {
    if std::env::var_os("TUFF_WRITE_STORES").is_some() {
        write_stores();
    }
    for (name, _) in STORES {
        let scratch = Scratch::new(&format!("released-{name}"));
        let path = scratch.path().join("store");
        let copied = Command::new("cp")
            .arg("-a")
            .arg(stores().join(name))
            .arg(&path)
            .status();
        assert!(copied.unwrap().success());
        // Git keeps no empty directories.
        for dir in ["packs", "segments", "snapshots", "seen", "pins"] {
            if !is_encrypted(name) {
                fs::create_dir_all(path.join(dir)).unwrap();
            }
        }
        let store = Arc::new(open(&path, scratch.path(), false));
        let checked = store.check(Depth::Data, 1, &Progress::default()).unwrap();
        assert_eq!(
            (checked.findings, checked.snapshots),
            (Vec::new(), 2),
            "{name}"
        );
        for number in [1, 2] {
            let snapshot = store.snapshot(number).unwrap();
            let image = scratch.path().join(format!("image-{number}"));
            let image = store
                .image(&snapshot, &image, &Progress::default())
                .unwrap();
            let target = scratch.path().join(format!("restored-{number}"));
            let options = extract::Options {
                owners: Some(false),
                ..extract::Options::default()
            };
            extract::extract(&image.open().unwrap(), &target, &options, |_| ()).unwrap();
            let root = snapshot.roots().remove(0);
            let root = target.join(String::from_utf8(root).unwrap());
            let mut names: Vec<_> = files(number).into_iter().collect();
            for (path, content) in names.drain(..) {
                assert!(
                    fs::read(root.join(path)).unwrap() == content,
                    "{name}: {path}"
                );
            }
            assert_eq!(root.join("added").exists(), number == 2);
        }
        // A run of this version goes on.
        let source = scratch.path().join("source");
        write_source(&source, 2);
        drop(store);
        let mut store = open(&path, scratch.path(), true);
        let report = store
            .backup(&request(&source), &Progress::default())
            .unwrap();
        assert_eq!(report.number, Some(3), "{name}");
        let added = report.stored_bytes;
        assert!(added <= 16 << 10, "{name}: {added} bytes are stored again");
    }
}
