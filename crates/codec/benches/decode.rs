//! Decoding speed of clusters, beside the library's own decoder.
//!
//! ```text
//! cargo bench -p tuff-codec --bench decode -- DIR [--mib 16] [--runs 5] [--only lz4:1,zstd:3] [--cluster 4096,65536]
//! ```
//!
//! DIR may also come from `FIT_DIR`. Clusters are the output of our encoders for files sampled evenly from the tree.
//! Both decoders decode all of them, in turns, and then the first half of each. The result is compared before its
//! time counts. Times are CPU time of this thread.
//!
//! The library's decoders are `LZ4_decompress_safe` and `LZ4_decompress_safe_partial`, `ZSTD_decompressDCtx` with one
//! context, and `libdeflate_deflate_decompress` with one. Zstandard and DEFLATE have no plain way to decode a part.
#![allow(unsafe_code, missing_docs, clippy::undocumented_unsafe_blocks)]

mod sample;

use std::ffi::{c_char, c_int};
use std::path::Path;

use libdeflate_sys::{
    libdeflate_alloc_decompressor, libdeflate_decompressor, libdeflate_deflate_decompress,
};
use sample::{Selection, cpu_ns, median, sample, title};
use tuff_codec::{Algorithm, DecodeError, Decoder, EncoderSpec};
use zstd_sys as zs;

use lz4_sys as _;

unsafe extern "C" {
    fn LZ4_decompress_safe(s: *const c_char, d: *mut c_char, n: c_int, room: c_int) -> c_int;
    fn LZ4_decompress_safe_partial(
        s: *const c_char,
        d: *mut c_char,
        n: c_int,
        used: c_int,
        room: c_int,
    ) -> c_int;
}

/// A cluster, encoded and decoded.
struct Cluster {
    encoded: Vec<u8>,
    content: Vec<u8>,
}

/// Encodes the files into clusters; incompressible ones are left out.
fn clusters(spec: &EncoderSpec, files: &[Vec<u8>]) -> Vec<Cluster> {
    let mut encoder = spec.build().expect("the settings are good");
    let mut dst = vec![0; spec.cluster];
    let mut all = Vec::new();
    for file in files {
        encoder.reset();
        let mut at = 0;
        while file.len() - at > 4096 {
            let fit = encoder.fit(file, at, &mut dst);
            if fit.consumed > fit.written {
                all.push(Cluster {
                    encoded: dst[..fit.written].to_vec(),
                    content: file[at..at + fit.consumed].to_vec(),
                });
            }
            at += fit.consumed.max(4096).min(file.len() - at);
        }
    }
    all
}

/// Decoders of the libraries.
struct Plain {
    zstd: *mut zs::ZSTD_DCtx,
    deflate: *mut libdeflate_decompressor,
}

impl Plain {
    fn decode(&self, algorithm: Algorithm, src: &[u8], dst: &mut [u8], whole: bool) {
        let (from, to) = (src.as_ptr(), dst.as_mut_ptr());
        let (n, room) = (src.len() as c_int, dst.len() as c_int);
        // SAFETY (all blocks here): live contexts, slices with their own lengths.
        let len = match algorithm {
            Algorithm::Lz4 if whole => unsafe {
                LZ4_decompress_safe(from.cast(), to.cast(), n, room) as usize
            },
            Algorithm::Lz4 => unsafe {
                LZ4_decompress_safe_partial(from.cast(), to.cast(), n, room, room) as usize
            },
            Algorithm::Zstd => unsafe {
                zs::ZSTD_decompressDCtx(self.zstd, to.cast(), dst.len(), from.cast(), src.len())
            },
            Algorithm::Deflate => {
                let mut len = 0;
                unsafe {
                    libdeflate_deflate_decompress(
                        self.deflate,
                        from.cast(),
                        src.len(),
                        to.cast(),
                        dst.len(),
                        &mut len,
                    )
                };
                len
            }
            Algorithm::Lzma => unreachable!("its decoder is the library's"),
        };
        assert_eq!(len, dst.len());
    }
}

/// Decodes every cluster; returns the time. Unit: nanoseconds.
fn pass(
    all: &[Cluster],
    dst: &mut Vec<u8>,
    part: usize,
    mut decode: impl FnMut(&[u8], &mut [u8]),
) -> u64 {
    let mut ns = 0;
    for cluster in all {
        let len = cluster.content.len() / part;
        dst.resize(dst.len().max(len), 0);
        let start = cpu_ns();
        decode(&cluster.encoded, &mut dst[..len]);
        ns += cpu_ns() - start;
        assert!(
            dst[..len] == cluster.content[..len],
            "a cluster decodes to its content"
        );
    }
    ns
}

fn main() {
    let Some(selection) = Selection::new("decode", 5, "lz4:1,lz4hc:9,zstd:3,deflate:6") else {
        return;
    };
    let runs = selection.runs;
    let files = sample(Path::new(&selection.dir), selection.mib << 20);
    // SAFETY: constructors without preconditions.
    let plain = unsafe {
        Plain {
            zstd: zs::ZSTD_createDCtx(),
            deflate: libdeflate_alloc_decompressor(),
        }
    };
    println!(
        "{}: {} files, {runs} runs; MB/s of output",
        selection.dir,
        files.len()
    );
    println!("{:<22} {:>8} {:>8} {:>7}", "", "plain", "ours", "ratio");
    let ours = |result: Result<(), DecodeError>| result.expect("a cluster decodes");
    let (mut decoder, mut dst) = (Decoder::new(), Vec::new());
    for spec in selection.specs() {
        let algorithm = spec.method.algorithm();
        let all = clusters(&spec, &files);
        let total: usize = all.iter().map(|c| c.content.len()).sum();
        for part in [1, 2] {
            if part > 1 && algorithm != Algorithm::Lz4 {
                continue;
            }
            let mut times = [Vec::new(), Vec::new()];
            for run in 0..runs {
                for way in [run % 2, 1 - run % 2] {
                    let ns = pass(&all, &mut dst, part, |src, dst| match (way, part) {
                        (0, _) => plain.decode(algorithm, src, dst, part == 1),
                        (_, 1) => ours(decoder.decode(algorithm, src, dst)),
                        _ => ours(decoder.decode_prefix(algorithm, src, dst)),
                    });
                    times[way].push(ns);
                }
            }
            let speed = |ns: &[u64]| {
                let all = ns.iter().map(|&ns| (total / part) as f64 * 1e3 / ns as f64);
                median(all.collect())
            };
            let ratios = times[0].iter().zip(&times[1]);
            println!(
                "{:<22} {:>8.0} {:>8.0} {:>6.2}x",
                title(&spec) + ["", " half"][part - 1],
                speed(&times[0]),
                speed(&times[1]),
                median(ratios.map(|(&a, &b)| a as f64 / b as f64).collect()),
            );
        }
    }
}
