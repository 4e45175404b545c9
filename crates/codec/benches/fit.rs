//! Speed and ratio of each encoder, beside straightforward use of the same library.
//!
//! ```text
//! cargo bench -p tuff-codec --bench fit -- DIR [--mib 16] [--runs 3] [--only zstd:3,lz4hc:9] [--cluster 4096,65536]
//!                                              [--joined] [--alone] [--every-byte | --own]
//! ```
//!
//! DIR may also come from `FIT_DIR`. Files are sampled evenly from the sorted tree, and each is compressed on its
//! own. With `--joined` they are one file; `--alone` omits the library, for a profiler. Each output is decoded and
//! compared before its time counts. Times are CPU time of this thread; the two encoders alternate, file by file.
//!
//! Straightforward use is:
//!
//! * LZ4 and LZ4HC: the library's own fixed-output functions.
//! * Zstandard and DEFLATE: doubling, then bisecting until the output is 99.9 % full (below 64 KiB: Zstandard 99.8 %,
//!   DEFLATE 99.6 %).
//! * LZMA: liblzma's MicroLZMA encoder with one stream object.
//!
//! The size is that of an image: every output is rounded up to 4 KiB blocks, and incompressible blocks and a rest of
//! up to a block are stored. The encoders know that ([`EncoderSpec::unit`]). With `--every-byte` they do not, and
//! encode all files at the given level. `--own` compares the two settings.
#![allow(unsafe_code, missing_docs, clippy::undocumented_unsafe_blocks)]

mod sample;

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

use libdeflate_sys::{
    libdeflate_alloc_compressor, libdeflate_compressor, libdeflate_deflate_compress,
};
use liblzma_sys as xz;
use sample::{Selection, cpu_ns, median, sample, title};
use tuff_codec::{Decoder, Encoder, EncoderSpec, Fit, Method};
use zstd_sys as zs;

use lz4_sys as _;

unsafe extern "C" {
    fn LZ4_compress_destSize(s: *const c_char, d: *mut c_char, n: *mut c_int, room: c_int)
    -> c_int;
    fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_compress_HC_destSize(
        state: *mut c_void,
        s: *const c_char,
        d: *mut c_char,
        n: *mut c_int,
        room: c_int,
        level: c_int,
    ) -> c_int;
}

const BLOCK: usize = 4096;

/// Straightforward use of a library, method by method.
enum Plain {
    Lz4,
    Lz4hc(Vec<u64>, i32),
    Zstd(*mut zs::ZSTD_CCtx, Vec<u8>),
    Deflate(*mut libdeflate_compressor, Vec<u8>),
    Lzma(Box<xz::lzma_stream>, Box<xz::lzma_options_lzma>),
    /// Our encoder with a unit of one byte.
    Own(Box<dyn Encoder>),
}

struct PlainFit {
    plain: Plain,
    input_max: usize,
    /// Number of input bytes that were compressed.
    passed: u64,
}

// SAFETY: the benchmark has one thread.
unsafe impl Send for PlainFit {}

impl PlainFit {
    fn own(spec: &EncoderSpec) -> Self {
        let spec = EncoderSpec { unit: 1, ..*spec };
        Self {
            plain: Plain::Own(spec.build().expect("the settings are good")),
            input_max: spec.input_max,
            passed: 0,
        }
    }

    fn new(spec: &EncoderSpec) -> Self {
        // SAFETY (all blocks here): constructors without preconditions; plain structures that may be zeroed.
        let plain = match spec.method {
            Method::Lz4 => Plain::Lz4,
            Method::Lz4hc => Plain::Lz4hc(
                vec![0; unsafe { LZ4_sizeofStateHC() } as usize / 8 + 1],
                spec.level,
            ),
            Method::Zstd => {
                let context = unsafe { zs::ZSTD_createCCtx() };
                for (key, value) in [
                    (zs::ZSTD_cParameter::ZSTD_c_compressionLevel, spec.level),
                    (
                        zs::ZSTD_cParameter::ZSTD_c_windowLog,
                        spec.match_distance_max().ilog2() as i32,
                    ),
                    (zs::ZSTD_cParameter::ZSTD_c_contentSizeFlag, 0),
                ] {
                    unsafe { zs::ZSTD_CCtx_setParameter(context, key, value) };
                }
                Plain::Zstd(context, vec![])
            }
            Method::Deflate => {
                Plain::Deflate(unsafe { libdeflate_alloc_compressor(spec.level) }, vec![])
            }
            Method::Lzma => {
                let mut options: Box<xz::lzma_options_lzma> =
                    Box::new(unsafe { std::mem::zeroed() });
                let preset = if spec.level >= 100 {
                    (spec.level - 100) as u32 | 1 << 31
                } else {
                    spec.level as u32
                };
                unsafe { xz::lzma_lzma_preset(&mut *options, preset) };
                options.dict_size = spec.match_distance_max() as u32;
                Plain::Lzma(Box::new(unsafe { std::mem::zeroed() }), options)
            }
        };
        Self {
            plain,
            input_max: spec.input_max,
            passed: 0,
        }
    }
}

