//! Properties of all encoders and decoders, on data of all kinds.

use tuff_codec::{Algorithm, Decoder, Encoder, EncoderSpec, Fit, Method, Trim};

/// Deterministic source of pseudo-random numbers.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 20) as usize % n
    }
}

/// Words of a small language with a skewed choice, some numbers, and lines: compresses about 3:1.
fn text(len: usize, seed: u64) -> Vec<u8> {
    let mut noise = Noise(seed * 2 + 1);
    let words: Vec<Vec<u8>> = (0..600)
        .map(|_| {
            (0..2 + noise.below(8))
                .map(|_| b'a' + noise.below(26) as u8)
                .collect()
        })
        .collect();
    let mut out = Vec::with_capacity(len + 16);
    while out.len() < len {
        let pick = noise.below(600).min(noise.below(600)).min(noise.below(600));
        out.extend_from_slice(&words[pick]);
        match noise.below(12) {
            0 => out.extend_from_slice(b";\n    "),
            1 => out.extend_from_slice(noise.below(100_000).to_string().as_bytes()),
            _ => out.push(b' '),
        }
    }
    out.truncate(len);
    out
}

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut noise = Noise(seed * 2 + 1);
    (0..len).map(|_| (noise.next() >> 30) as u8).collect()
}

fn periodic(len: usize, period: usize) -> Vec<u8> {
    let base = random(period, period as u64);
    (0..len).map(|i| base[i % period]).collect()
}

/// Text, noise and runs in turns, as in an executable with its sections.
fn mixed(len: usize, seed: u64) -> Vec<u8> {
    let mut noise = Noise(seed * 2 + 1);
    let mut out = Vec::new();
    while out.len() < len {
        let n = 1 + noise.below(6000);
        match noise.below(4) {
            0 => out.extend(random(n, noise.next() >> 1)),
            1 => out.extend(std::iter::repeat_n(noise.below(256) as u8, n)),
            2 if !out.is_empty() => {
                let from = noise.below(out.len());
                out.extend_from_within(from..out.len().min(from + n));
            }
            _ => out.extend(text(n, noise.next() >> 1)),
        }
    }
    out.truncate(len);
    out
}

/// Lines that differ in a few digits, like tables of registers: compresses more than 10:1.
fn alike(len: usize, seed: u64) -> Vec<u8> {
    let mut noise = Noise(seed * 2 + 1);
    let mut out = Vec::with_capacity(len + 64);
    while out.len() < len {
        let (unit, field) = (noise.below(60), noise.below(12));
        let line = format!("#define UNIT{unit}_CONTROL__FIELD{field}__SHIFT    0x{field:x}\n");
        out.extend_from_slice(line.as_bytes());
    }
    out.truncate(len);
    out
}

fn kinds(len: usize) -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("text", text(len, 1)),
        ("random", random(len, 2)),
        ("period 3", periodic(len, 3)),
        ("period 1000", periodic(len, 1000)),
        ("period 70001", periodic(len, 70001)),
        ("zeros", vec![0; len]),
        ("mixed", mixed(len, 3)),
    ]
}

/// Returns the levels at which an encoder changes its strategy, and the lowest and highest.
fn levels(method: Method) -> &'static [i32] {
    match method {
        Method::Lz4 => &[1, 2],
        Method::Lz4hc => &[2, 3, 6, 9, 10, 12],
        Method::Deflate => &[1, 6, 9, 12],
        Method::Lzma => &[0, 3, 4, 5, 6, 7, 9, 100, 109],
        Method::Zstd => &[1, 3, 5, 7, 9, 12, 15, 19, 22],
    }
}

const GUARD: usize = 64;

