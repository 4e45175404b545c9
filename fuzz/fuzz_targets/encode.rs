//! Encoders write nothing past the output, and each output decodes to the consumed input.
//! Input: method and level, two bytes of output length, number of repetitions, then the bytes to encode.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tuff_codec::{Decoder, EncoderSpec, Method};

fuzz_target!(|data: &[u8]| {
    let Some((&[how, room_low, room_high, times], rest)) = data.split_first_chunk() else {
        return;
    };
    if rest.is_empty() {
        return;
    }
    let settings = [
        (Method::Lz4, 1),
        (Method::Lz4, 2),
        (Method::Lz4hc, 9),
        (Method::Lz4hc, 12),
        (Method::Zstd, 2),
        (Method::Zstd, 3),
        (Method::Zstd, 5),
        (Method::Zstd, 9),
        (Method::Zstd, 15),
        (Method::Deflate, 6),
        (Method::Lzma, 1),
        (Method::Lzma, 6),
    ];
    let (method, level) = settings[usize::from(how) % settings.len()];
    let cluster = [4096, 65536][usize::from(how >> 7)];
    // Long inputs from little data: a different byte precedes each repetition, so that matches begin and end.
    let mut input = Vec::new();
    for i in 0..=times {
        input.push(i);
        input.extend_from_slice(rest);
    }
    let spec = EncoderSpec::new(method, cluster).with_level(level);
    let mut encoder = spec.build().expect("the settings are good");
    let room = 64 + usize::from(u16::from_le_bytes([room_low, room_high])) % (cluster - 63);
    let mut decoder = Decoder::new();
    let mut dst = vec![0xa5; room + 64];
    let mut at = 0;
    encoder.reset();
    while at < input.len() {
        dst.fill(0xa5);
        let fit = encoder.fit(&input, at, &mut dst[..room]);
        assert!(dst[room..].iter().all(|&byte| byte == 0xa5));
        assert!(fit.written <= room && fit.consumed <= input.len() - at);
        assert!(
            fit.consumed > 0,
            "{method} {level}: nothing fits into {room}"
        );
        assert_ne!(dst[0], 0);
        let mut back = vec![0; fit.consumed];
        decoder
            .decode(method.algorithm(), &dst[..fit.written], &mut back)
            .expect("output decodes");
        assert!(back == input[at..at + fit.consumed]);
        at += fit.consumed;
    }
});
