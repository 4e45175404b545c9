//! Creation of encoders.

use crate::{Error, Result};
use std::io;
use tuff_codec::{Encoder, EncoderSpec};

/// Creates an encoder.
///
/// # Errors
///
/// `Usage` for invalid settings, `Io` if memory is short.
pub(crate) fn new_encoder(spec: &EncoderSpec) -> Result<Box<dyn Encoder>> {
    spec.build().map_err(|e| match e.is_memory() {
        true => Error::io("memory", e, io::ErrorKind::OutOfMemory.into()),
        false => Error::usage(e),
    })
}