/// Encodes once and checks the properties of one output: bounds, first byte, decoding.
fn fit_checked(
    encoder: &mut dyn Encoder,
    decoder: &mut Decoder,
    spec: &EncoderSpec,
    input: &[u8],
    at: usize,
    room: usize,
) -> (Fit, Vec<u8>) {
    let context = || {
        format!(
            "{} {}, input {} at {at}, output {room}",
            spec.method,
            spec.level,
            input.len()
        )
    };
    let mut dst = vec![0xa5; room + GUARD];
    let fit = encoder.fit(input, at, &mut dst[..room]);
    assert!(
        dst[room..].iter().all(|&byte| byte == 0xa5),
        "{}: wrote past the end",
        context()
    );
    assert!(
        fit.written <= room && fit.consumed <= (input.len() - at).min(spec.input_max),
        "{}: {fit:?}",
        context()
    );
    dst.truncate(fit.written);
    if fit.consumed == 0 {
        return (fit, dst);
    }
    assert_ne!(dst[0], 0, "{}: begins with zero", context());
    let expected = &input[at..at + fit.consumed];
    let mut back = vec![0x5a; fit.consumed];
    let result = decoder.decode(spec.method.algorithm(), &dst, &mut back);
    assert!(
        result.is_ok(),
        "{}: {fit:?}: {}",
        context(),
        result.unwrap_err()
    );
    assert!(
        back == expected,
        "{}: {fit:?}: decodes to something else",
        context()
    );
    (fit, dst)
}

/// Encodes all of `input` into outputs of `room` bytes, like a builder. Returns them joined.
fn fit_all(encoder: &mut dyn Encoder, spec: &EncoderSpec, input: &[u8], room: usize) -> Vec<u8> {
    let mut decoder = Decoder::new();
    let mut all = Vec::new();
    let mut at = 0;
    encoder.reset();
    while at < input.len() {
        let (fit, out) = fit_checked(encoder, &mut decoder, spec, input, at, room);
        all.extend(out);
        // The builder stores input that does not fit.
        at += if fit.consumed == 0 {
            room
        } else {
            fit.consumed
        };
    }
    all
}

#[test]
fn every_encoder_round_trips_on_data_of_every_kind() {
    for method in Method::ALL {
        for &level in levels(method) {
            let slow = matches!(
                (method, level),
                (Method::Zstd, 16..) | (Method::Lzma, _) | (Method::Deflate, 12)
            );
            for (room, len) in [(4096, 60_000), (65536, 400_000)] {
                for unit in [1, 4096] {
                    let spec = EncoderSpec {
                        unit,
                        ..EncoderSpec::new(method, room).with_level(level)
                    };
                    let mut encoder = spec.build().unwrap();
                    for (_, input) in kinds(if slow { len / 4 } else { len }) {
                        fit_all(&mut *encoder, &spec, &input, room);
                    }
                }
            }
        }
    }
}

/// If only blocks count, faster levels may write an output that holds all remaining input, in hardly more blocks and
/// reproducibly.
#[test]
fn encoding_to_whole_units_needs_few_additional_units() {
    let mut decoder = Decoder::new();
    for method in Method::ALL {
        for &level in levels(method) {
            let every_byte = EncoderSpec::new(method, 65536).with_level(level);
            let spec = EncoderSpec {
                unit: 4096,
                ..every_byte
            };
            let mut encoders = [every_byte, spec, spec].map(|spec| spec.build().unwrap());
            let (mut every_byte, mut units) = (0, 0);
            for (name, data) in kinds(60_000) {
                for len in (5000..60_000).step_by(9100) {
                    let input = &data[..len];
                    let [a, b, c] = encoders.each_mut().map(|encoder| {
                        encoder.reset();
                        fit_checked(&mut **encoder, &mut decoder, &spec, input, 0, 65536)
                    });
                    assert_eq!(b, c, "{method} {level}: {len} of {name}");
                    assert_eq!(
                        b.0.consumed, a.0.consumed,
                        "{method} {level}: {len} of {name}"
                    );
                    every_byte += a.0.written.div_ceil(4096);
                    units += b.0.written.div_ceil(4096);
                }
            }
            // Levels differ in their gain on synthetic text and on files.
            assert!(
                units <= every_byte + every_byte / 50,
                "{method} {level}: {units} for {every_byte}"
            );
        }
    }
}

