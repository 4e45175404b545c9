//! LZ4 blocks: decoders, validation, and encoders from greedy to optimal parsing.

mod decode;
#[cfg(feature = "encode")]
mod greedy;
#[cfg(feature = "encode")]
mod high_compression;
mod in_place;
mod length;
#[cfg(feature = "encode")]
mod optimal;
#[cfg(feature = "encode")]
mod truncate;
mod validate;
mod window;

pub use decode::lz4_decode;
pub(crate) use decode::{decode, decode_in_place, decode_prefix, in_place_margin};
#[cfg(feature = "encode")]
pub(crate) use greedy::GreedyEncoder;
#[cfg(feature = "encode")]
pub(crate) use high_compression::HighCompressionEncoder;
pub use in_place::lz4_decodes_in_place;
#[cfg(feature = "encode")]
pub(crate) use optimal::OptimalEncoder;
pub use validate::lz4_validate;
pub(crate) use window::WindowDecoder;
