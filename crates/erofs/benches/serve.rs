//! In-process benchmark of the server on a single thread: each policy, over
//! sequential, random and strided reads and small files.
//!
//! ```text
//! cargo bench -p tuff-erofs --bench serve -- IMAGE...
//! ```
//!
//! Uses the largest file of each image, and its files of at most 64 KiB. A separate pass verifies
//! each request against the plain reader. Timed passes use fresh servers, alternate between the
//! policies and measure the CPU time of the thread; the fastest pass counts. "raw" is the decoder
//! alone: it decodes each cluster of the file once, from memory into one buffer.

use rustix::time::{ClockId, clock_gettime};
use std::path::Path;
use tuff_codec::{Algorithm, Decoder};
use tuff_erofs::read::{ClusterCoding, FileType, Image, Inode, Location, OpenOptions};
use tuff_erofs::serve::{Counters, Policy, ServeOptions, Server};
use tuff_store::{FileStore, ReadAt};
use xxhash_rust::xxh3::xxh3_64;

/// Number of timed passes.
const PASSES: usize = 7;

/// Number of random and strided requests of 4 KiB.
const REQUESTS: u64 = 4096;

const PAGE: u64 = 4096;

/// Maximum length of sequentially read data. Unit: bytes.
const SEQUENTIAL: u64 = 128 << 20;

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let images: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    if images.is_empty() {
        eprintln!("no image given; usage: cargo bench -p tuff-erofs --bench serve -- IMAGE...");
    }
    for image in images {
        bench(Path::new(&image))?;
    }
    Ok(())
}

fn open(path: &Path) -> Result<Image, Error> {
    Ok(Image::open(FileStore::open(path)?, OpenOptions::default())?)
}

/// Request: file number, offset, length. Unit of offset and length: bytes.
type Request = (usize, u64, usize);

struct Work {
    name: &'static str,
    requests: Vec<Request>,
}

fn bench(path: &Path) -> Result<(), Error> {
    let image = open(path)?;
    let (largest, small) = files(&image)?;
    let Some(file) = largest else {
        eprintln!("{}: no file of at least 1 MiB", path.display());
        return Ok(());
    };
    // File 0 is the largest one.
    let mut inodes = vec![file];
    inodes.extend(small);
    let truth = truth(&image, &inodes)?;
    let raw = raw(path, &image, &file)?;
    println!(
        "\n{}: file of {} MiB, {} clusters of {:.1} KiB that decode to {:.1} KiB on average; raw {:.2} GB/s",
        path.display(),
        file.size() >> 20,
        raw.clusters,
        raw.compressed as f64 / raw.clusters.max(1) as f64 / 1024.0,
        raw.decoded as f64 / raw.clusters.max(1) as f64 / 1024.0,
        raw.decoded as f64 / raw.seconds / 1e9,
    );
    println!(
        "{:<12} {:<10} {:>9} {:>9} {:>7} {:>9} {:>9} {:>7} {:>9}",
        "work", "policy", "us each", "MB/s", "of raw", "fetched", "decoded", "hits", "decodes"
    );
    println!(
        "{:<12} {:<10} {:>9} {:>9} {:>7} {:>9} {:>9}",
        "", "", "", "", "", "per 16MiB", "/returned"
    );
    for work in works(&inodes) {
        let all = Policy::ALL;
        let mut best = vec![(f64::MAX, Counters::default()); all.len()];
        for policy in all {
            run(path, &inodes, &work, policy, Some(&truth))?;
        }
        for _ in 0..PASSES {
            for (best, policy) in best.iter_mut().zip(all) {
                let (seconds, counters) = run(path, &inodes, &work, policy, None)?;
                if seconds < best.0 {
                    *best = (seconds, counters);
                }
            }
        }
        for ((seconds, c), policy) in best.iter().zip(all) {
            let bytes = c.returned_bytes as f64;
            println!(
                "{:<12} {:<10} {:>9.2} {:>9.0} {:>6.0}% {:>9.2} {:>9.2} {:>7} {:>9}",
                work.name,
                policy.name(),
                seconds * 1e6 / work.requests.len() as f64,
                bytes / seconds / 1e6,
                100.0 * bytes / seconds / (raw.decoded as f64 / raw.seconds),
                16.0 * c.fetched_bytes as f64 / bytes,
                c.decoded_bytes as f64 / bytes,
                c.hits,
                format!("{:?}", c.decodes),
            );
        }
    }
    Ok(())
}

/// Returns the largest file of at least 1 MiB, and at most 4000 files of at most 64 KiB.
fn files(image: &Image) -> Result<(Option<Inode>, Vec<Inode>), Error> {
    let (mut largest, mut small) = (None::<Inode>, Vec::new());
    let mut todo = vec![image.root()?];
    while let Some(dir) = todo.pop() {
        for entry in image.read_dir(&dir)? {
            let entry = entry?;
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            let inode = image.inode(entry.nid)?;
            match inode.file_type() {
                FileType::Dir => todo.push(inode),
                FileType::File if inode.size() > 0 && inode.size() <= 65536 => small.push(inode),
                FileType::File
                    if inode.size() >= 1 << 20
                        && largest.is_none_or(|l| l.size() < inode.size()) =>
                {
                    largest = Some(inode);
                }
                _ => {}
            }
        }
    }
    small.truncate(4000);
    Ok((largest, small))
}

