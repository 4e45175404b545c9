//! Stress campaigns: long randomized tests of images and volumes. They measure no performance; their results
//! are the extent of the tests and the failures found.

pub mod cache;
pub mod crash;
pub mod files;
pub mod hostile;
pub mod images;
pub mod kills;
pub mod names;
mod program;
pub mod rounds;
