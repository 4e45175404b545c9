//! Raw DEFLATE with libdeflate.

mod decode;
#[cfg(feature = "encode")]
mod encode;
#[cfg(feature = "encode")]
mod truncate;

pub(crate) use decode::Decompressor;
#[cfg(feature = "encode")]
pub(crate) use encode::DeflateEncoder;
