//! Helpers that tests of all crates share.

use std::fmt::Display;
use std::io::Write;

/// Reports that a test, or a part of it, does not run on this host, past the test runner, which would swallow the line.
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
    // Without standard error there is nowhere to report it.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what}");
}

/// Reports that an additional comparison does not apply here, although the property in the test's name was tested: another
/// program is too old to read an image, for example.
pub fn note(what: impl Display) {
    // Without standard error there is nowhere to report it.
    let _ = writeln!(std::io::stderr(), "NOTE: {what}");
}