#[test]
fn every_short_length_round_trips() {
    let mut decoder = Decoder::new();
    for method in Method::ALL {
        for &level in levels(method) {
            let step = match (method, level) {
                (Method::Lz4 | Method::Lz4hc, ..10) | (Method::Deflate, ..7) => 1,
                (Method::Zstd, ..6) => 13,
                (Method::Lz4hc, _) => 7,
                _ => 61,
            };
            let spec = EncoderSpec::new(method, 4096).with_level(level);
            let mut encoder = spec.build().unwrap();
            for (_, data) in [
                ("text", text(8193, 5)),
                ("mixed", mixed(8193, 6)),
                ("zeros", vec![0; 8193]),
            ] {
                for len in (0..70).chain((70..=8192).step_by(step)) {
                    encoder.reset();
                    fit_checked(&mut *encoder, &mut decoder, &spec, &data[..len], 0, 4096);
                }
            }
        }
    }
}

#[test]
fn every_output_size_is_respected() {
    let mut decoder = Decoder::new();
    let inputs = [
        text(40_000, 7),
        random(10_000, 8),
        mixed(40_000, 9),
        vec![0; 40_000],
    ];
    for method in Method::ALL {
        for &level in levels(method) {
            let spec = EncoderSpec::new(method, 4096).with_level(level);
            let mut encoder = spec.build().unwrap();
            let step = match method {
                Method::Lz4 | Method::Lz4hc => 37,
                _ => 251,
            };
            for input in &inputs {
                // Below 64 bytes only memory safety is promised.
                for room in (1..64)
                    .step_by(3)
                    .chain((64..=4096).step_by(step))
                    .chain([4096])
                {
                    encoder.reset();
                    let (fit, _) = fit_checked(&mut *encoder, &mut decoder, &spec, input, 0, room);
                    assert!(
                        room < 64 || fit.consumed > 0,
                        "{method} {level}: nothing fits into {room}"
                    );
                }
            }
        }
    }
}

/// A tail is trimmed if it exceeds a multiple of a block by little; all other outputs are unchanged.
#[test]
fn last_outputs_are_trimmed_to_whole_blocks() {
    let mut decoder = Decoder::new();
    for method in Method::ALL {
        for &level in levels(method) {
            let spec = EncoderSpec::new(method, 65536).with_level(level);
            let mut encoder = spec.build().unwrap();
            let mut trims = 0;
            for (name, data) in kinds(60_000) {
                for (len, block) in [(3000, 512), (20_000, 4096), (33_333, 512), (60_000, 4096)] {
                    let input = &data[..len];
                    let trim = Trim {
                        untrimmed_max: block,
                        block,
                        excess_max: block / 2,
                    };
                    let context = format!("{method} {level}, {len} of {name}, blocks of {block}");
                    encoder.reset();
                    let (fit, whole) =
                        fit_checked(&mut *encoder, &mut decoder, &spec, input, 0, 65536);
                    assert_eq!(fit.consumed, len, "{context}");
                    encoder.reset();
                    let mut dst = vec![0xa5; 65536];
                    let end = encoder.fit_tail(input, 0, &mut dst, &trim);
                    dst.truncate(end.fit.written);
                    if !end.trimmed {
                        assert_eq!((end.fit, &dst), (fit, &whole), "{context}");
                        continue;
                    }
                    // The size of a block is known to within a few bytes.
                    let over = (whole.len() + 16) % block;
                    assert!(over <= trim.excess_max + 32, "{context}: {over}");
                    let full = (whole.len() + 16) / block * block;
                    let least = full - full / 64 - 32;
                    assert!((least..=full).contains(&dst.len()), "{context}: {end:?}");
                    assert_ne!(dst[0], 0, "{context}");
                    let mut back = vec![0; end.fit.consumed];
                    let result = decoder.decode(method.algorithm(), &dst, &mut back);
                    assert!(result.is_ok() && back == input[..back.len()], "{context}");
                    trims += 1;
                }
            }
            assert!(trims > 0, "{method} {level}");
        }
    }
}

