//! Helpers that the tests of all crates share. Development only: no product crate links it.
//!
//! * [`skipped`] and [`note`] report what a test could not do on this host.
//! * [`Rng`] is the random number generator of tests, crash campaigns and generated workloads.

mod rng;

pub use rng::Rng;

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
