//! Samples of a large file, to decide whether it shrinks.

use super::content::FileContent;
use crate::Result;
use crate::pack::encoder::new_encoder;
use tuff_codec::{Encoder, EncoderSpec};

/// Number of samples per file.
const PLACES: u64 = 8;
/// Length of a sample in bytes.
const LEN: usize = 64 << 10;

/// Encoder and buffers, kept for the next file.
#[derive(Default)]
pub(super) struct Probe {
    encoder: Option<(EncoderSpec, Box<dyn Encoder>)>,
    raw: Vec<u8>,
    out: Vec<u8>,
}

impl Probe {
    /// Returns false if no sample of a file of `size` bytes, at least [`LEN`], shrinks under the file's encoder. LZ4
    /// would not do: without repetitions it finds nothing, where entropy coding saves much.
    pub(super) fn is_worth(
        &mut self,
        content: &FileContent,
        size: u64,
        spec: EncoderSpec,
    ) -> Result<bool> {
        let reader = content.open()?;
        let spec = EncoderSpec {
            cluster: LEN,
            unit: 1,
            ..spec
        };
        // A smaller window limits the input of every cluster.
        let len = spec.input_max.min(LEN);
        let encoder = match &mut self.encoder {
            Some((known, encoder)) if *known == spec => encoder,
            other => &mut other.insert((spec, new_encoder(&spec)?)).1,
        };
        self.raw.resize(len, 0);
        self.out.resize(len, 0);
        for i in 0..PLACES {
            let at = (size - len as u64) / (PLACES - 1) * i;
            reader.read_exact(&mut self.raw, at)?;
            encoder.reset();
            let fit = encoder.fit(&self.raw, 0, &mut self.out);
            if fit.consumed == len && fit.written < len - len / 32 {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