#[test]
fn large_clusters_round_trip() {
    let inputs = [
        mixed(3 << 20, 11),
        text(2 << 20, 12),
        alike(2 << 20, 13),
        vec![7; 14 << 20],
    ];
    for (method, level) in [
        (Method::Lz4, 1),
        (Method::Lz4, 2),
        (Method::Lz4hc, 9),
        (Method::Lz4hc, 12),
        (Method::Deflate, 6),
        (Method::Lzma, 1),
        (Method::Zstd, 3),
        (Method::Zstd, 9),
        (Method::Zstd, 15),
    ] {
        for log in [13, 15, 17, 20] {
            let spec = EncoderSpec::new(method, 1 << log).with_level(level);
            let mut encoder = spec.build().unwrap();
            for input in &inputs {
                encoder.reset();
                let mut decoder = Decoder::new();
                let (fit, _) = fit_checked(&mut *encoder, &mut decoder, &spec, input, 0, 1 << log);
                assert!(fit.consumed > 0);
            }
        }
    }
}

#[test]
fn input_max_limits_the_consumed_bytes() {
    for method in Method::ALL {
        let spec = EncoderSpec {
            input_max: 10_000,
            ..EncoderSpec::new(method, 4096)
        };
        let mut encoder = spec.build().unwrap();
        assert_eq!(encoder.input_max(), 10_000);
        encoder.reset();
        let (fit, _) = fit_checked(
            &mut *encoder,
            &mut Decoder::new(),
            &spec,
            &vec![1; 50_000],
            0,
            4096,
        );
        assert_eq!(fit.consumed, 10_000, "{method}");
    }
}

#[test]
fn a_reset_encoder_writes_the_same_as_a_new_one() {
    for method in Method::ALL {
        for &level in levels(method) {
            let spec = EncoderSpec::new(method, 4096).with_level(level);
            let mut used = spec.build().unwrap();
            for (name, input) in kinds(30_000) {
                let mut fresh = spec.build().unwrap();
                let once = fit_all(&mut *fresh, &spec, &input, 4096);
                let again = fit_all(&mut *used, &spec, &input, 4096);
                assert!(once == again, "{method} {level} on {name}");
            }
        }
    }
}

#[test]
fn outputs_are_at_least_99_percent_full() {
    for method in Method::ALL {
        for &level in levels(method) {
            for (room, len) in [(4096, 100_000), (65536, 600_000)] {
                let spec = EncoderSpec::new(method, room).with_level(level);
                let mut encoder = spec.build().unwrap();
                encoder.reset();
                let input = text(len, 13);
                let fit = encoder.fit(&input, 0, &mut vec![0; room]);
                assert!(fit.consumed < len, "the input is long enough");
                assert!(
                    fit.written * 1000 >= room * 990,
                    "{method} {level}: {} of {room}",
                    fit.written
                );
            }
        }
    }
}

/// Returns streams of every format with their content.
fn streams() -> Vec<(Algorithm, Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    for (method, level) in [
        (Method::Lz4, 1),
        (Method::Lz4, 2),
        (Method::Lz4hc, 9),
        (Method::Deflate, 6),
        (Method::Lzma, 1),
        (Method::Lzma, 6),
        (Method::Zstd, 3),
        (Method::Zstd, 19),
    ] {
        let spec = EncoderSpec::new(method, 4096).with_level(level);
        let mut encoder = spec.build().unwrap();
        for (room, input) in [
            (300, text(3000, 21)),
            (1500, mixed(30_000, 22)),
            (700, random(2000, 23)),
            (64, vec![0; 5000]),
        ] {
            encoder.reset();
            let mut dst = vec![0; room];
            let fit = encoder.fit(&input, 0, &mut dst);
            dst.truncate(fit.written);
            all.push((method.algorithm(), dst, input[..fit.consumed].to_vec()));
        }
    }
    all
}

