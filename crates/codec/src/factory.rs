//! Creation of the encoder that an [`EncoderSpec`] describes.

use crate::level_cascade::LevelCascade;
use crate::{Encoder, EncoderSpec, Method, SpecError, lz4};

impl EncoderSpec {
    /// Creates an encoder, ready for its first input.
    ///
    /// # Errors
    /// Fails if a setting is out of range, the method is not part of this build, or memory cannot be allocated.
    pub fn build(&self) -> Result<Box<dyn Encoder>, SpecError> {
        self.check()?;
        LevelCascade::wrap(self, encoder(self)?, encoder)
    }
}

/// Creates an encoder for the settings, which are valid, without faster levels before it.
fn encoder(spec: &EncoderSpec) -> Result<Box<dyn Encoder>, SpecError> {
    match spec.method {
        Method::Lz4 if spec.level >= 2 => Ok(Box::new(lz4::GreedyEncoder::<65536>::new(spec))),
        Method::Lz4 => Ok(Box::new(lz4::GreedyEncoder::<8192>::new(spec))),
        Method::Lz4hc => Ok(lz4hc(spec)),
        Method::Deflate => deflate(spec),
        Method::Lzma => lzma(spec),
        Method::Zstd => zstd(spec),
    }
}

fn lz4hc(spec: &EncoderSpec) -> Box<dyn Encoder> {
    let attempts = match spec.level {
        ..=8 => return Box::new(lz4::HighCompressionEncoder::new(spec)),
        // Small outputs hold little input to search.
        9 if spec.cluster < 8 << 10 => 8,
        9 if spec.cluster < 32 << 10 => 12,
        9 => 20,
        10 => 32,
        11 => 64,
        _ => 128,
    };
    Box::new(lz4::OptimalEncoder::new(spec, attempts))
}

#[cfg(feature = "deflate")]
fn deflate(spec: &EncoderSpec) -> Result<Box<dyn Encoder>, SpecError> {
    let encoder = crate::deflate::DeflateEncoder::new(spec).ok_or_else(|| no_memory(spec))?;
    Ok(Box::new(encoder))
}

#[cfg(not(feature = "deflate"))]
use unsupported as deflate;

#[cfg(feature = "lzma")]
fn lzma(spec: &EncoderSpec) -> Result<Box<dyn Encoder>, SpecError> {
    crate::lzma::encoder(spec).ok_or_else(|| no_memory(spec))
}

#[cfg(not(feature = "lzma"))]
use unsupported as lzma;

#[cfg(feature = "zstd")]
fn zstd(spec: &EncoderSpec) -> Result<Box<dyn Encoder>, SpecError> {
    let encoder = crate::zstd::ZstdEncoder::new(spec).ok_or_else(|| no_memory(spec))?;
    Ok(Box::new(encoder))
}

#[cfg(not(feature = "zstd"))]
use unsupported as zstd;

#[cfg(any(feature = "deflate", feature = "lzma", feature = "zstd"))]
fn no_memory(spec: &EncoderSpec) -> SpecError {
    SpecError {
        what: format!("not enough memory for a {} encoder", spec.method),
        is_memory: true,
    }
}

#[cfg(not(all(feature = "deflate", feature = "lzma", feature = "zstd")))]
fn unsupported(spec: &EncoderSpec) -> Result<Box<dyn Encoder>, SpecError> {
    Err(SpecError::new(format!(
        "{} compression is not part of this build",
        spec.method
    )))
}
