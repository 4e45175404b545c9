//! The fourth room: long looks at images and volumes for something that is wrong. No figure is measured here; what comes out is how much was looked at, and
//! what was found.

pub mod crash;
pub mod files;
pub mod images;