#[test]
fn prefixes_decode_to_the_first_bytes() {
    let mut decoder = Decoder::new();
    for (algorithm, src, expected) in streams() {
        for len in (0..expected.len())
            .step_by(expected.len() / 50 + 1)
            .chain([expected.len()])
        {
            let mut dst = vec![0x5a; len];
            decoder
                .decode_prefix(algorithm, &src, &mut dst)
                .unwrap_or_else(|e| panic!("{algorithm:?} {len}: {e}"));
            assert!(
                dst == expected[..len],
                "{algorithm:?}, {len} of {}",
                expected.len()
            );
        }
        let mut longer = vec![0; expected.len() + 1];
        assert!(
            decoder.decode_prefix(algorithm, &src, &mut longer).is_err(),
            "{algorithm:?}: there is no more"
        );
    }
}

#[test]
fn ranges_decode_to_the_same_bytes() {
    let mut decoder = Decoder::new();
    let mut all = streams();
    for method in Method::ALL {
        // Longer than any window, and over a megabyte.
        let spec = EncoderSpec::new(method, 1 << 20)
            .with_level(method.default_level().min(3).max(*method.levels().start()));
        let mut encoder = spec.build().unwrap();
        let input = mixed(1_500_000, 77);
        encoder.reset();
        let mut dst = vec![0; 1 << 20];
        let fit = encoder.fit(&input, 0, &mut dst);
        dst.truncate(fit.written);
        all.push((method.algorithm(), dst, input[..fit.consumed].to_vec()));
    }
    for (algorithm, src, expected) in all {
        let len = expected.len();
        for (skip, n) in [
            (0, len),
            (len / 2, 1),
            (len - 1, 1),
            (len / 3, len / 3),
            (len.saturating_sub(70_000), len.min(70_000)),
        ] {
            let mut dst = vec![0x5a; n];
            decoder
                .decode_part(algorithm, &src, skip, &mut dst)
                .unwrap_or_else(|e| panic!("{algorithm:?} {skip} + {n} of {len}: {e}"));
            assert!(
                dst == expected[skip..skip + n],
                "{algorithm:?} {skip} + {n} of {len}"
            );
        }
        assert!(
            decoder.decode_part(algorithm, &src, len, &mut [0]).is_err(),
            "{algorithm:?}: there is no more"
        );
        let mut dst = vec![0; len];
        assert_eq!(
            decoder.decode(algorithm, &src, &mut dst),
            Ok(()),
            "the context is whole"
        );
    }
}

#[test]
fn decoding_in_place_equals_decoding_to_another_buffer() {
    let mut decoder = Decoder::new();
    let mut tried = 0;
    for (algorithm, src, expected) in streams() {
        if algorithm != Algorithm::Lz4 {
            continue;
        }
        tried += 1;
        let len = Decoder::in_place_len(src.len(), expected.len());
        for room in [len, len + 1, len + 5000] {
            let mut buf = vec![0xAA; room];
            buf[room - src.len()..].copy_from_slice(&src);
            decoder
                .decode_in_place(&mut buf, src.len(), expected.len())
                .unwrap();
            assert!(buf[..expected.len()] == expected[..]);
            // Another length gives a malformed block.
            buf[room - src.len()..].copy_from_slice(&src);
            let wrong = expected.len() - 1;
            assert!(decoder.decode_in_place(&mut buf, src.len(), wrong).is_err());
        }
        // For any bytes, no access is out of bounds.
        for seed in 0..200 {
            let mut buf = random(len, seed);
            let _ = decoder.decode_in_place(&mut buf, src.len(), expected.len());
        }
        let mut short = vec![0; src.len().max(expected.len())];
        let at = short.len() - src.len();
        short[at..].copy_from_slice(&src);
        assert!(
            decoder
                .decode_in_place(&mut short, src.len(), expected.len())
                .is_err(),
            "no margin"
        );
    }
    assert!(tried > 0);
}