/// Searches by doubling, then bisecting.
fn bisect(
    src: &[u8],
    dst: &mut [u8],
    trial: &mut Vec<u8>,
    slack: usize,
    passed: &mut u64,
    mut compress: impl FnMut(&[u8], &mut [u8]) -> Option<usize>,
) -> Fit {
    let room = dst.len();
    trial.resize(room, 0);
    let (mut low, mut high, mut size) = (0, src.len() + 1, 0);
    let mut guess = (2 * room).min(src.len());
    while high - low > 1 && size + slack < room {
        *passed += guess as u64;
        match compress(&src[..guess], trial) {
            Some(n) => {
                dst[..n].copy_from_slice(&trial[..n]);
                (low, size) = (guess, n);
            }
            None => high = guess,
        }
        guess = if high > src.len() {
            (2 * low).clamp(1, src.len())
        } else {
            low + (high - low) / 2
        };
        if guess == low {
            break;
        }
    }
    Fit {
        consumed: low,
        written: size,
    }
}

impl Encoder for PlainFit {
    fn reset(&mut self) {
        if let Plain::Own(own) = &mut self.plain {
            own.reset();
        }
    }

    fn fit(&mut self, input: &[u8], at: usize, dst: &mut [u8]) -> Fit {
        let src = &input[at..input.len().min(at + self.input_max)];
        let (from, to, room) = (
            src.as_ptr().cast(),
            dst.as_mut_ptr().cast(),
            dst.len() as c_int,
        );
        let mut n = src.len() as c_int;
        // SAFETY (all blocks here): live objects of the library, slices with their own lengths.
        let fit = match &mut self.plain {
            Plain::Own(own) => own.fit(input, at, dst),
            Plain::Lz4 => {
                let written = unsafe { LZ4_compress_destSize(from, to, &mut n, room) };
                Fit {
                    consumed: n as usize,
                    written: written as usize,
                }
            }
            Plain::Lz4hc(state, level) => {
                let state = state.as_mut_ptr().cast();
                let written =
                    unsafe { LZ4_compress_HC_destSize(state, from, to, &mut n, room, *level) };
                Fit {
                    consumed: n as usize,
                    written: written as usize,
                }
            }
            Plain::Zstd(context, trial) => {
                let context = *context;
                let slack = if dst.len() < 1 << 16 {
                    dst.len() / 512
                } else {
                    dst.len() / 1024
                };
                return bisect(src, dst, trial, slack, &mut self.passed, |src, out| {
                    let (from, to) = (src.as_ptr().cast(), out.as_mut_ptr().cast());
                    let n = unsafe { zs::ZSTD_compress2(context, to, out.len(), from, src.len()) };
                    (unsafe { zs::ZSTD_isError(n) } == 0).then_some(n)
                });
            }
            Plain::Deflate(context, trial) => {
                let context = *context;
                let slack = if dst.len() < 1 << 16 {
                    dst.len() / 256
                } else {
                    dst.len() / 1024
                };
                return bisect(src, dst, trial, slack, &mut self.passed, |src, out| {
                    let (from, to) = (src.as_ptr().cast(), out.as_mut_ptr().cast());
                    let n = unsafe {
                        libdeflate_deflate_compress(context, from, src.len(), to, out.len())
                    };
                    (n > 0).then_some(n)
                });
            }
            Plain::Lzma(stream, options) => {
                unsafe { xz::lzma_microlzma_encoder(&mut **stream, &**options) };
                stream.next_in = src.as_ptr();
                stream.avail_in = src.len();
                stream.next_out = dst.as_mut_ptr();
                stream.avail_out = dst.len();
                unsafe { xz::lzma_code(&mut **stream, xz::LZMA_FINISH) };
                Fit {
                    consumed: stream.total_in as usize,
                    written: stream.total_out as usize,
                }
            }
        };
        self.passed += fit.consumed as u64;
        fit
    }

    fn input_max(&self) -> usize {
        self.input_max
    }
}

/// Totals of one encoder over all files.
#[derive(Default)]
struct Tally {
    /// Time of each run. Unit: nanoseconds.
    ns: Vec<u64>,
    /// Size in an image. Unit: bytes.
    size: u64,
    /// Input and output of the clusters that are full.
    full: (u64, u64, u64),
}

