//! Building images.
pub mod source;
