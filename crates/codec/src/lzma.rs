//! MicroLZMA: an encoder of our own, and liblzma as the decoder.
//!
//! ```text
//!  match finder: earlier occurrences of the next bytes
//!    └► parser: choice of symbols             symbol by symbol, until the next one does not fit
//!         └► model: probabilities
//!              └► range coder: bytes
//! ```

mod decode;
#[cfg(feature = "encode")]
mod encode;
#[cfg(feature = "encode")]
mod lazy;
#[cfg(feature = "encode")]
mod match_finder;
#[cfg(feature = "encode")]
mod model;
#[cfg(feature = "encode")]
mod optimal;
#[cfg(feature = "encode")]
mod parser;
#[cfg(feature = "encode")]
mod prices;
#[cfg(feature = "encode")]
mod range_coder;

pub(crate) use decode::Decompressor;
#[cfg(feature = "encode")]
pub(crate) use encode::encoder;