#[test]
fn wrong_lengths_are_rejected() {
    let mut decoder = Decoder::new();
    for (algorithm, src, expected) in streams() {
        for len in [
            0,
            expected.len() - 1,
            expected.len() + 1,
            expected.len() + 100_000,
        ] {
            assert!(
                decoder.decode(algorithm, &src, &mut vec![0; len]).is_err(),
                "{algorithm:?}, {len}"
            );
        }
        let mut longer = src.clone();
        longer.push(0);
        assert!(
            decoder
                .decode(algorithm, &longer, &mut vec![0; expected.len()])
                .is_err(),
            "{algorithm:?}: a byte more"
        );
    }
}

#[test]
fn every_truncation_is_rejected() {
    let mut decoder = Decoder::new();
    for (algorithm, src, expected) in streams() {
        let mut dst = vec![0; expected.len()];
        for end in 0..src.len() {
            assert!(
                decoder.decode(algorithm, &src[..end], &mut dst).is_err(),
                "{algorithm:?} cut at {end}"
            );
            let _ = decoder.decode_prefix(algorithm, &src[..end], &mut dst[..expected.len() / 2]);
        }
    }
}

#[test]
fn decoding_flipped_bits_stays_in_bounds() {
    let mut decoder = Decoder::new();
    for (algorithm, src, expected) in streams() {
        for bit in 0..src.len() * 8 {
            let mut broken = src.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            for len in [expected.len(), expected.len() / 2] {
                let mut dst = vec![0xa5; len + GUARD];
                let _ = decoder.decode(algorithm, &broken, &mut dst[..len]);
                let _ = decoder.decode_prefix(algorithm, &broken, &mut dst[..len]);
                let _ = decoder.decode_part(algorithm, &broken, len / 2, &mut dst[..len / 2]);
                assert!(
                    dst[len..].iter().all(|&byte| byte == 0xa5),
                    "{algorithm:?} bit {bit}: wrote past the end"
                );
            }
        }
        // The context remains usable.
        let mut dst = vec![0; expected.len()];
        assert_eq!(decoder.decode(algorithm, &src, &mut dst), Ok(()));
        assert!(dst == expected);
    }
}

#[test]
fn noise_is_never_decoded_out_of_bounds() {
    let mut decoder = Decoder::new();
    for seed in 0..2000 {
        let mut src = random(1 + seed as usize % 300, seed);
        for algorithm in [
            Algorithm::Lz4,
            Algorithm::Lzma,
            Algorithm::Deflate,
            Algorithm::Zstd,
        ] {
            if algorithm == Algorithm::Zstd && src.len() > 4 {
                src[..4].copy_from_slice(&[0x28, 0xb5, 0x2f, 0xfd]);
            }
            let mut dst = vec![0xa5; 2000 + GUARD];
            let _ = decoder.decode(algorithm, &src, &mut dst[..2000]);
            let _ = decoder.decode_prefix(algorithm, &src, &mut dst[..2000]);
            assert!(dst[2000..].iter().all(|&byte| byte == 0xa5));
        }
    }
}

