//! Duration of ordinary work, to detect quadratic behaviour. Not a benchmark: the lab has those.
//!
//! `cargo test --release -p tuff-iplfs --test speed -- --ignored --nocapture`

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tuff_iplfs::backend::ZoneDir;
use tuff_iplfs::{
    BlockDevice, Caller, FormatOptions, MountOptions, Nid, Volume, backend::MemDevice, mode,
};
use tuff_testkit::Rng;

const CALLER: Caller = Caller {
    now: tuff_iplfs::Time { sec: 1, nsec: 0 },
    uid: 0,
    gid: 0,
};

fn work(name: &str, dev: Arc<dyn BlockDevice>) {
    Volume::format(dev.clone(), &FormatOptions::new([1; 16], [2; 16], 1 << 20)).unwrap();
    let mut v = Volume::mount(dev, MountOptions::default()).unwrap();
    let report = |what: &str, start: Instant, n: u64| {
        let spent = start.elapsed();
        println!(
            "{name}: {what}: {n} in {spent:?}, {:?} each",
            spent / n as u32
        );
    };
    let start = Instant::now();
    let big = v
        .create(Nid::ROOT, b"big", mode::FILE, 0, &CALLER)
        .unwrap()
        .ino;
    for n in 0..512u64 {
        v.write(big, n << 20, &[n as u8; 1 << 20], CALLER.now)
            .unwrap();
    }
    v.sync().unwrap();
    report("sequential MiB written", start, 512);
    let start = Instant::now();
    for n in 0..512u64 {
        assert_eq!(v.read(big, n << 20, 1 << 20).unwrap()[77], n as u8);
    }
    report("sequential MiB read", start, 512);
    let start = Instant::now();
    for n in 0..10_000 {
        let ino = v
            .create(
                Nid::ROOT,
                format!("file {n}").as_bytes(),
                mode::FILE,
                0,
                &CALLER,
            )
            .unwrap()
            .ino;
        v.write(ino, 0, &[1; 6000], CALLER.now).unwrap();
    }
    v.sync().unwrap();
    report("files of 6000 bytes made", start, 10_000);
    let start = Instant::now();
    for n in 0..10_000 {
        v.unlink(Nid::ROOT, format!("file {n}").as_bytes(), &CALLER)
            .unwrap();
    }
    v.sync().unwrap();
    report("files deleted", start, 10_000);
    let mut rng = Rng::new(1);
    let start = Instant::now();
    for _ in 0..20_000 {
        v.write(
            big,
            (rng.below(512 << 8) * 4096) as u64,
            &[9; 4096],
            CALLER.now,
        )
        .unwrap();
    }
    v.sync().unwrap();
    report("random blocks overwritten", start, 20_000);
    let start = Instant::now();
    for n in 0..200 {
        v.write(big, n * 4096, &[9; 4096], CALLER.now).unwrap();
        v.fsync(big).unwrap();
    }
    report("fsyncs of one block", start, 200);
    let start = Instant::now();
    v.drain().unwrap();
    report("drain", start, 1);
    println!("{name}: {:?}", v.stats());
    let start = Instant::now();
    v.unmount().unwrap();
    report("unmount", start, 1);
}

#[test]
#[ignore = "takes seconds and half a gigabyte"]
fn ordinary_work_is_not_quadratic() {
    work("memory", Arc::new(MemDevice::new()));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("speed");
    let _ = std::fs::remove_dir_all(&path);
    work(
        "zone files",
        Arc::new(ZoneDir::create(&path, 1 << 18).unwrap()),
    );
    std::fs::remove_dir_all(&path).unwrap();
}
