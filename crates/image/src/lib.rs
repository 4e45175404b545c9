//! tuff-image
pub mod build;