#[test]
fn zstd_frames_follow_the_rules_for_images() {
    for &level in levels(Method::Zstd) {
        for (cluster, room) in [(4096, 4096), (65536, 65536), (65536, 1000)] {
            let spec = EncoderSpec::new(Method::Zstd, cluster).with_level(level);
            let mut encoder = spec.build().unwrap();
            for (_, input) in kinds(200_000) {
                encoder.reset();
                let mut dst = vec![0; room];
                let fit = encoder.fit(&input, 0, &mut dst);
                assert!(fit.written > 6);
                assert_eq!(dst[..4], [0x28, 0xb5, 0x2f, 0xfd]);
                // Descriptor: no content size, not a single segment, no checksum, no dictionary id.
                assert_eq!(dst[4], 0, "level {level}");
                let (exponent, mantissa) = (u32::from(dst[5] >> 3), usize::from(dst[5] & 7));
                let window = (1024usize << exponent) / 8 * (8 + mantissa);
                assert!(
                    window <= spec.match_distance_max(),
                    "level {level}: {window}"
                );
            }
        }
    }
}

#[test]
fn zstd_frames_not_allowed_in_images_are_rejected() {
    let mut decoder = Decoder::new();
    let mut try_frame = |rest: &[u8]| {
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd];
        frame.extend(rest);
        decoder
            .decode(Algorithm::Zstd, &frame, &mut [0; 4])
            .map_err(|e| e.to_string())
    };
    // One raw block of 4 bytes: descriptor, window, block header, content.
    assert_eq!(
        try_frame(&[0, 0x50, 0x21, 0, 0, 1, 2, 3, 4]),
        Ok(()),
        "window of 1 MiB"
    );
    assert_eq!(
        try_frame(&[0, 0x58, 0x21, 0, 0, 1, 2, 3, 4]),
        Err("zstd window is larger than 1 MiB".into())
    );
    assert_eq!(
        try_frame(&[0, 0xff, 0x21, 0, 0, 1, 2, 3, 4]),
        Err("no zstd frame header".into())
    );
    assert_eq!(
        try_frame(&[1, 0x50, 9, 0x21, 0, 0, 1, 2, 3, 4]),
        Err("zstd frame wants a dictionary".into())
    );
    assert_eq!(
        try_frame(&[0x20, 4, 0x21, 0, 0, 1, 2, 3, 4]),
        Ok(()),
        "single segment"
    );
    assert_eq!(
        try_frame(&[0, 0x50, 0x21, 0, 0, 1, 2, 3, 4, 5]),
        Err("bytes follow the zstd frame".into())
    );
    let skippable = [0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4];
    assert_eq!(
        decoder
            .decode(Algorithm::Zstd, &skippable, &mut [0; 4])
            .unwrap_err()
            .to_string(),
        "a zstd skippable frame holds no data"
    );
}

#[test]
fn lz4_distances_never_exceed_the_configured_maximum() {
    // 70001 is a period that a 16-bit offset cannot reach: nothing may match.
    for (method, level) in [
        (Method::Lz4, 1),
        (Method::Lz4, 2),
        (Method::Lz4hc, 9),
        (Method::Lz4hc, 12),
    ] {
        let spec = EncoderSpec::new(method, 1 << 20).with_level(level);
        let mut encoder = spec.build().unwrap();
        encoder.reset();
        let input = periodic(300_000, 70001);
        let (fit, out) = fit_checked(
            &mut *encoder,
            &mut Decoder::new(),
            &spec,
            &input,
            0,
            1 << 20,
        );
        assert_eq!(fit.consumed, 300_000);
        assert!(out.len() > 300_000, "{method} {level}");
    }
}

#[test]
fn most_lz4_blocks_can_be_decoded_in_place() {
    let spec = EncoderSpec::new(Method::Lz4hc, 4096);
    let mut encoder = spec.build().unwrap();
    encoder.reset();
    let input = text(400_000, 31);
    let (mut at, mut good, mut count) = (0, 0, 0);
    while at < input.len() {
        let mut dst = [0; 4096];
        let fit = encoder.fit(&input, at, &mut dst);
        at += fit.consumed;
        count += 1;
        good += usize::from(tuff_codec::lz4_decodes_in_place(
            &dst[..fit.written],
            fit.consumed,
        ));
    }
    assert!(good * 10 >= count * 8, "{good} of {count}");
}
