//! Helpers that the tests of all crates share. Development only: no product crate links it.
//!
//! * [`skipped`] and [`note`] report what a test could not do on this host.
//! * [`http`] is a web server whose answers a test chooses.
//! * [`hostile`] has servers that answer byte by byte, and record what they receive.
//! * [`registry`] has the answers of a registry of container images.
//! * [`elf`] makes ELF files.
//! * [`openssl`] makes keys and certificates.
//! * [`namespace`] has processes with mount namespaces of their own.
//! * [`program`] makes executables, and repeats commands while a mount is busy.
//! * [`schema`] checks JSON output against a JSON Schema.
//! * [`Rng`] is the random number generator of tests, crash campaigns and generated workloads.
//! * `content` generates the bytes of files.
//!
//! The feature `images` adds helpers for tests of EROFS images:
//!
//! * `tree` creates source trees, records trees of the host and of images, and compares the records.
//! * `variants` and `sample` build images with many combinations of options.
//! * `assemble`, `sheet` and `shapes` compose images that no builder writes, valid or invalid.
//! * `kernel` mounts images by the kernel.
//!
//! The feature `signature` adds signers and certificates of these keys to [`openssl`].
//!
//! Unit tests inside `tuff-erofs` and `tuff-mkfs` use only what the crate offers without that feature: the types of the library
//! under test and of the library linked here differ.

#[cfg(feature = "images")]
pub mod assemble;
pub mod content;
pub mod elf;
pub mod hostile;
pub mod http;
#[cfg(feature = "images")]
pub mod kernel;
pub mod namespace;
pub mod openssl;
pub mod program;
pub mod registry;
mod rng;
#[cfg(feature = "images")]
pub mod sample;
pub mod schema;
mod scratch;
#[cfg(feature = "images")]
pub mod shapes;
#[cfg(feature = "images")]
pub mod sheet;
#[cfg(feature = "images")]
pub mod tree;
#[cfg(feature = "images")]
pub mod variants;

pub use rng::Rng;
pub use scratch::{Scratch, unused_path};

use std::fmt::Display;
use std::io::Write;

/// Reports that a test, or a part of it, does not run on this host. The line bypasses the test runner,
/// which captures output.
///
/// # Panics
/// If `TUFF_REQUIRE_ALL` is 1: the host is then expected to have everything that tests need.
#[track_caller]
pub fn skipped(what: impl Display) {
    let required = std::env::var_os("TUFF_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(
        !required,
        "skipped although TUFF_REQUIRE_ALL is set: {what}"
    );
    // If standard error is closed, the line is lost.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what}");
}

/// Reports that an additional comparison does not apply on this host, although the property in the
/// test's name was tested. An example is another program that is too old to read an image.
pub fn note(what: impl Display) {
    // If standard error is closed, the line is lost.
    let _ = writeln!(std::io::stderr(), "NOTE: {what}");
}

/// Returns whether the test runs as root.
#[cfg(feature = "images")]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