/// Returns the hashes of all pages of each file, by the plain reader.
fn truth(image: &Image, inodes: &[Inode]) -> Result<Vec<Vec<u64>>, Error> {
    let mut buf = vec![0; 1 << 20];
    let mut all = Vec::new();
    for inode in inodes {
        let (mut pages, mut at) = (Vec::new(), 0);
        while at < inode.size() {
            let n = image.read_at(inode, &mut buf, at)?;
            pages.extend(buf[..n].chunks(PAGE as usize).map(xxh3_64));
            at += n as u64;
        }
        all.push(pages);
    }
    Ok(all)
}

struct Raw {
    clusters: u64,
    compressed: u64,
    decoded: u64,
    seconds: f64,
}

/// Measures the decoder alone.
fn raw(path: &Path, image: &Image, file: &Inode) -> Result<Raw, Error> {
    let store = FileStore::open(path)?;
    let mut clusters = Vec::new();
    for extent in image.extents(file, 0..SEQUENTIAL.min(file.size()))? {
        let extent = extent?;
        if let Location::Cluster(c) = extent.location
            && let ClusterCoding::Compressed(id) = c.coding
            && !c.partial
        {
            let mut src = vec![0; c.len as usize];
            store.read_exact_at(&mut src, c.pos)?;
            let zeros = src.iter().take_while(|b| **b == 0).count();
            let algorithm = [
                Algorithm::Lz4,
                Algorithm::Lzma,
                Algorithm::Deflate,
                Algorithm::Zstd,
            ];
            clusters.push((
                algorithm[usize::from(id)],
                src.split_off(zeros),
                extent.len as usize,
            ));
        }
    }
    let mut raw = Raw {
        clusters: clusters.len() as u64,
        compressed: clusters.iter().map(|c| c.1.len() as u64).sum(),
        decoded: clusters.iter().map(|c| c.2 as u64).sum(),
        seconds: f64::MAX,
    };
    let mut decoder = Decoder::new();
    let mut buf = vec![0; clusters.iter().map(|c| c.2).max().unwrap_or(0)];
    for _ in 0..PASSES {
        let start = cpu();
        for (algorithm, src, len) in &clusters {
            decoder.decode(*algorithm, src, &mut buf[..*len])?;
        }
        raw.seconds = raw.seconds.min(cpu() - start);
    }
    Ok(raw)
}

fn works(inodes: &[Inode]) -> Vec<Work> {
    let size = inodes[0].size();
    let mut seed = 0x1234_5678_u64;
    let mut random = || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    let pages = size / PAGE;
    let sequential = |step: u64| {
        (0..SEQUENTIAL.min(size).div_ceil(step))
            .map(|i| (0, i * step, step as usize))
            .collect()
    };
    let mut works = vec![
        Work {
            name: "seq 128K",
            requests: sequential(128 << 10),
        },
        Work {
            name: "seq 1M",
            requests: sequential(1 << 20),
        },
        Work {
            name: "random 4K",
            requests: (0..REQUESTS)
                .map(|_| (0, random() % pages * PAGE, PAGE as usize))
                .collect(),
        },
        Work {
            name: "stride 128K",
            requests: (0..REQUESTS.min(size / (128 << 10)))
                .map(|i| (0, i * (128 << 10), PAGE as usize))
                .collect(),
        },
    ];
    if inodes.len() > 1 {
        works.push(Work {
            name: "small files",
            requests: (1..inodes.len()).map(|i| (i, 0, 128 << 10)).collect(),
        });
    }
    works
}

/// Runs all requests on a fresh server. Returns CPU seconds and counters. Compares with `truth` if
/// given.
fn run(
    path: &Path,
    inodes: &[Inode],
    work: &Work,
    policy: Policy,
    truth: Option<&[Vec<u64>]>,
) -> Result<(f64, Counters), Error> {
    let options = ServeOptions {
        policy,
        ..ServeOptions::default()
    };
    let server = Server::new(open(path)?, options);
    let mut session = server.session();
    // The buffer is like that of a transport: with room at the end for in-place decoding.
    let mut buf = vec![0; (1 << 20) + 4096];
    let start = cpu();
    for (file, offset, len) in &work.requests {
        let inode = &inodes[*file];
        let answer = server.read_by_reference(&mut session, inode, *offset, &mut buf[..*len])?;
        if let Some(truth) = truth {
            let requested = inode.size().saturating_sub(*offset).min(*len as u64);
            assert_eq!(answer.len() as u64, requested, "length at {offset}");
            let bytes: Vec<u8> = answer.parts().collect::<Vec<_>>().concat();
            let first = (*offset / PAGE) as usize;
            for (page, hash) in bytes.chunks(PAGE as usize).zip(&truth[*file][first..]) {
                assert_eq!(
                    xxh3_64(page),
                    *hash,
                    "wrong bytes at {offset} with {policy}"
                );
            }
        } else {
            // Reads a byte per cache line, so that data returned by reference is not free.
            let mut sum = 0u8;
            for part in answer.parts() {
                sum = part
                    .iter()
                    .step_by(64)
                    .fold(sum, |sum, b| sum.wrapping_add(*b));
            }
            std::hint::black_box(sum);
        }
    }
    Ok((cpu() - start, server.counters()))
}

/// Returns the CPU time of this thread. Unit: seconds.
fn cpu() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
