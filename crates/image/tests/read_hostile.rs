//! Bytes that somebody changed: whatever is done with such an image ends, soon, in an answer or an error, and touches
//! nothing but the target of an extraction.

mod common;

use common::{Random, Scratch, mkfs};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tuff_image::check::{Options, check};
use tuff_image::extract::{self, extract};
use tuff_image::read::{FileType, Image, Limits, OpenOptions};
use tuff_store::MemStore;

/// For all images together, unless TUFF_HOSTILE_SECONDS says otherwise: long campaigns run with another seed each.
const BUDGET: Duration = Duration::from_secs(24);
/// For one damaged image.
const PATIENCE: Duration = Duration::from_secs(5);

/// Does with an image what one does with images.
fn use_all(bytes: &[u8]) {
    let options = || OpenOptions {
        verify_checksum: false,
        limits: Limits::default(),
        ..OpenOptions::default()
    };
    let Ok(image) = Image::open(MemStore::new(bytes), options()) else {
        return;
    };
    let threads = Options {
        threads: 1,
        findings: 50,
        ..Options::default()
    };
    let _ = check(&image, &threads, |_| ());
    walk(&image);
}

fn walk(image: &Image) {
    let Ok(root) = image.root() else { return };
    let mut todo = vec![(root, 0)];
    let mut visited = 0;
    let mut buf = [0; 4096];
    while let Some((inode, depth)) = todo.pop() {
        visited += 1;
        if visited > 1000 {
            return; // a damaged tree may be a graph
        }
        let _ = image.xattrs(&inode);
        let _ = image.xattr(&inode, b"user.common.colour");
        let _ = image.readlink(&inode);
        for at in [0, inode.size() / 2, inode.size().saturating_sub(1)] {
            let _ = image.read_at(&inode, &mut buf, at);
        }
        if inode.file_type() == FileType::Dir && depth < 10 {
            let _ = image.lookup(&inode, b"numbers");
            for entry in image
                .read_dir(&inode)
                .into_iter()
                .flatten()
                .flatten()
                .take(1000)
            {
                if let (false, Ok(child)) = (entry.name.starts_with(b"."), image.inode(entry.nid)) {
                    todo.push((child, depth + 1));
                }
            }
        }
    }
}

/// Extracts what there is, below `around`, where nothing else may appear.
fn extract_all(bytes: &[u8], around: &Path) {
    let options = OpenOptions {
        verify_checksum: false,
        ..OpenOptions::default()
    };
    let Ok(image) = Image::open(MemStore::new(bytes), options) else {
        return;
    };
    let target = around.join("target");
    let options = extract::Options {
        keep_going: true,
        owners: Some(false),
        threads: 2,
        files: 300,
        bytes: 4 << 20,
        ..extract::Options::default()
    };
    let _ = extract(&image, &target, &options, |_| ());
    let found = std::fs::read_dir(around).unwrap();
    for entry in found {
        assert_eq!(entry.unwrap().file_name(), "target");
    }
    if std::fs::remove_dir_all(&target).is_err() {
        let _ = std::process::Command::new("chmod")
            .args(["-R", "u+rwx"])
            .arg(&target)
            .output();
        let _ = std::fs::remove_dir_all(&target);
    }
}

fn one(name: &str, what: &str, bytes: &[u8]) {
    let start = Instant::now();
    let result = std::panic::catch_unwind(|| use_all(bytes));
    assert!(result.is_ok(), "{name}: {what}: panicked");
    assert!(
        start.elapsed() < PATIENCE,
        "{name}: {what}: took {:?}",
        start.elapsed()
    );
}

/// Flips every bit where it matters, then others at random until the time is up.
fn campaign(name: &str, good: &[u8], seed: u64, budget: Duration) {
    let start = Instant::now();
    let mut bytes = good.to_vec();
    // Blocks that hold metadata differ from image to image; what is zero there is flipped, too, but data seldom.
    let used: Vec<usize> = (0..good.len()).filter(|i| good[*i] != 0).collect();
    let mut random = Random(seed);
    let mut flips = 0;
    let around = Scratch::new("hostile-extract");
    for bit in (1024 * 8)..(1024 + 256) * 8 {
        flip(&mut bytes, bit);
        one(name, &format!("bit {bit}"), &bytes);
        flip(&mut bytes, bit);
        flips += 1;
    }
    for cut in (0..good.len()).step_by(good.len() / 64 + 1) {
        one(name, &format!("cut at {cut}"), &good[..cut]);
    }
    while start.elapsed() < budget {
        let at = if random.below(4) == 0 {
            random.below(good.len() as u64) as usize
        } else {
            used[random.below(used.len() as u64) as usize]
        };
        let bit = at * 8 + random.below(8) as usize;
        flip(&mut bytes, bit);
        one(name, &format!("bit {bit}"), &bytes);
        flip(&mut bytes, bit);
        // A whole word of ones, zeros or noise.
        let at = at.min(good.len() - 8) & !3;
        let word = match random.below(3) {
            0 => [0xFF; 8],
            1 => [0; 8],
            _ => random.next().to_le_bytes(),
        };
        bytes[at..at + 8].copy_from_slice(&word);
        one(name, &format!("{word:02x?} at {at}"), &bytes);
        if flips % 16 == 0 {
            extract_all(&bytes, around.path());
        }
        bytes[at..at + 8].copy_from_slice(&good[at..at + 8]);
        flips += 1;
    }
    eprintln!("{name}: {flips} flips in {:?}", start.elapsed());
}

fn flip(bytes: &mut [u8], bit: usize) {
    bytes[bit / 8] ^= 1 << (bit % 8);
}

#[test]
fn damaged_images_end_in_an_answer_or_an_error() {
    let mut images: Vec<(String, Vec<u8>)> = common::sample::all()
        .iter()
        .map(|(name, bytes)| (name.to_string(), bytes.clone()))
        .collect();
    let scratch = Scratch::new("hostile");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("numbers"), common::text(30_000, 1)).unwrap();
    std::fs::write(source.join("small"), b"small").unwrap();
    for (i, options) in [
        &["-zlz4", "-Efragments"][..],
        &["-zlz4", "-Elegacy-compress"],
    ]
    .iter()
    .enumerate()
    {
        let file = scratch.path().join(format!("{i}.erofs"));
        if mkfs(&file, &source, options).is_some() {
            images.push((format!("{options:?}"), std::fs::read(&file).unwrap()));
        }
    }
    let long = std::env::var("TUFF_HOSTILE_SECONDS").ok();
    let long = long.and_then(|s| s.parse().ok());
    let budget = long.map_or(BUDGET, Duration::from_secs);
    let seed = long.map_or(0, |_| u64::from(std::process::id()) << 16);
    eprintln!("seed {seed}");
    let share = budget / images.len() as u32 * 2;
    let work = Arc::new(std::sync::Mutex::new(images.into_iter().enumerate()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let next = work.lock().unwrap().next();
                    let Some((i, (name, bytes))) = next else {
                        return;
                    };
                    campaign(&name, &bytes, seed.wrapping_add(i as u64), share);
                }
            });
        }
    });
}
