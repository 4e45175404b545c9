//! The published experiments, in virtual time on the flash model.
//!
//! ```text
//!  workload ──► filesystem: an IPLFS volume | f2fs: the baseline ──► disk: queue, discards ──► crate::Flash
//! ```
//!
//! | module | experiments |
//! |---|---|
//! | [`cleaning`] | E1, E2: random writes until cleaning begins, and in steady state |
//! | [`latency`] | E3, E7, E8: query latency of databases, map maintenance, zoned devices |
//! | [`space`] | E4, E5, E9, E10: discards, memory of the map, allocated space |
//! | [`translation`] | E6: cost of an address translation |
//!
//! All randomness comes from a seed. Only the nanoseconds of E6 depend on a real clock.

pub mod cleaning;
pub mod definition;
pub mod disk;
pub mod error;
pub mod f2fs;
pub mod filesystem;
pub mod latency;
pub mod outcome;
pub mod random;
pub mod space;
pub mod translation;
pub mod workload;

use definition::{Experiment, Scale};
use error::{Error, Result};
use outcome::Outcome;
use std::path::Path;

/// Runs one experiment, E1 to E10. E10 creates its volumes in the folder `work`.
pub fn run(e: &Experiment, scale: &Scale, seed: u64, work: &Path) -> Result<Outcome> {
    match e.id.as_str() {
        "E1" => cleaning::e1(e, scale, seed),
        "E2" => cleaning::e2(e, scale, seed),
        "E3" => latency::e3(e, scale, seed),
        "E4" => space::e4(e, scale, seed),
        "E5" => space::e5(e, scale, seed),
        "E6" => translation::e6(e, scale, seed),
        "E7" => latency::e7(e, scale, seed),
        "E8" => latency::e8(e, scale, seed),
        "E9" => space::e9(e, scale, seed),
        "E10" => space::e10(e, scale, seed, work),
        other => Err(Error::Usage(format!("experiment '{other}' does not exist"))),
    }
}
