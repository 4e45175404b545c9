//! Host errors while an image is read: bad sectors, a truncated image, a stop request. Each is
//! reported as an I/O error with its position, and no partial file remains.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use tuff_erofs::check::{self, Rule, check};
use tuff_erofs::diff::{self, Side, diff};
use tuff_erofs::dump::{Items, Regions};
use tuff_erofs::extract::{self, extract};
use tuff_erofs::read::{FileType, Image, OpenOptions};
use tuff_erofs::tar::TarWriter;
use tuff_erofs::walk::Walk;
use tuff_erofs::{Error, Result};
use tuff_store::fault::Faulty;
use tuff_store::{MemStore, ReadAt};
use tuff_testkit::Scratch;
use tuff_testkit::sample;

/// Samples with different storage of data.
const SAMPLES: [&str; 4] = ["plain", "chunk", "lz4", "fragments"];

fn open(store: impl ReadAt + 'static) -> Result<Image> {
    Image::open(store, OpenOptions::default())
}

/// Reads all data by writing a tar stream.
fn tar(image: &Image) -> Result<()> {
    let mut writer = TarWriter::new(image, std::io::sink(), Default::default());
    for entry in Walk::root(image)? {
        writer.append(&entry?)?;
    }
    writer.finish().map(|_| ())
}

fn take_out(image: &Image, target: &Path, stop: &Arc<AtomicBool>, threads: usize) -> Result<()> {
    let options = extract::Options {
        owners: Some(false),
        threads,
        stop: stop.clone(),
        ..extract::Options::default()
    };
    extract(image, target, &options, |_| ()).map(|_| ())
}

/// Asserts a one-line I/O error with a position.
fn assert_blames_host(e: &Error, what: &str) {
    assert!(matches!(e, Error::Io(..)), "{what}: {e}");
    assert!(!e.place().steps().is_empty(), "{what}: {e}");
    assert!(!e.to_string().contains('\n'), "{what}: {e}");
}

/// Asserts that each file below `target` has the content and the time of the image. Returns the
/// number of files.
fn whole_files(good: &Image, target: &Path) -> usize {
    let mut files = 0;
    for entry in Walk::root(good).unwrap() {
        let entry = entry.unwrap();
        let path = target.join(std::str::from_utf8(&entry.path).unwrap());
        let Ok(meta) = std::fs::symlink_metadata(&path) else {
            continue;
        };
        if !meta.is_file() {
            continue;
        }
        let mut expected = Vec::new();
        std::io::copy(&mut good.reader(&entry.inode).unwrap(), &mut expected).unwrap();
        assert!(
            std::fs::read(&path).unwrap() == expected,
            "{path:?} is incomplete"
        );
        let time = std::os::unix::fs::MetadataExt::mtime(&meta);
        assert_eq!(time, entry.inode.mtime().0, "{path:?}");
        files += 1;
    }
    files
}

/// Runs all operations on an image whose store fails. Returns the number of failed ones.
fn all_flows(name: &str, store: impl ReadAt + 'static, good: &Image) -> usize {
    let mut failed = 0;
    let mut end = |what: &str, result: Result<()>| {
        if let Err(e) = result {
            assert_blames_host(&e, &format!("{name}: {what}"));
            failed += 1;
        }
    };
    let image = match open(store) {
        Ok(image) => image,
        Err(e) => {
            assert_blames_host(&e, name);
            return 1;
        }
    };
    end("tar", tar(&image));
    let scratch = Scratch::new("faults");
    let target = scratch.path().join("target");
    end("extract", take_out(&image, &target, &Arc::default(), 2));
    whole_files(good, &target);
    let (mut a, mut b) = (
        Side::Image(good, "a".to_owned()),
        Side::Image(&image, "b".to_owned()),
    );
    let compared = diff(&mut a, &mut b, &diff::Options::default(), &mut |path, _| {
        panic!("{name}: {path:?} differs")
    });
    end("diff", compared.map(|_| ()));
    let report = check(&image, &check::Options::default(), |_| ());
    if let Some(first) = report.findings.first() {
        assert_eq!(first.rule, Rule::Io, "{name}: check: {first:?}");
        assert!(!first.place.is_empty(), "{name}: check: {first:?}");
        failed += 1;
    }
    let regions = Regions::collect(&image);
    assert!(Items::all(&image, &regions).count() > 0);
    for e in &regions.errors {
        assert_blames_host(e, name);
    }
    failed
}

#[test]
fn every_operation_reports_the_position_of_a_bad_sector() {
    for name in SAMPLES {
        let bytes = sample::bytes(name);
        let good = sample::open(&bytes);
        let mut failed = 0;
        for block in (0..bytes.len() as u64).step_by(4096) {
            let store = Faulty::bad_range(MemStore::new(&bytes[..]), block..block + 512);
            failed += all_flows(&format!("{name}: bad byte {block}"), store, &good);
        }
        assert!(failed > 4, "{name}: {failed}");
    }
}

#[test]
fn every_operation_reports_a_truncated_image() {
    for name in SAMPLES {
        let bytes = sample::bytes(name);
        let good = sample::open(&bytes);
        let mut failed = 0;
        for end in (0..bytes.len() as u64).step_by(4096) {
            let store = Faulty::truncated(MemStore::new(&bytes[..]), end + 100);
            failed += all_flows(&format!("{name}: cut at {end}"), store, &good);
        }
        assert!(failed > 4, "{name}: {failed}");
    }
}

/// Store that sets a stop flag at the `left`-th read.
struct StopAt {
    inner: MemStore,
    left: AtomicU64,
    stop: Arc<AtomicBool>,
}

impl ReadAt for StopAt {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        if self.left.fetch_sub(1, Relaxed) == 1 {
            self.stop.store(true, Relaxed);
        }
        self.inner.read_at(buf, offset)
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }
}

/// A stop at any read, with one and several threads, is reported and leaves only complete files.
#[test]
fn a_stopped_extraction_leaves_no_partial_file() {
    for (name, threads) in [("lz4", 1), ("chunk", 1), ("fragments", 3), ("plain", 3)] {
        let bytes = sample::bytes(name);
        let good = sample::open(&bytes);
        let mut stopped = 0;
        let names = Walk::root(&good).unwrap().map(Result::unwrap);
        let all = names
            .filter(|e| e.inode.file_type() == FileType::File)
            .count();
        for reads in 1.. {
            let stop = Arc::new(AtomicBool::new(false));
            let store = StopAt {
                inner: MemStore::new(&bytes[..]),
                left: AtomicU64::new(reads),
                stop: stop.clone(),
            };
            let scratch = Scratch::new("stopped");
            let target = scratch.path().join("target");
            let image = open(store).unwrap();
            let result = take_out(&image, &target, &stop, threads);
            let files = whole_files(&good, &target);
            match result {
                Ok(()) if stop.load(Relaxed) => {} // stopped after the last file
                Ok(()) => break,
                Err(Error::Io(ref detail, ref io)) if io.kind() == ErrorKind::Interrupted => {
                    assert!(detail.to_string().starts_with("stopped: "), "{detail}");
                    assert!(files < all, "{name}: stopped, but all files exist");
                    stopped += 1;
                }
                Err(e) => panic!("{name}: stopped at read {reads}: {e}"),
            }
        }
        assert!(stopped > 3, "{name}: {stopped}");
    }
}