/// Encodes one file like a builder; adds its time to the last run, and its size if `sizes` is set.
fn one_file(
    encoder: &mut dyn Encoder,
    spec: &EncoderSpec,
    input: &[u8],
    (decoder, arena): (&mut Decoder, &mut Vec<u8>),
    sizes: bool,
    tally: &mut Tally,
) {
    // Fresh pages would cost more time than a fast encoder.
    arena.resize(arena.len().max(input.len() + 2 * spec.cluster), 0);
    let mut fits = Vec::with_capacity(input.len() / BLOCK + 1);
    let start = cpu_ns();
    let (mut at, mut out) = (0, 0);
    encoder.reset();
    while input.len() - at > BLOCK {
        let fit = encoder.fit(input, at, &mut arena[out..out + spec.cluster]);
        if fit.consumed <= fit.written.next_multiple_of(BLOCK) {
            // The number of whole blocks that the cluster would have held.
            let consumed = (fit.consumed / BLOCK * BLOCK).max(BLOCK);
            fits.push(Fit {
                consumed,
                written: 0,
            });
            at += consumed;
        } else {
            fits.push(fit);
            at += fit.consumed;
            out += fit.written;
        }
    }
    *tally.ns.last_mut().expect("a run has begun") += cpu_ns() - start;

    let (mut at, mut out) = (0, 0);
    let mut back = Vec::new();
    for fit in fits {
        if fit.written > 0 {
            back.resize(fit.consumed, 0);
            let src = &arena[out..out + fit.written];
            decoder
                .decode(spec.method.algorithm(), src, &mut back)
                .expect("output decodes");
            assert!(
                back[..] == input[at..at + fit.consumed],
                "output decodes to its input"
            );
            out += fit.written;
        }
        at += fit.consumed;
        if sizes {
            tally.size += if fit.written == 0 {
                fit.consumed
            } else {
                fit.written.next_multiple_of(BLOCK)
            } as u64;
            if fit.written > 0 && at < input.len() {
                tally.full.0 += fit.consumed as u64;
                tally.full.1 += fit.written as u64;
                tally.full.2 += spec.cluster as u64;
            }
        }
    }
    if sizes && at < input.len() {
        tally.size += BLOCK as u64;
    }
}

fn main() {
    let usual = "lz4:1,lz4hc:9,lz4hc:12,zstd:3,zstd:9,zstd:15,deflate:6,lzma:1,lzma:6";
    let Some(selection) = Selection::new("fit", 3, usual) else {
        return;
    };
    let (runs, alone) = (selection.runs, selection.flag("--alone"));
    let mut files = sample(Path::new(&selection.dir), selection.mib << 20);
    if selection.flag("--joined") {
        files = vec![files.concat()];
    }
    let total: usize = files.iter().map(Vec::len).sum();
    println!(
        "{}: {} files, {:.1} MB, {runs} runs",
        selection.dir,
        files.len(),
        total as f64 / 1e6
    );
    println!(
        "{:<22} {:>8} {:>8} {:>7}  {:>7} {:>7}  {:>6} {:>6} {:>6}",
        "", "plain", "ours", "speed", "size", "full", "passes", "fill", "fill"
    );
    println!(
        "{:<22} {:>8} {:>8} {:>7}  {:>7} {:>7}  {:>6} {:>6} {:>6}",
        "", "MB/s", "MB/s", "ratio", "%", "%", "plain", "plain", "ours"
    );
    let mut decoder = Decoder::new();
    let mut arena = Vec::new();
    let unit = if selection.flag("--every-byte") {
        1
    } else {
        BLOCK
    };
    for spec in selection.specs() {
        let spec = EncoderSpec { unit, ..spec };
        let mut plain = match selection.flag("--own") {
            true => PlainFit::own(&spec),
            false => PlainFit::new(&spec),
        };
        let mut ours = spec.build().expect("the settings are good");
        let (mut a, mut b) = (Tally::default(), Tally::default());
        for run in 0..runs {
            a.ns.push(0);
            b.ns.push(0);
            for (i, file) in files.iter().enumerate() {
                // The two alternate in being first.
                for is_plain in [(i + run) % 2 == 0, (i + run) % 2 == 1] {
                    let (encoder, tally): (&mut dyn Encoder, _) = match is_plain {
                        true if alone => continue,
                        true => (&mut plain, &mut a),
                        false => (&mut *ours, &mut b),
                    };
                    let decoding = (&mut decoder, &mut arena);
                    one_file(encoder, &spec, file, decoding, run == 0, tally);
                }
            }
        }
        let speed = |tally: &Tally| {
            median(
                tally
                    .ns
                    .iter()
                    .map(|&ns| total as f64 * 1e3 / ns as f64)
                    .collect(),
            )
        };
        let ratios =
            a.ns.iter()
                .zip(&b.ns)
                .map(|(&a, &b)| a as f64 / b as f64)
                .collect();
        let ratio = |tally: &Tally| tally.full.1 as f64 / tally.full.0 as f64;
        let fill = |tally: &Tally| 100.0 * tally.full.1 as f64 / tally.full.2 as f64;
        if alone {
            println!(
                "{:<22} {:>8} {:>8.1} {:>15} bytes",
                title(&spec),
                "",
                speed(&b),
                b.size
            );
            continue;
        }
        println!(
            "{:<22} {:>8.1} {:>8.1} {:>6.2}x  {:>+7.2} {:>+7.2}  {:>6.2} {:>6.2} {:>6.2}",
            title(&spec),
            speed(&a),
            speed(&b),
            median(ratios),
            100.0 * (b.size as f64 / a.size as f64 - 1.0),
            100.0 * (ratio(&b) / ratio(&a) - 1.0),
            plain.passed as f64 / runs as f64 / total as f64,
            fill(&a),
            fill(&b),
        );
    }
}
